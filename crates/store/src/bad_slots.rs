//! Places of a device that take no writes, and what is done about them: the slot is retired.
//!
//! A write that a device refuses with an error of its own (it is there, and its file system is not full) says that
//! this place is bad, or that the device is. So the segment's column is brought to another slot of the same device,
//! which tells the two apart: where that slot takes it, the old one is *retired*, and nobody gets it any more; where
//! several one after the other do not, it is the device that is faulted, and so it is when many slots were retired
//! since it was opened or cleared. Places name segments and columns, never slots: a column that moves changes one
//! number in the segment's record.
//!
//! # A column that moves
//! The other slot gets a descriptor and a copy of all that can be read of the old one. A device that goes out of use
//! over this keeps its column where it is. Then the number is changed, in memory. A stripe that is written beside the
//! move, which the copy may lack, waits for it, and is written again if it went to the old slot ([`crate::write`]); a
//! reconstruction that had begun is begun anew ([`Segment::moves`]). What could not be read is reconstructed
//! afterwards. Who stands for the device has the same numbers, so its column moves along. Of the two, one that is away
//! then would look for old stripes in a slot that it never wrote, and a resilver brings only what is younger than its
//! absence: it is noted to hold nothing.
//!
//! Columns of the log stay once a root names them: import looks for what was synced there. Their slots are retired
//! all the same, and the log goes on in other segments with the next commit.
//!
//! # Crash
//! The old slot holds what it held, and is nobody's, until a root names the new one. Stripes are waited for after the
//! tables of a commit were written, so the root itself names segments that have moved since
//! ([`Store::tell_of_moves`]); the next commit puts them into the tables. A retired slot is in the tables from the next
//! commit on; before, it would be found bad once more.
//!
//! # Locks
//! The turn is held while a column moves, and nothing but the core is taken under it; what is known is innermost. The
//! boundary at which members change holds it as well: a column comes to all who are written, or moves after that.

use crate::bad_slot_table::Retired;
use crate::error::Result;
use crate::events::{Class, Event};
use crate::member::{Member, Written};
use crate::read::TableNodes;
use crate::segments::Segment;
use crate::store::Store;
use larder_device::{ALIGN, AlignedBuf, DeviceError};
use larder_format::root::Root;
use larder_format::segment::{DESCRIPTOR_LEN, SegmentKind, SegmentRecord, Slot, encode_descriptor};
use larder_format::tables::{BadSlotRecord, Table};
use larder_format::{DeviceGuid, DeviceIndex, SegmentId, SlotIndex};
use larder_mutants::{Mutant, mutated};
use larder_sorted::tree::Tree;
use larder_sync::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;

/// Other slots that are tried before it is the device that is at fault.
const TRIES: usize = 2;
/// Bytes copied at once.
const CHUNK: u32 = 1 << 20;
/// Of a chunk that cannot be read, pieces at first; of these, sectors.
const PIECE: u32 = 64 << 10;

impl Store {
    /// Slots that are out of use since a write to them was refused, with what is known of that.
    pub fn bad_slots(&self) -> Vec<(Slot, BadSlotRecord)> {
        self.bad_slots.known.lock().slots.iter().map(|(slot, record)| (*slot, *record)).collect()
    }

    /// Number of a device's bad slots.
    pub fn count_bad_slots(&self, device: DeviceGuid) -> u64 {
        self.bad_slots.known.lock().slots.values().filter(|record| record.device == device).count() as u64
    }

