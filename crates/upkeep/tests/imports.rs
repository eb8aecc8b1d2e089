//! Import of a pool: from devices in any order, among copies, old images and strangers. Devices written apart are in
//! `apart.rs`.

mod common;

use common::*;
use larder_device::{AlignedBuf, Device, Request};
use larder_format::checksum::Sums;
use larder_format::label::{
    FORMAT_VERSION, HEARTBEAT_OFFSET, Heartbeat, LABEL_AREA, Label, RING_OFFSET, RING_SLOT, RING_SLOTS,
    label_areas,
};
use larder_format::root::{Root, ring_slot};
use larder_format::{
    ByteLen, CommitId, DeviceGuid, DeviceIndex, DeviceOffset, HostId, Incarnation, PoolGuid,
};
use larder_pool::create::rule_for;
use larder_pool::open::{Importable, Scan, Standing, Unsupported, scan};
use larder_pool::{GroupSpec, ImportOptions, PoolError, PoolSpec, ROOT_DATASET, World};
use larder_sim::{DeviceImage, Fault, SimClock, SimWorld, Survival};
use larder_upkeep::ScrubSince;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

fn remark(plan: &Importable, words: &[&str]) {
    let told = plan.remarks.iter().any(|remark| words.iter().all(|word| remark.contains(word)));
    assert!(told, "nothing of {words:?} in {:?}", plan.remarks);
}

fn relabel(image: &mut DeviceImage, change: impl Fn(&mut Label)) {
    for area in label_areas(image.size()) {
        let mut label = Label::check(&image.read(area, 4096)).unwrap();
        change(&mut label);
        image.write(area, &label.encode());
    }
}

/// The same bytes on a device of another size.
fn resized(image: &DeviceImage, size: u64) -> DeviceImage {
    let mut other = DeviceImage::blank(ByteLen::new(size));
    let len = size.min(image.size().get());
    for at in (0..len).step_by(1 << 20) {
        let at = DeviceOffset::new(at);
        other.write(at, &image.read(at, (len - at.get()).min(1 << 20) as usize));
    }
    other
}

#[test]
fn devices_come_in_any_order_and_under_other_names() {
    let (sim, model) = written("raidz2", 5);
    let images = sim.images();
    for turn in 0..5 {
        let order: Vec<_> = (0..5).map(|i| images[(i * 2 + turn) % 5].clone()).collect();
        let sim = SimWorld::from_images(order);
        let pool = open(&sim, 2);
        verify(&pool, &model);
        assert_whole(&pool, "another order");
    }
}

#[test]
fn a_missing_device_is_told_and_a_pool_goes_on_without_it() {
    let (sim, model) = written("raidz1", 3);
    let plan = plan(sim.devices().split_off(1));
    assert!(plan.complete && plan.devices[0].standing == Standing::Missing);
    let pool = Kept::import(world(2), plan, &ImportOptions::default()).unwrap();
    verify(&pool, &model);
    pool.commit().unwrap();
    drop(pool);
    // It missed commits: it is there again, but not used.
    let plan = common::plan(sim.devices());
    assert!(matches!(plan.devices[0].standing, Standing::Stale(_)));
    remark(&plan, &["sim0", "is out of date: it holds all up to commit"]);
}

#[test]
fn an_older_image_of_a_device_is_told_and_not_used() {
    for (word, count) in [("mirror", 2), ("raidz1", 3), ("raid10", 4)] {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        commit(&pool, &mut model, &[(10, 1, 50_000)]);
        let old = sim.images();
        let at = pool.store().durable_commit();
        (2..5).for_each(|version| commit(&pool, &mut model, &[(10, version, 40_000)]));
        drop(pool);
        let mut images = sim.images();
        images[1] = old[1].clone();
        let sim = SimWorld::from_images(images);
        let plan = plan(sim.devices());
        assert_eq!(plan.devices[1].standing, Standing::Stale(at));
        remark(&plan, &["sim1 is out of date", &format!("commit {at}")]);
        let pool = Kept::import(world(2), plan, &ImportOptions::default()).unwrap();
        verify(&pool, &model);
        assert_whole(&pool, word);
        assert!(sim.device(1).image() == old[1], "a stale device is not written");
    }
}

#[test]
fn a_pool_whose_devices_are_too_old_is_refused() {
    let (sim, mut model) = written("raidz1", 3);
    let pool = open(&sim, 2);
    let older = sim.images();
    (2..5).for_each(|version| commit(&pool, &mut model, &[(10, version, 40_000)]));
    drop(pool);
    let images = vec![older[0].clone(), older[1].clone(), sim.images()[2].clone()];
    assert_refused(&SimWorld::from_images(images), &["2 of 3", "too old"]);
}

