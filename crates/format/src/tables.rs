//! Values of the pool's tables: one tree holds them all, named by the root.
//!
//! A table is a range of keys: the key's object is the table's number in the upper 16 bits and, for
//! properties and snapshots, the dataset in the lower 48, for what comes in pieces the piece's number; the offset is
//! the entry's id.

use crate::error::ensure;
use crate::field::Field;
use crate::ids::ensure_countable;
use crate::items::{MAX_DATASET, NAME_SALT_LEN};
use crate::node::Key;
use crate::property::PropertySource;
use crate::segment::Slot;
use crate::{
    BlockId, BlockPtr, CommitId, Corrupt, DatasetId, DeviceGuid, DeviceIndex, Reason, SegmentId, SlotIndex,
    Timestamp, layout,
};
use std::ops::RangeInclusive;

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
    /// Runs of the block map: run number → run descriptor, in [`pieces`].
    Runs = 3,
    /// Properties of a dataset, or of the pool as dataset 0: hash of the name →
    /// [`PropertyRecord`](crate::property::PropertyRecord).
    Properties = 4,
    /// Snapshots of a dataset: highest block id → [`SnapshotRecord`]; in the order in which they were taken.
    Snapshots = 6,
    /// Space still to be freed: one entry, 0 → [`FreeingRecord`].
    Freeing = 7,
    /// The key of fingerprints: one entry, 0 → [`SECRET_LEN`] random bytes.
    Secret = 8,
    /// Parts of the dedup index: run number → [`crate::index::PartDescriptor`], in [`pieces`].
    Index = 9,
    /// Events: number → [`crate::ledger::EventRecord`].
    Events = 10,
    /// Commands that changed the pool: number → [`crate::ledger::CommandRecord`].
    Commands = 11,
    /// Damage: number → [`crate::ledger::DamageRecord`]; under 0 the number of findings without room, u64.
    Damage = 12,
    /// Slots that are out of use: [`bad_slot_key`](Table::bad_slot_key) → [`BadSlotRecord`].
    BadSlots = 13,
    /// Properties of snapshots: [`attached_key`](Table::attached_key) →
    /// [`PropertyRecord`](crate::property::PropertyRecord).
    SnapshotProperties = 14,
    /// Holds, which keep snapshots from being destroyed: [`attached_key`](Table::attached_key) → [`HoldRecord`].
    Holds = 15,
    /// Bookmarks of a dataset: [`key`](crate::bookmark::BookmarkRecord::key) → [`crate::bookmark::BookmarkRecord`].
    Bookmarks = 16,
    /// Streams that are being received: the dataset that they go into first → [`ReceivingRecord`]. From here on
    /// reserved.
    Receiving = 17,
    /// Space and inodes used by users, groups and projects.
    Usage = 18,
    /// Destroyed datasets and snapshots that are kept for a while: [`crate::trash`].
    Trash = 19,
    /// Wrapped keys. The last that is reserved.
    Keys = 20,
    /// Trees of which what nothing else holds is being freed: a snapshot's highest block id → [`RemainsRecord`].
    Remains = 21,
    /// Commit records that are not free: block id → [`CommitRecordEntry`](crate::commit_record::CommitRecordEntry).
    CommitRecords = 22,
}

/// Bytes of the key of fingerprints.
pub const SECRET_LEN: usize = 32;
/// The most bytes of a piece of a value.
pub const PIECE_MAX: usize = 4096;

/// A value of any length as pieces that find room in a node, the first under number 0.
pub fn pieces(value: &[u8]) -> impl ExactSizeIterator<Item = &[u8]> {
    value.chunks(PIECE_MAX)
}

/// Bits of a key's object that say of which dataset, or piece, an entry of a table is.
const WITHIN_BITS: u32 = 48;
/// Bits of those that say of which dataset, where a number follows.
const DATASET_BITS: u32 = 24;
/// Numbers under which something can be attached to a snapshot.
pub const ATTACHED_MAX: u32 = 1 << (WITHIN_BITS - DATASET_BITS);
/// The most bytes of a hold's tag.
pub const TAG_MAX: usize = 255;
/// Flag of a snapshot: it is destroyed with its last hold.
pub const SNAPSHOT_DEFERRED: u32 = 1;
/// Flag of a snapshot: it was destroyed, and is there for its clones alone.
pub const SNAPSHOT_HIDDEN: u32 = 2;

