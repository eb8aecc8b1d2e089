//! `fs create`.

use super::super::Host;
use super::super::live::Live;
use super::super::mounts::{Mounts, Target, can_mount, target};
use crate::api::fs::{Create, Created};
use crate::api::name::pool_of;
use crate::api::{ApiError, ErrorKind, Properties, Result};
use larder_pool::Dataset;
use std::sync::Arc;

/// Makes a dataset, with its parents where asked for, and mounts what it makes.
pub fn create(host: &Host, request: &Create) -> Result<Created> {
    let doing = format!("cannot create '{}'", request.name);
    let make = || {
        let live = host.pool(pool_of(&request.name))?;
        if request.dry_run {
            return Ok(Created { created: missing(&live, request)? });
        }
        let mut mounts = live.mounts.lock();
        make(&live, &mut mounts, request)
    };
    make().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.name)))
}

/// The same, under the lock of the pool's mounts: names change under it alone.
pub fn make(live: &Live, mounts: &mut Mounts, request: &Create) -> Result<Created> {
    make_by(live, mounts, request, |own| Ok(live.pool.create_dataset(&request.name, own)?))
}

/// The same with `last`, which makes the dataset of the name itself from its properties.
pub fn make_by(
    live: &Live,
    mounts: &mut Mounts,
    request: &Create,
    last: impl Fn(Properties) -> Result<Arc<Dataset>>,
) -> Result<Created> {
    let pool = &live.pool;
    let created = missing(live, request)?;
    if created.is_empty() {
        return Ok(Created { created });
    }
    let mut made = Vec::new();
    for name in &created {
        made.push(match *name == request.name {
            true => last(request.properties.clone())?,
            false => pool.create_dataset(name, Properties::new())?,
        });
    }
    pool.commit()?;
    let mut outcome = Ok(());
    for dataset in made {
        let by_itself =
            can_mount(pool, &dataset) == "on" && matches!(target(pool, &dataset), Target::Path(_));
        if by_itself && outcome.is_ok() {
            outcome = mounts.mount(&dataset);
        }
    }
    pool.commit()?;
    outcome.map_err(|error| error.safe("the dataset: it was made, only not mounted"))?;
    Ok(Created { created })
}

/// The names of the datasets that are to be made, parents first.
fn missing(live: &Live, request: &Create) -> Result<Vec<String>> {
    let mut missing: Vec<&str> = Vec::new();
    let mut at = request.name.as_str();
    while live.pool.dataset_by_name(at).is_err() {
        missing.push(at);
        match at.rsplit_once('/') {
            Some((above, _)) => at = above,
            None => break,
        }
    }
    if missing.is_empty() && !request.parents {
        return Err(ApiError::new(ErrorKind::Exists, "dataset already exists"));
    }
    if missing.len() > 1 && !request.parents {
        return Err(ApiError::new(ErrorKind::NotFound, "parent does not exist")
            .hint(format!("larder fs create -p {}", request.name)));
    }
    Ok(missing.into_iter().rev().map(str::to_owned).collect())
}
