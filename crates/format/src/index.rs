//! Parts of the dedup index: sorted, immutable, written once, as runs of the block map are.
//!
//! A part is a range of fingerprints in a run of the index. Its pages are pages of a run: *index pages* name *entry
//! pages* by the first fingerprint in them, as [`crate::run`] has it, with the upper half of a fingerprint in the
//! place of an id. A filter, in pages of its own, answers for most fingerprints that are not there.
//!
//! An entry page holds columns of fixed width: an entry is found in them by bisection, without decoding the others.

use crate::error::ensure;
use crate::field::Field;
use crate::ids::{MAX_COUNT, ensure_countable};
use crate::run::{PAGE_MAX, PageHead, PageKind, RunDescriptor, RunId, check_head};
use crate::{BlockId, BlockPtr, Corrupt, Fingerprint, Reason, layout};

/// Bytes at which an entry page is full.
pub const PRINTS_PAGE: usize = 16 << 10;
/// The most entries of a page.
pub const MAX_PRINTS: usize = 2048;
/// Bytes of filter in a full filter page.
pub const FILTER_PER_PAGE: usize = PAGE_MAX - PageHead::SIZE;
/// The most pages of a filter.
pub const MAX_FILTER_PAGES: usize = 64;
/// Values of a filter among which all of one fingerprint lie.
pub const RIBBON_WIDTH: usize = 64;
/// Bytes of a line of a filter.
pub const LINE: usize = 64;

const WHAT: &str = "index page";
const CHECK: usize = size_of::<u32>();

/// An entry of the dedup index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrintEntry {
    /// The fingerprint's upper half; no two entries of a part have the same.
    pub high: u64,
    /// The lowest 32 bits of its lower half.
    pub check: u32,
    /// The block.
    pub id: BlockId,
    /// The block is gone: if an older run names it, and no other, it is not meant.
    pub gone: bool,
}

impl PrintEntry {
    /// The entry that says that `id` has the fingerprint `print`, or had it when it is `gone`.
    pub fn new(print: Fingerprint, id: BlockId, gone: bool) -> Self {
        Self { high: print.high(), check: print.low() as u32, id, gone }
    }
}

layout! {
    /// Second head of an entry page, behind the [`PageHead`]; the columns follow.
    pub struct PrintsHead[16] {
        /// Added to each id of the page.
        base: BlockId = 0,
        /// Bytes of an entry's key: what is added to `first` for the upper half of its fingerprint.
        key_bytes: u8 = 8,
        /// Bytes of an entry's id.
        id_bytes: u8 = 9,
        /// Entries of blocks that are gone. Unless 0, a bit an entry follows the columns.
        gone: u16 = 10,
    }
}

const HEADS: usize = PageHead::SIZE + PrintsHead::SIZE;

/// Bytes that `value` needs, at least one.
fn width(value: u64) -> usize {
    (8 - value.leading_zeros() as usize / 8).max(1)
}

fn load_wide(from: &[u8], width: usize, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(&from[at * width..(at + 1) * width]);
    u64::from_le_bytes(bytes)
}

/// Collects entries into the payload of one page after the other.
#[derive(Debug)]
pub struct PrintsBuilder {
    run: RunId,
    number: u32,
    entries: Vec<PrintEntry>,
    /// The least and the greatest id.
    ids: (u64, u64),
}

impl PrintsBuilder {
    /// A builder of part `run`'s entry pages, from number 0.
    pub fn new(run: RunId) -> Self {
        Self { run, number: 0, entries: Vec::new(), ids: (u64::MAX, 0) }
    }

    /// Whether the page has no entry yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the page has room for `entry`.
    pub fn has_room(&self, entry: &PrintEntry) -> bool {
        let Some(first) = self.entries.first() else { return true };
        let key_bytes = width(entry.high - first.high);
        let id = entry.id.get();
        let id_bytes = width(self.ids.1.max(id) - self.ids.0.min(id));
        let count = self.entries.len() + 1;
        let bytes = HEADS + count * (key_bytes + CHECK + id_bytes) + count.div_ceil(8);
        bytes <= PRINTS_PAGE && count <= MAX_PRINTS
    }

    /// Adds an entry.
    ///
    /// # Panics
    /// When there is no room, or fingerprints do not ascend.
    pub fn push(&mut self, entry: PrintEntry) {
        assert!(self.entries.last().is_none_or(|last| last.high < entry.high), "fingerprints ascend");
        assert!(self.has_room(&entry), "a full page takes no entry");
        let id = entry.id.get();
        self.ids = (self.ids.0.min(id), self.ids.1.max(id));
        self.entries.push(entry);
    }

