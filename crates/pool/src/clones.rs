//! Clones: datasets that begin as a snapshot, and share with it what neither has changed.
//!
//! Their protection: [`crate::snapshots`]. This is about lineages that change their shape: a clone is made, *promoted*
//! (it takes the snapshots up to its origin over, and the dataset that had them becomes a clone of the last), or a
//! dataset *branches* (it goes back to a snapshot, and what is newer goes on as a clone of that). Each moves snapshots,
//! and notes of remains, from one dataset to another: ids, trees and floors stay what they are.
//!
//! # Figures
//! A dataset is charged for what its origin has not: `referenced` less `inherited`. Who gets another origin is counted
//! anew, by a walk of what is above the origin's high id. That reads the dataset as it is committed, before the gate is
//! closed; when somebody writes to it meanwhile, it is done again, some times.
//!
//! # Crashes
//! Each is one change of the tables, with the gate closed or within an operation: it is done, or it is not.

use crate::attached::Change;
use crate::bookmarks;
use crate::dataset::Dataset;
use crate::ledger::HEAD;
use crate::pool::Pool;
use larder_format::bookmark::BookmarkRecord;
use larder_format::tables::{DatasetRecord, RemainsRecord, SnapshotRecord, Table};
use larder_format::{BlockId, BlockPtr, DatasetId, MAX_COUNT};
use larder_store::{PoolError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Times that a dataset somebody writes to is committed, and looked at again.
pub(crate) const TRIES: u32 = 10;

/// A snapshot that a clone began as: its dataset and its high id.
type Origin = (DatasetId, BlockId);

/// Trees of a dataset before its head.
pub(crate) struct Lineage {
    /// The origin of a clone.
    pub(crate) origin: Option<SnapshotRecord>,
    /// Its snapshots, hidden ones among them, oldest first.
    pub(crate) taken: Vec<SnapshotRecord>,
}

/// A head as it was counted.
struct Counted {
    dataset: Arc<Dataset>,
    root: Option<BlockPtr>,
    /// Bytes of blocks up to the high id that was asked for.
    inherited: u64,
}

impl Counted {
    /// Whether it is the head now. Nobody may be inside.
    fn is_current(&self) -> bool {
        let state = self.dataset.state.read();
        !state.tree.is_dirty() && state.tree.committed_root() == self.root
    }

    /// Whether what was counted is so now, of a clone that is to begin as `above`. Nobody may be inside.
    fn is_settled(&self, above: Option<Origin>) -> bool {
        // It has nothing in common with none.
        above.is_none() || self.is_current()
    }
}

impl Pool {
    /// The trees that come before a dataset's head.
    pub(crate) fn lineage(&self, dataset: DatasetId) -> Lineage {
        let snapshots = self.snapshots.lock();
        let taken = snapshots.of(dataset).map(|snapshot| snapshot.record.clone()).collect();
        Lineage { origin: snapshots.origin(dataset).cloned(), taken }
    }

    /// The snapshot that a clone began as. It may be hidden: then its name counts no more.
    pub fn origin(&self, clone: DatasetId) -> Option<SnapshotRecord> {
        self.snapshots.lock().origin(clone).cloned()
    }

    pub(crate) fn origin_key(&self, clone: DatasetId) -> Option<Origin> {
        self.snapshots.lock().origin_key(clone)
    }

    /// Clones that began as a snapshot, of those that people are shown.
    pub fn clones(&self, of: &SnapshotRecord) -> BTreeSet<DatasetId> {
        let all: Vec<_> = self.snapshots.lock().clones((of.dataset, of.high)).collect();
        let is_shown = |id: &DatasetId| self.dataset(*id).is_some_and(|clone| !clone.is_staging());
        all.into_iter().filter(is_shown).collect()
    }

    /// Snapshots of a dataset that were destroyed and stay for their clones, oldest first.
    pub fn hidden_snapshots(&self, dataset: DatasetId) -> Vec<SnapshotRecord> {
        let snapshots = self.snapshots.lock();
        snapshots.of(dataset).map(|one| &one.record).filter(|record| record.hidden).cloned().collect()
    }

    /// Makes a dataset of a full name that begins as a snapshot; durable with the next commit.
    ///
    /// # Errors
    /// When there is no such snapshot; those of [`Pool::create_dataset`].
    pub fn clone_snapshot(
        &self,
        of: DatasetId,
        snapshot: &str,
        name: &str,
        properties: BTreeMap<String, String>,
    ) -> Result<Arc<Dataset>> {
        let _op = self.enter()?;
        // The snapshot stays.
        let _complete = self.destroying.lock();
        let origin = self.dataset(of).ok_or_else(|| PoolError::NotFound(format!("dataset {of}")))?;
        let record = self.snapshot_named(of, snapshot)?;
        let name_salt = origin.state.read().record.name_salt;
        let clone = self.add_dataset(name, properties, |new| DatasetRecord {
            root: record.root,
            protected_below: record.high,
            referenced: record.referenced,
            logical: record.logical,
            stored: record.stored,
            next_inode: record.next_inode,
            origin: Some((of, record.high)),
            inherited: record.referenced,
            name_salt,
            ..new
        })?;
        self.snapshots.lock().set_origin(clone.id(), Some((of, record.high)));
        self.shared.damage.moved((of, record.high), (clone.id(), HEAD), false);
        Ok(clone)
    }

    /// A clone takes over the snapshots up to its origin, and the dataset that had them becomes its clone. Durable when
    /// this returns.
    ///
    /// # Errors
    /// [`PoolError::Invalid`] when it is no clone; [`PoolError::Exists`] with the name of a snapshot that it would have
    /// twice; [`PoolError::Busy`] when one of the two is written to all the time.
    pub fn promote(&self, clone: DatasetId) -> Result<()> {
        self.in_turn(clone, || self.try_promote(clone))
    }

    /// A dataset goes back to a snapshot; its newer snapshots, and what it holds, go on in a clone of that snapshot,
    /// which gets this full name and these properties. Nobody may have anything of the head in memory: it is not shown.
    /// Durable when this returns.
    ///
    /// # Errors
    /// When there is no such snapshot; those of [`Pool::create_dataset`]; [`PoolError::Busy`] when it is written to all
    /// the time.
    pub fn branch(
        &self,
        dataset: DatasetId,
        snapshot: &str,
        name: &str,
        properties: &BTreeMap<String, String>,
    ) -> Result<()> {
        self.in_turn(dataset, || self.try_branch(dataset, snapshot, name, properties))
    }

    /// Tries until it is done; durable then.
    fn in_turn(&self, dataset: DatasetId, attempt: impl Fn() -> Result<bool>) -> Result<()> {
        for _ in 0..TRIES {
            self.commit()?;
            if attempt()? {
                return self.commit().map(drop);
            }
        }
        Err(PoolError::Busy(format!("{} is being written to", self.full_name(dataset))))
    }

    /// Has a clone take over the snapshots of a dataset, of which it is the heir, and destroys the dataset, in one;
    /// false when it is the heir no more, or one of them has changed since the last commit.
    pub(crate) fn try_bequeath(&self, dataset: &Arc<Dataset>, clone: DatasetId) -> Result<bool> {
        let Some(origin) = self.origin(clone).filter(|origin| origin.dataset == dataset.id()) else {
            return Ok(false);
        };
        let above = self.origin_key(origin.dataset);
        let Some(taking) = self.counted(clone, high_of(above))? else { return Ok(false) };
        let _turn = self.commit_turn();
        let _removing = self.removing();
        let _nobody_enters = self.gate.write();
        self.shared.store.check_writable()?;
        let _one_at_a_time = self.destroying.lock();
        let is_heir = self.heir(dataset.id()) == Some(clone);
        let is_same = is_heir && self.origin_key(origin.dataset) == above;
        let is_clean = {
            let state = dataset.state.read();
            !state.tree.is_dirty() && !state.changed
        };
        if !is_same || !is_clean || !taking.is_settled(above) {
            return Ok(false);
        }
        self.check_destroyable(dataset.id())?;
        let all = dataset.usage().referenced;
        self.take_over(&origin, above, &taking, all)?;
        self.destroy_within(dataset)
    }

    fn try_promote(&self, clone: DatasetId) -> Result<bool> {
        let no_clone = || PoolError::Invalid(format!("{} is not a clone", self.full_name(clone)));
        let origin = self.origin(clone).ok_or_else(no_clone)?;
        let above = self.origin_key(origin.dataset);
        let Some(taking) = self.counted(clone, high_of(above))? else { return Ok(false) };
        let Some(giving) = self.counted(origin.dataset, origin.high)? else { return Ok(false) };
        // Taking snapshots apart reads with the turn to commit: nobody else is to wait for that.
        let _turn = self.commit_turn();
        let _nobody_enters = self.gate.write();
        self.shared.store.check_writable()?;
        let _one_at_a_time = self.destroying.lock();
        let is_same = self.origin_key(origin.dataset) == above
            && self.origin_key(clone) == Some((origin.dataset, origin.high));
        if !is_same || !taking.is_settled(above) || !giving.is_current() {
            return Ok(false);
        }
        self.take_over(&origin, above, &taking, giving.inherited)?;
        Ok(true)
    }

    /// A clone takes over the snapshots up to its origin, of a dataset that began as `above` and has `inherited` bytes
    /// in common with the origin. All of it, or nothing. Nobody may be inside.
    fn take_over(
        &self,
        origin: &SnapshotRecord,
        above: Option<Origin>,
        taking: &Counted,
        inherited: u64,
    ) -> Result<()> {
        let clone = taking.dataset.id();
        let others = self.move_snapshots(origin.dataset, clone, BlockId::new(0)..=origin.high, &[])?;
        let giving = self.alive(origin.dataset);
        let (held, remains_below) = giving.map_or((0, BlockId::new(0)), |giving| {
            // Which of it is whose is not known: it is an upper bound of all.
            let mut state = giving.state.write();
            (std::mem::take(&mut state.record.held), state.remains_below)
        });
        {
            let mut state = taking.dataset.state.write();
            state.record.held = state.record.held.saturating_add(held).min(MAX_COUNT);
            state.remains_below = state.remains_below.max(remains_below);
        }
        {
            let mut snapshots = self.snapshots.lock();
            snapshots.set_origin(clone, above);
            snapshots.set_origin(origin.dataset, Some((clone, origin.high)));
        }
        others.into_iter().for_each(|other| self.note_origin(other, None));
        self.note_origin(clone, Some(taking.inherited));
        self.note_origin(origin.dataset, Some(inherited));
        Ok(())
    }

    fn try_branch(
        &self,
        dataset: DatasetId,
        snapshot: &str,
        name: &str,
        properties: &BTreeMap<String, String>,
    ) -> Result<bool> {
        let (view, origin) = (self.snapshot_view(dataset, snapshot)?, self.origin_key(dataset));
        let to = view.record();
        let Some(old) = self.counted(dataset, to.high)? else { return Ok(false) };
        let inherited = self.inherited(to.root, to.referenced, high_of(origin))?;
        let _turn = self.commit_turn();
        let _removing = self.removing();
        let _nobody_enters = self.gate.write();
        self.shared.store.check_writable()?;
        let _one_at_a_time = self.destroying.lock();
        if !old.is_current() || self.origin_key(dataset) != origin {
            return Ok(false);
        }
        let before = old.dataset.state.read().record.clone();
        let branch = self.add_dataset(name, properties.clone(), |new| DatasetRecord {
            root: before.root,
            protected_below: before.protected_below,
            referenced: before.referenced,
            logical: before.logical,
            stored: before.stored,
            next_inode: before.next_inode,
            held: before.held,
            origin: Some((dataset, to.high)),
            inherited: old.inherited.min(before.referenced),
            name_salt: before.name_salt,
            ..new
        })?;
        let newer = BlockId::new(to.high.get() + 1)..=BlockId::new(u64::MAX);
        let marks = self.snapshots.lock().bookmarks_after(dataset, to.high);
        let moved = self.move_snapshots(dataset, branch.id(), newer, &marks);
        // A dataset that nobody knows of, as yet, goes again.
        let others = moved.inspect_err(|_| self.remove_added(branch.id()))?;
        self.snapshots.lock().set_origin(branch.id(), Some((dataset, to.high)));
        {
            let was = old.dataset.state.read();
            let (below, protected) = (was.remains_below, was.was_protected_below);
            drop(was);
            let mut state = branch.state.write();
            (state.remains_below, state.was_protected_below) = (below, protected);
        }
        self.shared.damage.moved((dataset, HEAD), (branch.id(), HEAD), true);
        others.into_iter().for_each(|other| self.note_origin(other, None));
        {
            let mut state = old.dataset.state.write();
            state.record.protected_below = to.high;
            state.record.held = 0;
            self.become_snapshot(&mut state, to, inherited);
        }
        self.went_back(&old.dataset);
        Ok(true)
    }

    /// Counts a head as it is committed; none when that is not there any more.
    fn counted(&self, dataset: DatasetId, high: BlockId) -> Result<Option<Counted>> {
        let missing = || PoolError::NotFound(format!("dataset {dataset}"));
        let dataset = self.alive(dataset).ok_or_else(missing)?;
        let (root, referenced) = {
            let state = dataset.state.read();
            // The figure of what it refers to is that of what is dirty.
            if high > BlockId::new(0) && state.tree.is_dirty() {
                return Ok(None);
            }
            (state.tree.committed_root(), state.record.referenced)
        };
        let inherited = self.inherited(root, referenced, high);
        if dataset.state.read().tree.committed_root() != root {
            return Ok(None);
        }
        Ok(Some(Counted { dataset, root, inherited: inherited? }))
    }

    /// Snapshots of a dataset, and notes of remains, within a range of high ids become those of another, and so do
    /// these bookmarks, whose names are free there. Gives the clones of these snapshots. Nobody may be inside.
    fn move_snapshots(
        &self,
        from: DatasetId,
        to: DatasetId,
        range: RangeInclusive<BlockId>,
        marks: &[BookmarkRecord],
    ) -> Result<BTreeSet<DatasetId>> {
        let mut snapshots = self.snapshots.lock();
        let highs = snapshots.of(from).map(|one| one.record.high).filter(|high| range.contains(high));
        let highs: Vec<_> = highs.collect();
        let mut changes: Vec<Change> = Vec::new();
        for high in &highs {
            let snapshot = &snapshots.taken[&(from, *high)];
            let record = SnapshotRecord { dataset: to, ..snapshot.record.clone() };
            let comes = || snapshots.to_come().any(|(of, name)| *of == to && *name == record.name);
            if !record.hidden && (snapshots.named(to, &record.name).is_ok() || comes()) {
                return Err(PoolError::Exists(record.name));
            }
            changes.extend(snapshot.attached.changes(&snapshot.record, false));
            changes.push((Table::snapshot_key(from, *high), None));
            changes.extend(snapshot.attached.changes(&record, true));
            changes.push((Table::snapshot_key(to, *high), Some(record.encode())));
        }
        let left = snapshots.remains.range(range.clone()).map(|(_, left)| left.record);
        let left: Vec<_> = left.filter(|left| left.dataset == from).collect();
        changes.extend(left.iter().map(|left| {
            let record = RemainsRecord { dataset: to, ..*left };
            (Table::Remains.key(left.high.get()), Some(record.encode()))
        }));
        changes.extend(bookmarks::changes(from, marks, false));
        changes.extend(bookmarks::changes(to, marks, true));
        self.change_tables(&changes)?;
        snapshots.drop_bookmarks(from, marks);
        marks.iter().for_each(|record| snapshots.add_bookmark(to, record.clone()));
        let mut clones = BTreeSet::new();
        for high in &highs {
            if let Some(mut snapshot) = snapshots.take((from, *high)) {
                snapshot.record.dataset = to;
                snapshots.put_back(snapshot);
            }
            let of: Vec<_> = snapshots.clones((from, *high)).collect();
            of.iter().for_each(|clone| snapshots.set_origin(*clone, Some((to, *high))));
            clones.extend(of);
        }
        for record in left {
            if let Some(left) = snapshots.remains.get_mut(&record.high) {
                left.record.dataset = to;
                left.is_stuck = false;
            }
        }
        for high in highs {
            self.shared.damage.moved((from, high), (to, high), true);
        }
        Ok(clones)
    }

    /// A dataset's record tells of its origin as the list does, and of how much it shares with it.
    fn note_origin(&self, dataset: DatasetId, inherited: Option<u64>) {
        let Some(dataset) = self.alive(dataset) else { return };
        let mut state = dataset.state.write();
        let own = state.record.own();
        state.record.origin = self.origin_key(dataset.id());
        let inherited = inherited.unwrap_or(state.record.inherited);
        state.record.inherited = inherited.min(state.record.referenced);
        state.changed = true;
        self.shared.accounts.post(dataset.id(), state.record.own().wrapping_sub(own) as i64);
    }
}

/// The highest id that an origin may hold.
pub(crate) fn high_of(origin: Option<Origin>) -> BlockId {
    origin.map_or(BlockId::new(0), |(_, high)| high)
}
