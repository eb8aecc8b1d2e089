//! Slots: which are free, who gets them, and what that means in bytes that a user can write.

use crate::free_slots::FreeSlots;
use crate::segments::{ColumnSlot, Segment};
use crate::stripe;
use crate::watermark::Watermark;
use larder_format::label::GroupRule;
use larder_format::root::GroupRole;
use larder_format::segment::{DESCRIPTOR_LEN, Layout, Slot, stripe_header_len};
use larder_format::{DeviceIndex, GroupIndex, SegmentId, SlotIndex};
use std::collections::{BTreeMap, BTreeSet};

/// Stripes are closed when every column has this many bytes: large enough for a disk to stream, small
/// enough to keep several in memory.
pub const STRIPE_TARGET: u32 = 1 << 20;
/// Metadata of a record in trees and the block map, bytes before replication: an extent and its share
/// of the nodes above (about 70), a map entry and its merges (about 40).
const RECORD_METADATA: u64 = 110;

/// The free slots of one group.
#[derive(Debug, Clone)]
pub struct GroupSpace {
    /// Its number.
    pub index: GroupIndex,
    /// Its rule.
    pub rule: GroupRule,
    /// Its role.
    pub role: GroupRole,
    /// It is on its way out of the pool, with all of its devices: nothing new is put on it.
    pub leaving: bool,
    /// Bytes of a slot.
    pub slot_size: u32,
    /// log2 of the alignment of stripes.
    pub ashift: u8,
    free: BTreeMap<DeviceIndex, FreeSlots>,
    slots: BTreeMap<DeviceIndex, u32>,
    /// Devices on their way out: their slots are not given to anybody. Whether nothing can be had of one any more.
    retired: BTreeMap<DeviceIndex, bool>,
    /// Slots that are not given to anybody, and whether a segment is still there ([`crate::bad_slots`]).
    bad: BTreeMap<Slot, bool>,
    /// Free slots that are given to nobody while their devices are told that they are of no use.
    held: BTreeSet<Slot>,
    /// Slots that were given back since they were last trimmed; some of them have been taken again.
    untrimmed: BTreeMap<DeviceIndex, FreeSlots>,
}

impl GroupSpace {
    /// A group of data all of whose slots are free; `devices` gives the number of slots of each.
    pub fn new(
        index: GroupIndex,
        rule: GroupRule,
        slot_size: u32,
        ashift: u8,
        devices: &[(DeviceIndex, u32)],
    ) -> Self {
        Self {
            index,
            rule,
            role: GroupRole::Data,
            leaving: false,
            slot_size,
            ashift,
            free: devices.iter().map(|&(device, count)| (device, FreeSlots::all(count))).collect(),
            slots: devices.iter().copied().collect(),
            retired: BTreeMap::new(),
            bad: BTreeMap::new(),
            held: BTreeSet::new(),
            untrimmed: BTreeMap::new(),
        }
    }

    /// The same, of another role.
    pub fn of_role(self, role: GroupRole) -> Self {
        Self { role, ..self }
    }

    /// Another device joins.
    pub fn join(&mut self, device: DeviceIndex, slots: u32) {
        self.retired.remove(&device);
        self.bad.retain(|slot, _| slot.device != device);
        self.forget_trims(device);
        self.free.insert(device, FreeSlots::all(slots));
        self.slots.insert(device, slots);
    }

    /// A device is on its way out: none of its slots is given to anybody any more. Of one that is `gone` nothing can be
    /// had, and segments need not leave it if what is left of them is what the rule asks for.
    pub fn retire(&mut self, device: DeviceIndex, gone: bool) {
        self.free.remove(&device);
        self.slots.remove(&device);
        self.bad.retain(|slot, _| slot.device != device);
        self.forget_trims(device);
        self.retired.insert(device, gone);
    }

