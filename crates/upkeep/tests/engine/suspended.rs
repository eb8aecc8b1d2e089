//! Pools whose devices refuse writes: they are suspended, what can be read is read, and when the cause is gone they go
//! on with all that was accepted.

use crate::common::*;
use larder_format::{ByteLen, DatasetId, DeviceIndex};
use larder_pool::{Pool, PoolError, ROOT_DATASET};
use larder_sim::{Fault, SimWorld, Survival};
use std::collections::BTreeMap;

/// Layouts of few devices.
const SMALL: [(&str, usize); 5] = [("single", 1), ("mirror", 2), ("raidz1", 3), ("raid10", 4), ("raid14", 5)];
const SIZE: ByteLen = ByteLen::new(64 << 20);

fn world_of(word: &str, count: usize) -> (SimWorld, Kept, Model) {
    let sim = SimWorld::new(&vec![SIZE; count]);
    let pool = create(&sim, word);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 12, 1));
    (sim, pool, model)
}

fn inject(sim: &SimWorld, fault: &Fault, spare: u64, strikes: u64) {
    (0..sim.devices().len()).for_each(|at| sim.device(at).inject_window(fault.clone(), spare, strikes));
}

fn heal(sim: &SimWorld) {
    (0..sim.devices().len()).for_each(|at| sim.device(at).clear_faults());
}

/// Puts, syncs and commits until the pool refuses; gives what was accepted, in the end and when something was last
/// promised, and the refusal.
fn work_until_refused(pool: &Pool, model: &mut Model) -> (Model, PoolError) {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let mut promised = model.clone();
    for version in 2..40 {
        let files = files(10 + version % 5, 9, version);
        if let Err(error) = try_put(pool, &dataset, &files) {
            return (promised, error);
        }
        model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
        let synced = if version % 3 == 0 {
            let op = pool.enter();
            let noted = op.and_then(|op| {
                dataset.update(&op, |tree| {
                    files.iter().for_each(|file| tree.log(logged(*file)));
                    Ok::<_, PoolError>(())
                })
            });
            noted.and_then(|()| pool.log_sync()).map(|()| version % 2 == 0)
        } else {
            pool.commit().map(|_| true)
        };
        match synced {
            Ok(true) => promised = model.clone(),
            Ok(false) => {}
            Err(error) => return (promised, error),
        }
    }
    panic!("nothing was refused");
}

#[test]
fn a_pool_on_a_full_file_system_is_read_and_goes_on_with_all_that_was_accepted_when_there_is_room() {
    let mut at_stake = 0;
    for (at, (word, count)) in SMALL.into_iter().enumerate() {
        for spare in (at as u64..60).step_by(23) {
            let case = format!("{word} of {count}, {spare} writes to spare");
            let (sim, pool, mut model) = world_of(word, count);
            inject(&sim, &Fault::Full, spare, u64::MAX);
            let (_, refused) = work_until_refused(&pool, &mut model);
            assert!(matches!(refused, PoolError::HostFull(_)), "{case}: {refused}");
            let why = pool.store().suspended().unwrap();
            assert!(why.contains("full") && why.contains("sim"), "{case}: {why}");
            at_stake += u32::from(pool.at_stake().is_some());
            pool.store().drop_caches();
            verify(&pool, &model);

            let refused = pool.upkeep.devices.clear(None);
            assert!(matches!(refused, Err(PoolError::HostFull(_))), "{case}: it is still full: {refused:?}");
            assert!(pool.store().suspended().is_some() && pool.store().may_resume(), "{case}");
            pool.store().drop_caches();
            verify(&pool, &model);

            heal(&sim);
            pool.upkeep.devices.clear(None).unwrap_or_else(|error| panic!("{case}: {error}"));
            while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
            assert_eq!((pool.store().suspended(), pool.at_stake()), (None, None), "{case}");
            pool.store().drop_caches();
            verify(&pool, &model);
            sync(&pool, &mut model, &files(40, 3, 50));
            commit(&pool, &mut model, &files(50, 3, 51));
            assert_whole(&pool, &case);
            drop(pool);
            let trace = sim.trace();
            let mut sweep = trace.sweep();
            sweep.advance_to(trace.len());
            let after = open(&SimWorld::from_images(sweep.images(Survival::DropAll)), 2);
            verify(&after, &model);
            assert_whole(&after, &case);
        }
    }
    // It may also be refused just when all is durable.
    assert!(at_stake > 5, "exports would drop something: {at_stake}");
}

