//! Destroying datasets, and what is still being freed.
//!
//! [`Pool::destroy_dataset`] takes a dataset's name, properties and account away and marks its record: a
//! few changes of the tables in one operation, whatever the dataset holds. From then on only the pool
//! itself knows it. [`Pool::destroy_step`] takes its tree down from the left, so many entries at a time, each
//! step an operation of its own; the extents that it takes out die with the next commit like any others.
//! When the tree is empty and nobody holds the dataset any more, the record goes.
//!
//! **Clones.** The tree of a clone, nearly all of which is its origin's, is not taken down: it becomes a note of
//! remains ([`crate::remains`]), and the clone is empty at once. A dataset that has the origins of clones gives them to
//! the clone of the newest before it goes: [`Pool::promote`].
//!
//! **A crash** leaves the mark or not; with it, the tree as the last commit has it: one that lacks what was
//! taken out, so that nothing dies twice and nothing is forgotten. Import goes on where that commit was.
//!
//! **Somebody who still holds it** (a call into a volume that was detached a moment ago) may change the
//! tree even now; what it adds is taken out again. That is why the record waits for it.

use crate::bookmarks;
use crate::clones::TRIES;
use crate::dataset::{Ahead, Dataset, Look, ROOT_DATASET, State};
use crate::own::OwnProperties;
use crate::pool::Pool;
use crate::snapshots::Snapshot;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::tables::{DatasetRecord, Table};
use larder_format::trash::TrashKey;
use larder_format::{BlockId, BlockPtr, DatasetId};
use larder_mutants::{Mutant, mutated};
use larder_sorted::tree::Tree;
use larder_store::segments::Listed;
use larder_store::{DatasetNodes, PoolError, Result, TableNodes};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Entries that one step takes out of a tree when somebody waits for their space.
pub(crate) const STEP: usize = 1024;

impl Pool {
    /// Destroys a dataset without children. Its name is free at once, and nothing counts for its parents
    /// any more; its blocks are freed by [`Pool::destroy_step`]. Durable with the next commit.
    ///
    /// # Errors
    /// [`PoolError::Busy`] when it has children or snapshots, or is the pool's root, or a clone that somebody writes to
    /// all the time.
    pub fn destroy_dataset(&self, id: DatasetId) -> Result<()> {
        for _ in 0..TRIES {
            let dataset = self.alive(id).ok_or_else(|| PoolError::NotFound(format!("dataset {id}")))?;
            self.check_destroyable(id)?;
            self.check_no_moment(id)?;
            self.destroy_staging(id)?;
            self.let_go_of_snapshots(id)?;
            self.drop_streams_without_base(id)?;
            while self.destroy_unneeded()? {}
            let heir = self.heir(id);
            if heir.is_some() || dataset.state.read().record.origin.is_some() {
                self.commit()?;
            }
            let destroyed = match heir {
                Some(heir) => self.try_bequeath(&dataset, heir)?,
                None => self.try_destroy(&dataset)?,
            };
            if destroyed {
                return Ok(());
            }
        }
        let written = || PoolError::Busy(format!("{} is being written to", self.full_name(id)));
        Err(self.looked_into(id, BlockId::new(0)).unwrap_or_else(written))
    }

    /// The clone that takes over the snapshots that a dataset has only for its clones.
    pub(crate) fn heir(&self, id: DatasetId) -> Option<DatasetId> {
        let (_, clones) = self.newest_cloned(id)?;
        // One that has a name, rather than one that is in the trash itself.
        let named = clones.iter().find(|clone| self.dataset(**clone).is_some());
        named.or(clones.first()).copied()
    }

