//! `fs rollback`.

use super::super::Host;
use super::super::error::NOTHING_CHANGED;
use super::super::live::Live;
use super::destroy::{end, with_clones};
use super::snapshots::{Going, check_not_held, kept, let_go, names_one};
use super::{found, hidden};
use crate::api::name::{MAX_NAME, check_snapshot, pool_of};
use crate::api::snapshots::{Newer, Rollback, RolledBack};
use crate::api::{ApiError, ErrorKind, Properties, Result};
use crate::policy::Period;
use larder_format::BlockId;
use larder_format::tables::SnapshotRecord;
use larder_pool::PoolError;

/// Has a dataset hold again what a snapshot holds; what is mounted of it is unmounted meanwhile, and so are its
/// snapshots. Gives what became of the newer ones.
pub fn rollback(host: &Host, request: &Rollback) -> Result<RolledBack> {
    let (full, name) = check_snapshot(&request.name)?;
    let (live, _) = host.dataset(full)?;
    // Names and mounts change under this lock alone.
    let mut mounts = live.mounts.lock();
    let dataset = found(&live, full)?;
    let mut records = live.pool.snapshots(dataset.id());
    let Some(at) = records.iter().position(|record| record.name == name) else {
        return Err(ApiError::no_such_dataset(&request.name));
    };
    let newer = Going { dataset: dataset.id(), records: records.split_off(at + 1) };
    let mut names = newer.full_names(&live);
    let to = records.last().map_or(BlockId::new(0), |to| to.high);
    let marks = live.pool.bookmarks(dataset.id()).into_iter().filter(|mark| mark.high > to);
    names.extend(marks.map(|mark| format!("{full}#{}", mark.name)));
    let branch = (request.newer == Newer::Keep && !names.is_empty()).then(|| branch_of(&live, full));
    let drops = matches!(request.newer, Newer::Drop | Newer::DropClones);
    let mut rolled_back =
        RolledBack { destroyed: if drops { names.clone() } else { Vec::new() }, kept: branch.clone() };
    if !names.is_empty() && request.newer == Newer::Refuse {
        return Err(refusal(&request.name, &names));
    }
    let doing = format!("cannot rollback to '{}'", request.name);
    // Nothing is unmounted for nothing: syncoid asks for it before each increment.
    live.pool.commit().map_err(|error| ApiError::from(error).within(&doing).of_pool(pool_of(full)))?;
    if names.is_empty() && live.pool.is_at_snapshot(dataset.id(), name)? {
        return Ok(rolled_back);
    }
    if branch.is_none() {
        check_not_held(&live, [&newer]).map_err(|error| error.within(&doing))?;
    }
    if let Some(error) = branch.as_deref().and_then(|branch| too_long(branch, &newer)) {
        return Err(error.within(&doing));
    }
    if request.newer == Newer::DropClones {
        let all = Going { dataset: dataset.id(), records: above(&live, &newer, records.last()) };
        let clones = with_clones(&live, Vec::new(), &[all])?;
        if let Some(clone) = clones.iter().find(|(clone, _)| clone.id() == dataset.id()) {
            let inside = format!("{} is inside of one of its clones", live.pool.full_name(clone.0.id()));
            return Err(ApiError::new(ErrorKind::Busy, inside).safe(NOTHING_CHANGED).within(&doing));
        }
        let gone = end(&live, &mut mounts, &clones, false, None);
        rolled_back.destroyed.extend(gone.map_err(|error| error.within(&doing))?.destroyed);
    }
    if branch.is_none()
        && let Some(error) = origin(&live, &newer, records.last())
    {
        return Err(error.within(&doing).of_pool(pool_of(full)));
    }
    let mut roll = || {
        let shown = mounts.unmount_snapshots_of(dataset.id())?;
        let outcome = hidden(&live, &mut mounts, dataset.id(), |mounts| {
            live.pool.commit()?;
            let_go(&live, mounts, [&newer])?;
            mounts.wait_until_gone(dataset.id())?;
            let rolled = match &branch {
                Some(branch) => live.pool.branch(dataset.id(), name, branch, &branch_properties()),
                None => live.pool.rollback(dataset.id(), name, drops),
            };
            rolled.map_err(|error| match error {
                PoolError::Busy(text) if names.iter().any(|name| names_one(&text, name)) => {
                    kept(&names, &text)
                }
                PoolError::Busy(text) => ApiError::new(ErrorKind::Busy, text)
                    .safe(NOTHING_CHANGED)
                    .hint("try again in a moment, or when larder fs diff or space is over"),
                error => error.into(),
            })
        });
        mounts.mount_snapshots_again(shown);
        outcome
    };
    let rolled = roll();
    newer.records.iter().for_each(|record| mounts.tell_of_snapshot(record.dataset, &record.name));
    let mounted = rolled.map_err(|error: ApiError| error.within(doing).of_pool(pool_of(full)))?;
    mounted.map_err(|error| {
        let safe = "the dataset: it is as the snapshot was, only not mounted";
        error.within(format!("rolled back to '{}', but", request.name)).safe(safe)
    })?;
    Ok(rolled_back)
}

