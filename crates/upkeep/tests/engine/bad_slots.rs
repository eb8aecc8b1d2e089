//! Places of a device that take no writes: what was on its way there goes elsewhere, the slot is not used again, and
//! the device stays in use as long as it is a place that fails and not the device.

use crate::common::*;
use crate::elsewhere;
use larder_device::AlignedBuf;
use larder_format::label::{HEARTBEAT_OFFSET, LABEL_AREA, LABEL_LEN};
use larder_format::segment::SegmentKind;
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::member::MemberState;
use larder_pool::{Pool, ROOT_DATASET};
use larder_sim::{Event, Fault, SimWorld};
use larder_upkeep::ScrubSince;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SIZE: ByteLen = ByteLen::new(64 << 20);
const LAYOUTS: [(&str, usize); 3] = [("single", 1), ("mirror", 2), ("raidz1", 3)];

/// The workload of a young pool: commits, fsyncs, and files that replace others.
fn work(pool: &Pool, model: &mut Model, round: u64) {
    commit(pool, model, &files(10, 8, round));
    sync(pool, model, &files(10, 2, round + 1));
    sync(pool, model, &files(14, 2, round + 1));
    commit(pool, model, &files(30 + round, 4, round));
    commit(pool, model, &files(12, 3, round + 2));
}

/// The writes that a healthy device `0` gets of this.
fn writes_of(word: &str, count: usize) -> Vec<(u64, usize)> {
    let sim = SimWorld::new(&vec![SIZE; count]);
    let pool = create(&sim, word);
    let before = sim.trace().len();
    work(&pool, &mut Model::new(), 1);
    drop(pool);
    let trace = sim.trace();
    let writes = trace.events()[before..].iter().filter_map(|event| match event {
        Event::Write { device: 0, offset, data } => Some((offset.get(), data.len())),
        _ => None,
    });
    writes.collect()
}

fn is_beat(offset: u64) -> bool {
    (HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + LABEL_LEN as u64).contains(&offset)
}

/// Whether it is in the label areas.
fn is_label(offset: u64) -> bool {
    offset < LABEL_AREA || offset >= SIZE.get() - LABEL_AREA
}

fn write_errors(pool: &Pool) -> u64 {
    pool.store().members().iter().map(|member| member.counters.write_errors.load(Ordering::Relaxed)).sum()
}

fn all_online(pool: &Pool) -> bool {
    pool.store().members().iter().all(|member| member.state() == MemberState::Online)
}

#[test]
fn a_sector_that_takes_no_writes_costs_its_slot_and_nothing_else() {
    for (word, count) in LAYOUTS {
        let mut retired = 0;
        for (n, (offset, len)) in writes_of(word, count).into_iter().enumerate() {
            if is_beat(offset) {
                continue;
            }
            // Somewhere in what is written.
            let sector = offset + (n as u64 * 12_800) % len as u64 / 512 * 512;
            let case = format!("{word}: write {n}, sector at {sector}");
            let sim = SimWorld::new(&vec![SIZE; count]);
            let pool = create(&sim, word);
            let bad: Range<u64> = sector..sector + 512;
            sim.device(0).inject(Fault::FailWrites(bad.clone()));
            let mut model = Model::new();
            work(&pool, &mut model, 1);
            assert_eq!(pool.store().suspended(), None, "{case}");
            assert!(all_online(&pool), "{case}: a device was given up");
            let slots = pool.store().bad_slots();
            assert_eq!(slots.is_empty(), is_label(sector), "{case}: {slots:?}");
            retired += slots.len();
            pool.store().drop_caches();
            verify(&pool, &model);
            assert_whole(&pool, &case);
            pool.commit_export().unwrap();
            drop(pool);
            for seed in 2..4 {
                let next = SimWorld::from_images(sim.images());
                next.device(0).inject(Fault::FailWrites(bad.clone()));
                let pool = open(&next, seed);
                assert_eq!(pool.store().bad_slots(), slots, "{case}");
                let again = write_errors(&pool);
                work(&pool, &mut model.clone(), 10 * seed);
                assert!(is_label(sector) || write_errors(&pool) == again, "{case}: it was tried again");
                assert!(all_online(&pool), "{case}");
                pool.store().drop_caches();
                assert_whole(&pool, &case);
            }
        }
        assert!(retired > 5, "{word}: {retired}");
    }
}

