//! Nothing follows an export.

use crate::common::hooked::hooked;
use crate::common::*;
use larder_device::Request;
use larder_format::ByteLen;
use larder_pool::{PoolError, ROOT_DATASET, Refusal};
use larder_sim::SimWorld;
use larder_sync::Mutex;
use std::sync::Arc;

fn is_exported<T>(result: Result<T, PoolError>) -> bool {
    matches!(result, Err(PoolError::Refused(Refusal::Exported)))
}

#[test]
fn whatever_comes_after_an_export_is_refused_and_changes_no_device() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20); 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 5, 1));
    sync(&pool, &mut model, &[(20, 1, 3_000)]);
    pool.commit_export().unwrap();
    let images = sim.images();
    assert!(is_exported(pool.commit()));
    assert!(is_exported(pool.commit_export()));
    assert!(is_exported(pool.enter().map(drop)));
    assert!(is_exported(pool.log_sync()));
    assert!(is_exported(pool.set_pool_property("autotrim", "on")));
    let devices: Vec<_> = pool.store().members().iter().map(|member| member.index).collect();
    assert!(is_exported(pool.upkeep.trim.start(&devices, 0)));
    assert!(sim.images() == images, "something was written");
    drop(pool);
    assert!(plan(sim.devices()).held_by.is_none());
    verify(&open(&sim, 2), &model);
}

/// Someone writes and syncs while the root of the export is on its way.
#[test]
#[expect(clippy::disallowed_methods, reason = "somebody else writes beside the export")]
fn an_fsync_beside_an_export_is_not_acknowledged_by_a_log_that_nobody_reads() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (device, hook) = hooked(Arc::new(sim.device(0)));
    let pool = create_on(vec![device], "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 5, 1));
    let (beside, acknowledged) = (pool.clone(), Arc::new(Mutex::new(Vec::new())));
    let (mut inode, told) = (100, Arc::clone(&acknowledged));
    let act = move |_: &Request| {
        let (pool, told, inode_now) = (beside.clone(), Arc::clone(&told), inode);
        inode += 1;
        // It may have to wait for the export.
        let thread = std::thread::spawn(move || {
            let dataset = pool.dataset(ROOT_DATASET).unwrap();
            let file = (inode_now, 1, 700);
            if try_put(&pool, &dataset, &[file]).is_err() {
                return;
            }
            let Ok(op) = pool.enter() else { return };
            let note = |tree: &mut larder_pool::Update<'_>| {
                tree.log(logged(file));
                Ok::<_, PoolError>(())
            };
            dataset.update(&op, note).unwrap();
            drop(op);
            if pool.log_sync().is_ok() {
                told.lock().push(inode_now);
            }
        });
        let began = std::time::Instant::now();
        while !thread.is_finished() && began.elapsed().as_millis() < 200 {
            std::thread::yield_now();
        }
    };
    hook.set_one_at_a_time(|request| matches!(request, Request::Flush), act);
    pool.commit_export().unwrap();
    hook.clear();
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(pool);
    let pool = open(&SimWorld::from_images(sim.images()), 2);
    replay(&pool);
    let there = contents(&pool).unwrap();
    let lost: Vec<_> =
        acknowledged.lock().iter().copied().filter(|inode| !there.contains_key(inode)).collect();
    assert!(lost.is_empty(), "{lost:?} of {:?} were acknowledged and are gone", acknowledged.lock());
}