    /// The page's first upper half and its payload; the builder goes on with the next page.
    ///
    /// # Panics
    /// When the page is empty.
    pub fn finish(&mut self) -> (u64, Vec<u8>) {
        let entries = &self.entries;
        let (first, last) = match &entries[..] {
            [first, .., last] => (first.high, last.high),
            [only] => (only.high, only.high),
            [] => panic!("an empty page is not written"),
        };
        let base = self.ids.0;
        let (key_bytes, id_bytes) = (width(last - first), width(self.ids.1 - base));
        let gone = entries.iter().filter(|entry| entry.gone).count();
        let bitmap = if gone > 0 { entries.len().div_ceil(8) } else { 0 };
        let body = PrintsHead::SIZE + entries.len() * (key_bytes + CHECK + id_bytes) + bitmap;
        let mut out = Vec::with_capacity(PageHead::SIZE + body);
        out.resize(HEADS, 0);
        PageHead {
            run: self.run,
            number: self.number,
            kind: PageKind::Prints as u8,
            height: 0,
            count: entries.len() as u16,
            first: BlockId::new(first),
            restarts: 0,
            body: body as u16,
        }
        .put(&mut out);
        PrintsHead {
            base: BlockId::new(base),
            key_bytes: key_bytes as u8,
            id_bytes: id_bytes as u8,
            gone: gone as u16,
        }
        .put(&mut out[PageHead::SIZE..]);
        entries.iter().for_each(|e| out.extend_from_slice(&(e.high - first).to_le_bytes()[..key_bytes]));
        entries.iter().for_each(|e| out.extend_from_slice(&e.check.to_le_bytes()));
        entries.iter().for_each(|e| out.extend_from_slice(&(e.id.get() - base).to_le_bytes()[..id_bytes]));
        let bits = out.len();
        out.resize(bits + bitmap, 0);
        for (i, _) in entries.iter().enumerate().filter(|(_, entry)| entry.gone) {
            out[bits + i / 8] |= 1 << (i % 8);
        }
        self.entries.clear();
        self.ids = (u64::MAX, 0);
        self.number += 1;
        (first, out)
    }
}

/// An entry page whose heads have been verified; what its entries say is verified as they are read.
#[derive(Debug, Clone, Copy)]
pub struct PrintsPage<'a> {
    first: u64,
    base: u64,
    count: usize,
    keys: &'a [u8],
    checks: &'a [u8],
    ids: &'a [u8],
    gone: &'a [u8],
}

impl<'a> PrintsPage<'a> {
    /// Verifies that `bytes` are entry page `number` of part `run`.
    pub fn open(bytes: &'a [u8], run: RunId, number: u32) -> Result<Self, Corrupt> {
        let head = check_head(bytes, PageKind::Prints, run, 0, number)?;
        let prints = PrintsHead::get(&bytes[PageHead::SIZE..]).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let count = usize::from(head.count);
        let widths = 1..=8;
        let fits = widths.contains(&prints.key_bytes)
            && widths.contains(&prints.id_bytes)
            && count <= MAX_PRINTS
            && prints.gone <= head.count
            && head.restarts == 0;
        ensure(fits, WHAT, Reason::Range)?;
        let keys = count * usize::from(prints.key_bytes);
        let ids = count * usize::from(prints.id_bytes);
        let gone = if prints.gone > 0 { count.div_ceil(8) } else { 0 };
        let columns = &bytes[HEADS..];
        ensure(columns.len() == keys + count * CHECK + ids + gone, WHAT, Reason::Short)?;
        ensure(usize::from(head.body) == PrintsHead::SIZE + columns.len(), WHAT, Reason::Range)?;
        let (keys, columns) = columns.split_at(keys);
        let (checks, columns) = columns.split_at(count * CHECK);
        let (ids, gone) = columns.split_at(ids);
        let marked: u32 = gone.iter().map(|byte| byte.count_ones()).sum();
        ensure(marked == u32::from(prints.gone), WHAT, Reason::Range)?;
        Ok(Self { first: head.first.get(), base: prints.base.get(), count, keys, checks, ids, gone })
    }

