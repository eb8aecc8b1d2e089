//! Quotas and reservations: what a dataset may take, and what is kept for it.
//!
//! The terms are those of zfsprops(7). Every dataset has an account: `own` is what its records take and
//! what was claimed for data that waits in memory; `used` is its own (or its `refreservation`, if that is
//! more) and what its children are charged; a child is charged its `used` (or its `reservation`). A
//! `refquota` bounds `own`, a `quota` bounds `used`.
//!
//! **A change climbs.** Adding to a dataset adds to `used` of each account on the way up, less what a
//! reservation on the way had kept for it. Each step is one atomic addition, whose old and new value
//! tell what goes on upwards; the steps of one account telescope, whatever their order, so nobody waits
//! for anybody. The tree itself (accounts, parents, limits) is behind a lock that is held shared by those
//! who climb and taken alone by those who make, rename, limit or destroy datasets; these count anew.
//! Nothing of other modules is taken under the lock.
//!
//! **Claims.** A write claims what its records may take before they are stored, and is refused when a
//! quota would be passed; what is stored is posted without a question, and the claim given back. So a
//! flush, a commit or a replay never meets a quota. A claim is by the plain length of each dirty record, up
//! to the end of what was written; what it can miss is the rest of a record that was longer and now
//! compresses worse. So a quota is passed by at most one record for each that is dirty in part.
//!
//! **Reservations.** What reservations keep and nobody has used yet is `reserved`. Free space less what is
//! promised to others is what a dataset can write.
//!
//! Nothing of this is on disk but the limits, as properties, and each dataset's `referenced`: accounts are
//! opened from committed state.

use crate::own::OwnProperties;
use crate::property::{LIMIT_MAX, format_size};
use larder_format::DatasetId;
use larder_store::stripe;
use larder_store::{PoolError, Result};
use larder_sync::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Quotas and reservations of a dataset, bytes; 0 stands for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Quota of it and its descendants.
    pub quota: u64,
    /// Quota of it alone.
    pub refquota: u64,
    /// Reservation for it and its descendants.
    pub reservation: u64,
    /// Reservation for it alone.
    pub refreservation: u64,
}

/// Space of a dataset and its descendants, broken down; bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// All of it.
    pub used: u64,
    /// Its own records.
    pub dataset: u64,
    /// Taken or reserved by its children.
    pub children: u64,
    /// Reserved by its refreservation beyond its records.
    pub refreservation: u64,
}

impl Limits {
    /// The properties that set them. A quota comes before what it bounds.
    pub const NAMES: [&str; 4] = ["quota", "refquota", "reservation", "refreservation"];

    /// The limits among a dataset's own properties.
    pub(crate) fn of(own: &OwnProperties) -> Self {
        let mut limits = Self::default();
        for name in Self::NAMES {
            let value = own.get(name).and_then(|(value, _)| value.parse().ok());
            *limits.field(name) = value.unwrap_or(0).min(LIMIT_MAX);
        }
        limits
    }

    fn field(&mut self, name: &str) -> &mut u64 {
        match name {
            "quota" => &mut self.quota,
            "refquota" => &mut self.refquota,
            "reservation" => &mut self.reservation,
            "refreservation" => &mut self.refreservation,
            _ => unreachable!("{name} is not a limit"),
        }
    }
}

/// Whether a property of this name is a limit.
pub(crate) fn is_limit(name: &str) -> bool {
    Limits::NAMES.contains(&name)
}

/// A limit's exact form as a number.
pub(crate) fn parse_limit(name: &str, exact: &str) -> Result<u64> {
    exact.parse().map_err(|_| PoolError::Invalid(format!("{name}={exact} is not a number of bytes")))
}

/// Most space that a record of `len` plain bytes takes, bytes, before replication.
pub fn record_claim(len: u32) -> u64 {
    if len == 0 { 0 } else { u64::from(stripe::footprint_of_record(len)) }
}

#[derive(Debug)]
pub(crate) struct Account {
    /// None for the root dataset.
    parent: Option<DatasetId>,
    limits: Limits,
    /// Bytes of a record; never 0, for what fits is counted in records.
    record_size: u32,
    own: AtomicI64,
    claimed: AtomicI64,
    used: AtomicI64,
}

impl Account {
    /// The account of a dataset that has `own` bytes.
    pub(crate) fn new(parent: Option<DatasetId>, limits: Limits, record_size: u32, own: u64) -> Self {
        assert!(record_size > 0, "records have a size");
        let own = AtomicI64::new(own as i64);
        Self { parent, limits, record_size, own, claimed: AtomicI64::new(0), used: AtomicI64::new(0) }
    }
}

type AccountMap = BTreeMap<DatasetId, Account>;

