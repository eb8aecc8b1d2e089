//! Datasets and snapshots: by the pool's tables, as far as these are there, and by the nodes that were written for
//! them.

use crate::nodes::{NodeReader, TABLES};
use crate::trees::{self, Entries, Lines, Span};
use larder_format::commit_record::{CommitRecord, together};
use larder_format::items::NAME_SALT_LEN;
use larder_format::node::Key;
use larder_format::tables::{DatasetRecord, SnapshotRecord, Table};
use larder_format::trash::TrashKey;
use larder_format::{BlockId, CommitId, DatasetId, Timestamp};
use larder_pool::rebuild::is_row;
use larder_pool::{ROOT_DATASET, is_momentary};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Tables whose rows are looked for: what a pool is without its blocks.
const TOLD: [Table; 6] = [
    Table::Datasets,
    Table::Properties,
    Table::Snapshots,
    Table::SnapshotProperties,
    Table::Holds,
    Table::Trash,
];

/// Rows of the tables that mean something together.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) datasets: BTreeMap<DatasetId, DatasetRecord>,
    /// By dataset, in the order in which they were taken.
    pub(crate) snapshots: BTreeMap<(DatasetId, BlockId), SnapshotRecord>,
    /// Of the other tables.
    pub(crate) others: Entries,
    /// Datasets that no row tells of.
    pub(crate) nameless: BTreeSet<DatasetId>,
    /// Parts of the tables that nothing tells of.
    pub(crate) unknown: usize,
    /// Datasets that were destroyed, and are not to come back for nodes that are left of them.
    destroyed: BTreeSet<DatasetId>,
    /// They are of commit records, which have all.
    are_all_recorded: bool,
    /// They are of one tree that is whole, the newest there is.
    pub(crate) are_of_one_commit: bool,
}

/// Keys of a table.
fn span_of(table: Table) -> Span {
    let (low, step) = (table.key(0).object, Table::Segments.key(0).object);
    (Key::new(low, 0, 0), Some(Key::new(low + step, 0, 0)))
}

impl Rows {
    /// Those of the tables with that root, or, without one, of the newest nodes of tables there are.
    pub(crate) fn find(
        reader: NodeReader<'_>,
        root: Option<BlockId>,
        last: CommitId,
        records: Vec<(BlockId, CommitRecord)>,
    ) -> Self {
        let everything = BlockId::new(u64::MAX);
        let lines = Lines::from([(TABLES, everything)]);
        let fences = reader.fences([TABLES].into_iter());
        let mut rows = Self { are_of_one_commit: root.is_some(), ..Self::default() };
        let root = root.or_else(|| {
            let newest = trees::newest_root(reader, TABLES, &fences, (everything, last))?;
            rows.are_of_one_commit = newest.is_last && newest.survey.lost.is_empty();
            Some(newest.node.id)
        });
        for table in TOLD {
            let found = trees::collect(reader, root, &lines, &fences, span_of(table));
            rows.unknown += found.unknown.len();
            for (key, value) in found.entries {
                rows.take(table, key, value);
            }
        }
        if !rows.are_of_one_commit {
            rows.take_records(records);
        }
        rows
    }

    /// Of tables that are not whole, commit records tell better, if the newest says that all rows are in them.
    fn take_records(&mut self, records: Vec<(BlockId, CommitRecord)>) {
        let Some((_, told)) = together(records).filter(|(newest, _)| newest.turn.get() > 0) else { return };
        *self = Self { are_all_recorded: true, ..Self::default() };
        for (key, value) in told {
            if let Ok((table, _)) = Table::of(&key)
                && TOLD.contains(&table)
            {
                self.take(table, key, value);
            }
        }
    }

    /// Whether all rows that the tables with this root have are there.
    pub(crate) fn are_whole(reader: NodeReader<'_>, root: BlockId) -> bool {
        TOLD.into_iter().all(|table| trees::is_whole(reader, root, span_of(table)))
    }

    fn take(&mut self, table: Table, key: Key, value: Vec<u8>) {
        match table {
            Table::Datasets => {
                let record = DatasetRecord::decode(&value).ok();
                match record.filter(|record| record.id.get() == key.offset) {
                    Some(record) if record.destroyed && record.id != ROOT_DATASET => {
                        self.destroyed.insert(record.id);
                    }
                    Some(record) => {
                        self.datasets.insert(record.id, record);
                    }
                    None => {}
                }
            }
            Table::Snapshots => {
                let record = SnapshotRecord::decode(&value).ok();
                if let Some(record) = record.filter(|record| !is_momentary(&record.name)) {
                    self.snapshots.insert((record.dataset, record.high), record);
                }
            }
            _ if is_row(&key, &value) => self.others.push((key, value)),
            _ => self.unknown += 1,
        }
    }

