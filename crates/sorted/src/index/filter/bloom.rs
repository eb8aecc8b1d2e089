//! Filters of lines: 12 bits a key, of which a key has eight in one line of the processor's cache, one in each of its
//! words; 1 in 250 answers yes without reason.
//!
//! After Putze, Sanders and Singler, *Cache-, Hash- and Space-Efficient Bloom Filters* (2007), with a bit a word as in
//! the split block filters of Parquet, but for words of 64 bits.

use super::mix;
use larder_format::index::LINE;
use std::sync::Arc;

const WORDS: usize = LINE / size_of::<u64>();
/// Keys of a line, on the average.
const KEYS_PER_LINE: usize = 42;

/// A cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(in crate::index) struct Line([u64; WORDS]);

/// The filter in memory.
#[derive(Debug, Clone)]
pub(in crate::index) struct Bloom(Arc<[Line]>);

/// Positions of a key's bits.
#[derive(Debug, Clone, Copy)]
pub(in crate::index) struct BloomSpot {
    line: u32,
    /// Six bits for each word, the first lowest.
    bits: u64,
}

/// `hash`: of the key, by [`mix`].
#[inline]
pub(in crate::index) fn spot(lines: usize, hash: u64) -> BloomSpot {
    // The line goes by the highest bits, which none of the eight times six below is.
    BloomSpot { line: ((u128::from(hash) * lines as u128) >> 64) as u32, bits: hash }
}

impl BloomSpot {
    #[inline]
    pub(in crate::index) fn line(&self) -> usize {
        self.line as usize
    }

    /// The number of its bit in a word.
    #[inline]
    fn bit(&self, word: usize) -> u64 {
        self.bits >> (6 * word) & 63
    }
}

impl Line {
    #[inline]
    pub(in crate::index) fn put(&mut self, spot: &BloomSpot) {
        self.0.iter_mut().enumerate().for_each(|(word, bits)| *bits |= 1 << spot.bit(word));
    }

    #[inline]
    pub(in crate::index) fn may_hold(&self, spot: &BloomSpot) -> bool {
        // All words are looked at: whether one says no is not to be foreseen, and a wrong guess costs more.
        let all = self.0.iter().enumerate().fold(u64::MAX, |all, (word, bits)| all & bits >> spot.bit(word));
        all & 1 != 0
    }
}

impl Bloom {
    pub(super) fn build(keys: &[u64]) -> Self {
        let mut lines = vec![Line::default(); keys.len().div_ceil(KEYS_PER_LINE).max(1)];
        for &key in keys {
            let spot = spot(lines.len(), mix(key));
            lines[spot.line()].put(&spot);
        }
        Self(lines.into())
    }

    /// `bytes`: whole lines.
    pub(super) fn new(bytes: &[u8]) -> Self {
        let line = |bytes: &[u8; LINE]| {
            let (words, _) = bytes.as_chunks();
            Line(std::array::from_fn(|word| u64::from_le_bytes(words[word])))
        };
        Self(bytes.as_chunks().0.iter().map(line).collect())
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|line| line.0).flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    #[inline]
    pub(super) fn spot(&self, key: u64) -> BloomSpot {
        spot(self.0.len(), mix(key))
    }

    #[inline]
    pub(super) fn fetch(&self, spot: &BloomSpot) {
        super::fetch(self.0.as_ptr().wrapping_add(spot.line()).cast());
    }

    #[inline]
    pub(super) fn may_hold(&self, spot: &BloomSpot) -> bool {
        self.0[spot.line()].may_hold(spot)
    }
}