/// The accounts of a pool's datasets.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    by_dataset: RwLock<AccountMap>,
    reserved: AtomicI64,
    /// Record sizes of the datasets that have reservations.
    reserved_records: RwLock<BTreeSet<u32>>,
}

/// An amount, or what is kept for it if that is more.
fn kept(amount: i64, reservation: u64) -> i64 {
    amount.max(i64::try_from(reservation).unwrap_or(i64::MAX))
}

/// Adds, and gives the values before and after.
fn shift(counter: &AtomicI64, delta: i64) -> (i64, i64) {
    let before = counter.fetch_add(delta, Relaxed);
    (before, before.wrapping_add(delta))
}

fn passes(amount: i64, quota: u64) -> bool {
    quota > 0 && u64::try_from(amount).is_ok_and(|amount| amount > quota)
}

/// From a dataset up to the root.
fn upwards(accounts: &AccountMap, id: DatasetId) -> impl Iterator<Item = (DatasetId, &Account)> {
    let step = |id: DatasetId| accounts.get(&id).map(|account| (id, account));
    std::iter::successors(step(id), move |(_, account)| account.parent.and_then(step))
}

/// Shares of all datasets, given what is each one's own.
fn shares(accounts: &AccountMap, own: impl Fn(&Account) -> i64) -> BTreeMap<DatasetId, Share> {
    let mut order: Vec<_> = accounts.keys().map(|&id| (upwards(accounts, id).count(), id)).collect();
    order.sort_unstable();
    let mut shares: BTreeMap<_, Share> = accounts.keys().map(|&id| (id, Share::default())).collect();
    for (_, id) in order.into_iter().rev() {
        let account = &accounts[&id];
        let share = shares.get_mut(&id).expect("every account has a share");
        share.dataset = own(account).max(0) as u64;
        share.refreservation = account.limits.refreservation.saturating_sub(share.dataset);
        share.used = share.dataset.saturating_add(share.refreservation).saturating_add(share.children);
        let charge = share.used.max(account.limits.reservation);
        if let Some(above) = account.parent.and_then(|parent| shares.get_mut(&parent)) {
            above.children = above.children.saturating_add(charge);
        }
    }
    shares
}

impl Accounts {
    /// Opens the account of a dataset without limits that has nothing yet.
    pub(crate) fn open(&self, id: DatasetId, parent: Option<DatasetId>, record_size: u32) {
        let mut accounts = self.by_dataset.write();
        accounts.insert(id, Account::new(parent, Limits::default(), record_size, 0));
        self.count(&accounts);
    }

    /// Opens the accounts of all datasets of a pool.
    pub(crate) fn open_all(&self, all: impl Iterator<Item = (DatasetId, Account)>) {
        // Before the lock: they look into datasets, whose changes post to accounts.
        let all: Vec<_> = all.collect();
        let mut accounts = self.by_dataset.write();
        accounts.extend(all);
        self.count(&accounts);
    }

    /// Closes an account: what it had is free.
    pub(crate) fn close(&self, id: DatasetId) {
        let mut accounts = self.by_dataset.write();
        accounts.remove(&id);
        self.count(&accounts);
    }

    /// Counts anew what follows from limits, parents and what every dataset has of its own.
    fn count(&self, accounts: &AccountMap) {
        let mut reserved = 0i64;
        for (id, share) in shares(accounts, |account| account.own.load(Relaxed)) {
            let account = &accounts[&id];
            let used = share.used as i64;
            account.used.store(used, Relaxed);
            let unused = kept(used, account.limits.reservation).wrapping_sub(used);
            reserved = reserved.wrapping_add(share.refreservation as i64).wrapping_add(unused);
        }
        self.reserved.store(reserved, Relaxed);
        let reserving = accounts
            .values()
            .filter(|Account { limits, .. }| limits.reservation > 0 || limits.refreservation > 0);
        *self.reserved_records.write() = reserving.map(|account| account.record_size).collect();
    }

    /// Datasets' records are of these sizes now, bytes.
    pub(crate) fn resize_records(&self, sizes: impl Iterator<Item = (DatasetId, u32)>) {
        let sizes: Vec<_> = sizes.collect();
        let mut accounts = self.by_dataset.write();
        for (id, size) in sizes {
            if let Some(account) = accounts.get_mut(&id) {
                account.record_size = size;
            }
        }
        self.count(&accounts);
    }

