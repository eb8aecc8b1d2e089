//! Pools that get another GUID, and mirrors that are split into two pools.

use super::*;

/// The pools on these devices.
fn pools_on(devices: Vec<Arc<dyn Device>>) -> Vec<Importable> {
    let found = devices.iter().filter_map(|device| match scan(device) {
        Scan::Member(found) => Some(*found),
        _ => None,
    });
    assemble(found.collect())
}

/// Imports what was split off.
fn import_half(devices: Vec<Arc<dyn Device>>, seed: u64) -> Kept {
    let mut plans = pools_on(devices);
    assert_eq!(plans.len(), 1, "one pool is there");
    let mut plan = plans.remove(0);
    plan.split_off(PoolGuid::new(4242));
    let options = ImportOptions { rename: Some("half".into()), ..ImportOptions::default() };
    let half = Kept::import(world(seed), plan, &options).unwrap();
    replay(&half);
    half.commit().unwrap();
    half
}

#[test]
fn mirrors_are_split_into_two_pools_that_go_on_side_by_side() {
    for copies in [2, 3] {
        let sim = SimWorld::new(&vec![SIZE; 2 * copies]);
        let rule = rule_for("mirror", copies).unwrap();
        let groups = sim.devices().chunks(copies).map(|of| GroupSpec::data(rule, of.to_vec())).collect();
        let pool = Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        let mut model = Model::new();
        let next = fill(&pool, &mut model, 16, 40);
        sync(&pool, &mut model, &files(90_000, 3, 2));
        let named = [device(0)];
        assert!(pool.upkeep.devices.choose_half(&[device(0), device(1)]).is_err(), "two of one");
        let devices = pool.upkeep.devices.let_half_go(&named).unwrap();
        let names: Vec<_> = devices.iter().map(|device| device.name()).collect();
        assert_eq!(names, ["sim0".to_owned(), format!("sim{}", 2 * copies - 1)]);
        assert_eq!(pool.store().losses_survived(), copies - 2);
        assert!(!pool.upkeep.reshape.is_due(), "nothing is to be moved");
        let half = import_half(devices, 9);
        let mut other = model.clone();
        verify(&half, &other);
        assert!(!half.upkeep.reshape.is_due(), "nothing is to be moved");
        // Both go on.
        fill(&pool, &mut model, next, 40);
        fill(&half, &mut other, next + 7, 40);
        thin_out(&half, &mut other);
        for (pool, model, case) in [(&pool, &model, "what stayed"), (&half, &other, "the half")] {
            verify(pool, model);
            assert_whole(pool, case);
        }
        assert!(matches!(
            half.upkeep.devices.let_half_go(&[]),
            Err(PoolError::Refused(Refusal::NoMirror(_)))
        ));
        drop((pool, half));
        // Side by side they are two pools, each complete.
        let after = SimWorld::from_images(sim.images());
        let plans = pools_on(after.devices());
        assert_eq!(plans.len(), 2);
        for plan in plans {
            assert!(plan.complete && plan.refusal.is_none(), "{}: {:?}", plan.name, plan.remarks);
            let (name, is_half) = (plan.name.clone(), plan.guid == PoolGuid::new(4242));
            assert_eq!(name, if is_half { "half" } else { "tank" });
            let pool = Kept::import(world(11), plan, &ImportOptions::default()).unwrap();
            replay(&pool);
            verify(&pool, if is_half { &other } else { &model });
            pool.commit().unwrap();
            assert_whole(&pool, &name);
            // A new copy, and what named the other half is let go of when nothing lies there any more.
            if copies == 2 {
                let new = new_devices(&after, 1);
                pool.upkeep.reshape.attach(device(if is_half { 0 } else { 1 }), new).unwrap();
                while pool.upkeep.resilver.step(1 << 20).unwrap() {}
                reshape(&pool);
                verify(&pool, if is_half { &other } else { &model });
                assert_whole(&pool, &name);
            }
        }
    }
}

