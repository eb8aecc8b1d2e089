//! Healing by other places: blocks that cannot be read where a column is beyond repair, and can elsewhere.
//!
//! A stripe is final, and what it lacks is not known; so such a block is stored anew, and its place changes in the map,
//! as the cleaner would have it. Ranges do not say which blocks lie in them, and headers may be what was lost: the map
//! is gone through once for all of them. What it has there and nothing gives is lost, and is named by the walk that
//! comes after ([`crate::damage`]); where all is at other places by now, nothing is. Segments that blocks have left are
//! emptied then: neither does a scrub meet the stripe again, nor do its neighbours stay beside a bad sector.
//!
//! Blocks for which there is no room are *postponed*: when there is more, all of them are looked for again.
//!
//! # Crash
//! Segments keep their mark until the walk is over and nothing of them is postponed, and each block is at the old place
//! or the new one.

use larder_format::run::{MAX_PLACES, Marks, Places};
use larder_format::segment::SegmentKind;
use larder_format::{BlockId, BlockPtr, Place, SegmentId};
use larder_pool::ledger::Wanted;
use larder_pool::{Healed, Lost, Pool};
use larder_sorted::map::Location;
use larder_store::{PoolError, Result, RunIo};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

/// Entries of the map that a step looks at.
const ENTRIES: usize = 16 << 10;
/// Bytes of blocks that are healed together, at most.
const BYTES: u64 = 8 << 20;

/// A way through the map, and what was met on it.
pub(crate) struct Healing {
    /// Where to go on; nothing when all of the map was seen.
    next: Option<BlockId>,
    /// Blocks that were met and not looked at yet.
    met: Vec<(BlockId, Places)>,
    /// Places of blocks that nothing gives.
    lost: PlaceSet,
    /// Those of blocks for which there was no room.
    postponed: PlaceSet,
    /// Bytes that these take, by copy.
    short: [u64; MAX_PLACES],
    /// A page of the map cannot be read: what it says of is not known.
    is_partial: bool,
    /// Segments that blocks have left.
    left: BTreeSet<SegmentId>,
    /// Bytes stored anew.
    pub(crate) bytes: u64,
}

