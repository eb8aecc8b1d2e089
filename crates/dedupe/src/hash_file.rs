//! The hash file: what was read, so that it need not be read again. An embedded database of two tables: files by path,
//! and their hashes, 8 bytes a block, in pieces. A commit is whole or not there: after kill -9 the last one holds.

use crate::Error;
use crate::walk::Stamp;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::HashSet;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Raised with every change of what is written.
const VERSION: u64 = 1;
/// Hashes in a piece.
const PIECE: usize = 1 << 16;
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("larder dedupe");
const FILES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("files");
const HASHES: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("hashes");
const RECORD_LEN: usize = 50;

/// A file as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Number of its hashes.
    pub id: u64,
    /// As it was before it was read.
    pub stamp: Stamp,
    /// Binary logarithm of the block's length.
    pub block_log2: u8,
    /// The part of it that may be shared.
    pub kind: Kind,
    /// Whether a run that came to its end tried all that it has in common with others that are settled.
    pub is_settled: bool,
}

/// The part of a file that may be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Everything.
    Plain = 0,
    /// Others may share with it; it cannot be changed.
    Immutable = 1,
    /// Nothing: written in place, without checksums.
    NoCow = 2,
}

impl Record {
    fn encode(&self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        let Stamp { inode, size, modified, changed, born } = self.stamp;
        let words = [self.id, inode, size, modified as u64, changed as u64, born as u64];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(at, word)| at.copy_from_slice(&word.to_le_bytes()));
        bytes[48] = self.block_log2;
        bytes[49] = self.kind as u8 | u8::from(self.is_settled) << 4;
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD_LEN] = bytes.try_into().ok()?;
        let words: Vec<u64> = words(bytes).collect();
        let [id, inode, size, modified, changed, born] = words[..] else { return None };
        let (modified, changed, born) = (modified as i64, changed as i64, born as i64);
        let kind = match bytes[49] & 15 {
            0 => Kind::Plain,
            1 => Kind::Immutable,
            2 => Kind::NoCow,
            _ => return None,
        };
        let stamp = Stamp { inode, size, modified, changed, born };
        Some(Self { id, stamp, block_log2: bytes[48], kind, is_settled: bytes[49] & 16 != 0 })
    }
}

/// The hash file.
pub struct HashFile {
    path: PathBuf,
    database: Database,
}

impl HashFile {
    /// Opens it, or makes it.
    ///
    /// # Errors
    /// When it is no hash file, of another version, damaged, or in use.
    pub fn open(path: &Path, cache: usize) -> Result<Self, Error> {
        let wrong = |reason: String| Error::HashFile(path.to_owned(), reason);
        // Assertions of the database about its file must not end in a panic: the bytes come from outside.
        let opened = std::panic::catch_unwind(|| Database::builder().set_cache_size(cache).create(path));
        let database = match opened {
            Ok(Ok(database)) => database,
            Ok(Err(redb::DatabaseError::DatabaseAlreadyOpen)) => return Err(Error::InUse(path.to_owned())),
            Ok(Err(error)) => return Err(wrong(error.to_string())),
            Err(_) => return Err(wrong("it is damaged".into())),
        };
        let file = Self { path: path.to_owned(), database };
        let write = file.database.begin_write().map_err(|error| file.wrong(error))?;
        {
            let mut meta = write.open_table(META).map_err(|error| file.wrong(error))?;
            let version = meta.get("version").map_err(|error| file.wrong(error))?.map(|found| found.value());
            match version {
                Some(VERSION) => {}
                Some(other) => {
                    return Err(wrong(format!("it is of version {other}, and this reads {VERSION}")));
                }
                None => {
                    let others = write.list_tables().map_err(|error| file.wrong(error))?.count();
                    if others > 1 {
                        return Err(wrong("it is a database of something else".into()));
                    }
                    meta.insert("version", VERSION).map_err(|error| file.wrong(error))?;
                    meta.insert("next", 1).map_err(|error| file.wrong(error))?;
                }
            }
            write.open_table(FILES).map_err(|error| file.wrong(error))?;
            write.open_table(HASHES).map_err(|error| file.wrong(error))?;
        }
        write.commit().map_err(|error| file.wrong(error))?;
        Ok(file)
    }

    fn wrong(&self, error: impl Display) -> Error {
        Error::HashFile(self.path.clone(), error.to_string())
    }

