//! Sampled estimates against exact ones, over varied corpora. What is told with a narrow range must be right; how often
//! nothing can be told is counted, and bounded.

use crate::corpora;
use crate::tally::sampled;

/// `LARDER_LARGE`: a hundred runs of 64 MiB; else one of each kind but the first, which is of files that differ from
/// machine to machine. `LARDER_SEED` begins elsewhere, `LARDER_RUNS` makes so many, `LARDER_KIND` of one kind alone.
#[test]
fn what_is_told_of_a_sample_lies_within_three_points_of_all() {
    let (first, runs, size) = match std::env::var_os("LARDER_LARGE") {
        Some(_) => (0, 100, 64 * corpora::MIB),
        None => (1, corpora::KINDS.len() as u64 - 1, 24 * corpora::MIB),
    };
    let runs = std::env::var("LARDER_RUNS").map_or(runs, |runs| runs.parse().unwrap());
    let first = std::env::var("LARDER_SEED").map_or(first, |seed| seed.parse().unwrap());
    let tally = sampled(first, runs, size, &mut |line| eprintln!("{line}"));
    eprintln!("{tally:?}");
    assert!(tally.good_runs * 100 >= tally.runs * 95 || tally.good_runs + 1 >= tally.runs, "{tally:?}");
    assert!(tally.unknown_held * 20 >= tally.unknown * 19, "ranges hold the truth: {tally:?}");
    // Of little data little is known: clusters are few.
    let silent = if runs < 100 { 2 } else { 3 };
    assert!(tally.silent_runs * silent <= tally.runs, "mostly something is told: {tally:?}");
}
