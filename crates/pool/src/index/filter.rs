//! Binary fuse filters: whether a part may hold a fingerprint.
//!
//! After Graf and Lemire, *Binary Fuse Filters: Fast and Smaller Than Xor Filters* (2022), with three places a key:
//! 1.125 values a key in large ones, 1.15 at [`super::PART_PRINTS`] keys. A value is one byte where there are most
//! entries (1 in 256 answers yes without reason) and two bytes where there are few (1 in 65,536).
//! Ours rather than a crate's: its bytes are part of the format, and a batch's look-ups want to be in two halves,
//! so that the processor has the memory of all of them in flight: it is asked for that of each in the first half
//! ([`Filter::fetch`]). Filters of 10^8 keys and more are larger than any cache, and without this a batch waits for
//! one after the other (processor time of a new fingerprint, filters of four runs: 208 instead of 107 ns).

use larder_format::index::{FilterShape, MAX_WINDOW};
use std::sync::Arc;

/// Seeds that are tried, one after the other. One fails now and then; a dozen do not.
const SEEDS: u64 = 1000;

/// A filter in memory.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    pub(super) shape: FilterShape,
    bytes: Arc<[u8]>,
}

/// Where a key's values are, and what they have to give.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spots {
    at: [u32; 3],
    check: u16,
}