#[test]
fn two_equal_copies_of_a_device_are_refused_by_name() {
    let (sim, model) = written("mirror", 2);
    let mut images = sim.images();
    images.push(images[0].clone());
    assert_refused(&SimWorld::from_images(images.clone()), &["sim0", "sim2", "copies of one device"]);
    // Naming the devices helps.
    let sim = SimWorld::from_images(images);
    verify(&import_from(sim.devices().split_off(1), 2).unwrap(), &model);
}

#[test]
fn an_older_copy_beside_the_current_device_is_set_aside_by_name() {
    let (sim, mut model) = written("mirror", 2);
    let pool = open(&sim, 2);
    let old = sim.images()[0].clone();
    commit(&pool, &mut model, &[(12, 7, 9_000)]);
    drop(pool);
    for place in 0..3 {
        let mut images = sim.images();
        images.insert(place, old.clone());
        let current = usize::from(place == 0);
        let sim = SimWorld::from_images(images);
        let plan = plan(sim.devices());
        remark(&plan, &[&format!("sim{place} is an older copy of sim{current}")]);
        let pool = Kept::import(world(3), plan, &ImportOptions::default()).unwrap();
        verify(&pool, &model);
        assert!(pool.store().members().iter().all(|member| member.is_online()));
        drop(pool);
        assert!(sim.device(place).image() == old);
    }
}

#[test]
fn a_device_of_another_pool_is_left_alone() {
    let (sim, model) = written("mirror", 2);
    let other = SimWorld::new(&[SIZE]);
    let rule = larder_pool::create::rule_for("single", 1).unwrap();
    let groups = vec![larder_pool::GroupSpec::data(rule, other.devices())];
    let spec = larder_pool::PoolSpec { name: "other".into(), groups, ashift: 12 };
    drop(Kept::create(world(77), spec).unwrap());
    let mut images = sim.images();
    images.insert(1, other.images().remove(0));
    let sim = SimWorld::from_images(images);
    let mut plans = plans(sim.devices());
    assert_eq!(plans.len(), 2);
    plans.retain(|plan| plan.name == "tank");
    assert!(plans[0].remarks.is_empty());
    let pool = Kept::import(world(3), plans.remove(0), &ImportOptions::default()).unwrap();
    verify(&pool, &model);
    assert!(sim.device(1).image() == other.images()[0]);
}

#[test]
fn a_device_that_was_replaced_is_told_and_left_alone() {
    let (sim, model) = written("mirror", 2);
    let mut images = sim.images();
    let mut replaced = images[1].clone();
    relabel(&mut replaced, |label| label.device = DeviceGuid::new(1234));
    images.push(replaced.clone());
    let sim = SimWorld::from_images(images);
    let plan = plan(sim.devices());
    remark(&plan, &["sim2", "the pool does not know it"]);
    verify(&Kept::import(world(3), plan, &ImportOptions::default()).unwrap(), &model);
    assert!(sim.device(2).image() == replaced);
}

fn on_host(host: u64, seed: u64) -> World {
    World { host: HostId::new(host), host_name: format!("host-{host}"), ..world(seed) }
}

#[test]
fn a_pool_that_another_host_has_is_refused_until_that_host_is_gone() {
    let (sim, model) = written("mirror", 2);
    let before = sim.images();
    let text = refused(Kept::import(on_host(2, 3), plan(sim.devices()), &ImportOptions::default()));
    assert!(text.contains("host sim"), "{text}");
    assert!(sim.images() == before);
    let gone = ImportOptions { host_is_gone: true, ..ImportOptions::default() };
    let pool = Kept::import(on_host(2, 3), plan(sim.devices()), &gone).unwrap();
    verify(&pool, &model);
    let text = refused(Kept::import(on_host(1, 4), plan(sim.devices()), &ImportOptions::default()));
    assert!(text.contains("host-2"), "{text}");
    pool.commit_export().unwrap();
    drop(pool);
    // An exported pool is anybody's.
    assert!(plan(sim.devices()).held_by.is_none());
    Kept::import(on_host(5, 6), plan(sim.devices()), &ImportOptions::default()).unwrap();
}

