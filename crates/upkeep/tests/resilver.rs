//! Devices that come back, are replaced, or whose place a spare takes: what is on them afterwards.

mod common;

use common::*;
use larder_device::{AlignedBuf, Device, Outcome, Pending, Request, TIMEOUT};
use larder_format::items::{EXTENT, Extent};
use larder_format::label::LABEL_AREA;
use larder_format::node::Key;
use larder_format::segment::SegmentKind;
use larder_format::{ByteLen, DeviceIndex, DeviceOffset};
use larder_pool::create::rule_for;
use larder_pool::member::MemberState;
use larder_pool::open::{Scan, scan};
use larder_pool::{ImportOptions, Look, Pool, PoolError, ROOT_DATASET};
use larder_sim::{DeviceImage, Fault, SimDevice, SimWorld, Survival};
use larder_sync::Mutex;
use larder_upkeep::ScrubSince;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

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
            // What is written from now on needs no resilver.
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
    let step = ((trace.len() - start) / if full() { 400 } else { 25 }).max(1);
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
    invalid(pool.upkeep.reshape.remove(device(1)).unwrap_err(), "not a spare");
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

/// Where the block of a file lies: the device's number and the offset there.
fn where_is(pool: &Pool, inode: u64) -> (usize, u64) {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let value = dataset.view().unwrap().get(&Key::new(inode, EXTENT, 0)).unwrap().expect("the file is there");
    let place = pool.store().whereabouts(Extent::decode(&value).unwrap().ptr.id).unwrap().unwrap().place;
    let segment = pool.store().segments().into_iter().find(|segment| segment.id == place.segment).unwrap();
    let slot = segment.slots[segment.layout.replica(place.column.into(), 0)];
    let member = pool.store().members().get(slot.device);
    (slot.device.get().into(), member.slot_offset(slot.index, place.offset).get())
}

/// The sector in the middle of a file's block, if that is longer than one.
fn sector_of(pool: &Pool, inode: u64) -> std::ops::Range<u64> {
    let (_, at) = where_is(pool, inode);
    let start = (at + 5000) / 4096 * 4096;
    start..start + 4096
}

/// The files that cannot be read, of those in the model; all others are what they must be.
fn unreadable(pool: &Pool, model: &Model) -> BTreeSet<u64> {
    pool.store().drop_caches();
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let view = dataset.view().unwrap();
    let lost = |(&inode, &(version, len)): (&u64, &(u64, usize))| {
        let value = view.get(&Key::new(inode, EXTENT, 0)).unwrap().expect("the file is there");
        match pool.store().read(Extent::decode(&value).unwrap().ptr) {
            Ok(found) => {
                assert!(found[..] == content(inode, version, len), "file {inode} is another");
                None
            }
            Err(PoolError::Unreadable { .. }) => Some(inode),
            Err(error) => panic!("file {inode}: {error}"),
        }
    };
    model.iter().filter_map(lost).collect()
}

fn named(pool: &Kept) -> BTreeSet<u64> {
    while pool.upkeep.damage.step(64).unwrap() {}
    pool.upkeep.damage.known().iter().map(|damage| damage.inode).collect()
}

/// A device alone, two of whose sectors cannot be read, and a new one that waits to take its place; the files that
/// are hit. Replacing is marked by a 1.
fn waiting(sim: &SimWorld, model: &mut Model) -> (Kept, DeviceIndex, BTreeSet<u64>) {
    let pool = create(sim, "single");
    commit(&pool, model, &files(10, 60, 1));
    let hit = BTreeSet::from([19, 44]);
    for &inode in &hit {
        sim.device(0).inject(Fault::FailReads(sector_of(&pool, inode)));
    }
    let new = sim.add_device(SIZE);
    sim.mark(1);
    let new = pool.upkeep.devices.replace(device(0), Arc::new(new)).unwrap();
    while pool.upkeep.resilver.step(256 << 10).unwrap() {}
    (pool, new, hit)
}

