//! Copies of blocks on a device of their own: what is read from them, what outlives an import, and that nothing is lost
//! with them nor believed of them.

pub mod seeds;

use crate::common::*;
use larder_device::Device;
use larder_format::ByteLen;
use larder_format::items::Extent;
use larder_format::node::Key;
use larder_pool::member::MemberState;
use larder_pool::open::{Scan, scan};
use larder_pool::{Look, ROOT_DATASET};
use larder_sim::{Fault, SimClock, SimWorld};
use larder_store::read_cache::Secondary;
use seeds::{SIZE, cached, fill};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

fn hits(pool: &Kept) -> u64 {
    pool.store().read_cache.stats(Default::default()).map_or(0, |stats| stats.policy.hits)
}

/// Reads everything, and has it copied; the blocks that were read from copies, and the reads of device 0.
fn read_all(pool: &Kept, sim: &SimWorld, model: &Model) -> (u64, u64) {
    let (hits_before, reads) = (hits(pool), sim.device(0).counters().reads);
    assert!(contents(pool).unwrap() == *model);
    let came_to = (hits(pool) - hits_before, sim.device(0).counters().reads - reads);
    fill(pool);
    came_to
}

/// Reads everything until copies are there of what was read along with others, too.
fn warm(pool: &Kept, sim: &SimWorld, model: &Model) {
    for _ in 0..4 {
        read_all(pool, sim, model);
    }
}

#[test]
fn all_that_was_read_once_is_read_from_copies_while_there_is_room() {
    let sim = SimWorld::new(&[SIZE, SIZE]);
    let pool = cached(&sim);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    let (hits, reads) = read_all(&pool, &sim, &model);
    assert!(hits == 0 && reads > 20, "{hits} hits, {reads} reads");
    warm(&pool, &sim, &model);
    let (hits, reads) = read_all(&pool, &sim, &model);
    assert!(hits >= 60 && reads == 0, "{hits} hits, {reads} reads");
    assert_whole(&pool, "with copies");
}

#[test]
fn copies_outlive_an_export_and_a_crash_and_what_no_summary_tells_of_is_looked_for() {
    for is_cut in [false, true] {
        let sim = SimWorld::new(&[SIZE, SIZE]);
        let pool = cached(&sim);
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 200, 1));
        warm(&pool, &sim, &model);
        let stats = pool.store().read_cache.stats(Default::default()).unwrap();
        assert!(stats.blocks >= 200, "{stats:?}");
        if !is_cut {
            pool.commit_export().unwrap();
        }
        drop(pool);
        let pool = import(&sim, 2).unwrap();
        fill(&pool);
        let found = pool.store().read_cache.stats(Default::default()).unwrap();
        // Without an export no summary tells of what came into the last slots.
        let is_known = found.restoring == 0 && found.blocks >= stats.blocks;
        assert!(is_known, "{is_cut}: {} of {}", found.blocks, stats.blocks);
        let (hits, reads) = read_all(&pool, &sim, &model);
        assert!(hits >= 200, "{is_cut}: {hits} hits, {reads} reads");
        // The summaries tell of it from then on: others are filled, and nobody looks behind those.
        warm(&pool, &sim, &model);
        commit(&pool, &mut model, &files(1000, 20, 1));
        warm(&pool, &sim, &model);
        let before = pool.store().read_cache.stats(Default::default()).unwrap().blocks;
        drop(pool);
        let pool = import(&sim, 3).unwrap();
        fill(&pool);
        let found = pool.store().read_cache.stats(Default::default()).unwrap().blocks;
        assert!(found >= before, "{is_cut}: {found} of {before}");
    }
}

/// Blocks by how often they were read from their copies of late.
fn counts(pool: &Kept) -> [u64; 4] {
    pool.store().read_cache.counts()
}

#[test]
fn how_often_copies_were_read_outlives_an_export_and_a_crash_ten_minutes_later() {
    for (is_cut, minutes) in [(false, 0), (true, 11), (true, 1)] {
        let case = format!("cut: {is_cut}, after {minutes} minutes");
        let (sim, clock) = (SimWorld::new(&[SIZE, SIZE]), Arc::new(SimClock::new()));
        let pool = create_by(&clock, vec![Arc::new(sim.device(0)) as Arc<dyn Device>], "single");
        pool.upkeep.devices.add_cache(Arc::new(sim.device(1))).unwrap();
        fill(&pool);
        let mut model = Model::new();
        commit(&pool, &mut model, &large(10, 100));
        for part in [100, 100, 60, 60, 60] {
            pool.store().drop_caches();
            read_files(&pool, 10, part);
            fill(&pool);
        }
        let before = counts(&pool);
        assert!(before[3] > 40 && before[0] + before[1] > 30, "{before:?}");
        clock.advance(Duration::from_secs(60 * minutes));
        fill(&pool);
        if !is_cut {
            pool.commit_export().unwrap();
        }
        drop(pool);
        let pool = open_by(&clock, &sim, 2);
        fill(&pool);
        let after = counts(&pool);
        match minutes {
            0 => assert_eq!(after[1..], before[1..], "{case}"),
            11 => assert!(after[3] > before[3] / 2, "{case}: {before:?}, {after:?}"),
            _ => assert_eq!(after[1..], [0; 3], "{case}"),
        }
        assert!(contents(&pool).unwrap() == model, "{case}");
        assert_whole(&pool, &case);
    }
}

