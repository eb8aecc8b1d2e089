//! Destroying snapshots that comes to nothing, beside those who go by the list of snapshots meanwhile.

use crate::common::hooked::hooked;
use crate::common::*;
use larder_format::ByteLen;
use larder_pool::{Pool, PoolError, ROOT_DATASET};
use larder_sim::{DeviceImage, Fault, SimWorld};
use larder_sync::schedule::{self, Plan, Switching, Task};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SCHEDULES: u64 = 30;

fn snapshot(pool: &Pool, model: &Model, snapshots: &mut Vec<(String, Model)>, name: &str) {
    pool.snapshot(ROOT_DATASET, name).unwrap();
    snapshots.push((name.to_owned(), model.clone()));
}

/// A pool with a snapshot `gone` that is destroyed, what remains of it, and newer ones: `next` has nearly the same.
/// Those of long names are there so that the table has several leaves.
fn prepared() -> (Vec<DeviceImage>, Model, Vec<(String, Model)>) {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let (mut model, mut snapshots) = (Model::new(), Vec::new());
    commit(&pool, &mut model, &files(10, 300, 1));
    snapshot(&pool, &model, &mut snapshots, "gone");
    commit(&pool, &mut model, &files(10, 20, 2));
    snapshot(&pool, &model, &mut snapshots, "next");
    let many = (0..120).map(|i| (ROOT_DATASET, format!("{i}{}", "-".repeat(200))));
    let many: Vec<_> = many.collect();
    pool.snapshot_all(many.clone(), BTreeMap::new()).unwrap();
    snapshots.extend(many.into_iter().map(|(_, name)| (name, model.clone())));
    commit(&pool, &mut model, &files(10, 290, 3));
    snapshot(&pool, &model, &mut snapshots, "newest");
    pool.destroy_snapshot(ROOT_DATASET, "gone").unwrap();
    snapshots.remove(0);
    pool.commit().unwrap();
    drop(pool);
    (sim.images(), model, snapshots)
}

#[test]
fn snapshots_that_stay_after_all_lose_nothing_to_those_who_did_not_see_them() {
    let (images, model, snapshots) = prepared();
    let going: Vec<_> = snapshots.iter().map(|(name, _)| (ROOT_DATASET, name.clone())).collect();
    let going = &going[..going.len() - 1];
    let mut stayed = 0;
    for seed in 0..SCHEDULES {
        let sim = SimWorld::from_images(images.clone());
        let (device, hook) = hooked(Arc::new(sim.device(0)));
        let pool = import_from(vec![device], seed).unwrap();
        pool.replayed();
        pool.commit().unwrap();
        pool.store().drop_caches();
        // Each read gives the others a turn.
        hook.set(move |_| (0..1 + seed % 5).for_each(|_| schedule::step()));
        let (is_over, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let held = AtomicU64::new(0);
        let destroy = || {
            (0..seed % 40).for_each(|_| schedule::step());
            sim.device(0).inject_window(Fault::FailReads(0..u64::MAX), seed % 4, 1);
            failed.store(pool.destroy_snapshots(going).is_err(), Ordering::Relaxed);
            sim.device(0).clear_faults();
            is_over.store(true, Ordering::Relaxed);
        };
        let free = || {
            while !is_over.load(Ordering::Relaxed) {
                // A read that fails is one that was meant for the other.
                let _ = pool.remains_step();
                schedule::step();
            }
        };
        let hold = || {
            while !is_over.load(Ordering::Relaxed) {
                match pool.hold_snapshots(&going[5..6], "held") {
                    Ok(()) => _ = held.fetch_add(1, Ordering::Relaxed),
                    Err(PoolError::Exists(_)) => {
                        let _ = pool.release_snapshots(&going[5..6], "held");
                    }
                    Err(_) => {}
                }
                schedule::step();
            }
        };
        let tasks: Vec<Task<'_>> = vec![
            ("destroy".into(), Box::new(destroy)),
            ("free".into(), Box::new(free)),
            ("hold".into(), Box::new(hold)),
        ];
        let switching = Switching::Random { one_in: [2, 5, 20][(seed % 3) as usize] };
        let outcome = schedule::run(&Plan { seed, switching, panic_at: None }, tasks);
        assert!(outcome.stuck.is_none() && outcome.failed.is_empty(), "seed {seed}: {outcome:?}");
        hook.set(|_| {});
        let failed = failed.into_inner();
        stayed += u64::from(failed);
        if pool.store().suspended().is_some() {
            continue;
        }
        pool.commit().unwrap();
        while pool.destroy_step(64).unwrap_or(false) {}
        pool.commit().unwrap();
        while pool.free_step(64).unwrap() {}
        pool.commit().unwrap();
        let left: Vec<_> = pool.snapshots(ROOT_DATASET).into_iter().map(|one| one.name).collect();
        let expected = if failed { &snapshots[..] } else { &snapshots[snapshots.len() - 1..] };
        assert_eq!(left, expected.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), "seed {seed}");
        pool.store().drop_caches();
        for (name, model) in expected {
            let view = pool.snapshot_view(ROOT_DATASET, name).unwrap();
            assert!(versions(&view, &pool) == *model, "seed {seed}: {name}");
        }
        verify(&pool, &model);
        assert_whole(&pool, &format!("seed {seed}"));
        drop(pool);
        let again = open(&SimWorld::from_images(sim.images()), 3);
        assert_whole(&again, &format!("seed {seed}, imported"));
    }
    assert!(stayed > SCHEDULES / 6, "{stayed} times they stayed");
}
