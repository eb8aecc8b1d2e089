//! A set of block ids that grows past memory: pushed in any order, read back once, ascending.
//!
//! With each id goes a [`Tag`]: the plain length of its record (0 if it is no record) and who refers to it.
//! Each pair of id and tag is read back once, with the number of times that it was pushed.
//!
//! They are collected in a buffer; when it is full it is sorted, duplicates are counted, and it is written
//! as a *run*: pages of ascending ids. Reading merges all runs, a page of each in memory. When there are
//! more runs of one size than pages that memory has room for, they are merged into one larger run first,
//! in bounded steps; so memory is the same whatever the number of ids.
//!
//! **Bytes.** An entry of a page is a varint: distance to the id before, shifted left by two; bit 0 says that a
//! varint of the count follows (else 1), bit 1 that one of the tag does (else that of the entry before). A
//! page starts from id 0 and tag 0, with a varint of its number of entries.
//!
//! **Measured** with 10^8 ids in 12 MiB (`spilling_is_bounded_and_small` with `LARDER_LARGE`): 12 B an id in the
//! buffer; in pages, before their LZ4, 1.0 B when ids are dense, 2.0 B when one in a hundred is there, 3.0 B when one
//! in ten thousand, and as much again for merges. On top of the memory it is given come the addresses of pages,
//! 32 B for each of 32 KiB: a thousandth of what is spilled.

use larder_format::items::MAX_RECORD;
use larder_format::{BlockId, BlockPtr, Corrupt, Reason, SegmentId};
use larder_sorted::{PageReader, PageWriter};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::iter::Peekable;
use std::sync::Arc;

/// Bytes of a page before it is encoded as a block.
pub(crate) const PAGE: usize = 32 << 10;
/// An entry takes no more: three varints.
const ENTRY_MAX: usize = 10 + 10 + 5;
/// The least runs that are merged together.
const MIN_FAN_IN: usize = 4;
/// The least entries that the buffer has room for.
const MIN_BUFFER: usize = 1024;

/// Tag of an id: a plain length of at most [`MAX_RECORD`], and above it a number for whoever refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Tag(u32);

impl Tag {
    const LOGICAL_BITS: u32 = MAX_RECORD.ilog2() + 1;
    /// The highest number; it stands for all above it.
    pub(crate) const MAX_ORIGIN: u32 = u32::MAX >> Self::LOGICAL_BITS;

    /// That of no record.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn new(logical: u32, origin: u32) -> Self {
        debug_assert!(logical <= MAX_RECORD);
        Self(origin.min(Self::MAX_ORIGIN) << Self::LOGICAL_BITS | logical)
    }
    /// Plain bytes of the record; 0 when it is none.
    pub(crate) fn logical(self) -> u32 {
        self.0 & ((1 << Self::LOGICAL_BITS) - 1)
    }
    /// The referrer.
    pub(crate) fn origin(self) -> u32 {
        self.0 >> Self::LOGICAL_BITS
    }
}

/// One pushed id. Three words of 32 bits, so that it takes 12 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pushed {
    high: u32,
    low: u32,
    tag: Tag,
}

/// Bytes of memory that an id takes in the buffer.
pub(crate) const PUSHED_BYTES: usize = size_of::<Pushed>();

impl Pushed {
    fn new(id: BlockId, tag: Tag) -> Self {
        Self { high: (id.get() >> 32) as u32, low: id.get() as u32, tag }
    }
    fn id(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

/// An id as it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Counted {
    /// The block.
    pub id: u64,
    /// Its tag.
    pub tag: Tag,
    /// Number of times that both were pushed.
    pub count: u64,
}

const NOTHING: Counted = Counted { id: 0, tag: Tag(0), count: 0 };

/// A spilled run: pages in ascending order.
struct SpilledRun {
    pages: Vec<BlockPtr>,
    level: u32,
}

/// Where a run is being read.
struct Cursor {
    pages: std::vec::IntoIter<BlockPtr>,
    level: u32,
    /// The page at hand, its address for errors, the next byte in it and the entries left.
    page: Arc<[u8]>,
    ptr: Option<BlockPtr>,
    at: usize,
    left: u32,
    last: Counted,
}

impl Cursor {
    fn new(SpilledRun { pages, level }: SpilledRun) -> Self {
        Self { pages: pages.into_iter(), level, page: Arc::new([]), ptr: None, at: 0, left: 0, last: NOTHING }
    }

