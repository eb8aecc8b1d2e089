//! Columns that nothing gives whole: what is left of them, and where it goes.
//!
//! A device that is on its way out may have a sector that can never be read again, and be the only one that has a
//! column. The column is then read in pieces, down to one sector, so that the blocks around it are had
//! ([`super::stripe::Stripe::salvage`]), and the other columns' sums as well. What cannot be read may have been read on
//! another day: then the device that stands for the old one has it, and is believed where the sums or the blocks say
//! so.
//!
//! A device that stands for another gets what is left, at the same place: sound blocks, whichever copy they come
//! from, over what its own column gave, as it gave it. Nothing of that is proven as a column, so the stripe's header,
//! with the sums of what there should be, goes with it: whoever reads the column sees what is wrong, and each block
//! tells whether it is sound. Only stand-ins get this: what another device holds may be better.

use super::{Reconstruction, Targets};
use crate::reconstruct::stripe::{Column, Stripe};
use bytes::Bytes;
use larder_device::{ALIGN, AlignedBuf, DeviceError};
use larder_format::Place;
use larder_pool::Pool;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A range that cannot be read is read in so many pieces, each of which may be read in as many again: many enough that
/// a bad sector is met a few times only, since a disk that tries hard takes seconds each time.
const PIECES: u32 = 16;

impl Reconstruction {
    /// Reads a column of `stripe` piece by piece where it could not be read whole.
    pub(super) fn read_in_pieces(&self, pool: &Pool, stripe: &mut Stripe, column: usize) {
        let unreadable = match &stripe.columns[column] {
            Column::Right(_) => return,
            Column::Wrong(found) => found.is_none(),
            Column::Unread => false,
        };
        let range = stripe.range();
        let expected = self.expected(pool);
        let mut bytes = AlignedBuf::zeroed(range.len());
        let mut had = false;
        if let Some(earlier) = self.read_stand_in(column, &range) {
            let found = stripe.judge(&expected, column, Bytes::copy_from_slice(&earlier));
            if matches!(found, Column::Right(_)) {
                stripe.columns[column] = found;
                return;
            }
            (bytes, had) = (earlier, true);
        }
        if unreadable {
            had |= self.read_cluster(pool, column, range.clone(), &mut bytes);
        }
        if had && !matches!(stripe.columns[column], Column::Wrong(Some(_))) {
            stripe.columns[column] = stripe.judge(&expected, column, Bytes::from_owner(bytes));
        }
    }

    /// Bytes that the stand-in for a column's own device has there by now.
    pub(super) fn read_stand_in(&self, column: usize, range: &Range<u32>) -> Option<AlignedBuf> {
        let Targets::Missing(missing) = &self.targets else { return None };
        let mut members =
            missing.columns.iter().filter(|(of, member)| *of == column && member.stands_for.is_some());
        let (_, member) = members.next()?;
        let at = member.slot_offset(self.segment.slots[column].index(), range.start);
        member.read_back(at, range.len())?.ok()
    }

    /// Puts what can be read of a range of a column into `bytes`, to the sector; whether anything could.
    pub(super) fn read_cluster(
        &self,
        pool: &Pool,
        column: usize,
        range: Range<u32>,
        bytes: &mut [u8],
    ) -> bool {
        if range.is_empty() || !self.is_readable(pool, column) {
            return false;
        }
        let stored = range.end - range.start;
        let place = Place { segment: self.segment.id, column: 0, offset: range.start, stored };
        match pool.store().read_part(&self.segment, column, place) {
            Some(Ok(found)) => {
                bytes.copy_from_slice(&found);
                true
            }
            // A device that does not answer is not asked for the pieces.
            None | Some(Err(DeviceError::Overdue | DeviceError::Gone)) => false,
            Some(Err(_)) if stored <= ALIGN as u32 => false,
            Some(Err(_)) => {
                let piece = stored.div_ceil(PIECES).next_multiple_of(ALIGN as u32);
                let mut had = false;
                for (start, part) in
                    range.clone().step_by(piece as usize).zip(bytes.chunks_mut(piece as usize))
                {
                    had |= self.read_cluster(pool, column, start..start + part.len() as u32, part);
                }
                had
            }
        }
    }

    /// Of the columns `lacking` in a stripe that were not given: what is left of them goes to who stands for their
    /// devices.
    pub(super) fn leave_remains(
        &mut self,
        pool: &Pool,
        stripe: &Stripe,
        lacking: &[usize],
        given: &BTreeSet<usize>,
    ) {
        for &column in lacking.iter().filter(|column| !given.contains(column)) {
            if let Some(bytes) = stripe.remains(&pool.store().sums, &self.segment, column) {
                self.write_to_stand_ins(column, stripe.range().start, bytes);
            }
        }
    }

    /// Where no header tells of stripes: what columns have there, as it is.
    pub(super) fn leave_as_it_is(&mut self, pool: &Pool, range: &Range<u32>) {
        let Targets::Missing(missing) = &self.targets else { return };
        let stand_ins = missing.columns.iter().filter(|(_, member)| member.stands_for.is_some());
        for column in stand_ins.map(|(column, _)| *column).collect::<BTreeSet<_>>() {
            let earlier = self.read_stand_in(column, range);
            let mut bytes = earlier.unwrap_or_else(|| AlignedBuf::zeroed(range.len()));
            if self.read_cluster(pool, column, range.clone(), &mut bytes) {
                self.write_to_stand_ins(column, range.start, bytes);
            }
        }
    }

    fn write_to_stand_ins(&mut self, column: usize, offset: u32, bytes: AlignedBuf) {
        let Targets::Missing(missing) = &self.targets else { return };
        let of_column =
            missing.columns.iter().filter(|(of, member)| *of == column && member.stands_for.is_some());
        let members: Vec<_> = of_column.map(|(_, member)| Arc::clone(member)).collect();
        let bytes = Arc::new(bytes);
        for member in members {
            self.write(&member, column, offset, Arc::clone(&bytes), 1);
        }
    }
}
