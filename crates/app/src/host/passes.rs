//! `fs dedup` and `fs rewrite`: passes over what datasets have stored, which the thread of maintenance drives.

use super::Host;
use super::datasets::family;
use super::live::Live;
use crate::api::name::pool_of;
use crate::api::pass::{PassList, PassState, PassStatus, ShowPasses, StartPass, StopPass, Task};
use crate::api::{ApiError, Result};
use larder_format::{DatasetId, Timestamp};
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
                passes.push(estimate(&live, &name, request, &datasets).map_err(failed)?);
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
    let tally = pass.tally;
    Some(PassStatus {
        pool: live.pool.name(),
        task: match pass.task {
            upkeep::Task::Dedup => Task::Dedup,
            upkeep::Task::Rewrite => Task::Rewrite,
        },
        state: match pass.state {
            upkeep::PassState::Active => PassState::Running,
            upkeep::PassState::Stopped => PassState::Stopped,
            upkeep::PassState::Done => PassState::Done,
        },
        datasets: names(live, &pass.datasets),
        started: pass.started.secs,
        finished: pass.finished.map(|at: Timestamp| at.secs),
        examined: pass.examined,
        total: pass.total,
        records: tally.records,
        read: tally.read,
        changed: tally.changed,
        before: tally.before,
        after: tally.after,
        unread: tally.unread,
    })
}

fn names(live: &Live, datasets: &[DatasetId]) -> Vec<String> {
    let known = datasets.iter().filter_map(|id| live.pool.dataset(*id));
    known.map(|dataset| live.pool.full_name(dataset.id())).collect()
}

/// Estimate of what a pass over these datasets would come to.
fn estimate(
    live: &Live,
    name: &str,
    request: &StartPass,
    datasets: &[DatasetId],
) -> larder_pool::Result<PassStatus> {
    let passes = &live.upkeep.passes;
    let estimated = match request.task {
        Task::Dedup => passes.estimate_dedup(datasets)?,
        Task::Rewrite => passes.estimate_rewrite(datasets, &request.properties)?,
    };
    let tally = estimated.tally;
    Ok(PassStatus {
        pool: name.to_owned(),
        task: request.task,
        state: PassState::Estimate,
        datasets: names(live, datasets),
        started: 0,
        finished: None,
        examined: estimated.examined,
        total: estimated.examined,
        records: tally.records,
        read: tally.read,
        changed: tally.changed,
        before: tally.before,
        after: tally.after,
        unread: tally.unread,
    })
}
