//! From what was sampled to how much is distinct, with a range, for everything or for one folder.

use crate::sample::Seen;
use crate::scan::STRATA;
use crate::unseen::{self, Shared, class};
use std::collections::HashMap;
use std::ops::Range;

/// An estimate: the middle and both ends of a range that holds the truth in 95 of 100 cases.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// The most likely.
    pub value: f64,
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

impl Estimate {
    /// Around a value.
    pub fn around(value: f64, half: f64) -> Self {
        Self { value, low: value - half, high: value + half }
    }

    /// Nothing is known.
    pub const UNKNOWN: Self = Self { value: 0.0, low: 0.0, high: 1.0 };

    /// Whether the range is narrow enough to say something: three points to either side.
    pub fn is_known(&self) -> bool {
        self.high - self.low <= 2.0 * KNOWN + 1e-9
    }

    /// Within these bounds.
    #[must_use]
    pub fn clamp(self, low: f64, high: f64) -> Self {
        Self {
            value: self.value.clamp(low, high),
            low: self.low.clamp(low, high),
            high: self.high.clamp(low, high),
        }
    }

    /// The same of a part.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }
}

/// Points to either side within which an estimate says something.
pub const KNOWN: f64 = 0.03;
/// Fewer clusters say nothing about the others.
const FEWEST_CLUSTERS: f64 = 12.0;

/// One sample, and what it is of.
pub struct Sampled<'a> {
    /// Sorted.
    pub seen: &'a [Seen],
    /// Its threshold.
    pub threshold: u64,
    /// Part of all clusters that is in it.
    pub p: f64,
    /// Length of a cell, bytes.
    pub cell: u64,
    /// Bytes of all clusters, by kind.
    pub strata: [u64; STRATA],
}

impl Sampled<'_> {
    /// Of the bytes of folders `within`, of which the scan saw `bytes` that are not zeros, the part that repeats.
    pub fn repeated(&self, within: &Range<u32>, bytes: u64) -> Estimate {
        if bytes == 0 {
            return Estimate::around(0.0, 0.0);
        }
        let bytes = bytes as f64;
        let here = self.seen.iter().filter(|seen| within.contains(&seen.folder));
        if self.p >= 1.0 {
            let mut last = 0;
            let mut distinct = 0.0;
            for seen in here {
                if seen.print != last {
                    distinct += seen.len().max(self.threshold) as f64;
                    last = seen.print;
                }
            }
            // All were kept while the threshold is below the shortest record.
            let error = if self.threshold > 1 { (self.threshold as f64 * distinct).sqrt() / bytes } else { 0.0 };
            return Estimate::around(1.0 - distinct / bytes, 2.0 * error).clamp(0.0, 1.0);
        }
        self.sampled(here)
    }

    fn sampled<'s>(&self, here: impl Iterator<Item = &'s Seen>) -> Estimate {
        let mut clusters: HashMap<u32, (f64, f64)> = HashMap::new();
        // Bytes seen in one set of clusters come and go together.
        let mut sets: HashMap<(u64, usize), f64> = HashMap::new();
        let mut keys: Vec<u32> = Vec::new();
        let mut group = (0, 0.0);
        let end = |print_weight: f64, keys: &mut Vec<u32>, sets: &mut HashMap<(u64, usize), f64>| {
            if keys.len() > 1 {
                let set = keys.iter().fold(0, |set, &key| crate::sample::mix(set ^ u64::from(key)));
                *sets.entry((set, keys.len())).or_default() += print_weight;
            }
            keys.clear();
        };
        let mut kept = 0.0;
        for seen in here {
            let weight = seen.len().max(self.threshold) as f64;
            if seen.print != group.0 {
                end(group.1, &mut keys, &mut sets);
                group = (seen.print, weight);
                kept += 1.0;
            }
            let cluster = clusters.entry(seen.key).or_default();
            cluster.0 += weight * f64::from(seen.count);
            if keys.last() != Some(&seen.key) {
                keys.push(seen.key);
                cluster.1 += weight;
            }
        }
        end(group.1, &mut keys, &mut sets);
        let (all, unique) = clusters.values().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if all <= 0.0 || (clusters.len() as f64) < FEWEST_CLUSTERS {
            return Estimate::UNKNOWN;
        }
        // Within clusters: a ratio estimator over those of each kind, weighted by all the bytes of that kind.
        let total: u64 = self.strata.iter().sum();
        let (mut ratio, mut variance, mut missed) = (0.0, 0.0, 0.0);
        for (stratum, &bytes) in self.strata.iter().enumerate() {
            let share = bytes as f64 / total.max(1) as f64;
            let here = || clusters.iter().filter(|(key, _)| **key as usize & 3 == stratum).map(|(_, one)| one);
            let count = here().count() as f64;
            let (all, unique) = here().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            if count < FEWEST_CLUSTERS || all <= 0.0 {
                ratio += share * if all > 0.0 { unique / all } else { 1.0 };
                missed += share;
                continue;
            }
            let part = unique / all;
            let spread: f64 = here().map(|(all, unique)| (unique - part * all).powi(2)).sum();
            ratio += share * part;
            variance += share * share * spread * count / (count - 1.0) * (1.0 - self.p) / (all * all);
            // When all are alike one that is otherwise may still have been missed.
            missed += share / count;
        }
        let error = variance.sqrt() + (ratio / kept).sqrt() * sampling(self.threshold);
        // Across clusters.
        let mut shared = Shared::default();
        let mut squares = [0.0; unseen::CLASSES];
        for (&(_, count), &bytes) in &sets {
            let (at, factor) = class(count).expect("two or more");
            shared.bytes[at] += factor * bytes;
            squares[at] += (factor * bytes).powi(2);
        }
        // Two of a kind meet in runs as long as what is read of a cluster.
        let mean = unique / clusters.len() as f64;
        let run = mean.min(self.cell as f64);
        for (slack, square) in shared.slack.iter_mut().zip(squares) {
            *slack = 2.0 * (square + 2.0 * run * run).sqrt();
        }
        let Some((likely, least, most)) = unseen::range(&shared, unique / self.p, self.p) else {
            return Estimate::UNKNOWN;
        };
        let within = 2.0 * error + missed;
        let value = 1.0 - ratio * likely;
        Estimate {
            value,
            low: value - f64::hypot(within, ratio * (most - likely)),
            high: value + f64::hypot(within, ratio * (likely - least)),
        }
        .clamp(0.0, 1.0)
    }
}

/// Whether fingerprints were left out for want of memory.
fn sampling(threshold: u64) -> f64 {
    if threshold > 1 { 1.0 } else { 0.0 }
}
