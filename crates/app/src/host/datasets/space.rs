//! `fs space`.

use super::super::Host;
use crate::api::name::pool_of;
use crate::api::snapshots::{HeldFile, SnapshotSpace, Space, Spaces, chosen, spans};
use crate::api::{ApiError, ErrorKind, Result};
use larder_files::held_paths;
use larder_pool::PoolError;
use std::collections::BTreeSet;

/// Measures the space that the snapshots of a dataset, or some of them, hold: each alone, with all older ones, and all
/// together, and names files.
pub fn space(host: &Host, request: &Space) -> Result<Spaces> {
    let (full, asked) = match request.name.contains('@') {
        true => spans(&request.name).map(|(dataset, spans)| (dataset, Some(spans)))?,
        false => (request.name.as_str(), None),
    };
    let (live, dataset) = host.dataset(full)?;
    let told = |error: PoolError, of: &str| {
        ApiError::from(error).within(format!("cannot measure '{of}'")).of_pool(pool_of(full))
    };
    let records = live.pool.snapshots(dataset.id());
    let all: Vec<_> = records.iter().map(|record| record.name.as_str()).collect();
    let chosen: BTreeSet<_> = match &asked {
        Some(spans) => chosen(spans, &all).into_iter().map(str::to_owned).collect(),
        None => all.into_iter().map(str::to_owned).collect(),
    };
    if asked.is_some() && chosen.is_empty() {
        return Err(ApiError::new(ErrorKind::NotFound, format!("'{}' names no snapshot", request.name))
            .hint(format!("larder fs list -t snapshot {full} shows those that there are")));
    }
    let (mut snapshots, mut with_older) = (Vec::new(), 0);
    for record in records {
        let measured = || {
            let used = live.pool.snapshot_space(dataset.id(), std::slice::from_ref(&record.name))?;
            let more = live.pool.space_beyond_older(dataset.id(), &record.name)?;
            Ok((used, more, !live.pool.snapshot_holds(&record)?.is_empty()))
        };
        let name = format!("{full}@{}", record.name);
        let (used, more, held) = match measured() {
            // It was destroyed meanwhile.
            Err(PoolError::NotFound(_)) => continue,
            measured => measured.map_err(|error| told(error, &name))?,
        };
        with_older += more;
        if chosen.contains(&record.name) {
            snapshots.push(SnapshotSpace { name, created: record.created.secs, held, used, with_older });
        }
    }
    let names: Vec<_> = chosen.into_iter().collect();
    let together = live.pool.snapshot_space(dataset.id(), &names).map_err(|error| told(error, full))?;
    let files = match request.files {
        0 => Vec::new(),
        most => {
            live.pool.held_files(dataset.id(), &names, most as usize).map_err(|error| told(error, full))?
        }
    };
    let paths = held_paths(&live.pool, dataset.id(), &files);
    let files = files.iter().zip(paths).map(|(file, path)| HeldFile {
        inode: file.inode.get(),
        size: file.bytes,
        path: path.ok().map(Into::into),
    });
    let trash = live.pool.trash_of(dataset.id())?;
    Ok(Spaces { trash, snapshots, together, files: files.collect() })
}
