//! `fs destroy` of datasets, with their snapshots.

use super::super::Host;
use super::super::live::Live;
use super::super::mounts::Mounts;
use super::snapshots::{self, Going};
use super::{family, found};
use crate::api::fs::{Destroy, Destroyed};
use crate::api::name::pool_of;
use crate::api::snapshots::{DestroySnapshots, spans};
use crate::api::{ApiError, ErrorKind, Result};
use larder_pool::Dataset;
use std::collections::BTreeSet;
use std::sync::Arc;

/// At most this many snapshots are named as a reason.
const NAMED: usize = 5;

/// Destroys a dataset, with all below it and its snapshots where asked for.
pub fn destroy(host: &Host, request: &Destroy) -> Result<Destroyed> {
    let doing = format!("cannot destroy '{}'", request.name);
    let (live, _) = host.dataset(&request.name)?;
    let destroy = || {
        if request.dry_run {
            return told(&live, &going(&live, request)?, request.measure);
        }
        // Names change under this lock alone.
        destroy_here(&live, &mut live.mounts.lock(), request)
    };
    destroy().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.name)))
}

/// Destroys snapshots, after their clones where that is asked for.
pub fn destroy_snapshots(host: &Host, request: &DestroySnapshots) -> Result<Destroyed> {
    if !request.clones || request.dry_run {
        return snapshots::destroy(host, request);
    }
    let (dataset, _) = spans(&request.name)?;
    let (live, _) = host.dataset(dataset)?;
    let mut destroyed = destroy_clones(&live, &mut live.mounts.lock(), &snapshots::asked(&live, request)?)?;
    let last = snapshots::destroy(host, request)?;
    destroyed.destroyed.extend(last.destroyed);
    Ok(Destroyed { reclaimed: destroyed.reclaimed + last.reclaimed, ..destroyed })
}

/// Destroys the clones of snapshots, with all below them and their own clones.
fn destroy_clones(live: &Live, mounts: &mut Mounts, going: &[Going]) -> Result<Destroyed> {
    let mut all = Destroyed { destroyed: Vec::new(), reclaimed: 0, kept: Vec::new() };
    let clones =
        || going.iter().flat_map(|one| &one.records).find_map(|one| live.pool.clones(one).pop_first());
    while let Some(clone) = clones() {
        let name = live.pool.full_name(clone);
        let request = Destroy { name, recursive: true, dry_run: false, measure: false, clones: true };
        let destroyed = destroy_here(live, mounts, &request)?;
        all.destroyed.extend(destroyed.destroyed);
        all.reclaimed += destroyed.reclaimed;
    }
    Ok(all)
}

/// The same, under the lock of the mounts.
fn destroy_here(live: &Live, mounts: &mut Mounts, request: &Destroy) -> Result<Destroyed> {
    let mut before = Destroyed { destroyed: Vec::new(), reclaimed: 0, kept: Vec::new() };
    if request.clones {
        let going = going(live, request)?;
        let family: BTreeSet<_> = going.iter().map(|(dataset, _)| dataset.id()).collect();
        let others = going.into_iter().map(|(_, own)| Going {
            records: own
                .records
                .into_iter()
                .filter(|one| !live.pool.clones(one).is_subset(&family))
                .collect(),
            ..own
        });
        before = destroy_clones(live, mounts, &others.collect::<Vec<_>>())?;
    }
    if found(live, &request.name).is_err() && !before.destroyed.is_empty() {
        // It was below one of its clones.
        return Ok(before);
    }
    let going = going(live, request)?;
    let told = told(live, &going, request.measure)?;
    snapshots::check_not_held(live, going.iter().map(|(_, own)| own))?;
    let (mut shown, mut outcome) = (Vec::new(), Ok(()));
    for (dataset, _) in &going {
        match mounts.unmount_snapshots_of(dataset.id()) {
            Ok(mut more) => shown.append(&mut more),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    let ids = going.iter().map(|(dataset, _)| dataset.id());
    let gone = outcome.and_then(|()| mounts.unmount_each(ids));
    let outcome = gone.and_then(|gone| {
        let outcome = end(live, mounts, &going);
        // Others that hung on them, and those that are still there.
        mounts.mount_again(&gone);
        outcome
    });
    mounts.mount_snapshots_again(shown);
    outcome?;
    before.destroyed.extend(told.destroyed);
    Ok(Destroyed { reclaimed: before.reclaimed + told.reclaimed, kept: told.kept, ..before })
}

/// The datasets that are to be destroyed, deepest first, and their snapshots.
fn going(live: &Live, request: &Destroy) -> Result<Vec<(Arc<Dataset>, Going)>> {
    if !request.name.contains('/') {
        return Err(ApiError::usage("it is the pool's own dataset")
            .hint(format!("larder pool destroy {} destroys the whole pool", request.name)));
    }
    let mut family = family(live, found(live, &request.name)?.id());
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
    Ok(going)
}

/// Destroys them. From the commit on the reaper goes on with it, after a crash as well.
fn end(live: &Live, mounts: &mut Mounts, going: &[(Arc<Dataset>, Going)]) -> Result<()> {
    snapshots::end(live, mounts, going.iter().map(|(_, own)| own))?;
    for (dataset, _) in going {
        live.pool.destroy_dataset(dataset.id())?;
    }
    live.pool.commit()?;
    Ok(())
}

fn told(live: &Live, going: &[(Arc<Dataset>, Going)], measure: bool) -> Result<Destroyed> {
    let family: BTreeSet<_> = going.iter().map(|(dataset, _)| dataset.id()).collect();
    let mut told = Destroyed { destroyed: Vec::new(), reclaimed: 0, kept: Vec::new() };
    for (dataset, snapshots) in going {
        told.destroyed.extend(snapshots.full_names(live));
        told.destroyed.push(live.pool.full_name(dataset.id()));
        told.reclaimed += dataset.usage().own;
        told.kept.extend(snapshots::kept_for_clones(live, snapshots, &family));
        if measure {
            told.reclaimed += snapshots.space(live)?;
        }
    }
    Ok(told)
}
