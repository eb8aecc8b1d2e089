//! The policy in small, on ids sampled by hash: it tells which length of the ghost serves best, and what the hit ratio
//! would be if the cache were smaller or larger.
//!
//! They live as the cache does, from its first slot on: what came in while there was room may stay for long.
//!
//! An id in so many is sampled (C. Waldspurger et al., Efficient MRC Construction with SHARDS, FAST '15; Cache Modeling
//! and Optimization using Miniature Simulations, ATC '17). Misses are held against the reads that a sample should have
//! had, not against those that it had: few ids are read much, and whether one of them is in the sample decides how
//! often it is read, but hardly how often it misses.

use crate::ghost::GhostLength;
use crate::policy::{Place, Policy, Read, hash};
use crate::table::{pack_units, unpack_units};

/// Blocks of the miniature that is as large as the cache; the largest is four times as large.
const BLOCKS: u64 = 8192;
/// Slots of a miniature.
const SLOTS: u64 = 64;
/// Another choice has to be better by it.
const BETTER_BY: f64 = 1.0 / 256.0;
/// A block that is written costs a part of one that is missed: a longer ghost that hardly helps only wears the devices.
const WRITE_COST: f64 = 1.0 / 8.0;
/// Reads until what was counted weighs half, against the blocks that are cached.
const READS_OF_ROUND: u64 = 4;

/// Parts of the cache's size whose hit ratio is told.
pub const CURVE_SIZES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// Reads that RAM did not answer, and those that a cache of `CURVE_SIZES` would not have answered either. Of two
/// readings the later less the earlier tells of the time between.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Curve {
    /// Reads.
    pub reads: f64,
    /// Misses at each size.
    pub misses: [f64; 4],
}

impl Curve {
    /// Hit ratios at `CURVE_SIZES` since an earlier reading.
    pub fn hit_ratios_since(&self, earlier: &Self) -> [f64; 4] {
        let reads = (self.reads - earlier.reads).max(1.0);
        std::array::from_fn(|i| (1.0 - (self.misses[i] - earlier.misses[i]) / reads).clamp(0.0, 1.0))
    }
}

/// A whole cache without devices: what lies in a slot is told by a list.
#[derive(Debug)]
struct Miniature {
    policy: Policy,
    slot_units: u32,
    /// Blocks appended to each slot: 24 bits of id, 8 of units − 1.
    blocks: Vec<Vec<u32>>,
    /// Blocks appended, also again.
    writes: u64,
}

impl Miniature {
    fn new(seed: u64, units: u64, blocks: u64, ghost: GhostLength) -> Self {
        let slot_units = units.div_ceil(SLOTS).max(1) as u32;
        let slots = (units / u64::from(slot_units)).max(3);
        let mut policy = Policy::new(seed, slot_units, blocks, usize::MAX);
        (0..slots as u32).for_each(|slot| _ = policy.add_slot(slot));
        policy.set_ghost_length(ghost);
        Self { policy, slot_units, blocks: vec![Vec::new(); slots as usize], writes: 0 }
    }

    /// True for a hit.
    fn read(&mut self, read: Read) -> bool {
        if let Some(cached) = self.policy.find(read.id) {
            self.policy.hit(read.id, cached.place);
            return true;
        }
        if read.units <= self.slot_units
            && self.policy.is_wanted(read)
            && let Some(place) = self.policy.append(read.id, read.units, read.kind)
        {
            self.note(read.id, read.units, place);
            self.make_room();
        }
        false
    }

    fn make_room(&mut self) {
        while let Some(slot) = self.policy.next_victim() {
            let blocks = std::mem::take(&mut self.blocks[slot as usize]);
            let placed = blocks.iter().scan(0, |unit, block| {
                let units = unpack_units(*block as u8);
                *unit += units;
                Some((u64::from(block >> 8), *unit - units))
            });
            for (id, cached) in self.policy.evict(slot, placed, 1) {
                if let Some(place) = self.policy.append_again(id, cached.place) {
                    self.note(id, cached.units, place);
                }
            }
            self.policy.release(slot, false);
        }
    }

