//! `fs destroy` of datasets, with their snapshots.

use super::super::Host;
use super::super::live::Live;
use super::super::mounts::Mounts;
use super::snapshots::{self, Going};
use super::trash::until;
use super::{family, found};
use crate::api::fs::{Destroy, Destroyed};
use crate::api::name::pool_of;
use crate::api::snapshots::{DestroySnapshots, spans};
use crate::api::{ApiError, ErrorKind, Result};
use larder_format::{DatasetId, Timestamp};
use larder_pool::{Dataset, PoolError, ROOT_DATASET};
use std::collections::BTreeSet;
use std::sync::Arc;

/// At most this many snapshots are named as a reason.
const NAMED: usize = 5;

/// Destroys a dataset, with all below it, its snapshots and their clones where asked for.
pub fn destroy(host: &Host, request: &Destroy) -> Result<Destroyed> {
    let doing = format!("cannot destroy '{}'", request.name);
    let (live, _) = host.dataset(&request.name)?;
    let destroy = || {
        let until = until(&live).filter(|_| !request.now);
        if request.dry_run {
            let told = told(&live, &going(&live, request)?, request.measure)?;
            return Ok(Destroyed { until: until.map(|until| until.secs), ..told });
        }
        // Names change under this lock alone.
        let mut mounts = live.mounts.lock();
        end(&live, &mut mounts, &going(&live, request)?, request.measure, until)
    };
    destroy().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.name)))
}

/// Destroys snapshots, after their clones where that is asked for.
pub fn destroy_snapshots(host: &Host, request: &DestroySnapshots) -> Result<Destroyed> {
    if !request.clones {
        return snapshots::destroy(host, request);
    }
    let (dataset, _) = spans(&request.name)?;
    let (live, _) = host.dataset(dataset)?;
    let destroyed = {
        let mut mounts = live.mounts.lock();
        let asked = snapshots::asked(&live, request)?;
        let clones = with_clones(&live, Vec::new(), &asked)?;
        if request.dry_run {
            let last = snapshots::told(&live, &asked, request.measure, &ids(&clones))?;
            return Ok(one_after(told(&live, &clones, request.measure)?, last));
        }
        end(&live, &mut mounts, &clones, request.measure, until(&live).filter(|_| !request.now))?
    };
    Ok(one_after(destroyed, snapshots::destroy(host, request)?))
}

/// The reply for two parts, one after the other.
fn one_after(first: Destroyed, then: Destroyed) -> Destroyed {
    Destroyed {
        destroyed: [first.destroyed, then.destroyed].concat(),
        reclaimed: first.reclaimed + then.reclaimed,
        kept: [first.kept, then.kept].concat(),
        until: first.until.or(then.until),
    }
}

fn ids(all: &[Member]) -> BTreeSet<DatasetId> {
    all.iter().map(|(dataset, _)| dataset.id()).collect()
}

/// A dataset and its snapshots.
type Member = (Arc<Dataset>, Going);

/// Adds the clones of snapshots, of those in `all` and of `more`, with all below them and their own clones. Whatever is
/// below something comes before it.
pub fn with_clones(live: &Live, mut all: Vec<Member>, more: &[Going]) -> Result<Vec<Member>> {
    let clones =
        |going: &Going| going.records.iter().flat_map(|one| live.pool.clones(one)).collect::<Vec<_>>();
    let mut next: Vec<_> = all.iter().map(|(_, own)| own).chain(more).flat_map(clones).collect();
    let mut seen = ids(&all);
    while let Some(clone) = next.pop() {
        for dataset in family(&live.pool, clone) {
            if dataset.id() == ROOT_DATASET {
                let name = live.pool.full_name(ROOT_DATASET);
                return Err(ApiError::usage(format!("a clone is the pool's own dataset, {name}"))
                    .hint(format!("larder fs promote {name} has it take the snapshots over")));
            }
            if seen.insert(dataset.id()) {
                let own = Going::all(live, dataset.id());
                next.extend(clones(&own));
                all.push((dataset, own));
            }
        }
    }
    let depth = |dataset: &Dataset| live.pool.full_name(dataset.id()).matches('/').count();
    // Clones are younger than what they were made of: where they go first, nothing is handed on for nothing.
    all.sort_by_cached_key(|(dataset, _)| std::cmp::Reverse((depth(dataset), dataset.id())));
    Ok(all)
}

