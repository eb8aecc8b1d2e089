//! Remains: blocks that only a destroyed snapshot, or a head before its rollback, referred to.
//!
//! Destroying a snapshot and rolling back leave a tree that has no name any more. A note in the tables, in the same
//! commit, keeps its root. [`Pool::remains_step`] walks the tree in order of keys, beside that of its *successor*: the
//! next snapshot of the dataset by high id, else the head ([`larder_sorted::tree::Remains`]). Blocks that the successor
//! does not have are freed, at a cost that depends on the differences alone. Ids up to the note's floor are passed
//! over: it is the high id of the snapshot before, which holds those blocks.
//!
//! # Each block dies once
//! The same block may be told more than once. So ids are marked `DEAD`, and the free queue asks the map.
//! - The successor has the block and drops it later: then the head frees it, since no snapshot protects it any more.
//! - The head dropped it while the snapshot was there: no committed successor has it once the destroying commit is
//!   durable, and no step is taken before.
//! - Several in a row are destroyed, or the one before while this one is walked: each step looks for the successor
//!   anew, and each block dies with the last of them that has it.
//! - Shared blocks are left to GC by the queue. An extent keeps its key for life, or its block is shared from then on:
//!   [`crate::Update::move_block`]. GC does not know these trees, and while there are notes takes `SHARED` from no
//!   block.
//! - A commit frees what was dropped since the last one; while there are notes it asks the map too.
//!
//! # The tree fades
//! Nodes that the successor has as well are freed when the head drops them, though none in the destroying commit.
//! A node that the map does not know is one of those, or was freed by GC; so are, nearly always, all below it. It is
//! passed over, and GC is told that something may be left.
//!
//! # Crashes
//! The note has the walk's position, durable with what was freed.

use crate::dataset::{Dataset, State};
use crate::holds::TABLES;
use crate::pool::Pool;
use crate::snapshots::Left;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::tables::{RemainsRecord, Table};
use larder_format::{BlockId, BlockPtr, DatasetId};
use larder_sorted::tree::{Remain, Remains as Walk};
use larder_store::{DatasetNodes, Result, TableNodes};
use larder_sync::patient;
use std::sync::Arc;

/// Nodes that a step reads: commits wait for it, and with fewer it might not come down to a leaf.
const STEP: usize = 64;

/// Blocks that a tree has alone, as far as a walk came.
#[derive(Default)]
pub(crate) struct Alone {
    pub(crate) records: Vec<BlockPtr>,
    /// Number of the inode that refers to each record, and what that was charged for it.
    pub(crate) charges: Vec<(u64, u64)>,
    pub(crate) nodes: Vec<BlockPtr>,
    /// Footprints of nodes that cannot be read; of those that are not there, a byte each.
    pub(crate) unread: u64,
}

impl Alone {
    /// Bytes charged for the blocks.
    pub(crate) fn bytes(&self) -> u64 {
        let nodes = self.nodes.iter().map(|ptr| u64::from(ptr.place.footprint()));
        self.records_bytes() + nodes.sum::<u64>()
    }

    /// Those of the records.
    pub(crate) fn records_bytes(&self) -> u64 {
        self.charges.iter().map(|(_, charged)| charged).sum()
    }

    fn take(&mut self, remain: Remain<'_>, floor: BlockId) {
        match remain {
            Remain::Node(ptr) => self.nodes.push(ptr),
            Remain::Entry(key, old, new) if key.kind == EXTENT => {
                let of = |value: &[u8]| Extent::decode(value).ok();
                let Some(old) = of(old) else { return };
                let id = old.ptr.id;
                if id > floor && new.and_then(of).is_none_or(|new| new.ptr.id != id) {
                    self.records.push(old.ptr);
                    self.charges.push((key.object, old.charged()));
                }
            }
            Remain::Entry(..) => {}
        }
    }
}

impl Pool {
    /// Notes the tree of a snapshot or head, which nobody names any more. Within the operation that takes it away.
    pub(crate) fn leave_remains(
        &self,
        head: &mut State,
        high: BlockId,
        floor: BlockId,
        root: Option<BlockPtr>,
    ) -> Result<()> {
        // Without a root, or with one that was there before, nothing remains.
        let Some(root) = root.filter(|root| root.id > floor) else { return Ok(()) };
        let dataset = head.record.id;
        let record = RemainsRecord { dataset, high, floor, root, from: Key::MIN };
        let nodes = TableNodes(&self.shared.store);
        let key = Table::Remains.key(high.get());
        patient(TABLES, || self.tables.lock().insert(&nodes, key, &record.encode()))?;
        let since = self.shared.store.open_commit();
        head.remains_below = head.remains_below.max(high);
        let mut snapshots = self.snapshots.lock();
        // Trees before this one may have another successor now, which can be read.
        let of_dataset = snapshots.remains.values_mut().filter(|one| one.record.dataset == dataset);
        of_dataset.for_each(|one| one.is_stuck = false);
        snapshots.remains.insert(high, Left { record, since, is_stuck: false });
        Ok(())
    }

