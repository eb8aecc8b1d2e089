//! The pool's devices as members: where their slots are, whether they may be trusted, what went wrong.
//!
//! A member starts online, missing (no device was found), stale (found, but it missed commits), offline (so wanted),
//! rebuilding or waiting. A member that fails a write or a flush is faulted: it is neither read nor written, and the
//! next root says through which commit it is good. One that is being rebuilt is written and not
//! read; everything from the commit after [`Member::since`] on is on it. One that waits has all that could be had
//! besides, and is otherwise the same. Its device never changes: who opens a device anew makes another member of the
//! same number.

use crate::latency::LatencyTracker;
use larder_device::{
    AlignedBuf, Clock, Device, DeviceError, Meter, Outcome, Pending, Request, RequestKind, TIMEOUT,
};
use larder_format::label::{LABEL_AREA, Label, label_areas};
use larder_format::root::{DeviceKind, DeviceState, NO_GROUP, RootDevice};
use larder_format::{
    ByteLen, CommitId, DeviceGuid, DeviceIndex, DeviceOffset, GroupIndex, Incarnation, SegmentId, SlotIndex,
};
use larder_sync::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Whether a member may be read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MemberState {
    /// In use.
    Online = 0,
    /// No device was found for it.
    Missing = 1,
    /// It is there but missed commits.
    Stale = 2,
    /// It failed a write or a flush.
    Faulted = 3,
    /// An administrator took it out of use.
    Offline = 4,
    /// It gets every write and what it lacks, and is not read.
    Rebuilding = 5,
    /// It gets every write and has all that could be had of the device that it stands for: somebody is to say whether
    /// it is to do without the rest.
    Waiting = 6,
}

impl MemberState {
    fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Online,
            1 => Self::Missing,
            2 => Self::Stale,
            4 => Self::Offline,
            5 => Self::Rebuilding,
            6 => Self::Waiting,
            _ => Self::Faulted,
        }
    }
}

/// Result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is there.
    Done,
    /// The device is there and did not take it: its place may be bad, or the device ([`crate::bad_slots`]).
    Refused(DeviceError),
    /// The member is out of use.
    Lost,
}

/// Writes that a device may refuse, in as many slots, before it is faulted.
const REFUSALS: u64 = 16;

/// Result of a discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discarded {
    /// The device knows.
    Done,
    /// It takes none, or is out of use.
    Failed,
    /// The file system that it lies on has no room to punch a hole.
    Later,
}

/// Requests and errors of one member since import.
#[derive(Debug, Default)]
pub struct Counters {
    /// Read requests.
    pub reads: AtomicU64,
    /// Write requests.
    pub writes: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Bytes written.
    pub written_bytes: AtomicU64,
    /// Flushes.
    pub flushes: AtomicU64,
    /// Read requests that failed.
    pub read_errors: AtomicU64,
    /// Write and flush requests that failed.
    pub write_errors: AtomicU64,
    /// Blocks that were read but were not what was written.
    pub checksum_errors: AtomicU64,
}

