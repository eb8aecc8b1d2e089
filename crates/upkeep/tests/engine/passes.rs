//! Passes over what is stored, in pools that have no room.

use crate::common::*;
use larder_format::ByteLen;
use larder_pool::{PoolError, ROOT_DATASET};
use larder_sim::SimWorld;
use larder_upkeep::{PassState, Task};

/// A pool that takes nothing more, and what it holds. Everything is there twice, in another dataset.
fn full(sim: &SimWorld) -> (Kept, Model) {
    let pool = create(sim, "single");
    let (root, twin) =
        (pool.dataset(ROOT_DATASET).unwrap(), pool.create_dataset("tank/twin", Default::default()).unwrap());
    let mut model = Model::new();
    for from in (0..).map(|n| 10 + n * 20) {
        let files = files(from, 20, 1);
        let fits = pool.check_space(4 << 20, 128 << 10);
        if matches!(fits, Err(PoolError::NoSpace)) {
            break;
        }
        fits.unwrap();
        put(&pool, &root, &files);
        put(&pool, &twin, &files);
        model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
        pool.commit().unwrap();
    }
    (pool, model)
}

fn run(pool: &Kept, task: Task) -> larder_upkeep::Pass {
    let all = pool.datasets().iter().map(|dataset| dataset.id()).collect();
    pool.upkeep.passes.start(task, all, 0).unwrap();
    for _ in 0..100_000 {
        if pool.upkeep.passes.step(1 << 20).unwrap().is_none() {
            return pool.upkeep.passes.last().unwrap();
        }
    }
    panic!("{task:?} has no end: {:?}", pool.upkeep.passes.last());
}

#[test]
fn a_full_pool_is_rewritten_as_far_as_there_is_room_and_says_so() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (pool, model) = full(&sim);
    pool.set_property(ROOT_DATASET, "compression", "off").unwrap();
    let pass = run(&pool, Task::Rewrite);
    assert_eq!(pass.state, PassState::Full, "{pass:?}");
    assert_whole(&pool, "rewritten in part");
    verify(&pool, &model);
    // An import knows as much, and it can be started again.
    drop(pool);
    let pool = open(&SimWorld::from_images(sim.images()), 2);
    assert_eq!(pool.upkeep.passes.last().unwrap().state, PassState::Full);
    pool.set_property(ROOT_DATASET, "compression", "lz4").unwrap();
    let pass = run(&pool, Task::Rewrite);
    assert_ne!(pass.state, PassState::Active);
    assert_whole(&pool, "started again");
    verify(&pool, &model);
}

#[test]
fn a_full_pool_gets_room_by_sharing() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (pool, model) = full(&sim);
    let before: u64 = pool.store().accounts().iter().map(|account| account.data_bytes).sum();
    let pass = run(&pool, Task::Dedup);
    assert_eq!((pass.state, pass.tally.unread), (PassState::Done, 0), "{pass:?}");
    let after: u64 = pool.store().accounts().iter().map(|account| account.data_bytes).sum();
    assert_eq!(before - after, pass.tally.before);
    assert!(after < before * 3 / 5, "{before} bytes became {after}");
    pool.check_space(8 << 20, 128 << 10).unwrap();
    assert_whole(&pool, "shared");
    verify(&pool, &model);
}
