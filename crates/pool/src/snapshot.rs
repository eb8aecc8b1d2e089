//! Taking, looking into and destroying snapshots: see [`crate::snapshots`].

use crate::create::check_name;
use crate::dataset::Look;
use crate::pool::Pool;
use crate::shared::Shared;
use larder_format::tables::{DatasetRecord, SnapshotRecord, Table};
use larder_format::{BlockId, CommitId, DatasetId};
use larder_sorted::tree::Tree;
use larder_store::{PoolError, Result, TableNodes};
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

impl Pool {
    /// Takes a snapshot of what a dataset holds, dirty data written before the call included; durable when this
    /// returns. Must not be called while an [`crate::Op`] is held.
    ///
    /// # Errors
    /// When there is no such dataset, or the name cannot be or is taken; those of [`Pool::commit`].
    pub fn snapshot(&self, dataset: DatasetId, name: &str) -> Result<SnapshotRecord> {
        self.shared.store.check_writable()?;
        check_name(name).map_err(PoolError::Invalid)?;
        self.dataset(dataset).ok_or_else(|| PoolError::NotFound(format!("dataset {dataset}")))?;
        let wanted = (dataset, name.to_owned());
        {
            let mut snapshots = self.snapshots.lock();
            if snapshots.to_come().any(|other| *other == wanted) || snapshots.named(dataset, name).is_ok() {
                return Err(PoolError::Exists(format!("snapshot {name}")));
            }
            snapshots.wanted.push(wanted.clone());
        }
        let committed = self.commit();
        let mut snapshots = self.snapshots.lock();
        snapshots.forget(&wanted);
        committed?;
        snapshots.named(dataset, name).map(|snapshot| snapshot.record.clone())
    }

    /// The snapshots of a dataset, oldest first.
    pub fn snapshots(&self, dataset: DatasetId) -> Vec<SnapshotRecord> {
        self.snapshots.lock().of(dataset).map(|snapshot| snapshot.record.clone()).collect()
    }

    /// Looks into a snapshot.
    ///
    /// # Errors
    /// When there is no such snapshot.
    pub fn snapshot_view(&self, dataset: DatasetId, name: &str) -> Result<SnapshotView> {
        let snapshots = self.snapshots.lock();
        let snapshot = snapshots.named(dataset, name)?;
        let (record, viewed) = (snapshot.record.clone(), Arc::clone(&snapshot.viewed));
        let tree = record.root.map_or_else(Tree::empty, Tree::open);
        Ok(SnapshotView { shared: Arc::clone(&self.shared), tree, record, _viewed: viewed })
    }

    /// Destroys a snapshot; durable with the next commit. What only it held is left to GC.
    ///
    /// # Errors
    /// When there is no such snapshot; [`PoolError::Busy`] when somebody looks into it.
    pub fn destroy_snapshot(&self, dataset: DatasetId, name: &str) -> Result<()> {
        let _removing = self.removing();
        let _op = self.enter()?;
        let head = self.dataset(dataset).ok_or_else(|| PoolError::NotFound(format!("dataset {dataset}")))?;
        let mut state = head.state.write();
        let mut snapshots = self.snapshots.lock();
        let snapshot = snapshots.named(dataset, name)?;
        if Arc::strong_count(&snapshot.viewed) > 1 {
            return Err(PoolError::Busy(format!("snapshot {name} is in use")));
        }
        let (high, root) = (snapshot.record.high, snapshot.record.root);
        self.tables.lock().remove(&TableNodes(&self.shared.store), &Table::snapshot_key(dataset, high))?;
        snapshots.taken.remove(&(dataset, high));
        self.shared.intent.notes.lock().note_removal();
        state.record.protected_below = snapshots.protected_below(dataset);
        drop(snapshots);
        // Any of what snapshots hold may have been held by this one alone; the path to its root for certain, if
        // the head has changed since.
        let own = root.map_or(0, |root| u64::from(root.place.footprint()));
        self.shared.freeing.leave_to_gc(std::mem::take(&mut state.record.held) + own);
        state.changed = true;
        Ok(())
    }

    /// Refuses when a dataset has snapshots, or is about to have one.
    pub(crate) fn check_no_snapshots(&self, dataset: DatasetId) -> Result<()> {
        let none = {
            let snapshots = self.snapshots.lock();
            snapshots.of(dataset).next().is_none() && snapshots.to_come().all(|(of, _)| *of != dataset)
        };
        if none {
            return Ok(());
        }
        Err(PoolError::Busy(format!("{} has snapshots", self.full_name(dataset))))
    }

    /// Part of a commit, when the dirty nodes of all datasets have become blocks: takes what is due. Nobody is inside.
    pub(crate) fn seal_snapshots(&self, commit: CommitId) -> Result<()> {
        loop {
            // It stays due until the tables have it.
            let Some((dataset, name)) = self.snapshots.lock().due.first().cloned() else { return Ok(()) };
            let Some(head) = self.dataset(dataset) else {
                self.snapshots.lock().due.remove(0);
                continue;
            };
            let mut state = head.state.write();
            state.changed = true;
            let high = self.shared.store.core.lock().take_ids(1);
            let head = DatasetRecord { protected_below: high, ..state.record.clone() };
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
                name,
            };
            let nodes = TableNodes(&self.shared.store);
            let mut snapshots = self.snapshots.lock();
            let mut tables = self.tables.lock();
            // Where the second fails the first has no effect: the head's own record is put over it.
            tables.insert(&nodes, Table::dataset_key(dataset), &head.encode())?;
            tables.insert(&nodes, Table::snapshot_key(dataset, high), &record.encode())?;
            state.record = head;
            state.changed = false;
            snapshots.insert(record);
            snapshots.due.remove(0);
        }
    }
}
