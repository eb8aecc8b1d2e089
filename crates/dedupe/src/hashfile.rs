//! The hash file: what was read of each file, so that a second run reads only what has changed.
//!
//! A redb database with four tables:
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | a word | version, UUID of the file system, cutting, next id, scope |
//! | `handles` | the file's handle (inode and generation, on btrfs the subvolume) | its id |
//! | `files` | id of the file | a [`FileRecord`] |
//! | `hashes` | id of the file, number of the segment | its items, eight bytes each |
//!
//! A file is *settled* in a scope when all has been done for it that can be done with the others of that scope: the
//! same paths, with the same settings. Another scope has another number: what was settled in the last one is not in it.
//!
//! It belongs to one file system and one way of cutting, and refuses others. A crash leaves the last commit; what was
//! not committed is read again. Bytes that are not as they should be are an error that says which file to remove:
//! all of it can be made again. redb checks the sums of all pages when it is opened.

use crate::error::DedupeError;
use crate::items::{Cutting, Item};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Rises when what is in it changes its meaning.
const VERSION: u64 = 1;
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const HANDLES: TableDefinition<'_, &[u8], u32> = TableDefinition::new("handles");
const FILES: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("files");
const HASHES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("hashes");

/// By these a file is known to be as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub mtime: i64,
    /// Nanoseconds since 1970.
    pub ctime: i64,
    /// Inode number.
    pub ino: u64,
}

impl Stamp {
    /// Its bytes.
    pub fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let numbers = [self.size, self.mtime as u64, self.ctime as u64, self.ino];
        for (to, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// From its bytes.
    pub fn decode(bytes: [u8; 32]) -> Self {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self { size: number(0), mtime: number(8) as i64, ctime: number(16) as i64, ino: number(24) }
    }
}

/// A file as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRecord {
    /// Its number in the hash file.
    pub id: u32,
    /// As it was when it was read.
    pub stamp: Stamp,
    /// The scope in which all has been done for it that can be, or 0.
    pub settled: u32,
    /// Segments that were read, from the first: all of them, but for a file whose reading was cut short.
    pub segments: u32,
    /// Whether others shared its first extents.
    pub is_shared: bool,
    /// A reason not to change which blocks it has.
    pub fixed: Option<Fixed>,
    /// Its absolute path, without symbolic links.
    pub path: Vec<u8>,
}

/// Reasons why a file's blocks are left as they are; others may share them, but for the last ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Fixed {
    /// `chattr +i`.
    Immutable = 1,
    /// `chattr +a`.
    AppendOnly = 2,
    /// `chattr +C`: without checksums, so that the file system shares it with its like alone.
    NoCow = 3,
    /// The kernel swaps to it.
    Swap = 4,
    /// It lies within its inode.
    Inline = 5,
}

impl Fixed {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Immutable, Self::AppendOnly, Self::NoCow, Self::Swap, Self::Inline];

    /// A word for scripts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Immutable => "immutable",
            Self::AppendOnly => "append_only",
            Self::NoCow => "nocow",
            Self::Swap => "swap",
            Self::Inline => "inline",
        }
    }

    /// Whether others may share its blocks.
    pub fn is_source(self) -> bool {
        matches!(self, Self::Immutable | Self::AppendOnly)
    }
}

impl FileRecord {
    const HEAD: usize = 48;

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::HEAD + self.path.len());
        for number in [self.id, self.settled, self.segments] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&[u8::from(self.is_shared), self.fixed.map_or(0, |fixed| fixed as u8), 0, 0]);
        bytes.extend_from_slice(&self.stamp.encode());
        bytes.extend_from_slice(&self.path);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, path) = bytes.split_at_checked(Self::HEAD)?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let fixed = match head[13] {
            0 => None,
            known => Some(*Fixed::ALL.iter().find(|fixed| **fixed as u8 == known)?),
        };
        Some(Self {
            id: number(0),
            settled: number(4),
            segments: number(8),
            is_shared: head[12] & 1 != 0,
            fixed,
            stamp: Stamp::decode(head[16..].try_into().expect("a stamp")),
            path: path.to_vec(),
        })
    }
}

/// An open hash file.
pub struct HashFile {
    path: PathBuf,
    database: Database,
    next_id: u32,
}

fn key(id: u32, segment: u32) -> u64 {
    u64::from(id) << 32 | u64::from(segment)
}