    /// Adds to what a dataset has of its own; gives the dataset whose limit is passed now, if one is.
    fn add(&self, accounts: &AccountMap, id: DatasetId, delta: i64) -> Option<DatasetId> {
        let account = accounts.get(&id)?;
        let (before, after) = shift(&account.own, delta);
        let mut over = (delta > 0 && passes(after, account.limits.refquota)).then_some(id);
        let keep = account.limits.refreservation;
        let mut up = kept(after, keep).wrapping_sub(kept(before, keep));
        let mut reserved = up.wrapping_sub(delta);
        for (id, account) in upwards(accounts, id) {
            if up == 0 {
                break;
            }
            let (before, after) = shift(&account.used, up);
            if up > 0 && passes(after, account.limits.quota) {
                over = over.or(Some(id));
            }
            let keep = account.limits.reservation;
            let charged = kept(after, keep).wrapping_sub(kept(before, keep));
            reserved = reserved.wrapping_add(charged).wrapping_sub(up);
            up = charged;
        }
        if reserved != 0 {
            self.reserved.fetch_add(reserved, Relaxed);
        }
        over
    }

    /// Changes a dataset's own space, whatever its limits are.
    pub(crate) fn post(&self, id: DatasetId, delta: i64) {
        if delta != 0 {
            self.add(&self.by_dataset.read(), id, delta);
        }
    }

    /// Adds to what a dataset has of its own, and to what of it is claimed; refuses when a quota would be passed.
    pub(crate) fn claim(&self, id: DatasetId, bytes: u64) -> Result<()> {
        let accounts = self.by_dataset.read();
        let Some(account) = accounts.get(&id) else { return Ok(()) };
        if let Some(over) = self.add(&accounts, id, bytes as i64) {
            self.add(&accounts, id, -(bytes as i64));
            return Err(PoolError::Quota(over));
        }
        account.claimed.fetch_add(bytes as i64, Relaxed);
        Ok(())
    }

    /// Changes what is claimed, whatever the limits are.
    pub(crate) fn adjust_claim(&self, id: DatasetId, delta: i64) {
        if delta == 0 {
            return;
        }
        let accounts = self.by_dataset.read();
        if let Some(account) = accounts.get(&id) {
            account.claimed.fetch_add(delta, Relaxed);
            self.add(&accounts, id, delta);
        }
    }

    /// Datasets with claims under the highest limit that bounds a dataset.
    pub(crate) fn claimants(&self, id: DatasetId) -> BTreeSet<DatasetId> {
        let accounts = self.by_dataset.read();
        let limited = |(at, account): &(DatasetId, &Account)| {
            account.limits.quota > 0 || (*at == id && account.limits.refquota > 0)
        };
        let Some((top, _)) = upwards(&accounts, id).filter(limited).last() else { return BTreeSet::new() };
        let claims = accounts.iter().filter(|(_, account)| account.claimed.load(Relaxed) > 0);
        claims
            .map(|(&id, _)| id)
            .filter(|&id| upwards(&accounts, id).any(|(above, _)| above == top))
            .collect()
    }

    /// Reserved and unused bytes: of a dataset, and of others.
    pub(crate) fn reservations(&self, id: DatasetId) -> (u64, u64) {
        let reserved = self.reserved.load(Relaxed);
        if reserved == 0 {
            return (0, 0);
        }
        let accounts = self.by_dataset.read();
        let unused = |amount: &AtomicI64, reservation| {
            let amount = amount.load(Relaxed);
            kept(amount, reservation).wrapping_sub(amount)
        };
        let own = accounts.get(&id).map_or(0, |account| unused(&account.own, account.limits.refreservation));
        let above =
            upwards(&accounts, id).map(|(_, account)| unused(&account.used, account.limits.reservation));
        let mine = above.fold(own, i64::wrapping_add);
        (mine.max(0) as u64, reserved.wrapping_sub(mine).max(0) as u64)
    }

