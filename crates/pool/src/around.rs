//! Reading around: many small blocks for one request.
//!
//! Blocks lie in the order in which they were written, so the files of a folder, and the nodes that name
//! them, are neighbours on the devices. Who reads one small block and then another near it will want those
//! between: the second miss near an earlier one reads a whole window of its column, and every record and
//! node in it that is sound goes into the cache. Blocks tell by themselves what they are; one that is dead
//! does no harm there, since its id is never used again.
//!
//! Reads at random miss far from each other: each brings just its block. Who asks for several records at
//! once ([`Pool::prefetch`]) has neighbours fetched together as well.

use crate::cache::Record;
use crate::pool::Pool;
use crate::read::{decode_node, plain_of};
use crate::segments::Segment;
use bytes::Bytes;
use larder_device::ALIGN;
use larder_format::block::{self, BLOCK_MAGIC, BlockKind, CheckedHeader};
use larder_format::{BLOCK_STEP, BlockId, BlockPtr, Place, SegmentId};
use larder_sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Stored bytes of a block that counts as small.
pub(crate) const SMALL: u32 = 32 << 10;
/// Bytes of a column that are read at once; a multiple of [`ALIGN`].
const WINDOW: u32 = 64 << 10;
/// Misses in one column that are no further apart than this belong together.
const NEAR: u32 = 128 << 10;
/// Misses that are remembered: so many readers may go on side by side.
const MISSES: usize = 16;
/// Bytes between two wanted blocks that are read along rather than asked for twice.
const GAP: u32 = 16 << 10;

/// Where small blocks were missed of late.
#[derive(Default)]
pub(crate) struct Misses(Mutex<VecDeque<(SegmentId, u8, u32)>>);

impl Misses {
    /// Notes a miss; tells whether there was one near it.
    fn note(&self, place: Place) -> bool {
        let mut misses = self.0.lock();
        let near = misses.iter().position(|&(segment, column, offset)| {
            (segment, column) == (place.segment, place.column) && offset.abs_diff(place.offset) <= NEAR
        });
        match near {
            Some(at) => drop(misses.remove(at)),
            None => misses.truncate(MISSES - 1),
        }
        misses.push_front((place.segment, place.column, place.offset));
        near.is_some()
    }
}

/// A block that is wanted, and where to read it.
pub(crate) struct Wanted {
    pub id: BlockId,
    pub segment: Arc<Segment>,
    pub replica: usize,
    pub place: Place,
}

/// Puts neighbours among small blocks together; each list is for one read.
pub(crate) fn gather(mut wanted: Vec<Wanted>) -> Vec<Vec<Wanted>> {
    wanted.sort_by_key(|one| (one.place.segment, one.replica, one.place.offset));
    let mut spans: Vec<Vec<Wanted>> = Vec::new();
    for next in wanted {
        let end = next.place.offset + next.place.stored;
        let fits = spans.last().is_some_and(|span| {
            let (first, last) = (&span[0], &span[span.len() - 1]);
            let reached = last.place.offset + last.place.stored;
            (first.segment.id, first.replica) == (next.segment.id, next.replica)
                && first.place.stored.max(next.place.stored) <= SMALL
                && next.place.offset.saturating_sub(reached) <= GAP
                && end - first.place.offset <= WINDOW
        });
        match spans.last_mut().filter(|_| fits) {
            Some(span) => span.push(next),
            None => spans.push(vec![next]),
        }
    }
    spans
}

/// The place that all of a list lie in.
pub(crate) fn span(wanted: &[Wanted]) -> Place {
    let (first, last) = (wanted[0].place, wanted[wanted.len() - 1].place);
    Place { stored: last.offset + last.stored - first.offset, ..first }
}

