//! Runs: sorted, immutable, written once. Their pages, their page index and their descriptor.
//!
//! A run of the block map is a sequence of *entry pages*, each the plain payload of one block of kind
//! `Run` and at most [`PAGE_MAX`] bytes. *Index pages* name the pages below them by first id and place,
//! in as many levels as it takes until [`DESCRIPTOR_REFS`] references name everything; those stand in
//! the run's descriptor, which the pool's tables hold. Every page says which run it belongs to and where
//! in it, so that a stale or misdirected page is recognised.
//!
//! `SPEC.md` has the bytes of an entry. What it does not say is there because it was expected, from the
//! entry before; expectations are forgotten at each restart and, for offsets, with each new segment. So a
//! stream of ids and places that both ascend costs 2 to 5 bytes an entry.

use crate::error::ensure;
use crate::field::Field;
pub use crate::ids::MAX_PLACES;
use crate::ids::ensure_countable;
use crate::segment::MAX_SLOT;
use crate::{BLOCK_STEP, BlockId, BlockPtr, Corrupt, Fingerprint, Place, Reason, SegmentId, layout};

mod page;
pub use page::{LazyPage, PageBuilder, PageCursor, RESTART_EVERY, RunPage};

/// The most bytes of a page, before it is encoded and framed as a block.
pub const PAGE_MAX: usize = 32 << 10;
/// The most references that a descriptor holds.
pub const DESCRIPTOR_REFS: usize = 4;
/// References in a full index page.
pub const REFS_PER_PAGE: usize = (PAGE_MAX - PageHead::SIZE) / PageRef::SIZE;
/// The most levels of index pages: enough for 2^32 entry pages.
const MAX_HEIGHT: u8 = 3;

const WHAT: &str = "run page";

/// A run's number in its pool; it says nothing about age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RunId(u64);

impl RunId {
    /// Wraps a number that is known to be one.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("run numbers never run out"))
    }
}

impl Field for RunId {
    const SIZE: usize = 8;
    fn store(&self, out: &mut [u8]) {
        self.0.store(out);
    }
    fn load(from: &[u8]) -> Self {
        Self(u64::load(from))
    }
}

/// Marks of a block: a set of bits. Five are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Marks(u8);

impl Marks {
    /// No mark.
    pub const NONE: Self = Self(0);
    /// The id may be referenced more than once; only the trace clears it.
    pub const SHARED: Self = Self(1);
    /// The fingerprint of its content is known, and the dedup index may name the id.
    pub const INDEXED: Self = Self(2);
    /// A reference to the id was dropped; its place is freed when the free queue comes to it, unless the id is
    /// shared.
    pub const DEAD: Self = Self(4);
    /// An alias may name the id, which is shared and no alias; only the trace clears it.
    pub const ALIASED: Self = Self(8);
    /// Every mark, reserved ones too.
    pub const ALL: Self = Self(0xff);

    /// The marks in either set.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// The marks that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// Whether every mark of `other` is here.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One to [`MAX_PLACES`] places of one block, each inside a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Places {
    len: u8,
    at: [Place; MAX_PLACES],
}

impl Places {
    /// The places, when they are 1 to [`MAX_PLACES`] and each lies inside the largest slot.
    pub fn new(places: &[Place]) -> Result<Self, Corrupt> {
        ensure((1..=MAX_PLACES).contains(&places.len()), "places", Reason::Range)?;
        places.iter().try_for_each(|place| place.checked().map(drop))?;
        let mut at = [Place { segment: SegmentId::new(0), column: 0, offset: 0, stored: 0 }; MAX_PLACES];
        at[..places.len()].copy_from_slice(places);
        Ok(Self { len: places.len() as u8, at })
    }
}

