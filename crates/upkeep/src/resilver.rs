//! The resilver: devices that are being rebuilt get what they lack, in the order of segments.
//!
//! Of a device it is known that it holds every stripe of commits up to `good_through`, and every stripe after `since`;
//! what lies between in the segments that have a slot on it, and only that, is computed from the other columns (or
//! copied from a replica) and written ([`crate::reconstruct`]). Segments whose last stripe is old enough are not even
//! looked at. Several devices are rebuilt in one pass.
//!
//! The place is kept as the last segment that is done, in the root's entry of the device: a commit flushes all devices
//! before its root tells of what was done before the flush. A crash costs what was done since the last commit. A device
//! that fails meanwhile is faulted as always, and starts anew from what it held before.
//!
//! When nothing is lacking the device becomes current at the boundary of a commit ([`crate::devices`]), which holds
//! what came of the resilver too. What the others could not give is told, and tried again by repairing its segment; a
//! device that was away counts nevertheless. One that stands for another is partial then, from the first segment on
//! of which something was not to be had, and gets what is left of it; it waits at the end if the other one is in use.

use crate::devices::Devices;
use crate::note::NoteReader;
use crate::read_repair::ReadRepair;
use crate::reconstruct::{Missing, Reconstruction, Targets};
use larder_format::segment::{SegmentKind, SegmentState};
use larder_format::{DeviceIndex, SegmentId, Timestamp};
use larder_pool::Lost;
use larder_pool::Pool;
use larder_pool::Resting;
use larder_pool::rebuilding;
use larder_store::Store;
use larder_store::member::{Member, MemberState};
use larder_store::segments::{Segment, SegmentEntry};
use larder_store::{Class, Event};
use larder_store::{PoolError, Refusal, Result};
use larder_sync::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Time between two commits that keep the place, about.
const COMMIT_EVERY: Duration = Duration::from_secs(5);

/// The note that the last resilver's result is.
const RESULT: &str = "resilver";

/// Bytes of a segment that are gone through between two looks at whether the next one can be started.
const PIECE: u64 = 8 << 20;

/// Progress of a resilver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResilverProgress {
    /// The devices that are being rebuilt, by number.
    pub devices: Vec<DeviceIndex>,
    /// When it began, or went on after an import.
    pub started: Timestamp,
    /// Bytes to be gone through on those devices.
    pub total: u64,
    /// Bytes gone through.
    pub examined: u64,
    /// Bytes written.
    pub written: u64,
}

/// Outcome of a resilver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResilverResult {
    /// When it began, or went on after an import.
    pub started: Timestamp,
    /// When it ended.
    pub finished: Timestamp,
    /// Bytes to be gone through on the devices that were to be rebuilt.
    pub total: u64,
    /// Bytes gone through.
    pub examined: u64,
    /// Bytes written.
    pub written: u64,
    /// Ranges that could not be had from the other devices.
    pub lost: u64,
    /// Bytes in them.
    pub lost_bytes: u64,
    /// Devices were rebuilt; else they failed or left before.
    pub complete: bool,
}

impl ResilverResult {
    fn encode(&self) -> String {
        let Self { started, finished, total, examined, written, lost, lost_bytes, complete } = self;
        let (from, to, complete) = (started.secs, finished.secs, u8::from(*complete));
        let nanos = (started.nanos, finished.nanos);
        format!(
            "{from} {} {to} {} {total} {examined} {written} {lost} {complete} {lost_bytes}",
            nanos.0, nanos.1
        )
    }

    fn decode(text: &str) -> Option<Self> {
        let mut note = NoteReader::new(text);
        Some(Self {
            started: note.time()?,
            finished: note.time()?,
            total: note.number()?,
            examined: note.number()?,
            written: note.number()?,
            lost: note.number()?,
            complete: note.number()? == 1,
            lost_bytes: note.number().unwrap_or(0),
        })
    }
}

/// See the module's text.
pub struct Resilver {
    pool: Arc<Pool>,
    store: Arc<Store>,
    devices: Arc<Devices>,
    repairs: Arc<ReadRepair>,
    /// Held for a step.
    running: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None while a step is taken.
    running: Option<Running>,
    /// As it was after the last step.
    progress: Option<ResilverProgress>,
}

struct Running {
    started: Timestamp,
    total: u64,
    examined: u64,
    written: u64,
    /// When this resilver made a commit, by the clock that never goes back.
    committed: Duration,
    lost: Vec<Lost>,
    /// The segment at work.
    at: Option<At>,
    /// The one after it: it is being read while the last stripes of the other are worked on.
    next: Option<At>,
    /// The one before it, whose last stripes are being written.
    ending: Option<At>,
}

