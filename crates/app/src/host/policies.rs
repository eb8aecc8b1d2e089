//! Snapshots by policy: taking those that are due, destroying those that are too many.
//!
//! Which these are is said by [`crate::policy`]; here it is done, by the maintainer now and then ([`Rounds`]) and when
//! somebody asks. All snapshots of a pool that are due at a moment are of one commit. Destroying goes one by one: one
//! that somebody holds, has mounted or looks into stays until another time, and keeps no other. All of it happens under
//! the lock of the mounts, under which names stay; the maintainer does not wait for that.
//!
//! Nothing has to be remembered: what is due follows from the snapshots that there are. So after a crash between taking
//! and destroying the next look goes on.

use super::mounts::{Mounts, Table, id_of};
use crate::api::name::MAX_NAME;
use crate::api::policy::{Kept, Ran};
use crate::api::{ApiError, Result};
use crate::policy::{self, FORMAT, Fate, Format, MARK, Period, Policy, Snapshot};
use crate::replicate::{self, REPLICATED};
use larder_files::{FsError, Mount};
use larder_format::DatasetId;
use larder_format::tables::SnapshotRecord;
use larder_pool::{Class, Event, MarkedSnapshot, Pool, PoolError};
use larder_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// Interval of looks at policies: what they are, and whether what was in use still is. One is also taken when another
/// quarter of an hour has begun.
const LOOK: Duration = Duration::from_secs(30);
/// The same, after something failed.
const AFTER_FAILURE: Duration = Duration::from_secs(300);
/// Time in which people can object when more snapshots would go than new ones push out.
const GRACE: Duration = Duration::from_secs(600);
/// Snapshots that a look destroys; the next one is soon.
const DESTROYED_AT_MOST: usize = 100;

/// Parts of a pool that snapshots are taken and destroyed with.
pub struct Policies {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Its files.
    pub mount: Arc<Mount>,
    /// Where they can be reached.
    pub mounts: Arc<Mutex<Mounts>>,
    /// The same for whoever only looks.
    pub table: Arc<Table>,
}

/// The policy that applies to a dataset.
pub fn policy_of(pool: &Pool, dataset: DatasetId) -> Policy {
    let keep = |period: Period| pool.effective(dataset, period.property())?.value.parse().ok();
    Period::ALL.into_iter().filter_map(|period| Some((period, keep(period)?))).collect()
}

/// The form of the names of a dataset's snapshots.
pub fn format_of(pool: &Pool, dataset: DatasetId) -> Format {
    let value = pool.effective(dataset, FORMAT);
    value.map_or_else(Format::default, |effective| Format::of_value(&effective.value))
}

/// A dataset's snapshots that were taken by policy, in the order in which they were taken.
pub fn snapshots_of(pool: &Pool, dataset: DatasetId) -> (Vec<MarkedSnapshot>, Vec<Snapshot>) {
    let marked = pool.marked_snapshots(dataset, MARK);
    let last = pool.newest_snapshot(dataset).map(|newest| newest.high);
    let behind = behind(pool, dataset).map(|(through, _)| through);
    let one = |of: &MarkedSnapshot| Snapshot {
        created: of.record.created.secs,
        periods: policy::marked(&of.value),
        is_held: of.held_by.is_some(),
        is_unreplicated: behind.is_some_and(|through| of.record.commit.get() > through),
        is_last: last == Some(of.record.high),
    };
    let snapshots = marked.iter().map(one).collect();
    (marked, snapshots)
}

/// The target that lacks most of a dataset's snapshots, behind the commit through which it has them. What a parent
/// replicates says nothing of its children.
fn behind(pool: &Pool, dataset: DatasetId) -> Option<(u64, String)> {
    let own = pool.dataset(dataset)?.own_properties();
    let told = own.local().iter().filter_map(|(name, value)| {
        Some((replicate::replicated_through(value), replicate::target_of(name.strip_prefix(REPLICATED)?)))
    });
    told.min()
}

/// Reason why one stays.
enum Stays {
    /// Somebody uses it.
    Used(String),
    /// It could not be destroyed.
    Failed(ApiError),
}

/// Whether those of a dataset may be destroyed that go, by the snapshots that there are and their fates.
type May<'a> = &'a mut dyn FnMut(DatasetId, &[Snapshot], &[Fate]) -> bool;

impl Policies {
    fn now(&self) -> i64 {
        self.pool.store().clock().now().secs
    }

    fn full(&self, dataset: DatasetId, name: &str) -> String {
        format!("{}@{name}", self.pool.full_name(dataset))
    }

    /// Names of the snapshots of a dataset that are due, each with its periods.
    fn due(&self, dataset: DatasetId, now: i64, ran: &mut Ran) -> Vec<(String, Vec<Period>)> {
        let policy = policy_of(&self.pool, dataset);
        if policy.is_empty() {
            return Vec::new();
        }
        let due = policy::due(&policy, now, &snapshots_of(&self.pool, dataset).1);
        let mut names = format_of(&self.pool, dataset).names(now, &due);
        // The next second has another name.
        names.retain(|(name, _)| self.pool.snapshot_named(dataset, name).is_err());
        let full = self.pool.full_name(dataset);
        let fits = |name: &str| full.len() + 1 + name.len() <= MAX_NAME;
        if names.iter().any(|(name, _)| !fits(name)) {
            let message = format!(
                "cannot take snapshots of '{full}': their names would have more than {MAX_NAME} bytes"
            );
            ran.failed
                .push(ApiError::usage(message).hint("larder fs rename gives the dataset a shorter name"));
            names.retain(|(name, _)| fits(name));
        }
        names
    }

