//! Filters: whether a part may hold a fingerprint.
//!
//! Two kinds, for two ends. The base has nearly all entries, so its filters are to be small: a [`ribbon`], two lines of
//! memory a key. Upper runs have few entries, but there are several: these have a blocked [`bloom`] filter, one of them
//! a key, at a third more bytes, and what is [`recent`](super::recent) is known by one of its own.
//!
//! A batch's look-ups are in two halves, so that the processor has the memory of all of them in flight: it is asked for
//! that of each in the first half ([`Filter::fetch`]). Filters of 10^8 keys and more are larger than any cache, and
//! without this a batch waits for one after the other (processor time of a new fingerprint, filters of four runs: 208
//! instead of 107 ns).

mod bloom;
mod ribbon;

use bloom::Bloom;
pub(super) use bloom::{Line, spot};
use larder_format::index::FilterShape;
use ribbon::Ribbon;

/// A filter in memory.
#[derive(Debug, Clone)]
pub(super) enum Filter {
    Ribbon(Ribbon),
    Bloom(Bloom),
}

/// Positions of a key in a filter.
#[derive(Debug, Clone, Copy)]
pub(super) enum Spots {
    Ribbon(ribbon::RibbonSpots),
    Bloom(bloom::BloomSpot),
}

/// MurmurHash3's finalizer.
pub(super) fn mix(mut key: u64) -> u64 {
    key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

/// Asks the processor for what is at `at`, and does not wait.
#[inline]
pub(super) fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction; it takes any address, reads nothing that the
        // program sees, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl Filter {
    /// A filter of `keys`, which all differ, for the base or for an upper run. Keys that somebody made up, on a disk,
    /// may have no ribbon.
    pub(super) fn build(keys: &[u64], base: bool) -> Self {
        let ribbon = if base { Ribbon::build(keys) } else { None };
        ribbon.map_or_else(|| Self::Bloom(Bloom::build(keys)), Self::Ribbon)
    }

    /// The filter that these bytes are, if they are as many as the shape needs.
    pub(super) fn from_bytes(shape: FilterShape, bytes: &[u8]) -> Option<Self> {
        match shape {
            _ if bytes.len() as u64 != shape.bytes() => None,
            FilterShape::Ribbon { seed, values } => {
                Some(Self::Ribbon(Ribbon::new(ribbon::Shape { seed, values }, bytes)))
            }
            FilterShape::Bloom { .. } => Some(Self::Bloom(Bloom::new(bytes))),
        }
    }

    pub(super) fn shape(&self) -> FilterShape {
        match self {
            Self::Ribbon(ribbon) => {
                let ribbon::Shape { seed, values } = ribbon.shape();
                FilterShape::Ribbon { seed, values }
            }
            Self::Bloom(bloom) => FilterShape::Bloom { lines: bloom.len() },
        }
    }

    /// Its encoding on disk.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Ribbon(ribbon) => ribbon.bytes().to_vec(),
            Self::Bloom(bloom) => bloom.to_bytes(),
        }
    }

    /// The first half of asking for `key`: no memory of the filter is touched.
    #[inline]
    pub(super) fn spots(&self, key: u64) -> Spots {
        match self {
            Self::Ribbon(ribbon) => Spots::Ribbon(ribbon.spots(key)),
            Self::Bloom(bloom) => Spots::Bloom(bloom.spot(key)),
        }
    }

    /// Asks the processor for what the second half will read, and does not wait.
    #[inline]
    pub(super) fn fetch(&self, spots: &Spots) {
        match (self, spots) {
            (Self::Ribbon(ribbon), Spots::Ribbon(spots)) => ribbon.fetch(spots),
            (Self::Bloom(bloom), Spots::Bloom(spot)) => bloom.fetch(spot),
            _ => {}
        }
    }

    /// The second half: `false` when the key is not there. `spots` are of this filter.
    #[inline]
    pub(super) fn may_hold(&self, spots: &Spots) -> bool {
        match (self, spots) {
            (Self::Ribbon(ribbon), Spots::Ribbon(spots)) => ribbon.may_hold(spots),
            (Self::Bloom(bloom), Spots::Bloom(spot)) => bloom.may_hold(spot),
            _ => unreachable!("spots are asked of the filter that gave them"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> u64 {
        mix(n ^ 0x5555)
    }

    #[test]
    fn every_key_is_in_and_few_others_seem_to_be() {
        for (keys, base) in
            [(1, true), (2, false), (3, true), (10, true), (1000, false), (100_000, true), (50_000, false)]
        {
            let all: Vec<_> = (0..keys).map(key).collect();
            let filter = Filter::build(&all, base);
            assert!(all.iter().all(|key| filter.may_hold(&filter.spots(*key))), "{keys} keys");
            let wrong = (keys..keys + 1_000_000).filter(|n| filter.may_hold(&filter.spots(key(*n)))).count();
            assert!(wrong < 4_500, "{wrong} of a million with {keys} keys");
            let bytes = filter.to_bytes();
            assert_eq!(bytes.len() as u64, filter.shape().bytes());
            assert!(Filter::from_bytes(filter.shape(), &bytes[1..]).is_none());
            let again = Filter::from_bytes(filter.shape(), &bytes).unwrap();
            assert!(
                (0..keys + 1_000_000).step_by(7).all(|n| {
                    again.may_hold(&again.spots(key(n))) == filter.may_hold(&filter.spots(key(n)))
                })
            );
        }
    }

    /// Look-up in a filter's bytes as `SPEC.md` defines it, word by word.
    fn says(shape: FilterShape, bytes: &[u8], key: u64) -> bool {
        let scaled = |h: u64, n: u32| ((u128::from(h) * u128::from(n)) >> 64) as usize;
        match shape {
            FilterShape::Ribbon { seed, values } => {
                let h = mix(key.wrapping_add(seed));
                let p = scaled(h, values - 64 + 1);
                let others = (0..=5).map(|i| bytes[p + (h / (1 << (8 + 6 * i)) % 64) as usize]);
                others.fold(bytes[p], |sum, value| sum ^ value) == (h % 256) as u8
            }
            FilterShape::Bloom { lines } => {
                let h = mix(key);
                let line = &bytes[scaled(h, lines) * 64..][..64];
                (0..8).all(|w| {
                    let bit = (h / (1 << (6 * w)) % 64) as usize;
                    line[w * 8 + bit / 8] >> (bit % 8) & 1 == 1
                })
            }
        }
    }

    #[test]
    fn bytes_are_as_the_format_says() {
        let all: Vec<_> = (0..20_000).map(key).collect();
        for base in [true, false] {
            let filter = Filter::build(&all[..10_000], base);
            let (shape, bytes) = (filter.shape(), filter.to_bytes());
            for key in &all {
                assert_eq!(says(shape, &bytes, *key), filter.may_hold(&filter.spots(*key)));
            }
        }
    }

    #[test]
    fn a_key_costs_nine_bits_or_twelve() {
        let all: Vec<_> = (0..1 << 18).map(key).collect();
        for (base, least, most) in [(true, 9.0, 9.1), (false, 12.0, 12.3)] {
            let bits = 8.0 * Filter::build(&all, base).shape().bytes() as f64 / all.len() as f64;
            assert!((least..most).contains(&bits), "{bits} bits a key");
        }
    }

    /// The key of which [`mix`] makes `hash`.
    fn unmix(mut hash: u64) -> u64 {
        // The inverses of its factors, modulo 2^64.
        hash = (hash ^ (hash >> 33)).wrapping_mul(0x9cb4_b2f8_1293_37db);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0x4f74_430c_22a5_4005);
        hash ^ (hash >> 33)
    }

    #[test]
    fn keys_chosen_to_have_no_ribbon_have_a_filter_all_the_same() {
        assert!((0..1000).all(|n| unmix(mix(n)) == n));
        // Two keys with the same values and other checks, for each seed that could be tried.
        let pair = |seed: u64| [0, 1].map(|check| unmix(mix(seed) << 8 | check).wrapping_sub(mix(seed)));
        let all: Vec<_> = (0..1000).flat_map(pair).collect();
        let filter = Filter::build(&all, true);
        assert!(all.iter().all(|key| filter.may_hold(&filter.spots(*key))));
        assert_eq!(filter.to_bytes().len() as u64, filter.shape().bytes());
    }

    #[test]
    fn keys_in_order_are_as_good_as_others() {
        let all: Vec<_> = (0..10_000).collect();
        for base in [true, false] {
            let filter = Filter::build(&all, base);
            assert!(all.iter().all(|key| filter.may_hold(&filter.spots(*key))));
            let wrong = (10_000..110_000).filter(|key| filter.may_hold(&filter.spots(*key))).count();
            assert!(wrong < 500, "{wrong}");
        }
    }
}
