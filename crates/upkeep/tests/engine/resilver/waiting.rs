//! Devices of which sectors cannot be read: the new device waits with all that could be had.

use super::{SIZE, device, resilver};
use crate::common::*;
use larder_device::Device;
use larder_format::DeviceIndex;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_pool::member::MemberState;
use larder_pool::open::{Scan, scan};
use larder_pool::{ImportOptions, Look, Pool, PoolError, ROOT_DATASET};
use larder_sim::{Fault, SimWorld, Survival};
use larder_upkeep::ScrubSince;
use std::collections::BTreeSet;
use std::sync::Arc;

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
    let step = ((trace.len() - start) / repeats(60, 400) as usize).max(1);
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
    // Blocks in the same stripe were read before, the one that could not be is read now.
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