impl Table {
    const ALL: [Self; 21] = [
        Self::Segments,
        Self::Datasets,
        Self::Runs,
        Self::Properties,
        Self::Snapshots,
        Self::Freeing,
        Self::Secret,
        Self::Index,
        Self::Events,
        Self::Commands,
        Self::Damage,
        Self::BadSlots,
        Self::SnapshotProperties,
        Self::Holds,
        Self::Bookmarks,
        Self::Receiving,
        Self::Usage,
        Self::Trash,
        Self::Keys,
        Self::Remains,
        Self::CommitRecords,
    ];

    /// The table that a key is of, and what else its object says: dataset or piece.
    ///
    /// # Errors
    /// When there is no such table, or this version keeps none; or when no key in the tables is of its kind.
    pub fn of(key: &Key) -> Result<(Self, u64), Corrupt> {
        let number = key.object >> WITHIN_BITS;
        let table = Self::ALL.into_iter().find(|table| *table as u64 == number);
        let unknown = |what| Corrupt::new(what, Reason::Feature);
        ensure(key.kind == TABLE_KIND, "key of a table", Reason::Kind)?;
        match table.ok_or(unknown("a table that is not known"))? {
            Self::Usage => Err(unknown("usage by users")),
            Self::Keys => Err(unknown("keys of datasets")),
            known => Ok((known, key.object & ((1 << WITHIN_BITS) - 1))),
        }
    }

    /// All keys that its entries can have.
    pub fn keys(self) -> RangeInclusive<Key> {
        let object = (self as u64) << WITHIN_BITS;
        self.key(0)..=Key { object: object | ((1 << WITHIN_BITS) - 1), kind: TABLE_KIND, offset: u64::MAX }
    }

    /// The key of entry `id`.
    pub fn key(self, id: u64) -> Key {
        Key { object: (self as u64) << WITHIN_BITS, kind: TABLE_KIND, offset: id }
    }
    /// The key of piece `piece` of entry `id`. Of all entries come the first pieces first.
    pub fn piece_key(self, id: u64, piece: u64) -> Key {
        Key { object: (self as u64) << WITHIN_BITS | piece, kind: TABLE_KIND, offset: id }
    }
    /// The key of a property of `dataset`: what a stream brought has another than what was set here.
    pub fn property_key(dataset: DatasetId, name: &str, source: PropertySource) -> Key {
        let seed = u64::from(source == PropertySource::Received);
        let offset = twox_hash::XxHash3_64::oneshot_with_seed(seed, name.as_bytes());
        Key { object: (Self::Properties as u64) << WITHIN_BITS | dataset.get(), kind: TABLE_KIND, offset }
    }
    /// The key of segment `id`.
    pub fn segment_key(id: SegmentId) -> Key {
        Self::Segments.key(id.get())
    }
    /// The key of the snapshot of `dataset` whose highest block id is `high`.
    pub fn snapshot_key(dataset: DatasetId, high: BlockId) -> Key {
        let object = (Self::Snapshots as u64) << WITHIN_BITS | dataset.get();
        Key { object, kind: TABLE_KIND, offset: high.get() }
    }
    /// The key of what is attached to a snapshot of `dataset` under a number below [`ATTACHED_MAX`].
    pub fn attached_key(self, dataset: DatasetId, high: BlockId, number: u32) -> Key {
        let object = (self as u64) << WITHIN_BITS | u64::from(number) << DATASET_BITS | dataset.get();
        Key { object, kind: TABLE_KIND, offset: high.get() }
    }
    /// Dataset and number of such an entry, by what its key's object says beside the table.
    pub fn attached(within: u64) -> (DatasetId, u32) {
        (DatasetId::new(within & ((1 << DATASET_BITS) - 1)), (within >> DATASET_BITS) as u32)
    }
    /// The key of a slot that is out of use.
    pub fn bad_slot_key(slot: Slot) -> Key {
        Self::BadSlots.key(u64::from(slot.device.get()) << 32 | u64::from(slot.index.get()))
    }
    /// The slot of such an entry, by the key's offset.
    pub fn bad_slot(entry: u64) -> Option<Slot> {
        let device = DeviceIndex::new(u16::try_from(entry >> 32).ok()?);
        Some(Slot { device, index: SlotIndex::new(entry as u32) })
    }
    /// The key of dataset `id`.
    pub fn dataset_key(id: DatasetId) -> Key {
        Self::Datasets.key(id.get())
    }
}