/// Host 2 takes over what host 1 has.
fn taken_over(sim: &SimWorld) -> Kept {
    let gone = ImportOptions { host_is_gone: true, ..ImportOptions::default() };
    Kept::import(on_host(2, 3), plan(sim.devices()), &gone).unwrap()
}

#[test]
fn a_host_that_slept_while_its_pool_was_taken_over_writes_nothing_more() {
    for (word, count) in LAYOUTS {
        for way in ["beat", "write", "commit", "fsync", "scrub", "trim"] {
            let sim = SimWorld::new(&vec![SIZE; count]);
            let clock = Arc::new(SimClock::new());
            let world = World { clock: Arc::clone(&clock) as _, ..on_host(1, 1) };
            let groups = vec![GroupSpec::data(rule_for(word, count).unwrap(), sim.devices())];
            let spec = PoolSpec { name: "tank".into(), groups, ashift: 12 };
            let sleeper = Kept::create(world, spec).unwrap();
            let mut model = Model::new();
            let devices: Vec<_> = sleeper.store().members().iter().map(|member| member.index).collect();
            sleeper.upkeep.trim.start(&devices, 0).unwrap();
            commit(&sleeper, &mut model, &[(10, 1, 50_000)]);
            put(&sleeper, &sleeper.dataset(ROOT_DATASET).unwrap(), &[(11, 9, 50_000)]);
            let pool = taken_over(&sim);
            commit(&pool, &mut model, &[(10, 2, 50_000), (12, 1, 3_000)]);

            clock.advance(Duration::from_secs(3600));
            let before = sim.images();
            let refused = match way {
                "beat" => sleeper.beat().unwrap_err(),
                "write" => sleeper.enter().err().unwrap(),
                "commit" => sleeper.commit().unwrap_err(),
                "fsync" => sleeper.log_sync().unwrap_err(),
                "trim" => sleeper.upkeep.trim.step().unwrap_err(),
                _ => sleeper.upkeep.scrub.start(ScrubSince::All).unwrap_err(),
            };
            let PoolError::Suspended(why) = refused else { panic!("{word}, {way}: {refused}") };
            assert!(why.contains("host-2 has imported"), "{why}");
            assert!(sim.images() == before, "{word}, {way}: it wrote");
            assert!(sleeper.beat().is_err() && sleeper.commit_export().is_err());
            assert!(sim.images() == before, "{word}, {way}: it wrote later");
            commit(&pool, &mut model, &[(10, 3, 50_000), (13, 1, 3_000)]);
            pool.beat().unwrap();
            verify(&pool, &model);
            assert_whole(&pool, word);
        }
    }
}

#[test]
fn a_host_whose_clocks_stood_still_publishes_no_root_over_another_import() {
    for (word, count) in LAYOUTS {
        // After each number of commits of the other one, up to where the ring of roots is full.
        for commits in [0, 1, 14, 15, 16] {
            let (sim, mut model) = written(word, count);
            let sleeper = open(&sim, 2);
            let pool = taken_over(&sim);
            (0..commits).for_each(|version| commit(&pool, &mut model, &[(20, version, 3_000)]));
            drop(pool);
            let PoolError::Suspended(_) = sleeper.commit().unwrap_err() else { panic!("{word}, {commits}") };
            let gone = ImportOptions { host_is_gone: true, ..ImportOptions::default() };
            let pool = Kept::import(on_host(3, 4), plan(sim.devices()), &gone).unwrap();
            verify(&pool, &model);
        }
    }
}

#[test]
fn of_two_who_import_at_once_one_gives_up() {
    let (sim, _) = written("mirror", 2);
    let (first, second) = (plan(sim.devices()), plan(sim.devices()));
    let gone = ImportOptions { host_is_gone: true, ..ImportOptions::default() };
    let pool = Kept::import(on_host(2, 3), first, &gone).unwrap();
    let text = refused(Kept::import(on_host(3, 4), second, &gone));
    assert!(text.contains("has imported the pool"), "{text}");
    pool.commit().unwrap();
    assert_whole(&pool, "the first");
}

#[test]
fn imports_whose_heartbeats_are_refused_find_each_other_by_their_roots() {
    find_each_other_by_roots(HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + 512);
}

#[test]
fn imports_whose_first_label_areas_take_nothing_find_each_other_by_the_roots_in_the_second() {
    find_each_other_by_roots(0..LABEL_AREA);
}

