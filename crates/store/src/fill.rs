//! The write side of the read cache: copies go to slots, one after the other, and old ones make room.
//!
//! A slot gets its summary when it is full, when the pool is exported, and once a minute while it is being filled; an
//! empty one when that begins. An import reads the summaries of all slots and goes on with the copies of those before:
//! the oldest first, as they were filled. What the last ones do not tell of yet is looked for ([`crate::warm`]).

use crate::member::{Member, Written};
use crate::read_cache::{CacheDevice, Filler, OpenSlot, Restoring};
use crate::store::Store;
use bytes::Bytes;
use larder_cache::{Fate, Kind, Place, units_of};
use larder_device::{ALIGN, AlignedBuf};
use larder_format::block::CheckedHeader;
use larder_format::cached::{CACHE_UNIT, CachedBlock, SlotCounts, SlotSummary, SummaryHead};
use larder_format::{BlockId, DeviceOffset, SlotIndex};
use larder_mutants::point;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of one write.
const CHUNK: usize = 1 << 20;
/// Blocks of the queue that a step takes.
const STEP: usize = 64;
/// Slots whose copies are made known in a step.
const RESTORED: usize = 32;
/// Reads of summaries that are under way at once: more would tell of a slower device than it is.
const UNDER_WAY: u32 = 4;
/// Slots that are emptied in a step.
const VICTIMS: usize = 4;
/// Interval of summaries of the slot that is being filled.
const EVERY: Duration = Duration::from_secs(60);
/// Steps of counts that an export takes at most.
const STEPS_AT_EXPORT: usize = 4;

impl Store {
    /// Takes a step at copying what waits for it; whether there is more to do at once.
    pub fn fill_read_cache(&self) -> bool {
        if !self.read_cache.is_there() {
            return false;
        }
        let mut filler = self.read_cache.filler.lock();
        self.drop_failed(&mut filler);
        self.read_cache.compare(&self.members);
        let goes_on = self.restore_some(&mut filler);
        self.cache.make_room_for_copies(self.read_cache.memory());
        let is_written = self.check_writable().is_ok();
        self.read_cache.open(is_written);
        goes_on || (is_written && (self.copy_some(&mut filler) || self.count_some(&mut filler)))
    }

    /// Copies what waits, as much as a step takes; nothing while a device is late, of which no slot could be emptied.
    fn copy_some(&self, filler: &mut Filler) -> bool {
        if self.read_cache.state.lock().owes_answers() {
            return false;
        }
        let mut copied = 0;
        let mut has_room = self.make_room(filler);
        while copied < STEP && has_room {
            let Some((id, bytes, kind)) = self.read_cache.next() else { break };
            self.copy(filler, id, &bytes, kind);
            has_room = self.make_room(filler);
            copied += 1;
        }
        for open in filler.open.iter_mut().flatten() {
            self.write_chunk(open);
            self.tell(open, EVERY);
        }
        copied == STEP || !has_room
    }

    /// Writes some of what waits, and says what the last slots have: the next import finds it.
    pub fn close_read_cache(&self) {
        if !self.read_cache.is_there() || self.check_writable().is_err() {
            return;
        }
        let mut filler = self.read_cache.filler.lock();
        self.drop_failed(&mut filler);
        if self.read_cache.state.lock().is_open() {
            self.copy_some(&mut filler);
        }
        filler.open.iter_mut().flatten().for_each(|open| self.tell(open, Duration::ZERO));
        // An export does not wait for more: the others were written within ten minutes.
        let mut from = Some(0);
        for _ in 0..STEPS_AT_EXPORT {
            from = from.and_then(|from| self.write_counts(from, true));
        }
    }

    /// A device that failed, or has been silent for too long, is not one any more.
    fn drop_failed(&self, filler: &mut Filler) {
        let devices = self.read_cache.state.lock().devices.clone();
        for device in devices {
            let member = &device.member;
            if member.is_online() && member.meter().silence() > member.timeout() {
                member.fail(&"did not answer");
                member.abandon();
            }
            if !member.is_online() {
                self.read_cache.forget(filler, &device);
            }
        }
    }