#[test]
fn a_mirror_is_not_split_before_both_halves_have_everything() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 40);
    pool.upkeep.reshape.attach(device(0), new_devices(&sim, 1)).unwrap();
    for named in [device(0), device(1)] {
        let refused = pool.upkeep.devices.let_half_go(&[named]).err().expect("a refusal");
        assert!(matches!(refused, PoolError::Refused(Refusal::NotCopied)), "{refused}");
    }
    reshape(&pool);
    // One that dies in the commit at whose end they would part.
    sim.device(0).inject(Fault::FailFlushes);
    let refused = pool.upkeep.devices.let_half_go(&[device(1)]).err().expect("a refusal");
    assert!(matches!(refused, PoolError::Refused(Refusal::NotWhole(_))), "{refused}");
    sim.device(0).clear_faults();
    assert!(pool.store().suspended().is_none());
    verify(&pool, &model);
    pool.upkeep.devices.clear(None).unwrap();
    while pool.upkeep.resilver.step(1 << 20).unwrap() {}
    drop(import_half(pool.upkeep.devices.let_half_go(&[device(0)]).unwrap(), 5));
    verify(&pool, &model);
    assert_whole(&pool, "what stayed");
}

#[test]
fn a_pool_with_another_guid_is_one_beside_its_copy() {
    let sim = SimWorld::new(&[SIZE; 3]);
    let pool = create(&sim, "raidz1");
    let mut model = Model::new();
    fill(&pool, &mut model, 16, 30);
    pool.commit().unwrap();
    let copy = SimWorld::from_images(sim.images());
    pool.upkeep.devices.offline(device(1), true).unwrap();
    assert!(matches!(pool.upkeep.devices.reguid(), Err(PoolError::Refused(Refusal::NotWhole(_)))));
    pool.upkeep.devices.online(device(1), None).unwrap();
    while pool.upkeep.resilver.step(1 << 20).unwrap() {}
    let guid = pool.upkeep.devices.reguid().unwrap();
    assert_eq!(pool.store().identity(), guid);
    sync(&pool, &mut model, &files(90_000, 3, 2));
    drop(pool);
    let mut plans = pools_on(sim.devices().into_iter().chain(copy.devices()).collect());
    assert_eq!(plans.len(), 2);
    for plan in &plans {
        assert!(plan.complete && plan.refusal.is_none(), "{:?} {:?}", plan.remarks, plan.refusal);
    }
    plans.retain(|plan| plan.guid == guid);
    let pool = Kept::import(world(5), plans.remove(0), &ImportOptions::default()).unwrap();
    replay(&pool);
    pool.commit().unwrap();
    verify(&pool, &model);
    assert_whole(&pool, "known by another guid");
}

#[test]
fn power_cuts_while_a_pool_gets_another_guid_or_is_split_leave_whole_pools() {
    for (word, count, splits) in [("raidz1", 3, false), ("single", 1, false), ("mirror", 2, true)] {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let mut model = Model::new();
        commit(&pool, &mut model, &files(10, 40, 1));
        sync(&pool, &mut model, &files(80, 3, 2));
        let start = sim.trace().len();
        let mut split_off = usize::MAX;
        if splits {
            let half = import_half(pool.upkeep.devices.let_half_go(&[]).unwrap(), 9);
            split_off = sim.trace().len();
            drop(half);
        } else {
            pool.upkeep.devices.reguid().unwrap();
        }
        pool.commit().unwrap();
        drop(pool);
        let trace = sim.trace();
        let mut sweep = trace.sweep();
        for cut in start..=trace.len() {
            sweep.advance_to(cut);
            let after = SimWorld::from_images(sweep.images(Survival::Random { seed: cut as u64 }));
            let case = format!("{word}: cut at {cut} of {}", trace.len());
            let plans = pools_on(after.devices());
            let usable = plans.into_iter().filter(|plan| plan.complete);
            let mut names = Vec::new();
            for plan in usable {
                names.push(plan.name.clone());
                assert!(plan.refusal.is_none(), "{case}: {:?}", plan.refusal);
                let pool = Kept::import(world(7), plan, &ImportOptions::default())
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
                replay(&pool);
                verify(&pool, &model);
                pool.commit().unwrap();
                assert_whole(&pool, &case);
            }
            names.sort();
            match splits && cut >= split_off {
                true => assert_eq!(names, ["half", "tank"], "{case}"),
                false => assert!(names.contains(&"tank".to_owned()), "{case}: {names:?}"),
            }
        }
    }
}
