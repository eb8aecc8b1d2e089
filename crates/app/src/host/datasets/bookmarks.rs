//! `fs bookmark`, and of bookmarks `fs destroy`.

use super::super::Host;
use super::super::error::NOTHING_CHANGED;
use super::found;
use crate::api::name::{check_bookmark, pool_of};
use crate::api::snapshots::{Bookmark, DestroyBookmark};
use crate::api::{ApiError, Done, ErrorKind, Result};
use larder_pool::{BookmarkSource, PoolError};

/// Makes a bookmark.
pub fn bookmark(host: &Host, request: &Bookmark) -> Result<Done> {
    let (full, own) = check_bookmark(&request.name)?;
    let missing = || ApiError::no_such_dataset(&request.from);
    let (live, _) = host.dataset(full).map_err(|_| missing())?;
    // Names change under this lock alone.
    let _mounts = live.mounts.lock();
    let dataset = found(&live, full).map_err(|_| missing())?;
    let from = match request.from.split_once('#') {
        Some((_, other)) => BookmarkSource::Bookmark(other),
        None => BookmarkSource::Snapshot(request.from.split_once('@').map_or("", |(_, own)| own)),
    };
    let made = live.pool.make_bookmark(dataset.id(), from, own).and_then(|_| live.pool.commit());
    let doing = format!("cannot create bookmark '{}'", request.name);
    made.map(|_| Done {}).map_err(|error| match error {
        PoolError::NotFound(_) => missing().safe(NOTHING_CHANGED),
        PoolError::Exists(_) => {
            ApiError::new(ErrorKind::Exists, format!("{doing}: bookmark exists")).safe(NOTHING_CHANGED)
        }
        error => ApiError::from(error).within(doing).of_pool(pool_of(full)),
    })
}

/// Destroys a bookmark.
pub fn destroy(host: &Host, request: &DestroyBookmark) -> Result<Done> {
    let (full, own) = check_bookmark(&request.name)?;
    let missing =
        || ApiError::new(ErrorKind::NotFound, format!("bookmark '{}' does not exist.", request.name));
    let (live, _) = host.dataset(full).map_err(|_| missing())?;
    // Names change under this lock alone.
    let _mounts = live.mounts.lock();
    let dataset = found(&live, full).map_err(|_| missing())?;
    let destroyed = live.pool.destroy_bookmark(dataset.id(), own).and_then(|()| live.pool.commit());
    destroyed.map(|_| Done {}).map_err(|error| match error {
        PoolError::NotFound(_) => missing(),
        error => {
            let doing = format!("cannot destroy bookmark '{}'", request.name);
            ApiError::from(error).within(doing).of_pool(pool_of(full))
        }
    })
}
