//! One stripe: which of its columns are right, and what the right ones give back.
//!
//! Headers hold the sums of all columns, so it is known which columns are wrong, and nothing is believed that does
//! not match its sum. Where too many are wrong as a whole, blocks may still be had one by one: from a copy that is
//! wrong elsewhere, or by parity over columns that are ([`Salvage`]). What they make up is held against the sum again.

use bytes::Bytes;
use larder_device::AlignedBuf;
use larder_format::block::{self, BLOCK_MAGIC, BlockKind, CheckedHeader};
use larder_format::checksum::{Sums, fast128};
use larder_format::root::RootImport;
use larder_format::segment::{SegmentKind, StripeHeader, stripe_header_len};
use larder_format::{BLOCK_STEP, BlockId, CommitId, Place};
use larder_mutants::{Mutant, mutated};
use larder_pool::Lost;
use larder_pool::Pool;
use larder_store::is_of_history;
use larder_store::parity;
use larder_store::search_column;
use larder_store::segments::Segment;
use std::collections::BTreeSet;
use std::ops::Range;

/// A column as its device gave it, header and all.
pub(super) enum Column {
    /// As the sums say.
    Right(Bytes),
    /// Something else, or nothing.
    Wrong(Option<Bytes>),
    /// Nobody asked, or its device is not in use.
    Unread,
}

/// Values that headers are checked against, besides their checksums.
pub(super) struct Expected<'a> {
    pub sums: &'a Sums,
    pub segment: &'a Segment,
    /// Stripes end here at the latest.
    pub end: u32,
    /// The pool's imports, the latest first.
    pub history: &'a [RootImport],
}

impl Expected<'_> {
    /// The header of the stripe at `offset` in `column`, when it is intact and belongs there.
    ///
    /// A crash leaves stripes above what was committed, and later imports write others in their places. A write that
    /// got lost shows such an old stripe, intact: it is told by its import, which is not the one that its commit
    /// belongs to.
    pub(super) fn header(&self, column: usize, offset: u32, bytes: &[u8]) -> Option<StripeHeader> {
        let header = StripeHeader::check(self.sums, bytes).ok()?;
        let fits = header.segment == self.segment.id
            && header.offset == offset
            && usize::from(header.column) == column
            && header.sums.len() == self.segment.layout.columns()
            && header.height > stripe_header_len(header.sums.len())
            && header.height.is_multiple_of(larder_format::segment::STRIPE_STEP)
            && header.height <= self.end.checked_sub(offset)?;
        // A log record is stamped with the commit that was to come, which may be the next import's.
        let is_log = self.segment.kind == SegmentKind::Log;
        let own_import = is_log && header.incarnation == self.segment.incarnation;
        let fits = fits && (own_import || !is_log && self.belongs(&header));
        fits.then_some(header)
    }

    fn belongs(&self, header: &StripeHeader) -> bool {
        mutated(Mutant::OldStripeBelieved) || is_of_history(self.history, header.commit, header.incarnation)
    }
}

/// A stripe under repair.
pub(super) struct Stripe {
    /// The header of one of its columns.
    pub header: StripeHeader,
    /// All of them.
    pub columns: Vec<Column>,
    /// Data columns that were put together from parts, without their headers.
    salvaged: Vec<Option<Bytes>>,
    /// Salvaged parts of those that stayed incomplete.
    partial: Vec<Option<Salvage>>,
}

impl Stripe {
    /// The stripe that `header` tells of, of which nothing was read yet.
    pub(super) fn new(segment: &Segment, header: StripeHeader) -> Self {
        let columns = (0..segment.layout.columns()).map(|_| Column::Unread).collect();
        let k = segment.layout.k();
        Self { header, columns, salvaged: vec![None; k], partial: (0..k).map(|_| None).collect() }
    }

    /// Its bytes, from the start of the slot.
    pub(super) fn range(&self) -> Range<u32> {
        self.header.offset..self.header.offset + self.header.height
    }

    /// Judges a column's `bytes`.
    pub(super) fn judge(&self, expected: &Expected<'_>, column: usize, bytes: Bytes) -> Column {
        let head = expected.header(column, self.header.offset, &bytes);
        let same =
            head.is_some_and(|head| head.height == self.header.height && head.sums == self.header.sums);
        let right = same
            && bytes.len() == self.header.height as usize
            && (fast128(expected.sums, &bytes[self.head_len()..]) == self.header.sums[column]
                || mutated(Mutant::ReconstructsUnproven));
        if right { Column::Right(bytes) } else { Column::Wrong(Some(bytes)) }
    }

    fn head_len(&self) -> usize {
        stripe_header_len(self.header.sums.len()) as usize
    }

