//! Mirrors that get a copy more or less, and pools that get another group.

use crate::common::*;
use larder_device::Device;
use larder_format::root::DeviceKind;
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::create::{MAX_DEVICES, rule_for};
use larder_pool::member::MemberState;
use larder_pool::open::{Scan, scan};
use larder_pool::{GroupSpec, ImportOptions, PoolError, PoolSpec, ROOT_DATASET, Refusal};
use larder_sim::{Fault, SimWorld, Survival};
use std::sync::Arc;

const SIZE: ByteLen = ByteLen::new(64 << 20);

fn device(index: u16) -> DeviceIndex {
    DeviceIndex::new(index)
}

fn reshape(pool: &Kept) {
    let mut steps = 0;
    while pool.upkeep.reshape.step(256 << 10).unwrap() {
        steps += 1;
        assert!(steps < 5_000, "it does not end: {} bytes left", pool.upkeep.reshape.left());
    }
    assert_eq!(pool.upkeep.reshape.left(), 0);
}

/// Everything is there when only these devices are.
fn assert_readable_from(sim: &SimWorld, devices: &[usize], model: &Model, case: &str) {
    let after = SimWorld::from_images(sim.images());
    let left = devices.iter().map(|&i| Arc::new(after.device(i)) as Arc<dyn Device>).collect();
    let pool = import_from(left, 77).unwrap_or_else(|error| panic!("{case}, from {devices:?}: {error}"));
    replay(&pool);
    verify(&pool, model);
}

#[test]
fn a_single_device_becomes_a_mirror_of_two_and_three() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    for version in 1..4 {
        commit(&pool, &mut model, &files(10, 60, version));
    }
    assert_eq!(pool.store().losses_survived(), 0);
    pool.upkeep.reshape.attach(device(0), vec![Arc::new(sim.add_device(SIZE))]).unwrap();
    assert_eq!(pool.store().losses_survived(), 0, "what is stored already has one copy");
    commit(&pool, &mut model, &files(30, 20, 5));
    sync(&pool, &mut model, &files(31, 3, 6));
    reshape(&pool);
    assert_eq!(pool.store().losses_survived(), 1);
    assert_whole(&pool, "a mirror of two");
    for left in [0, 1] {
        assert_readable_from(&sim, &[left], &model, "a mirror of two");
    }
    pool.upkeep.reshape.attach(device(1), vec![Arc::new(sim.add_device(SIZE))]).unwrap();
    reshape(&pool);
    commit(&pool, &mut model, &files(30, 5, 7));
    assert_eq!(pool.store().losses_survived(), 2);
    assert_whole(&pool, "a mirror of three");
    for left in [0, 1, 2] {
        assert_readable_from(&sim, &[left], &model, "a mirror of three");
    }
}

#[test]
fn a_mirrors_device_leaves_when_everything_is_where_it_stays() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    for version in 1..4 {
        commit(&pool, &mut model, &files(10, 60, version));
    }
    pool.upkeep.reshape.detach(device(0)).unwrap();
    assert!(matches!(pool.upkeep.reshape.detach(device(0)), Err(PoolError::Refused(_))), "twice");
    commit(&pool, &mut model, &files(30, 20, 5));
    // It goes on after an import.
    pool.commit_export().unwrap();
    drop(pool);
    let pool = open(&sim, 4);
    reshape(&pool);
    commit(&pool, &mut model, &files(30, 5, 6));
    assert_eq!(pool.store().members().iter().len(), 2);
    assert_eq!(pool.store().losses_survived(), 1);
    assert_whole(&pool, "a mirror of two");
    let left: Arc<dyn Device> = Arc::new(sim.device(0));
    assert!(matches!(scan(&left), Scan::NotOurs), "the device is free for other uses");
    for left in [1, 2] {
        assert_readable_from(&sim, &[left], &model, "a mirror of two");
    }
    pool.upkeep.reshape.detach(device(2)).unwrap();
    reshape(&pool);
    assert!(matches!(pool.upkeep.reshape.detach(device(1)), Err(PoolError::Refused(_))), "the last copy");
    assert_whole(&pool, "a single device");
    verify(&pool, &model);
    pool.commit_export().unwrap();
    drop(pool);
    assert_readable_from(&sim, &[1], &model, "a single device");
}

