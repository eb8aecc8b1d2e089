//! Trim: devices are told which slots are free, so that SSDs and sparse files can give them up.
//!
//! A slot counts as free when it may be given to another segment: the commit that freed the last one is two commits
//! back, and nobody reads that any more. So whatever a device makes of a slot that it forgets, no root that can still
//! be imported names it. Slots that are out of use (`larder_store::bad_slots`) are none of them.
//!
//! A step takes some free slots of each device away from writers, has them discarded, flushes, and gives them back. A
//! discard may come as late as the flush after it and would spoil what was written to the slot between the two: hence
//! the flush. A device that is out of use before that flush is flushed before it is used again.
//!
//! Nobody is told that there is no room for the sake of a trim. Writers are left as many slots as the cleaner looks
//! after ([`GroupSpace::enough`]), and what was accepted besides; of a pool that is that full, nothing is trimmed.
//! Slots that are held count as free in AVAIL, and who lacks room now waits until they are let go.
//!
//! `autotrim` goes through the slots that were given back since the import, and not been taken again. A trim that was
//! asked for goes through all free slots of a device, in their order. How far it is, and when it ended, are notes of
//! the pool, one a device: it goes on after an export, or after a crash from the last note that a commit had. One that
//! cannot go on for a while, since writers need what is free, is suspended, and so is one at its end that passed over
//! slots for which the file system under the device had no room to punch holes. Neither is called done.
//!
//! # Locks
//! The turn to change who is a member, then that of the step, both held for a step: no device leaves while it is told
//! something, for then it may be somebody else's. What others ask for is behind a short lock of its own. While slots
//! are held there is one more, for which writers wait that lack room; nothing but devices is waited for under it.

use crate::note::NoteReader;
use larder_format::root::NO_GROUP;
use larder_format::segment::Slot;
use larder_format::{ByteLen, DeviceGuid, DeviceIndex, GroupIndex, SlotIndex, Timestamp};
use larder_mutants::{Mutant, mutated};
use larder_pool::FenceCheck;
use larder_pool::Pool;
use larder_store::Store;
use larder_store::core::Core;
use larder_store::member::{Discarded, Member};
use larder_store::segments::Listed;
use larder_store::space::GroupSpace;
use larder_store::{Class, Event};
use larder_store::{PoolError, Result};
use larder_sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Slots of a device that one step takes, and bytes.
const SLOTS: u64 = 16;
const BYTES: u64 = 256 << 20;
/// Records that room is told in.
const RECORD: u32 = 128 << 10;
/// Interval between notes of a trim's progress.
const TIME_PER_NOTE: Duration = Duration::from_secs(5);
/// Interval between tries of a trim that cannot go on, and tries before it is suspended.
const RETRY: Duration = Duration::from_secs(5);
const TRIES: u32 = 12;

/// State of a trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrimState {
    /// It goes on.
    Active,
    /// It waits until it is started again.
    Suspended,
    /// It went through all that was free.
    Done,
}

/// The last trim of a device that somebody asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trim {
    /// Its state.
    pub state: TrimState,
    /// When it began; of one that is done, when it ended.
    pub time: Timestamp,
    /// Bytes trimmed.
    pub trimmed: u64,
    /// Bytes to be trimmed, estimated; never less than `trimmed`.
    pub total: u64,
    /// The most that it goes through in a second, bytes; 0, whatever the device takes.
    pub rate: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TrimCourse {
    state: TrimState,
    time: Timestamp,
    /// The next slot.
    next: u32,
    /// The first slot that was passed over, for a hole could not be punched.
    passed: Option<u32>,
    trimmed: u64,
    rate: u64,
}

impl TrimCourse {
    fn encode(&self) -> String {
        let Self { state, time, next, passed, trimmed, rate } = self;
        // Those are gone through again after an import.
        let next = passed.unwrap_or(*next);
        let state = match state {
            TrimState::Active => 0,
            TrimState::Suspended => 1,
            TrimState::Done => 2,
        };
        format!("{state} {} {} {next} {trimmed} {rate}", time.secs, time.nanos)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut note = NoteReader::new(text);
        Some(Self {
            state: match note.number()? {
                0 => TrimState::Active,
                1 => TrimState::Suspended,
                2 => TrimState::Done,
                _ => return None,
            },
            time: note.time()?,
            next: u32::try_from(note.number()?).ok()?,
            passed: None,
            trimmed: note.number()?,
            rate: note.number()?,
        })
    }
}

