//! The sweep: what the block map knows, in order of id, held against what the walk found.

use super::spill::{Counted, Merged, Spill, Tag};
use larder_format::BlockId;
use larder_format::run::Marks;
use larder_pool::Pool;
use larder_sorted::PageWriter;
use larder_sorted::map::Entry;
use larder_store::RunIo;
use larder_store::{PoolError, Result};
use std::ops::{ControlFlow, RangeInclusive};

/// Verdict on a block that the map knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    /// Trees refer to it, these so often; whether somebody else came to need it meanwhile.
    Live(&'a [Counted], bool),
    /// No tree does, and the free queue will come to it.
    Queued,
    /// No tree does, but somebody else came to need it meanwhile.
    Spared,
    /// Nothing needs it.
    Dead,
}

/// The sweep's state.
pub(crate) struct Sweep {
    live: Merged,
    /// Blocks touched since the pin; `None` while more are added.
    retained: Option<Merged>,
    /// It went on since that was last added to.
    went_on: bool,
    next: BlockId,
    horizon: BlockId,
}

impl Sweep {
    /// A sweep of these blocks.
    pub(crate) fn new(live: Merged, retained: Merged, ids: RangeInclusive<BlockId>) -> Self {
        let (next, horizon) = ids.into_inner();
        Self { live, retained: Some(retained), went_on: false, next, horizon }
    }

    /// Where it is: lower ids are judged already.
    pub(crate) fn next(&self) -> BlockId {
        self.next
    }

    /// Gives the set of retained blocks out, to be added to; none when it did not go on since it got it back, or it
    /// would never end beside steady traffic.
    pub(crate) fn lend_retained(&mut self) -> Option<Merged> {
        if self.went_on { self.retained.take() } else { None }
    }

    /// Whether that set is out.
    pub(crate) fn waits_for_retained(&self) -> bool {
        self.retained.is_none()
    }

    /// Gets it back.
    pub(crate) fn give_retained(&mut self, retained: Merged) {
        (self.retained, self.went_on) = (Some(retained), false);
    }

    /// Judges at most `entries` blocks; what is live and has no entry goes to `suspects`. Whether there is more.
    /// Nobody may move or free blocks meanwhile.
    pub(crate) fn step<W: PageWriter<Error = PoolError>>(
        &mut self,
        pool: &Pool,
        io: &mut W,
        entries: usize,
        suspects: &mut Spill,
        mut judge: impl FnMut(BlockId, Entry, Verdict<'_>) -> Result<()>,
    ) -> Result<bool> {
        let mut left = entries;
        let mut references = Vec::new();
        self.went_on = true;
        let window = pool.store().map.lock().window(self.next, entries);
        let next = window.visit(&RunIo::new(pool.store()), |id, entry| {
            if id > self.horizon {
                return Ok(ControlFlow::Break(()));
            }
            self.suspect(id.get(), &mut { usize::MAX }, suspects, io)?;
            let verdict = if self.live.peek() == Some(id.get()) {
                references.clear();
                while self.live.peek() == Some(id.get()) {
                    references.extend(self.live.next(io)?);
                }
                Verdict::Live(&references, self.is_retained(id, io)?)
            } else if entry.marks.contains(Marks::DEAD) && !entry.marks.contains(Marks::SHARED) {
                Verdict::Queued
            } else if self.is_retained(id, io)? {
                Verdict::Spared
            } else {
                Verdict::Dead
            };
            judge(id, entry, verdict)?;
            left -= 1;
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let horizon = self.horizon.next();
        self.next = next.unwrap_or(horizon).min(horizon);
        if self.next < horizon {
            return Ok(true);
        }
        self.suspect(u64::MAX, &mut left, suspects, io)?;
        Ok(self.live.peek().is_some())
    }

    fn is_retained<W: PageWriter<Error = PoolError>>(&mut self, id: BlockId, io: &W) -> Result<bool> {
        self.retained.as_mut().map_or(Ok(false), |retained| retained.contains(id.get(), io))
    }

    /// Live ids below `id`, at most `most`, have no entry.
    fn suspect<W: PageWriter<Error = PoolError>>(
        &mut self,
        id: u64,
        most: &mut usize,
        suspects: &mut Spill,
        io: &mut W,
    ) -> Result<()> {
        while *most > 0 && self.live.peek().is_some_and(|lowest| lowest < id) {
            if let Some(counted) = self.live.next(io)? {
                if suspects.is_full(1) {
                    suspects.spill(io)?;
                }
                // It is one that is missing, whoever refers to it.
                suspects.push(BlockId::new(counted.id), Tag::NONE);
            }
            *most -= 1;
        }
        Ok(())
    }
}
