//! Snapshots: a dataset's tree as it was at a commit, kept by its root alone.
//!
//! # Taking one
//! happens inside a commit, when the dataset's dirty nodes have become blocks: the snapshot's record names the
//! root that the head has at that moment. An id is taken for it, its *high* id: whatever the root reaches was born
//! before, whatever the head stores afterwards is above. The head's `protected_below` rises to it: from now on the head
//! does not free what is below, which the snapshot may hold. (What the head holds below it, the newest snapshot
//! holds too, so that it *does* hold it, unless a further reference was made to an older block.)
//!
//! # Destroying one
//! takes the record away and lowers it to that of the newest that is left, so that the head again frees what
//! it drops and no other snapshot can hold. What only the destroyed snapshot held is freed by and by:
//! [`crate::remains`].
//!
//! # Clones
//! A clone is a dataset that begins with the root of a snapshot, its *origin*, and is protected below its high id: so a
//! clone's lineage is the origin, the clone's snapshots, its head. The origin stays as long as there are clones of it:
//! what it reaches is its dataset's, as before, and no clone frees it. Destroyed, it is *hidden*: it has no name any
//! more, and goes with the last clone. See [`crate::clones`]. So it is while it is in the trash: [`crate::trash`].
//!
//! # Crashes
//! Record and `protected_below` are in one commit: there is a snapshot that is protected, or neither.

use crate::attached::{Attached, Entry};
use larder_format::bookmark::BookmarkRecord;
use larder_format::tables::{RemainsRecord, SnapshotRecord};
use larder_format::trash::{TrashKey, TrashRecord};
use larder_format::{BlockId, CommitId, DatasetId};
use larder_store::{PoolError, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// A snapshot in memory.
pub(crate) struct Snapshot {
    pub(crate) record: SnapshotRecord,
    /// Holds and properties.
    pub(crate) attached: Attached,
    /// Counts who looks into it.
    pub(crate) viewed: Arc<()>,
}

/// A tree without a name, of which what nothing else has is being freed: [`crate::remains`].
pub(crate) struct Left {
    pub(crate) record: RemainsRecord,
    /// The commit that has the note: nothing is freed before it is durable.
    pub(crate) since: CommitId,
    /// Its successor cannot be read; tried again with another one, or at the next import.
    pub(crate) is_stuck: bool,
}

impl Left {
    /// As the tables have it.
    pub(crate) fn open(record: RemainsRecord) -> Self {
        Self { record, since: CommitId::new(0), is_stuck: false }
    }
}

/// The snapshots of a pool. The lock is taken after a dataset's tree and before the tables.
#[derive(Default)]
pub(crate) struct Snapshots {
    pub(crate) taken: BTreeMap<(DatasetId, BlockId), Snapshot>,
    /// Their high ids, by their names.
    names: BTreeMap<(DatasetId, String), BlockId>,
    /// Those of them that are deferred.
    pub(crate) deferred: BTreeSet<(DatasetId, BlockId)>,
    /// Those of them that are of a moment.
    momentary: BTreeSet<(DatasetId, BlockId)>,
    /// Those of them that are hidden.
    hidden: BTreeSet<(DatasetId, BlockId)>,
    /// Their datasets, by high ids.
    hidden_at: BTreeMap<BlockId, DatasetId>,
    /// Origins of clones.
    origins: BTreeMap<DatasetId, (DatasetId, BlockId)>,
    /// Clones, by their origins.
    clones: BTreeMap<(DatasetId, BlockId), BTreeSet<DatasetId>>,
    /// Entries of the trash: of snapshots, which are hidden, and of datasets.
    pub(crate) trash: BTreeMap<TrashKey, TrashRecord>,
    /// Bookmarks, by their names.
    pub(crate) bookmarks: BTreeMap<(DatasetId, String), BookmarkRecord>,
    /// Trees without a name, of which what nothing else has is being freed, by their high ids.
    pub(crate) remains: BTreeMap<BlockId, Left>,
    /// To be taken by the next whole commit that begins.
    pub(crate) wanted: Vec<Wanted>,
    /// To be taken by the whole commit that has begun: it stores what was dirty when they were asked for.
    pub(crate) due: Vec<Wanted>,
}

/// Bytes above a floor that the tree of one root has and that of another has not; 0 is none.
pub(crate) type Measured = HashMap<(BlockId, BlockId, BlockId), u64>;

/// Snapshots that somebody waits for: one commit takes all of them, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Datasets, and names.
    pub(crate) all: Vec<(DatasetId, String)>,
    /// Properties that each of them gets.
    pub(crate) properties: BTreeMap<String, String>,
}

impl Snapshots {
    /// Those of a dataset, hidden ones among them, oldest first.
    pub(crate) fn of(&self, dataset: DatasetId) -> impl DoubleEndedIterator<Item = &Snapshot> {
        let all = (dataset, BlockId::new(0))..=(dataset, BlockId::new(u64::MAX));
        self.taken.range(all).map(|(_, snapshot)| snapshot)
    }

