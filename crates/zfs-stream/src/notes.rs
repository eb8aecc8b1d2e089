//! Notes that are kept beside the files from one stream to the next: an increment names objects by number, and sends
//! only those blocks of directories that changed.
//!
//! There is a record for each object, 64 in a note; a list of names for each block of a directory; the small objects
//! that say how attributes lie; and the value of each extended attribute that is an object. They take about 80 bytes a
//! file and its name once more.

use crate::bytes::{Cursor, Order, put_counted};
use crate::error::{ReceiveError, StreamError};
use crate::sink::{Node, Sink};
use crate::zap::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Objects in a note.
const CHUNK: u64 = 64;
/// Notes of objects in memory.
const CACHED: usize = 1024;
/// Bytes of attributes in memory, about.
const CACHED_BYTES: usize = 32 << 20;
const VERSION: u8 = 1;

/// The kind of an object here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    #[default]
    File,
    Directory,
    Symlink,
    /// A device, pipe or socket.
    Special,
    /// An object that says how attributes lie, or where the root is.
    Meta,
    /// The directory of extended attributes of something.
    XattrDir,
    /// One of them.
    XattrFile,
    /// Nothing that is taken over.
    Other,
    /// It had no name, and is not here.
    Nameless,
}

const KINDS: [Kind; 9] = [
    Kind::File,
    Kind::Directory,
    Kind::Symlink,
    Kind::Special,
    Kind::Meta,
    Kind::XattrDir,
    Kind::XattrFile,
    Kind::Other,
    Kind::Nameless,
];

impl Kind {
    /// It has a node here, or will get one.
    pub fn is_file(self) -> bool {
        matches!(self, Self::File | Self::Directory | Self::Symlink | Self::Special)
    }

    /// Its content is names.
    pub fn has_names(self) -> bool {
        matches!(self, Self::Directory | Self::XattrDir)
    }
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Known {
    pub kind: Kind,
    /// It has no name yet, and lies in the staging directory.
    pub parked: bool,
    /// It was made by this stream.
    pub fresh: bool,
    /// It has extended attributes here.
    pub has_xattrs: bool,
    /// Some of them are among its own attributes, not objects.
    pub mixes_xattrs: bool,
    /// The transaction group of its birth.
    pub birth: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Bytes of a file.
    pub size: u64,
    /// A directory has blocks; and so many names.
    pub has_blocks: bool,
    pub names: u64,
    /// 0 for none.
    pub node: Node,
    pub parent: u64,
    /// The object of its extended attributes.
    pub xattr: u64,
    pub bonus_kind: u32,
    /// Until the end of the stream.
    pub bonus: Vec<u8>,
    pub bonus_order: Order,
    pub spill: Vec<u8>,
    pub spill_order: Order,
    /// The target of a symbolic link, as far as it is content.
    pub data: Vec<u8>,
}

impl Known {
    fn encode(&self, out: &mut Vec<u8>) {
        let kind = KINDS.iter().position(|&kind| kind == self.kind).unwrap_or_default();
        let flags = [
            self.parked,
            self.fresh,
            self.has_xattrs,
            self.bonus_order == Order::Big,
            self.spill_order == Order::Big,
            self.mixes_xattrs,
            self.has_blocks,
        ];
        let bit = |(bit, &flag): (usize, &bool)| u8::from(flag) << bit;
        out.extend([kind as u8, flags.iter().enumerate().map(bit).sum()]);
        out.extend(self.block.to_le_bytes());
        out.extend(self.bonus_kind.to_le_bytes());
        for number in [self.birth, self.size, self.names, self.node, self.parent, self.xattr] {
            out.extend(number.to_le_bytes());
        }
        for bytes in [&self.bonus, &self.spill, &self.data] {
            put_counted(out, bytes);
        }
    }