/// A device of the store.
pub struct Member {
    /// Its number.
    pub index: DeviceIndex,
    /// Its group.
    pub group: GroupIndex,
    /// Its GUID.
    pub guid: DeviceGuid,
    slot_count: AtomicU32,
    /// Bytes of a slot; the group's.
    pub slot_size: u32,
    /// Kind of its device, from the root.
    kind: DeviceKind,
    /// It has copies of blocks, in no group: see [`crate::read_cache`].
    pub is_cache: bool,
    /// The member whose place it is to take when it is rebuilt.
    pub stands_for: Option<DeviceIndex>,
    good_through: AtomicU64,
    good_incarnation: AtomicU64,
    /// Last commit on the device and the import that wrote it, if less than the root says: an older copy of the device
    /// was attached. The root keeps describing the copy written to last until this one is in use.
    holds: Option<(CommitId, Incarnation)>,
    since: AtomicU64,
    cursor: AtomicU64,
    partial: AtomicBool,
    /// It is offline until the next import only.
    until_import: AtomicBool,
    leaving: AtomicBool,
    /// Requests and errors.
    pub counters: Counters,
    device: Option<Arc<dyn Device>>,
    /// Latency of its requests.
    meter: Arc<Meter>,
    /// Latency of its reads.
    pub latency: LatencyTracker,
    /// For how long it may leave a request unanswered, ms.
    timeout_ms: AtomicU64,
    /// It hung, and nobody waits for it any more.
    abandoned: AtomicBool,
    /// It has a heartbeat of this import.
    claimed: AtomicBool,
    /// It refused one.
    mute: AtomicBool,
    /// Slots that refused a write since it was opened or cleared.
    refusals: AtomicU64,
    /// Why it was faulted.
    fault: Mutex<Option<String>>,
    /// It refused a discard: it is asked for none until it is opened anew.
    no_discards: AtomicBool,
    /// It was faulted because the file system that its file lies on is full.
    full: AtomicBool,
    /// It may lack something that counts as stored since it was faulted; if not, it can be used again as it is.
    missed: AtomicBool,
    /// The newest root on it says that it is in use, and no newer root is anywhere: without the others it would pass
    /// for current.
    current: AtomicBool,
    /// It is read though it was faulted: the pool is suspended, and there is nobody else.
    last_resort: AtomicBool,
    /// Segments of which something on it was repaired that no flush has made durable.
    repaired: Mutex<BTreeSet<SegmentId>>,
    /// Segments of which such a repair may be lost.
    doubtful: Mutex<BTreeSet<SegmentId>>,
    label: Mutex<Option<Label>>,
    state: AtomicU8,
}

impl Member {
    /// A member as `root` tells of it, with its device when that is there.
    pub fn new(
        root: &RootDevice,
        slot_size: u32,
        present: Option<(Arc<dyn Device>, Label)>,
        state: MemberState,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let (device, label) = present.unzip();
        Self {
            index: root.index,
            group: root.group,
            guid: root.guid,
            slot_count: AtomicU32::new(root.slot_count),
            slot_size,
            kind: root.kind,
            is_cache: root.is_cache,
            stands_for: root.stands_for,
            good_through: AtomicU64::new(root.good_through.get()),
            good_incarnation: AtomicU64::new(root.incarnation.get()),
            holds: None,
            since: AtomicU64::new(root.since.get()),
            cursor: AtomicU64::new(root.cursor.get()),
            partial: AtomicBool::new(root.partial),
            until_import: AtomicBool::new(false),
            leaving: AtomicBool::new(root.leaving),
            counters: Counters::default(),
            device,
            meter: Arc::new(Meter::new(Arc::clone(clock))),
            latency: LatencyTracker::default(),
            timeout_ms: AtomicU64::new(TIMEOUT.as_millis() as u64),
            abandoned: AtomicBool::new(false),
            claimed: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            refusals: AtomicU64::new(0),
            fault: Mutex::default(),
            no_discards: AtomicBool::new(false),
            full: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            current: AtomicBool::new(false),
            last_resort: AtomicBool::new(false),
            repaired: Mutex::default(),
            doubtful: Mutex::default(),
            label: Mutex::new(label),
            state: AtomicU8::new(state as u8),
        }
    }

    /// A member whose device just got its label.
    pub fn labelled(
        device: Arc<dyn Device>,
        label: Label,
        state: MemberState,
        stands_for: Option<DeviceIndex>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let root = RootDevice {
            index: label.index,
            group: label.group,
            state: DeviceState::Behind,
            leaving: false,
            stands_for,
            slot_count: label.slot_count,
            partial: false,
            guid: label.device,
            good_through: CommitId::new(0),
            since: CommitId::new(0),
            cursor: SegmentId::new(0),
            incarnation: Incarnation::new(0),
            kind: DeviceKind::Unknown,
            is_cache: false,
        };
        let slot_size = label.slot_size;
        Self::new(&root, slot_size, Some((device, label)), state, clock)
    }

    /// The same, for copies of blocks.
    pub fn for_cache(mut self) -> Self {
        self.is_cache = true;
        self
    }

