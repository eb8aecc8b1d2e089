//! The locality cache: fingerprints of blocks that are known to be alive, without any I/O.
//!
//! Two generations, each a quarter to half of what there is room for: when the younger is full the older is forgotten
//! and they change places. What is found in the older goes over to the younger.
//!
//! Of several blocks with one content it knows the one that has most places, as they were when it was met: whoever asks
//! for more than another has finds it.

use larder_format::{BlockId, BlockPtr, Fingerprint, Place, SegmentId};
use std::collections::HashMap;

/// Memory of an entry in both tables at worst, bytes: they are seven sixteenths full.
const ENTRY_BYTES: u64 =
    ((size_of::<(Fingerprint, Known)>() + size_of::<(BlockId, Fingerprint)>() + 2) * 16 / 7) as u64;
/// Room for two neighbourhoods there is always.
const LEAST: usize = 4096;

/// A block with one of its places, and how many it has: no larger than a pointer.
#[derive(Debug, Clone, Copy)]
struct Known {
    id: BlockId,
    segment: SegmentId,
    offset: u32,
    stored: u32,
    column: u8,
    places: u8,
}

impl Known {
    fn new(BlockPtr { id, place }: BlockPtr, places: usize) -> Self {
        let Place { segment, column, offset, stored } = place;
        Self { id, segment, offset, stored, column, places: places as u8 }
    }

    fn ptr(&self) -> BlockPtr {
        let Self { id, segment, offset, stored, column, .. } = *self;
        BlockPtr { id, place: Place { segment, column, offset, stored } }
    }
}

#[derive(Debug, Default)]
struct Generation {
    by_print: HashMap<Fingerprint, Known>,
    by_id: HashMap<BlockId, Fingerprint>,
}

impl Generation {
    fn insert(&mut self, print: Fingerprint, known: Known) {
        if let Some(before) = self.by_print.insert(print, known) {
            self.by_id.remove(&before.id);
        }
        self.by_id.insert(known.id, print);
    }

    fn forget(&mut self, id: BlockId) {
        if let Some(print) = self.by_id.remove(&id) {
            self.by_print.remove(&print);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.by_print.capacity() * (size_of::<(Fingerprint, Known)>() + 1)
            + self.by_id.capacity() * (size_of::<(BlockId, Fingerprint)>() + 1)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct LocalityCache {
    new: Generation,
    old: Generation,
    /// Entries of a generation.
    limit: usize,
}

impl LocalityCache {
    /// Room for `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        let mut locality = Self { new: Generation::default(), old: Generation::default(), limit: LEAST };
        locality.set_limit(bytes);
        locality
    }

    /// Room for `bytes` from now on.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit = LEAST.max((bytes / ENTRY_BYTES / 2) as usize);
        if self.new.by_print.len() > self.limit || self.old.by_print.len() > self.limit {
            self.clear();
        }
    }

    /// A block that is alive has this fingerprint, and so many places.
    pub(crate) fn insert(&mut self, print: Fingerprint, ptr: BlockPtr, places: usize) {
        let known = Known::new(ptr, places);
        let before = self.new.by_print.get(&print).or_else(|| self.old.by_print.get(&print));
        if before.is_none_or(|before| before.id == known.id || before.places <= known.places) {
            self.put(print, known);
        }
    }

    fn put(&mut self, print: Fingerprint, known: Known) {
        if self.new.by_print.len() >= self.limit {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(print, known);
    }

    /// A block with this fingerprint that has at least so many places.
    pub(crate) fn get(&mut self, print: Fingerprint, copies: u8) -> Option<BlockPtr> {
        let has_all = |known: &&Known| known.places >= copies;
        if let Some(known) = self.new.by_print.get(&print) {
            return Some(known).filter(has_all).map(Known::ptr);
        }
        let known = *self.old.by_print.get(&print).filter(has_all)?;
        self.old.forget(known.id);
        self.put(print, known);
        Some(known.ptr())
    }

    /// A block is gone.
    pub(crate) fn forget(&mut self, id: BlockId) {
        self.new.forget(id);
        self.old.forget(id);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        (self.new, self.old) = Default::default();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.new.memory_bytes() + self.old.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(n: u64) -> Fingerprint {
        Fingerprint::new(u128::from(n).to_le_bytes())
    }

    fn ptr(n: u64) -> BlockPtr {
        let place = Place { segment: SegmentId::new(1), column: 0, offset: 8, stored: 8 };
        BlockPtr { id: BlockId::new(n), place }
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_makes_room() {
        let mut locality = LocalityCache::new(0);
        let count = 10 * LEAST as u64;
        for n in 0..count {
            locality.insert(print(n), ptr(n), 1);
            assert_eq!(locality.get(print(0), 1).map(|ptr| ptr.id), Some(BlockId::new(0)), "after {n}");
        }
        let there = (0..count).filter(|&n| locality.get(print(n), 1).is_some()).count();
        assert!((LEAST..=2 * LEAST).contains(&there), "{there}");
        assert!(
            locality.memory_bytes() as u64 <= 2 * LEAST as u64 * ENTRY_BYTES,
            "{}",
            locality.memory_bytes()
        );
    }

    #[test]
    fn a_block_that_is_gone_is_not_named_whatever_generation_it_is_in() {
        let mut locality = LocalityCache::new(0);
        for n in 0..3 * LEAST as u64 / 2 {
            locality.insert(print(n), ptr(n), 1);
        }
        for n in 0..3 * LEAST as u64 / 2 {
            locality.forget(BlockId::new(n));
            assert_eq!(locality.get(print(n), 1), None);
        }
        // The younger of two blocks with one content; then it goes.
        locality.insert(print(1), ptr(5), 1);
        locality.insert(print(1), ptr(6), 1);
        locality.forget(BlockId::new(5));
        assert_eq!(locality.get(print(1), 1), Some(ptr(6)));
        locality.forget(BlockId::new(6));
        assert_eq!(locality.get(print(1), 1), None);
    }

    #[test]
    fn of_two_blocks_with_one_content_the_one_with_more_places_is_known() {
        let mut locality = LocalityCache::new(0);
        locality.insert(print(1), ptr(5), 2);
        // Old by now.
        for n in 10..10 + LEAST as u64 {
            locality.insert(print(n), ptr(n), 1);
        }
        locality.insert(print(1), ptr(6), 1);
        assert_eq!(locality.get(print(1), 3), None);
        assert_eq!(locality.get(print(1), 2), Some(ptr(5)));
        locality.insert(print(1), ptr(7), 2);
        assert_eq!(locality.get(print(1), 1), Some(ptr(7)), "the younger of two that are as good");
        // It has lost one.
        locality.insert(print(1), ptr(7), 1);
        assert_eq!((locality.get(print(1), 2), locality.get(print(1), 1)), (None, Some(ptr(7))));
        locality.forget(BlockId::new(7));
        assert_eq!(locality.get(print(1), 1), None);
    }
}