    /// Entries in it.
    #[expect(clippy::len_without_is_empty, reason = "no page is empty")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The upper half of its first fingerprint, as its head says.
    pub fn first(&self) -> u64 {
        self.first
    }

    fn key(&self, at: usize) -> u64 {
        load_wide(self.keys, self.keys.len() / self.count, at)
    }

    fn entry(&self, at: usize) -> Result<PrintEntry, Corrupt> {
        let out_of_range = Corrupt::new(WHAT, Reason::Range);
        let high = self.first.checked_add(self.key(at)).ok_or(out_of_range)?;
        let id = load_wide(self.ids, self.ids.len() / self.count, at).checked_add(self.base);
        let id = id.filter(|id| *id <= MAX_COUNT).ok_or(out_of_range)?;
        let gone = self.gone.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 != 0);
        let check = u32::load(&self.checks[at * CHECK..]);
        Ok(PrintEntry { high, check, id: BlockId::new(id), gone })
    }

    /// The page's entry with this upper half of a fingerprint.
    pub fn find(&self, high: u64) -> Result<Option<PrintEntry>, Corrupt> {
        let Some(key) = high.checked_sub(self.first) else { return Ok(None) };
        let (mut low, mut end) = (0, self.count);
        while low < end {
            let middle = low.midpoint(end);
            if self.key(middle) < key {
                low = middle + 1;
            } else {
                end = middle;
            }
        }
        if low < self.count && self.key(low) == key { self.entry(low).map(Some) } else { Ok(None) }
    }

    /// All its entries, in order, behind those of `out`.
    pub fn append_to(&self, out: &mut Vec<PrintEntry>) -> Result<(), Corrupt> {
        let from = out.len();
        for at in 0..self.count {
            out.push(self.entry(at)?);
        }
        let found = &out[from..];
        ensure(found[0].high == self.first, WHAT, Reason::Identity)?;
        ensure(found.is_sorted_by(|a, b| a.high < b.high), WHAT, Reason::Order)
    }
}

/// Type and size of a filter. `SPEC.md` has the hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterShape {
    /// Values of a byte, of which a fingerprint has up to seven within [`RIBBON_WIDTH`] (after Dillinger and Walzer,
    /// *Ribbon filter: practically smaller than Bloom and Xor*, 2021).
    Ribbon {
        /// Seed of its hash.
        seed: u64,
        /// Number of values, at least [`RIBBON_WIDTH`].
        values: u32,
    },
    /// A Bloom filter whose bits of one fingerprint are in one line of [`LINE`] bytes (Putze, Sanders and Singler,
    /// *Cache-, Hash- and Space-Efficient Bloom Filters*, 2007).
    Bloom {
        /// Number of lines.
        lines: u32,
    },
}

const RIBBON_KIND: u8 = 1;
const BLOOM_KIND: u8 = 2;

impl FilterShape {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        match *self {
            Self::Ribbon { values, .. } => u64::from(values),
            Self::Bloom { lines } => u64::from(lines) * LINE as u64,
        }
    }
    /// Pages that hold it.
    pub fn pages(&self) -> u64 {
        self.bytes().div_ceil(FILTER_PER_PAGE as u64)
    }

    fn of(head: &PartHead, entries: u64) -> Result<Self, Corrupt> {
        let shape = match head.filter {
            RIBBON_KIND => Self::Ribbon { seed: head.seed, values: head.size },
            _ => Self::Bloom { lines: head.size },
        };
        let of_kind = match head.filter {
            RIBBON_KIND => head.size as usize >= RIBBON_WIDTH,
            BLOOM_KIND => head.seed == 0 && head.size > 0,
            _ => false,
        };
        let fits = of_kind
            // One byte and an eighth an entry, or one and a half; more in small ones.
            && shape.bytes() <= 64 + 4 * entries
            && shape.pages() <= MAX_FILTER_PAGES as u64;
        ensure(fits, "index descriptor", Reason::Range)?;
        Ok(shape)
    }
}

/// The payload of filter page `number` of part `run`.
///
/// # Panics
/// When it is nothing or more than [`FILTER_PER_PAGE`] bytes.
pub fn encode_filter_page(run: RunId, number: u32, bytes: &[u8]) -> Vec<u8> {
    assert!((1..=FILTER_PER_PAGE).contains(&bytes.len()), "a filter page holds something, and not too much");
    let mut out = Vec::with_capacity(PageHead::SIZE + bytes.len());
    out.resize(PageHead::SIZE, 0);
    let head = PageHead {
        run,
        number,
        kind: PageKind::Filter as u8,
        height: 0,
        count: 1,
        first: BlockId::new(0),
        restarts: 0,
        body: bytes.len() as u16,
    };
    head.put(&mut out);
    out.extend_from_slice(bytes);
    out
}

