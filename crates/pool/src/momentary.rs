//! Snapshots of a moment: for whoever has to look at a dataset as it is now, and goes on looking while it changes.
//!
//! Each is a snapshot with a name that nobody can give, nor is shown. It goes with whoever looks. *Crash:* it stays; as
//! one that could not be destroyed, it goes with what else is freed: [`Pool::destroy_step`].

use crate::pool::Pool;
use crate::snapshot::SnapshotView;
use crate::snapshots::MOMENTARY;
use larder_format::DatasetId;
use larder_store::{PoolError, Result};
use std::sync::Arc;

/// Why a dataset can be neither rolled back nor destroyed meanwhile.
const IN_COMPARISON: &str = "somebody compares a snapshot with what is there now";

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
        // One that cannot be destroyed now is left, and found.
        let _ = self.pool.destroy_snapshot(dataset, &self.name);
    }
}

impl Pool {
    /// Takes a snapshot of a moment; see [`Pool::snapshot`].
    ///
    /// # Errors
    /// As [`Pool::snapshot`].
    pub fn momentary(self: &Arc<Self>, dataset: DatasetId) -> Result<Momentary> {
        // One that nobody looks into yet is not taken for one that was left.
        let _nobody_cleans_up = self.taking_moment.lock();
        let name = format!("{MOMENTARY}{:016x}", self.shared.store.world.entropy.next_u64());
        self.snapshot(dataset, &name)?;
        let mut taken = Momentary { pool: Arc::clone(self), dataset, name, view: None };
        taken.view = Some(self.snapshot_view(dataset, &taken.name)?);
        Ok(taken)
    }

    /// Destroys those that were left by a crash, or by somebody who could not; one that somebody looks into stays.
    /// True when one was destroyed.
    ///
    /// # Errors
    /// As [`Pool::destroy_snapshot`].
    pub(crate) fn destroy_momentary(&self) -> Result<bool> {
        if self.snapshots.lock().momentary(None).is_empty() {
            return Ok(false);
        }
        let Some(_nobody_takes_one) = self.taking_moment.try_lock() else { return Ok(false) };
        let left = {
            let snapshots = self.snapshots.lock();
            let left = snapshots.momentary(None).into_iter().find(|(_, is_left)| *is_left);
            left.map(|(record, _)| (record.dataset, record.name.clone()))
        };
        left.map_or(Ok(false), |(dataset, name)| self.destroy_snapshot(dataset, &name).map(|()| true))
    }

    /// Snapshots of a moment that there are.
    #[doc(hidden)]
    pub fn moments(&self) -> usize {
        self.snapshots.lock().momentary(None).len()
    }

    /// Refuses when somebody looks into a dataset as it was a moment ago.
    pub(crate) fn check_no_moment(&self, dataset: DatasetId) -> Result<()> {
        while self.destroy_momentary()? {}
        match self.snapshots.lock().momentary(Some(dataset)).is_empty() {
            true => Ok(()),
            false => Err(PoolError::Busy(IN_COMPARISON.into())),
        }
    }
}
