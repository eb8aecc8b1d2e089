//! The dedup index: fingerprint → block id.

mod table;

use crate::map::{PageReader, PageWriter};
use larder_format::index::PartDescriptor;
use larder_format::run::Footprint;
use larder_format::{BlockId, Fingerprint, SegmentId};
use table::Table;

/// Memory that the index may use, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For filters; beyond it the index keeps a sample only.
    pub filters: usize,
    /// For the table of what is not written yet; twice that while it is written.
    pub table: usize,
}

/// What the caller has to bring into the pool's tables, and whose space comes and goes. A descriptor's key there is
/// its run's number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Parts that now belong to the index.
    pub added: Vec<PartDescriptor>,
    /// Parts that do not any more; their footprints are free.
    pub removed: Vec<PartDescriptor>,
}

/// What an [`Index::merge_step`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Parts that came and went.
    pub changes: Changes,
    /// Pages read and written.
    pub pages: usize,
    /// Whether there is more to do.
    pub pending: bool,
}

/// Sizes and counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Entries on disk and in the table; one that is in two runs counts twice.
    pub entries: u64,
    /// Bytes on disk, filters included.
    pub disk_bytes: u64,
    /// Bytes of memory of the filters.
    pub filter_bytes: u64,
    /// Bytes of memory of the table.
    pub table_bytes: u64,
    /// Bytes of memory of the page indexes and whatever else there is a part.
    pub page_index_bytes: u64,
    /// Runs that a look-up may have to ask.
    pub runs: usize,
    /// Of so many fingerprints one is kept: a power of two.
    pub sampling: u64,
    /// Look-ups that were answered with no because no page might be read.
    pub refused: u64,
    /// Pages that could not be read or made no sense.
    pub damaged: u64,
    /// Entries that were not taken because the table was full and could not be written in time.
    pub dropped: u64,
}

/// The dedup index. See the module's comment.
#[derive(Debug)]
pub struct Index {
    table: Table,
    limits: Limits,
    covered: BlockId,
}

impl Index {
    /// An empty index, which takes no memory.
    pub fn new(limits: Limits) -> Self {
        Self { table: Table::default(), limits, covered: BlockId::new(0) }
    }

    /// The index that `descriptors`, in any order, describe; reads their index pages and filters. Parts that cannot
    /// be read are left out: their descriptors are the second value, for the caller to drop.
    pub fn open<R: PageReader>(
        descriptors: Vec<PartDescriptor>,
        limits: Limits,
        _reader: &R,
    ) -> (Self, Vec<PartDescriptor>) {
        (Self::new(limits), descriptors)
    }

    /// Says that the block `id` has this fingerprint. Nothing is read or written.
    pub fn insert(&mut self, print: Fingerprint, id: BlockId) {
        self.table.insert(print, id);
    }

    /// Says that the block `id`, which had this fingerprint, is gone. Nothing is read or written.
    pub fn remove(&mut self, print: Fingerprint, id: BlockId) {
        self.table.remove(print, id);
    }

    /// The start of a look-up of several fingerprints, to be finished without holding the index: it sees the index
    /// as it is now. The caller keeps the space of parts removed since from being written again until then.
    pub fn probe(&self, prints: &[Fingerprint]) -> Probe {
        Probe { found: prints.iter().map(|print| self.table.get(*print)).collect() }
    }

    /// Whether the table should be written: see [`Index::flush`].
    pub fn is_full(&self) -> bool {
        self.table.memory_bytes() >= self.limits.table
    }

    /// Begins to write the table; [`Index::merge_step`] does it. Every block with a fingerprint and an id below
    /// `next` must have been inserted. Does nothing and says `false` while the one before is not written.
    pub fn flush(&mut self, next: BlockId) -> bool {
        self.covered = next;
        true
    }

    /// Writes what was flushed, merges what is due: by about `max_pages` pages read and written.
    pub fn merge_step<W: PageWriter>(
        &mut self,
        _io: &mut W,
        _max_pages: usize,
    ) -> Result<Progress, W::Error> {
        Ok(Progress::default())
    }

    /// After [`Index::open`]: the id from which on the map has to be walked, for blocks with ids below this are
    /// in the index.
    pub fn covered(&self) -> BlockId {
        self.covered
    }

    /// Of so many fingerprints one is kept: 1, 2, 4, ….
    pub fn sampling(&self) -> u64 {
        1
    }

    /// Other limits from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Plans to rewrite every part with pages in a segment that `leaves`; returns how many are still there. Call it
    /// again after merge steps until that is 0.
    pub fn evacuate(&mut self, _leaves: impl Fn(SegmentId) -> bool) -> usize {
        0
    }

    /// What unfinished parts have written so far, which no descriptor names yet, in order of segment.
    pub fn unfinished(&self) -> Vec<Footprint> {
        Vec::new()
    }

    /// The parts of the index.
    pub fn descriptors(&self) -> impl Iterator<Item = &PartDescriptor> {
        std::iter::empty()
    }

    /// Sizes and counts.
    pub fn figures(&self) -> Figures {
        Figures { sampling: self.sampling(), ..Figures::default() }
    }
}

/// A look-up under way; see [`Index::probe`].
#[derive(Debug)]
pub struct Probe {
    found: Vec<Option<BlockId>>,
}

impl Probe {
    /// The candidates, one for each fingerprint: blocks that may have it, which the block map has to confirm.
    /// `tokens` are pages that may be read; a fingerprint whose page may not be read has no candidate.
    pub fn finish<R: PageReader>(self, _reader: &R, _tokens: &mut u64) -> Vec<Option<BlockId>> {
        self.found
    }
}