    fn decode(cursor: &mut Cursor<'_>) -> Decoded<Self> {
        let kind = KINDS.get(usize::from(cursor.u8()?)).copied();
        let kind = kind.ok_or(StreamError::Corrupt("a note"))?;
        let flags = cursor.u8()?;
        let order = |bit: u8| if flags >> bit & 1 == 1 { Order::Big } else { Order::Little };
        let (block, bonus_kind) = (cursor.u32()?, cursor.u32()?);
        let mut numbers = [0; 6];
        for number in &mut numbers {
            *number = cursor.u64()?;
        }
        let [birth, size, names, node, parent, xattr] = numbers;
        Ok(Self {
            kind,
            parked: flags & 1 != 0,
            fresh: flags & 2 != 0,
            has_xattrs: flags & 4 != 0,
            mixes_xattrs: flags & 32 != 0,
            birth,
            block,
            size,
            has_blocks: flags & 64 != 0,
            names,
            node,
            parent,
            xattr,
            bonus_kind,
            bonus: cursor.counted()?.to_vec(),
            bonus_order: order(3),
            spill: cursor.counted()?.to_vec(),
            spill_order: order(4),
            data: cursor.counted()?.to_vec(),
        })
    }
}

/// Names and the objects that they lead to.
pub(crate) type Names = Vec<(Vec<u8>, u64)>;

/// A block of a directory: as it was before this stream, if it changed, and as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NameBlock {
    pub old: Option<Names>,
    pub new: Names,
}

fn put_names(out: &mut Vec<u8>, names: &Names) {
    out.extend((names.len() as u32).to_le_bytes());
    for (name, object) in names {
        put_counted(out, name);
        out.extend(object.to_le_bytes());
    }
}

fn get_names(cursor: &mut Cursor<'_>) -> Decoded<Names> {
    let count = cursor.u32()?;
    (0..count).map(|_| Ok((cursor.counted()?.to_vec(), cursor.u64()?))).collect()
}

/// Blocks of the small objects, by object and offset.
pub(crate) type Meta = BTreeMap<(u64, u64), Vec<Entry>>;

/// The note about the whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Head {
    /// The guid of the snapshot that was received last; 0 for none.
    pub guid: u64,
    /// No object has this number or a higher one.
    pub end: u64,
    pub meta: Meta,
    /// Notes of objects that there are.
    chunks: BTreeSet<u64>,
}

/// Numbers as runs of neighbours: the first, and so many.
fn put_runs(out: &mut Vec<u8>, numbers: &BTreeSet<u64>, step: u64) {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + *count * step == number => *count += 1,
            _ => runs.push((number, 1)),
        }
    }
    out.extend((runs.len() as u32).to_le_bytes());
    for (first, count) in runs {
        out.extend(first.to_le_bytes());
        out.extend(count.to_le_bytes());
    }
}

fn get_runs(cursor: &mut Cursor<'_>, step: u64) -> Decoded<BTreeSet<u64>> {
    let mut numbers = BTreeSet::new();
    for _ in 0..cursor.u32()? {
        let (first, count) = (cursor.u64()?, cursor.u64()?);
        numbers.extend((0..count).map(|number| first.saturating_add(number.saturating_mul(step))));
    }
    Ok(numbers)
}

impl Head {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.guid.to_le_bytes());
        out.extend(self.end.to_le_bytes());
        put_runs(&mut out, &self.chunks, 1);
        out.extend((self.meta.len() as u32).to_le_bytes());
        for ((object, offset), entries) in &self.meta {
            out.extend(object.to_le_bytes());
            out.extend(offset.to_le_bytes());
            out.extend((entries.len() as u32).to_le_bytes());
            for entry in entries {
                put_counted(&mut out, &entry.name);
                out.extend((entry.values.len() as u32).to_le_bytes());
                entry.values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut cursor = cursor(bytes);
        if cursor.u8()? != VERSION {
            return Err(StreamError::Corrupt("a note of another version"));
        }
        let (guid, end) = (cursor.u64()?, cursor.u64()?);
        let (chunks, count) = (get_runs(&mut cursor, 1)?, cursor.u32()?);
        let mut meta = Meta::new();
        for _ in 0..count {
            let at = (cursor.u64()?, cursor.u64()?);
            let mut entries = Vec::new();
            for _ in 0..cursor.u32()? {
                let name = cursor.counted()?.to_vec();
                let values = (0..cursor.u32()?).map(|_| cursor.u64()).collect::<Decoded<_>>()?;
                entries.push(Entry { name, values });
            }
            meta.insert(at, entries);
        }
        Ok(Self { guid, end, meta, chunks })
    }
}

fn cursor(bytes: &[u8]) -> Cursor<'_> {
    Cursor::new(bytes, Order::Little, "a note")
}