    /// A column behind its header, when it is right.
    fn right(&self, column: usize) -> Option<&[u8]> {
        match &self.columns[column] {
            Column::Right(bytes) => Some(&bytes[self.head_len()..]),
            _ => None,
        }
    }

    /// Data column `i` behind its header, from whichever replica is right.
    fn data(&self, segment: &Segment, i: usize) -> Option<&[u8]> {
        let replicas = (0..segment.layout.r()).find_map(|j| self.right(segment.layout.replica(i, j)));
        replicas.or(self.salvaged[i].as_deref())
    }

    /// Puts columns into the buffers given, proven and ready to be written; tells which ones it could.
    pub(super) fn compute(
        &self,
        sums: &Sums,
        segment: &Segment,
        wanted: &mut [(usize, &mut [u8])],
    ) -> BTreeSet<usize> {
        let layout = segment.layout;
        let (k, m, head) = (layout.k(), layout.m(), self.head_len());
        // By number as parity counts them: data, then P, Q, R.
        let number = |column: usize| {
            if column < k * layout.r() { column / layout.r() } else { column - k * layout.r() + k }
        };
        let present: Vec<Option<&[u8]>> = (0..k)
            .map(|i| self.data(segment, i))
            .chain((0..m).map(|p| self.right(layout.parity(p))))
            .collect();
        wanted.sort_unstable_by_key(|(column, _)| *column);
        // Of what no column gives, the first of its number gets what parity does, and is copied from.
        let mut absent: Vec<usize> = Vec::new();
        let mut out: Vec<&mut [u8]> = Vec::new();
        for (column, buffer) in wanted.iter_mut() {
            let number = number(*column);
            if present[number].is_none() && absent.last() != Some(&number) {
                absent.push(number);
                out.push(&mut buffer[head..]);
            }
        }
        let computed = m > 0 && !absent.is_empty();
        let computed = computed && parity::reconstruct(k, m, &present, &absent, &mut out).is_ok();
        let mut done = BTreeSet::new();
        let mut rest = wanted;
        let mut replica: Option<(usize, &[u8])> = None;
        while let Some(((column, buffer), later)) = std::mem::take(&mut rest).split_first_mut() {
            rest = later;
            let (column, number) = (*column, number(*column));
            match (present[number], replica) {
                // It was proven when it was read.
                (Some(body), _) => buffer[head..].copy_from_slice(body),
                (None, Some((of, body))) if of == number => buffer[head..].copy_from_slice(body),
                (None, _) if computed && fast128(sums, &buffer[head..]) == self.header.sums[column] => {}
                (None, _) => continue,
            }
            let used = self.used(sums, segment, column, &buffer[head..]);
            StripeHeader { column: column as u8, used, ..self.header.clone() }.put(sums, buffer);
            replica = Some((number, &buffer[head..]));
            done.insert(column);
        }
        done
    }

    /// Bytes of blocks in a column: what the header of a replica says, else where its blocks end.
    fn used(&self, sums: &Sums, segment: &Segment, column: usize, body: &[u8]) -> u32 {
        let layout = segment.layout;
        if column >= layout.k() * layout.r() {
            return 0;
        }
        let i = column / layout.r();
        let replica = (0..layout.r()).find_map(|j| match &self.columns[layout.replica(i, j)] {
            Column::Right(bytes) => StripeHeader::check(sums, bytes).ok(),
            _ => None,
        });
        replica.map_or_else(|| end_of_blocks(sums, body), |replica| replica.used)
    }

    /// Puts data columns together block by block, as far as that goes, and tells what is lost of those that stay
    /// incomplete. What may be wrong of the stripe must have been read.
    pub(super) fn salvage(&mut self, pool: &Pool, segment: &Segment) -> Vec<Lost> {
        let layout = segment.layout;
        let mut lost = Vec::new();
        // Columns that are put together help with the rest.
        for _ in 0..layout.k() {
            lost.clear();
            let mut progress = false;
            for i in 0..layout.k() {
                if self.data(segment, i).is_some() {
                    continue;
                }
                let salvage = self.salvage_column(&pool.store().sums, segment, i);
                match salvage.finish(&pool.store().sums, self.header.sums[layout.replica(i, 0)]) {
                    Some(body) => {
                        (self.salvaged[i], self.partial[i]) = (Some(body), None);
                        progress = true;
                    }
                    None => {
                        let start = self.header.offset + self.head_len() as u32;
                        lost.extend(salvage.lost(pool, segment, i, start));
                        self.partial[i] = Some(salvage);
                    }
                }
            }
            if !progress {
                break;
            }
        }
        lost
    }

