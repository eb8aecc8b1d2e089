//! One run: read through its page index, written page by page.

use crate::pages::{PageReader, PageWriter};
use crate::pages::{PagesOut, read_refs};
use larder_format::BlockId;
use larder_format::error::ensure;
use larder_format::run::{Delta, Footprint, LazyPage, PageBuilder, PageRef, RunDescriptor, RunId, RunPage};
use larder_format::{Corrupt, Reason};
use std::sync::Arc;

/// A complete run.
#[derive(Debug)]
pub(super) struct SortedRun {
    pub(super) descriptor: RunDescriptor,
    index: Arc<[PageRef]>,
    /// All its pages, or none.
    pages: Vec<RunPage>,
}

impl SortedRun {
    /// Reads the index pages of the run and, when it is to be `resident`, all its pages: with one of them unreadable
    /// it has none in memory, and what the others say is read when it is asked for.
    pub(super) fn open<R: PageReader>(
        descriptor: RunDescriptor,
        resident: bool,
        reader: &R,
    ) -> Result<Self, R::Error> {
        let index = read_refs(&descriptor, reader)?;
        let mut run = Self { descriptor, index: index.into(), pages: Vec::new() };
        if resident {
            let pages: Result<Vec<_>, _> = (0..run.index.len()).map(|at| run.page(at, reader)).collect();
            run.pages = pages.unwrap_or_default();
        }
        Ok(run)
    }

    /// Whether the run may say something of `id`.
    pub(super) fn covers(&self, id: BlockId) -> bool {
        (self.descriptor.first..=self.descriptor.last).contains(&id)
    }

    pub(super) fn is_resident(&self) -> bool {
        !self.pages.is_empty()
    }

    pub(super) fn without_pages(&self) -> Self {
        Self { descriptor: self.descriptor.clone(), index: Arc::clone(&self.index), pages: Vec::new() }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let pages: usize = self.pages.iter().map(|page| page.bytes().len() + size_of::<RunPage>()).sum();
        size_of_val(&*self.index) + pages + size_of::<Self>()
    }

    #[cfg(test)]
    pub(super) fn index(&self) -> &[PageRef] {
        &self.index
    }

    /// The page that holds `id`, if one does.
    pub(super) fn page_of(&self, id: BlockId) -> usize {
        self.index.partition_point(|page| page.first <= id).saturating_sub(1)
    }

    /// The first and the last id that page `at` may hold.
    pub(super) fn page_span(&self, at: usize) -> (BlockId, BlockId) {
        let next = self.index.get(at + 1).map(|next| BlockId::new(next.first.get() - 1));
        (self.index[at].first, next.unwrap_or(self.descriptor.last))
    }

    /// Page `at`, verified.
    pub(super) fn page<R: PageReader>(&self, at: usize, reader: &R) -> Result<RunPage, R::Error> {
        if let Some(page) = self.pages.get(at) {
            return Ok(page.clone());
        }
        let PageRef { first, ptr } = self.index[at];
        let page = RunPage::decode(reader.read_page(ptr)?, self.descriptor.run, at as u32)
            .map_err(|why| reader.refused(ptr, why))?;
        let end = self.index.get(at + 1).map_or(self.descriptor.last.get(), |next| next.first.get() - 1);
        if page.first() != first || page.last().get() > end {
            return Err(reader.refused(ptr, Corrupt::new("run page", Reason::Order)));
        }
        Ok(page)
    }

    /// The run's delta for `id`.
    pub(super) fn find<R: PageReader>(&self, id: BlockId, reader: &R) -> Result<Option<Delta>, R::Error> {
        if !self.covers(id) {
            return Ok(None);
        }
        let at = self.page_of(id);
        if let Some(page) = self.pages.get(at) {
            return Ok(page.find(id));
        }
        let PageRef { first, ptr } = self.index[at];
        let bytes = reader.read_page(ptr)?;
        LazyPage::open(&bytes, self.descriptor.run, at as u32)
            .and_then(|page| {
                ensure(page.first() == first, "run page", Reason::Order)?;
                page.find(id)
            })
            .map_err(|why| reader.refused(ptr, why))
    }
}

/// A run that is being written.
#[derive(Debug)]
pub(super) struct RunWriter {
    out: PagesOut,
    builder: PageBuilder,
    index: Vec<PageRef>,
    pages: Vec<RunPage>,
    /// Pages are kept while the run is no larger than this.
    resident_limit: u64,
    entries: u64,
    shadows: u64,
    bytes: u64,
    last: BlockId,
}

impl RunWriter {
    pub(super) fn new(run: RunId, resident_limit: u64) -> Self {
        Self {
            out: PagesOut::new(run),
            builder: PageBuilder::new(run),
            index: Vec::new(),
            pages: Vec::new(),
            resident_limit,
            entries: 0,
            shadows: 0,
            bytes: 0,
            last: BlockId::new(0),
        }
    }

    /// Whether the page at hand has to be written before the next entry.
    pub(super) fn page_is_full(&self) -> bool {
        self.builder.is_full()
    }

    /// Adds an entry to the page at hand; `shadow`: it changes what an older run may say.
    pub(super) fn push(&mut self, id: BlockId, delta: &Delta, shadow: bool) {
        self.builder.push(id, delta);
        self.entries += 1;
        self.shadows += u64::from(shadow);
        self.last = id;
    }

    pub(super) fn write_page<W: PageWriter>(&mut self, io: &mut W) -> Result<(), W::Error> {
        let payload = self.builder.finish();
        // Decoding proves that the page will be accepted when it is read back.
        let page = RunPage::decode(payload.into(), self.out.run, self.index.len() as u32)
            .expect("the builder's pages decode");
        let ptr = self.out.write(page.bytes(), io)?;
        self.index.push(PageRef { first: page.first(), ptr });
        self.bytes += page.bytes().len() as u64;
        if self.bytes <= self.resident_limit {
            self.pages.push(page);
        } else {
            self.pages.clear();
        }
        Ok(())
    }

    /// Writes what is left and the index pages. `None` when there was no entry.
    pub(super) fn finish<W: PageWriter>(
        &mut self,
        oldest: RunId,
        newest: RunId,
        io: &mut W,
    ) -> Result<Option<SortedRun>, W::Error> {
        if !self.builder.is_empty() {
            self.write_page(io)?;
        }
        let Some(first) = self.index.first().map(|page| page.first) else { return Ok(None) };
        let (height, refs) = self.out.write_refs(self.index.clone(), io)?;
        let descriptor = RunDescriptor {
            run: self.out.run,
            oldest,
            newest,
            entries: self.entries,
            shadows: self.shadows,
            bytes: self.bytes,
            first,
            last: self.last,
            pages: self.index.len() as u32,
            height,
            refs,
            footprints: self.out.footprints().collect(),
        };
        let (index, pages) = (std::mem::take(&mut self.index), std::mem::take(&mut self.pages));
        Ok(Some(SortedRun { descriptor, index: index.into(), pages }))
    }

    #[cfg(test)]
    pub(super) fn run(&self) -> RunId {
        self.out.run
    }

    pub(super) fn footprints(&self) -> impl Iterator<Item = Footprint> {
        self.out.footprints()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let pages: usize = self.pages.iter().map(|page| page.bytes().len()).sum();
        self.index.len() * size_of::<PageRef>() + pages + larder_format::run::PAGE_MAX
    }
}