    /// Takes all snapshots of these datasets that are due, all at one moment.
    fn take(&self, mounts: &Mounts, datasets: &[DatasetId], ran: &mut Ran) {
        let (now, mut sets) = (self.now(), BTreeMap::<Vec<Period>, Vec<(DatasetId, String)>>::new());
        for &dataset in datasets {
            for (name, periods) in self.due(dataset, now, ran) {
                sets.entry(periods).or_default().push((dataset, name));
            }
        }
        if sets.is_empty() {
            return;
        }
        let marked = |periods: &[Period]| BTreeMap::from([(MARK.to_owned(), policy::mark(periods))]);
        let sets = sets.into_iter().map(|(periods, all)| (all, marked(&periods))).collect();
        match self.pool.snapshot_sets(sets) {
            Ok(records) => {
                records.iter().for_each(|record| mounts.tell_of_snapshot(record.dataset, &record.name));
                ran.taken.extend(records.iter().map(|record| self.full(record.dataset, &record.name)));
            }
            Err(error) => ran.failed.push(self.failed("cannot take snapshots by policy", error)),
        }
    }

    fn failed(&self, doing: &str, error: PoolError) -> ApiError {
        ApiError::from(error).within(doing).of_pool(&self.pool.name())
    }

    /// Destroys snapshots of these datasets that are too many, so many at most, where `may` says so of what goes;
    /// whether there are more.
    fn prune(
        &self,
        mounts: &Mounts,
        datasets: &[DatasetId],
        at_most: usize,
        may: May<'_>,
        ran: &mut Ran,
    ) -> bool {
        let (now, mut more) = (self.now(), false);
        for &dataset in datasets {
            let policy = policy_of(&self.pool, dataset);
            if policy.is_empty() {
                continue;
            }
            let (marked, snapshots) = snapshots_of(&self.pool, dataset);
            let fates = policy::fates(&policy, now, &snapshots);
            if !may(dataset, &snapshots, &fates) {
                continue;
            }
            for (one, fate) in marked.iter().zip(fates) {
                if fate == Fate::Goes && ran.destroyed.len() >= at_most {
                    more = true;
                    break;
                }
                let name = self.full(dataset, &one.record.name);
                match (fate, fate == Fate::Goes && self.pool.store().suspended().is_none()) {
                    (Fate::Goes, true) => match self.destroy(mounts, &one.record) {
                        Ok(()) => ran.destroyed.push(name),
                        Err(Stays::Used(why)) => ran.kept.push(Kept { name, why }),
                        Err(Stays::Failed(error)) => ran.failed.push(error),
                    },
                    _ => ran.kept.extend(self.kept(one, name, fate)),
                }
            }
        }
        if !ran.destroyed.is_empty()
            && let Err(error) = self.pool.commit()
        {
            ran.failed.push(self.failed("cannot destroy snapshots by policy", error));
        }
        more
    }

    /// Destroys a snapshot that nobody uses.
    fn destroy(&self, mounts: &Mounts, record: &SnapshotRecord) -> Result<(), Stays> {
        let doing = || format!("cannot destroy snapshot {}", self.full(record.dataset, &record.name));
        if let Some(path) = self.table.path_of_snapshot(id_of(record)) {
            return Err(Stays::Used(format!("it is mounted: larder fs unmount {}", path.display())));
        }
        match self.mount.let_go_of_snapshot(record.dataset, record.high) {
            Ok(()) => {}
            Err(FsError::Busy) => return Err(Stays::Used("it is in use".to_owned())),
            Err(error) => return Err(Stays::Failed(ApiError::from(error).within(doing()))),
        }
        match self.pool.destroy_snapshots(&[(record.dataset, record.name.clone())]) {
            Ok(()) => {
                mounts.tell_of_snapshot(record.dataset, &record.name);
                Ok(())
            }
            Err(PoolError::Busy(why)) => Err(Stays::Used(why)),
            Err(error) => Err(Stays::Failed(self.failed(&doing(), error))),
        }
    }

    /// Takes the snapshots of these datasets that are due, and destroys those that are too many.
    pub fn run(&self, mounts: &Mounts, datasets: &[DatasetId]) -> Ran {
        self.run_some(mounts, datasets, usize::MAX, &mut |_, _, _| true).0
    }

    fn run_some(&self, mounts: &Mounts, datasets: &[DatasetId], at_most: usize, may: May<'_>) -> (Ran, bool) {
        let mut ran = Ran::default();
        self.take(mounts, datasets, &mut ran);
        // Also where none could be taken: then nothing new pushes out what is old.
        let more = self.prune(mounts, datasets, at_most, may, &mut ran);
        (ran, more)
    }

