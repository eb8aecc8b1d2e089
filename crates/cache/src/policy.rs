//! The choice of blocks that are cached, their places, and which make room: without budget and miniatures.
//!
//! Life of a block: read and not cached, its id is in the ghost; read again while it is there, it is appended to the
//! open segment. Full segments are sealed and queue up by age. The victim is that of the oldest quarter with the fewest
//! blocks hit: those are appended again with one hit less, the others' ids go to the ghost. RAM in front is the
//! probation queue: what it answers is not told here.
//!
//! Metadata has segments of its own. While they are at most half of all, room is made among the others: it stays.
//!
//! Invariants: an entry of the table lies in a slot that is open, sealed or being evicted; `live` and `hit` of a slot
//! count its entries, and those with hits; a slot is handed on only when nothing of it is live.

use crate::ghost::{Ghost, GhostLength, Memory};
use crate::table::{Entry, MOST_HITS, Table, is_length};
use std::collections::VecDeque;
use std::ops::Range;

/// Of the sealed segments the oldest of so many parts are looked at for a victim.
const OLDEST_PART: usize = 4;

/// The reason for a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A reader of data.
    Demand,
    /// Read-ahead of data.
    Ahead,
    /// A node of a tree or a page of the block map.
    Metadata,
}

/// A block that was looked for.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// The block's id.
    pub id: u64,
    /// Its length as stored, in units of 4 KiB: see [`crate::units_of`].
    pub units: u32,
    /// The reason for it.
    pub kind: Kind,
}

/// Somewhere in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The slot.
    pub slot: u32,
    /// Units from its beginning.
    pub unit: u32,
}

impl Kind {
    fn is_pinned(self) -> bool {
        self == Self::Metadata
    }
}

/// A cached block: told from others by its id, which stands in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cached {
    /// Where it lies.
    pub place: Place,
    /// Its length in units.
    pub units: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Free,
    Open,
    Sealed,
    Evicting,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    state: State,
    /// It has metadata.
    pinned: bool,
    /// Counts in it have changed since they were last taken.
    recounted: bool,
    live: u32,
    hit: u32,
}

const ABSENT: Slot = Slot { state: State::Absent, pinned: false, recounted: false, live: 0, hit: 0 };

/// Segments of one sort.
#[derive(Debug, Default)]
struct Queue {
    /// The one that is being filled, and its units in use.
    open: Option<(u32, u32)>,
    /// The oldest first.
    sealed: VecDeque<u32>,
}

impl Queue {
    fn len(&self) -> usize {
        self.sealed.len() + usize::from(self.open.is_some())
    }
}

#[derive(Debug)]
pub(crate) struct Policy {
    seed: u64,
    slot_units: u32,
    table: Table,
    ghost: Ghost,
    ghost_length: GhostLength,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Of data, and of metadata.
    queues: [Queue; 2],
    was_full: bool,
    cap: usize,
}

impl Policy {
    pub fn new(seed: u64, slot_units: u32, expected_blocks: u64, cap: usize) -> Self {
        Self {
            seed,
            slot_units,
            table: Table::new(expected_blocks),
            ghost: Ghost::new(0),
            ghost_length: GhostLength::Same,
            slots: Vec::new(),
            free: Vec::new(),
            queues: Default::default(),
            was_full: false,
            cap,
        }
    }

    pub fn blocks(&self) -> u64 {
        self.table.blocks()
    }

    pub fn memory(&self) -> usize {
        let slots = self.slots.capacity() * size_of::<Slot>();
        let sealed: usize = self.queues.iter().map(|queue| queue.sealed.capacity()).sum();
        let queues = (self.free.capacity() + sealed) * size_of::<u32>();
        self.table.memory() + self.ghost.memory() + slots + queues
    }

    pub fn set_cap(&mut self, cap: usize) {
        self.cap = cap;
        self.fit_ghost();
    }

    pub fn ghost_length(&self) -> GhostLength {
        self.ghost_length
    }

    pub fn set_ghost_length(&mut self, length: GhostLength) {
        self.ghost_length = length;
    }