    fn note(&mut self, id: u64, units: u32, place: Place) {
        let blocks = &mut self.blocks[place.slot as usize];
        if blocks.len() == blocks.capacity() {
            blocks.reserve_exact(blocks.len() / 8 + 8);
        }
        blocks.push((id as u32) << 8 | u32::from(pack_units(units)));
        self.writes += 1;
    }

    fn memory(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(Vec::capacity).sum();
        self.policy.memory() + blocks * size_of::<u32>() + self.blocks.capacity() * size_of::<Vec<u32>>()
    }
}

#[derive(Debug)]
pub(crate) struct Miniatures {
    seed: u64,
    /// Hashes below it are of the sample.
    below: u64,
    /// Of the sampled ids in all.
    rate: f64,
    /// As large as the cache, with each length of the ghost.
    same: [Miniature; 3],
    /// Half, twice and four times as large.
    others: [Miniature; 3],
    curve: Curve,
    /// Misses and writes of `same` of late.
    late: [f64; 3],
    choice: usize,
    /// Reads until `late` is halved.
    round: u64,
    reads_of_round: u64,
    /// Of the cache that they were made for.
    pub units: u64,
    pub blocks: u64,
}

impl Miniatures {
    /// Of a cache of so many units that holds so many blocks.
    pub fn new(seed: u64, units: u64, blocks: u64, ghost: GhostLength, curve: Curve) -> Self {
        let rate = (BLOCKS as f64 / blocks.max(1) as f64).min(1.0);
        let of_size = |part: f64, length| {
            let units = (units as f64 * rate * part) as u64;
            Miniature::new(seed, units, (blocks as f64 * rate * part) as u64, length)
        };
        Self {
            seed,
            below: (rate * u64::MAX as f64) as u64,
            rate,
            same: GhostLength::ALL.map(|length| of_size(1.0, length)),
            others: [0.5, 2.0, 4.0].map(|part| of_size(part, ghost)),
            curve,
            late: [0.0; 3],
            choice: GhostLength::ALL.iter().position(|length| *length == ghost).unwrap_or(1),
            round: (blocks * READS_OF_ROUND).max(1),
            reads_of_round: 0,
            units,
            blocks,
        }
    }

    pub fn curve(&self) -> Curve {
        self.curve
    }

    pub fn memory(&self) -> usize {
        self.same.iter().chain(&self.others).map(Miniature::memory).sum()
    }

    /// Notes a read that RAM did not answer; returns the ghost's length from now on.
    pub fn read(&mut self, read: Read) -> GhostLength {
        self.curve.reads += 1.0;
        self.reads_of_round += 1;
        // Another seed than the table's: the sample is spread over all of its buckets.
        let sampled = hash(!self.seed, read.id);
        if sampled <= self.below {
            self.sample(Read { id: hash(sampled, read.id) >> 40, ..read });
        }
        if self.reads_of_round >= self.round {
            self.reads_of_round = 0;
            self.choose();
        }
        GhostLength::ALL[self.choice]
    }

    fn sample(&mut self, read: Read) {
        let weight = 1.0 / self.rate;
        for (i, miniature) in self.same.iter_mut().enumerate() {
            let writes = miniature.writes;
            let miss = f64::from(u8::from(!miniature.read(read)));
            self.late[i] += miss + (miniature.writes - writes) as f64 * WRITE_COST;
            self.curve.misses[1] += if i == self.choice { miss * weight } else { 0.0 };
        }
        for (miniature, at) in self.others.iter_mut().zip([0, 2, 3]) {
            self.curve.misses[at] += f64::from(u8::from(!miniature.read(read))) * weight;
        }
    }

    fn choose(&mut self) {
        let best = (0..3).min_by(|a, b| self.late[*a].total_cmp(&self.late[*b])).unwrap_or(1);
        if self.late[best] * (1.0 + BETTER_BY) < self.late[self.choice] {
            self.choice = best;
            self.others.iter_mut().for_each(|other| other.policy.set_ghost_length(GhostLength::ALL[best]));
        }
        self.late.iter_mut().for_each(|cost| *cost /= 2.0);
    }
}