#[test]
fn another_group_takes_data_and_survives_on_its_own() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    let before = pool.store().space(128 << 10).size;
    let devices: Vec<Arc<dyn Device>> =
        (0..3).map(|_| Arc::new(sim.add_device(SIZE)) as Arc<dyn Device>).collect();
    pool.upkeep.reshape.add_group(GroupSpec::data(rule_for("raidz1", 3).unwrap(), devices)).unwrap();
    assert!(pool.store().space(128 << 10).size > before * 2);
    for version in 2..6 {
        commit(&pool, &mut model, &files(10, 90, version));
    }
    assert!(!pool.upkeep.reshape.step(1 << 20).unwrap(), "what is stored stays where it is");
    assert_whole(&pool, "two groups");
    assert!(sim.device(3).counters().bytes_written > 1 << 20, "the new group is used");
    pool.commit_export().unwrap();
    drop(pool);
    assert_readable_from(&sim, &[0, 2, 4], &model, "one device of each group lost");
}

#[test]
fn another_group_has_the_widest_sectors_of_the_pool() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let rule = rule_for("single", 1).unwrap();
    let group = |device| GroupSpec::data(rule, vec![device]);
    let groups = sim.devices().into_iter().map(group).collect();
    let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
    drop(pool);
    let mut plan = plan(sim.devices());
    plan.root.groups[1].ashift = 13;
    let pool = Kept::import(world(2), plan, &ImportOptions::default()).unwrap();
    pool.upkeep.reshape.add_group(group(Arc::new(sim.add_device(SIZE)))).unwrap();
    assert_eq!(pool.store().groups().iter().map(|group| group.ashift).collect::<Vec<_>>(), [12, 13, 13]);
    assert_eq!(pool.store().members().get(device(2)).label().unwrap().ashift, 13);
}

#[test]
fn what_a_device_is_stays_known() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    drop(pool);
    let mut before = plan(sim.devices());
    before.root.devices[0].kind = DeviceKind::Ssd;
    let pool = Kept::import(world(2), before, &ImportOptions::default()).unwrap();
    pool.upkeep.devices.offline(device(0), false).unwrap();
    pool.upkeep.devices.online(device(0), None).unwrap();
    while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
    drop(pool);
    let kinds = || plan(sim.devices()).root.devices.iter().map(|device| device.kind).collect::<Vec<_>>();
    assert_eq!(kinds(), [DeviceKind::Ssd, DeviceKind::Unknown]);
    // Another device in its place is what it is itself.
    let pool = open(&sim, 3);
    pool.upkeep.devices.replace(device(0), Arc::new(sim.add_device(SIZE))).unwrap();
    while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
    drop(pool);
    let root = plan(sim.devices().split_off(1)).root;
    assert_eq!(root.devices.iter().map(|device| device.kind).collect::<Vec<_>>(), [DeviceKind::Unknown; 2]);
}

#[test]
fn power_cuts_while_a_group_changes_its_shape_lose_nothing() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 40, 1));
    let start = sim.trace().len();
    pool.upkeep.reshape.attach(device(0), vec![Arc::new(sim.add_device(SIZE))]).unwrap();
    reshape(&pool);
    pool.upkeep.reshape.detach(device(0)).unwrap();
    reshape(&pool);
    pool.commit().unwrap();
    drop(pool);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    let step = ((trace.len() - start) / 60).max(1);
    for cut in (start..=trace.len()).step_by(step) {
        sweep.advance_to(cut);
        let after = SimWorld::from_images(sweep.images(Survival::Random { seed: cut as u64 }));
        let case = format!("cut at {cut} of {}", trace.len());
        let pool = import(&after, 7).unwrap_or_else(|error| panic!("{case}: {error}"));
        replay(&pool);
        verify(&pool, &model);
        reshape(&pool);
        pool.commit().unwrap();
        assert_whole(&pool, &case);
        verify(&pool, &model);
    }
}