#[test]
fn a_device_with_sectors_that_cannot_be_read_is_replaced_but_for_the_blocks_in_them() {
    let sim = SimWorld::new(&[SIZE]);
    let mut model = Model::new();
    let (pool, new, hit) = waiting(&sim, &mut model);
    let result = pool.upkeep.resilver.result().unwrap();
    assert!(result.complete && result.lost == 2 && result.lost_bytes < 130_000, "{result:?}");
    assert_eq!(pool.store().members().get(device(0)).name(), "sim0", "the old one goes on");
    assert_eq!(pool.store().members().get(new).state(), MemberState::Waiting);
    assert!(pool.upkeep.resilver.progress().is_none() && !pool.upkeep.resilver.is_due());
    assert!(pool.damage().unnamed() > 0);
    assert_eq!((unreadable(&pool, &model), named(&pool)), (hit.clone(), hit.clone()));
    assert_eq!(pool.damage().unnamed(), 0);

    // Both are written, and all of it stays so over an import.
    commit(&pool, &mut model, &files(80, 10, 2));
    assert!(matches!(pool.upkeep.reshape.detach(device(0)), Err(PoolError::Refused(_))));
    assert!(matches!(
        pool.upkeep.devices.replace(device(0), Arc::new(sim.add_device(SIZE))),
        Err(PoolError::Refused(_))
    ));
    pool.commit_export().unwrap();
    drop(pool);
    let pool = open(&sim, 5);
    assert_eq!(pool.store().members().get(new).state(), MemberState::Waiting);
    assert!(!pool.upkeep.resilver.step(1 << 20).unwrap());
    sync(&pool, &mut model, &files(100, 5, 3));
    commit(&pool, &mut model, &files(110, 5, 3));

    pool.upkeep.devices.accept_loss(device(0)).unwrap();
    assert!(matches!(pool.upkeep.devices.accept_loss(device(0)), Err(PoolError::Refused(_))), "nobody waits");
    assert_eq!(pool.store().members().iter().map(|member| member.name()).collect::<Vec<_>>(), ["sim1"]);
    let old: Arc<dyn Device> = Arc::new(sim.device(0));
    assert!(matches!(scan(&old), Scan::Member(_)), "its label is left alone");
    assert_eq!((unreadable(&pool, &model), named(&pool)), (hit.clone(), hit.clone()));
    pool.commit_export().unwrap();
    drop(pool);

    let pool = import_from(vec![Arc::new(sim.device(1))], 8).unwrap();
    assert_eq!((unreadable(&pool, &model), named(&pool)), (hit.clone(), hit.clone()));
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    assert_eq!(pool.upkeep.scrub.result().unwrap().lost, 2);
    let gone: Vec<u64> = hit.into_iter().collect();
    try_remove(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &gone).unwrap();
    model.retain(|inode, _| !gone.contains(inode));
    pool.commit().unwrap();
    assert_eq!(pool.upkeep.damage.known(), []);
    verify(&pool, &model);
}

#[test]
fn what_waits_is_kept_over_a_power_cut_at_any_time() {
    let sim = SimWorld::new(&[SIZE]);
    let mut model = Model::new();
    let (pool, _, hit) = waiting(&sim, &mut model);
    let replaced = sim.trace().len();
    pool.upkeep.devices.accept_loss(device(0)).unwrap();
    drop(pool);
    let trace = sim.trace();
    let start = (0..trace.len()).find(|&at| trace.marks_before(at).last() == Some(1)).unwrap();
    let mut sweep = trace.sweep();
    let (mut rebuilding, mut waited, mut accepted) = (0, 0, 0);
    let step = ((trace.len() - start) / if full() { 400 } else { 60 }).max(1);
    let rough = (start..replaced).step_by(step);
    for cut in rough.chain(replaced..=trace.len()) {
        sweep.advance_to(cut);
        let after = SimWorld::from_images(sweep.images(Survival::Random { seed: cut as u64 }));
        let case = format!("cut at {cut} of {}", trace.len());
        let pool = import(&after, 7).unwrap_or_else(|error| panic!("{case}: {error}"));
        let stands_in =
            |pool: &Pool| pool.store().members().iter().find(|member| member.stands_for.is_some());
        // Nothing to be replaced yet.
        if pool.store().members().get(device(0)).name() == "sim0" && stands_in(&pool).is_none() {
            assert!(cut < replaced, "{case}");
            continue;
        }
        // The sectors are as bad as they were.
        for &inode in &hit {
            after.device(0).inject(Fault::FailReads(sector_of(&pool, inode)));
        }
        if let Some(new) = stands_in(&pool) {
            match new.state() {
                MemberState::Waiting => waited += 1,
                _ => rebuilding += 1,
            }
            while pool.upkeep.resilver.step(256 << 10).unwrap() {}
            assert_eq!(stands_in(&pool).unwrap().state(), MemberState::Waiting, "{case}");
            pool.upkeep.devices.accept_loss(device(0)).unwrap();
        } else {
            accepted += 1;
        }
        assert_eq!((named(&pool), unreadable(&pool, &model)), (hit.clone(), hit.clone()), "{case}");
        pool.commit_export().unwrap();
        drop(pool);
        let pool = import_from(vec![Arc::new(after.device(1))], 8).unwrap();
        assert_eq!(unreadable(&pool, &model), hit, "{case}, the new one alone");
        assert!(pool.store().segments().iter().all(|segment| !segment.unnamed), "{case}: all is named");
    }
    assert!(rebuilding > 0 && waited > 0 && accepted > 0, "{rebuilding}, {waited}, {accepted}");
}

