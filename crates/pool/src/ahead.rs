//! Reading a segment from bottom to top, with what comes next already on its way.
//!
//! Whoever goes through a segment row by row would wait for the device twice a row: for the header, and for what it
//! describes. Here each data column is read in chunks, some of them ahead, so that checking, looking up and writing
//! of one row overlap with the reading of the next. Bytes are as the device gave them: whoever asks holds them
//! against their sums, and reads by other ways ([`Pool::read_range`]) what is missing or wrong.

use crate::pool::Pool;
use crate::segments::Segment;
use bytes::{Bytes, BytesMut};
use larder_device::{Outcome, Pending};
use larder_format::{BlockId, DeviceIndex, Place};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of one read.
const CHUNK: u32 = 512 << 10;
/// Bytes of all columns that are read ahead, at least two chunks of each.
const AHEAD: u32 = 4 << 20;

/// The data columns of a segment, read from some offset on.
pub(crate) struct Ahead {
    segment: Arc<Segment>,
    /// Nothing is read from here on.
    end: u32,
    /// Chunks of a column that are on their way or here.
    depth: usize,
    lanes: Vec<Lane>,
}

/// One column. Chunks lie one behind the other and end at `next`.
struct Lane {
    chunks: VecDeque<Chunk>,
    next: u32,
}

enum Chunk {
    /// It comes from a device and will begin somewhere in what is read.
    Coming(Range<u32>, DeviceIndex, Pending<Outcome>, usize),
    Here(Range<u32>, Bytes),
    /// The device did not give it.
    Lost(Range<u32>),
}

impl Chunk {
    fn range(&self) -> &Range<u32> {
        let (Self::Coming(range, ..) | Self::Here(range, _) | Self::Lost(range)) = self;
        range
    }

    /// The bytes of `wanted`, which ends in or behind the chunk, as far as they lie in it.
    fn part(&mut self, pool: &Pool, wanted: &Range<u32>) -> Option<Bytes> {
        let lost = Self::Lost(self.range().clone());
        *self = match std::mem::replace(self, lost) {
            Self::Coming(range, device, pending, from) => {
                match pool.members.get(device).wait_in_bulk(pending) {
                    Ok(bytes) => {
                        let len = range.len();
                        Self::Here(range, Bytes::from_owner(bytes).slice(from..from + len))
                    }
                    Err(_) => Self::Lost(range),
                }
            }
            known => known,
        };
        let Self::Here(range, bytes) = self else { return None };
        let start = wanted.start.max(range.start) - range.start;
        let end = wanted.end.min(range.end) - range.start;
        Some(bytes.slice(start as usize..end as usize))
    }
}

impl Ahead {
    /// Of `segment`, whose rows end at `end`, from `from` on.
    pub(crate) fn new(segment: Arc<Segment>, from: u32, end: u32) -> Self {
        let columns = segment.layout.k();
        let depth = (AHEAD / CHUNK) as usize / columns;
        let lanes = (0..columns).map(|_| Lane { chunks: VecDeque::new(), next: from }).collect();
        Self { segment, end, depth: depth.max(2), lanes }
    }

    /// The bytes of `range` of data column `column`; none when the device does not give them, or they lie before
    /// what was asked for last.
    pub(crate) fn get(&mut self, pool: &Pool, column: usize, range: Range<u32>) -> Option<Bytes> {
        let lane = &mut self.lanes[column];
        while lane.chunks.front().is_some_and(|chunk| chunk.range().end <= range.start) {
            lane.chunks.pop_front();
        }
        while lane.next < self.end && (lane.chunks.len() < self.depth || lane.next < range.end) {
            let chunk = lane.next..(lane.next + CHUNK).min(self.end);
            let place = Place {
                segment: self.segment.id,
                column: column as u8,
                offset: chunk.start,
                stored: chunk.end - chunk.start,
            };
            lane.next = chunk.end;
            // The first replica unless it is on a slow device.
            let replica = pool.prompt_replica(&self.segment, BlockId::new(0), place);
            let started = replica.and_then(|replica| {
                let (pending, from) = pool.start_read(&self.segment, replica, place)?;
                Some((self.segment.slots[replica].device, pending, from))
            });
            lane.chunks.push_back(match started {
                Some((device, pending, from)) => Chunk::Coming(chunk, device, pending, from),
                None => Chunk::Lost(chunk),
            });
        }
        let first = lane.chunks.front()?.range().start;
        if range.start < first || range.end > lane.next {
            return None;
        }
        let touched = lane.chunks.iter_mut().take_while(|chunk| chunk.range().start < range.end);
        let mut parts = touched.map(|chunk| chunk.part(pool, &range));
        let mut bytes = parts.next()??;
        if bytes.len() < range.len() {
            let mut whole = BytesMut::with_capacity(range.len());
            whole.extend_from_slice(&bytes);
            for part in parts {
                whole.extend_from_slice(&part?);
            }
            bytes = whole.freeze();
        }
        Some(bytes)
    }
}
