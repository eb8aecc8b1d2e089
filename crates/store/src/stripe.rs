//! Stripes: blocks packed into columns, padded to equal height, summed, with parity.
//!
//! A block lies whole in one column and goes to the shortest one, so that a stream of blocks uses all
//! devices and a random read asks one. Packing is planned first (which block where), under the lock
//! that hands out places; building, which copies, sums and computes parity, needs no lock.

use crate::parity;
use crate::segments::Segment;
use bytes::Bytes;
use larder_device::AlignedBuf;
use larder_format::block::{BLOCK_OVERHEAD, frame_sums_len};
use larder_format::checksum::{Fast128, Sums};
use larder_format::segment::{Layout, StripeHeader, stripe_header_len};
use larder_format::{BLOCK_STEP, CommitId, Incarnation, Place};
use larder_mutants::{Mutant, mutated};
use std::sync::Arc;

/// Bytes of each column that are filled, given their parity and summed before the next: all of them together stay in a
/// processor's cache of the second level.
const TILE: usize = 32 << 10;

/// A block ready to be stored.
#[derive(Debug, Clone)]
pub enum Encoded {
    /// Header and payload, as they were read or made.
    Whole(Bytes),
    /// Header, the sums of frames if there are any, and content that others may share; they meet in the stripe.
    Parts([u8; BLOCK_OVERHEAD as usize], Bytes, Bytes),
}

impl Encoded {
    /// Bytes stored.
    #[allow(clippy::len_without_is_empty, reason = "a block has a header")]
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Parts(header, frames, content) => header.len() + frames.len() + content.len(),
        }
    }

    /// Its bytes, one after the other.
    fn pieces(&self) -> [&[u8]; 3] {
        match self {
            Self::Whole(bytes) => [bytes, &[], &[]],
            Self::Parts(header, frames, content) => [header, frames, content],
        }
    }
}

/// Bytes that a stored block takes of its column.
pub fn footprint(stored: usize) -> u32 {
    (stored as u32).next_multiple_of(BLOCK_STEP)
}

/// Bytes from which on a record that no codec shrank has frames, so that a part of it can be read.
pub const FRAMED_FROM: u32 = 16 << 10;

/// Bytes that an incompressible record of `len` bytes takes of its column.
pub fn footprint_of_record(len: u32) -> u32 {
    let frames = if len >= FRAMED_FROM { frame_sums_len(len) } else { 0 };
    footprint((BLOCK_OVERHEAD + frames + len) as usize)
}

/// Layout of a stripe: its blocks and their offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripePlan {
    /// For each block of the stripe, in the order given: data column and offset within the stripe.
    pub spots: Vec<(usize, u32)>,
    /// Bytes of blocks in each data column.
    pub used: Vec<u32>,
    /// Height of the stripe, bytes, header and padding included.
    pub height: u32,
}

/// Blocks avoid no column.
pub fn anywhere(_block: usize, _column: usize) -> bool {
    false
}

/// Packs as many of the blocks (given by footprint) as a stripe takes that may be `room` bytes high and
/// stops when every column has `target` bytes; `None` when not even the first block fits. A block goes to no column
/// that it `avoids`, unless there is none else.
pub fn plan(
    layout: Layout,
    step: u32,
    room: u32,
    target: u32,
    footprints: &[u32],
    avoids: impl Fn(usize, usize) -> bool,
) -> Option<StripePlan> {
    let header = stripe_header_len(layout.columns());
    let limit = (room / step * step).checked_sub(header)?;
    let mut used = vec![0u32; layout.k()];
    let mut spots = Vec::new();
    for (block, &size) in footprints.iter().enumerate() {
        let columns = used.iter().copied().enumerate();
        let (column, height) = columns.min_by_key(|&(i, height)| (avoids(block, i), height, i))?;
        if height >= target || size > limit - height {
            break;
        }
        spots.push((column, header + height));
        used[column] = height + size;
    }
    if spots.is_empty() {
        return None;
    }
    let highest = used.iter().copied().max().unwrap_or(0);
    Some(StripePlan { spots, used, height: (header + highest).next_multiple_of(step) })
}

/// Pieces of blocks in a data column, in ascending order, each with its offset. The rest is zero.
#[derive(Clone, Default)]
struct Content<'a> {
    pieces: Vec<(usize, &'a [u8])>,
    /// The first piece that is not all in the column.
    next: usize,
}

impl Content<'_> {
    /// Fills `out`, which lies `from` bytes into the column; called in ascending order.
    fn fill(&mut self, out: &mut [u8], from: usize) {
        let mut done = 0;
        while let Some(&(start, bytes)) = self.pieces.get(self.next)
            && start < from + out.len()
        {
            let begin = start.max(from + done);
            out[done..begin - from].fill(0);
            let left = &bytes[begin - start..];
            let taken = left.len().min(from + out.len() - begin);
            done = begin - from + taken;
            out[begin - from..done].copy_from_slice(&left[..taken]);
            if taken < left.len() {
                return;
            }
            self.next += 1;
        }
        out[done..].fill(0);
    }
}