    /// Takes such a note back, in the same operation.
    pub(crate) fn forget_remains(&self, high: BlockId) {
        // The leaf was just changed, and is in memory.
        let (nodes, key) = (TableNodes(&self.shared.store), Table::Remains.key(high.get()));
        drop(patient(TABLES, || self.tables.lock().remove(&nodes, &key)));
        self.snapshots.lock().remains.remove(&high);
    }

    /// Goes on with freeing what remains of snapshots that were destroyed, a bounded step. True while there is more to
    /// do now.
    ///
    /// # Errors
    /// When the successor cannot be read: that note is left alone until another snapshot of the dataset is destroyed,
    /// or the next import. When nothing may be written.
    pub fn remains_step(&self) -> Result<bool> {
        if self.snapshots.lock().remains.is_empty() {
            return Ok(false);
        }
        // No commit comes between: the nodes of what came after, as it is committed, stay where they are.
        let _turn = self.commit_turn();
        // Nor is a snapshot that stays out of the list.
        let _complete = self.destroying.lock();
        self.shared.store.check_writable()?;
        let durable = self.shared.store.durable_commit();
        let next = || {
            let snapshots = self.snapshots.lock();
            let mut all = snapshots.remains.values();
            all.find(|one| !one.is_stuck && one.since <= durable).map(|one| one.record)
        };
        let Some(record) = next() else { return Ok(false) };
        let head = self.tree_of(record.dataset);
        let after = self.after(record.dataset, head.as_deref(), record.high);
        let mut walk = Walk::new(Some(record.root), after, record.floor, record.from);
        let mut alone = Alone::default();
        let more = match self.find_alone(&mut walk, record.floor, &mut alone) {
            Ok(more) => more,
            Err(error) => {
                if error.is_loss()
                    && self.shared.store.silence().is_none()
                    && let Some(one) = self.snapshots.lock().remains.get_mut(&record.high)
                {
                    one.is_stuck = true;
                }
                return Err(error);
            }
        };
        let (key, nodes) = (Table::Remains.key(record.high.get()), TableNodes(&self.shared.store));
        let record = RemainsRecord { from: walk.cursor(), ..record };
        // The last that can fail.
        match more {
            true => self.tables.lock().insert(&nodes, key, &record.encode()).map(drop)?,
            false => self.tables.lock().remove(&nodes, &key).map(drop)?,
        }
        {
            let mut snapshots = self.snapshots.lock();
            match snapshots.remains.get_mut(&record.high).filter(|_| more) {
                Some(one) => one.record = record,
                None => drop(snapshots.remains.remove(&record.high)),
            }
        }
        if let Some(head) = head {
            self.lower_held(&head, alone.bytes());
        }
        if alone.unread > 0 {
            self.shared.freeing.leave_to_gc(alone.unread);
        }
        self.shared.freeing.drop_again(alone.records, alone.nodes);
        Ok(more || next().is_some())
    }

    /// The dataset, destroyed or not, while it has a tree.
    pub(crate) fn tree_of(&self, dataset: DatasetId) -> Option<Arc<Dataset>> {
        self.alive(dataset).or_else(|| self.destroyed.lock().get(&dataset).map(Arc::clone))
    }

    /// The root of what came after the tree with this high id in its dataset.
    pub(crate) fn after(
        &self,
        dataset: DatasetId,
        head: Option<&Dataset>,
        high: BlockId,
    ) -> Option<BlockPtr> {
        let committed = head.and_then(|head| head.state.read().tree.committed_root());
        let snapshots = self.snapshots.lock();
        snapshots.after(dataset, high).next().map_or(committed, |next| next.root)
    }

    /// Goes on with a walk; whether there is more.
    pub(crate) fn find_alone(&self, walk: &mut Walk, floor: BlockId, alone: &mut Alone) -> Result<bool> {
        let nodes = DatasetNodes(&self.shared.store);
        loop {
            let error = match walk.step(&nodes, STEP, |remain| alone.take(remain, floor)) {
                Ok(more) => return Ok(more),
                // Nothing is lost for a device that does not answer now.
                Err(error) if error.is_loss() && self.shared.store.silence().is_none() => error,
                Err(error) => return Err(error),
            };
            let Some(unread) = walk.pass_unread(|remain| alone.take(remain, floor)) else {
                return Err(error);
            };
            let is_gone = self.shared.store.places_of(unread.id)?.is_empty();
            alone.unread += if is_gone { 1 } else { u64::from(unread.place.footprint()) };
        }
    }

    /// So many bytes that the snapshots of a dataset held are held no more.
    fn lower_held(&self, head: &Dataset, bytes: u64) {
        let mut state = head.state.write();
        let snapshots = self.snapshots.lock();
        let held =
            if snapshots.holds_nothing(head.id()) { 0 } else { state.record.held.saturating_sub(bytes) };
        state.changed |= state.record.held != held;
        state.record.held = held;
    }

    /// Whether more will be freed of what remains.
    pub(crate) fn has_remains(&self) -> bool {
        self.snapshots.lock().remains.values().any(|one| !one.is_stuck)
    }

    /// Trees of which the remains are still to be freed.
    pub fn remaining(&self) -> usize {
        self.snapshots.lock().remains.len()
    }
}