    /// Gives a block its place and puts it behind what waits to be written.
    fn copy(&self, filler: &mut Filler, id: BlockId, bytes: &Bytes, kind: Kind) {
        let now = self.world.clock.monotonic().as_secs();
        let Some(units) = units_of(bytes.len() as u64) else { return };
        if let Some(place) = self.read_cache.place(|cache| cache.append(id.get(), units, kind, now)) {
            self.put(filler, id, place, units, bytes);
        }
    }

    /// A block whose place is known.
    fn put(&self, filler: &mut Filler, id: BlockId, place: Place, units: u32, bytes: &[u8]) {
        let pinned =
            self.read_cache.state.lock().cache.as_ref().is_some_and(|cache| cache.is_pinned(place.slot));
        let open = &mut filler.open[usize::from(pinned)];
        if let Some(full) = open.take_if(|open| open.slot != place.slot).as_mut() {
            self.write_chunk(full);
            self.tell(full, Duration::ZERO);
        }
        let open = open.get_or_insert_with(|| {
            filler.generation += 1;
            let mut open = OpenSlot {
                slot: place.slot,
                generation: filler.generation,
                pinned,
                blocks: Vec::new(),
                chunk: Vec::new(),
                from: place.unit,
                told: 0,
                told_at: Duration::ZERO,
            };
            // After a crash nobody is to look for what was in it, but for what is by now.
            self.write_summary(&mut open);
            open
        });
        let end = open.chunk.len() + (units * CACHE_UNIT) as usize;
        open.chunk.extend_from_slice(bytes);
        open.chunk.resize(end, 0);
        open.blocks.push(CachedBlock { id, unit: place.unit as u16, units: units as u16 });
        if open.chunk.len() >= CHUNK {
            self.write_chunk(open);
        }
    }

    /// Writes what waits of a slot that is being filled.
    fn write_chunk(&self, open: &mut OpenSlot) {
        if open.chunk.is_empty() {
            return;
        }
        let chunk = std::mem::take(&mut open.chunk);
        let from = open.from;
        open.from += (chunk.len() / CACHE_UNIT as usize) as u32;
        let device = self.read_cache.state.lock().device_of(open.slot).cloned();
        point("copies are about to be written");
        let is_written = device.is_some_and(|device| {
            write_or_fault(&device.member, device.offset(open.slot, from), AlignedBuf::padded(&chunk))
        });
        let mut state = self.read_cache.state.lock();
        state.unwritten.retain(|place| place.slot != open.slot);
        if !is_written {
            // A place that refused is not tried again: the slot's other blocks are there.
            for block in open.blocks.iter().filter(|block| u32::from(block.unit) >= from) {
                let place = Place { slot: open.slot, unit: block.unit.into() };
                if let Some(cache) = &mut state.cache {
                    cache.remove(block.id.get(), place);
                }
            }
            open.blocks.retain(|block| u32::from(block.unit) < from);
        }
    }

    /// Writes the summary of a slot that is being filled, if the last one is as old as that.
    fn tell(&self, open: &mut OpenSlot, every: Duration) {
        let now = self.world.clock.monotonic();
        if open.told == open.blocks.len() || now.saturating_sub(open.told_at) < every {
            return;
        }
        self.write_summary(open);
    }

    fn write_summary(&self, open: &mut OpenSlot) {
        let now = self.world.clock.monotonic();
        let Some(device) = self.read_cache.state.lock().device_of(open.slot).cloned() else { return };
        let (member, slot) = (&device.member, open.slot - device.base);
        let (generation, pinned, blocks) = (open.generation, open.pinned, open.blocks.clone());
        let summary = SlotSummary { device: member.guid, slot, generation, pinned, blocks };
        let bytes = AlignedBuf::padded(&summary.encode(&self.sums));
        let len = bytes.len() as u64;
        write_or_fault(member, member.slot_offset(SlotIndex::new(slot), 0), bytes);
        (open.told, open.told_at) = (open.blocks.len(), now);
        if let Some(cache) = &mut self.read_cache.state.lock().cache {
            cache.note_written(len, now.as_secs());
        }
    }

