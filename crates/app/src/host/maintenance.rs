//! Automatic maintenance of a pool: it mends what reads found wrong, resilvers (which takes devices back that missed
//! commits), scrubs, trims, has spares take places, opens devices anew that were away, and has snapshots taken by
//! policy.
//!
//! A thread of each pool takes one step after the other. Work that somebody waits for goes first: stripes that a read
//! found wrong, then resilvers, then data that no longer fits the shape of its group, then scrubs; then the names of
//! files whose data nothing can give back; last passes over what is stored. While nobody else uses the pool it goes as
//! fast as the devices do; while others do, it takes a share of the time. Steps are short enough that others do not
//! wait long. The properties `scan_rate`, `scrub` and `scrub_window` are looked at before each step, so that they take
//! effect at once.
//!
//! Datasets with `dedup=later` are gone through for duplicates after a minute without requests, when they changed, some
//! hours after the last time.
//!
//! A scrub that somebody asked for does not wait for the window. The state of a scan is the pool's own and outlives
//! imports; notes keep what is only shown: who asked, since when it is paused.

use super::devices::{self, Scope};
use super::live::{Live, Stop};
use super::policies::Rounds;
use super::{collection, roster};
use crate::api::pool::{RebalanceState, RebalanceStatus, Scan, ScanKind};
use larder_device::OpenMode;
use larder_format::DeviceIndex;
use larder_pool::member::{Member, MemberState};
use larder_pool::open::{self, Found};
use larder_pool::property::{self, Window};
use larder_pool::{Dataset, Pool, Result};
use larder_sync::Mutex;
use larder_upkeep::{ScrubOutcome, ScrubProgress, ScrubSince, Task, Upkeep};
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::warn;

/// Interval of checks for work.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which devices that are away are looked for, spares are offered, and schedules are read.
const ROUND: Duration = Duration::from_secs(3);
/// Interval of probes of spares, which nothing else reads.
const PROBE: Duration = Duration::from_secs(300);
/// Pause before a move that found no room is tried again.
const FOR_ROOM: Duration = Duration::from_millis(500);
/// After a failure, the next try comes so late.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// Target time of a step while nobody else uses the pool, and while others do.
const STEP_ALONE: Duration = Duration::from_millis(250);
const STEP_BESIDE: Duration = Duration::from_millis(40);
/// Bytes of a step: what it begins with, and what bounds it.
const STEP_FIRST: u64 = 16 << 20;
const STEP_LEAST: u64 = 1 << 20;
const STEP_LEAST_LIMITED: u64 = 64 << 10;
const STEP_MOST: u64 = 512 << 20;
/// While others are busy: of so many parts of the time, a step takes one.
const RESILVER_PARTS: u32 = 2;
const SCRUB_PARTS: u32 = 4;
/// Time until a device that could not be read is looked at again.
const AGAIN: Duration = Duration::from_secs(60);
/// Of the time, a trim takes no more than one of so many parts, whoever is busy: devices do it beside the rest.
const TRIM_PARTS: u32 = 2;
/// The stretch over which a rate is told, and the least from which an end can be told.
const STRETCH: Duration = Duration::from_secs(30);
const STRETCH_LEAST: Duration = Duration::from_secs(3);
/// Leaves of trees that a step looks at for the names of what is lost.
const NAMED: usize = 64;
/// Interval of polls for the end of a scan or trim.
const WAIT: Duration = Duration::from_millis(50);

/// Time without a request after which duplicates are looked for in datasets with `dedup=later`.
const QUIET: Duration = Duration::from_secs(60);

/// Seconds from the end of one pass until they are looked for again: disks may rest.
const SELDOM: i64 = 6 * 3600;
/// Heads of those when that began last.
const NOTE_LATER: &str = "dedup:later";
const NOTE_ASKED: &str = "scan:asked";
const NOTE_PAUSED: &str = "scan:paused";