    /// Those of a dataset that people are shown, oldest first.
    pub(crate) fn visible(&self, dataset: DatasetId) -> impl DoubleEndedIterator<Item = &SnapshotRecord> {
        self.of(dataset).map(|snapshot| &snapshot.record).filter(|record| is_visible(record))
    }

    /// Those of a moment, of a dataset or of all; and whether nobody looks into them.
    pub(crate) fn momentary(&self, of: Option<DatasetId>) -> Vec<(&SnapshotRecord, bool)> {
        let all = self.momentary.iter().filter(|key| of.is_none_or(|of| key.0 == of));
        let found = all.filter_map(|key| self.taken.get(key));
        found.map(|one| (&one.record, Arc::strong_count(&one.viewed) == 1)).collect()
    }

    /// The one of a name.
    pub(crate) fn named(&self, dataset: DatasetId, name: &str) -> Result<&Snapshot> {
        let high = self.names.get(&(dataset, name.to_owned()));
        let found = high.and_then(|high| self.taken.get(&(dataset, *high)));
        found.ok_or_else(|| PoolError::NotFound(format!("snapshot {name}")))
    }

    /// The newest of a dataset that is older than one of this high id.
    pub(crate) fn before(&self, dataset: DatasetId, high: BlockId) -> Option<&SnapshotRecord> {
        let older = (dataset, BlockId::new(0))..(dataset, high);
        self.taken.range(older).next_back().map(|(_, snapshot)| &snapshot.record)
    }

    /// The same of those that people are shown.
    pub(crate) fn visible_before(&self, dataset: DatasetId, high: BlockId) -> Option<&SnapshotRecord> {
        let older = self.taken.range((dataset, BlockId::new(0))..(dataset, high)).rev();
        older.map(|(_, snapshot)| &snapshot.record).find(|record| is_visible(record))
    }

    /// Those of a dataset that are newer than one of this high id, oldest first.
    pub(crate) fn after(&self, dataset: DatasetId, high: BlockId) -> impl Iterator<Item = &SnapshotRecord> {
        let newer = (Bound::Excluded((dataset, high)), Bound::Included((dataset, BlockId::new(u64::MAX))));
        self.taken.range(newer).map(|(_, snapshot)| &snapshot.record)
    }

    /// One gets this record, which has another name; gives the record that it had.
    pub(crate) fn rename(&mut self, record: SnapshotRecord) -> Option<SnapshotRecord> {
        let snapshot = self.taken.get_mut(&(record.dataset, record.high))?;
        self.names.remove(&(record.dataset, snapshot.record.name.clone()));
        self.names.insert((record.dataset, record.name.clone()), record.high);
        Some(std::mem::replace(&mut snapshot.record, record))
    }

    /// The highest id that what came before one of this high id in its lineage may hold.
    pub(crate) fn floor(&self, dataset: DatasetId, high: BlockId) -> BlockId {
        let origin = || self.origins.get(&dataset).map_or(BlockId::new(0), |(_, high)| *high);
        self.before(dataset, high).map_or_else(origin, |before| before.high)
    }

    /// The right `protected_below` of the head.
    pub(crate) fn protected_below(&self, dataset: DatasetId) -> BlockId {
        self.floor(dataset, BlockId::new(u64::MAX))
    }

    /// Whether no tree but a dataset's head holds anything that this one may have dropped.
    pub(crate) fn holds_nothing(&self, dataset: DatasetId) -> bool {
        self.protected_below(dataset) == BlockId::new(0)
            && self.remains.values().all(|one| one.record.dataset != dataset)
    }

    /// The origin of a clone: its dataset and high id.
    pub(crate) fn origin_key(&self, dataset: DatasetId) -> Option<(DatasetId, BlockId)> {
        self.origins.get(&dataset).copied()
    }

    /// The origin of a clone, which is in the list.
    pub(crate) fn origin(&self, dataset: DatasetId) -> Option<&SnapshotRecord> {
        self.taken.get(&self.origin_key(dataset)?).map(|snapshot| &snapshot.record)
    }

    /// Clones of a snapshot.
    pub(crate) fn clones(&self, key: (DatasetId, BlockId)) -> impl Iterator<Item = DatasetId> {
        self.clones.get(&key).into_iter().flatten().copied()
    }

    /// Whether a snapshot has clones.
    pub(crate) fn is_cloned(&self, record: &SnapshotRecord) -> bool {
        self.clones((record.dataset, record.high)).next().is_some()
    }

    /// A dataset is a clone of this snapshot from now on, or of none.
    pub(crate) fn set_origin(&mut self, dataset: DatasetId, origin: Option<(DatasetId, BlockId)>) {
        let before = match origin {
            Some(origin) => self.origins.insert(dataset, origin),
            None => self.origins.remove(&dataset),
        };
        if let Some(before) = before
            && let Some(clones) = self.clones.get_mut(&before)
        {
            clones.remove(&dataset);
            if clones.is_empty() {
                self.clones.remove(&before);
            }
        }
        if let Some(origin) = origin {
            self.clones.entry(origin).or_default().insert(dataset);
        }
    }

