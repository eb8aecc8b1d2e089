//! Healing what reads met: rows with a column that was wrong, and segments that the cleaner cannot empty.
//!
//! Whoever has time ([`Pool::heal_step`]) has rows mended that reads left with the store's suspects.

use crate::mend::{self, Lost, Mend, Targets};
use crate::pool::Pool;
use larder_store::error::{PoolError, Result};
use larder_sync::Mutex;

/// Places that one step looks at.
const PLACES_PER_STEP: usize = 64;
/// Bytes of a segment that is mended whole, a step.
const STEP: u64 = 16 << 20;
/// Lost ranges that are remembered.
const LOST: usize = 4096;

/// The pool's place for what waits to be healed.
#[derive(Default)]
pub(crate) struct Healing {
    /// A segment that is mended whole. Held for a step, outermost of all locks.
    whole: Mutex<Option<Mend>>,
    lost: Mutex<Vec<Lost>>,
}

impl Pool {
    /// Whether more was found wrong than could be remembered: a scrub would find it again.
    pub fn advises_scrub(&self) -> bool {
        self.store.suspects.overran()
    }

    /// Whether [`Pool::heal_step`] has something to do.
    pub fn has_to_heal(&self) -> bool {
        self.store.suspects.is_waiting()
    }

    /// Mends rows that reads found wrong; how many. None when there are none, or when they are in no durable commit
    /// yet: then they wait.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn heal_step(&self) -> Result<u64> {
        match self.store.check_writable() {
            Err(PoolError::ReadOnly) => return Ok(0),
            checked => checked?,
        }
        let mut whole = self.healing.whole.lock();
        let mut places = self.store.suspects.take(PLACES_PER_STEP);
        let mut rows = 0;
        while let Some(((id, offset), mut counted)) = places.pop_first() {
            // Gone, with what was in it.
            let Some(segment) = self.store.readable.get(id) else { continue };
            let Some(row) = mend::find_row(self, &segment, offset) else { continue };
            let end = row.offset + row.height;
            // Whatever else was met in the same row.
            while let Some(entry) = places.first_entry().filter(|next| *next.key() < (id, end)) {
                counted |= entry.remove();
            }
            if row.commit > self.store.durable_commit() {
                self.store.suspects.note(id, offset, counted);
                continue;
            }
            let mut mend = Mend::of_rows(segment, row.offset..end, counted);
            while !mend.step(self, u64::MAX)? {}
            rows += mend.tally().rows;
            // Who looks for the names of what is known would read it, and have it mended again, without an end.
            let new = self.remember_lost(&mend.tally().lost);
            self.note_lost(&new);
        }
        if rows == 0 {
            rows = self.heal_whole(&mut whole)?;
        }
        Ok(rows)
    }

    /// Goes on with a segment that is mended whole.
    fn heal_whole(&self, whole: &mut Option<Mend>) -> Result<u64> {
        if whole.is_none() {
            let Some(id) = self.store.suspects.take_segment() else { return Ok(0) };
            let core = self.store.core.lock();
            let entry = core.entries.get(&id);
            *whole = entry.map(|entry| Mend::new(entry.segment.clone(), entry.height, Targets::All));
        }
        let Some(mend) = whole else { return Ok(0) };
        let before = mend.tally().rows;
        let done = mend.step(self, STEP)?;
        let rows = mend.tally().rows - before;
        if done {
            self.was_mended(mend);
            *whole = None;
        }
        Ok(rows)
    }

    /// A segment was mended from end to end: what is lost of it is remembered; when nothing is, the cleaner may have
    /// it.
    pub(crate) fn was_mended(&self, mend: &Mend) {
        self.keep_lost(&mend.tally().lost);
        if mend.tally().lost.is_empty() {
            self.store.core.lock().entries.change(mend.segment_id(), |entry| entry.damaged = false);
        }
    }

    /// Remembers what a scan could not give back, and has it named.
    pub(crate) fn keep_lost(&self, lost: &[Lost]) {
        self.remember_lost(lost);
        self.note_lost(lost);
    }

    /// Those that were not known and found room.
    fn remember_lost(&self, lost: &[Lost]) -> Vec<Lost> {
        let mut all = self.healing.lost.lock();
        let mut new = Vec::new();
        for one in lost {
            if all.len() < LOST && !all.contains(one) {
                all.push(one.clone());
                new.push(one.clone());
            }
        }
        new
    }

    /// What scrubs and healing since import could not give back; the first 4,096 ranges.
    pub fn scrub_lost(&self) -> Vec<Lost> {
        self.healing.lost.lock().clone()
    }
}
