//! `fs dedup` and `fs rewrite`: passes over what datasets have stored, which the thread of maintenance drives.

use super::Host;
use super::datasets::family;
use super::live::Live;
use crate::api::name::pool_of;
use crate::api::pass::{PassList, PassState, PassStatus, ShowPasses, StartPass, StopPass, Task};
use crate::api::{ApiError, Result};
use larder_format::DatasetId;
use larder_pool::Tally;
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
                true => family(&live, dataset.id()).iter().map(|one| one.id()).collect(),
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
        };
        let mut passes = Vec::new();
        for (name, (live, datasets)) in self.chosen(request)? {
            let failed = |error: larder_pool::PoolError| {
                let what = match request.task {
                    Task::Dedup => "look for duplicates",
                    Task::Rewrite => "rewrite",
                };
                ApiError::from(error).within(format!("cannot {what} in '{name}'")).of_pool(&name)
            };
            if request.dry_run {
                passes.push(estimate(&live, request, &datasets).map_err(failed)?);
                continue;
            }
            let live = self.writable(&name)?;
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
    };
    let state = match state {
        upkeep::PassState::Active => PassState::Running,
        upkeep::PassState::Stopped => PassState::Stopped,
        upkeep::PassState::Full => PassState::Full,
        upkeep::PassState::Done => PassState::Done,
    };
    let told = told(live, (task, state), &pass.datasets, pass.examined, pass.tally);
    let finished = pass.finished.map(|at| at.secs);
    Some(PassStatus { started: pass.started.secs, finished, total: pass.total, ..told })
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
    }
}

/// Estimate of what a pass over these datasets would come to.
fn estimate(live: &Live, request: &StartPass, datasets: &[DatasetId]) -> larder_pool::Result<PassStatus> {
    let passes = &live.upkeep.passes;
    let estimated = match request.task {
        Task::Dedup => passes.estimate_dedup(datasets)?,
        Task::Rewrite => passes.estimate_rewrite(datasets, &request.properties)?,
    };
    let of = (request.task, PassState::Estimate);
    Ok(told(live, of, datasets, estimated.examined, estimated.tally))
}