    /// The same, as far as it can be told without doing it.
    pub fn rehearse(&self, datasets: &[DatasetId]) -> Ran {
        let (now, mut ran) = (self.now(), Ran::default());
        for &dataset in datasets {
            let (marked, mut snapshots) = snapshots_of(&self.pool, dataset);
            let due = self.due(dataset, now, &mut ran);
            for (name, periods) in due {
                ran.taken.push(self.full(dataset, &name));
                snapshots.iter_mut().for_each(|snapshot| snapshot.is_last = false);
                let (is_held, is_unreplicated) = (false, false);
                snapshots.push(Snapshot { created: now, periods, is_held, is_unreplicated, is_last: true });
            }
            let fates = policy::fates(&policy_of(&self.pool, dataset), now, &snapshots);
            for (one, fate) in marked.iter().zip(fates) {
                let name = self.full(dataset, &one.record.name);
                match fate {
                    Fate::Goes => ran.destroyed.push(name),
                    _ => ran.kept.extend(self.kept(one, name, fate)),
                }
            }
        }
        ran
    }

    /// One that is too many and stays all the same.
    fn kept(&self, one: &MarkedSnapshot, name: String, fate: Fate) -> Option<Kept> {
        let why = match fate {
            Fate::Held => format!("it is held by {}", one.held_by.as_deref().unwrap_or("somebody")),
            Fate::Unreplicated => {
                let target = behind(&self.pool, one.record.dataset).map(|(_, target)| target);
                format!("{} lacks it: larder fs replicate", target.as_deref().unwrap_or("a target"))
            }
            Fate::Last => "it is the last one of its dataset".to_owned(),
            Fate::Wanted | Fate::Goes => return None,
        };
        Some(Kept { name, why })
    }
}

/// Policies of a pool as its maintainer keeps them, round by round.
pub struct Rounds {
    policies: Policies,
    /// When the next look is due, and the quarter of an hour of the last one.
    next: Option<(Duration, i64)>,
    /// Failures that were told, and are not over.
    told: BTreeSet<String>,
    /// Datasets of which more snapshots would go than new ones push out, and since when.
    surprising: BTreeMap<DatasetId, Duration>,
}

impl Rounds {
    /// Nothing was looked at yet.
    pub fn new(policies: Policies) -> Self {
        Self { policies, next: None, told: BTreeSet::new(), surprising: BTreeMap::new() }
    }

    /// Does what is to be done, if it is time to look.
    pub fn turn(&mut self) {
        let Self { policies, next, told, surprising } = self;
        let pool = &policies.pool;
        let (now, wall) = (pool.store().clock().monotonic(), policies.now());
        let quarter = Period::Frequently.around(wall).map_or(0, |(begin, _)| begin);
        if next.is_some_and(|(next, last)| now < next && last == quarter) {
            return;
        }
        // Somebody changes names or mounts: at the next round.
        let Some(mounts) = policies.mounts.try_lock() else { return };
        let datasets: Vec<_> =
            pool.datasets().iter().filter(|one| !one.is_staging()).map(|one| one.id()).collect();
        let mut new = Vec::new();
        let (ran, more) =
            policies.run_some(&mounts, &datasets, DESTROYED_AT_MOST, &mut |dataset, all, fates| {
                if !policy::is_surprising(all, fates) {
                    surprising.remove(&dataset);
                    return true;
                }
                let since = *surprising.entry(dataset).or_insert_with(|| {
                    new.push((dataset, fates.iter().filter(|fate| **fate == Fate::Goes).count()));
                    now
                });
                now.saturating_sub(since) >= GRACE
            });
        drop(mounts);
        surprising.retain(|dataset, _| datasets.contains(dataset));
        for (dataset, count) in new {
            let name = pool.full_name(dataset);
            let text = format!(
                "{count} snapshots of {name} are more than its policy keeps: they go in {} minutes; larder policy run \
                 -n {name} names them",
                GRACE.as_secs() / 60
            );
            warn!("pool {}: {text}", pool.name());
            pool.store().event(Event::new(Class::SnapshotPolicy).text(text));
        }
        let pause = match (more && !ran.destroyed.is_empty(), ran.failed.is_empty()) {
            (true, _) => Duration::ZERO,
            (false, true) => LOOK,
            (false, false) => AFTER_FAILURE,
        };
        *next = Some((now + pause, quarter));
        if !ran.taken.is_empty() || !ran.destroyed.is_empty() {
            let (taken, destroyed) = (ran.taken.len(), ran.destroyed.len());
            info!("pool {}: by policy: {taken} snapshots taken, {destroyed} destroyed", pool.name());
        }
        ran.destroyed.iter().for_each(|name| info!("destroyed by policy: {name}"));
        told.retain(|text| ran.failed.iter().any(|error| error.message == *text));
        for error in ran.failed {
            if told.insert(error.message.clone()) {
                warn!("pool {}: {error}", pool.name());
                pool.store().event(Event::new(Class::SnapshotPolicy).text(error.message));
            }
        }
    }
}

#[cfg(test)]
mod tests;
