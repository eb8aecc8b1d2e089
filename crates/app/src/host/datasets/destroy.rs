//! `fs destroy`.

use super::super::Host;
use super::family;
use crate::api::fs::{Destroy, Destroyed};
use crate::api::name::pool_of;
use crate::api::{ApiError, ErrorKind, Result};

/// Destroys a dataset, with all below it where asked for.
pub fn destroy(host: &Host, request: &Destroy) -> Result<Destroyed> {
    let doing = format!("cannot destroy '{}'", request.name);
    let (live, dataset) = host.dataset(&request.name)?;
    let destroy = || {
        if !request.name.contains('/') {
            return Err(ApiError::usage("it is the pool's own dataset")
                .hint(format!("larder pool destroy {} destroys the whole pool", request.name)));
        }
        let mut family = family(&live, dataset.id());
        if family.len() > 1 && !request.recursive {
            let below: Vec<_> = family[1..].iter().map(|below| live.pool.full_name(below.id())).collect();
            return Err(ApiError::new(ErrorKind::Busy, format!("it has children: {}", below.join(", ")))
                .hint(format!("larder fs destroy -r {} destroys them too", request.name)));
        }
        family.reverse();
        let destroyed: Vec<_> = family.iter().map(|dataset| live.pool.full_name(dataset.id())).collect();
        let reclaimed = family.iter().map(|dataset| dataset.usage().referenced).sum();
        if request.dry_run {
            return Ok(Destroyed { destroyed, reclaimed });
        }
        let mut mounts = live.mounts.lock();
        for dataset in &family {
            mounts.unmount(dataset.id())?;
        }
        for dataset in &family {
            live.pool.destroy_dataset(dataset.id())?;
        }
        // From here on the reaper goes on with it, after a crash as well.
        live.pool.commit()?;
        Ok(Destroyed { destroyed, reclaimed })
    };
    destroy().map_err(|error| error.within(doing).of_pool(pool_of(&request.name)))
}
