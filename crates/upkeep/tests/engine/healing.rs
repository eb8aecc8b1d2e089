//! Datasets that ask for several places of their blocks: where those lie, what they cost, and what heals from them.

use crate::common::*;
use larder_format::{BlockId, DeviceIndex, DeviceOffset, SegmentId};
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, Pool, PoolError, PoolSpec, ROOT_DATASET};
use larder_sim::{SimClock, SimWorld, Survival};
use larder_upkeep::{ScrubResult, ScrubSince};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SIZE: larder_format::ByteLen = larder_format::ByteLen::new(64 << 20);

fn scrub(pool: &Kept) -> ScrubResult {
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(1 << 20).unwrap() {}
    pool.upkeep.scrub.result().expect("it has ended")
}

/// Does what waits for a quiet moment.
fn settle(pool: &Kept) {
    loop {
        let repaired = pool.upkeep.read_repair.step().unwrap();
        if !pool.upkeep.damage.step(64).unwrap() && repaired == 0 && !pool.upkeep.read_repair.is_waiting() {
            break;
        }
    }
    for _ in 0..4 {
        pool.commit().unwrap();
    }
}

/// Of each block its places: segment, devices, where each begins.
type Places = BTreeMap<BlockId, Vec<(SegmentId, Vec<(DeviceIndex, DeviceOffset)>)>>;

fn places(pool: &Pool) -> Places {
    let each = |(id, entry): (BlockId, larder_sorted::map::Entry)| {
        let of = pool.store().whereabouts(id).unwrap().unwrap().copies;
        let per = of.len() / entry.places().len();
        let places = entry.places().iter().zip(of.chunks(per));
        (id, places.map(|(place, at)| (place.segment, at.to_vec())).collect())
    };
    pool.blocks().unwrap().into_iter().map(each).collect()
}

/// Noise over the `n`-th place of each block, on all devices that have it: over its header, or `behind` it.
fn rot(sim: &SimWorld, of: &Places, n: usize, behind: u64) -> usize {
    let mut rotten = 0;
    for at in of.values().filter_map(|places| places.get(n)).flat_map(|(_, at)| at) {
        let offset = DeviceOffset::new(at.1.get() + behind);
        sim.device(at.0.get().into()).flip_bits(offset, 64, 7 + rotten as u64);
        rotten += 1;
    }
    rotten
}

#[test]
fn each_block_has_as_many_places_as_are_asked_for_and_all_of_them_count() {
    for (word, count) in LAYOUTS {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut used = Vec::new();
        for copies in 1..=3 {
            ask_copies(&pool, copies);
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 40, copies as u64));
            let of = places(&pool);
            // Names and blocks of the root directory may be older.
            let newest = of.iter().rev().take(40);
            for (id, places) in newest {
                assert_eq!(places.len(), copies, "{word}: block {id}");
                let segments: BTreeSet<_> = places.iter().map(|place| place.0).collect();
                assert_eq!(segments.len(), copies, "{word}: block {id} is at {places:?}");
            }
            used.push(pool.dataset(ROOT_DATASET).unwrap().usage());
            verify(&pool, &model);
            assert_whole(&pool, word);
        }
        // Lengths differ a little from version to version.
        let per = |of: &larder_pool::Usage| of.referenced as f64 / of.stored as f64;
        for (i, usage) in used.iter().enumerate() {
            assert!((per(usage) - (i + 1) as f64).abs() < 0.05, "{word}: {used:?}");
        }
        let gone: Vec<u64> = (10..50).collect();
        try_remove(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &gone).unwrap();
        settle(&pool);
        while pool.free_step(1000).unwrap() {}
        settle(&pool);
        assert_eq!(pool.dataset(ROOT_DATASET).unwrap().usage().referenced, 0);
        assert_whole(&pool, "all removed");
        drop(pool);
        assert_whole(&open(&sim, 4), "imported");
    }
}

#[test]
fn figures_agree_with_the_room_that_is_left() {
    let sim = SimWorld::new(&[SIZE]);
    let taken = [1, 2, 3].map(|copies| {
        let pool = create(&sim, "single");
        ask_copies(&pool, copies);
        let before = pool.store().space(128 << 10).available;
        let all: Vec<_> = (10..90).map(|inode| (inode, 0, 100_000)).collect();
        commit(&pool, &mut Model::new(), &all);
        let used = pool.dataset(ROOT_DATASET).unwrap().usage().referenced;
        let gone = before - pool.store().space(128 << 10).available;
        // AVAIL is in records of 128 KiB, and steps by segments.
        assert!(gone.abs_diff(used) < used / 8 + (1 << 20), "{copies}: {gone} are gone, {used} are charged");
        used
    });
    assert_eq!([taken[0] * 2, taken[0] * 3], [taken[1], taken[2]]);
}