impl HashFile {
    /// Opens the one at `path`, or makes it: for the file system `uuid`, cut like that, with `memory` bytes of cache.
    ///
    /// # Errors
    /// When it is damaged, of something else, or in use.
    pub fn open(path: &Path, uuid: [u8; 16], cutting: Cutting, memory: u64) -> Result<Self, DedupeError> {
        match path.metadata() {
            Ok(found) if found.len() > 0 => {}
            found => make(path, uuid, cutting, found.is_ok())?,
        }
        let open = || {
            Database::builder().set_cache_size(memory as usize).set_check_integrity_on_open(true).open(path)
        };
        // Damaged files may make redb panic.
        let database = match catch_unwind(AssertUnwindSafe(open)) {
            Ok(Ok(database)) => database,
            Ok(Err(redb::DatabaseError::DatabaseAlreadyOpen)) => {
                return Err(DedupeError::Busy { path: path.to_owned() });
            }
            Ok(Err(error)) => return Err(failed(path, error)),
            Err(_) => return Err(bad(path, &"it is damaged")),
        };
        let mut file = Self { path: path.to_owned(), database, next_id: 0 };
        let Some(version) = file.meta("version")? else {
            return Err(bad(path, &"it is a database of something else"));
        };
        let foreign = |why: String| Err(DedupeError::Foreign { path: path.to_owned(), why });
        if version != VERSION.to_le_bytes() {
            return foreign("was made by another version of this command".to_owned());
        }
        if file.meta("uuid")?.is_none_or(|its| its != uuid) {
            return foreign("is of another file system".to_owned());
        }
        let number = |name| -> Result<u64, DedupeError> {
            let bytes = file.meta(name)?.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
            bytes.map(u64::from_le_bytes).ok_or_else(|| bad(path, &"a number is missing"))
        };
        let (block, by_content) = (number("block")?, number("by-content")? != 0);
        if (block, by_content) != (cutting.block(), cutting.is_by_content()) {
            let how = if by_content { "by content, to " } else { "into blocks of " };
            return foreign(format!("was made of files cut {how}{} KiB", block >> 10));
        }
        file.next_id = u32::try_from(number("next-id")?).map_err(|_| bad(path, &"a number is too large"))?;
        Ok(file)
    }

    fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, DedupeError> {
        let read = self.database.begin_read().map_err(|error| failed(&self.path, error))?;
        match read.open_table(META) {
            Ok(table) => {
                let found = table.get(name).map_err(|error| failed(&self.path, error))?;
                Ok(found.map(|value| value.value().to_vec()))
            }
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(failed(&self.path, error)),
        }
    }

    /// Number of the scope that `words` tell: that of the run before, where it was the same.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn scope(&self, words: &[u8]) -> Result<u32, DedupeError> {
        let number = self.meta("scope-number")?.and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        let number = number.map_or(0, u32::from_le_bytes);
        if number > 0 && self.meta("scope")?.is_some_and(|its| its == words) {
            return Ok(number);
        }
        let number = number.checked_add(1).ok_or_else(|| bad(&self.path, &"a number is too large"))?;
        let write = self.write()?;
        write.put_meta("scope", words)?;
        write.put_meta("scope-number", &number.to_le_bytes())?;
        write.commit()?;
        Ok(number)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that it takes.
    pub fn size(&self) -> u64 {
        self.path.metadata().map_or(0, |found| found.len())
    }

    /// A number that no file of it has had.
    pub fn fresh_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Numbers that were given out are below this.
    pub fn ids(&self) -> u32 {
        self.next_id
    }

    /// Begins to write. Nothing of it is kept without [`Writing::commit`].
    ///
    /// # Errors
    /// When the disk fails.
    pub fn write(&self) -> Result<Writing<'_>, DedupeError> {
        let transaction = self.database.begin_write().map_err(|error| failed(&self.path, error))?;
        Ok(Writing { path: &self.path, transaction })
    }

    /// Begins to read: sees what is committed now.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn read(&self) -> Result<Reading, DedupeError> {
        let transaction = self.database.begin_read().map_err(|error| failed(&self.path, error))?;
        Ok(Reading {
            path: self.path.clone(),
            handles: transaction.open_table(HANDLES).map_err(|error| failed(&self.path, error))?,
            files: transaction.open_table(FILES).map_err(|error| failed(&self.path, error))?,
            hashes: transaction.open_table(HASHES).map_err(|error| failed(&self.path, error))?,
        })
    }
}

