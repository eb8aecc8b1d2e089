//! The test of the tests: every planted bug is found by the simulation within 10,000 cuts.
#![cfg(feature = "planted")]

mod common;
#[path = "reclaim/model.rs"]
mod model;
mod sweep;
#[path = "reclaim/work.rs"]
mod work;

use larder_pool::planted::{Bug, plant};
use larder_pool::trace::Findings;
use larder_pool::{Pool, ROOT_DATASET};

/// Runs one seed of the simulation that has to find this bug; returns the number of cuts that did not.
fn run(bug: Bug, seed: u64) -> Result<usize, String> {
    match bug {
        Bug::FloorIgnored
        | Bug::SharedNotMarked
        | Bug::QueueLost
        | Bug::DeadNotCleared
        | Bug::HintBelieved
        | Bug::MoveNotTold
        | Bug::HitNotMarked
        | Bug::NearRemembers
        | Bug::WrongPrint => {
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

/// What a trace finds after `files` were put and committed with a bug planted.
fn traced(bug: Bug, pool: &Pool, files: &[(u64, u64, usize)]) -> Findings {
    plant(Some(bug));
    common::put(pool, &pool.dataset(ROOT_DATASET).unwrap(), files);
    pool.commit().unwrap();
    plant(None);
    pool.trace_start().unwrap();
    while pool.trace_step(64).unwrap() {}
    pool.trace_findings().unwrap()
}

#[test]
fn a_trace_finds_what_leaked_and_frees_it() {
    let sim = larder_sim::SimWorld::new(&[larder_format::ByteLen::new(64 << 20)]);
    let pool = common::create(&sim, "single");
    let files = |version| (10..50).map(|inode| (inode, version, 5000)).collect::<Vec<_>>();
    common::commit(&pool, &mut common::Model::new(), &files(1));
    let found = traced(Bug::Leak, &pool, &files(2));
    assert_eq!(found.unreachable.blocks, 40 + 1, "the records and the leaf: {found:?}");
    assert!(found.is_bad());
    while pool.free_step(64).unwrap() {}
    pool.commit().unwrap();
    common::assert_whole(&pool, "when they were freed");
}

#[test]
fn a_trace_finds_what_the_map_does_not_know() {
    let sim = larder_sim::SimWorld::new(&[larder_format::ByteLen::new(64 << 20)]);
    let pool = common::create(&sim, "single");
    let files: Vec<_> = (10..50).map(|inode| (inode, 1, 5000)).collect();
    let found = traced(Bug::MapNotTold, &pool, &files);
    assert_eq!((found.missing, found.missing_sample.len()), (40 + 1, 16), "{found:?}");
    while pool.name_lost_step(64).unwrap() {}
    let damaged = pool.damage();
    assert!(damaged.len() >= 40 && damaged.iter().all(|of| of.dataset == ROOT_DATASET), "{damaged:?}");
    assert!(found.is_bad());
}