/// Properties of that dataset: nobody is to find two of one mountpoint, and no policy destroys what is kept.
fn branch_properties() -> Properties {
    let none = Period::ALL.map(|period| (period.property().to_owned(), "none".to_owned()));
    none.into_iter().chain([("canmount".to_owned(), "noauto".to_owned())]).collect()
}

/// Name of the dataset that keeps what is newer: beside the one that is rolled back, of the pool's own below.
fn branch_of(live: &Live, full: &str) -> String {
    let base = if full.contains('/') {
        format!("{full}.before-rollback")
    } else {
        format!("{full}/before-rollback")
    };
    let numbered = (2..).map(|number| format!("{base}-{number}"));
    let mut all = std::iter::once(base.clone()).chain(numbered);
    all.find(|name| live.pool.dataset_by_name(name).is_err()).unwrap_or(base)
}

/// The refusal to give a dataset this name, and these snapshots, if one is too long.
fn too_long(branch: &str, newer: &Going) -> Option<ApiError> {
    let longest = newer.records.iter().map(|record| record.name.len() + 1).max().unwrap_or(0);
    (branch.len() + longest > MAX_NAME).then(|| {
        ApiError::usage(format!("names of snapshots in '{branch}' would have more than {MAX_NAME} bytes"))
            .safe(NOTHING_CHANGED)
            .hint("larder fs rename gives the dataset a shorter name; --drop-newer destroys what is newer")
    })
}

/// The refusal to go back on a line beside which a clone begins: at a newer snapshot, or a hidden one.
fn origin(live: &Live, newer: &Going, to: Option<&SnapshotRecord>) -> Option<ApiError> {
    let pool = &live.pool;
    let (one, clone) = above(live, newer, to).into_iter().find_map(|one| {
        let clone = pool.clones(&one).pop_first()?;
        Some((one, clone))
    })?;
    let (dataset, clone) = (pool.full_name(newer.dataset), pool.full_name(clone));
    let error =
        ApiError::new(ErrorKind::Busy, format!("snapshot {dataset}@{} is the origin of {clone}", one.name));
    Some(error.safe(NOTHING_CHANGED).hint(format!(
        "larder fs rollback without -r keeps what is newer in a dataset of its own; to do without, larder fs promote \
         {clone}, or destroy it (-R)"
    )))
}

/// The newer snapshots, and hidden ones.
fn above(live: &Live, newer: &Going, to: Option<&SnapshotRecord>) -> Vec<SnapshotRecord> {
    let hidden = live.pool.hidden_snapshots(newer.dataset).into_iter();
    let hidden = hidden.filter(|one| to.is_some_and(|to| one.high > to.high));
    newer.records.iter().cloned().chain(hidden).collect()
}

fn refusal(name: &str, newer: &[String]) -> ApiError {
    let message = format!(
        "cannot rollback to '{name}': more recent snapshots or bookmarks exist\n\
         use '-r' to force deletion of the following snapshots and bookmarks:\n{}",
        newer.join("\n")
    );
    ApiError::new(ErrorKind::Busy, message).safe(NOTHING_CHANGED).hint(format!(
        "to keep them: larder fs rollback {name}; to destroy them: larder fs rollback --drop-newer {name}"
    ))
}