fn find_each_other_by_roots(bad: Range<u64>) {
    let gone = ImportOptions { host_is_gone: true, ..ImportOptions::default() };
    for (word, count) in LAYOUTS {
        for commits in [0, 1, 14, 15, 16] {
            let (sim, mut model) = written(word, count);
            (0..count).for_each(|device| sim.device(device).inject(Fault::FailWrites(bad.clone())));
            let sleeper = open(&sim, 2);
            let late = plan(sim.devices());
            let pool = taken_over(&sim);
            (0..commits).for_each(|version| commit(&pool, &mut model, &[(20, version, 3_000)]));
            let PoolError::Suspended(_) = sleeper.commit().unwrap_err() else { panic!("{word}, {commits}") };
            // An import that looked before the other's first root, and goes on after it, gives up as well.
            let text = refused(Kept::import(on_host(3, 4), late, &gone));
            assert!(text.contains("has imported the pool"), "{word}, {commits}: {text}");
            commit(&pool, &mut model, &[(21, 1, 3_000)]);
            drop(pool);
            let pool = Kept::import(on_host(3, 4), plan(sim.devices()), &gone).unwrap();
            verify(&pool, &model);
        }
    }
}

#[test]
fn of_two_first_roots_in_one_place_the_one_that_is_gone_gives_up() {
    let (sim, _) = written("single", 1);
    sim.device(0).inject(Fault::FailWrites(HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + 512));
    let first = open(&sim, 2);
    // Another import that had looked before writes its first root over that of this one.
    let place = ring_slot(label_areas(SIZE)[0], first.store().durable_commit());
    let mut root = Root::check(first.store().sums(), &sim.device(0).image().read(place, RING_SLOT)).unwrap();
    root.incarnation = Incarnation::new(77);
    root.history[0].incarnation = root.incarnation;
    let bytes = Arc::new(AlignedBuf::padded(&root.encode(first.store().sums()).unwrap()));
    sim.device(0).submit(Request::Write { offset: place, data: bytes }).wait().unwrap();
    let PoolError::Suspended(_) = first.commit().unwrap_err() else { panic!("it goes on") };
}

#[test]
fn a_device_that_loses_heartbeats_fences_nobody() {
    let (sim, model) = written("mirror", 2);
    let at = HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + 4096;
    sim.device(0).inject(Fault::LoseWrites(at));
    for seed in 2..5 {
        let pool = open(&sim, seed);
        pool.beat().unwrap();
        pool.commit().unwrap();
        verify(&pool, &model);
    }
}

#[test]
fn the_holder_is_who_imported_last_however_often_an_older_one_beat() {
    let (sim, _) = written("mirror", 2);
    let pool = open(&sim, 2);
    (0..50).for_each(|_| pool.beat().unwrap());
    drop(pool);
    // Device 1 is away while host 2 takes over; it comes back with host 1's many beats.
    let gone = ImportOptions { host_is_gone: true, ..ImportOptions::default() };
    let alone = vec![sim.devices()[0].clone()];
    let pool = Kept::import(on_host(2, 3), plan(alone), &gone).unwrap();
    pool.commit().unwrap();
    let text = refused(Kept::import(on_host(1, 4), plan(sim.devices()), &ImportOptions::default()));
    assert!(text.contains("host-2"), "{text}");
}

#[test]
fn a_heartbeat_of_another_pool_is_not_believed() {
    let (sim, _) = written("single", 1);
    let mut image = sim.images().remove(0);
    let beat = Heartbeat {
        pool: PoolGuid::new(4),
        host: HostId::new(9),
        host_name: "stranger".into(),
        incarnation: Incarnation::new(3),
        beats: 1 << 40,
    };
    image.write(DeviceOffset::new(HEARTBEAT_OFFSET), &beat.encode());
    let sim = SimWorld::from_images(vec![image]);
    let Scan::Member(found) = scan(&sim.devices()[0]) else { panic!("a pool's device") };
    assert_eq!(found.heartbeat, None);
    // The root says whose it is even so.
    assert_eq!(plan(sim.devices()).held_by.map(|beat| beat.host), Some(HostId::new(1)));
}

#[test]
fn an_import_for_reading_writes_nothing() {
    for (word, count) in LAYOUTS {
        let (sim, mut model) = written(word, count);
        let pool = open(&sim, 2);
        commit(&pool, &mut model, &[(12, 7, 9_000)]);
        sync(&pool, &mut Model::new(), &[(12, 8, 9_000)]);
        drop(pool);
        let before = sim.images();
        let options = ImportOptions { read_only: true, ..ImportOptions::default() };
        let pool = Kept::import(world(3), plan(sim.devices()), &options).unwrap();
        verify(&pool, &model);
        assert_whole(&pool, word);
        assert!(matches!(pool.enter().err(), Some(PoolError::ReadOnly)));
        assert!(pool.commit().is_err() && pool.log_sync().is_err());
        drop(pool);
        assert!(sim.images() == before, "{word}");
    }
}