    /// Whether a segment of `layout` with these slots is as the rule says, and stays.
    pub fn fits(&self, segment: &Segment) -> bool {
        if self.leaving {
            return false;
        }
        let (rule, layout) = (self.rule.layout, segment.layout);
        let state_of = |slot: &ColumnSlot| self.retired.get(&slot.device).copied();
        let retired = || segment.slots.iter().filter_map(state_of);
        if self.retired.is_empty() || retired().next().is_none() {
            return [rule, rule.replicated()].contains(&layout);
        }
        // Only mirrors let a device go.
        let is_mirror = |layout: Layout| layout.k() == 1 && layout.m() == 0;
        retired().all(|gone| gone)
            && is_mirror(rule)
            && is_mirror(layout)
            && layout.r() - retired().count() == rule.r()
    }

    /// Takes any free slot of a device.
    pub fn take_any(&mut self, device: DeviceIndex) -> Option<SlotIndex> {
        self.free.get_mut(&device).and_then(FreeSlots::take_first).map(SlotIndex::new)
    }

    /// A slot is not given to anybody any more.
    pub fn set_bad(&mut self, slot: Slot) {
        let is_free = self.free.get_mut(&slot.device).is_some_and(|free| free.take(slot.index.get()));
        self.bad.entry(slot).or_insert(!is_free);
    }

    /// Whether it was said to be bad.
    pub fn is_bad(&self, slot: Slot) -> bool {
        self.bad.contains_key(&slot)
    }

    /// A slot that was said to be bad is as good as any.
    pub fn pardon(&mut self, slot: Slot) {
        if self.bad.remove(&slot) == Some(false)
            && let Some(free) = self.free.get_mut(&slot.device)
        {
            free.give_back(slot.index.get());
        }
    }

    /// Takes a slot that a segment is known to occupy; false when it was not free.
    pub fn take(&mut self, slot: Slot) -> bool {
        self.retired.contains_key(&slot.device)
            || self.free.get_mut(&slot.device).is_some_and(|free| free.take(slot.index.get()))
    }

    /// Gives a slot back.
    pub fn give_back(&mut self, slot: Slot) {
        if self.retired.contains_key(&slot.device) {
            return;
        }
        if let Some(is_taken) = self.bad.get_mut(&slot) {
            *is_taken = false;
            return;
        }
        let fresh = self.free.get_mut(&slot.device).is_some_and(|free| free.give_back(slot.index.get()));
        assert!(fresh, "slot {slot:?} was given back twice");
        self.untrimmed.entry(slot.device).or_default().give_back(slot.index.get());
    }

    fn forget_trims(&mut self, device: DeviceIndex) {
        self.held.retain(|slot| slot.device != device);
        self.untrimmed.remove(&device);
    }

    /// Free slots of a device that can be held: what writes may need stays, and as many as what was `accepted` takes.
    fn holdable(&self, device: DeviceIndex, most: usize, accepted: u64) -> usize {
        let free = self.free.get(&device).map_or(0, FreeSlots::len);
        let kept = self.enough().saturating_add(accepted);
        usize::try_from(free.saturating_sub(kept)).unwrap_or(usize::MAX).min(most)
    }

    /// Holds at most `most` free slots of a device, from `first` on; as many as what was `accepted` takes stay.
    pub fn hold(&mut self, device: DeviceIndex, first: u32, most: usize, accepted: u64) -> Vec<SlotIndex> {
        let (mut held, mut at) = (Vec::new(), first);
        for _ in 0..self.holdable(device, most, accepted) {
            let Some(slot) = self.free.get(&device).and_then(|free| free.next(at)) else { break };
            held.push(self.hold_one(device, slot));
            at = slot + 1;
        }
        held
    }

    /// As [`GroupSpace::hold`], of those that were given back since they were last trimmed.
    pub fn hold_untrimmed(&mut self, device: DeviceIndex, most: usize, accepted: u64) -> Vec<SlotIndex> {
        let (mut held, most) = (Vec::new(), self.holdable(device, most, accepted));
        while held.len() < most
            && let Some(slot) = self.untrimmed.get_mut(&device).and_then(FreeSlots::take_first)
        {
            if self.is_free(Slot { device, index: SlotIndex::new(slot) }) {
                held.push(self.hold_one(device, slot));
            }
        }
        held
    }

