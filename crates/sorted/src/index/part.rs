//! One part of a run of the index, read and written; and the run.

use super::filter::Filter;
use crate::pages::{PageReader, PageWriter};
use crate::pages::{PagesOut, read_refs};
use larder_format::error::ensure;
use larder_format::index::{
    FILTER_PER_PAGE, PartDescriptor, PrintEntry, PrintsBuilder, PrintsPage, decode_filter_page,
    encode_filter_page,
};
use larder_format::run::{Footprint, PageRef, RunDescriptor, RunId};
use larder_format::{BlockId, Corrupt, Reason};
use std::sync::Arc;

/// Pages of a filter that are read together.
const FILTER_AHEAD: usize = 64;

/// A complete part.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) descriptor: PartDescriptor,
    pub(super) index: Box<[PageRef]>,
    /// Without one the part is not asked.
    pub(super) filter: Option<Filter>,
}

impl Part {
    /// Reads the index pages of a part, and its filter if `with_filter`. A filter that cannot be read is left out.
    pub(super) fn open<R: PageReader>(
        descriptor: PartDescriptor,
        with_filter: bool,
        reader: &R,
    ) -> Result<Self, R::Error> {
        let index = read_refs(&descriptor.run, reader)?.into();
        let filter = if with_filter { read_filter(&descriptor, reader) } else { None };
        Ok(Self { descriptor, index, filter })
    }

    pub(super) fn run(&self) -> RunId {
        self.descriptor.run.run
    }
    pub(super) fn entries(&self) -> u64 {
        self.descriptor.run.entries
    }
    pub(super) fn first(&self) -> u64 {
        self.descriptor.run.first.get()
    }
    pub(super) fn last(&self) -> u64 {
        self.descriptor.run.last.get()
    }
    pub(super) fn filter_bytes(&self) -> u64 {
        self.filter.as_ref().map_or(0, |filter| filter.shape().bytes())
    }
    pub(super) fn memory_bytes(&self) -> u64 {
        // Besides this, the pool's tables have the descriptor on disk only.
        let run = &self.descriptor.run;
        let lists = size_of_val(&run.refs[..])
            + size_of_val(&run.footprints[..])
            + size_of_val(&self.descriptor.filter_pages[..]);
        (size_of::<Self>() + lists + size_of_val(&*self.index)) as u64
    }
    pub(super) fn disk_bytes(&self) -> u64 {
        self.descriptor.run.footprints.iter().map(|footprint| footprint.bytes).sum()
    }

    /// The page that holds fingerprints with this upper half, if one does. They are spread evenly, so it is where it is
    /// to be expected or next to it; a bisection would wait for memory eight times.
    pub(super) fn page_of(&self, high: u64) -> usize {
        let (first, last) = (self.first(), self.last());
        let part = high.saturating_sub(first) as f64 / (last - first).max(1) as f64;
        let mut at = ((part * self.index.len() as f64) as usize).min(self.index.len() - 1);
        while at > 0 && self.index[at].first.get() > high {
            at -= 1;
        }
        while self.index.get(at + 1).is_some_and(|next| next.first.get() <= high) {
            at += 1;
        }
        at
    }

    /// Estimated number of entries from `from` to `to`: fingerprints are spread evenly over a page.
    pub(super) fn entries_within(&self, from: u64, to: u64) -> u64 {
        if from > self.last() || to < self.first() {
            return 0;
        }
        let pages_before = |high: u64| {
            let at = self.page_of(high);
            let first = self.index[at].first.get();
            let end = self.index.get(at + 1).map_or(self.last(), |next| next.first.get());
            at as f64 + (high.clamp(first, end) - first) as f64 / (end - first).max(1) as f64
        };
        let pages = pages_before(to) - pages_before(from);
        (pages * self.entries() as f64 / self.index.len() as f64).ceil() as u64
    }

