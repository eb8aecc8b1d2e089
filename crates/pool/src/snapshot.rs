//! Taking, looking into and destroying snapshots: see [`crate::snapshots`].

use crate::attached::Attached;
use crate::bookmarks;
use crate::clones::high_of;
use crate::create::check_snapshot_name;
use crate::dataset::{Dataset, Look, State};
use crate::pool::Pool;
use crate::shared::Shared;
use crate::snapshots::{Snapshot, Wanted, is_momentary, is_visible};
use larder_format::tables::{DatasetRecord, SnapshotRecord, Table};
use larder_format::{BlockId, CommitId, DatasetId};
use larder_sorted::tree::Tree;
use larder_store::{PoolError, Result, TableNodes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A look into a snapshot; it cannot be destroyed meanwhile.
pub struct SnapshotView {
    shared: Arc<Shared>,
    tree: Tree,
    record: SnapshotRecord,
    _viewed: Arc<()>,
}

impl SnapshotView {
    /// Its record in the tables.
    pub fn record(&self) -> &SnapshotRecord {
        &self.record
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Look for SnapshotView {
    fn parts(&self) -> (&Shared, &Tree) {
        (&self.shared, &self.tree)
    }
    fn owner(&self) -> (DatasetId, BlockId) {
        (self.record.dataset, self.record.high)
    }
}

/// Snapshots that are to be taken: their datasets and names, and properties that each of them gets.
pub type NewSnapshots = (Vec<(DatasetId, String)>, BTreeMap<String, String>);

/// A snapshot that cannot be destroyed now.
pub(crate) struct KeptSnapshot {
    pub(crate) dataset: DatasetId,
    name: String,
    /// A hold that keeps it; without one, somebody looks into it.
    by: Option<String>,
}

impl KeptSnapshot {
    pub(crate) fn of(Snapshot { record, attached, viewed }: &Snapshot) -> Option<Self> {
        let by = attached.holds.keys().next().cloned();
        let is_kept = by.is_some() || Arc::strong_count(viewed) > 1;
        is_kept.then(|| Self { dataset: record.dataset, name: record.name.clone(), by })
    }

    /// The refusal, with the full name of the dataset.
    pub(crate) fn refusal(&self, dataset: &str) -> PoolError {
        let name = format!("{dataset}@{}", self.name);
        PoolError::Busy(match &self.by {
            Some(tag) => format!("snapshot {name} is held by {tag}"),
            None => format!("snapshot {name} is in use"),
        })
    }
}

/// Times that a head somebody writes to, or that has hidden snapshots somebody looks into, is committed and looked at
/// again before it goes back: some seconds.
const TRIES: u32 = 100;

impl Pool {
    /// Takes a snapshot of what a dataset holds, dirty data written before the call included; durable when this
    /// returns. Must not be called while an [`crate::Op`] is held.
    ///
    /// # Errors
    /// When there is no such dataset, or the name cannot be or is taken; those of [`Pool::commit`].
    pub fn snapshot(&self, dataset: DatasetId, name: &str) -> Result<SnapshotRecord> {
        let mut taken = self.snapshot_all(vec![(dataset, name.to_owned())], BTreeMap::new())?;
        Ok(taken.remove(0))
    }

    /// As [`Pool::snapshot`], of several datasets at one moment: all of them, or none. Each gets these properties.
    ///
    /// # Errors
    /// As [`Pool::snapshot`], for any of them.
    pub fn snapshot_all(
        &self,
        all: Vec<(DatasetId, String)>,
        properties: BTreeMap<String, String>,
    ) -> Result<Vec<SnapshotRecord>> {
        self.snapshot_sets(vec![(all, properties)])
    }

    /// As [`Pool::snapshot_all`], of several sets, each with properties of its own: all at one moment. Where that fails
    /// in the commit, there may be whole sets, but no part of one.
    ///
    /// # Errors
    /// As [`Pool::snapshot`], for any of them.
    pub fn snapshot_sets(&self, sets: Vec<NewSnapshots>) -> Result<Vec<SnapshotRecord>> {
        self.shared.store.check_writable()?;
        let sets: Vec<_> = sets.into_iter().map(|(all, properties)| Wanted { all, properties }).collect();
        let each = || sets.iter().flat_map(|set| &set.all);
        for (dataset, name) in each() {
            check_snapshot_name(name).map_err(PoolError::Invalid)?;
            self.dataset(*dataset).ok_or_else(|| PoolError::NotFound(format!("dataset {dataset}")))?;
        }
        let taken = {
            let _complete = self.destroying.lock();
            let mut snapshots = self.snapshots.lock();
            let mut seen = BTreeSet::new();
            let taken = each().find(|one| {
                let comes = snapshots.to_come().any(|other| other == *one);
                comes || !seen.insert(*one) || snapshots.named(one.0, &one.1).is_ok()
            });
            let taken = taken.cloned();
            if taken.is_none() {
                snapshots.wanted.extend(sets.iter().cloned());
            }
            taken
        };
        if let Some((dataset, name)) = taken {
            return Err(PoolError::Exists(format!("snapshot {}@{name}", self.full_name(dataset))));
        }
        let committed = self.commit();
        let mut snapshots = self.snapshots.lock();
        sets.iter().for_each(|set| snapshots.forget(set));
        let are_taken = || each().all(|(dataset, name)| snapshots.named(*dataset, name).is_ok());
        committed.map_err(|error| match error {
            // The commit is kept, and made whole when the pool is resumed.
            PoolError::Suspended(why) if are_taken() => {
                PoolError::Suspended(format!("{why}; the snapshots are there when it goes on"))
            }
            error => error,
        })?;
        each().map(|(dataset, name)| Ok(snapshots.named(*dataset, name)?.record.clone())).collect()
    }

    /// The snapshots of a dataset, oldest first.
    pub fn snapshots(&self, dataset: DatasetId) -> Vec<SnapshotRecord> {
        self.snapshots.lock().visible(dataset).cloned().collect()
    }

    /// Up to `max` snapshots of a dataset whose high ids are greater than `after`, oldest first.
    pub fn snapshots_after(&self, dataset: DatasetId, after: BlockId, max: usize) -> Vec<SnapshotRecord> {
        let snapshots = self.snapshots.lock();
        snapshots.after(dataset, after).filter(|one| is_visible(one)).take(max).cloned().collect()
    }

    /// The snapshot of a name.
    ///
    /// # Errors
    /// When there is none.
    pub fn snapshot_named(&self, dataset: DatasetId, name: &str) -> Result<SnapshotRecord> {
        Ok(self.snapshots.lock().named(dataset, name)?.record.clone())
    }

    /// The newest snapshot of a dataset.
    pub fn newest_snapshot(&self, dataset: DatasetId) -> Option<SnapshotRecord> {
        self.snapshots.lock().visible(dataset).next_back().cloned()
    }

    /// Looks into a snapshot.
    ///
    /// # Errors
    /// When there is no such snapshot.
    pub fn snapshot_view(&self, dataset: DatasetId, name: &str) -> Result<SnapshotView> {
        Ok(self.view_of(self.snapshots.lock().named(dataset, name)?))
    }

    /// Looks into the snapshot of this high id, of this dataset or, since it may be another's by now, of any.
    pub fn snapshot_view_of(&self, dataset: DatasetId, high: BlockId) -> Option<SnapshotView> {
        let snapshots = self.snapshots.lock();
        let other = || snapshots.taken.iter().find(|((_, other), _)| *other == high).map(|(_, one)| one);
        snapshots.taken.get(&(dataset, high)).or_else(other).map(|snapshot| self.view_of(snapshot))
    }

    fn view_of(&self, snapshot: &Snapshot) -> SnapshotView {
        let (record, viewed) = (snapshot.record.clone(), Arc::clone(&snapshot.viewed));
        let tree = record.root.map_or_else(Tree::empty, Tree::open);
        SnapshotView { shared: Arc::clone(&self.shared), tree, record, _viewed: viewed }
    }

    /// Destroys a snapshot; durable with the next commit. What only it held is freed by [`Pool::destroy_step`].
    ///
    /// # Errors
    /// When there is no such snapshot; [`PoolError::Busy`] when somebody looks into it.
    pub fn destroy_snapshot(&self, dataset: DatasetId, name: &str) -> Result<()> {
        self.destroy_snapshots(&[(dataset, name.to_owned())])
    }

    /// As [`Pool::destroy_snapshot`], of several: all of them, or none. Those that have clones are hidden: they go with
    /// the last.
    ///
    /// # Errors
    /// As [`Pool::destroy_snapshot`], for any of them.
    pub fn destroy_snapshots(&self, going: &[(DatasetId, String)]) -> Result<()> {
        let _removing = self.removing();
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let going: BTreeSet<_> = going.iter().cloned().collect();
        let taken = self.take_out(&going)?;
        let taken = taken.map_err(|kept| kept.refusal(&self.full_name(kept.dataset)))?;
        self.destroy_taken(taken)?;
        self.shared.intent.notes.lock().note_removal();
        Ok(())
    }

    /// Destroys hidden snapshots that no clone needs any more; true when there was one.
    pub(crate) fn destroy_unneeded(&self) -> Result<bool> {
        if self.snapshots.lock().unneeded().is_none() {
            return Ok(false);
        }
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let taken = {
            let mut snapshots = self.snapshots.lock();
            let unneeded = snapshots.unneeded();
            unneeded.and_then(|key| snapshots.take(key))
        };
        let found = taken.is_some();
        self.destroy_taken(taken.into_iter().collect())?;
        Ok(found)
    }

    /// Destroys snapshots that are out of the list: all of them, or none.
    fn destroy_taken(&self, taken: Vec<Snapshot>) -> Result<()> {
        let state_of = |snapshot: &Snapshot| {
            let dataset = snapshot.record.dataset;
            self.alive(dataset).ok_or_else(|| PoolError::NotFound(format!("dataset {dataset}")))
        };
        let rows = |snapshot: &Snapshot| {
            let SnapshotRecord { dataset, high, .. } = snapshot.record;
            [Table::snapshot_key(dataset, high), Table::Remains.key(high.get())]
        };
        self.bring_rows(taken.iter().flat_map(rows));
        let destroyed = taken.iter().enumerate().try_for_each(|(at, snapshot)| {
            let destroyed =
                state_of(snapshot).and_then(|head| self.destroy_one(&mut head.state.write(), snapshot));
            destroyed.inspect_err(|_| {
                taken[..at].iter().for_each(|snapshot| self.undestroy_one(snapshot));
            })
        });
        if let Err(error) = destroyed {
            self.put_back(taken);
            return Err(error);
        }
        let datasets: BTreeSet<_> = taken.iter().map(|snapshot| snapshot.record.dataset).collect();
        for head in datasets.into_iter().filter_map(|dataset| self.alive(dataset)) {
            self.lower_protection(&mut head.state.write());
        }
        Ok(())
    }

    /// Takes snapshots that nothing keeps out of the list, or their names where they have clones: nobody opens them
    /// from now on. Else one that is kept; then all of them stay.
    ///
    /// # Errors
    /// When there is no such snapshot.
    fn take_out(&self, going: &BTreeSet<(DatasetId, String)>) -> Result<Result<Vec<Snapshot>, KeptSnapshot>> {
        let mut snapshots = self.snapshots.lock();
        let found = going.iter().map(|(dataset, name)| snapshots.named(*dataset, name));
        let found = found.collect::<Result<Vec<_>>>()?;
        if let Some(kept) = found.iter().find_map(|snapshot| KeptSnapshot::of(snapshot)) {
            return Ok(Err(kept));
        }
        let keys: Vec<_> = found.iter().map(|one| (one.record.dataset, one.record.high)).collect();
        let taken: Vec<_> = keys.into_iter().filter_map(|key| snapshots.take(key)).collect();
        // Those that stay are in the list before the others look for who came before them.
        for Snapshot { record, viewed, .. } in &taken {
            if snapshots.is_cloned(record) {
                let record = SnapshotRecord { hidden: true, deferred: false, ..record.clone() };
                let (attached, viewed) = (Attached::default(), Arc::clone(viewed));
                snapshots.put_back(Snapshot { record, attached, viewed });
            }
        }
        Ok(Ok(taken))
    }

    fn put_back(&self, taken: Vec<Snapshot>) {
        let mut snapshots = self.snapshots.lock();
        taken.into_iter().for_each(|snapshot| snapshots.put_back(snapshot));
    }

    /// In the tables, a snapshot that is not in the list any more becomes what remains of it; one that is is hidden.
    fn destroy_one(&self, state: &mut State, snapshot: &Snapshot) -> Result<()> {
        let SnapshotRecord { dataset, high, root, .. } = snapshot.record;
        let (floor, hidden) = {
            let snapshots = self.snapshots.lock();
            let hidden = snapshots.taken.get(&(dataset, high)).map(|hidden| hidden.record.clone());
            (snapshots.floor(dataset, high), hidden)
        };
        if let Some(hidden) = hidden {
            let mut changes = snapshot.attached.changes(&snapshot.record, false);
            changes.push((Table::snapshot_key(dataset, high), Some(hidden.encode())));
            return self.change_tables(&changes);
        }
        self.leave_remains(state, high, floor, root)?;
        let mut changes = snapshot.attached.changes(&snapshot.record, false);
        changes.push((Table::snapshot_key(dataset, high), None));
        self.change_tables(&changes).inspect_err(|_| self.forget_remains(high))?;
        Ok(())
    }

    /// Snapshots of a dataset are gone: the head frees again what they alone protected. Not before all are gone that
    /// are to go together, since one that stays after all must not miss anything.
    fn lower_protection(&self, state: &mut State) {
        let snapshots = self.snapshots.lock();
        state.record.protected_below = snapshots.protected_below(state.record.id);
        if snapshots.holds_nothing(state.record.id) {
            state.record.held = 0;
        }
        state.changed = true;
    }

    /// Takes that back, in the same operation: the leaves were just changed, and are in memory.
    fn undestroy_one(&self, Snapshot { record, attached, .. }: &Snapshot) {
        let mut changes = attached.changes(record, true);
        changes.push((Table::snapshot_key(record.dataset, record.high), Some(record.encode())));
        self.forget_remains(record.high);
        if self.change_tables(&changes).is_err() {
            let why = "snapshots were destroyed halfway; the last commit is intact";
            drop(self.shared.store.suspend(why.into()));
        }
    }

    /// Gives snapshots of datasets other names (dataset, old, new): all of them, or none. Durable with the next commit.
    ///
    /// # Errors
    /// When one does not exist, a new name cannot be, or is taken.
    pub fn rename_snapshots(&self, renames: &[(DatasetId, String, String)]) -> Result<()> {
        let _op = self.enter()?;
        let _complete = self.destroying.lock();
        let mut snapshots = self.snapshots.lock();
        let (mut new, mut taken) = (Vec::new(), None);
        for (dataset, from, to) in renames {
            check_snapshot_name(to).map_err(PoolError::Invalid)?;
            let record = snapshots.named(*dataset, from)?.record.clone();
            if new.iter().any(|one: &SnapshotRecord| one.high == record.high) {
                return Err(PoolError::Invalid(format!("{from} cannot get two names")));
            }
            let comes = snapshots.to_come().any(|(of, name)| of == dataset && name == to);
            let is_new = |one: &SnapshotRecord| one.dataset == *dataset && one.name == *to;
            if comes || new.iter().any(is_new) || snapshots.named(*dataset, to).is_ok() {
                taken = Some((*dataset, to));
                break;
            }
            new.push(SnapshotRecord { name: to.clone(), ..record });
        }
        if let Some((dataset, to)) = taken {
            drop(snapshots);
            return Err(PoolError::Exists(format!("snapshot {}@{to}", self.full_name(dataset))));
        }
        let mut tables = self.tables.lock();
        let mut put = |record: &SnapshotRecord| {
            let key = Table::snapshot_key(record.dataset, record.high);
            let (nodes, record) = (TableNodes(&self.shared.store), record.encode());
            let before = tables.insert(&nodes, key, &record)?;
            self.note_row(&key, before.as_deref(), Some(&record));
            Ok::<_, PoolError>(())
        };
        let mut done: Vec<SnapshotRecord> = Vec::new();
        for record in new {
            let before = snapshots.rename(record.clone());
            let renamed = put(&record);
            done.extend(before);
            if let Err(error) = renamed {
                for record in done {
                    // No leaf became empty, so all are in memory; that of the last is as it was.
                    drop(put(&record));
                    snapshots.rename(record);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether a dataset's head, as it is committed, is what a snapshot of it is, and nothing is dirty.
    ///
    /// # Errors
    /// When there is no such dataset or snapshot.
    pub fn is_at_snapshot(&self, dataset: DatasetId, name: &str) -> Result<bool> {
        let head = self.dataset(dataset).ok_or_else(|| PoolError::NotFound(format!("dataset {dataset}")))?;
        let state = head.state.read();
        let root = self.snapshots.lock().named(dataset, name)?.record.root;
        Ok(!state.tree.is_dirty() && state.tree.committed_root() == root)
    }

    /// Has a dataset's head hold what its newest snapshot does, or an older one: then those that are newer are
    /// destroyed, and bookmarks of such, in the same commit. Nobody may have anything of the head in memory: it is not
    /// shown. Durable when this returns.
    ///
    /// # Errors
    /// When there is no such snapshot; [`PoolError::Busy`] when there are newer ones and they are not to go, or
    /// somebody looks into one of them. Nothing is changed then. Also when somebody writes to the head all the time, or
    /// begins to look into a snapshot that has lost its name: what the trash had above is gone by then.
    pub fn rollback(&self, dataset: DatasetId, name: &str, drops_newer: bool) -> Result<()> {
        let head = self.dataset(dataset).ok_or_else(|| PoolError::NotFound(format!("dataset {dataset}")))?;
        let full_name = self.full_name(dataset);
        let mut known = None;
        let mut went_back = false;
        for _ in 0..TRIES {
            self.check_no_moment(dataset)?;
            let to = self.snapshot_named(dataset, name)?;
            let refusal = || PoolError::Busy(format!("there are newer snapshots or bookmarks than {name}"));
            if !drops_newer && self.has_newer(&to) {
                return Err(refusal());
            }
            self.drop_received_beyond(&to)?;
            if let Some(refusal) = self.in_the_way(dataset, to.high) {
                return Err(refusal);
            }
            self.let_go_above(dataset, to.high)?;
            while self.destroy_unneeded()? {}
            self.commit()?;
            let to = self.snapshot_named(dataset, name)?;
            let origin = self.origin_key(dataset);
            let inherited = match known {
                Some((of, inherited)) if of == (to.high, origin) => inherited,
                _ => self.inherited(to.root, to.referenced, high_of(origin))?,
            };
            known = Some(((to.high, origin), inherited));
            // What comes next in that table, and what goes.
            let newer: Vec<_> = self.snapshots(dataset).iter().map(|one| one.high).collect();
            let newer = newer.into_iter().filter(|high| *high > to.high);
            let rows = |high| [Table::snapshot_key(dataset, high), Table::Remains.key(high.get())];
            self.bring_rows(newer.chain([BlockId::new(u64::MAX)]).flat_map(rows));
            let _removing = self.removing();
            let _op = self.enter()?;
            let _one_at_a_time = self.destroying.lock();
            let mut state = head.state.write();
            if state.tree.is_dirty() || state.changed {
                // Somebody changed it since.
                continue;
            }
            let (record, newer): (_, BTreeSet<_>) = {
                let snapshots = self.snapshots.lock();
                let record = snapshots.named(dataset, name)?.record.clone();
                let now = snapshots.origin_key(dataset);
                let has_gone_on = snapshots
                    .after(dataset, record.high)
                    .any(|one| one.hidden || snapshots.is_cloned(one) || is_momentary(&one.name));
                if has_gone_on || (record.high, now) != (to.high, origin) {
                    continue;
                }
                let newer = snapshots.visible(dataset).filter(|one| one.high > record.high);
                let newer = newer.map(|one| (dataset, one.name.clone())).collect();
                (record, newer)
            };
            let marked = !self.snapshots.lock().bookmarks_after(dataset, record.high).is_empty();
            if (marked || !newer.is_empty()) && !drops_newer {
                return Err(refusal());
            }
            let newer = self.take_out(&newer)?.map_err(|kept| kept.refusal(&full_name))?;
            if let Err(error) = self.go_back(&mut state, &record, inherited, &newer) {
                self.put_back(newer);
                return Err(error);
            }
            self.went_back(&head);
            went_back = true;
            break;
        }
        if !went_back {
            let why = "is being written to, or somebody looks into what is newer";
            return Err(PoolError::Busy(format!("{full_name} {why}")));
        }
        self.commit().map(drop)
    }

    /// The refusal to go back on a dataset's line to a high id, if a snapshot above it is held or in use, or if a clone
    /// with a name began at one: it would begin beside that line.
    pub(crate) fn in_the_way(&self, dataset: DatasetId, above: BlockId) -> Option<PoolError> {
        let (kept, clones): (_, Vec<_>) = {
            let snapshots = self.snapshots.lock();
            let newer = snapshots.of(dataset).filter(|one| one.record.high > above);
            let kept = newer.filter(|one| is_visible(&one.record)).find_map(KeptSnapshot::of);
            let newer = snapshots.after(dataset, above);
            let clones = newer
                .flat_map(|one| snapshots.clones((dataset, one.high)).map(|clone| (one.name.clone(), clone)));
            (kept, clones.collect())
        };
        let full_name = self.full_name(dataset);
        if let Some(kept) = kept {
            return Some(kept.refusal(&full_name));
        }
        // It goes when nobody looks into it any more, which may take long; to try until then is no way to wait.
        if let Some(refusal) = self.looked_into(dataset, above) {
            return Some(refusal);
        }
        let (newer, clone) = clones.into_iter().find(|(_, clone)| self.dataset(*clone).is_some())?;
        let clone = self.full_name(clone);
        Some(PoolError::Busy(format!("snapshot {full_name}@{newer} is the origin of {clone}")))
    }

    /// The refusal to do without the destroyed snapshots of a dataset above a high id, if somebody looks into one.
    pub(crate) fn looked_into(&self, dataset: DatasetId, above: BlockId) -> Option<PoolError> {
        let name = {
            let snapshots = self.snapshots.lock();
            let mut all = snapshots.of(dataset).filter(|one| one.record.high > above && one.record.hidden);
            all.find(|one| Arc::strong_count(&one.viewed) > 1)?.record.name.clone()
        };
        let full_name = self.full_name(dataset);
        Some(PoolError::Busy(format!("snapshot {full_name}@{name}, which was destroyed, is in use")))
    }

    /// Whether there are snapshots of its dataset, or bookmarks, that are newer than one.
    fn has_newer(&self, than: &SnapshotRecord) -> bool {
        let snapshots = self.snapshots.lock();
        let mut visible = snapshots.visible(than.dataset);
        visible.any(|one| one.high > than.high)
            || !snapshots.bookmarks_after(than.dataset, than.high).is_empty()
    }

    /// A head was rolled back in this operation, or with the gate closed.
    pub(crate) fn went_back(&self, head: &Dataset) {
        head.note_rollback(self.shared.store.open_commit());
        self.records.lock().want();
        self.shared.damage.doubt_head(head.id());
        self.shared.intent.notes.lock().note_removal();
    }

    /// The head becomes what a snapshot is; the newer ones are out of the list. All of it, or nothing.
    fn go_back(
        &self,
        state: &mut State,
        to: &SnapshotRecord,
        inherited: u64,
        newer: &[Snapshot],
    ) -> Result<()> {
        let high = self.shared.store.core.lock().take_ids(1);
        let root = state.tree.committed_root();
        self.leave_remains(state, high, to.high, root)?;
        let marks = self.snapshots.lock().bookmarks_after(to.dataset, to.high);
        let marked = self.change_tables(&bookmarks::changes(to.dataset, &marks, false));
        marked.inspect_err(|_| self.forget_remains(high))?;
        for (at, snapshot) in newer.iter().enumerate() {
            self.destroy_one(state, snapshot).inspect_err(|_| {
                newer[..at].iter().for_each(|snapshot| self.undestroy_one(snapshot));
                // The leaves were just changed, and are in memory; else the pool is suspended.
                drop(self.change_tables(&bookmarks::changes(to.dataset, &marks, true)));
                self.forget_remains(high);
            })?;
        }
        self.snapshots.lock().drop_bookmarks(to.dataset, &marks);
        self.lower_protection(state);
        self.become_snapshot(state, to, inherited);
        Ok(())
    }

    /// A head is what a snapshot of its is, from now on; so many bytes of that it has in common with its origin.
    pub(crate) fn become_snapshot(&self, state: &mut State, to: &SnapshotRecord, inherited: u64) {
        let before = state.record.own();
        state.tree = to.root.map_or_else(Tree::empty, Tree::open);
        // Inode ids that were given out do not come back.
        state.record = DatasetRecord {
            root: to.root,
            referenced: to.referenced,
            logical: to.logical,
            stored: to.stored,
            inherited: inherited.min(to.referenced),
            ..state.record.clone()
        };
        state.changed = true;
        self.shared.accounts.post(to.dataset, state.record.own().wrapping_sub(before) as i64);
    }

    /// A snapshot as a dataset that cannot be changed; the snapshot cannot be destroyed meanwhile.
    ///
    /// # Errors
    /// When there is no such snapshot.
    pub fn snapshot_dataset(&self, dataset: DatasetId, name: &str) -> Result<Arc<Dataset>> {
        let head = self.dataset(dataset).ok_or_else(|| PoolError::NotFound(format!("dataset {dataset}")))?;
        let (record, viewed) = {
            let snapshots = self.snapshots.lock();
            let snapshot = snapshots.named(dataset, name)?;
            (snapshot.record.clone(), Arc::clone(&snapshot.viewed))
        };
        Ok(Arc::new(Dataset::of_snapshot(&head, &record, viewed)))
    }

    /// Refuses when a dataset has snapshots, or is about to have one.
    pub(crate) fn check_no_snapshots(&self, dataset: DatasetId) -> Result<()> {
        let none = {
            let snapshots = self.snapshots.lock();
            snapshots.visible(dataset).next().is_none() && snapshots.to_come().all(|(of, _)| *of != dataset)
        };
        if none {
            return Ok(());
        }
        Err(PoolError::Busy(format!("{} has snapshots", self.full_name(dataset))))
    }

    /// Part of a commit, when the dirty nodes of all datasets have become blocks: takes what is due. Nobody is inside.
    pub(crate) fn seal_snapshots(&self, commit: CommitId) -> Result<()> {
        loop {
            // They stay due until the tables have all of them.
            let Some(wanted) = self.snapshots.lock().due.first().cloned() else { return Ok(()) };
            // A dataset that was destroyed meanwhile has none taken, nor those that were to come with it.
            let Wanted { all, properties } = &wanted;
            if all.iter().all(|(dataset, _)| self.dataset(*dataset).is_some()) {
                for (at, (dataset, name)) in all.iter().enumerate() {
                    let attached = Attached::of_new(properties);
                    if let Err(error) = self.take_snapshot(*dataset, name, attached, commit) {
                        all[..at].iter().for_each(|(dataset, name)| self.untake_snapshot(*dataset, name));
                        return Err(error);
                    }
                }
            }
            // They may have been forgotten meanwhile by the one that wanted them.
            self.snapshots.lock().due.retain(|other| *other != wanted);
        }
    }

    fn take_snapshot(
        &self,
        dataset: DatasetId,
        name: &str,
        attached: Attached,
        commit: CommitId,
    ) -> Result<()> {
        let Some(of) = self.dataset(dataset) else { return Ok(()) };
        let before = {
            let mut state = of.state.write();
            state.changed = true;
            state.record.clone()
        };
        // Nobody changes it meanwhile: the gate is closed.
        let high = self.shared.store.core.lock().take_ids(1);
        let head = DatasetRecord { protected_below: high, ..before };
        let record = SnapshotRecord {
            dataset,
            guid: self.shared.store.world.entropy.next_u64(),
            high,
            root: head.root,
            referenced: head.referenced,
            logical: head.logical,
            stored: head.stored,
            next_inode: head.next_inode,
            created: self.shared.store.world.clock.now(),
            commit,
            deferred: false,
            hidden: false,
            name: name.to_owned(),
        };
        let mut changes = attached.changes(&record, true);
        changes.push((Table::dataset_key(dataset), Some(head.encode())));
        changes.push((Table::snapshot_key(dataset, high), Some(record.encode())));
        self.change_tables(&changes)?;
        {
            let mut state = of.state.write();
            state.record = head;
            state.changed = false;
        }
        self.shared.note_high(high);
        self.snapshots.lock().insert(record, attached);
        Ok(())
    }

    /// Takes a snapshot back that this commit took, since one that was to come with it could not be taken.
    fn untake_snapshot(&self, dataset: DatasetId, name: &str) {
        let Some(head) = self.dataset(dataset) else { return };
        let mut state = head.state.write();
        let mut snapshots = self.snapshots.lock();
        let Ok(Snapshot { record, attached, .. }) = snapshots.named(dataset, name) else { return };
        let high = record.high;
        let mut changes = attached.changes(record, false);
        changes.push((Table::snapshot_key(dataset, high), None));
        if self.change_tables(&changes).is_ok() {
            snapshots.take((dataset, high));
            state.record.protected_below = snapshots.protected_below(dataset);
            state.changed = true;
        }
    }
}
