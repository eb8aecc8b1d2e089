//! Devices that come back, are replaced, or whose place a spare takes: what is on them afterwards.

mod takes_place;
mod waiting;

use crate::common::*;
use larder_device::{AlignedBuf, Device, Request, TIMEOUT};
use larder_format::label::LABEL_AREA;
use larder_format::{ByteLen, DeviceIndex, DeviceOffset};
use larder_pool::create::rule_for;
use larder_pool::member::MemberState;
use larder_pool::open::{Scan, scan};
use larder_pool::{Pool, PoolError, ROOT_DATASET};
use larder_sim::{DeviceImage, Fault, SimWorld, Survival};
use larder_upkeep::ScrubSince;
use std::sync::Arc;

/// Layouts that survive the loss of a device.
const REDUNDANT: [(&str, usize); 7] =
    [("mirror", 2), ("mirror", 3), ("raidz1", 3), ("raidz2", 6), ("raidz3", 7), ("raid10", 4), ("raid14", 5)];

const SIZE: ByteLen = ByteLen::new(64 << 20);

fn device(index: usize) -> DeviceIndex {
    DeviceIndex::new(index as u16)
}

/// Steps until all devices are rebuilt.
fn resilver(pool: &Kept) {
    let mut steps = 0;
    while pool.upkeep.resilver.step(256 << 10).unwrap() {
        steps += 1;
        assert!(steps < 10_000, "it does not end");
    }
    assert!(pool.upkeep.resilver.progress().is_none());
    assert!(pool.store().members().iter().all(|member| member.state() == MemberState::Online));
}

/// Whatever else the layout can lose is lost: everything is still there.
fn assert_full_tolerance(images: &[DeviceImage], word: &str, model: &Model, case: &str) {
    let layout = rule_for(word, images.len()).unwrap().layout;
    for first in 0..images.len() {
        for second in (first..images.len()).step_by(if full() { 1 } else { 2 }) {
            let lost = [first, second];
            if !layout.survives(|column| lost.contains(&column)) {
                continue;
            }
            let sim = SimWorld::from_images(images.to_vec());
            let devices = sim.devices().into_iter().enumerate();
            let left: Vec<_> = devices.filter(|(i, _)| !lost.contains(i)).map(|(_, device)| device).collect();
            let pool =
                import_from(left, 99).unwrap_or_else(|error| panic!("{case}, without {lost:?}: {error}"));
            replay(&pool);
            verify(&pool, model);
        }
    }
}

fn full() -> bool {
    std::env::var_os("LARDER_FULL").is_some()
}

/// The devices that make the pool now, in the order of their places.
fn images_of(pool: &Pool, sim: &SimWorld) -> Vec<DeviceImage> {
    let images = sim.images();
    pool.store()
        .members()
        .iter()
        .map(|member| images[member.name()[3..].parse::<usize>().unwrap()].clone())
        .collect()
}

#[test]
fn a_device_that_was_away_gets_what_it_missed_and_counts_again() {
    for (word, count) in REDUNDANT {
        for away in if full() { vec![0, count - 1] } else { vec![1] } {
            let case = format!("{word} of {count}, device {away}");
            let sim = SimWorld::new(&vec![SIZE; count]);
            let pool = create(&sim, word);
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 20, 1));
            pool.upkeep.devices.offline(device(away), false).unwrap();
            let before = sim.device(away).counters().bytes_written;
            commit(&pool, &mut model, &files(15, 4, 2));
            sync(&pool, &mut model, &files(17, 4, 3));
            commit(&pool, &mut model, &files(40, 2, 3));
            assert_eq!(sim.device(away).counters().bytes_written, before, "{case}: written while offline");
            pool.upkeep.devices.online(device(away), None).unwrap();
            // Writes from now on need no resilver.
            commit(&pool, &mut model, &files(50, 2, 4));
            resilver(&pool);
            commit(&pool, &mut model, &files(10, 2, 5));
            assert_whole(&pool, &case);
            assert_full_tolerance(&images_of(&pool, &sim), word, &model, &case);
        }
    }
}