impl std::ops::Deref for Places {
    type Target = [Place];
    fn deref(&self) -> &[Place] {
        &self.at[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Effect of a [`Delta`] on where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Stays what it was.
    Keep,
    /// The block is at these places.
    Places(Places),
    /// The block's content is that of another block.
    Alias(BlockId),
    /// The block is gone.
    Deleted,
}

/// A run's entry for an id: a change to what older runs say of it.
///
/// A delta is a function: the target is kept or replaced, each mark is kept, set or cleared; a fingerprint comes and
/// goes with its mark. Composing such functions is associative, so it does not matter in which order neighbouring
/// runs are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Delta {
    /// Effect on the target.
    pub target: Target,
    /// Marks that it sets.
    pub set: Marks,
    /// Marks that it clears; none of `set`.
    pub clear: Marks,
    /// The fingerprint that it sets: there is one exactly when `set` has [`Marks::INDEXED`].
    pub print: Option<Fingerprint>,
}

impl Delta {
    /// The delta that changes nothing.
    pub const NONE: Self = Self { target: Target::Keep, set: Marks::NONE, clear: Marks::NONE, print: None };
    /// The block is gone and with it every mark.
    pub const DELETE: Self =
        Self { target: Target::Deleted, set: Marks::NONE, clear: Marks::ALL, print: None };

    /// The delta that sets a fingerprint.
    pub const fn of_print(print: Fingerprint) -> Self {
        Self { target: Target::Keep, set: Marks::INDEXED, clear: Marks::NONE, print: Some(print) }
    }

    /// This delta after `older`, as one delta.
    #[must_use]
    pub fn over(self, older: Self) -> Self {
        let target = if self.target == Target::Keep { older.target } else { self.target };
        let set = older.set.without(self.clear).with(self.set);
        let print = self.print.or(older.print.filter(|_| !self.drops_print()));
        Self { target, set, clear: older.clear.with(self.clear).without(set), print }
    }

    /// Whether the fingerprint that was known before is not any more.
    pub fn drops_print(&self) -> bool {
        self.clear.contains(Marks::INDEXED)
    }

    /// Whether nothing older can show through.
    pub fn is_final(&self) -> bool {
        self.target != Target::Keep && self.set.with(self.clear) == Marks::ALL
    }

    /// The same delta where nothing older exists: what remains to be said, if anything. Deletions and
    /// cleared marks vanish; marks set on an id without a target wait for one.
    pub fn on_nothing(self) -> Option<Self> {
        let target = if self.target == Target::Deleted { Target::Keep } else { self.target };
        let delta = Self { target, set: self.set, clear: Marks::NONE, print: self.print };
        (delta != Self::NONE).then_some(delta)
    }
}

/// Kind of a page of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageKind {
    MapEntries = 1,
    Index = 2,
    Prints = 3,
    Filter = 4,
}

layout! {
    /// The start of every page.
    pub struct PageHead[32] {
        /// The run.
        run: RunId = 0,
        /// The page's number among the run's pages of its height, from 0.
        number: u32 = 8,
        /// 1: entries of the block map; 2: references to pages; 3: entries of the dedup index; 4: filter.
        kind: u8 = 12,
        /// Levels of pages below this one.
        height: u8 = 13,
        /// Entries or references in it, at least 1.
        count: u16 = 14,
        /// The first id in or below it.
        first: BlockId = 16,
        /// Offsets in the table behind the head; 0 in an index page.
        restarts: u16 = 24,
        /// Bytes of body behind that table.
        body: u16 = 26,
    }
}

pub(crate) fn check_head(
    bytes: &[u8],
    kind: PageKind,
    run: RunId,
    height: u8,
    number: u32,
) -> Result<PageHead, Corrupt> {
    let head = PageHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
    ensure(head.kind == kind as u8, WHAT, Reason::Kind)?;
    let same = (head.run, head.height, head.number) == (run, height, number);
    ensure(same, WHAT, Reason::Identity)?;
    ensure(head.count > 0, WHAT, Reason::Range)?;
    Ok(head)
}

/// Names a page of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRef {
    /// The first id in or below the page.
    pub first: BlockId,
    /// The block that holds it.
    pub ptr: BlockPtr,
}

impl Field for PageRef {
    const SIZE: usize = BlockId::SIZE + BlockPtr::SIZE;
    fn store(&self, out: &mut [u8]) {
        self.first.store(out);
        self.ptr.store(&mut out[BlockId::SIZE..]);
    }
    fn load(from: &[u8]) -> Self {
        Self { first: BlockId::load(from), ptr: BlockPtr::load(&from[BlockId::SIZE..]) }
    }
}

