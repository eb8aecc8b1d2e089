//! Copies of blocks on devices that answer faster than the pool's: for reading, and for nothing else.
//!
//! Ids of blocks never return and their content never changes, so a copy is never out of date; it may be gone, torn,
//! rotten, or another block's whose place it has now. Each proves itself like any block: by id, pool, an import of the
//! history, and sums. If it does not, the block is read where it lies. So nothing rests on these devices: they are
//! written outside of commits, are never flushed, and may be lost at any instant.
//!
//! Decisions are those of [`larder_cache`]; here is what is known of the devices. Who reads asks ([`crate::copies`])
//! and tells what was read elsewhere ([`ReadCache::missed`]); blocks that are to be copied wait in a short queue. One
//! thread ([`crate::fill`]) writes them, slot after slot, and makes room. Readers never wait for it: a block for which
//! the queue has no room is not copied.

use crate::latency::{LATE_LEAST, LATE_MOST, nanos};
use crate::member::Member;
use crate::members::Members;
use bytes::Bytes;
use larder_cache::{
    Cache, Cached, Config, Curve, Kind, PLACES, Place, Read, Stats, Verdict, WriteBudget, units_of,
};
use larder_device::{Outcome, Pending};
use larder_format::block::{BlockKind, CheckedHeader};
use larder_format::cached::{CACHE_UNIT, CachedBlock, SlotCounts, SlotSummary, slot_units, summary_len};
use larder_format::{BlockId, DatasetId, DeviceIndex, DeviceOffset, SlotIndex};
use larder_sync::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of blocks that wait to be copied, at most.
const QUEUE: usize = 8 << 20;
/// From so many bytes on that wait, they are written at once.
const WORTH: usize = 256 << 10;
/// Blocks are this long when nothing is known of them.
const TYPICAL_BLOCK: u64 = 64 << 10;
/// Bytes of memory that one takes, at least.
const LEAST_MEMORY: u64 = 13;
/// A device that takes less for a read is not slow.
const NOTICED: Duration = Duration::from_micros(500);
/// Of so many reads that avoid a device which is slower than the pool's, one tries it.
const PROBE: u32 = 16;

/// The blocks of a dataset of which copies are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Secondary {
    /// All.
    #[default]
    All,
    /// Nodes alone.
    Metadata,
    /// None.
    Nothing,
}

/// Figures of the read cache since import.
#[derive(Debug, Clone, Default)]
pub struct ReadCacheStats {
    /// Devices with copies that are in use.
    pub devices: usize,
    /// Bytes of slots on them.
    pub size: u64,
    /// Bytes of these that were written, summaries included.
    pub filled: u64,
    /// Blocks that there are copies of.
    pub blocks: u64,
    /// Bytes of memory that knowing them takes, and at most may.
    pub memory: u64,
    /// See [`ReadCacheStats::memory`].
    pub memory_limit: u64,
    /// Counted by the policy.
    pub policy: Stats,
    /// Bytes written in the last 24 hours, and those that a day may have; what fills slots for the first time is in
    /// neither.
    pub written_today: u64,
    /// See [`ReadCacheStats::written_today`].
    pub daily: u64,
    /// Copies that were not made because the queue was full.
    pub hurried: u64,
    /// Hit ratio at other sizes.
    pub curve: Curve,
    /// Slots of earlier imports that are still to be looked at.
    pub restoring: u64,
}

/// See the module's text.
#[derive(Default)]
pub struct ReadCache {
    /// Whether there is a device: without one nobody takes the lock.
    is_there: AtomicBool,
    pub(crate) state: Mutex<State>,
    /// The queue is to be looked at.
    has_work: Mutex<bool>,
    waker: Condvar,
    /// For the one who fills it.
    pub(crate) filler: Mutex<Filler>,
    /// Time of a read of the pool's other devices, ns; 0 if unknown.
    disk_ns: AtomicU64,
    /// Reads that avoided a slow device.
    avoided: AtomicU32,
}

