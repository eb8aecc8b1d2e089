//! The read cache's slots on SSDs: what a full one says of the blocks in it.
//!
//! A slot begins with its summary, which is written when the slot is full; behind it lie blocks as they are stored
//! elsewhere, each from a multiple of [`CACHE_UNIT`] on. Nothing rests on a summary: each block proves itself by its
//! header, so one that is stale, torn or forged costs a read that finds something else.

use crate::checksum::{self, Sums};
use crate::error::ensure;
use crate::{BlockId, Corrupt, DeviceGuid, Reason, layout};

/// `LARDERCS`.
pub const SUMMARY_MAGIC: u64 = u64::from_le_bytes(*b"LARDERCS");
/// Bytes in which places and lengths in a slot are counted.
pub const CACHE_UNIT: u32 = 4096;
/// A summary has one of so many parts of its slot.
pub const SUMMARY_PART: u32 = 256;

layout! {
    /// Head of a [`SlotSummary`]; a [`CachedBlock`] for each block follows.
    pub struct SummaryHead[64] {
        /// [`SUMMARY_MAGIC`].
        magic: u64 = 0,
        /// The device.
        device: DeviceGuid = 8,
        /// The slot.
        slot: u32 = 16,
        /// Number of blocks.
        blocks: u32 = 20,
        /// Counts slots as they begin to be filled: later ones have higher numbers.
        generation: u64 = 24,
        /// XXH3-64 of the entries.
        entries_sum: u64 = 32,
        /// 1 when it has nodes and pages alone.
        pinned: u8 = 40,
        /// XXH3-64 of the head with this field as zero.
        sum: u64 = 56,
    }
}

layout! {
    /// A block in a slot.
    pub struct CachedBlock[12] {
        /// Its id.
        id: BlockId = 0,
        /// The first unit behind the summary that it lies in.
        unit: u16 = 8,
        /// Units that it takes.
        units: u16 = 10,
    }
}

/// Blocks of a slot, in the order in which they lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSummary {
    /// The device.
    pub device: DeviceGuid,
    /// The slot.
    pub slot: u32,
    /// Higher in slots that were filled later.
    pub generation: u64,
    /// It has nodes and pages alone.
    pub pinned: bool,
    /// The blocks.
    pub blocks: Vec<CachedBlock>,
}

layout! {
    /// Head of [`SlotCounts`], whose counts follow, four to a byte.
    pub struct CountsHead[16] {
        /// That of the slot's summary.
        generation: u64 = 0,
        /// XXH3-64 of device, slot, generation and counts.
        sum: u64 = 8,
    }
}

/// Counts of late reads of copies in a slot, by the unit in which each begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotCounts {
    /// The device.
    pub device: DeviceGuid,
    /// The slot.
    pub slot: u32,
    /// That of the slot's summary: of another one they say nothing.
    pub generation: u64,
    /// Counts up to 3 of units 0, 1, ..., from the lowest bits of each byte up.
    counts: Vec<u8>,
}

/// Bytes of a summary in a slot of that size.
pub const fn summary_len(slot_size: u32) -> u32 {
    let part = slot_size / SUMMARY_PART;
    if part < CACHE_UNIT { CACHE_UNIT } else { part }
}

/// Units for blocks in a slot of that size.
pub const fn slot_units(slot_size: u32) -> u32 {
    slot_size.saturating_sub(summary_len(slot_size)) / CACHE_UNIT
}

/// Bytes of counts in a slot of that size: the last ones of what its summary has.
pub const fn counts_len(slot_size: u32) -> u32 {
    CountsHead::SIZE as u32 + slot_units(slot_size).div_ceil(4)
}

impl SlotCounts {
    /// Zeros.
    pub fn new(device: DeviceGuid, slot: u32, generation: u64, slot_size: u32) -> Self {
        Self { device, slot, generation, counts: vec![0; slot_units(slot_size).div_ceil(4) as usize] }
    }

    /// The count of the block that begins with that unit.
    pub fn get(&self, unit: u32) -> u8 {
        self.counts.get((unit / 4) as usize).map_or(0, |four| four >> (unit % 4 * 2) & 3)
    }

    /// Sets it, from 0.
    pub fn set(&mut self, unit: u32, count: u8) {
        if let Some(four) = self.counts.get_mut((unit / 4) as usize) {
            *four |= (count & 3) << (unit % 4 * 2);
        }
    }

