//! Making operations durable by the intent log; see [`crate::intent_log`].

use crate::intent_log::{LargeSync, Logged};
use crate::pool::Pool;
use larder_format::segment::DESCRIPTOR_LEN;
use larder_format::{CommitId, DatasetId, SegmentId};
use larder_store::Result;
use larder_sync::RwLockReadGuard;

/// Attempts of an fsync to go by the log, while others remove things.
const LOG_ROUNDS: usize = 4;

impl Pool {
    /// Where stripes of the log end in a segment of it; none when it is not one that is used. Whoever appends holds the
    /// lock: what is below is complete, whatever its commit.
    pub fn log_end_in(&self, segment: SegmentId) -> Option<u32> {
        let intent = self.shared.intent.lock();
        let at = intent.segments.iter().position(|(id, _)| *id == segment)?;
        Some(if at == 0 { intent.offset } else { DESCRIPTOR_LEN })
    }

    /// Makes every operation noted so far ([`crate::Update::log`]) durable. Data that is
    /// logged this way must be stored by the front end at the next commit (`FrontEnd::flush_logged`).
    /// Falls back to a commit when the log is full. Must not be called while an [`crate::Op`] is held.
    ///
    /// # Errors
    /// When the pool is suspended, or gets so.
    pub fn log_sync(&self) -> Result<()> {
        self.shared.store.check_writable()?;
        self.fence.look_after_a_pause()?;
        let target = self.shared.intent.notes.lock().last();
        let mut has_waited = false;
        for _ in 0..LOG_ROUNDS {
            let goes_on = match self.shared.intent.log_through(target)? {
                Logged::All => return Ok(()),
                Logged::Uncovered => self.cover_removals()?,
                Logged::Full => false,
            };
            if !goes_on {
                if has_waited {
                    break;
                }
                // The commit under way may name more segments of the log, or be the one that is needed.
                self.await_commit();
                has_waited = true;
            }
        }
        self.commit_through(target)
    }

    /// Leave for an fsync to note more than the log takes among data, so many bytes with what operations add; until it
    /// is logged. None where the log has no devices of its own, or others have it.
    pub fn admit_large_sync(&self, bytes: u64) -> Option<LargeSync<'_>> {
        self.shared.intent.admit_large(bytes)
    }

    /// Notes data written before a removal as well, so that no crash loses both; false when that takes a commit.
    fn cover_removals(&self) -> Result<bool> {
        let through = self.shared.intent.notes.lock().last();
        let front = self.front_end();
        if let Some(front) = front
            && !front.note_dirty()?
        {
            return Ok(false);
        }
        Ok(self.shared.intent.cover(through))
    }

    /// Keeps commits that need it from beginning while something is removed. Not with an [`crate::Op`] held; entered
    /// before one.
    pub fn removing(&self) -> RwLockReadGuard<'_, ()> {
        self.shared.intent.removing()
    }

    /// Waits for the commit under way, if there is one.
    pub fn await_commit(&self) {
        drop(self.commit_lock.lock());
    }

    /// Data became part of the trees, for the commit that is open, and is not in the log. With an [`crate::Op`] held.
    pub fn note_unlogged(&self) -> CommitId {
        self.shared.intent.note_unlogged()
    }

    /// Bytes of operations that wait for an fsync or a commit.
    pub fn noted_bytes(&self) -> usize {
        self.shared.intent.notes.lock().bytes()
    }

    /// Operations found in the log at import, in order; to be replayed once, before anything else. Until
    /// [`Pool::replayed`] says that they are done nothing can be committed.
    pub fn take_replay(&self) -> Vec<(DatasetId, Vec<u8>)> {
        self.shared.intent.take_replay()
    }

    /// Why an import for reading only could not read the log, or its rest: what it held is not shown.
    pub fn log_left(&self) -> Option<String> {
        self.shared.intent.left()
    }

    /// All that the log held is done again, in the trees or as dirty data of a front end that stores it.
    pub fn replayed(&self) {
        self.shared.intent.replayed();
    }

    /// Whether the log holds operations that are still to be done again.
    pub fn is_replaying(&self) -> bool {
        self.shared.intent.is_replaying()
    }
}