    /// Remains of a column that nothing gives whole, after [`Stripe::salvage`]: its header, the bytes of its device,
    /// and over them the blocks that were found.
    pub(super) fn remains(&self, sums: &Sums, segment: &Segment, column: usize) -> Option<AlignedBuf> {
        let (layout, head) = (segment.layout, self.head_len());
        let height = self.header.height as usize;
        let own = match &self.columns[column] {
            Column::Wrong(found) => found.as_ref().filter(|bytes| bytes.len() == height),
            _ => None,
        };
        let data = (column < layout.k() * layout.r()).then(|| self.partial[column / layout.r()].as_ref());
        let blocks = data.flatten().filter(|salvage| !salvage.blocks.is_empty());
        if own.is_none() && blocks.is_none() {
            return None;
        }
        let mut bytes = own.map_or_else(|| AlignedBuf::zeroed(height), |own| AlignedBuf::padded(own));
        if let Some(salvage) = blocks {
            for (.., range) in &salvage.blocks {
                bytes[head..][range.clone()].copy_from_slice(&salvage.bytes[range.clone()]);
            }
        }
        let own = own.and_then(|own| self.own_header(sums, own));
        let most = if data.is_some() { (height - head) as u32 } else { 0 };
        let used = own.map_or(most, |own| own.used);
        StripeHeader { column: column as u8, used, ..self.header.clone() }.put(sums, &mut bytes);
        Some(bytes)
    }

    /// The header that a column has, when it is this stripe's.
    fn own_header(&self, sums: &Sums, bytes: &[u8]) -> Option<StripeHeader> {
        StripeHeader::check(sums, bytes).ok().filter(|header| header.sums == self.header.sums)
    }

    fn salvage_column(&self, sums: &Sums, segment: &Segment, i: usize) -> Salvage {
        let layout = segment.layout;
        let head = self.head_len();
        let body = |column: usize| match &self.columns[column] {
            Column::Right(bytes) | Column::Wrong(Some(bytes)) if bytes.len() > head => {
                Some(bytes.slice(head..))
            }
            _ => None,
        };
        let sum = self.header.sums[layout.replica(i, 0)];
        let own_header = |column: usize| match &self.columns[column] {
            Column::Wrong(Some(bytes)) => self.own_header(sums, bytes),
            _ => None,
        };
        let replicas = (0..layout.r()).map(|j| layout.replica(i, j));
        let len = self.header.height as usize - head;
        // Behind the blocks is padding.
        let used = replicas.clone().find_map(own_header).map_or(len, |header| header.used as usize);
        let mut salvage = Salvage::new(segment.kind, len, used.min(len));
        // A column whose header is another's may be another's whole: its blocks come last.
        let (near, far): (Vec<usize>, Vec<usize>) =
            replicas.partition(|&column| own_header(column).is_some());
        for bytes in near.into_iter().filter_map(body) {
            salvage.add(sums, &bytes);
        }
        if layout.m() > 0 && salvage.finish(sums, sum).is_none() {
            let data = (0..layout.k()).map(|other| {
                if other == i {
                    return Vec::new();
                }
                match self.data(segment, other) {
                    Some(right) => vec![Bytes::copy_from_slice(right)],
                    None => (0..layout.r()).filter_map(|j| body(layout.replica(other, j))).collect(),
                }
            });
            let parities = (0..layout.m()).map(|p| body(layout.parity(p)).into_iter().collect());
            let versions: Vec<Vec<Bytes>> = data.chain(parities).collect();
            // A column that its sum proves is not doubted.
            let is_proven = |number: &usize| match number.checked_sub(layout.k()) {
                None => self.data(segment, *number).is_some(),
                Some(p) => self.right(layout.parity(p)).is_some(),
            };
            let suspicious: Vec<usize> =
                (0..layout.k() + layout.m()).filter(|number| !is_proven(number)).collect();
            // Whether it worked shows in what is left open.
            let _ = search_column(layout, &versions, i, len, &suspicious, |computed| {
                salvage.add(sums, computed);
                salvage.finish(sums, sum).map(drop)
            });
        }
        for bytes in far.into_iter().filter_map(body) {
            salvage.add(sums, &bytes);
        }
        salvage
    }
}

/// Where the blocks end that lie one behind the other from the start of `body`.
fn end_of_blocks(sums: &Sums, body: &[u8]) -> u32 {
    let mut at = 0usize;
    while let Some(header) = body.get(at..).and_then(|rest| CheckedHeader::check(sums, rest).ok()) {
        at += header.footprint() as usize;
    }
    at.min(body.len()) as u32
}

