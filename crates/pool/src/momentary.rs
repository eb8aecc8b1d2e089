//! Snapshots of a moment: for whoever has to look at a dataset as it is now, and goes on looking while it changes.
//!
//! Each is a snapshot with a name that nobody can give, nor is shown. It goes with whoever looks. *Crash:* it stays,
//! and goes with the next import, or the next look.

use crate::pool::Pool;
use crate::snapshot::SnapshotView;
use larder_format::DatasetId;
use larder_format::tables::SnapshotRecord;
use larder_store::Result;
use std::sync::Arc;

/// Names of people's snapshots do not begin with a space.
const PREFIX: &str = " momentary ";

/// Whether a snapshot of this name is one of a moment, which nobody is shown.
pub fn is_momentary(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// A dataset as it is now.
pub struct Momentary {
    pool: Arc<Pool>,
    dataset: DatasetId,
    name: String,
    view: Option<SnapshotView>,
}

impl Momentary {
    /// The look into it.
    pub fn view(&self) -> &SnapshotView {
        self.view.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Momentary {
    fn drop(&mut self) {
        let high = self.view.take().map(|view| view.record().high);
        // It may be another dataset's by now: see [`crate::clones`].
        let now = high.and_then(|high| self.pool.snapshot_view_of(self.dataset, high));
        let dataset = now.map_or(self.dataset, |now| now.record().dataset);
        // One that cannot be destroyed now goes with the next look, or the next import.
        let _ = self.pool.destroy_snapshot(dataset, &self.name);
    }
}

impl Pool {
    /// Takes a snapshot of a moment; see [`Pool::snapshot`].
    ///
    /// # Errors
    /// As [`Pool::snapshot`].
    pub fn momentary(self: &Arc<Self>, dataset: DatasetId) -> Result<Momentary> {
        self.destroy_momentary(dataset);
        let name = format!("{PREFIX}{:016x}", self.shared.store.world.entropy.next_u64());
        self.snapshot(dataset, &name)?;
        let mut taken = Momentary { pool: Arc::clone(self), dataset, name, view: None };
        taken.view = Some(self.snapshot_view(dataset, &taken.name)?);
        Ok(taken)
    }

    /// Destroys those that a crash left; one that somebody looks into stays.
    pub fn destroy_momentary(&self, dataset: DatasetId) {
        let left = self.snapshots(dataset).into_iter().filter(|one| is_momentary(&one.name));
        left.for_each(|one| drop(self.destroy_snapshot(dataset, &one.name)));
    }

    /// The snapshots of a dataset that people are shown, oldest first.
    pub fn shown_snapshots(&self, dataset: DatasetId) -> Vec<SnapshotRecord> {
        let mut all = self.snapshots(dataset);
        all.retain(|one| !is_momentary(&one.name));
        all
    }
}
