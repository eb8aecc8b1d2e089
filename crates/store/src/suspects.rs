//! Stripes in which reads met something wrong, and segments to be gone through, until somebody has time for them.
//!
//! A read that had to go to a replica or to parity has its answer at once, and leaves the place here. What waits is
//! bounded: when it is more, what is left out is the next scrub's, and [`Suspects::overran`] says so. All of it is in
//! memory: after a crash the next read, or the scrub, finds again what was not put right.

use larder_format::SegmentId;
use larder_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Places that wait at most.
const PLACES: usize = 4096;

/// Segments and offsets, each with a bit set of the columns whose errors have been counted.
pub type Places = BTreeMap<(SegmentId, u32), u64>;

/// Places and segments that wait.
#[derive(Default)]
pub struct Suspects {
    places: Mutex<Places>,
    segments: Mutex<BTreeSet<SegmentId>>,
    /// More was found than could be kept.
    overrun: AtomicBool,
}

impl Suspects {
    /// Has the stripe at `offset` of a segment looked at; errors of the columns `counted`, by bit, have been counted.
    pub fn note(&self, segment: SegmentId, offset: u32, counted: u64) {
        let mut places = self.places.lock();
        if places.len() >= PLACES && !places.contains_key(&(segment, offset)) {
            self.overrun.store(true, Ordering::Relaxed);
            return;
        }
        *places.entry((segment, offset)).or_default() |= counted;
    }

    /// Has a whole segment looked at.
    pub fn note_segment(&self, segment: SegmentId) {
        self.segments.lock().insert(segment);
    }

    /// Whether more was found wrong than could be remembered: a scrub would find it again.
    pub fn overran(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// A scrub went through everything.
    pub fn all_seen(&self) {
        self.overrun.store(false, Ordering::Relaxed);
    }

    /// Whether something waits.
    pub fn is_waiting(&self) -> bool {
        !self.places.lock().is_empty() || !self.segments.lock().is_empty()
    }

    /// Takes the first places, `most` at most, in their order.
    pub fn take(&self, most: usize) -> Places {
        let mut places = self.places.lock();
        let rest = places.keys().nth(most).copied();
        let rest = rest.map(|first| places.split_off(&first)).unwrap_or_default();
        std::mem::replace(&mut places, rest)
    }

    /// Takes a segment.
    pub fn take_segment(&self) -> Option<SegmentId> {
        self.segments.lock().pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_told_until_a_scrub_went_through_everything() {
        let suspects = Suspects::default();
        let note = |place: usize| suspects.note(SegmentId::new(1), 4096 * place as u32, 1);
        (0..PLACES).for_each(note);
        note(7);
        assert!(!suspects.overran(), "all of it is known");
        note(PLACES);
        assert!(suspects.overran());
        assert_eq!(suspects.take(usize::MAX).len(), PLACES);
        assert!(suspects.overran(), "taking them finds none of the others");
        suspects.all_seen();
        assert!(!suspects.overran());
    }
}