/// Page references name places that can be, and ids that ascend.
fn ascend(refs: &[PageRef], what: &'static str) -> Result<(), Corrupt> {
    refs.iter().try_for_each(|page| page.ptr.checked().map(drop))?;
    ensure(refs.is_sorted_by(|a, b| a.first < b.first), what, Reason::Order)
}

/// The payload of index page `number` of its height (1: right above the entry pages).
///
/// # Panics
/// When `refs` are none or more than [`REFS_PER_PAGE`].
pub fn encode_index_page(run: RunId, height: u8, number: u32, refs: &[PageRef]) -> Vec<u8> {
    assert!((1..=REFS_PER_PAGE).contains(&refs.len()) && (1..=MAX_HEIGHT).contains(&height));
    let mut out = vec![0; PageHead::SIZE + refs.len() * PageRef::SIZE];
    PageHead {
        run,
        number,
        kind: PageKind::Index as u8,
        height,
        count: refs.len() as u16,
        first: refs[0].first,
        restarts: 0,
        body: (refs.len() * PageRef::SIZE) as u16,
    }
    .put(&mut out);
    for (page, to) in refs.iter().zip(out[PageHead::SIZE..].chunks_exact_mut(PageRef::SIZE)) {
        page.store(to);
    }
    out
}

/// Verifies that `bytes` are index page `number` of height `height` of run `run`; returns what it names.
pub fn decode_index_page(bytes: &[u8], run: RunId, height: u8, number: u32) -> Result<Vec<PageRef>, Corrupt> {
    let head = check_head(bytes, PageKind::Index, run, height, number)?;
    let len = usize::from(head.count) * PageRef::SIZE;
    let body = &bytes[PageHead::SIZE..];
    ensure(body.len() >= len, WHAT, Reason::Short)?;
    ensure(body.len() == len && usize::from(head.count) <= REFS_PER_PAGE, WHAT, Reason::Range)?;
    ensure(usize::from(head.body) == len && head.restarts == 0, WHAT, Reason::Range)?;
    let refs: Vec<_> = body.chunks_exact(PageRef::SIZE).map(PageRef::load).collect();
    ensure(refs[0].first == head.first, WHAT, Reason::Identity)?;
    ascend(&refs, WHAT)?;
    Ok(refs)
}

/// Space of a run in one segment: dropping the run gives it back without reading the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// The segment.
    pub segment: SegmentId,
    /// Pages of the run in it.
    pub blocks: u32,
    /// Their footprints, bytes.
    pub bytes: u64,
}

impl Field for Footprint {
    const SIZE: usize = 20;
    fn store(&self, out: &mut [u8]) {
        self.segment.store(out);
        self.blocks.store(&mut out[8..]);
        self.bytes.store(&mut out[12..]);
    }
    fn load(from: &[u8]) -> Self {
        Self { segment: SegmentId::load(from), blocks: u32::load(&from[8..]), bytes: u64::load(&from[12..]) }
    }
}

layout! {
    /// The fixed part of a [`RunDescriptor`]; references (32 bytes each) and footprints (20 bytes each)
    /// follow it.
    pub struct RunHead[80] {
        /// The run's number, which its pages repeat.
        run: RunId = 0,
        /// The first of the checkpoints merged into it, by number.
        oldest: RunId = 8,
        /// The last of them: runs are as old as this says, and no two overlap.
        newest: RunId = 16,
        /// Entries in it.
        entries: u64 = 24,
        /// Entries that change what an older run may say.
        shadows: u64 = 32,
        /// Bytes of its entry pages' payloads.
        bytes: u64 = 40,
        /// Its first id.
        first: BlockId = 48,
        /// Its last id.
        last: BlockId = 56,
        /// Entry pages.
        pages: u32 = 64,
        /// Levels of index pages; with 0 the references name entry pages.
        height: u8 = 68,
        /// Number of references that follow.
        refs: u8 = 69,
        /// Number of footprints that follow.
        footprints: u32 = 72,
    }
}

