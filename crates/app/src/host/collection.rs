//! When a pool is traced, how fast, and what is told of it.
//!
//! A thread of each pool starts a trace by schedule (the property `trace`), when much of the pool may be dead, and
//! anew when a crash or an export cut one short; it drives those that people start as well. While others use the
//! pool it takes a part of the time only. The thread drives rebuilding the dedup index too, which is as little urgent.

use super::live::{Live, Stop};
use crate::api::diff::Path;
use crate::api::trace::{
    Blocks, FolderSharing, PoolFolders, References, Sharing, SharingByFolder, Trace, TraceState, TraceStatus,
};
use crate::api::{ApiError, ErrorKind, Result};
use larder_files::Folders;
use larder_pool::Pool;
use larder_upkeep::Upkeep;
use larder_upkeep::gc::{Amount, Findings, Outcome, Parts};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// Interval of checks whether a trace is due.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Nodes that a step reads, at most: some milliseconds, tens of them on a hard disk.
const EFFORT: usize = 64;
/// While others are busy: of so many parts of the time, a step takes one.
const BUSY_PARTS: u32 = 5;
/// A trace that space needs is not begun sooner than this after the last one.
const NEED_INTERVAL_SECS: i64 = 600;
/// It is needed when this part of the pool may be dead, or is all that is available.
const NEED_PART: u64 = 16;
/// Interval of polls for the end of a trace.
const WAIT: Duration = Duration::from_millis(50);

/// The thread's life.
pub fn collect_now_and_then(upkeep: &Upkeep, stop: &Stop) {
    let (pool, mut used) = (upkeep.pool(), 0);
    while stop.pause(POLL_INTERVAL) {
        if pool.store().suspended().is_some() {
            continue;
        }
        if upkeep.gc.progress().is_none() && is_due(upkeep) && complain(pool, upkeep.gc.start()).is_none() {
            // Not at once again.
            stop.pause(Duration::from_secs(NEED_INTERVAL_SECS as u64 / 10));
            continue;
        }
        while (upkeep.gc.progress().is_some() || pool.rebuild_progress().is_some()) && !stop.is_asked() {
            let begun = pool.store().clock().monotonic();
            let stepped = upkeep.gc.step(EFFORT).and_then(|_| pool.rebuild_step(EFFORT));
            if complain(pool, stepped).is_none() {
                // It is taken up again after a while.
                break;
            }
            let took = pool.store().clock().monotonic().saturating_sub(begun);
            let before = std::mem::replace(&mut used, uses(pool));
            if (used != before || pool.store().dirty().get() > 0) && !stop.pause(took * (BUSY_PARTS - 1)) {
                break;
            }
        }
    }
}

/// Look-ups of others: the trace's own do not count.
pub fn uses(pool: &Pool) -> u64 {
    let stats = pool.store().cache_stats();
    [stats.demand_data, stats.demand_metadata].iter().map(|looked| looked.hits + looked.misses).sum()
}

/// The result, if any; an error goes to the log.
fn complain<T>(pool: &Pool, outcome: larder_pool::Result<T>) -> Option<T> {
    outcome.inspect_err(|error| warn!("pool {}: trace: {error}", pool.name())).ok()
}

/// Whether a trace should begin.
fn is_due(upkeep: &Upkeep) -> bool {
    let pool = upkeep.pool();
    if upkeep.gc.was_cut() {
        return true;
    }
    let last = upkeep.gc.findings().map_or(pool.created(), |found| found.finished).secs;
    let now = pool.store().clock().now().secs;
    let space = pool.store().space(128 << 10);
    let left = pool.freeing().left_bytes();
    let needed = left > space.size / NEED_PART || left > 0 && space.available < space.size / NEED_PART;
    is_time(needed, period_secs(pool), last, now)
}

/// Whether so much has passed since the last trace that another may begin: less where it is needed.
fn is_time(needed: bool, period: Option<i64>, last: i64, now: i64) -> bool {
    needed && has_passed(NEED_INTERVAL_SECS, last, now)
        || period.is_some_and(|period| has_passed(period, last, now))
}

/// Whether so many seconds have passed. When the last trace or scrub ended later than it is now, the clock was wrong
/// then, or is: rather one too many than none for years.
pub fn has_passed(period: i64, last: i64, now: i64) -> bool {
    now < last || now.saturating_sub(last) >= period
}

/// Seconds from one trace to the next.
fn period_secs(pool: &Pool) -> Option<i64> {
    let set = pool.pool_properties().remove("trace");
    let default = larder_pool::property::pool("trace").and_then(|known| known.default);
    match set.as_deref().or(default)? {
        "weekly" => Some(7 * 86_400),
        "monthly" => Some(30 * 86_400),
        _ => None,
    }
}

impl Live {
    /// Starts a trace, or stops it.
    ///
    /// # Errors
    /// When the pool cannot be written, or a trace is under way already and one by folder is asked for.
    pub fn trace(&self, request: &Trace) -> Result<()> {
        match request.folders {
            _ if request.stop => self.upkeep.gc.stop()?,
            None => drop(self.upkeep.gc.start()?),
            Some(depth) => {
                if !self.upkeep.gc.start_split(Folders::new(depth))? {
                    let name = self.pool.name();
                    return Err(ApiError::new(ErrorKind::Busy, "a trace is under way already")
                        .hint(format!("larder pool wait -t trace {name}, and again")));
                }
            }
        }
        Ok(())
    }

