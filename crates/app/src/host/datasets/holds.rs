//! `fs hold`, `fs release`, `fs holds`: on all snapshots that are asked for, or on none.

use super::super::Host;
use super::super::error::NOTHING_CHANGED;
use super::super::live::Live;
use super::snapshots::end_deferred;
use super::{family, found};
use crate::api::name::{check_snapshot, pool_of};
use crate::api::snapshots::{Held, Hold, Holds, Release, Tag};
use crate::api::{ApiError, Done, ErrorKind, Result};
use larder_format::DatasetId;
use larder_format::tables::SnapshotRecord;
use std::sync::Arc;

/// A snapshot that is meant.
struct Meant {
    full: String,
    record: SnapshotRecord,
}

impl Meant {
    fn own(&self) -> (DatasetId, String) {
        (self.record.dataset, self.record.name.clone())
    }

    fn has(&self, live: &Live, tag: &str) -> Result<bool> {
        Ok(live.pool.snapshot_holds(&self.record)?.contains_key(tag))
    }
}

/// The pool that all of these snapshots are in.
fn live_of(host: &Host, names: &[String]) -> Result<Arc<Live>> {
    let first = names.first().map_or("", String::as_str);
    let (dataset, _) = check_snapshot(first)?;
    Ok(host.dataset(dataset)?.0)
}

/// Snapshots of these names, and with `recursive` those of the same names of all datasets below that have one.
fn meant(live: &Live, names: &[String], recursive: bool) -> Result<Vec<Meant>> {
    let mut all: Vec<Meant> = Vec::new();
    for name in names {
        let (dataset, own) = check_snapshot(name)?;
        let top = found(live, dataset)?;
        let datasets = if recursive { family(&live.pool, top.id()) } else { vec![Arc::clone(&top)] };
        for dataset in datasets {
            match live.pool.snapshot_named(dataset.id(), own) {
                Ok(record) if all.iter().all(|one| one.record.high != record.high) => {
                    all.push(Meant { full: format!("{}@{own}", live.pool.full_name(dataset.id())), record });
                }
                Err(_) if dataset.id() == top.id() => return Err(ApiError::no_such_dataset(name)),
                _ => {}
            }
        }
    }
    Ok(all)
}

/// A line for each of them, and nothing was changed.
fn refusal(kind: ErrorKind, lines: Vec<String>) -> ApiError {
    ApiError::new(kind, lines.join("\n")).safe(NOTHING_CHANGED)
}

/// Places holds.
pub fn hold(host: &Host, request: &Hold) -> Result<Done> {
    let live = live_of(host, &request.names)?;
    // Names change under this lock alone.
    let _mounts = live.mounts.lock();
    let all = meant(&live, &request.names, request.recursive)?;
    let mut taken = Vec::new();
    for one in &all {
        if one.has(&live, &request.tag)? {
            taken.push(format!("cannot hold snapshot '{}': tag already exists on this dataset", one.full));
        }
    }
    if !taken.is_empty() {
        return Err(refusal(ErrorKind::Exists, taken));
    }
    let own: Vec<_> = all.iter().map(Meant::own).collect();
    let hold = || {
        live.pool.hold_snapshots(&own, &request.tag)?;
        live.pool.commit()
    };
    let doing = format!("cannot hold snapshot '{}'", request.names[0]);
    let held = hold();
    held.map_err(|error| ApiError::from(error).within(doing).of_pool(pool_of(&request.names[0])))?;
    Ok(Done {})
}

/// Lets go of holds; snapshots that were to be destroyed with their last one are.
pub fn release(host: &Host, request: &Release) -> Result<Done> {
    let live = live_of(host, &request.names)?;
    // Names and mounts change under this lock alone.
    let mut mounts = live.mounts.lock();
    let mut all = meant(&live, &request.names, request.recursive)?;
    let mut missing = Vec::new();
    for one in &all {
        if !one.has(&live, &request.tag)? {
            missing.push(one.full.clone());
        }
    }
    // Below, some may have it and others not.
    if missing.len() == all.len() || !request.recursive && !missing.is_empty() {
        let line = |full: &String| {
            format!("cannot release hold from snapshot '{full}': no such tag on this dataset")
        };
        return Err(refusal(ErrorKind::NotFound, missing.iter().map(line).collect()));
    }
    all.retain(|one| !missing.contains(&one.full));
    let own: Vec<_> = all.iter().map(Meant::own).collect();
    let doing = format!("cannot release hold from snapshot '{}'", request.names[0]);
    let doing = |error: ApiError| error.within(&doing).of_pool(pool_of(&request.names[0]));
    live.pool.release_snapshots(&own, &request.tag).map_err(|error| doing(error.into()))?;
    end_deferred(&live, &mut mounts).map_err(doing)?;
    live.pool.commit().map_err(|error| doing(error.into()))?;
    Ok(Done {})
}

/// Tells of holds.
pub fn holds(host: &Host, request: &Holds) -> Result<Held> {
    let live = live_of(host, &request.names)?;
    let mut holds = Vec::new();
    for one in meant(&live, &request.names, request.recursive)? {
        // One that was destroyed meanwhile has none.
        for (tag, created) in live.pool.snapshot_holds(&one.record).unwrap_or_default() {
            holds.push(Tag { name: one.full.clone(), tag, created: created.secs });
        }
    }
    Ok(Held { holds })
}
