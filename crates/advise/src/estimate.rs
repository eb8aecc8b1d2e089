//! From what was sampled to how much is distinct, with a range, for everything or for one folder.

use crate::sample::Seen;
use crate::scan::STRATA;
use crate::unseen::{self, Shared, class};
use std::collections::HashMap;
use std::ops::Range;

/// An estimate: the middle and both ends of a range that holds the truth in 95 of 100 cases.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
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

    /// Whether the range is narrow enough to say something: six points, as of three to either side.
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

    /// So much of the way to another, from 0 to 1.
    #[must_use]
    pub fn mixed(self, other: Self, part: f64) -> Self {
        let part = part.clamp(0.0, 1.0);
        let mix = |one: f64, other: f64| one + part * (other - one);
        Self {
            value: mix(self.value, other.value),
            low: mix(self.low, other.low),
            high: mix(self.high, other.high),
        }
    }

    /// The same of a part.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }
}

impl Estimate {
    /// A gain of all, when only a part of the data was looked at: what was seen to be saved there is saved, what was
    /// seen once is not, and of the rest nothing is known.
    #[must_use]
    pub fn of_part(self, part: f64) -> Self {
        let part = part.clamp(0.0, 1.0);
        Self { value: self.value, low: part * self.low, high: 1.0 - part * (1.0 - self.high) }
    }

    /// Less another of the same data.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        let value = self.value - other.value;
        let low = value - f64::hypot(self.value - self.low, other.high - other.value);
        let high = value + f64::hypot(self.high - self.value, other.value - other.low);
        Self { value, low, high }.clamp(0.0, 1.0)
    }
}

/// Points to either side within which an estimate says something.
pub const KNOWN: f64 = 0.03;
/// Fewer clusters say nothing about the others.
const FEWEST_CLUSTERS: f64 = 12.0;

/// Bytes of one kind of clusters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weight {
    /// Bytes of all its clusters, zeros included, read or not.
    pub all: f64,
    /// Part of them that is not zeros, by those that were read.
    pub part: f64,
}

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
    /// Kinds of clusters; 0 bytes of those that it does not have.
    pub weights: [Weight; STRATA],
}

/// Sums over one cluster.
#[derive(Clone, Copy, Default)]
struct Cluster {
    all: f64,
    /// Without what repeats within it.
    unique: f64,
}

