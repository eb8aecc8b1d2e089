//! Halves and copies that were written apart, or only stayed away: which are told apart, however long ago that was.

mod common;

use common::*;
use larder_format::label::LABEL_AREA;
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::member::MemberState;
use larder_pool::open::{Scan, Standing, scan};
use larder_pool::{ImportOptions, ROOT_DATASET, Refusal};
use larder_sim::{DeviceImage, Fault, SimWorld, Survival};
use larder_upkeep::ScrubSince;
use std::sync::Arc;

/// A pool's only device after so many imports, each with a commit of its own.
fn imported(mut half: DeviceImage, times: u64, model: &mut Model) -> DeviceImage {
    for import in 0..times {
        let one = SimWorld::from_images(vec![half]);
        let pool = open(&one, 100 + import);
        commit(&pool, model, &files(30, 2, import));
        drop(pool);
        half = one.images().remove(0);
    }
    half
}

fn leases(devices: Vec<Arc<dyn larder_device::Device>>) -> [u64; 2] {
    let root = plan(devices).root;
    [root.block_lease.get(), root.segment_lease.get()]
}

#[test]
fn an_old_copy_that_was_there_meanwhile_makes_the_real_device_no_branch() {
    for (times, is_online) in [(1, false), (1, true), (40, false), (40, true)] {
        let sim = SimWorld::new(&[SIZE; 2]);
        let pool = create(&sim, "mirror");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 5, 1));
        let copy = sim.images().remove(1);
        (2..20).for_each(|version| commit(&pool, &mut model, &files(10, 5, version)));
        drop(pool);
        let real = sim.images().remove(1);
        // The pool is imported with the copy, which is used or not.
        let beside = SimWorld::from_images(vec![sim.images().remove(0), copy]);
        let pool = open(&beside, 2);
        if is_online {
            pool.upkeep.devices.online(DeviceIndex::new(1), None).unwrap();
        }
        commit(&pool, &mut model, &files(20, 5, 1));
        drop(pool);
        let half = imported(beside.images().remove(0), times, &mut model);
        let both = SimWorld::from_images(vec![half, real]);
        let plan = plan(both.devices());
        assert_eq!(plan.refusal, None, "{times} imports, {is_online}");
        assert!(matches!(plan.devices[1].standing, Standing::Stale(_)));
        let pool = Kept::import(world(999), plan, &ImportOptions::default()).unwrap();
        pool.upkeep.devices.online(DeviceIndex::new(1), None).unwrap();
        while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
        verify(&pool, &model);
        assert_whole(&pool, "the real one is back");
        drop(pool);
        let second = SimWorld::from_images(vec![both.images().remove(1)]);
        verify(&open(&second, 1000), &model);
    }
}

#[test]
fn what_an_import_went_on_to_write_on_one_half_stays_apart_however_often_the_other_was_imported() {
    for times in [1, 40] {
        let sim = SimWorld::new(&[SIZE; 2]);
        let pool = create(&sim, "mirror");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 5, 1));
        let half = sim.images().remove(0);
        sim.device(0).inject(Fault::FailWrites(0..u64::MAX));
        (2..6).for_each(|version| commit(&pool, &mut Model::new(), &files(10, 5, version)));
        drop(pool);
        let half = imported(half, times, &mut model);
        let both = SimWorld::from_images(vec![half, sim.images().remove(1)]);
        assert_refused(&both, &["written apart"]);
    }
}

#[test]
fn halves_of_a_mirror_that_were_written_apart_are_refused() {
    // Each half goes its own way, one of them further than the other, or not.
    for (left, right) in [(1, 1), (1, 4), (4, 1)] {
        let (sim, _) = written("mirror", 2);
        for (half, commits) in [(0, left), (1, right)] {
            let pool = import_from(vec![sim.devices()[half].clone()], 20 + half as u64).unwrap();
            for version in 0..commits {
                commit(&pool, &mut Model::new(), &[(10, 100 + version, 5_000)]);
            }
        }
        assert_refused(&sim, &["written apart", "histories"]);
        // Each of them alone is still a pool.
        for half in 0..2 {
            import_from(vec![sim.devices()[half].clone()], 30).unwrap();
        }
    }
}

#[test]
fn an_import_that_was_cut_short_on_one_device_is_no_branch() {
    let (sim, mut model) = written("mirror", 2);
    // The first import reaches device 0 only, and power fails before anything is written.
    drop(import_from(vec![sim.devices()[0].clone()], 20).unwrap());
    let pool = import_from(vec![sim.devices()[1].clone()], 21).unwrap();
    commit(&pool, &mut model, &[(10, 100, 5_000)]);
    drop(pool);
    let plan = plan(sim.devices());
    assert_eq!(plan.refusal, None);
    assert!(matches!(plan.devices[0].standing, Standing::Stale(_)));
    verify(&Kept::import(world(22), plan, &ImportOptions::default()).unwrap(), &model);
}