layout! {
    /// The fixed part of a [`DatasetRecord`]; the name follows.
    pub struct DatasetHead[256] {
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
        protected_below: BlockId = 56,
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
        /// Salt of the hashes of names in it.
        name_salt: [u8; NAME_SALT_LEN] = 136,
        /// Of a clone, the dataset of the snapshot that it began as; else 0.
        origin: DatasetId = 152,
        /// That snapshot's `high`; else 0.
        origin_high: BlockId = 160,
        /// Key that its names and contents are sealed with; 0 is none. Reserved.
        key: u32 = 168,
        /// None is defined.
        flags: u32 = 172,
        /// Inodes in it. Reserved: 0 is not counted.
        inodes: u64 = 176,
        /// Its snapshots. Reserved: 0 is not counted.
        snapshots: u64 = 184,
        /// Of `referenced`, bytes of blocks with ids up to `origin_high`.
        inherited: u64 = 192,
    }
}

/// A dataset, as the dataset table records it.
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
    pub protected_below: BlockId,
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
    /// Of a clone, the snapshot that it began as: its dataset and its `high`.
    pub origin: Option<(DatasetId, BlockId)>,
    /// Of `referenced`, bytes of blocks with ids up to the `high` of its origin: they are that one's.
    pub inherited: u64,
    /// Salt of the hashes of names in it ([`NameKey`](crate::items::NameKey)): random, never shown.
    pub name_salt: [u8; NAME_SALT_LEN],
    /// The last part of its name; the pool's name is the root dataset's.
    pub name: String,
}

impl DatasetRecord {
    /// Whether a block is its origin's, if it is there: that one has it, or had it when this one began.
    pub fn is_inherited(&self, block: BlockId) -> bool {
        self.origin.is_some_and(|(_, high)| block <= high)
    }

    /// Of `referenced`, bytes of blocks that are not its origin's.
    pub fn own(&self) -> u64 {
        self.referenced.saturating_sub(self.inherited)
    }

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
            protected_below: self.protected_below,
            referenced: self.referenced,
            logical: self.logical,
            next_inode: self.next_inode,
            created: self.created,
            birth: self.birth,
            held: self.held,
            stored: self.stored,
            name_len: self.name.len() as u16,
            name_salt: self.name_salt,
            origin: self.origin.map_or(DatasetId::new(0), |(dataset, _)| dataset),
            origin_high: self.origin.map_or(BlockId::new(0), |(_, high)| high),
            key: 0,
            flags: 0,
            inodes: 0,
            snapshots: 0,
            inherited: self.inherited,
        }
        .put(&mut out);
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "dataset record";
        let head = DatasetHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(head.key == 0, "datasets with a key", Reason::Feature)?;
        ensure(head.flags == 0, "flags of datasets", Reason::Feature)?;
        let name = &bytes[DatasetHead::SIZE..];
        let flags_fit = head.has_root <= 1 && head.destroyed <= 1;
        ensure(name.len() == usize::from(head.name_len) && flags_fit, WHAT, Reason::Range)?;
        ensure(!name.is_empty() && !name.contains(&b'/'), WHAT, Reason::Range)?;
        ensure(head.created.nanos < 1_000_000_000, WHAT, Reason::Range)?;
        let amounts = [head.referenced, head.logical, head.stored, head.held, head.inherited];
        ensure_countable(&amounts, WHAT)?;
        ensure((1..=MAX_DATASET).contains(&head.id.get()), WHAT, Reason::Range)?;
        ensure_countable(&[head.next_inode, head.birth], WHAT)?;
        let name = std::str::from_utf8(name).map_err(|_| Corrupt::new(WHAT, Reason::Range))?;
        ensure(!name.chars().any(char::is_control), WHAT, Reason::Range)?;
        let origin = (head.origin.get() > 0).then_some((head.origin, head.origin_high));
        ensure(origin.is_none_or(|(of, _)| of != head.id && of.get() <= MAX_DATASET), WHAT, Reason::Range)?;
        // With a lower one it would free what its origin holds.
        let is_protected = head.origin_high <= head.protected_below;
        ensure(is_protected && origin.is_some() == (head.origin_high.get() > 0), WHAT, Reason::Range)?;
        ensure(head.inherited <= head.referenced, WHAT, Reason::Range)?;
        Ok(Self {
            id: head.id,
            parent: head.parent,
            guid: head.guid,
            root: (head.has_root != 0).then(|| head.root.checked()).transpose()?,
            destroyed: head.destroyed != 0,
            protected_below: head.protected_below,
            referenced: head.referenced,
            logical: head.logical,
            stored: head.stored,
            next_inode: head.next_inode,
            created: head.created,
            birth: head.birth,
            held: head.held,
            origin,
            inherited: head.inherited,
            name_salt: head.name_salt,
            name: name.to_owned(),
        })
    }
}