    /// No column moves to another slot until this is dropped.
    pub fn hold_columns(&self) -> MutexGuard<'_, ()> {
        self.bad_slots.turn.lock()
    }

    /// `member` refused a write to slot `refused`, of column `column`: the slot is retired, and the column goes
    /// elsewhere.
    pub fn retire_slot(
        &self,
        segment: &Segment,
        column: usize,
        refused: SlotIndex,
        member: &Member,
        error: &DeviceError,
    ) -> Retired {
        let _one_at_a_time = self.bad_slots.turn.lock();
        let slot = segment.slots[column].get();
        if slot.index != refused {
            return Retired::Moved;
        }
        // A device that is out of use by now takes no column elsewhere.
        if !member.is_written() || !member.may_refuse() {
            return Retired::Failed;
        }
        if segment.kind == SegmentKind::Log && segment.birth <= self.durable_commit() {
            self.note_bad_slot(segment, slot, member, error, false);
            return Retired::Noted;
        }
        segment.begin_move();
        let moved = self.move_column(segment, column, slot, member, error);
        segment.end_move();
        if moved { Retired::Moved } else { Retired::Failed }
    }

    fn move_column(
        &self,
        segment: &Segment,
        column: usize,
        old: Slot,
        member: &Member,
        error: &DeviceError,
    ) -> bool {
        // One that is out of use gets nothing.
        let (written, others): (Vec<_>, Vec<_>) =
            self.members.writers(old.device).partition(|writer| writer.is_written());
        // It would be used again as it is.
        if others.iter().any(|other| other.is_unharmed()) {
            return false;
        }
        let mut tried = Vec::new();
        let mut found = None;
        while tried.len() < TRIES && found.is_none() {
            let height = {
                let mut core = self.core.lock();
                let height = core.entries.get(&segment.id).map_or(DESCRIPTOR_LEN, |entry| entry.height);
                let space = core.groups.change(segment.group).expect("a segment's group exists");
                let Some(index) = space.take_any(old.device) else { break };
                tried.push(Slot { index, ..old });
                height
            };
            let new = tried[tried.len() - 1];
            found = self.copy_column(segment, column, new, height, &written).then_some(new);
        }
        {
            let mut core = self.core.lock();
            let space = core.groups.change(segment.group).expect("a segment's group exists");
            tried.iter().filter(|&&slot| Some(slot) != found).for_each(|&slot| space.give_back(slot));
            let Some(new) = found else { return false };
            segment.slots[column].set(new.index);
            others.iter().for_each(|other| other.holds_nothing(self.durable_commit()));
            self.bad_slots.known.lock().moved.insert(segment.id);
            core.entries.change(segment.id, |entry| entry.dirty = true);
        }
        self.note_bad_slot(segment, old, member, error, true);
        let mut core = self.core.lock();
        core.groups.change(segment.group).expect("a segment's group exists").give_back(old);
        true
    }

    /// Brings a column to another slot, as far as it can be read, on all that were `written`; false when one of them
    /// refuses, or goes out of use meanwhile. It is on stable storage then: the device could go before the
    /// commit's flush, and come back without what was there for long.
    fn copy_column(
        &self,
        segment: &Segment,
        column: usize,
        new: Slot,
        height: u32,
        written: &[Arc<Member>],
    ) -> bool {
        let mut record = segment.as_opened();
        record.slots[column] = new;
        let old = segment.slots[column].index();
        let descriptor = Arc::new(AlignedBuf::padded(&encode_descriptor(&self.sums, &record, column)));
        for member in written {
            let put = |offset, data| {
                let write = member.write(member.slot_offset(new.index, offset), data);
                member.complete_write(write) == Written::Done
            };
            let copy = Copying { member, old, spares_late: self.has_others(segment, column) };
            let mut unread = false;
            let copied = put(0, Arc::clone(&descriptor))
                && (DESCRIPTOR_LEN..height).step_by(CHUNK as usize).all(|start| {
                    let range = start..height.min(start + CHUNK);
                    copy.range(range, &mut unread, &put)
                })
                && member.complete_flush(member.flush());
            if !copied {
                return false;
            }
            if unread {
                self.suspects.note_segment(segment.id);
            }
        }
        true
    }

    /// Whether all of a column can be had without it.
    fn has_others(&self, segment: &Segment, column: usize) -> bool {
        let is_online = |at: usize| self.members.get(segment.slots[at].device).is_online();
        segment.layout.survives(|at| at == column || !is_online(at))
    }

    fn note_bad_slot(
        &self,
        segment: &Segment,
        slot: Slot,
        member: &Member,
        error: &DeviceError,
        proven: bool,
    ) {
        let mut core = self.core.lock();
        core.groups.change(segment.group).expect("a segment's group exists").set_bad(slot);
        let mut known = self.bad_slots.known.lock();
        let errno = if let DeviceError::Io { errno } = error { errno.unsigned_abs() } else { 0 };
        let new = || BadSlotRecord { device: member.guid, time: self.world.clock.now(), errno, errors: 0 };
        let record = known.slots.entry(slot).or_insert_with(new);
        record.errors = record.errors.saturating_add(1);
        known.removed.remove(&slot);
        known.retired.insert(slot, core.open_commit);
        *known.unsaved.entry(slot).or_default() |= proven;
        drop((core, known));
        let text = format!("slot {} is retired: a write failed: {error}", slot.index);
        self.event(Event::new(Class::SlotRetired).device(member.guid, member.name()).text(text));
    }

    /// A root whose stripes have all landed gets the slots of now, of segments that it names itself and of those that
    /// were brought elsewhere since the tables were written.
    pub fn tell_of_moves(&self, root: &mut Root, tables: &Mutex<Tree>) -> Result<()> {
        root.segments.retain(|record| record.kind.is_rooted());
        let moved = self.bad_slots.known.lock().moved.clone();
        if moved.is_empty() || mutated(Mutant::SlotMoveNotTold) {
            return Ok(());
        }
        let tables = tables.lock();
        for &id in &moved {
            if let Some(record) = tables.get(&TableNodes(self), &Table::segment_key(id))? {
                root.segments.push(SegmentRecord::decode(&record)?.0);
            }
        }
        let core = self.core.lock();
        for record in root.segments.iter_mut().filter(|record| moved.contains(&record.id)) {
            if let Some(entry) = core.entries.get(&record.id) {
                record.slots = entry.segment.slots();
            }
        }
        Ok(())
    }

    /// The tables are about to have a segment as it is. With the core locked.
    pub fn move_is_told(&self, id: SegmentId) {
        self.bad_slots.known.lock().moved.remove(&id);
    }

    /// The tables do not have a segment where it is.
    pub fn move_is_untold(&self, id: SegmentId) {
        self.core.lock().entries.change(id, |entry| entry.dirty = true);
        self.bad_slots.known.lock().moved.insert(id);
    }

    /// Import: the tables have this entry. What says nothing, of a device that is not there any more, goes.
    pub fn adopt_bad_slot(&self, entry: u64, value: &[u8]) {
        let Some(slot) = Table::bad_slot(entry) else { return };
        if let Ok(record) = BadSlotRecord::decode(value) {
            self.bad_slots.known.lock().slots.insert(slot, record);
        }
    }

    /// Import: what the tables say of slots holds from here on.
    pub fn retire_known_slots(&self) {
        self.pardon_strangers();
        let mut core = self.core.lock();
        for (slot, _) in self.bad_slots() {
            let group = self.members.get(slot.device).group;
            core.groups.change(group).into_iter().for_each(|space| space.set_bad(slot));
        }
    }

    /// Slots that a device refused which is a member no more, nor stands for one, are as good as any: as soon as no
    /// root that can still be imported names them, for the device that came in its place has the same numbers.
    pub fn pardon_strangers(&self) {
        let durable = self.durable_commit();
        let named = {
            let mut known = self.bad_slots.known.lock();
            known.retired.retain(|_, commit| commit.get() + 2 > durable.get());
            known.retired.clone()
        };
        let is_member = |slot: &Slot, record: &BadSlotRecord| {
            self.members.has(slot.device)
                && self
                    .members
                    .writers(slot.device)
                    .any(|member| member.guid == record.device && slot.index.get() < member.slot_count())
        };
        self.pardon(|slot, record, _| !named.contains_key(slot) && !is_member(slot, record));
    }

    /// Slots are used again that `is_free` of blame, by their records and whether another slot of the device took what
    /// this one refused.
    fn pardon(&self, is_free: impl Fn(&Slot, &BadSlotRecord, Option<bool>) -> bool) {
        let mut core = self.core.lock();
        let mut known = self.bad_slots.known.lock();
        let known = &mut *known;
        known.slots.retain(|slot, record| {
            if !is_free(slot, record, known.unsaved.get(slot).copied()) {
                return true;
            }
            known.unsaved.remove(slot);
            known.removed.insert(*slot);
            if let Some(group) = self.members.has(slot.device).then(|| self.members.get(slot.device).group) {
                core.groups.change(group).into_iter().for_each(|space| space.pardon(*slot));
            }
            false
        });
    }

    /// Part of a commit: new entries go into the tables. Those that cannot be written wait.
    pub fn seal_bad_slots(&self, tables: &mut Tree) {
        // Refusals of a device that was faulted since are no evidence against single slots.
        let is_written = |guid| self.members.iter().any(|member| member.guid == guid && member.is_written());
        self.pardon(|_, record, proven| proven == Some(false) && !is_written(record.device));
        self.pardon_strangers();
        let (unsaved, removed) = {
            let known = self.bad_slots.known.lock();
            let of = |slot: &Slot| (*slot, known.slots[slot]);
            (known.unsaved.keys().map(of).collect::<Vec<_>>(), known.removed.clone())
        };
        for (slot, record) in unsaved {
            let key = Table::bad_slot_key(slot);
            if tables.insert(&TableNodes(self), key, &record.encode()).is_ok() {
                self.bad_slots.known.lock().unsaved.remove(&slot);
            }
        }
        for slot in removed {
            if tables.remove(&TableNodes(self), &Table::bad_slot_key(slot)).is_ok() {
                self.bad_slots.known.lock().removed.remove(&slot);
            }
        }
    }
}