/// A run, as the pool's tables record it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDescriptor {
    /// The run's number, which its pages repeat.
    pub run: RunId,
    /// The first of the checkpoints merged into it, by number.
    pub oldest: RunId,
    /// The last of them: runs are as old as this says, and no two overlap.
    pub newest: RunId,
    /// Entries in it.
    pub entries: u64,
    /// Entries that change what an older run may say.
    pub shadows: u64,
    /// Bytes of its entry pages' payloads.
    pub bytes: u64,
    /// Its first id.
    pub first: BlockId,
    /// Its last id.
    pub last: BlockId,
    /// Entry pages.
    pub pages: u32,
    /// Levels of index pages; with 0 the references name entry pages.
    pub height: u8,
    /// The topmost pages, at most [`DESCRIPTOR_REFS`].
    pub refs: Vec<PageRef>,
    /// Its space in each segment, in order of segment.
    pub footprints: Vec<Footprint>,
}

impl RunDescriptor {
    /// Appends the descriptor to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        let refs_at = at + RunHead::SIZE;
        let footprints_at = refs_at + self.refs.len() * PageRef::SIZE;
        out.resize(footprints_at + self.footprints.len() * Footprint::SIZE, 0);
        RunHead {
            run: self.run,
            oldest: self.oldest,
            newest: self.newest,
            entries: self.entries,
            shadows: self.shadows,
            bytes: self.bytes,
            first: self.first,
            last: self.last,
            pages: self.pages,
            height: self.height,
            refs: self.refs.len() as u8,
            footprints: self.footprints.len() as u32,
        }
        .put(&mut out[at..]);
        for (i, page) in self.refs.iter().enumerate() {
            page.store(&mut out[refs_at + i * PageRef::SIZE..]);
        }
        for (i, footprint) in self.footprints.iter().enumerate() {
            footprint.store(&mut out[footprints_at + i * Footprint::SIZE..]);
        }
    }

    /// Reads a descriptor from the start of `bytes`; returns it and its length.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), Corrupt> {
        const WHAT: &str = "run descriptor";
        let short = Corrupt::new(WHAT, Reason::Short);
        let head = RunHead::get(bytes).ok_or(short)?;
        let refs_len = usize::from(head.refs) * PageRef::SIZE;
        let footprints_len = head.footprints as usize * Footprint::SIZE;
        let rest = &bytes[RunHead::SIZE..];
        let len = refs_len.checked_add(footprints_len).ok_or(short)?;
        let (refs, footprints) = rest.get(..len).ok_or(short)?.split_at(refs_len);
        let descriptor = Self {
            run: head.run,
            oldest: head.oldest,
            newest: head.newest,
            entries: head.entries,
            shadows: head.shadows,
            bytes: head.bytes,
            first: head.first,
            last: head.last,
            pages: head.pages,
            height: head.height,
            refs: refs.chunks_exact(PageRef::SIZE).map(PageRef::load).collect(),
            footprints: footprints.chunks_exact(Footprint::SIZE).map(Footprint::load).collect(),
        };
        let counts = (1..=DESCRIPTOR_REFS).contains(&descriptor.refs.len())
            && head.height <= MAX_HEIGHT
            && u64::from(head.pages) >= descriptor.refs.len() as u64
            && head.entries >= u64::from(head.pages)
            && head.entries <= u64::from(head.pages) * u64::from(u16::MAX)
            && head.bytes <= u64::from(head.pages) * PAGE_MAX as u64
            && head.shadows <= head.entries
            && (head.height > 0 || head.pages == u32::from(head.refs));
        ensure(counts, WHAT, Reason::Range)?;
        ensure(head.oldest <= head.newest, WHAT, Reason::Range)?;
        ensure_countable(&[head.run.get(), head.newest.get()], WHAT)?;
        ensure(head.first <= head.last && descriptor.refs[0].first == head.first, WHAT, Reason::Order)?;
        ascend(&descriptor.refs, WHAT)?;
        let in_order = descriptor.footprints.is_sorted_by(|a, b| a.segment < b.segment);
        ensure(in_order, WHAT, Reason::Order)?;
        let most = u64::from(MAX_SLOT);
        let fit = |f: &Footprint| f.bytes <= most && u64::from(f.blocks) * u64::from(BLOCK_STEP) <= f.bytes;
        ensure(descriptor.footprints.iter().all(fit), WHAT, Reason::Range)?;
        Ok((descriptor, RunHead::SIZE + len))
    }
}

#[cfg(test)]
mod tests;
