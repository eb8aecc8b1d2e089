//! Quotas and reservations: what a dataset may take, and what is kept for it. How they are counted: see
//! [`crate::accounts`].

use crate::accounts::Account;
pub use crate::accounts::{Limits, Share, record_claim};
use crate::dataset::{Dataset, Settings};
use crate::pool::Pool;
use crate::property::LIMIT_MAX;
use larder_format::DatasetId;
use larder_store::{PoolError, Result, Space, Watermark};
use std::collections::BTreeSet;

impl Pool {
    /// Claims `bytes` for data that will be stored in a dataset later; [`Pool::adjust_claim`] gives them
    /// back.
    ///
    /// # Errors
    /// [`PoolError::Quota`] when a quota would be passed. Storing what is dirty of the
    /// [`Pool::claimants`] may help: claims do not know of compression, nor of what is overwritten.
    pub fn claim(&self, dataset: DatasetId, bytes: u64) -> Result<()> {
        self.shared.accounts.claim(dataset, bytes)
    }

    /// Changes a claim from `before` to `now` bytes; 0 when it was stored or dropped.
    pub fn adjust_claim(&self, dataset: DatasetId, before: u64, now: u64) {
        self.shared.accounts.adjust_claim(dataset, now as i64 - before as i64);
    }

    /// Refuses what would take `bytes` more than the quotas of a dataset allow.
    ///
    /// # Errors
    /// [`PoolError::Quota`].
    pub fn check_quota(&self, dataset: DatasetId, bytes: u64) -> Result<()> {
        // A file may be asked to be so large that what it has and what it asks for are more than an i64 holds.
        let bytes = bytes.min(2 * LIMIT_MAX);
        self.shared.accounts.claim(dataset, bytes)?;
        self.shared.accounts.adjust_claim(dataset, -(bytes as i64));
        Ok(())
    }

    /// Datasets whose claims count against the quotas of a dataset.
    pub fn claimants(&self, dataset: DatasetId) -> BTreeSet<DatasetId> {
        self.shared.accounts.claimants(dataset)
    }

    /// As [`Pool::check_space`], for a dataset: what is reserved for others is not free. What only `replaces` may
    /// take the room that is kept for packing worse than AVAIL supposes, as what is promised may: it gives back as
    /// much.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`].
    pub fn check_room(&self, dataset: &Dataset, bytes: u64, replaces: impl Fn() -> bool) -> Result<()> {
        let (mine, others) = self.shared.accounts.reservations(dataset.id());
        let Settings { record_size, copies, .. } = dataset.settings();
        let bytes = bytes.saturating_mul(copies.into());
        let needed =
            bytes.saturating_add(others).saturating_add(self.reservation_overhead(others, record_size));
        if self.shared.store.has_plenty(needed, bytes, record_size) {
            return Ok(());
        }
        let kept = || self.shared.store.space_above(record_size, copies, Watermark::Reserved).available;
        match self.find_space(needed, record_size) {
            Err(PoolError::NoSpace) if bytes <= mine || replaces() => {
                // Dirty data counts in full until it is stored, and the data it replaces is dead only then.
                if needed > kept() && self.shared.store.dirty.needed() > 0 {
                    self.store_waiting()?;
                }
                if needed > kept() {
                    return Err(PoolError::NoSpace);
                }
            }
            found => found?,
        }
        self.make_space(bytes, record_size)
    }

    /// Bytes that `reserved` bytes take besides themselves, in records of `record_size` bytes, where the datasets they
    /// are promised to have records that pack worse.
    fn reservation_overhead(&self, reserved: u64, record_size: u32) -> u64 {
        if reserved == 0 {
            return 0;
        }
        let records = self.shared.accounts.reserved_records();
        let fits = |size: u32| self.shared.store.space(size).available;
        let worst = records.into_iter().filter(|&size| size != record_size).map(fits).min();
        let (here, worst) = (fits(record_size), worst.unwrap_or(u64::MAX).max(1));
        (u128::from(reserved) * u128::from(here.saturating_sub(worst)) / u128::from(worst)) as u64
    }

    /// Free space for records of `record_size` bytes, without that of the trash: it may be brought back.
    fn free(&self, record_size: u32) -> u64 {
        let reserved = self.shared.accounts.reserved();
        let available = self.shared.store.space(record_size).available;
        available.saturating_sub(self.reservation_overhead(reserved, record_size))
    }

    /// Space as it is for a dataset: what its records take (and what waits in memory), and what can be
    /// written to it. The size is both together, so that it is the quota's where a quota is what bounds it.
    pub fn space_of(&self, dataset: &Dataset) -> Space {
        // The trash goes before a writer is refused.
        let free = self.free(dataset.settings().record_size).saturating_add(self.trash_of_data());
        let available = self.shared.accounts.available(dataset.id(), free);
        let used = self.shared.accounts.own(dataset.id());
        Space { size: used + available, used, available }
    }

    /// Space of a dataset and its descendants, without dirty data.
    pub fn share(&self, dataset: DatasetId) -> Share {
        self.shared.accounts.share(dataset)
    }

    /// Sets one of [`Limits::NAMES`] of a dataset with records of `record_size` bytes; 0 takes it away.
    pub(crate) fn set_limit(
        &self,
        dataset: DatasetId,
        record_size: u32,
        name: &str,
        value: u64,
    ) -> Result<()> {
        self.shared.accounts.set(dataset, name, value, self.free(record_size))
    }

    /// A dataset's account goes to another parent.
    pub(crate) fn transfer(&self, dataset: &Dataset, parent: DatasetId) -> Result<()> {
        let free = self.free(dataset.settings().record_size);
        self.shared.accounts.transfer(dataset.id(), parent, free)
    }

    /// A dataset comes back below another one with all that it has.
    pub(crate) fn reopen_account(&self, dataset: &Dataset, parent: DatasetId) -> Result<()> {
        let record_size = dataset.settings().record_size;
        let limits = Limits::of(&dataset.own.read());
        let account = Account::new(Some(parent), limits, record_size, dataset.usage().own);
        self.shared.accounts.restore(dataset.id(), account, self.free(record_size))
    }

    /// Opens the accounts of all datasets.
    pub(crate) fn open_accounts(&self) {
        let datasets = self.datasets();
        self.shared.accounts.open_all(datasets.iter().map(|dataset| {
            let parent = Some(dataset.parent()).filter(|&parent| parent != dataset.id());
            let limits = Limits::of(&dataset.own.read());
            let record_size = dataset.settings().record_size;
            (dataset.id(), Account::new(parent, limits, record_size, dataset.usage().own))
        }));
    }
}
