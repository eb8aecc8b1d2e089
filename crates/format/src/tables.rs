//! Values of the pool's tables: one tree holds them all, named by the root.
//!
//! A table is a range of keys: the key's object is the table's number in the upper 16 bits and, for
//! properties, the dataset in the lower 48; the offset is the entry's id.

use crate::error::ensure;
use crate::field::Field;
use crate::ids::ensure_countable;
use crate::node::Key;
use crate::{BlockId, BlockPtr, Corrupt, DatasetId, Reason, SegmentId, Timestamp, layout};

/// The kind of every key in the pool's tables; clear, since none of it is a file's name.
pub const TABLE_KIND: u8 = 64;

/// The pool's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Table {
    /// Segments: id → [`crate::segment::SegmentRecord`].
    Segments = 1,
    /// Datasets: id → [`DatasetRecord`].
    Datasets = 2,
    /// Runs of the block map: sequence → run descriptor.
    Runs = 3,
    /// Properties of a dataset, or of the pool as dataset 0: hash of the name → [`PropertyRecord`].
    Properties = 4,
    /// Imports: first commit → incarnation.
    History = 5,
}

impl Table {
    /// The key of entry `id`.
    pub fn key(self, id: u64) -> Key {
        Key { object: (self as u64) << 48, kind: TABLE_KIND, offset: id }
    }
    /// The key of a property of `dataset`.
    pub fn property_key(dataset: DatasetId, name: &str) -> Key {
        let offset = twox_hash::XxHash3_64::oneshot(name.as_bytes());
        Key { object: (Self::Properties as u64) << 48 | dataset.get(), kind: TABLE_KIND, offset }
    }
    /// The key of segment `id`.
    pub fn segment_key(id: SegmentId) -> Key {
        Self::Segments.key(id.get())
    }
    /// The key of dataset `id`.
    pub fn dataset_key(id: DatasetId) -> Key {
        Self::Datasets.key(id.get())
    }
}

layout! {
    /// The fixed part of a [`DatasetRecord`]; the name follows.
    pub struct DatasetHead[136] {
        /// The dataset.
        id: DatasetId = 0,
        /// The dataset it is inside of; itself for the pool's root dataset.
        parent: DatasetId = 8,
        /// Its GUID, for people and streams.
        guid: u64 = 16,
        /// 1 when `root` names a tree; an empty dataset has none.
        has_root: u8 = 24,
        /// 1 when it was destroyed; see [`DatasetRecord::destroyed`].
        destroyed: u8 = 25,
        /// The root of its tree.
        root: BlockPtr = 32,
        /// Floor: the highest block id that a snapshot of it may hold.
        floor: BlockId = 56,
        /// Footprints of all blocks it refers to, bytes.
        referenced: u64 = 64,
        /// Plain bytes of the records it refers to.
        logical: u64 = 72,
        /// The next inode id.
        next_inode: u64 = 80,
        /// When it was made.
        created: Timestamp = 88,
        /// The commit that made it.
        birth: u64 = 104,
        /// Upper bound of bytes held by its snapshots alone.
        held: u64 = 112,
        /// Stored payload bytes of its records, for the compression ratio.
        stored: u64 = 120,
        /// Bytes of the name.
        name_len: u16 = 128,
    }
}

/// What the dataset table keeps of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRecord {
    /// The dataset.
    pub id: DatasetId,
    /// The dataset it is inside of; itself for the pool's root dataset.
    pub parent: DatasetId,
    /// Its GUID.
    pub guid: u64,
    /// The root of its tree; none while it is empty.
    pub root: Option<BlockPtr>,
    /// It has neither name nor parent nor properties any more; its tree is being taken down.
    pub destroyed: bool,
    /// The highest block id that a snapshot of it may hold.
    pub floor: BlockId,
    /// Footprints of all blocks it refers to, bytes.
    pub referenced: u64,
    /// Plain bytes of the records it refers to.
    pub logical: u64,
    /// Stored bytes of the records it refers to.
    pub stored: u64,
    /// The next inode id.
    pub next_inode: u64,
    /// When it was made.
    pub created: Timestamp,
    /// The commit that made it.
    pub birth: u64,
    /// Upper bound of bytes held by its snapshots alone.
    pub held: u64,
    /// The last part of its name; the pool's name is the root dataset's.
    pub name: String,
}

impl DatasetRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; DatasetHead::SIZE];
        DatasetHead {
            id: self.id,
            parent: self.parent,
            guid: self.guid,
            has_root: u8::from(self.root.is_some()),
            destroyed: u8::from(self.destroyed),
            root: self.root.unwrap_or(BlockPtr::load(&[0; BlockPtr::SIZE])),
            floor: self.floor,
            referenced: self.referenced,
            logical: self.logical,
            next_inode: self.next_inode,
            created: self.created,
            birth: self.birth,
            held: self.held,
            stored: self.stored,
            name_len: self.name.len() as u16,
        }
        .put(&mut out);
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "dataset record";
        let head = DatasetHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let name = &bytes[DatasetHead::SIZE..];
        let flags_fit = head.has_root <= 1 && head.destroyed <= 1;
        ensure(name.len() == usize::from(head.name_len) && flags_fit, WHAT, Reason::Range)?;
        ensure(!name.is_empty() && !name.contains(&b'/'), WHAT, Reason::Range)?;
        ensure(head.created.nanos < 1_000_000_000, WHAT, Reason::Range)?;
        let amounts = [head.referenced, head.logical, head.stored, head.held];
        ensure_countable(&amounts, WHAT)?;
        ensure_countable(&[head.id.get(), head.next_inode, head.birth], WHAT)?;
        let name = std::str::from_utf8(name).map_err(|_| Corrupt::new(WHAT, Reason::Range))?;
        Ok(Self {
            id: head.id,
            parent: head.parent,
            guid: head.guid,
            root: (head.has_root != 0).then(|| head.root.checked()).transpose()?,
            destroyed: head.destroyed != 0,
            floor: head.floor,
            referenced: head.referenced,
            logical: head.logical,
            stored: head.stored,
            next_inode: head.next_inode,
            created: head.created,
            birth: head.birth,
            held: head.held,
            name: name.to_owned(),
        })
    }
}

/// A property set on a dataset or on the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyRecord {
    /// Its name.
    pub name: String,
    /// Its value, as people write it.
    pub value: String,
}

impl PropertyRecord {
    /// The record's bytes: u16 length of the name, name, value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(2 + self.name.len() + self.value.len());
        out.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(self.value.as_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let bad = |reason| Corrupt::new("property record", reason);
        let (len, rest) = bytes.split_at_checked(2).ok_or(bad(Reason::Short))?;
        let (name, value) = rest.split_at_checked(u16::load(len).into()).ok_or(bad(Reason::Short))?;
        let text = |bytes| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| bad(Reason::Range));
        Ok(Self { name: text(name)?, value: text(value)? })
    }
}
