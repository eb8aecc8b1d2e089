//! Records that are aliases of others: what stays readable, what keeps its place, and what comes back.

use crate::common::*;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr, ByteLen, DatasetId};
use larder_pool::ledger::HEAD;
use larder_pool::{Look, Pool, ROOT_DATASET, Tally};
use larder_sim::SimWorld;
use larder_sorted::map::Location;
use larder_upkeep::ScrubSince;
use std::collections::BTreeSet;

const SIZE: ByteLen = ByteLen::new(64 << 20);

/// Looks for duplicates in these datasets.
fn share(pool: &Pool, datasets: &[DatasetId]) -> Tally {
    pool.use_index(true);
    let mut sum = Tally::default();
    for &dataset in datasets {
        for tree in pool.trees_of(dataset) {
            let mut from = Some(Key::MIN);
            while let Some(key) = from {
                let found = pool.tree_records(dataset, tree, key).unwrap();
                from = found.next;
                sum.add(&pool.share_records(found.records).unwrap());
            }
        }
    }
    pool.use_index(false);
    sum
}

fn aliases(pool: &Pool) -> usize {
    pool.blocks().unwrap().iter().filter(|(_, entry)| matches!(entry.location, Location::Alias(_))).count()
}

/// A pool of one device with two datasets that hold the same files.
fn doubled(sim: &SimWorld, count: u64) -> (Kept, Model, [DatasetId; 2]) {
    let pool = create(sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, count, 1));
    let twin = pool.create_dataset("tank/twin", Default::default()).unwrap();
    put(&pool, &twin, &files(10, count, 1));
    pool.commit().unwrap();
    (pool, model, [ROOT_DATASET, twin.id()])
}

#[test]
fn no_copy_is_given_up_for_one_that_only_the_cache_has() {
    let sim = SimWorld::new(&[SIZE]);
    let (pool, _, both) = doubled(&sim, 12);
    // The first of each two is what would stay. All of them are in the cache.
    let of_root = pool.tree_records(ROOT_DATASET, pool.trees_of(ROOT_DATASET)[0], Key::MIN).unwrap().records;
    for ptr in &of_root {
        pool.store().read(*ptr).unwrap();
        let lies = pool.store().whereabouts(ptr.id).unwrap().unwrap();
        let (_, offset) = lies.copies[0];
        sim.device(0).flip_bits(offset, 64, 7);
    }
    let came_to = share(&pool, &both);
    assert_eq!((came_to.changed, aliases(&pool)), (0, 0), "{came_to:?}");
    assert!(came_to.unread > 0);
}

#[test]
fn aliases_outlive_whoever_shares_with_them_and_nothing_is_left_of_them() {
    let sim = SimWorld::new(&[SIZE]);
    let (pool, model, both) = doubled(&sim, 12);
    pool.snapshot(both[1], "kept").unwrap();
    let before: u64 = pool.store().accounts().iter().map(|account| account.data_bytes).sum();
    let came_to = share(&pool, &both);
    assert_eq!(came_to.changed as usize, aliases(&pool));
    assert!(came_to.changed >= 12 && came_to.unread == 0, "{came_to:?}");
    pool.commit().unwrap();
    let after: u64 = pool.store().accounts().iter().map(|account| account.data_bytes).sum();
    assert_eq!(before - after, came_to.before, "as much is free as it says");
    assert_eq!(share(&pool, &both).changed, 0, "a second time nothing is there twice");
    assert_whole(&pool, "with aliases");
    // Those that they share with go, with traces before and after.
    let trace = |pool: &Kept| {
        pool.upkeep.gc.start().unwrap();
        while pool.upkeep.gc.step(8).unwrap() {}
        let found = pool.upkeep.gc.findings().unwrap();
        assert!(!found.is_bad(), "{found:?}");
        while pool.free_step(1000).unwrap() {}
        pool.commit().unwrap();
    };
    trace(&pool);
    let gone: Vec<u64> = model.keys().copied().collect();
    try_remove(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &gone).unwrap();
    pool.commit().unwrap();
    trace(&pool);
    drop(pool);
    let pool = open(&SimWorld::from_images(sim.images()), 2);
    assert_whole(&pool, "imported");
    assert_eq!(versions(&pool.snapshot_view(both[1], "kept").unwrap(), &pool), model);
    pool.destroy_snapshot(both[1], "kept").unwrap();
    pool.destroy_dataset(both[1]).unwrap();
    while pool.destroy_step(100).unwrap() {}
    for _ in 0..3 {
        pool.commit().unwrap();
    }
    trace(&pool);
    trace(&pool);
    let left: u64 = pool.store().accounts().iter().map(|account| account.data_bytes).sum();
    assert_eq!((left, aliases(&pool)), (0, 0));
    assert_whole(&pool, "at the end");
}