    /// While there is too little room, empties a slot; what was read in it stays, in another. False when there is still
    /// too little after some.
    fn make_room(&self, filler: &mut Filler) -> bool {
        for _ in 0..VICTIMS {
            let (victim, device) = {
                let mut state = self.read_cache.state.lock();
                let Some(victim) = state.cache.as_mut().and_then(|cache| cache.next_victim()) else {
                    return true;
                };
                (victim, state.device_of(victim).cloned())
            };
            let blocks = device
                .as_ref()
                .and_then(|device| self.summary(device, victim))
                .map_or(Vec::new(), |it| it.blocks);
            let now = self.world.clock.monotonic().as_secs();
            let listed = blocks.iter().map(|block| (block.id.get(), u32::from(block.unit)));
            let kept = match &mut self.read_cache.state.lock().cache {
                Some(cache) => cache.evict(victim, listed, now),
                None => return true,
            };
            for (id, old) in kept {
                let read = device.as_ref().and_then(|device| {
                    let len = (old.units * CACHE_UNIT) as usize;
                    read_unless_owed(&device.member, device.offset(victim, old.place.unit), len)
                });
                // Only what it is goes on.
                let is_it = |bytes: &AlignedBuf| {
                    let header = CheckedHeader::check(&self.sums, bytes).ok()?;
                    (header.id.get() == id)
                        .then_some(header.stored() as usize)
                        .filter(|len| *len <= bytes.len())
                };
                match read.and_then(|bytes| Some((is_it(&bytes)?, bytes))) {
                    Some((len, bytes)) => {
                        let place = self.read_cache.place(|cache| cache.append_again(id, old, now));
                        if let Some(place) = place {
                            self.put(filler, BlockId::new(id), place, old.units, &bytes[..len]);
                        }
                    }
                    None => {
                        if let Some(cache) = &mut self.read_cache.state.lock().cache {
                            cache.remove(id, old.place);
                        }
                    }
                }
            }
            if let Some(cache) = &mut self.read_cache.state.lock().cache {
                cache.release(victim, Fate::Stays);
            }
        }
        false
    }

    /// The summary of a slot.
    fn summary(&self, device: &CacheDevice, slot: u32) -> Option<SlotSummary> {
        let member = &device.member;
        let (own, size) = (slot - device.base, member.slot_size);
        let at = member.slot_offset(SlotIndex::new(own), 0);
        let read = |len: usize| read_unless_owed(member, at, len.next_multiple_of(ALIGN));
        let bytes = read(ALIGN)?;
        let head = SummaryHead::check(&self.sums, member.guid, own, size, &bytes).ok()?;
        let bytes = if head.len() > bytes.len() { read(head.len())? } else { bytes };
        SlotSummary::check(&self.sums, member.guid, own, size, &bytes).ok()
    }