/// MurmurHash3's finalizer.
fn mix(mut key: u64) -> u64 {
    key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

fn hash(shape: &FilterShape, key: u64) -> u64 {
    mix(key.wrapping_add(shape.seed))
}

fn spots(shape: &FilterShape, hash: u64) -> Spots {
    let starts = u64::from(shape.windows) * u64::from(shape.window);
    let first = ((u128::from(hash) * u128::from(starts)) >> 64) as u32;
    let mask = shape.window - 1;
    let at = [
        first,
        (first + shape.window) ^ ((hash >> 18) as u32 & mask),
        (first + 2 * shape.window) ^ (hash as u32 & mask),
    ];
    let check = (hash ^ (hash >> 32)) as u16;
    Spots { at, check: if shape.width == 1 { check & 0xff } else { check } }
}

impl Filter {
    /// A filter of `keys`, which all differ, with values of `width` bytes.
    pub(super) fn build(keys: &[u64], width: u8) -> Self {
        let mut shape = shape_for(keys.len(), width);
        for seed in 0..SEEDS {
            shape.seed = mix(seed);
            if let Some(bytes) = fill(&shape, keys) {
                return Self { shape, bytes };
            }
        }
        unreachable!("{} keys that differ have a filter", keys.len());
    }

    /// The filter that these bytes are, if they are as many as the shape needs.
    pub(super) fn from_bytes(shape: FilterShape, bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() as u64 == shape.bytes()).then(|| Self { shape, bytes: bytes.into() })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The first half of asking for `key`: no memory of the filter is touched.
    #[inline]
    pub(super) fn spots(&self, key: u64) -> Spots {
        spots(&self.shape, hash(&self.shape, key))
    }

    /// Asks the processor for what the second half will read, and does not wait.
    #[inline]
    pub(super) fn fetch(&self, spots: &Spots) {
        for at in spots.at {
            let byte = self.bytes.as_ptr().wrapping_add(at as usize * usize::from(self.shape.width));
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: every x86-64 processor has the instruction; it takes any address, reads nothing that the
                // program sees, and never faults.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(byte.cast()) }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = byte;
        }
    }

    /// The second half: `false` when the key is not there.
    #[inline]
    pub(super) fn may_hold(&self, spots: &Spots) -> bool {
        let value = |at: u32| {
            let at = at as usize;
            if self.shape.width == 1 {
                u16::from(self.bytes[at])
            } else {
                u16::from_le_bytes([self.bytes[2 * at], self.bytes[2 * at + 1]])
            }
        };
        value(spots.at[0]) ^ value(spots.at[1]) ^ value(spots.at[2]) == spots.check
    }
}

/// The sizes that the paper's authors found for so many keys.
fn shape_for(keys: usize, width: u8) -> FilterShape {
    let n = keys.max(2) as f64;
    let window = 1u32 << (n.ln() / 3.33f64.ln() + 2.25) as u32;
    let window = window.min(MAX_WINDOW);
    let factor = (0.875 + 0.25 * 1e6f64.ln() / n.ln()).max(1.125);
    let values = (n * factor).round() as u32;
    let windows = values.div_ceil(window).saturating_sub(2).max(1);
    FilterShape { seed: 0, windows, window, width }
}

/// Finds values such that every key is in; `None` when this seed does not work.
fn fill(shape: &FilterShape, keys: &[u64]) -> Option<Arc<[u8]>> {
    let values = shape.values() as usize;
    // Of each place: how many keys have a value there, times four, with the exclusive or of which of their three
    // values it is; and the exclusive or of their hashes.
    let mut count = vec![0u8; values];
    let mut sum = vec![0u64; values];
    for &key in keys {
        let hash = hash(shape, key);
        for (which, at) in spots(shape, hash).at.into_iter().enumerate() {
            let count = &mut count[at as usize];
            // More than 63 keys at a place: no filter that works.
            *count = count.checked_add(4)? ^ which as u8;
            sum[at as usize] ^= hash;
        }
    }
    // Keys that are alone at one of their places are taken off, one after the other.
    let mut alone: Vec<u32> = (0..values as u32).filter(|at| count[*at as usize] >> 2 == 1).collect();
    let mut order: Vec<(u64, u8)> = Vec::with_capacity(keys.len());
    while let Some(at) = alone.pop() {
        let place = at as usize;
        if count[place] >> 2 != 1 {
            continue;
        }
        let (hash, own) = (sum[place], count[place] & 3);
        order.push((hash, own));
        for (which, at) in spots(shape, hash).at.into_iter().enumerate() {
            let place = at as usize;
            count[place] = (count[place] - 4) ^ which as u8;
            sum[place] ^= hash;
            if count[place] >> 2 == 1 {
                alone.push(at);
            }
        }
    }
    if order.len() < keys.len() {
        return None;
    }
    drop((count, sum));
    let wide = usize::from(shape.width);
    let mut bytes = vec![0u8; values * wide];
    for &(hash, own) in order.iter().rev() {
        let spots = spots(shape, hash);
        let own = usize::from(own);
        let mut value = spots.check.to_le_bytes();
        for at in [spots.at[(own + 1) % 3], spots.at[(own + 2) % 3]] {
            let there = &bytes[at as usize * wide..][..wide];
            value.iter_mut().zip(there).for_each(|(byte, there)| *byte ^= there);
        }
        bytes[spots.at[own] as usize * wide..][..wide].copy_from_slice(&value[..wide]);
    }
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> u64 {
        mix(n ^ 0x5555)
    }

    #[test]
    fn every_key_is_in_and_few_others_seem_to_be() {
        for (keys, width) in [(1, 1), (2, 2), (3, 1), (10, 1), (1000, 2), (100_000, 1), (50_000, 2)] {
            let all: Vec<_> = (0..keys).map(key).collect();
            let filter = Filter::build(&all, width);
            assert!(all.iter().all(|key| filter.may_hold(&filter.spots(*key))), "{keys} keys");
            let wrong = (keys..keys + 1_000_000).filter(|n| filter.may_hold(&filter.spots(key(*n)))).count();
            assert!(wrong < if width == 1 { 4_500 } else { 40 }, "{wrong} of a million with {keys} keys");
            let again = Filter::from_bytes(filter.shape, filter.bytes().to_vec()).unwrap();
            assert!(all.iter().all(|key| again.may_hold(&again.spots(*key))));
        }
    }

    #[test]
    fn a_key_costs_little_more_than_nine_bits() {
        let all: Vec<_> = (0..1 << 18).map(key).collect();
        let filter = Filter::build(&all, 1);
        let bits = 8.0 * filter.bytes().len() as f64 / all.len() as f64;
        assert!(bits < 9.4, "{bits} bits a key");
    }

    #[test]
    fn keys_in_order_are_as_good_as_others() {
        let all: Vec<_> = (0..10_000).collect();
        let filter = Filter::build(&all, 1);
        assert!(all.iter().all(|key| filter.may_hold(&filter.spots(*key))));
    }
}