#[test]
fn what_makes_room_is_what_was_not_read_again_and_what_was_stays() {
    let sim = SimWorld::new(&[ByteLen::new(512 << 20), SIZE]);
    let pool = cached(&sim);
    let mut model = Model::new();
    // Four times the cache; the first hundred files are read between all others.
    for part in 0..20 {
        commit(&pool, &mut model, &large(10 + 100 * part, 100));
    }
    let mut hot = Model::new();
    hot.extend(model.iter().take(100).map(|(inode, file)| (*inode, *file)));
    let read = |from: u64, count: u64| {
        pool.store().drop_caches();
        read_files(&pool, from, count);
        fill(&pool);
    };
    for round in 0..3 {
        for part in 0..20 {
            read(10 + 100 * part, 100);
            read(10, 100);
        }
        let stats = pool.store().read_cache.stats(Default::default()).unwrap();
        assert!(stats.blocks > 300, "round {round}: {stats:?}");
    }
    let before = sim.device(0).counters().reads;
    let hits_before = hits(&pool);
    read(10, 100);
    let (hits, reads) = (hits(&pool) - hits_before, sim.device(0).counters().reads - before);
    assert!(hits >= 95 && reads <= 10, "{hits} hits, {reads} reads of device 0");
}

#[test]
fn a_device_with_copies_comes_and_goes_and_is_told_from_others() {
    let sim = SimWorld::new(&[SIZE, SIZE, SIZE]);
    let pool = cached(&sim);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    warm(&pool, &sim, &model);
    let second = pool.upkeep.devices.add_cache(Arc::new(sim.device(2))).unwrap();
    fill(&pool);
    assert_eq!(pool.store().members().caches().len(), 2);
    assert_eq!(pool.store().members().iter().count(), 1);
    let first = pool.store().members().caches()[0].index;
    pool.upkeep.reshape.remove(first).unwrap();
    let (hits, reads) = read_all(&pool, &sim, &model);
    assert!(hits == 0 && reads > 20, "{hits} hits, {reads} reads");
    warm(&pool, &sim, &model);
    assert!(read_all(&pool, &sim, &model).0 >= 60);
    pool.upkeep.reshape.remove(second).unwrap();
    assert!(pool.store().read_cache.stats(Default::default()).is_none());
    read_all(&pool, &sim, &model);
    drop(pool);
    let pool = import(&sim, 2).unwrap();
    assert!(pool.store().members().caches().is_empty());
    read_all(&pool, &sim, &model);
}

#[test]
fn datasets_say_what_is_copied_of_them() {
    let sim = SimWorld::new(&[SIZE, SIZE]);
    let pool = cached(&sim);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    pool.store().read_cache.set_secondary(ROOT_DATASET, Secondary::Nothing);
    read_all(&pool, &sim, &model);
    assert_eq!(read_all(&pool, &sim, &model).0, 0);
    let missed = pool.store().read_cache.stats(Default::default()).unwrap().policy.misses;
    assert!(missed >= 40, "of {missed} reads it is told that there were no copies");
    pool.store().read_cache.set_secondary(ROOT_DATASET, Secondary::Metadata);
    warm(&pool, &sim, &model);
    let (nodes, _) = read_all(&pool, &sim, &model);
    assert!((1..60).contains(&nodes), "{nodes}");
    pool.store().read_cache.set_secondary(ROOT_DATASET, Secondary::All);
    warm(&pool, &sim, &model);
    assert!(read_all(&pool, &sim, &model).0 >= 60);
}

#[test]
fn the_longest_records_are_copied_as_well() {
    let size = ByteLen::new(4 << 30);
    let sim = SimWorld::new(&[size, size]);
    let pool = cached(&sim);
    let mut model = Model::new();
    // Not compressed, as all whose number three divides.
    commit(&pool, &mut model, &(1..6).map(|i| (30 * i, 1, (1 << 20) - i as usize % 2)).collect::<Vec<_>>());
    warm(&pool, &sim, &model);
    let (hits, reads) = read_all(&pool, &sim, &model);
    assert!(hits >= 5 && reads == 0, "{hits} hits, {reads} reads");
}