#[test]
fn no_power_cut_loses_what_went_elsewhere() {
    for (word, count) in LAYOUTS {
        for (n, (offset, len)) in writes_of(word, count).into_iter().enumerate().step_by(3) {
            if is_label(offset) {
                continue;
            }
            let sector = offset + (n as u64 * 12_800) % len as u64 / 512 * 512;
            elsewhere::run(word, count, sector, 5)
                .unwrap_or_else(|problem| panic!("{word}, write {n}: {problem}"));
        }
    }
}

#[test]
fn a_heartbeat_that_is_refused_costs_no_device() {
    for (word, count) in LAYOUTS {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let bad = HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + 512;
        sim.device(0).inject(Fault::FailWrites(bad.clone()));
        let mut model = Model::new();
        for round in 1..20 {
            pool.beat().unwrap();
            commit(&pool, &mut model, &files(10, 3, round));
        }
        assert!(all_online(&pool) && pool.store().bad_slots().is_empty(), "{word}");
        assert_eq!(write_errors(&pool), 19, "{word}");
        let events = pool.events(0);
        let told = events.iter().filter(|(_, event)| event.text.contains("heartbeat"));
        assert_eq!(told.count(), 1, "{word}");
        drop(pool);
        let next = SimWorld::from_images(sim.images());
        next.device(0).inject(Fault::FailWrites(bad));
        let pool = open(&next, 2);
        assert!(all_online(&pool), "{word}");
        verify(&pool, &model);
        work(&pool, &mut model, 30);
        assert_whole(&pool, word);
    }
}

/// Flips a byte of a stripe on a device, and gives its place on it.
fn rot(sim: &SimWorld, pool: &Pool, device: usize) -> u64 {
    let ids = pool.store().segments();
    let of = |record: &larder_format::segment::SegmentRecord| {
        record.slots.iter().copied().find(|slot| usize::from(slot.device.get()) == device)
    };
    let record = ids.iter().find(|record| record.live_blocks > 0 && of(record).is_some()).unwrap();
    let slot = of(record).unwrap();
    let at = pool.store().members().get(slot.device).slot_offset(slot.index, 4096 + 512).get();
    let page = larder_format::DeviceOffset::new(at / 4096 * 4096);
    let mut bytes = sim.device(device).image().read(page, 4096);
    bytes[600] ^= 1;
    let data: Arc<AlignedBuf> = Arc::new(bytes);
    use larder_device::{Device, Request};
    sim.device(device).submit(Request::Write { offset: page, data }).wait().unwrap();
    page.get()
}