/// Devices, and the blocks that there are copies of or will be.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) cache: Option<Cache>,
    /// Bytes of a slot on every device.
    pub(crate) slot_size: u32,
    pub(crate) devices: Vec<CacheDevice>,
    /// Blocks that are to be copied, as stored.
    pub(crate) queue: VecDeque<(BlockId, Bytes, Kind)>,
    pub(crate) queued: usize,
    /// Ids of the queue.
    pub(crate) waiting: HashSet<BlockId>,
    /// Nothing is copied: the pool is not written.
    pub(crate) is_closed: bool,
    /// Blocks behind these units of these slots have a place, and are not written yet.
    pub(crate) unwritten: Vec<Place>,
    /// Memory for what is cached.
    pub(crate) cap: usize,
    /// Share of the devices' size that may be written a day.
    pub(crate) share: Option<f64>,
    /// Datasets of which not all is copied.
    pub(crate) secondary: HashMap<DatasetId, Secondary>,
    pub(crate) hurried: u64,
}

/// A device, whose slots have numbers from `base` on.
#[derive(Clone)]
pub(crate) struct CacheDevice {
    pub(crate) member: Arc<Member>,
    pub(crate) base: u32,
    /// Slots that are still to be looked at: earlier imports may have filled them.
    pub(crate) restoring: bool,
}

impl CacheDevice {
    pub(crate) fn slots(&self) -> Range<u32> {
        self.base..self.base + self.member.slot_count()
    }

    /// Where a unit of a slot lies on the device.
    pub(crate) fn offset(&self, slot: u32, unit: u32) -> DeviceOffset {
        let within = summary_len(self.member.slot_size) + unit * CACHE_UNIT;
        self.member.slot_offset(SlotIndex::new(slot - self.base), within)
    }
}

/// A copy that is said to be somewhere.
pub(crate) struct Copy {
    pub id: BlockId,
    pub(crate) member: Arc<Member>,
    pub(crate) offset: DeviceOffset,
    pub(crate) found: Cached,
}

/// A copy that is being read.
pub(crate) struct CopyRead(pub(crate) Copy, pub(crate) Pending<Outcome>);

/// Whether to read a part of a record, or all of it.
pub(crate) enum Part {
    /// The part will do.
    Alone,
    /// There is a copy.
    Copied,
    /// All of it, for a copy is to be made.
    Admitted,
}

impl State {
    pub(crate) fn device_of(&self, slot: u32) -> Option<&CacheDevice> {
        self.devices.iter().find(|device| device.slots().contains(&slot))
    }

    fn is_written(&self, place: Place) -> bool {
        !self.unwritten.iter().any(|from| from.slot == place.slot && place.unit >= from.unit)
    }

    /// Whether some device owes an answer.
    pub(crate) fn owes_answers(&self) -> bool {
        self.devices.iter().any(|device| device.member.meter().owed() > 0)
    }

    /// Whether copies are made: not before it is known which ones there are.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_closed && !self.devices.iter().any(|device| device.restoring)
    }

    /// Bytes of a device's slots that were written, summaries included.
    fn filled(&self, device: &CacheDevice) -> u64 {
        let Some(cache) = &self.cache else { return 0 };
        let head = u64::from(summary_len(self.slot_size));
        let used = device.slots().map(|slot| match cache.used_bytes(slot) {
            0 => 0,
            used => (used + head).min(u64::from(self.slot_size)),
        });
        used.sum()
    }

    /// The first numbers that are free for so many slots.
    fn base_for(&self, count: u32) -> u32 {
        let mut taken: Vec<_> = self.devices.iter().map(CacheDevice::slots).collect();
        taken.sort_by_key(|range| range.start);
        let mut base = 0;
        for range in taken {
            if range.start - base >= count {
                break;
            }
            base = range.end;
        }
        base
    }

    /// A device is gone, with its copies; whether there are others.
    fn forget(&mut self, device: &CacheDevice) -> bool {
        self.devices.retain(|other| other.member.index != device.member.index);
        self.unwritten.retain(|place| !device.slots().contains(&place.slot));
        if self.devices.is_empty() {
            self.cache = None;
            self.clear_queue();
        }
        if let Some(cache) = &mut self.cache {
            cache.lose(device.slots());
        }
        !self.devices.is_empty()
    }

    fn clear_queue(&mut self) {
        self.queue.clear();
        self.waiting.clear();
        self.queued = 0;
    }

    fn find(&self, id: BlockId) -> Option<Copy> {
        let found = self.cache.as_ref()?.find(id.get()).filter(|found| self.is_written(found.place))?;
        let device = self.device_of(found.place.slot)?;
        let offset = device.offset(found.place.slot, found.place.unit);
        Some(Copy { id, member: Arc::clone(&device.member), offset, found })
    }
}