fn note_of(device: DeviceGuid) -> String {
    format!("trim:{device}")
}

/// See the module's text.
pub struct Trimmer {
    pool: Arc<Pool>,
    store: Arc<Store>,
    /// When each device comes next, when notes were written, and whose trim cannot go on.
    step: Mutex<BTreeMap<DeviceGuid, Times>>,
    /// Courses, as far as their notes were looked at.
    courses: Mutex<BTreeMap<DeviceGuid, Option<TrimCourse>>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Times {
    due: Duration,
    noted: Duration,
    /// Tries in a row at which its trim could not go on.
    stuck: u32,
}

/// Slots that are held, and who is to be told of them.
struct TrimBatch {
    group: GroupIndex,
    device: DeviceIndex,
    slot_size: u32,
    slots: Vec<SlotIndex>,
    members: Vec<Arc<Member>>,
    /// Whose trim it is a part of, if somebody asked for it, and where that goes on.
    course: Option<(DeviceGuid, u32)>,
    /// Writers need the space that is free: nothing could be held, though something may be later.
    is_stuck: bool,
    /// Slots for which no hole could be punched: how many, and the first.
    passed: (u64, Option<u32>),
}

impl TrimBatch {
    fn new(
        space: &GroupSpace,
        device: DeviceIndex,
        slots: Vec<SlotIndex>,
        members: Vec<Arc<Member>>,
        course: Option<DeviceGuid>,
    ) -> Self {
        // Without any it is over.
        let next = slots.last().map_or(u32::MAX, |last| last.get() + 1);
        let course = course.map(|guid| (guid, next));
        let (group, slot_size) = (space.index, space.slot_size);
        Self { group, device, slot_size, slots, members, course, is_stuck: false, passed: (0, None) }
    }

    /// Bytes that were trimmed.
    fn bytes(&self) -> u64 {
        (self.slots.len() as u64).saturating_sub(self.passed.0) * u64::from(self.slot_size)
    }

    /// Runs of neighbours: the first, and how many.
    fn runs(&self) -> impl Iterator<Item = (SlotIndex, u64)> + '_ {
        let runs = self.slots.chunk_by(|a, b| a.get() + 1 == b.get());
        runs.map(|run| (run[0], run.len() as u64))
    }
}

