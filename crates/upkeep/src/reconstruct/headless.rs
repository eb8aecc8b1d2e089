//! Stripes whose header is lost in every copy: rebuilt from the blocks in them, which prove themselves.
//!
//! The range between a known stripe and the next one is one stripe when each data column, in one of its copies, is
//! sound blocks one behind the other from where blocks begin, then zeros; the longest column fills it but for the
//! rounding. A block counts when the map has it here. One that the map does not have here any more counts as well when
//! it was born in the segment's time: of older blocks in the slot, left by a write that got lost, neither is true. Then
//! sums and parity follow, and the stripe is written anew, as it was but for its commit, which is the next known one's:
//! a device that lacks stripes up to there gets it once more.

use super::{LARGEST_STRIPE, Reconstruction, stripe};
use bytes::Bytes;
use larder_device::AlignedBuf;
use larder_format::block;
use larder_format::checksum::fast128;
use larder_format::segment::{SegmentKind, StripeHeader, stripe_header_len};
use larder_format::{CommitId, Place, is_zero};
use larder_pool::Pool;
use larder_store::parity;
use std::ops::Range;
use std::sync::Arc;

impl Reconstruction {
    /// Brings the stripe in `range`, of no commit after `commit`, in order, when what is in it proves it.
    pub(super) fn rebuild_stripe(&mut self, pool: &Pool, range: Range<u32>, commit: CommitId) -> bool {
        let mapped = matches!(self.segment.kind, SegmentKind::Data | SegmentKind::Small | SegmentKind::Node);
        let columns = self.segment.layout.columns();
        let (head, height) = (stripe_header_len(columns), range.end - range.start);
        if !mapped || height <= head || height > LARGEST_STRIPE {
            return false;
        }
        let Some((header, bodies)) = self.prove(pool, range.start, height, commit) else { return false };
        let columns = (0..columns).filter(|&column| self.is_readable(pool, column));
        let written = columns.map(|column| {
            let mut buffer = AlignedBuf::zeroed(height as usize);
            let (body, used) = &bodies[column];
            buffer[head as usize..].copy_from_slice(body);
            StripeHeader { column: column as u8, used: *used, ..header.clone() }
                .put(&pool.store().sums, &mut buffer);
            (column, buffer)
        });
        let written: Vec<_> = written.collect();
        self.tally.stripes += 1;
        for (column, buffer) in written {
            self.note_wrong(pool, column, true);
            self.write_column(pool, column, range.start, Arc::new(buffer), 1);
        }
        true
    }

    /// The header that the stripe must have had, and each column's body with the bytes of blocks in it.
    fn prove(
        &self,
        pool: &Pool,
        offset: u32,
        height: u32,
        commit: CommitId,
    ) -> Option<(StripeHeader, Vec<(Bytes, u32)>)> {
        let layout = self.segment.layout;
        let (k, m, head) = (layout.k(), layout.m(), stripe_header_len(layout.columns()));
        let data = (0..k).map(|i| {
            (0..layout.r()).find_map(|j| {
                let column = layout.replica(i, j);
                let place = Place { segment: self.segment.id, column: i as u8, offset, stored: height };
                let bytes =
                    pool.store().read_part(&self.segment, column, place)?.ok()?.slice(head as usize..);
                let used = self.blocks_alone(pool, i, offset + head, &bytes)?;
                Some((bytes, used))
            })
        });
        let data: Vec<(Bytes, u32)> = data.collect::<Option<_>>()?;
        let step = pool.store().core.lock().groups.get(&self.segment.group)?.step();
        if data.iter().map(|(_, used)| *used).max()? + head + step <= height {
            return None;
        }
        let len = (height - head) as usize;
        let mut computed = vec![vec![0u8; len]; m];
        if m > 0 {
            let present: Vec<Option<&[u8]>> =
                data.iter().map(|(body, _)| Some(&body[..])).chain((0..m).map(|_| None)).collect();
            let wanted: Vec<usize> = (k..k + m).collect();
            let mut out: Vec<&mut [u8]> = computed.iter_mut().map(|parity| &mut parity[..]).collect();
            parity::reconstruct(k, m, &present, &wanted, &mut out).ok()?;
        }
        let copies = data.into_iter().flat_map(|one| vec![one; layout.r()]);
        let bodies: Vec<_> =
            copies.chain(computed.into_iter().map(|parity| (Bytes::from(parity), 0))).collect();
        let history = &self.history;
        let header = StripeHeader {
            segment: self.segment.id,
            offset,
            height,
            commit,
            incarnation: history.iter().find(|import| import.first <= commit)?.incarnation,
            column: 0,
            used: 0,
            sums: bodies.iter().map(|(body, _)| fast128(&pool.store().sums, body)).collect(),
        };
        Some((header, bodies))
    }

    /// Where the blocks end that data column `i` begins with at `start`, when there are some, all are the segment's,
    /// and nothing comes behind them.
    fn blocks_alone(&self, pool: &Pool, i: usize, start: u32, body: &[u8]) -> Option<u32> {
        let mut at = 0usize;
        while let Ok((header, _)) = block::check_any(&pool.store().sums, body.get(at..)?) {
            let place = Place {
                segment: self.segment.id,
                column: i as u8,
                offset: start + at as u32,
                stored: header.stored(),
            };
            let mapped = stripe::holds(self.segment.kind, header.info.kind);
            let placed = mapped && pool.store().places_of(header.id).ok()?.contains(&place);
            if !mapped || !placed && header.birth < self.segment.birth {
                return None;
            }
            at += header.footprint() as usize;
        }
        let rest = body.get(at.min(body.len())..)?;
        (at > 0 && is_zero(rest)).then_some(at.min(body.len()) as u32)
    }
}