/// Whether a device is in use and owes no answer.
fn is_ready(member: &Member) -> bool {
    member.is_online() && member.meter().owed() == 0
}

impl ReadCache {
    /// Whether there are devices with copies.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// A copy that is there as far as is known; one on a device that is worth asking.
    pub(crate) fn find(&self, id: BlockId) -> Option<Copy> {
        if !self.is_there() {
            return None;
        }
        let copy = self.state.lock().find(id)?;
        self.is_prompt(&copy.member).then_some(copy)
    }

    /// Whether reads go to this device: it owes no answer and is not slower than the pool's, or is tried again.
    fn is_prompt(&self, member: &Member) -> bool {
        is_ready(member)
            && (!self.is_slow(member) || self.avoided.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE))
    }

    /// Whether the pool's other devices are faster, by more than what nobody notices.
    fn is_slow(&self, member: &Member) -> bool {
        let disks = Duration::from_nanos(self.disk_ns.load(Ordering::Relaxed));
        let own = member.meter().typical_read();
        own.is_some_and(|own| !disks.is_zero() && own > disks * 2 && own > NOTICED)
    }

    /// When a read of a copy is late: when the block would long be here from the pool's other devices.
    pub(crate) fn late(&self) -> Duration {
        match self.disk_ns.load(Ordering::Relaxed) {
            0 => LATE_MOST,
            disks => (Duration::from_nanos(disks) * 2).clamp(LATE_LEAST, LATE_MOST),
        }
    }

    /// Notes what a read takes of the pool's other devices.
    pub(crate) fn compare(&self, members: &Members) {
        let mut typical: Vec<_> = members.iter().filter_map(|member| member.meter().typical_read()).collect();
        typical.sort_unstable();
        if let Some(half) = typical.get(typical.len() / 2) {
            self.disk_ns.store(nanos(*half), Ordering::Relaxed);
        }
    }

    /// Makes a device's copies known, and its slots usable. False for one that cannot be used beside the others: its
    /// slots are of another size, or too many.
    pub(crate) fn attach(&self, seed: u64, member: &Arc<Member>) -> bool {
        if !member.is_online() || member.slot_count() == 0 {
            return true;
        }
        let mut state = self.state.lock();
        let base = state.base_for(member.slot_count());
        let end =
            (u64::from(base) + u64::from(member.slot_count())) * u64::from(slot_units(member.slot_size));
        let State { cache, slot_size, devices, cap, share, .. } = &mut *state;
        if end > PLACES || (!devices.is_empty() && *slot_size != member.slot_size) {
            return false;
        }
        if devices.is_empty() {
            *slot_size = member.slot_size;
            let bytes = u64::from(member.slot_size) * u64::from(member.slot_count());
            let budget =
                WriteBudget { share: share.unwrap_or(WriteBudget::default().share), ..Default::default() };
            *cache = Some(Cache::new(Config {
                seed,
                slot_units: slot_units(*slot_size),
                expected_blocks: (bytes / TYPICAL_BLOCK).min(*cap as u64 / LEAST_MEMORY),
                cap: *cap,
                budget,
            }));
        }
        devices.push(CacheDevice { member: Arc::clone(member), base, restoring: true });
        self.is_there.store(true, Ordering::Release);
        drop(state);
        self.wake();
        true
    }

    /// Forgets a device and the copies on it; whether it had some.
    pub(crate) fn detach(&self, index: DeviceIndex) -> bool {
        let of = |state: &State| state.devices.iter().find(|device| device.member.index == index).cloned();
        if of(&self.state.lock()).is_none() {
            return false;
        }
        // Nobody writes to it meanwhile.
        let mut filler = self.filler.lock();
        let device = of(&self.state.lock());
        device.iter().for_each(|device| self.forget(&mut filler, device));
        device.is_some()
    }

    /// A device is none any more.
    pub(crate) fn forget(&self, filler: &mut Filler, device: &CacheDevice) {
        filler.forget(device.slots());
        let mut state = self.state.lock();
        let others = state.forget(device);
        self.is_there.store(others, Ordering::Release);
    }

    /// Memory for what is cached, bytes.
    pub fn set_cap(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.cap = usize::try_from(bytes).unwrap_or(usize::MAX);
        let cap = state.cap;
        if let Some(cache) = &mut state.cache {
            cache.set_cap(cap);
        }
    }

    /// Share of the devices' size that may be written in a day.
    pub fn set_write_share(&self, share: f64) {
        let mut state = self.state.lock();
        state.share = Some(share);
        if let Some(cache) = &mut state.cache {
            cache.set_write_share(share);
        }
    }

    /// Says of which blocks of a dataset copies are made. Those that there are stay until they make room.
    pub fn set_secondary(&self, dataset: DatasetId, which: Secondary) {
        let mut state = self.state.lock();
        match which {
            Secondary::All => drop(state.secondary.remove(&dataset)),
            which => drop(state.secondary.insert(dataset, which)),
        }
    }

    /// Forgets what was said of datasets that are not there.
    pub fn forget_secondary(&self, is_there: impl Fn(DatasetId) -> bool) {
        self.state.lock().secondary.retain(|dataset, _| is_there(*dataset));
    }

    /// Figures; nothing without devices.
    pub fn stats(&self, now: Duration) -> Option<ReadCacheStats> {
        let mut state = self.state.lock();
        let filled = state.devices.iter().map(|device| state.filled(device)).sum();
        let State { cache, devices, slot_size, cap, hurried, .. } = &mut *state;
        let cache = cache.as_mut()?;
        let (written_today, daily) = cache.written_and_budget(now.as_secs());
        let slots = |device: &CacheDevice| u64::from(device.member.slot_count());
        let size = devices.iter().map(slots).sum::<u64>() * u64::from(*slot_size);
        let restoring = devices.iter().filter(|device| device.restoring).map(slots).sum();
        Some(ReadCacheStats {
            devices: devices.len(),
            size,
            filled,
            blocks: cache.blocks(),
            memory: (cache.memory() + cache.miniature_memory()) as u64,
            memory_limit: *cap as u64,
            policy: cache.stats(),
            written_today,
            daily,
            hurried: *hurried,
            curve: cache.curve(),
            restoring,
        })
    }

    /// Blocks that there are copies of, by how often these were read of late, 3 being often.
    pub fn counts(&self) -> [u64; 4] {
        let state = self.state.lock();
        let Some(cache) = &state.cache else { return [0; 4] };
        let mut counts = [cache.blocks(), 0, 0, 0];
        for (_, count) in cache.counts(0..cache.buckets()) {
            counts[0] -= 1;
            counts[usize::from(count)] += 1;
        }
        counts
    }

    /// Bytes that were written of a device's slots.
    pub fn filled(&self, index: DeviceIndex) -> u64 {
        let state = self.state.lock();
        let device = state.devices.iter().find(|device| device.member.index == index);
        device.map_or(0, |device| state.filled(device))
    }

    /// Waits until there is something to copy, at most so long.
    pub fn wait(&self, limit: Duration) {
        let mut has_work = self.has_work.lock();
        if !*has_work {
            self.waker.wait_for(&mut has_work, limit);
        }
        *has_work = false;
    }

    /// Ends a [`ReadCache::wait`], or the next one.
    pub fn wake(&self) {
        *self.has_work.lock() = true;
        self.waker.notify_all();
    }

    pub(crate) fn hit(&self, copy: &Copy, why: Kind) {
        let read = Read { id: copy.id.get(), units: copy.found.units, kind: why };
        if let Some(cache) = &mut self.state.lock().cache {
            cache.hit(read, copy.found.place);
        }
    }

    /// The block is not where it was found: its entry goes, unless it was changed meanwhile, when that was to be
    /// expected. Whether it was not.
    pub(crate) fn distrust(&self, copy: &Copy) -> bool {
        let mut state = self.state.lock();
        let is_wrong = state.find(copy.id).is_some_and(|now| now.found == copy.found);
        if let Some(cache) = state.cache.as_mut().filter(|_| is_wrong) {
            cache.remove(copy.id.get(), copy.found.place);
        }
        is_wrong
    }

    /// Of a record of `stored` bytes, which RAM lacks, a part is wanted. Where datasets differ in what is copied,
    /// nobody knows yet of which it is: no copy is made for a part.
    pub(crate) fn judge_part(&self, id: BlockId, stored: u32, now: Duration) -> Part {
        if !self.is_there() {
            return Part::Alone;
        }
        let mut state = self.state.lock();
        let copy = state.find(id);
        if copy.as_ref().is_some_and(|copy| is_ready(&copy.member) && !self.is_slow(&copy.member)) {
            return Part::Copied;
        }
        let is_asked = copy.is_none() && state.is_open() && state.secondary.is_empty();
        let is_asked = is_asked && !state.waiting.contains(&id);
        let Some((cache, units)) = state.cache.as_mut().zip(units_of(stored.into())) else {
            return Part::Alone;
        };
        let read = Read { id: id.get(), units, kind: Kind::Demand };
        if !is_asked {
            cache.passed_by(read);
            return Part::Alone;
        }
        match cache.missed(read, now.as_secs()) {
            Verdict::Admitted => Part::Admitted,
            _ => Part::Alone,
        }
    }

    /// A block was read where it lies: a copy is made if it is worth that, and there is none.
    pub(crate) fn missed(&self, header: &CheckedHeader, stored: &Bytes, why: Kind, now: Duration) {
        if !self.is_there() {
            return;
        }
        let Some(units) = units_of(header.stored().into()) else { return };
        let mut state = self.state.lock();
        let which = state.secondary.get(&header.info.dataset).copied().unwrap_or_default();
        let is_excluded =
            which == Secondary::Nothing || (which == Secondary::Metadata && why != Kind::Metadata);
        let is_asked = !is_excluded && state.is_open();
        let Some(cache) = &mut state.cache else { return };
        let read = Read { id: header.id.get(), units, kind: why };
        // One whose device was late is there.
        if !is_asked || cache.find(header.id.get()).is_some() {
            cache.passed_by(read);
        } else if cache.missed(read, now.as_secs()) == Verdict::Admitted {
            self.enqueue(&mut state, header, stored);
        }
    }

    /// A block that was admitted before it was read.
    pub(crate) fn admitted(&self, header: &CheckedHeader, stored: &Bytes) {
        self.enqueue(&mut self.state.lock(), header, stored);
    }

    fn enqueue(&self, state: &mut State, header: &CheckedHeader, stored: &Bytes) {
        if state.queued + stored.len() > QUEUE {
            state.hurried += 1;
            return;
        }
        let is_there = state.cache.as_ref().is_some_and(|cache| cache.find(header.id.get()).is_some());
        if is_there || !state.waiting.insert(header.id) {
            return;
        }
        state.queued += stored.len();
        let kind = if header.info.kind == BlockKind::Record { Kind::Demand } else { Kind::Metadata };
        state.queue.push_back((header.id, stored.clone(), kind));
        if state.queued >= WORTH {
            self.wake();
        }
    }
}