    /// The pages that are not read to the end, as a run.
    fn into_rest(self) -> SpilledRun {
        SpilledRun { pages: self.ptr.into_iter().chain(self.pages).collect(), level: self.level }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.page.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn entry(&mut self) -> Option<Counted> {
        let tag = self.varint()?;
        let id = self.last.id.checked_add(tag >> 2)?;
        let count = if tag & 1 != 0 { self.varint()? } else { 1 };
        let of = if tag & 2 != 0 { Tag(u32::try_from(self.varint()?).ok()?) } else { self.last.tag };
        self.left -= 1;
        self.last = Counted { id, tag: of, count };
        Some(self.last)
    }

    fn next<R: PageReader>(&mut self, io: &R) -> Result<Option<Counted>, R::Error> {
        let refuse = |ptr, reason| Err(io.refused(ptr, Corrupt::new("spilled page", reason)));
        while self.left == 0 {
            let Some(ptr) = self.pages.next() else { return Ok(None) };
            self.page = io.read_page(ptr)?;
            let Some(count) = self.page.first_chunk::<4>() else { return refuse(ptr, Reason::Short) };
            (self.left, self.at, self.last, self.ptr) = (u32::from_le_bytes(*count), 4, NOTHING, Some(ptr));
        }
        match (self.entry(), self.ptr) {
            (None, Some(ptr)) => refuse(ptr, Reason::Short),
            (found, _) => Ok(found),
        }
    }
}

/// A page being filled, and those that were.
#[derive(Default)]
struct PageStream {
    page: Vec<u8>,
    count: u32,
    last: Counted,
    pages: Vec<BlockPtr>,
}

impl PageStream {
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.page.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.page.push(value as u8);
    }

    /// Adds an entry; true when a page was written.
    fn push<W: PageWriter>(&mut self, entry: Counted, io: &mut W) -> Result<bool, W::Error> {
        let full = self.page.len() + ENTRY_MAX > PAGE;
        if full {
            self.flush(io)?;
        }
        if self.page.is_empty() {
            self.page.extend([0; 4]);
            self.last = NOTHING;
        }
        let (several, other) = (entry.count != 1, entry.tag != self.last.tag);
        self.put_varint((entry.id - self.last.id) << 2 | u64::from(other) << 1 | u64::from(several));
        if several {
            self.put_varint(entry.count);
        }
        if other {
            self.put_varint(entry.tag.0.into());
        }
        self.count += 1;
        self.last = entry;
        Ok(full)
    }

    fn flush<W: PageWriter>(&mut self, io: &mut W) -> Result<(), W::Error> {
        if self.count > 0 {
            self.page[..4].copy_from_slice(&self.count.to_le_bytes());
            self.pages.push(io.write_page(&self.page)?);
            (self.count, self.page) = (0, Vec::with_capacity(PAGE));
        }
        Ok(())
    }
}

/// Several sources as one ascending stream, each pair of id and tag once.
pub(crate) struct Merged {
    cursors: Vec<Cursor>,
    /// Pushed ids that were not worth a run.
    rest: Counting<std::vec::IntoIter<Pushed>>,
    heads: BinaryHeap<Reverse<(Counted, usize)>>,
}

impl Merged {
    fn new<R: PageReader>(runs: Vec<SpilledRun>, rest: Vec<Pushed>, io: &R) -> Result<Self, R::Error> {
        let cursors: Vec<_> = runs.into_iter().map(Cursor::new).collect();
        let heads = BinaryHeap::with_capacity(cursors.len() + 1);
        let mut merged = Self { cursors, rest: Counting(rest.into_iter().peekable()), heads };
        for source in 0..=merged.cursors.len() {
            merged.refill(source, io)?;
        }
        Ok(merged)
    }