    /// The same, whose device is an older copy: it holds no more than that commit.
    pub fn of_older_copy(mut self, holds: (CommitId, Incarnation)) -> Self {
        self.holds = Some(holds);
        self
    }

    /// The last commit that its device holds and the import that wrote it, where that is less than the root says.
    pub fn holds(&self) -> Option<(CommitId, Incarnation)> {
        self.holds
    }

    /// Its entry in the root of `commit`, which import `incarnation` writes.
    pub fn to_root(&self, commit: CommitId, incarnation: Incarnation) -> RootDevice {
        let state = match self.state() {
            _ if self.group == NO_GROUP => DeviceState::Spare,
            MemberState::Online => DeviceState::Current,
            MemberState::Rebuilding => DeviceState::Rebuilding,
            MemberState::Waiting => DeviceState::Waiting,
            MemberState::Offline if !self.until_import.load(Ordering::Relaxed) => DeviceState::Offline,
            _ => DeviceState::Behind,
        };
        let (good_through, incarnation) = match state {
            DeviceState::Current => (commit, incarnation),
            _ => (self.good_through(), self.good_incarnation()),
        };
        RootDevice {
            index: self.index,
            group: self.group,
            state,
            leaving: self.is_leaving(),
            stands_for: self.stands_for,
            slot_count: self.slot_count(),
            partial: self.is_partial(),
            guid: self.guid,
            good_through,
            since: self.since(),
            cursor: self.cursor(),
            incarnation,
            kind: self.kind,
            is_cache: self.is_cache,
        }
    }

    /// Number of its slots.
    pub fn slot_count(&self) -> u32 {
        self.slot_count.load(Ordering::Acquire)
    }

    /// It has a label that says that it is larger, and so many slots, from now on: between two commits, when no root is
    /// on its way.
    pub fn extend(&self, label: Label, slots: u32) {
        *self.label.lock() = Some(label);
        self.slot_count.store(slots, Ordering::Release);
    }

