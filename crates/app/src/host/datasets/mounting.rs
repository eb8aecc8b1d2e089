//! `fs mount`, `fs unmount`.

use super::super::Host;
use super::super::mounts::can_mount;
use super::found;
use crate::api::fs::Mounted;
use crate::api::{ApiError, Result};
use std::path::Path;

/// Mounts one dataset, or all that mount by themselves.
pub fn mount(host: &Host, name: Option<&str>) -> Result<Mounted> {
    let Some(name) = name else {
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
    mounts.mount(&dataset)?;
    Ok(Mounted { names: vec![name.to_owned()], failed: Vec::new() })
}

/// Unmounts one dataset, by its name or mount point, or all.
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