#[test]
fn only_what_was_missed_is_written() {
    let sim = SimWorld::new(&[SIZE; 6]);
    let pool = create(&sim, "raidz2");
    let mut model = Model::new();
    for i in 0..60 {
        commit(&pool, &mut model, &files(100 + i * 30, 30, 1));
    }
    pool.upkeep.devices.offline(device(2), false).unwrap();
    commit(&pool, &mut model, &files(5000, 10, 1));
    pool.upkeep.devices.online(device(2), None).unwrap();
    sim.device(2).reset_counters();
    resilver(&pool);
    let written = sim.device(2).counters().bytes_written;
    let held: u64 = model.values().map(|&(_, len)| len as u64).sum::<u64>() / 4;
    assert!(written < held / 4, "{written} bytes written, the device holds about {held}");
    assert!(sim.device(2).counters().reads == 0, "the device that lacks stripes is not read");
    assert_full_tolerance(&images_of(&pool, &sim), "raidz2", &model, "raidz2");
}

#[test]
fn a_new_device_takes_the_place_of_one_that_is_gone_or_still_there() {
    for (word, count) in REDUNDANT {
        for gone in [true, false] {
            let case = format!("{word} of {count}, gone: {gone}");
            let sim = SimWorld::new(&vec![SIZE; count]);
            let pool = create(&sim, word);
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 20, 1));
            if gone {
                sim.device(1).inject(Fault::Gone);
                commit(&pool, &mut model, &files(12, 3, 2));
                assert_eq!(pool.store().members().get(device(1)).state(), MemberState::Faulted);
            }
            let new = sim.add_device(SIZE);
            let index = pool.upkeep.devices.replace(device(1), Arc::new(new)).unwrap();
            assert!(
                pool.upkeep.devices.replace(device(1), Arc::new(sim.add_device(SIZE))).is_err(),
                "{case}: twice"
            );
            commit(&pool, &mut model, &files(40, 6, 2));
            sync(&pool, &mut model, &files(42, 2, 3));
            assert_eq!(pool.upkeep.resilver.progress().unwrap().devices, [index]);
            resilver(&pool);
            commit(&pool, &mut model, &files(11, 2, 4));
            assert_whole(&pool, &case);
            let names: Vec<_> = pool.store().members().iter().map(|member| member.name()).collect();
            assert_eq!(names[1], format!("sim{count}"), "{case}");
            assert_eq!(names.len(), count, "{case}");
            if !gone {
                let left: Arc<dyn Device> = Arc::new(sim.device(1));
                assert!(
                    matches!(scan(&left), Scan::NotOurs),
                    "{case}: the old device is free for other uses"
                );
            }
            assert_full_tolerance(&images_of(&pool, &sim), word, &model, &case);
        }
    }
}

#[test]
fn rebuilding_goes_on_after_a_power_cut_at_any_time() {
    let sim = SimWorld::new(&[SIZE; 5]);
    let pool = create(&sim, "raidz2");
    let mut model = Model::new();
    for i in 0..6 {
        commit(&pool, &mut model, &files(100 + i * 20, 20, 1));
    }
    let start = sim.trace().len();
    pool.upkeep.devices.replace(device(3), Arc::new(sim.add_device(SIZE))).unwrap();
    while pool.upkeep.resilver.step(64 << 10).unwrap() {}
    pool.commit().unwrap();
    drop(pool);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    let step = ((trace.len() - start) / repeats(25, 400) as usize).max(1);
    for cut in (start..=trace.len()).step_by(step) {
        sweep.advance_to(cut);
        let after = SimWorld::from_images(sweep.images(Survival::Random { seed: cut as u64 }));
        let case = format!("cut at {cut} of {}", trace.len());
        let pool = import(&after, 7).unwrap_or_else(|error| panic!("{case}: {error}"));
        replay(&pool);
        verify(&pool, &model);
        if pool.store().members().iter().len() > 5 || pool.upkeep.resilver.progress().is_some() {
            resilver(&pool);
        }
        pool.commit().unwrap();
        assert_eq!(pool.store().members().iter().len(), 5, "{case}");
        assert_whole(&pool, &case);
        assert_full_tolerance(&images_of(&pool, &after), "raidz2", &model, &case);
    }
}