    /// Has them mean something together: each dataset has its parents, each snapshot its dataset, each clone its
    /// origin. Datasets that nodes were written for and no row tells of get one, by number.
    pub(crate) fn settle(&mut self, name: &str, now: Timestamp, written: impl Iterator<Item = u64>) {
        // Where all rows are told, a dataset without one was destroyed.
        let are_told = self.are_of_one_commit || self.are_all_recorded;
        let written: Vec<u64> = if are_told { Vec::new() } else { written.collect() };
        let of_rows: BTreeSet<_> = self.snapshots.keys().map(|(dataset, _)| *dataset).collect();
        let lacking = written.into_iter().map(DatasetId::new).chain(of_rows).chain([ROOT_DATASET]);
        let is_lacking = |id: &DatasetId| !self.datasets.contains_key(id) && !self.destroyed.contains(id);
        let lacking: BTreeSet<_> = lacking.filter(is_lacking).collect();
        for id in lacking {
            let is_root = id == ROOT_DATASET;
            let name = if is_root { name.to_owned() } else { format!("dataset-{}", id.get()) };
            self.datasets.insert(id, nameless(id, name, now));
            self.nameless.insert(id);
        }
        self.snapshots.retain(|(dataset, _), _| self.datasets.contains_key(dataset));
        let there: BTreeSet<_> = self.datasets.keys().copied().collect();
        let parents: BTreeMap<_, _> = self.datasets.iter().map(|(id, of)| (*id, of.parent)).collect();
        let leads_up = |id: DatasetId| {
            let above = std::iter::successors(Some(id), |at| parents.get(at).copied().filter(|up| up != at));
            above.take(there.len() + 1).last() == Some(ROOT_DATASET)
        };
        let astray: Vec<_> = there.iter().copied().filter(|id| !leads_up(*id)).collect();
        for id in astray {
            if let Some(record) = self.datasets.get_mut(&id) {
                record.parent = ROOT_DATASET;
            }
        }
        self.name_apart();
        let mut highs = HashSet::new();
        self.snapshots.retain(|(_, high), _| highs.insert(*high));
        let keys: BTreeSet<_> = self.snapshots.keys().copied().collect();
        for (id, record) in &mut self.datasets {
            let of = keys.range((*id, BlockId::new(0))..=(*id, BlockId::new(u64::MAX)));
            let (first, last) = (of.clone().next(), of.last());
            record.origin = record.origin.filter(|origin| {
                keys.contains(origin) && origin.0 != *id && first.is_none_or(|(_, high)| *high > origin.1)
            });
            let floor = last.map(|(_, high)| *high).max(record.origin.map(|(_, high)| high));
            record.protected_below = record.protected_below.max(floor.unwrap_or(record.protected_below));
            if record.origin.is_none() {
                record.inherited = 0;
            }
        }
    }

    /// Datasets in the trash.
    pub(crate) fn trashed(&self) -> HashSet<DatasetId> {
        let keys = self.others.iter().filter_map(|(key, _)| match Table::of(key) {
            Ok((Table::Trash, within)) => TrashKey::of(within, key.offset),
            _ => None,
        });
        keys.filter_map(|key| if let TrashKey::Dataset(id) = key { Some(id) } else { None }).collect()
    }

    /// No two datasets of one parent have one name, and each has one that a folder can have. What is in the trash has
    /// the name that it had, and counts for nothing.
    fn name_apart(&mut self) {
        let trashed = self.trashed();
        let mut names = HashSet::new();
        for (id, record) in self.datasets.iter_mut().filter(|(id, _)| !trashed.contains(id)) {
            let is_bad = matches!(record.name.as_str(), "." | "..");
            if is_bad || !names.insert((record.parent, record.name.clone())) {
                record.name = format!("{}-{}", record.name.trim_matches('.'), id.get());
                names.insert((record.parent, record.name.clone()));
            }
        }
    }

