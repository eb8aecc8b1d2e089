//! Cutting files by content, so that what is inserted or removed moves no cut but the nearest.
//!
//! FastCDC (Xia et al., "FastCDC: a Fast and Efficient Content-Defined Chunking Approach for Data Deduplication",
//! USENIX ATC 2016; "The Design of Fast Content-Defined Chunking for Data Deduplication Based Storage Systems",
//! IEEE TPDS 2020) with normalised chunking of level 2: a gear hash rolls over the bytes, and a record ends behind
//! the byte where some of its upper bits are zero; four more of them up to the average than after it, which keeps
//! most records near the average. Two things are done otherwise. The hash begins its whole window before the
//! least length, so that it depends on 64 bytes alone and not on where the record began. So it can be had anywhere:
//! four places are looked at in turn, since a processor could do more in the time in which one hash waits for
//! the one before. (Pairs of bytes, as in the paper of 2020, gain less.)
//!
//! Nothing on disk depends on where a cut falls; but who changes the table or the bounds parts what is written
//! from what was.

use std::ops::Range;

/// Gear table, added to the hash by byte: the output of SplitMix64 (Steele, Lea, Flood, 2014) from a seed of 0.
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
/// Bytes that the hash depends on: it is shifted by a bit a byte.
const WINDOW: usize = 64;
/// Bits more than the average asks for before it is reached, and fewer after.
const LEVEL: u32 = 2;
/// Places at which bytes are looked at in turn.
const HEADS: usize = 4;
/// Bytes of each of them in a block that is marked: at distances that are known, the heads need one pointer together.
const LANE: usize = 4096;
/// Bytes of a lane that are rolled over at once.
const STRIDE: usize = 8;

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

    /// Length of the record that begins with `bytes`; at `end_known` nothing follows them, and what is left makes
    /// the last record. `None` when more bytes are needed to tell, or there are none.
    pub fn next(&self, bytes: &[u8], end_known: bool) -> Option<usize> {
        let bytes = &bytes[..bytes.len().min(self.max)];
        if bytes.len() > self.min {
            let middle = bytes.len().min(self.average);
            let early = self.find(bytes, self.min..middle, LEVEL);
            let end = early.or_else(|| self.find(bytes, middle..bytes.len(), LEVEL.wrapping_neg()));
            if end.is_some() {
                return end;
            }
        }
        ((end_known && !bytes.is_empty()) || bytes.len() == self.max).then_some(bytes.len())
    }

    /// As [`Cutter::next`], of the record that begins at `start` of `len` bytes, all of which were marked.
    pub fn next_marked(&self, marks: &Marks, start: usize, len: usize, end_known: bool) -> Option<usize> {
        debug_assert!(self.average >= marks.average, "marks for {} bytes are too few", marks.average);
        let left = (len - start).min(self.max);
        let bits = self.average.ilog2();
        let ends = &marks.ends[marks.ends.partition_point(|mark| mark.end <= start + self.min)..];
        let first = |range: Range<usize>, bits: u32| {
            let within = ends.iter().skip_while(|mark| mark.end <= start + range.start);
            let within = within.take_while(|mark| mark.end <= start + range.end);
            within.into_iter().find(|mark| mark.zeros >= bits).map(|mark| mark.end - start)
        };
        let middle = left.min(self.average);
        let end = first(self.min..middle, bits + LEVEL).or_else(|| first(middle..left, bits - LEVEL));
        end.or_else(|| ((end_known && left > 0) || left == self.max).then_some(left))
    }

    /// Behind which byte of `range` the upper bits of the hash are zero for the first time: as many of them as come
    /// once in the average, times 2 to the power of `harder`.
    fn find(&self, bytes: &[u8], range: Range<usize>, harder: u32) -> Option<usize> {
        let mask = !(u64::MAX >> self.average.ilog2().wrapping_add(harder));
        let hash = |at: usize| bytes[at - WINDOW..at].iter().fold(0, |hash, &byte| roll(hash, byte));
        // Long enough to be worth the windows, short enough that little is looked at behind the cut.
        let stride = (self.average / 64).max(8 * WINDOW);
        let mut at = range.start;
        while range.end - at >= HEADS * stride {
            let heads = std::array::from_fn(|head| at + head * stride);
            let parts = heads.map(|start| &bytes[start..start + stride]);
            if let Some((head, within)) = find_abreast(heads.map(hash), parts, mask) {
                return Some(heads[head] + within);
            }
            at += HEADS * stride;
        }
        find_on(hash(at), &bytes[at..range.end], mask).map(|within| at + within)
    }
}

