//! `fs rollback`.

use super::super::Host;
use super::super::error::NOTHING_CHANGED;
use super::snapshots::{Going, check_not_held, kept, let_go};
use super::{found, hidden};
use crate::api::name::{check_snapshot, pool_of};
use crate::api::snapshots::{Rollback, RolledBack};
use crate::api::{ApiError, ErrorKind, Result};
use larder_pool::PoolError;

/// Has a dataset hold again what a snapshot holds; what is mounted of it is unmounted meanwhile, and so are its
/// snapshots. Gives the newer ones that are gone.
pub fn rollback(host: &Host, request: &Rollback) -> Result<RolledBack> {
    let (full, name) = check_snapshot(&request.name)?;
    let (live, _) = host.dataset(full)?;
    // Names and mounts change under this lock alone.
    let mut mounts = live.mounts.lock();
    let dataset = found(&live, full)?;
    let mut records = live.pool.shown_snapshots(dataset.id());
    let Some(at) = records.iter().position(|record| record.name == name) else {
        return Err(ApiError::no_such_dataset(&request.name));
    };
    let newer = Going { dataset: dataset.id(), records: records.split_off(at + 1) };
    let destroyed = newer.full_names(&live);
    if !destroyed.is_empty() && !request.drop_newer {
        return Err(refusal(&request.name, &destroyed));
    }
    let doing = format!("cannot rollback to '{}'", request.name);
    // Nothing is unmounted for nothing: syncoid asks for it before each increment.
    live.pool.commit().map_err(|error| ApiError::from(error).within(&doing).of_pool(pool_of(full)))?;
    if destroyed.is_empty() && live.pool.is_at_snapshot(dataset.id(), name)? {
        return Ok(RolledBack { destroyed });
    }
    check_not_held(&live, [&newer]).map_err(|error| error.within(&doing))?;
    let mut roll = || {
        let shown = mounts.unmount_snapshots_of(dataset.id())?;
        let outcome = hidden(&live, &mut mounts, dataset.id(), |mounts| {
            live.pool.commit()?;
            let_go(&live, mounts, [&newer])?;
            mounts.wait_until_gone(dataset.id())?;
            let rolled = live.pool.rollback(dataset.id(), name, request.drop_newer);
            rolled.map_err(|error| match error {
                // One that nobody is shown.
                PoolError::Busy(_) if destroyed.is_empty() => {
                    ApiError::new(ErrorKind::Busy, "somebody compares a snapshot with it")
                        .safe(NOTHING_CHANGED)
                        .hint("try again when larder fs diff is over")
                }
                PoolError::Busy(text) => kept(&destroyed, &text),
                error => error.into(),
            })
        });
        mounts.mount_snapshots_again(shown);
        outcome
    };
    let rolled = roll();
    newer.records.iter().for_each(|record| mounts.tell_of_snapshot(record.dataset, &record.name));
    let mounted = rolled.map_err(|error: ApiError| error.within(doing).of_pool(pool_of(full)))?;
    mounted.map_err(|error| {
        let safe = "the dataset: it is as the snapshot was, only not mounted";
        error.within(format!("rolled back to '{}', but", request.name)).safe(safe)
    })?;
    Ok(RolledBack { destroyed })
}

fn refusal(name: &str, newer: &[String]) -> ApiError {
    let message = format!(
        "cannot rollback to '{name}': more recent snapshots or bookmarks exist\n\
         use '-r' to force deletion of the following snapshots and bookmarks:\n{}",
        newer.join("\n")
    );
    ApiError::new(ErrorKind::Busy, message).safe(NOTHING_CHANGED).hint(format!(
        "to keep them, copy single files out of DIR/.zfs/snapshot; to destroy them: larder fs rollback --drop-newer {name}"
    ))
}