#[test]
fn an_fsync_that_a_copy_missed_is_told_by_a_root_so_that_the_copy_never_wins() {
    for fault in [Fault::FailWrites(0..u64::MAX), Fault::FailFlushes] {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20); 2]);
        let pool = create(&sim, "mirror");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 5, 1));
        let before = pool.store().durable_commit();
        sync(&pool, &mut model, &files(10, 5, 2));
        assert_eq!(pool.store().durable_commit(), before, "the log does as long as all have it");
        sim.device(1).inject(fault.clone());
        sync(&pool, &mut model, &files(10, 5, 3));
        assert!(pool.store().durable_commit() > before, "{fault:?}");
        let told = pool.store().durable_commit();
        sync(&pool, &mut model, &files(10, 5, 4));
        assert_eq!(pool.store().durable_commit(), told, "one root is enough");
        drop(pool);

        let trace = sim.trace();
        let mut sweep = trace.sweep();
        sweep.advance_to(trace.len());
        let images = sweep.images(larder_sim::Survival::DropAll);
        // The one that missed it is brought to life alone, and written.
        let other = SimWorld::from_images(vec![images[1].clone()]);
        let alone = open(&other, 2);
        replay(&alone);
        commit(&alone, &mut Model::new(), &files(20, 5, 1));
        drop(alone);
        let apart = SimWorld::from_images(vec![images[0].clone(), other.images()[0].clone()]);
        let refused = plan(apart.devices()).refusal;
        assert!(matches!(refused, Some(Refusal::WrittenApart { .. })), "{fault:?}: {refused:?}");

        let together = open(&SimWorld::from_images(images), 3);
        replay(&together);
        verify(&together, &model);
    }
}

#[test]
fn halves_that_were_written_apart_are_refused_however_often_one_was_imported() {
    for written in [false, true] {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20); 2]);
        let pool = create(&sim, "mirror");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 5, 1));
        drop(pool);
        let mut halves = sim.images();
        if written {
            let other = SimWorld::from_images(vec![halves[1].clone()]);
            let pool = open(&other, 2);
            commit(&pool, &mut Model::new(), &files(20, 5, 1));
            drop(pool);
            halves[1] = other.images().remove(0);
        }
        halves[0] = imported(halves[0].clone(), 40, &mut model);
        let both = SimWorld::from_images(halves);
        if written {
            assert_refused(&both, &["written apart"]);
            continue;
        }
        let pool = open(&both, 999);
        while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
        verify(&pool, &model);
        assert_whole(&pool, "one half was away for long");
    }
}

#[test]
fn an_old_copy_that_was_written_apart_is_refused_however_often_the_pool_was_imported() {
    for written in [false, true] {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20); 2]);
        let pool = create(&sim, "mirror");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 5, 1));
        let old = sim.images().remove(1);
        for version in 2..20 {
            commit(&pool, &mut model, &files(10, 5, version));
        }
        drop(pool);
        let mut halves = sim.images();
        if written {
            // It stays behind what the pool knows that this device held.
            let other = SimWorld::from_images(vec![old]);
            let pool = open(&other, 2);
            commit(&pool, &mut Model::new(), &files(20, 5, 1));
            drop(pool);
            halves[1] = other.images().remove(0);
        }
        halves[0] = imported(halves[0].clone(), 40, &mut model);
        let both = SimWorld::from_images(halves);
        if written {
            assert_refused(&both, &["written apart"]);
        } else {
            verify(&open(&both, 999), &model);
        }
    }
}

#[test]
fn a_device_that_the_first_root_of_an_import_did_not_reach_is_no_branch_however_long_it_is_away() {
    let (sim, mut model) = written("mirror", 2);
    let away = sim.images().remove(1);
    // Power fails when the import's first root is on one device, which says that the other has it too.
    drop(open(&sim, 2));
    let half = imported(sim.images().remove(0), 40, &mut model);
    let both = SimWorld::from_images(vec![half, away]);
    let plan = plan(both.devices());
    assert_eq!(plan.refusal, None);
    assert!(matches!(plan.devices[1].standing, Standing::Stale(_)));
    verify(&open(&both, 999), &model);
}