    fn refill<R: PageReader>(&mut self, source: usize, io: &R) -> Result<(), R::Error> {
        let next = match self.cursors.get_mut(source) {
            Some(cursor) => cursor.next(io)?,
            None => self.rest.next(),
        };
        self.heads.extend(next.map(|entry| Reverse((entry, source))));
        Ok(())
    }

    /// The lowest id that is left.
    pub(crate) fn peek(&self) -> Option<u64> {
        self.heads.peek().map(|Reverse((entry, _))| entry.id)
    }

    /// Takes the lowest id with the lowest of its tags, its counts added up.
    pub(crate) fn next<R: PageReader>(&mut self, io: &R) -> Result<Option<Counted>, R::Error> {
        let mut sum: Option<Counted> = None;
        let same = |sum: Counted, entry: Counted| (sum.id, sum.tag) == (entry.id, entry.tag);
        while let Some(Reverse((entry, source))) =
            self.heads.peek().copied().filter(|Reverse((entry, _))| sum.is_none_or(|sum| same(sum, *entry)))
        {
            self.heads.pop();
            self.refill(source, io)?;
            sum = Some(Counted { count: sum.map_or(0, |sum| sum.count) + entry.count, ..entry });
        }
        Ok(sum)
    }

    /// Whether `id` is in it; what is lower is passed over. To be asked in ascending order.
    pub(crate) fn contains<R: PageReader>(&mut self, id: u64, io: &R) -> Result<bool, R::Error> {
        while self.peek().is_some_and(|lowest| lowest < id) {
            self.next(io)?;
        }
        Ok(self.peek() == Some(id))
    }
}

/// Runs on their way to become one.
struct Joining {
    merged: Merged,
    out: PageStream,
    level: u32,
    /// Pages of the inputs by segment.
    inputs: BTreeMap<SegmentId, u64>,
}

/// The set; see the module's text.
pub(crate) struct Spill {
    buffer: Vec<Pushed>,
    /// Entries that the buffer holds when it is full.
    capacity: usize,
    fan_in: usize,
    runs: Vec<SpilledRun>,
    joining: Option<Joining>,
    /// Pages by the segment that they are in.
    segments: BTreeMap<SegmentId, u64>,
    #[cfg(test)]
    pages_written: u64,
}

impl Spill {
    /// An empty set that takes `memory` bytes at most: half of it for the buffer, half for pages being merged.
    pub(crate) fn new(memory: usize) -> Self {
        Self {
            buffer: Vec::new(),
            capacity: (memory / 2 / PUSHED_BYTES).max(MIN_BUFFER),
            // Two more pages are the one that is filled, and room for their addresses.
            fan_in: (memory / 2 / PAGE).saturating_sub(2).max(MIN_FAN_IN),
            runs: Vec::new(),
            joining: None,
            segments: BTreeMap::new(),
            #[cfg(test)]
            pages_written: 0,
        }
    }

    /// Adds an id. The buffer takes it even when it is full: see [`Spill::is_full`].
    pub(crate) fn push(&mut self, id: BlockId, tag: Tag) {
        let (len, room) = (self.buffer.len(), self.buffer.capacity());
        if len == room {
            // Doubled, but not past what is allowed as long as that is enough.
            let wanted = (2 * len).max(MIN_BUFFER);
            let most = if len < self.capacity { self.capacity } else { len + MIN_BUFFER };
            self.buffer.reserve_exact(wanted.min(most) - len);
        }
        self.buffer.push(Pushed::new(id, tag));
    }