#[derive(Default)]
struct Chunk {
    objects: BTreeMap<u8, Known>,
    changed: bool,
}

/// The notes of a sink.
pub(crate) struct Notes<'s, S> {
    pub sink: &'s mut S,
    chunks: BTreeMap<u64, Chunk>,
    /// Notes of objects that there are, in memory or not.
    present: BTreeSet<u64>,
    /// Bytes of attributes in memory, about.
    weight: usize,
    /// The offsets of the blocks of the directory that was asked about last.
    blocks: Option<Blocks>,
}

struct Blocks {
    dir: u64,
    step: u64,
    offsets: BTreeSet<u64>,
    changed: bool,
}

type Decoded<T> = std::result::Result<T, StreamError>;
type Result<T, E> = std::result::Result<T, ReceiveError<E>>;

fn damaged<E>(_: StreamError) -> ReceiveError<E> {
    ReceiveError::State("they cannot be decoded")
}

fn key(kind: u8, numbers: &[u64]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|number| number.to_be_bytes());
    [kind].into_iter().chain(numbers).collect()
}

impl<'s, S: Sink> Notes<'s, S> {
    pub fn new(sink: &'s mut S) -> Self {
        Self { sink, chunks: BTreeMap::new(), present: BTreeSet::new(), weight: 0, blocks: None }
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, S::Error> {
        self.sink.note(key).map_err(ReceiveError::Sink)
    }

    fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), S::Error> {
        self.sink.set_note(key, value).map_err(ReceiveError::Sink)
    }

    pub fn head(&mut self) -> Result<Head, S::Error> {
        let head =
            self.get(b"h")?.map_or(Ok(Head::default()), |bytes| Head::decode(&bytes).map_err(damaged))?;
        self.present.clone_from(&head.chunks);
        Ok(head)
    }

    /// Keeps all that is in memory, and the note about the whole.
    pub fn finish(&mut self, head: &mut Head) -> Result<(), S::Error> {
        self.flush()?;
        self.flush_blocks()?;
        head.chunks.clone_from(&self.present);
        self.set(b"h", Some(&head.encode()))
    }

    fn chunk(&mut self, number: u64) -> Result<&mut Chunk, S::Error> {
        if !self.chunks.contains_key(&number) {
            if self.chunks.len() >= CACHED || self.weight >= CACHED_BYTES {
                self.flush()?;
                self.chunks.clear();
                self.weight = 0;
            }
            let mut chunk = Chunk::default();
            let bytes = if self.present.contains(&number) { self.get(&key(b'o', &[number]))? } else { None };
            if let Some(bytes) = bytes {
                self.weight += bytes.len();
                let mut cursor = cursor(&bytes);
                while !cursor.is_empty() {
                    let slot = cursor.u8().map_err(damaged)?;
                    chunk.objects.insert(slot, Known::decode(&mut cursor).map_err(damaged)?);
                }
            }
            self.chunks.insert(number, chunk);
        }
        Ok(self.chunks.entry(number).or_default())
    }

    /// An object; none where the number is free.
    pub fn known(&mut self, object: u64) -> Result<Option<&Known>, S::Error> {
        Ok(self.chunk(object / CHUNK)?.objects.get(&((object % CHUNK) as u8)))
    }

    /// The same, to be changed.
    pub fn change(&mut self, object: u64) -> Result<Option<&mut Known>, S::Error> {
        let chunk = self.chunk(object / CHUNK)?;
        chunk.changed = true;
        Ok(chunk.objects.get_mut(&((object % CHUNK) as u8)))
    }

    pub fn put(&mut self, object: u64, known: Known) -> Result<(), S::Error> {
        self.present.insert(object / CHUNK);
        self.weight += known.bonus.len() + known.spill.len();
        let chunk = self.chunk(object / CHUNK)?;
        chunk.changed = true;
        chunk.objects.insert((object % CHUNK) as u8, known);
        Ok(())
    }

    pub fn take(&mut self, object: u64) -> Result<Option<Known>, S::Error> {
        let chunk = self.chunk(object / CHUNK)?;
        chunk.changed = true;
        Ok(chunk.objects.remove(&((object % CHUNK) as u8)))
    }

