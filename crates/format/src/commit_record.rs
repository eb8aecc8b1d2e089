//! Commit records: what the pool's tables say of datasets, in blocks that explain themselves.
//!
//! Repair reads them where root records, labels or tables are lost. So the payload has a sum without a key: it can be
//! believed before the pool's key is known, and has that key. Each record has the rows that changed since the one
//! before, and a slice of all others; [`together`] they say what the tables say.

use crate::checksum;
use crate::error::ensure;
use crate::ids::ensure_countable;
use crate::label::{FORMAT_VERSION, Features, Label};
use crate::node::{Key, LeafEntry, MAX_VALUE};
use crate::root::{
    Identity, MAX_HISTORY, RootDevice, RootDeviceEntry, RootGroup, RootGroupEntry, RootImport, check_members,
};
use crate::tables::{TABLE_KIND, Table};
use crate::{BlockId, BlockPtr, CommitId, Corrupt, Incarnation, PoolGuid, Reason, Timestamp, layout};
use std::collections::BTreeMap;

/// `LARDERCR`.
pub const COMMIT_RECORD_MAGIC: u64 = u64::from_le_bytes(*b"LARDERCR");
/// Bytes of a record's payload before the codec, at most.
pub const COMMIT_RECORD_MAX: usize = 128 << 10;
/// Length of a row that is gone.
pub const ROW_GONE: u16 = u16::MAX;

/// The tables whose rows records have, in the order of their keys.
pub const RECORDED: [Table; 7] = [
    Table::Datasets,
    Table::Properties,
    Table::Snapshots,
    Table::SnapshotProperties,
    Table::Holds,
    Table::Bookmarks,
    Table::Trash,
];

const WHAT: &str = "commit record";
/// Where the sum lies.
const SUM_AT: usize = CommitRecordHead::SIZE - 8;

/// Whether records have the rows of this table's entry.
pub fn is_recorded(key: &Key) -> bool {
    key.kind == TABLE_KIND && Table::of(key).is_ok_and(|(table, _)| RECORDED.contains(&table))
}

layout! {
    /// The fixed part of a commit record. The label, groups, devices, history and rows follow, in that order.
    pub struct CommitRecordHead[192] {
        /// [`COMMIT_RECORD_MAGIC`].
        magic: u64 = 0,
        /// [`FORMAT_VERSION`].
        version: u32 = 8,
        /// Bytes of the whole record.
        length: u32 = 12,
        /// The pool.
        pool: PoolGuid = 16,
        /// The commit that it is part of.
        commit: CommitId = 24,
        /// The import under which it was written.
        incarnation: Incarnation = 32,
        /// When.
        time: Timestamp = 40,
        /// Its number among the records that were written together, from 0.
        part: u16 = 52,
        /// Number of these.
        parts: u16 = 54,
        /// Records of commits before this one are not needed.
        turn: CommitId = 56,
        /// Number of groups.
        groups: u16 = 64,
        /// Number of devices.
        devices: u16 = 66,
        /// Number of history entries.
        history: u16 = 68,
        /// Number of rows.
        rows: u32 = 72,
        /// The root's features.
        features: Features = 80,
        /// As the root has it.
        next_device: u16 = 104,
        /// As the root has it.
        next_group: u16 = 106,
        /// As the root has it.
        traced: CommitId = 112,
        /// As the root has it.
        known_as: PoolGuid = 120,
        /// As the root has it.
        former: PoolGuid = 128,
        /// XXH3-64, without a key, of the whole record with this field as zero.
        sum: u64 = 184,
    }
}

layout! {
    /// A [`CommitRecordEntry`] as the table has it.
    pub struct CommitRecordRow[72] {
        /// The block. Its place is a hint.
        ptr: BlockPtr = 0,
        /// The commit that it is part of.
        commit: CommitId = 24,
        /// As the record itself says.
        turn: CommitId = 32,
        /// The commit with which the turn under way began; 0 when the next record begins one.
        began: CommitId = 40,
        /// The row that the next slice begins with; the lowest key without a turn under way.
        next: Key = 48,
    }
}

