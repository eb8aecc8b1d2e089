//! The boundary between two commits, at which it changes who is a member.
//!
//! Changes are made with the gate closed: stripes stamped with the commit before are not on a device that joins,
//! stripes stamped with the next are. The root of the commit at the boundary tells of the change, so that a crash
//! leaves either the one or the other.

use crate::pool::Pool;
use larder_format::{CommitId, DeviceIndex};
use larder_mutants::{Mutant, mutated};
use larder_store::member::Member;
use larder_store::{PoolError, Result};
use larder_sync::ReentrantMutexGuard;
use std::sync::Arc;

impl Pool {
    /// Makes the changes that wait for the boundary after `commit`. The gate is closed. Stripes and log records on
    /// their way are the members' as they were: whoever fails one must be known to have before it gets another place.
    /// Where too many have, nothing changes, and the commit fails.
    pub(crate) fn cross_boundary(&self, commit: CommitId) {
        let changes = std::mem::take(&mut *self.changes.waiting.lock());
        if changes.is_empty() {
            return;
        }
        let mut intent = self.shared.intent.lock();
        intent.changed = commit;
        if mutated(Mutant::InFlightForgotten) || self.shared.store.complete_all_stripes().is_ok() {
            // A column on its way to another slot is there, for those who are members now.
            let _no_column_moves = self.shared.store.hold_columns();
            changes.into_iter().for_each(|change| change(self, commit));
        }
    }

    /// Nobody else changes who is a member until this is dropped.
    pub fn change_turn(&self) -> ReentrantMutexGuard<'_, ()> {
        self.changes.turn.lock()
    }

    /// Has `change` made at the boundary after a commit, which is durable on return.
    ///
    /// # Errors
    /// When the commit fails; a change that no boundary has seen is not made later either.
    pub fn change_members(&self, change: impl FnOnce(&Pool, CommitId) + Send + 'static) -> Result<()> {
        let change = move |pool: &Pool, commit| {
            change(pool, commit);
            pool.apply_device_timeout();
        };
        let _mine = self.change_turn();
        // A column that moves off a dying disk takes a while: it is waited for while everybody else goes on.
        drop(self.shared.store.hold_columns());
        self.changes.waiting.lock().push(Box::new(change));
        let committed = self.commit();
        self.changes.waiting.lock().clear();
        committed.map(drop)
    }

    /// The member or spare `device`.
    pub fn known(&self, device: DeviceIndex) -> Result<Arc<Member>> {
        self.shared.store.members.find(device).ok_or_else(|| PoolError::NotFound(format!("device {device}")))
    }
}