    /// The bytes, [`counts_len`] of them.
    pub fn encode(&self, sums: &Sums) -> Vec<u8> {
        let mut out = vec![0; CountsHead::SIZE];
        CountsHead { generation: self.generation, sum: self.own_sum(sums) }.put(&mut out);
        out.extend_from_slice(&self.counts);
        out
    }

    /// Reads counts of this device's slot, whose size that is, beside a summary of that generation.
    ///
    /// # Errors
    /// When they are none.
    pub fn check(
        sums: &Sums,
        device: DeviceGuid,
        slot: u32,
        generation: u64,
        slot_size: u32,
        bytes: &[u8],
    ) -> Result<Self, Corrupt> {
        const WHAT: &str = "counts of a cache slot";
        let head = CountsHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let counts = bytes.get(CountsHead::SIZE..counts_len(slot_size) as usize);
        let counts = counts.ok_or(Corrupt::new(WHAT, Reason::Short))?.to_vec();
        let found = Self { device, slot, generation: head.generation, counts };
        ensure(head.generation == generation, WHAT, Reason::Identity)?;
        ensure(head.sum == found.own_sum(sums), WHAT, Reason::Checksum)?;
        Ok(found)
    }

    fn own_sum(&self, sums: &Sums) -> u64 {
        let mut bytes = Vec::with_capacity(20 + self.counts.len());
        bytes.extend_from_slice(&self.device.get().to_le_bytes());
        bytes.extend_from_slice(&self.slot.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.counts);
        checksum::fast64(sums, &bytes)
    }
}

impl SummaryHead {
    /// Verifies the head of the summary of this device's slot, whose size that is.
    ///
    /// # Errors
    /// When it is not one.
    pub fn check(
        sums: &Sums,
        device: DeviceGuid,
        slot: u32,
        slot_size: u32,
        bytes: &[u8],
    ) -> Result<Self, Corrupt> {
        const WHAT: &str = "summary of a cache slot";
        let head = Self::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(head.magic == SUMMARY_MAGIC, WHAT, Reason::Magic)?;
        ensure(head.sum == Self { sum: 0, ..head.clone() }.own_sum(sums), WHAT, Reason::Checksum)?;
        ensure(head.device == device && head.slot == slot, WHAT, Reason::Identity)?;
        ensure(head.blocks <= slot_units(slot_size) && head.pinned <= 1, WHAT, Reason::Range)?;
        Ok(head)
    }

    /// Bytes of the whole summary.
    pub fn len(&self) -> usize {
        Self::SIZE + self.blocks as usize * CachedBlock::SIZE
    }

    /// Whether no blocks follow.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    fn own_sum(&self, sums: &Sums) -> u64 {
        let mut bytes = [0; Self::SIZE];
        self.put(&mut bytes);
        checksum::fast64(sums, &bytes)
    }
}

impl SlotSummary {
    /// The summary's bytes, at most [`summary_len`] of them.
    pub fn encode(&self, sums: &Sums) -> Vec<u8> {
        let mut out = vec![0; SummaryHead::SIZE + self.blocks.len() * CachedBlock::SIZE];
        let (head_bytes, entries) = out.split_at_mut(SummaryHead::SIZE);
        for (block, entry) in self.blocks.iter().zip(entries.chunks_exact_mut(CachedBlock::SIZE)) {
            block.put(entry);
        }
        let mut head = SummaryHead {
            magic: SUMMARY_MAGIC,
            device: self.device,
            slot: self.slot,
            blocks: self.blocks.len() as u32,
            generation: self.generation,
            entries_sum: checksum::fast64(sums, entries),
            pinned: u8::from(self.pinned),
            sum: 0,
        };
        head.sum = head.own_sum(sums);
        head.put(head_bytes);
        out
    }