/// Position of slices among the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slices {
    /// Where the next one begins, and the commit with which its turn began; none when it begins one.
    pub next: Option<(Key, CommitId)>,
    /// The commit with which the last turn began that is done; 0 without one.
    pub turn: CommitId,
}

/// An entry of the table of commit records that are not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitRecordEntry {
    /// The block. Its place is a hint.
    pub ptr: BlockPtr,
    /// The commit that it is part of.
    pub commit: CommitId,
    /// Position of slices behind it.
    pub slices: Slices,
}

impl CommitRecordEntry {
    /// The key of the entry of this block.
    pub fn key(id: BlockId) -> Key {
        Table::CommitRecords.key(id.get())
    }

    /// The entry's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; CommitRecordRow::SIZE];
        let Slices { next, turn } = self.slices;
        let (next, began) = next.unwrap_or((Key::MIN, CommitId::new(0)));
        CommitRecordRow { ptr: self.ptr, commit: self.commit, turn, began, next }.put(&mut out);
        out
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "entry of a commit record";
        let row = CommitRecordRow::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(bytes.len() == CommitRecordRow::SIZE, WHAT, Reason::Range)?;
        ensure_countable(&[row.ptr.id.get(), row.commit.get()], WHAT)?;
        row.ptr.checked()?;
        ensure(row.turn.max(row.began) <= row.commit, WHAT, Reason::Order)?;
        let is_under_way = row.began > CommitId::new(0);
        ensure(is_under_way == is_recorded(&row.next), WHAT, Reason::Range)?;
        ensure(is_under_way || row.next == Key::MIN, WHAT, Reason::Range)?;
        let next = is_under_way.then_some((row.next, row.began));
        Ok(Self { ptr: row.ptr, commit: row.commit, slices: Slices { next, turn: row.turn } })
    }
}

/// A row of one of the [`RECORDED`] tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its key.
    pub key: Key,
    /// Its value, as the table has it; none when the row is gone.
    pub value: Option<Vec<u8>>,
}

impl Row {
    /// Bytes that it takes in a record.
    pub fn encoded_len(&self) -> usize {
        LeafEntry::SIZE + self.value.as_ref().map_or(0, Vec::len)
    }

    fn put(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.resize(at + LeafEntry::SIZE, 0);
        let len = self.value.as_ref().map_or(ROW_GONE, |value| value.len() as u16);
        LeafEntry { key: self.key, len }.put(&mut out[at..]);
        out.extend_from_slice(self.value.as_deref().unwrap_or_default());
    }
}

/// A commit record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRecord {
    /// The pool, as labels, sums and blocks name it.
    pub pool: PoolGuid,
    /// As people and imports know it.
    pub identity: Identity,
    /// The commit that it is part of.
    pub commit: CommitId,
    /// The import under which it was written.
    pub incarnation: Incarnation,
    /// When.
    pub time: Timestamp,
    /// Its number among the records that were written together, from 0.
    pub part: u16,
    /// Number of these.
    pub parts: u16,
    /// Each row that was there at this commit is in a record of this commit or a later one; 0 while that is not so.
    pub turn: CommitId,
    /// The root's features.
    pub features: Features,
    /// The number that the next new device gets.
    pub next_device: u16,
    /// The number that the next new group gets.
    pub next_group: u16,
    /// From this commit on ids tell of datasets what they had before.
    pub traced: CommitId,
    /// The label of some device: what it says of the pool counts.
    pub label: Label,
    /// Groups, as they were before this commit.
    pub groups: Vec<RootGroup>,
    /// Devices, as they were before this commit.
    pub devices: Vec<RootDevice>,
    /// Imports, newest first.
    pub history: Vec<RootImport>,
    /// Rows: no key twice in records that were written together.
    pub rows: Vec<Row>,
}

impl CommitRecord {
    /// Bytes that its rows may take, where a record may have `most` in all.
    pub fn room(&self, most: usize) -> usize {
        let members = self.groups.len() * RootGroupEntry::SIZE + self.devices.len() * RootDeviceEntry::SIZE;
        let taken = CommitRecordHead::SIZE
            + self.label.encoded_head().len()
            + members
            + self.history.len() * RootImport::SIZE;
        most.min(COMMIT_RECORD_MAX).saturating_sub(taken)
    }