/// Recent speed of scans.
#[derive(Default)]
pub struct Pace {
    resilver: Mutex<Samples>,
    rebalance: Mutex<Samples>,
    scrub: Mutex<Samples>,
    /// A resilver is under way, or is over and the commit that completes it may not be.
    resilvering: AtomicBool,
}

/// Bytes that were examined at some moments of the last stretch.
#[derive(Default)]
struct Samples(VecDeque<(Duration, u64)>);

impl Samples {
    fn note(&mut self, now: Duration, examined: u64) {
        // A scan that began anew, or has found out how much there is.
        if self.0.back().is_some_and(|&(_, before)| before > examined) {
            self.0.clear();
        }
        self.0.push_back((now, examined));
        while self.0.len() > 2 && now.saturating_sub(self.0[1].0) >= STRETCH {
            self.0.pop_front();
        }
    }

    /// Bytes a second until `now`; nothing while the stretch is too short to tell.
    fn rate(&self, now: Duration) -> Option<u64> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let stretch = now.saturating_sub(first.0);
        let bytes = u128::from(last.1 - first.1);
        let told = stretch >= STRETCH_LEAST && bytes > 0;
        told.then(|| (bytes * 1_000_000_000 / stretch.as_nanos()) as u64)
    }
}

/// A thread's memory.
struct Maintenance<'a> {
    pool: &'a Pool,
    upkeep: &'a Upkeep,
    pace: &'a Pace,
    scope: &'a Scope,
    /// When the last round was.
    round: Option<Duration>,
    /// When spares were looked at.
    probed: Option<Duration>,
    /// Bytes of the next step.
    step: u64,
    /// Look-ups of others when the last step ended.
    used: u64,
    /// The last step, to rest from it.
    last: Option<Step>,
    /// Look-ups of others, and since when there were no more.
    quiet: Option<(u64, Duration)>,
    /// When the next step of a trim may begin.
    trim_at: Duration,
    /// Groups changed their shape, and something may have to move.
    moves: bool,
    wait_for_room: bool,
    /// The file or device last found where a member should be: not tried again until it changes, or until then.
    vain: HashMap<DeviceIndex, (Vain, Duration)>,
}

/// A step of a scan.
#[derive(Debug, Clone, Copy)]
struct Step {
    ended: Duration,
    took: Duration,
    examined: u64,
    /// Others were busy: it takes one of so many parts of the time.
    parts: u32,
}

impl Step {
    /// When the next one may begin: after the share of others, and at `rate` bytes a second at most.
    fn rest(&self, rate: u64) -> Duration {
        let share = self.took * (self.parts - 1);
        if rate == 0 {
            return share;
        }
        let nanos = u128::from(self.examined) * 1_000_000_000 / u128::from(rate);
        let whole = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        share.max(whole.saturating_sub(self.took))
    }
}

/// A file as it was when it was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Vain {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// The thread's life. `scope` is where devices that import did not find may come back; `policies` take and destroy
/// snapshots.
pub fn maintain(upkeep: &Upkeep, stop: &Stop, pace: &Pace, scope: &Scope, mut policies: Rounds) {
    let (pool, mut maintenance) = (upkeep.pool(), Maintenance::new(upkeep, pace, scope));
    let mut rest = POLL_INTERVAL;
    while stop.pause(rest) {
        rest = POLL_INTERVAL;
        if pool.store().suspended().is_some() {
            continue;
        }
        let now = pool.store().clock().monotonic();
        if maintenance.round.is_none_or(|round| now.saturating_sub(round) >= ROUND) {
            maintenance.round = Some(now);
            maintenance.look_around();
            policies.turn();
        }
        match maintenance.turn() {
            Ok(Some(pause)) => rest = pause,
            Ok(None) => {}
            Err(error) => {
                complain(pool, &error);
                rest = AFTER_FAILURE;
            }
        }
    }
}

/// Logs a failure.
fn complain(pool: &Pool, error: &dyn std::fmt::Display) {
    warn!("pool {}: healing: {error}", pool.name());
}

