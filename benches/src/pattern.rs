//! Which of many equal pieces is overwritten next: all alike, or a few most of the time.

use larder_device::{Entropy, SeededEntropy};
use std::fmt;
use std::str::FromStr;

/// Distribution of overwrites over the pieces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// Every piece is as likely as any other.
    Uniform,
    /// The piece of rank `i` is taken in proportion to `i` to the power of minus this.
    Zipf(f64),
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => out.write_str("uniform"),
            Self::Zipf(power) => write!(out, "zipf {power}"),
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    /// `uniform`, `zipf` (1.1) or `zipf:POWER`.
    fn from_str(word: &str) -> Result<Self, String> {
        match word.split_once(':') {
            None if word == "uniform" => Ok(Self::Uniform),
            None if word == "zipf" => Ok(Self::Zipf(1.1)),
            Some(("zipf", power)) => power.parse().map(Self::Zipf).map_err(|_| format!("no power: {power}")),
            _ => Err(format!("neither uniform nor zipf:POWER: {word}")),
        }
    }
}

/// Draws pieces; the same ones for the same seed.
pub struct Picker {
    rng: SeededEntropy,
    /// The piece of each rank: which pieces are hot has nothing to do with where they are.
    pieces: Vec<u32>,
    /// The weight of a rank and all before it; empty where all are alike.
    sums: Vec<f64>,
}

impl Picker {
    /// A picker among `count` pieces.
    ///
    /// # Panics
    /// Without any, or with more than fit 32 bits.
    pub fn new(pattern: Pattern, count: usize, seed: u64) -> Self {
        assert!(count > 0, "something to pick from");
        let rng = SeededEntropy::new(seed);
        let mut pieces: Vec<u32> = (0..u32::try_from(count).expect("32 bits")).collect();
        for last in (1..count).rev() {
            pieces.swap(last, (rng.next_u64() % (last as u64 + 1)) as usize);
        }
        let sums = match pattern {
            Pattern::Uniform => Vec::new(),
            Pattern::Zipf(power) => (1..=count)
                .scan(0.0, |sum, rank| {
                    *sum += (rank as f64).powf(-power);
                    Some(*sum)
                })
                .collect(),
        };
        Self { rng, pieces, sums }
    }

    /// The next piece.
    pub fn pick(&self) -> usize {
        let word = self.rng.next_u64();
        let rank = match self.sums.last() {
            None => (word % self.pieces.len() as u64) as usize,
            Some(all) => {
                // The upper 53 bits are what a float keeps.
                let at = (word >> 11) as f64 / (1_u64 << 53) as f64 * all;
                self.sums.partition_point(|&sum| sum <= at).min(self.pieces.len() - 1)
            }
        };
        self.pieces[rank] as usize
    }

    /// Probability of each piece, as a multiple of the average.
    pub fn weights(&self) -> Vec<f64> {
        let count = self.pieces.len();
        let mut weights = vec![1.0; count];
        if let Some(all) = self.sums.last() {
            let mut before = 0.0;
            for (&piece, &sum) in self.pieces.iter().zip(&self.sums) {
                weights[piece as usize] = (sum - before) / all * count as f64;
                before = sum;
            }
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_drawn_as_often_as_their_weight_says() {
        let picker = Picker::new(Pattern::Zipf(1.1), 1000, 1);
        let mut drawn = vec![0_u32; 1000];
        (0..200_000).for_each(|_| drawn[picker.pick()] += 1);
        for (drawn, weight) in drawn.iter().zip(picker.weights()).filter(|(_, weight)| *weight > 10.0) {
            let expected = weight * 200.0;
            assert!((f64::from(*drawn) - expected).abs() < 6.0 * expected.sqrt(), "{drawn} of {expected}");
        }
    }

    #[test]
    fn a_pattern_is_read_as_it_is_written_on_the_command_line() {
        assert_eq!("uniform".parse(), Ok(Pattern::Uniform));
        assert_eq!("zipf:0.9".parse(), Ok(Pattern::Zipf(0.9)));
        assert!("zipf:much".parse::<Pattern>().is_err() && "pareto".parse::<Pattern>().is_err());
    }
}