    /// The record's bytes.
    ///
    /// # Panics
    /// When they are more than [`COMMIT_RECORD_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; CommitRecordHead::SIZE];
        let grow = |out: &mut Vec<u8>, by: usize| {
            let at = out.len();
            out.resize(at + by, 0);
            at
        };
        out.extend(self.label.encoded_head());
        for group in &self.groups {
            let at = grow(&mut out, RootGroupEntry::SIZE);
            group.put(&mut out[at..]);
        }
        for device in &self.devices {
            let at = grow(&mut out, RootDeviceEntry::SIZE);
            device.put(&mut out[at..]);
        }
        for import in &self.history {
            let at = grow(&mut out, RootImport::SIZE);
            import.put(&mut out[at..]);
        }
        self.rows.iter().for_each(|row| row.put(&mut out));
        assert!(out.len() <= COMMIT_RECORD_MAX, "who makes a record knows its room");
        let [known_as, former] = self.identity.told(self.pool);
        let mut head = CommitRecordHead {
            magic: COMMIT_RECORD_MAGIC,
            version: FORMAT_VERSION,
            length: out.len() as u32,
            pool: self.pool,
            commit: self.commit,
            incarnation: self.incarnation,
            time: self.time,
            part: self.part,
            parts: self.parts,
            turn: self.turn,
            groups: self.groups.len() as u16,
            devices: self.devices.len() as u16,
            history: self.history.len() as u16,
            rows: self.rows.len() as u32,
            features: self.features,
            next_device: self.next_device,
            next_group: self.next_group,
            traced: self.traced,
            known_as,
            former,
            sum: 0,
        };
        head.put(&mut out);
        head.sum = checksum::plain64(&out);
        head.put(&mut out);
        out
    }

    /// Verifies a record. Its rows' values are what the tables had: whoever uses one decodes it.
    ///
    /// # Errors
    /// When it is not one, or was damaged.
    pub fn check(bytes: &[u8]) -> Result<Self, Corrupt> {
        let short = Corrupt::new(WHAT, Reason::Short);
        let head = CommitRecordHead::get(bytes).ok_or(short)?;
        ensure(head.magic == COMMIT_RECORD_MAGIC, WHAT, Reason::Magic)?;
        ensure(bytes.len() == head.length as usize && bytes.len() <= COMMIT_RECORD_MAX, WHAT, Reason::Range)?;
        let mut whole = bytes.to_vec();
        whole[SUM_AT..SUM_AT + 8].fill(0);
        ensure(checksum::plain64(&whole) == head.sum, WHAT, Reason::Checksum)?;
        drop(whole);
        // Behind the sum, as in a root.
        ensure(head.version == FORMAT_VERSION, WHAT, Reason::Version)?;
        head.features.check(WHAT)?;
        ensure(head.time.nanos < 1_000_000_000 && head.part < head.parts, WHAT, Reason::Range)?;
        ensure_countable(&[head.commit.get(), head.traced.get()], WHAT)?;
        ensure(head.turn <= head.commit, WHAT, Reason::Order)?;
        ensure(usize::from(head.history) <= MAX_HISTORY, WHAT, Reason::Range)?;
        let identity = Identity::of_told(head.pool, head.features, [head.known_as, head.former])?;

        let (label, len) = Label::check_head(&bytes[CommitRecordHead::SIZE..])?;
        ensure(label.pool == head.pool, WHAT, Reason::Identity)?;
        let mut rest = &bytes[CommitRecordHead::SIZE + len..];
        let mut take = |len: usize| -> Result<&[u8], Corrupt> {
            let (taken, left) = rest.split_at_checked(len).ok_or(short)?;
            rest = left;
            Ok(taken)
        };
        let mut groups = Vec::new();
        for _ in 0..head.groups {
            groups.push(RootGroup::check(take(RootGroupEntry::SIZE)?)?);
        }
        let mut devices = Vec::new();
        for _ in 0..head.devices {
            devices.push(RootDevice::check(take(RootDeviceEntry::SIZE)?, head.commit)?);
        }
        check_members(&groups, &devices, head.next_group, head.next_device)?;
        let mut history = Vec::new();
        for _ in 0..head.history {
            history.push(RootImport::check(take(RootImport::SIZE)?)?);
        }
        let mut rows = Vec::new();
        for _ in 0..head.rows {
            let LeafEntry { key, len } = LeafEntry::get(take(LeafEntry::SIZE)?).ok_or(short)?;
            ensure(is_recorded(&key), WHAT, Reason::Kind)?;
            ensure(len == ROW_GONE || usize::from(len) <= MAX_VALUE, WHAT, Reason::Range)?;
            let value = if len == ROW_GONE { None } else { Some(take(len.into())?.to_vec()) };
            rows.push(Row { key, value });
        }
        ensure(rest.is_empty(), WHAT, Reason::Range)?;
        Ok(Self {
            pool: head.pool,
            identity,
            commit: head.commit,
            incarnation: head.incarnation,
            time: head.time,
            part: head.part,
            parts: head.parts,
            turn: head.turn,
            features: head.features,
            next_device: head.next_device,
            next_group: head.next_group,
            traced: head.traced,
            label,
            groups,
            devices,
            history,
            rows,
        })
    }

    /// Whether a record of this commit and import is one that came before it, or was written with it: imports that were
    /// cut off leave such as never became part of the pool.
    fn follows(&self, commit: CommitId, incarnation: Incarnation) -> bool {
        let import = self.history.iter().find(|import| import.first <= commit);
        commit <= self.commit && import.is_none_or(|import| import.incarnation == incarnation)
    }
}