impl Trimmer {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        let store = Arc::clone(pool.store());
        Self { pool: Arc::clone(pool), store, step: Mutex::default(), courses: Mutex::default() }
    }

    /// Begins to trim devices, or goes on where that was suspended; at most `rate` bytes a second of each, unless that
    /// is 0.
    ///
    /// # Errors
    /// [`PoolError::Busy`] when one is being trimmed; when one is not in use, or does not support it; when the pool
    /// cannot be written.
    pub fn start(&self, devices: &[DeviceIndex], rate: u64) -> Result<()> {
        self.store.check_writable()?;
        let members = self.trimmable(devices)?;
        for member in &members {
            if !member.discards() {
                return Err(PoolError::Invalid(format!("{} does not support trim", member.name())));
            }
            if self.course_of(member.guid).is_some_and(|course| course.state == TrimState::Active) {
                return Err(PoolError::Busy(format!("{} is being trimmed", member.name())));
            }
        }
        for member in members {
            let time = self.store.world.clock.now();
            let fresh =
                TrimCourse { state: TrimState::Active, time, next: 0, passed: None, trimmed: 0, rate };
            let course = match self.course_of(member.guid) {
                Some(old) if old.state == TrimState::Suspended => {
                    let rate = if rate == 0 { old.rate } else { rate };
                    TrimCourse { state: TrimState::Active, rate, ..old }
                }
                _ => fresh,
            };
            self.store.event(Event::new(Class::TrimStart).device(member.guid, member.name()));
            self.step.lock().remove(&member.guid);
            self.keep_course(member.guid, Some(course))?;
        }
        Ok(())
    }

    /// Has trims wait, also over imports, until they are started again.
    ///
    /// # Errors
    /// [`PoolError::NotFound`] when one of the devices is not being trimmed; when the pool cannot be written.
    pub fn suspend(&self, devices: &[DeviceIndex]) -> Result<()> {
        self.end_trims(devices, "suspended", |course| match course.state {
            TrimState::Active => Some(Some(TrimCourse { state: TrimState::Suspended, ..course })),
            _ => None,
        })
    }

    /// Ends trims.
    ///
    /// # Errors
    /// As [`Trimmer::suspend`].
    pub fn cancel(&self, devices: &[DeviceIndex]) -> Result<()> {
        self.end_trims(devices, "cancelled", |course| (course.state != TrimState::Done).then_some(None))
    }

    /// Changes courses; those for which there is no change are none that can be ended so.
    fn end_trims(
        &self,
        devices: &[DeviceIndex],
        how: &str,
        change: impl Fn(TrimCourse) -> Option<Option<TrimCourse>>,
    ) -> Result<()> {
        self.store.check_writable()?;
        let mut times = self.step.lock();
        let members = self.trimmable(devices)?;
        let changed = |member: Arc<Member>| {
            let course = self.course_of(member.guid).and_then(&change);
            let course = course
                .ok_or_else(|| PoolError::NotFound(format!("a trim of {} under way", member.name())))?;
            Ok((member, course))
        };
        for (member, course) in members.into_iter().map(changed).collect::<Result<Vec<_>>>()? {
            self.store.event(Event::new(Class::TrimFinish).device(member.guid, member.name()).text(how));
            times.remove(&member.guid);
            self.keep_course(member.guid, course)?;
        }
        Ok(())
    }

    fn trimmable(&self, devices: &[DeviceIndex]) -> Result<Vec<Arc<Member>>> {
        let known = |&device: &DeviceIndex| {
            let member = self.pool.known(device)?;
            if member.group == NO_GROUP || !member.is_written() {
                return Err(PoolError::Invalid(format!("{} is not in use", member.name())));
            }
            Ok(member)
        };
        devices.iter().map(known).collect()
    }

    /// The last trim of a device that somebody asked for, if it was not cancelled.
    pub fn of(&self, member: &Member) -> Option<Trim> {
        let TrimCourse { state, time, next, trimmed, rate, .. } = self.course_of(member.guid)?;
        let left = match state {
            TrimState::Done => 0,
            _ => {
                let device = member.stands_for.unwrap_or(member.index);
                let core = self.store.core.lock();
                core.groups.get(&member.group).map_or(0, |group| group.free_bytes(device, next))
            }
        };
        Some(Trim { state, time, trimmed, total: trimmed + left, rate })
    }

    /// Whether a device is being trimmed because somebody asked for it.
    pub fn is_active(&self) -> bool {
        let active = |course: TrimCourse| course.state == TrimState::Active;
        !self.store.is_read_only()
            && self.store.members.iter().any(|member| {
                member.is_written() && member.discards() && self.course_of(member.guid).is_some_and(active)
            })
    }

    fn course_of(&self, device: DeviceGuid) -> Option<TrimCourse> {
        let mut courses = self.courses.lock();
        let read = || self.pool.note(&note_of(device)).and_then(|note| TrimCourse::decode(&note));
        *courses.entry(device).or_insert_with(read)
    }

    fn keep_course(&self, device: DeviceGuid, course: Option<TrimCourse>) -> Result<()> {
        self.courses.lock().insert(device, course);
        self.pool.set_note(&note_of(device), &course.map(|course| course.encode()).unwrap_or_default())
    }

    fn autotrims(&self) -> bool {
        self.pool.pool_properties().get("autotrim").is_some_and(|value| value == "on")
    }

    /// Trims some free slots of each device for which there are any to be trimmed now; the bytes, or none when there is
    /// nothing to do.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn step(&self) -> Result<Option<u64>> {
        let auto = self.autotrims();
        if !auto && !self.is_active() {
            return Ok(None);
        }
        let _nobody_leaves = self.pool.change_turn();
        let mut times = self.step.lock();
        self.store.check_writable()?;
        let holding = self.no_trim();
        let mut batches = self.hold_asked(&times);
        if auto {
            self.hold_freed(&mut batches);
        }
        if batches.is_empty() {
            return Ok(None);
        }
        if mutated(Mutant::TrimNotHeld) {
            self.give_up_hold(&batches);
        }
        // Another import may have given them to somebody.
        let ours = self.pool.still_ours(FenceCheck::Briefly);
        if ours.is_ok() {
            discard(&mut batches);
        }
        self.give_up_hold(&batches);
        drop(holding);
        ours?;
        let trimmed = batches.iter().map(TrimBatch::bytes).sum();
        batches.iter().try_for_each(|batch| self.went_through(batch, &mut times))?;
        Ok(Some(trimmed))
    }

    /// No slots are held, nor will be, until this is dropped.
    pub(crate) fn no_trim(&self) -> MutexGuard<'_, ()> {
        self.pool.trim_turn()
    }

    /// Slots of each device of a group that what was accepted may take.
    fn accepted(&self, core: &Core, group: GroupIndex) -> u64 {
        let bytes = self.store.dirty.needed().saturating_add(core.footprint_of_nodes(self.store.unsealed()));
        let record = RECORD.min(self.store.max_record());
        let columns = |space: &GroupSpace| if space.narrow { 1 } else { space.rule.layout.k() as u64 };
        let least = |space: &GroupSpace| space.per_columns(columns(space), record).max(1);
        core.groups.get(&group).map_or(0, |space| bytes.div_ceil(least(space)))
    }

    /// Slots that were held can be given to anybody again.
    fn give_up_hold(&self, batches: &[TrimBatch]) {
        let mut core = self.store.core.lock();
        for batch in batches {
            let Some(space) = core.groups.change(batch.group) else { continue };
            let slot = |&index| Slot { device: batch.device, index };
            batch.slots.iter().map(slot).for_each(|slot| space.let_go(slot));
        }
    }

    /// Holds what comes next of trims that were asked for.
    fn hold_asked(&self, times: &BTreeMap<DeviceGuid, Times>) -> Vec<TrimBatch> {
        let now = self.store.world.clock.monotonic();
        let mut batches = Vec::new();
        for member in self.store.members.iter().filter(|member| member.is_written() && member.discards()) {
            let Some(course) = self.course_of(member.guid) else { continue };
            let is_due = times.get(&member.guid).is_none_or(|times| times.due <= now);
            if course.state != TrimState::Active || !is_due {
                continue;
            }
            let device = member.stands_for.unwrap_or(member.index);
            // A device that stands for another has the same slots: one after the other.
            if batches.iter().any(|batch: &TrimBatch| batch.device == device) {
                continue;
            }
            let mut core = self.store.core.lock();
            let accepted = self.accepted(&core, member.group);
            let Some(space) = core.groups.change(member.group) else { continue };
            let slots = space.hold(device, course.next, most(space, course.rate), accepted);
            let is_stuck = slots.is_empty() && space.free_bytes(device, course.next) > 0;
            let guid = member.guid;
            let batch = TrimBatch::new(space, device, slots, vec![member], Some(guid));
            batches.push(TrimBatch { is_stuck, ..batch });
        }
        batches
    }

    /// Holds some of what was given back.
    fn hold_freed(&self, batches: &mut Vec<TrimBatch>) {
        let devices: Vec<_> =
            self.store.members.iter().filter(|member| member.stands_for.is_none()).collect();
        let mut core = self.store.core.lock();
        for member in devices {
            let device = member.index;
            let accepted = self.accepted(&core, member.group);
            let space = core.groups.get(&member.group);
            let waits = space.is_some_and(|space| space.is_untrimmed(device, accepted));
            let early = self.freed_too_early(&core, device);
            if (!waits && early.is_empty()) || batches.iter().any(|batch| batch.device == device) {
                continue;
            }
            let Some(space) = core.groups.change(member.group) else { continue };
            let mut slots = space.hold_untrimmed(device, most(space, 0), accepted);
            slots.extend(early);
            let tells = |member: &Arc<Member>| member.is_written() && member.discards();
            let members: Vec<_> = self.store.members.writers(device).filter(tells).collect();
            if !slots.is_empty() {
                batches.push(TrimBatch::new(space, device, slots, members, None));
            }
        }
    }

    /// With a mutant, slots that are not free yet.
    fn freed_too_early(&self, core: &Core, device: DeviceIndex) -> Vec<SlotIndex> {
        if !mutated(Mutant::TrimTooEarly) {
            return Vec::new();
        }
        let freed = core.entries.listed(Listed::Freed);
        let slots = freed.flat_map(|entry| entry.segment.slots());
        slots.filter(|slot| slot.device == device).map(|slot| slot.index).collect()
    }

    /// A part of a trim that was asked for is done.
    fn went_through(&self, batch: &TrimBatch, times: &mut BTreeMap<DeviceGuid, Times>) -> Result<()> {
        let Some((guid, next)) = batch.course else { return Ok(()) };
        let Some(course) = self.course_of(guid) else { return Ok(()) };
        let Some(member) = batch.members.first() else { return Ok(()) };
        let finish = |text: &str, course| {
            self.store.event(Event::new(Class::TrimFinish).device(guid, member.name()).text(text));
            self.keep_course(guid, course)
        };
        if !member.discards() {
            return finish("the device does not support it", None);
        }
        // It goes on when it is there again.
        if !member.is_written() {
            return Ok(());
        }
        let times = times.entry(guid).or_default();
        let now = self.store.world.clock.monotonic();
        let suspended = |next| TrimCourse { state: TrimState::Suspended, next, passed: None, ..course };
        if batch.is_stuck {
            times.due = now.saturating_add(RETRY);
            times.stuck += 1;
            if times.stuck < TRIES {
                return Ok(());
            }
            let next = course.passed.unwrap_or(course.next);
            return finish("suspended: writers need the space that is free", Some(suspended(next)));
        }
        times.stuck = 0;
        let trimmed = course.trimmed + batch.bytes();
        let passed = course.passed.or(batch.passed.1);
        if batch.slots.is_empty() {
            if let Some(passed) = passed {
                let text = "suspended: the file system under the device has no room to punch holes";
                return finish(text, Some(suspended(passed)));
            }
            let time = self.store.world.clock.now();
            let done = TrimCourse { state: TrimState::Done, time, ..course };
            return finish(&format!("{trimmed} bytes trimmed"), Some(done));
        }
        let course = TrimCourse { next, passed, trimmed, ..course };
        let nanos = u128::from(batch.bytes()) * 1_000_000_000 / u128::from(course.rate.max(1));
        let rest = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        times.due = if course.rate == 0 { now } else { now.saturating_add(rest) };
        if now.saturating_sub(times.noted) < TIME_PER_NOTE {
            self.courses.lock().insert(guid, Some(course));
            return Ok(());
        }
        times.noted = now;
        self.keep_course(guid, Some(course))
    }
}