#[test]
fn who_repairs_and_who_names_what_is_lost_come_to_an_end() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    let hit = BTreeSet::from([19, 44]);
    hit.iter().for_each(|&inode| sim.device(0).inject(Fault::FailReads(sector_of(&pool, inode))));
    for scrub in 0..2 {
        pool.upkeep.scrub.start(ScrubSince::All).unwrap();
        while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
        // As whoever keeps the pool whole does it; naming reads what is lost, and what a read finds wrong is
        // reconstructed.
        let turn = |_: &usize| {
            let healed = pool.upkeep.read_repair.step().unwrap() > 0;
            pool.upkeep.damage.step(64).unwrap() || healed || pool.upkeep.read_repair.is_waiting()
        };
        let turns = (0..1000).take_while(turn).count();
        assert!(turns < 100, "scrub {scrub}: it goes on and on");
        assert_eq!((named(&pool), pool.damage().unnamed()), (hit.clone(), 0));
        pool.damage().clear();
    }
    // A read tells of its own, whatever was known before.
    assert_eq!((unreadable(&pool, &model), named(&pool)), (hit, BTreeSet::new()));
    while pool.upkeep.read_repair.step().unwrap() > 0 {}
    assert_eq!(
        (named(&pool), pool.damage().unnamed()),
        (BTreeSet::new(), 0),
        "what is known is not looked for"
    );
}

#[test]
fn what_a_scrub_found_lost_is_named_also_after_a_power_cut() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    let hit = BTreeSet::from([19, 44]);
    let sectors: Vec<_> = hit.iter().map(|&inode| sector_of(&pool, inode)).collect();
    let spoil = |sim: &SimWorld| {
        sectors.iter().for_each(|sector| sim.device(0).inject(Fault::FailReads(sector.clone())));
    };
    spoil(&sim);
    let start = sim.trace().len();
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(256 << 10).unwrap() {}
    let over = sim.trace().len();
    assert_eq!(named(&pool), hit);
    pool.commit().unwrap();
    drop(pool);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    for cut in (start..over).step_by(((over - start) / 40).max(1)).chain(over..=trace.len()) {
        sweep.advance_to(cut);
        let after = SimWorld::from_images(sweep.images(Survival::Random { seed: cut as u64 }));
        spoil(&after);
        let pool = import(&after, 7).unwrap();
        while pool.upkeep.scrub.step(256 << 10).unwrap() {}
        let found = pool.upkeep.scrub.result().map(|result| result.lost);
        let known = if found == Some(2) { hit.clone() } else { BTreeSet::new() };
        assert!(found == Some(2) || cut < over, "cut at {cut} of {}: {found:?}", trace.len());
        assert_eq!(named(&pool), known, "cut at {cut} of {}", trace.len());
    }
}