    /// The high id of the newest snapshot of a dataset that has clones, and these. A stream on its way in is none: with
    /// the snapshots before it, it would build upon another one than it says.
    fn newest_cloned(&self, id: DatasetId) -> Option<(BlockId, Vec<DatasetId>)> {
        let cloned: Vec<(BlockId, Vec<DatasetId>)> = {
            let snapshots = self.snapshots.lock();
            let with_clones =
                |one: &Snapshot| (one.record.high, snapshots.clones((id, one.record.high)).collect());
            snapshots.of(id).rev().map(with_clones).collect()
        };
        let is_clone = |clone: &DatasetId| !self.dataset(*clone).is_some_and(|one| one.is_staging());
        let only_clones = |(high, all): (BlockId, Vec<_>)| (high, all.into_iter().filter(is_clone).collect());
        cloned.into_iter().map(only_clones).find(|(_, clones): &(_, Vec<_>)| !clones.is_empty())
    }

    /// Streams on their way in whose base goes with a dataset, since no clone takes it over, are dropped.
    fn drop_streams_without_base(&self, id: DatasetId) -> Result<()> {
        let stays = self.newest_cloned(id).map_or(BlockId::new(0), |(high, _)| high);
        let streams: Vec<_> = {
            let snapshots = self.snapshots.lock();
            let all = snapshots.after(id, stays).flat_map(|one| snapshots.clones((id, one.high)));
            all.collect()
        };
        streams
            .into_iter()
            .filter_map(|stream| self.dataset(stream))
            .try_for_each(|one| self.drop_all_received(&one))
    }

    pub(crate) fn check_destroyable(&self, id: DatasetId) -> Result<()> {
        self.check_childless(id)?;
        self.check_no_snapshots(id)
    }

    pub(crate) fn check_childless(&self, id: DatasetId) -> Result<()> {
        if id == ROOT_DATASET {
            return Err(PoolError::Busy("the pool's root dataset goes with the pool".into()));
        }
        if self.dataset(id).is_some_and(|dataset| dataset.is_staging()) {
            return Err(PoolError::Busy("streams that are received have it".into()));
        }
        if !self.children(id).is_empty() {
            return Err(PoolError::Busy(format!("{} has children", self.full_name(id))));
        }
        Ok(())
    }

    /// Destroys a dataset, unless it has hidden snapshots again, or is a clone that has changed since the last commit.
    fn try_destroy(&self, dataset: &Arc<Dataset>) -> Result<bool> {
        let id = dataset.id();
        let _removing = self.removing();
        let _op = self.enter()?;
        let _complete = self.destroying.lock();
        self.check_destroyable(id)?;
        if self.snapshots.lock().of(id).next().is_some() || self.has_staging(id) {
            return Ok(false);
        }
        self.destroy_within(dataset)
    }

    /// The same within an operation, or with the gate closed, of one that has no snapshots.
    pub(crate) fn destroy_within(&self, dataset: &Arc<Dataset>) -> Result<bool> {
        let id = dataset.id();
        let own = dataset.own_properties();
        let key = TrashKey::Dataset(id);
        let (marks, trash) = {
            let snapshots = self.snapshots.lock();
            (snapshots.bookmarks_of(id).cloned().collect::<Vec<_>>(), snapshots.trash.get(&key).cloned())
        };
        let attached = |are_there: bool| {
            let each = own.records().map(|record| {
                let key = Table::property_key(id, &record.name, record.source);
                (key, are_there.then(|| record.encode()))
            });
            let trash = trash.iter().map(|entry| (key.key(), are_there.then(|| entry.encode())));
            let marks = bookmarks::changes(id, &marks, are_there);
            each.chain(marks).chain(trash).collect::<Vec<_>>()
        };
        {
            let mut state = dataset.state.write();
            if state.record.origin.is_some() && state.tree.is_dirty() {
                return Ok(false);
            }
            let mut changes = attached(false);
            changes.push((Table::Receiving.key(id.get()), None));
            self.change_tables(&changes)?;
            self.leave_clone(&mut state).inspect_err(|_| {
                // The leaves were just changed, and are in memory; else the pool is suspended.
                drop(self.change_tables(&attached(true)));
            })?;
            state.record.destroyed = true;
            // Its parent may be destroyed, and gone, before its own tree is down.
            state.record.parent = ROOT_DATASET;
            state.changed = true;
        }
        *dataset.own.write() = OwnProperties::default();
        let mut snapshots = self.snapshots.lock();
        snapshots.drop_bookmarks(id, &marks);
        snapshots.trash.remove(&key);
        drop(snapshots);
        self.trashed.lock().remove(&id);
        self.shared.intent.notes.lock().note_removal();
        self.datasets.write().remove(&id);
        self.destroyed.lock().insert(id, Arc::clone(dataset));
        self.shared.accounts.close(id);
        Ok(true)
    }