#[test]
fn what_a_scrub_cannot_rewrite_goes_to_another_slot_and_the_device_stays() {
    for (word, count) in &LAYOUTS[1..] {
        let sim = SimWorld::new(&vec![SIZE; *count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        work(&pool, &mut model, 1);
        let at = rot(&sim, &pool, 0);
        sim.device(0).inject(Fault::FailWrites(at..at + 512));
        pool.store().drop_caches();
        pool.upkeep.scrub.start(ScrubSince::All).unwrap();
        while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
        assert!(all_online(&pool), "{word}");
        assert_eq!(pool.store().bad_slots().len(), 1, "{word}");
        assert!(write_errors(&pool) > 0, "{word}");
        // It is whole again, on the device itself.
        assert_whole(&pool, word);
        commit(&pool, &mut model, &files(60, 2, 1));
        drop(pool);
        let pool = open(&SimWorld::from_images(sim.images()), 2);
        assert_eq!(pool.store().bad_slots().len(), 1, "{word}");
        assert_whole(&pool, word);
        verify(&pool, &model);
    }
}

#[test]
fn a_device_that_takes_no_writes_at_all_is_faulted_and_loses_no_slots() {
    for (word, count) in &LAYOUTS[1..] {
        let sim = SimWorld::new(&vec![SIZE; *count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        work(&pool, &mut model, 1);
        sim.device(0).inject(Fault::FailWrites(LABEL_AREA..SIZE.get() - LABEL_AREA));
        commit(&pool, &mut model, &files(60, 5, 1));
        assert_eq!(pool.store().members().get(DeviceIndex::new(0)).state(), MemberState::Faulted, "{word}");
        assert_eq!(pool.store().bad_slots(), [], "{word}");
        verify(&pool, &model);
        // It does not flap: taken back, it is out again with the next write, and in for good when it takes them.
        pool.upkeep.devices.clear(None).unwrap();
        commit(&pool, &mut model, &files(60, 5, 2));
        assert_eq!(pool.store().members().get(DeviceIndex::new(0)).state(), MemberState::Faulted, "{word}");
        sim.device(0).clear_faults();
        pool.upkeep.devices.clear(None).unwrap();
        while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
        commit(&pool, &mut model, &files(60, 5, 3));
        assert!(all_online(&pool), "{word}");
        assert_whole(&pool, word);
    }
}

#[test]
fn a_device_with_many_bad_places_is_faulted_by_their_number_and_clear_keeps_them_retired() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    work(&pool, &mut model, 1);
    let member = pool.store().members().get(DeviceIndex::new(0));
    // Every third slot has a bad sector.
    for slot in (2..member.slot_count()).step_by(3) {
        let at = member.slot_offset(larder_format::SlotIndex::new(slot), 8192).get();
        sim.device(0).inject(Fault::FailWrites(at..at + 512));
    }
    for round in 2..60 {
        commit(&pool, &mut model, &files(100 + 40 * round, 40, round));
        if !all_online(&pool) {
            break;
        }
    }
    let retired = pool.store().bad_slots().len();
    assert!((12..=20).contains(&retired), "{retired}");
    assert!(!all_online(&pool), "{retired}");
    verify(&pool, &model);
    pool.upkeep.devices.clear(None).unwrap();
    while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
    assert!(all_online(&pool));
    assert!(pool.store().bad_slots().len() >= retired);
    verify(&pool, &model);
    assert_whole(&pool, "after clear");
}

#[test]
fn a_column_that_went_elsewhere_after_the_tables_is_found_there_by_every_later_import() {
    for (word, count) in LAYOUTS {
        let mut sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 8, 1));
        // The stripes of the next commit are refused where they belong, when its tables are written.
        for slot in pool.store().segments().iter().flat_map(|record| &record.slots) {
            let member = pool.store().members().get(slot.device);
            let at = member.slot_offset(slot.index, 0).get();
            let bad = at..at + u64::from(member.slot_size);
            sim.device(slot.device.get().into()).inject(Fault::FailWrites(bad));
        }
        commit(&pool, &mut model, &files(30, 4, 1));
        assert!(!pool.store().bad_slots().is_empty() && all_online(&pool), "{word}");
        let there = pool.store().segments();
        drop(pool);
        for seed in 2..5 {
            sim = SimWorld::from_images(sim.images());
            let pool = open(&sim, seed);
            for record in pool.store().segments() {
                let before = there.iter().find(|before| before.id == record.id);
                assert!(before.is_none_or(|before| before.slots == record.slots), "{word}, import {seed}");
            }
            verify(&pool, &model);
            assert_whole(&pool, word);
            pool.commit().unwrap();
        }
    }
}

/// Nothing can be written any more to what is left of the slots that data goes to now, of device 0, on `at`.
fn fail_the_rest_of_open_slots_on(at: usize, sim: &SimWorld, pool: &Pool) {
    for record in pool.store().segments().iter().filter(|record| record.kind == SegmentKind::Data) {
        for slot in record.slots.iter().filter(|slot| slot.device == DeviceIndex::new(0)) {
            let member = pool.store().members().get(slot.device);
            let place = |within| member.slot_offset(slot.index, within).get();
            sim.device(at).inject(Fault::FailWrites(place(record.height)..place(member.slot_size)));
        }
    }
}

fn fail_the_rest_of_open_slots(sim: &SimWorld, pool: &Pool) {
    fail_the_rest_of_open_slots_on(0, sim, pool);
}

/// Faults that take a device out of use.
fn out_of_use() -> [Fault; 2] {
    [Fault::Full, Fault::Gone]
}

#[test]
fn a_column_stays_where_it_is_when_the_only_device_goes_out_of_use_meanwhile() {
    for fault in out_of_use() {
        for spare in 0..30 {
            let case = format!("{fault:?} after {spare}");
            let sim = SimWorld::new(&[SIZE]);
            let pool = create(&sim, "single");
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 8, 1));
            fail_the_rest_of_open_slots(&sim, &pool);
            sim.device(0).inject_window(fault.clone(), spare, u64::MAX);
            put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &files(30, 4, 1));
            let _ = pool.commit();
            sim.device(0).clear_faults();
            if pool.store().suspended().is_some() && pool.upkeep.devices.clear(None).is_err() {
                // It has to be imported again.
                assert_eq!(fault, Fault::Gone, "{case}");
            } else {
                commit(&pool, &mut model, &files(30, 4, 1));
                commit(&pool, &mut model, &files(50, 4, 1));
                verify(&pool, &model);
                assert_whole(&pool, &case);
            }
            drop(pool);
            let pool = open(&SimWorld::from_images(sim.images()), 2);
            verify(&pool, &model);
            assert_whole(&pool, &case);
        }
    }
}