    fn hold_one(&mut self, device: DeviceIndex, slot: u32) -> SlotIndex {
        let taken = self.free.get_mut(&device).is_some_and(|free| free.take(slot));
        assert!(taken, "it was just found");
        if let Some(known) = self.untrimmed.get_mut(&device) {
            known.take(slot);
        }
        let index = SlotIndex::new(slot);
        self.held.insert(Slot { device, index });
        index
    }

    /// Whether a slot of a device waits to be trimmed, and can be held.
    pub fn is_untrimmed(&self, device: DeviceIndex, accepted: u64) -> bool {
        self.untrimmed.get(&device).is_some_and(|known| known.len() > 0)
            && self.holdable(device, 1, accepted) > 0
    }

    /// A slot that was held can be given to anybody again.
    pub fn let_go(&mut self, slot: Slot) {
        if self.held.remove(&slot) {
            let fresh = self.free.get_mut(&slot.device).is_some_and(|free| free.give_back(slot.index.get()));
            assert!(fresh, "slot {slot:?} was held and free");
        }
    }

    /// Bytes of the free slots of a device from `first` on.
    pub fn free_bytes(&self, device: DeviceIndex, first: u32) -> u64 {
        self.free.get(&device).map_or(0, |free| free.count_from(first)) * u64::from(self.slot_size)
    }

    /// Slots of a device that are held.
    fn held(&self, device: DeviceIndex) -> u64 {
        let at = |slot| Slot { device, index: SlotIndex::new(slot) };
        self.held.range(at(0)..=at(u32::MAX)).count() as u64
    }

    /// Slots for a segment of `layout`, one of the group's own or its replicated form.
    ///
    /// Devices with replicas of one another stay together, so that what the rule survives does not
    /// depend on the segment: units of `r` devices, then the parity devices. Which unit holds which
    /// column rotates with the segment's id; with `r` = 1 parity takes part in that. A replicated
    /// segment takes the devices with most free slots; when `r` > 1, a whole unit and all parity
    /// devices, since losing those is fatal anyway.
    pub fn allocate(&mut self, layout: Layout, id: SegmentId) -> Option<Vec<Slot>> {
        let rule = self.rule.layout;
        let mut devices: Vec<DeviceIndex> = self.free.keys().copied().collect();
        let turn = |count: usize| (id.get() % count as u64) as usize;
        let free = |device: &DeviceIndex| self.free[device].len();
        if rule.r() == 1 {
            let count = devices.len();
            devices.rotate_left(turn(count));
            if layout != rule {
                devices.sort_by_key(|device| std::cmp::Reverse(free(device)));
            }
        } else {
            let parity = devices.split_off(rule.k() * rule.r());
            devices.rotate_left(turn(rule.k()) * rule.r());
            if layout != rule {
                let mut units: Vec<_> = devices.chunks(rule.r()).map(<[_]>::to_vec).collect();
                units.sort_by_key(|unit| std::cmp::Reverse(unit.iter().map(free).min()));
                devices = units.swap_remove(0);
            }
            devices.extend(parity);
        }
        devices.truncate(layout.columns());
        if devices.len() < layout.columns() || devices.iter().any(|device| free(device) == 0) {
            return None;
        }
        let slots = devices.into_iter().map(|device| {
            let index = self.free.get_mut(&device).and_then(FreeSlots::take_first).expect("checked above");
            Slot { device, index: SlotIndex::new(index) }
        });
        Some(slots.collect())
    }

    /// Full-width segments that the free slots make.
    pub fn free_segments(&self) -> u64 {
        self.free.values().map(FreeSlots::len).min().unwrap_or(0)
    }

    /// As [`GroupSpace::free_segments`], with the slots that are held, which are free again in a moment.
    pub fn unused_segments(&self) -> u64 {
        self.free.iter().map(|(&device, free)| free.len() + self.held(device)).min().unwrap_or(0)
    }

    /// Full-width segments of the empty group.
    pub fn total_segments(&self) -> u64 {
        self.slots.values().map(|&count| u64::from(count)).min().unwrap_or(0)
    }

