//! Clustered reads: many small blocks for one request.
//!
//! Blocks lie in the order in which they were written, so the files of a folder, and the nodes that name
//! them, are neighbours on the devices. Who reads one small block and then another near it will want those
//! between: the second miss near an earlier one reads a window of its column, and the records and nodes in it
//! go into the cache.
//!
//! Nothing is believed by its look. A user's file may hold bytes that are a block of this pool: an image of a disk
//! that was its. So the window is gone through from block to block, from one that was asked for, never inside a
//! payload, and what is found counts only if the block map has it at just this place, where nothing else ever was:
//! segments' ids do not come back.
//!
//! Reads at random miss far from each other: each brings just its block. Who asks for several records at
//! once ([`Store::prefetch`]) has neighbours fetched together as well.

use crate::cache::Record;
use crate::decode::{decode_node, plain_of};
use crate::misses::WINDOW;
use crate::run_io::RunIo;
use crate::segments::Segment;
use crate::store::Store;
use bytes::Bytes;
use larder_device::ALIGN;
use larder_format::block::{BlockKind, CheckedHeader};
use larder_format::checksum::Sums;
use larder_format::segment::{STRIPE_STEP, StripeHeader, stripe_header_len};
use larder_format::{BLOCK_STEP, BlockId, BlockPtr, Place, is_zero};
use larder_mutants::{Mutant, mutated};
use larder_sorted::map::Entry;
use std::sync::Arc;

/// Stored bytes of a block that counts as small.
pub const SMALL: u32 = 32 << 10;
/// Bytes between two wanted blocks that are read along rather than asked for twice.
const GAP: u32 = 16 << 10;

/// A block that is wanted, and where to read it.
pub struct Wanted {
    /// The block.
    pub id: BlockId,
    /// The block that has its content: another where it is an alias.
    pub stored_as: BlockId,
    /// Where it is, pinned.
    pub segment: Arc<Segment>,
    /// The column to read.
    pub replica: usize,
    /// Its place.
    pub place: Place,
}

/// Bytes of one read at most, and between two blocks that are read along.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    window: u32,
    gap: u32,
}

impl Reach {
    /// For who waits for all of it.
    pub const NEAR: Self = Self { window: WINDOW, gap: GAP };
    /// For who wants most of what lies there, from a disk on which a read takes as long as half a megabyte.
    pub const FAR: Self = Self { window: 1 << 20, gap: 256 << 10 };
}

/// Puts neighbours among small blocks together; each list is for one read.
pub fn gather(mut wanted: Vec<Wanted>, reach: Reach) -> Vec<Vec<Wanted>> {
    wanted.sort_by_key(|one| (one.place.segment, one.replica, one.place.offset));
    let mut spans: Vec<Vec<Wanted>> = Vec::new();
    for next in wanted {
        let end = next.place.offset + next.place.stored;
        let fits = spans.last().is_some_and(|span| {
            let (first, last) = (&span[0], &span[span.len() - 1]);
            let reached = last.place.offset + last.place.stored;
            (first.segment.id, first.replica) == (next.segment.id, next.replica)
                && first.place.stored.max(next.place.stored) <= SMALL
                && next.place.offset.saturating_sub(reached) <= reach.gap
                && end - first.place.offset <= reach.window
        });
        match spans.last_mut().filter(|_| fits) {
            Some(span) => span.push(next),
            None => spans.push(vec![next]),
        }
    }
    spans
}

/// The place that all of a list lie in.
pub fn span(wanted: &[Wanted]) -> Place {
    let (first, last) = (wanted[0].place, wanted[wanted.len() - 1].place);
    Place { stored: last.offset + last.stored - first.offset, ..first }
}