layout! {
    /// The fixed part of a [`SnapshotRecord`]; the name follows.
    pub struct SnapshotHead[192] {
        /// The dataset that it is a snapshot of.
        dataset: DatasetId = 0,
        /// Its GUID, for people and streams.
        guid: u64 = 8,
        /// Every block id that it can refer to is lower; taken for it alone, so that it names the snapshot.
        high: BlockId = 16,
        /// 1 when `root` names a tree; a snapshot of an empty dataset has none.
        has_root: u8 = 24,
        /// The root of its tree.
        root: BlockPtr = 32,
        /// Footprints of all blocks it refers to, bytes.
        referenced: u64 = 56,
        /// Plain bytes of the records it refers to.
        logical: u64 = 64,
        /// Stored bytes of its records.
        stored: u64 = 72,
        /// The dataset's next inode id at that time.
        next_inode: u64 = 80,
        /// When it was taken.
        created: Timestamp = 88,
        /// The commit that took it.
        commit: u64 = 104,
        /// Bytes of the name.
        name_len: u16 = 112,
        /// Bytes that nothing but it refers to. Reserved: 0 is not counted.
        unique: u64 = 120,
        /// Bytes written between the snapshot before it and it. Reserved: 0 is not counted.
        written: u64 = 128,
        /// Reserved.
        holds: u32 = 136,
        /// Reserved: datasets name their origin.
        clones: u32 = 140,
        /// [`SNAPSHOT_DEFERRED`], [`SNAPSHOT_HIDDEN`].
        flags: u32 = 144,
        /// Inodes in it. Reserved: 0 is not counted.
        inodes: u64 = 152,
    }
}

/// A snapshot, as the snapshot table records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// The dataset that it is a snapshot of.
    pub dataset: DatasetId,
    /// Its GUID.
    pub guid: u64,
    /// Every block id that it can refer to is lower; taken for it alone, so that it names the snapshot.
    pub high: BlockId,
    /// The root of its tree; none when the dataset was empty.
    pub root: Option<BlockPtr>,
    /// Footprints of all blocks it refers to, bytes.
    pub referenced: u64,
    /// Plain bytes of the records it refers to.
    pub logical: u64,
    /// Stored bytes of the records it refers to.
    pub stored: u64,
    /// The dataset's next inode id at that time.
    pub next_inode: u64,
    /// When it was taken.
    pub created: Timestamp,
    /// The commit that took it.
    pub commit: CommitId,
    /// Whether it is destroyed with its last hold.
    pub deferred: bool,
    /// Whether it was destroyed, and is there for its clones alone.
    pub hidden: bool,
    /// Its name within the dataset.
    pub name: String,
}