impl<'a> Maintenance<'a> {
    fn new(upkeep: &'a Upkeep, pace: &'a Pace, scope: &'a Scope) -> Self {
        Self {
            pool: upkeep.pool(),
            upkeep,
            pace,
            scope,
            round: None,
            probed: None,
            step: STEP_FIRST,
            used: 0,
            last: None,
            quiet: None,
            trim_at: Duration::ZERO,
            moves: false,
            wait_for_room: false,
            vain: HashMap::new(),
        }
    }

    /// Periodic work: devices that are back, spares, schedules.
    fn look_around(&mut self) {
        for member in self.pool.store().members().all() {
            if let Err(error) = self.bring_back(&member) {
                complain(self.pool, &format_args!("{}: {error}", roster::called(self.pool, &member)));
            }
        }
        let now = self.pool.store().clock().monotonic();
        if self.probed.is_none_or(|probed| now.saturating_sub(probed) >= PROBE) {
            self.probed = Some(now);
            self.upkeep.devices.probe_spares();
        }
        if let Err(error) = self.upkeep.devices.take_spares() {
            complain(self.pool, &error);
        }
        if let Err(error) = self.upkeep.devices.expand_by_itself() {
            complain(self.pool, &error);
        }
        self.moves = self.upkeep.reshape.is_due();
        let is_quiet = self.is_quiet(now);
        if let Err(error) = self.look_for_duplicates(is_quiet) {
            complain(self.pool, &error);
        }
        if is_quiet && let Err(error) = self.upkeep.rebalance.begin_by_itself() {
            complain(self.pool, &error);
        }
        if scrub_is_due(self.upkeep) {
            let begun = self.upkeep.scrub.start(ScrubSince::All).and_then(|()| forget_who_asked(self.pool));
            if let Err(error) = begun {
                complain(self.pool, &error);
            }
        }
    }

    /// Whether nobody has used the pool for a while.
    fn is_quiet(&mut self, now: Duration) -> bool {
        let uses = collection::uses(self.pool);
        let is_quiet = self.quiet.is_some_and(|(before, since)| {
            before == uses && now.saturating_sub(since) >= QUIET && self.pool.store().dirty().get() == 0
        });
        if self.quiet.is_none_or(|(before, _)| before != uses) || self.pool.store().dirty().get() > 0 {
            self.quiet = Some((uses, now));
        }
        is_quiet
    }

    /// Begins to look for duplicates in datasets that want that in quiet times, and changed since it was done last.
    fn look_for_duplicates(&mut self, is_quiet: bool) -> Result<()> {
        let passes = &self.upkeep.passes;
        if !is_quiet || self.pool.store().is_read_only() || passes.is_active() {
            return Ok(());
        }
        let last = passes.last().and_then(|pass| pass.finished);
        let wall = self.pool.store().clock().now().secs;
        if last.is_some_and(|last| !collection::has_passed(SELDOM, last.secs, wall)) {
            return Ok(());
        }
        let wants = |of: &&Arc<Dataset>| {
            self.pool.effective(of.id(), "dedup").is_some_and(|dedup| dedup.value == "later")
        };
        let datasets = self.pool.datasets();
        let wanting: Vec<_> = datasets.iter().filter(wants).collect();
        // Heads that are as they were have nothing new.
        let mut heads = DefaultHasher::new();
        for of in &wanting {
            (of.id().get(), of.committed_root().map(|root| root.get())).hash(&mut heads);
        }
        let seen = format!("{:x}", heads.finish());
        if wanting.is_empty() || self.pool.note(NOTE_LATER).is_some_and(|before| before == seen) {
            return Ok(());
        }
        // One that cannot begin is not tried before something changes.
        self.pool.set_note(NOTE_LATER, &seen)?;
        passes.start(Task::Dedup, wanting.iter().map(|of| of.id()).collect(), 0)
    }