/// Verifies that `bytes` are filter page `number` of part `run`; returns what it holds.
pub fn decode_filter_page(bytes: &[u8], run: RunId, number: u32) -> Result<&[u8], Corrupt> {
    let head = check_head(bytes, PageKind::Filter, run, 0, number)?;
    let body = &bytes[PageHead::SIZE..];
    let fits = (1..=FILTER_PER_PAGE).contains(&body.len()) && body.len() == usize::from(head.body);
    let plain = (head.count, head.first.get(), head.restarts) == (1, 0, 0);
    ensure(fits && plain, "filter page", Reason::Range)?;
    Ok(body)
}

layout! {
    /// The fixed part of a [`PartDescriptor`]; the run's descriptor and the places of the filter's pages follow.
    pub struct PartHead[24] {
        /// Ids below this were in the index when the newest of the part's entries was written.
        covered: BlockId = 0,
        /// Seed of the filter, if it has one.
        seed: u64 = 8,
        /// Values or lines of the filter.
        size: u32 = 16,
        /// 1 when the filter is a band, 2 when it has lines.
        filter: u8 = 20,
        /// Only fingerprints whose lowest `sampling` bits are 0 are in it.
        sampling: u8 = 21,
        /// 1 when the part belongs to the base.
        base: u8 = 22,
    }
}

/// A part of the dedup index, as the pool's tables record it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartDescriptor {
    /// Its pages; `first` and `last` are upper halves of fingerprints, `shadows` counts the entries of blocks that
    /// are gone, `oldest` and `newest` say which writings of the table are in it. The footprints include the filter.
    pub run: RunDescriptor,
    /// Ids below this were in the index when the newest of its entries was written.
    pub covered: BlockId,
    /// Only fingerprints whose lowest `sampling` bits are 0 are in it.
    pub sampling: u8,
    /// Whether it belongs to the base; else to a run above it.
    pub base: bool,
    /// Its filter.
    pub filter: FilterShape,
    /// The filter's pages, in order.
    pub filter_pages: Vec<BlockPtr>,
}

impl PartDescriptor {
    /// Appends the descriptor to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.resize(at + PartHead::SIZE, 0);
        let (filter, seed, size) = match self.filter {
            FilterShape::Ribbon { seed, values } => (RIBBON_KIND, seed, values),
            FilterShape::Bloom { lines } => (BLOOM_KIND, 0, lines),
        };
        PartHead {
            covered: self.covered,
            seed,
            size,
            filter,
            sampling: self.sampling,
            base: u8::from(self.base),
        }
        .put(&mut out[at..]);
        self.run.encode(out);
        let at = out.len();
        out.resize(at + self.filter_pages.len() * BlockPtr::SIZE, 0);
        for (page, to) in self.filter_pages.iter().zip(out[at..].chunks_exact_mut(BlockPtr::SIZE)) {
            page.store(to);
        }
    }

    /// Reads a descriptor from the start of `bytes`; returns it and its length.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), Corrupt> {
        const WHAT: &str = "index descriptor";
        let short = Corrupt::new(WHAT, Reason::Short);
        let head = PartHead::get(bytes).ok_or(short)?;
        ensure(head.base <= 1 && u32::from(head.sampling) <= u32::BITS, WHAT, Reason::Range)?;
        ensure_countable(&[head.covered.get()], WHAT)?;
        let (run, run_len) = RunDescriptor::decode(&bytes[PartHead::SIZE..])?;
        let filter = FilterShape::of(&head, run.entries)?;
        let at = PartHead::SIZE + run_len;
        let end = at + filter.pages() as usize * BlockPtr::SIZE;
        let pages = bytes.get(at..end).ok_or(short)?.chunks_exact(BlockPtr::SIZE);
        let filter_pages = pages.map(|page| BlockPtr::load(page).checked()).collect::<Result<_, _>>()?;
        let (covered, sampling, base) = (head.covered, head.sampling, head.base != 0);
        Ok((Self { run, covered, sampling, base, filter, filter_pages }, end))
    }
}

#[cfg(test)]
mod tests;
