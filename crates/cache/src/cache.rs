//! The policy with its write budget, its memory and its miniatures.

use crate::budget::{Budget, WriteBudget};
use crate::ghost::GhostLength;
use crate::miniature::{Curve, Miniatures};
use crate::policy::{Cached, Kind, Place, Policy, Read};
use crate::table::{PLACES, UNIT, is_length};
use std::ops::Range;

/// Caps below it leave no memory for miniatures, of which 2 MiB is the most.
const LEAST_FOR_MINIATURES: usize = 8 << 20;
/// Bytes of memory of a cached block, roughly.
const BYTES_OF_BLOCK: usize = 13;

/// The beginnings of a cache.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Of all that is left to chance.
    pub seed: u64,
    /// Units of a slot; longer blocks are not cached.
    pub slot_units: u32,
    /// Blocks that there will be, roughly: sixteen times as many are found as well, with more wrong tags.
    pub expected_blocks: u64,
    /// Bytes of memory.
    pub cap: usize,
    /// Writes a day.
    pub budget: WriteBudget,
}

/// Admission of a block that was not cached, or the reason against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Admitted,
    /// It was not read often enough of late.
    Seldom,
    /// The day's writes are spent, or kept for what saves more.
    Budget,
    /// There is no memory.
    Memory,
}

/// The fate of a slot that was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It stays with the cache.
    Stays,
    /// Its owner has it back.
    Leaves,
}

/// A slot that its owner wants back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaimed {
    /// Nothing was in it: it has left.
    Free(u32),
    /// To be evicted, and released to leave.
    Victim(u32),
}

/// Counts since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Reads answered.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Reads not answered.
    pub misses: u64,
    /// Their bytes.
    pub missed_bytes: u64,
    /// Microseconds of disks that hits have saved.
    pub saved_us: f64,
    /// Misses that were admitted.
    pub admitted: u64,
    /// Misses that were not: by [`Verdict::Seldom`].
    pub seldom: u64,
    /// By [`Verdict::Budget`].
    pub over_budget: u64,
    /// By [`Verdict::Memory`].
    pub over_memory: u64,
    /// Blocks appended for the first time.
    pub appended: u64,
    /// Their bytes.
    pub appended_bytes: u64,
    /// Bytes appended again.
    pub kept_bytes: u64,
}

/// A read cache; see the crate's documentation for who calls what.
#[derive(Debug)]
pub struct Cache {
    config: Config,
    policy: Policy,
    budget: Budget,
    miniatures: Option<Box<Miniatures>>,
    curve: Curve,
    stats: Stats,
}

impl Cache {
    /// Without slots yet.
    pub fn new(config: Config) -> Self {
        assert!(config.slot_units > 0, "slots have units");
        Self {
            config,
            policy: Policy::new(config.seed, config.slot_units, config.expected_blocks, config.cap),
            budget: Budget::new(config.budget),
            miniatures: None,
            curve: Curve::default(),
            stats: Stats::default(),
        }
    }

    /// A slot that is the cache's from now on; whatever is in it is none of its business. One that it has already
    /// changes nothing. Whether it is new.
    pub fn add_slot(&mut self, slot: u32) -> bool {
        assert!(
            (u64::from(slot) + 1) * u64::from(self.config.slot_units) <= PLACES,
            "slots lie below 64 TiB"
        );
        let is_new = self.policy.add_slot(slot);
        self.count_slots();
        is_new
    }

    /// A slot that was full before a restart, with the id of each of its blocks, their units from its beginning,
    /// their lengths in units and their counts as [`Cache::counts`] gave them. Slots are to come in the order in
    /// which they were filled. False when the slot is here.
    pub fn restore(
        &mut self,
        slot: u32,
        kind: Kind,
        blocks: impl IntoIterator<Item = (u64, u32, u32, u8)>,
    ) -> bool {
        assert!(
            (u64::from(slot) + 1) * u64::from(self.config.slot_units) <= PLACES,
            "slots lie below 64 TiB"
        );
        let is_new = self.policy.restore(slot, kind, blocks);
        self.count_slots();
        if is_new {
            self.budget.note_filled(u64::from(self.config.slot_units) * UNIT);
        }
        is_new
    }

    /// The place of a block if it is cached; now and then, that of another one.
    pub fn find(&self, id: u64) -> Option<Cached> {
        self.policy.find(id)
    }

    /// Notes that the block was found at `place`.
    pub fn hit(&mut self, read: Read, place: Place) {
        self.policy.hit(read.id, place);
        self.stats.hits += 1;
        self.stats.hit_bytes += bytes(read.units);
        self.stats.saved_us += self.budget.saved_us(bytes(read.units));
        self.imitate(read);
    }