#[test]
fn metadata_stays_while_data_comes_and_goes() {
    let sim = SimWorld::new(&[ByteLen::new(512 << 20), SIZE]);
    let pool = cached(&sim);
    let mut model = Model::new();
    for part in 0..20 {
        commit(&pool, &mut model, &large(10 + 100 * part, 100));
    }
    pool.store().read_cache.set_write_share(100.0);
    // The nodes once, and then four times as much data as there is room for, each of it twice in a row.
    for _ in 0..10 {
        pool.store().drop_caches();
        extents(&pool, 0, u64::MAX);
        fill(&pool);
    }
    let extents = extents(&pool, 0, u64::MAX);
    let before = pool.store().read_cache.stats(Default::default()).unwrap().policy.appended;
    for extent in &extents {
        for _ in 0..2 {
            pool.store().cache.forget(extent.ptr.id);
            pool.store().read(extent.ptr).unwrap();
        }
        fill(&pool);
    }
    let appended = pool.store().read_cache.stats(Default::default()).unwrap().policy.appended - before;
    assert!(appended > 1500, "{appended} records came");
    pool.store().drop_caches();
    let (hits_before, reads) = (hits(&pool), sim.device(0).counters().reads);
    assert_eq!(self::extents(&pool, 0, u64::MAX).len(), extents.len());
    let (hits, reads) = (hits(&pool) - hits_before, sim.device(0).counters().reads - reads);
    assert!(hits >= 3 && reads == 0, "{hits} hits, {reads} reads of device 0");
}

#[test]
fn what_is_read_ahead_comes_from_copies_and_what_they_lack_from_the_group() {
    let sim = SimWorld::new(&[ByteLen::new(512 << 20), SIZE]);
    let pool = cached(&sim);
    let mut model = Model::new();
    commit(&pool, &mut model, &large(10, 64));
    let ptrs: Vec<_> = extents(&pool, 0, u64::MAX).iter().map(|extent| extent.ptr).collect();
    let ahead = |from: usize, count: usize| {
        pool.store().drop_caches();
        let (hits_before, reads) = (hits(&pool), sim.device(0).counters().reads);
        pool.store().prefetch(&ptrs[from..from + count]);
        fill(&pool);
        let came_to = (hits(&pool) - hits_before, sim.device(0).counters().reads - reads);
        for (ptr, (inode, (version, len))) in ptrs.iter().zip(&model).skip(from).take(count) {
            let plain = pool.store().cache.record(ptr.id).expect("it was read ahead");
            assert!(plain[..] == content(*inode, *version, *len));
        }
        came_to
    };
    // Of half of them there are copies.
    pool.store().drop_caches();
    ptrs[..32].iter().for_each(|ptr| drop(pool.store().read(*ptr).unwrap()));
    fill(&pool);
    assert_eq!(ahead(0, 32), (32, 0));
    let (hits, reads) = ahead(16, 32);
    assert!(hits == 16 && (1..=16).contains(&reads), "{hits} hits, {reads} reads");
    // They rot, are lost, or do not come: the group has them.
    for (fault, most) in [(None, 63), (Some(Fault::FailReads(0..u64::MAX)), 0), (Some(Fault::Hang), 0)] {
        pool.store().drop_caches();
        ptrs.iter().for_each(|ptr| drop(pool.store().read(*ptr).unwrap()));
        fill(&pool);
        match fault {
            None => (1..62).for_each(|mib| {
                sim.device(1).flip_bits(larder_format::DeviceOffset::new(mib << 20), 1 << 20, mib);
            }),
            Some(fault) => sim.device(1).inject(fault),
        }
        let (hits, reads) = ahead(0, 64);
        assert!(hits <= most && reads > 0, "{hits} hits, {reads} reads");
        sim.device(1).clear_faults();
    }
}

#[test]
fn a_found_block_that_only_a_copy_has_is_not_referred_to() {
    let sim = SimWorld::new(&[SIZE, SIZE]);
    let pool = cached(&sim);
    pool.set_property(ROOT_DATASET, "dedup", "verify").unwrap();
    let mut model = Model::new();
    commit(&pool, &mut model, &large(30, 8));
    let ptrs: Vec<_> = extents(&pool, 0, u64::MAX).iter().map(|extent| extent.ptr).collect();
    pool.store().drop_caches();
    ptrs.iter().for_each(|ptr| drop(pool.store().read(*ptr).unwrap()));
    fill(&pool);
    for ptr in &ptrs {
        let lies = pool.store().whereabouts(ptr.id).unwrap().unwrap();
        sim.device(0).flip_bits(lies.copies[0].1, 4096, 3);
    }
    let there = pool.store().read_from_groups(&ptrs);
    assert!(there.is_empty(), "{} were taken for sound", there.len());
    pool.store().drop_caches();
    assert!(ptrs.iter().all(|ptr| pool.store().read(*ptr).is_ok()), "the copies are there");
}