    /// Returns when no trace is under way, or the pool is exported.
    pub fn wait_for_trace(&self) {
        while self.upkeep.gc.progress().is_some() && !self.is_ending() {
            super::pause(WAIT);
        }
    }
}

/// The trace that is under way, or else what the last one found.
pub fn status(upkeep: &Upkeep) -> Option<TraceStatus> {
    let pool = upkeep.pool();
    if let Some(progress) = upkeep.gc.progress() {
        return Some(TraceStatus {
            started: progress.started.secs,
            total: progress.total,
            examined: progress.examined,
            ..TraceStatus::default()
        });
    }
    upkeep.gc.findings().map(|found| told(pool, found))
}

/// Findings of the last trace by folder.
pub fn folders(live: &Live) -> PoolFolders {
    let found = live.upkeep.gc.parts().and_then(|parts| by_folder(&live.pool, &parts));
    PoolFolders { name: live.pool.name(), found }
}

fn by_folder(pool: &Pool, parts: &Parts) -> Option<SharingByFolder> {
    let split: Arc<dyn Any + Send + Sync> = Arc::clone(&parts.split) as _;
    let folders = split.downcast::<Folders>().ok()?;
    let gaps = folders.gaps();
    let (mut all, mut part) = (Vec::new(), 0);
    for of_dataset in parts.sharing.chunk_by(|a, b| a.dataset == b.dataset) {
        let id = of_dataset.first().map(|of| of.dataset).unwrap_or_default();
        let dataset = pool.full_name(id);
        let dedup = pool.effective(id, "dedup").is_some_and(|dedup| dedup.value != "off");
        for of in of_dataset {
            let path: Option<Path> = folders.path(part).map(Path::from);
            part += 1;
            // Folders without files count where those below them are added up.
            if path.is_some() || of.references > 0 {
                let (references, logical, allocated, share) =
                    (of.references, of.logical, of.allocated, of.share);
                let dataset = dataset.clone();
                all.push(FolderSharing { dataset, path, dedup, references, logical, allocated, share });
            }
        }
    }
    // One that is gone by now has no name.
    all.retain(|of| !of.dataset.is_empty());
    Some(SharingByFolder {
        depth: folders.depth(),
        unnumbered: gaps.unnumbered,
        full: gaps.full,
        unread: gaps.unread,
        memory: folders.most_bytes() as u64,
        folders: all,
    })
}

fn told(pool: &Pool, found: Findings) -> TraceStatus {
    let (state, failure) = match found.outcome {
        Outcome::Done => (TraceState::Done, None),
        Outcome::Stopped => (TraceState::Stopped, None),
        Outcome::Failed(why) => (TraceState::Failed, Some(why)),
    };
    let blocks = |amount: Amount| Blocks { blocks: amount.blocks, bytes: amount.bytes };
    let total = found.live.blocks + found.queued.blocks + found.dead.blocks + found.unreachable.blocks;
    let classes = found.histogram.iter().enumerate().filter(|(_, of)| of.blocks > 0);
    let references = classes.map(|(class, of)| References {
        references: 1 << class,
        blocks: of.blocks,
        logical: of.logical,
        stored: of.stored,
        allocated: of.allocated,
        referenced_blocks: of.referenced,
        referenced_logical: of.referenced_logical,
        referenced_stored: of.referenced_stored,
        referenced_allocated: of.referenced_allocated,
    });
    let sharing = found.sharing.iter().map(|of| Sharing {
        dataset: pool.full_name(of.dataset),
        references: of.references,
        logical: of.logical,
        allocated: of.allocated,
        share: of.share,
    });
    TraceStatus {
        state,
        failure,
        from: found.from.get(),
        started: found.started.secs,
        finished: Some(found.finished.secs),
        total,
        examined: total,
        live: blocks(found.live),
        queued: blocks(found.queued),
        dead: blocks(found.dead),
        unreachable: blocks(found.unreachable),
        missing: found.missing,
        missing_sample: found.missing_sample,
        lost: found.lost,
        lost_in: found.lost_in.iter().map(|&id| pool.full_name(id)).filter(|name| !name.is_empty()).collect(),
        references: references.collect(),
        fingerprinted: found.fingerprinted,
        sharing: sharing.filter(|of| !of.dataset.is_empty()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn time_has_passed_also_when_the_clock_was_wrong() {
        let week = 7 * 86_400;
        assert!(!has_passed(week, 1_000_000, 1_000_000 + week - 1));
        assert!(has_passed(week, 1_000_000, 1_000_000 + week));
        assert!(has_passed(week, 4_200_000_000, 1_800_000_000), "it ended in a time to come");
    }

    #[test]
    fn a_trace_is_due_by_its_schedule_and_sooner_where_it_is_needed() {
        let week = 7 * 86_400;
        assert!(!is_time(true, None, NOW - NEED_INTERVAL_SECS + 1, NOW));
        assert!(is_time(true, None, NOW - NEED_INTERVAL_SECS, NOW));
        assert!(!is_time(false, Some(week), NOW - week + 1, NOW));
        assert!(is_time(false, Some(week), NOW - week, NOW));
        assert!(!is_time(false, None, 0, NOW));
    }

    #[test]
    fn a_trace_that_ended_in_a_time_to_come_puts_off_no_other() {
        let ten_years = 10 * 365 * 86_400;
        assert!(is_time(true, None, NOW + ten_years, NOW));
        assert!(is_time(false, Some(7 * 86_400), NOW + ten_years, NOW));
        assert!(!is_time(false, None, NOW + ten_years, NOW), "nothing asks for one");
    }
}
