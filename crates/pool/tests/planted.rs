//! The test of the tests: every planted bug is found by the simulation within 10,000 cuts.
#![cfg(feature = "planted")]

mod common;
#[path = "reclaim/model.rs"]
mod model;
mod sweep;
#[path = "reclaim/work.rs"]
mod work;

use larder_pool::planted::{Bug, plant};

/// Runs one seed of the simulation that has to find this bug; returns the number of cuts that did not.
fn run(bug: Bug, seed: u64) -> Result<usize, String> {
    match bug {
        Bug::FloorIgnored | Bug::SharedNotMarked | Bug::QueueLost | Bug::DeadNotCleared => {
            const CUTS: usize = 4;
            work::run(seed, 60, CUTS, &mut work::Coverage::new()).map(|()| CUTS)
        }
        _ => {
            let (word, count) = common::LAYOUTS[seed as usize % common::LAYOUTS.len()];
            sweep::run(word, count, seed, 120, 7)
        }
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        let mut cuts = 0;
        let mut found = None;
        for seed in 0.. {
            plant(Some(bug));
            let result = std::panic::catch_unwind(|| run(bug, seed));
            plant(None);
            match result {
                Ok(Ok(clean)) => cuts += clean,
                Ok(Err(failure)) => found = Some(failure),
                Err(_) => found = Some(format!("seed {seed}: an invariant was violated")),
            }
            if found.is_some() || cuts >= 10_000 {
                break;
            }
        }
        let failure = found.unwrap_or_else(|| panic!("{bug:?} was not found in {cuts} cuts"));
        println!("{bug:?}: after {cuts} clean cuts: {failure:.160}");
    }
}
