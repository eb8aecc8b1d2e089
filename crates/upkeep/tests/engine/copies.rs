//! Blocks with several places: each is as good as the others, and none is forgotten.

use crate::common::*;
use larder_format::label::Features;
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr, ByteLen, DatasetId};
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, Pool, PoolSpec, ROOT_DATASET, TreeOf};
use larder_sim::SimWorld;
use larder_upkeep::{PassState, Task};
use std::collections::BTreeMap;

const SIZE: ByteLen = ByteLen::new(64 << 20);

/// Number of places of each block.
fn places(pool: &Pool) -> BTreeMap<BlockId, usize> {
    pool.blocks().unwrap().into_iter().map(|(id, entry)| (id, entry.places().len())).collect()
}

/// A pool with some files, whose blocks, records and nodes, have so many places more.
fn with_copies(sim: &SimWorld, word: &str, more: usize) -> (Kept, Model) {
    let pool = create(sim, word);
    ask_copies(&pool, 1 + more);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 30, 1));
    commit(&pool, &mut model, &files(40, 30, 2));
    (pool, model)
}

fn free_all(pool: &Pool) {
    for _ in 0..4 {
        pool.commit().unwrap();
        while pool.free_step(1000).unwrap() {}
    }
}

/// Takes all files away, and nothing stays behind.
fn remove_all(pool: &Kept, model: &Model) {
    let gone: Vec<u64> = model.keys().copied().collect();
    try_remove(pool, &pool.dataset(ROOT_DATASET).unwrap(), &gone).unwrap();
    free_all(pool);
    assert_whole(pool, "all removed");
}

#[test]
fn what_cannot_be_read_at_one_place_is_read_at_another() {
    for (word, count) in [("single", 1), ("mirror", 2), ("raidz1", 3)] {
        for more in 1..=2 {
            let sim = SimWorld::new(&vec![SIZE; count]);
            let (pool, model) = with_copies(&sim, word, more);
            assert_whole(&pool, word);
            // All places but one go, each time another one is left.
            let all: Vec<_> =
                places(&pool).into_keys().map(|id| pool.store().whereabouts(id).unwrap().unwrap()).collect();
            drop(pool);
            for left in 0..=more {
                let mut images = sim.images();
                for block in &all {
                    let each = block.copies.len() / (more + 1);
                    for (at, &(device, offset)) in block.copies.iter().enumerate() {
                        if at / each != left {
                            images[device.get() as usize].write(offset, &[0x5a; 200]);
                        }
                    }
                }
                // Parity does not know: reads find it by themselves.
                let sim = SimWorld::from_images(images);
                let pool = open(&sim, 3);
                verify(&pool, &model);
            }
        }
    }
}

#[test]
fn freeing_a_block_frees_all_its_places() {
    for more in 1..=2 {
        let sim = SimWorld::new(&[SIZE; 2]);
        let (pool, mut model) = with_copies(&sim, "mirror", more);
        assert!(places(&pool).values().all(|&places| places == more + 1));
        let gone: Vec<u64> = (10..40).collect();
        try_remove(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &gone).unwrap();
        model.retain(|inode, _| !gone.contains(inode));
        // New blocks have one place, the old ones that are left have all.
        ask_copies(&pool, 1);
        commit(&pool, &mut model, &files(50, 10, 3));
        free_all(&pool);
        let left = places(&pool);
        assert!(left.values().all(|&places| places == 1 || places == more + 1), "{left:?}");
        assert_whole(&pool, "removed");
        drop(pool);
        let pool = open(&sim, 3);
        verify(&pool, &model);
        remove_all(&pool, &model);
        assert!(places(&pool).values().all(|&places| places == 1), "{:?}", places(&pool));
    }
}

