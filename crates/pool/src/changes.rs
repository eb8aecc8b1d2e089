//! Changes from one snapshot of a dataset to another, or to a clone: their trees are compared, and nodes that both have
//! are not read ([`larder_sorted::tree::Difference`]).
//!
//! Block ids alone do not tell: a copy by reference, or a record that was found again by its content, puts blocks into
//! the newer tree that are older than the snapshot before.

use crate::shared::Shared;
use crate::snapshot::SnapshotView;
use larder_format::BlockId;
use larder_sorted::tree::{Difference, Differs, Since, Told};
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

/// Changes from a snapshot that is gone, of which the high id is known ([`larder_sorted::tree::Since`]), to a later one
/// of its line ([`crate::Pool::came_of`]).
pub struct ChangesSince<'a> {
    shared: Arc<Shared>,
    since: Since,
    _of: &'a SnapshotView,
}

impl<'a> ChangesSince<'a> {
    /// From the one with this high id to `new`.
    pub fn new(high: BlockId, new: &'a SnapshotView) -> Self {
        Self { shared: Arc::clone(new.shared()), since: Since::new(new.record().root, high), _of: new }
    }

    /// As [`Since::step`].
    ///
    /// # Errors
    /// When a node cannot be read.
    pub fn step(&mut self, max: usize, visit: impl FnMut(Told<'_>)) -> Result<bool> {
        self.since.step(&DatasetNodes(&self.shared.store), max, visit)
    }
}