#[test]
fn a_pool_keeps_the_name_that_an_import_gave_it() {
    let (sim, model) = written("mirror", 2);
    let options = ImportOptions { rename: Some("larder".into()), ..ImportOptions::default() };
    let pool = Kept::import(world(3), plan(sim.devices()), &options).unwrap();
    assert_eq!(pool.name(), "larder");
    pool.commit().unwrap();
    drop(pool);
    let pool = open(&sim, 4);
    assert_eq!(
        (pool.name().as_str(), pool.full_name(larder_pool::ROOT_DATASET).as_str()),
        ("larder", "larder")
    );
    verify(&pool, &model);
    let bad = ImportOptions { rename: Some("mirror".into()), ..ImportOptions::default() };
    assert!(Kept::import(world(5), plan(sim.devices()), &bad).is_err());
}

#[test]
fn a_damaged_label_is_served_by_the_other_end_and_two_are_told() {
    let (sim, model) = written("mirror", 2);
    for area in label_areas(SIZE) {
        let sim = SimWorld::from_images(sim.images());
        sim.device(0).flip_bits(area, 4096, 3);
        let plan = plan(sim.devices());
        assert!(plan.devices.iter().all(|device| device.standing == Standing::Current));
        verify(&Kept::import(world(3), plan, &ImportOptions::default()).unwrap(), &model);
    }
    let sim = SimWorld::from_images(sim.images());
    for area in label_areas(SIZE) {
        sim.device(0).flip_bits(area + ByteLen::new(100), 1000, 3);
    }
    assert!(matches!(scan(&sim.devices()[0]), Scan::Damaged(_)));
    verify(&open(&sim, 3), &model);
    // An end that cannot be read at all.
    let sim = SimWorld::from_images(sim.images());
    sim.device(1).inject(Fault::FailReads(0..LABEL_AREA));
    verify(&open(&sim, 3), &model);
}

#[test]
fn a_device_that_grew_is_used_and_one_that_shrank_is_set_aside() {
    let (sim, model) = written("mirror", 2);
    for size in [SIZE.get() + (1 << 20), SIZE.get() + 4096, 2 * SIZE.get()] {
        let mut images = sim.images();
        images[0] = resized(&images[0], size);
        let sim = SimWorld::from_images(images);
        let pool = open(&sim, 2);
        verify(&pool, &model);
        assert!(pool.store().members().iter().all(|member| member.is_online()));
        commit(&pool, &mut model.clone(), &[(10, 50, 100)]);
        drop(pool);
        assert!(plan(sim.devices()).devices.iter().all(|device| device.standing == Standing::Current));
    }
    for size in [SIZE.get() - 4096, SIZE.get() / 2] {
        let mut images = sim.images();
        images[0] = resized(&images[0], size);
        let sim = SimWorld::from_images(images.clone());
        let plan = plan(sim.devices());
        remark(&plan, &["sim0 was cut short", &size.to_string(), &SIZE.get().to_string()]);
        verify(&Kept::import(world(3), plan, &ImportOptions::default()).unwrap(), &model);
        assert!(sim.device(0).image() == images[0]);
    }
}

#[test]
fn features_and_versions_that_are_not_known_are_refused_by_name_or_make_a_pool_readable_only() {
    let (sim, model) = written("single", 1);
    let image = sim.images().remove(0);
    let with = |change: &dyn Fn(&mut Label)| {
        let mut image = image.clone();
        relabel(&mut image, change);
        SimWorld::from_images(vec![image])
    };
    let sim = with(&|label| label.features.compatible = 4);
    verify(&open(&sim, 2), &model);

    let sim = with(&|label| label.features.read_compatible = 2);
    assert_refused(&sim, &["bits 0x2", "only read"]);
    let before = sim.images();
    let options = ImportOptions { read_only: true, ..ImportOptions::default() };
    verify(&Kept::import(world(3), plan(sim.devices()), &options).unwrap(), &model);
    assert!(sim.images() == before);

    for bit in [1, 64] {
        let sim = with(&|label| label.features.incompatible = bit);
        let Scan::Unsupported(Unsupported { why: text, .. }) = scan(&sim.devices()[0]) else {
            panic!("not refused")
        };
        assert!(text.contains(&format!("bits {bit:#x}")), "{text}");
    }

    let mut newer = image.clone();
    of_a_newer_build(&mut newer);
    let sim = SimWorld::from_images(vec![newer]);
    let Scan::Unsupported(Unsupported { why: text, .. }) = scan(&sim.devices()[0]) else {
        panic!("not refused")
    };
    let told = [format!("format version {}", FORMAT_VERSION + 1), format!("reads version {FORMAT_VERSION}")];
    assert!(told.iter().all(|told| text.contains(told)), "{text}");
}