/// Makes an empty one, which is there whole or not at all, and which nobody else may read: it has the names of files.
/// It `replaces` a file without a byte; one that somebody else made meanwhile stays.
fn make(path: &Path, uuid: [u8; 16], cutting: Cutting, replaces: bool) -> Result<(), DedupeError> {
    let storage = |error| DedupeError::Storage { path: path.to_owned(), error };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = tempfile::Builder::new().prefix(".larder-dedupe-").tempfile_in(folder).map_err(storage)?;
    let database = Database::create(name.path()).map_err(|error| failed(path, error))?;
    let file = HashFile { path: path.to_owned(), database, next_id: 0 };
    let write = file.write()?;
    write.put_meta("uuid", &uuid)?;
    write.put_meta("block", &cutting.block().to_le_bytes())?;
    write.put_meta("by-content", &u64::from(cutting.is_by_content()).to_le_bytes())?;
    write.put_meta("next-id", &0u64.to_le_bytes())?;
    write.put_meta("version", &VERSION.to_le_bytes())?;
    write.tables()?;
    write.commit()?;
    drop(file);
    let outcome = if replaces { name.persist(path) } else { name.persist_noclobber(path) };
    match outcome {
        Err(failed) if failed.error.kind() != std::io::ErrorKind::AlreadyExists => Err(storage(failed.error)),
        _ => Ok(()),
    }
}

/// The error of a database, which may be that of the disk that it is on.
fn failed(path: &Path, error: impl Into<redb::Error>) -> DedupeError {
    match error.into() {
        redb::Error::Io(error) if error.kind() != std::io::ErrorKind::InvalidData => {
            DedupeError::Storage { path: path.to_owned(), error }
        }
        error => bad(path, &error),
    }
}

fn bad(path: &Path, why: &dyn std::fmt::Display) -> DedupeError {
    DedupeError::BadHashFile { path: path.to_owned(), why: why.to_string() }
}

/// Changes under way.
pub struct Writing<'a> {
    path: &'a Path,
    transaction: WriteTransaction,
}

impl Writing<'_> {
    fn done<T, E: Into<redb::Error>>(&self, result: Result<T, E>) -> Result<T, DedupeError> {
        result.map_err(|error| failed(self.path, error))
    }

    fn put_meta(&self, name: &str, value: &[u8]) -> Result<(), DedupeError> {
        let mut table = self.done(self.transaction.open_table(META))?;
        self.done(table.insert(name, value)).map(|_| ())
    }

    fn tables(&self) -> Result<(), DedupeError> {
        self.done(self.transaction.open_table(HANDLES))?;
        self.done(self.transaction.open_table(FILES))?;
        self.done(self.transaction.open_table(HASHES)).map(|_| ())
    }

    /// Notes a file.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn put(&self, handle: &[u8], record: &FileRecord) -> Result<(), DedupeError> {
        let mut table = self.done(self.transaction.open_table(HANDLES))?;
        self.done(table.insert(handle, record.id))?;
        self.put_record(record)
    }

    /// Notes what is new of a file that is known.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn put_record(&self, record: &FileRecord) -> Result<(), DedupeError> {
        let mut table = self.done(self.transaction.open_table(FILES))?;
        self.done(table.insert(record.id, &record.encode()[..])).map(|_| ())
    }

    /// Notes the items of a segment; none of a hole.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn put_items(&self, id: u32, segment: u32, items: &[Item]) -> Result<(), DedupeError> {
        if items.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = items.iter().flat_map(|item| item.bits().to_le_bytes()).collect();
        let mut table = self.done(self.transaction.open_table(HASHES))?;
        self.done(table.insert(key(id, segment), &bytes[..])).map(|_| ())
    }

    /// Forgets a file.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn remove(&self, handle: &[u8], id: u32) -> Result<(), DedupeError> {
        let mut handles = self.done(self.transaction.open_table(HANDLES))?;
        self.done(handles.remove(handle))?;
        let mut files = self.done(self.transaction.open_table(FILES))?;
        self.done(files.remove(id))?;
        self.remove_items(id)
    }

    /// Forgets the items of a file.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn remove_items(&self, id: u32) -> Result<(), DedupeError> {
        let mut table = self.done(self.transaction.open_table(HASHES))?;
        self.done(table.retain_in(key(id, 0)..=key(id, u32::MAX), |_, _| false))
    }

    /// Keeps all of it, before and after a crash.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn commit(self) -> Result<(), DedupeError> {
        let path = self.path;
        self.transaction.commit().map_err(|error| failed(path, error))
    }

    /// Keeps all of it, and which ids were given out.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn commit_ids(self, next_id: u32) -> Result<(), DedupeError> {
        self.commit_as(next_id, true)
    }

    /// The same; unless it `outlasts` a crash, it may be gone after one, with all that came after it, until one does.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn commit_as(mut self, next_id: u32, outlasts: bool) -> Result<(), DedupeError> {
        self.put_meta("next-id", &u64::from(next_id).to_le_bytes())?;
        if !outlasts {
            let set = self.transaction.set_durability(redb::Durability::None);
            self.done(set)?;
        }
        self.commit()
    }
}