    /// Page `at`, whose bytes these are.
    pub(super) fn open_page<'a>(&self, at: usize, bytes: &'a [u8]) -> Result<PrintsPage<'a>, Corrupt> {
        let page = PrintsPage::open(bytes, self.run(), at as u32)?;
        ensure(page.first() == self.index[at].first.get(), "index page", Reason::Order)?;
        Ok(page)
    }

    /// Appends all entries of page `at`, whose bytes these are.
    pub(super) fn read_page(
        &self,
        at: usize,
        bytes: &[u8],
        out: &mut Vec<PrintEntry>,
    ) -> Result<(), Corrupt> {
        self.open_page(at, bytes)?.append_to(out)?;
        let last = out.last().map_or(0, |entry| entry.high);
        let fits = match self.index.get(at + 1) {
            Some(next) => last < next.first.get(),
            None => last <= self.last(),
        };
        ensure(fits, "index page", Reason::Order)
    }
}

fn read_filter<R: PageReader>(descriptor: &PartDescriptor, reader: &R) -> Option<Filter> {
    // Grown by what was read: how much it is to be is what a descriptor says.
    let (mut bytes, mut numbers) = (Vec::new(), 0..);
    for pages in descriptor.filter_pages.chunks(FILTER_AHEAD) {
        for (page, number) in reader.read_pages(pages).into_iter().zip(numbers.by_ref()) {
            bytes.extend_from_slice(decode_filter_page(&page.ok()?, descriptor.run.run, number).ok()?);
        }
    }
    Filter::from_bytes(descriptor.filter, &bytes)
}

/// Fields of a part's descriptor other than its pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(super) oldest: RunId,
    pub(super) newest: RunId,
    pub(super) covered: BlockId,
    pub(super) sampling: u8,
    pub(super) base: bool,
}

/// A part that is being written.
#[derive(Debug)]
pub(super) struct PartWriter {
    out: PagesOut,
    builder: PrintsBuilder,
    index: Vec<PageRef>,
    highs: Vec<u64>,
    gone: u64,
    bytes: u64,
}

impl PartWriter {
    pub(super) fn new(run: RunId) -> Self {
        Self {
            out: PagesOut::new(run),
            builder: PrintsBuilder::new(run),
            index: Vec::new(),
            highs: Vec::new(),
            gone: 0,
            bytes: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.highs.len()
    }

    pub(super) fn footprints(&self) -> impl Iterator<Item = Footprint> {
        self.out.footprints()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.highs.capacity() * size_of::<u64>() + self.index.capacity() * size_of::<PageRef>()
    }

    /// Adds an entry; gives the number of pages written.
    pub(super) fn push<W: PageWriter>(&mut self, entry: PrintEntry, io: &mut W) -> Result<usize, W::Error> {
        let full = !self.builder.has_room(&entry);
        if full {
            self.write_page(io)?;
        }
        self.builder.push(entry);
        self.highs.push(entry.high);
        self.gone += u64::from(entry.gone);
        Ok(usize::from(full))
    }

    fn write_page<W: PageWriter>(&mut self, io: &mut W) -> Result<(), W::Error> {
        let (first, payload) = self.builder.finish();
        self.bytes += payload.len() as u64;
        let ptr = self.out.write(&payload, io)?;
        self.index.push(PageRef { first: BlockId::new(first), ptr });
        Ok(())
    }

    /// Writes the last page, the filter and the index pages of a part that has an entry; gives the number of pages,
    /// too.
    pub(super) fn finish<W: PageWriter>(
        mut self,
        stamp: Stamp,
        io: &mut W,
    ) -> Result<(Part, usize), W::Error> {
        self.write_page(io)?;
        let run = self.out.run;
        let filter = Filter::build(&self.highs, stamp.base);
        let mut filter_pages = Vec::new();
        for (number, bytes) in filter.to_bytes().chunks(FILTER_PER_PAGE).enumerate() {
            filter_pages.push(self.out.write(&encode_filter_page(run, number as u32, bytes), io)?);
        }
        let (height, refs) = self.out.write_refs(self.index.clone(), io)?;
        let first = BlockId::new(self.highs[0]);
        let last = BlockId::new(self.highs[self.highs.len() - 1]);
        let descriptor = PartDescriptor {
            run: RunDescriptor {
                run,
                oldest: stamp.oldest,
                newest: stamp.newest,
                entries: self.highs.len() as u64,
                shadows: self.gone,
                bytes: self.bytes,
                first,
                last,
                pages: self.index.len() as u32,
                height,
                refs,
                footprints: self.out.footprints().collect(),
            },
            covered: stamp.covered,
            sampling: stamp.sampling,
            base: stamp.base,
            filter: filter.shape(),
            filter_pages,
        };
        let pages = 2 + descriptor.filter_pages.len();
        Ok((Part { descriptor, index: self.index.into(), filter: Some(filter) }, pages))
    }
}

/// Parts that follow one another.
#[derive(Debug, Clone, Default)]
pub(super) struct IndexRun {
    /// The writings of the memtable that are in it; of no meaning in the base.
    pub(super) oldest: RunId,
    pub(super) newest: RunId,
    parts: Vec<Arc<Part>>,
    /// Data of each part that look-ups need, side by side.
    firsts: Vec<u64>,
    filters: Vec<Option<Filter>>,
    /// Number of `firsts` below each multiple of 2^`shift`: fingerprints are spread evenly, so a step or none remains
    /// where a bisection would take a dozen, each of which waits for memory.
    jumps: Vec<u32>,
    shift: u32,
    /// For [`IndexRun::taken_to`]: the upper runs that parts have taken in, newest first, each with the last upper half
    /// up to which all parts have. One is enough unless the base is being folded into.
    steps: Vec<(RunId, u64)>,
}

impl IndexRun {
    /// The run of these parts, in order.
    pub(super) fn new(oldest: RunId, newest: RunId, parts: Vec<Arc<Part>>) -> Self {
        let firsts: Vec<_> = parts.iter().map(|part| part.first()).collect();
        let filters = parts.iter().map(|part| part.filter.clone()).collect();
        let shift = u64::BITS - (8 * parts.len()).next_power_of_two().max(2).ilog2();
        let below = |jump: u64| firsts.partition_point(|first| first >> shift < jump) as u32;
        let jumps = (0..1u64 << (u64::BITS - shift)).map(below).collect();
        let mut steps: Vec<(RunId, u64)> = Vec::new();
        for part in &parts {
            let taken = part.descriptor.run.newest;
            match steps.last_mut() {
                // A part behind one that has taken in less counts for no more than that one.
                Some((before, to)) if *before <= taken => *to = part.last(),
                _ => steps.push((taken, part.last())),
            }
        }
        Self { oldest, newest, parts, firsts, filters, jumps, shift, steps }
    }