#[test]
fn a_pool_without_room_for_all_places_refuses_and_keeps_none() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    ask_copies(&pool, 3);
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let mut model = Model::new();
    for inode in 10.. {
        let file = (inode, 0, 120_000);
        if let Err(refused) = pool.check_room(&dataset, 120_000, || false) {
            assert!(matches!(refused, PoolError::NoSpace), "{refused}");
            break;
        }
        commit(&pool, &mut model, &[file]);
    }
    assert!(model.len() > 30 && model.len() < 200, "{} files", model.len());
    // Past AVAIL, to the end.
    for inode in 1000.. {
        match try_put(&pool, &dataset, &[(inode, 0, 120_000)]) {
            Err(PoolError::NoSpace) => break,
            done => done.unwrap(),
        }
        model.insert(inode, (0, 120_000));
    }
    pool.commit().unwrap();
    verify(&pool, &model);
    assert_whole(&pool, "full");
}

#[test]
fn a_single_disk_survives_bad_sectors_and_heals() {
    for (copies, behind) in [(2, 0), (2, 200), (3, 0)] {
        for by_scrub in [true, false] {
            let case = format!("{copies} places, {behind}, scrub: {by_scrub}");
            let sim = SimWorld::new(&[SIZE]);
            let pool = create(&sim, "single");
            ask_copies(&pool, copies);
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 40, 1));
            commit(&pool, &mut model, &files(60, 20, 2));
            for turn in 0..2 * copies {
                let of = places(&pool);
                assert!(rot(&sim, &of, turn % copies, behind) > 60, "{case}");
                pool.store().drop_caches();
                if by_scrub {
                    let found = scrub(&pool);
                    assert!(found.lost == 0 && found.repaired > 0, "{case}: {found:?}");
                } else {
                    verify(&pool, &model);
                }
                settle(&pool);
                assert_eq!(pool.upkeep.damage.known(), [], "{case}");
                if turn % copies == 0 || by_scrub {
                    // Reads come to the first place alone.
                    assert_eq!(pool.upkeep.read_repair.lost(), [], "{case}");
                    assert_whole(&pool, &case);
                    let now = places(&pool);
                    let left = of.iter().filter(|(id, at)| now.get(id).is_some_and(|now| now == *at));
                    assert_eq!(left.count(), 0, "{case}: places that were lost are believed");
                    assert!(now.values().all(|at| at.len() == copies), "{case}");
                    let again = scrub(&pool);
                    assert_eq!((again.lost, again.repaired), (0, 0), "{case}");
                } else {
                    scrub(&pool);
                    settle(&pool);
                }
                verify(&pool, &model);
            }
            drop(pool);
            let pool = open(&sim, 5);
            verify(&pool, &model);
            assert_eq!(pool.upkeep.damage.known(), [], "{case}");
        }
    }
}

#[test]
fn what_no_place_gives_is_lost_and_named_and_nothing_else_is() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 20, 1));
    ask_copies(&pool, 2);
    commit(&pool, &mut model, &files(40, 20, 2));
    let of = places(&pool);
    // A record with one place, and both places of another.
    let record = |inode: u64| {
        let dataset = pool.dataset(ROOT_DATASET).unwrap();
        let key = larder_format::node::Key::new(inode, larder_format::items::EXTENT, 0);
        let value = larder_pool::Look::get(&dataset.view().unwrap(), &key).unwrap().unwrap();
        larder_format::items::Extent::decode(&value).unwrap().ptr.id
    };
    let (alone, twice, healed) = (record(12), record(44), record(47));
    let only =
        |id: BlockId| of.iter().filter(move |(of, _)| **of == id).map(|(id, at)| (*id, at.clone())).collect();
    rot(&sim, &only(alone), 0, 0);
    rot(&sim, &only(twice), 0, 0);
    rot(&sim, &only(twice), 1, 0);
    rot(&sim, &only(healed), 1, 0);
    pool.store().drop_caches();
    let found = scrub(&pool);
    assert!(found.lost > 0, "{found:?}");
    settle(&pool);
    let named: BTreeSet<u64> = pool.upkeep.damage.known().iter().map(|entry| entry.inode).collect();
    assert_eq!(named, BTreeSet::from([12, 44]));
    let now = places(&pool);
    assert_ne!(now[&healed], of[&healed]);
    pool.store().drop_caches();
    model.retain(|inode, _| !named.contains(inode));
    try_remove(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &[12, 44]).unwrap();
    settle(&pool);
    verify(&pool, &model);
}