    /// The hidden one of this high id.
    pub(crate) fn hidden_of(&self, high: BlockId) -> Option<&SnapshotRecord> {
        let dataset = *self.hidden_at.get(&high)?;
        self.taken.get(&(dataset, high)).map(|snapshot| &snapshot.record)
    }

    /// Whether a hidden one is in the trash.
    pub(crate) fn is_trash(&self, record: &SnapshotRecord) -> bool {
        record.hidden && self.trash.contains_key(&TrashKey::Snapshot(record.high))
    }

    /// A hidden one that neither a clone nor the trash needs, and that nobody looks into.
    pub(crate) fn unneeded(&self) -> Option<(DatasetId, BlockId)> {
        let is_unused = |key: &(DatasetId, BlockId)| {
            self.taken.get(key).is_some_and(|one| Arc::strong_count(&one.viewed) == 1)
        };
        let is_trash = |key: &(DatasetId, BlockId)| self.trash.contains_key(&TrashKey::Snapshot(key.1));
        let mut unneeded = self.hidden.iter().filter(|key| !self.clones.contains_key(key) && !is_trash(key));
        unneeded.find(|key| is_unused(key)).copied()
    }

    /// All that are to be taken.
    pub(crate) fn to_come(&self) -> impl Iterator<Item = &(DatasetId, String)> {
        self.due.iter().chain(&self.wanted).flat_map(|wanted| &wanted.all)
    }

    /// A commit begins: it is to take all that are wanted so far.
    pub(crate) fn begin_commit(&mut self) {
        self.due.append(&mut self.wanted);
    }

    /// Nobody waits for this one any more.
    pub(crate) fn forget(&mut self, wanted: &Wanted) {
        self.due.retain(|other| other != wanted);
        self.wanted.retain(|other| other != wanted);
    }

    /// It was taken, or the tables have it.
    pub(crate) fn insert(&mut self, record: SnapshotRecord, attached: Attached) {
        self.put_back(Snapshot { record, attached, viewed: Arc::default() });
    }

    /// It stays, after all.
    pub(crate) fn put_back(&mut self, snapshot: Snapshot) {
        let key = (snapshot.record.dataset, snapshot.record.high);
        if snapshot.record.deferred {
            self.deferred.insert(key);
        }
        let name = (key.0, snapshot.record.name.clone());
        if is_momentary(&name.1) {
            self.momentary.insert(key);
        }
        if snapshot.record.hidden {
            self.hidden.insert(key);
            self.hidden_at.insert(key.1, key.0);
        } else {
            self.hidden.remove(&key);
            self.hidden_at.remove(&key.1);
            self.names.insert(name, key.1);
        }
        self.taken.insert(key, snapshot);
    }

    /// It goes.
    pub(crate) fn take(&mut self, key: (DatasetId, BlockId)) -> Option<Snapshot> {
        self.deferred.remove(&key);
        self.momentary.remove(&key);
        let snapshot = self.taken.remove(&key)?;
        if self.hidden.remove(&key) {
            self.hidden_at.remove(&key.1);
        } else {
            self.names.remove(&(key.0, snapshot.record.name.clone()));
        }
        Some(snapshot)
    }

    /// An entry that the tables have. One of no snapshot is passed over: nothing is lost with it.
    pub(crate) fn adopt(&mut self, of: (DatasetId, BlockId), number: u32, entry: Entry) {
        let Some(snapshot) = self.taken.get_mut(&of) else { return };
        let Attached { properties, holds } = &mut snapshot.attached;
        match entry {
            Entry::Property(one) => drop(properties.insert(one.name, (number, one.value))),
            Entry::Hold(one) => drop(holds.insert(one.tag, (number, one.created))),
        }
    }

    /// One is to go with its last hold, or is not.
    pub(crate) fn set_deferred(&mut self, key: (DatasetId, BlockId), deferred: bool) {
        if let Some(snapshot) = self.taken.get_mut(&key) {
            snapshot.record.deferred = deferred;
            match deferred {
                true => self.deferred.insert(key),
                false => self.deferred.remove(&key),
            };
        }
    }

    /// A snapshot that somebody saw.
    pub(crate) fn still(&self, of: &SnapshotRecord) -> Result<&Snapshot> {
        self.taken.get(&(of.dataset, of.high)).ok_or_else(|| gone(of))
    }

    /// Holds and properties of one that is in the list, and stays there meanwhile.
    pub(crate) fn attached(&mut self, key: (DatasetId, BlockId)) -> &mut Attached {
        &mut self.taken.get_mut(&key).expect("it is in the list").attached
    }
}

/// Names of people's snapshots do not begin with a space.
pub(crate) const MOMENTARY: &str = " momentary ";

/// Whether a snapshot of this name is one of a moment, which nobody is shown: see [`crate::momentary`].
pub fn is_momentary(name: &str) -> bool {
    name.starts_with(MOMENTARY)
}

/// Whether people are shown it.
pub(crate) fn is_visible(record: &SnapshotRecord) -> bool {
    !record.hidden && !is_momentary(&record.name)
}

/// It was destroyed meanwhile.
fn gone(of: &SnapshotRecord) -> PoolError {
    PoolError::NotFound(format!("snapshot {}", of.name))
}
