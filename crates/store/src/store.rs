//! The store: what knows where blocks lie, and the devices that they lie on.

use crate::bad_slot_table::BadSlots;
use crate::behind::Behind;
use crate::cache::{Cache, CacheStats};
use crate::core::Core;
use crate::dirty::Dirty;
use crate::events::{Class, Event, EventSink};
use crate::headroom::Headroom;
use crate::in_flight::InFlightQueue;
use crate::members::Members;
use crate::misses::Misses;
use crate::partial_reads::PartialReads;
use crate::read_cache::ReadCache;
use crate::segments::Readable;
use crate::suspects::Suspects;
use crate::suspension::Suspension;
use larder_device::{Clock, Entropy, Workers};
use larder_format::checksum::Sums;
use larder_format::label::GroupRule;
use larder_format::root::{GroupRole, RootImport};
use larder_format::{BlockId, CommitId, DeviceIndex, GroupIndex, HostId, PoolGuid, SegmentId};
use larder_sorted::map::BlockMap;
use larder_sync::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
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

/// log2 of the alignment of stripes where nobody says another.
pub const DEFAULT_ASHIFT: u8 = 12;

/// A group and what of it is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupUse {
    /// Its number.
    pub index: GroupIndex,
    /// Its rule.
    pub rule: GroupRule,
    /// Its role.
    pub role: GroupRole,
    /// Bytes of a slot.
    pub slot_size: u32,
    /// log2 of the alignment of stripes.
    pub ashift: u8,
    /// Its devices, with slots in use and slots in all.
    pub devices: Vec<(DeviceIndex, u64, u64)>,
    /// Slots in use and in all, as far as segments can have them.
    pub slots: (u64, u64),
    /// It is on its way out of the pool.
    pub leaving: bool,
}

/// See the module's text.
pub struct Store {
    /// Checksum keys of the pool.
    pub sums: Sums,
    /// The world outside.
    pub world: World,
    /// Nothing is written.
    pub read_only: bool,
    /// The devices.
    pub members: Members,
    /// Segments that can be read.
    pub readable: Readable,
    /// Looks into trees of before.
    pub behind: Behind,
    /// Recently read and written blocks.
    pub cache: Cache,
    /// From ids to places.
    pub map: Mutex<BlockMap>,
    /// Stripes on their way.
    pub in_flight: InFlightQueue,
    /// Segments, free slots, ids.
    pub core: Mutex<Core>,
    /// Room in whole free segments.
    pub headroom: Arc<Headroom>,
    /// The imports of the pool, the latest first.
    pub history: Mutex<Vec<RootImport>>,
    /// Accepted and not stored yet.
    pub dirty: Dirty,
    /// Bytes of nodes of datasets that the next commit has to store.
    pub unsealed: AtomicI64,
    /// An fsync had to wait for a commit, and none has been made since for which no fsync waits: every few seconds.
    pub hurried: AtomicBool,
    /// The newest durable commit.
    pub durable: AtomicU64,
    /// Why nothing is written any more.
    pub suspended: Mutex<Option<Suspension>>,
    /// Since when a device in use has not answered where data could not be read.
    pub silent_since: Mutex<Option<Duration>>,
    /// The newest root says that the pool was exported: nothing may follow it.
    pub exported: AtomicBool,
    /// Damage that reads found.
    pub suspects: Suspects,
    /// Slots that are out of use.
    pub bad_slots: BadSlots,
    /// Recent cache misses of small blocks.
    pub misses: Misses,
    /// Records that were partially read of late.
    pub partial_reads: PartialReads,
    /// Copies of blocks on faster devices.
    pub read_cache: ReadCache,
    /// Bytes of records stored since import.
    pub stored: AtomicU64,
    /// Sink of events.
    pub events: Arc<dyn EventSink>,
    /// Itself.
    pub myself: Weak<Store>,
}

/// Parts of a store.
pub struct StoreParts {
    /// Checksum keys of the pool.
    pub sums: Sums,
    /// The world outside.
    pub world: World,
    /// Nothing is to be written.
    pub read_only: bool,
    /// The devices.
    pub members: Members,
    /// Segments, free slots, ids.
    pub core: Core,
    /// The imports of the pool, the latest first.
    pub history: Vec<RootImport>,
    /// The newest durable commit.
    pub durable: CommitId,
    /// Sink of events.
    pub events: Arc<dyn EventSink>,
}

impl Store {
    /// Segments do not count as verified of which a device that failed may have lost a repair.
    pub fn doubt_lost_repairs(&self) {
        for member in self.members.iter().filter(|member| !member.is_written()) {
            member.doubtful().iter().for_each(|&id| self.doubt(id));
        }
    }

    /// A device is read again that may have lost repairs of these segments: somebody is to look.
    pub fn look_at_repairs(&self, segments: BTreeSet<SegmentId>) {
        for id in segments {
            self.doubt(id);
            self.suspects.note_segment(id);
        }
    }

