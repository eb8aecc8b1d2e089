//! The blocks of a segment, stripe by stripe.
//!
//! A stripe's header, of any column, has the sums of all columns. A column whose sum is right is right as a whole; one
//! whose sum is wrong is computed of the others, and what cannot be is gone through block by block, each by the end of
//! the one before it: as far as they prove themselves. Nothing is believed by its look: a file may hold the image of a
//! disk of this pool.
//!
//! Where no header of a stripe is left, its blocks are sought where they must begin, and the next stripe on each
//! multiple of a stripe's step.

use crate::read::Column;
use crate::slots::{Found, Segments};
use larder_format::block::{self, CheckedHeader};
use larder_format::checksum::{Sums, fast128};
use larder_format::segment::{DESCRIPTOR_LEN, STRIPE_STEP, StripeHeader, stripe_header_len};
use larder_format::{CommitId, Place};
use larder_store::parity;

/// Bytes that are sought for blocks where no header says how high a stripe is.
const HEADLESS: u32 = 2 << 20;

/// Outcome for the columns and stripes of a segment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scanned {
    /// Times that each slot of each column was right.
    pub(crate) proven: Vec<Vec<u64>>,
    /// Stripes end here.
    pub(crate) height: u32,
    /// The commit of the last one.
    pub(crate) filled: CommitId,
    /// Columns that were wrong and computed of the others, and those that could not be.
    pub(crate) rebuilt: u64,
    pub(crate) wrong: u64,
    /// Bytes of data columns in stripes.
    pub(crate) bytes: u64,
}

/// Shows each block of a segment, with its place and bytes.
pub(crate) fn scan(
    segments: &Segments,
    found: &Found,
    sums: &Sums,
    is_ours: &dyn Fn(&StripeHeader) -> bool,
    block: &mut dyn FnMut(Place, &CheckedHeader, &[u8]),
) -> Scanned {
    let (layout, slot_size) = (found.record.layout, segments.slot_size(found));
    let of_column = |slots: &Vec<larder_format::segment::Slot>| -> Vec<Column<'_>> {
        slots.iter().filter_map(|slot| segments.column(*slot)).collect()
    };
    let mut columns: Vec<Vec<Column<'_>>> = found.columns.iter().map(of_column).collect();
    let header_len = stripe_header_len(layout.columns());
    let proven = columns.iter().map(|slots| vec![0; slots.len()]).collect();
    let mut scanned =
        Scanned { proven, height: DESCRIPTOR_LEN, filled: found.record.birth, ..Scanned::default() };
    let mut offset = DESCRIPTOR_LEN;
    while offset.saturating_add(STRIPE_STEP) <= slot_size {
        let header = header_at(&mut columns, (sums, is_ours), found, (offset, slot_size));
        let Some(header) = header else {
            if let Some(end) = headless(&mut columns, sums, found, (offset, slot_size), block) {
                (offset, scanned.height) = (end, end);
            } else {
                offset += STRIPE_STEP;
            }
            continue;
        };
        let bodies = bodies(&mut columns, sums, found, &header, &mut scanned.proven);
        let body_len = header.height - header_len;
        for i in 0..layout.k() {
            let whole = (0..layout.r()).find_map(|j| bodies[layout.replica(i, j)].as_deref());
            let computed = if whole.is_none() { compute(&bodies, found, i, body_len as usize) } else { None };
            let computed = computed.filter(|body| fast128(sums, body) == header.sums[layout.replica(i, 0)]);
            let Some(body) = whole.or(computed.as_deref()) else {
                scanned.wrong += 1;
                blocks_alone(&mut columns, sums, found, (i, offset + header_len, body_len), block);
                continue;
            };
            scanned.rebuilt += u64::from(whole.is_none());
            scanned.bytes += u64::from(header.height);
            let mut at = 0;
            while let Some(rest) = body.get(at..)
                && let Ok(checked) = CheckedHeader::check(sums, rest)
                && let Some(stored) = rest.get(..checked.stored() as usize)
            {
                let offset = offset + header_len + at as u32;
                let place =
                    Place { segment: found.record.id, column: i as u8, offset, stored: checked.stored() };
                block(place, &checked, stored);
                at += checked.footprint() as usize;
            }
        }
        scanned.filled = scanned.filled.max(header.commit);
        offset += header.height;
        scanned.height = offset;
    }
    scanned
}