#[test]
fn a_trace_that_goes_on_behind_an_alias_keeps_its_target_and_its_marks() {
    // Cut after each of its steps in turn, where aliases are older than their targets, and younger.
    let mut judged_in_part = 0;
    for (is_older, cut_after) in (2..16).flat_map(|cut| [(true, cut), (false, cut)]) {
        let sim = SimWorld::new(&[SIZE]);
        // More than one step of the sweep.
        let (pool, model, both) = doubled(&sim, 120);
        let (order, of_targets) = match is_older {
            true => ([both[1], both[0]], both[1]),
            false => (both, both[0]),
        };
        assert!(share(&pool, &order).changed > 0);
        // Targets are named by aliases alone.
        let gone: Vec<u64> = model.keys().copied().collect();
        try_remove(&pool, &pool.dataset(of_targets).unwrap(), &gone).unwrap();
        pool.commit().unwrap();
        while pool.free_step(1000).unwrap() {}
        pool.upkeep.gc.start().unwrap();
        for _ in 0..cut_after {
            pool.upkeep.gc.step(1).unwrap();
            pool.commit().unwrap();
        }
        drop(pool);
        let sim = SimWorld::from_images(sim.images());
        let pool = open(&sim, 3);
        let whole = |case: &str| assert_whole(&pool, &format!("{case}, cut after {cut_after}, {is_older}"));
        for _ in 0..2 {
            pool.upkeep.gc.start().unwrap();
            while pool.upkeep.gc.step(4).unwrap() {}
            let found = pool.upkeep.gc.findings().unwrap();
            judged_in_part += u64::from(found.from > BlockId::new(0));
            while pool.free_step(1000).unwrap() {}
            pool.commit().unwrap();
            whole("after it");
        }
        // One that has aliases becomes none, whoever looks for duplicates.
        share(&pool, &both);
        whole("looked for again");
        let left = both.into_iter().find(|id| *id != of_targets).unwrap();
        pool.store().drop_caches();
        assert_eq!(versions(&pool.dataset(left).unwrap().view().unwrap(), &pool), model);
    }
    assert!(judged_in_part > 0, "none was cut while it judged");
}

/// The block of a file.
fn block_of(pool: &Pool, dataset: DatasetId, inode: u64) -> BlockPtr {
    let dataset = pool.dataset(dataset).unwrap();
    let value = dataset.view().unwrap().get(&Key::new(inode, EXTENT, 0)).unwrap().unwrap();
    Extent::decode(&value).unwrap().ptr
}

/// Scrubs all, and has the files of what is lost named.
fn scrub(pool: &Kept) {
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(1 << 20).unwrap() {}
    name_all(pool);
}

fn name_all(pool: &Kept) {
    while pool.upkeep.read_repair.step().unwrap() > 0 || pool.upkeep.damage.step(2).unwrap() {}
    pool.commit().unwrap();
}

/// Known damage: dataset, snapshot or head, inode.
fn named(pool: &Kept) -> BTreeSet<(DatasetId, BlockId, u64)> {
    pool.upkeep.damage.known().iter().map(|entry| (entry.dataset, entry.snapshot, entry.inode)).collect()
}

#[test]
fn files_whose_records_are_aliases_of_what_is_lost_are_named_before_anybody_reads_them() {
    // Aliases are younger than their targets, or older.
    for is_older in [false, true] {
        let sim = SimWorld::new(&[SIZE]);
        let (pool, _, both) = doubled(&sim, 24);
        let high = pool.snapshot(both[1], "kept").unwrap().high;
        assert!(share(&pool, &if is_older { [both[1], both[0]] } else { both }).changed >= 24);
        pool.commit().unwrap();
        for inode in [12, 17] {
            let of = both.map(|dataset| block_of(&pool, dataset, inode).id);
            let target = of.into_iter().find(|id| pool.store().content_of(*id).unwrap().0 == *id).unwrap();
            let (_, offset) = pool.store().whereabouts(target).unwrap().unwrap().copies[0];
            sim.device(0).flip_bits(offset, 64, inode);
        }
        let all = |inode| [(both[0], HEAD, inode), (both[1], HEAD, inode), (both[1], high, inode)];
        let lost: BTreeSet<_> = [12, 17].into_iter().flat_map(all).collect();
        pool.store().drop_caches();
        scrub(&pool);
        assert_eq!(named(&pool), lost, "older: {is_older}");
        // All entries are looked at again.
        scrub(&pool);
        assert_eq!(named(&pool), lost, "older: {is_older}");
        drop(pool);
        let pool = open(&SimWorld::from_images(sim.images()), 2);
        name_all(&pool);
        assert_eq!(named(&pool), lost, "older: {is_older}");

        // A file that is written anew is damaged no more; the others stay named.
        put(&pool, &pool.dataset(both[1]).unwrap(), &[(12, 2, 4000)]);
        pool.commit().unwrap();
        scrub(&pool);
        let mut left = lost;
        left.remove(&(both[1], HEAD, 12));
        assert_eq!(named(&pool), left, "older: {is_older}");
    }
}
