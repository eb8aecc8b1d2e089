//! The locality cache: fingerprints of blocks that are known to be alive, without any I/O.
//!
//! Two generations, each a quarter to half of what there is room for: when the younger is full the older is forgotten
//! and they change places. What is found in the older goes over to the younger.

use larder_format::{BlockId, BlockPtr, Fingerprint};
use std::collections::HashMap;

/// Memory of an entry in both tables at worst, bytes: they are seven sixteenths full.
const ENTRY_BYTES: u64 =
    ((size_of::<(Fingerprint, BlockPtr)>() + size_of::<(BlockId, Fingerprint)>() + 2) * 16 / 7) as u64;
/// Room for two neighbourhoods there is always.
const LEAST: usize = 4096;

#[derive(Debug, Default)]
struct Generation {
    by_print: HashMap<Fingerprint, BlockPtr>,
    by_id: HashMap<BlockId, Fingerprint>,
}

impl Generation {
    fn insert(&mut self, print: Fingerprint, ptr: BlockPtr) {
        if let Some(before) = self.by_print.insert(print, ptr) {
            self.by_id.remove(&before.id);
        }
        self.by_id.insert(ptr.id, print);
    }

    fn forget(&mut self, id: BlockId) {
        if let Some(print) = self.by_id.remove(&id) {
            self.by_print.remove(&print);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.by_print.capacity() * (size_of::<(Fingerprint, BlockPtr)>() + 1)
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

    /// A block that is alive has this fingerprint.
    pub(crate) fn insert(&mut self, print: Fingerprint, ptr: BlockPtr) {
        if self.new.by_print.len() >= self.limit {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(print, ptr);
    }

    /// A block with this fingerprint.
    pub(crate) fn get(&mut self, print: Fingerprint) -> Option<BlockPtr> {
        if let Some(ptr) = self.new.by_print.get(&print) {
            return Some(*ptr);
        }
        let ptr = *self.old.by_print.get(&print)?;
        self.old.forget(ptr.id);
        self.insert(print, ptr);
        Some(ptr)
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
    use larder_format::{Place, SegmentId};

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
            locality.insert(print(n), ptr(n));
            assert_eq!(locality.get(print(0)).map(|ptr| ptr.id), Some(BlockId::new(0)), "after {n}");
        }
        let there = (0..count).filter(|&n| locality.get(print(n)).is_some()).count();
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
            locality.insert(print(n), ptr(n));
        }
        for n in 0..3 * LEAST as u64 / 2 {
            locality.forget(BlockId::new(n));
            assert_eq!(locality.get(print(n)), None);
        }
        // The younger of two blocks with one content; then it goes.
        locality.insert(print(1), ptr(5));
        locality.insert(print(1), ptr(6));
        locality.forget(BlockId::new(5));
        assert_eq!(locality.get(print(1)), Some(ptr(6)));
        locality.forget(BlockId::new(6));
        assert_eq!(locality.get(print(1)), None);
    }
}
