//! `fs rename`.

use super::super::Host;
use super::create::make;
use super::{found, moved};
use crate::api::fs::{Create, Rename};
use crate::api::name::pool_of;
use crate::api::{ApiError, Done, Result};
use larder_pool::PoolError;
use std::collections::BTreeMap;

/// Renames a dataset; what is mounted of it is mounted again where its new name puts it.
pub fn rename(host: &Host, request: &Rename) -> Result<Done> {
    let doing = format!("cannot rename '{}'", request.from);
    let (live, _) = host.dataset(&request.from)?;
    let rename = || {
        // Names change under this lock alone.
        let mut mounts = live.mounts.lock();
        let dataset = found(&live, &request.from)?;
        if let Some((above, _)) = request.to.rsplit_once('/')
            && request.parents
            && live.pool.dataset_by_name(above).is_err()
        {
            let parents =
                Create { name: above.to_owned(), parents: true, properties: BTreeMap::new(), dry_run: false };
            make(&live, &mut mounts, &parents)
                .map_err(|error| error.within(format!("cannot create '{above}'")))?;
        }
        if live.pool.dataset_by_name(&request.to).is_ok() {
            return Err(PoolError::Exists(request.to.clone()).into());
        }
        moved(&live, &mut mounts, &[dataset.id()], || {
            live.pool.rename_dataset(dataset.id(), &request.to)?;
            live.pool.commit()?;
            Ok(())
        })?
    };
    rename().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.from)))?;
    Ok(Done {})
}
