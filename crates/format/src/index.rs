//! Parts of the dedup index: sorted, immutable, written once, as runs of the block map are.
//!
//! A part is a range of fingerprints in a run of the index. Its pages are pages of a run: *index pages* name *entry
//! pages* by the first fingerprint in them, as [`crate::run`] has it, with the upper half of a fingerprint in the
//! place of an id. A filter, in pages of its own, answers for most fingerprints that are not there.

use crate::error::ensure;
use crate::field::Field;
use crate::ids::ensure_countable;
use crate::run::{DESCRIPTOR_REFS, MAX_HEIGHT, PAGE_MAX, PageHead, PageRef, RunDescriptor, ascend};
use crate::{BlockId, Corrupt, Reason, layout};

/// Bytes of filter in a full filter page.
pub const FILTER_PER_PAGE: usize = PAGE_MAX - PageHead::SIZE;
/// The most that `window` of a filter may be.
pub const MAX_WINDOW: u32 = 1 << 18;

layout! {
    /// The fixed part of a [`PartDescriptor`]; the run's descriptor and the references to the filter's topmost
    /// pages follow.
    pub struct PartHead[40] {
        /// Ids below this were in the index when the newest of the part's entries was written.
        covered: BlockId = 0,
        /// Seed of the filter.
        seed: u64 = 8,
        /// Windows of the filter.
        windows: u32 = 16,
        /// Values in a window of the filter: a power of two, at most [`MAX_WINDOW`].
        window: u32 = 20,
        /// Bytes of a value of the filter: 1 or 2.
        width: u8 = 24,
        /// Only fingerprints whose lowest `sampling` bits are 0 are kept.
        sampling: u8 = 25,
        /// 1 when the part belongs to the base.
        base: u8 = 26,
        /// Levels of index pages above the filter's pages.
        filter_height: u8 = 27,
        /// References to the filter's topmost pages.
        filter_refs: u8 = 28,
    }
}

/// What a filter is made with. It is a binary fuse filter (Graf and Lemire, 2022): `windows` + 2 windows of
/// `window` values; a fingerprint is in it when the values at three places, one each in three windows that follow
/// one another, give its check by exclusive or.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterShape {
    /// Seed of its hash.
    pub seed: u64,
    /// Windows in which the first place may be.
    pub windows: u32,
    /// Values in a window, a power of two.
    pub window: u32,
    /// Bytes of a value: 1 or 2.
    pub width: u8,
}

impl FilterShape {
    /// Values in it.
    pub fn values(&self) -> u64 {
        (u64::from(self.windows) + 2) * u64::from(self.window)
    }
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.values() * u64::from(self.width)
    }
    /// Pages that hold it.
    pub fn pages(&self) -> u64 {
        self.bytes().div_ceil(FILTER_PER_PAGE as u64)
    }
}

/// What the pool's tables keep of a part of the dedup index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartDescriptor {
    /// Its pages; `first` and `last` are upper halves of fingerprints, `shadows` counts its tombstones, `oldest` and
    /// `newest` say which writings of the table are in it.
    pub run: RunDescriptor,
    /// Ids below this were in the index when the newest of its entries was written.
    pub covered: BlockId,
    /// Only fingerprints whose lowest `sampling` bits are 0 are kept.
    pub sampling: u8,
    /// Whether it belongs to the base; else to a run above it.
    pub base: bool,
    /// Its filter.
    pub filter: FilterShape,
    /// Levels of index pages above the filter's pages.
    pub filter_height: u8,
    /// The filter's topmost pages; `first` is the number of the first page below.
    pub filter_refs: Vec<PageRef>,
}

impl PartDescriptor {
    /// Appends the descriptor to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.resize(at + PartHead::SIZE, 0);
        PartHead {
            covered: self.covered,
            seed: self.filter.seed,
            windows: self.filter.windows,
            window: self.filter.window,
            width: self.filter.width,
            sampling: self.sampling,
            base: u8::from(self.base),
            filter_height: self.filter_height,
            filter_refs: self.filter_refs.len() as u8,
        }
        .put(&mut out[at..]);
        self.run.encode(out);
        let at = out.len();
        out.resize(at + self.filter_refs.len() * PageRef::SIZE, 0);
        for (page, to) in self.filter_refs.iter().zip(out[at..].chunks_exact_mut(PageRef::SIZE)) {
            page.store(to);
        }
    }

    /// Reads a descriptor from the start of `bytes`; returns it and its length.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), Corrupt> {
        const WHAT: &str = "index descriptor";
        let short = Corrupt::new(WHAT, Reason::Short);
        let head = PartHead::get(bytes).ok_or(short)?;
        let (run, run_len) = RunDescriptor::decode(&bytes[PartHead::SIZE..])?;
        let refs_at = PartHead::SIZE + run_len;
        let refs_len = usize::from(head.filter_refs) * PageRef::SIZE;
        let refs = bytes.get(refs_at..refs_at + refs_len).ok_or(short)?;
        let filter =
            FilterShape { seed: head.seed, windows: head.windows, window: head.window, width: head.width };
        let descriptor = Self {
            run,
            covered: head.covered,
            sampling: head.sampling,
            base: head.base != 0,
            filter,
            filter_height: head.filter_height,
            filter_refs: refs.chunks_exact(PageRef::SIZE).map(PageRef::load).collect(),
        };
        let refs = descriptor.filter_refs.len();
        let flags = head.base <= 1 && head.sampling < 32 && head.filter_height <= MAX_HEIGHT;
        let shape = head.window.is_power_of_two()
            && head.window <= MAX_WINDOW
            && head.windows > 0
            && matches!(head.width, 1 | 2)
            // A value is 1.125 to some entries; small filters are a little larger.
            && filter.values() <= 64 + 4 * descriptor.run.entries;
        let pages = (1..=DESCRIPTOR_REFS).contains(&refs)
            && filter.pages() >= refs as u64
            && (head.filter_height > 0 || filter.pages() == refs as u64);
        ensure(flags && shape && pages, WHAT, Reason::Range)?;
        ensure_countable(&[head.covered.get()], WHAT)?;
        ascend(&descriptor.filter_refs, WHAT)?;
        Ok((descriptor, refs_at + refs_len))
    }
}
