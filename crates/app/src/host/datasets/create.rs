//! `fs create`.

use super::super::Host;
use super::super::mounts::{Target, can_mount, target};
use crate::api::fs::{Create, Created};
use crate::api::name::pool_of;
use crate::api::{ApiError, ErrorKind, Result};
use std::collections::BTreeMap;

/// Makes a dataset, with its parents where asked for, and mounts what it makes.
pub fn create(host: &Host, request: Create) -> Result<Created> {
    let doing = format!("cannot create '{}'", request.name);
    let make = || {
        let live = host.pool(pool_of(&request.name))?;
        let pool = &live.pool;
        let mut missing: Vec<&str> = Vec::new();
        let mut at = request.name.as_str();
        while pool.dataset_by_name(at).is_err() {
            missing.push(at);
            match at.rsplit_once('/') {
                Some((above, _)) => at = above,
                None => break,
            }
        }
        missing.reverse();
        if missing.is_empty() {
            return match request.parents {
                true => Ok(Created { created: Vec::new() }),
                false => Err(ApiError::new(ErrorKind::Exists, "dataset already exists")),
            };
        }
        if missing.len() > 1 && !request.parents {
            return Err(ApiError::new(ErrorKind::NotFound, "parent does not exist")
                .hint(format!("larder fs create -p {}", request.name)));
        }
        let created: Vec<String> = missing.iter().map(|&name| name.to_owned()).collect();
        if request.dry_run {
            return Ok(Created { created });
        }
        let mut mounts = live.mounts.lock();
        let mut made = Vec::new();
        for name in &created {
            let own = if *name == request.name { request.properties.clone() } else { BTreeMap::new() };
            made.push(pool.create_dataset(name, own)?);
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
    };
    make().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.name)))
}