impl SnapshotRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; SnapshotHead::SIZE];
        SnapshotHead {
            dataset: self.dataset,
            guid: self.guid,
            high: self.high,
            has_root: u8::from(self.root.is_some()),
            root: self.root.unwrap_or(BlockPtr::load(&[0; BlockPtr::SIZE])),
            referenced: self.referenced,
            logical: self.logical,
            stored: self.stored,
            next_inode: self.next_inode,
            created: self.created,
            commit: self.commit.get(),
            name_len: self.name.len() as u16,
            unique: 0,
            written: 0,
            holds: 0,
            clones: 0,
            flags: [(self.deferred, SNAPSHOT_DEFERRED), (self.hidden, SNAPSHOT_HIDDEN)]
                .into_iter()
                .filter_map(|(is_set, flag)| is_set.then_some(flag))
                .sum(),
            inodes: 0,
        }
        .put(&mut out);
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "snapshot record";
        let head = SnapshotHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(head.holds == 0, "holds of snapshots", Reason::Feature)?;
        ensure(head.clones == 0, "clones of snapshots", Reason::Feature)?;
        ensure(
            head.flags & !(SNAPSHOT_DEFERRED | SNAPSHOT_HIDDEN) == 0,
            "flags of snapshots",
            Reason::Feature,
        )?;
        let both = SNAPSHOT_DEFERRED | SNAPSHOT_HIDDEN;
        ensure(head.flags != both, WHAT, Reason::Range)?;
        let name = &bytes[SnapshotHead::SIZE..];
        ensure(name.len() == usize::from(head.name_len) && head.has_root <= 1, WHAT, Reason::Range)?;
        ensure(!name.is_empty() && !name.contains(&b'/'), WHAT, Reason::Range)?;
        ensure(head.created.nanos < 1_000_000_000, WHAT, Reason::Range)?;
        ensure_countable(&[head.referenced, head.logical, head.stored], WHAT)?;
        ensure_countable(&[head.dataset.get(), head.high.get(), head.next_inode, head.commit], WHAT)?;
        let root = (head.has_root != 0).then(|| head.root.checked()).transpose()?;
        ensure(root.is_none_or(|root| root.id < head.high), WHAT, Reason::Order)?;
        let name = std::str::from_utf8(name).map_err(|_| Corrupt::new(WHAT, Reason::Range))?;
        ensure(!name.chars().any(char::is_control), WHAT, Reason::Range)?;
        Ok(Self {
            dataset: head.dataset,
            guid: head.guid,
            high: head.high,
            root,
            referenced: head.referenced,
            logical: head.logical,
            stored: head.stored,
            next_inode: head.next_inode,
            created: head.created,
            commit: CommitId::new(head.commit),
            deferred: head.flags & SNAPSHOT_DEFERRED != 0,
            hidden: head.flags & SNAPSHOT_HIDDEN != 0,
            name: name.to_owned(),
        })
    }
}

layout! {
    /// Totals of blocks that are dropped and not yet free.
    #[derive(Copy, Default)]
    pub struct FreeingRecord[48] {
        /// Blocks with the mark `DEAD`, about: what the free queue has still to look at.
        queued_blocks: u64 = 0,
        /// Their footprints, bytes, about.
        queued_bytes: u64 = 8,
        /// Bytes that were dropped and could not be freed, for another reference may hold them: what a trace may
        /// bring back, at most.
        left_bytes: u64 = 16,
        /// 1 while any id may carry the mark `SHARED`.
        shared: u8 = 24,
        /// Blocks below this id were judged by a trace that has not ended, freed or not; 0 for none.
        judged: BlockId = 32,
        /// `left_bytes` when that trace began.
        judged_left: u64 = 40,
    }
}

impl FreeingRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; Self::SIZE];
        self.put(&mut out);
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "freeing record";
        let record = Self::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(bytes.len() == Self::SIZE && record.shared <= 1, WHAT, Reason::Range)?;
        ensure_countable(&[record.queued_blocks, record.queued_bytes, record.left_bytes], WHAT)?;
        ensure_countable(&[record.judged.get(), record.judged_left], WHAT)?;
        Ok(record)
    }
}

layout! {
    /// A tree that was a snapshot's, or a head's before it was rolled back. What came after it in its dataset has not,
    /// nor what was there before, is to be freed.
    #[derive(Copy)]
    pub struct RemainsRecord[80] {
        /// The dataset.
        dataset: DatasetId = 0,
        /// Every block id that it can refer to is lower; taken for it alone.
        high: BlockId = 8,
        /// Blocks up to this id may be held by the snapshot before it, and stay.
        floor: BlockId = 16,
        /// The root of the tree.
        root: BlockPtr = 24,
        /// Entries before this key, and nodes that end before it, are done with.
        from: Key = 48,
    }
}

impl RemainsRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; Self::SIZE];
        self.put(&mut out);
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "remains record";
        let record = Self::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(bytes.len() == Self::SIZE, WHAT, Reason::Range)?;
        ensure_countable(&[record.dataset.get(), record.high.get(), record.floor.get()], WHAT)?;
        record.root.checked()?;
        ensure(record.floor < record.high && record.root.id < record.high, WHAT, Reason::Order)?;
        Ok(record)
    }
}

