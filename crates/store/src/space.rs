//! Slots: which are free, who gets them, and what that means in bytes that a user can write.

use crate::free_slots::FreeSlots;
use crate::room::Room;
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

/// Slots of a device that only the last segments take.
const LEFT_TO_COLUMNS: u64 = 4;

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
    /// It has, or had, segments that are narrower than its rule.
    pub narrow: bool,
    /// Bytes of a slot.
    pub slot_size: u32,
    /// log2 of the alignment of stripes.
    pub ashift: u8,
    free: BTreeMap<DeviceIndex, FreeSlots>,
    slots: BTreeMap<DeviceIndex, u32>,
    /// Their devices, in the order of their numbers.
    order: Vec<DeviceIndex>,
    /// Segments that all of them make: asked for with every stripe.
    total_segments: u64,
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
        let space = Self {
            index,
            rule,
            role: GroupRole::Data,
            leaving: false,
            narrow: false,
            slot_size,
            ashift,
            free: devices.iter().map(|&(device, count)| (device, FreeSlots::all(count))).collect(),
            slots: devices.iter().copied().collect(),
            order: Vec::new(),
            total_segments: 0,
            retired: BTreeMap::new(),
            bad: BTreeMap::new(),
            held: BTreeSet::new(),
            untrimmed: BTreeMap::new(),
        };
        space.recounted()
    }

    fn recounted(mut self) -> Self {
        self.recount();
        self
    }

    /// After its devices or its rule have changed.
    fn recount(&mut self) {
        self.order = self.slots.keys().copied().collect();
        self.total_segments = self.total(0).segments;
    }

    /// It has another rule from now on.
    pub fn set_rule(&mut self, rule: GroupRule) {
        self.narrow |= self.rule.layout.k() < rule.layout.k();
        self.rule = rule;
        self.recount();
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
        self.recount();
    }

    /// A device has this many slots from now on, which is more than it had.
    pub fn extend(&mut self, device: DeviceIndex, slots: u32) {
        if let (Some(count), Some(free)) = (self.slots.get_mut(&device), self.free.get_mut(&device)) {
            free.extend(*count, slots);
            *count = slots.max(*count);
            self.recount();
        }
    }

    /// A device that was on its way out stays, with so many slots, of which these are in use.
    pub fn keep(&mut self, device: DeviceIndex, slots: u32, used: impl Iterator<Item = SlotIndex>) {
        self.join(device, slots);
        if let Some(free) = self.free.get_mut(&device) {
            for slot in used {
                free.take(slot.get());
            }
        }
    }

    /// A device is on its way out: none of its slots is given to anybody any more. Of one that is `gone` nothing can be
    /// had, and segments need not leave it if what is left of them is what the rule asks for.
    pub fn retire(&mut self, device: DeviceIndex, gone: bool) {
        self.free.remove(&device);
        self.slots.remove(&device);
        self.bad.retain(|slot, _| slot.device != device);
        self.forget_trims(device);
        self.retired.insert(device, gone);
        self.recount();
    }

    /// Whether a segment survives what the rule says, and stays: it may be narrower.
    pub fn fits(&self, segment: &Segment) -> bool {
        if self.leaving {
            return false;
        }
        let (rule, layout) = (self.rule.layout, segment.layout);
        let state_of = |slot: &ColumnSlot| self.retired.get(&slot.device).copied();
        let retired = || segment.slots.iter().filter_map(state_of);
        if self.retired.is_empty() || retired().next().is_none() {
            return self.is_of_rule(layout) && self.is_in_units(segment);
        }
        // Only mirrors can do with what is left.
        retired().all(|gone| gone)
            && rule.is_mirror()
            && layout.is_mirror()
            && layout.r() - retired().count() == rule.r()
    }

    /// Whether it has this device, and that is not on its way out.
    pub fn has(&self, device: DeviceIndex) -> bool {
        self.slots.contains_key(&device)
    }

    /// Whether a layout is the rule's, as wide or narrower, or its replicated form.
    fn is_of_rule(&self, layout: Layout) -> bool {
        let rule = self.rule.layout;
        let is_narrower = (layout.r(), layout.m()) == (rule.r(), rule.m()) && layout.k() <= rule.k();
        is_narrower || layout == rule.replicated()
    }

    /// Whether what replaces what in a segment is what does in the group: where devices have replicas of one another,
    /// others may have come between them.
    fn is_in_units(&self, segment: &Segment) -> bool {
        let rule = self.rule.layout;
        if rule.r() == 1 || rule.columns() == rule.r() {
            return true;
        }
        let unit_of = |slot: &ColumnSlot| {
            let place = self.order.binary_search(&slot.device).ok();
            // Behind the units, parity has none.
            place.map(|place| (place / rule.r()).min(rule.k()))
        };
        let data = segment.slots.len() - rule.m();
        let (data, parity) = segment.slots.split_at(data);
        let is_unit = |slots: &[ColumnSlot]| {
            let unit = unit_of(&slots[0]);
            unit.is_some_and(|unit| unit < rule.k()) && slots.iter().all(|slot| unit_of(slot) == unit)
        };
        data.chunks(rule.r()).all(is_unit) && parity.iter().all(|slot| unit_of(slot) == Some(rule.k()))
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

    /// Slots for a segment, in the replicated form of the group's layout or as wide as devices have free slots.
    ///
    /// Devices with replicas of one another stay together, so that what the rule survives does not
    /// depend on the segment: units of `r` devices, then the parity devices. Which unit holds which
    /// column rotates with the segment's id; with `r` = 1 parity takes part in that. A replicated
    /// segment takes the devices with most free slots; when `r` > 1, a whole unit and all parity
    /// devices, since losing those is fatal anyway.
    pub fn allocate(&mut self, replicated: bool, id: SegmentId) -> Option<(Layout, Vec<Slot>)> {
        let rule = self.rule.layout;
        let wanted = if replicated { rule.replicated() } else { rule };
        let mut devices: Vec<DeviceIndex> = self.free.keys().copied().collect();
        let turn = |count: usize| (id.get() % count.max(1) as u64) as usize;
        let free = |device: &DeviceIndex| self.free[device].len();
        let (unit, mut parity) = (rule.r(), Vec::new());
        if unit > 1 {
            parity = devices.split_off(devices.len().min(rule.k() * unit));
        }
        let units = devices.len() / unit;
        devices.rotate_left(turn(units) * unit);
        let mut units: Vec<&[DeviceIndex]> = devices.chunks_exact(unit).collect();
        let room = |unit: &[DeviceIndex]| unit.iter().map(free).min().unwrap_or(0);
        if wanted != rule {
            units.sort_by_key(|unit| std::cmp::Reverse(room(unit)));
            units.truncate(if unit > 1 { 1 } else { wanted.columns() });
        }
        // With one replica, columns of parity are the last of those that are left.
        let least = if unit > 1 { 1 } else { rule.m() + 1 };
        // A column that a device refuses to write goes to another slot of it: that one is left while there are others.
        let left = if units.iter().filter(|unit| room(unit) > LEFT_TO_COLUMNS).count() < least {
            0
        } else {
            LEFT_TO_COLUMNS
        };
        units.retain(|unit| room(unit) > left);
        let layout = match wanted == rule {
            true => Layout::new(
                (units.len() + 1).checked_sub(least)?.try_into().ok()?,
                rule.r() as u8,
                rule.m() as u8,
            ),
            false => Ok(wanted),
        };
        let layout = layout.ok()?;
        let devices: Vec<DeviceIndex> = units.concat().into_iter().chain(parity).collect();
        if devices.len() != layout.columns() || devices.iter().any(|device| free(device) == 0) {
            return None;
        }
        self.narrow |= wanted == rule && layout != rule;
        let slots = devices.into_iter().map(|device| {
            let index = self.free.get_mut(&device).and_then(FreeSlots::take_first).expect("checked above");
            Slot { device, index: SlotIndex::new(index) }
        });
        Some((layout, slots.collect()))
    }

    /// Segments that so many slots of each device make, the widest first, without the last ones: as many, and with as
    /// many columns, as `above` of full width have.
    ///
    /// No other choice has more columns: with one replica, `n` segments have at most the slots of each device up to
    /// `n`, less `m` columns each; that grows with `n` while more than `m` devices have further slots.
    fn pack(&self, counts: impl Iterator<Item = u64>, above: u64) -> Room {
        let counts: Vec<u64> = counts.collect();
        let all = self.pack_all(&counts, 0);
        if above == 0 {
            return all;
        }
        let lacks = |rest: Room| rest.columns < above * self.rule.layout.k() as u64;
        let mut first = all.segments.saturating_sub(above);
        let mut rest = self.pack_all(&counts, first);
        if lacks(rest) {
            // The last of them are narrow: more are left, with as many columns.
            let mut enough = 0;
            while enough < first {
                let middle = (enough + first).div_ceil(2);
                match lacks(self.pack_all(&counts, middle)) {
                    true => first = middle - 1,
                    false => enough = middle,
                }
            }
            rest = self.pack_all(&counts, first);
        }
        Room { segments: first, columns: all.columns - rest.columns }
    }

    /// As [`GroupSpace::pack`], of what so many of the first leave: the last slots of each unit are taken last.
    fn pack_all(&self, counts: &[u64], taken: u64) -> Room {
        let layout = self.rule.layout;
        let least = |slots: &[u64]| slots.iter().copied().min().unwrap_or(0);
        let (data, parity) = match layout.r() {
            1 => (counts, &[][..]),
            r => counts.split_at(counts.len().min(layout.k() * r)),
        };
        let units: Vec<u64> = data.chunks_exact(layout.r()).map(least).collect();
        let parity = if layout.r() > 1 && layout.m() > 0 { least(parity) } else { u64::MAX };
        let first: Vec<u64> = units.iter().map(|count| count.saturating_sub(LEFT_TO_COLUMNS)).collect();
        let then: Vec<u64> = units.iter().map(|&count| count.min(LEFT_TO_COLUMNS)).collect();
        let rows = self.pack_units(&first, 0, parity).segments;
        let first = self.pack_units(&first, taken.min(rows), parity - taken.min(rows));
        let then = self.pack_units(&then, taken.saturating_sub(rows), parity - rows);
        Room { segments: first.segments + then.segments, columns: first.columns + then.columns }
    }

    /// Segments, the widest first, of what so many of them leave of each unit, with so many slots for parity.
    fn pack_units(&self, units: &[u64], taken: u64, parity: u64) -> Room {
        let layout = self.rule.layout;
        // With one replica, parity takes units too.
        let m = if layout.r() == 1 { layout.m() } else { 0 };
        let mut units: Vec<u64> = units.iter().map(|count| count.saturating_sub(taken)).collect();
        units.sort_unstable_by(|a, b| b.cmp(a));
        let segments = units.get(m).copied().unwrap_or(0).min(parity);
        let slots: u64 = units.iter().map(|&count| count.min(segments)).sum();
        Room { segments, columns: slots - m as u64 * segments }
    }

    /// Bytes over all columns of such segments, in slots.
    fn slots_of(&self, room: Room) -> u64 {
        let layout = self.rule.layout;
        room.columns * layout.r() as u64 + room.segments * layout.m() as u64
    }

    /// Data columns of the segment of records that would be opened now, of devices with more than `left` free slots.
    pub fn width(&self, left: u64) -> usize {
        let layout = self.rule.layout;
        let free: Vec<u64> = self.free_slots().collect();
        let has_room = |unit: &&[u64]| unit.iter().all(|&free| free > left);
        let (data, parity) = free.split_at(free.len().min(layout.k() * layout.r()));
        match layout.r() {
            1 => free.chunks(1).filter(has_room).count().saturating_sub(layout.m()),
            r if has_room(&parity) => data.chunks_exact(r).filter(has_room).count(),
            _ => 0,
        }
    }

    fn free_slots(&self) -> impl Iterator<Item = u64> + '_ {
        self.free.values().map(FreeSlots::len)
    }

    /// With the slots that are held, which are free again in a moment.
    fn unused_slots(&self) -> impl Iterator<Item = u64> + '_ {
        self.free.iter().map(|(&device, free)| free.len() + self.held(device))
    }

    fn all_slots(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.values().map(|&count| u64::from(count))
    }

    /// Segments of full width that the free slots make, or as much in narrower ones.
    pub fn free_segments(&self) -> u64 {
        self.pack(self.free_slots(), 0).columns / self.rule.layout.k() as u64
    }

    /// Whether a segment can be opened.
    pub fn has_free_segment(&self) -> bool {
        self.pack(self.free_slots(), 0).segments > 0
    }

    /// Room in the free slots, and in those that are held, which are free again in a moment, without the last `left`
    /// segments.
    pub fn unused(&self, left: u64) -> Room {
        self.pack(self.unused_slots(), left)
    }

    /// As [`GroupSpace::unused`], with so many slots more of each device.
    pub fn unused_with(&self, more: &BTreeMap<DeviceIndex, u64>, left: u64) -> Room {
        let counts = self.free.keys().zip(self.unused_slots());
        let counts = counts.map(|(device, count)| count + more.get(device).copied().unwrap_or(0));
        self.pack(counts, left)
    }

    /// Room in the empty group, without the last `left` segments.
    pub fn total(&self, left: u64) -> Room {
        self.pack(self.all_slots(), left)
    }

    /// Segments of the empty group.
    pub fn total_segments(&self) -> u64 {
        self.total_segments
    }

    /// Segments that are left alone by who may go down to `mark`.
    pub fn left(&self, mark: Watermark) -> u64 {
        mark.left(self.total_segments(), u64::from(self.slot_size) * self.rule.layout.k() as u64)
    }

    /// Room that is free above `mark`.
    pub fn free_above(&self, mark: Watermark) -> Room {
        self.pack(self.free_slots(), self.left(mark))
    }

    /// Bytes of nodes that all free slots above `mark` take.
    pub fn room_for_nodes(&self, mark: Watermark) -> u64 {
        let (layout, room) = (self.rule.layout, self.free_above(mark));
        let segments = match layout.r() {
            1 => self.slots_of(room) / layout.quorum() as u64,
            // Each takes all devices of parity.
            _ if layout.m() > 0 => room.segments,
            _ => room.columns,
        };
        segments * u64::from(self.slot_size)
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

    /// Slots in use and in all, over all devices, as far as segments can have them: without those that are bad, and
    /// those of large devices that the others are too small for.
    pub fn slots(&self) -> (u64, u64) {
        let bad = |device: DeviceIndex| {
            let of = self.bad.iter().filter(|(slot, is_taken)| slot.device == device && !**is_taken);
            of.count() as u64
        };
        let sound = self.slots.iter().map(|(&device, &count)| u64::from(count) - bad(device));
        let total = self.slots_of(self.pack(sound, 0));
        (total - self.slots_of(self.unused(0)).min(total), total)
    }

    /// Slots in use and in all, of whatever use they could be.
    pub fn all_slots_of_devices(&self) -> (u64, u64) {
        let bad = self.bad.values().filter(|is_taken| !**is_taken).count() as u64;
        let total = self.all_slots().sum::<u64>() - bad;
        (total - self.unused_slots().sum::<u64>(), total)
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

    /// Bytes of incompressible records of `record` bytes that `room` bytes of each data column of a layout take,
    /// with their share of metadata.
    pub fn writable(&self, layout: Layout, room: u64, record: u32) -> u64 {
        let per_column = records_in_column(layout, self.step(), room, record);
        per_column * layout.k() as u64 * u64::from(record)
    }

    /// Bytes of incompressible records of `record` bytes that a full-width segment takes.
    pub fn per_segment(&self, record: u32) -> u64 {
        self.writable(self.rule.layout, u64::from(self.slot_size - DESCRIPTOR_LEN), record)
    }

    /// Bytes of incompressible records of `record` bytes that so many data columns take.
    pub fn per_columns(&self, columns: u64, record: u32) -> u64 {
        columns * (self.per_segment(record) / self.rule.layout.k() as u64)
    }

    /// Bytes of incompressible records of `record` bytes that a user can write where so many data columns are free, and
    /// `dead` bytes of such come back by cleaning.
    pub fn available(&self, free: u64, dead: u64, record: u32) -> u64 {
        let layout = self.rule.layout;
        let data = self.per_segment(record);
        let columns = layout.columns() as u64;
        // Metadata takes slots on as many devices as it has copies; spread over all, that is its share.
        let raw = u64::from(self.slot_size) * columns;
        let metadata = data / u64::from(record) * RECORD_METADATA * layout.quorum() as u64;
        let footprint = u64::from(stripe::footprint_of_record(record));
        let won = u128::from(dead) * u128::from(record) / u128::from(footprint);
        let data = u128::from(self.per_columns(free, record)) + won;
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
    use crate::watermark::Watermark;
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
            let (layout, slots) = space.allocate(true, SegmentId::new(i)).unwrap();
            assert_eq!((layout, slots.len()), (space.rule.layout.replicated(), 3));
        }
        assert_eq!(space.free_segments(), 34);
    }

    /// The most data columns of any choice of segments: `n` of them take at most `n` slots of a device.
    fn most_columns(counts: &[u64], m: u64) -> u64 {
        let slots = |n: u64| counts.iter().map(|&count| count.min(n)).sum::<u64>();
        let possible = (0..=*counts.iter().max().unwrap()).filter(|&n| slots(n) >= (m + 1) * n);
        possible.map(|n| slots(n) - m * n).max().unwrap()
    }

    #[test]
    fn devices_of_all_sizes_are_used_as_far_as_any_choice_of_segments_can() {
        let rng = SeededEntropy::new(11);
        for mix in 0..300 {
            let m = 1 + rng.next_u64() % 3;
            let count = m + 1 + rng.next_u64() % 8;
            let sizes: Vec<u64> = (0..count).map(|_| 40 + rng.next_u64() % 400).collect();
            let rule = GroupRule {
                word: LayoutKind::Raidz,
                layout: Layout::new((count - m) as u8, 1, m as u8).unwrap(),
            };
            let devices: Vec<_> =
                (0u16..).map(DeviceIndex::new).zip(sizes.iter().map(|&size| size as u32)).collect();
            let mut space = GroupSpace::new(GroupIndex::new(0), rule, 1 << 20, 12, &devices);
            let (said, most) = (space.total(0), most_columns(&sizes, m));
            assert_eq!(said.columns, most, "mix {mix}: {sizes:?}, parity {m}");
            let (mut columns, mut segments) = (0, 0);
            while let Some((layout, slots)) = space.allocate(false, SegmentId::new(segments)) {
                let on: std::collections::BTreeSet<_> = slots.iter().map(|slot| slot.device).collect();
                assert_eq!((on.len(), layout.m() as u64), (layout.columns(), m), "each on its own device");
                columns += layout.k() as u64;
                segments += 1;
                let left = space.free_above(Watermark::Promised).columns;
                assert_eq!(columns + left, most, "mix {mix} after {segments}: {sizes:?}, parity {m}");
            }
            assert_eq!(columns, most, "mix {mix}: {sizes:?}, parity {m}");
        }
    }

    #[test]
    fn pairs_of_all_sizes_are_used_whole_as_far_as_parity_reaches() {
        for (m, most) in [(0, 100 + 60 + 300), (1, 60 + 100 + 150)] {
            let layout = Layout::new(3, 2, m).unwrap();
            let rule = GroupRule { word: LayoutKind::Raid10, layout };
            let sizes = [100, 120, 60, 60, 400, 300, 150];
            let devices: Vec<_> = (0u16..).map(DeviceIndex::new).zip(sizes).take(layout.columns()).collect();
            let mut space = GroupSpace::new(GroupIndex::new(0), rule, 1 << 20, 12, &devices);
            let said = space.total(0).columns;
            let (mut columns, mut id) = (0, 0);
            while let Some((layout, slots)) = space.allocate(false, SegmentId::new(id)) {
                let number = |column: usize| slots[column].device.get();
                for i in 0..layout.k() {
                    let [a, b] = [0, 1].map(|j| number(layout.replica(i, j)));
                    assert_eq!((a / 2, b), (b / 2, a + 1), "pairs stay together");
                }
                columns += layout.k() as u64;
                id += 1;
            }
            // Slots left to columns that move are taken when it is too late for parity.
            assert!((most - 2 * LEFT_TO_COLUMNS..=most).contains(&columns), "{columns} of {most}");
            assert_eq!(columns, said);
        }
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
        let (_, slots) = space.allocate(false, SegmentId::new(7)).unwrap();
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
        let (_, slots) = space.allocate(false, SegmentId::new(7)).unwrap();
        assert_eq!(space.free_segments(), 19);
        slots.iter().for_each(|&slot| space.give_back(slot));
        assert_eq!(space.free_segments(), 20);
        assert!(slots.iter().all(|&slot| space.take(slot) && !space.take(slot)));
    }
}
