//! `policy show`, `policy run`.

use super::super::Host;
use super::super::live::Live;
use super::super::policies::{format_of, policy_of, snapshots_of};
use super::{family, found, source};
use crate::api::name::pool_of;
use crate::api::policy::{DatasetPolicy, PeriodPolicy, Policies, Ran, Run, Show};
use crate::api::{Result, Source};
use crate::policy::{Period, is_due};
use larder_format::DatasetId;
use larder_pool::ROOT_DATASET;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names by pool; of all pools when none is given.
fn by_pool(host: &Host, names: &[String]) -> Result<Vec<(Arc<Live>, Vec<String>)>> {
    if names.is_empty() {
        return Ok(host.pools_named(&[])?.into_iter().map(|live| (live, Vec::new())).collect());
    }
    let mut pools = BTreeMap::<&str, (Arc<Live>, Vec<String>)>::new();
    for name in names {
        let (live, _) = host.dataset(name)?;
        pools.entry(pool_of(name)).or_insert_with(|| (live, Vec::new())).1.push(name.clone());
    }
    Ok(pools.into_values().collect())
}

/// The datasets of these names, parents first; all when none is given.
fn chosen(live: &Live, names: &[String], recursive: bool) -> Result<Vec<DatasetId>> {
    if names.is_empty() {
        return Ok(family(&live.pool, ROOT_DATASET).iter().map(|dataset| dataset.id()).collect());
    }
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    for name in names {
        let dataset = found(live, name)?;
        let more = if recursive { family(&live.pool, dataset.id()) } else { vec![dataset] };
        all.extend(more.iter().map(|dataset| dataset.id()).filter(|id| seen.insert(*id)));
    }
    Ok(all)
}

/// Policies, and what has become of them.
pub fn show(host: &Host, request: &Show) -> Result<Policies> {
    let mut datasets = Vec::new();
    for (live, names) in by_pool(host, &request.names)? {
        let all = chosen(&live, &names, request.recursive)?;
        let all = all.into_iter().map(|dataset| one(&live, dataset));
        let is_empty = |one: &PeriodPolicy| one.keep.is_none() && one.snapshots == 0;
        datasets.extend(all.filter(|one| !names.is_empty() || !one.periods.iter().all(is_empty)));
    }
    datasets.sort_by(|a: &DatasetPolicy, b| a.name.split('/').cmp(b.name.split('/')));
    Ok(Policies { datasets })
}

fn one(live: &Live, dataset: DatasetId) -> DatasetPolicy {
    let pool = &live.pool;
    let (now, (_, snapshots)) = (pool.store().clock().now().secs, snapshots_of(pool, dataset));
    let policy = policy_of(pool, dataset);
    let of = |period: Period| {
        let effective = pool.effective(dataset, period.property());
        let source = effective.map_or(Source::Default, |effective| source(pool, effective.source));
        let created: Vec<_> =
            snapshots.iter().filter(|one| one.periods.contains(&period)).map(|one| one.created).collect();
        let keep = policy.get(&period).copied();
        let due = keep.is_some_and(|keep| keep > 0) && is_due(period, now, created.iter().copied());
        let end = period.around(now).map(|(_, end)| end);
        let next = if due { Some(now) } else { end.filter(|_| keep.is_some_and(|keep| keep > 0)) };
        let (snapshots, newest) = (created.len() as u64, created.last().copied());
        PeriodPolicy { period, keep, source, snapshots, newest, next, due }
    };
    let format = format_of(pool, dataset);
    DatasetPolicy { name: pool.full_name(dataset), format, periods: Period::ALL.map(of).into() }
}

/// Takes what is due, and destroys what is too many.
pub fn run(host: &Host, request: &Run) -> Result<Ran> {
    let mut all = Ran::default();
    for (live, names) in by_pool(host, &request.names)? {
        let policies = live.policies();
        // Names change under this lock alone.
        let mounts = live.mounts.lock();
        let datasets = chosen(&live, &names, request.recursive)?;
        let ran = match request.dry_run {
            true => policies.rehearse(&datasets),
            false => policies.run(&mounts, &datasets),
        };
        all.taken.extend(ran.taken);
        all.destroyed.extend(ran.destroyed);
        all.kept.extend(ran.kept);
        all.failed.extend(ran.failed);
    }
    Ok(all)
}