#[test]
fn a_device_with_copies_that_hangs_refuses_or_goes_is_done_without() {
    let faults = [
        Fault::Hang,
        Fault::Gone,
        Fault::FailReads(0..u64::MAX),
        Fault::FailWrites(0..u64::MAX),
        Fault::Full,
        Fault::LoseWrites(0..u64::MAX),
        Fault::MisdirectWrites { from: 0..32 << 20, to: larder_format::DeviceOffset::new(40 << 20) },
    ];
    for fault in faults {
        let case = format!("{fault:?}");
        let sim = SimWorld::new(&[SIZE, SIZE]);
        let clock = Arc::new(SimClock::new());
        let device: Arc<dyn Device> = Arc::new(sim.device(0));
        let pool = create_by(&clock, vec![device], "single");
        pool.upkeep.devices.add_cache(Arc::new(sim.device(1))).unwrap();
        fill(&pool);
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 60, 1));
        read_all(&pool, &sim, &model);
        sim.device(1).inject(fault.clone());
        for round in 2..6 {
            assert!(contents(&pool).unwrap() == model, "{case}");
            fill(&pool);
            commit(&pool, &mut model, &files(10 + 7 * round, 30, round));
            clock.advance(Duration::from_secs(10));
        }
        assert_whole(&pool, &case);
        let is_used = pool.store().read_cache.stats(Default::default()).is_some();
        let is_dropped = matches!(fault, Fault::Hang | Fault::Gone | Fault::Full);
        assert!(!(is_used && is_dropped), "{case}: it is still asked");
        pool.commit_export().unwrap();
        drop(pool);
        sim.device(1).clear_faults();
        sim.device(1).resume();
        let pool = import(&sim, 2).unwrap();
        fill(&pool);
        read_all(&pool, &sim, &model);
        read_all(&pool, &sim, &model);
        assert_whole(&pool, &case);
    }
}

#[test]
fn an_import_without_the_device_with_copies_or_with_another_one_goes_on() {
    let size = ByteLen::new(2 << 30);
    let sim = SimWorld::new(&[SIZE, size]);
    let pool = cached(&sim);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    warm(&pool, &sim, &model);
    pool.commit_export().unwrap();
    drop(pool);
    let alone: Arc<dyn Device> = Arc::new(sim.device(0));
    let pool = import_from(vec![Arc::clone(&alone)], 2).unwrap();
    assert_eq!(pool.store().members().caches()[0].state(), MemberState::Missing);
    let index = pool.store().members().caches()[0].index;
    read_all(&pool, &sim, &model);
    // It comes back with its own slots, and what is in them.
    let device: Arc<dyn Device> = Arc::new(sim.device(1));
    let Scan::Member(found) = scan(&device) else { panic!("its label is not found") };
    pool.upkeep.devices.online(index, Some(*found)).unwrap();
    fill(&pool);
    let stats = pool.store().read_cache.stats(Default::default()).unwrap();
    assert!(stats.size > 1 << 30 && stats.blocks >= 60, "{stats:?}");
    let (hits, reads) = read_all(&pool, &sim, &model);
    assert!(hits >= 60, "{hits} hits, {reads} reads");
    pool.commit_export().unwrap();
    drop(pool);
    // Of two copies of the device either will do.
    let twin = SimWorld::from_images(vec![sim.device(1).image()]);
    let pool = import_from(vec![alone, device, Arc::new(twin.device(0))], 3).unwrap();
    fill(&pool);
    assert!(read_all(&pool, &sim, &model).0 >= 60);
}

#[test]
fn copies_count_for_nothing_where_it_is_asked_what_there_is() {
    (0..3).for_each(|seed| assert_eq!(seeds::counted(seed), Ok(1)));
}

#[test]
fn nothing_is_lost_with_copies_and_nothing_wrong_is_believed_of_them() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let first = number("LARDER_SEED").unwrap_or(0);
    for seed in first..first + number("LARDER_COPIES").unwrap_or(14) {
        seeds::run(seed).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Files of 128 KiB that no codec shrinks.
fn large(from: u64, count: u64) -> Vec<(u64, u64, usize)> {
    (from..from + count).map(|i| (i, 1, 128 << 10)).collect()
}

/// The extents of some files.
fn extents(pool: &Kept, from: u64, count: u64) -> Vec<Extent> {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let view = dataset.view().unwrap();
    let mut extents = Vec::new();
    view.scan(&Key::MIN, &mut |key, value| {
        if (from..from.saturating_add(count)).contains(&key.object) {
            extents.push(Extent::decode(value).unwrap());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    extents
}

/// Reads some files.
fn read_files(pool: &Kept, from: u64, count: u64) {
    let extents = extents(pool, from, count);
    assert_eq!(extents.len() as u64, count);
    extents.iter().for_each(|extent| drop(pool.store().read(extent.ptr).unwrap()));
}
