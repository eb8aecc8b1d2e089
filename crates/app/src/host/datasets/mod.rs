//! The verbs of datasets: names, properties, mounts. Each change is committed before it is told as done.

mod create;
mod destroy;
mod get;
mod mounting;
mod properties;
mod rename;

pub use create::create;
pub use destroy::destroy;
pub use get::get;
pub use mounting::{mount, unmount};
pub use properties::{inherit, set};
pub use rename::rename;

use super::live::Live;
use super::mounts::{Target, can_mount, target};
use crate::api::Result;
use larder_format::DatasetId;
use larder_pool::Dataset;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A dataset and all below it, parents first.
fn family(live: &Live, top: DatasetId) -> Vec<Arc<Dataset>> {
    let mut all: Vec<Arc<Dataset>> = live.pool.dataset(top).into_iter().collect();
    let mut at = 0;
    while let Some(dataset) = all.get(at) {
        let children = live.pool.children(dataset.id());
        all.extend(children);
        at += 1;
    }
    all
}

/// Does what may move datasets: those of them (and below them) that are mounted are unmounted before and
/// mounted again after, unless they may not be any more.
fn moved(live: &Live, tops: &[DatasetId], change: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut mounts = live.mounts.lock();
    let all: BTreeSet<_> =
        tops.iter().flat_map(|&top| family(live, top)).map(|dataset| dataset.id()).collect();
    let was: BTreeSet<_> = all.iter().copied().filter(|&id| mounts.path(id).is_some()).collect();
    for &top in tops {
        for dataset in family(live, top) {
            mounts.unmount(dataset.id())?;
        }
    }
    let outcome = change();
    if outcome.is_ok() {
        live.pool.commit()?;
    }
    let mut again: Vec<_> = all
        .into_iter()
        .filter_map(|id| live.pool.dataset(id))
        .filter(|dataset| {
            let wanted = can_mount(&live.pool, dataset);
            wanted == "on" || (wanted == "noauto" && was.contains(&dataset.id()))
        })
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
    outcome.and(mounted)
}

/// Whether a property says where datasets are mounted.
fn moves(property: &str) -> bool {
    matches!(property, "mountpoint" | "canmount")
}
