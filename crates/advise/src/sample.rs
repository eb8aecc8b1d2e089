//! A bounded sample of fingerprints.
//!
//! Adaptive sampling (Wegman; Flajolet, "On adaptive sampling", Computing 43, 1990), weighted by length: a fingerprint
//! of `len` bytes is kept when its hash, as a fraction, is below `len / threshold`. Equal content is kept or left
//! everywhere together, so what is distinct among the kept stands for what is distinct at all: each kept one counts
//! `max(len, threshold)` bytes, and the sum has the right mean. When the table is full the threshold doubles and about
//! half goes. The standard error of the distinct bytes D is at most `sqrt(threshold * D)`: with a million kept, one
//! in a thousand.

/// Something seen with a fingerprint: where, how long, how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Seen {
    /// Its fingerprint; never 0.
    pub print: u64,
    /// Sampled together: in a sampled scan the cluster that it came from, else 0.
    pub key: u32,
    /// Folder it lies in.
    pub folder: u32,
    /// Times it was seen there.
    pub count: u32,
    /// Length in bytes, of which those from 4 GiB on are in units of 64 KiB.
    len: u32,
}

const LONG: u32 = 1 << 31;

impl Seen {
    /// Seen once.
    pub fn once(print: u64, len: u64, key: u32, folder: u32) -> Self {
        let len = if len < u64::from(LONG) {
            len as u32
        } else {
            LONG | (len >> 16).min(u64::from(LONG) - 1) as u32
        };
        Self { print: print.max(1), key, folder, count: 1, len }
    }

    /// Its length, bytes.
    pub fn bytes(&self) -> u64 {
        if self.len < LONG { u64::from(self.len) } else { u64::from(self.len & !LONG) << 16 }
    }
}

/// Bytes of memory an entry takes.
pub const ENTRY_BYTES: usize = size_of::<Seen>();

/// The kept fingerprints.
#[derive(Debug, Clone)]
pub struct Sample {
    slots: Vec<Seen>,
    used: usize,
    /// It grows fourfold up to this number of slots.
    most: usize,
    threshold: u64,
}

impl Sample {
    /// Takes at most `memory` bytes, but at least 1,024 entries; while it is made anew, twice as many.
    pub fn new(memory: usize) -> Self {
        let most = (memory / ENTRY_BYTES).max(1024);
        Self { slots: vec![Seen::default(); 1024], used: 0, most, threshold: 1 }
    }

    /// Bytes of distinct content that each kept fingerprint stands for at least; 1 while all are kept.
    pub fn threshold(&self) -> u64 {
        self.threshold
    }

    /// Whether a fingerprint is one to be kept at a threshold.
    pub fn wants(threshold: u64, print: u64, len: u64) -> bool {
        (u128::from(print) * u128::from(threshold)) >> 64 < u128::from(len)
    }

    /// Notes what was seen.
    pub fn add(&mut self, seen: Seen) {
        if !Self::wants(self.threshold, seen.print, seen.bytes()) {
            return;
        }
        let at = self.find(&seen);
        if self.slots[at].count > 0 {
            self.slots[at].count = self.slots[at].count.saturating_add(seen.count);
            return;
        }
        self.slots[at] = seen;
        self.used += 1;
        while self.used * 4 > self.slots.len() * 3 {
            if self.slots.len() < self.most {
                self.rebuild((self.slots.len() * 4).min(self.most));
            } else {
                self.threshold = self.next_threshold();
                self.rebuild(self.slots.len());
            }
        }
    }

    /// The next threshold that makes room: until it comes to the length of records it has no effect.
    fn next_threshold(&self) -> u64 {
        let mut threshold = self.threshold;
        loop {
            threshold *= 2;
            let is_kept = |seen: &&Seen| seen.count > 0 && Self::wants(threshold, seen.print, seen.bytes());
            if self.slots.iter().filter(is_kept).count() * 4 <= self.slots.len() * 3 {
                return threshold;
            }
        }
    }

    fn find(&self, seen: &Seen) -> usize {
        let mixed = mix(seen.print ^ (u64::from(seen.key) << 32 | u64::from(seen.folder)));
        let mut at = ((u128::from(mixed) * self.slots.len() as u128) >> 64) as usize;
        loop {
            let slot = &self.slots[at];
            let same = slot.print == seen.print
                && slot.key == seen.key
                && slot.folder == seen.folder
                && slot.len == seen.len;
            if slot.count == 0 || same {
                return at;
            }
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
    }

    fn rebuild(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![Seen::default(); slots]);
        self.used = 0;
        for seen in old {
            if seen.count > 0 && Self::wants(self.threshold, seen.print, seen.bytes()) {
                let at = self.find(&seen);
                self.slots[at] = seen;
                self.used += 1;
            }
        }
    }

    /// All that was kept, sorted by fingerprint, then by key.
    pub fn into_sorted(mut self) -> (Vec<Seen>, u64) {
        self.slots.retain(|seen| seen.count > 0);
        self.slots.sort_unstable();
        (self.slots, self.threshold)
    }

    /// Bytes of memory that it takes now.
    pub fn memory(&self) -> usize {
        self.slots.capacity() * ENTRY_BYTES
    }
}

/// Spreads a number over all 64 bits: the finalizer of SplitMix64 (Steele, Lea, Flood, 2014).
pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn distinct(sample: Sample) -> f64 {
        let (seen, threshold) = sample.into_sorted();
        let mut last = 0;
        let mut sum = 0.0;
        for one in seen {
            if one.print != last {
                sum += one.bytes().max(threshold) as f64;
            }
            last = one.print;
        }
        sum
    }

    /// With `LARDER_LARGE` a thousand million records, else five million: in the same memory.
    #[test]
    fn memory_stays_bounded_and_the_estimate_close_however_many_records_come() {
        let records: u64 = if std::env::var_os("LARDER_LARGE").is_some() { 1_000_000_000 } else { 5_000_000 };
        let memory = 2 << 20;
        let mut sample = Sample::new(memory);
        // Every second one is a repetition of an earlier one.
        for i in 0..records {
            sample.add(Seen::once(mix(i / 2), 4096, 0, (i & 1) as u32));
        }
        assert!(sample.memory() <= memory, "{} bytes", sample.memory());
        let share = distinct(sample) / (records * 4096) as f64;
        assert!((share - 0.5).abs() < 0.02, "{share}");
    }

    #[test]
    fn lengths_of_all_sizes_are_told_again() {
        for len in [0, 1, 4095, (1 << 31) - 1, 1 << 31, 1 << 40] {
            assert_eq!(Seen::once(1, len, 0, 0).bytes(), len);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_while_there_is_room(prints in proptest::collection::vec(1u64..500, 0..3000)) {
            let mut sample = Sample::new(1 << 20);
            prints.iter().for_each(|&print| sample.add(Seen::once(mix(print), 10, 0, 0)));
            let (seen, threshold) = sample.into_sorted();
            prop_assert_eq!(threshold, 1);
            prop_assert_eq!(seen.iter().map(|one| one.count as usize).sum::<usize>(), prints.len());
            let mut all = prints.clone();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(seen.len(), all.len());
        }
    }
}