/// The state that was committed at some moment.
pub struct Reading {
    path: PathBuf,
    handles: redb::ReadOnlyTable<&'static [u8], u32>,
    files: redb::ReadOnlyTable<u32, &'static [u8]>,
    hashes: redb::ReadOnlyTable<u64, &'static [u8]>,
}

impl Reading {
    /// The record of a file.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn get(&self, handle: &[u8]) -> Result<Option<FileRecord>, DedupeError> {
        let found = self.handles.get(handle).map_err(|error| failed(&self.path, error))?;
        found.map(|id| self.record(id.value())).transpose().map(Option::flatten)
    }

    /// The record of the file `id`.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn record(&self, id: u32) -> Result<Option<FileRecord>, DedupeError> {
        let found = self.files.get(id).map_err(|error| failed(&self.path, error))?;
        found.map(|found| self.decoded(found.value())).transpose()
    }

    fn decoded(&self, bytes: &[u8]) -> Result<FileRecord, DedupeError> {
        FileRecord::decode(bytes).ok_or_else(|| bad(&self.path, &"a file's record is damaged"))
    }

    /// Calls `each` with handle and id of all files.
    ///
    /// # Errors
    /// When the disk fails, and those of `each`.
    pub fn each_handle(
        &self,
        mut each: impl FnMut(&[u8], u32) -> Result<(), DedupeError>,
    ) -> Result<(), DedupeError> {
        for found in self.handles.iter().map_err(|error| failed(&self.path, error))? {
            let (handle, id) = found.map_err(|error| failed(&self.path, error))?;
            each(handle.value(), id.value())?;
        }
        Ok(())
    }

    /// Calls `each` with the records of all files, by id.
    ///
    /// # Errors
    /// When one is damaged, and those of `each`.
    pub fn each_record(
        &self,
        mut each: impl FnMut(FileRecord) -> Result<(), DedupeError>,
    ) -> Result<(), DedupeError> {
        for found in self.files.iter().map_err(|error| failed(&self.path, error))? {
            let (_, record) = found.map_err(|error| failed(&self.path, error))?;
            each(self.decoded(record.value())?)?;
        }
        Ok(())
    }

    /// Calls `each` with id, number and items of all segments, by id and number.
    ///
    /// # Errors
    /// When the disk fails, and those of `each`.
    pub fn each_segment(
        &self,
        mut each: impl FnMut(u32, u32, &mut dyn Iterator<Item = Item>) -> Result<(), DedupeError>,
    ) -> Result<(), DedupeError> {
        for found in self.hashes.iter().map_err(|error| failed(&self.path, error))? {
            let (key, value) = found.map_err(|error| failed(&self.path, error))?;
            let (key, value) = (key.value(), value.value());
            each((key >> 32) as u32, key as u32, &mut decode_items(value))?;
        }
        Ok(())
    }

    /// Items of one segment; none of a hole.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn items(&self, id: u32, segment: u32) -> Result<Vec<Item>, DedupeError> {
        let found = self.hashes.get(key(id, segment)).map_err(|error| failed(&self.path, error))?;
        Ok(found.map_or_else(Vec::new, |value| decode_items(value.value()).collect()))
    }
}