#[test]
fn a_device_without_any_intact_root_is_not_used() {
    let (sim, model) = written("mirror", 2);
    let mut images = sim.images();
    for area in label_areas(SIZE) {
        images[1].write(area + ByteLen::new(RING_OFFSET), &vec![0xA5; (LABEL_AREA - RING_OFFSET) as usize]);
    }
    let sim = SimWorld::from_images(images);
    let plan = plan(sim.devices());
    assert_eq!(plan.devices[1].standing, Standing::Stale(CommitId::new(0)));
    verify(&Kept::import(world(3), plan, &ImportOptions::default()).unwrap(), &model);
}

#[test]
fn a_device_that_fell_out_stays_out_after_it_is_back() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    commit(&pool, &mut model, &[(10, 1, 50_000)]);
    sim.device(1).inject(Fault::FailWrites(0..u64::MAX));
    let before = pool.store().durable_commit();
    commit(&pool, &mut model, &[(10, 2, 50_000)]);
    sim.device(1).clear_faults();
    commit(&pool, &mut model, &[(11, 3, 50_000)]);
    drop(pool);
    let trace = sim.trace();
    let after = SimWorld::from_images(trace.crash_images(trace.len(), Survival::DropAll));
    let plan = plan(after.devices());
    let Standing::Stale(through) = plan.devices[1].standing else { panic!("{:?}", plan.remarks) };
    assert!(through <= before);
    assert_eq!(plan.root.devices[1].good_through, before);
    let pool = Kept::import(world(3), plan, &ImportOptions::default()).unwrap();
    verify(&pool, &model);
}

#[test]
fn a_spare_whose_label_was_rewritten_for_a_place_that_it_did_not_get_comes_back_as_a_spare() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let devices = sim.devices();
    let rule = rule_for("mirror", 2).unwrap();
    let groups = vec![GroupSpec::data(rule, devices[..2].to_vec())];
    let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
    let spare = pool.upkeep.devices.add_spare(Arc::clone(&devices[2])).unwrap();
    drop(pool);
    // Power fails between the label and the boundary at which the spare was to join.
    let mut images = sim.images();
    let place = Label::check(&images[0].read(label_areas(SIZE)[0], 4096)).unwrap();
    relabel(&mut images[2], |label| {
        (label.index, label.group, label.rule) = (DeviceIndex::new(3), place.group, place.rule);
        (label.slot_size, label.slot_count) = (place.slot_size, place.slot_count);
    });
    let sim = SimWorld::from_images(images);
    let pool = open(&sim, 2);
    let Scan::Member(found) = scan(&sim.devices()[2]) else { panic!("a pool's device") };
    pool.upkeep.devices.online(spare, Some(*found)).unwrap();
    pool.commit().unwrap();
    let spares: Vec<_> = pool.store().members().spares().iter().map(|spare| spare.index).collect();
    assert_eq!(spares, [spare]);
    drop(pool);
    let plan = plan(sim.devices());
    let standings: Vec<_> = plan.devices.iter().map(|device| device.standing.clone()).collect();
    assert_eq!(standings, [Standing::Current, Standing::Current, Standing::Spare]);
}

#[test]
fn a_device_whose_last_slots_would_reach_into_its_second_label_area_is_too_small_to_replace_another() {
    let [old, short, enough] = [66 << 20, (65 << 20) + (60 << 10), 66 << 20].map(ByteLen::new);
    for (size, fits) in [(short, false), (enough, true)] {
        let sim = SimWorld::new(&[old, size]);
        let devices = sim.devices();
        let groups = vec![GroupSpec::data(rule_for("single", 1).unwrap(), devices[..1].to_vec())];
        let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 16 }).unwrap();
        let first = pool.store().members().iter().next().unwrap().index;
        let replaced = pool.upkeep.devices.replace(first, Arc::clone(&devices[1]));
        assert_eq!(replaced.is_ok(), fits, "{size:?}");
        if let Err(error) = replaced {
            assert!(error.to_string().contains("too small"), "{error}");
            continue;
        }
        drop(pool);
        assert!(matches!(scan(&sim.devices()[1]), Scan::Member(_)));
    }
}

