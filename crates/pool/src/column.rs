//! Data columns of a segment that is emptied, and the blocks in them, where nothing gives a column whole.
//!
//! A device may have a sector that can never be read again, and be the only one that has its column. The column is
//! read in pieces then, down to the sector, so that only the blocks on that sector stay.
//!
//! Each failed read may take a dying disk seconds, and the commit lock is held meanwhile. So none is tried again, and a
//! step of the cleaner that met [`FAILED_IN_STEP`] leaves the rest of the stripe to the next one. After
//! [`FAILED_IN_ALL`] the segment's columns are not read in pieces any more: what else is in them stays as well.
//!
//! # What is believed
//! Blocks lie one behind the other from where a stripe's begin, as long as each header is sound. Behind one that is
//! lost a block may begin anywhere, and a file may hold what looks like one, with this pool's key. There each place is
//! looked at, and none is passed over since another says how long it is. All of this gives places to ask the block map
//! about: a block is one that the map has at just this place.

use bytes::Bytes;
use larder_device::ALIGN;
use larder_format::block::{BLOCK_MAGIC, CheckedHeader};
use larder_format::checksum::{Sums, fast128};
use larder_format::{BLOCK_STEP, BlockPtr, Place};
use larder_store::Store;
use larder_store::segments::Segment;
use std::collections::BTreeSet;

/// Bytes of the pieces that a column is read in; those that cannot be read are read in smaller ones.
const PIECES: [u32; 2] = [64 << 10, ALIGN as u32];
/// Failed reads after which a step tries no more.
const FAILED_IN_STEP: usize = 4;
/// Failed reads after which columns of a segment are not read in pieces.
const FAILED_IN_ALL: usize = 64;

/// Reads of a segment's columns, and of pieces of them, that failed.
#[derive(Debug, Default)]
pub(crate) struct FailedReads {
    known: BTreeSet<Place>,
    in_step: usize,
    postponed: bool,
}

impl FailedReads {
    /// A step begins.
    pub(crate) fn begin_step(&mut self) {
        (self.in_step, self.postponed) = (0, false);
    }

    /// Whether something was not tried that the next step is to try.
    pub(crate) fn has_postponed(&self) -> bool {
        self.postponed
    }

    fn read(&mut self, place: Place, read: impl FnOnce() -> Bytes) -> Option<Bytes> {
        if self.known.contains(&place) {
            return None;
        }
        if self.in_step >= FAILED_IN_STEP {
            self.postponed = true;
            return None;
        }
        let bytes = read();
        if bytes.len() == place.stored as usize {
            return Some(bytes);
        }
        self.known.insert(place);
        self.in_step += 1;
        None
    }

    fn read_piece(&mut self, place: Place, read: impl FnOnce() -> Bytes) -> Option<Bytes> {
        if self.known.len() >= FAILED_IN_ALL { None } else { self.read(place, read) }
    }
}

/// A column of a stripe, without the stripe's header.
pub(crate) struct Column {
    whole: Place,
    bytes: Bytes,
    /// Parts that could not be read, in order; zero in `bytes`.
    gaps: Vec<Place>,
    /// The bytes have the sum that the stripe's header says.
    proven: bool,
}

/// Blocks that a column may have.
pub(crate) struct Candidates {
    /// Each with its bytes, if they could be read.
    pub(crate) blocks: Vec<(BlockPtr, Option<Bytes>)>,
    /// There may be others.
    pub(crate) unread: bool,
}

impl Column {
    /// Of bytes that are proven.
    pub(crate) fn of(whole: Place, bytes: Bytes) -> Self {
        Self { whole, bytes, gaps: Vec::new(), proven: true }
    }

    /// As much of a column as can be read or computed; `sum` is what its stripe's header says.
    pub(crate) fn read(
        store: &Store,
        segment: &Segment,
        whole: Place,
        sum: Option<&u128>,
        failed: &mut FailedReads,
    ) -> Self {
        let right = |bytes: &[u8]| sum == Some(&fast128(&store.sums, bytes));
        if let Some(bytes) = failed.read(whole, || store.read_range(segment, whole, right)) {
            let proven = right(&bytes);
            return Self { whole, bytes, gaps: Vec::new(), proven };
        }
        let mut bytes = vec![0; whole.stored as usize];
        let mut gaps = vec![whole];
        for size in PIECES {
            gaps = gaps.into_iter().flat_map(|gap| pieces(gap, size)).collect();
            gaps.retain(|piece| {
                let read = failed.read_piece(*piece, || store.read_range(segment, *piece, |_| true));
                if let Some(read) = &read {
                    bytes[(piece.offset - whole.offset) as usize..][..read.len()].copy_from_slice(read);
                }
                read.is_none()
            });
        }
        let proven = gaps.is_empty() && right(&bytes);
        Self { whole, bytes: bytes.into(), gaps, proven }
    }

    /// Whatever may be a block of it: the map decides.
    pub(crate) fn candidates(&self, sums: &Sums) -> Candidates {
        let (mut blocks, mut at) = (Vec::new(), 0);
        while let Some(header) = self.header_at(sums, at) {
            blocks.push(self.block(at, &header));
            at = at.saturating_add(header.footprint() as usize);
        }
        let behind = at.min(self.bytes.len())..self.bytes.len();
        // Behind the last block is padding.
        let is_lost = !self.proven && self.bytes[behind.clone()].iter().any(|byte| *byte != 0);
        if is_lost {
            let places = behind.step_by(BLOCK_STEP as usize);
            blocks.extend(places.filter_map(|at| Some(self.block(at, &self.header_at(sums, at)?))));
        }
        Candidates { blocks, unread: is_lost || !self.gaps.is_empty() }
    }

    fn header_at(&self, sums: &Sums, at: usize) -> Option<CheckedHeader> {
        // Most places where none begins are told by four bytes.
        let rest = self.bytes.get(at..).filter(|rest| rest.starts_with(&BLOCK_MAGIC.to_le_bytes()))?;
        CheckedHeader::check(sums, rest).ok()
    }

    fn block(&self, at: usize, header: &CheckedHeader) -> (BlockPtr, Option<Bytes>) {
        let (offset, stored) = (self.whole.offset + at as u32, header.stored());
        let place = Place { offset, stored, ..self.whole };
        let end = u64::from(offset) + u64::from(stored);
        let is_cut = |gap: &Place| u64::from(gap.offset) < end && offset < gap.offset + gap.stored;
        let bytes = (at + stored as usize <= self.bytes.len() && !self.gaps.iter().any(is_cut))
            .then(|| self.bytes.slice(at..at + stored as usize));
        (BlockPtr { id: header.id, place }, bytes)
    }
}

/// A range cut where offsets are multiples of `size`.
fn pieces(range: Place, size: u32) -> impl Iterator<Item = Place> {
    let end = range.offset + range.stored;
    let mut next = range.offset;
    std::iter::from_fn(move || {
        let offset = next;
        next = ((offset / size + 1) * size).min(end);
        (offset < end).then(|| Place { offset, stored: next - offset, ..range })
    })
}