#[test]
fn the_commit_that_completes_a_resilver_holds_what_came_of_it() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    commit(&pool, &mut Model::new(), &files(10, 20, 1));
    pool.upkeep.devices.replace(device(1), Arc::new(sim.add_device(SIZE))).unwrap();
    let start = sim.trace().len();
    while pool.upkeep.resilver.step(1 << 20).unwrap() {}
    let told = pool.upkeep.resilver.result().unwrap();
    assert!(told.complete && told.written > 0 && told.lost == 0, "{told:?}");
    drop(pool);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    let mut before = 0;
    for cut in start..=trace.len() {
        sweep.advance_to(cut);
        let after = SimWorld::from_images(sweep.images(Survival::Random { seed: cut as u64 }));
        let pool = import(&after, 7).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        match pool.upkeep.resilver.progress() {
            Some(_) => before += 1,
            None => assert_eq!(pool.upkeep.resilver.result(), Some(told), "cut at {cut} of {}", trace.len()),
        }
    }
    assert!((1..trace.len() - start).contains(&before), "{before} cuts before that commit");
}

#[test]
fn the_place_of_a_resilver_is_kept_over_an_import() {
    let sim = SimWorld::new(&[SIZE; 4]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    for i in 0..40 {
        commit(&pool, &mut model, &files(100 + i * 40, 40, 1));
    }
    pool.upkeep.devices.replace(device(0), Arc::new(sim.add_device(SIZE))).unwrap();
    let total = pool.upkeep.resilver.progress().unwrap().total;
    while pool.upkeep.resilver.progress().unwrap().examined < total / 2 {
        assert!(pool.upkeep.resilver.step(1 << 20).unwrap());
    }
    pool.commit_export().unwrap();
    drop(pool);
    let pool = open(&sim, 5);
    let at = pool.upkeep.resilver.progress().unwrap();
    assert!(at.examined >= total / 3, "{at:?} of {total}");
    sim.device(4).reset_counters();
    resilver(&pool);
    assert!(sim.device(4).counters().bytes_written < total * 3 / 4);
    assert_whole(&pool, "after the rest");
    assert_full_tolerance(&images_of(&pool, &sim), "raidz1", &model, "after the rest");
}

#[test]
fn a_spare_takes_the_place_of_a_device_that_fails() {
    let sim = SimWorld::new(&[SIZE; 4]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 20, 1));
    let spare = pool.upkeep.devices.add_spare(Arc::new(sim.add_device(SIZE))).unwrap();
    pool.upkeep.devices.add_spare(Arc::new(sim.add_device(SIZE))).unwrap();
    assert!(pool.upkeep.devices.offline(spare, false).is_err());
    pool.commit_export().unwrap();
    drop(pool);
    let pool = open(&sim, 6);
    assert_eq!(pool.store().members().spares().len(), 2, "spares are known after an import");
    pool.upkeep.devices.take_spares().unwrap();
    assert!(pool.upkeep.resilver.progress().is_none(), "nothing failed");
    sim.device(2).inject(Fault::FailWrites(0..u64::MAX));
    commit(&pool, &mut model, &files(12, 5, 2));
    pool.upkeep.devices.take_spares().unwrap();
    assert_eq!(pool.store().members().spares().len(), 1);
    resilver(&pool);
    assert_whole(&pool, "with the spare");
    assert_eq!(pool.store().members().get(device(2)).name(), "sim4");
    assert_full_tolerance(&images_of(&pool, &sim), "raidz1", &model, "with the spare");
    let other = pool.store().members().spares()[0].index;
    pool.upkeep.reshape.remove(other).unwrap();
    assert!(pool.store().members().spares().is_empty());
}