impl Pool {
    /// A block that the cache lacks and its neighbours, which go into the cache; `None` when it is not small,
    /// when nothing near it was missed before, and when it is not sound where it should be.
    pub(crate) fn read_around(&self, segment: &Segment, ptr: BlockPtr) -> Option<(CheckedHeader, Bytes)> {
        let place = ptr.place;
        let layout = segment.layout;
        if place.stored > SMALL || usize::from(place.column) >= layout.k() || !self.misses.note(place) {
            return None;
        }
        let replica = self.prompt_replica(segment, place.column.into(), ptr.id.get() as usize)?;
        if segment.is_in_flight(replica, place.offset, place.stored as usize) {
            return None;
        }
        let slot_size = self.members.get(segment.slots[replica].device).slot_size;
        let start = place.offset / WINDOW * WINDOW;
        // A block that crosses the end of its window comes whole.
        let end = (start + WINDOW).max((place.offset + place.stored).next_multiple_of(ALIGN as u32));
        let window = Place { offset: start, stored: end.min(slot_size).checked_sub(start)?, ..place };
        let bytes = self.read_promptly(segment, replica, window)?;
        let at = (place.offset - start) as usize;
        let own = bytes.get(at..at + place.stored as usize)?;
        let (header, _) = block::check(self.guid, ptr.id, own).ok()?;
        let own = Bytes::copy_from_slice(own);
        if let Some(pool) = self.myself.upgrade() {
            // Who asks for the next one most likely comes after it is there.
            self.world.workers.later(Box::new(move || pool.keep_blocks(&bytes, at)));
        }
        Some((header, own))
    }

    /// Puts every sound record and node in `window` into the cache, but for the one at `own`; those behind it
    /// first.
    fn keep_blocks(&self, window: &[u8], own: usize) {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(rest) = window.get(at..).filter(|rest| !rest.is_empty()) {
            // Most places where none begins are told by four bytes.
            let begins = rest.starts_with(&BLOCK_MAGIC.to_le_bytes());
            at += match begins.then(|| CheckedHeader::check(self.guid, rest)) {
                Some(Ok(header)) => {
                    found.push((at, header, rest));
                    header.footprint() as usize
                }
                _ => BLOCK_STEP as usize,
            };
        }
        let behind = found.iter().filter(|(at, ..)| *at > own);
        for (_, header, rest) in behind.chain(found.iter().filter(|(at, ..)| *at < own)) {
            let kind = header.info.kind;
            let missing = match kind {
                BlockKind::Record => self.cache.lacks_record(header.id),
                BlockKind::Node => self.cache.lacks_node(header.id),
                _ => false,
            };
            // The last one may be cut off.
            let Some(stored) = rest.get(..header.stored() as usize).filter(|_| missing) else { continue };
            if block::check(self.guid, header.id, stored).is_ok()
                && let Ok(plain) = plain_of(header, &Bytes::copy_from_slice(stored), kind)
            {
                self.keep(header, plain);
            }
        }
    }

    /// Puts a record or node into the cache.
    fn keep(&self, header: &CheckedHeader, plain: Record) {
        match header.info.kind {
            BlockKind::Record => self.cache.keep_record(header.id, plain),
            BlockKind::Node => {
                if let Ok(node) = decode_node(header, &plain) {
                    self.cache.keep_node(header.id, &node);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u64, column: u8, offset: u32) -> Place {
        Place { segment: SegmentId::new(segment), column, offset, stored: 4096 }
    }

    #[test]
    fn a_miss_near_an_earlier_one_is_told_and_others_are_not() {
        let misses = Misses::default();
        assert!(!misses.note(place(1, 0, 5 << 20)));
        assert!(!misses.note(place(1, 1, 5 << 20)));
        assert!(!misses.note(place(2, 0, 5 << 20)));
        assert!(misses.note(place(1, 0, (5 << 20) - NEAR)));
        assert!(!misses.note(place(1, 0, (5 << 20) + 1)), "its neighbour is remembered where it was last");
        (0..MISSES as u64).for_each(|segment| assert!(!misses.note(place(100 + segment, 0, 0))));
        assert!(!misses.note(place(1, 1, 5 << 20)), "forgotten");
    }
}