#[test]
fn a_pool_that_has_no_numbers_left_for_groups_and_devices_says_so() {
    let (sim, model) = written("single", 1);
    let spare = SimWorld::new(&[SIZE]);
    let full = |change: fn(&mut larder_format::root::Root)| {
        let mut plan = plan(sim.devices());
        change(&mut plan.root);
        Kept::import(world(9), plan, &ImportOptions::default()).unwrap()
    };
    let spec = || GroupSpec::data(rule_for("single", 1).unwrap(), spare.devices());
    let pool = full(|root| root.next_group = u16::MAX);
    let error = pool.upkeep.reshape.add_group(spec()).unwrap_err().to_string();
    assert!(error.contains("numbers for"), "{error}");
    drop(pool);
    let pool = full(|root| root.next_device = u16::MAX - 1);
    let error = pool.upkeep.reshape.add_group(spec()).unwrap_err().to_string();
    assert!(error.contains("numbers for"), "{error}");
    drop(pool);
    verify(&open(&sim, 3), &model);
}

#[test]
fn numbers_of_devices_and_groups_are_not_given_twice() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20); 4]);
    let devices = sim.devices();
    let groups = vec![GroupSpec::data(rule_for("single", 1).unwrap(), devices[..1].to_vec())];
    let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
    let spare = pool.upkeep.devices.add_spare(Arc::clone(&devices[1])).unwrap();
    pool.upkeep.reshape.remove(spare).unwrap();
    drop(pool);
    let plan = plan(devices[..1].to_vec());
    assert_eq!((plan.root.next_device, plan.root.next_group), (2, 1));
    let pool = Kept::import(world(2), plan, &ImportOptions::default()).unwrap();
    let next = pool.upkeep.devices.add_spare(Arc::clone(&devices[2])).unwrap();
    assert!(next > spare, "{next} was another device's");
}

/// The ends of the leases of block and of segment ids.
#[test]
fn ages_are_counted_in_ids_that_were_given_out_over_any_number_of_imports() {
    let (sim, mut model) = written("single", 1);
    let clock_of = |plan: &Importable| {
        let import = &plan.root.history[0];
        import.first_block.get() - import.skipped
    };
    let mut clock = None;
    for turn in 0..40 {
        let pool = open(&sim, 50 + turn);
        let found = plan(sim.devices());
        assert!(clock.is_none_or(|clock| clock == clock_of(&found)), "import {turn}: {clock:?}");
        let first = pool.store().next_block().get();
        commit(&pool, &mut model, &files(20, 3, turn));
        clock = Some(clock_of(&found) + pool.store().next_block().get() - first);
        if turn % 3 == 0 {
            // Ids given out after the last commit do not count.
            try_put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &files(30, 2, turn)).unwrap();
        }
    }
    let pool = open(&sim, 2);
    verify(&pool, &model);
    assert_whole(&pool, "40 imports");
    let root = plan(sim.devices()).root;
    assert_eq!(root.history.len(), 32);
    assert!(
        root.history.is_sorted_by(
            |newer, older| newer.first_block > older.first_block && newer.skipped > older.skipped
        )
    );
    // Ids are few, and where they begin is not.
    assert!(clock.unwrap() < 20_000 && root.block_lease.get() > 1 << 40, "{clock:?}, {}", root.block_lease);
}

