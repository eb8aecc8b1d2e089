//! The turn to commit.

use crate::pool::Pool;
use larder_store::Watch;
use larder_sync::MutexGuard;

/// The turn to commit, or to do what no commit may come between.
pub(crate) struct CommitTurn<'a> {
    _watch: Watch<'a>,
    _lock: MutexGuard<'a, ()>,
}

impl Pool {
    /// Waits for the turn to commit.
    pub(crate) fn commit_turn(&self) -> CommitTurn<'_> {
        let lock = self.commit_lock.lock();
        CommitTurn { _watch: self.store.watch("a commit, or what holds commits back,"), _lock: lock }
    }
}
