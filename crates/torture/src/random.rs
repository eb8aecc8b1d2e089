//! Choices, by seed.

use larder_device::{Entropy, SeededEntropy};

/// Choices, by seed.
pub struct Rng(SeededEntropy);

impl Rng {
    /// The stream that these numbers name.
    pub fn new(seeds: &[u64]) -> Self {
        let mixed = seeds.iter().fold(7, |mixed: u64, &seed| {
            SeededEntropy::new(mixed.rotate_left(17) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next_u64()
        });
        Self(SeededEntropy::new(mixed))
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `count`, which is not zero.
    pub fn below(&self, count: u64) -> u64 {
        self.0.next_u64() % count
    }

    /// True once in `count` times.
    pub fn one_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// So many bytes.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        self.0.bytes(len)
    }
}