    /// Bytes that are reserved and that nobody has used yet.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed).max(0) as u64
    }

    /// Record sizes of the datasets that have reservations.
    pub(crate) fn reserved_records(&self) -> BTreeSet<u32> {
        self.reserved_records.read().clone()
    }

    /// Bytes of a dataset's own, claims included.
    pub(crate) fn own(&self, id: DatasetId) -> u64 {
        let own = self.by_dataset.read().get(&id).map_or(0, |account| account.own.load(Relaxed));
        own.max(0) as u64
    }

    /// Space of a dataset and its descendants, without claims.
    pub(crate) fn share(&self, id: DatasetId) -> Share {
        let stored = |account: &Account| account.own.load(Relaxed) - account.claimed.load(Relaxed);
        shares(&self.by_dataset.read(), stored).get(&id).copied().unwrap_or_default()
    }

    /// Bytes of the pool's `free` ones that a dataset and its descendants could write, but for what its
    /// refreservation keeps.
    fn room(&self, accounts: &AccountMap, id: DatasetId, free: u64) -> i64 {
        let mut path: Vec<_> = upwards(accounts, id).collect();
        path.reverse();
        let mut room = (free as i64).wrapping_sub(self.reserved.load(Relaxed));
        for (_, Account { limits, used, .. }) in path {
            let used = used.load(Relaxed);
            room = room.wrapping_add(kept(used, limits.reservation).wrapping_sub(used));
            if limits.quota > 0 {
                room = room.min((limits.quota as i64).saturating_sub(used));
            }
        }
        room
    }

    /// Bytes of the pool's `free` ones that can be written to a dataset.
    pub(crate) fn available(&self, id: DatasetId, free: u64) -> u64 {
        let accounts = self.by_dataset.read();
        let Some(Account { limits, own, .. }) = accounts.get(&id) else { return 0 };
        let own = own.load(Relaxed);
        let keeps = kept(own, limits.refreservation).wrapping_sub(own);
        let mut room = self.room(&accounts, id, free).wrapping_add(keeps);
        if limits.refquota > 0 {
            room = room.min((limits.refquota as i64).saturating_sub(own));
        }
        room.max(0) as u64
    }

    /// Sets a limit, unless what is used or free says that it cannot hold.
    pub(crate) fn set(&self, id: DatasetId, name: &str, value: u64, free: u64) -> Result<()> {
        let mut accounts = self.by_dataset.write();
        let Some(account) = accounts.get(&id) else {
            return Err(PoolError::NotFound(format!("dataset {id}")));
        };
        let limits = account.limits;
        let (own, used) = (account.own.load(Relaxed), account.used.load(Relaxed));
        let size = |amount: i64| format_size(amount.max(0) as u64);
        let refuse = |why: String| Err(PoolError::Invalid(format!("{name}={} is {why}", format_size(value))));
        let (least, most, quota) = match name {
            "quota" => (kept(used, limits.reservation), i64::MAX, 0),
            "refquota" => (kept(own, limits.refreservation), i64::MAX, 0),
            "reservation" => {
                let above = match account.parent {
                    Some(parent) => self.room(&accounts, parent, free),
                    None => (free as i64).wrapping_sub(self.reserved.load(Relaxed)),
                };
                (0, kept(used, limits.reservation).saturating_add(above.max(0)), limits.quota)
            }
            _ => {
                let room = self.room(&accounts, id, free).max(0);
                (0, kept(own, limits.refreservation).saturating_add(room), limits.refquota)
            }
        };
        if value > 0 {
            if value < least.max(0) as u64 {
                return refuse(format!("less than the {} that are used or reserved", size(least)));
            }
            if quota > 0 && value > quota {
                return refuse(format!("more than the quota of {}", format_size(quota)));
            }
            if value > most.max(0) as u64 {
                return refuse(format!("more than the {} that are available", size(most)));
            }
        }
        let account = accounts.get_mut(&id).expect("it was just found");
        *account.limits.field(name) = value;
        self.count(&accounts);
        Ok(())
    }

    /// Puts a dataset under another parent, unless that passes a quota or promises what is not free.
    pub(crate) fn transfer(&self, id: DatasetId, parent: DatasetId, free: u64) -> Result<()> {
        let mut accounts = self.by_dataset.write();
        let Some(account) = accounts.get_mut(&id) else { return Ok(()) };
        let before = account.parent.replace(parent);
        self.admit(&accounts, free).inspect_err(|_| {
            accounts.get_mut(&id).expect("it was just moved").parent = before;
            self.count(&accounts);
        })
    }

    /// Opens the account of a dataset that comes back with all that it has, unless that passes a quota above it or
    /// promises what is not free.
    pub(crate) fn restore(&self, id: DatasetId, account: Account, free: u64) -> Result<()> {
        let mut accounts = self.by_dataset.write();
        // It has what it had: only those above get more.
        account.used.store(i64::MAX, Relaxed);
        accounts.insert(id, account);
        self.admit(&accounts, free).inspect_err(|_| {
            accounts.remove(&id);
            self.count(&accounts);
        })
    }

    /// Counts anew, and refuses what passes a quota or promises more than is free, and did not before.
    fn admit(&self, accounts: &AccountMap, free: u64) -> Result<()> {
        let figures = |accounts: &AccountMap| {
            let all = accounts.iter().map(|(&id, account)| (id, account.used.load(Relaxed)));
            all.collect::<BTreeMap<_, _>>()
        };
        let (old, reserved) = (figures(accounts), self.reserved.load(Relaxed));
        self.count(accounts);
        let over = accounts.iter().find(|(id, account)| {
            let now = account.used.load(Relaxed);
            now > old[id] && passes(now, account.limits.quota)
        });
        if let Some((_, account)) = over {
            let quota = format_size(account.limits.quota);
            let found = format_size(account.used.load(Relaxed) as u64);
            let why = format!("the quota of {quota} there would be passed: {found} would be used");
            return Err(PoolError::Invalid(why));
        }
        let now = self.reserved.load(Relaxed);
        if now > reserved && now > free as i64 {
            return Err(PoolError::Invalid(format!(
                "reservations of {} are more than the {} that are free",
                format_size(now as u64),
                format_size(free)
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