/// A slot of a member that is copied.
struct Copying<'a> {
    member: &'a Member,
    old: SlotIndex,
    /// Reads that are not answered in time are done without: others have the same.
    spares_late: bool,
}

impl Copying<'_> {
    /// Copies a range, without the sectors that cannot be read; false when the other slot refuses it, or the device
    /// does not say what is here.
    fn range(
        &self,
        range: Range<u32>,
        unread: &mut bool,
        put: &impl Fn(u32, Arc<AlignedBuf>) -> bool,
    ) -> bool {
        let member = self.member;
        match member.read_back(member.slot_offset(self.old, range.start), range.len()) {
            Some(Ok(bytes)) => put(range.start, Arc::new(bytes)),
            None | Some(Err(DeviceError::Gone)) => false,
            // Nobody waits for its pieces.
            Some(Err(DeviceError::Overdue)) => {
                *unread = true;
                self.spares_late
            }
            Some(Err(_)) if range.len() <= ALIGN => {
                *unread = true;
                true
            }
            Some(Err(_)) => {
                let piece = if range.len() as u32 > PIECE { PIECE } else { ALIGN as u32 };
                range
                    .clone()
                    .step_by(piece as usize)
                    .all(|start| self.range(start..range.end.min(start + piece), unread, put))
            }
        }
    }
}

/// Whether a descriptor is that of a column: what it says of the slots of others may be older.
pub fn is_same_descriptor(found: &SegmentRecord, right: &SegmentRecord, column: usize) -> bool {
    let devices = |record: &SegmentRecord| -> Vec<DeviceIndex> {
        record.slots.iter().map(|slot| slot.device).collect()
    };
    found.slots.get(column) == right.slots.get(column)
        && devices(found) == devices(right)
        && SegmentRecord { slots: right.slots.clone(), ..found.clone() } == *right
}
