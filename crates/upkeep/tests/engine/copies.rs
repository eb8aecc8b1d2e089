//! Blocks with several places: each is as good as the others, and none is forgotten.

use crate::common::*;
use larder_format::label::Features;
use larder_format::{BlockId, ByteLen};
use larder_pool::{Pool, ROOT_DATASET};
use larder_sim::SimWorld;
use std::collections::BTreeMap;

const SIZE: ByteLen = ByteLen::new(64 << 20);

/// Number of places of each block.
fn places(pool: &Pool) -> BTreeMap<BlockId, usize> {
    pool.blocks().unwrap().into_iter().map(|(id, entry)| (id, entry.places().len())).collect()
}

/// A pool with some files, all blocks of which, records and nodes, have so many places more.
fn with_copies(sim: &SimWorld, word: &str, more: usize) -> (Kept, Model) {
    let pool = create(sim, word);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 30, 1));
    commit(&pool, &mut model, &files(40, 30, 2));
    copy_all(&pool, more);
    (pool, model)
}

fn copy_all(pool: &Pool, more: usize) {
    for (id, _) in pool.blocks().unwrap() {
        (0..more).for_each(|_| pool.add_place(id).unwrap());
    }
    pool.commit().unwrap();
}

fn free_all(pool: &Pool) {
    for _ in 0..4 {
        pool.commit().unwrap();
        while pool.free_step(1000).unwrap() {}
    }
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
        commit(&pool, &mut model, &files(50, 10, 3));
        free_all(&pool);
        let left = places(&pool);
        assert!(left.values().all(|&places| places == 1 || places == more + 1), "{left:?}");
        assert_whole(&pool, "removed");
        drop(pool);
        let pool = open(&sim, 3);
        verify(&pool, &model);
        let gone: Vec<u64> = model.keys().copied().collect();
        try_remove(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &gone).unwrap();
        free_all(&pool);
        assert_whole(&pool, "all removed");
        assert!(places(&pool).values().all(|&places| places == 1), "{:?}", places(&pool));
    }
}

#[test]
fn the_cleaner_moves_each_place_by_itself() {
    let sim = SimWorld::new(&[SIZE; 1]);
    let (pool, mut model) = with_copies(&sim, "single", 1);
    let mut moved = 0;
    for version in 3..12 {
        let changed: Vec<_> =
            files(10, 60, version).into_iter().filter(|(inode, ..)| inode % 3 != 0).collect();
        commit(&pool, &mut model, &changed);
        free_all(&pool);
        copy_all(&pool, usize::from(version == 6));
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
    commit(&pool, &mut Model::new(), &[(10, 1, 90_000), (11, 1, 300)]);
    let of_root = || plan(sim.devices()).root.features.incompatible;
    assert_eq!(of_root(), 0);
    copy_all(&pool, 1);
    assert_eq!(of_root(), Features::COPIES);
    drop(pool);
    let pool = open(&sim, 2);
    pool.commit().unwrap();
    assert_eq!(of_root(), Features::COPIES);
}