#[test]
fn a_power_cut_while_a_group_or_a_copy_is_added_leaves_a_pool_with_or_without() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 5, 1));
    let start = sim.trace().len();
    let devices = (0..2).map(|_| Arc::new(sim.add_device(SIZE)) as Arc<dyn Device>).collect();
    pool.upkeep.reshape.add_group(GroupSpec::data(rule_for("mirror", 2).unwrap(), devices)).unwrap();
    pool.upkeep.reshape.attach(device(0), vec![Arc::new(sim.add_device(SIZE))]).unwrap();
    drop(pool);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    for cut in start..=trace.len() {
        sweep.advance_to(cut);
        for survival in [Survival::KeepAll, Survival::DropAll, Survival::Random { seed: cut as u64 }] {
            let after = SimWorld::from_images(sweep.images(survival));
            let case = format!("cut at {cut} of {}, {survival:?}", trace.len());
            let pool = import(&after, 7).unwrap_or_else(|error| panic!("{case}: {error}"));
            let online = pool.store().members().iter().filter(|member| member.is_online()).count();
            assert_eq!(online, pool.store().members().iter().len(), "{case}: all are in use");
            verify(&pool, &model);
            reshape(&pool);
            pool.commit().unwrap();
            assert_whole(&pool, &case);
        }
    }
}

#[test]
fn a_mirror_loses_a_copy_and_gets_another_again_and_again() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 5, 1));
    for round in 2..4 {
        let second = device(round as u16 - 1);
        pool.upkeep.reshape.detach(second).unwrap();
        let refused = pool.upkeep.devices.replace(second, Arc::new(sim.add_device(SIZE)));
        assert!(matches!(refused, Err(PoolError::Refused(_))), "it is to leave");
        reshape(&pool);
        let third = pool.upkeep.reshape.attach(device(0), vec![Arc::new(sim.add_device(SIZE))]).unwrap()[0];
        assert!(third > second, "no number is given twice");
        assert!(
            matches!(pool.upkeep.devices.offline(device(0), true), Err(PoolError::Refused(_))),
            "only it has all"
        );
        reshape(&pool);
        commit(&pool, &mut model, &files(10, 5, round));
        assert_eq!(pool.store().losses_survived(), 1);
    }
    assert_whole(&pool, "a mirror of two");
}

#[test]
fn more_devices_than_a_root_can_tell_of_are_refused_and_the_pool_goes_on() {
    let sim = SimWorld::new(&[SIZE; MAX_DEVICES + 1]);
    let group = |device| GroupSpec::data(rule_for("single", 1).unwrap(), vec![device]);
    let spec = |devices: Vec<Arc<dyn Device>>| {
        let groups = devices.into_iter().map(group).collect();
        PoolSpec { name: "tank".into(), groups, ashift: 12 }
    };
    let refused = |result: Result<(), PoolError>| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("are too many"), "{text}");
    };
    refused(Kept::create(world(1), spec(sim.devices())).map(drop));
    let mut devices = sim.devices();
    let last = devices.pop().unwrap();
    let pool = Kept::create(world(2), spec(devices)).unwrap();
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 40, 1));
    refused(pool.upkeep.reshape.add_group(group(Arc::clone(&last))));
    refused(pool.upkeep.reshape.attach(device(0), vec![Arc::clone(&last)]).map(drop));
    pool.upkeep.devices.replace(device(0), last).unwrap();
    for _ in 1..32 {
        pool.upkeep.devices.add_spare(Arc::new(sim.add_device(SIZE))).unwrap();
    }
    refused(pool.upkeep.devices.add_spare(Arc::new(sim.add_device(SIZE))).map(drop));
    refused(pool.upkeep.devices.replace(device(1), Arc::new(sim.add_device(SIZE))).map(drop));
    commit(&pool, &mut model, &files(10, 40, 2));
    while pool.upkeep.resilver.step(1 << 30).unwrap() {}
    commit(&pool, &mut model, &files(60, 40, 3));
    drop(pool);
    let pool = open(&SimWorld::from_images(sim.images()), 3);
    verify(&pool, &model);
}

