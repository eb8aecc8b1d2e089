//! Devices that grow, and larger ones that take the place of others.

use super::*;

/// Layouts whose devices grow: word, devices, losses survived.
const GROWN: [(&str, usize, usize); 4] =
    [("mirror", 2, 1), ("raidz1", 3, 1), ("raid14", 5, 2), ("stripe", 2, 0)];

/// One device after the other grows to twice its size.
pub fn grow(pool: &Kept, sim: &SimWorld, count: usize) {
    for index in 0..count {
        sim.device(index).grow_to(ByteLen::new(2 * SIZE.get()));
    }
    assert_eq!(pool.upkeep.devices.expandable(RECORD).devices.len(), count);
    for index in 0..count {
        let expanded = pool.upkeep.devices.expand(device(index as u16)).unwrap();
        assert_eq!(expanded.bytes, SIZE.get());
        assert_eq!(pool.upkeep.devices.expand(device(index as u16)).unwrap().bytes, 0, "it is known");
    }
    assert_eq!(pool.upkeep.devices.expandable(RECORD).bytes, 0);
}

#[test]
fn devices_that_have_grown_are_used_whole_and_can_be_lost_like_others() {
    for (word, count, losses) in GROWN {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let groups = if word == "stripe" { count } else { 1 };
        let rule = rule_for(if groups > 1 { "single" } else { word }, count / groups).unwrap();
        let groups =
            sim.devices().chunks(count / groups).map(|of| GroupSpec::data(rule, of.to_vec())).collect();
        let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        let mut model = Model::new();
        let next = fill(&pool, &mut model, 16, 100);
        let (full, empty) = (available(&pool), pool.store().size_with(RECORD, GroupIndex::new(99), None));
        grow(&pool, &sim, count);
        let (now, size) = (available(&pool), pool.store().size_with(RECORD, GroupIndex::new(99), None));
        println!("{word}: AVAIL {full}, {now} of {size} after, {empty} before");
        assert!(
            size > 2 * empty && now > full + empty,
            "{word}: AVAIL {now} of {size}, {full} of {empty} before"
        );
        fill(&pool, &mut model, next, 100);
        assert!(available(&pool) < size / 20, "{word}: {} of {size} are left", available(&pool));
        rebalance(&pool);
        assert_whole(&pool, word);
        verify(&pool, &model);
        assert_survives(&sim, &(0..count).collect::<Vec<_>>(), losses, &model, word);
        drop(pool);
        let pool = import(&SimWorld::from_images(sim.images()), 5).unwrap();
        replay(&pool);
        verify(&pool, &model);
        assert_eq!(pool.store().size_with(RECORD, GroupIndex::new(99), None), size, "{word}");
        assert_whole(&pool, word);
    }
}

#[test]
fn a_larger_device_that_took_anothers_place_is_used_whole() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    let next = fill(&pool, &mut model, 16, 90);
    let before = available(&pool);
    pool.set_pool_property("autoexpand", "on").unwrap();
    for index in 0..3 {
        let new = Arc::new(sim.add_device(ByteLen::new(2 * SIZE.get())));
        pool.upkeep.devices.replace(device(index), new).unwrap();
        pool.upkeep.devices.expand_by_itself().unwrap();
        while pool.upkeep.resilver.step(1 << 20).unwrap() {}
        pool.upkeep.devices.expand_by_itself().unwrap();
        let gained = available(&pool) > before + SIZE.get();
        assert_eq!(gained, index == 2, "after {index}: AVAIL {}", available(&pool));
    }
    fill(&pool, &mut model, next, 95);
    assert_whole(&pool, "replaced");
    verify(&pool, &model);
    assert_survives(&sim, &[3, 4, 5], 1, &model, "replaced");
}

#[test]
fn only_devices_that_are_in_use_as_a_whole_are_expanded() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 20);
    let refused = |index| {
        let error = pool.upkeep.devices.expand(device(index)).unwrap_err();
        assert!(matches!(error, PoolError::Refused(_)), "{error}");
    };
    (0..3).for_each(|index| sim.device(index).grow_to(ByteLen::new(2 * SIZE.get())));
    pool.upkeep.devices.offline(device(1), false).unwrap();
    refused(1);
    pool.upkeep.devices.online(device(1), None).unwrap();
    refused(1);
    while pool.upkeep.resilver.step(1 << 20).unwrap() {}
    let new = Arc::new(sim.add_device(SIZE));
    let stand_in = pool.upkeep.devices.replace(device(1), new).unwrap();
    refused(1);
    refused(stand_in.get());
    // Its new end cannot be written: it is used as before.
    let end = 2 * SIZE.get() - (1 << 20);
    sim.device(0).inject(Fault::FailWrites(end..end + (1 << 20)));
    let failed = pool.upkeep.devices.expand(device(0)).unwrap_err();
    assert!(matches!(failed, PoolError::Device { .. }), "{failed}");
    sim.device(0).clear_faults();
    assert_eq!(
        pool.upkeep.devices.expand(device(0)).unwrap(),
        Expanded { bytes: SIZE.get(), is_of_use: false }
    );
    pool.upkeep.reshape.detach(stand_in).unwrap();
    // Two that are larger make segments with one another.
    assert!(pool.upkeep.devices.expand(device(1)).unwrap().is_of_use);
    assert!(pool.upkeep.devices.expand(device(2)).unwrap().is_of_use);
    fill(&pool, &mut model, 4_000, 50);
    assert_whole(&pool, "refused and done");
    verify(&pool, &model);
    assert_survives(&sim, &[0, 1, 2], 1, &model, "refused and done");
}

#[test]
fn what_a_device_has_grown_by_may_have_been_anothers() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 50);
    drop(pool);
    // A pool's second label area at the new end, of a disk that was as large.
    let other = SimWorld::new(&[ByteLen::new(3 * SIZE.get())]);
    let theirs = create(&other, "single");
    // Written more often than ours.
    (0..3).for_each(|number| theirs.rename(&format!("other{number}")).unwrap());
    drop(theirs);
    let mut image = other.images().remove(0);
    let own = sim.images().remove(0);
    let bytes = own.read(DeviceOffset::new(0), SIZE.get() as usize);
    image.write(DeviceOffset::new(0), &bytes);
    let sim = SimWorld::from_images(vec![image]);
    let pool = import(&sim, 3).unwrap();
    replay(&pool);
    verify(&pool, &model);
    assert_eq!(pool.upkeep.devices.expand(device(0)).unwrap().bytes, 2 * SIZE.get());
    fill(&pool, &mut model, 4_000, 90);
    drop(pool);
    let pool = import(&SimWorld::from_images(sim.images()), 4).unwrap();
    replay(&pool);
    verify(&pool, &model);
    assert_whole(&pool, "grown over another pool's end");
}