/// Where records end that lie back to back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cuts {
    /// As their content says.
    ByContent(Cutter),
    /// At multiples of a size.
    Even(u32),
}

impl Cuts {
    /// Shorter holes are filled, where one has to be in a record at all.
    pub fn min(&self) -> usize {
        match self {
            Self::ByContent(cutter) => cutter.min(),
            Self::Even(size) => *size as usize,
        }
    }

    /// The most bytes of a record.
    pub fn max(&self) -> usize {
        match self {
            Self::ByContent(cutter) => cutter.max(),
            Self::Even(size) => *size as usize,
        }
    }

    /// As [`Cutter::next`], of a record that begins at `at`.
    pub fn next(&self, at: u64, bytes: &[u8], end_known: bool) -> Option<usize> {
        match self {
            Self::ByContent(cutter) => cutter.next(bytes, end_known),
            Self::Even(size) => {
                let whole = (u64::from(*size) - at % u64::from(*size)) as usize;
                let is_enough = bytes.len() >= whole || (end_known && !bytes.is_empty());
                is_enough.then_some(whole.min(bytes.len()))
            }
        }
    }
}

/// Places where bytes can be cut, for cutters of several averages over the same bytes, which are hashed once.
#[derive(Debug)]
pub struct Marks {
    /// The least average of those cutters.
    average: usize,
    /// In the order of the bytes.
    ends: Vec<Mark>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Bytes up to there.
    end: usize,
    /// Upper bits of the hash that are zero.
    zeros: u32,
}

impl Marks {
    /// None yet, for cutters of this average and longer ones.
    pub fn new(average: u32) -> Self {
        Self { average: average as usize, ends: Vec::new() }
    }

    /// Marks what follows the first `from` of `bytes`, which were marked before.
    pub fn extend(&mut self, bytes: &[u8], from: usize) {
        let mask = !(u64::MAX >> (self.average.ilog2() - LEVEL));
        let hash =
            |at: usize| bytes[at.saturating_sub(WINDOW)..at].iter().fold(0, |hash, &byte| roll(hash, byte));
        let mut mark = |end: usize, hash: u64| self.ends.push(Mark { end, zeros: hash.leading_zeros() });
        let (blocks, rest) = bytes[from..].as_chunks::<{ HEADS * LANE }>();
        for (number, block) in blocks.iter().enumerate() {
            let start = from + number * block.len();
            let mut found: [Vec<(usize, u64)>; HEADS] = Default::default();
            let mut hashes = std::array::from_fn(|head| hash(start + head * LANE));
            let mut rolled = 0;
            while roll_lanes(&mut hashes, block, &mut rolled, mask) {
                for (head, &hash) in hashes.iter().enumerate().filter(|(_, hash)| *hash & mask == 0) {
                    found[head].push((start + head * LANE + rolled, hash));
                }
            }
            found.into_iter().flatten().for_each(|(end, hash)| mark(end, hash));
        }
        let done = bytes.len() - rest.len();
        let mut hash = hash(done);
        for (at, &byte) in (done..).zip(rest) {
            hash = roll(hash, byte);
            if hash & mask == 0 {
                mark(at + 1, hash);
            }
        }
    }

    /// Forgets the first bytes; what is left begins at 0.
    pub fn skip(&mut self, bytes: usize) {
        self.ends.retain_mut(|mark| {
            let kept = mark.end > bytes;
            mark.end = mark.end.saturating_sub(bytes);
            kept
        });
    }
}