/// The pool as imported from these devices alone.
fn left_of(sim: &SimWorld, devices: &[usize], read_only: bool) -> Result<Kept, PoolError> {
    let after = SimWorld::from_images(sim.images());
    let left = devices.iter().map(|&i| Arc::new(after.device(i)) as Arc<dyn Device>).collect();
    Kept::import(world(77), plan(left), &ImportOptions { read_only, ..ImportOptions::default() })
}

#[test]
fn a_pool_that_lost_the_only_copies_before_it_was_reshaped_is_refused_by_name_and_can_be_read() {
    for (word, count) in [("single", 1), ("mirror", 2)] {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 60, 1));
        let old: Vec<String> = pool.store().members().iter().map(|member| member.guid.to_string()).collect();
        pool.upkeep.reshape.attach(device(0), vec![Arc::new(sim.add_device(SIZE))]).unwrap();
        let mut new = Model::new();
        commit(&pool, &mut new, &files(100, 20, 2));
        commit(&pool, &mut new, &files(120, 20, 2));
        assert!(pool.upkeep.reshape.left() > 0);
        let refused = left_of(&sim, &[count], false).map(drop).unwrap_err().to_string();
        assert!(old.iter().all(|guid| refused.contains(guid)), "{word}: {refused}");
        assert!(refused.contains("only"), "{word}: {refused}");
        // Where blocks lie is known by the lost ones only, too, in part: hints lead to what is there.
        match left_of(&sim, &[count], true) {
            Ok(reading) => verify(&reading, &new),
            Err(refused) => {
                let refused = refused.to_string();
                assert!(old.iter().all(|guid| refused.contains(guid)), "{word}: {refused}");
            }
        }
        // With one of the old ones it is only degraded.
        let degraded = left_of(&sim, &[0, count], false).unwrap_or_else(|error| panic!("{word}: {error}"));
        assert_eq!(degraded.store().out_of_reach(), None);
        verify(&degraded, &model);
        verify(&degraded, &new);
        // It is known on the new one as well as soon as all of it was written anew.
        let reading = loop {
            assert!(pool.upkeep.reshape.step(256 << 10).unwrap(), "{word}: nothing was ever in part");
            pool.commit().unwrap();
            if let Ok(reading) = left_of(&sim, &[count], true) {
                break reading;
            }
        };
        if reading.store().out_of_reach().is_some() {
            assert!(left_of(&sim, &[count], false).is_err(), "{word}");
        }
        verify(&reading, &new);
        reshape(&pool);
        pool.commit().unwrap();
        model.extend(new);
        assert_readable_from(&sim, &[count], &model, word);
    }
}

#[test]
fn a_pool_whose_detached_device_is_lost_early_is_whole() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    pool.upkeep.reshape.detach(device(0)).unwrap();
    commit(&pool, &mut model, &files(100, 20, 2));
    assert!(pool.upkeep.reshape.left() > 0);
    assert_readable_from(&sim, &[1], &model, "the one that stays");
    assert!(left_of(&sim, &[0], true).is_err(), "what was written since is on the other alone");
}

