//! Holders of segments that may rest in the middle of one between two steps.
//!
//! A segment that is held keeps its slots when it is freed. So commits, and searches for room, have the holders that
//! rest let go of it.

use larder_format::SegmentId;
use larder_sync::Mutex;
use std::sync::Weak;

/// Somebody who may rest in the middle of a segment between two steps.
pub trait Resting: Send + Sync {
    /// Lets go of segments that have been freed, unless a step is being taken.
    fn let_go(&self, is_freed: &dyn Fn(SegmentId) -> bool);
}

/// All of them.
#[derive(Default)]
pub(crate) struct AllResting(Mutex<Vec<Weak<dyn Resting>>>);

impl AllResting {
    /// One more.
    pub(crate) fn add(&self, resting: Weak<dyn Resting>) {
        let mut all = self.0.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(resting);
    }

    pub(crate) fn let_go(&self, is_freed: &dyn Fn(SegmentId) -> bool) {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|resting| resting.let_go(is_freed));
    }
}
