//! Operations: what is done under one is in one commit, whole.

use crate::shared::Shared;
use larder_store::{Watch, Watermark};
use larder_sync::{RwLockReadGuard, RwLockWriteGuard};

/// Guard of the gate, shared or exclusive.
pub(crate) enum Gate<'a> {
    Shared { _guard: Option<RwLockReadGuard<'a, ()>> },
    Exclusive { _guard: &'a RwLockWriteGuard<'a, ()> },
}

/// A modifying operation under way: everything done under it is in the same commit. Never nest two.
pub struct Op<'a> {
    shared: &'a Shared,
    mark: Watermark,
    // Dropped before the gate is left.
    _watch: Watch<'a>,
    _gate: Gate<'a>,
}

impl<'a> Op<'a> {
    /// The gate is passed; it may take space down to `mark`.
    pub(crate) fn new(shared: &'a Shared, mark: Watermark, what: &'static str, gate: Gate<'a>) -> Self {
        Self { shared, mark, _watch: shared.store.watch(what), _gate: gate }
    }
    /// The shared parts of the pool, through which it changes datasets.
    pub(crate) fn shared(&self) -> &'a Shared {
        self.shared
    }
    /// Down to where it may take space.
    pub fn watermark(&self) -> Watermark {
        self.mark
    }
}
