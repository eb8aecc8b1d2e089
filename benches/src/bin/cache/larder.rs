//! Larder's cache on a trace: RAM in front, which is LRU here, and a device that is a list of ids for each slot.

use larder_cache::{Cache, Config, Kind, Read, WriteBudget};

/// Segments of a cache; real ones have thousands.
const SLOTS: usize = 128;

/// Blocks in RAM, the one read last first.
pub struct Ram {
    room: usize,
    at: Vec<u64>,
    order: std::collections::VecDeque<(u32, u64)>,
    blocks: usize,
    now: u64,
}

impl Ram {
    pub fn new(ids: usize, room: usize) -> Self {
        Self { room, at: vec![0; ids], order: Default::default(), blocks: 0, now: 0 }
    }

    /// Whether it was there; it is now.
    pub fn read(&mut self, id: u32) -> bool {
        if self.room == 0 {
            return false;
        }
        self.now += 1;
        let was_there = std::mem::replace(&mut self.at[id as usize], self.now) != 0;
        self.order.push_back((id, self.now));
        self.blocks += usize::from(!was_there);
        while self.blocks > self.room {
            let (oldest, at) = self.order.pop_front().expect("what is there was read");
            if self.at[oldest as usize] == at {
                self.at[oldest as usize] = 0;
                self.blocks -= 1;
            }
        }
        was_there
    }
}

/// A cache with what its devices would hold.
pub struct Ssd {
    pub cache: Cache,
    ids: Vec<Vec<u64>>,
}

impl Ssd {
    pub fn new(seed: u64, blocks: usize) -> Self {
        let slots = SLOTS.min(blocks / 8).max(4);
        let slot_units = blocks.div_ceil(slots) as u32;
        let slots = blocks / slot_units as usize;
        let budget = WriteBudget { share: 1e9, ..WriteBudget::default() };
        let mut cache =
            Cache::new(Config { seed, slot_units, expected_blocks: blocks as u64, cap: 1 << 30, budget });
        (0..slots as u32).for_each(|slot| assert!(cache.add_slot(slot), "a slot is added once"));
        Self { cache, ids: vec![Vec::new(); slots] }
    }

    /// Whether it was a hit.
    pub fn read(&mut self, id: u32) -> bool {
        let read = Read { id: u64::from(id), units: 1, kind: Kind::Demand };
        // As the caller does: the id that stands there is looked at.
        let found = self
            .cache
            .find(read.id)
            .filter(|of| self.ids[of.place.slot as usize].get(of.place.unit as usize) == Some(&read.id));
        if let Some(found) = found {
            self.cache.hit(read, found.place);
            return true;
        }
        if self.cache.missed(read, 0) == larder_cache::Verdict::Admitted
            && let Some(place) = self.cache.append(read.id, 1, read.kind, 0)
        {
            self.ids[place.slot as usize].push(read.id);
            self.make_room();
        }
        false
    }

    fn make_room(&mut self) {
        while let Some(victim) = self.cache.next_victim() {
            let ids = std::mem::take(&mut self.ids[victim as usize]);
            let units: Vec<_> = ids.into_iter().zip(0..).collect();
            for (id, old) in self.cache.evict(victim, units, 0) {
                if let Some(place) = self.cache.append_again(id, old, 0) {
                    self.ids[place.slot as usize].push(id);
                }
            }
            self.cache.release(victim, larder_cache::Fate::Stays);
        }
    }

    /// Blocks written to the device.
    pub fn written(&self) -> u64 {
        let stats = self.cache.stats();
        (stats.appended_bytes + stats.kept_bytes) / larder_cache::UNIT
    }
}

/// Blocks that a ring writes, which admits everything and keeps nothing, behind the same RAM.
pub fn written_by_ring(trace: &[u32], ids: usize, ram: usize, room: usize) -> u64 {
    let mut ram = Ram::new(ids, ram);
    let mut written_at = vec![0_u64; ids];
    let mut written = 0;
    for &id in trace {
        let at = &mut written_at[id as usize];
        if !ram.read(id) && (*at == 0 || written - *at >= room as u64) {
            written += 1;
            *at = written;
        }
    }
    written
}

/// Bytes of memory a block of a full cache whose blocks have all been replaced in part, without the miniatures.
pub fn memory(blocks: u64, seed: u64) -> f64 {
    let mut ssd = Ssd::new(seed, blocks as usize);
    (0..blocks as u32).for_each(|id| _ = ssd.read(id));
    for _ in 0..2 {
        (0..blocks as u32 / 4).for_each(|id| _ = ssd.read(blocks as u32 + id));
    }
    ssd.cache.memory() as f64 / ssd.cache.blocks() as f64
}