#[test]
fn a_dead_spare_is_told_about_and_the_next_one_steps_in() {
    for dead in [Fault::Gone, Fault::Hang, Fault::FailWrites(0..u64::MAX), Fault::FailFlushes] {
        let sim = SimWorld::new(&[SIZE; 3]);
        let pool = create(&sim, "raidz1");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 20, 1));
        let spares = [0, 1].map(|_| pool.upkeep.devices.add_spare(Arc::new(sim.add_device(SIZE))).unwrap());
        sim.device(3).inject(dead.clone());
        sim.device(2).inject(Fault::FailWrites(0..u64::MAX));
        commit(&pool, &mut model, &files(12, 5, 2));
        // Whatever is told of the first, the second is there.
        let _ = pool.upkeep.devices.take_spares();
        let left = pool.store().members().spares();
        assert_eq!(left.iter().map(|spare| spare.index).collect::<Vec<_>>(), spares[..1], "{dead:?}");
        assert_eq!(left[0].state(), MemberState::Faulted, "{dead:?}");
        assert!(left[0].reason().is_some(), "{dead:?}");
        resilver(&pool);
        assert_eq!(pool.store().members().get(device(2)).name(), "sim4", "{dead:?}");
        assert_whole(&pool, "with the second spare");
        pool.upkeep.devices.take_spares().unwrap();
    }
}

#[test]
fn spares_are_looked_at_while_nobody_needs_them_and_come_back_when_errors_are_cleared() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    for _ in 0..3 {
        pool.upkeep.devices.add_spare(Arc::new(sim.add_device(SIZE))).unwrap();
    }
    let states = || pool.store().members().spares().iter().map(|spare| spare.state()).collect::<Vec<_>>();
    pool.upkeep.devices.probe_spares();
    assert_eq!(states(), [MemberState::Online; 3]);
    sim.device(2).inject(Fault::FailReads(0..u64::MAX));
    // Somebody took it for something else.
    let other = Arc::new(AlignedBuf::zeroed(LABEL_AREA as usize));
    for at in [0, SIZE.get() - LABEL_AREA] {
        let write = Request::Write { offset: DeviceOffset::new(at), data: Arc::clone(&other) };
        sim.device(4).submit(write).within(TIMEOUT).unwrap();
    }
    pool.upkeep.devices.probe_spares();
    assert_eq!(states(), [MemberState::Faulted, MemberState::Online, MemberState::Faulted]);
    sim.device(2).clear_faults();
    pool.upkeep.devices.clear(None).unwrap();
    pool.upkeep.devices.probe_spares();
    assert_eq!(states(), [MemberState::Online, MemberState::Online, MemberState::Faulted]);
    let foreign = sim.device(4).image();
    sim.device(1).inject(Fault::FailWrites(0..u64::MAX));
    pool.commit().unwrap();
    let _ = pool.upkeep.devices.take_spares();
    assert!(sim.device(4).image() == foreign, "what is not a spare any more is not overwritten");
}

#[test]
fn a_device_that_fails_while_it_is_rebuilt_is_faulted_and_can_begin_anew() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    pool.upkeep.devices.offline(device(1), false).unwrap();
    commit(&pool, &mut model, &files(10, 60, 2));
    pool.upkeep.devices.online(device(1), None).unwrap();
    assert!(pool.upkeep.resilver.step(64 << 10).unwrap());
    sim.device(1).inject_window(Fault::FailWrites(0..u64::MAX), 3, u64::MAX);
    while pool.upkeep.resilver.step(64 << 10).unwrap() {}
    assert_eq!(pool.store().members().get(device(1)).state(), MemberState::Faulted);
    sim.device(1).clear_faults();
    commit(&pool, &mut model, &files(10, 5, 3));
    pool.upkeep.devices.clear(Some(device(1))).unwrap();
    resilver(&pool);
    assert_whole(&pool, "anew");
    assert_full_tolerance(&images_of(&pool, &sim), "mirror", &model, "anew");
}

