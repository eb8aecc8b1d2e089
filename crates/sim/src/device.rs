//! Simulated devices, their world and their faults.

use crate::arm::{Arm, pass};
use crate::clock::SimClock;
use crate::cut::Survival;
use crate::image::DeviceImage;
use crate::rng::Rng;
use crate::trace::{Event, Trace};
use larder_device::AlignedBuf;
use larder_device::{
    ALIGN, Completion, Device, DeviceError, DiskShape, DiskWork, Outcome, Pending, Request, VirtualTime,
};
use larder_format::{ByteLen, DeviceOffset};
use larder_sync::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `EIO`, what most broken disks say.
const EIO: i32 = 5;
/// `ENOSPC`, the error of a full file system.
const ENOSPC: i32 = 28;

/// A fault of a device. Ranges are in bytes; a request is hit when it touches one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Reads fail with an I/O error: bad sectors.
    FailReads(Range<u64>),
    /// Writes fail with an I/O error and change nothing.
    FailWrites(Range<u64>),
    /// Writes and discards fail with ENOSPC and change nothing: the file system that the device's file lies on is full.
    Full,
    /// Discards that touch this fail with ENOSPC and change nothing: the file system has no room to punch a hole there.
    FullWithin(Range<u64>),
    /// Flushes fail, and so do all later ones through the same handle until [`Device::forgive`]. Of what was written
    /// and not flushed some is there and the rest is lost, which reads show from then on.
    FailFlushes,
    /// Every request fails with [`DeviceError::Gone`].
    Gone,
    /// Requests never complete, until [`SimDevice::resume`]. Whoever waits a limited time for one is told at once.
    Hang,
    /// Writes are acknowledged and forgotten.
    LoseWrites(Range<u64>),
    /// Writes are acknowledged and land somewhere else.
    MisdirectWrites {
        /// The writes that go astray.
        from: Range<u64>,
        /// Where they land; as much as fits the device.
        to: DeviceOffset,
    },
    /// Writes are acknowledged, but only some of their sectors land: at least one does, and one does not.
    TearWrites {
        /// The writes that are torn.
        range: Range<u64>,
        /// Which sectors land.
        seed: u64,
    },
    /// Flushes are acknowledged and do nothing.
    LieOnFlush,
    /// Discards are not supported.
    NoDiscards,
    /// Reads give what was there when the fault was injected.
    StaleReads(Range<u64>),
}

impl Fault {
    fn hits(&self, request: &Request) -> bool {
        let touches = |range: &Range<u64>, offset: DeviceOffset, len: u64| {
            range.start < offset.get() + len && offset.get() < range.end
        };
        match (self, request) {
            (Self::Gone | Self::Hang, _) => true,
            (Self::FailReads(range) | Self::StaleReads(range), Request::Read { offset, len }) => {
                touches(range, *offset, len.get())
            }
            (
                Self::FailWrites(range)
                | Self::LoseWrites(range)
                | Self::TearWrites { range, .. }
                | Self::MisdirectWrites { from: range, .. },
                Request::Write { offset, data },
            ) => touches(range, *offset, data.len() as u64),
            (Self::FailWrites(range) | Self::LoseWrites(range), Request::Discard { offset, len }) => {
                touches(range, *offset, len.get())
            }
            (Self::FullWithin(range), Request::Discard { offset, len }) => touches(range, *offset, len.get()),
            (Self::NoDiscards, Request::Discard { .. }) => true,
            (Self::FailFlushes | Self::LieOnFlush, Request::Flush) => true,
            (Self::Full, Request::Write { .. } | Request::Discard { .. }) => true,
            _ => false,
        }
    }
}

/// Requests sent to a device, failed ones included, and bytes moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes asked for by reads.
    pub bytes_read: u64,
    /// Bytes handed over by writes.
    pub bytes_written: u64,
    /// Bytes discarded.
    pub bytes_discarded: u64,
}

struct Injected {
    fault: Fault,
    /// Requests that the fault lets pass before it strikes.
    spare: u64,
    /// Requests that it strikes then.
    strikes: u64,
    /// The image when it was injected.
    then: DeviceImage,
}

/// Names a request within its world.
type Ticket = u64;

