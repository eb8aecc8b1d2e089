//! `fs space`.

use super::super::Host;
use crate::api::name::pool_of;
use crate::api::snapshots::{SnapshotSpace, Space, Spaces};
use crate::api::{ApiError, Result};
use larder_pool::PoolError;

/// Measures the space that the snapshots of a dataset hold, each alone and with all older ones.
pub fn space(host: &Host, request: &Space) -> Result<Spaces> {
    let full = &request.name;
    let (live, dataset) = host.dataset(full)?;
    let (mut snapshots, mut with_older) = (Vec::new(), 0);
    for record in live.pool.snapshots(dataset.id()) {
        let measured = || {
            let used = live.pool.snapshot_space(dataset.id(), std::slice::from_ref(&record.name))?;
            let more = live.pool.space_beyond_older(dataset.id(), &record.name)?;
            Ok((used, more, !live.pool.snapshot_holds(&record)?.is_empty()))
        };
        let name = format!("{full}@{}", record.name);
        let (used, more, held) = match measured() {
            // It was destroyed meanwhile.
            Err(PoolError::NotFound(_)) => continue,
            measured => measured.map_err(|error| {
                ApiError::from(error).within(format!("cannot measure '{name}'")).of_pool(pool_of(full))
            })?,
        };
        with_older += more;
        snapshots.push(SnapshotSpace { name, created: record.created.secs, held, used, with_older });
    }
    let trash = live.pool.trash_of(dataset.id())?;
    Ok(Spaces { trash, snapshots })
}