/// The device's label as a newer build would have written it.
fn of_a_newer_build(image: &mut DeviceImage) {
    for area in label_areas(SIZE) {
        let mut bytes = image.read(area, 4096);
        bytes[8] = FORMAT_VERSION as u8 + 1;
        let end = bytes.len() - 8;
        let sum = larder_format::checksum::plain64(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        image.write(area, &bytes);
    }
}

/// Writes the newest root anew, changed.
fn reroot(image: &mut DeviceImage, change: impl Fn(&mut Root)) {
    let areas = label_areas(image.size());
    let label = Label::check(&image.read(areas[0], 4096)).unwrap();
    let sums = Sums::new(label.pool, label.key);
    let slots = (0..RING_SLOTS).map(|commit| ring_slot(areas[0], CommitId::new(commit)));
    let roots = slots.filter_map(|at| Root::check(&sums, &image.read(at, RING_SLOT)).ok());
    let mut root = roots.max_by_key(|root| root.commit).unwrap();
    change(&mut root);
    let mut bytes = root.encode(&sums).unwrap();
    bytes.resize(RING_SLOT, 0);
    areas.iter().for_each(|&area| image.write(ring_slot(area, root.commit), &bytes));
}

#[test]
fn a_half_is_not_written_beside_one_that_a_newer_build_wrote() {
    let (sim, model) = written("mirror", 2);
    let stale = sim.images().remove(0);
    let pool = open(&SimWorld::from_images(sim.images()), 2);
    drop(pool);
    let feature = |image: &mut DeviceImage| reroot(image, |root| root.features.incompatible = 1 << 40);
    let of_root = "bits 0x10000000000";
    let of_label = format!("format version {}", FORMAT_VERSION + 1);
    for told in [&*of_label, of_root] {
        let mut newer = sim.images().remove(1);
        if told == of_root {
            feature(&mut newer)
        } else {
            of_a_newer_build(&mut newer)
        }
        let sim = SimWorld::from_images(vec![stale.clone(), newer]);
        let Scan::Unsupported(other) = scan(&sim.devices()[1]) else { panic!("{told} is not refused") };
        let plan = || {
            let mut plan = plan(sim.devices()[..1].to_vec());
            assert!(plan.complete);
            plan.heed(std::slice::from_ref(&other));
            plan
        };
        let before = sim.images();
        let text = refused(Kept::import(world(3), plan(), &ImportOptions::default()));
        for word in ["sim1", told, "newer build"] {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
        let options = ImportOptions { read_only: true, ..ImportOptions::default() };
        verify(&Kept::import(world(3), plan(), &options).unwrap(), &model);
        assert!(sim.images() == before);
    }
}

#[test]
fn features_of_a_root_count_as_those_of_labels_do() {
    let (sim, model) = written("mirror", 2);
    let with = |change: &dyn Fn(&mut Root)| {
        let mut images = sim.images();
        images.iter_mut().for_each(|image| reroot(image, change));
        SimWorld::from_images(images)
    };
    verify(&open(&with(&|root| root.features.compatible = 4), 2), &model);
    assert_refused(&with(&|root| root.features.read_compatible = 2), &["bits 0x2", "only read"]);
    // A root that was damaged is none of a newer build.
    let mut images = sim.images();
    for area in label_areas(SIZE) {
        (0..RING_SLOTS).for_each(|commit| {
            let at = ring_slot(area, CommitId::new(commit));
            let mut bytes = images[1].read(at, 4096);
            bytes[8] ^= 0x40;
            images[1].write(at, &bytes);
        });
    }
    assert!(matches!(scan(&SimWorld::from_images(images).devices()[1]), Scan::Member(_)));
}

#[test]
fn a_bad_sector_in_a_label_area_costs_nothing_but_what_lies_there() {
    for word in ["single", "mirror"] {
        let count = if word == "single" { 1 } else { 2 };
        let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        for version in 0..5 {
            commit(&pool, &mut model, &files(10, 5, version));
        }
        let newest = pool.store().durable_commit();
        drop(pool);
        // Behind a root, in a place that none uses, and the heartbeat's.
        let ring = |place: u64, at: u64| RING_OFFSET + place * RING_SLOT as u64 + at;
        let last = RING_SLOT as u64 - 4096;
        for at in [ring(newest.get() % RING_SLOTS, last), ring(13, 0), HEARTBEAT_OFFSET] {
            let broken = SimWorld::from_images(sim.images());
            for device in 0..count {
                for area in label_areas(ByteLen::new(64 << 20)) {
                    let from = area.get() + at;
                    broken.device(device).inject(Fault::FailReads(from..from + 4096));
                }
            }
            let found = plan(broken.devices());
            assert_eq!((found.root.commit, found.complete), (newest, true), "{word}, {at}");
            verify(&open(&broken, 2), &model);
        }
        // The newest root's first place: the second has it.
        let broken = SimWorld::from_images(sim.images());
        let from = ring(newest.get() % RING_SLOTS, 0);
        (0..count).for_each(|device| broken.device(device).inject(Fault::FailReads(from..from + 4096)));
        assert_eq!(plan(broken.devices()).root.commit, newest, "{word}");
        // Nothing of one area.
        let broken = SimWorld::from_images(sim.images());
        broken.device(0).inject(Fault::FailReads(0..LABEL_AREA));
        verify(&open(&broken, 2), &model);
    }
}