#[test]
fn what_was_read_once_is_kept_when_it_cannot_be_read_another_day() {
    let sim = SimWorld::new(&[SIZE]);
    let mut model = Model::new();
    let (pool, new, _) = waiting(&sim, &mut model);
    let other = sector_of(&pool, 30);
    sim.device(0).clear_faults();
    sim.device(0).inject(Fault::FailReads(other));
    // What lies in the same stripe was read before, what could not be is read now.
    pool.upkeep.resilver.restart().unwrap();
    assert_eq!(pool.upkeep.resilver.progress().unwrap().devices, [new]);
    resilver(&pool);
    assert_eq!(pool.upkeep.resilver.result().unwrap().lost, 0);
    assert_eq!(pool.store().members().get(device(0)).name(), "sim1");
    let old: Arc<dyn Device> = Arc::new(sim.device(0));
    assert!(matches!(scan(&old), Scan::NotOurs), "nothing is lost: it is free for other uses");
    assert_whole(&pool, "both days together");
    verify(&pool, &model);
    assert_eq!(named(&pool), BTreeSet::new());
}

#[test]
fn who_waits_takes_the_place_of_a_device_that_is_gone_when_the_pool_can_do_without_or_is_told_to() {
    let sim = SimWorld::new(&[SIZE]);
    let mut model = Model::new();
    let (pool, _, hit) = waiting(&sim, &mut model);
    commit(&pool, &mut model, &files(80, 10, 2));
    drop(pool);
    let alone = || vec![Arc::new(sim.device(1)) as Arc<dyn Device>];
    let refused = import_from(alone(), 8).map(drop).unwrap_err();
    assert!(matches!(refused, PoolError::Refused(_)), "{refused}");
    let mut plan = plan(alone());
    assert!(!plan.complete);
    assert_eq!(plan.bereft().len(), 1);
    plan.accept_loss();
    assert!(plan.complete);
    let pool = Kept::import(world(9), plan, &ImportOptions::default()).unwrap();
    assert_eq!(unreadable(&pool, &model), hit);
    commit(&pool, &mut model, &files(90, 10, 3));
    pool.commit_export().unwrap();
    drop(pool);
    // The old one is not needed, nor believed, when it is there again.
    let pool = open(&sim, 10);
    assert_eq!(pool.store().members().iter().map(|member| member.name()).collect::<Vec<_>>(), ["sim1"]);
    assert_eq!(unreadable(&pool, &model), hit);
    drop(pool);

    // A mirror whose other half is out of use, and comes back.
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    pool.upkeep.devices.offline(device(1), false).unwrap();
    sim.device(0).inject(Fault::FailReads(sector_of(&pool, 30)));
    let new = pool.upkeep.devices.replace(device(0), Arc::new(sim.add_device(SIZE))).unwrap();
    while pool.upkeep.resilver.step(256 << 10).unwrap() {}
    assert_eq!(pool.store().members().get(new).state(), MemberState::Waiting);
    pool.upkeep.devices.online(device(1), None).unwrap();
    while pool.upkeep.resilver.step(256 << 10).unwrap() {}
    assert_eq!(pool.store().members().get(new).state(), MemberState::Waiting, "the old one is in use");
    pool.upkeep.devices.offline(device(0), false).unwrap();
    assert!(pool.upkeep.resilver.is_due());
    while pool.upkeep.resilver.step(256 << 10).unwrap() {}
    assert_eq!(pool.store().members().get(device(0)).name(), "sim2");
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    let result = pool.upkeep.scrub.result().unwrap();
    assert!(result.lost == 0 && result.repaired > 0, "its replica gives what was not to be had: {result:?}");
    verify(&pool, &model);
    assert_whole(&pool, "with its replica");
}

#[test]
fn a_sector_that_holds_a_stripes_header_costs_the_blocks_in_it() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    for i in 0..4 {
        commit(&pool, &mut model, &files(10 + i * 20, 20, 1));
    }
    // The first file of a commit begins a stripe.
    let (_, at) = where_is(&pool, 30);
    let header = at / 4096 * 4096;
    sim.device(0).inject(Fault::FailReads(header..header + 4096));
    let hit = unreadable(&pool, &model);
    assert!(hit.len() <= 2 && !hit.is_empty(), "{hit:?}");
    pool.upkeep.devices.replace(device(0), Arc::new(sim.add_device(SIZE))).unwrap();
    while pool.upkeep.resilver.step(1 << 20).unwrap() {}
    pool.upkeep.devices.accept_loss(device(0)).unwrap();
    assert_eq!((unreadable(&pool, &model), named(&pool)), (hit.clone(), hit));
}

