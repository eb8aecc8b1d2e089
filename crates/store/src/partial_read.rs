//! Partial reads: a part of a large record without the rest of it.
//!
//! A record that no codec shrank has the sums of its frames before its content ([`FRAME`]). A small read of one that
//! the cache lacks takes header, sums and the frames that it wants from one device, and proves them as the whole block
//! is proven: the header is that of this block, of this history and as long as the place says; it proves the sums, and
//! each of these the frame that is its own. So it does not matter that they may come by two requests: the segment is
//! held, what was written of it is final, and whatever else lies there has other sums. What is wrong, late or in flight
//! is left to the read of the whole record, which knows of other places, of replicas and parity, and of repair.
//!
//! A part is not kept. But who reads another part of the same record soon after gets all of it into the cache: it may
//! be a stream, or what is wanted often.

use crate::cache::Record;
use crate::decode::stored;
use crate::error::{PoolError, Result};
use crate::read_cache::Part;
use crate::segments::Segment;
use crate::store::Store;
use larder_format::Place;
use larder_format::block::{self, BLOCK_OVERHEAD, CheckedHeader, FRAME, FRAME_SUM, frame_sums_len};
use larder_format::items::Extent;
use larder_mutants::{Mutant, mutated};
use std::ops::Range;

/// A part is at most one of so many of its record: of more than that, the whole costs hardly more.
const PARTS: u32 = 4;
/// Bytes between the sums and the frames that are read along rather than left out by a second request.
const GAP: u32 = 16 << 10;

impl Store {
    /// The bytes `range` of the plain content of the record that an extent names, from the cache or the devices.
    ///
    /// # Errors
    /// As [`Store::read`]; also when the record is shorter than that.
    pub fn part_of(&self, extent: &Extent, range: Range<u32>) -> Result<Record> {
        let id = extent.ptr.id;
        let cut = |whole: Record| {
            let range = range.start as usize..range.end as usize;
            let cause = || PoolError::Unreadable { id, cause: "shorter than its extent".into() };
            (range.end <= whole.len()).then(|| whole.slice(range)).ok_or_else(cause)
        };
        if let Some(whole) = self.cache.record(id) {
            return cut(whole);
        }
        let is_small = range.len() <= (extent.logical / PARTS) as usize;
        if is_small && is_framed(extent) && !self.partial_reads.note(id, self.cache.record_limit()) {
            let now = self.world.clock.monotonic();
            match self.read_cache.judge_part(id, extent.ptr.place.stored, now) {
                Part::Alone => {
                    if let Some(part) = self.read_frames(extent, range.clone(), true) {
                        return Ok(part);
                    }
                }
                Part::Copied => {}
                Part::Admitted => return cut(self.read_admitted(extent.ptr)?),
            }
        }
        cut(self.read_whole(extent.ptr)?)
    }

    /// As [`Store::part_of`] of a record that cannot be read as a whole: some of it may be sound.
    ///
    /// # Errors
    /// [`PoolError::Unreadable`] when this part is not.
    pub fn sound_part_of(&self, extent: &Extent, range: Range<u32>) -> Result<Record> {
        let part = self.read_frames(extent, range, false);
        let cause =
            || PoolError::Unreadable { id: extent.ptr.id, cause: "this part of it is damaged".into() };
        part.ok_or_else(cause)
    }

    /// The bytes `range` of a record with frames: from a device that is prompt, or from any.
    fn read_frames(&self, extent: &Extent, range: Range<u32>, promptly: bool) -> Option<Record> {
        let (segment, found) = self.locate(extent.ptr).ok()?;
        // The block that it is an alias of may have another codec.
        let extent = &Extent { ptr: found, ..*extent };
        if !is_framed(extent) {
            return None;
        }
        let (layout, place) = (segment.layout, found.place);
        let column = usize::from(place.column);
        if column >= layout.k() || range.is_empty() || range.end > extent.logical {
            return None;
        }
        if promptly {
            let replica = self.prompt_replica(&segment, column, extent.ptr.id.get() as usize)?;
            return self.frames_of(&segment, replica, place, extent, range);
        }
        let mut replicas = (0..layout.r()).map(|j| layout.replica(column, j));
        replicas.find_map(|replica| self.frames_of(&segment, replica, place, extent, range.clone()))
    }

    /// The bytes `range` of a record with frames, from column `replica`, when they are what was written.
    fn frames_of(
        &self,
        segment: &Segment,
        replica: usize,
        place: Place,
        extent: &Extent,
        range: Range<u32>,
    ) -> Option<Record> {
        if segment.is_in_flight(replica, place.offset, place.stored as usize) {
            return None;
        }
        let before = BLOCK_OVERHEAD + frame_sums_len(extent.logical);
        let frames = range.start / FRAME * FRAME..range.end.next_multiple_of(FRAME).min(extent.logical);
        let body_at = before + frames.start;
        let (head, body) = if frames.start <= GAP {
            let both = Place { stored: before + frames.end, ..place };
            let bytes = self.read_promptly(segment, replica, both)?;
            (bytes.slice(..before as usize), bytes.slice(body_at as usize..))
        } else {
            let wanted = Place { offset: place.offset + body_at, stored: frames.end - frames.start, ..place };
            let (pending, from) = self.start_read(segment, replica, wanted)?;
            let head = self.read_promptly(segment, replica, Place { stored: before, ..place })?;
            let body = self.members.get(segment.slots[replica].device).wait_in_bulk(pending).ok()?;
            (head, stored(body, from, wanted))
        };
        let header = CheckedHeader::check(&self.sums, &head).ok()?;
        let is_it = header.id == extent.ptr.id
            && header.info.framed
            && header.info.logical == extent.logical
            && self.is_ours(&header, place.stored);
        let sums = header.frame_sums(&self.sums, &head).ok().filter(|_| is_it)?;
        let [first, end] = [frames.start / FRAME, frames.end.div_ceil(FRAME)].map(|frame| frame * FRAME_SUM);
        let sums = &sums[first as usize..end as usize];
        if block::check_frames(&self.sums, sums, &body).is_err() && !mutated(Mutant::UncheckedFrames) {
            return None;
        }
        Some(body.slice((range.start - frames.start) as usize..(range.end - frames.start) as usize))
    }
}

/// Whether the record that an extent names has frames: its length tells.
fn is_framed(extent: &Extent) -> bool {
    let logical = extent.logical;
    extent.ptr.place.stored == BLOCK_OVERHEAD + frame_sums_len(logical) + logical
}