struct Media {
    /// Contents that reads see: all writes, flushed or not.
    image: DeviceImage,
    faults: Vec<Injected>,
    /// Requests that hang. They are kept: a promise that is dropped could never be kept later.
    hung: Vec<(Ticket, Request, Completion<Outcome>)>,
    /// Writes whose outcome nobody has taken, with their event numbers.
    in_flight: Vec<(Ticket, usize)>,
    /// Discards whose outcome nobody has taken.
    open: Vec<Ticket>,
    /// Discards that have been acknowledged and not been done.
    late: Vec<(Ticket, DeviceOffset, ByteLen)>,
    /// Flushes whose outcome nobody has taken, with the events that they will be.
    flushing: Vec<(Ticket, Event)>,
    /// The arm that answers, of a disk.
    arm: Option<Arm>,
    counters: Counters,
}

struct State {
    media: Vec<Media>,
    trace: Trace,
    next_ticket: Ticket,
    /// The time of disks, once there are any.
    clock: Option<Arc<SimClock>>,
}

/// Some devices and their common history.
#[derive(Clone)]
pub struct SimWorld(Arc<Mutex<State>>);

/// One device of a [`SimWorld`]; clones are the same device, opened once.
#[derive(Clone)]
pub struct SimDevice {
    world: SimWorld,
    index: usize,
    flush_failed: Arc<AtomicBool>,
}

impl SimWorld {
    /// A world of blank devices of the given sizes, each a multiple of 4096.
    pub fn new(sizes: &[ByteLen]) -> Self {
        Self::from_images(sizes.iter().copied().map(DeviceImage::blank).collect())
    }

    /// A world whose devices hold the given bytes, all of them durable: what a machine finds when it
    /// starts again.
    pub fn from_images(images: Vec<DeviceImage>) -> Self {
        let media = images.iter().cloned().map(Media::new).collect();
        Self(Arc::new(Mutex::new(State {
            media,
            trace: Trace { start: images, events: Vec::new() },
            next_ticket: 0,
            clock: None,
        })))
    }

    /// Plugs in another blank device. Cuts before this moment show it too, blank.
    pub fn add_device(&self, size: ByteLen) -> SimDevice {
        let mut state = self.0.lock();
        let image = DeviceImage::blank(size);
        state.trace.start.push(image.clone());
        state.media.push(Media::new(image));
        SimDevice { world: self.clone(), index: state.media.len() - 1, flush_failed: Arc::default() }
    }

    /// A device by its number, from 0, opened anew.
    pub fn device(&self, index: usize) -> SimDevice {
        assert!(index < self.0.lock().media.len(), "this world has no device {index}");
        SimDevice { world: self.clone(), index, flush_failed: Arc::default() }
    }

    /// All devices, as a pool takes them.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        let count = self.0.lock().media.len();
        (0..count).map(|index| Arc::new(self.device(index)) as Arc<dyn Device>).collect()
    }

    /// Makes disks of this shape of all devices: [`SimDevice::spin`].
    pub fn spin(&self, shape: DiskShape, clock: &Arc<SimClock>) {
        let count = self.0.lock().media.len();
        (0..count).for_each(|index| self.device(index).spin(shape, clock));
    }

    /// Notes in the trace that something happened here.
    pub fn mark(&self, mark: u64) {
        self.0.lock().trace.events.push(Event::Mark(mark));
    }

    /// The history so far.
    pub fn trace(&self) -> Trace {
        self.0.lock().trace.clone()
    }

    /// Contents of the devices after an orderly shutdown: every write, flushed or not.
    pub fn images(&self) -> Vec<DeviceImage> {
        self.0.lock().media.iter().map(|media| media.image.clone()).collect()
    }
}

impl VirtualTime for SimWorld {
    fn pass(&self, limit: Duration) -> Option<Duration> {
        let mut state = self.0.lock();
        let State { media, clock, .. } = &mut *state;
        let mut arms: Vec<_> = media.iter_mut().filter_map(|media| media.arm.as_mut()).collect();
        pass(clock.as_ref()?, &mut arms, limit)
    }
}

impl Media {
    fn new(image: DeviceImage) -> Self {
        Self {
            image,
            faults: Vec::new(),
            hung: Vec::new(),
            in_flight: Vec::new(),
            open: Vec::new(),
            late: Vec::new(),
            flushing: Vec::new(),
            arm: None,
            counters: Counters::default(),
        }
    }