#[test]
fn a_device_that_goes_while_a_column_moves_has_all_of_it_when_it_is_back() {
    for fault in out_of_use() {
        for spare in 0..30 {
            let case = format!("{fault:?} after {spare}");
            let sim = SimWorld::new(&[SIZE; 2]);
            let pool = create(&sim, "mirror");
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 8, 1));
            fail_the_rest_of_open_slots(&sim, &pool);
            sim.device(0).inject_window(fault.clone(), spare, u64::MAX);
            commit(&pool, &mut model, &files(30, 4, 1));
            commit(&pool, &mut model, &files(50, 4, 1));
            sim.device(0).clear_faults();
            pool.upkeep.devices.clear(None).unwrap();
            while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
            assert!(all_online(&pool), "{case}");
            sim.device(1).inject(Fault::FailReads(LABEL_AREA..SIZE.get() - LABEL_AREA));
            verify(&pool, &model);
        }
    }
}

#[test]
fn a_device_that_is_away_while_its_stand_in_moves_a_column_gets_all_of_it_when_it_is_back() {
    for imports in [false, true] {
        let sim = SimWorld::new(&[SIZE; 2]);
        let mut pool = create(&sim, "mirror");
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 8, 1));
        let main = DeviceIndex::new(0);
        let stand_in = pool.upkeep.devices.replace(main, Arc::new(sim.add_device(SIZE))).unwrap();
        pool.upkeep.devices.offline(main, false).unwrap();
        fail_the_rest_of_open_slots_on(2, &sim, &pool);
        commit(&pool, &mut model, &files(30, 4, 1));
        assert_eq!(pool.store().bad_slots().len(), 1, "its column moved");
        sim.device(2).clear_faults();
        if imports {
            pool.commit_export().unwrap();
            drop(pool);
            pool = open(&sim, 2);
        }
        commit(&pool, &mut model, &files(50, 4, 1));
        pool.upkeep.devices.online(main, None).unwrap();
        pool.upkeep.reshape.detach(stand_in).unwrap();
        while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
        assert!(all_online(&pool));
        assert_whole(&pool, "when it is back");
        sim.device(1).inject(Fault::FailReads(LABEL_AREA..SIZE.get() - LABEL_AREA));
        pool.store().drop_caches();
        verify(&pool, &model);
    }
}