#[test]
fn the_cleaner_moves_each_place_by_itself() {
    let sim = SimWorld::new(&[SIZE; 1]);
    let (pool, mut model) = with_copies(&sim, "single", 1);
    let mut moved = 0;
    for version in 3..12 {
        // Some have two places, and some have one.
        ask_copies(&pool, 1 + version as usize % 2);
        let changed: Vec<_> =
            files(10, 60, version).into_iter().filter(|(inode, ..)| inode % 3 != 0).collect();
        commit(&pool, &mut model, &changed);
        free_all(&pool);
        let before = places(&pool);
        while let Some(bytes) = pool.clean_step(true).unwrap() {
            moved += bytes;
            assert_eq!(places(&pool), before, "a place was lost or made");
        }
        pool.commit().unwrap();
        assert_whole(&pool, "cleaned");
    }
    assert!(moved > 1 << 20, "{moved} bytes were moved");
    drop(pool);
    verify(&open(&sim, 3), &model);
}

#[test]
fn the_root_says_that_blocks_have_several_places_from_the_first_one_on() {
    let sim = SimWorld::new(&[SIZE; 1]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &[(10, 1, 90_000), (11, 1, 300)]);
    let of_root = || plan(sim.devices()).root.features.incompatible;
    assert_eq!(of_root(), 0);
    ask_copies(&pool, 2);
    commit(&pool, &mut model, &[(12, 1, 300)]);
    assert_eq!(of_root(), Features::COPIES);
    drop(pool);
    let pool = open(&sim, 2);
    pool.commit().unwrap();
    assert_eq!(of_root(), Features::COPIES);
}

/// Number of places of each block that the head of a dataset reaches; of an alias those of its target.
fn reached(pool: &Pool, dataset: DatasetId) -> [BTreeMap<BlockId, usize>; 2] {
    let places = |ptr: BlockPtr| (ptr.id, pool.store().content_of(ptr.id).unwrap().1.len());
    let (mut records, mut nodes) = (BTreeMap::new(), BTreeMap::new());
    let mut from = Some(Key::MIN);
    while let Some(key) = from {
        let found = pool.tree_records(dataset, TreeOf::Head, key).unwrap();
        assert!(!found.is_partial);
        records.extend(found.records.into_iter().map(places));
        nodes.extend(found.nodes.into_iter().map(places));
        from = found.next;
    }
    [records, nodes]
}

/// Gives what there is as many places as a dataset asks for: numbers of records that got others, and of those unread.
/// It was estimated before.
fn rewrite(pool: &Kept, dataset: DatasetId) -> (u64, u64) {
    pool.commit().unwrap();
    let told = pool.upkeep.passes.estimate_rewrite(&[dataset], &BTreeMap::new()).unwrap().tally;
    pool.upkeep.passes.start(Task::Rewrite, vec![dataset], 0).unwrap();
    while pool.upkeep.passes.step(1 << 20).unwrap().is_some() {}
    let last = pool.upkeep.passes.last().unwrap();
    assert_eq!(last.state, PassState::Done);
    let came_to = last.tally;
    // Of that many records some alone are tried.
    if last.tally.records <= 4096 {
        assert_eq!(
            (told.changed, told.before, told.after),
            (came_to.changed, came_to.before, came_to.after),
            "{told:?}"
        );
    } else {
        let near = |a: u64, b: u64| a.abs_diff(b) <= b / 8;
        assert!(
            near(told.changed, came_to.changed) && near(told.after, came_to.after),
            "{told:?}, {came_to:?}"
        );
    }
    pool.commit().unwrap();
    (last.tally.changed, last.tally.unread)
}

fn ask(pool: &Pool, dataset: DatasetId, copies: usize) {
    pool.set_property(dataset, "copies", &copies.to_string()).unwrap();
}

/// Whether all of what a dataset reaches has so many places.
fn all_have(pool: &Pool, dataset: DatasetId, copies: usize) {
    for (what, blocks) in ["records", "nodes"].into_iter().zip(reached(pool, dataset)) {
        let others: Vec<_> = blocks.iter().filter(|(_, places)| **places != copies).collect();
        assert!(others.is_empty(), "{} of {} {what}: {others:?}", others.len(), blocks.len());
    }
}