    /// Its device, to make another member of it.
    pub fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.clone()
    }

    /// Its state.
    pub fn state(&self) -> MemberState {
        MemberState::of(self.state.load(Ordering::Acquire))
    }

    /// Puts it into another state.
    pub fn set_state(&self, state: MemberState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Takes it out of use, until the next import only when that is `temporary`.
    pub fn take_offline(&self, temporary: bool) {
        self.until_import.store(temporary, Ordering::Relaxed);
        self.set_state(MemberState::Offline);
    }

    /// Whether it is on its way out of its group.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Sends it on its way out, or has it stay.
    pub fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Ordering::Release);
    }

    /// Notes that it has every write after `commit`.
    pub fn joined_after(&self, commit: CommitId) {
        self.since.store(commit.get(), Ordering::Release);
    }

    /// It has every write after this commit: the one at whose end it joined, or came back.
    pub fn since(&self) -> CommitId {
        CommitId::new(self.since.load(Ordering::Acquire))
    }

    /// The last segment, in the order of ids, that is rebuilt on it.
    pub fn cursor(&self) -> SegmentId {
        SegmentId::new(self.cursor.load(Ordering::Acquire))
    }

    /// Notes that all segments up to `segment` are rebuilt.
    pub fn rebuilt_to(&self, segment: SegmentId) {
        self.cursor.store(segment.get(), Ordering::Release);
    }

    /// Whether something of what it is rebuilt from could not be had; for one that stands for another.
    pub fn is_partial(&self) -> bool {
        self.partial.load(Ordering::Acquire)
    }

    /// Notes that.
    pub fn set_partial(&self, partial: bool) {
        self.partial.store(partial, Ordering::Release);
    }

    /// The last commit whose writes it is known to hold.
    pub fn good_through(&self) -> CommitId {
        CommitId::new(self.good_through.load(Ordering::Acquire))
    }

    /// Notes that what it held is not to be relied on, as if it had begun anew at `commit`: it gets everything when
    /// it is back.
    pub fn holds_nothing(&self, commit: CommitId) {
        self.joined_after(commit);
        self.good_through.store(0, Ordering::Release);
    }

    /// The import that wrote commit [`Member::good_through`].
    pub fn good_incarnation(&self) -> Incarnation {
        Incarnation::new(self.good_incarnation.load(Ordering::Acquire))
    }

    /// Notes that `commit`, which import `incarnation` writes, is complete: a member in use holds it.
    pub fn completed(&self, commit: CommitId, incarnation: Incarnation) {
        if self.is_online() {
            self.good_incarnation.store(incarnation.get(), Ordering::Release);
            self.good_through.store(commit.get(), Ordering::Release);
        }
    }

    /// Whether it is read and written.
    pub fn is_online(&self) -> bool {
        self.state() == MemberState::Online
    }

    /// Whether it is written.
    pub fn is_written(&self) -> bool {
        matches!(self.state(), MemberState::Online | MemberState::Rebuilding | MemberState::Waiting)
    }

    /// Whether its device hung and was abandoned: nothing that it has under way is waited for, and it comes back only
    /// by being opened anew.
    pub fn is_given_up(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// For how long it may leave a request unanswered.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed))
    }

    /// Sets that.
    pub fn set_timeout(&self, timeout: Duration) {
        let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.timeout_ms.store(ms, Ordering::Relaxed);
    }

    /// Why a member is faulted or slow, as text.
    pub fn reason(&self) -> Option<String> {
        self.fault.lock().clone().filter(|_| self.state() == MemberState::Faulted).or_else(|| self.why_slow())
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        self.device.as_ref().map_or_else(|| format!("device {}", self.guid), |device| device.name())
    }

    /// Its label, when it is there.
    pub fn label(&self) -> Option<Label> {
        self.label.lock().clone()
    }

    /// The device's current size, when it is there.
    pub fn size(&self) -> Option<ByteLen> {
        self.device.as_ref().map(|device| device.size())
    }

    /// Where byte `within` of slot `slot` lies.
    pub fn slot_offset(&self, slot: SlotIndex, within: u32) -> DeviceOffset {
        let start = self.label.lock().as_ref().map_or(LABEL_AREA, |label| label.data_start.get());
        DeviceOffset::new(start + u64::from(slot.get()) * u64::from(self.slot_size) + u64::from(within))
    }

    /// Where its two label areas start: on the device as it was labelled.
    pub fn label_areas(&self) -> [DeviceOffset; 2] {
        let labelled = self.label.lock().as_ref().map(|label| label.device_size);
        label_areas(labelled.or_else(|| self.size()).unwrap_or(ByteLen::new(2 * LABEL_AREA)))
    }

    /// Whether reads may be sent to it.
    fn is_read(&self) -> bool {
        self.is_online() || (self.last_resort.load(Ordering::Acquire) && self.state() == MemberState::Faulted)
    }

    /// Starts a read; `None` when the member is not read.
    pub fn read(&self, offset: DeviceOffset, len: usize) -> Option<Pending<Outcome>> {
        if !self.is_read() {
            return None;
        }
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
        larder_sync::waits();
        let request = Request::Read { offset, len: ByteLen::new(len as u64) };
        self.submit(RequestKind::Read, request)
    }

    /// Reads what a member has, also if it missed something; `None` when it is not there.
    pub fn read_anyway(&self, offset: DeviceOffset, len: usize) -> Option<Outcome> {
        larder_sync::waits();
        let request = Request::Read { offset, len: ByteLen::new(len as u64) };
        self.submit(RequestKind::Read, request).map(|pending| self.wait(pending))
    }

    /// Reads what was written to a member that does not count yet; `None` when it is not there.
    pub fn read_back(&self, offset: DeviceOffset, len: usize) -> Option<Outcome> {
        self.is_written().then(|| self.read_anyway(offset, len)).flatten()
    }

    /// Whether it gives anything: the beginning of one of its labels.
    pub fn answers(&self) -> bool {
        self.label_areas()
            .into_iter()
            .any(|at| matches!(self.read_back(at, larder_device::ALIGN), Some(Ok(_))))
    }

    /// Whether it has a heartbeat of this import.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }

    /// Notes that.
    pub fn claim(&self) {
        self.mute.store(false, Ordering::Release);
        self.claimed.store(true, Ordering::Release);
    }

    /// Whether it refused the last heartbeat.
    pub fn is_mute(&self) -> bool {
        self.mute.load(Ordering::Acquire)
    }

    /// Notes that; whether it was not known.
    pub fn is_mute_now(&self) -> bool {
        !self.mute.swap(true, Ordering::AcqRel)
    }

    /// Reads, in the calling thread where the device allows that, and waits at most `limit`; `None` when the member
    /// is not read, and the request while it is still in flight.
    pub fn read_now(
        &self,
        offset: DeviceOffset,
        len: usize,
        limit: Duration,
    ) -> Option<Result<Outcome, Pending<Outcome>>> {
        if !self.is_read() {
            return None;
        }
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
        larder_sync::waits();
        let request = Request::Read { offset, len: ByteLen::new(len as u64) };
        self.perform(RequestKind::Read, request, limit)
    }

    /// Starts a write; `None` when the member is not written.
    pub fn write(&self, offset: DeviceOffset, data: Arc<AlignedBuf>) -> Option<Pending<Outcome>> {
        if !self.is_written() {
            return None;
        }
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.submit(RequestKind::Write, Request::Write { offset, data })
    }

    /// Starts a write that the calling thread is about to wait for; `None` when the member is not written.
    pub fn start_write(&self, offset: DeviceOffset, data: Arc<AlignedBuf>) -> Option<Pending<Outcome>> {
        if !self.is_written() {
            return None;
        }
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.start(RequestKind::Write, Request::Write { offset, data })
    }

    /// Whether it takes discards, as far as is known.
    pub fn discards(&self) -> bool {
        !self.no_discards.load(Ordering::Relaxed)
    }

    /// Starts a discard; `None` when the member is not written, or takes none. It is in no statistics.
    pub fn discard(&self, offset: DeviceOffset, len: ByteLen) -> Option<Pending<Outcome>> {
        let asked = self.is_written() && self.discards();
        asked.then(|| Some(self.device.as_ref()?.submit(Request::Discard { offset, len }))).flatten()
    }

    /// As [`Member::complete`], of a discard: that the device refuses it is no error of the device, which is asked for
    /// no more; nor is it that the file system under it has no room for a hole, which there may be later.
    pub fn complete_discard(&self, pending: Pending<Outcome>) -> Discarded {
        let mut discarded = Discarded::Failed;
        let is_borne = |error: &DeviceError| {
            if error.is_full() {
                discarded = Discarded::Later;
                return true;
            }
            let refused = matches!(error, DeviceError::Unsupported | DeviceError::Io { .. });
            self.no_discards.fetch_or(refused, Ordering::Relaxed);
            refused
        };
        if self.complete_unless(Some(pending), || {}, is_borne) { Discarded::Done } else { discarded }
    }

    /// Starts a flush; `None` when the member is not written.
    pub fn flush(&self) -> Option<Pending<Outcome>> {
        if !self.is_written() {
            return None;
        }
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.submit(RequestKind::Flush, Request::Flush)
    }

    /// Starts a flush that the calling thread is about to wait for; `None` when the member is not written.
    pub fn start_flush(&self) -> Option<Pending<Outcome>> {
        if !self.is_written() {
            return None;
        }
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.start(RequestKind::Flush, Request::Flush)
    }

    fn perform(
        &self,
        kind: RequestKind,
        request: Request,
        limit: Duration,
    ) -> Option<Result<Outcome, Pending<Outcome>>> {
        let device = self.device.as_ref()?;
        let mut watch = self.meter.start(kind);
        watch.begin();
        Some(match device.perform(request, limit) {
            Ok(outcome) => {
                watch.done();
                Ok(outcome)
            }
            Err(pending) => Err(pending.timed(watch)),
        })
    }

    fn start(&self, kind: RequestKind, request: Request) -> Option<Pending<Outcome>> {
        let device = self.device.as_ref()?;
        let watch = self.meter.start(kind);
        Some(device.start(request).timed(watch))
    }

    fn submit(&self, kind: RequestKind, request: Request) -> Option<Pending<Outcome>> {
        let device = self.device.as_ref()?;
        let watch = self.meter.start(kind);
        Some(device.submit(request).timed(watch))
    }

    /// Latencies of the requests counted in [`Counters`].
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Waits for a write or flush; a failure faults the member, and so does a device that does not answer in time,
    /// which is abandoned. Returns whether it succeeded.
    pub fn complete(&self, pending: Option<Pending<Outcome>>) -> bool {
        self.complete_or(pending, || {})
    }

    /// As [`Member::complete`], of a write that can go elsewhere: one that the device refuses, though it is there, is
    /// counted and does not fault it.
    pub fn complete_write(&self, pending: Option<Pending<Outcome>>) -> Written {
        let mut refused = None;
        let may_refuse = |error: &DeviceError| {
            let is_refusal = matches!(error, DeviceError::Io { .. }) && !error.is_full() && self.is_written();
            refused = is_refusal.then(|| error.clone());
            self.counters.write_errors.fetch_add(u64::from(is_refusal), Ordering::Relaxed);
            is_refusal
        };
        match (self.complete_unless(pending, || {}, may_refuse), refused) {
            (_, Some(error)) => Written::Refused(error),
            (true, None) => Written::Done,
            (false, None) => Written::Lost,
        }
    }

    /// Another of its slots refuses a write: whether that is still for the slot to suffer.
    pub fn may_refuse(&self) -> bool {
        self.refusals.fetch_add(1, Ordering::Relaxed) < REFUSALS
    }

    /// Forgets how many slots refused.
    pub fn forget_refusals(&self) {
        self.refusals.store(0, Ordering::Relaxed);
    }

    /// A write that it refused found no other slot on it: faults it.
    pub fn refuse(&self, error: &DeviceError) {
        self.fault_because(format!("a write or flush failed: {error}"));
    }

    /// As [`Member::complete`], of a flush: when it fails nobody knows what of the writes before it is on the device.
    pub fn complete_flush(&self, pending: Option<Pending<Outcome>>) -> bool {
        self.complete_or(pending, || self.note_missed())
    }

    fn complete_or(&self, pending: Option<Pending<Outcome>>, failed: impl Fn()) -> bool {
        self.complete_unless(pending, failed, |_| false)
    }

    /// As [`Member::complete`]; an error that `is_borne` is left to who bears it.
    fn complete_unless(
        &self,
        pending: Option<Pending<Outcome>>,
        failed: impl Fn(),
        is_borne: impl FnOnce(&DeviceError) -> bool,
    ) -> bool {
        let Some(pending) = pending else { return false };
        let timeout = self.timeout();
        match self.outwait(pending, timeout) {
            Ok(Ok(_)) => return self.is_written(),
            Ok(Err(ref error)) if is_borne(error) => {}
            Ok(Err(error)) => {
                failed();
                // A device that comes back is another one: writes that were not flushed are gone.
                if error == DeviceError::Gone {
                    self.note_missed();
                }
                self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
                if error.is_full() {
                    self.full.store(true, Ordering::Relaxed);
                    self.fault_because("the file system that it lies on is full".to_owned());
                } else {
                    self.fault_because(format!("a write or flush failed: {error}"));
                }
            }
            // Somebody else found that out.
            Err(_) if self.is_given_up() => {}
            Err(_) => {
                self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
                self.fault_because(format!("did not answer for {} s", timeout.as_secs_f64().ceil()));
                self.abandoned.store(true, Ordering::Release);
                self.device.iter().for_each(|device| device.abandon());
            }
        }
        false
    }

    /// Takes the member out of use; missing, stale and offline ones stay what they are.
    pub fn fault(&self) {
        let faulted = MemberState::Faulted as u8;
        for from in [MemberState::Online, MemberState::Rebuilding, MemberState::Waiting] {
            let was = self.state.compare_exchange(from as u8, faulted, Ordering::AcqRel, Ordering::Acquire);
            if was.is_ok() && from != MemberState::Online {
                self.note_missed();
            }
        }
    }

    /// Takes a spare out of use that is of no use.
    pub fn fail(&self, why: &dyn std::fmt::Display) {
        self.fault_because(why.to_string());
    }

    /// Notes that it hung: nothing that it has under way is waited for.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.device.iter().for_each(|device| device.abandon());
    }

    /// A root is durable that has this entry of it, if any: whether it failed at that root or not, others vouch for it.
    pub fn note_root(&self, told: Option<&RootDevice>) {
        let is_current = told.is_some_and(|told| told.state == DeviceState::Current);
        self.current.store(is_current, Ordering::Release);
    }

    /// Whether it would pass for current if the others were lost, whatever they know of it.
    pub fn passes_for_current(&self) -> bool {
        self.current.load(Ordering::Acquire)
    }

    /// Notes that something of a segment was repaired on it. A flush makes it durable; it is no younger for that, so no
    /// resilver brings it anew where the flush fails.
    pub fn note_repair(&self, segment: SegmentId) {
        self.repaired.lock().insert(segment);
    }

    /// Takes the segments of which something was repaired and not flushed.
    pub(crate) fn take_repairs(&self) -> BTreeSet<SegmentId> {
        std::mem::take(&mut *self.repaired.lock())
    }

    /// Segments of which a repair may be lost.
    pub fn doubtful(&self) -> BTreeSet<SegmentId> {
        let mut all = self.doubtful.lock().clone();
        if !self.is_written() {
            all.extend(self.repaired.lock().iter());
        }
        all
    }

    /// Takes them, for somebody to look at.
    pub fn take_doubtful(&self) -> BTreeSet<SegmentId> {
        std::mem::take(&mut *self.doubtful.lock())
    }

    /// Notes such segments.
    pub fn doubt(&self, mut segments: BTreeSet<SegmentId>) {
        self.doubtful.lock().append(&mut segments);
    }

    /// Something counts as stored that it lacks, or may lack.
    pub fn note_missed(&self) {
        self.missed.store(true, Ordering::Release);
    }

    /// Whether it was faulted and lacks nothing but what was never stored: as it is, it can be used again.
    pub fn is_unharmed(&self) -> bool {
        self.state() == MemberState::Faulted
            && !self.missed.load(Ordering::Acquire)
            && !self.is_given_up()
            && self.device.is_some()
    }

    /// Whether it was faulted because its file system is full.
    pub fn is_full(&self) -> bool {
        self.state() == MemberState::Faulted && self.full.load(Ordering::Relaxed)
    }

    /// From now on it is read though it was faulted, unless it hung.
    pub fn read_all_the_same(&self) {
        self.last_resort.store(!self.is_given_up(), Ordering::Release);
    }

    /// Uses it again; see [`Member::is_unharmed`].
    pub fn use_again(&self) {
        self.fault.lock().take();
        self.full.store(false, Ordering::Relaxed);
        self.last_resort.store(false, Ordering::Relaxed);
        self.set_state(MemberState::Online);
    }

    fn fault_because(&self, reason: String) {
        self.fault.lock().get_or_insert(reason);
        self.fault();
    }

    /// Rewrites both labels by `change`, one after the other with a flush between.
    pub fn relabel(&self, change: impl Fn(&mut Label)) -> Result<(), DeviceError> {
        let Some(device) = &self.device else { return Err(DeviceError::Gone) };
        let areas = self.label_areas();
        let mut guard = self.label.lock();
        let Some(label) = guard.as_mut() else { return Err(DeviceError::Gone) };
        label.sequence += 1;
        change(label);
        let data = Arc::new(AlignedBuf::padded(&label.encode()));
        for area in areas {
            device.submit(Request::Write { offset: area, data: Arc::clone(&data) }).within(self.timeout())?;
            device.submit(Request::Flush).within(self.timeout())?;
        }
        Ok(())
    }
}

impl Drop for Member {
    /// A device that owes an answer may never give it, and is not to hold whoever lets go of it.
    fn drop(&mut self) {
        if let Some(device) = &self.device
            && self.meter.owed() > 0
            && Arc::strong_count(device) == 1
        {
            device.abandon();
        }
    }
}
