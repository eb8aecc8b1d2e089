//! Space comes back, all of it, and nothing that lives goes with it.

#[path = "../common/mod.rs"]
mod common;
mod model;
mod work;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Everything that frees, moves and keeps blocks, interleaved by seed, and power cuts in it. How many seeds:
/// `LARDER_SEEDS`; where to start: `LARDER_SEED`.
#[test]
fn exactly_what_is_referred_to_stays_whatever_frees_moves_or_cuts() {
    let (count, first) = (setting("LARDER_SEEDS", 160), setting("LARDER_SEED", 0));
    let next = AtomicU64::new(first);
    let coverage = Mutex::new(work::Coverage::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut mine = work::Coverage::new();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    let steps = 30 + seed as usize % 5 * 10;
                    work::run(seed, steps, 2, &mut mine).unwrap_or_else(|failure| {
                        panic!("{failure}\nreplay: LARDER_SEED={seed} LARDER_SEEDS=1 cargo test -p larder-pool --test reclaim exactly")
                    });
                }
                let mut all = coverage.lock().unwrap();
                mine.into_iter().for_each(|(step, times)| *all.entry(step).or_default() += times);
            });
        }
    });
    println!("{count} seeds from {first}: {:?}", coverage.into_inner().unwrap());
}