#[test]
fn a_device_that_cannot_be_read_whole_keeps_its_place_until_it_can() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    let new = pool.upkeep.devices.replace(device(0), Arc::new(sim.add_device(SIZE))).unwrap();
    sim.device(0).inject(Fault::FailReads(2 << 20..12 << 20));
    while pool.upkeep.resilver.step(256 << 10).unwrap() {}
    assert!(pool.upkeep.resilver.result().unwrap().lost > 0);
    assert_eq!(pool.store().members().get(device(0)).name(), "sim0", "the old one goes on");
    assert_eq!(pool.store().members().get(new).state(), MemberState::Waiting);
    let old: Arc<dyn Device> = Arc::new(sim.device(0));
    assert!(matches!(scan(&old), Scan::Member(_)), "its label is left alone");
    // Another day it can be read.
    sim.device(0).clear_faults();
    commit(&pool, &mut model, &files(12, 4, 2));
    pool.upkeep.resilver.restart().unwrap();
    resilver(&pool);
    assert_eq!(pool.store().members().get(device(0)).name(), "sim1");
    assert_whole(&pool, "at last");
    verify(&pool, &model);
    drop(pool);
    let pool = import_from(vec![Arc::new(sim.device(1))], 8).unwrap();
    verify(&pool, &model);
}

#[test]
fn a_write_that_fails_on_a_stand_in_at_any_time_costs_no_stripe_and_no_copy() {
    for (word, count) in [("single", 1), ("mirror", 2)] {
        for spare in 0..40 {
            let case = format!("{word} of {count}, {spare} writes to spare");
            let sim = SimWorld::new(&vec![SIZE; count]);
            let pool = create(&sim, word);
            let dataset = pool.dataset(ROOT_DATASET).unwrap();
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 6, 1));
            let new = sim.add_device(SIZE);
            pool.upkeep.devices.replace(device(0), Arc::new(new.clone())).unwrap();
            commit(&pool, &mut model, &files(20, 2, 2));
            // One place that fails, or the device.
            let strikes = if spare % 4 == 0 { 1 } else { 3 };
            new.inject_window(Fault::FailWrites(0..u64::MAX), spare, strikes);
            // The commit that completes it has stripes on their way.
            for version in 3..9 {
                let some = files(30, 3, version);
                put(&pool, &dataset, &some);
                model.extend(some.iter().map(|&(inode, version, len)| (inode, (version, len))));
                let stepped = pool.upkeep.resilver.step(u64::MAX);
                if pool.store().suspended().is_some() {
                    pool.upkeep.devices.clear(None).unwrap_or_else(|error| panic!("{case}: {error}"));
                } else {
                    stepped.unwrap_or_else(|error| panic!("{case}: {error}"));
                }
            }
            let _ = pool.commit();
            pool.store().drop_caches();
            verify(&pool, &model);
            // Whoever counts has everything.
            let goes_on = (0..3).any(|_| {
                pool.upkeep.devices.clear(None).and_then(|()| pool.commit()).is_ok()
                    && pool.store().suspended().is_none()
            });
            assert!(goes_on, "{case}: {:?}", pool.store().suspended());
            assert_whole(&pool, &case);
            drop((dataset, pool));
            let trace = sim.trace();
            let mut sweep = trace.sweep();
            sweep.advance_to(trace.len());
            let after = open(&SimWorld::from_images(sweep.images(Survival::DropAll)), 7);
            verify(&after, &model);
            assert_whole(&after, &case);
        }
    }
}

/// A device that lets somebody else do something when it is asked to flush.
struct Interrupted {
    inner: SimDevice,
    at_flush: Arc<dyn Fn() + Send + Sync>,
}