/// Whether a segment of kind `segment` has blocks of kind `block`: what a file in it looks like is its payload's
/// business.
pub(super) fn holds(segment: SegmentKind, block: BlockKind) -> bool {
    match segment {
        SegmentKind::Data | SegmentKind::Small => block == BlockKind::Record,
        SegmentKind::Node => matches!(block, BlockKind::Node | BlockKind::CommitRecord),
        SegmentKind::Run => block == BlockKind::Run,
        SegmentKind::Table => block == BlockKind::Table,
        SegmentKind::Log => block == BlockKind::Log,
    }
}

/// A data column put together from blocks that prove themselves, whichever copy they come from.
///
/// Where a header is lost, the next is looked for inside of what it described. What is found there says nothing of
/// others: it cannot reach beyond its payload, is told as lost unless the block map has it there, and the column
/// counts as whole only with the sum that its stripe's header has.
pub(super) struct Salvage {
    kind: SegmentKind,
    bytes: Vec<u8>,
    /// Ranges for which no block was found, in order.
    gaps: Vec<Range<usize>>,
    /// The blocks found, with where they lie.
    blocks: Vec<(BlockId, BlockKind, Range<usize>)>,
}

impl Salvage {
    /// Of a column of `len` bytes, `used` of them by blocks.
    pub(super) fn new(kind: SegmentKind, len: usize, used: usize) -> Self {
        let gaps = (used > 0).then_some(0..used).into_iter().collect();
        Self { kind, bytes: vec![0; len], gaps, blocks: Vec::new() }
    }

    /// Takes the blocks of `version` that fill gaps.
    pub(super) fn add(&mut self, sums: &Sums, version: &[u8]) {
        let mut gaps = Vec::new();
        for gap in std::mem::take(&mut self.gaps) {
            let (mut from, mut at) = (gap.start, gap.start);
            while at < gap.end {
                let rest = version.get(at..gap.end).unwrap_or_default();
                // Most places where none begins are told by four bytes.
                let begins = rest.starts_with(&BLOCK_MAGIC.to_le_bytes());
                let whole =
                    begins.then(|| CheckedHeader::check(sums, rest).ok()).flatten().and_then(|header| {
                        holds(self.kind, header.info.kind).then_some(())?;
                        let stored = rest.get(..header.stored() as usize)?;
                        block::check_any(sums, stored).ok()?;
                        Some((stored, header))
                    });
                let Some((stored, header)) = whole else {
                    at += BLOCK_STEP as usize;
                    continue;
                };
                self.bytes[at..at + stored.len()].copy_from_slice(stored);
                if from < at {
                    gaps.push(from..at);
                }
                self.blocks.push((header.id, header.info.kind, at..at + stored.len()));
                at = (at + header.footprint() as usize).min(gap.end);
                from = at;
            }
            if from < gap.end {
                gaps.push(from..gap.end);
            }
        }
        self.gaps = gaps;
    }

    /// The whole column, if what is open of it is padding: its sum tells.
    fn finish(&self, sums: &Sums, sum: u128) -> Option<Bytes> {
        (fast128(sums, &self.bytes) == sum).then(|| Bytes::copy_from_slice(&self.bytes))
    }

    /// Losses of data column `i`, of which this begins at `start` of its slot: open ranges, and blocks that the map
    /// does not place there. Those are sound, but left over from another segment.
    pub(super) fn lost(&self, pool: &Pool, segment: &Segment, i: usize, start: u32) -> Vec<Lost> {
        let column = i as u8;
        let foreign = |(id, kind, range): &(BlockId, BlockKind, Range<usize>)| {
            let (offset, stored) = (start + range.start as u32, range.len() as u32);
            let here = Place { segment: segment.id, column, offset, stored };
            let mapped = matches!(kind, BlockKind::Record | BlockKind::Node | BlockKind::CommitRecord);
            mapped && !pool.store().places_of(*id).is_ok_and(|places| places.contains(&here))
        };
        let foreign = self.blocks.iter().filter(|block| foreign(block)).map(|(.., range)| range);
        let mut open: Vec<&Range<usize>> = self.gaps.iter().chain(foreign).collect();
        open.sort_by_key(|range| range.start);
        let at = |offset: usize| start + offset as u32;
        let lost = |range: &Range<usize>| Lost {
            segment: segment.id,
            column,
            range: at(range.start)..at(range.end),
        };
        open.into_iter().map(lost).collect()
    }
}

/// The newest of headers: all of them are right, but of stripes that one import after the other wrote in one place the
/// older ones may be left.
pub(super) fn newest(headers: impl Iterator<Item = StripeHeader>) -> Option<StripeHeader> {
    let old = mutated(Mutant::OldStripeBelieved);
    headers.max_by_key(|header| if old { u64::MAX - header.commit.get() } else { header.commit.get() })
}

/// Whether a commit is one that `Missing` asks for.
pub(super) fn is_within(commit: CommitId, after: CommitId, through: CommitId) -> bool {
    after < commit && commit <= through
}