#[test]
fn a_device_whose_flush_failed_is_used_again_with_all_that_it_lost_and_one_that_fails_again_is_told() {
    for (word, count) in [("mirror", 2), ("raidz1", 3)] {
        for again in [false, true] {
            let case = format!("{word}, fails again: {again}");
            let sim = SimWorld::new(&vec![SIZE; count]);
            let pool = create(&sim, word);
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 20, 1));
            sim.device(1).inject_window(Fault::FailFlushes, 0, 1);
            commit(&pool, &mut model, &files(10, 20, 2));
            let second = || pool.store().members().get(device(1));
            assert_eq!(second().state(), MemberState::Faulted, "{case}");
            if again {
                sim.device(1).inject(Fault::FailFlushes);
                for outcome in [pool.upkeep.devices.clear(None), pool.upkeep.devices.online(device(1), None)]
                {
                    let told = outcome.unwrap_err().to_string();
                    assert!(told.starts_with("sim1 failed again: a write or flush failed"), "{case}: {told}");
                }
                sim.device(1).clear_faults();
            }
            pool.upkeep.devices.clear(None).unwrap_or_else(|error| panic!("{case}: {error}"));
            resilver(&pool);
            assert_eq!(second().state(), MemberState::Online, "{case}");
            commit(&pool, &mut model, &files(10, 20, 3));
            assert_whole(&pool, &case);
            drop(pool);
            // By what is on stable storage: what the failed flush lost is there.
            let trace = sim.trace();
            let images = trace.crash_images(trace.len(), Survival::DropAll);
            assert_full_tolerance(&images, word, &model, &case);
        }
    }
}

#[test]
fn a_repair_that_a_failed_flush_lost_is_made_again_when_the_device_is_back() {
    let mut repaired = 0;
    // By a scrub, which commits on its way, and by the repair of what reads found, which does not.
    for (scrubs, flushes) in (0..12).map(|flushes| (true, flushes)).chain([(false, 0)]) {
        let case = format!("scrubs: {scrubs}, {flushes} flushes to spare");
        let sim = SimWorld::new(&[SIZE; 2]);
        let pool = create(&sim, "mirror");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 20, 1));
        for page in 256..2048u64 {
            sim.device(1).flip_bits(DeviceOffset::new(page * 4096), 4096, page);
        }
        pool.store().drop_caches();
        sim.device(1).inject_window(Fault::FailFlushes, flushes, 1);
        if scrubs {
            pool.upkeep.scrub.start(ScrubSince::All).unwrap();
            while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
            repaired += u64::from(pool.upkeep.scrub.result().unwrap().repaired > 0);
        } else {
            let segments = pool.store().segments();
            segments.iter().for_each(|segment| pool.store().suspects.note_segment(segment.id));
            (0..100).for_each(|_| assert!(pool.upkeep.read_repair.step().is_ok()));
        }
        let second = || pool.store().members().get(device(1)).state();
        let fails_early = second() != MemberState::Online;
        let mut version = 1;
        while second() == MemberState::Online {
            commit(&pool, &mut model, &files(40, 3, version));
            version += 1;
        }
        assert_eq!(second(), MemberState::Faulted, "{case}");
        pool.upkeep.devices.clear(None).unwrap();
        resilver(&pool);
        (0..100).for_each(|_| assert!(pool.upkeep.read_repair.step().is_ok()));
        if fails_early {
            // The rest was gone through without that device.
            let started = pool.upkeep.scrub.result().unwrap().started;
            pool.upkeep.scrub.start(ScrubSince::Before(started.secs)).unwrap();
            while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
        }
        pool.commit().unwrap();
        assert_whole(&pool, &case);
        assert!(pool.store().members().get(device(1)).doubtful().is_empty(), "{case}: they were looked at");
        let trace = sim.trace();
        let images = trace.crash_images(trace.len(), Survival::DropAll);
        assert_full_tolerance(&images, "mirror", &model, &case);
    }
    assert!(repaired > 5, "{repaired}");
}

