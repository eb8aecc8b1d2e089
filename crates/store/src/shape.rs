//! Shape of groups: whether what is stored fits another one, and which segments would gain from being written anew in
//! the present one.
//!
//! Segments are as wide as devices had free slots when they were opened. So after a group got devices the old ones are
//! narrower, and where groups were added the old ones are fuller. Nothing of that has to change; writing such *poor*
//! segments anew gains room, and spreads reads and writes over all devices.

use crate::core::Core;
use crate::error::Result;
use crate::refusal::Refusal;
use crate::segments::{ColumnSlot, SegmentEntry};
use crate::space::GroupSpace;
use crate::store::Store;
use crate::watermark::Watermark;
use larder_format::segment::{SegmentKind, SegmentState};
use larder_format::{GroupIndex, SegmentId};
use std::collections::BTreeMap;

/// Parts of a group's space by which it may be fuller than the average of all.
const UNEVEN: u64 = 100;
/// Parts of what is stored that have to be free besides, for its shape to change.
const SPARE: u64 = 50;

/// Bytes of data columns that what lives in a segment takes in a group of this shape.
fn needed(entry: &SegmentEntry, of: &GroupSpace) -> u64 {
    let layout = of.rule.layout;
    match entry.segment.kind {
        SegmentKind::Data => entry.live_bytes,
        _ => (entry.live_bytes * (layout.quorum() * layout.k()) as u64).div_ceil(layout.columns() as u64),
    }
}

impl GroupSpace {
    /// Bytes of data columns of the empty group, without the reserve.
    fn capacity(&self) -> u64 {
        self.total(self.left(Watermark::Available)).columns * u64::from(self.slot_size)
    }

    /// Bytes of data columns of a segment of full width.
    pub fn capacity_of_one(&self) -> u64 {
        self.rule.layout.k() as u64 * u64::from(self.slot_size)
    }
}

impl Core {
    /// Bytes by which a group of records is fuller than it would be if all were as full, if that is too much.
    fn excess(&self, group: &GroupSpace) -> Option<u64> {
        let used = |of: &GroupSpace| {
            let waiting = self.entries.dead(of.index).waiting_in(of.rule.layout).columns;
            let (free, total) = (of.unused(0).columns + waiting, of.total(0).columns);
            let bytes = |columns: u64| u128::from(columns) * u128::from(of.slot_size);
            (bytes(total.saturating_sub(free)), bytes(total))
        };
        let sum = self.record_groups().map(used).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        let (mine, size) = used(group);
        let excess = mine.checked_sub(sum.0 * size / sum.1.max(1))?;
        (excess * u128::from(UNEVEN) > size).then(|| u64::try_from(excess).unwrap_or(u64::MAX))
    }

    /// Whether a segment could be written anew, and was opened before `below`.
    fn is_old(&self, entry: &SegmentEntry, below: SegmentId) -> bool {
        entry.segment.id < below
            && entry.is_complete()
            && entry.segment.kind == SegmentKind::Data
            // Its last stripes are where they belong, and the map knows of them.
            && entry.filled < self.open_commit
            && !entry.damaged
            && entry.live_blocks > 0
    }

    /// Data columns that a segment of each group of records would have, and whether the group is too full.
    fn widths(&self) -> Vec<(GroupIndex, usize, bool)> {
        let width = |group: &GroupSpace| {
            let left = group.left(Watermark::Changes);
            (group.index, group.width(left), self.excess(group).is_some())
        };
        self.record_groups().map(width).collect()
    }

    /// Of the segments that were opened before `below`, the one that is narrowest beside what it would be now; else the
    /// oldest of a group that is fuller than others.
    pub fn poor(&self, below: SegmentId) -> Option<SegmentId> {
        let widths = self.widths();
        let of = |group: GroupIndex| widths.iter().find(|(index, ..)| *index == group);
        let mut best: Option<((bool, usize), SegmentId)> = None;
        for entry in self.entries.values().filter(|entry| self.is_old(entry, below)) {
            let Some((_, width, is_full)) = of(entry.segment.group) else { continue };
            let is_narrow = entry.segment.layout.k() < *width;
            let rank = (!is_narrow, if is_narrow { entry.segment.layout.k() } else { 0 });
            if (is_narrow || *is_full) && best.is_none_or(|(best, _)| rank < best) {
                best = Some((rank, entry.segment.id));
            }
        }
        best.map(|(_, id)| id)
    }