#[test]
fn writes_that_fail_for_a_while_suspend_until_clear_and_no_power_cut_loses_a_promise() {
    for (at, (word, count)) in SMALL.into_iter().enumerate() {
        for spare in (at as u64 * 3..40).step_by(19) {
            let case = format!("{word} of {count}, {spare} writes to spare");
            let (sim, pool, mut model) = world_of(word, count);
            let start = sim.trace().len();
            sim.mark(0);
            let mut promised = vec![model.clone()];
            inject(&sim, &Fault::FailWrites(0..u64::MAX), spare, u64::MAX);
            let (synced, refused) = work_until_refused(&pool, &mut model);
            assert!(matches!(refused, PoolError::Suspended(_)), "{case}: {refused}");
            promised.push(synced);
            sim.mark(1);
            heal(&sim);
            pool.upkeep.devices.clear(None).unwrap_or_else(|error| panic!("{case}: {error}"));
            promised.push(model.clone());
            sim.mark(2);
            commit(&pool, &mut model, &files(40, 3, 50));
            while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
            assert_whole(&pool, &case);
            drop(pool);

            let trace = sim.trace();
            let mut sweep = trace.sweep();
            for cut in (start + spare as usize % 7..=trace.len()).step_by(7) {
                sweep.advance_to(cut);
                let survival =
                    [Survival::DropAll, Survival::KeepAll, Survival::Random { seed: cut as u64 }][cut % 3];
                let Some(mark) = trace.marks_before(cut).last() else { continue };
                let after = import(&SimWorld::from_images(sweep.images(survival)), 2);
                let after = after.unwrap_or_else(|error| {
                    panic!(
                        "{case}, cut {cut} of {start}..{}, mark {mark}, {survival:?}: {error}",
                        trace.len()
                    )
                });
                replay(&after);
                let found = contents(&after).unwrap_or_else(|error| panic!("{case}, cut {cut}: {error}"));
                let older =
                    promised[mark as usize].iter().find(|(inode, (version, _))| found[*inode].0 < *version);
                assert_eq!(older, None, "{case}, cut {cut}, {survival:?}");
            }
        }
    }
}

#[test]
fn after_a_flush_that_failed_nobody_goes_on_as_if_nothing_were_lost() {
    let (sim, pool, mut model) = world_of("single", 1);
    sim.device(0).inject_window(Fault::FailFlushes, 0, 1);
    let before = model.clone();
    let (_, refused) = work_until_refused(&pool, &mut model);
    assert!(matches!(refused, PoolError::Suspended(_)), "{refused}");
    assert!(!pool.store().may_resume());
    let refused = pool.upkeep.devices.clear(None).unwrap_err().to_string();
    assert!(refused.contains("cannot be completed"), "{refused}");
    drop(pool);
    let after = open(&SimWorld::from_images(sim.images()), 2);
    replay(&after);
    assert_whole(&after, "the last commit");
    assert!(before.keys().all(|inode| contents(&after).unwrap().contains_key(inode)));
}

#[test]
fn a_device_of_a_suspended_pool_comes_back_by_clear_alone_and_a_flush_that_fails_then_is_not_forgotten() {
    let (sim, pool, mut model) = world_of("single", 1);
    sim.device(0).inject_window(Fault::FailWrites(0..u64::MAX), 4, u64::MAX);
    let (_, refused) = work_until_refused(&pool, &mut model);
    assert!(matches!(refused, PoolError::Suspended(_)), "{refused}");
    assert!(pool.store().may_resume(), "no flush failed");
    // Writes before the one that was refused are not flushed, and this flush loses them.
    heal(&sim);
    sim.device(0).inject_window(Fault::FailFlushes, 0, 1);
    let told = pool.upkeep.devices.online(DeviceIndex::new(0), None).unwrap_err();
    assert!(matches!(told, PoolError::Suspended(_)), "{told}");
    assert!(pool.store().may_resume(), "nobody asked it for a flush");
    pool.upkeep.devices.clear(None).unwrap_err();
    let told = pool.upkeep.devices.clear(None).unwrap_err().to_string();
    assert!(told.contains("cannot be completed"), "{told}");
}

#[test]
fn a_commit_that_cannot_read_the_tables_for_a_while_goes_on_and_loses_nothing() {
    let mut suspended = 0;
    for strikes in [2, 400] {
        for spare in 0..10 {
            let case = format!("{strikes} reads fail, {spare} to spare");
            let (sim, pool, mut model) = world_of("single", 1);
            for number in 0..120 {
                pool.create_dataset(
                    &format!("tank/d{number}"),
                    [("compression".into(), "lz4".into())].into(),
                )
                .unwrap();
            }
            pool.commit().unwrap();
            let dataset = pool.dataset(ROOT_DATASET).unwrap();
            for version in 2..6 {
                let some = files(10, 12, version);
                put(&pool, &dataset, &some);
                model.extend(some.iter().map(|&(inode, version, len)| (inode, (version, len))));
                pool.set_property(ROOT_DATASET, "compression", "zstd-3").unwrap();
                pool.store().drop_caches();
                sim.device(0).inject_window(Fault::FailReads(0..u64::MAX), spare, strikes);
                let committed = pool.commit();
                sim.device(0).clear_faults();
                if strikes == 2 {
                    committed.unwrap_or_else(|error| panic!("{case}: {error}"));
                    continue;
                }
                if pool.store().suspended().is_some() {
                    suspended += 1;
                    assert!(pool.store().may_resume(), "{case}: {:?}", pool.store().suspended());
                    pool.upkeep.devices.clear(None).unwrap_or_else(|error| panic!("{case}: {error}"));
                }
            }
            pool.commit().unwrap();
            assert_whole(&pool, &case);
            verify(&pool, &model);
            drop((dataset, pool));
            let after = open(&SimWorld::from_images(sim.images()), 2);
            assert_whole(&after, &case);
            verify(&after, &model);
            assert_eq!(after.datasets().len(), 121, "{case}");
        }
    }
    assert!(suspended > 2, "commits were cut short: {suspended}");
}