    /// Segments that are left alone by who may go down to `mark`.
    pub fn left(&self, mark: Watermark) -> u64 {
        mark.left(self.total_segments(), u64::from(self.slot_size) * self.rule.layout.k() as u64)
    }

    /// Segments that are free above `mark`.
    pub fn free_above(&self, mark: Watermark) -> u64 {
        self.free_segments().saturating_sub(self.left(mark))
    }

    /// Bytes of nodes that all free slots above `mark` take.
    pub fn room_for_nodes(&self, mark: Watermark) -> u64 {
        let layout = self.rule.layout;
        let segments = self.free_above(mark);
        segments * u64::from(self.slot_size) * layout.columns() as u64 / layout.quorum().max(1) as u64
    }

    /// Below this many free segments each write pays with a step of cleaning.
    pub fn tight(&self) -> u64 {
        (self.left(Watermark::Accept) + self.enough()) / 2
    }

    /// The cleaner works while fewer segments than this are free or about to be: as many as the reserve, of which it
    /// may use the half above what data is accepted by. It is little on purpose: the longer a segment is left alone,
    /// the less of it has to be moved.
    pub fn enough(&self) -> u64 {
        self.left(Watermark::Available)
    }

    /// Slots in use and in all, over all devices, without those that are bad.
    pub fn slots(&self) -> (u64, u64) {
        let total: u64 = self.slots.values().map(|&count| u64::from(count)).sum();
        let total = total - self.bad.values().filter(|is_taken| !**is_taken).count() as u64;
        let free: u64 = self.free.values().map(FreeSlots::len).sum();
        (total - free - self.held.len() as u64, total)
    }

    /// The devices, with slots in use and slots in all.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceIndex, u64, u64)> + '_ {
        self.slots.iter().map(|(&device, &count)| {
            let free = self.free.get(&device).map_or(0, FreeSlots::len) + self.held(device);
            (device, u64::from(count) - free, u64::from(count))
        })
    }

    /// Whether a slot is free, held or not.
    pub fn is_free(&self, slot: Slot) -> bool {
        self.held.contains(&slot)
            || self.free.get(&slot.device).is_some_and(|free| free.contains(slot.index.get()))
    }

    /// Bytes of incompressible records of `record` bytes that `room` bytes of each data column take,
    /// with their share of metadata.
    pub fn writable(&self, room: u64, record: u32) -> u64 {
        let layout = self.rule.layout;
        let per_column = records_in_column(layout, self.step(), room, record);
        per_column * layout.k() as u64 * u64::from(record)
    }

    /// Bytes of incompressible records of `record` bytes that a full-width segment takes.
    pub fn per_segment(&self, record: u32) -> u64 {
        self.writable(u64::from(self.slot_size - DESCRIPTOR_LEN), record)
    }

    /// Bytes of incompressible records of `record` bytes that a user can write where `segments` full-width segments are
    /// free, and `dead` bytes over all columns come back by cleaning.
    pub fn available(&self, segments: u64, dead: u64, record: u32) -> u64 {
        let layout = self.rule.layout;
        let data = self.per_segment(record);
        let columns = layout.columns() as u64;
        // Metadata takes slots on as many devices as it has copies; spread over all, that is its share.
        let raw = u64::from(self.slot_size) * columns;
        let metadata = data / u64::from(record) * RECORD_METADATA * layout.quorum() as u64;
        let dead = dead / columns * layout.k() as u64;
        let footprint = u64::from(stripe::footprint_of_record(record));
        let won = u128::from(dead) * u128::from(record) / u128::from(footprint);
        let data = u128::from(segments) * u128::from(data) + won;
        (data * u128::from(raw) / u128::from(raw + metadata)) as u64
    }

    /// Alignment of stripes, bytes.
    pub fn step(&self) -> u32 {
        (1 << self.ashift).max(larder_format::segment::STRIPE_STEP)
    }
}