    /// A block was read elsewhere that is not to be cached, or is and was not to be had: a miss, and nothing follows.
    pub fn passed_by(&mut self, read: Read) {
        self.stats.misses += 1;
        self.stats.missed_bytes += bytes(read.units);
    }

    /// A block that is not cached was read; whether to append it.
    pub fn missed(&mut self, read: Read, now: u64) -> Verdict {
        self.passed_by(read);
        self.imitate(read);
        let verdict = self.judge(read, now);
        *match verdict {
            Verdict::Admitted => &mut self.stats.admitted,
            Verdict::Seldom => &mut self.stats.seldom,
            Verdict::Budget => &mut self.stats.over_budget,
            Verdict::Memory => &mut self.stats.over_memory,
        } += 1;
        verdict
    }

    /// The place of a block that is to be cached; none while there is no room. From now on it is found there.
    pub fn append(&mut self, id: u64, units: u32, kind: Kind, now: u64) -> Option<Place> {
        assert!(is_length(units), "a block has 1 to 255 units, or 257");
        if units > self.config.slot_units
            || !self.policy.is_below_cap()
            || !self.budget.has(now, bytes(units))
        {
            return None;
        }
        let place = self.policy.append(id, units, kind)?;
        self.budget.spend(now, bytes(units));
        self.stats.appended_bytes += bytes(units);
        self.stats.appended += 1;
        if place.unit == 0 && self.miniatures.as_ref().is_none_or(|of| !self.is_like(of)) {
            self.imitate_anew();
        }
        Some(place)
    }

    /// At most so many slots, from number `from` on, of whose blocks some were hit since this was last asked; those
    /// that are being filled only if `open`.
    pub fn recounted(&mut self, from: u32, most: usize, open: bool) -> Vec<u32> {
        self.policy.recounted(from, most, open)
    }

    /// Parts that [`Cache::counts`] has.
    pub fn buckets(&self) -> usize {
        self.policy.buckets()
    }