#[test]
fn a_device_that_was_gone_may_lack_what_was_not_flushed_and_its_pool_does_not_go_on_with_it() {
    for (word, count) in SMALL {
        let (sim, pool, mut model) = world_of(word, count);
        inject(&sim, &Fault::Gone, 20, u64::MAX);
        let (_, refused) = work_until_refused(&pool, &mut model);
        assert!(matches!(refused, PoolError::Suspended(_)), "{word}: {refused}");
        heal(&sim);
        assert!(!pool.store().may_resume() && pool.upkeep.devices.clear(None).is_err(), "{word}");
        assert!(pool.store().suspended().is_some(), "{word}");
    }
}

#[test]
fn a_commit_that_cannot_read_the_tables_takes_all_snapshots_that_were_asked_for_together_or_none() {
    const GROUP: &str = "together";
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let names = ["tank/a", "tank/b", "tank/c"];
    let datasets = names.map(|name| pool.create_dataset(name, BTreeMap::new()).unwrap());
    // Each has entries of its own besides.
    let attached =
        BTreeMap::from([("a:note".to_owned(), "-".repeat(300)), ("b:note".to_owned(), "short".to_owned())]);
    // Snapshots of each are on nodes of their own, so that the group needs several.
    for round in 0..80 {
        let long = format!("{round}{}", "-".repeat(200));
        let all = datasets.iter().map(|of| (of.id(), long.clone())).collect();
        pool.snapshot_all(all, attached.clone()).unwrap();
    }
    let ids = datasets.map(|dataset| dataset.id());
    drop(pool);
    let images = sim.images();
    let wanted = || ids.map(|id| (id, GROUP.to_owned())).to_vec();
    let taken = |pool: &Pool| {
        let has = |id: &&DatasetId| pool.snapshots(**id).iter().any(|snapshot| snapshot.name == GROUP);
        ids.iter().filter(has).count()
    };
    let after_cut = |sim: &SimWorld, survival| {
        let trace = sim.trace();
        let mut sweep = trace.sweep();
        sweep.advance_to(trace.len());
        open(&SimWorld::from_images(sweep.images(survival)), 3)
    };
    let mut halves = 0;
    for spare in 0.. {
        let case = format!("{spare} reads to spare");
        let sim = SimWorld::from_images(images.clone());
        let pool = open(&sim, 2);
        pool.commit().unwrap();
        pool.store().drop_caches();
        let before = pool.store().next_block().get();
        sim.device(0).inject_window(Fault::FailReads(0..u64::MAX), spare, 400);
        let committed = pool.snapshot_all(wanted(), attached.clone());
        sim.device(0).clear_faults();
        if let Ok(records) = committed {
            assert_eq!((records.len(), taken(&pool)), (3, 3), "{case}");
            break;
        }
        // An id goes to each that is begun, and nothing else takes any.
        let begun = pool.store().next_block().get() - before;
        let of_it = taken(&pool);
        assert!([0, 3].contains(&of_it), "{case}: {of_it} of 3 are there");
        halves += u32::from(of_it == 0 && begun > 1);
        for survival in [Survival::DropAll, Survival::KeepAll] {
            assert_eq!(taken(&after_cut(&sim, survival)), 0, "{case}, {survival:?}: no root has them");
        }
        if pool.store().suspended().is_some() {
            pool.upkeep.devices.clear(None).unwrap_or_else(|error| panic!("{case}: {error}"));
        }
        assert_eq!(taken(&pool), of_it, "{case}: nobody waits for them any more");
        assert_whole(&pool, &case);
        if of_it == 0 {
            assert_eq!(taken(&after_cut(&sim, Survival::DropAll)), 0, "{case}");
            pool.snapshot_all(wanted(), attached.clone())
                .unwrap_or_else(|error| panic!("{case}, again: {error}"));
        }
        assert_eq!(taken(&pool), 3, "{case}");
        let after = after_cut(&sim, Survival::DropAll);
        assert_eq!(taken(&after), 3, "{case}");
        assert_whole(&after, &case);
    }
    assert!(halves > 0, "no commit was cut short between two of them");
}
