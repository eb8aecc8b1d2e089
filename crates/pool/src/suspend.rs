//! A pool that cannot go on writing: nothing more is taken or acknowledged, and what can be read is read.
//!
//! Most suspensions are *lasting*: memory and disk have parted, and an import from the last commit and the log is the
//! way on. Two are not.
//!
//! When devices refuse writes and that is all, everything that was accepted is still in memory: dirty data and nodes,
//! and the stripes that found too few devices, which stay in the queue of stripes (`larder_store::write`). A member
//! that was faulted and is *unharmed* lacks nothing else: no flush of it failed, and nothing that counts as stored went
//! by without it. So when the cause is gone (a full file system has room, a cable is back in), [`Pool::resume`] uses
//! such members again, writes those stripes once more, finishes the commit that they refused, and commits. Log records
//! that were lost have been acknowledged to nobody.
//!
//! When a commit cannot read a node of the tables, what it has not put there yet is still noted, and the next commit
//! finds it.

use crate::pool::Pool;
use larder_store::{Refusal, Result};

impl Pool {
    /// Of a suspended pool: the bytes that were accepted and that no commit holds, at most. None when there are none.
    pub fn at_stake(&self) -> Option<u64> {
        self.shared.store.suspended()?;
        let stripes = self.shared.store.stripes_in_flight();
        let undone = self.is_changed() || self.sealing.has_kept() || stripes > 0;
        undone.then(|| {
            self.shared.store.dirty.get() + self.noted_bytes() as u64 + self.shared.store.unsealed() + stripes
        })
    }

    /// Goes on after devices refused writes: all that was accepted is in memory, and what they refused is written once
    /// more. What else was out of use stays so.
    ///
    /// # Errors
    /// When memory and disk have parted, or the devices still refuse: the pool stays suspended.
    pub fn resume(&self) -> Result<()> {
        if self.shared.store.suspended().is_none() {
            return Ok(());
        }
        {
            let _nobody_commits = self.commit_turn();
            let _nobody_enters = self.gate.write();
            let nobody_syncs = self.shared.intent.lock();
            let Some(suspension) = self.shared.store.suspension() else { return Ok(()) };
            if suspension.lasting || !self.shared.store.has_enough_unharmed() {
                return Err(Refusal::CannotComplete(suspension.reason).into());
            }
            self.shared.store.write_stripes_again()?;
            // An fsync finds the pool suspended; the commit that was kept may leave the log.
            drop(nobody_syncs);
            self.finish_kept()?;
            self.shared.store.resumed();
        }
        self.commit().map(drop)
    }
}