    /// The first fault that strikes this request. Every fault that it hits counts it.
    fn strike(&mut self, request: &Request) -> Option<(Fault, DeviceImage)> {
        let mut struck = None;
        for injected in self.faults.iter_mut().filter(|injected| injected.fault.hits(request)) {
            if injected.spare > 0 {
                injected.spare -= 1;
            } else if injected.strikes > 0 && struck.is_none() {
                injected.strikes -= 1;
                struck = Some((injected.fault.clone(), injected.then.clone()));
            }
        }
        struck
    }
}

impl Counters {
    fn count(&mut self, request: &Request) {
        match request {
            Request::Read { len, .. } => {
                self.reads += 1;
                self.bytes_read += len.get();
            }
            Request::Write { data, .. } => {
                self.writes += 1;
                self.bytes_written += data.len() as u64;
            }
            Request::Discard { len, .. } => self.bytes_discarded += len.get(),
            Request::Flush => self.flushes += 1,
        }
    }
}

impl State {
    fn perform(
        &mut self,
        device: usize,
        ticket: Ticket,
        request: &Request,
        fault: Option<(Fault, DeviceImage)>,
    ) -> Outcome {
        if matches!(fault, Some((Fault::Gone, _))) {
            return Err(DeviceError::Gone);
        }
        let image = &self.media[device].image;
        let end = match request {
            Request::Read { offset, len } | Request::Discard { offset, len } => {
                offset.get().checked_add(len.get())
            }
            Request::Write { offset, data } => offset.get().checked_add(data.len() as u64),
            Request::Flush => Some(0),
        };
        if end.is_none_or(|end| end > image.size().get()) {
            return Err(DeviceError::Range);
        }
        let done = || Ok(AlignedBuf::zeroed(0));
        let is_flushed = matches!(request, Request::Flush) && !matches!(fault, Some((Fault::FailFlushes, _)));
        self.land(device, is_flushed);
        let image = &self.media[device].image;
        match (request, fault) {
            (_, Some((Fault::FailReads(_) | Fault::FailWrites(_), _))) => Err(DeviceError::Io { errno: EIO }),
            (_, Some((Fault::FailFlushes, _))) => {
                self.trace.events.push(Event::FlushFailed { device });
                Err(DeviceError::Io { errno: EIO })
            }
            (_, Some((Fault::Full | Fault::FullWithin(_), _))) => Err(DeviceError::Io { errno: ENOSPC }),
            (_, Some((Fault::LoseWrites(_) | Fault::LieOnFlush, _))) => done(),
            (Request::Read { offset, len }, fault) => {
                // Of the faults that let a read through, only stale reads are left.
                let seen = fault.as_ref().map_or(image, |(_, then)| then);
                // Other media may stand under the device since then.
                if end > Some(seen.size().get()) {
                    return Err(DeviceError::Range);
                }
                Ok(seen.read(*offset, usize::try_from(len.get()).expect("fits memory")))
            }
            (Request::Write { data, .. }, Some((Fault::MisdirectWrites { to, .. }, _))) => {
                let fits = image.size().get().saturating_sub(to.get()).min(data.len() as u64) as usize;
                if fits > 0 {
                    self.write(device, ticket, to, Arc::new(AlignedBuf::padded(&data[..fits])));
                }
                done()
            }
            (Request::Write { offset, data }, Some((Fault::TearWrites { seed, .. }, _))) => {
                let rng = Rng::new(&[seed, self.trace.events.len() as u64]);
                let mut landed = image.read(*offset, data.len());
                tear(data, &rng, &mut landed);
                self.write(device, ticket, *offset, Arc::new(landed));
                done()
            }
            (Request::Write { offset, data }, _) => {
                self.write(device, ticket, *offset, Arc::clone(data));
                done()
            }
            (_, Some((Fault::NoDiscards, _))) => Err(DeviceError::Unsupported),
            (Request::Discard { offset, len }, _) => {
                self.media[device].open.push(ticket);
                self.media[device].late.push((ticket, *offset, *len));
                self.land(device, false);
                done()
            }
            (Request::Flush, _) => {
                let media = &mut self.media[device];
                let in_flight = media.in_flight.iter().map(|(_, number)| *number).collect();
                let before = self.trace.events.len();
                media.flushing.push((ticket, Event::Flush { device, before, in_flight }));
                done()
            }
        }
    }

    fn write(&mut self, device: usize, ticket: Ticket, offset: DeviceOffset, data: Arc<AlignedBuf>) {
        let media = &mut self.media[device];
        media.image.write(offset, &data);
        media.in_flight.push((ticket, self.trace.events.len()));
        self.trace.events.push(Event::Write { device, offset, data });
    }