fn decode_items(bytes: &[u8]) -> impl Iterator<Item = Item> {
    bytes
        .chunks_exact(8)
        .map(|bits| Item::from_bits(u64::from_le_bytes(bits.try_into().expect("eight bytes"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const CACHE: u64 = 1 << 20;

    fn cutting() -> Cutting {
        Cutting::blocks(4096).unwrap()
    }

    fn record(id: u32) -> FileRecord {
        let stamp = Stamp { size: 5, mtime: -7, ctime: 9, ino: u64::MAX };
        let path = b"/a\xff\n".to_vec();
        FileRecord { id, stamp, settled: 3, segments: 9, is_shared: true, fixed: Some(Fixed::NoCow), path }
    }

    fn filled(path: &Path) {
        let mut file = HashFile::open(path, [1; 16], cutting(), CACHE).unwrap();
        let id = file.fresh_id();
        let write = file.write().unwrap();
        write.put(b"handle", &record(id)).unwrap();
        write.put_items(id, 3, &[Item::hole(1), Item::from_bits(7 << 8 | 1)]).unwrap();
        write.commit_ids(file.ids()).unwrap();
    }

    fn refusal(path: &Path, uuid: [u8; 16], cutting: Cutting) -> String {
        HashFile::open(path, uuid, cutting, CACHE).err().expect("it is refused").to_string()
    }

    #[test]
    fn what_was_noted_is_there_again_and_what_is_forgotten_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hashes");
        filled(&path);
        let mut file = HashFile::open(&path, [1; 16], cutting(), CACHE).unwrap();
        assert_eq!(file.fresh_id(), 1, "ids are not given out again");
        let read = file.read().unwrap();
        assert_eq!(read.get(b"handle").unwrap(), Some(record(0)));
        assert_eq!(read.items(0, 3).unwrap().len(), 2);
        assert_eq!(read.items(0, 2).unwrap().len(), 0);
        let write = file.write().unwrap();
        write.remove(b"handle", 0).unwrap();
        write.commit().unwrap();
        let read = file.read().unwrap();
        assert_eq!((read.get(b"handle").unwrap(), read.items(0, 3).unwrap().len()), (None, 0));
    }

    #[test]
    fn a_scope_keeps_its_number_until_there_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hashes");
        filled(&path);
        let file = HashFile::open(&path, [1; 16], cutting(), CACHE).unwrap();
        let numbers: Vec<u32> =
            [b"a", b"a", b"b", b"a"].iter().map(|words| file.scope(*words).unwrap()).collect();
        assert_eq!(numbers, [1, 1, 2, 3]);
    }

    #[test]
    fn a_database_of_another_program_is_refused_and_nobody_else_may_read_ours() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        let other = Database::create(&path).unwrap();
        let write = other.begin_write().unwrap();
        write.open_table(TableDefinition::<u64, u64>::new("theirs")).unwrap();
        write.commit().unwrap();
        drop(other);
        assert!(refusal(&path, [1; 16], cutting()).ends_with("it is a database of something else"));
        let path = folder.path().join("hashes");
        filled(&path);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_without_a_byte_becomes_one_and_a_new_one_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hashes");
        fs::write(&path, b"").unwrap();
        filled(&path);
        filled(&folder.path().join("other"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    }

    #[test]
    fn what_was_not_committed_never_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hashes");
        filled(&path);
        let file = HashFile::open(&path, [1; 16], cutting(), CACHE).unwrap();
        file.write().unwrap().remove(b"handle", 0).unwrap();
        assert!(file.read().unwrap().get(b"handle").unwrap().is_some());
    }

    #[test]
    fn another_file_system_another_cutting_another_version_and_another_run_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hashes");
        filled(&path);
        assert!(refusal(&path, [2; 16], cutting()).ends_with("is of another file system"));
        let other = Cutting::blocks(65536).unwrap();
        assert!(refusal(&path, [1; 16], other).ends_with("was made of files cut into blocks of 4 KiB"));
        let file = HashFile::open(&path, [1; 16], cutting(), CACHE).unwrap();
        assert!(refusal(&path, [1; 16], cutting()).ends_with("is in use by another run"));
        let write = file.write().unwrap();
        write.put_meta("version", &9u64.to_le_bytes()).unwrap();
        write.commit().unwrap();
        drop(file);
        assert!(refusal(&path, [1; 16], cutting()).ends_with("was made by another version of this command"));
    }

    /// Whatever is done to its bytes, it is refused or reads as something; it never panics.
    #[test]
    fn damaged_files_are_refused_or_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hashes");
        filled(&path);
        let sound = fs::read(&path).unwrap();
        assert!({
            fs::write(&path, b"this is no database").unwrap();
            refusal(&path, [1; 16], cutting()).contains("is no sound hash file")
        });
        let mut refused = 0;
        for at in (0..sound.len()).step_by(sound.len() / 150) {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x55;
            if at % 3 == 0 {
                bytes.truncate(at);
            }
            fs::write(&path, &bytes).unwrap();
            let Ok(file) = HashFile::open(&path, [1; 16], cutting(), CACHE) else {
                refused += 1;
                continue;
            };
            if let Ok(read) = file.read() {
                let _ = read.get(b"handle");
                let _ = read.each_segment(|_, _, items| {
                    items.count();
                    Ok(())
                });
            }
        }
        assert!(refused > 20, "{refused}");
    }

    #[test]
    fn records_of_any_bytes_are_values_or_refused() {
        let bytes = record(4).encode();
        assert_eq!(FileRecord::decode(&bytes), Some(record(4)));
        assert_eq!(FileRecord::decode(&bytes[..47]), None);
        let mut unknown = bytes.clone();
        unknown[13] = 77;
        assert_eq!(FileRecord::decode(&unknown), None);
    }
}