#[test]
fn a_dead_half_is_detached_without_writing_the_other_anew() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    for version in 1..4 {
        commit(&pool, &mut model, &files(10, 60, version));
    }
    sim.device(0).inject(Fault::Gone);
    for version in 4..7 {
        commit(&pool, &mut model, &files(10, 5, version));
    }
    assert_eq!(pool.store().members().get(device(0)).state(), MemberState::Faulted);
    let before = sim.device(1).counters().bytes_written;
    pool.upkeep.reshape.detach(device(0)).unwrap();
    assert_eq!(pool.upkeep.reshape.left(), 0, "every copy that there is to be is there");
    reshape(&pool);
    assert!(!pool.upkeep.reshape.is_due());
    let written = sim.device(1).counters().bytes_written - before;
    assert!(written < 1 << 20, "{written} bytes were written for it");
    assert_eq!(pool.store().losses_survived(), 0);
    commit(&pool, &mut model, &files(30, 20, 7));
    sync(&pool, &mut model, &files(31, 3, 8));
    assert_readable_from(&sim, &[1], &model, "without the dead half");
    pool.commit().unwrap();
    assert_whole(&pool, "without the dead half");
    // As many copies again as it had: what has one gets another.
    pool.upkeep.reshape.attach(device(1), vec![Arc::new(sim.add_device(SIZE))]).unwrap();
    assert!(pool.upkeep.reshape.left() > 0);
    reshape(&pool);
    commit(&pool, &mut model, &files(30, 5, 9));
    assert_eq!(pool.store().losses_survived(), 1);
    assert_eq!(pool.store().members().iter().count(), 2, "nothing names the dead half any more");
    assert_whole(&pool, "a mirror again");
    for left in [1, 2] {
        assert_readable_from(&sim, &[left], &model, "a mirror again");
    }
}

#[test]
fn what_names_a_dead_half_is_adopted_by_an_import() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 60, 1));
    sim.device(0).inject(Fault::Gone);
    commit(&pool, &mut model, &files(10, 5, 2));
    pool.upkeep.reshape.detach(device(0)).unwrap();
    commit(&pool, &mut model, &files(10, 5, 3));
    drop(pool);
    let after = SimWorld::from_images(sim.images());
    // With the dead one, which is out of date, and without.
    for left in [&[1, 2][..], &[0, 1, 2]] {
        let left = left.iter().map(|&i| Arc::new(after.device(i)) as Arc<dyn Device>).collect();
        let pool = import_from(left, 5).unwrap();
        replay(&pool);
        assert_eq!((pool.upkeep.reshape.left(), pool.store().losses_survived()), (0, 1));
        commit(&pool, &mut model, &files(10, 5, 4));
        verify(&pool, &model);
        assert_whole(&pool, "imported");
    }
}

#[test]
fn a_copy_is_not_let_go_of_when_the_commit_before_that_finds_the_other_one_dead() {
    let faults =
        [("flushes", Fault::FailFlushes), ("writes", Fault::FailWrites(0..SIZE.get())), ("all", Fault::Gone)];
    for (what, fault) in faults {
        for detach in [false, true] {
            let case = format!("no {what}, detach: {detach}");
            let sim = SimWorld::new(&[SIZE; 2]);
            let pool = create(&sim, "mirror");
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 20, 1));
            put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &files(40, 5, 1));
            sim.device(1).inject(fault.clone());
            let refused = match detach {
                true => pool.upkeep.reshape.detach(device(0)),
                false => pool.upkeep.devices.offline(device(0), true),
            };
            let refused = refused.err().unwrap_or_else(|| panic!("{case}: the last copy went"));
            let is_right = match refused {
                PoolError::Refused(Refusal::Needed(_)) => !detach,
                PoolError::Refused(Refusal::CannotDetach { .. } | Refusal::LastCopy(_)) => detach,
                _ => false,
            };
            assert!(is_right, "{case}: {refused}");
            assert_eq!(pool.store().members().get(device(0)).state(), MemberState::Online, "{case}");
            assert!(!pool.store().members().get(device(0)).is_leaving(), "{case}");
            commit(&pool, &mut model, &files(40, 5, 1));
            assert_eq!(pool.store().suspended(), None, "{case}");
            pool.store().drop_caches();
            verify(&pool, &model);
            drop(pool);
            let pool = open(&SimWorld::from_images(sim.images()), 2);
            verify(&pool, &model);
        }
    }
}