    /// Opens a device anew that was away and is there again: at the very place from which it vanished, or where
    /// import looked for it. Those that were taken out, or failed, wait for somebody who says so.
    fn bring_back(&mut self, member: &Member) -> Result<()> {
        match member.state() {
            MemberState::Missing | MemberState::Faulted
                if member.size().is_none() || roster::is_gone(member) =>
            {
                let Some(path) = roster::path(self.pool, member) else { return Ok(()) };
                if member.size().is_none() && !self.scope.holds(&path) {
                    return Ok(());
                }
                let Ok(meta) = fs::metadata(devices::file_of(&path)) else { return Ok(()) };
                let vain = Vain {
                    device: meta.dev(),
                    inode: meta.ino(),
                    size: meta.size(),
                    changed: (meta.mtime(), meta.mtime_nsec()),
                };
                let now = self.pool.store().clock().monotonic();
                let until =
                    self.vain.get(&member.index).filter(|(of, _)| *of == vain).map(|(_, until)| *until);
                if until.is_some_and(|until| now < until) {
                    return Ok(());
                }
                // A device may take a while to answer after it is there, and a commit may fail for another reason.
                self.vain.insert(member.index, (vain, now + AGAIN));
                match found_again(self.pool, member, &path) {
                    Again::It(found) => self.upkeep.devices.online(member.index, Some(*found)),
                    Again::Another => {
                        self.vain.insert(member.index, (vain, Duration::MAX));
                        Ok(())
                    }
                    Again::Unclear => Ok(()),
                }
            }
            _ => {
                self.vain.remove(&member.index);
                Ok(())
            }
        }
    }

    /// One step of what is to be done, and how long to rest after it; nothing when there is nothing to do.
    fn turn(&mut self) -> Result<Option<Duration>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let mended = upkeep.read_repair.step()? > 0;
        let trimmed = self.trim()?;
        let rate = self.rate();
        let now = pool.store().clock().monotonic();
        if let Some(last) = self.last {
            let rest = (last.ended + last.rest(rate)).saturating_sub(now);
            if !rest.is_zero() {
                return Ok(Some(rest.min(POLL_INTERVAL)));
            }
        }
        let bytes = if rate > 0 { self.step.min((rate / 4).max(STEP_LEAST_LIMITED)) } else { self.step };
        let Some((examined, parts)) = self.scan(bytes)? else {
            self.last = None;
            return Ok((mended || trimmed).then_some(Duration::ZERO));
        };
        let ended = pool.store().clock().monotonic();
        let took = ended.saturating_sub(now);
        let before = std::mem::replace(&mut self.used, collection::uses(pool));
        let busy = self.used != before || pool.store().dirty().get() > 0;
        self.step = next_step(self.step, took, if busy { STEP_BESIDE } else { STEP_ALONE });
        self.last = Some(Step { ended, took, examined, parts: if busy { parts } else { 1 } });
        Ok(Some(if std::mem::take(&mut self.wait_for_room) { FOR_ROOM } else { Duration::ZERO }))
    }

    /// The most that may be gone through in a second, bytes; 0 for no limit.
    fn rate(&self) -> u64 {
        let of_pool = number(self.pool, "scan_rate");
        let of_pass = if self.upkeep.scrub.progress().is_some() || !self.upkeep.passes.is_active() {
            0
        } else {
            self.upkeep.passes.last().map_or(0, |pass| pass.rate)
        };
        [of_pool, of_pass].into_iter().filter(|&rate| rate > 0).min().unwrap_or(0)
    }

    /// A step of trims, beside whatever scan is under way; whether there was one.
    fn trim(&mut self) -> Result<bool> {
        let clock = self.pool.store().clock();
        let began = clock.monotonic();
        if began < self.trim_at || self.pool.store().is_read_only() {
            return Ok(false);
        }
        let trimmed = self.upkeep.trim.step()?.is_some();
        let ended = clock.monotonic();
        self.trim_at = ended + ended.saturating_sub(began) * (TRIM_PARTS - 1);
        Ok(trimmed)
    }

    /// A step of the scan that goes first: bytes examined, and its part of the time while others are busy.
    fn scan(&mut self, bytes: u64) -> Result<Option<(u64, u32)>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let before = upkeep.resilver.progress();
        // One that was under way and is not any more is over with the next step.
        if before.is_some() || self.pace.resilvering.load(Ordering::Acquire) || upkeep.resilver.is_due() {
            self.pace.resilvering.store(true, Ordering::Release);
            let more = upkeep.resilver.step(bytes)?;
            let examined = before.map_or(0, |before| before.examined);
            let reached = upkeep.resilver.progress().map_or(examined, |after| after.examined);
            self.pace.resilver.lock().note(pool.store().clock().monotonic(), reached);
            if !more {
                *self.pace.resilver.lock() = Samples::default();
                self.pace.resilvering.store(false, Ordering::Release);
            }
            return Ok(Some((reached.saturating_sub(examined), RESILVER_PARTS)));
        }
        if self.moves {
            let before = upkeep.reshape.left();
            self.moves = upkeep.reshape.step(bytes)?;
            let moved = before.saturating_sub(upkeep.reshape.left());
            // Data that does not move waits for room, which comes with commits.
            self.wait_for_room = moved == 0;
            return Ok(Some((moved, RESILVER_PARTS)));
        }
        if upkeep.rebalance.is_due() {
            let moved = upkeep.rebalance.step(bytes)?.unwrap_or(0);
            let all = upkeep.rebalance.progress().map_or(0, |of| of.moved);
            self.pace.rebalance.lock().note(pool.store().clock().monotonic(), all);
            self.wait_for_room = moved == 0;
            return Ok(Some((moved, RESILVER_PARTS)));
        }
        let moving = |progress: &ScrubProgress| !progress.paused && why_scrub_waits(upkeep).is_none();
        let Some(before) = upkeep.scrub.progress().filter(moving) else {
            if upkeep.damage.step(NAMED)? {
                return Ok(Some((0, SCRUB_PARTS)));
            }
            let examined = upkeep.passes.step(bytes)?;
            return Ok(examined.map(|examined| (examined, SCRUB_PARTS)));
        };
        let more = upkeep.scrub.step(bytes)?;
        let after = upkeep.scrub.progress();
        let reached = after.map_or(before.examined, |after| after.examined);
        self.pace.scrub.lock().note(pool.store().clock().monotonic(), reached);
        if !more && after.is_none() {
            pool.damage().recheck();
            forget_who_asked(pool)?;
        }
        Ok(Some((reached.saturating_sub(before.examined), SCRUB_PARTS)))
    }
}

