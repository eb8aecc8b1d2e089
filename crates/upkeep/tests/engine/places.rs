//! Places of blocks when the number that is asked for changes, and on several groups.

use crate::common::*;
use larder_device::Device;
use larder_format::node::Key;
use larder_format::segment::SegmentKind;
use larder_format::{BlockId, DeviceIndex, DeviceOffset, SegmentId};
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, Pool, PoolSpec, ROOT_DATASET, Tally};
use larder_sim::SimWorld;
use std::collections::{BTreeMap, BTreeSet};

const SIZE: larder_format::ByteLen = larder_format::ByteLen::new(64 << 20);

/// Rewrites the files of the root dataset: how many changed, and what those took before and take now.
fn rewrite(pool: &Pool) -> [u64; 3] {
    let (mut from, mut came_to) = (Some(Key::MIN), [0; 3]);
    let tree = *pool.trees_of(ROOT_DATASET).last().unwrap();
    while let Some(key) = from {
        let found = pool.tree_records(ROOT_DATASET, tree, key).unwrap();
        from = found.next;
        let mut tally = Tally::default();
        pool.rewrite_records(ROOT_DATASET, found.records, &mut tally).unwrap();
        came_to
            .iter_mut()
            .zip([tally.changed, tally.before, tally.after])
            .for_each(|(sum, more)| *sum += more);
    }
    came_to
}

/// Of each block its places: segment, devices, where each begins.
type Places = BTreeMap<BlockId, Vec<(SegmentId, Vec<(DeviceIndex, DeviceOffset)>)>>;

fn places(pool: &Pool) -> Places {
    let each = |(id, entry): (BlockId, larder_sorted::map::Entry)| {
        let of = pool.store().whereabouts(id).unwrap().unwrap().copies;
        let mut at = of.into_iter();
        let place = |place: &larder_format::Place| {
            let layout = pool.store().core.lock().entries[&place.segment].segment.layout;
            (place.segment, at.by_ref().take(layout.r()).collect())
        };
        (id, entry.places().iter().map(place).collect())
    };
    pool.blocks().unwrap().into_iter().map(each).collect()
}

#[test]
fn a_rewrite_tells_what_records_took_at_all_their_places_and_take_now() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    // Those that have the codec of their dataset already.
    let files: Vec<_> = files(10, 20, 1).into_iter().filter(|(inode, ..)| inode % 3 != 0).collect();
    commit(&pool, &mut Model::new(), &files);
    ask_copies(&pool, 3);
    let [changed, once, thrice] = rewrite(&pool);
    assert!(changed == files.len() as u64 && once > 0 && thrice == 3 * once, "{changed}: {once} to {thrice}");
    ask_copies(&pool, 1);
    assert_eq!(rewrite(&pool), [changed, thrice, once]);
}

#[test]
fn a_rewrite_to_fewer_places_gives_no_good_one_up_for_one_that_is_bad() {
    for copies in 2..=3 {
        for (to, behind) in (1..copies).flat_map(|to| [(to, 0), (to, 200)]) {
            let sim = SimWorld::new(&[SIZE]);
            let pool = create(&sim, "single");
            ask_copies(&pool, copies);
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 40, 1));
            for (_, at) in places(&pool).values().filter_map(|places| places.first()) {
                let offset = DeviceOffset::new(at[0].1.get() + behind);
                sim.device(0).flip_bits(offset, 64, offset.get());
            }
            pool.store().drop_caches();
            ask_copies(&pool, to);
            let [changed, ..] = rewrite(&pool);
            assert!(changed > 20, "{changed} from {copies} to {to}");
            for _ in 0..4 {
                pool.commit().unwrap();
                while pool.free_step(1000).unwrap() {}
            }
            pool.store().drop_caches();
            verify(&pool, &model);
            drop(pool);
            verify(&open(&sim, 5), &model);
        }
    }
}

#[test]
fn blocks_with_one_place_and_with_two_are_cleaned_to_where_each_belongs() {
    for (word, count, groups) in [("single", 1, 2), ("single", 1, 3), ("raidz1", 3, 2), ("raidz2", 6, 2)] {
        let case = format!("{groups} of {word}");
        let sim = SimWorld::new(&vec![SIZE; count * groups]);
        let group = |devices: &[std::sync::Arc<dyn Device>]| {
            GroupSpec::data(rule_for(word, count).unwrap(), devices.to_vec())
        };
        let groups = sim.devices().chunks(count).map(group).collect();
        let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        let mut model = Model::new();
        for version in 0..6 {
            for i in 0..30 {
                ask_copies(&pool, 1 + (i + version as usize) % 2);
                let file = (10 + i as u64 * 8, version, 1 + (i * 9_176) % 90_000);
                let put: Vec<_> = (0..8).map(|n| (file.0 + n, version, file.2)).collect();
                commit(&pool, &mut model, &put[..if version == 5 { 4 } else { 8 }]);
            }
        }
        let small = || -> u64 {
            let core = pool.store().core.lock();
            let entries = core.entries.iter();
            let small = entries.filter(|(_, entry)| entry.segment.kind == SegmentKind::Small);
            small.map(|(_, entry)| u64::from(entry.height)).sum()
        };
        let before = small();
        for _ in 0..4 {
            pool.commit().unwrap();
            while pool.free_step(1000).unwrap() {}
        }
        let mut moved = 0;
        while let Some(bytes) = pool.clean_step(true).unwrap() {
            moved += bytes;
        }
        pool.commit().unwrap();
        let grown = small().saturating_sub(before);
        println!("{case}: {moved} moved, {before} small before, {grown} more");
        assert!(moved > 1 << 20, "{case}: {moved}");
        assert!(grown * 4 < moved, "{case}: {grown} of {moved} bytes went to small segments");
        for (id, places) in places(&pool) {
            let group = |at: &(SegmentId, Vec<_>)| pool.store().core.lock().entries[&at.0].segment.group;
            let of: BTreeSet<_> = places.iter().map(group).collect();
            assert_eq!(of.len(), places.len(), "{case}: block {id} is at {places:?}");
        }
        verify(&pool, &model);
        assert_whole(&pool, &case);
    }
}
