//! `fs rename`.

use super::super::Host;
use super::{create, moved};
use crate::api::fs::{Create, Rename};
use crate::api::name::pool_of;
use crate::api::{ApiError, Done, Result};
use larder_pool::PoolError;
use std::collections::BTreeMap;

/// Renames a dataset; what is mounted of it is mounted again where its new name puts it.
pub fn rename(host: &Host, request: &Rename) -> Result<Done> {
    let doing = format!("cannot rename '{}'", request.from);
    let (live, dataset) = host.dataset(&request.from)?;
    let rename = || {
        if let Some((above, _)) = request.to.rsplit_once('/')
            && request.parents
            && live.pool.dataset_by_name(above).is_err()
        {
            let parents =
                Create { name: above.to_owned(), parents: true, properties: BTreeMap::new(), dry_run: false };
            create(host, parents)?;
        }
        if live.pool.dataset_by_name(&request.to).is_ok() {
            return Err(PoolError::Exists(request.to.clone()).into());
        }
        moved(&live, &[dataset.id()], || Ok(live.pool.rename_dataset(dataset.id(), &request.to)?))
    };
    rename().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.from)))?;
    Ok(Done {})
}
