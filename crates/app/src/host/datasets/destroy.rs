//! `fs destroy` of datasets, with their snapshots.

use super::super::Host;
use super::super::live::Live;
use super::super::mounts::Mounts;
use super::snapshots::{self, Going};
use super::{family, found};
use crate::api::fs::{Destroy, Destroyed};
use crate::api::name::pool_of;
use crate::api::{ApiError, ErrorKind, Result};
use larder_pool::Dataset;
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
        let mut mounts = live.mounts.lock();
        let going = going(&live, request)?;
        let told = told(&live, &going, request.measure)?;
        snapshots::check_not_held(&live, going.iter().map(|(_, own)| own))?;
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
            let outcome = end(&live, &mut mounts, &going);
            // Others that hung on them, and those that are still there.
            mounts.mount_again(&gone);
            outcome
        });
        mounts.mount_snapshots_again(shown);
        outcome.map(|()| told)
    };
    destroy().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.name)))
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
    let mut told = Destroyed { destroyed: Vec::new(), reclaimed: 0 };
    for (dataset, snapshots) in going {
        told.destroyed.extend(snapshots.full_names(live));
        told.destroyed.push(live.pool.full_name(dataset.id()));
        told.reclaimed += dataset.usage().referenced;
        if measure {
            told.reclaimed += snapshots.space(live)?;
        }
    }
    Ok(told)
}
