//! Space comes back, all of it, and nothing that lives goes with it.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod model;
mod work;

use common::{create, put};
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_pool::{Look, PoolError};
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
                        panic!("{failure}\nreplay: LARDER_SEED={seed} LARDER_SEEDS=1 cargo test -p larder-upkeep --test reclaim exactly")
                    });
                }
                let mut all = coverage.lock().unwrap();
                mine.into_iter().for_each(|(step, times)| *all.entry(step).or_default() += times);
            });
        }
    });
    println!("{count} seeds from {first}: {:?}", coverage.into_inner().unwrap());
}

#[test]
fn writers_snapshots_and_whatever_frees_share_a_pool() {
    const ROUNDS: u64 = 60;
    let sim = larder_sim::SimWorld::new(&[larder_format::ByteLen::new(64 << 20); 2]);
    let pool = create(&sim, "mirror");
    let datasets = [(); 2].map(|()| {
        let name = format!("tank/d{}", pool.datasets().len());
        pool.create_dataset(&name, Default::default()).unwrap()
    });
    let busy = std::sync::atomic::AtomicUsize::new(datasets.len());
    let until_done = |work: &dyn Fn()| {
        while busy.load(Ordering::Relaxed) > 0 {
            work();
        }
    };
    std::thread::scope(|scope| {
        for dataset in &datasets {
            scope.spawn(|| {
                for version in 0..ROUNDS {
                    put(&pool, dataset, &[(2 + version % 5, version, 30_000), (9, version, 100)]);
                    let op = pool.enter().unwrap();
                    let share = dataset.update(&op, |tree| {
                        let (from, to) = (Key::new(9, EXTENT, 0), Key::new(10 + version % 3, EXTENT, 0));
                        let value = tree.get(&from)?.expect("it was just put");
                        if let Some(old) = tree.get(&to)? {
                            let old = Extent::decode(&old)?;
                            tree.drop_block(&old);
                        }
                        let extent = Extent::decode(&value)?;
                        tree.insert(to, &value)?;
                        tree.share_block(&extent);
                        Ok::<_, PoolError>(())
                    });
                    share.unwrap();
                    drop(op);
                    if version % 7 == 0 {
                        pool.snapshot(dataset.id(), &format!("s{version}")).unwrap();
                    }
                    if version % 21 == 20 {
                        pool.destroy_snapshot(dataset.id(), &format!("s{}", version - 20)).unwrap();
                    }
                }
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| until_done(&|| _ = pool.free_step(2).unwrap()));
        scope.spawn(|| until_done(&|| _ = pool.clean_step(true).unwrap()));
        until_done(&|| {
            pool.upkeep.gc.start().unwrap();
            while pool.upkeep.gc.step(1).unwrap() {}
            pool.commit().unwrap();
        });
    });
    pool.commit().unwrap();
    common::assert_whole(&pool, "beside traffic");
    for dataset in &datasets {
        assert!(matches!(pool.destroy_dataset(dataset.id()), Err(PoolError::Busy(_))));
        for snapshot in pool.snapshots(dataset.id()) {
            pool.destroy_snapshot(dataset.id(), &snapshot.name).unwrap();
        }
        pool.destroy_dataset(dataset.id()).unwrap();
    }
    while pool.destroy_step(100).unwrap() {}
    pool.upkeep.gc.start().unwrap();
    while pool.upkeep.gc.step(8).unwrap() {}
    while pool.free_step(8).unwrap() {}
    pool.commit().unwrap();
    common::assert_whole(&pool, "at the end");
    let records: u64 = pool.store().accounts().iter().map(|account| account.data_bytes).sum();
    assert_eq!(records, 0, "of {} blocks in the map", pool.blocks().unwrap().len());
}