impl Sampled<'_> {
    /// Of the bytes that are not zeros in folders `within`, all of which were seen, the part that repeats.
    pub fn counted(&self, within: &Range<u32>, bytes: u64) -> Estimate {
        if bytes == 0 {
            return Estimate::around(0.0, 0.0);
        }
        let bytes = bytes as f64;
        let (mut last, mut distinct) = (0, 0.0);
        for seen in self.seen.iter().filter(|seen| within.contains(&seen.folder)) {
            if seen.print != last {
                distinct += seen.bytes().max(self.threshold) as f64;
                last = seen.print;
            }
        }
        // All were kept while the threshold is below the shortest record.
        let error = if self.threshold > 1 { (self.threshold as f64 * distinct).sqrt() / bytes } else { 0.0 };
        Estimate::around(1.0 - distinct / bytes, 2.0 * error).clamp(0.0, 1.0)
    }

    /// Of all bytes of the clusters of folders `within`, zeros included, the part that repeats and is no zeros.
    pub fn estimated(&self, within: &Range<u32>) -> Estimate {
        let total: f64 = self.weights.iter().map(|weight| weight.all).sum();
        if total <= 0.0 {
            return Estimate::around(0.0, 0.0);
        }
        let mut clusters: HashMap<u32, Cluster> = HashMap::new();
        // Bytes seen in one set of clusters come and go together.
        let mut sets: HashMap<(u64, usize), f64> = HashMap::new();
        let mut keys: Vec<u32> = Vec::new();
        let mut group = (0, 0.0);
        let end = |weight: f64, keys: &mut Vec<u32>, sets: &mut HashMap<(u64, usize), f64>| {
            if keys.len() > 1 {
                let set = keys.iter().fold(0, |set, &key| crate::sample::mix(set ^ u64::from(key)));
                *sets.entry((set, keys.len())).or_default() += weight;
            }
            keys.clear();
        };
        let mut kept = 0.0;
        for seen in self.seen.iter().filter(|seen| within.contains(&seen.folder)) {
            let weight = seen.bytes().max(self.threshold) as f64;
            if seen.print != group.0 {
                end(group.1, &mut keys, &mut sets);
                group = (seen.print, weight);
                kept += 1.0;
            }
            let cluster = clusters.entry(seen.key).or_default();
            cluster.all += weight * f64::from(seen.count);
            // Of one fingerprint those of a cluster follow each other.
            if keys.last() != Some(&seen.key) {
                keys.push(seen.key);
                cluster.unique += weight;
            }
        }
        end(group.1, &mut keys, &mut sets);
        let unique: f64 = clusters.values().map(|one| one.unique).sum();
        let nonzero: f64 = self.weights.iter().map(|weight| weight.all * weight.part).sum::<f64>() / total;
        if nonzero <= 0.0 {
            return Estimate::around(0.0, 0.0);
        }
        if unique <= 0.0 || (clusters.len() as f64) < FEWEST_CLUSTERS {
            return Estimate::UNKNOWN;
        }
        // Within clusters: a ratio estimator over those of each kind, weighted by all that is no zeros of that kind.
        let (mut ratio, mut variance, mut missed, mut zeros) = (0.0, 0.0, 0.0, 0.0);
        for (stratum, weight) in self.weights.iter().enumerate().filter(|(_, weight)| weight.all > 0.0) {
            let share = weight.all * weight.part / (total * nonzero);
            let here =
                || clusters.iter().filter(|(key, _)| **key as usize & 3 == stratum).map(|(_, one)| one);
            let count = here().count() as f64;
            let (all, unique) = here().fold((0.0, 0.0), |sum, one| (sum.0 + one.all, sum.1 + one.unique));
            // Zeros come in whole clusters at worst.
            let squares: f64 = here().map(|one| one.all * one.all).sum();
            let like = if squares > 0.0 { (all * all / squares).max(1.0) } else { 1.0 };
            zeros += (weight.all / total).powi(2) * weight.part * (1.0 - weight.part) * (1.0 - self.p) / like;
            if count < FEWEST_CLUSTERS || all <= 0.0 {
                ratio += share * if all > 0.0 { unique / all } else { 1.0 };
                // None of it may have been met, and then it counts by all its bytes.
                missed += share.max(if all > 0.0 { 0.0 } else { weight.all / total });
                continue;
            }
            let part = unique / all;
            let spread: f64 = here().map(|one| (one.unique - part * one.all).powi(2)).sum();
            ratio += share * part;
            variance += share * share * spread * count / (count - 1.0) * (1.0 - self.p) / (all * all);
            // When all are alike one that is otherwise may still have been missed.
            missed += share / count;
        }
        let sampling = if self.threshold > 1 { (ratio / kept).sqrt() } else { 0.0 };
        // Across clusters.
        let mut shared = Shared::default();
        let mut squares = [0.0; unseen::CLASSES];
        for (&(_, count), &bytes) in &sets {
            let (at, factor) = class(count).expect("two or more");
            shared.bytes[at] += factor * bytes;
            squares[at] += (factor * bytes).powi(2);
        }
        // Two of a kind meet in runs as long as what is read of a cluster.
        let run = (unique / clusters.len() as f64).min(self.cell as f64);
        for (slack, square) in shared.slack.iter_mut().zip(squares) {
            *slack = 2.0 * (square + 2.0 * run * run).sqrt();
        }
        let Some((likely, least, most)) = unseen::range(&shared, unique / self.p, self.p) else {
            return Estimate::UNKNOWN;
        };
        let within = 2.0 * (variance.sqrt() + sampling) + missed;
        let repeats = 1.0 - ratio * likely;
        let value = nonzero * repeats;
        let zeros = 2.0 * zeros.sqrt() * repeats;
        Estimate {
            value,
            low: value - zeros.hypot(nonzero * within.hypot(ratio * (most - likely))),
            high: value + zeros.hypot(nonzero * within.hypot(ratio * (likely - least))),
        }
        .clamp(0.0, 1.0)
    }
}
