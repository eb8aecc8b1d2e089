//! `fs dedup`, `fs undedup` and `fs rewrite`: passes over what datasets have stored, which the thread of maintenance
//! drives.

use super::Host;
use super::chronicle::damaged_files;
use super::datasets::family;
use super::error::NOTHING_CHANGED;
use super::live::Live;
use crate::api::name::pool_of;
use crate::api::pass::{PassList, PassState, PassStatus, ShowPasses, StartPass, StopPass, Task};
use crate::api::{ApiError, ErrorKind, Result};
use larder_format::DatasetId;
use larder_pool::Tally;
use larder_pool::property::format_size;
use larder_upkeep as upkeep;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pools of a request, each with its datasets.
type Chosen = BTreeMap<String, (Arc<Live>, Vec<DatasetId>)>;

impl Host {
    fn chosen(&self, request: &StartPass) -> Result<Chosen> {
        let mut chosen = Chosen::new();
        for full in &request.names {
            let (live, dataset) = self.dataset(full)?;
            let datasets = match request.recursive {
                true => family(&live.pool, dataset.id()).iter().map(|one| one.id()).collect(),
                false => vec![dataset.id()],
            };
            let (_, all) =
                chosen.entry(pool_of(full).to_owned()).or_insert_with(|| (Arc::clone(&live), Vec::new()));
            all.extend(datasets);
        }
        Ok(chosen)
    }

    /// Begins a pass in each pool that datasets were named of.
    pub(super) fn start_pass(&self, request: &StartPass) -> Result<PassList> {
        let task = match request.task {
            Task::Dedup => upkeep::Task::Dedup,
            Task::Rewrite => upkeep::Task::Rewrite,
            Task::Undedup => upkeep::Task::Undedup,
            Task::Records => upkeep::Task::Records,
        };
        let is_of_files = matches!(request.task, Task::Undedup | Task::Records);
        let mut passes = Vec::new();
        for (name, (live, mut datasets)) in self.chosen(request)? {
            if is_of_files {
                check_files(&live, request, &mut datasets)?;
            }
            let failed = |error: larder_pool::PoolError| {
                let what = what(request.task);
                ApiError::from(error).within(format!("cannot {what} in '{name}'")).of_pool(&name)
            };
            if request.dry_run {
                passes.push(estimate(&live, request, &datasets).map_err(failed)?);
                continue;
            }
            let live = self.writable(&name)?;
            if is_of_files && !live.upkeep.passes.is_active() {
                // Writers have met that dedup is off.
                live.pool.commit().map_err(failed)?;
                check_room(&live, request.task, &name, &datasets).map_err(failed)??;
            }
            let begun = live.upkeep.passes.start(task, datasets, request.rate);
            begun.and_then(|()| live.pool.commit().map(drop)).map_err(failed)?;
            passes.extend(status(&live));
        }
        Ok(PassList { passes })
    }

    /// Ends the passes of pools.
    pub(super) fn stop_pass(&self, request: &StopPass) -> Result<PassList> {
        let mut passes = Vec::new();
        for name in &request.names {
            let live = self.writable(name)?;
            let stopped = live.upkeep.passes.stop().and_then(|()| live.pool.commit().map(drop));
            stopped.map_err(|error| {
                ApiError::from(error).within(format!("cannot stop in '{name}'")).of_pool(name)
            })?;
            passes.extend(status(&live));
        }
        Ok(PassList { passes })
    }

    /// The passes of pools.
    pub(super) fn passes(&self, request: &ShowPasses) -> Result<PassList> {
        let pools = self.pools_named(&request.names)?;
        Ok(PassList { passes: pools.iter().filter_map(|live| status(live)).collect() })
    }
}

fn what(task: Task) -> &'static str {
    match task {
        Task::Dedup => "look for duplicates",
        Task::Rewrite => "rewrite",
        Task::Undedup => "undo deduplication",
        Task::Records => "cut files anew",
    }
}

/// Sees to it that files of these datasets can be changed, and do not come to share anything again. Those that were
/// found below others and have no files are left out.
fn check_files(live: &Live, request: &StartPass, datasets: &mut Vec<DatasetId>) -> Result<()> {
    let is_served = |id: &DatasetId| live.mount.volume(*id).is_some();
    let has_files = |id: &DatasetId| live.pool.dataset(*id).is_some_and(|of| of.usage().logical > 0);
    datasets.retain(|id| !request.recursive || is_served(id) || has_files(id));
    for id in &*datasets {
        let name = live.pool.full_name(*id);
        let refused = |kind, why: String| {
            let what = what(request.task);
            ApiError::new(kind, format!("cannot {what} in '{name}': {why}")).safe(NOTHING_CHANGED)
        };
        let dedup = live.pool.effective(*id, "dedup").map_or_else(String::new, |found| found.value);
        if request.task == Task::Undedup && dedup != "off" && !request.dry_run {
            let why = format!("its dedup is {dedup}: what is written meanwhile would be shared again");
            return Err(refused(ErrorKind::Usage, why).hint(format!("larder fs set dedup=off {name}")));
        }
        if !is_served(id) {
            let why = "it is not mounted, and its files are changed".to_owned();
            return Err(refused(ErrorKind::Usage, why).hint(format!("larder fs mount {name}")));
        }
        let is_read_only = live.pool.dataset(*id).is_some_and(|of| of.settings().readonly);
        if is_read_only && !request.dry_run {
            let why = "it is read-only".to_owned();
            return Err(refused(ErrorKind::ReadOnly, why).hint(format!("larder fs set readonly=off {name}")));
        }
    }
    Ok(())
}

