//! Choices, by seed.

use larder_device::{Entropy, SeededEntropy};

/// Choices, by seed.
pub(crate) struct Rng(SeededEntropy);

impl Rng {
    pub(crate) fn new(seeds: &[u64]) -> Self {
        let mixed = seeds.iter().fold(0, |mixed, seed| SeededEntropy::new(mixed ^ seed).next_u64());
        Self(SeededEntropy::new(mixed))
    }

    /// A number below `count`, which is not zero.
    pub(crate) fn below(&self, count: usize) -> usize {
        (self.0.next_u64() % count as u64) as usize
    }

    /// Fisher and Yates.
    pub(crate) fn shuffle(&self, items: &mut [usize]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