    /// Whether the buffer should be written out before more comes than `soon`.
    pub(crate) fn is_full(&self, soon: usize) -> bool {
        self.buffer.len() + soon > self.capacity
    }

    /// Whether nothing is in the buffer.
    pub(crate) fn is_spilled(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Writes the buffer out as a run.
    pub(crate) fn spill<W: PageWriter>(&mut self, io: &mut W) -> Result<(), W::Error> {
        let mut out = PageStream::default();
        self.buffer.sort_unstable();
        for entry in Counting(self.buffer.iter().copied().peekable()) {
            out.push(entry, io)?;
        }
        out.flush(io)?;
        self.buffer.clear();
        self.install(out, 0);
        Ok(())
    }

    /// Carries merges on by `pages` pages written; whether there is more to do before more is spilled.
    pub(crate) fn join_step<W: PageWriter>(&mut self, io: &mut W, pages: usize) -> Result<bool, W::Error> {
        self.join(io, pages, false)
    }

    /// As [`Spill::join_step`], until all that is left can be read at once.
    pub(crate) fn join_all_step<W: PageWriter>(
        &mut self,
        io: &mut W,
        pages: usize,
    ) -> Result<bool, W::Error> {
        self.join(io, pages, true)
    }

    fn join<W: PageWriter>(&mut self, io: &mut W, pages: usize, last: bool) -> Result<bool, W::Error> {
        if self.joining.is_none() {
            let Some(due) = self.due(last) else { return Ok(false) };
            let level = due.iter().map(|&at| self.runs[at].level).max().unwrap_or(0) + 1;
            // The largest index goes first, so that the others stay what they are.
            let taken: Vec<_> = due.iter().rev().map(|&at| self.runs.swap_remove(at)).collect();
            let mut inputs = BTreeMap::new();
            for ptr in taken.iter().flat_map(|run| &run.pages) {
                *inputs.entry(ptr.place.segment).or_default() += 1;
            }
            let merged = Merged::new(taken, Vec::new(), io)?;
            self.joining = Some(Joining { merged, out: PageStream::default(), level, inputs });
        }
        let Some(joining) = &mut self.joining else { return Ok(false) };
        let mut left = pages;
        while left > 0 {
            let Some(entry) = joining.merged.next(io)? else { break };
            left -= usize::from(joining.out.push(entry, io)?);
        }
        if left > 0
            && let Some(Joining { mut out, level, inputs, .. }) = self.joining.take()
        {
            out.flush(io)?;
            for (segment, pages) in inputs {
                self.let_go(segment, pages);
            }
            self.install(out, level);
        }
        Ok(self.joining.is_some() || self.due(last).is_some())
    }

    /// The runs to be merged next, ascending: all of a level that is full; in the end, the smallest.
    fn due(&self, last: bool) -> Option<Vec<usize>> {
        let mut at: Vec<usize> = (0..self.runs.len()).collect();
        if last {
            let surplus = self.runs.len().checked_sub(self.fan_in).filter(|&surplus| surplus > 0)?;
            at.sort_by_key(|&at| self.runs[at].pages.len());
            at.truncate((surplus + 1).min(self.fan_in));
        } else {
            let levels = self.runs.iter().map(|run| run.level).max()?;
            let full = (0..=levels)
                .find(|&level| self.runs.iter().filter(|run| run.level == level).count() >= self.fan_in)?;
            at.retain(|&at| self.runs[at].level == full);
        }
        at.sort_unstable();
        Some(at)
    }

    fn install(&mut self, out: PageStream, level: u32) {
        #[cfg(test)]
        {
            self.pages_written += out.pages.len() as u64;
        }
        for ptr in &out.pages {
            *self.segments.entry(ptr.place.segment).or_default() += 1;
        }
        if !out.pages.is_empty() {
            self.runs.push(SpilledRun { pages: out.pages, level });
        }
    }

    fn let_go(&mut self, segment: SegmentId, pages: u64) {
        if let Some(left) = self.segments.get_mut(&segment) {
            *left -= pages;
            if *left == 0 {
                self.segments.remove(&segment);
            }
        }
    }

    /// Reads all of it, ascending, after [`Spill::join_all_step`] said that nothing is left to do. The pages stay
    /// where they are as long as the segments that [`Spill::segments`] names do.
    pub(crate) fn read<R: PageReader>(&mut self, io: &R) -> Result<Merged, R::Error> {
        assert!(self.runs.len() <= self.fan_in && self.joining.is_none(), "settled before it is read");
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.sort_unstable();
        let runs = std::mem::take(&mut self.runs);
        Merged::new(runs, buffer, io)
    }

    /// As [`Spill::read`], and all of it can be read again; nothing may be added before that.
    pub(crate) fn peruse<R: PageReader>(&mut self, io: &R) -> Result<Merged, R::Error> {
        assert!(self.runs.len() <= self.fan_in && self.joining.is_none(), "settled before it is read");
        self.buffer.sort_unstable();
        let again = |run: &SpilledRun| SpilledRun { pages: run.pages.clone(), level: run.level };
        Merged::new(self.runs.iter().map(again).collect(), self.buffer.clone(), io)
    }

    /// Takes all of another set.
    pub(crate) fn absorb(&mut self, other: Self) {
        assert!(self.joining.is_none() && other.joining.is_none(), "settled before they become one");
        self.buffer.extend(other.buffer);
        self.runs.extend(other.runs);
        for (segment, pages) in other.segments {
            *self.segments.entry(segment).or_default() += pages;
        }
    }

    /// Ids in the buffer.
    pub(crate) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Takes back what was given to be read, so that more can be added. What is read anew is all that was left, and
    /// some of what was read before.
    pub(crate) fn take_back(&mut self, Merged { cursors, rest, heads }: Merged) {
        let of_rest = heads.into_iter().filter(|Reverse((_, source))| *source == cursors.len());
        self.buffer.extend(of_rest.map(|Reverse((head, _))| Pushed::new(BlockId::new(head.id), head.tag)));
        self.buffer.extend(rest.0);
        self.runs.extend(cursors.into_iter().map(Cursor::into_rest).filter(|run| !run.pages.is_empty()));
    }

    /// The segments that its pages lie in.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentId> {
        self.segments.keys().copied()
    }

