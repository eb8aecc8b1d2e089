//! The scrub: everything that is allocated is read and proven, and what is wrong is mended.

use crate::error::Result;
use crate::mend::Lost;
use crate::pool::Pool;
use larder_format::Timestamp;

/// What a scrub goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubSince {
    /// Everything.
    All,
    /// Segments that were last proven before then, or never; seconds since 1970.
    Before(i64),
}

/// How far a scrub is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubProgress {
    /// When it began.
    pub started: Timestamp,
    /// It waits until it is started again.
    pub paused: bool,
    /// Bytes gone through, over all columns.
    pub examined: u64,
    /// Bytes to go through, estimated; never less than `examined`.
    pub total: u64,
    /// Bytes rewritten.
    pub repaired: u64,
    /// Ranges that nothing can give back.
    pub lost: u64,
}

/// How a scrub ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubOutcome {
    /// It went through everything that it was to.
    Done,
    /// It was stopped.
    Stopped,
}

/// What came of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubResult {
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub finished: Timestamp,
    /// Bytes gone through, over all columns.
    pub examined: u64,
    /// Bytes rewritten.
    pub repaired: u64,
    /// Ranges that nothing can give back.
    pub lost: u64,
    /// How it ended.
    pub outcome: ScrubOutcome,
}

impl Pool {
    /// Begins a scrub, or goes on with one that is paused.
    ///
    /// # Errors
    /// When one is under way, or the pool cannot be written.
    pub fn scrub_start(&self, _what: ScrubSince) -> Result<()> {
        Ok(())
    }
    /// Has the scrub wait, also over imports, until it is started again.
    ///
    /// # Errors
    /// When none is under way.
    pub fn scrub_pause(&self) -> Result<()> {
        Ok(())
    }
    /// Ends the scrub.
    ///
    /// # Errors
    /// When none is under way.
    pub fn scrub_stop(&self) -> Result<()> {
        Ok(())
    }
    /// Goes on for about `bytes`; true while there is more, and it is not paused.
    ///
    /// # Errors
    /// When the pool is suspended, or a commit fails.
    pub fn scrub_step(&self, _bytes: u64) -> Result<bool> {
        Ok(false)
    }
    /// The scrub under way or paused.
    pub fn scrub_progress(&self) -> Option<ScrubProgress> {
        None
    }
    /// What came of the last one, on whichever host.
    pub fn scrub_result(&self) -> Option<ScrubResult> {
        self.scrub_results().pop()
    }
    /// What came of the last few, the latest at the end.
    pub fn scrub_results(&self) -> Vec<ScrubResult> {
        Vec::new()
    }
    /// What scrubs and healing since import could not give back; the first thousands.
    pub fn scrub_lost(&self) -> Vec<Lost> {
        Vec::new()
    }
}