    /// The tree of a clone, as it is committed, becomes a note of remains. Another dataset stays as it is.
    fn leave_clone(&self, state: &mut State) -> Result<()> {
        let Some((_, floor)) = state.record.origin else { return Ok(()) };
        let high = self.shared.store.core.lock().take_ids(1);
        let root = state.tree.committed_root();
        self.leave_remains(state, high, floor, root)?;
        state.tree = Tree::empty();
        state.record = DatasetRecord {
            root: None,
            referenced: 0,
            logical: 0,
            stored: 0,
            origin: None,
            inherited: 0,
            ..state.record.clone()
        };
        self.snapshots.lock().set_origin(state.record.id, None);
        Ok(())
    }

    /// All datasets that have a tree: those with a name, those in the trash, and those that were destroyed and are
    /// being taken down. Whatever looks for what is alive must visit them all.
    pub fn trees(&self) -> Vec<Arc<Dataset>> {
        let mut all = self.datasets();
        all.extend(self.trashed.lock().values().map(|(dataset, _)| Arc::clone(dataset)));
        all.extend(self.destroyed.lock().values().cloned());
        all
    }

    /// Name of a dataset with a tree, destroyed or not.
    pub fn tree_name(&self, dataset: &Dataset) -> String {
        let destroyed = dataset.state.read().record.destroyed;
        if destroyed { format!("destroyed dataset {}", dataset.id()) } else { self.full_name(dataset.id()) }
    }

    /// Datasets that were destroyed and are still being taken down.
    pub fn destroyed(&self) -> BTreeSet<DatasetId> {
        self.destroyed.lock().keys().copied().collect()
    }

    /// Goes on with taking destroyed datasets down: at most `max` entries of one tree; then with what remains of
    /// destroyed snapshots: [`Pool::remains_step`]. True while there is more to do.
    ///
    /// # Errors
    /// When a tree cannot be read: that dataset is left alone until the next import. When nothing may be
    /// written.
    pub fn destroy_step(&self, max: usize) -> Result<bool> {
        let next = |after: Option<DatasetId>| {
            let destroyed = self.destroyed.lock();
            let rest = destroyed.values().filter(|dataset| after.is_none_or(|after| dataset.id() > after));
            rest.filter(|dataset| !dataset.is_stuck()).map(Arc::clone).next()
        };
        let mut after = None;
        while let Some(dataset) = next(after) {
            after = Some(dataset.id());
            match self.take_down(&dataset, max) {
                Ok(0) => self.forget_dataset(dataset)?,
                Ok(_) => return Ok(true),
                Err(error) => {
                    dataset.set_stuck();
                    return Err(error);
                }
            }
        }
        Ok(self.drop_broken_off()?
            || self.destroy_momentary()?
            || self.destroy_unneeded()?
            || self.remains_step()?)
    }

    /// Takes up to `max` entries out of a dataset's tree; returns their number.
    fn take_down(&self, dataset: &Dataset, max: usize) -> Result<usize> {
        // Leaves are read before the operation, on which a commit may wait; and what cannot be read must show
        // before anything has changed.
        if mutated(Mutant::TreeForgotten) {
            return Ok(0);
        }
        if dataset.look(|view| first_keys(view, max))?.is_empty() {
            return Ok(0);
        }
        self.make_changes_fit_unless_busy()?;
        let op = self.enter()?;
        let reads = |tree: &Ahead<'_>| tree.reach_removal(&first_keys(tree, max)?);
        dataset.update_after(&op, reads, |tree| {
            let mut dead = Vec::new();
            let taken = tree.remove_range(.., max, |key, value| {
                if key.kind == EXTENT
                    && let Ok(extent) = Extent::decode(value)
                {
                    dead.push(extent);
                }
            })?;
            for extent in dead {
                tree.drop_block(&extent);
            }
            Ok(taken)
        })
    }