impl Device for Interrupted {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn size(&self) -> ByteLen {
        self.inner.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        if matches!(request, Request::Flush) {
            (self.at_flush)();
        }
        self.inner.submit(request)
    }
}

/// Puts a file and syncs it.
fn try_sync(pool: &Pool, file: (u64, u64, usize)) -> Result<(), PoolError> {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    try_put(pool, &dataset, &[file])?;
    let op = pool.enter()?;
    dataset.update(&op, |tree| {
        tree.log(logged(file));
        Ok::<_, PoolError>(())
    })?;
    drop(op);
    pool.log_sync()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "somebody else syncs while a commit is under way")]
fn an_fsync_while_a_device_takes_a_place_is_not_on_the_new_device_alone() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 6, 1));
    let late = (90, 1, 5_000);
    let here = Arc::downgrade(&pool);
    let (world, done) = (sim.clone(), Mutex::new(None));
    // Once the new device has the place, and before the root says so: an fsync by somebody else.
    let at_flush = move || {
        let Some(pool) = here.upgrade() else { return };
        let mut done = done.lock();
        if done.is_some() || pool.store().members().get(device(0)).name() != "sim1" {
            return;
        }
        let (tell, told) = std::sync::mpsc::channel();
        *done = Some(std::thread::spawn(move || tell.send(try_sync(&pool, late).is_ok())));
        drop(done);
        // It comes at once, or waits for the commit at hand.
        if told.recv_timeout(Duration::from_millis(300)) == Ok(true) {
            world.mark(1);
        }
    };
    let new = Interrupted { inner: sim.add_device(SIZE), at_flush: Arc::new(at_flush) };
    pool.upkeep.devices.replace(device(0), Arc::new(new)).unwrap();
    resilver(&pool);
    while try_sync(&pool, late).is_err() {}
    drop(pool);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    for cut in (0..=trace.len()).filter(|&cut| trace.marks_before(cut).last() == Some(1)) {
        sweep.advance_to(cut);
        let after = open(&SimWorld::from_images(sweep.images(Survival::DropAll)), 7);
        replay(&after);
        let found = contents(&after).unwrap();
        assert!(found.contains_key(&late.0), "cut at {cut} of {}: what was synced is lost", trace.len());
    }
}

#[test]
fn a_slot_that_is_retired_as_its_device_is_replaced_holds_what_the_last_root_names() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 12, 1));
    let here = Arc::downgrade(&pool);
    let (world, done) = (sim.clone(), Mutex::new(false));
    // Once the new device has the place, and before the root says so: somebody else writes.
    let at_flush = move || {
        let Some(pool) = here.upgrade() else { return };
        if pool.store().members().get(device(0)).name() != "sim1"
            || std::mem::replace(&mut *done.lock(), true)
        {
            return;
        }
        put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &files(100, 90, 1));
        world.mark(1);
    };
    let new = Interrupted { inner: sim.add_device(SIZE), at_flush: Arc::new(at_flush) };
    let index = pool.upkeep.devices.replace(device(0), Arc::new(new)).unwrap();
    // What nodes lie in is done, and a root says so.
    let nodes =
        pool.store().segments().into_iter().find(|record| record.kind == SegmentKind::Node).unwrap().id;
    while pool.store().members().get(index).cursor() < nodes {
        pool.upkeep.resilver.step(1).unwrap();
        pool.commit().unwrap();
    }
    let old = pool.store().members().get(device(0));
    for slot in pool.store().segments().iter().flat_map(|record| &record.slots) {
        let at = old.slot_offset(slot.index, 0).get();
        sim.device(0).inject(Fault::FailWrites(at..at + u64::from(old.slot_size)));
    }
    put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &files(30, 4, 1));
    resilver(&pool);
    drop((pool, old));
    let trace = sim.trace();
    let is_mark = |cut: &usize| trace.marks_before(*cut).last() == Some(1);
    let cut = (0..=trace.len()).find(is_mark).expect("somebody wrote");
    let images = trace.crash_images(cut, Survival::KeepAll);
    let pool = open(&SimWorld::from_images(images), 7);
    resilver(&pool);
    assert_eq!(pool.store().members().iter().count(), 1, "it is replaced");
    verify(&pool, &model);
}
