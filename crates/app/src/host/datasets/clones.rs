//! `fs clone` and `fs promote`.

use super::super::Host;
use super::super::error::NOTHING_CHANGED;
use super::super::live::Live;
use super::create::make_by;
use super::found;
use super::snapshots::{Going, let_go};
use crate::api::fs::{Create, Created};
use crate::api::name::{check_snapshot, pool_of};
use crate::api::snapshots::{MakeClone, Promote};
use crate::api::{ApiError, Done, ErrorKind, Result};
use larder_format::tables::SnapshotRecord;
use larder_pool::PoolError;

/// Makes a dataset that begins as a snapshot, and mounts it.
pub fn clone_snapshot(host: &Host, request: &MakeClone) -> Result<Created> {
    let (full, own) = check_snapshot(&request.snapshot)?;
    let doing = format!("cannot create '{}'", request.name);
    let make = || {
        let (live, _) = host.dataset(full).map_err(|_| ApiError::no_such_dataset(&request.snapshot))?;
        let mut mounts = live.mounts.lock();
        let of = found(&live, full)?;
        if live.pool.snapshot_named(of.id(), own).is_err() {
            return Err(ApiError::no_such_dataset(&request.snapshot));
        }
        let (name, parents, properties) = (request.name.clone(), request.parents, request.properties.clone());
        let created = Create { name, parents, properties, dry_run: false };
        make_by(&live, &mut mounts, &created, |properties| {
            Ok(live.pool.clone_snapshot(of.id(), own, &request.name, properties)?)
        })
    };
    make().map_err(|error: ApiError| match error.message.starts_with("cannot open") {
        true => error,
        false => error.within(doing).of_pool(pool_of(&request.name)),
    })
}

/// Has a clone take over the snapshots up to its origin.
pub fn promote(host: &Host, request: &Promote) -> Result<Done> {
    let doing = format!("cannot promote '{}'", request.name);
    let (live, _) = host.dataset(&request.name)?;
    // Names and mounts change under this lock alone.
    let mut mounts = live.mounts.lock();
    let mut promote = || {
        let clone = found(&live, &request.name)?;
        let Some(origin) = live.pool.origin(clone.id()) else {
            return Err(ApiError::new(ErrorKind::Usage, "not a cloned filesystem").safe(NOTHING_CHANGED));
        };
        let moved = moving(&live, &origin);
        let has = |record: &&SnapshotRecord| live.pool.snapshot_named(clone.id(), &record.name).is_ok();
        if let Some(twice) = moved.records.iter().find(has) {
            let from = live.pool.full_name(origin.dataset);
            let message = format!("snapshot name '{}' from '{from}' is there already", twice.name);
            let hint =
                format!("larder fs rename {}@{} @NEW gives one of them another", request.name, twice.name);
            return Err(ApiError::new(ErrorKind::Exists, message).safe(NOTHING_CHANGED).hint(hint));
        }
        let_go(&live, &mut mounts, [&moved])?;
        live.pool.promote(clone.id()).map_err(|error| match error {
            PoolError::Busy(text) => ApiError::new(ErrorKind::Busy, text)
                .safe(NOTHING_CHANGED)
                .hint("try again when less is written"),
            error => error.into(),
        })?;
        for record in &moved.records {
            mounts.tell_of_snapshot(origin.dataset, &record.name);
            mounts.tell_of_snapshot(clone.id(), &record.name);
        }
        Ok(Done {})
    };
    promote().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.name)))
}

/// Snapshots of a dataset up to one.
fn moving(live: &Live, to: &SnapshotRecord) -> Going {
    let all = Going::all(live, to.dataset);
    let records = all.records.into_iter().filter(|record| record.high <= to.high).collect();
    Going { dataset: to.dataset, records }
}