    /// Datasets whose nodes a tree of this one may have, each up to an id: itself, and what it branched off.
    pub(crate) fn lines(&self, dataset: DatasetId, below: BlockId) -> Lines {
        let mut lines = Lines::from([(dataset.get(), below)]);
        let mut at = self.datasets.get(&dataset);
        while let Some((of, high)) = at.and_then(|record| record.origin) {
            if lines.contains_key(&of.get()) {
                break;
            }
            lines.insert(of.get(), high.min(below));
            at = self.datasets.get(&of);
        }
        lines
    }

    /// Gives all snapshots later numbers, in their order: trees that were mended have nodes that are younger than their
    /// snapshots were, and a snapshot refers to nothing that is younger.
    pub(crate) fn renumber(&mut self, mut next: impl FnMut() -> BlockId) {
        let old: BTreeSet<BlockId> = self.snapshots.keys().map(|(_, high)| *high).collect();
        let new: BTreeMap<BlockId, BlockId> = old.into_iter().map(|high| (high, next())).collect();
        for (_, mut record) in std::mem::take(&mut self.snapshots) {
            record.high = new[&record.high];
            self.snapshots.insert((record.dataset, record.high), record);
        }
        let attached = |key: &Key| {
            matches!(Table::of(key), Ok((Table::SnapshotProperties | Table::Holds, _) | (Table::Trash, 0)))
        };
        for (key, _) in self.others.iter_mut().filter(|(key, _)| attached(key)) {
            if let Some(high) = new.get(&BlockId::new(key.offset)) {
                key.offset = high.get();
            }
        }
        for record in self.datasets.values_mut() {
            record.origin = record.origin.and_then(|(of, high)| Some((of, *new.get(&high)?)));
            let of = self.snapshots.range((record.id, BlockId::new(0))..=(record.id, BlockId::new(u64::MAX)));
            let newest = of.last().map(|((_, high), _)| *high).max(record.origin.map(|(_, high)| high));
            record.protected_below = newest.unwrap_or(BlockId::new(0));
        }
    }

    /// Gives snapshots that only clones have, or the trash, a name again where a clone began as one: else nobody who
    /// gets the clone could be told what it shares.
    pub(crate) fn show_origins(&mut self) {
        let trashed = self.trashed();
        let kept = self.datasets.values().filter(|record| !trashed.contains(&record.id));
        let origins: BTreeSet<_> = kept.filter_map(|record| record.origin).collect();
        for key in origins {
            let Some(mut record) = self.snapshots.get(&key).filter(|record| record.hidden).cloned() else {
                continue;
            };
            let is_taken = |name: &str| {
                let of = self.snapshots.range((key.0, BlockId::new(0))..=(key.0, BlockId::new(u64::MAX)));
                of.filter(|(_, other)| !other.hidden).any(|(_, other)| other.name == name)
            };
            if record.name.is_empty() || is_taken(&record.name) {
                record.name = format!("origin-{}", key.1.get());
            }
            record.hidden = false;
            self.snapshots.insert(key, record);
            let own = TrashKey::Snapshot(key.1).key();
            self.others.retain(|(other, _)| *other != own);
        }
    }

    /// All rows, as the tables have them.
    pub(crate) fn into_entries(self) -> Entries {
        let mut rows = self.others;
        rows.extend(self.datasets.values().map(|record| (Table::dataset_key(record.id), record.encode())));
        let snapshots = self.snapshots.values();
        rows.extend(
            snapshots.map(|record| (Table::snapshot_key(record.dataset, record.high), record.encode())),
        );
        rows
    }
}

/// A dataset of which only its number is known.
fn nameless(id: DatasetId, name: String, now: Timestamp) -> DatasetRecord {
    DatasetRecord {
        id,
        parent: ROOT_DATASET,
        guid: 0,
        root: None,
        destroyed: false,
        protected_below: BlockId::new(0),
        referenced: 0,
        logical: 0,
        stored: 0,
        next_inode: 2,
        created: now,
        birth: 1,
        held: 0,
        origin: None,
        inherited: 0,
        name_salt: [0; NAME_SALT_LEN],
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_that_was_destroyed_does_not_come_back_for_nodes_that_are_left_of_it() {
        let mut rows = Rows::default();
        let mut told = nameless(DatasetId::new(5), "gone".into(), Timestamp::default());
        told.destroyed = true;
        rows.take(Table::Datasets, Table::dataset_key(told.id), told.encode());
        rows.settle("tank", Timestamp::default(), [5, 6].into_iter());
        let there: Vec<_> = rows.datasets.keys().map(|id| id.get()).collect();
        assert_eq!(there, [ROOT_DATASET.get(), 6]);
    }
}