impl Healing {
    /// From the first block on.
    pub(crate) fn new() -> Self {
        Self {
            next: Some(BlockId::new(0)),
            met: Vec::new(),
            lost: PlaceSet::default(),
            postponed: PlaceSet::default(),
            short: [0; MAX_PLACES],
            is_partial: false,
            left: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Looks at some entries of the map, or at `effort` blocks; false when there is nothing more to do.
    ///
    /// # Errors
    /// When nothing may be written, or read for now.
    pub(crate) fn step(&mut self, pool: &Pool, wanted: &Wanted, effort: usize) -> Result<bool> {
        pool.store().check_writable()?;
        if !self.met.is_empty() {
            let mut bytes = 0;
            let within = |(_, places): &&(BlockId, Places)| {
                bytes += places.first().map_or(0, |place| u64::from(place.stored));
                bytes <= BYTES
            };
            let count = self.met.iter().rev().take(effort).take_while(within).count().max(1);
            let left = self.met.len() - count;
            self.heal(pool, wanted, left)?;
            self.met.truncate(left);
            return Ok(true);
        }
        if let Some(from) = self.next {
            self.next = self.look(pool, wanted, from)?;
            return Ok(true);
        }
        while let Some(&id) = self.left.first() {
            let stays = self.lost.has_of(id) || self.postponed.has_of(id);
            if !stays && pool.empty_segment(id)? {
                return Ok(true);
            }
            self.left.remove(&id);
        }
        Ok(false)
    }

    /// Looks for blocks where something is lost.
    fn look(&mut self, pool: &Pool, wanted: &Wanted, from: BlockId) -> Result<Option<BlockId>> {
        let window = pool.store().map.lock().window(from, ENTRIES);
        let (mut left, is_partial) = (ENTRIES, Cell::new(false));
        let is_lost = |error: &PoolError| {
            is_partial.set(is_partial.get() || error.is_loss());
            error.is_loss()
        };
        let next = window.visit_past(&RunIo::new(pool.store()), is_lost, |id, entry| {
            if let Location::Places(places) = entry.location
                && (!entry.marks.contains(Marks::DEAD) || entry.marks.contains(Marks::SHARED))
                && places.iter().any(|&place| wanted.meets(id, place))
            {
                self.met.push((id, places));
            }
            left -= 1;
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        self.is_partial |= is_partial.get();
        Ok(next)
    }

    /// Heals the blocks that were met from this one on, all together.
    fn heal(&mut self, pool: &Pool, wanted: &Wanted, from: usize) -> Result<()> {
        let mut unsound = Vec::new();
        for (id, places) in &self.met[from..] {
            let mut bad = Vec::new();
            for &place in places.iter().filter(|&&place| wanted.meets(*id, place)) {
                match pool.store().read_at(BlockPtr { id: *id, place }) {
                    Err(error) if error.is_loss() => bad.push(place),
                    read => drop(read?),
                }
            }
            if !bad.is_empty() {
                unsound.push((*id, bad));
            }
        }
        // Nothing is lost for a device that does not answer now.
        if let Some(silent) = pool.store().silence().filter(|_| !unsound.is_empty()) {
            return Err(silent);
        }
        if unsound.is_empty() {
            return Ok(());
        }
        for ((_, bad), healed) in unsound.iter().zip(pool.heal_blocks(&unsound)?) {
            match healed {
                Healed::Stored(bytes) => {
                    self.bytes += bytes;
                    self.left.extend(bad.iter().map(|place| place.segment));
                }
                Healed::Lost => bad.iter().for_each(|place| self.lost.insert(place)),
                Healed::NoRoom => self.postpone(pool, bad),
            }
        }
        Ok(())
    }

    /// Places for which there was no room.
    fn postpone(&mut self, pool: &Pool, places: &[Place]) {
        let entries = &pool.store().core.lock().entries;
        for place in places {
            self.postponed.insert(place);
            let copy = entries.get(&place.segment).map_or(0, |entry| usize::from(entry.segment.copy));
            if let Some(short) = self.short.get_mut(copy) {
                *short += u64::from(place.footprint());
            }
        }
    }

    /// Whether nothing is lost of a range after all: each block that lay there is elsewhere. It must be one of those
    /// that were gone through.
    pub(crate) fn has_healed(&self, pool: &Pool, lost: &Lost) -> bool {
        let is_of_blocks = pool.store().core.lock().entries.get(&lost.segment).is_none_or(|entry| {
            matches!(entry.segment.kind, SegmentKind::Data | SegmentKind::Small | SegmentKind::Node)
        });
        is_of_blocks && !self.is_partial && !self.lost.meets(lost) && !self.postponed.meets(lost)
    }

    /// Those of the ranges that have something for which there was no room, and the bytes that it takes, by copy.
    pub(crate) fn postponed(&self, wanted: &Wanted) -> (Vec<Lost>, [u64; MAX_PLACES]) {
        let each = |(&(segment, column), ranges): (&(SegmentId, u8), &Vec<Range<u32>>)| {
            let lost = move |range: &Range<u32>| Lost { segment, column, range: range.clone() };
            ranges.iter().map(lost).collect::<Vec<_>>()
        };
        let ranges = wanted.ranges.iter().flat_map(each).filter(|lost| self.postponed.meets(lost)).collect();
        (ranges, self.short)
    }
}

/// Places of blocks, none of which overlap: by segment, column and offset, with the end.
#[derive(Default)]
struct PlaceSet(BTreeSet<(SegmentId, u8, u32, u32)>);

impl PlaceSet {
    fn insert(&mut self, place: &Place) {
        self.0.insert((place.segment, place.column, place.offset, place.offset + place.stored));
    }

    /// Whether one lies in a range, or partly.
    fn meets(&self, lost: &Lost) -> bool {
        let before = (lost.segment, lost.column, 0, 0)..(lost.segment, lost.column, lost.range.end, 0);
        self.0.range(before).next_back().is_some_and(|(.., end)| *end > lost.range.start)
    }

    fn has_of(&self, id: SegmentId) -> bool {
        self.0.range((id, 0, 0, 0)..=(id, u8::MAX, u32::MAX, u32::MAX)).next().is_some()
    }
}