/// The columns of a planned stripe at `offset` of `segment`, ready to be written.
pub fn build(
    sums: &Sums,
    segment: &Segment,
    offset: u32,
    stamp: (CommitId, Incarnation),
    plan: &StripePlan,
    blocks: &[Encoded],
) -> Vec<Arc<AlignedBuf>> {
    let layout = segment.layout;
    let header = stripe_header_len(layout.columns()) as usize;
    let height = plan.height as usize;
    let mut contents = vec![Content::default(); layout.k()];
    for (&(column, at), block) in plan.spots.iter().zip(blocks) {
        let mut at = at as usize;
        for piece in block.pieces() {
            contents[column].pieces.push((at, piece));
            at += piece.len();
        }
    }
    // The rest is overwritten below, but what is put of the header need not be all of it.
    let stale = |_| {
        let mut column = AlignedBuf::stale(height);
        column[..header].fill(0);
        column
    };
    let mut data: Vec<AlignedBuf> = (0..layout.k()).map(stale).collect();
    let mut parity: Vec<AlignedBuf> = (0..layout.m()).map(stale).collect();
    let mut hashers = vec![Fast128::new(sums); layout.k() + layout.m()];
    for from in (header..height).step_by(TILE) {
        let tile = from..height.min(from + TILE);
        for (column, content) in data.iter_mut().zip(&mut contents) {
            content.fill(&mut column[tile.clone()], from);
        }
        if mutated(Mutant::NoParity) {
            parity.iter_mut().for_each(|column| column[tile.clone()].fill(0));
        } else if !parity.is_empty() {
            let data: Vec<&[u8]> = data.iter().map(|column| &column[tile.clone()]).collect();
            let mut parity: Vec<&mut [u8]> =
                parity.iter_mut().map(|column| &mut column[tile.clone()]).collect();
            parity::encode(&data, &mut parity);
        }
        for (column, sum) in data.iter().chain(&parity).zip(&mut hashers) {
            sum.write(&column[tile.clone()]);
        }
    }
    let (of_data, of_parity) = hashers.split_at(layout.k());
    let of_data = of_data.iter().flat_map(|sum| std::iter::repeat_n(sum, layout.r()));
    let column_sums: Vec<u128> = of_data.chain(of_parity).map(Fast128::finish).collect();

    let mut columns = Vec::with_capacity(layout.columns());
    for (i, column) in data.into_iter().enumerate() {
        for _ in 1..layout.r() {
            let mut copy = AlignedBuf::stale(height);
            copy.copy_from_slice(&column);
            columns.push((copy, plan.used[i]));
        }
        columns.push((column, plan.used[i]));
    }
    columns.extend(parity.into_iter().map(|column| (column, 0)));
    let (commit, incarnation) = stamp;
    let finish = |(i, (mut column, used)): (usize, (AlignedBuf, u32))| {
        let header = StripeHeader {
            segment: segment.id,
            offset,
            height: plan.height,
            commit,
            incarnation,
            column: i as u8,
            used,
            sums: column_sums.clone(),
        };
        header.put(sums, &mut column);
        Arc::new(column)
    };
    columns.into_iter().enumerate().map(finish).collect()
}

/// Place of block `i` of a planned stripe at `offset`.
pub fn place(segment: &Segment, offset: u32, plan: &StripePlan, i: usize, stored: usize) -> Place {
    let (column, at) = plan.spots[i];
    Place { segment: segment.id, column: column as u8, offset: offset + at, stored: stored as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::PoolGuid;
    use larder_format::checksum::{PoolKey, fast128};

    #[test]
    fn equal_blocks_fill_all_columns_evenly() {
        let layout = Layout::new(4, 1, 2).unwrap();
        let plan = plan(layout, 4096, 1 << 20, 1 << 20, &[100_000; 100], anywhere).unwrap();
        assert_eq!(plan.spots.len(), 40);
        assert!(plan.used.iter().all(|&used| used == 1_000_000));
        assert!(plan.height <= 1 << 20 && plan.height.is_multiple_of(4096));
    }

    #[test]
    fn a_stripe_stops_at_its_target_and_takes_at_least_one_block() {
        let layout = Layout::new(2, 1, 1).unwrap();
        let plan = plan(layout, 4096, 1 << 20, 8192, &[9000; 9], anywhere).unwrap();
        assert_eq!(plan.spots.len(), 2);
        assert!(super::plan(layout, 4096, 4096, 8192, &[9000], anywhere).is_none());
    }

    #[test]
    fn a_column_filled_piece_by_piece_is_the_column_and_its_sum_too() {
        let bytes: Vec<u8> = (1..=255).cycle().take(5000).collect();
        // Side by side, apart, and one that is empty.
        let pieces = vec![(10, &bytes[..100]), (110, &bytes[..1]), (111, &[][..]), (300, &bytes[..2500])];
        let mut whole = vec![0; 4000];
        pieces.iter().for_each(|&(at, piece)| whole[at..at + piece.len()].copy_from_slice(piece));
        let sums = Sums::new(PoolGuid::new(7), PoolKey::new([9; 32]));
        for tile in [1, 7, 100, 290, 1000, 4000] {
            let (mut content, mut sum) = (Content { pieces: pieces.clone(), next: 0 }, Fast128::new(&sums));
            let mut column = vec![0xff; 4000];
            for (i, part) in column.chunks_mut(tile).enumerate() {
                content.fill(part, i * tile);
                sum.write(part);
            }
            assert!(column == whole, "in pieces of {tile}");
            assert_eq!(sum.finish(), fast128(&sums, &whole));
        }
    }
}