    /// Places of blocks that were hit, with a count of that up to 3, of some parts of all there are: looking at all of
    /// them at once would keep readers waiting.
    pub fn counts(&self, buckets: Range<usize>) -> impl Iterator<Item = (Place, u8)> + '_ {
        self.policy.counts(buckets)
    }

    /// Whether so many bytes may be written beside blocks today.
    pub fn may_write(&mut self, bytes: u64, now: u64) -> bool {
        self.budget.has(now, bytes)
    }

    /// Bytes that were written beside blocks.
    pub fn note_written(&mut self, bytes: u64, now: u64) {
        self.budget.spend(now, bytes);
    }

    /// A copy that could not be read, or is not what was written.
    pub fn remove(&mut self, id: u64, place: Place) {
        self.policy.remove(id, place);
    }

    /// Whether a slot has metadata alone.
    pub fn is_pinned(&self, slot: u32) -> bool {
        self.policy.is_pinned(slot)
    }

    /// The segment to be evicted, if room is wanted.
    pub fn next_victim(&mut self) -> Option<u32> {
        self.policy.next_victim()
    }

    /// Somebody else needs a slot. None if all are being written to or evicted, or there is none.
    pub fn reclaim(&mut self) -> Option<Reclaimed> {
        let free = self.policy.take_free_slot().map(Reclaimed::Free);
        self.count_slots();
        free.or_else(|| self.policy.choose_victim().map(Reclaimed::Victim))
    }

    /// Drops blocks of a victim, by the ids and units at which it says they lie; returns those that are to be appended
    /// again, which are found where they were until then.
    pub fn evict(
        &mut self,
        victim: u32,
        blocks: impl IntoIterator<Item = (u64, u32)>,
        now: u64,
    ) -> Vec<(u64, Cached)> {
        let least = match (self.policy.is_over_cap(), self.budget.is_short(now)) {
            (true, _) => u8::MAX,
            (false, true) => 2,
            (false, false) => 1,
        };
        self.policy.evict(victim, blocks, least)
    }

    /// The new place of a block that [`Cache::evict`] returned; without one it is no longer cached.
    pub fn append_again(&mut self, id: u64, old: Cached, now: u64) -> Option<Place> {
        if !self.budget.has(now, bytes(old.units)) {
            self.policy.remove(id, old.place);
            return None;
        }
        let place = self.policy.append_again(id, old.place)?;
        self.budget.spend(now, bytes(old.units));
        self.stats.kept_bytes += bytes(old.units);
        Some(place)
    }

    /// A victim is empty: what is still found in it is forgotten.
    pub fn release(&mut self, victim: u32, fate: Fate) {
        self.policy.release(victim, fate == Fate::Leaves);
        self.count_slots();
    }

    /// Slots that are gone with all that was in them. Takes as long as to look at the whole table.
    pub fn lose(&mut self, slots: Range<u32>) {
        self.policy.lose(slots);
        self.count_slots();
    }

    /// Bytes of memory from now on. If there are more, [`Cache::next_victim`] names victims until there are not.
    pub fn set_cap(&mut self, cap: usize) {
        self.config.cap = cap;
        if cap < LEAST_FOR_MINIATURES {
            self.drop_miniatures();
        }
        self.share_memory();
    }

    /// Writes a day as a share of all slots.
    pub fn set_write_share(&mut self, share: f64) {
        self.budget.set_share(share);
    }

    /// Blocks that are cached.
    pub fn blocks(&self) -> u64 {
        self.policy.blocks()
    }

    /// Slots that the cache has.
    pub fn slots(&self) -> usize {
        self.policy.slots()
    }

    /// Bytes of a slot that blocks were appended to since it was empty; all of it where another one followed.
    pub fn used_bytes(&self, slot: u32) -> u64 {
        bytes(self.policy.used_units(slot))
    }

    /// Bytes of table, ghost and slots.
    pub fn memory(&self) -> usize {
        self.policy.memory()
    }

    /// Bytes of the miniatures.
    pub fn miniature_memory(&self) -> usize {
        self.miniatures.as_ref().map_or(0, |of| of.memory())
    }

    /// Counts so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Bytes written in the last 24 hours, and those that may be.
    pub fn written_and_budget(&mut self, now: u64) -> (u64, u64) {
        (self.budget.spent(now), self.budget.daily())
    }

    /// Hits and misses if the cache had other sizes.
    pub fn curve(&self) -> Curve {
        self.miniatures.as_ref().map_or(self.curve, |of| of.curve())
    }

    /// Ids that are remembered, against those that are cached.
    pub fn ghost_length(&self) -> GhostLength {
        self.policy.ghost_length()
    }

    fn judge(&mut self, read: Read, now: u64) -> Verdict {
        if read.units > self.config.slot_units || !self.policy.is_wanted(read) {
            Verdict::Seldom
        } else if !self.budget.is_worth(now, bytes(read.units), read.kind == Kind::Metadata) {
            Verdict::Budget
        } else if !self.policy.is_below_cap() {
            Verdict::Memory
        } else {
            Verdict::Admitted
        }
    }

    fn imitate(&mut self, read: Read) {
        if let Some(miniatures) = &mut self.miniatures {
            self.policy.set_ghost_length(miniatures.read(read));
        }
    }

    /// True while miniatures are of a cache like this one.
    fn is_like(&self, of: &Miniatures) -> bool {
        let alike = |a: u64, b: u64, part: u64| a.abs_diff(b) <= a.max(b) / part;
        let (units, blocks) = self.when_full();
        alike(of.units, units, 8) && alike(of.blocks, blocks, 2)
    }

    fn imitate_anew(&mut self) {
        self.drop_miniatures();
        if self.config.cap >= LEAST_FOR_MINIATURES {
            let (units, blocks) = self.when_full();
            let of = Miniatures::new(self.config.seed, units, blocks, self.policy.ghost_length(), self.curve);
            self.miniatures = Some(Box::new(of));
        }
        self.share_memory();
    }

    fn drop_miniatures(&mut self) {
        self.curve = self.curve();
        self.miniatures = None;
    }

    fn share_memory(&mut self) {
        let miniatures = if self.miniatures.is_some() { 2 << 20 } else { 0 };
        self.policy.set_cap(self.config.cap.saturating_sub(miniatures));
    }

    fn units(&self) -> u64 {
        self.policy.slots() as u64 * u64::from(self.config.slot_units)
    }

    /// Units in use and blocks of the mean length when the cache is full.
    fn when_full(&self) -> (u64, u64) {
        let mean = (self.stats.appended_bytes / UNIT / self.stats.appended.max(1)).max(1);
        let blocks = (self.units() / mean).min((self.config.cap / BYTES_OF_BLOCK) as u64);
        (blocks * mean, blocks)
    }

    fn count_slots(&mut self) {
        self.budget.set_size(self.units() * UNIT);
    }
}

fn bytes(units: u32) -> u64 {
    u64::from(units) * UNIT
}