#[test]
fn places_are_on_different_groups_and_devices_as_far_as_there_are_some() {
    // Three disks, each a group.
    let sim = SimWorld::new(&[SIZE; 3]);
    let group = |device| GroupSpec::data(rule_for("single", 1).unwrap(), vec![device]);
    let groups = sim.devices().into_iter().map(group).collect();
    let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
    for copies in 2..=3 {
        ask_copies(&pool, copies);
        let mut model = Model::new();
        for version in 0..6 {
            commit(&pool, &mut model, &files(10, 50, version));
            let of = places(&pool);
            for (id, places) in of.iter().rev().take(50) {
                let devices: BTreeSet<_> = places.iter().flat_map(|(_, at)| at).map(|at| at.0).collect();
                assert_eq!(devices.len(), copies, "block {id} is at {places:?}");
            }
        }
        // Also when the cleaner has moved some.
        settle(&pool);
        while pool.clean_step(true).unwrap().is_some() {}
        settle(&pool);
        for (id, places) in places(&pool) {
            let devices: BTreeSet<_> = places.iter().flat_map(|(_, at)| at).map(|at| at.0).collect();
            assert_eq!(devices.len(), places.len(), "block {id} is at {places:?}");
        }
        assert_whole(&pool, "cleaned");
        verify(&pool, &model);
    }
    // One group, the columns of which lie on three devices.
    let sim = SimWorld::new(&[SIZE; 4]);
    let pool = create(&sim, "raidz1");
    ask_copies(&pool, 3);
    commit(&pool, &mut Model::new(), &[(10, 1, 50_000), (11, 1, 60_000), (12, 1, 70_000), (13, 1, 20_000)]);
    let wide = places(&pool).into_values().filter(|places| places.iter().all(|(_, at)| at.len() == 1));
    let wide: Vec<_> = wide.collect();
    for places in &wide {
        let devices: BTreeSet<_> = places.iter().map(|(_, at)| at[0].0).collect();
        assert_eq!(devices.len(), places.len(), "{places:?}");
    }
    assert!(wide.len() >= 4, "{}", wide.len());
}

#[test]
fn no_power_cut_while_a_disk_heals_loses_a_place_that_was_sound() {
    let sim = SimWorld::new(&[SIZE]);
    let (model, start) = {
        let pool = create(&sim, "single");
        ask_copies(&pool, 2);
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 20, 1));
        let of = places(&pool);
        pool.commit_export().unwrap();
        drop(pool);
        rot(&sim, &of, 0, 0);
        (model, sim.trace().len())
    };
    let images = sim.images();
    let sim = SimWorld::from_images(images);
    let pool = open(&sim, 2);
    let healed = scrub(&pool);
    assert_eq!(healed.lost, 0, "{healed:?}");
    settle(&pool);
    drop(pool);
    assert!(start > 0);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    let mut cuts = 0;
    for cut in (0..=trace.len()).step_by((trace.len() / 60).max(1)) {
        sweep.advance_to(cut);
        for survival in [Survival::DropAll, Survival::KeepAll, Survival::Random { seed: cut as u64 }] {
            let sim = SimWorld::from_images(sweep.images(survival));
            let pool = open(&sim, 9);
            verify(&pool, &model);
            assert_eq!(scrub(&pool).lost, 0, "cut {cut}");
            settle(&pool);
            assert_eq!(pool.upkeep.damage.known(), [], "cut {cut}");
            verify(&pool, &model);
            assert_whole(&pool, &format!("cut {cut}"));
            cuts += 1;
        }
    }
    println!("{cuts} cuts");
}

/// Files of one place until the pool is full.
fn fill(pool: &Pool) -> Vec<u64> {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let mut others = Vec::new();
    for inode in 1000.. {
        match try_put(pool, &dataset, &[(inode, 0, 120_000)]) {
            Err(PoolError::NoSpace) => break,
            done => done.unwrap(),
        }
        others.push(inode);
        pool.commit().unwrap();
    }
    others
}

