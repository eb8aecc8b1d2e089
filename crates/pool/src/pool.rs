//! The pool: what is imported, and the gate that keeps operations whole.
//!
//! Everything that changes the pool is done under an [`Op`], which holds the gate shared; a commit
//! takes the gate exclusively for as long as it needs to turn what changed into blocks, so that each
//! operation is in one commit, whole. Device writes, flushes and the root follow with the gate open.

use crate::around::Misses;
use crate::cache::{Cache, CacheStats};
use crate::clean::Cleaning;
use crate::commit::Sealed;
use crate::core::Core;
use crate::create::DEFAULT_ASHIFT;
use crate::dataset::{Dataset, Settings};
use crate::dedup::{Dedup, Duplicates};
use crate::error::{PoolError, Result};
use crate::events::{Class, Event};
use crate::free::Freeing;
use crate::intent::{Intent, Notes, Replayed};
use crate::map::{BlockMap, Changes};
use crate::members::Members;
use crate::part::Parts;
use crate::planted::{Bug, planted};
use crate::quota::Books;
use crate::segments::Readable;
use crate::snapshot::Snapshots;
use crate::space::GroupSpace;
use crate::spare::{Noted, Spare};
use crate::suspend::Suspension;
use crate::tree::Tree;
use crate::watch::Watch;
use crate::write::Flights;
use larder_device::{Clock, Entropy, Workers};
use larder_format::checksum::Sums;
use larder_format::label::GroupRule;
use larder_format::root::RootImport;
use larder_format::segment::SegmentState;
use larder_format::tables::SECRET_LEN;
use larder_format::{BlockId, CommitId, DatasetId, DeviceIndex, GroupIndex, HostId, PoolGuid, Timestamp};
use larder_sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The world outside, handed in.
#[derive(Clone)]
pub struct World {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Hands for hashing and codecs.
    pub workers: Arc<dyn Workers>,
    /// This host.
    pub host: HostId,
    /// Its name, for people.
    pub host_name: String,
}

/// The default of the `memory` property, bytes.
pub const DEFAULT_MEMORY: u64 = 512 << 20;
/// The default share of metadata in the cache, percent.
pub const DEFAULT_METADATA_PERCENT: u64 = 50;

/// What is left of the limits of dirty data and of rows on their way when fsyncs wait for all of both.
const HURRIED_PART: u64 = 4;

/// The layer above, asked at commits.
pub trait FrontEnd: Send + Sync {
    /// Stores all dirty data written before the call. Traffic goes on meanwhile.
    fn flush(&self) -> Result<()>;
    /// Stores dirty data that is in the intent log and not yet stored. Nothing else can enter meanwhile.
    fn flush_logged(&self, op: &Op<'_>) -> Result<()>;
    /// Notes all dirty data for the log; false when it is too much for it.
    fn note_dirty(&self) -> Result<bool>;
    /// A commit is durable.
    fn committed(&self, commit: CommitId);
    /// Bytes of what has no name any more and is still to be removed.
    fn freeing_bytes(&self) -> u64;
    /// Goes on with removing that: at most `max` records. True while there is more to do.
    fn reap_step(&self, max: usize) -> Result<bool>;
}

/// Dirty bytes in memory, over all front ends, and what storing them takes.
#[derive(Debug, Default)]
pub struct Dirty {
    written: AtomicU64,
    needed: AtomicU64,
    building: AtomicU64,
}

impl Dirty {
    /// More was written; tells how much it was before.
    fn add(&self, bytes: u64) -> u64 {
        self.written.fetch_add(bytes, Ordering::Relaxed)
    }
    /// Some was stored or dropped.
    pub fn sub(&self, bytes: u64) {
        self.written.fetch_sub(bytes, Ordering::Relaxed);
    }
    /// Bytes dirty now.
    pub fn get(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
    /// Storing what is dirty of a file will take `now` bytes of space and no longer `before`: records are stored
    /// whole, however little of each was written.
    pub fn need(&self, before: u64, now: u64) {
        if now >= before {
            self.needed.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.needed.fetch_sub(before - now, Ordering::Relaxed);
        }
    }
    /// Bytes of space that storing all of it takes, at most.
    pub fn needed(&self) -> u64 {
        self.needed.load(Ordering::Relaxed)
    }
    /// Memory in which whole records are put together from dirty pieces: what others have left of `most` bytes,
    /// but `least` in any case, so that nobody waits.
    pub fn room(&self, most: u64, least: u64) -> Room<'_> {
        let grant = |building: u64| most.saturating_sub(building).max(least);
        let take = |building| Some(building + grant(building));
        let (Ok(before) | Err(before)) =
            self.building.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Room { dirty: self, bytes: grant(before) }
    }
}

/// Memory for records that are being put together, until it is dropped.
#[derive(Debug)]
pub struct Room<'a> {
    dirty: &'a Dirty,
    bytes: u64,
}

