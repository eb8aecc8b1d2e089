//! Contents of a pool's tables, decoded and checked against nothing but each other: import makes a pool of them.

use crate::attached::Entry;
use crate::own::OwnProperties;
use larder_format::bookmark::BookmarkRecord;
use larder_format::commit_record::CommitRecordEntry;
use larder_format::index::PartDescriptor;
use larder_format::node::{Key, Leaf, Node};
use larder_format::property::{PropertyRecord, PropertySource};
use larder_format::run::RunDescriptor;
use larder_format::segment::SegmentRecord;
use larder_format::tables::{
    DatasetRecord, FreeingRecord, HoldRecord, PIECE_MAX, ReceivingRecord, RemainsRecord, SECRET_LEN,
    SnapshotRecord, Table,
};
use larder_format::trash::{TrashKey, TrashRecord};
use larder_format::{BlockId, Corrupt, DatasetId, MAX_COUNT, Reason};
use larder_sorted::tree::Tree;
use larder_store::segments::Listed;
use larder_store::{PoolError, Refusal, Result, Store, TableNodes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values of the tables that come in pieces, by entry.
#[derive(Default)]
pub(crate) struct Pieces(BTreeMap<u64, Vec<u8>>);

impl Pieces {
    /// Adds piece `number` of an entry.
    fn add(&mut self, entry: u64, number: u64, piece: &[u8]) -> Result<(), Corrupt> {
        let value = self.0.entry(entry).or_default();
        let follows = value.len() as u64 == number.saturating_mul(PIECE_MAX as u64);
        value.extend_from_slice(piece);
        if follows { Ok(()) } else { Err(Corrupt::new("run descriptor", Reason::Order)) }
    }

    /// Decodes the values.
    fn decode<T, F: Fn(&[u8]) -> Result<(T, usize), Corrupt>>(self, decode: F) -> Result<Vec<T>, Corrupt> {
        self.0.values().map(|value| decode(value).map(|(value, _)| value)).collect()
    }
}

/// Entries of which more than one makes a whole, and whether the key of fingerprints was there.
#[derive(Default)]
pub(crate) struct InPieces {
    runs: Pieces,
    parts: Pieces,
    has_secret: bool,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Contents {
    /// All segments but those that the root names alone, in whatever order.
    pub segments: Vec<SegmentRecord>,
    /// Datasets, with those that are being destroyed.
    pub datasets: Vec<DatasetRecord>,
    /// Runs of the block map.
    pub runs: Vec<RunDescriptor>,
    /// Parts of the dedup index.
    pub parts: Vec<PartDescriptor>,
    /// The key of fingerprints.
    pub secret: [u8; SECRET_LEN],
    /// Snapshots of all datasets.
    pub snapshots: Vec<SnapshotRecord>,
    /// Holds and properties of snapshots, by dataset, `high` and number.
    pub attached: Vec<(DatasetId, BlockId, u32, Entry)>,
    /// Entries of the trash.
    pub trash: BTreeMap<TrashKey, TrashRecord>,
    /// Bookmarks of datasets.
    pub bookmarks: Vec<(DatasetId, BookmarkRecord)>,
    /// Trees without a name, of which what nothing else has is being freed.
    pub remains: Vec<RemainsRecord>,
    /// Streams on their way in, by the dataset that they go into first.
    pub receiving: BTreeMap<DatasetId, ReceivingRecord>,
    /// Queue of blocks to be freed.
    pub freeing: FreeingRecord,
    /// Commit records that are not free.
    pub records: Vec<CommitRecordEntry>,
    /// Properties by dataset; those of the pool under none.
    pub properties: BTreeMap<DatasetId, OwnProperties>,
    /// Entries of tables nothing depends on, by number: who keeps them leaves out what says nothing. Of events and
    /// commands the numbers alone.
    pub kept: Vec<(Table, u64, Vec<u8>)>,
}

/// A property of a snapshot, or of the pool. What streams bring is set on snapshots, since no later one changes it.
fn local(record: PropertyRecord) -> Result<PropertyRecord, Corrupt> {
    match record.source {
        PropertySource::Local => Ok(record),
        _ => Err(Corrupt::new("received properties of snapshots or pools", Reason::Feature)),
    }
}

impl Contents {
    /// Reads all tables: their leaves in the order in which they lie, since those are read in the fewest requests.
    ///
    /// # Errors
    /// When a node cannot be read, an entry says nothing, or belongs to a later version, which is named.
    pub(crate) fn read(tables: &Tree, store: &Store) -> Result<Self> {
        let (mut contents, mut found) = (Self::default(), InPieces::default());
        // Of segments each entry is one; others come in pieces, which are put together in their order.
        let mut others = BTreeMap::new();
        let most = {
            let core = store.core.lock();
            let of_tables = core.entries.listed(Listed::Table);
            of_tables.map(|entry| u64::from(entry.height) * entry.segment.layout.k() as u64).sum()
        };
        tables.visit_leaves(&TableNodes(store), most, |number, node| {
            let Node::Leaf(leaf) = &**node else { return Ok(()) };
            let is_of_segments =
                |key: Option<&Key>| key.is_some_and(|key| matches!(Table::of(key), Ok((Table::Segments, _))));
            if is_of_segments(leaf.keys().first()) && is_of_segments(leaf.keys().last()) {
                return contents.take_leaf(leaf, &mut found);
            }
            others.insert(number, Arc::clone(node));
            Ok(())
        })?;
        for node in others.into_values() {
            if let Node::Leaf(leaf) = &*node {
                contents.take_leaf(leaf, &mut found)?;
            }
        }
        if !found.has_secret {
            return Err(Corrupt::new("secret", Reason::Short).into());
        }
        contents.runs = found.runs.decode(RunDescriptor::decode)?;
        contents.parts = found.parts.decode(PartDescriptor::decode)?;
        Ok(contents)
    }

    fn take_leaf(&mut self, leaf: &Leaf, found: &mut InPieces) -> Result<()> {
        for (key, value) in leaf.entries(0..leaf.len()) {
            self.take(key, value, found).map_err(|corrupt| match corrupt.reason {
                Reason::Feature => PoolError::Refused(Refusal::Newer(corrupt.what.to_string())),
                _ => corrupt.into(),
            })?;
        }
        Ok(())
    }

    pub(crate) fn take(&mut self, key: &Key, value: &[u8], found: &mut InPieces) -> Result<(), Corrupt> {
        let (table, id) = Table::of(key)?;
        match table {
            Table::Segments => {
                let record = SegmentRecord::decode(value)?.0;
                is_its(Table::segment_key(record.id) == *key, "segment record")?;
                self.segments.push(record);
            }
            Table::Datasets => {
                let record = DatasetRecord::decode(value)?;
                is_its(Table::dataset_key(record.id) == *key, "dataset record")?;
                self.datasets.push(record);
            }
            Table::Runs => found.runs.add(key.offset, id, value)?,
            Table::Index => found.parts.add(key.offset, id, value)?,
            Table::Secret if key.offset == 0 => {
                let secret = value.try_into().map_err(|_| Corrupt::new("secret", Reason::Short))?;
                (self.secret, found.has_secret) = (secret, true);
            }
            Table::Secret => return Err(Corrupt::new("fingerprints under a key", Reason::Feature)),
            Table::Snapshots => {
                let record = SnapshotRecord::decode(value)?;
                is_its(Table::snapshot_key(record.dataset, record.high) == *key, "snapshot record")?;
                self.snapshots.push(record);
            }
            Table::SnapshotProperties | Table::Holds => {
                let entry = match table {
                    Table::Holds => Entry::Hold(HoldRecord::decode(value)?),
                    _ => Entry::Property(local(PropertyRecord::decode(value)?)?),
                };
                let (dataset, number) = Table::attached(id);
                self.attached.push((dataset, BlockId::new(key.offset), number, entry));
            }
            Table::Bookmarks => {
                let (dataset, record) = (DatasetId::new(id), BookmarkRecord::decode(value)?);
                is_its(BookmarkRecord::key(dataset, &record.name) == *key, "bookmark record")?;
                self.bookmarks.push((dataset, record));
            }
            Table::Trash => {
                let record = TrashRecord::decode(value)?;
                let key = TrashKey::of(id, key.offset);
                let key = key.ok_or(Corrupt::new("trash of another kind", Reason::Feature))?;
                self.trash.insert(key, record);
            }
            Table::Remains => {
                let record = RemainsRecord::decode(value)?;
                is_its(Table::Remains.key(record.high.get()) == *key, "remains record")?;
                self.remains.push(record);
            }
            Table::CommitRecords => {
                let entry = CommitRecordEntry::decode(value)?;
                is_its(CommitRecordEntry::key(entry.ptr.id) == *key, "entry of a commit record")?;
                self.records.push(entry);
            }
            Table::Receiving => {
                let record = ReceivingRecord::decode(value)?;
                self.receiving.insert(DatasetId::new(key.offset), record);
            }
            // The pool can do without them; numbers are counted on.
            Table::Events | Table::Commands | Table::Damage if key.offset > MAX_COUNT => {}
            Table::Events | Table::Commands => self.kept.push((table, key.offset, Vec::new())),
            Table::Damage | Table::BadSlots => {
                self.kept.push((table, key.offset, value.to_vec()));
            }
            Table::Freeing => self.freeing = FreeingRecord::decode(value)?,
            Table::Properties => {
                let record = PropertyRecord::decode(value)?;
                let record = if id == 0 { local(record)? } else { record };
                self.properties.entry(DatasetId::new(id)).or_default().adopt(record);
            }
            _ => return Err(Corrupt::new("a table that is not known", Reason::Feature)),
        }
        Ok(())
    }
}

/// An entry that lies under another's key would not be found, nor removed, by its own.
fn is_its(is_so: bool, what: &'static str) -> Result<(), Corrupt> {
    if is_so { Ok(()) } else { Err(Corrupt::new(what, Reason::Identity)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::run::{Footprint, PageRef, RunId};
    use larder_format::tables::pieces;
    use larder_format::{BlockId, SegmentId};

    #[test]
    fn a_run_of_thousands_of_segments_comes_back_from_its_pieces() {
        let place = larder_format::Place { segment: SegmentId::new(1), column: 0, offset: 4096, stored: 800 };
        let ptr = larder_format::BlockPtr { id: BlockId::new(9), place };
        let footprint = |n| Footprint { segment: SegmentId::new(n), blocks: 20, bytes: 640_000 };
        let run = RunDescriptor {
            run: RunId::new(7),
            oldest: RunId::new(1),
            newest: RunId::new(7),
            entries: 100_000_000,
            shadows: 0,
            bytes: 1_900_000_000,
            first: BlockId::new(1),
            last: BlockId::new(100_000_000),
            pages: 60_000,
            height: 2,
            refs: vec![PageRef { first: BlockId::new(1), ptr }],
            footprints: (1..=5_000).map(footprint).collect(),
        };
        let mut value = Vec::new();
        run.encode(&mut value);
        let mut all = Pieces::default();
        let of: Vec<&[u8]> = pieces(&value).collect();
        assert!(of.len() > 20 && of.iter().all(|piece| piece.len() <= PIECE_MAX));
        for (number, piece) in (0..).zip(&of) {
            all.add(7, number, piece).unwrap();
        }
        assert_eq!(all.decode(RunDescriptor::decode).unwrap(), [run]);
        // One that is missing is noticed.
        let mut lacking = Pieces::default();
        lacking.add(7, 0, of[0]).unwrap();
        assert_eq!(lacking.add(7, 2, of[2]).unwrap_err().reason, Reason::Order);
        assert!(lacking.decode(RunDescriptor::decode).is_err());
    }
}