/// Records of `record` bytes, incompressible, that fit in `room` bytes of one column: full stripes, and what follows
/// them.
fn records_in_column(layout: Layout, step: u32, room: u64, record: u32) -> u64 {
    let header = u64::from(stripe_header_len(layout.columns()));
    let block = u64::from(stripe::footprint_of_record(record));
    let per_stripe = u64::from(STRIPE_TARGET).div_ceil(block).max(1);
    let used = header + per_stripe * block;
    let stripe = used.next_multiple_of(u64::from(step));
    // The last of them need not be padded.
    let stripes = room.checked_sub(used).map_or(0, |more| more / stripe + 1);
    stripes * per_stripe + room.saturating_sub(stripes * stripe).saturating_sub(header) / block
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_device::{Entropy, SeededEntropy};
    use larder_format::label::LayoutKind;

    fn group(k: u8, r: u8, m: u8, devices: u16, slots: u32) -> GroupSpace {
        let rule = GroupRule { word: LayoutKind::Raidz, layout: Layout::new(k, r, m).unwrap() };
        let devices: Vec<_> = (0..devices).map(|i| (DeviceIndex::new(i), slots)).collect();
        GroupSpace::new(GroupIndex::new(0), rule, 1 << 20, 12, &devices)
    }

    #[test]
    fn replicated_segments_go_where_most_is_free() {
        let mut space = group(4, 1, 2, 6, 64);
        for i in 0..60 {
            let slots = space.allocate(space.rule.layout.replicated(), SegmentId::new(i)).unwrap();
            assert_eq!(slots.len(), 3);
        }
        assert_eq!(space.free_segments(), 34);
    }

    /// Stripe by stripe, as they are filled.
    fn fill(layout: Layout, step: u32, mut room: u64, record: u32) -> u64 {
        let header = u64::from(stripe_header_len(layout.columns()));
        let block = u64::from(stripe::footprint_of_record(record));
        let mut records = 0;
        while room >= header + block {
            let mut stripe = header;
            let begun = records;
            while stripe + block <= room && (stripe - header < u64::from(STRIPE_TARGET) || records == begun) {
                stripe += block;
                records += 1;
            }
            room = room.saturating_sub(stripe.next_multiple_of(u64::from(step)));
        }
        records
    }

    #[test]
    fn a_column_holds_as_many_records_as_stripes_filled_one_by_one() {
        let layout = Layout::new(4, 1, 2).unwrap();
        let rng = SeededEntropy::new(7);
        for record in [512, 4096, 6000, 128 << 10, (1 << 20) - 7, 1 << 20] {
            for step in [4096, 8192] {
                for _ in 0..400 {
                    let room = rng.next_u64() % (12 << 20);
                    let held = records_in_column(layout, step, room, record);
                    assert_eq!(held, fill(layout, step, room, record), "{room} bytes, {record} each, {step}");
                }
            }
        }
    }

    #[test]
    fn a_bad_slot_is_free_when_it_is_pardoned_and_its_segment_is_gone() {
        let mut space = group(1, 2, 0, 2, 20);
        let slots = space.allocate(space.rule.layout, SegmentId::new(7)).unwrap();
        let [pardoned_first, gone_first] = [slots[0], slots[1]];
        space.set_bad(pardoned_first);
        space.pardon(pardoned_first);
        assert!(!space.is_free(pardoned_first), "a segment is there");
        space.give_back(pardoned_first);
        assert!(space.is_free(pardoned_first));
        space.set_bad(gone_first);
        space.give_back(gone_first);
        assert!(!space.is_free(gone_first), "it is bad");
        space.pardon(gone_first);
        assert!(space.is_free(gone_first));
        // One that nobody has, as import finds it.
        space.set_bad(gone_first);
        assert!(!space.is_free(gone_first) && space.is_bad(gone_first));
        space.pardon(gone_first);
        assert!(space.is_free(gone_first) && !space.is_bad(gone_first));
    }

    #[test]
    fn slots_come_back() {
        let mut space = group(1, 2, 0, 2, 20);
        let slots = space.allocate(space.rule.layout, SegmentId::new(7)).unwrap();
        assert_eq!(space.free_segments(), 19);
        slots.iter().for_each(|&slot| space.give_back(slot));
        assert_eq!(space.free_segments(), 20);
        assert!(slots.iter().all(|&slot| space.take(slot) && !space.take(slot)));
    }
}