layout! {
    /// The fixed part of a [`ReceivingRecord`]; the snapshot's name follows, and the sender's for it.
    #[derive(Copy)]
    pub struct ReceivingHead[176] {
        /// `high` of the snapshot that it begins as, of the dataset that the stream is for; 0 without.
        base: BlockId = 0,
        /// GUID of the snapshot that is received.
        to: u64 = 8,
        /// GUID of the snapshot that it begins as; 0 without.
        from: u64 = 16,
        /// When that snapshot was taken.
        created: Timestamp = 24,
        /// Set of `RECEIVING_RESUMABLE` and `RECEIVING_MADE`.
        flags: u32 = 36,
        /// Everything up to this key was received; the lowest key at first.
        position: Key = 40,
        /// 1 when something was.
        begun: u8 = 57,
        /// Bytes of name.
        name_len: u16 = 58,
        /// Bytes of the sender's name for it.
        sender_len: u16 = 60,
        /// Bytes of the stream that were received.
        bytes: u64 = 64,
        /// Of the inode at `position`: stored bytes of extents that came, and that went.
        stored_in: u64 = 72,
        /// See `stored_in`.
        stored_out: u64 = 80,
        /// Of it: plain bytes of extents that came, and that went.
        data_in: u64 = 88,
        /// See `data_in`.
        data_out: u64 = 96,
        /// Random: what the sums below are made with.
        seed: u64 = 104,
        /// Names against links, directories, subdirectories, entries and orphans: each is 0 when they agree.
        sums: [u8; 40] = 112,
        /// Of the extents that came, of the inode at `position`: all bits of their offsets.
        offsets: u64 = 152,
        /// Of them: plain bytes of the longest record.
        longest: u32 = 160,
        /// Of them: 1 when one begins inside of its record.
        inner: u8 = 164,
    }
}

/// Flag of a stream that is received: when it breaks off, the rest may come later.
pub const RECEIVING_RESUMABLE: u32 = 1;
/// Flag of a stream that is received: the dataset was made for it, and goes with what was received.
pub const RECEIVING_MADE: u32 = 2;

/// A stream on its way into a dataset of its own, until a snapshot is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivingRecord {
    /// `high` of the snapshot that it begins as, of the dataset that the stream is for.
    pub base: Option<BlockId>,
    /// GUID of the snapshot that is received.
    pub to: u64,
    /// GUID of the snapshot that it begins as; 0 without.
    pub from: u64,
    /// When the snapshot was taken.
    pub created: Timestamp,
    /// When it breaks off, the rest may come later.
    pub resumable: bool,
    /// The dataset was made for it.
    pub made: bool,
    /// Everything up to this key was received.
    pub position: Option<Key>,
    /// Bytes of the stream that were received.
    pub bytes: u64,
    /// Of the inode at `position`: stored bytes of extents that came, and that went.
    pub stored: (u64, u64),
    /// Of it: plain bytes of extents that came, and that went.
    pub data: (u64, u64),
    /// Random: what `sums` are made with.
    pub seed: u64,
    /// Names against links, directories, subdirectories, entries and orphans: each is 0 when they agree.
    pub sums: [u64; 5],
    /// Of the extents that came, of the inode at `position`: all bits of their offsets.
    pub offsets: u64,
    /// Of them: plain bytes of the longest record.
    pub longest: u32,
    /// Of them: whether one begins inside of its record.
    pub inner: bool,
    /// Name of the snapshot, within its dataset.
    pub name: String,
    /// Its full name where it was sent.
    pub sender: String,
}