    /// Slots of any state.
    pub fn slots(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state != State::Absent).count()
    }

    /// Free slots that there should be, so that what is appended again finds room: of either sort, if there are both.
    fn spare_slots(&self) -> usize {
        1 + usize::from(self.queues[1].open.is_some())
    }

    /// Units of a slot that blocks were appended to since it was empty.
    pub fn used_units(&self, slot: u32) -> u32 {
        let opened = self.queues.iter().filter_map(|queue| queue.open).find(|(open, _)| *open == slot);
        match (self.slots.get(slot as usize).map(|slot| slot.state), opened) {
            (Some(State::Open), Some((_, used))) => used,
            (Some(State::Sealed | State::Evicting), _) => self.slot_units,
            _ => 0,
        }
    }

    /// Whether there is room that nothing has to leave.
    pub fn is_filling(&self) -> bool {
        self.free.len() > self.spare_slots() && !self.is_near_cap()
    }

    /// Whether a slot is new here: one that was added already stays what it is.
    pub fn add_slot(&mut self, slot: u32) -> bool {
        let at = slot as usize;
        if at >= self.slots.len() {
            self.slots.resize(at + 1, ABSENT);
        }
        if self.slots[at].state != State::Absent {
            return false;
        }
        self.slots[at].state = State::Free;
        self.free.push(slot);
        true
    }

    /// A slot that was full before a restart: its blocks, each with its place in it, its units and its count, as if
    /// appended after all that are here. Without room in memory fewer are taken.
    pub fn restore(
        &mut self,
        slot: u32,
        kind: Kind,
        blocks: impl IntoIterator<Item = (u64, u32, u32, u8)>,
    ) -> bool {
        if !self.add_slot(slot) {
            return false;
        }
        self.free.pop();
        let pinned = kind.is_pinned();
        self.slots[slot as usize] = Slot { state: State::Sealed, pinned, ..ABSENT };
        self.queues[usize::from(pinned)].sealed.push_back(slot);
        for (id, unit, units, count) in blocks {
            let fits = units.checked_add(unit).is_some_and(|end| end <= self.slot_units);
            if !is_length(units) || !fits || !self.is_below_cap() {
                continue;
            }
            let place = u64::from(slot) * u64::from(self.slot_units) + u64::from(unit);
            let count = count.min(MOST_HITS);
            let others = self.table.insert(self.hash(id), Entry { place, units, count });
            self.slots[slot as usize].live += 1;
            self.slots[slot as usize].hit += u32::from(count > 0);
            if let Some(entry) = others {
                self.uncount(entry);
            }
        }
        true
    }

    pub fn take_free_slot(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[slot as usize] = ABSENT;
        Some(slot)
    }

    pub fn find(&self, id: u64) -> Option<Cached> {
        self.table.find(self.hash(id)).map(|entry| self.cached(entry))
    }

    /// Notes that the block was where it was found.
    pub fn hit(&mut self, id: u64, place: Place) {
        let hash = self.hash(id);
        let Some(entry) = self.table.find(hash).filter(|entry| self.cached(*entry).place == place) else {
            return;
        };
        if entry.count < MOST_HITS {
            self.table.insert(hash, Entry { count: entry.count + 1, ..entry });
            self.slots[place.slot as usize].hit += u32::from(entry.count == 0);
            self.slots[place.slot as usize].recounted = true;
        }
    }

    /// At most so many slots, from number `from` on, in which counts have changed since they were last taken; those
    /// that are being filled only if `open`.
    pub fn recounted(&mut self, from: u32, most: usize, open: bool) -> Vec<u32> {
        let is_there = |slot: &Slot| slot.state == State::Sealed || (open && slot.state == State::Open);
        let from_there = self.slots.iter_mut().enumerate().skip(from as usize);
        let changed = from_there.filter(|(_, slot)| slot.recounted && is_there(slot));
        let taken = changed.take(most).map(|(at, slot)| {
            slot.recounted = false;
            at as u32
        });
        taken.collect()
    }

    /// Parts of the table, for [`Policy::counts`].
    pub fn buckets(&self) -> usize {
        self.table.buckets()
    }

    /// Place and count of each block in some parts of the table that was hit.
    pub fn counts(&self, buckets: Range<usize>) -> impl Iterator<Item = (Place, u8)> + '_ {
        let hit = self.table.entries(buckets).filter(|entry| entry.count > 0);
        hit.map(|entry| (self.cached(entry).place, entry.count))
    }

    /// Whether a block that is not cached should be.
    pub fn is_wanted(&mut self, read: Read) -> bool {
        if read.kind == Kind::Metadata || (read.kind == Kind::Demand && self.is_filling()) {
            return true;
        }
        if !self.was_full && !self.is_filling() {
            self.was_full = true;
            self.ghost = Ghost::new(self.blocks());
        }
        match self.ghost.note(self.hash(read.id), self.ghost_length) {
            Memory::Unknown => false,
            Memory::Once => read.kind == Kind::Demand,
            Memory::Twice => true,
        }
    }

    /// Whether one more block fits into memory.
    pub fn is_below_cap(&self) -> bool {
        self.memory() + 1024 <= self.cap
    }

    /// Gives a block that is to be cached its place; none where there is no free slot.
    pub fn append(&mut self, id: u64, units: u32, kind: Kind) -> Option<Place> {
        let place = self.append_with(id, units, kind.is_pinned(), 0)?;
        self.ghost.forget(self.hash(id));
        Some(place)
    }

    /// A block that `evict` kept. Without a place its old one is forgotten, and it is not cached any more.
    pub fn append_again(&mut self, id: u64, old: Place) -> Option<Place> {
        let hash = self.hash(id);
        let entry = self.table.find(hash).filter(|entry| self.cached(*entry).place == old)?;
        let pinned = self.slots[old.slot as usize].pinned;
        let place = self.append_with(id, entry.units, pinned, entry.count.saturating_sub(1));
        if place.is_none() {
            self.remove(id, old);
            self.ghost.push(hash);
        }
        place
    }

    /// Whether a slot has metadata.
    pub fn is_pinned(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.pinned)
    }

    fn append_with(&mut self, id: u64, units: u32, pinned: bool, count: u8) -> Option<Place> {
        let queue = &mut self.queues[usize::from(pinned)];
        let (slot, unit) = match queue.open {
            Some((slot, used)) if used + units <= self.slot_units => (slot, used),
            full => {
                let slot = self.free.pop()?;
                if let Some((full, _)) = full {
                    self.slots[full as usize].state = State::Sealed;
                    queue.sealed.push_back(full);
                }
                self.slots[slot as usize] = Slot { state: State::Open, pinned, ..ABSENT };
                (slot, 0)
            }
        };
        queue.open = Some((slot, unit + units));
        let place = u64::from(slot) * u64::from(self.slot_units) + u64::from(unit);
        let others = self.table.insert(self.hash(id), Entry { place, units, count });
        self.slots[slot as usize].live += 1;
        self.slots[slot as usize].hit += u32::from(count > 0);
        self.slots[slot as usize].recounted |= count > 0;
        if let Some(entry) = others {
            self.uncount(entry);
        }
        Some(Place { slot, unit })
    }

    /// A copy that is unreadable, or not what it should be.
    pub fn remove(&mut self, id: u64, place: Place) {
        let at = u64::from(place.slot) * u64::from(self.slot_units) + u64::from(place.unit);
        if let Some(entry) = self.table.remove(self.hash(id), at) {
            self.uncount(entry);
        }
    }

    /// The segment that should make room now, if some should: it is being evicted from now on.
    pub fn next_victim(&mut self) -> Option<u32> {
        if self.free.len() >= self.spare_slots() && !self.is_near_cap() {
            return None;
        }
        self.choose_victim()
    }

    /// The segment that is missed least: one of metadata only if more than half are, or there is no other.
    pub fn choose_victim(&mut self) -> Option<u32> {
        let is_too_much =
            self.queues[1].len() * 2 > self.queues[0].len() + self.queues[1].len() + self.free.len();
        let pinned = is_too_much || self.queues[0].sealed.is_empty();
        let sort = usize::from(pinned && !self.queues[1].sealed.is_empty());
        let sealed = &self.queues[sort].sealed;
        let oldest = sealed.len().div_ceil(OLDEST_PART);
        let hit = |at: &usize| self.slots[sealed[*at] as usize].hit;
        let at = (0..oldest).min_by_key(hit)?;
        let slot = self.queues[sort].sealed.remove(at)?;
        self.slots[slot as usize].state = State::Evicting;
        Some(slot)
    }

    /// Drops the blocks of a victim, whose ids and units these are, but for those with `least` hits, which are to be
    /// appended again. They are found until then.
    pub fn evict(
        &mut self,
        slot: u32,
        blocks: impl IntoIterator<Item = (u64, u32)>,
        least: u8,
    ) -> Vec<(u64, Cached)> {
        let mut kept = Vec::new();
        for (id, unit) in blocks {
            let hash = self.hash(id);
            let Some(entry) = self.table.find(hash) else { continue };
            let cached = self.cached(entry);
            // An older copy, or another block's entry.
            if cached.place != (Place { slot, unit }) {
                continue;
            }
            if entry.count >= least {
                kept.push((id, cached));
            } else {
                self.remove(id, cached.place);
                self.ghost.push(hash);
            }
        }
        kept
    }

    /// The slot of a victim is free again, or leaves; whatever is still found in it is forgotten.
    pub fn release(&mut self, slot: u32, leaves: bool) {
        self.empty(slot);
        if leaves {
            self.slots[slot as usize] = ABSENT;
        } else {
            self.slots[slot as usize].state = State::Free;
            self.free.push(slot);
        }
        self.fit_ghost();
    }

    /// Slots of any state that cannot be read any more.
    pub fn lose(&mut self, slots: Range<u32>) {
        let units = u64::from(self.slot_units);
        self.table.remove_places(u64::from(slots.start) * units..u64::from(slots.end) * units);
        self.free.retain(|free| !slots.contains(free));
        for queue in &mut self.queues {
            queue.sealed.retain(|sealed| !slots.contains(sealed));
            queue.open = queue.open.filter(|open| !slots.contains(&open.0));
        }
        let end = self.slots.len();
        self.slots[(slots.start as usize).min(end)..(slots.end as usize).min(end)].fill(ABSENT);
    }

    pub fn is_over_cap(&self) -> bool {
        self.memory() > self.cap
    }

    /// Above it segments make room, before blocks are refused.
    fn is_near_cap(&self) -> bool {
        self.memory() + 2048 > self.cap - self.cap / 64
    }

    fn empty(&mut self, slot: u32) {
        if self.slots[slot as usize].live > 0 {
            let begin = u64::from(slot) * u64::from(self.slot_units);
            self.table.remove_places(begin..begin + u64::from(self.slot_units));
        }
        self.slots[slot as usize].live = 0;
        self.slots[slot as usize].hit = 0;
    }

    /// The ghost has the length of what is cached, within a third; one of another length begins anew.
    fn fit_ghost(&mut self) {
        let (blocks, ghost) = (self.blocks(), self.ghost.blocks());
        if self.was_full && (blocks > ghost + ghost / 4 || blocks + 64 < ghost - ghost / 4) {
            self.ghost = Ghost::new(blocks);
        }
    }

    fn uncount(&mut self, entry: Entry) {
        let slot = &mut self.slots[(entry.place / u64::from(self.slot_units)) as usize];
        slot.live -= 1;
        slot.hit -= u32::from(entry.count > 0);
    }

    fn cached(&self, entry: Entry) -> Cached {
        let units = u64::from(self.slot_units);
        let place = Place { slot: (entry.place / units) as u32, unit: (entry.place % units) as u32 };
        Cached { place, units: entry.units }
    }

    fn hash(&self, id: u64) -> u64 {
        hash(self.seed, id)
    }
}

