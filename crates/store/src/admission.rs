//! Admission: who may take space, what is reserved for whom, and what is left.

use crate::core::Core;
use crate::headroom::Noted;
use crate::space::GroupSpace;
use crate::store::Store;
use crate::watermark::Watermark;
use larder_format::run::MAX_PLACES;
use std::sync::atomic::Ordering;

/// Divisor of the limits of dirty data and of stripes on their way while fsyncs wait for all of both.
const HURRIED_PART: u64 = 4;

/// Space as statfs wants it, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Capacity of the empty pool.
    pub size: u64,
    /// Used part of it.
    pub used: u64,
    /// Available part of it.
    pub available: u64,
}

impl Store {
    /// The most dirty bytes that writers may leave: less than the budget has for them when fsyncs wait for all of them.
    pub fn dirty_allowed(&self) -> u64 {
        self.in_a_hurry(self.cache.dirty_limit())
    }
    /// Bytes of stripes that may be on their way to devices.
    pub fn stripes_allowed(&self) -> u64 {
        self.in_a_hurry(self.cache.stripes_limit())
    }
    fn in_a_hurry(&self, limit: u64) -> u64 {
        if self.hurried.load(Ordering::Relaxed) { limit / HURRIED_PART } else { limit }
    }

    /// Bytes of nodes that the next commit has to store, before they are compressed.
    pub fn unsealed(&self) -> u64 {
        self.unsealed.load(Ordering::Relaxed).max(0) as u64
    }

    /// Space, for records of `record_size` bytes.
    pub fn space(&self, record_size: u32) -> Space {
        self.space_above(record_size, 1, Watermark::Available)
    }

    /// As [`Store::space`], all of so many places counted, for who may go down to `mark`.
    pub fn space_above(&self, record_size: u32, copies: u8, mark: Watermark) -> Space {
        self.space_in(&self.core.lock(), (record_size, copies), mark)
    }

    /// As [`Store::space_above`], with the core at hand.
    fn space_in(&self, core: &Core, (record_size, copies): (u32, u8), mark: Watermark) -> Space {
        let record = record_size.min(self.max_record());
        let mut space = Space::default();
        for group in core.record_groups() {
            let (layout, reserve) = (group.rule.layout, group.left(mark));
            space.size += group.per_columns(group.total(reserve).columns, record);
            let dead = core.entries.dead(group.index);
            let waiting = dead.waiting_in(layout);
            // The reserve has what waits first.
            let unused = group.unused(0).columns / layout.k() as u64;
            let spare = waiting.segments.saturating_sub(reserve);
            let free = group.unused(reserve.saturating_sub(waiting.segments)).columns
                + waiting.columns * spare / waiting.segments.max(1);
            // Space that the reserve lacks is not available, even where a segment is open for it.
            let lacks = reserve.saturating_sub(unused + waiting.segments) * group.per_segment(record);
            let there = core.room_of(group, free, dead.bytes_in(layout), (record, copies));
            space.available += there.saturating_sub(lacks);
        }
        space.available = space.available.saturating_sub(self.dirty.needed()).saturating_sub(core.withheld);
        space.size = space.size.max(space.available);
        space.used = space.size - space.available;
        space
    }

    /// Bytes of records of `record_size` that can be accepted before anything is cleaned.
    pub fn writable_now(&self, core: &Core, record_size: u32) -> u64 {
        let taken = self.dirty.needed() + core.footprint_of_nodes(self.unsealed());
        let record = record_size.min(self.max_record());
        core.storable(record, 1, Watermark::Accept).saturating_sub(taken)
    }

    /// Whether so much is free that neither is to be won back: `needed` bytes of AVAIL, `bytes` that can be written
    /// now.
    pub fn has_plenty(&self, needed: u64, bytes: u64, record_size: u32) -> bool {
        let waits = needed.max(bytes).saturating_add(self.dirty.needed());
        if self.headroom.holds(record_size, waits, self.unsealed()) {
            return true;
        }
        let core = self.core.lock();
        let plenty = !core.is_tight()
            && self.space_in(&core, (record_size, 1), Watermark::Available).available >= needed
            && self.writable_now(&core, record_size) >= bytes;
        if plenty {
            self.note_headroom(&core, record_size);
        }
        plenty
    }

    /// Notes what whole free segments have room for.
    fn note_headroom(&self, core: &Core, record_size: u32) {
        let record = record_size.min(self.max_record());
        let room = |group: &GroupSpace| {
            // Data is accepted below that as well.
            group.available(group.free_above(Watermark::Available).columns, 0, record)
        };
        self.headroom.note(Noted {
            record_size,
            records: core.record_groups().map(room).sum::<u64>().saturating_sub(core.withheld),
            nodes: core.room_for_nodes(),
            node_footprint: core.footprint_of_nodes(1),
        });
    }

    /// Bytes of records of `record_size` that lie side by side in the columns of a stripe: what is stored in multiples
    /// of that leaves no column short.
    pub fn abreast(&self, record_size: u32) -> u64 {
        let core = self.core.lock();
        let columns = core.record_groups().map(|group| group.rule.layout.k()).max().unwrap_or(1);
        columns as u64 * u64::from(record_size)
    }

    /// Up to this many accepted bytes can be stored at once, in records of `record_size`, all of so many places
    /// counted; more might fail and be stored for nothing.
    pub fn storable_now(&self, record_size: u32, copies: u8) -> u64 {
        let record = record_size.min(self.max_record());
        self.core.lock().storable(record, copies, Watermark::Store)
    }

    /// The same of one place more of records that have some, by the copy that it is of.
    pub fn storable_by_copy(&self, record_size: u32) -> [u64; MAX_PLACES] {
        self.core.lock().storable_by_copy(record_size.min(self.max_record()), Watermark::Store)
    }

    /// Bytes of dead blocks in segments that are kept for what else lives in them, over all columns:
    /// free space that only cleaning brings back.
    pub fn dead_space(&self) -> u64 {
        self.core.lock().entries.usages().map(|usage| usage.dead).sum()
    }
}