impl Room<'_> {
    /// How much, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Gives back what is not needed beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        self.resize(bytes.min(self.bytes));
    }
    /// It is `bytes` now, whatever others have left: they get less.
    pub fn resize(&mut self, bytes: u64) {
        self.dirty.building.fetch_add(bytes, Ordering::Relaxed);
        self.dirty.building.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Called when so much is dirty that it should be stored; see [`Pool::on_dirty`].
pub type Bell = Box<dyn Fn() + Send + Sync>;

/// Space as statfs wants it, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// What an empty pool could hold.
    pub size: u64,
    /// What is used of it.
    pub used: u64,
    /// What can still be written.
    pub available: u64,
}

/// A group and what of it is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupUse {
    /// Its number.
    pub index: GroupIndex,
    /// Its rule.
    pub rule: GroupRule,
    /// Bytes of a slot.
    pub slot_size: u32,
    /// log2 of the alignment of rows.
    pub ashift: u8,
    /// Its devices, with slots in use and slots in all.
    pub devices: Vec<(DeviceIndex, u64, u64)>,
}

/// An imported pool.
pub struct Pool {
    pub(crate) sums: Sums,
    pub(crate) name: RwLock<String>,
    pub(crate) created: Timestamp,
    pub(crate) world: World,
    pub(crate) read_only: bool,
    pub(crate) members: Members,
    /// When it was made or imported, by the clock that never goes back.
    pub(crate) began: Duration,
    /// Changes of members that wait for the next commit.
    pub(crate) changes: crate::devices::Changes,
    pub(crate) resilver: crate::resilver::Slot,
    pub(crate) readable: Readable,
    pub(crate) cache: Cache,
    pub(crate) gate: RwLock<()>,
    pub(crate) commit_lock: Mutex<()>,
    pub(crate) intent: Mutex<Intent>,
    pub(crate) notes: Mutex<Notes>,
    /// Held shared by who removes something, and alone by a commit that has to get ahead of them.
    pub(crate) removal: RwLock<()>,
    /// The newest commit that will hold data which the log has not.
    pub(crate) unlogged_in: AtomicU64,
    /// An fsync had to wait for a commit, and none has been made since for which no fsync waits: every few seconds.
    pub(crate) hurried: AtomicBool,
    pub(crate) replay: Mutex<Vec<Replayed>>,
    /// The log holds what the trees do not: a commit would drop it.
    pub(crate) is_replaying: AtomicBool,
    pub(crate) tables: Mutex<Tree>,
    pub(crate) map: Mutex<BlockMap>,
    pub(crate) flights: Flights,
    pub(crate) core: Mutex<Core>,
    pub(crate) spare: Arc<Spare>,
    pub(crate) datasets: RwLock<BTreeMap<DatasetId, Arc<Dataset>>>,
    /// Datasets without a name, whose trees are being taken down; see [`crate::destroy`].
    pub(crate) destroyed: Mutex<BTreeMap<DatasetId, Arc<Dataset>>>,
    pub(crate) properties: RwLock<BTreeMap<String, String>>,
    pub(crate) history: Mutex<Vec<RootImport>>,
    pub(crate) front: RwLock<Option<Weak<dyn FrontEnd>>>,
    pub(crate) dirty: Dirty,
    /// Bytes of nodes of datasets that the next commit has to store.
    pub(crate) unsealed: AtomicI64,
    /// Bytes of nodes of datasets that commits have stored since import.
    pub(crate) sealed: AtomicU64,
    pub(crate) books: Books,
    /// What [`Pool::freeing_bytes`] told last.
    pub(crate) freeing_told: AtomicU64,
    pub(crate) durable: AtomicU64,
    pub(crate) suspended: Mutex<Option<Suspension>>,
    /// What the tables have not been told of the block map's runs. Locked under the tables.
    pub(crate) unnoted: Mutex<Changes>,
    /// A commit that devices refused; see [`Pool::resume`].
    pub(crate) unfinished: Mutex<Option<Sealed>>,
    pub(crate) beats: AtomicU64,
    pub(crate) looked: crate::fence::Looked,
    /// What happened, and what could not be read.
    pub(crate) log: Mutex<crate::events::Log>,
    pub(crate) damage: crate::damage::Damage,
    /// Held while space is won back for a writer.
    pub(crate) reclaiming: Mutex<()>,
    /// The commit at which nothing more could be won back.
    pub(crate) exhausted: AtomicU64,
    /// The commit at which nothing that was accepted or deleted brought more space.
    pub(crate) settled: AtomicU64,
    /// The segment that is being emptied. Locked under the commit lock only.
    pub(crate) cleaning: Mutex<Option<Cleaning>>,
    /// Bytes of records stored since import, and bytes moved by the cleaner.
    pub(crate) stored: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) misses: Misses,
    pub(crate) parts: Parts,
    pub(crate) trace: crate::trace::Slot,
    pub(crate) healing: crate::heal::Healing,
    /// Slots that are out of use.
    pub(crate) bad_slots: crate::badslots::BadSlots,
    pub(crate) scrub: crate::scrub::Slot,
    pub(crate) trim: crate::trim::Trims,
    pub(crate) bell: OnceLock<Bell>,
    pub(crate) freeing: Mutex<Freeing>,
    /// The key of fingerprints.
    pub(crate) secret: OnceLock<[u8; SECRET_LEN]>,
    pub(crate) duplicates: Duplicates,
    pub(crate) snapshots: Mutex<Snapshots>,
    pub(crate) myself: Weak<Pool>,
}