impl ReceivingRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; ReceivingHead::SIZE];
        let mut sums = [0; 40];
        for (bytes, sum) in sums.chunks_exact_mut(8).zip(self.sums) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        let flags = [(self.resumable, RECEIVING_RESUMABLE), (self.made, RECEIVING_MADE)];
        ReceivingHead {
            base: self.base.unwrap_or(BlockId::new(0)),
            to: self.to,
            from: self.from,
            created: self.created,
            flags: flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag)).sum(),
            position: self.position.unwrap_or(Key::MIN),
            begun: u8::from(self.position.is_some()),
            name_len: self.name.len() as u16,
            sender_len: self.sender.len() as u16,
            bytes: self.bytes,
            stored_in: self.stored.0,
            stored_out: self.stored.1,
            data_in: self.data.0,
            data_out: self.data.1,
            seed: self.seed,
            sums,
            offsets: self.offsets,
            longest: self.longest,
            inner: u8::from(self.inner),
        }
        .put(&mut out);
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(self.sender.as_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "record of a stream that is received";
        let head = ReceivingHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let known = head.flags & !(RECEIVING_RESUMABLE | RECEIVING_MADE) == 0;
        ensure(known, "flags of streams that are received", Reason::Feature)?;
        let both = bytes[ReceivingHead::SIZE..].split_at_checked(head.name_len.into());
        let (name, sender) = both.ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let is_whole = sender.len() == usize::from(head.sender_len) && !name.is_empty();
        let fits = is_whole && head.begun <= 1 && head.inner <= 1;
        ensure(fits && head.created.nanos < 1_000_000_000, WHAT, Reason::Range)?;
        ensure_countable(&[head.base.get(), head.bytes, head.stored_in, head.stored_out], WHAT)?;
        ensure_countable(&[head.data_in, head.data_out], WHAT)?;
        let name = std::str::from_utf8(name).map_err(|_| Corrupt::new(WHAT, Reason::Range))?;
        let sender = std::str::from_utf8(sender).map_err(|_| Corrupt::new(WHAT, Reason::Range))?;
        ensure(!name.contains('/'), WHAT, Reason::Range)?;
        ensure(!name.chars().chain(sender.chars()).any(char::is_control), WHAT, Reason::Range)?;
        let mut sums = [0; 5];
        for (sum, bytes) in sums.iter_mut().zip(head.sums.chunks_exact(8)) {
            *sum = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
        }
        Ok(Self {
            base: Some(head.base).filter(|base| *base > BlockId::new(0)),
            to: head.to,
            from: head.from,
            created: head.created,
            resumable: head.flags & RECEIVING_RESUMABLE != 0,
            made: head.flags & RECEIVING_MADE != 0,
            position: (head.begun != 0).then_some(head.position),
            bytes: head.bytes,
            stored: (head.stored_in, head.stored_out),
            data: (head.data_in, head.data_out),
            seed: head.seed,
            sums,
            offsets: head.offsets,
            longest: head.longest,
            inner: head.inner != 0,
            name: name.to_owned(),
            sender: sender.to_owned(),
        })
    }
}

layout! {
    /// A slot that is out of use, since its device refused a write to it.
    #[derive(Copy)]
    pub struct BadSlotRecord[32] {
        /// The device that refused: the one of the slot's number, or one that stands for it. Of another the entry
        /// says nothing.
        device: DeviceGuid = 0,
        /// When it refused first.
        time: Timestamp = 8,
        /// The system's error number.
        errno: u32 = 20,
        /// Writes refused; at least 1.
        errors: u32 = 24,
    }
}

impl BadSlotRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; Self::SIZE];
        self.put(&mut out);
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "bad slot record";
        let record = Self::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let fits = bytes.len() == Self::SIZE && record.time.nanos < 1_000_000_000 && record.errors > 0;
        ensure(fits, WHAT, Reason::Range)?;
        Ok(record)
    }
}

layout! {
    /// The fixed part of a [`HoldRecord`]; the tag follows.
    pub struct HoldHead[16] {
        /// When it was placed.
        created: Timestamp = 0,
        /// Bytes of the tag.
        tag_len: u16 = 12,
    }
}

/// A hold on a snapshot: while there is one, it cannot be destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldRecord {
    /// When it was placed.
    pub created: Timestamp,
    /// Its name: 1 to [`TAG_MAX`] bytes, no control characters.
    pub tag: String,
}

impl HoldRecord {
    /// The record's bytes: head, tag.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HoldHead::SIZE];
        HoldHead { created: self.created, tag_len: self.tag.len() as u16 }.put(&mut out);
        out.extend_from_slice(self.tag.as_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "hold record";
        let head = HoldHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let tag = &bytes[HoldHead::SIZE..];
        ensure(tag.len() == usize::from(head.tag_len), WHAT, Reason::Range)?;
        ensure(head.created.nanos < 1_000_000_000, WHAT, Reason::Range)?;
        let tag = std::str::from_utf8(tag).map_err(|_| Corrupt::new(WHAT, Reason::Range))?;
        ensure(is_tag(tag), WHAT, Reason::Range)?;
        Ok(Self { created: head.created, tag: tag.to_owned() })
    }
}

/// Whether a hold can have this name.
pub fn is_tag(tag: &str) -> bool {
    (1..=TAG_MAX).contains(&tag.len()) && !tag.chars().any(char::is_control)
}