    pub(super) fn parts(&self) -> &[Arc<Part>] {
        &self.parts
    }

    pub(super) fn entries(&self) -> u64 {
        self.parts.iter().map(|part| part.entries()).sum()
    }

    pub(super) fn entries_within(&self, from: u64, to: u64) -> u64 {
        self.parts.iter().map(|part| part.entries_within(from, to)).sum()
    }

    /// The last part that begins at or before this upper half.
    fn at(&self, high: u64) -> Option<usize> {
        let mut end = *self.jumps.get((high >> self.shift) as usize)? as usize;
        while self.firsts.get(end).is_some_and(|first| *first <= high) {
            end += 1;
        }
        end.checked_sub(1)
    }

    /// The part that holds fingerprints with this upper half, if one does, and its filter.
    pub(super) fn part_of(&self, high: u64) -> Option<(usize, &Filter)> {
        let at = self.at(high)?;
        Some((at, self.filters[at].as_ref()?))
    }

    /// Of the base: up to where it has taken in what the upper run `newest` said, if it has begun to. It does so in
    /// order of fingerprint.
    pub(super) fn taken_to(&self, newest: RunId) -> Option<u64> {
        self.steps.iter().take_while(|(taken, _)| *taken >= newest).last().map(|(_, to)| *to)
    }

    /// Puts `new` in the place of the parts that `leaves`; gives those.
    pub(super) fn replace(&mut self, leaves: impl Fn(&Part) -> bool, new: Vec<Arc<Part>>) -> Vec<Arc<Part>> {
        let (left, mut parts): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.parts).into_iter().partition(|part| leaves(part));
        parts.extend(new);
        parts.sort_by_key(|part| part.first());
        *self = Self::new(self.oldest, self.newest, parts);
        left
    }
}
