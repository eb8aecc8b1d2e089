//! The memtable: the newest entries, not written yet, in hash tables by range of fingerprints, so that they grow one
//! after the other, and are sorted one after the other when they are written.

use larder_format::BlockId;
use larder_format::index::PrintEntry;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hash tables, each for as many upper halves of fingerprints.
const RANGES: usize = 64;
const RANGE_SHIFT: u32 = u64::BITS - RANGES.ilog2();
/// Memory of a place in a hash table, bytes: key, value and a control byte.
const PLACE_BYTES: usize = size_of::<(u64, Known)>() + 1;

/// The newest entries, at most one a fingerprint. Without one it takes no memory.
#[derive(Debug, Default)]
pub(super) struct Memtable {
    ranges: Vec<HashMap<u64, Known, BuildHasherDefault<Folded>>>,
    len: usize,
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    check: u32,
    gone: bool,
    id: BlockId,
}

/// Hashes a number by one multiplication; fingerprints are keyed, nobody can aim at it.
#[derive(Debug, Default)]
pub(super) struct Folded(u64);

impl Hasher for Folded {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }
    fn write_u64(&mut self, key: u64) {
        let wide = u128::from(key) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

impl Memtable {
    pub(super) fn get(&self, high: u64) -> Option<PrintEntry> {
        let range = self.ranges.get((high >> RANGE_SHIFT) as usize)?;
        let &Known { check, gone, id } = range.get(&high)?;
        Some(PrintEntry { high, check, id, gone })
    }

    /// The entry takes the place of the one of its fingerprint.
    pub(super) fn put(&mut self, entry: PrintEntry) {
        if self.ranges.is_empty() {
            self.ranges.resize_with(RANGES, HashMap::default);
        }
        let PrintEntry { high, check, id, gone } = entry;
        let range = &mut self.ranges[(high >> RANGE_SHIFT) as usize];
        let before = range.capacity();
        let new = range.insert(high, Known { check, gone, id }).is_none();
        // Hash tables are at most seven eighths full.
        self.bytes += (range.capacity() - before) * 8 / 7 * PLACE_BYTES;
        self.len += usize::from(new);
    }

    /// The upper halves of all fingerprints in it, in any order.
    pub(super) fn highs(&self) -> impl Iterator<Item = u64> {
        self.ranges.iter().flat_map(|range| range.keys().copied())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// The number of ranges: [`Memtable::range`] has them in order of fingerprints.
    pub(super) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Appends the entries of a range to `out`, sorted.
    pub(super) fn range(&self, at: usize, out: &mut Vec<PrintEntry>) {
        let from = out.len();
        let entry =
            |(&high, &Known { check, gone, id }): (&u64, &Known)| PrintEntry { high, check, id, gone };
        out.extend(self.ranges[at].iter().map(entry));
        out[from..].sort_unstable_by_key(|entry| entry.high);
    }
}