    /// Reads the summary of this device's slot, whose size that is.
    ///
    /// # Errors
    /// When it is not one.
    pub fn check(
        sums: &Sums,
        device: DeviceGuid,
        slot: u32,
        slot_size: u32,
        bytes: &[u8],
    ) -> Result<Self, Corrupt> {
        const WHAT: &str = "summary of a cache slot";
        let head = SummaryHead::check(sums, device, slot, slot_size, bytes)?;
        let entries = bytes.get(SummaryHead::SIZE..head.len()).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(checksum::fast64(sums, entries) == head.entries_sum, WHAT, Reason::Checksum)?;
        let blocks: Vec<CachedBlock> =
            entries.chunks_exact(CachedBlock::SIZE).filter_map(CachedBlock::get).collect();
        let mut end = 0;
        for block in &blocks {
            ensure(block.units > 0 && u32::from(block.unit) >= end, WHAT, Reason::Order)?;
            end = u32::from(block.unit) + u32::from(block.units);
        }
        ensure(end <= slot_units(slot_size), WHAT, Reason::Range)?;
        Ok(Self { device, slot, generation: head.generation, pinned: head.pinned == 1, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolGuid;
    use crate::checksum::PoolKey;

    #[test]
    fn a_summary_is_read_as_it_was_written_and_no_other_slot_passes_for_it() {
        let sums = Sums::new(PoolGuid::new(7), PoolKey::new([3; 32]));
        let (device, slot_size) = (DeviceGuid::new(11), 1 << 20);
        let block = |i: u16| CachedBlock { id: BlockId::new(1000 + u64::from(i)), unit: i, units: 1 };
        let all = SlotSummary {
            device,
            slot: 5,
            generation: 9,
            pinned: true,
            blocks: (0..slot_units(slot_size) as u16).map(block).collect(),
        };
        let bytes = all.encode(&sums);
        assert!(bytes.len() <= summary_len(slot_size) as usize);
        let check = |sums: &Sums, device, slot, bytes: &[u8]| {
            SlotSummary::check(sums, device, slot, slot_size, bytes).map_err(|corrupt| corrupt.reason)
        };
        assert_eq!(check(&sums, device, 5, &bytes), Ok(all.clone()));
        assert_eq!(check(&sums, device, 6, &bytes), Err(Reason::Identity));
        assert_eq!(check(&sums, DeviceGuid::new(12), 5, &bytes), Err(Reason::Identity));
        let other = Sums::new(PoolGuid::new(8), PoolKey::new([3; 32]));
        assert_eq!(check(&other, device, 5, &bytes), Err(Reason::Checksum));
        for at in [0, 20, 60, 64, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(check(&sums, device, 5, &bad).is_err(), "byte {at}");
        }
        assert_eq!(check(&sums, device, 5, &bytes[..100]), Err(Reason::Short));
        for slot_size in [1_u32 << 20, 1 << 22, 1 << 26] {
            let entries = SummaryHead::SIZE as u32 + slot_units(slot_size) * CachedBlock::SIZE as u32;
            assert!(
                entries + counts_len(slot_size) <= summary_len(slot_size),
                "counts lie behind all entries"
            );
            assert!(counts_len(slot_size) <= CACHE_UNIT, "and are written at once");
        }
        let overlap = SlotSummary { blocks: vec![block(4), block(4)], ..all };
        assert_eq!(check(&sums, device, 5, &overlap.encode(&sums)), Err(Reason::Order));
    }

    #[test]
    fn counts_are_read_as_they_were_written_beside_their_summary_alone() {
        let sums = Sums::new(PoolGuid::new(7), PoolKey::new([3; 32]));
        let (device, slot_size) = (DeviceGuid::new(11), 1 << 20);
        let mut counts = SlotCounts::new(device, 5, 9, slot_size);
        (0..slot_units(slot_size)).for_each(|unit| counts.set(unit, (unit % 5) as u8 & 3));
        let bytes = counts.encode(&sums);
        assert_eq!(bytes.len(), counts_len(slot_size) as usize);
        let check = |slot, generation, bytes: &[u8]| {
            SlotCounts::check(&sums, device, slot, generation, slot_size, bytes).map_err(|it| it.reason)
        };
        let found = check(5, 9, &bytes).unwrap();
        assert!((0..slot_units(slot_size)).all(|unit| found.get(unit) == (unit % 5) as u8 & 3));
        assert_eq!(check(5, 8, &bytes), Err(Reason::Identity));
        assert_eq!(check(6, 9, &bytes), Err(Reason::Checksum));
        assert_eq!(check(5, 9, &bytes[..40]), Err(Reason::Short));
        for at in [8, 16, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(check(5, 9, &bad), Err(Reason::Checksum), "byte {at}");
        }
        assert_eq!(found.get(1 << 20), 0);
    }
}
