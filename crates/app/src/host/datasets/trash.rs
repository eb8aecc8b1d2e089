//! `fs undestroy`, `fs trash`: what was destroyed and can be brought back.

use super::super::Host;
use super::super::error::NOTHING_CHANGED;
use super::super::live::Live;
use super::super::mounts::{Target, can_mount, target};
use crate::api::name::{check_snapshot, pool_of};
use crate::api::trash::{EmptyTrash, Restored, Trash, TrashItem, TrashList, Undestroy};
use crate::api::{ApiError, ErrorKind, ItemKind, Result};
use larder_format::trash::TrashKey;
use larder_format::{DatasetId, Timestamp};
use larder_pool::{Dataset, Pool, PoolError, Trashed, property};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Seconds for which a pool keeps what is destroyed, if it does.
fn span(pool: &Pool) -> Option<i64> {
    let set = pool.pool_properties().remove("trash");
    let set = set.or_else(|| property::pool("trash")?.default.map(str::to_owned))?;
    set.parse().ok().filter(|seconds| *seconds > 0)
}

/// Whether what is destroyed can be brought back for a while.
pub fn keeps(pool: &Pool) -> bool {
    span(pool).is_some()
}

/// Until when what is destroyed now is kept; nothing when the pool keeps no trash.
pub fn until(live: &Live) -> Option<Timestamp> {
    let seconds = span(&live.pool)?;
    let now = live.pool.store().clock().now();
    Some(Timestamp { secs: now.secs.saturating_add(seconds), ..now })
}

fn item(live: &Live, one: Trashed) -> TrashItem {
    let kind = match one.key {
        TrashKey::Snapshot(_) => ItemKind::Snapshot,
        TrashKey::Dataset(_) => ItemKind::Filesystem,
    };
    let used = live.pool.space_of_trashed(one.key).ok();
    TrashItem {
        name: one.name,
        kind,
        destroyed: one.record.destroyed.secs,
        until: one.record.until.secs,
        used,
    }
}

/// Tells what is in the trash.
pub fn trash(host: &Host, request: &Trash) -> Result<TrashList> {
    let is_meant = |name: &str| {
        request.name.as_deref().is_none_or(|top| {
            name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        })
    };
    let pools = match &request.name {
        Some(name) => vec![host.pool(pool_of(name))?],
        None => host.pools_named(&[])?,
    };
    let all = pools.iter().flat_map(|live| {
        let meant = live.pool.trash().into_iter().filter(|one| is_meant(&one.name));
        meant.map(|one| item(live, one)).collect::<Vec<_>>()
    });
    Ok(TrashList { items: all.collect() })
}

/// Lets go of something in the trash, or of all of a pool's.
pub fn empty(host: &Host, request: &EmptyTrash) -> Result<TrashList> {
    let live = host.pool(pool_of(&request.name))?;
    // Names change under this lock alone.
    let _mounts = live.mounts.lock();
    let all = live.pool.trash();
    let going: Vec<_> = match request.name.contains(['/', '@']) {
        false => all,
        true => vec![newest(all, &request.name)?],
    };
    let doing = format!("cannot empty the trash of '{}'", request.name);
    let mut items = Vec::new();
    for one in going {
        let (key, told) = (one.key, item(&live, one));
        match live.pool.let_go(key) {
            // It went with its dataset.
            Err(PoolError::NotFound(_)) => {}
            gone => {
                gone.map_err(|error| ApiError::from(error).within(&doing).of_pool(pool_of(&request.name)))?;
                items.push(told);
            }
        }
    }
    live.pool.commit()?;
    Ok(TrashList { items })
}

/// Of what had this name, what was destroyed last.
fn newest(all: Vec<Trashed>, name: &str) -> Result<Trashed> {
    all.into_iter().rfind(|one| one.name == name).ok_or_else(|| {
        let message = format!("cannot bring '{name}' back: it is not in the trash");
        ApiError::new(ErrorKind::NotFound, message).hint("larder fs trash shows what there is")
    })
}

/// Brings back what was destroyed.
pub fn undestroy(host: &Host, request: &Undestroy) -> Result<Restored> {
    let live = host.pool(pool_of(&request.name))?;
    // Names and mounts change under this lock alone.
    let mut mounts = live.mounts.lock();
    let one = newest(live.pool.trash(), &request.name)?;
    let doing = format!("cannot bring '{}' back", request.name);
    let told =
        |error: PoolError| refusal(error, &request.name).within(&doing).of_pool(pool_of(&request.name));
    let id = match one.key {
        TrashKey::Dataset(id) => id,
        TrashKey::Snapshot(high) => {
            let own = request.to.as_deref().map(|to| check_snapshot(to).map(|(_, own)| own)).transpose()?;
            let record = live.pool.restore_snapshot(high, own).map_err(&told)?;
            live.pool.commit().map_err(&told)?;
            mounts.tell_of_snapshot(record.dataset, &record.name);
            let name = format!("{}@{}", live.pool.full_name(record.dataset), record.name);
            return Ok(Restored { restored: vec![name] });
        }
    };
    let name = request.to.clone().unwrap_or_else(|| was(&live, &one));
    let mut back = vec![live.pool.restore_dataset(id, &name).map_err(&told)?];
    let mut outcome = Ok(());
    if request.recursive {
        outcome = below(&live, id, &mut back).map_err(&told);
    }
    let restored = back.iter().map(|dataset| live.pool.full_name(dataset.id())).collect();
    live.pool.commit().map_err(&told)?;
    for dataset in &back {
        let by_itself = can_mount(&live.pool, dataset) == "on";
        if by_itself && matches!(target(&live.pool, dataset), Target::Path(_)) && outcome.is_ok() {
            let safe = "the dataset: it is back, only not mounted";
            outcome = mounts.mount(dataset).map_err(|error| error.safe(safe));
        }
    }
    outcome.map(|()| Restored { restored })
}

/// The name that a dataset had, in what it was inside of, wherever that is now.
fn was(live: &Live, one: &Trashed) -> String {
    match (live.pool.dataset(one.record.parent), one.record.name.rsplit_once('/')) {
        (Some(parent), Some((_, own))) => format!("{}/{own}", live.pool.full_name(parent.id())),
        _ => one.record.name.clone(),
    }
}

/// Brings all back that was below a dataset: of two of one name the one that was destroyed last.
fn below(live: &Live, top: DatasetId, back: &mut Vec<Arc<Dataset>>) -> Result<(), PoolError> {
    let mut next = vec![top];
    while let Some(parent) = next.pop() {
        let mut seen = BTreeSet::new();
        for one in live.pool.trash().into_iter().rev().filter(|one| one.record.parent == parent) {
            let name = was(live, &one);
            if let TrashKey::Dataset(id) = one.key
                && seen.insert(name.clone())
            {
                back.push(live.pool.restore_dataset(id, &name)?);
                next.push(id);
            }
        }
    }
    Ok(())
}

fn refusal(error: PoolError, name: &str) -> ApiError {
    match error {
        PoolError::Exists(taken) => {
            ApiError::new(ErrorKind::Exists, format!("there is another {taken} by now"))
                .safe(NOTHING_CHANGED)
                .hint(format!("larder fs undestroy {name} NEW gives it another name"))
        }
        PoolError::NotFound(what) => ApiError::new(ErrorKind::NotFound, format!("{what} does not exist"))
            .safe(NOTHING_CHANGED)
            .hint("bring that back before, or give another name: larder fs undestroy NAME NEW"),
        error => error.into(),
    }
}
