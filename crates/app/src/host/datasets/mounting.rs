//! `fs mount`, `fs unmount`.

use super::super::Host;
use super::super::live::Live;
use super::super::mounts::{SnapshotId, can_mount, id_of};
use super::found;
use crate::api::fs::{Mount, Mounted};
use crate::api::name::check_snapshot;
use crate::api::{ApiError, Result};
use larder_app::fuse;
use larder_format::tables::SnapshotRecord;
use std::path::Path;
use std::sync::Arc;

/// Mounts one dataset, where it says or a legacy one at a folder, a snapshot at a folder, or all datasets that mount by
/// themselves.
pub fn mount(host: &Host, request: &Mount) -> Result<Mounted> {
    if let Some(name) = request.name.as_deref().filter(|name| name.contains('@')) {
        return mount_snapshot(host, name, request.at.as_deref());
    }
    let Some(name) = request.name.as_deref() else {
        let mut all = Mounted::default();
        for live in host.pools_named(&[])? {
            let (mut names, mut failed) = live.mounts.lock().mount_all();
            all.names.append(&mut names);
            all.failed.append(&mut failed);
        }
        return Ok(all);
    };
    let (live, _) = host.dataset(name)?;
    // Names change under this lock alone.
    let mut mounts = live.mounts.lock();
    let dataset = found(&live, name)?;
    if can_mount(&live.pool, &dataset) == "off" {
        return Err(ApiError::usage(format!("cannot mount '{name}': its canmount is off"))
            .hint(format!("larder fs set canmount=on {name}")));
    }
    match request.at.as_deref() {
        Some(at) => mounts.mount_at(&dataset, Path::new(at))?,
        None => mounts.mount(&dataset)?,
    }
    Ok(Mounted { names: vec![name.to_owned()], failed: Vec::new() })
}

/// Mounts a snapshot, for reading.
fn mount_snapshot(host: &Host, name: &str, at: Option<&str>) -> Result<Mounted> {
    let Some(at) = at else {
        return Err(ApiError::usage(format!("cannot mount '{name}': a snapshot has no mount point")).hint(
            format!("larder fs mount {name} DIR; it can also be read in .zfs/snapshot of its dataset"),
        ));
    };
    let (live, _) = host.dataset(check_snapshot(name)?.0).map_err(|_| ApiError::no_such_dataset(name))?;
    // Names change under this lock alone.
    let mut mounts = live.mounts.lock();
    let record = snapshot(&live, name)?;
    mounts.mount_snapshot(&record, Path::new(at))?;
    Ok(Mounted { names: vec![name.to_owned()], failed: Vec::new() })
}

/// The snapshot of a full name, for whoever holds the lock of the mounts.
fn snapshot(live: &Live, full: &str) -> Result<SnapshotRecord> {
    let (dataset, name) = check_snapshot(full)?;
    let missing = || ApiError::no_such_dataset(full);
    let dataset = found(live, dataset).map_err(|_| missing())?;
    live.pool.snapshot_named(dataset.id(), name).map_err(|_| missing())
}

/// The pool, and the snapshot that is mounted at a path.
fn snapshot_at(host: &Host, path: &Path) -> Option<(Arc<Live>, SnapshotId)> {
    let pools = host.pools_named(&[]).ok()?;
    pools.into_iter().find_map(|live| {
        let id = live.mounts.lock().snapshot_at(path)?;
        Some((live, id))
    })
}

/// Unmounts one dataset or snapshot, by its name or mount point, or all.
pub fn unmount(host: &Host, wanted: Option<&str>) -> Result<Mounted> {
    let Some(wanted) = wanted else {
        let mut all = Mounted::default();
        for live in host.pools_named(&[])? {
            match live.mounts.lock().unmount_all() {
                Ok(gone) => all.names.extend(gone.into_iter().map(|id| live.pool.full_name(id))),
                Err(error) => all.failed.push(error),
            }
        }
        return Ok(all);
    };
    let not_mounted = || ApiError::usage(format!("cannot unmount '{wanted}': not currently mounted"));
    let is_path = wanted.starts_with('/');
    let one = match is_path {
        true => snapshot_at(host, Path::new(wanted)),
        false if wanted.contains('@') => {
            let missing = |_| ApiError::no_such_dataset(wanted);
            let (live, _) = host.dataset(check_snapshot(wanted)?.0).map_err(missing)?;
            let id = id_of(&snapshot(&live, wanted)?);
            Some((live, id))
        }
        false => None,
    };
    if let Some((live, id)) = one {
        return match live.mounts.lock().unmount_snapshot(id)? {
            true => Ok(Mounted { names: vec![wanted.to_owned()], failed: Vec::new() }),
            false => Err(not_mounted()),
        };
    }
    // Nobody knows of the mount of a snapshot that a daemon left when it died.
    if is_path && fuse::clear_stale(Path::new(wanted)).is_ok_and(|gone| gone) {
        return Ok(Mounted { names: vec![wanted.to_owned()], failed: Vec::new() });
    }
    let live = if is_path {
        let mut all = host.pools_named(&[])?.into_iter();
        all.find(|live| live.mounts.lock().at(Path::new(wanted)).is_some()).ok_or_else(not_mounted)?
    } else {
        host.dataset(wanted)?.0
    };
    // Names and paths change under this lock alone.
    let mut mounts = live.mounts.lock();
    let id = if is_path { mounts.at(Path::new(wanted)) } else { Some(found(&live, wanted)?.id()) };
    let id = id.filter(|&id| mounts.path(id).is_some()).ok_or_else(not_mounted)?;
    mounts.unmount(id)?;
    Ok(Mounted { names: vec![live.pool.full_name(id)], failed: Vec::new() })
}