    /// A group has another shape from now on: what is open there is closed, for what follows is to be of that, and what
    /// does not fit it is looked at. With the gate closed.
    pub fn change_shape(&mut self, group: GroupIndex, change: impl FnOnce(&mut GroupSpace)) {
        if let Some(space) = self.groups.change(group) {
            change(space);
        }
        self.close_streams(group);
        (self.reshaping, self.misfits) = (true, None);
        self.withhold();
    }

    /// Segments that do not fit the shape of their groups.
    pub fn misfits(&self) -> impl Iterator<Item = &SegmentEntry> + '_ {
        let known = self.misfits.iter().flatten().filter_map(|id| self.entries.get(id));
        known.filter(|entry| self.reshaping && !self.fits(entry.segment.id))
    }

    /// Looks at segments that do not fit the shape of their group, if there may be some: what they take elsewhere,
    /// beyond what they leave, is not available to anybody else.
    pub fn withhold(&mut self) {
        if !self.reshaping {
            return;
        }
        // A shape changes in one place, and what is opened fits it: those that do not fit become fewer.
        let known = self.misfits.take();
        let known: Vec<SegmentId> = match known {
            Some(known) => known.into_iter().filter(|id| !self.fits(*id)).collect(),
            None => self.entries.select(|entry| !self.groups[&entry.segment.group].fits(&entry.segment)),
        };
        debug_assert_eq!(known, self.entries.select(|entry| !self.fits(entry.segment.id)));
        let mut withheld = 0;
        let elsewhere = self.record_groups().next();
        for id in &known {
            let entry = &self.entries[id];
            let own = &self.groups[&entry.segment.group];
            let Some(of) = Some(own).filter(|own| !own.leaving).or(elsewhere) else { continue };
            let (layout, segment) = (own.rule.layout, &entry.segment);
            let stays = |slot: &&ColumnSlot| !own.leaving && own.has(slot.device);
            let staying = (segment.slots.iter().filter(stays).count() * layout.k()) as u64;
            let (columns, slot) = (layout.columns() as u64, u64::from(own.slot_size));
            let is_empty = entry.state == SegmentState::Freed || entry.live_blocks == 0;
            // As what is dead, and what waits to be free, is counted for AVAIL.
            let (taken, returned) = match is_empty {
                true if segment.kind == SegmentKind::Data => {
                    (segment.layout.k() as u64 * slot, staying * slot / columns)
                }
                true => {
                    ((segment.slots.len() * layout.k()) as u64 * slot / columns, staying * slot / columns)
                }
                false => {
                    let all = entry.live_bytes + entry.dead_bytes();
                    let of_all = segment.layout.k() as u64 * columns;
                    (needed(entry, of) + entry.dead_bytes(), all * staying / of_all)
                }
            };
            // Records that lay with metadata may have to go to data, and leave room there to nobody.
            let is_guest =
                matches!(segment.kind, SegmentKind::Data | SegmentKind::Small) && !own.has_records();
            let returned = if is_guest && own.leaving { 0 } else { returned };
            if own.is_vital() {
                withheld += taken.saturating_sub(returned);
            }
        }
        (self.withheld, self.reshaping) = (withheld, !known.is_empty());
        self.misfits = Some(known.into_iter().collect());
        self.groups.forget_headroom();
    }

    /// Bytes that live in segments of which [`Core::poor`] would choose one.
    pub fn poor_bytes(&self, below: SegmentId) -> u64 {
        let widths = self.widths();
        let of_group = |&(index, width, is_full): &(GroupIndex, usize, bool)| {
            let (mut narrow, mut other) = (0, 0);
            let of = self.entries.values().filter(|entry| entry.segment.group == index);
            for entry in of.filter(|entry| self.is_old(entry, below)) {
                match entry.segment.layout.k() < width {
                    true => narrow += entry.live_bytes,
                    false => other += entry.live_bytes,
                }
            }
            let excess = self.excess(&self.groups[&index]).filter(|_| is_full).unwrap_or(0);
            narrow + other.min(excess)
        };
        widths.iter().map(of_group).sum()
    }
}