#[test]
fn a_rewrite_gives_nodes_and_targets_of_aliases_as_many_places() {
    for (word, groups, small) in
        [("single", 1, 17_000), ("single", 2, 500), ("mirror", 1, 500), ("raidz1", 1, 500)]
    {
        let each = LAYOUTS.into_iter().find(|(of, _)| *of == word).unwrap().1;
        let sim = SimWorld::new(&vec![SIZE; each * groups]);
        let of = |devices: &[_]| GroupSpec::data(rule_for(word, each).unwrap(), devices.to_vec());
        let groups = sim.devices().chunks(each).map(of).collect();
        let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        let twin = pool.create_dataset("tank/twin", Default::default()).unwrap();
        ask(&pool, twin.id(), 1);
        let mut model = Model::new();
        // Leaves enough for a step of the walk and more, then records that are aliases of the twin's.
        let of: Vec<_> = (1000..1000 + small).map(|inode| (inode, 1, 300)).collect();
        commit(&pool, &mut model, &of);
        put(&pool, &twin, &files(10, 20, 1));
        pool.commit().unwrap();
        commit(&pool, &mut model, &files(10, 20, 1));
        pool.snapshot(ROOT_DATASET, "before").unwrap();
        commit(&pool, &mut model, &files(40, 20, 1));
        let nodes = reached(&pool, ROOT_DATASET)[1].len();
        assert!(nodes > 64 || small < 17_000 && nodes > 2, "{nodes} nodes");
        pool.use_index(true);
        let first = |dataset| pool.tree_records(dataset, TreeOf::Head, Key::MIN).unwrap().records;
        pool.share_records(first(twin.id())).unwrap();
        let shared = pool.share_records(first(ROOT_DATASET)).unwrap().changed;
        pool.use_index(false);
        pool.commit().unwrap();
        assert_eq!(shared, 20, "records that are aliases");

        for copies in [2, 3] {
            ask_copies(&pool, copies);
            let (changed, unread) = rewrite(&pool, ROOT_DATASET);
            all_have(&pool, ROOT_DATASET, copies);
            assert_eq!((changed, unread), (small + 40, 0), "{word}");
            let of_twin = reached(&pool, twin.id());
            assert!(of_twin[0].values().all(|&places| places == copies), "its records are the targets");
            assert!(of_twin[1].values().all(|&places| places == 1), "nodes of others are not touched");
            assert_eq!(rewrite(&pool, ROOT_DATASET), (0, 0));
            assert_whole(&pool, word);
            verify(&pool, &model);
        }
        // Fewer again, but for what others may name.
        ask_copies(&pool, 1);
        rewrite(&pool, ROOT_DATASET);
        let [records, nodes] = reached(&pool, ROOT_DATASET);
        assert!(nodes.values().all(|&places| places == 1));
        let kept = records.values().filter(|&&places| places == 3).count() as u64;
        assert!(kept >= shared && records.values().all(|places| [1, 3].contains(places)), "{kept}");
        assert_whole(&pool, word);
        drop(pool);
        let pool = open(&sim, 3);
        verify(&pool, &model);
        remove_all(&pool, &model);
    }
}

#[test]
fn nodes_that_got_a_place_by_a_rewrite_are_read_there() {
    let sim = SimWorld::new(&[SIZE; 1]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    let small: Vec<_> = (1000..3000).map(|inode| (inode, 1, 300)).collect();
    commit(&pool, &mut model, &small);
    pool.snapshot(ROOT_DATASET, "before").unwrap();
    ask_copies(&pool, 2);
    rewrite(&pool, ROOT_DATASET);
    let all: Vec<_> =
        places(&pool).into_keys().map(|id| pool.store().whereabouts(id).unwrap().unwrap()).collect();
    drop(pool);
    for left in 0..2 {
        let mut images = sim.images();
        for block in &all {
            let (device, offset) = block.copies[1 - left];
            images[device.get() as usize].write(offset, &[0x5a; 200]);
        }
        let sim = SimWorld::from_images(images);
        verify(&open(&sim, 3), &model);
    }
}