/// Refuses to begin what would not find room.
fn check_room(
    live: &Live,
    task: Task,
    name: &str,
    datasets: &[DatasetId],
) -> larder_pool::Result<Result<()>> {
    let passes = &live.upkeep.passes;
    let needed = match task {
        Task::Records => {
            // All that no snapshot holds is given back.
            let told = passes.estimate_records(datasets, &BTreeMap::new())?.tally;
            told.kept + told.after.saturating_sub(told.before)
        }
        _ => passes.estimate_undedup(datasets)?.tally.after,
    };
    let record_size = datasets.iter().filter_map(|id| Some(live.pool.dataset(*id)?.settings().record_size));
    let available = live.pool.store().space(record_size.max().unwrap_or(0)).available;
    if needed <= available {
        return Ok(Ok(()));
    }
    let (needed, available) = (format_size(needed), format_size(available));
    let (taken, hint) = match task {
        Task::Records => (
            "new records beside the old ones that snapshots hold",
            "free some, destroy snapshots, or take one dataset after the other; larder fs rewrite --records -n tells what each takes",
        ),
        _ => (
            "blocks of their own",
            "free some, or undo one dataset after the other; larder fs undedup -n tells what each takes",
        ),
    };
    let text =
        format!("cannot {} in '{name}': {taken} would take {needed}, {available} is available", what(task));
    Ok(Err(ApiError::new(ErrorKind::NoSpace, text).safe(NOTHING_CHANGED).hint(hint)))
}

/// The pass of a pool that is under way, or was stopped.
pub(super) fn unfinished(live: &Live) -> Option<PassStatus> {
    status(live).filter(|pass| pass.state != PassState::Done)
}

/// The pass of a pool.
fn status(live: &Live) -> Option<PassStatus> {
    let pass = live.upkeep.passes.last()?;
    let (task, state) = match (pass.task, pass.state) {
        (upkeep::Task::Dedup, state) => (Task::Dedup, state),
        (upkeep::Task::Rewrite, state) => (Task::Rewrite, state),
        (upkeep::Task::Undedup, state) => (Task::Undedup, state),
        (upkeep::Task::Records, state) => (Task::Records, state),
    };
    let state = match state {
        upkeep::PassState::Active => PassState::Running,
        upkeep::PassState::Stopped => PassState::Stopped,
        upkeep::PassState::Full => PassState::Full,
        upkeep::PassState::Done => PassState::Done,
    };
    let told = told(live, (task, state), &pass.datasets, pass.examined, pass.tally);
    let finished = pass.finished.map(|at| at.secs);
    let has_damaged = task == Task::Records && state != PassState::Running && pass.tally.unread > 0;
    let damaged = if has_damaged { damaged_files(live, &pass.datasets) } else { Vec::new() };
    Some(PassStatus { started: pass.started.secs, finished, total: pass.total, damaged, ..told })
}

fn told(
    live: &Live,
    (task, state): (Task, PassState),
    datasets: &[DatasetId],
    examined: u64,
    tally: Tally,
) -> PassStatus {
    // Some may be gone.
    let known = datasets.iter().filter_map(|id| live.pool.dataset(*id));
    PassStatus {
        pool: live.pool.name(),
        task,
        state,
        datasets: known.map(|dataset| live.pool.full_name(dataset.id())).collect(),
        started: 0,
        finished: None,
        examined,
        total: examined,
        records: tally.records,
        read: tally.read,
        changed: tally.changed,
        before: tally.before,
        after: tally.after,
        unread: tally.unread,
        damaged: Vec::new(),
        kept: tally.kept,
    }
}

/// Estimate of what a pass over these datasets would come to.
fn estimate(live: &Live, request: &StartPass, datasets: &[DatasetId]) -> larder_pool::Result<PassStatus> {
    let passes = &live.upkeep.passes;
    let estimated = match request.task {
        Task::Dedup => passes.estimate_dedup(datasets)?,
        Task::Rewrite => passes.estimate_rewrite(datasets, &request.properties)?,
        Task::Undedup => passes.estimate_undedup(datasets)?,
        Task::Records => passes.estimate_records(datasets, &request.properties)?,
    };
    let of = (request.task, PassState::Estimate);
    Ok(told(live, of, datasets, estimated.examined, estimated.tally))
}
