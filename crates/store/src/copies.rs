//! Blocks from their copies: see [`crate::read_cache`].

use crate::decode::part;
use crate::member::Member;
use crate::read_cache::{Copy, CopyRead};
use crate::store::Store;
use bytes::Bytes;
use larder_cache::Kind;
use larder_device::{AlignedBuf, Outcome};
use larder_format::block::{self, CheckedHeader};
use larder_format::cached::CACHE_UNIT;
use larder_format::{BlockId, DeviceIndex};
use larder_mutants::{Mutant, mutated};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Store {
    /// Makes copies on a device known, and its slots usable. False for one that cannot be used beside the others: its
    /// slots are of another size, or too many.
    pub fn attach_cache(&self, member: &Arc<Member>) -> bool {
        self.read_cache.attach(self.world.entropy.next_u64(), member)
    }

    /// Forgets a device and the copies on it, if it has some.
    pub fn detach_cache(&self, index: DeviceIndex) {
        if self.read_cache.detach(index) {
            self.cache.make_room_for_copies(self.read_cache.memory());
        }
    }

    /// A block with its header from a copy; none if there is no copy, or it is not what it should be, or late.
    pub(crate) fn read_copy(&self, id: BlockId, why: Kind) -> Option<(CheckedHeader, Bytes)> {
        let copy = self.read_cache.find(id)?;
        let len = (copy.found.units * CACHE_UNIT) as usize;
        match copy.member.read_now(copy.offset, len, self.read_cache.late())? {
            Ok(outcome) => self.take_copy(&copy, outcome, why),
            Err(pending) => {
                pending.note_late();
                None
            }
        }
    }

    /// Sends the read of a copy, which is there as far as is known.
    pub(crate) fn start_copy(&self, copy: Copy) -> Option<CopyRead> {
        let pending = copy.member.read(copy.offset, (copy.found.units * CACHE_UNIT) as usize)?;
        Some(CopyRead(copy, pending))
    }

    /// Waits for such reads; those that were not late.
    pub(crate) fn copies_arrived(&self, reads: Vec<CopyRead>) -> Vec<(Copy, Outcome)> {
        // A device that is late once is not waited for again.
        let limit = |member: &Member| self.read_cache.late().saturating_sub(member.meter().silence());
        let arrived = reads.into_iter().filter_map(|CopyRead(copy, pending)| {
            match copy.member.outwait(pending, limit(&copy.member)) {
                Ok(outcome) => Some((copy, outcome)),
                Err(late) => {
                    late.note_late();
                    None
                }
            }
        });
        arrived.collect()
    }

    /// The block in what came of a copy.
    pub(crate) fn take_copy(
        &self,
        copy: &Copy,
        outcome: Outcome,
        why: Kind,
    ) -> Option<(CheckedHeader, Bytes)> {
        let Ok(bytes) = outcome else {
            copy.member.counters.read_errors.fetch_add(1, Ordering::Relaxed);
            self.read_cache.distrust(copy);
            return None;
        };
        match self.prove_copy(copy.id, bytes) {
            Ok(found) => {
                self.read_cache.hit(copy, why);
                Some(found)
            }
            Err(NotIt { is_rot }) => {
                if self.read_cache.distrust(copy) && is_rot {
                    copy.member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// The block in what was read.
    fn prove_copy(&self, id: BlockId, bytes: AlignedBuf) -> Result<(CheckedHeader, Bytes), NotIt> {
        let rotten = NotIt { is_rot: true };
        let header = CheckedHeader::check(&self.sums, &bytes).map_err(|_| rotten)?;
        let stored = header.stored() as usize;
        if stored > bytes.len() {
            return Err(rotten);
        }
        // A block that has the place now, or shares a tag with the other one.
        if header.id != id && !mutated(Mutant::CopyUnchecked) {
            return Err(NotIt { is_rot: false });
        }
        let own = part(bytes, 0..stored);
        let is_believed = mutated(Mutant::CopyUnchecked)
            || (mutated(Mutant::CopyOfStranger) && block::check(&self.sums, id, &own).is_ok());
        match self.prove(id, &own) {
            Some(header) => Ok((header, own)),
            None if is_believed => Ok((header, own)),
            None => Err(rotten),
        }
    }
}

/// Something else was read.
#[derive(Debug, Clone, Copy)]
struct NotIt {
    /// It is none.
    is_rot: bool,
}
