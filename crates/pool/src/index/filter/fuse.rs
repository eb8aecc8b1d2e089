//! Binary fuse filters: 9.2 bits a key, in three places; 1 in 256 answers yes without reason.
//!
//! After Graf and Lemire, *Binary Fuse Filters: Fast and Smaller Than Xor Filters* (2022): 1.125 values of a byte a key
//! in large ones, 1.15 at [`crate::index::PART_PRINTS`] keys.
//! Ours rather than a crate's: its bytes are part of the format, and look-ups are in two halves.

use super::mix;
use larder_format::index::MAX_WINDOW;
use std::sync::Arc;

/// Seeds that are tried, one after the other. One fails now and then; a dozen do not.
const SEEDS: u64 = 1000;

/// Of [`larder_format::index::FilterShape`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) seed: u64,
    pub(super) windows: u32,
    pub(super) window: u32,
}

/// The filter in memory.
#[derive(Debug, Clone)]
pub(in crate::index) struct Fuse {
    shape: Shape,
    bytes: Arc<[u8]>,
}

/// Where a key's values are, and what they have to give.
#[derive(Debug, Clone, Copy)]
pub(in crate::index) struct Spots {
    at: [u32; 3],
    check: u8,
}

fn hash(shape: &Shape, key: u64) -> u64 {
    mix(key.wrapping_add(shape.seed))
}

fn spots(shape: &Shape, hash: u64) -> Spots {
    let starts = u64::from(shape.windows) * u64::from(shape.window);
    let first = ((u128::from(hash) * u128::from(starts)) >> 64) as u32;
    let mask = shape.window - 1;
    let at = [
        first,
        (first + shape.window) ^ ((hash >> 18) as u32 & mask),
        (first + 2 * shape.window) ^ (hash as u32 & mask),
    ];
    Spots { at, check: (hash ^ (hash >> 32)) as u8 }
}

impl Fuse {
    pub(super) fn build(keys: &[u64]) -> Self {
        let mut shape = shape_for(keys.len());
        for seed in 0..SEEDS {
            shape.seed = mix(seed);
            if let Some(bytes) = fill(&shape, keys) {
                return Self { shape, bytes };
            }
        }
        unreachable!("{} keys that differ have a filter", keys.len());
    }

    /// `bytes`: as many as the shape has values.
    pub(super) fn new(shape: Shape, bytes: &[u8]) -> Self {
        Self { shape, bytes: bytes.into() }
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    pub(super) fn spots(&self, key: u64) -> Spots {
        spots(&self.shape, hash(&self.shape, key))
    }

    #[inline]
    pub(super) fn fetch(&self, spots: &Spots) {
        spots.at.iter().for_each(|at| super::fetch(self.bytes.as_ptr().wrapping_add(*at as usize)));
    }

    #[inline]
    pub(super) fn may_hold(&self, spots: &Spots) -> bool {
        let [a, b, c] = spots.at.map(|at| self.bytes[at as usize]);
        a ^ b ^ c == spots.check
    }
}

/// The sizes that the paper's authors found for so many keys.
fn shape_for(keys: usize) -> Shape {
    let n = keys.max(2) as f64;
    let window = 1u32 << (n.ln() / 3.33f64.ln() + 2.25) as u32;
    let window = window.min(MAX_WINDOW);
    let factor = (0.875 + 0.25 * 1e6f64.ln() / n.ln()).max(1.125);
    let values = (n * factor).round() as u32;
    let windows = values.div_ceil(window).saturating_sub(2).max(1);
    Shape { seed: 0, windows, window }
}

/// Finds values such that every key is in; `None` when this seed does not work.
fn fill(shape: &Shape, keys: &[u64]) -> Option<Arc<[u8]>> {
    let values = (shape.windows as usize + 2) * shape.window as usize;
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
    let mut bytes = vec![0u8; values];
    for &(hash, own) in order.iter().rev() {
        let spots = spots(shape, hash);
        let own = usize::from(own);
        let others = [spots.at[(own + 1) % 3], spots.at[(own + 2) % 3]].map(|at| bytes[at as usize]);
        bytes[spots.at[own] as usize] = spots.check ^ others[0] ^ others[1];
    }
    Some(bytes.into())
}