/// The newest of some records of one pool, and the rows that all of them tell of, whatever they are. Each row is as it
/// was when it last changed, or came by, before the newest record; records that the newest does not need, or does not
/// come of, are left out.
pub fn together(records: Vec<(BlockId, CommitRecord)>) -> Option<(CommitRecord, BTreeMap<Key, Vec<u8>>)> {
    let mut records = records;
    records.sort_by_key(|(id, record)| (record.commit, *id));
    let newest = records.last()?.1.clone();
    let mut rows = BTreeMap::new();
    for (_, record) in records {
        if record.commit < newest.turn || !newest.follows(record.commit, record.incarnation) {
            continue;
        }
        for Row { key, value } in record.rows {
            match value {
                Some(value) => drop(rows.insert(key, value)),
                None => drop(rows.remove(&key)),
            }
        }
    }
    Some((newest, rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::PoolKey;
    use crate::label::{GroupRule, LABEL_AREA, LayoutKind};
    use crate::root::{DeviceKind, DeviceState, GroupRole};
    use crate::segment::Layout;
    use crate::{ByteLen, DatasetId, DeviceGuid, DeviceIndex, DeviceOffset, GroupIndex, SegmentId};

    const POOL: PoolGuid = PoolGuid::new(7);
    const OURS: Incarnation = Incarnation::new(2);

    fn record(commit: u64, turn: u64, rows: Vec<Row>) -> CommitRecord {
        let rule = GroupRule { word: LayoutKind::Single, layout: Layout::new(1, 1, 0).unwrap() };
        let (index, group, guid) = (DeviceIndex::new(0), GroupIndex::new(0), DeviceGuid::new(5));
        let commit = CommitId::new(commit);
        let import = |number, first| RootImport {
            incarnation: Incarnation::new(number),
            first: CommitId::new(first),
            first_block: BlockId::new(first),
            skipped: 0,
        };
        CommitRecord {
            pool: POOL,
            identity: Identity::of(POOL),
            commit,
            incarnation: OURS,
            time: Timestamp::default(),
            part: 0,
            parts: 1,
            turn: CommitId::new(turn),
            features: Features::default(),
            next_device: 1,
            next_group: 1,
            traced: CommitId::new(1),
            label: Label {
                sequence: 1,
                pool: POOL,
                name: "tank".into(),
                device: guid,
                index,
                group,
                rule,
                slot_size: 1 << 20,
                slot_count: 60,
                data_start: DeviceOffset::new(LABEL_AREA),
                device_size: ByteLen::new(64 << 20),
                created: Timestamp::default(),
                ashift: 12,
                features: Features::default(),
                key: PoolKey::new([9; 32]),
            },
            groups: vec![RootGroup {
                index: group,
                rule,
                role: GroupRole::Data,
                ashift: 12,
                slot_size: 1 << 20,
                leaving: false,
                narrow: false,
            }],
            devices: vec![RootDevice {
                index,
                group,
                state: DeviceState::Current,
                leaving: false,
                stands_for: None,
                slot_count: 60,
                partial: false,
                guid,
                good_through: commit,
                since: CommitId::new(0),
                cursor: SegmentId::new(0),
                incarnation: OURS,
                kind: DeviceKind::Unknown,
                is_cache: false,
            }],
            history: vec![import(2, 10), import(1, 1)],
            rows,
        }
    }

    fn row(dataset: u64, value: Option<&[u8]>) -> Row {
        Row { key: Table::dataset_key(DatasetId::new(dataset)), value: value.map(<[u8]>::to_vec) }
    }

    #[test]
    fn a_record_comes_back_and_one_that_was_damaged_does_not() {
        let made = record(20, 12, vec![row(1, Some(b"one")), row(2, None), row(3, Some(b""))]);
        let bytes = made.encode();
        assert_eq!(CommitRecord::check(&bytes), Ok(made.clone()));
        assert_eq!(made.room(usize::MAX) + bytes.len(), COMMIT_RECORD_MAX + 3 * LeafEntry::SIZE + 3);
        for at in (0..bytes.len()).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(CommitRecord::check(&damaged).is_err(), "byte {at}");
        }
        assert_eq!(CommitRecord::check(&bytes[..bytes.len() - 1]).unwrap_err().reason, Reason::Range);
        let other = Row { key: Table::Segments.key(1), value: None };
        let refused = CommitRecord::check(&record(20, 12, vec![other]).encode()).unwrap_err();
        assert_eq!(refused.reason, Reason::Kind, "segments are found by their descriptors");
    }

    #[test]
    fn rows_are_as_the_last_record_has_them_that_counts() {
        let numbered = |number, record| (BlockId::new(number), record);
        let stale = CommitRecord { incarnation: Incarnation::new(1), ..record(14, 12, vec![row(2, None)]) };
        let records = vec![
            numbered(9, record(16, 12, vec![row(3, None), row(4, Some(b"new"))])),
            numbered(1, record(11, 11, vec![row(5, Some(b"not needed"))])),
            numbered(4, record(12, 11, vec![row(3, Some(b"there")), row(4, Some(b"old"))])),
            numbered(8, record(15, 12, vec![row(1, Some(b"later"))])),
            numbered(7, record(15, 12, vec![row(1, Some(b"sooner"))])),
            // Of an import that was cut off.
            numbered(6, stale),
            numbered(5, record(13, 12, vec![row(2, Some(b"kept"))])),
        ];
        let (newest, rows) = together(records).unwrap();
        assert_eq!(newest.commit, CommitId::new(16));
        let expected = [(1, &b"later"[..]), (2, b"kept"), (4, b"new")];
        let expected = expected.map(|(id, value)| (Table::dataset_key(DatasetId::new(id)), value.to_vec()));
        assert_eq!(rows, expected.into());
        assert!(together(Vec::new()).is_none());
    }

    #[test]
    fn tables_that_are_recorded_are_told_by_keys() {
        assert!(RECORDED.windows(2).all(|pair| pair[0].keys().end() < pair[1].keys().start()));
        let key = Table::Holds.attached_key(DatasetId::new(1 << 20), BlockId::new(u64::MAX), 5);
        assert!(is_recorded(&key) && Table::Holds.keys().contains(&key));
        assert!(!is_recorded(&Table::CommitRecords.key(1)) && !is_recorded(&Key { kind: 1, ..key }));
    }
}
