//! Cutting files by content, so that what is inserted or removed moves no cut but the nearest.
//!
//! FastCDC (Xia et al., "FastCDC: a Fast and Efficient Content-Defined Chunking Approach for Data Deduplication",
//! USENIX ATC 2016; "The Design of Fast Content-Defined Chunking for Data Deduplication Based Storage Systems",
//! IEEE TPDS 2020) with normalised chunking of level 2: a gear hash rolls over the bytes, and a record ends behind
//! the byte where some of its upper bits are zero; four more of them up to the average than after it, which keeps
//! most records near the average. Bytes are looked at in pairs, as in the paper of 2020. One thing is done otherwise:
//! the hash begins 64 bytes, more than its window, before the least length, so that it depends on these bytes alone
//! and not on where the record began.
//!
//! Nothing on disk depends on where a cut falls; but who changes the table or the bounds parts what is written
//! from what was.

/// What each byte adds to the hash: the output of SplitMix64 (Steele, Lea, Flood, 2014) from a seed of 0.
const GEAR: [u64; 256] = {
    let mut gear = [0; 256];
    let mut state = 0u64;
    let mut i = 0;
    while i < 256 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        gear[i] = z ^ (z >> 31);
        i += 1;
    }
    gear
};
/// The table for the first byte of a pair: what it adds is shifted once more before it is looked at.
const GEAR_FIRST: [u64; 256] = {
    let mut gear = GEAR;
    let mut i = 0;
    while i < 256 {
        gear[i] <<= 1;
        i += 1;
    }
    gear
};
/// Bytes that the hash depends on at most: it is shifted by a bit a byte.
const WINDOW: usize = 64;
/// Bits more than the average asks for before it is reached, and fewer after.
const LEVEL: u32 = 2;

/// Where records of one average length end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cutter {
    min: usize,
    average: usize,
    max: usize,
}

impl Cutter {
    /// Cuts records of `average` bytes on the whole and `limit` at most, both powers of two: from a quarter of
    /// the average to four times as much. The average is at most half of the limit.
    ///
    /// # Panics
    /// When the average is less than 512 bytes, or one of them is no power of two.
    pub fn new(average: u32, limit: u32) -> Self {
        assert!(
            average.is_power_of_two() && limit.is_power_of_two(),
            "{average} and {limit} are powers of two"
        );
        let average = average.min(limit / 2) as usize;
        assert!(average / 4 > WINDOW, "records of {average} bytes are too short to be cut by content");
        Self { min: average / 4, average, max: (4 * average).min(limit as usize) }
    }

    /// The least bytes of a record that is not the last.
    pub fn min(&self) -> usize {
        self.min
    }

    /// The most bytes of a record.
    pub fn max(&self) -> usize {
        self.max
    }

    /// How many of `bytes` the record takes that begins with them; at `end_known` nothing follows them, and what
    /// is left makes the last record. `None` when more bytes are needed to tell, or there are none.
    pub fn next(&self, bytes: &[u8], end_known: bool) -> Option<usize> {
        let bytes = &bytes[..bytes.len().min(self.max)];
        if let Some(rest) = bytes.get(self.min - WINDOW..) {
            let (warm_up, rest) = rest.split_at(rest.len().min(WINDOW));
            let mut hash = warm_up.iter().fold(0, |hash, &byte| roll(hash, byte));
            let (early, late) = rest.split_at(rest.len().min(self.average - self.min));
            if let Some(at) = find(&mut hash, early, self.mask(LEVEL)) {
                return Some(self.min + at);
            }
            if let Some(at) = find(&mut hash, late, self.mask(LEVEL.wrapping_neg())) {
                return Some(self.average + at);
            }
        }
        ((end_known && !bytes.is_empty()) || bytes.len() == self.max).then_some(bytes.len())
    }

    /// Bits of the hash that are zero once in as many bytes as the average has, times 2 to the power of `harder`.
    /// The uppermost is left out, since half of the hashes are seen without it.
    fn mask(&self, harder: u32) -> u64 {
        let bits = self.average.ilog2().wrapping_add(harder);
        ((1 << bits) - 1) << (63 - bits)
    }
}