    /// Does discards that were acknowledged: some, or all of them.
    fn land(&mut self, device: usize, all: bool) {
        let late = std::mem::take(&mut self.media[device].late);
        for (ticket, offset, len) in late {
            let number = self.trace.events.len();
            let rng = Rng::new(&[ticket, number as u64]);
            let media = &mut self.media[device];
            if all || rng.below(4) == 0 {
                let seed = ticket;
                media.image.discard(offset, len, seed);
                if media.open.contains(&ticket) {
                    media.in_flight.push((ticket, number));
                }
                self.trace.events.push(Event::Discard { device, offset, len, seed });
            } else {
                media.late.push((ticket, offset, len));
            }
        }
    }

    /// Answers a request that was performed: now, or when the device's arm has done its work.
    fn answer(
        &mut self,
        device: usize,
        ticket: Ticket,
        request: &Request,
        outcome: Outcome,
    ) -> Pending<Outcome> {
        let is_there = !matches!(outcome, Err(DeviceError::Gone | DeviceError::Range));
        let arm = self.media[device].arm.as_mut().filter(|_| is_there);
        match (arm, DiskWork::of(request), &self.clock) {
            (Some(arm), Some(work), Some(clock)) => arm.ask(clock.elapsed(), ticket, work, outcome),
            _ => Pending::done(outcome),
        }
    }

    /// The caller knows now that this request is done.
    fn taken(&mut self, device: usize, ticket: Ticket) {
        let media = &mut self.media[device];
        media.in_flight.retain(|(flying, _)| *flying != ticket);
        media.open.retain(|open| *open != ticket);
        if let Some(at) = media.flushing.iter().position(|(flushing, _)| *flushing == ticket) {
            self.trace.events.push(media.flushing.remove(at).1);
        }
    }
}

impl SimDevice {
    /// From now on, every request that `fault` can hit is struck by it. Of several faults that hit a
    /// request, the one injected first strikes.
    pub fn inject(&self, fault: Fault) {
        self.inject_window(fault, 0, u64::MAX);
    }

    /// The fault lets `spare` requests pass that it could hit, then strikes `strikes` of them.
    /// `(LieOnFlush, 4, 1)` skips the fifth flush from now.
    pub fn inject_window(&self, fault: Fault, spare: u64, strikes: u64) {
        if let Fault::MisdirectWrites { to, .. } = &fault {
            assert!(to.get().is_multiple_of(ALIGN as u64), "devices have no unaligned places");
        }
        self.media(|media| {
            let then = media.image.clone();
            media.faults.push(Injected { fault, spare, strikes, then });
        });
    }

    /// Takes all faults away. What they did stays done, and hung requests hang on.
    pub fn clear_faults(&self) {
        self.media(|media| media.faults.clear());
    }

    /// A device that hung answers again: [`Fault::Hang`] is taken away and all hung requests are
    /// performed, in their order, late as they are.
    pub fn resume(&self) {
        let mut state = self.world.0.lock();
        let media = &mut state.media[self.index];
        media.faults.retain(|injected| injected.fault != Fault::Hang);
        for (ticket, request, completion) in std::mem::take(&mut media.hung) {
            let fault = state.media[self.index].strike(&request);
            completion.complete(state.perform(self.index, ticket, &request, fault));
        }
    }

    /// From now on it answers when a disk of this shape would have, by `clock`, which is the one clock of its world and
    /// of what runs on it: time passes while somebody waits, up to the answer or the limit of his patience. What
    /// requests do is as without: they are performed when they are submitted, and what a cut leaves of them has
    /// nothing to do with the disk's write cache. Discards, requests that hung and requests to a device that is gone
    /// are answered at once.
    ///
    /// A caller takes no time by itself: write after write, each of them flushed, then finds the next place still
    /// under the head, unless a test advances the clock between them. A thread that waits lets the others' time pass.
    pub fn spin(&self, shape: DiskShape, clock: &Arc<SimClock>) {
        let mut state = self.world.0.lock();
        let own = state.clock.get_or_insert_with(|| Arc::clone(clock));
        assert!(Arc::ptr_eq(own, clock), "a world has one clock");
        state.media[self.index].arm = Some(Arm::new(shape));
    }

