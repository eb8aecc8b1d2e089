//! The verbs of datasets: names, properties, mounts. Each change is committed before it is told as done.

mod bookmarks;
mod clones;
mod create;
mod destroy;
mod get;
mod holds;
mod mounting;
mod policies;
mod properties;
mod rename;
mod rollback;
mod snapshots;
mod space;
mod trash;

pub use bookmarks::{bookmark, destroy as destroy_bookmark};
pub use clones::{clone_snapshot, promote};
pub use create::create;
pub use destroy::{destroy, destroy_snapshots};
pub use get::get;
pub use holds::{hold, holds, release};
pub use mounting::{mount, unmount};
pub use policies::{run as run_policies, show as show_policies};
pub use properties::{inherit, set};
pub use rename::rename;
pub use rollback::rollback;
pub use snapshots::{rename as rename_snapshot, snapshot};
pub use space::space;
pub use trash::{empty as empty_trash, keeps as keeps_trash, trash, undestroy};

use super::live::Live;
use super::mounts::{Mounts, Target, can_mount, target};
use crate::api::{ApiError, Result, Source};
use larder_format::DatasetId;
use larder_pool::{Dataset, Pool, PropertySource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The dataset of a full name, for whoever holds the lock of the mounts: under it names stay what they are.
fn found(live: &Live, full: &str) -> Result<Arc<Dataset>> {
    live.pool.dataset_by_name(full).map_err(|_| ApiError::no_such_dataset(full))
}

/// A dataset and all below it, parents first.
pub fn family(pool: &Pool, top: DatasetId) -> Vec<Arc<Dataset>> {
    let mut children: BTreeMap<DatasetId, Vec<Arc<Dataset>>> = BTreeMap::new();
    for dataset in pool.datasets().into_iter().filter(|one| !one.is_staging()) {
        children.entry(dataset.parent()).or_default().push(dataset);
    }
    let mut all: Vec<Arc<Dataset>> = pool.dataset(top).into_iter().collect();
    let mut at = 0;
    while let Some(dataset) = all.get(at) {
        let mut below = children.remove(&dataset.id()).unwrap_or_default();
        // The pool's own is inside of itself.
        below.retain(|below| below.id() != dataset.id());
        below.sort_by_cached_key(|below| below.last_name());
        all.extend(below);
        at += 1;
    }
    all
}

/// Where a value comes from, as people are told.
fn source(pool: &Pool, from: PropertySource) -> Source {
    match from {
        PropertySource::Local => Source::Local,
        PropertySource::Received => Source::Received,
        PropertySource::Default => Source::Default,
        PropertySource::Inherited(id) => Source::Inherited(pool.full_name(id)),
    }
}

/// Outcome of mounting after a change that stands: the first failure.
type Remounted = Result<()>;

/// Does what may move datasets, its commit included: those of them (and below them) that are mounted are unmounted
/// before and mounted again after, unless they may not be any more; so is what hung on their mounts. Gives what
/// became of mounting. When the change fails, all is mounted that was.
fn moved(
    live: &Live,
    mounts: &mut Mounts,
    tops: &[DatasetId],
    change: impl FnOnce() -> Result<()>,
) -> Result<Remounted> {
    let family: Vec<_> =
        tops.iter().flat_map(|&top| family(&live.pool, top)).map(|dataset| dataset.id()).collect();
    let gone = mounts.unmount_each(family.iter().copied())?;
    if let Err(error) = change() {
        mounts.mount_again(&gone);
        return Err(error);
    }
    Ok(mount_again(live, mounts, family.iter().chain(&gone), |dataset| {
        let wanted = can_mount(&live.pool, dataset);
        wanted == "on" || (wanted == "noauto" && gone.contains(&dataset.id()))
    }))
}

/// Does what nobody may see the files of a dataset meanwhile of: what is mounted of it and below it is unmounted before
/// and mounted again after. Gives what became of mounting. When the change fails, all is mounted that was.
fn hidden(
    live: &Live,
    mounts: &mut Mounts,
    dataset: DatasetId,
    change: impl FnOnce(&mut Mounts) -> Result<()>,
) -> Result<Remounted> {
    let gone = mounts.unmount(dataset)?;
    if let Err(error) = change(mounts) {
        mounts.mount_again(&gone);
        return Err(error);
    }
    Ok(mount_again(live, mounts, &gone, |_| true))
}

/// Mounts those of some datasets that are wanted and have a place, parents first.
fn mount_again<'a>(
    live: &Live,
    mounts: &mut Mounts,
    all: impl IntoIterator<Item = &'a DatasetId>,
    wanted: impl Fn(&Dataset) -> bool,
) -> Remounted {
    let all: BTreeSet<_> = all.into_iter().copied().collect();
    let mut again: Vec<_> = all
        .into_iter()
        .filter_map(|id| live.pool.dataset(id))
        .filter(|dataset| wanted(dataset))
        .filter(|dataset| matches!(target(&live.pool, dataset), Target::Path(_)))
        .map(|dataset| (live.pool.full_name(dataset.id()), dataset))
        .collect();
    again.sort_by(|a, b| a.0.cmp(&b.0));
    let mut mounted = Ok(());
    for (_, dataset) in again {
        if mounts.path(dataset.id()).is_none() {
            mounted = mounted.and(mounts.mount(&dataset));
        }
    }
    mounted
}

/// Whether a property says where datasets are mounted.
fn moves(property: &str) -> bool {
    matches!(property, "mountpoint" | "canmount")
}
