//! Pinning the roots of a commit for a collection: see [`crate::pins`].

use crate::pins::{Pinned, PinnedTree};
use crate::pool::Pool;
use larder_format::{BlockId, CommitId, DatasetId};
use larder_sync::RwLockWriteGuard;
use std::sync::Arc;

impl Pool {
    /// Notes for a collection that was asked for what this commit's trees are. All of them are sealed, the gate is
    /// closed.
    pub(crate) fn pin_if_wanted(&self, nobody_enters: &RwLockWriteGuard<'_, ()>, commit: CommitId) {
        if self.shared.pins.take_wanted() {
            self.shared.pins.keep(self.pin(nobody_enters, commit));
        }
    }

    /// Pins what is committed now. Nobody may be inside.
    pub fn pin(&self, _nobody_enters: &RwLockWriteGuard<'_, ()>, commit: CommitId) -> Pinned {
        let (mut members, mut origins) = (Vec::new(), Vec::new());
        let remaining = self.remaining() as u64;
        // Remains of snapshots may be anything.
        let mut held = remaining;
        for dataset in self.trees() {
            let lineage = dataset.id();
            let of: Arc<str> = self.tree_name(&dataset).into();
            let state = dataset.state.read();
            let snapshots = self.lineage(lineage);
            let inherited_below = snapshots.origin.as_ref().map_or(BlockId::new(0), |of| of.high);
            let above = |id: &DatasetId| self.origin_key(*id).map(|(of, _)| of);
            let family = std::iter::successors(Some(lineage), above).last().unwrap_or(lineage);
            let (mut predecessor, mut protected_below) = snapshots
                .origin
                .map_or((None, BlockId::new(0)), |of| (of.root.map(|root| (root, of.high)), of.high));
            let origin = origins.len() as u32;
            origins.push(lineage);
            let mut add = |name, is_head, root, referenced, inherited, predecessor, protected_below| {
                let number = members.len() as u32;
                members.push(PinnedTree {
                    number,
                    lineage,
                    family,
                    inherited_below,
                    origin,
                    name,
                    is_head,
                    root,
                    referenced,
                    inherited,
                    predecessor,
                    protected_below,
                });
            };
            for snapshot in snapshots.taken {
                if let Some(root) = snapshot.root {
                    let name = format!("{of}@{}", snapshot.name).into();
                    add(name, false, root, snapshot.referenced, None, predecessor, protected_below);
                }
                predecessor = snapshot.root.map(|root| (root, snapshot.high));
                protected_below = snapshot.high;
            }
            held = held.saturating_add(state.record.held);
            if let Some(root) = state.tree.committed_root() {
                let inherited = state.record.origin.map(|_| state.record.inherited);
                add(of, true, root, state.record.referenced, inherited, predecessor, protected_below);
            }
        }
        let left = self.freeing().left_bytes();
        let records = self.commit_records();
        let (from, left_before) = self.shared.freeing.judged().unwrap_or((BlockId::new(0), left));
        let core = self.shared.store.core.lock();
        Pinned {
            commit,
            started: self.shared.store.world.clock.now(),
            members,
            origins,
            horizon: BlockId::new(core.next_block.get() - 1),
            from,
            left,
            left_before,
            held,
            has_remains: remaining > 0,
            blocks: core.entries.usages().map(|usage| usage.blocks).sum(),
            records,
        }
    }
}