/// Bytes of the next step, when one took so long and should take `target`.
fn next_step(step: u64, took: Duration, target: Duration) -> u64 {
    let wanted = u128::from(step) * target.as_nanos() / took.as_nanos().max(1);
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    wanted.clamp(step / 2, step * 2).clamp(STEP_LEAST, STEP_MOST)
}

/// Result of a look at the place of a missing member.
enum Again {
    /// Its device is there.
    It(Box<Found>),
    /// Something else is there.
    Another,
    /// It could not be opened or read.
    Unclear,
}

/// Looks whether the device of a missing member lies at `path`.
fn found_again(pool: &Pool, member: &Member, path: &str) -> Again {
    let Ok(device) = devices::open(path, OpenMode::Exclusive) else { return Again::Unclear };
    match open::scan(&device) {
        open::Scan::Member(found)
            if found.label.is_of(pool.store().sums()) && found.label.device == member.guid =>
        {
            Again::It(found)
        }
        open::Scan::Failed(_) => Again::Unclear,
        _ => Again::Another,
    }
}

fn setting(pool: &Pool, name: &str) -> Option<String> {
    let set = pool.pool_properties().remove(name);
    set.or_else(|| property::pool(name).and_then(|known| known.default).map(str::to_owned))
}

fn number(pool: &Pool, name: &str) -> u64 {
    setting(pool, name).and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Whether the schedule wants a scrub to begin.
fn scrub_is_due(upkeep: &Upkeep) -> bool {
    let pool = upkeep.pool();
    let period = match setting(pool, "scrub").as_deref() {
        Some("weekly") => 7 * 86_400,
        Some("monthly") => 30 * 86_400,
        _ => return false,
    };
    let last = upkeep.scrub.result().map_or(pool.created(), |result| result.finished).secs;
    let idle = upkeep.scrub.progress().is_none() && upkeep.resilver.progress().is_none();
    collection::has_passed(period, last, pool.store().clock().now().secs)
        && idle
        && outside_window(pool).is_none()
}

/// The window, when it is not open now.
fn outside_window(pool: &Pool) -> Option<String> {
    let text = setting(pool, "scrub_window")?;
    let window = Window::parse(&text)?;
    let now = jiff::Timestamp::from_second(pool.store().clock().now().secs).ok()?;
    let now = now.to_zoned(jiff::tz::TimeZone::system());
    let minute = now.hour().unsigned_abs() as u16 * 60 + now.minute().unsigned_abs() as u16;
    (!window.holds(minute)).then_some(text)
}

/// Reason for the wait of a scrub that is neither paused nor moving.
fn why_scrub_waits(upkeep: &Upkeep) -> Option<String> {
    let pool = upkeep.pool();
    if upkeep.resilver.progress().is_some() {
        return Some("the resilver".to_owned());
    }
    if pool.note(NOTE_ASKED).is_some_and(|asked| !asked.is_empty()) {
        return None;
    }
    outside_window(pool).map(|window| format!("its window, {window}"))
}

/// Notes that somebody asked for the scrub: it does not wait for the window.
///
/// # Errors
/// When the pool cannot be written.
pub fn asked_for(pool: &Pool) -> Result<()> {
    pool.set_note(NOTE_ASKED, "yes")
}

fn forget_who_asked(pool: &Pool) -> Result<()> {
    pool.set_note(NOTE_ASKED, "")
}

/// Notes that the scrub was paused now.
///
/// # Errors
/// When the pool cannot be written.
pub fn paused(pool: &Pool) -> Result<()> {
    pool.set_note(NOTE_PAUSED, &pool.store().clock().now().secs.to_string())
}

impl Live {
    /// Returns when no scrub is moving, or the pool is exported.
    pub fn wait_for_scrub(&self) {
        while self.upkeep.scrub.progress().is_some_and(|progress| !progress.paused) && !self.is_ending() {
            super::pause(WAIT);
        }
    }

    /// Returns when no device is being trimmed because somebody asked for it, or the pool is exported.
    pub fn wait_for_trim(&self) {
        while self.upkeep.trim.is_active() && !self.is_ending() {
            super::pause(WAIT);
        }
    }

    /// Returns when no rebalance is under way, or the pool is exported.
    pub fn wait_for_rebalance(&self) {
        while self.upkeep.rebalance.is_active() && !self.is_ending() {
            super::pause(WAIT);
        }
    }

    /// Returns when no resilver is under way and nothing has to move, or can for now, or the pool is exported.
    pub fn wait_for_resilver(&self) {
        let busy = |live: &Self| {
            // In this order: who is done is noted to be at work before.
            live.upkeep.resilver.progress().is_some()
                || live.pace.resilvering.load(Ordering::Acquire)
                || live.upkeep.reshape.is_due()
        };
        while busy(self) && !self.is_ending() {
            super::pause(WAIT);
        }
    }
}

/// The rebalance that is under way, or the last one.
pub fn rebalance(live: &Live) -> Option<RebalanceStatus> {
    let of = live.upkeep.rebalance.progress()?;
    let state = match of.state {
        larder_upkeep::RebalanceState::Active => RebalanceState::Active,
        larder_upkeep::RebalanceState::Done => RebalanceState::Done,
        larder_upkeep::RebalanceState::NoRoom => RebalanceState::NoRoom,
        larder_upkeep::RebalanceState::Stopped => RebalanceState::Stopped,
    };
    let now = live.pool.store().clock().monotonic();
    let rate = live.pace.rebalance.lock().rate(now).filter(|_| state == RebalanceState::Active);
    let (started, finished) = (of.began.secs, of.ended.map(|ended| ended.secs));
    Some(RebalanceStatus { state, started, finished, moved: of.moved, left: of.left, rate })
}

/// Scans that are under way, the one that goes first at the front, and then what the last ones came to, the
/// newest at the front.
pub fn scans(live: &Live) -> Vec<Scan> {
    let (pool, upkeep, pace) = (&live.pool, &live.upkeep, &live.pace);
    let now = pool.store().clock().monotonic();
    let mut scans = Vec::new();
    if let Some(of) = upkeep.resilver.progress() {
        let rate = pace.resilver.lock().rate(now);
        scans.push(Scan {
            repaired: of.written,
            ..running(ScanKind::Resilver, of.started.secs, of.total, of.examined, rate)
        });
    }
    if let Some(of) = upkeep.scrub.progress() {
        let paused = of.paused.then(|| {
            let noted = pool.note(NOTE_PAUSED).and_then(|secs| secs.parse().ok());
            noted.unwrap_or(of.started.secs)
        });
        let waits_for = why_scrub_waits(upkeep).filter(|_| !of.paused);
        let stands = paused.is_some() || waits_for.is_some();
        let rate = if stands { None } else { pace.scrub.lock().rate(now) };
        scans.push(Scan {
            repaired: of.repaired,
            errors: of.lost,
            paused,
            waits_for,
            ..running(ScanKind::Scrub, of.started.secs, of.total, of.examined, rate)
        });
    }
    let mut over = Vec::new();
    if let Some(of) = upkeep.resilver.result() {
        over.push(Scan {
            finished: Some(of.finished.secs),
            canceled: !of.complete,
            repaired: of.written,
            errors: of.lost,
            ..running(ScanKind::Resilver, of.started.secs, of.total, of.examined, None)
        });
    }
    if let Some(of) = upkeep.scrub.result() {
        over.push(Scan {
            finished: Some(of.finished.secs),
            canceled: of.outcome == ScrubOutcome::Stopped,
            repaired: of.repaired,
            errors: of.lost,
            ..running(ScanKind::Scrub, of.started.secs, of.examined, of.examined, None)
        });
    }
    over.sort_by_key(|scan| std::cmp::Reverse(scan.finished));
    over.retain(|scan| scans.iter().all(|running| running.kind != scan.kind));
    scans.extend(over);
    scans
}

fn running(kind: ScanKind, started: i64, total: u64, examined: u64, rate: Option<u64>) -> Scan {
    Scan {
        kind,
        started,
        finished: None,
        paused: None,
        canceled: false,
        total,
        examined,
        repaired: 0,
        errors: 0,
        rate,
        left: rate.map(|rate| total.saturating_sub(examined) / rate.max(1)),
        waits_for: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::world;
    use super::*;
    use larder_pool::create::rule_for;
    use larder_pool::{GroupSpec, ImportOptions, PoolSpec};
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn a_rate_is_told_of_the_last_stretch_and_only_when_there_is_one() {
        let secs = Duration::from_secs;
        let mut samples = Samples::default();
        assert_eq!(samples.rate(secs(9)), None);
        samples.note(secs(1), 0);
        samples.note(secs(2), 100);
        assert_eq!(samples.rate(secs(2)), None, "one second tells nothing");
        assert_eq!(samples.rate(secs(5)), Some(25), "standing still counts");
        for second in 3..100 {
            samples.note(secs(second), 100 + second * 10);
        }
        assert_eq!(samples.rate(secs(99)), Some(10), "what was long ago does not count");
        samples.note(secs(100), 5);
        assert_eq!(samples.rate(secs(104)), None, "it began anew");
    }

    /// Imports what lies in `folder`, having looked there alone.
    fn import(folder: &Path) -> (Arc<Pool>, Scope) {
        let given = [folder.to_str().unwrap().to_owned()];
        let remembered = crate::host::remembered::Remembered::default();
        let found = devices::search(&given, &remembered).unwrap().found;
        let reopened = found.iter().map(|found| {
            let device = devices::open(&found.device.name(), OpenMode::Exclusive).unwrap();
            let open::Scan::Member(found) = open::scan(&device) else { panic!("a pool's device") };
            *found
        });
        let plan = open::assemble(reopened.collect()).remove(0);
        let pool = Pool::import(world::system().unwrap(), plan, &ImportOptions::default()).unwrap();
        pool.take_replay();
        pool.store().members().iter().filter(|member| member.size().is_some()).for_each(|member| {
            roster::note_path(&pool, &member).unwrap();
        });
        pool.commit().unwrap();
        (pool, Scope::of(&given, &remembered))
    }

    #[test]
    fn who_works_on_copies_keeps_the_originals() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        ["originals", "copies"].iter().for_each(|folder| fs::create_dir(path(folder)).unwrap());
        let make = |name: &str| {
            let path = path(&format!("originals/{name}"));
            fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
            devices::open(path.to_str().unwrap(), OpenMode::Exclusive).unwrap()
        };
        let devices = vec![make("a"), make("b")];
        let groups = vec![GroupSpec::data(rule_for("mirror", 2).unwrap(), devices)];
        let spec = PoolSpec { name: "tank".into(), groups, ashift: 12 };
        let pool = Pool::create(world::system().unwrap(), spec).unwrap();
        pool.store().members().iter().for_each(|member| roster::note_path(&pool, &member).unwrap());
        pool.commit().unwrap();
        pool.commit_export().unwrap();
        drop(pool);
        fs::copy(path("originals/a"), path("copies/a")).unwrap();
        let b = fs::read(path("originals/b")).unwrap();

        let (pool, scope) = import(&path("copies"));
        let pace = Pace::default();
        Maintenance::new(&Upkeep::new(&pool), &pace, &scope).look_around();
        let state = |pool: &Pool| pool.store().members().get(DeviceIndex::new(1)).state();
        assert_eq!(state(&pool), MemberState::Missing, "the original is none of this import's");
        assert!(fs::read(path("originals/b")).unwrap() == b, "nor is it written");
        pool.commit_export().unwrap();
        drop(pool);

        // Where import looked, it comes back by itself.
        fs::remove_file(path("copies/a")).unwrap();
        fs::rename(path("originals/b"), path("b")).unwrap();
        let (pool, scope) = import(&path("originals"));
        let upkeep = Upkeep::new(&pool);
        let mut maintenance = Maintenance::new(&upkeep, &pace, &scope);
        maintenance.look_around();
        assert_eq!(state(&pool), MemberState::Missing);
        fs::rename(path("b"), path("originals/b")).unwrap();
        maintenance.look_around();
        assert_eq!(state(&pool), MemberState::Rebuilding);
    }

    #[test]
    fn a_step_leaves_others_their_share_and_keeps_to_the_rate() {
        let millis = Duration::from_millis;
        let step = Step { ended: millis(0), took: millis(100), examined: 1 << 20, parts: 1 };
        assert_eq!(step.rest(0), Duration::ZERO);
        assert_eq!(step.rest(1 << 20), millis(900));
        assert_eq!(Step { parts: 4, ..step }.rest(0), millis(300));
        assert_eq!(Step { parts: 4, ..step }.rest(1 << 21), millis(400));
        assert_eq!(Step { parts: 4, ..step }.rest(1 << 30), millis(300));
    }

    #[test]
    fn steps_approach_the_time_that_they_should_take() {
        let millis = Duration::from_millis;
        assert_eq!(next_step(16 << 20, millis(100), millis(250)), 32 << 20);
        assert_eq!(next_step(16 << 20, millis(1000), millis(250)), 8 << 20);
        assert_eq!(next_step(16 << 20, millis(200), millis(250)), 20 << 20);
        assert_eq!(next_step(STEP_LEAST, millis(1000), millis(40)), STEP_LEAST);
        assert_eq!(next_step(STEP_MOST, millis(0), millis(40)), STEP_MOST);
    }
}
