//! Read-repair: stripes in which reads met a wrong column, and segments that the cleaner cannot empty.
//!
//! Reads leave stripes with the store's suspects; [`ReadRepair::step`] reconstructs them when there is time.

use crate::reconstruct::{self, Reconstruction, Targets};
use larder_pool::Lost;
use larder_pool::Pool;
use larder_store::Store;
use larder_store::{PoolError, Result};
use larder_sync::Mutex;
use std::sync::Arc;

/// Places that one step looks at.
const PLACES_PER_STEP: usize = 64;
/// Bytes of a segment that is reconstructed whole, a step.
const STEP: u64 = 16 << 20;
/// Lost ranges that are remembered.
const LOST: usize = 4096;

/// See the module's text.
pub struct ReadRepair {
    pool: Arc<Pool>,
    store: Arc<Store>,
    /// A segment that is reconstructed whole. Held for a step, outermost of all locks.
    whole: Mutex<Option<Reconstruction>>,
    lost: Mutex<Vec<Lost>>,
    /// Ranges in which nothing was lost after all, and bytes that were stored anew for that.
    healed: Mutex<(Vec<Lost>, u64)>,
    /// Such ranges, for as long as the pool is imported: stripes are final, so nothing will be lost there. Who reads a
    /// lost block beside them meets them again.
    settled: Mutex<Vec<Lost>>,
}

impl ReadRepair {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        let store = Arc::clone(pool.store());
        let (whole, lost, healed, settled) = Default::default();
        Self { pool: Arc::clone(pool), store, whole, lost, healed, settled }
    }

    /// Whether more was found wrong than could be remembered: a scrub would find it again.
    pub fn advises_scrub(&self) -> bool {
        self.store.suspects.overran()
    }

    /// Whether [`ReadRepair::step`] has something to do.
    pub fn is_waiting(&self) -> bool {
        self.store.suspects.is_waiting()
    }

    /// Reconstructs stripes that reads found wrong; how many. None when there are none, or when they are in no durable
    /// commit yet: then they wait.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn step(&self) -> Result<u64> {
        match self.store.check_writable() {
            Err(PoolError::ReadOnly) => return Ok(0),
            checked => checked?,
        }
        let mut whole = self.whole.lock();
        let mut places = self.store.suspects.take(PLACES_PER_STEP);
        let mut stripes = 0;
        while let Some(((id, offset), mut counted)) = places.pop_first() {
            // Gone, with what was in it.
            let Some(segment) = self.store.readable.get(id) else { continue };
            let Some(stripe) = reconstruct::find_stripe(&self.pool, &segment, offset) else { continue };
            let end = stripe.offset + stripe.height;
            // Whatever else was met in the same stripe.
            while let Some(entry) = places.first_entry().filter(|next| *next.key() < (id, end)) {
                counted |= entry.remove();
            }
            if stripe.commit > self.store.durable_commit() {
                self.store.suspects.note(id, offset, counted);
                continue;
            }
            let mut reconstruction = Reconstruction::of_stripes(segment, stripe.offset..end, counted);
            while !reconstruction.step(&self.pool, u64::MAX)? {}
            stripes += reconstruction.tally().stripes;
            // The walk for names of known losses would read them, and have them reconstructed again, without an end.
            let new = self.remember_lost(&self.unsettled(&reconstruction.tally().lost));
            self.pool.damage().note_lost(&new);
        }
        if stripes == 0 {
            stripes = self.repair_whole(&mut whole)?;
        }
        Ok(stripes)
    }

    /// Goes on with a segment that is reconstructed whole.
    fn repair_whole(&self, whole: &mut Option<Reconstruction>) -> Result<u64> {
        if whole.is_none() {
            let Some(id) = self.store.suspects.take_segment() else { return Ok(0) };
            let core = self.store.core.lock();
            let entry = core.entries.get(&id);
            *whole =
                entry.map(|entry| Reconstruction::new(entry.segment.clone(), entry.height, Targets::All));
        }
        let Some(reconstruction) = whole else { return Ok(0) };
        let before = reconstruction.tally().stripes;
        let done = reconstruction.step(&self.pool, STEP)?;
        let stripes = reconstruction.tally().stripes - before;
        if done {
            self.was_reconstructed(reconstruction);
            *whole = None;
        }
        Ok(stripes)
    }

    /// A segment was reconstructed from end to end: what is lost of it is remembered; when nothing is, the cleaner may
    /// have it.
    pub(crate) fn was_reconstructed(&self, reconstruction: &Reconstruction) {
        self.keep_lost(&reconstruction.tally().lost);
        if reconstruction.tally().lost.is_empty() {
            self.store.core.lock().entries.change(reconstruction.segment_id(), |entry| entry.damaged = false);
        }
    }

    /// Remembers what a scan could not give back, and has it named.
    pub(crate) fn keep_lost(&self, lost: &[Lost]) {
        self.remember_lost(lost);
        self.pool.damage().note_lost(lost);
    }

    /// Those in which something may be lost that is not known.
    fn unsettled(&self, lost: &[Lost]) -> Vec<Lost> {
        let settled = self.settled.lock();
        lost.iter().filter(|one| !settled.contains(one)).cloned().collect()
    }

    /// Those that were not known and found room.
    fn remember_lost(&self, lost: &[Lost]) -> Vec<Lost> {
        let mut all = self.lost.lock();
        let mut new = Vec::new();
        for one in lost {
            if all.len() < LOST && !all.contains(one) {
                all.push(one.clone());
                new.push(one.clone());
            }
        }
        new
    }

    /// The blocks that lay in these ranges are at other places; so many bytes were stored anew for that.
    pub(crate) fn healed(&self, is_healed: impl Fn(&Lost) -> bool, bytes: u64) {
        let gone: Vec<Lost> = self.lost.lock().extract_if(.., |lost| is_healed(lost)).collect();
        let mut settled = self.settled.lock();
        let new: Vec<Lost> = gone.iter().filter(|one| !settled.contains(one)).cloned().collect();
        let room = LOST.saturating_sub(settled.len());
        settled.extend(new.into_iter().take(room));
        drop(settled);
        let mut healed = self.healed.lock();
        // A scrub asks for those that it met; where none does, no more than these are kept.
        let room = LOST.saturating_sub(healed.0.len());
        healed.0.extend(gone.into_iter().take(room));
        healed.1 += bytes;
    }

    /// Takes the ranges that were healed since it was last asked, and the bytes.
    pub(crate) fn take_healed(&self) -> (Vec<Lost>, u64) {
        std::mem::take(&mut self.healed.lock())
    }

    /// Ranges that scrubs and read repairs since import could not restore; the first 4,096 ranges.
    pub fn lost(&self) -> Vec<Lost> {
        self.lost.lock().clone()
    }
}