    /// The tree is empty: forgets the dataset, unless somebody still holds it.
    fn forget_dataset(&self, dataset: Arc<Dataset>) -> Result<()> {
        let _op = self.enter()?;
        let id = dataset.id();
        drop(dataset);
        let dataset = {
            let mut destroyed = self.destroyed.lock();
            let Some(dataset) = destroyed.remove(&id) else { return Ok(()) };
            match Arc::try_unwrap(dataset) {
                Ok(dataset) => dataset,
                Err(held) => {
                    destroyed.insert(id, held);
                    return Ok(());
                }
            }
        };
        let mut dataset = dataset;
        let outcome = self.last_nodes(&mut dataset).and_then(|dead| {
            let key = Table::dataset_key(id);
            let before = self.tables.lock().remove(&TableNodes(&self.shared.store), &key)?;
            self.note_row(&key, before.as_deref(), None);
            self.shared.freeing.drop_nodes(dead);
            Ok(())
        });
        if outcome.is_err() {
            dataset.set_stuck();
            self.destroyed.lock().insert(id, Arc::new(dataset));
        }
        outcome
    }

    /// The committed nodes of an empty tree: an empty leaf, and what it has stopped reaching.
    fn last_nodes(&self, dataset: &mut Dataset) -> Result<Vec<BlockPtr>> {
        let state = dataset.state.get_mut();
        let mut dead = Vec::new();
        state.tree.for_each_node(
            &DatasetNodes(&self.shared.store),
            |ptr| {
                dead.push(ptr);
                true
            },
            |_, node| {
                let empty = node?.keys().is_empty() || mutated(Mutant::TreeForgotten);
                assert!(empty, "nobody could change the tree since it was found empty");
                Ok(())
            },
        )?;
        dead.append(&mut state.tree.take_dropped());
        Ok(dead)
    }

    /// Takes some of what was deleted apart, for somebody who needs the space now; true when there was some. What
    /// cannot be read is left. Must not be called while an [`crate::Op`] is held.
    pub(crate) fn free_some_deleted(&self) -> Result<bool> {
        let front = self.front_end();
        let unlinked = front.map_or(Ok(false), |front| front.reap_step(STEP))?;
        Ok(self.destroy_step(STEP)? || unlinked)
    }

    /// Bytes of blocks that will be free by themselves: those of unlinked files and of destroyed datasets,
    /// and those that died and whose space cannot be written before another commit or two. Before
    /// replication and parity. While a commit is being put together it is what it was before.
    pub fn freeing_bytes(&self) -> u64 {
        let Some(_no_commit) = self.gate.try_read() else { return self.shared.freeing.told() };
        let front = self.front_end();
        let unlinked = front.map_or(0, |front| front.freeing_bytes());
        let destroyed: Vec<_> = self.destroyed.lock().values().cloned().collect();
        let held = |dataset: &Arc<Dataset>| {
            let record = &dataset.state.read().record;
            // Its records, and the node that goes with it.
            record.referenced + record.root.map_or(0, |root| u64::from(root.place.stored))
        };
        let destroyed: u64 = destroyed.iter().map(held).sum();
        let dropped = self.shared.freeing.dropped_bytes();
        let core = self.shared.store.core.lock();
        let freed = core.entries.listed(Listed::Freed).filter(|entry| !entry.segment.kind.is_rooted());
        let slots: u64 = freed.map(|entry| entry.placed).sum();
        let sum = unlinked + destroyed + dropped + slots;
        self.shared.freeing.tell(sum);
        sum
    }
}

/// The first keys of a tree, `max` at most.
fn first_keys(tree: &impl Look, max: usize) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    tree.scan(&Key::MIN, &mut |key, _| {
        keys.push(*key);
        if keys.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(keys)
}