impl Store {
    /// Refuses a shape of group `index` into which what is stored does not fit; none: the group is to go.
    ///
    /// # Errors
    /// [`Refusal::NoRoomFor`] with the figures.
    pub fn check_room(&self, index: GroupIndex, instead: Option<&GroupSpace>) -> Result<()> {
        let (needed, has) = self.room_with(index, instead);
        let needed = needed + needed / SPARE;
        if needed > has {
            return Err(Refusal::NoRoomFor { needed, has }.into());
        }
        Ok(())
    }

    /// Bytes of data columns that what is stored takes, and that there are, with this group instead of the one of its
    /// number; without it, if there is none.
    pub fn room_with(&self, index: GroupIndex, instead: Option<&GroupSpace>) -> (u64, u64) {
        let core = self.core.lock();
        let others = core.record_groups().filter(|group| group.index != index);
        let groups: Vec<&GroupSpace> = others.chain(instead.filter(|of| of.has_records())).collect();
        let Some(first) = groups.first() else { return (u64::MAX / 2, 0) };
        let of = |entry: &SegmentEntry| {
            let place = groups.iter().find(|group| group.index == entry.segment.group);
            needed(entry, place.unwrap_or(first))
        };
        // Metadata that has devices of its own stays there.
        let stays = |entry: &&SegmentEntry| {
            let own = &core.groups[&entry.segment.group];
            own.is_vital() && (own.has_records() || own.leaving || own.index == index)
        };
        let needed: u64 = core.entries.values().filter(stays).map(of).sum();
        (needed + self.dirty.needed(), groups.iter().map(|group| group.capacity()).sum())
    }

    /// Bytes of records of `record_size` that the empty pool would take with this group instead of the one of its
    /// number; without it, if there is none.
    pub fn size_with(&self, record_size: u32, index: GroupIndex, instead: Option<&GroupSpace>) -> u64 {
        let core = self.core.lock();
        let record = record_size.min(self.max_record());
        let of = |group: &GroupSpace| {
            group.per_columns(group.total(group.left(Watermark::Available)).columns, record)
        };
        let others = core.record_groups().filter(|group| group.index != index);
        others.chain(instead.filter(|of| of.has_records())).map(of).sum()
    }

    /// Bytes of records of `record_size` that could be written at once, beyond what can be now, if group `after` were
    /// as it is given.
    pub fn gain_at_once(&self, record_size: u32, after: &GroupSpace) -> u64 {
        let core = self.core.lock();
        let record = record_size.min(self.max_record());
        let of = |group: &GroupSpace| {
            group.per_columns(group.unused(group.left(Watermark::Available)).columns, record)
        };
        of(after).saturating_sub(core.groups.get(&after.index).map_or(0, of))
    }

    /// Bytes that a rebalance would add to AVAIL, in records of `record_size`; an estimate.
    pub fn gain(&self, record_size: u32) -> u64 {
        let core = self.core.lock();
        let record = record_size.min(self.max_record());
        let of = |group: &GroupSpace| {
            let (left, layout) = (group.left(Watermark::Available), group.rule.layout);
            let (mut columns, mut bytes, mut waiting) = (0, 0, BTreeMap::new());
            for entry in core.entries.values().filter(|entry| entry.segment.group == group.index) {
                if entry.state == SegmentState::Freed || entry.is_complete() && entry.live_blocks == 0 {
                    entry.segment.slots.iter().for_each(|slot| *waiting.entry(slot.device).or_default() += 1);
                    continue;
                }
                let is_narrow =
                    entry.segment.kind == SegmentKind::Data && entry.segment.layout.k() < layout.k();
                match is_narrow && entry.is_complete() {
                    true => bytes += entry.live_bytes,
                    // Copies that take all devices of parity take a whole row.
                    false if layout.r() > 1 && layout.m() > 0 => columns += layout.k() * layout.columns(),
                    false => columns += entry.segment.slots.len() * layout.k(),
                }
            }
            let columns = (columns / layout.columns()) as u64 + bytes.div_ceil(u64::from(group.slot_size));
            let ideal = group.total(left).columns.saturating_sub(columns);
            group.per_columns(ideal.saturating_sub(group.unused_with(&waiting, left).columns), record)
        };
        core.record_groups().filter(|group| group.narrow).map(of).sum()
    }
}
