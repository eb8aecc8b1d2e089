//! Lost, lying and rotting devices: what a layout allows is survived, enumerated; whatever happens is repaired,
//! simulated; every structure is rebuilt from the others, bit by bit.

mod bed;
mod beyond;
#[path = "../common/mod.rs"]
mod common;
mod enumeration;
mod flips;
mod repair;
mod reshaping;
mod seeds;
mod shape;
mod structures;
mod within;

use bed::Coverage;
use seeds::{full, on_two_threads, setting};

/// Everything that can happen to devices, by seed. How many seeds: `LARDER_TORTURE`; where to start: `LARDER_SEED`.
#[test]
fn within_tolerance_nothing_is_lost_and_the_pool_heals() {
    let (first, count) =
        (setting("LARDER_SEED", 0), setting("LARDER_TORTURE", if full() { 300 } else { 40 }));
    let coverage = on_two_threads(
        count as usize,
        |i, coverage| within::run(first + i as u64, coverage),
        |all: &mut Coverage, mine| {
            mine.into_iter().for_each(|(what, times)| *all.entry(what).or_default() += times)
        },
        |i| {
            format!(
                "LARDER_SEED={} LARDER_TORTURE=1 cargo test -p larder-upkeep --test torture within",
                first + i as u64
            )
        },
    );
    println!("{count} seeds from {first}: {coverage:?}");
}