/// State of the one who fills it.
#[derive(Default)]
pub(crate) struct Filler {
    /// Of data, and of metadata.
    pub(crate) open: [Option<OpenSlot>; 2],
    /// Of the slot that is filled next.
    pub(crate) generation: u64,
    pub(crate) restoring: Option<Restoring>,
    /// When counts were last written.
    pub(crate) counted_at: Duration,
    /// Slots below this one had their turn in this round of counts.
    pub(crate) counted_to: u32,
}

/// A slot that is being filled.
pub(crate) struct OpenSlot {
    pub(crate) slot: u32,
    pub(crate) generation: u64,
    pub(crate) pinned: bool,
    pub(crate) blocks: Vec<CachedBlock>,
    /// Bytes that are not written yet, which begin at unit `from`.
    pub(crate) chunk: Vec<u8>,
    pub(crate) from: u32,
    /// Blocks that its summary on the device has, and since when.
    pub(crate) told: usize,
    pub(crate) told_at: Duration,
}

/// Slots of a device that earlier imports may have filled.
pub(crate) struct Restoring {
    pub(crate) base: u32,
    /// Slots of which nothing is known yet.
    pub(crate) unseen: Range<u32>,
    /// Generation and slot, the latest first.
    pub(crate) filled: Vec<(u64, u32)>,
    pub(crate) blank: Vec<u32>,
    /// Those that were filled last, of data and of metadata: perhaps not to the end of what is there.
    pub(crate) latest: [Option<(u64, u32)>; 2],
}