/// A segment, for whom it is gone through, and how far that is.
type At = (SegmentId, Vec<Arc<Member>>, Reconstruction);

impl Running {
    fn progress(&self) -> ResilverProgress {
        ResilverProgress {
            devices: Vec::new(),
            started: self.started,
            total: self.total.max(self.examined),
            examined: self.examined,
            written: self.written,
        }
    }

    /// The result if it ends now.
    fn result(&self, pool: &Pool, complete: bool) -> ResilverResult {
        let total = self.total.max(self.examined);
        ResilverResult {
            started: self.started,
            finished: pool.store().world.clock.now(),
            total,
            examined: if complete { total } else { self.examined },
            written: self.written,
            lost: self.lost.len() as u64,
            lost_bytes: self.lost.iter().map(|lost| lost.range.len() as u64).sum(),
            complete,
        }
    }
}

/// The column of a segment that is to be on `member`, when the segment has one and it lacks some of it.
fn column_for(entry: &SegmentEntry, member: &Member) -> Option<usize> {
    let place = member.stands_for.unwrap_or(member.index);
    let lacks = entry.segment.birth <= member.since()
        && (entry.filled > member.good_through() || entry.segment.kind == SegmentKind::Log)
        && entry.state != SegmentState::Freed;
    let column = entry.segment.slots.iter().position(|slot| slot.device == place);
    column.filter(|_| lacks)
}

