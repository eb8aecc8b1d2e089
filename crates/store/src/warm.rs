//! Knowledge that outlives an import besides summaries: how often copies were read, and copies that no summary tells
//! of yet.
//!
//! *Counts.* Every ten minutes, and at export, slots in which copies were hit since get the counts of all their copies,
//! behind their summary; so the policy knows after an import which of them are worth keeping. One sector is written, at
//! the end of those of the summary. A cut that tears it costs the counts; in slots below 8 MiB, where entries of the
//! summary lie in the same sector, a device that tears sectors costs the slot's copies.
//!
//! *The walk.* The slot that was being filled has copies behind the last one that its summary names. They lie one
//! behind the other, each with its length in its header; an import reads them until one does not prove itself. What was
//! there before the slot was filled anew may be found behind them: those are copies as well.

use crate::fill::{read_unless_owed, write_or_fault};
use crate::read_cache::{CacheDevice, Filler};
use crate::store::Store;
use larder_cache::units_of;
use larder_device::ALIGN;
use larder_format::SlotIndex;
use larder_format::block::CheckedHeader;
use larder_format::cached::{
    CACHE_UNIT, CachedBlock, SlotCounts, SlotSummary, SummaryHead, counts_len, slot_units, summary_len,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Interval of counts.
const EVERY: Duration = Duration::from_secs(600);
/// Slots that get their counts in a step: their counts are in memory, 4 KiB each at most.
const SLOTS: usize = 256;
/// Parts of the table that are looked at while readers wait.
const BUCKETS: usize = 512;
/// Units that are read at once where copies are looked for: several times the longest block.
const WINDOW: u32 = 1024;

impl Store {
    /// Writes counts of slots in which copies were hit since ten minutes ago; whether there are more such slots.
    pub(crate) fn count_some(&self, filler: &mut Filler) -> bool {
        let now = self.world.clock.monotonic();
        if now.saturating_sub(filler.counted_at) < EVERY {
            return false;
        }
        // Each slot has one turn in a round, however often its copies are hit meanwhile.
        match self.write_counts(filler.counted_to, false) {
            Some(next) => filler.counted_to = next,
            None => (filler.counted_at, filler.counted_to) = (now, 0),
        }
        filler.counted_to > 0
    }

    /// Writes the counts of some slots in which copies were hit, from number `from` on, those that are being filled
    /// only if `open`; where to go on, if there may be more, and more may be written today.
    pub(crate) fn write_counts(&self, from: u32, open: bool) -> Option<u32> {
        let now = self.world.clock.monotonic().as_secs();
        let (slots, buckets) = {
            let mut state = self.read_cache.state.lock();
            let cache = state.cache.as_mut()?;
            if !cache.may_write((SLOTS * ALIGN) as u64, now) {
                return None;
            }
            (cache.recounted(from, SLOTS, open), cache.buckets())
        };
        let next = slots.last().filter(|_| slots.len() == SLOTS).map(|last| last + 1);
        let mut counts = BTreeMap::new();
        for slot in slots {
            let device = self.read_cache.state.lock().device_of(slot).cloned();
            let read = device.and_then(|device| self.summary_head(&device, slot).map(|head| (device, head)));
            if let Some((device, head)) = read {
                let (member, own) = (&device.member, slot - device.base);
                let none = SlotCounts::new(member.guid, own, head.generation, member.slot_size);
                counts.insert(slot, (device, none));
            }
        }
        for from in (0..buckets).step_by(BUCKETS) {
            let state = self.read_cache.state.lock();
            let cache = state.cache.as_ref()?;
            for (place, count) in cache.counts(from..from + BUCKETS) {
                if let Some((_, counts)) = counts.get_mut(&place.slot) {
                    counts.set(place.unit, count);
                }
            }
        }
        counts.values().for_each(|(device, counts)| self.put_counts(device, counts));
        next
    }

    /// Puts counts behind a slot's summary, into the sector that is there.
    pub(crate) fn put_counts(&self, device: &CacheDevice, counts: &SlotCounts) {
        let member = &device.member;
        let (from, len) = counts_sectors(member.slot_size);
        let at = member.slot_offset(SlotIndex::new(counts.slot), from);
        let Some(mut bytes) = read_unless_owed(member, at, len) else { return };
        let encoded = counts.encode(&self.sums);
        bytes[len - encoded.len()..].copy_from_slice(&encoded);
        write_or_fault(member, at, bytes);
        let now = self.world.clock.monotonic().as_secs();
        if let Some(cache) = &mut self.read_cache.state.lock().cache {
            cache.note_written(len as u64, now);
        }
    }

    /// Counts of a slot with that summary: zeros where there are none.
    pub(crate) fn counts_of(&self, device: &CacheDevice, summary: &SlotSummary) -> SlotCounts {
        let (member, size) = (&device.member, device.member.slot_size);
        let (from, len) = counts_sectors(size);
        let bytes = read_unless_owed(member, member.slot_offset(SlotIndex::new(summary.slot), from), len);
        let check = |bytes: &[u8]| {
            let own = &bytes[len - counts_len(size) as usize..];
            SlotCounts::check(&self.sums, member.guid, summary.slot, summary.generation, size, own).ok()
        };
        let none = || SlotCounts::new(member.guid, summary.slot, summary.generation, size);
        bytes.and_then(|bytes| check(&bytes)).unwrap_or_else(none)
    }

    /// The head of a slot's summary.
    fn summary_head(&self, device: &CacheDevice, slot: u32) -> Option<SummaryHead> {
        let (member, own) = (&device.member, slot - device.base);
        let bytes = read_unless_owed(member, member.slot_offset(SlotIndex::new(own), 0), ALIGN)?;
        SummaryHead::check(&self.sums, member.guid, own, member.slot_size, &bytes).ok()
    }

    /// Adds to a summary what lies behind the last copy that it names; whether there was something.
    pub(crate) fn walk(&self, device: &CacheDevice, summary: &mut SlotSummary) -> bool {
        let (member, units) = (&device.member, slot_units(device.member.slot_size));
        let end = |blocks: &[CachedBlock]| {
            blocks.last().map_or(0, |last| u32::from(last.unit) + u32::from(last.units))
        };
        let before = summary.blocks.len();
        loop {
            let from = end(&summary.blocks);
            let len = (units - from).min(WINDOW) * CACHE_UNIT;
            if len == 0 {
                break;
            }
            let at = device.offset(device.base + summary.slot, from);
            let Some(bytes) = read_unless_owed(member, at, len as usize) else { break };
            let found = summary.blocks.len();
            while let Some(block) = self.copy_at(&bytes, from, end(&summary.blocks)) {
                summary.blocks.push(block);
            }
            if summary.blocks.len() == found {
                break;
            }
        }
        summary.blocks.len() > before
    }

    /// The copy that begins with a unit of what was read from another one on, if it is whole in that.
    fn copy_at(&self, bytes: &[u8], from: u32, unit: u32) -> Option<CachedBlock> {
        let bytes = bytes.get(((unit - from) * CACHE_UNIT) as usize..)?;
        let header = CheckedHeader::check(&self.sums, bytes).ok()?;
        let units = units_of(header.stored().into())?;
        bytes.get(..(units * CACHE_UNIT) as usize)?;
        self.prove(header.id, &bytes[..header.stored() as usize])?;
        Some(CachedBlock { id: header.id, unit: unit as u16, units: units as u16 })
    }
}

/// Place in a slot of the sectors with its counts, and their bytes.
fn counts_sectors(slot_size: u32) -> (u32, usize) {
    let end = summary_len(slot_size);
    let from = (end - counts_len(slot_size)) / ALIGN as u32 * ALIGN as u32;
    (from, (end - from) as usize)
}