impl Filler {
    /// These slots are gone.
    fn forget(&mut self, slots: Range<u32>) {
        self.open.iter_mut().for_each(|open| drop(open.take_if(|open| slots.contains(&open.slot))));
        self.restoring.take_if(|restoring| slots.contains(&restoring.base));
    }
}

impl ReadCache {
    /// Bytes that knowing the copies takes.
    pub(crate) fn memory(&self) -> u64 {
        let state = self.state.lock();
        state.cache.as_ref().map_or(0, |cache| (cache.memory() + cache.miniature_memory()) as u64)
    }

    /// Whether copies are made.
    pub(crate) fn open(&self, is_written: bool) {
        let mut state = self.state.lock();
        state.is_closed = !is_written;
        if !is_written {
            state.clear_queue();
        }
    }

    /// Makes the copies in a slot known.
    pub(crate) fn restore(&self, slot: u32, summary: &SlotSummary, counts: &SlotCounts) {
        let known = |block: &CachedBlock| {
            let (unit, units) = (u32::from(block.unit), u32::from(block.units));
            (block.id.get(), unit, units, counts.get(unit))
        };
        let blocks = summary.blocks.iter().map(known);
        if let Some(cache) = &mut self.state.lock().cache {
            cache.restore(slot, if summary.pinned { Kind::Metadata } else { Kind::Demand }, blocks);
        }
    }

    /// The next block that is to be copied.
    pub(crate) fn next(&self) -> Option<(BlockId, Bytes, Kind)> {
        let mut state = self.state.lock();
        let next = state.queue.pop_front()?;
        state.queued -= next.1.len();
        state.waiting.remove(&next.0);
        Some(next)
    }

    /// A place that `give` gives: until it is written nobody reads there.
    pub(crate) fn place(&self, give: impl FnOnce(&mut Cache) -> Option<Place>) -> Option<Place> {
        let mut state = self.state.lock();
        let place = give(state.cache.as_mut()?)?;
        if state.is_written(place) {
            state.unwritten.push(place);
        }
        Some(place)
    }
}
