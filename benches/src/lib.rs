//! What the benchmarks share: how they measure.

use std::time::{Duration, Instant};

/// The time that `work` takes, once.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The shortest time of a call of each of `rivals`. They take turns, `rounds` times, so that a noisy
/// neighbour meets them all; in each turn one is called often enough to take about a millisecond.
pub fn race<const N: usize>(rounds: usize, mut rivals: [&mut dyn FnMut(); N]) -> [Duration; N] {
    let mut best = [Duration::MAX; N];
    let mut calls = [1; N];
    for _ in 0..rounds {
        for ((rival, best), calls) in rivals.iter_mut().zip(&mut best).zip(&mut calls) {
            let time = timed(|| (0..*calls).for_each(|_| rival())) / *calls;
            *best = time.min(*best);
            *calls = (1_000_000 / best.as_nanos().max(1)).clamp(1, 10_000) as u32;
        }
    }
    best
}

/// Bytes per nanosecond: GB/s.
pub fn gb_per_s(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_nanos().max(1) as f64
}