fn roll(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

/// Rolls on over the lanes of a block in turn until a hash has none of `mask`; false at their end. Few strides have
/// such a hash: each is rolled over without a branch at every byte, which is faster by half and more, and one that has
/// is gone over again.
fn roll_lanes(hashes: &mut [u64; HEADS], block: &[u8; HEADS * LANE], rolled: &mut usize, mask: u64) -> bool {
    let (strides, _) = block.as_chunks::<STRIDE>();
    while *rolled < LANE {
        if rolled.is_multiple_of(STRIDE) {
            let parts: [_; HEADS] = std::array::from_fn(|head| &strides[(head * LANE + *rolled) / STRIDE]);
            let (mut ahead, mut found) = (*hashes, false);
            for at in 0..STRIDE {
                for (hash, part) in ahead.iter_mut().zip(parts) {
                    *hash = roll(*hash, part[at]);
                    found |= *hash & mask == 0;
                }
            }
            if !found {
                *hashes = ahead;
                *rolled += STRIDE;
                continue;
            }
        }
        for (head, hash) in hashes.iter_mut().enumerate() {
            *hash = roll(*hash, block[head * LANE + *rolled]);
        }
        *rolled += 1;
        if hashes.iter().any(|hash| hash & mask == 0) {
            return true;
        }
    }
    false
}

/// Number of bytes up to the first place where the hash has none of `mask`.
fn find_on(mut hash: u64, bytes: &[u8], mask: u64) -> Option<usize> {
    let found = bytes.iter().position(|&byte| {
        hash = roll(hash, byte);
        hash & mask == 0
    });
    found.map(|at| at + 1)
}

/// As [`find_on`] of parts of equal length, which follow each other: in which of them, and where.
fn find_abreast(mut hashes: [u64; HEADS], parts: [&[u8]; HEADS], mask: u64) -> Option<(usize, usize)> {
    let [first, second, third, fourth] = parts;
    let abreast = first.iter().zip(second).zip(third).zip(fourth);
    for (i, (((&first, &second), &third), &fourth)) in abreast.enumerate() {
        for (hash, byte) in hashes.iter_mut().zip([first, second, third, fourth]) {
            *hash = roll(*hash, byte);
        }
        if hashes.iter().any(|hash| hash & mask == 0) {
            // An earlier part may have one further on.
            return (0..HEADS).find_map(|head| {
                let here = (hashes[head] & mask == 0).then_some(0);
                let within = here.or_else(|| find_on(hashes[head], &parts[head][i + 1..], mask))?;
                Some((head, i + 1 + within))
            });
        }
    }
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
        assert_eq!(cuts(&Cutter::new(1024, 1 << 20), &noise(5000, 3)), [1619, 2669, 3736, 4793, 5000]);
    }

    /// As [`Cutter::next`] at the end, in one pass.
    fn plainly(cutter: &Cutter, bytes: &[u8]) -> Option<usize> {
        let bytes = &bytes[..bytes.len().min(cutter.max)];
        let bits = cutter.average.ilog2();
        let mut hash = 0;
        for (i, &byte) in bytes.iter().enumerate() {
            hash = roll(hash, byte);
            let bits = if i < cutter.average { bits + LEVEL } else { bits - LEVEL };
            if i >= cutter.min && hash.leading_zeros() >= bits {
                return Some(i + 1);
            }
        }
        (!bytes.is_empty()).then_some(bytes.len())
    }

    proptest! {
        #[test]
        fn looking_at_places_in_turn_finds_the_first_cut(
            len in 0usize..200_000, seed in any::<u64>(), shift in 9u32..15,
        ) {
            let bytes = noise(len, seed);
            let cutter = Cutter::new(1 << shift, 1 << 20);
            let mut at = 0;
            while let Some(len) = plainly(&cutter, &bytes[at..]) {
                prop_assert_eq!(cutter.next(&bytes[at..], true), Some(len));
                at += len;
            }
        }

        #[test]
        fn bytes_that_are_marked_once_are_cut_the_same_by_all_cutters(
            len in 0usize..150_000, seed in any::<u64>(), steps in 1usize..40_000, zeros in any::<bool>(),
        ) {
            let mut bytes = noise(len, seed);
            if zeros {
                bytes[len / 3..len / 2].fill(0);
            }
            for shift in [10, 12, 13] {
                let cutter = Cutter::new(1 << shift, 1 << 20);
                let (mut marks, mut dropped, mut seen, mut at) = (Marks::new(1 << 10), 0, 0, 0);
                let mut ends = Vec::new();
                while at < len {
                    match cutter.next_marked(&marks, at - dropped, seen - dropped, seen == len) {
                        Some(taken) => {
                            at += taken;
                            ends.push(at);
                        }
                        None => {
                            // As who holds only what is not cut yet.
                            marks.skip(at - dropped);
                            dropped = at;
                            let more = (seen + steps).min(len);
                            marks.extend(&bytes[dropped..more], seen - dropped);
                            seen = more;
                        }
                    }
                }
                prop_assert_eq!(ends, cuts(&cutter, &bytes));
            }
        }

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