/// Slots of a device that one step takes: at a rate, no more than a second's, or one.
fn most(space: &GroupSpace, rate: u64) -> usize {
    let bytes = if rate == 0 { BYTES } else { BYTES.min(rate) };
    (bytes / u64::from(space.slot_size)).clamp(1, SLOTS) as usize
}

/// Has devices forget what is held, durably.
fn discard(batches: &mut [TrimBatch]) {
    let mut asked: Vec<Arc<Member>> = Vec::new();
    let mut pending = Vec::new();
    for (index, batch) in batches.iter().enumerate() {
        for member in &batch.members {
            for (first, count) in batch.runs() {
                let len = ByteLen::new(count * u64::from(batch.slot_size));
                let request = member.discard(member.slot_offset(first, 0), len);
                pending.extend(request.map(|request| (index, first, count, Arc::clone(member), request)));
            }
        }
    }
    for (index, first, count, member, request) in pending {
        if member.complete_discard(request) == Discarded::Later {
            let passed = &mut batches[index].passed;
            *passed = (passed.0 + count, passed.1.or(Some(first.get())));
        }
        if !asked.iter().any(|other| Arc::ptr_eq(other, &member)) {
            asked.push(member);
        }
    }
    if mutated(Mutant::TrimNotFlushed) {
        return;
    }
    let flushes: Vec<_> = asked.into_iter().map(|member| (member.flush(), member)).collect();
    for (flush, member) in flushes {
        if flush.is_some() {
            member.complete_flush(flush);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trim_comes_back_from_its_note() {
        let time = Timestamp { secs: 1_800_000_000, nanos: 17 };
        for state in [TrimState::Active, TrimState::Suspended, TrimState::Done] {
            let course = TrimCourse { state, time, next: 5, passed: None, trimmed: 6, rate: 7 };
            assert_eq!(TrimCourse::decode(&course.encode()), Some(course));
            let passed = TrimCourse { passed: Some(3), ..course };
            assert_eq!(TrimCourse::decode(&passed.encode()), Some(TrimCourse { next: 3, ..course }));
        }
        for bad in ["", "3 1 2 3 4 5", "0 1 2 3 4", "0 1 2 4294967296 4 5", "x"] {
            assert_eq!(TrimCourse::decode(bad), None);
        }
    }
}