    /// Makes copies of earlier imports known; whether there are more.
    fn restore_some(&self, filler: &mut Filler) -> bool {
        let next = self.read_cache.state.lock().devices.iter().find(|device| device.restoring).cloned();
        let Some(device) = next else { return false };
        let restoring = filler.restoring.get_or_insert_with(|| Restoring {
            base: device.base,
            unseen: device.slots(),
            filled: Vec::new(),
            blank: Vec::new(),
            latest: [None; 2],
        });
        // Nothing is known of the slots of a device that is late: later.
        if device.member.meter().owed() > 0 {
            return false;
        }
        if !restoring.unseen.is_empty() {
            self.survey(&device, restoring);
            return true;
        }
        for _ in 0..RESTORED {
            if let Some((generation, slot)) = restoring.filled.pop() {
                filler.generation = filler.generation.max(generation);
                match self.summary(&device, slot) {
                    Some(mut summary) => {
                        let counts = self.counts_of(&device, &summary);
                        let is_latest = restoring.latest.contains(&Some((generation, slot)));
                        if is_latest && self.walk(&device, &mut summary) {
                            self.tell_walked(&device, &summary, &counts);
                        }
                        self.read_cache.restore(slot, &summary, &counts);
                    }
                    None if device.member.meter().owed() > 0 => {
                        restoring.filled.push((generation, slot));
                        return false;
                    }
                    None => restoring.blank.push(slot),
                }
            } else if let Some(slot) = restoring.blank.pop() {
                if let Some(cache) = &mut self.read_cache.state.lock().cache {
                    cache.add_slot(slot);
                }
            } else {
                filler.restoring = None;
                let mut state = self.read_cache.state.lock();
                state
                    .devices
                    .iter_mut()
                    .filter(|of| of.base == device.base)
                    .for_each(|of| of.restoring = false);
                break;
            }
        }
        true
    }

    /// Nobody looks again for copies that a summary did not tell of.
    fn tell_walked(&self, device: &CacheDevice, summary: &SlotSummary, counts: &SlotCounts) {
        if self.check_writable().is_ok() {
            let at = device.member.slot_offset(SlotIndex::new(summary.slot), 0);
            write_or_fault(&device.member, at, AlignedBuf::padded(&summary.encode(&self.sums)));
            // They may have been in the sector that it ends in.
            self.put_counts(device, counts);
        }
    }

    /// Which of some slots of a device were filled, and when.
    fn survey(&self, device: &CacheDevice, restoring: &mut Restoring) {
        let member = &device.member;
        let own = |slot: u32| slot - device.base;
        let slots = restoring.unseen.start..restoring.unseen.end.min(restoring.unseen.start + UNDER_WAY);
        let read = |slot: u32| member.read(member.slot_offset(SlotIndex::new(own(slot)), 0), ALIGN);
        let reads: Vec<_> = slots.map(|slot| (slot, read(slot))).collect();
        for (slot, read) in reads {
            let bytes = read.and_then(|read| member.wait_in_bulk(read).ok());
            if bytes.is_none() && member.meter().owed() > 0 {
                // From here on once more.
                return;
            }
            restoring.unseen.start = slot + 1;
            let size = member.slot_size;
            let head = bytes
                .and_then(|bytes| SummaryHead::check(&self.sums, member.guid, own(slot), size, &bytes).ok());
            match head {
                Some(head) => {
                    let latest = &mut restoring.latest[usize::from(head.pinned)];
                    *latest = (*latest).max(Some((head.generation, slot)));
                    restoring.filled.push((head.generation, slot));
                }
                None => restoring.blank.push(slot),
            }
        }
        if restoring.unseen.is_empty() {
            // Both are taken from the end.
            restoring.filled.sort_unstable_by(|a, b| b.cmp(a));
            restoring.blank.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}

/// Writes; a device that refuses too often is of no use.
pub(crate) fn write_or_fault(member: &Member, at: DeviceOffset, data: AlignedBuf) -> bool {
    let write = member.write(at, Arc::new(data));
    match write.is_some().then(|| member.complete_write(write)) {
        Some(Written::Done) => true,
        Some(Written::Refused(error)) => {
            if !member.may_refuse() {
                member.refuse(&error);
            }
            false
        }
        _ => false,
    }
}

/// Reads what is there, of a device that answers.
pub(crate) fn read_unless_owed(member: &Member, at: DeviceOffset, len: usize) -> Option<AlignedBuf> {
    if member.meter().owed() > 0 {
        return None;
    }
    member.wait_in_bulk(member.read(at, len)?).ok()
}