    /// Bytes of the pages that are its own.
    #[cfg(test)]
    pub(crate) fn bytes_of(&self, io: &impl PageReader<Error = larder_store::PoolError>) -> usize {
        self.runs
            .iter()
            .flat_map(|run| &run.pages)
            .map(|&ptr| io.read_page(ptr).map_or(0, |page| page.len()))
            .sum()
    }

    /// Pages written so far, those of merges too.
    #[cfg(test)]
    pub(crate) fn pages_written(&self) -> u64 {
        self.pages_written
    }

    /// Bytes of memory in use.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        let pages = self.runs.iter().map(|run| run.pages.capacity()).sum::<usize>();
        let joining = self.joining.as_ref().map_or(0, |joining| {
            let read = joining.merged.cursors.iter().map(|cursor| cursor.pages.len()).sum::<usize>();
            (read + joining.out.pages.capacity()) * size_of::<BlockPtr>()
                + (joining.merged.cursors.len() + 1) * PAGE
        });
        self.buffer.capacity() * PUSHED_BYTES + pages * size_of::<BlockPtr>() + joining
    }
}

/// Sorted pushes, each pair of id and tag once.
struct Counting<I: Iterator<Item = Pushed>>(Peekable<I>);

impl<I: Iterator<Item = Pushed>> Iterator for Counting<I> {
    type Item = Counted;
    fn next(&mut self) -> Option<Counted> {
        let first = self.0.next()?;
        let mut sum = Counted { id: first.id(), tag: first.tag, count: 1 };
        while self.0.next_if_eq(&first).is_some() {
            sum.count += 1;
        }
        Some(sum)
    }
}