    fn doubt(&self, segment: SegmentId) {
        self.core.lock().entries.change(segment, |entry| {
            entry.dirty |= entry.verified > 0;
            entry.verified = 0;
        });
    }

    /// A store with nothing cached, whose block map is still to be opened.
    pub fn new(parts: StoreParts) -> Arc<Self> {
        let store = Arc::new_cyclic(|myself| Self {
            sums: parts.sums,
            world: parts.world,
            read_only: parts.read_only,
            members: parts.members,
            readable: Readable::default(),
            behind: Behind::default(),
            cache: Cache::new(DEFAULT_MEMORY, DEFAULT_METADATA_PERCENT),
            map: Mutex::new(BlockMap::new()),
            in_flight: InFlightQueue::default(),
            headroom: Arc::clone(parts.core.groups.headroom()),
            core: Mutex::new(parts.core),
            history: Mutex::new(parts.history),
            dirty: Dirty::default(),
            unsealed: AtomicI64::new(0),
            hurried: AtomicBool::new(false),
            durable: AtomicU64::new(parts.durable.get()),
            suspended: Mutex::new(None),
            silent_since: Mutex::new(None),
            exported: AtomicBool::new(false),
            suspects: Suspects::default(),
            bad_slots: BadSlots::default(),
            misses: Misses::default(),
            partial_reads: PartialReads::default(),
            read_cache: ReadCache::default(),
            stored: AtomicU64::new(0),
            events: parts.events,
            myself: myself.clone(),
        });
        store.read_cache.set_cap(store.cache.copies_limit());
        for member in store.members.caches() {
            if !store.attach_cache(&member) {
                let text = "its slots are not as large as those of the other caches: it is not used";
                store.event(Event::new(Class::DeviceAdd).device(member.guid, member.name()).text(text));
            }
        }
        store
    }

    /// Changes the whole budget of memory, bytes.
    pub fn set_memory(&self, memory: u64) {
        self.cache.set_memory(memory);
        self.read_cache.set_cap(self.cache.copies_limit());
    }

    /// Tells of something that happened.
    pub fn event(&self, event: Event) {
        self.events.event(event);
    }

    /// The GUID that people and imports know the pool by.
    pub fn identity(&self) -> PoolGuid {
        self.core.lock().identity.guid
    }

    /// The GUID that the pool was made with: labels, sums and blocks name it.
    pub fn guid(&self) -> PoolGuid {
        self.sums.pool()
    }

    /// Checksum keys; whoever has them can forge blocks of the pool.
    pub fn sums(&self) -> &Sums {
        &self.sums
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

    /// The next block id; ids never come back.
    pub fn next_block(&self) -> BlockId {
        self.core.lock().next_block
    }

    /// The newest durable commit.
    pub fn durable_commit(&self) -> CommitId {
        CommitId::new(self.durable.load(Ordering::Acquire))
    }

    /// The commit that changes made now will be part of; stable while an operation is held.
    pub fn open_commit(&self) -> CommitId {
        self.core.lock().open_commit
    }

    /// Counters and contents of the cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// Forgets all cached blocks; for measuring.
    pub fn drop_caches(&self) {
        self.cache.clear();
    }

    /// The pool's groups and what of their devices is in use.
    pub fn groups(&self) -> Vec<GroupUse> {
        let core = self.core.lock();
        let groups = core.groups.values().map(|group| GroupUse {
            index: group.index,
            rule: group.rule,
            role: group.role,
            slot_size: group.slot_size,
            ashift: group.ashift,
            devices: group.devices().collect(),
            slots: group.slots(),
            leaving: group.leaving,
        });
        groups.collect()
    }

    /// log2 of the alignment of stripes: the greatest of its groups', which a new one gets.
    pub fn ashift(&self) -> u8 {
        let core = self.core.lock();
        core.groups.values().map(|group| group.ashift).max().unwrap_or(DEFAULT_ASHIFT)
    }

    /// Slots in use and in all, bytes over all devices but the log's; a group of copies counts once.
    pub fn raw_space(&self) -> (u64, u64) {
        let core = self.core.lock();
        core.vital_groups().fold((0, 0), |(used, total), group| {
            let (taken, all) = group.slots();
            let unit = u64::from(group.slot_size);
            let copies = group.rule.layout.r() as u64;
            (used + taken * unit / copies, total + all * unit / copies)
        })
    }

    /// The most bytes of a stored block: a quarter of the smallest slot.
    pub fn max_block(&self) -> u32 {
        self.members.smallest_slot().map_or(0, |slot| slot / 4)
    }

    /// The most bytes of a record: 1 MiB, or the largest power of two that a quarter of the smallest
    /// slot holds.
    pub fn max_record(&self) -> u32 {
        self.max_block().min(1 << 20)
    }

    /// Dirty bytes in memory.
    pub fn dirty(&self) -> &Dirty {
        &self.dirty
    }
}
