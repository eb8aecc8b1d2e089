//! The pool's devices as members: where their slots are, whether they may be trusted, what went wrong.
//!
//! A member starts online, missing (no device was found) or stale (found, but it missed commits). A
//! member that fails a write or a flush is faulted for the rest of the import: it is neither read nor
//! written, and the next root says through which commit it is good.

use crate::slow::Pace;
use larder_device::{
    AlignedBuf, Clock, Device, DeviceError, Meter, Outcome, Pending, Request, RequestKind, TIMEOUT,
};
use larder_format::label::{LABEL_AREA, Label, label_areas};
use larder_format::{
    ByteLen, CommitId, DeviceGuid, DeviceIndex, DeviceOffset, GroupIndex, PoolGuid, SlotIndex,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
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

/// A device of the pool.
pub struct Member {
    /// Its number.
    pub index: DeviceIndex,
    /// Its group.
    pub group: GroupIndex,
    /// Its GUID.
    pub guid: DeviceGuid,
    /// Number of slots.
    pub slot_count: u32,
    /// Bytes of a slot; the group's.
    pub slot_size: u32,
    good_through: AtomicU64,
    /// Requests and errors.
    pub counters: Counters,
    device: Option<Arc<dyn Device>>,
    /// How long its requests take.
    meter: Arc<Meter>,
    pub(crate) pace: Pace,
    /// For how long it may leave a request unanswered, ms.
    timeout_ms: AtomicU64,
    /// Why it was faulted.
    fault: Mutex<Option<String>>,
    label: Mutex<Option<Label>>,
    state: AtomicU8,
}

impl Member {
    /// A member whose device is there.
    pub fn present(
        device: Arc<dyn Device>,
        label: Label,
        state: MemberState,
        good_through: CommitId,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        Self {
            index: label.index,
            group: label.group,
            guid: label.device,
            slot_count: label.slot_count,
            slot_size: label.slot_size,
            good_through: AtomicU64::new(good_through.get()),
            counters: Counters::default(),
            device: Some(device),
            meter: Arc::new(Meter::new(Arc::clone(clock))),
            pace: Pace::default(),
            timeout_ms: AtomicU64::new(TIMEOUT.as_millis() as u64),
            fault: Mutex::default(),
            label: Mutex::new(Some(label)),
            state: AtomicU8::new(state as u8),
        }
    }

    /// A member whose device was not found; `root` is what the root record tells of it.
    pub fn missing(root: &larder_format::root::RootDevice, slot_size: u32, clock: &Arc<dyn Clock>) -> Self {
        Self {
            index: root.index,
            group: root.group,
            guid: root.guid,
            slot_count: root.slot_count,
            slot_size,
            good_through: AtomicU64::new(root.good_through.get()),
            counters: Counters::default(),
            device: None,
            meter: Arc::new(Meter::new(Arc::clone(clock))),
            pace: Pace::default(),
            timeout_ms: AtomicU64::new(TIMEOUT.as_millis() as u64),
            fault: Mutex::default(),
            label: Mutex::new(None),
            state: AtomicU8::new(MemberState::Missing as u8),
        }
    }

    /// Its state.
    pub fn state(&self) -> MemberState {
        match self.state.load(Ordering::Acquire) {
            0 => MemberState::Online,
            1 => MemberState::Missing,
            2 => MemberState::Stale,
            _ => MemberState::Faulted,
        }
    }

    /// The last commit whose writes it is known to hold.
    pub fn good_through(&self) -> CommitId {
        CommitId::new(self.good_through.load(Ordering::Acquire))
    }

    /// Notes that `commit` is complete: a member in use holds it.
    pub fn completed(&self, commit: CommitId) {
        if self.is_online() {
            self.good_through.store(commit.get(), Ordering::Release);
        }
    }

    /// Whether it is read and written.
    pub fn is_online(&self) -> bool {
        self.state() == MemberState::Online
    }

    /// Whether it failed and nothing that it still has under way is waited for.
    pub(crate) fn is_given_up(&self) -> bool {
        self.state() == MemberState::Faulted
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

    /// What is wrong with a member that is faulted or slow, in plain words.
    pub fn reason(&self) -> Option<String> {
        self.fault.lock().clone().filter(|_| self.is_given_up()).or_else(|| self.why_slow())
    }

    /// How people know it.
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

    /// Starts a read; `None` when the member is not online.
    pub fn read(&self, offset: DeviceOffset, len: usize) -> Option<Pending<Outcome>> {
        if !self.is_online() {
            return None;
        }
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
        let request = Request::Read { offset, len: ByteLen::new(len as u64) };
        self.submit(RequestKind::Read, request)
    }

    /// Reads, in the calling thread where the device allows that, and waits at most `limit`; `None` when the member
    /// is not online, and the request while it is still in flight.
    pub(crate) fn read_now(
        &self,
        offset: DeviceOffset,
        len: usize,
        limit: Duration,
    ) -> Option<Result<Outcome, Pending<Outcome>>> {
        if !self.is_online() {
            return None;
        }
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
        let request = Request::Read { offset, len: ByteLen::new(len as u64) };
        self.perform(RequestKind::Read, request, limit)
    }

    /// Starts a write; `None` when the member is not online.
    pub fn write(&self, offset: DeviceOffset, data: Arc<AlignedBuf>) -> Option<Pending<Outcome>> {
        if !self.is_online() {
            return None;
        }
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.submit(RequestKind::Write, Request::Write { offset, data })
    }

    /// Writes in the calling thread where the device allows that; `None` when the member is not online.
    pub fn write_now(&self, offset: DeviceOffset, data: Arc<AlignedBuf>) -> Option<Pending<Outcome>> {
        if !self.is_online() {
            return None;
        }
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.perform_soon(RequestKind::Write, Request::Write { offset, data })
    }

    /// Starts a flush; `None` when the member is not online.
    pub fn flush(&self) -> Option<Pending<Outcome>> {
        if !self.is_online() {
            return None;
        }
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.submit(RequestKind::Flush, Request::Flush)
    }

    /// Flushes in the calling thread where the device allows that; `None` when the member is not online.
    pub fn flush_now(&self) -> Option<Pending<Outcome>> {
        if !self.is_online() {
            return None;
        }
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.perform_soon(RequestKind::Flush, Request::Flush)
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

    /// Performs it in this thread unless that takes long; [`Member::settle`] waits for the rest.
    fn perform_soon(&self, kind: RequestKind, request: Request) -> Option<Pending<Outcome>> {
        let performed = self.perform(kind, request, self.timeout() / 4)?;
        Some(performed.map_or_else(|pending| pending, Pending::done))
    }

    fn submit(&self, kind: RequestKind, request: Request) -> Option<Pending<Outcome>> {
        let device = self.device.as_ref()?;
        let watch = self.meter.start(kind);
        Some(device.submit(request).timed(watch))
    }

    /// How long the requests counted in [`Counters`] took.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Waits for a write or flush; a failure faults the member, and so does a device that does not answer in time,
    /// which is abandoned. Returns whether it succeeded.
    pub fn settle(&self, pending: Option<Pending<Outcome>>) -> bool {
        let Some(pending) = pending else { return false };
        let timeout = self.timeout();
        match self.outwait(pending, timeout) {
            Ok(Ok(_)) => return self.is_online(),
            Ok(Err(error)) => {
                self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
                self.fault_because(format!("a write or flush failed: {error}"));
            }
            // Somebody else found that out.
            Err(_) if self.is_given_up() => {}
            Err(_) => {
                self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
                self.fault_because(format!("did not answer for {} s", timeout.as_secs_f64().ceil()));
                self.device.iter().for_each(|device| device.abandon());
            }
        }
        false
    }

    /// Takes the member out of use.
    pub fn fault(&self) {
        let online = MemberState::Online as u8;
        let faulted = MemberState::Faulted as u8;
        // Missing and stale members stay what they are.
        let _ = self.state.compare_exchange(online, faulted, Ordering::AcqRel, Ordering::Acquire);
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
    /// A device that owes an answer may never give it, and is not to hold whoever lets go of the pool.
    fn drop(&mut self) {
        if self.meter.owed() > 0 {
            self.device.iter().for_each(|device| device.abandon());
        }
    }
}

/// All members, by number.
pub struct Members {
    by_index: BTreeMap<DeviceIndex, Arc<Member>>,
}

impl Members {
    /// The members given.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Self {
        Self { by_index: members.into_iter().map(|member| (member.index, Arc::new(member))).collect() }
    }

    /// The member `index`.
    ///
    /// # Panics
    /// When there is none: segment records are checked against the members when they are read.
    pub fn get(&self, index: DeviceIndex) -> &Arc<Member> {
        &self.by_index[&index]
    }

    /// Whether there is a member `index`.
    pub fn has(&self, index: DeviceIndex) -> bool {
        self.by_index.contains_key(&index)
    }

    /// All members in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.by_index.values()
    }

    /// The members of `group`.
    pub fn of_group(&self, group: GroupIndex) -> impl Iterator<Item = &Arc<Member>> {
        self.iter().filter(move |member| member.group == group)
    }

    /// Flushes every online member; a member that fails is faulted.
    pub fn flush_all(&self) {
        let pending: Vec<_> = self.iter().map(|member| (member, member.flush())).collect();
        for (member, flush) in pending {
            if flush.is_some() {
                member.settle(flush);
            }
        }
    }

    /// Writes `data` at the same place, relative to label area `area` (0 or 1), of every online member.
    pub fn write_labels(&self, area: usize, within: impl Fn(DeviceOffset) -> DeviceOffset, data: &[u8]) {
        let data = Arc::new(AlignedBuf::padded(data));
        let pending: Vec<_> = self
            .iter()
            .map(|member| (member, member.write(within(member.label_areas()[area]), Arc::clone(&data))))
            .collect();
        for (member, write) in pending {
            if write.is_some() {
                member.settle(write);
            }
        }
    }

    /// The pool that all labels name; for messages.
    pub fn pool_of(&self) -> Option<PoolGuid> {
        self.iter().find_map(|member| member.label().map(|label| label.pool))
    }
}