    /// Records of the files at these paths.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn records(&self, paths: impl Iterator<Item = PathBuf>) -> Result<Vec<Option<Record>>, Error> {
        let read = self.database.begin_read().map_err(|error| self.wrong(error))?;
        let files = read.open_table(FILES).map_err(|error| self.wrong(error))?;
        let find = |path: PathBuf| {
            let found = files.get(path.as_os_str().as_bytes()).map_err(|error| self.wrong(error))?;
            Ok(found.and_then(|found| Record::decode(found.value())))
        };
        paths.map(find).collect()
    }

    /// Notes files that were read, and gives each its number.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn note(&self, read: &mut [(PathBuf, Record, Vec<u64>)]) -> Result<(), Error> {
        let write = self.database.begin_write().map_err(|error| self.wrong(error))?;
        {
            let mut meta = write.open_table(META).map_err(|error| self.wrong(error))?;
            let mut files = write.open_table(FILES).map_err(|error| self.wrong(error))?;
            let mut hashes = write.open_table(HASHES).map_err(|error| self.wrong(error))?;
            let next = meta.get("next").map_err(|error| self.wrong(error))?.map(|found| found.value());
            let mut next = next.ok_or_else(|| self.wrong("it lacks its counter"))?;
            for (path, record, blocks) in read {
                record.id = next;
                next += 1;
                let old = files
                    .insert(path.as_os_str().as_bytes(), &record.encode()[..])
                    .map_err(|error| self.wrong(error))?
                    .and_then(|old| Record::decode(old.value()));
                if let Some(old) = old {
                    hashes
                        .retain_in((old.id, 0)..=(old.id, u32::MAX), |_, _| false)
                        .map_err(|error| self.wrong(error))?;
                }
                for (number, piece) in blocks.chunks(PIECE).enumerate() {
                    let bytes: Vec<u8> = piece.iter().flat_map(|hash| hash.to_le_bytes()).collect();
                    hashes
                        .insert((record.id, number as u32), &bytes[..])
                        .map_err(|error| self.wrong(error))?;
                }
            }
            meta.insert("next", next).map_err(|error| self.wrong(error))?;
        }
        write.commit().map_err(|error| self.wrong(error))
    }

    /// Notes that these are settled.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn settle(&self, settled: impl Iterator<Item = (PathBuf, Record)>) -> Result<(), Error> {
        let write = self.database.begin_write().map_err(|error| self.wrong(error))?;
        {
            let mut files = write.open_table(FILES).map_err(|error| self.wrong(error))?;
            for (path, record) in settled {
                let record = Record { is_settled: true, ..record };
                files
                    .insert(path.as_os_str().as_bytes(), &record.encode()[..])
                    .map_err(|error| self.wrong(error))?;
            }
        }
        write.commit().map_err(|error| self.wrong(error))
    }

    /// Forgets files below these folders but those with these numbers; how many that were.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn forget(&self, below: &[PathBuf], live: &HashSet<u64>) -> Result<u64, Error> {
        let mut gone = Vec::new();
        let read = self.database.begin_read().map_err(|error| self.wrong(error))?;
        let files = read.open_table(FILES).map_err(|error| self.wrong(error))?;
        for folder in below {
            for entry in files.range(folder.as_os_str().as_bytes()..).map_err(|error| self.wrong(error))? {
                let (path, record) = entry.map_err(|error| self.wrong(error))?;
                if !path.value().starts_with(folder.as_os_str().as_bytes()) {
                    break;
                }
                let id = Record::decode(record.value()).map_or(0, |record| record.id);
                let is_below = Path::new(std::ffi::OsStr::from_bytes(path.value())).starts_with(folder);
                if is_below && !live.contains(&id) {
                    gone.push((path.value().to_owned(), id));
                }
            }
        }
        drop((files, read));
        if gone.is_empty() {
            return Ok(0);
        }
        let write = self.database.begin_write().map_err(|error| self.wrong(error))?;
        {
            let mut files = write.open_table(FILES).map_err(|error| self.wrong(error))?;
            let mut hashes = write.open_table(HASHES).map_err(|error| self.wrong(error))?;
            for (path, id) in &gone {
                files.remove(&path[..]).map_err(|error| self.wrong(error))?;
                hashes
                    .retain_in((*id, 0)..=(*id, u32::MAX), |_, _| false)
                    .map_err(|error| self.wrong(error))?;
            }
        }
        write.commit().map_err(|error| self.wrong(error))?;
        Ok(gone.len() as u64)
    }

    /// The hashes of a file; none for a hole.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn hashes(&self, id: u64) -> Result<Vec<u64>, Error> {
        let read = self.database.begin_read().map_err(|error| self.wrong(error))?;
        let hashes = read.open_table(HASHES).map_err(|error| self.wrong(error))?;
        let mut found = Vec::new();
        for piece in hashes.range((id, 0)..=(id, u32::MAX)).map_err(|error| self.wrong(error))? {
            let (_, bytes) = piece.map_err(|error| self.wrong(error))?;
            found.extend(words(bytes.value()));
        }
        Ok(found)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { inode: 7, size: 9000, modified: -5, changed: 6, born: 7 };
    const RECORD: Record =
        Record { id: 0, stamp: STAMP, block_log2: 12, kind: Kind::Immutable, is_settled: false };

    #[test]
    fn what_was_noted_is_there_after_it_is_opened_again_and_what_is_gone_is_forgotten() {
        let bed = tempfile::tempdir().unwrap();
        let path = bed.path().join("hashes");
        let hashes: Vec<u64> = (0..PIECE as u64 * 2 + 3).collect();
        let mut noted = vec![("/a/x".into(), RECORD, hashes.clone()), ("/ab".into(), RECORD, vec![1])];
        HashFile::open(&path, 1 << 20).unwrap().note(&mut noted).unwrap();
        let file = HashFile::open(&path, 1 << 20).unwrap();
        let found = file.records(["/a/x".into(), "/a/y".into()].into_iter()).unwrap();
        assert_eq!(found, [Some(noted[0].1), None]);
        assert_eq!(file.hashes(noted[0].1.id).unwrap(), hashes);
        assert!(matches!(HashFile::open(&path, 1 << 20), Err(Error::InUse(_))));
        assert_eq!(file.forget(&["/a".into()], &HashSet::new()).unwrap(), 1);
        let found = file.records(["/a/x".into(), "/ab".into()].into_iter()).unwrap();
        assert_eq!(found, [None, Some(noted[1].1)]);
        assert_eq!(file.hashes(noted[0].1.id).unwrap(), []);
    }

    #[test]
    fn foreign_and_damaged_files_are_refused_and_left_alone() {
        let bed = tempfile::tempdir().unwrap();
        let path = bed.path().join("hashes");
        for bytes in [&b"a letter"[..], &[0x5a; 100_000]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(HashFile::open(&path, 1 << 20), Err(Error::HashFile(..))));
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
    }
}