    /// Bit rot: flips some bits, by seed, among the `len` bytes at `offset`, for good.
    pub fn flip_bits(&self, offset: DeviceOffset, len: usize, seed: u64) {
        let mut state = self.world.0.lock();
        state.media[self.index].image.flip_bits(offset, len, seed);
        state.trace.events.push(Event::Rot { device: self.index, offset, len, seed });
    }

    /// Puts other media under the device: an image of before, which is an old state, or that of another
    /// size, or a blank one. What it held is gone, whether it was flushed or not, and no cut brings it back.
    pub fn swap_media(&self, image: DeviceImage) {
        let mut state = self.world.0.lock();
        state.media[self.index].image = image.clone();
        state.media[self.index].late.clear();
        state.trace.events.push(Event::Swap { device: self.index, image });
    }

    /// The device's number in its world.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Requests and bytes since it was made or its counters were reset.
    pub fn counters(&self) -> Counters {
        self.media(|media| media.counters)
    }

    /// Counts from zero again.
    pub fn reset_counters(&self) {
        self.media(|media| media.counters = Counters::default());
    }

    /// It grows to `size` bytes, a multiple of 4096; no cut undoes it.
    pub fn grow_to(&self, size: ByteLen) {
        let mut state = self.world.0.lock();
        state.media[self.index].image.grow(size);
        state.trace.events.push(Event::Grow { device: self.index, size });
    }

    /// Contents that reads would see, past all faults.
    pub fn image(&self) -> DeviceImage {
        self.media(|media| media.image.clone())
    }

    fn media<T>(&self, f: impl FnOnce(&mut Media) -> T) -> T {
        f(&mut self.world.0.lock().media[self.index])
    }
}

impl Device for SimDevice {
    fn name(&self) -> String {
        format!("sim{}", self.index)
    }

    fn size(&self) -> ByteLen {
        self.media(|media| media.image.size())
    }

    fn submit(&self, request: Request) -> Pending<Outcome> {
        assert_aligned(&request);
        let mut state = self.world.0.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let media = &mut state.media[self.index];
        media.counters.count(&request);
        let fault = media.strike(&request);
        let is_flush = matches!(request, Request::Flush);
        let pending = if is_flush && self.flush_failed.load(Ordering::Relaxed) {
            Pending::done(Err(DeviceError::Io { errno: EIO }))
        } else if matches!(fault, Some((Fault::Hang, _))) {
            let (completion, pending) = Pending::new();
            completion.hang();
            media.hung.push((ticket, request, completion));
            pending
        } else {
            if matches!(fault, Some((Fault::FailFlushes, _))) {
                self.flush_failed.store(true, Ordering::Relaxed);
            }
            let outcome = state.perform(self.index, ticket, &request, fault);
            state.answer(self.index, ticket, &request, outcome)
        };
        let pending = match &state.clock {
            Some(_) => pending.in_time(Arc::new(self.world.clone())),
            None => pending,
        };
        let device = self.clone();
        pending.on_taken(move || device.world.0.lock().taken(device.index, ticket))
    }

    /// From now on reads show what is there.
    fn forgive(&self) {
        if self.flush_failed.swap(false, Ordering::Relaxed) {
            let mut state = self.world.0.lock();
            let mut images = state.trace.crash_images(state.trace.len(), Survival::KeepAll);
            state.media[self.index].image = images.swap_remove(self.index);
        }
    }
}

/// Brings some sectors of `data` into `media`: at least one lands, and one does not.
fn tear(data: &[u8], rng: &Rng, media: &mut [u8]) {
    let sector = if data.len() > 4096 { [512, 4096][rng.below(2)] } else { 512 };
    let sectors = data.len() / sector;
    let lost = rng.below(sectors);
    let sure = (lost + 1 + rng.below(sectors - 1)) % sectors;
    for i in (0..sectors).filter(|&i| i == sure || (i != lost && rng.below(2) == 0)) {
        media[i * sector..(i + 1) * sector].copy_from_slice(&data[i * sector..(i + 1) * sector]);
    }
}

/// Real direct I/O would refuse what this refuses.
fn assert_aligned(request: &Request) {
    let (offset, len) = match request {
        Request::Read { offset, len } | Request::Discard { offset, len } => (offset.get(), len.get()),
        Request::Write { offset, data } => (offset.get(), data.len() as u64),
        Request::Flush => return,
    };
    let align = ALIGN as u64;
    assert!(len > 0, "an empty request at {offset}");
    assert!(offset.is_multiple_of(align) && len.is_multiple_of(align), "unaligned: {len} bytes at {offset}");
}
