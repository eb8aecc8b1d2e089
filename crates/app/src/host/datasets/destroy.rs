//! `fs destroy`.

use super::super::Host;
use super::super::live::Live;
use super::{family, found};
use crate::api::fs::{Destroy, Destroyed};
use crate::api::name::pool_of;
use crate::api::{ApiError, ErrorKind, Result};
use larder_pool::Dataset;
use std::sync::Arc;

/// Destroys a dataset, with all below it where asked for.
pub fn destroy(host: &Host, request: &Destroy) -> Result<Destroyed> {
    let doing = format!("cannot destroy '{}'", request.name);
    let (live, _) = host.dataset(&request.name)?;
    let destroy = || {
        if request.dry_run {
            return Ok(told(&live, &going(&live, request)?));
        }
        // Names change under this lock alone.
        let mut mounts = live.mounts.lock();
        let going = going(&live, request)?;
        let told = told(&live, &going);
        let gone = mounts.unmount_each(going.iter().map(|dataset| dataset.id()))?;
        let outcome = end(&live, &going);
        // Others that hung on them, and those that are still there.
        mounts.mount_again(&gone);
        outcome.map(|()| told)
    };
    destroy().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.name)))
}

/// The datasets that are to be destroyed, deepest first.
fn going(live: &Live, request: &Destroy) -> Result<Vec<Arc<Dataset>>> {
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
    Ok(family)
}

/// Destroys them. From the commit on the reaper goes on with it, after a crash as well.
fn end(live: &Live, going: &[Arc<Dataset>]) -> Result<()> {
    for dataset in going {
        live.pool.destroy_dataset(dataset.id())?;
    }
    live.pool.commit()?;
    Ok(())
}

fn told(live: &Live, going: &[Arc<Dataset>]) -> Destroyed {
    Destroyed {
        destroyed: going.iter().map(|dataset| live.pool.full_name(dataset.id())).collect(),
        reclaimed: going.iter().map(|dataset| dataset.usage().referenced).sum(),
    }
}
