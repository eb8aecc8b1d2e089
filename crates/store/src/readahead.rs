//! Reading a segment from bottom to top, with the next chunks already in flight.
//!
//! Going through a segment stripe by stripe would wait for the device twice a stripe: for the header, and for the
//! bytes it describes. Here each column is read in chunks, some of them ahead, so that checking, looking up and
//! writing of one stripe overlap with the reading of the next. Bytes are as the device gave them: the caller checks
//! them against their sums, and reads by other ways ([`Store::read_range`]) what is missing or wrong.

use crate::segments::Segment;
use crate::store::Store;
use bytes::Bytes;
use larder_device::{AlignedBuf, Outcome, Pending};
use larder_format::{DeviceIndex, Place};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Columns of a segment, read from some offset on.
pub struct Readahead {
    segment: Arc<Segment>,
    /// Nothing is read from here on.
    end: u32,
    /// Bytes of one read.
    chunk: u32,
    /// Chunks of a column that are on their way or here.
    depth: usize,
    lanes: Vec<ColumnReader>,
}

/// One column. Chunks lie one behind the other and end at `next`.
struct ColumnReader {
    column: usize,
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
    fn part(&mut self, store: &Store, wanted: &Range<u32>) -> Option<Bytes> {
        let lost = Self::Lost(self.range().clone());
        *self = match std::mem::replace(self, lost) {
            Self::Coming(range, device, pending, from) => {
                match store.members.get(device).wait_in_bulk(pending) {
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

impl Readahead {
    /// The `columns` of `segment` in `range`, in reads of `chunk` bytes, of which about `window` bytes are under way or
    /// here at once, at least two reads of each column.
    pub fn new(
        segment: Arc<Segment>,
        columns: impl IntoIterator<Item = usize>,
        range: Range<u32>,
        chunk: u32,
        window: u64,
    ) -> Self {
        let lane = |column| ColumnReader { column, chunks: VecDeque::new(), next: range.start };
        let lanes: Vec<ColumnReader> = columns.into_iter().map(lane).collect();
        let depth = (window / u64::from(chunk)) as usize / lanes.len().max(1);
        Self { segment, end: range.end, chunk, depth: depth.max(2), lanes }
    }

    /// Number of columns that are read.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The column that is number `lane` of those read.
    pub fn column(&self, lane: usize) -> usize {
        self.lanes[lane].column
    }

    /// Has as much under way as is to be read ahead.
    pub fn fill(&mut self, store: &Store) {
        (0..self.lanes.len()).for_each(|lane| self.ask(store, lane, 0));
    }

    /// Whether all reads were sent.
    pub fn is_asked(&self) -> bool {
        self.lanes.iter().all(|lane| lane.next >= self.end)
    }

    /// Sends reads of a lane up to `until`, and ahead of it.
    fn ask(&mut self, store: &Store, lane: usize, until: u32) {
        let lane = &mut self.lanes[lane];
        while lane.next < self.end && (lane.chunks.len() < self.depth || lane.next < until) {
            let chunk = lane.next..(lane.next + self.chunk).min(self.end);
            let stored = chunk.end - chunk.start;
            let place = Place { segment: self.segment.id, column: 0, offset: chunk.start, stored };
            lane.next = chunk.end;
            let device = self.segment.slots[lane.column].device;
            lane.chunks.push_back(match store.start_read(&self.segment, lane.column, place) {
                Some((pending, from)) => Chunk::Coming(chunk, device, pending, from),
                None => Chunk::Lost(chunk),
            });
        }
    }

    /// The bytes of `range` of the column that is number `lane` of those read; none when the device does not give
    /// them, or they lie before what was asked for last.
    pub fn get(&mut self, store: &Store, lane: usize, range: Range<u32>) -> Option<Bytes> {
        self.parts(store, lane, range).map(Parts::join)
    }

    /// The same, not copied together yet where they come of several reads.
    pub fn parts(&mut self, store: &Store, lane: usize, range: Range<u32>) -> Option<Parts> {
        let chunks = &mut self.lanes[lane].chunks;
        while chunks.front().is_some_and(|chunk| chunk.range().end <= range.start) {
            chunks.pop_front();
        }
        self.ask(store, lane, range.end);
        let lane = &mut self.lanes[lane];
        let first = lane.chunks.front()?.range().start;
        if range.start < first || range.end > lane.next {
            return None;
        }
        let touched = lane.chunks.iter_mut().take_while(|chunk| chunk.range().start < range.end);
        touched.map(|chunk| chunk.part(store, &range)).collect::<Option<Vec<Bytes>>>().map(Parts)
    }
}

/// Bytes that lie one behind the other in reads that do.
pub struct Parts(Vec<Bytes>);

impl Parts {
    /// All of them: copied where they are several.
    pub fn join(mut self) -> Bytes {
        if self.0.len() == 1 {
            return self.0.remove(0);
        }
        let mut whole = AlignedBuf::stale(self.0.iter().map(Bytes::len).sum());
        let mut filled = 0;
        for part in &self.0 {
            whole[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        }
        Bytes::from_owner(whole)
    }
}