/// Of SplitMix64: any change of the id changes all bits.
pub(crate) fn hash(seed: u64, id: u64) -> u64 {
    let mut x = id.wrapping_add(seed).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_count_their_entries_also_where_tags_are_shared() {
        // One bucket for 20,000 blocks, of which some hundred share their tag with another.
        let (slot_units, slots) = (1_000, 20);
        let mut policy = Policy::new(1, slot_units, 1, usize::MAX >> 1);
        (0..slots).for_each(|slot| assert!(policy.add_slot(slot)));
        let mut places = vec![Vec::new(); slots as usize];
        let mut id = 0;
        while policy.next_victim().is_none() {
            id += 1;
            let place = policy.append(id, 1, Kind::Demand).expect("there is room");
            places[place.slot as usize].push((id, place.unit));
            if id % 2 == 0 {
                policy.hit(id, place);
            }
        }
        let live: u32 = policy.slots.iter().map(|slot| slot.live).sum();
        let (appended, blocks) = (id, policy.blocks());
        assert!(blocks < appended && blocks == u64::from(live), "{blocks} of {appended}, {live} live");
        for slot in 0..slots {
            let kept = policy.evict(slot, places[slot as usize].iter().copied(), 1);
            let Slot { live, hit, .. } = policy.slots[slot as usize];
            assert!(kept.len() == live as usize && live == hit, "{} kept of {live}, {hit} hit", kept.len());
            assert!(kept.iter().all(|(id, _)| id % 2 == 0), "others were not hit");
        }
    }
}