#[test]
fn halves_that_are_written_apart_give_no_id_twice() {
    for (seed, exported) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let sim = SimWorld::new(&[SIZE; 2]);
        let pool = create(&sim, "mirror");
        commit(&pool, &mut Model::new(), &[(10, 1, 50_000)]);
        if exported {
            pool.commit_export().unwrap();
        }
        drop(pool);
        let given = [0, 1].map(|half| {
            let devices = || sim.devices()[half..][..1].to_vec();
            let pool = import_from(devices(), 100 + 2 * seed + half as u64).unwrap();
            let first = leases(devices());
            (2..5).for_each(|version| commit(&pool, &mut Model::new(), &files(20, 9, version)));
            let end = leases(devices());
            [0, 1].map(|kind| first[kind]..end[kind])
        });
        // Segments: few are opened, but the next one of each half is another, too.
        for (a, b) in given[0].iter().zip(&given[1]) {
            assert!(a.end < b.start || b.end < a.start, "{a:?} and {b:?} meet, seed {seed}");
        }
    }
}

#[test]
fn what_an_import_wrote_apart_before_its_first_commit_does_not_pass_for_the_pools() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 8, 1));
    let before = sim.trace().len();
    commit(&pool, &mut model, &files(30, 20, 2));
    drop(pool);
    // The last commit's stripes reach both devices, its root the first one only.
    let trace = sim.trace();
    let (left, right) = (trace.crash_images(trace.len(), Survival::KeepAll).remove(0), {
        let is_root = |event: &larder_sim::Event| matches!(event, larder_sim::Event::Write { device: 1, offset, .. } if offset.get() < LABEL_AREA);
        let root = (before..trace.len()).rev().find(|at| is_root(&trace.events()[*at])).expect("a root");
        let first = (before..=root).find(|at| is_root(&trace.events()[*at])).expect("a root");
        trace.crash_images(first, Survival::KeepAll).remove(1)
    });
    // Somebody imports that one alone, and stores much without a commit.
    let alone = SimWorld::from_images(vec![right]);
    let pool = open(&alone, 50);
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    put(&pool, &dataset, &files(100, 60, 3));
    pool.store().members().flush_all();
    drop(pool);
    for swapped in [false, true] {
        let mut images = vec![left.clone(), alone.images().remove(0)];
        if swapped {
            images.swap(0, 1);
        }
        // Which of the two newest roots is found first decides nothing.
        let both = SimWorld::from_images(images);
        let plan = plan(both.devices());
        assert_eq!(plan.refusal, None);
        let standing = plan.devices[1].standing.clone();
        assert!(matches!(standing, Standing::Stale(_)), "{standing:?}");
        let pool = Kept::import(world(51), plan, &ImportOptions::default()).unwrap();
        // Taken back, it gets what it lacks, and holds all without the other.
        let index = DeviceIndex::new(1);
        let Scan::Member(found) = scan(&both.devices()[if swapped { 0 } else { 1 }]) else {
            panic!("a member")
        };
        if !pool.store().members().get(index).is_written() {
            pool.upkeep.devices.online(index, Some(*found)).unwrap();
        }
        while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
        verify(&pool, &model);
        drop(pool);
        let second = both.images().remove(if swapped { 0 } else { 1 });
        verify(&open(&SimWorld::from_images(vec![second]), 52), &model);
    }
}

#[test]
fn a_device_whose_loss_was_accepted_and_that_failed_at_once_is_no_branch_however_long_it_is_away() {
    for is_imported in [false, true] {
        let sim = SimWorld::new(&[SIZE; 2]);
        let pool = create(&sim, "mirror");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 60, 1));
        pool.upkeep.devices.offline(DeviceIndex::new(1), false).unwrap();
        sim.device(0).inject(Fault::FailReads(2 << 20..3 << 20));
        let new = pool.upkeep.devices.replace(DeviceIndex::new(0), Arc::new(sim.add_device(SIZE))).unwrap();
        while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
        assert_eq!(pool.store().members().get(new).state(), MemberState::Waiting);
        sim.device(0).clear_faults();
        pool.upkeep.devices.online(DeviceIndex::new(1), None).unwrap();
        while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
        drop(pool);
        if is_imported {
            drop(open(&sim, 2));
        }
        // The old one is gone, and so is the new one at its first flush.
        let mut plan = plan(sim.devices().split_off(1));
        plan.accept_loss();
        sim.device(2).inject(Fault::FailFlushes);
        let pool = Kept::import(world(3), plan, &ImportOptions::default()).unwrap();
        assert_eq!(pool.store().members().get(DeviceIndex::new(0)).state(), MemberState::Faulted);
        commit(&pool, &mut model, &files(20, 5, 2));
        drop(pool);
        let half = imported(sim.images().remove(1), 40, &mut model);
        let both = SimWorld::from_images(vec![half, sim.images().remove(2)]);
        assert_eq!(common::plan(both.devices()).refusal, None, "imported: {is_imported}");
        let pool = open(&both, 999);
        pool.upkeep.devices.online(DeviceIndex::new(0), None).unwrap();
        while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
        // Data that it could not be given then is on its replica.
        pool.upkeep.scrub.start(ScrubSince::All).unwrap();
        while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
        verify(&pool, &model);
        assert_whole(&pool, "it is back");
    }
}
