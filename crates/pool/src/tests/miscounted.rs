use crate::{ROOT_DATASET, bed};
use larder_format::ByteLen;
use larder_format::items::EXTENT;
use larder_format::node::Key;
use larder_format::segment::SegmentKind;
use larder_sim::SimWorld;
use larder_store::PoolError;

#[test]
fn tables_that_count_less_than_is_freed_suspend_the_pool_and_no_root_follows() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    let put = |pool: &crate::Pool, value: &[u8]| {
        let (dataset, op) = (pool.dataset(ROOT_DATASET).unwrap(), pool.enter().unwrap());
        let key = Key::new(9, EXTENT, 0);
        let put = dataset.update(&op, |tree| tree.insert(key, value));
        put.unwrap();
    };
    let long: Vec<u8> = (0..1000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    put(&pool, &long);
    pool.commit().unwrap();
    let nodes = pool.shared.store.core.lock().entries.select(|entry| entry.segment.kind == SegmentKind::Node);
    for &id in &nodes {
        pool.shared.store.core.lock().entries.change(id, |entry| {
            (entry.live_blocks, entry.live_bytes, entry.dirty) = (1, 8, true);
        });
    }
    pool.commit().unwrap();
    drop(pool);
    let pool = bed::import(sim.devices()).unwrap();
    let before = pool.shared.store.durable_commit();
    put(&pool, b"short");
    let error = pool.commit().unwrap_err();
    assert!(matches!(error, PoolError::Suspended(_)), "{error}");
    assert!(error.to_string().contains(&format!("segment {}", nodes[0])), "{error}");
    assert!(!pool.shared.store.may_resume() && pool.shared.store.durable_commit() == before);
}