/// The header of the stripe at an offset, of any column: one that `is_ours` before others, for halves of a mirror that
/// were written apart may both go on with a segment.
fn header_at(
    columns: &mut [Vec<Column<'_>>],
    (sums, is_ours): (&Sums, &dyn Fn(&StripeHeader) -> bool),
    found: &Found,
    (offset, slot_size): (u32, u32),
) -> Option<StripeHeader> {
    let count = columns.len();
    let mut other = None;
    for (number, slots) in columns.iter_mut().enumerate() {
        for column in slots {
            let Ok(header) = StripeHeader::check(sums, column.get(offset, STRIPE_STEP)) else { continue };
            let is_here = (header.segment, header.offset) == (found.record.id, offset);
            let fits = header.height <= slot_size - offset && header.height > 0;
            if !is_here || !fits || header.sums.len() != count || usize::from(header.column) != number {
                continue;
            }
            if is_ours(&header) {
                return Some(header);
            }
            other = other.or(Some(header));
        }
    }
    other
}

/// Bodies of columns, behind their headers, where their sum is right: of each data column one copy, and parity where
/// one is lacking.
fn bodies(
    columns: &mut [Vec<Column<'_>>],
    sums: &Sums,
    found: &Found,
    header: &StripeHeader,
    proven: &mut [Vec<u64>],
) -> Vec<Option<Vec<u8>>> {
    let (layout, header_len) = (found.record.layout, stripe_header_len(columns.len()) as usize);
    let mut read = |number: usize| {
        columns[number].iter_mut().zip(&mut proven[number]).find_map(|(column, proven)| {
            let bytes = &column.get(header.offset, header.height)[header_len..];
            let is_right = fast128(sums, bytes) == header.sums[number];
            *proven += u64::from(is_right);
            is_right.then(|| bytes.to_vec())
        })
    };
    let mut bodies: Vec<Option<Vec<u8>>> = vec![None; layout.columns()];
    let mut is_lacking = false;
    for i in 0..layout.k() {
        let copies = (0..layout.r()).map(|j| layout.replica(i, j));
        let right = copies.into_iter().find_map(|number| read(number).map(|body| (number, body)));
        match right {
            Some((number, body)) => bodies[number] = Some(body),
            None => is_lacking = true,
        }
    }
    if is_lacking {
        for number in (0..layout.m()).map(|p| layout.parity(p)) {
            bodies[number] = read(number);
        }
    }
    bodies
}

/// Data column `i` of the columns that are right.
fn compute(bodies: &[Option<Vec<u8>>], found: &Found, i: usize, len: usize) -> Option<Vec<u8>> {
    let layout = found.record.layout;
    if layout.m() == 0 {
        return None;
    }
    let of_data =
        (0..layout.k()).map(|i| (0..layout.r()).find_map(|j| bodies[layout.replica(i, j)].as_deref()));
    let of_parity = (0..layout.m()).map(|p| bodies[layout.parity(p)].as_deref());
    let present: Vec<Option<&[u8]>> = of_data.chain(of_parity).collect();
    let mut out = vec![0; len];
    parity::reconstruct(layout.k(), layout.m(), &present, &[i], &mut [&mut out]).ok()?;
    Some(out)
}

/// The blocks of data column `i` between `start` and `start + len`, of the copy that has most: each by the end of the
/// one before. Where they end.
fn blocks_alone(
    columns: &mut [Vec<Column<'_>>],
    sums: &Sums,
    found: &Found,
    (i, start, len): (usize, u32, u32),
    block: &mut dyn FnMut(Place, &CheckedHeader, &[u8]),
) -> u32 {
    let layout = found.record.layout;
    let (from, end) = (start / STRIPE_STEP * STRIPE_STEP, (start + len).next_multiple_of(STRIPE_STEP));
    let mut reached = start;
    for column in (0..layout.r()).map(|j| layout.replica(i, j)) {
        for copy in &mut columns[column] {
            let mut at = start;
            let bytes = &copy.get(from, end - from)[..(start + len - from) as usize];
            while let Some(rest) = bytes.get((at - from) as usize..)
                && let Ok((checked, _)) = block::check_any(sums, rest)
            {
                if at >= reached {
                    let place = Place {
                        segment: found.record.id,
                        column: i as u8,
                        offset: at,
                        stored: checked.stored(),
                    };
                    block(place, &checked, &rest[..checked.stored() as usize]);
                }
                at += checked.footprint() as u32;
            }
            reached = reached.max(at);
        }
    }
    reached
}

/// Blocks of a stripe without a header, if there are some where the first would begin; where the next stripe may be.
fn headless(
    columns: &mut [Vec<Column<'_>>],
    sums: &Sums,
    found: &Found,
    (offset, slot_size): (u32, u32),
    block: &mut dyn FnMut(Place, &CheckedHeader, &[u8]),
) -> Option<u32> {
    let header_len = stripe_header_len(columns.len());
    let start = offset + header_len;
    let len = HEADLESS.min(slot_size - offset).checked_sub(header_len)?;
    let is_there = |slots: &mut Vec<Column<'_>>| {
        slots.iter_mut().any(|column| {
            let bytes = column.get(offset, STRIPE_STEP);
            CheckedHeader::check(sums, &bytes[header_len as usize..]).is_ok()
        })
    };
    let layout = found.record.layout;
    let first =
        (0..layout.k()).any(|i| (0..layout.r()).any(|j| is_there(&mut columns[layout.replica(i, j)])));
    if !first {
        return None;
    }
    let ends = (0..layout.k()).map(|i| blocks_alone(columns, sums, found, (i, start, len), block));
    let end = ends.max().filter(|end| *end > start)?;
    Some(end.next_multiple_of(STRIPE_STEP))
}