/// The datasets that are to be destroyed, deepest first, and their snapshots.
fn going(live: &Live, request: &Destroy) -> Result<Vec<Member>> {
    if !request.name.contains('/') {
        return Err(ApiError::usage("it is the pool's own dataset")
            .hint(format!("larder pool destroy {} destroys the whole pool", request.name)));
    }
    let mut family = family(&live.pool, found(live, &request.name)?.id());
    if family.len() > 1 && !request.recursive {
        let below: Vec<_> = family[1..].iter().map(|below| live.pool.full_name(below.id())).collect();
        return Err(ApiError::new(ErrorKind::Busy, format!("it has children: {}", below.join(", ")))
            .hint(format!("larder fs destroy -r {} destroys them too", request.name)));
    }
    family.reverse();
    let with_snapshots = |dataset: Arc<Dataset>| {
        let snapshots = Going::all(live, dataset.id());
        (dataset, snapshots)
    };
    let going: Vec<_> = family.into_iter().map(with_snapshots).collect();
    if !request.recursive
        && let Some((_, snapshots)) = going.iter().find(|(_, snapshots)| !snapshots.records.is_empty())
    {
        let names = snapshots.full_names(live);
        let more = names.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        return Err(ApiError::new(ErrorKind::Busy, format!("it has snapshots: {named}{more}"))
            .hint(format!("larder fs destroy -r {} destroys them too", request.name)));
    }
    if request.clones { with_clones(live, going, &[]) } else { Ok(going) }
}

/// Destroys them. From the commit on the reaper goes on with it, after a crash as well.
pub fn end(
    live: &Live,
    mounts: &mut Mounts,
    going: &[Member],
    measure: bool,
    until: Option<Timestamp>,
) -> Result<Destroyed> {
    let told = Destroyed { until: until.map(|until| until.secs), ..told(live, going, measure)? };
    snapshots::check_not_held(live, going.iter().map(|(_, own)| own))?;
    let (mut shown, mut outcome) = (Vec::new(), Ok(()));
    for (dataset, _) in going {
        match mounts.unmount_snapshots_of(dataset.id()) {
            Ok(mut more) => shown.append(&mut more),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    let ids = going.iter().map(|(dataset, _)| dataset.id());
    let gone = outcome.and_then(|()| mounts.unmount_each(ids));
    let outcome = gone.and_then(|gone| {
        let outcome = match until {
            Some(until) => put_away(live, mounts, going, until),
            None => end_unmounted(live, mounts, going),
        };
        // Others that hung on them, and those that are still there.
        mounts.mount_again(&gone);
        outcome
    });
    mounts.mount_snapshots_again(shown);
    outcome.map(|()| told)
}

/// Puts them into the trash, with their snapshots: all of them, or none.
fn put_away(live: &Live, mounts: &mut Mounts, going: &[Member], until: Timestamp) -> Result<()> {
    snapshots::let_go(live, mounts, going.iter().map(|(_, own)| own))?;
    let mut away: Vec<(DatasetId, String)> = Vec::new();
    for (dataset, own) in going {
        let (id, name) = (dataset.id(), live.pool.full_name(dataset.id()));
        match live.pool.trash_dataset(id, until) {
            Ok(()) => away.push((id, name)),
            Err(error) => {
                // Parents went last.
                for (id, name) in away.into_iter().rev() {
                    live.pool.restore_dataset(id, &name)?;
                }
                // A crash must not find them in the trash, with a log that goes on.
                live.pool.commit()?;
                let names = own.full_names(live);
                return Err(match error {
                    PoolError::Busy(text) if names.iter().any(|name| snapshots::names_one(&text, name)) => {
                        snapshots::kept(&names, &text)
                    }
                    error => error.into(),
                });
            }
        }
    }
    live.pool.commit()?;
    Ok(())
}

fn end_unmounted(live: &Live, mounts: &mut Mounts, going: &[Member]) -> Result<()> {
    snapshots::end(live, mounts, going.iter().map(|(_, own)| own), None)?;
    for (dataset, _) in going {
        live.pool.destroy_dataset(dataset.id())?;
    }
    live.pool.commit()?;
    Ok(())
}

fn told(live: &Live, going: &[Member], measure: bool) -> Result<Destroyed> {
    let family = ids(going);
    let mut told = Destroyed { destroyed: Vec::new(), reclaimed: 0, kept: Vec::new(), until: None };
    for (dataset, snapshots) in going {
        told.destroyed.extend(snapshots.full_names(live));
        told.destroyed.push(live.pool.full_name(dataset.id()));
        told.reclaimed += dataset.usage().own;
        told.kept.extend(snapshots::kept_for_clones(live, snapshots, &family));
        if measure {
            told.reclaimed += snapshots.space(live, &family)?;
        }
    }
    Ok(told)
}