#[test]
fn what_was_postponed_waits_for_room_for_the_copy_that_it_is_of() {
    let (sim, clock) = (SimWorld::new(&[SIZE]), Arc::new(SimClock::new()));
    let pool = create_by(&clock, sim.devices(), "single");
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    ask_copies(&pool, 2);
    commit(&pool, &mut Model::new(), &files(10, 30, 1));
    let mut others = fill(&pool);
    let of: Places = places(&pool).into_iter().filter(|(_, at)| at.len() == 2).skip(5).take(10).collect();
    rot(&sim, &of, 1, 0);
    pool.store().drop_caches();
    assert!(scrub(&pool).lost > 0);
    settle(&pool);
    let left: Vec<u64> = (pool.blocks().unwrap().into_iter().filter(|(id, _)| of.contains_key(id)))
        .map(|(id, entry)| (id, entry.places()[1]))
        .filter(|(id, place)| of[id][1].0 == place.segment)
        .map(|(_, place)| place.footprint().into())
        .collect();
    let storable = || pool.store().storable_by_copy(128 << 10);
    let mut free = |wanted: u64| {
        while storable()[1] < wanted {
            try_remove(&pool, &dataset, &others.split_off(others.len() - 4)).unwrap();
            for _ in 0..4 {
                pool.commit().unwrap();
                while pool.free_step(1000).unwrap() {}
            }
        }
    };
    assert!(left.len() > 5, "{} found no room", left.len());
    free(1);
    // All that is free becomes a segment of first places.
    ask_copies(&pool, 1);
    for inode in 5000.. {
        if storable()[1] == 0 {
            break;
        }
        put(&pool, &dataset, &[(inode, 0, 4_000)]);
        pool.commit().unwrap();
    }
    let sum: u64 = left.iter().sum();
    assert!(storable()[0] > sum, "{:?} of {sum}", storable());
    clock.advance(Duration::from_secs(100));
    assert!(!pool.upkeep.damage.step(64).unwrap(), "there is no room for second places");

    free(sum);
    clock.advance(Duration::from_secs(100));
    settle(&pool);
    let now = places(&pool);
    assert!(of.iter().all(|(id, at)| now[id].len() == 2 && now[id][1] != at[1]));
    assert_whole(&pool, "healed");
}

#[test]
fn what_a_full_pool_has_no_room_to_heal_is_healed_when_there_is_some() {
    let (sim, clock) = (SimWorld::new(&[SIZE]), Arc::new(SimClock::new()));
    let pool = create_by(&clock, sim.devices(), "single");
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    ask_copies(&pool, 2);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 30, 1));
    ask_copies(&pool, 1);
    let others = fill(&pool);
    let of: Places = places(&pool).into_iter().filter(|(_, at)| at.len() == 2).collect();
    let rotten = rot(&sim, &of, 0, 0);
    pool.store().drop_caches();
    assert!(scrub(&pool).lost > 0);
    settle(&pool);
    let short = || {
        let now = places(&pool);
        of.iter().filter(|(id, at)| now.get(id).is_some_and(|now| now[0] == at[0])).count()
    };
    let lost = pool.upkeep.read_repair.lost();
    assert!(short() > 10 && !lost.is_empty(), "{} of {rotten} found no room", short());
    assert_eq!(pool.upkeep.damage.known(), []);
    verify(&pool, &model);
    // Time alone brings no room.
    let before = sim.trace().len();
    for _ in 0..3 {
        clock.advance(Duration::from_secs(100));
        assert!(!pool.upkeep.damage.step(64).unwrap());
    }
    assert_eq!(sim.trace().len(), before);

    try_remove(&pool, &dataset, &others).unwrap();
    for _ in 0..4 {
        pool.commit().unwrap();
        while pool.free_step(1000).unwrap() {}
    }
    // The next import knows as much.
    let other = open(&SimWorld::from_images(sim.images()), 5);
    settle(&other);
    for pool in [&pool, &other] {
        settle(pool);
        assert_eq!(pool.upkeep.damage.known(), []);
        let now = places(pool);
        for (id, at) in of.iter().filter(|(id, _)| now.contains_key(id)) {
            assert!(now[id].len() == 2 && now[id][0] != at[0], "block {id} is at {:?}", now[id]);
        }
        let again = scrub(pool);
        assert_eq!((again.lost, again.repaired), (0, 0));
        assert_whole(pool, "healed");
        verify(pool, &model);
    }
    assert_eq!(pool.upkeep.read_repair.lost(), []);
}