fn roll(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

/// How many bytes end where the hash has none of `mask` for the first time.
fn find(hash: &mut u64, bytes: &[u8], mask: u64) -> Option<usize> {
    let mut rolling = *hash;
    let (pairs, rest) = bytes.as_chunks::<2>();
    for (i, &[first, second]) in pairs.iter().enumerate() {
        // Both from what was before them, so that neither waits for the other.
        let (first, second) = (usize::from(first), usize::from(second));
        let shifted = (rolling << 2).wrapping_add(GEAR_FIRST[first]);
        if shifted & (mask << 1) == 0 {
            return Some(2 * i + 1);
        }
        rolling = (rolling << 2).wrapping_add(GEAR_FIRST[first].wrapping_add(GEAR[second]));
        if rolling & mask == 0 {
            return Some(2 * i + 2);
        }
    }
    if let [last] = *rest {
        rolling = roll(rolling, last);
        if rolling & mask == 0 {
            return Some(bytes.len());
        }
    }
    *hash = rolling;
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const CUTTER: (u32, u32) = (1024, 1 << 20);

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// Ends of all records.
    fn cuts(cutter: &Cutter, bytes: &[u8]) -> Vec<usize> {
        let (mut at, mut ends) = (0, Vec::new());
        while let Some(len) = cutter.next(&bytes[at..], true) {
            at += len;
            ends.push(at);
        }
        ends
    }

    #[test]
    fn bounds_follow_the_average_and_the_limit() {
        let bounds = |average, limit| {
            let cutter = Cutter::new(average, limit);
            (cutter.min, cutter.average, cutter.max)
        };
        assert_eq!(bounds(128 << 10, 1 << 20), (32 << 10, 128 << 10, 512 << 10));
        assert_eq!(bounds(512 << 10, 1 << 20), (128 << 10, 512 << 10, 1 << 20));
        assert_eq!(bounds(1 << 20, 1 << 20), (128 << 10, 512 << 10, 1 << 20));
    }

    #[test]
    fn records_have_the_average_length_on_the_whole() {
        let bytes = noise(4 << 20, 1);
        let cutter = Cutter::new(4096, 1 << 20);
        let count = cuts(&cutter, &bytes).len();
        assert!((900..1150).contains(&count), "{count} records of 4 KiB in 4 MiB");
    }

    #[test]
    fn zeros_make_the_longest_records() {
        let cutter = Cutter::new(CUTTER.0, CUTTER.1);
        assert_eq!(cuts(&cutter, &[0; 10_000]), [4096, 8192, 10_000]);
    }

    #[test]
    fn the_table_is_the_one_that_it_always_was() {
        assert_eq!((GEAR[0], GEAR[255]), (0xe220_a839_7b1d_cdaf, 0x5a58_32bb_47bc_f19e));
        assert_eq!(cuts(&Cutter::new(1024, 1 << 20), &noise(5000, 3)), [1619, 2585, 3736, 4839, 5000]);
    }

    proptest! {
        #[test]
        fn cuts_depend_on_content_alone(
            len in 0usize..40_000, seed in any::<u64>(), step in 1usize..6000,
        ) {
            let bytes = noise(len, seed);
            let cutter = Cutter::new(CUTTER.0, CUTTER.1);
            let whole = cuts(&cutter, &bytes);
            prop_assert_eq!(whole.last().copied().unwrap_or(0), len);
            let mut start = 0;
            for (i, &end) in whole.iter().enumerate() {
                let len = end - start;
                prop_assert!(len <= cutter.max());
                prop_assert!(len >= cutter.min() || i + 1 == whole.len());
                start = end;
            }
            // The same when the bytes come little by little.
            let (mut at, mut seen, mut ends) = (0, 0, Vec::new());
            while at < len {
                match cutter.next(&bytes[at..seen], seen == len) {
                    Some(taken) => {
                        at += taken;
                        ends.push(at);
                    }
                    None => seen = (seen + step).min(len),
                }
            }
            prop_assert_eq!(ends, whole);
        }

        #[test]
        fn cuts_are_the_same_again_soon_after_an_insertion(
            seed in any::<u64>(), at in 0usize..20_000, inserted in 1usize..3000,
        ) {
            let bytes = noise(200_000, seed);
            let mut longer = bytes[..at].to_vec();
            longer.extend(noise(inserted, !seed));
            longer.extend(&bytes[at..]);
            let cutter = Cutter::new(CUTTER.0, CUTTER.1);
            let (before, after) = (cuts(&cutter, &bytes), cuts(&cutter, &longer));
            let kept: BTreeSet<_> = before.iter().filter(|&&end| end <= at).collect();
            prop_assert!(kept.iter().all(|end| after.contains(end)), "what came before it is cut as it was");
            let shifted: BTreeSet<_> = after.iter().map(|end| end.wrapping_sub(inserted)).collect();
            let first = before.iter().position(|&end| end > at && shifted.contains(&end)).unwrap();
            prop_assert!(before[first] < at + 40 * 1024, "the same at {} again", before[first]);
            prop_assert!(before[first..].iter().all(|end| shifted.contains(end)));
        }
    }
}