impl Resilver {
    pub(crate) fn new(pool: &Arc<Pool>, devices: &Arc<Devices>, repairs: &Arc<ReadRepair>) -> Self {
        Self {
            pool: Arc::clone(pool),
            store: Arc::clone(pool.store()),
            devices: Arc::clone(devices),
            repairs: Arc::clone(repairs),
            running: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Goes on with rebuilding devices for about `bytes` read or written; true while there is more to do. Devices that
    /// are there and missed commits join by themselves.
    ///
    /// # Errors
    /// When the pool is suspended, or a commit fails.
    pub fn step(&self, bytes: u64) -> Result<bool> {
        let _nobody_leaves = self.pool.change_turn();
        let _one_at_a_time = self.running.lock();
        self.store.check_writable()?;
        for member in self.store.members.iter().filter(|member| member.state() == MemberState::Stale) {
            match self.devices.online(member.index, None) {
                // It is out for that, and told.
                Err(PoolError::Refused(Refusal::FailedAgain { .. })) => {}
                joined => joined?,
            }
        }
        // The devices that they waited for are gone.
        let bereft: Vec<_> = self.bereft().collect();
        if !bereft.is_empty() {
            self.devices.take_places(bereft)?;
        }
        let targets = self.rebuilding();
        if targets.is_empty() {
            let mut state = self.state.lock();
            state.progress = None;
            self.pool.rebuilt().clear();
            let canceled = state.running.take();
            drop(state);
            if let Some(running) = canceled {
                self.pool.set_note(RESULT, &running.result(&self.pool, false).encode())?;
            }
            return Ok(false);
        }
        let begun = self.state.lock().running.take();
        let mut running = begun.unwrap_or_else(|| {
            let names: Vec<_> = targets.iter().map(|member| member.name()).collect();
            self.store.event(Event::new(Class::ResilverStart).text(names.join(", ")));
            self.begin_resilver(&targets)
        });
        let stepped = self.go_on(&mut running, &targets, bytes);
        let finished = matches!(stepped, Ok(false));
        let mut state = self.state.lock();
        state.progress = (!finished).then(|| running.progress());
        if finished {
            running.lost.iter().for_each(|lost| self.store.suspects.note_segment(lost.segment));
            // Losses may have come back with a device.
            self.pool.damage().recheck();
        } else {
            state.running = Some(running);
        }
        drop(state);
        stepped
    }

    /// Members that wait for what nobody in use has any more.
    fn bereft(&self) -> impl Iterator<Item = Arc<Member>> {
        self.store
            .members
            .iter()
            .filter(|member| member.state() == MemberState::Waiting && self.devices.is_bereft(member))
    }

    /// Whether a device is to join, or to take a place, with the next step.
    pub fn is_due(&self) -> bool {
        self.bereft().next().is_some()
            || self.store.members.iter().any(|member| member.state() == MemberState::Stale)
    }

    fn rebuilding(&self) -> Vec<Arc<Member>> {
        rebuilding(&self.store)
    }

    fn begin_resilver(&self, targets: &[Arc<Member>]) -> Running {
        let core = self.store.core.lock();
        let (mut total, mut examined) = (0, 0);
        for member in targets {
            let lacking = core.entries.values().filter(|entry| column_for(entry, member).is_some());
            for entry in lacking {
                total += u64::from(entry.height);
                examined += if entry.segment.id <= member.cursor() { u64::from(entry.height) } else { 0 };
            }
        }
        Running {
            started: self.store.world.clock.now(),
            total,
            examined,
            written: 0,
            committed: self.store.world.clock.monotonic(),
            lost: Vec::new(),
            at: None,
            next: None,
            ending: None,
        }
    }

    /// A part of a step after the other, until `bytes` are used up; false when all targets are rebuilt.
    fn go_on(&self, running: &mut Running, targets: &[Arc<Member>], bytes: u64) -> Result<bool> {
        let mut left = bytes;
        while left > 0 {
            // Members that failed, or left, are not waited for.
            let others_stay = |at: &At| at.1.iter().all(|member| member.state() == MemberState::Rebuilding);
            if running.at.as_ref().is_some_and(|at| !others_stay(at)) {
                (running.at, running.next) = (None, None);
                return Ok(true);
            }
            if running.at.is_none() {
                let started = running.next.take().filter(others_stay);
                running.at = started.or_else(|| self.next_segment(targets, [&running.ending, &None]));
            }
            let Some((.., reconstruction)) = &mut running.at else {
                self.end_segment(running)?;
                let rebuilt = targets.iter().filter(|member| member.state() == MemberState::Rebuilding);
                let rebuilt: Vec<_> = rebuilt.cloned().collect();
                // Another may have joined in the meantime.
                let more = rebuilt.len() < targets.len() || self.rebuilding().len() > rebuilt.len();
                // The commit that completes it tells of it.
                let result = running.result(&self.pool, !rebuilt.is_empty());
                let ResilverResult { written, lost, lost_bytes, .. } = result;
                let text =
                    format!("{written} bytes written, {lost} ranges could not be had ({lost_bytes} bytes)");
                self.store.event(Event::new(Class::ResilverFinish).text(text));
                self.pool.set_note(RESULT, &result.encode())?;
                self.devices.complete(rebuilt)?;
                return Ok(more);
            };
            reconstruction.start(&self.pool);
            if running.next.is_none() && reconstruction.is_asked() {
                running.next = self.next_segment(targets, [&running.ending, &running.at]);
                running.next.iter_mut().for_each(|(.., next)| next.start(&self.pool));
            }
            let (.., reconstruction) = running.at.as_mut().expect("it was chosen");
            let before = (reconstruction.tally().examined, reconstruction.tally().written);
            let sent = reconstruction.advance(&self.pool, left.min(PIECE))?;
            let (examined, written) =
                (reconstruction.tally().examined - before.0, reconstruction.tally().written - before.1);
            running.written += written;
            left = left.saturating_sub((examined + written).max(4096));
            // This one's writes follow those of the one before without a pause.
            self.end_segment(running)?;
            if sent {
                running.ending = running.at.take();
            }
        }
        Ok(true)
    }

    /// Waits for the last writes of the segment that was gone through, and keeps the place from time to time.
    fn end_segment(&self, running: &mut Running) -> Result<()> {
        let Some((id, members, mut reconstruction)) = running.ending.take() else { return Ok(()) };
        let before = reconstruction.tally().written;
        let finished = reconstruction.finish(&self.pool);
        running.written += reconstruction.tally().written - before;
        finished?;
        let mut lost = reconstruction.tally().lost.clone();
        if let Some(mut rest) = reconstruction.left_over() {
            self.pool.commit()?;
            while !rest.step(&self.pool, PIECE)? {}
            running.written += rest.tally().written;
            lost.extend_from_slice(&rest.tally().lost);
        }
        let lost = &lost;
        running.lost.extend_from_slice(lost);
        self.repairs.keep_lost(lost);
        // In the root no later than that the segment is done.
        let stand_ins = members.iter().filter(|member| member.stands_for.is_some() && !lost.is_empty());
        stand_ins.for_each(|member| member.set_partial(true));
        let height = self.store.core.lock().entries.get(&id).map_or(0, |entry| u64::from(entry.height));
        running.examined += height * members.len() as u64;
        // Of who failed meanwhile nothing is kept.
        let stayed = members.iter().filter(|member| member.state() == MemberState::Rebuilding);
        self.pool.rebuilt().note(stayed.map(|member| member.index), id);
        let now = self.store.world.clock.monotonic();
        if now.saturating_sub(running.committed) >= COMMIT_EVERY {
            running.committed = now;
            self.pool.commit()?;
        }
        Ok(())
    }

    /// The next segment that some of the targets lack part of; those at `work` count as done.
    fn next_segment(&self, targets: &[Arc<Member>], work: [&Option<At>; 2]) -> Option<At> {
        let done: Vec<SegmentId> = {
            let of = |member: &Arc<Member>| self.pool.rebuilt().done(member.index);
            let at_work = |member: &Arc<Member>| {
                let work = work.into_iter().flatten();
                let its =
                    work.filter(|(_, members, _)| members.iter().any(|other| Arc::ptr_eq(other, member)));
                its.map(|(id, ..)| *id).max()
            };
            let reached = |member| of(member).max(at_work(member)).unwrap_or_default().max(member.cursor());
            targets.iter().map(reached).collect()
        };
        let first = done.iter().copied().min()?;
        let core = self.store.core.lock();
        let after = (std::ops::Bound::Excluded(first), std::ops::Bound::Unbounded);
        for (&id, entry) in core.entries.range(after) {
            let lacking = targets.iter().zip(&done).filter(|(_, done)| **done < id);
            let columns: Vec<_> = lacking
                .filter_map(|(member, _)| Some((column_for(entry, member)?, Arc::clone(member))))
                .collect();
            let (Some(held), Some(through)) = (
                columns.iter().map(|(_, member)| member.good_through()).min(),
                columns.iter().map(|(_, member)| member.since()).max(),
            ) else {
                continue;
            };
            let members = columns.iter().map(|(_, member)| Arc::clone(member)).collect();
            let segment: Arc<Segment> = Arc::clone(&entry.segment);
            let missing = Missing { columns, after: held, through };
            return Some((
                id,
                members,
                Reconstruction::new(segment, entry.height, Targets::Missing(missing)),
            ));
        }
        None
    }

    /// Waits for the step under way: nobody works for a member that has left.
    pub(crate) fn forget(&self) {
        let _nobody_steps = self.running.lock();
        let others = !self.rebuilding().is_empty();
        let mut state = self.state.lock();
        match &mut state.running {
            // The next step tells that it is over.
            Some(running) if !others => (running.at, running.next, running.ending) = (None, None, None),
            running => *running = None,
        }
    }

    /// The resilver under way, if there is one.
    pub fn progress(&self) -> Option<ResilverProgress> {
        let targets = self.rebuilding();
        if targets.is_empty() {
            return None;
        }
        let told = self.state.lock().progress.clone();
        let mut progress = told.unwrap_or_else(|| self.begin_resilver(&targets).progress());
        progress.devices = targets.iter().map(|member| member.index).collect();
        Some(progress)
    }

    /// Outcome of the last resilver, on whichever host.
    pub fn result(&self) -> Option<ResilverResult> {
        ResilverResult::decode(&self.pool.note(RESULT)?)
    }

    /// Has all devices that are being rebuilt begin anew, also those that wait: what could not be had is tried again,
    /// and what was had before stays.
    ///
    /// # Errors
    /// When the pool cannot be written.
    pub fn restart(&self) -> Result<()> {
        let _nobody_steps = self.running.lock();
        self.store.check_writable()?;
        // Before they begin anew: a commit on its way would tell that they had come as far as they had.
        self.pool.rebuilt().clear();
        let waiting = |member: &Arc<Member>| member.state() == MemberState::Waiting;
        for member in self.rebuilding().into_iter().chain(self.store.members.iter().filter(waiting)) {
            member.rebuilt_to(SegmentId::new(0));
            member.set_partial(false);
            member.set_state(MemberState::Rebuilding);
        }
        let mut state = self.state.lock();
        (state.running, state.progress) = (None, None);
        Ok(())
    }
}

impl Resting for Resilver {
    fn let_go(&self, is_freed: &dyn Fn(SegmentId) -> bool) {
        let Some(_nobody_steps) = self.running.try_lock() else { return };
        let mut state = self.state.lock();
        let Some(Running { at, next, ending, .. }) = &mut state.running else { return };
        let let_go = [at, next, ending].map(|at| at.take_if(|(id, ..)| is_freed(*id)));
        drop(state);
        drop(let_go);
    }
}
