//! Slots as lists of the blocks that were written to them, and who calls the cache as its documentation says.

use larder_cache::{Cache, Cached, Config, Fate, Kind, Place, Read, Reclaimed, UNIT, Verdict};
use std::collections::{BTreeMap, VecDeque};

/// Seconds.
const DAY: u64 = 86_400;

/// Units of a slot in which blocks have 1 to 7 units; elsewhere they have one.
pub const MIXED_SLOT_UNITS: u32 = 64;

/// Something that happens to a cache.
#[derive(Debug, Clone)]
pub enum Step {
    Read(u64, Kind),
    Wait(u64),
    Add(u32),
    Reclaim,
    Lose(u32),
    /// The copy of a block turns out to be bad.
    Rot(u64),
    Cap(usize),
    Share(f64),
}

pub struct Device {
    pub cache: Cache,
    slot_units: u32,
    share: f64,
    cap: usize,
    now: u64,
    /// Blocks in the order in which they were written: id, place, units.
    slots: BTreeMap<u32, Vec<(u64, Cached)>>,
    most_slots: usize,
    /// Time and bytes of the writes of a day that were not the first fill's.
    written: VecDeque<(u64, u64)>,
    written_in_day: u64,
    filled: u64,
    log: Vec<(u64, Place)>,
}

impl Device {
    pub fn new(config: Config) -> Self {
        Self {
            cache: Cache::new(config),
            slot_units: config.slot_units,
            share: config.budget.share,
            cap: config.cap,
            now: 0,
            slots: BTreeMap::new(),
            most_slots: 0,
            written: VecDeque::new(),
            written_in_day: 0,
            filled: 0,
            log: Vec::new(),
        }
    }

    pub fn into_cache(self) -> Cache {
        self.cache
    }

    /// Blocks and where they were written, in this order.
    pub fn log(&self) -> &[(u64, Place)] {
        &self.log
    }

    pub fn step(&mut self, step: &Step) {
        match *step {
            Step::Read(id, kind) => self.read(id, kind),
            Step::Wait(seconds) => self.now += seconds,
            Step::Add(slot) => {
                assert_eq!(self.cache.add_slot(slot), !self.slots.contains_key(&slot));
                self.slots.entry(slot).or_default();
                self.most_slots = self.most_slots.max(self.slots.len());
            }
            Step::Reclaim => match self.cache.reclaim() {
                Some(Reclaimed::Free(slot)) => {
                    assert!(self.live_in(slot).is_empty(), "a slot with blocks is not free");
                    self.slots.remove(&slot).expect("only what was given is given back");
                }
                Some(Reclaimed::Victim(slot)) => self.evict(slot, Fate::Leaves),
                None => {}
            },
            Step::Lose(slot) => {
                self.cache.lose(slot..slot + 1);
                self.slots.remove(&slot);
            }
            Step::Rot(id) => {
                if let Some(found) = self.cache.find(id) {
                    self.cache.remove(id, found.place);
                    assert_eq!(self.cache.find(id), None, "what was removed is not found");
                }
            }
            Step::Cap(cap) => {
                self.cap = cap;
                self.cache.set_cap(cap);
            }
            Step::Share(share) => {
                self.share = share;
                self.cache.set_write_share(share);
            }
        }
        self.make_room();
    }

    pub fn read(&mut self, id: u64, kind: Kind) {
        let units = if self.slot_units == MIXED_SLOT_UNITS { (id % 7 + 1) as u32 } else { 1 };
        let read = Read { id, units, kind };
        // Now and then another block lies there: its header says so.
        if let Some(found) = self.cache.find(id)
            && self.id_at(found) == id
        {
            assert_eq!(found.units, units);
            return self.cache.hit(read, found.place);
        }
        if self.cache.missed(read, self.now) == Verdict::Admitted
            && let Some(place) = self.cache.append(id, units, kind, self.now)
        {
            self.write(id, Cached { place, units });
            self.make_room();
        }
    }

    /// Checks all that must hold between steps.
    pub fn check(&self) {
        assert_eq!(self.cache.slots(), self.slots.len());
        // The buckets and slots that there are at least.
        assert!(self.cache.memory() <= self.cap, "{} bytes of {}", self.cache.memory(), self.cap);
        let cached: usize = self.slots.keys().map(|slot| self.live_in(*slot).len()).sum();
        assert_eq!(cached as u64, self.cache.blocks(), "every entry is of a block that is there");
    }

    fn id_at(&self, found: Cached) -> u64 {
        let blocks =
            self.slots.get(&found.place.slot).expect("nothing is found in slots that are not the cache's");
        let at = blocks.binary_search_by_key(&found.place.unit, |(_, block)| block.place.unit);
        let (id, block) = blocks[at.expect("a block begins where one is found")];
        assert_eq!(block.units, found.units);
        id
    }

    fn live_in(&self, slot: u32) -> Vec<u64> {
        let is_live =
            |(id, block): &&(u64, Cached)| self.cache.find(*id).is_some_and(|of| of.place == block.place);
        self.slots[&slot].iter().filter(is_live).map(|(id, _)| *id).collect()
    }

    fn make_room(&mut self) {
        while let Some(victim) = self.cache.next_victim() {
            self.evict(victim, Fate::Stays);
        }
    }

    fn evict(&mut self, slot: u32, fate: Fate) {
        let blocks: Vec<_> = self.slots[&slot].iter().map(|(id, block)| (*id, block.place.unit)).collect();
        for (id, old) in self.cache.evict(slot, blocks, self.now) {
            assert_eq!(self.id_at(old), id, "what is kept is there");
            if let Some(place) = self.cache.append_again(id, old, self.now) {
                self.write(id, Cached { place, ..old });
            }
        }
        assert!(
            self.slot_units != MIXED_SLOT_UNITS || self.live_in(slot).is_empty(),
            "nothing is left in a victim"
        );
        self.cache.release(slot, fate);
        self.slots.insert(slot, Vec::new());
        if fate == Fate::Leaves {
            self.slots.remove(&slot);
        }
    }

    fn write(&mut self, id: u64, block: Cached) {
        let slots = self.slots.len() as u64;
        let blocks =
            self.slots.get_mut(&block.place.slot).expect("only slots that were given are written to");
        let used = blocks.last().map_or(0, |(_, last)| last.place.unit + last.units);
        assert!(used <= block.place.unit && block.place.unit + block.units <= self.slot_units);
        blocks.push((id, block));
        let slot_bytes = u64::from(self.slot_units) * UNIT;
        let bytes = u64::from(block.units) * UNIT;
        let free = bytes.min(self.most_slots as u64 * slot_bytes - self.filled);
        self.filled += free;
        if bytes > free {
            self.written.push_back((self.now, bytes - free));
            self.written_in_day += bytes - free;
            while let Some((_, past)) = self.written.front().filter(|(at, _)| self.now - at >= DAY) {
                self.written_in_day -= past;
                self.written.pop_front();
            }
            let budget = self.share * (slots * slot_bytes) as f64;
            assert!(self.written_in_day as f64 <= budget, "{} bytes in a day", self.written_in_day);
        }
        if self.log.len() < 1 << 16 {
            self.log.push((id, block.place));
        }
    }
}