impl Store {
    /// A block that the cache lacks and its neighbours, which go into the cache; `None` when it is not small,
    /// when nothing near it was missed before, and when it is not sound where it should be.
    pub fn read_cluster(&self, segment: &Segment, ptr: BlockPtr) -> Option<(CheckedHeader, Bytes)> {
        let place = ptr.place;
        let layout = segment.layout;
        if place.stored > SMALL || usize::from(place.column) >= layout.k() {
            return None;
        }
        let from = self.misses.note(place)?;
        let replica = self.prompt_replica(segment, place.column.into(), ptr.id.get() as usize)?;
        if segment.is_in_flight(replica, place.offset, place.stored as usize) {
            return None;
        }
        let slot_size = self.members.get(segment.slots[replica].device).slot_size;
        // A block that crosses the end of the window comes whole.
        let end = (from + WINDOW).max(place.offset + place.stored).next_multiple_of(ALIGN as u32);
        let window = Place { offset: from, stored: end.min(slot_size).checked_sub(from)?, ..place };
        let bytes = self.read_promptly(segment, replica, window)?;
        let at = (place.offset - from) as usize;
        let own = Bytes::copy_from_slice(bytes.get(at..at + place.stored as usize)?);
        let header = self.prove(ptr.id, &own)?;
        if let Some(store) = self.myself.upgrade() {
            // The read of the next block most likely comes after it is cached.
            self.world.workers.later(Box::new(move || store.keep_blocks(window, &bytes, place.offset)));
        }
        Some((header, own))
    }

    /// Puts the records and nodes of `window` that the block map has there into the cache, but for the one at offset
    /// `own` of the slot; those behind it first.
    fn keep_blocks(&self, window: Place, bytes: &[u8], own: u32) {
        let mut found: Vec<Met> = walk_blocks(&self.sums, window, bytes)
            .into_iter()
            .filter(|(place, header)| {
                let missing = match header.info.kind {
                    BlockKind::Record => self.cache.lacks_record(header.id),
                    BlockKind::Node => self.cache.lacks_node(header.id),
                    _ => false,
                };
                missing && place.offset != own
            })
            .collect();
        found.sort_unstable_by_key(|(_, header)| header.id);
        let io = RunIo::new(self);
        let mut finder = self.map.lock().finder();
        found.retain(|(place, header)| {
            let Ok(in_runs) = finder.find(header.id, &io) else { return false };
            let known = Entry::of(&self.map.lock().now(header.id, in_runs));
            known.is_some_and(|entry| entry.places().contains(place)) || mutated(Mutant::LooksBelieved)
        });
        found.sort_unstable_by_key(|(place, _)| (place.offset < own, place.offset));
        for (place, header) in found {
            let at = (place.offset - window.offset) as usize;
            let Some(stored) = bytes.get(at..at + place.stored as usize) else { continue };
            let stored = Bytes::copy_from_slice(stored);
            if self.prove(header.id, &stored).is_some()
                && let Ok(plain) = plain_of(&header, &stored, header.info.kind)
            {
                self.keep(&header, plain);
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

/// A block that was met, and where it lies.
pub type Met = (Place, CheckedHeader);

/// The blocks in `bytes`, the content of `window`, at whose start one begins: each by the end of the one before it, and
/// the first of a stripe by the stripe's header. Ends where it is not certain any more what is what.
pub fn walk_blocks(sums: &Sums, window: Place, bytes: &[u8]) -> Vec<Met> {
    let mut met = Vec::new();
    let mut at = 0usize;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        if let Ok(header) = CheckedHeader::check(sums, rest) {
            let place = Place { offset: window.offset + at as u32, stored: header.stored(), ..window };
            met.push((place, header));
            let step = if mutated(Mutant::LooksBelieved) { BLOCK_STEP.into() } else { header.footprint() };
            at = at.saturating_add(step as usize);
        } else if mutated(Mutant::LooksBelieved) {
            at += BLOCK_STEP as usize;
        } else {
            // Padding, then the next stripe.
            let next = (window.offset + at as u32).next_multiple_of(STRIPE_STEP) - window.offset;
            let Some((padding, stripe)) = rest.split_at_checked(next as usize - at) else { break };
            let is_padding = is_zero(padding);
            let here = |stripe: &StripeHeader| {
                (stripe.segment, stripe.offset) == (window.segment, window.offset + next)
            };
            match StripeHeader::check(sums, stripe).ok().filter(here) {
                Some(stripe) if is_padding => at = (next + stripe_header_len(stripe.sums.len())) as usize,
                _ => break,
            }
        }
    }
    met
}