enum Gate<'a> {
    Shared { _guard: Option<RwLockReadGuard<'a, ()>> },
    Exclusive { _guard: &'a RwLockWriteGuard<'a, ()> },
}

/// A modifying operation under way: everything done under it is in the same commit. Never nest two.
pub struct Op<'a> {
    pool: &'a Pool,
    // Dropped before the gate is left.
    _watch: Watch<'a>,
    _gate: Gate<'a>,
}

impl<'a> Op<'a> {
    /// The pool.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }
}

impl Pool {
    /// Enters a modifying operation.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`] or [`PoolError::Suspended`].
    pub fn enter(&self) -> Result<Op<'_>> {
        self.look_after_a_pause()?;
        let guard = (!planted(Bug::GateOpen)).then(|| self.gate.read());
        // Whoever held the gate may have suspended the pool.
        self.check_writable()?;
        Ok(Op { pool: self, _watch: self.watch("an operation"), _gate: Gate::Shared { _guard: guard } })
    }

    pub(crate) fn exclusive<'a>(&'a self, guard: &'a RwLockWriteGuard<'a, ()>) -> Result<Op<'a>> {
        self.check_writable()?;
        let op = Op { pool: self, _watch: self.watch("a commit"), _gate: Gate::Exclusive { _guard: guard } };
        Ok(op)
    }

    /// The pool's GUID.
    pub fn guid(&self) -> PoolGuid {
        self.sums.pool()
    }

    /// How it sums what it stores; whoever has this can make bytes that pass for the pool's.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }
    /// The pool's name.
    pub fn name(&self) -> String {
        self.name.read().clone()
    }
    /// When it was made.
    pub fn created(&self) -> Timestamp {
        self.created
    }
    /// Whether it was imported for reading only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }
    /// Its devices.
    pub fn members(&self) -> &Members {
        &self.members
    }
    /// Time.
    pub fn clock(&self) -> &dyn Clock {
        &*self.world.clock
    }
    /// A dataset.
    pub fn dataset(&self, id: DatasetId) -> Option<Arc<Dataset>> {
        self.datasets.read().get(&id).cloned()
    }
    /// All datasets that have a name, in the order of their ids.
    pub fn datasets(&self) -> Vec<Arc<Dataset>> {
        self.datasets.read().values().cloned().collect()
    }
    /// The next block id; ids never come back.
    pub fn next_block(&self) -> BlockId {
        self.core.lock().next_block
    }
    /// Bytes of nodes that the next commit has to store, before they are compressed.
    pub(crate) fn unsealed(&self) -> u64 {
        self.unsealed.load(Ordering::Relaxed).max(0) as u64
    }
    /// Dirty bytes in memory.
    pub fn dirty(&self) -> &Dirty {
        &self.dirty
    }
    /// The most dirty bytes that the budget allows.
    pub fn dirty_limit(&self) -> u64 {
        self.cache.dirty_limit()
    }
    /// The most dirty bytes that writers may leave: less than the budget has for them when fsyncs wait for all of them.
    pub fn dirty_allowed(&self) -> u64 {
        self.in_a_hurry(self.dirty_limit())
    }
    /// Bytes of rows that may be on their way to devices.
    pub(crate) fn rows_allowed(&self) -> u64 {
        self.in_a_hurry(self.cache.rows_limit())
    }
    fn in_a_hurry(&self, limit: u64) -> u64 {
        if self.hurried.load(Ordering::Relaxed) { limit / HURRIED_PART } else { limit }
    }
    /// From so many dirty bytes on they should be stored, though none of them needs to be yet.
    pub fn stream_from(&self) -> u64 {
        self.dirty_allowed() / 4
    }
    /// Counts more dirty bytes, and rings when that makes them enough to be stored.
    pub fn add_dirty(&self, bytes: u64) {
        let (before, enough) = (self.dirty.add(bytes), self.stream_from());
        if before < enough
            && before + bytes >= enough
            && let Some(bell) = self.bell.get()
        {
            bell();
        }
    }
    /// Has `bell` called when dirty bytes come to [`Pool::stream_from`]. Only the first one counts.
    pub fn on_dirty(&self, bell: Bell) {
        let _ = self.bell.set(bell);
    }
    /// Has the layer above store all its dirty data; nothing of it is durable before the next commit.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn flush_front(&self) -> Result<()> {
        let front = self.front.read().as_ref().and_then(Weak::upgrade);
        front.map_or(Ok(()), |front| front.flush())
    }
    /// The newest durable commit.
    pub fn durable_commit(&self) -> CommitId {
        CommitId::new(self.durable.load(Ordering::Acquire))
    }
    /// The commit that changes made now will be part of; stable while an [`Op`] is held.
    pub fn open_commit(&self) -> CommitId {
        self.core.lock().open_commit
    }
    /// Whether a commit has anything to write.
    pub fn is_dirty(&self) -> bool {
        self.is_changed() || self.has_news() || self.has_new_damage()
    }
    /// Whether somebody changed anything since the last commit was sealed.
    pub(crate) fn is_changed(&self) -> bool {
        self.dirty.get() > 0
            || self.notes.lock().bytes() > 0
            || self.has_dropped()
            || self.trees().iter().any(|dataset| {
                let state = dataset.state.read();
                state.changed || state.tree.is_dirty()
            })
    }
    /// Whether the changes of the block map that wait for a commit take more memory than merges may: a commit should
    /// come.
    pub fn is_map_large(&self) -> bool {
        self.map.lock().table_bytes() > self.cache.trace_limit()
    }
    /// Bytes of operations that wait for an fsync or a commit.
    pub fn noted_bytes(&self) -> usize {
        self.notes.lock().bytes()
    }
    /// Registers the layer above.
    pub fn set_front_end(&self, front: Weak<dyn FrontEnd>) {
        *self.front.write() = Some(front);
    }
    /// Operations found in the log at import, in order; to be replayed once, before anything else. Until
    /// [`Pool::replayed`] says that they are done nothing can be committed.
    pub fn take_replay(&self) -> Vec<(DatasetId, Vec<u8>)> {
        std::mem::take(&mut self.replay.lock())
    }
    /// All that the log held is done again, in the trees or as dirty data of a front end that stores it.
    pub fn replayed(&self) {
        self.is_replaying.store(false, Ordering::Release);
    }
    /// Refuses a commit that would say of logged operations that the trees have them, while they do not.
    pub(crate) fn check_replayed(&self) -> Result<()> {
        if self.is_replaying.load(Ordering::Acquire) {
            return Err(PoolError::Invalid("nothing can be committed before the log is replayed".into()));
        }
        Ok(())
    }

    /// The most bytes of a stored block: a quarter of the smallest slot.
    pub(crate) fn max_block(&self) -> u32 {
        self.members.smallest_slot().map_or(0, |slot| slot / 4)
    }

    /// The most bytes of a record: 1 MiB, or the largest power of two that a quarter of the smallest
    /// slot holds.
    pub fn max_record(&self) -> u32 {
        self.max_block().min(1 << 20)
    }

    /// Space, for records of `record_size` bytes.
    pub fn space(&self, record_size: u32) -> Space {
        self.space_above(record_size, GroupSpace::reserve)
    }

    /// As [`Pool::space`], with that many segments of each group for nobody.
    pub(crate) fn space_above(&self, record_size: u32, reserve: fn(&GroupSpace) -> u64) -> Space {
        self.space_in(&self.core.lock(), record_size, reserve)
    }

    fn space_in(&self, core: &Core, record_size: u32, reserve: fn(&GroupSpace) -> u64) -> Space {
        let record = record_size.min(self.max_record());
        let mut space = Space::default();
        for group in core.groups.values() {
            let (per_segment, reserve) = (group.per_segment(record), reserve(group));
            space.size += group.total_segments().saturating_sub(reserve) * per_segment;
            let dead = core.entries.dead(group.index);
            let free = group.free_segments() + dead.waiting_slots / group.rule.layout.columns() as u64;
            // What the reserve lacks is not there to be written, even where a segment is open for it.
            let lacks = reserve.saturating_sub(free) * per_segment;
            let there = group.available(free.saturating_sub(reserve), dead.bytes, record);
            space.available += (there + core.open_room(group, record)).saturating_sub(lacks);
        }
        space.available = space.available.saturating_sub(self.dirty.needed());
        space.size = space.size.max(space.available);
        space.used = space.size - space.available;
        space
    }

    /// What can be accepted of records of `record_size` bytes before anything is cleaned.
    pub(crate) fn writable_now(&self, core: &Core, record_size: u32) -> u64 {
        let taken = self.dirty.needed() + core.footprint_of_nodes(self.unsealed());
        let record = record_size.min(self.max_record());
        core.storable(record, GroupSpace::floor).saturating_sub(taken)
    }

    /// Whether so much is free that neither is to be won back: `needed` bytes of AVAIL, `bytes` that can be written
    /// now.
    pub(crate) fn has_plenty(&self, needed: u64, bytes: u64, record_size: u32) -> bool {
        let waits = needed.max(bytes).saturating_add(self.dirty.needed());
        if self.spare.holds(record_size, waits, self.unsealed()) {
            return true;
        }
        let core = self.core.lock();
        let plenty = !core.is_tight()
            && self.space_in(&core, record_size, GroupSpace::reserve).available >= needed
            && self.writable_now(&core, record_size) >= bytes;
        if plenty {
            self.note_spare(&core, record_size);
        }
        plenty
    }

    /// Notes what whole free segments have room for.
    fn note_spare(&self, core: &Core, record_size: u32) {
        let record = record_size.min(self.max_record());
        let room = |group: &GroupSpace| {
            // The floor, above which data is accepted, lies below the reserve.
            let free = group.free_segments().saturating_sub(group.reserve());
            group.available(free, 0, record)
        };
        self.spare.note(Noted {
            record_size,
            records: core.groups.values().map(room).sum(),
            nodes: core.room_for_nodes(),
            node_footprint: core.footprint_of_nodes(1),
        });
    }

    /// Bytes of records of `record_size` that lie side by side in the columns of a row: what is stored in multiples of
    /// that leaves no column short.
    pub fn abreast(&self, record_size: u32) -> u64 {
        let core = self.core.lock();
        let columns = core.groups.values().map(|group| group.rule.layout.k()).max().unwrap_or(1);
        columns as u64 * u64::from(record_size)
    }

    /// What was accepted can be stored up to so many bytes at once, in records of `record_size`; more might fail
    /// and be stored for nothing.
    pub fn storable_now(&self, record_size: u32) -> u64 {
        let record = record_size.min(self.max_record());
        self.core.lock().storable(record, GroupSpace::floor_of_accepted)
    }

    /// Refuses when `bytes` more of dirty data might not find room; wins dead space back before it does.
    /// Must not be called while an [`Op`] is held.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`].
    pub fn check_space(&self, bytes: u64, record_size: u32) -> Result<()> {
        let found = self.find_space(bytes, record_size).and_then(|()| self.make_space(bytes, record_size));
        found.inspect_err(|error| {
            if matches!(error, PoolError::NoSpace) {
                self.event(Event::new(Class::PoolFull));
            }
        })
    }

    /// Refuses when AVAIL is less than `bytes`, and nothing that was accepted or deleted brings it.
    pub(crate) fn find_space(&self, bytes: u64, record_size: u32) -> Result<()> {
        if self.space(record_size).available >= bytes {
            return Ok(());
        }
        self.check_writable()?;
        self.settle_space(bytes, record_size)
    }

    /// Slots in use and in all, bytes over all devices; a group of copies counts once.
    pub fn raw_space(&self) -> (u64, u64) {
        let core = self.core.lock();
        core.groups.values().fold((0, 0), |(used, total), group| {
            let (taken, all) = group.slots();
            let unit = u64::from(group.slot_size);
            let copies = group.rule.layout.r() as u64;
            (used + taken * unit / copies, total + all * unit / copies)
        })
    }

    /// The pool's groups and what of their devices is in use.
    pub fn groups(&self) -> Vec<GroupUse> {
        let core = self.core.lock();
        let groups = core.groups.values().map(|group| GroupUse {
            index: group.index,
            rule: group.rule,
            slot_size: group.slot_size,
            ashift: group.ashift,
            devices: group.devices().collect(),
        });
        groups.collect()
    }

    /// log2 of the alignment of rows: the greatest of its groups', which a new one gets.
    pub fn ashift(&self) -> u8 {
        let core = self.core.lock();
        core.groups.values().map(|group| group.ashift).max().unwrap_or(DEFAULT_ASHIFT)
    }

    /// Bytes of dead blocks in segments that are kept for what else lives in them, over all columns:
    /// free space that only cleaning brings back.
    pub fn dead_space(&self) -> u64 {
        let core = self.core.lock();
        let closed = core.entries.values().filter(|entry| entry.state == SegmentState::Closed);
        let dead = closed.map(|entry| {
            let layout = entry.segment.layout;
            let held = u64::from(entry.height) * layout.k() as u64;
            held.saturating_sub(entry.live_bytes) * layout.columns() as u64 / layout.k() as u64
        });
        dead.sum()
    }

    /// Whether commits would make dropped space writable again: the free queue goes on with each, and a slot
    /// comes back two commits after the last block in it died.
    pub fn is_freeing(&self) -> bool {
        self.has_dropped() || self.has_queued() || self.core.lock().waiting_to_be_free()
    }

    /// What the cache did and holds.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }
    /// Forgets all cached blocks; for measuring.
    pub fn drop_caches(&self) {
        self.cache.clear();
    }

    /// Settings that a dataset has when nothing is set.
    pub(crate) fn default_settings(&self) -> Settings {
        Settings {
            codec: crate::codec::Codec::default(),
            checksum: larder_format::checksum::ChecksumKind::Fast,
            record_size: (128 << 10).min(self.max_record()),
            chunking: crate::dataset::Chunking::Fixed,
            readonly: false,
            atime: crate::dataset::Atime::On,
            acl: true,
            xattr: true,
            dedup: Dedup::Off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Dirty;

    #[test]
    fn what_a_batch_takes_beyond_its_room_others_have_not() {
        let dirty = Dirty::default();
        let mut first = dirty.room(100, 1);
        first.resize(20);
        let second = dirty.room(100, 1);
        assert_eq!((first.bytes(), second.bytes()), (20, 80));
        drop(second);
        first.resize(130);
        assert_eq!(dirty.room(100, 1).bytes(), 1);
        first.resize(40);
        assert_eq!(dirty.room(100, 1).bytes(), 60);
        drop(first);
        assert_eq!(dirty.room(100, 1).bytes(), 100);
    }
}
