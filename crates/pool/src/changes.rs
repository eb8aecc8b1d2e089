//! Changes from one snapshot of a dataset to another, or to a clone: their trees are compared, and nodes that both have
//! are not read ([`larder_sorted::tree::Difference`]).
//!
//! Block ids alone do not tell: a copy by reference, or a record that was found again by its content, puts blocks into
//! the newer tree that are older than the snapshot before.

use crate::shared::Shared;
use crate::snapshot::SnapshotView;
use larder_sorted::tree::{Difference, Differs};
use larder_store::{DatasetNodes, Result};
use std::sync::Arc;

/// A comparison under way. The snapshots cannot be destroyed meanwhile.
pub struct Changes<'a> {
    shared: Arc<Shared>,
    difference: Difference,
    _of: (Option<&'a SnapshotView>, &'a SnapshotView),
}

impl<'a> Changes<'a> {
    /// From `old`, or from nothing, to `new`.
    pub fn between(old: Option<&'a SnapshotView>, new: &'a SnapshotView) -> Self {
        let difference = Difference::new(old.and_then(|old| old.record().root), new.record().root);
        Self { shared: Arc::clone(new.shared()), difference, _of: (old, new) }
    }

    /// As [`Difference::step`].
    ///
    /// # Errors
    /// When a node cannot be read.
    pub fn step(&mut self, max: usize, visit: impl FnMut(Differs<'_>)) -> Result<bool> {
        self.difference.step(&DatasetNodes(&self.shared.store), max, visit)
    }
}
