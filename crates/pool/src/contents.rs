//! Contents of a pool's tables, decoded and checked against nothing but each other: import makes a pool of them.

use crate::attached::Entry;
use crate::own::OwnProperties;
use larder_format::bookmark::BookmarkRecord;
use larder_format::index::PartDescriptor;
use larder_format::property::{PropertyRecord, PropertySource};
use larder_format::run::RunDescriptor;
use larder_format::segment::SegmentRecord;
use larder_format::tables::{
    DatasetRecord, FreeingRecord, HoldRecord, PIECE_MAX, ReceivingRecord, RemainsRecord, SECRET_LEN,
    SnapshotRecord, Table,
};
use larder_format::trash::{TrashKey, TrashRecord};
use larder_format::{BlockId, Corrupt, DatasetId, Reason};
use larder_sorted::tree::Tree;
use larder_store::{PoolError, Refusal, Result, Store, TableNodes};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Values of the tables that come in pieces, by entry.
#[derive(Default)]
struct Pieces(BTreeMap<u64, Vec<u8>>);

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

/// See the module's text.
#[derive(Default)]
pub(crate) struct Contents {
    /// All segments but those that the root names alone.
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
    /// Reads all tables.
    ///
    /// # Errors
    /// When a node cannot be read, an entry says nothing, or belongs to a later version, which is named.
    pub(crate) fn read(tables: &Tree, store: &Store) -> Result<Self> {
        let mut contents = Self::default();
        let (mut runs, mut parts, mut has_secret) = (Pieces::default(), Pieces::default(), false);
        let mut bad = Ok(());
        tables.scan(&TableNodes(store), .., |key, value| {
            let entry: Result<(), Corrupt> = (|| {
                let (table, id) = Table::of(key)?;
                match table {
                    Table::Segments => contents.segments.push(SegmentRecord::decode(value)?.0),
                    Table::Datasets => contents.datasets.push(DatasetRecord::decode(value)?),
                    Table::Runs => runs.add(key.offset, id, value)?,
                    Table::Index => parts.add(key.offset, id, value)?,
                    Table::Secret if key.offset == 0 => {
                        let secret = value.try_into().map_err(|_| Corrupt::new("secret", Reason::Short))?;
                        (contents.secret, has_secret) = (secret, true);
                    }
                    Table::Secret => return Err(Corrupt::new("fingerprints under a key", Reason::Feature)),
                    Table::Snapshots => contents.snapshots.push(SnapshotRecord::decode(value)?),
                    Table::SnapshotProperties | Table::Holds => {
                        let entry = match table {
                            Table::Holds => Entry::Hold(HoldRecord::decode(value)?),
                            _ => Entry::Property(local(PropertyRecord::decode(value)?)?),
                        };
                        let (dataset, number) = Table::attached(id);
                        contents.attached.push((dataset, BlockId::new(key.offset), number, entry));
                    }
                    Table::Bookmarks => {
                        let (dataset, record) = (DatasetId::new(id), BookmarkRecord::decode(value)?);
                        if BookmarkRecord::key(dataset, &record.name) != *key {
                            return Err(Corrupt::new("bookmark record", Reason::Identity));
                        }
                        contents.bookmarks.push((dataset, record));
                    }
                    Table::Trash => {
                        let record = TrashRecord::decode(value)?;
                        let key = TrashKey::of(id, key.offset);
                        let key = key.ok_or(Corrupt::new("trash of another kind", Reason::Feature))?;
                        contents.trash.insert(key, record);
                    }
                    Table::Remains => {
                        let record = RemainsRecord::decode(value)?;
                        if record.high.get() != key.offset {
                            return Err(Corrupt::new("remains record", Reason::Identity));
                        }
                        contents.remains.push(record);
                    }
                    Table::Receiving => {
                        let record = ReceivingRecord::decode(value)?;
                        contents.receiving.insert(DatasetId::new(key.offset), record);
                    }
                    Table::Events | Table::Commands => contents.kept.push((table, key.offset, Vec::new())),
                    Table::Damage | Table::BadSlots => {
                        contents.kept.push((table, key.offset, value.to_vec()));
                    }
                    Table::Freeing => contents.freeing = FreeingRecord::decode(value)?,
                    Table::Properties => {
                        let record = PropertyRecord::decode(value)?;
                        let record = if id == 0 { local(record)? } else { record };
                        contents.properties.entry(DatasetId::new(id)).or_default().adopt(record);
                    }
                    _ => return Err(Corrupt::new("a table that is not known", Reason::Feature)),
                }
                Ok(())
            })();
            match entry {
                Ok(()) => ControlFlow::Continue(()),
                Err(corrupt) => {
                    bad = Err(corrupt);
                    ControlFlow::Break(())
                }
            }
        })?;
        bad.map_err(|corrupt: Corrupt| match corrupt.reason {
            Reason::Feature => PoolError::Refused(Refusal::Newer(corrupt.what.to_string())),
            _ => corrupt.into(),
        })?;
        if !has_secret {
            return Err(Corrupt::new("secret", Reason::Short).into());
        }
        contents.runs = runs.decode(RunDescriptor::decode)?;
        contents.parts = parts.decode(PartDescriptor::decode)?;
        Ok(contents)
    }
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