    /// The first number in use from `from` to below `end`.
    pub fn next(&mut self, from: u64, end: u64) -> Result<Option<u64>, S::Error> {
        let mut at = from;
        while at < end {
            let Some(&number) = self.present.range(at / CHUNK..).next() else { break };
            let slot = if number == at / CHUNK { (at % CHUNK) as u8 } else { 0 };
            if let Some((slot, _)) = self.chunk(number)?.objects.range(slot..).next() {
                let found = number * CHUNK + u64::from(*slot);
                return Ok(Some(found).filter(|&found| found < end));
            }
            at = (number + 1) * CHUNK;
        }
        Ok(None)
    }

    /// Keeps all objects that changed.
    fn flush(&mut self) -> Result<(), S::Error> {
        let mut chunks = std::mem::take(&mut self.chunks);
        for (&number, chunk) in chunks.iter_mut().filter(|(_, chunk)| chunk.changed) {
            let mut bytes = Vec::new();
            for (slot, known) in &chunk.objects {
                bytes.push(*slot);
                known.encode(&mut bytes);
            }
            self.set(&key(b'o', &[number]), (!bytes.is_empty()).then_some(&bytes))?;
            if bytes.is_empty() {
                self.present.remove(&number);
            }
            chunk.changed = false;
        }
        self.chunks = chunks;
        Ok(())
    }

    fn flush_blocks(&mut self) -> Result<(), S::Error> {
        let Some(blocks) = self.blocks.take().filter(|blocks| blocks.changed) else { return Ok(()) };
        let mut bytes = Vec::new();
        put_runs(&mut bytes, &blocks.offsets, blocks.step);
        // One block at the start goes without saying.
        let told = blocks.offsets.iter().any(|&offset| offset > 0).then_some(&bytes[..]);
        self.set(&key(b'b', &[blocks.dir]), told)
    }

    /// The offsets of the blocks of a directory that have or had names.
    pub fn blocks(&mut self, dir: u64, known: &Known) -> Result<&mut BTreeSet<u64>, S::Error> {
        let step = u64::from(known.block.max(512));
        if self.blocks.as_ref().is_none_or(|blocks| blocks.dir != dir || blocks.step != step) {
            self.flush_blocks()?;
            let offsets = match known.has_blocks {
                false => BTreeSet::new(),
                true => match self.get(&key(b'b', &[dir]))? {
                    Some(bytes) => get_runs(&mut cursor(&bytes), step).map_err(damaged)?,
                    None => [0].into(),
                },
            };
            self.blocks = Some(Blocks { dir, step, offsets, changed: false });
        }
        match &mut self.blocks {
            Some(blocks) => {
                blocks.changed = true;
                Ok(&mut blocks.offsets)
            }
            None => Err(ReceiveError::State("blocks")),
        }
    }

    /// A block of a directory.
    pub fn names(&mut self, dir: u64, offset: u64) -> Result<NameBlock, S::Error> {
        let Some(bytes) = self.get(&key(b'd', &[dir, offset]))? else { return Ok(NameBlock::default()) };
        let mut cursor = cursor(&bytes);
        let mut decode = || {
            let changed = cursor.u8()? != 0;
            let new = get_names(&mut cursor)?;
            let old = if changed { Some(get_names(&mut cursor)?) } else { None };
            Ok(NameBlock { old, new })
        };
        decode().map_err(damaged)
    }

    pub fn set_names(&mut self, dir: u64, offset: u64, block: &NameBlock) -> Result<(), S::Error> {
        let key = key(b'd', &[dir, offset]);
        if block.old.is_none() && block.new.is_empty() {
            return self.set(&key, None);
        }
        let mut bytes = vec![u8::from(block.old.is_some())];
        put_names(&mut bytes, &block.new);
        block.old.iter().for_each(|old| put_names(&mut bytes, old));
        self.set(&key, Some(&bytes))
    }

    /// The value of an extended attribute.
    pub fn value(&mut self, object: u64) -> Result<Vec<u8>, S::Error> {
        Ok(self.get(&key(b'x', &[object]))?.unwrap_or_default())
    }

    pub fn set_value(&mut self, object: u64, value: Option<&[u8]>) -> Result<(), S::Error> {
        self.set(&key(b'x', &[object]), value)
    }
}
