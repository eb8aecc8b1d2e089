//! Passes over what is stored, in pools that have no room.

use crate::common::*;
use larder_format::ByteLen;
use larder_format::node::Key;
use larder_pool::{PoolError, ROOT_DATASET, Tally, TreeOf};
use larder_sim::SimWorld;
use larder_store::Watermark;
use larder_upkeep::{PassState, ScrubSince, Task};

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

/// Segments that are free besides those that are left to writers.
fn free(pool: &Kept) -> u64 {
    let core = pool.store().core.lock();
    core.groups.values().map(|group| group.free_above(Watermark::Accept).segments).sum()
}

#[test]
fn nodes_get_more_places_where_cleaning_makes_room_for_them() {
    for left in 0..3 {
        more_places(left);
    }
}

/// Gives nodes two places more in a pool with so many free segments, most of which is dead.
fn more_places(left: u64) {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let mut model = Model::new();
    // Until the segment that records lie in is the last one for now, but for those.
    let fill = |from: u64, model: &mut Model| {
        for inode in from.. {
            if free(&pool) <= left {
                break;
            }
            commit(&pool, model, &[(inode, 1, 100_000)]);
        }
    };
    fill(10, &mut model);
    let gone: Vec<u64> = model.keys().copied().filter(|inode| inode % 3 > 0).collect();
    try_remove(&pool, &dataset, &gone).unwrap();
    model.retain(|inode, _| !gone.contains(inode));
    for _ in 0..3 {
        pool.commit().unwrap();
    }
    fill(5000, &mut model);
    ask_copies(&pool, 3);
    let nodes = pool.tree_records(ROOT_DATASET, TreeOf::Head, Key::MIN).unwrap().nodes;
    assert!(!nodes.is_empty());
    let mut tally = Tally::default();
    pool.rewrite_nodes(ROOT_DATASET, nodes.clone(), &mut tally).unwrap();
    assert_eq!((tally.changed, tally.unread), (nodes.len() as u64, 0), "{tally:?}");
    assert!(nodes.iter().all(|ptr| pool.store().places_of(ptr.id).unwrap().len() == 3));
    pool.commit().unwrap();
    assert_whole(&pool, "with more places");
    verify(&pool, &model);
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(1 << 20).unwrap() {}
    let found = pool.upkeep.scrub.result().unwrap();
    assert_eq!((found.repaired, found.lost), (0, 0), "{left} segments were left: {found:?}");
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
