//! The test of the tests: every planted bug is found by the simulation within 10,000 cuts.
#![cfg(feature = "planted")]

mod common;
mod sweep;

use larder_pool::planted::{Bug, plant};

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        let mut cuts = 0;
        let mut found = None;
        for seed in 0.. {
            plant(Some(bug));
            let result = std::panic::catch_unwind(|| {
                let (word, count) = common::LAYOUTS[seed as usize % common::LAYOUTS.len()];
                sweep::run(word, count, seed, 40, 2_000)
            });
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