#[test]
fn replacing_ends_early_when_the_new_device_is_detached() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 20, 1));
    let index = pool.upkeep.devices.replace(device(1), Arc::new(sim.add_device(SIZE))).unwrap();
    assert!(pool.upkeep.resilver.step(64 << 10).unwrap());
    assert!(matches!(pool.upkeep.reshape.detach(device(1)), Err(PoolError::Refused(_))));
    pool.upkeep.reshape.detach(index).unwrap();
    assert!(!pool.upkeep.resilver.step(64 << 10).unwrap());
    commit(&pool, &mut model, &files(12, 3, 2));
    assert_eq!(pool.store().members().iter().len(), 3);
    let left: Arc<dyn Device> = Arc::new(sim.device(3));
    assert!(matches!(scan(&left), Scan::NotOurs));
    assert_whole(&pool, "detached");
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 20, 1));
    let invalid = |error: PoolError, text: &str| {
        assert!(matches!(&error, PoolError::Refused(why) if why.to_string().contains(text)), "{error}");
    };
    let small = Arc::new(sim.add_device(ByteLen::new((64 << 20) - (2 << 20))));
    invalid(pool.upkeep.devices.replace(device(1), small).unwrap_err(), "too small");
    pool.upkeep.devices.offline(device(0), true).unwrap();
    invalid(pool.upkeep.devices.offline(device(1), false).unwrap_err(), "cannot be taken out of use");
    invalid(pool.upkeep.reshape.detach(device(1)).unwrap_err(), "only it has");
    assert!(matches!(pool.upkeep.devices.online(device(77), None), Err(PoolError::NotFound(_))));
    verify(&pool, &model);
    pool.commit_export().unwrap();
    drop(pool);
    // It was to be offline until the next import only.
    let pool = open(&sim, 9);
    assert_eq!(pool.store().members().get(device(0)).state(), MemberState::Stale);
    resilver(&pool);
    assert!(pool.dataset(ROOT_DATASET).is_some());
    assert_whole(&pool, "back");
}

#[test]
fn a_device_that_returns_with_old_data_gets_all_that_it_lacks() {
    let sim = SimWorld::new(&[SIZE; 4]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 20, 1));
    let old = sim.images();
    for version in 2..9 {
        commit(&pool, &mut model, &files(10 + version, 20, version));
    }
    pool.commit_export().unwrap();
    drop(pool);
    // One device is as it was long ago.
    let mut images = sim.images();
    images[2] = old[2].clone();
    let sim = SimWorld::from_images(images);
    let pool = open(&sim, 8);
    verify(&pool, &model);
    resilver(&pool);
    pool.commit().unwrap();
    assert_whole(&pool, "with old data");
    assert_full_tolerance(&images_of(&pool, &sim), "raidz1", &model, "with old data");
}

#[test]
fn a_device_that_was_taken_out_of_use_stays_out_over_imports_also_without_it() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 20, 1));
    pool.upkeep.devices.offline(device(1), false).unwrap();
    commit(&pool, &mut model, &files(12, 4, 2));
    pool.commit_export().unwrap();
    drop(pool);
    let without: Vec<_> = [0, 2].map(|i| Arc::new(sim.device(i)) as Arc<dyn Device>).into();
    for devices in [without, sim.devices()] {
        let pool = import_from(devices, 5).unwrap();
        assert!(!pool.upkeep.resilver.step(1 << 20).unwrap());
        assert_eq!(pool.store().members().get(device(1)).state(), MemberState::Offline);
        pool.commit_export().unwrap();
    }
    let pool = open(&sim, 6);
    pool.upkeep.devices.online(device(1), None).unwrap();
    resilver(&pool);
    assert_whole(&pool, "back in use");
    assert_full_tolerance(&images_of(&pool, &sim), "raidz1", &model, "back in use");
}
