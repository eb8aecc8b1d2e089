//! Devices are told what is free.

mod beside;
mod exact;
mod stuck;

use crate::common;
use crate::common::Kept;
use exact::{discarded, used, watched};
use larder_device::{Entropy, SeededEntropy};
use larder_format::segment::Slot;
use larder_format::{ByteLen, DeviceIndex, SlotIndex};
use larder_pool::member::Member;
use larder_pool::{Pool, PoolError, ROOT_DATASET};
use larder_sim::{Fault, SimWorld, Survival};
use larder_upkeep::{Trim, TrimState};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SIZE: ByteLen = ByteLen::new(64 << 20);

/// The slots of no segment.
fn free(pool: &Pool) -> BTreeSet<Slot> {
    let used = used(pool);
    let of = |member: Arc<Member>| {
        (0..member.slot_count()).map(move |slot| Slot { device: member.index, index: SlotIndex::new(slot) })
    };
    pool.store().members().iter().flat_map(of).filter(|slot| !used.contains(slot)).collect()
}

fn all(pool: &Pool) -> Vec<DeviceIndex> {
    pool.store().members().iter().map(|member| member.index).collect()
}

fn first(pool: &Kept) -> Option<Trim> {
    pool.upkeep.trim.of(&pool.store().members().get(DeviceIndex::new(0)))
}

fn classes(pool: &Pool) -> Vec<String> {
    let events = pool.events(0).into_iter().map(|(_, event)| event);
    events
        .filter(|event| event.class.starts_with("trim"))
        .map(|event| event.class + ": " + &event.text)
        .collect()
}

#[test]
fn with_autotrim_what_was_freed_is_discarded_once_it_is_free_and_nothing_else() {
    let trimmed: usize =
        (0..24).map(|seed| exact::run(seed).unwrap_or_else(|failure| panic!("{failure}"))).sum();
    println!("{trimmed} slots");
    assert!(trimmed > 400, "{trimmed} slots");
}

#[test]
fn a_trim_discards_all_that_is_free_on_its_device_and_nothing_else() {
    for (word, count) in common::LAYOUTS {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let (pool, logs) = watched(&sim, word);
        let mut model = common::Model::new();
        common::commit(&pool, &mut model, &common::files(10, 60, 1));
        common::commit(&pool, &mut model, &common::files(10, 60, 2));
        assert_eq!(pool.upkeep.trim.step().unwrap(), None, "nobody asked for it");
        pool.upkeep.trim.start(&all(&pool), 0).unwrap();
        let begun = first(&pool).unwrap();
        assert_eq!((begun.state, begun.trimmed, pool.upkeep.trim.is_active()), (TrimState::Active, 0, true));
        assert!(matches!(pool.upkeep.trim.start(&all(&pool), 0), Err(PoolError::Busy(_))));
        while pool.upkeep.trim.step().unwrap().is_some() {}
        let trimmed = discarded(&pool, &logs);
        let told: BTreeSet<_> = trimmed.iter().copied().collect();
        assert_eq!((told.len(), &told), (trimmed.len(), &free(&pool)), "{word}");
        let done = first(&pool).unwrap();
        let bytes = told.iter().filter(|slot| slot.device.get() == 0).count() as u64 * (1 << 20);
        assert_eq!((done.state, done.trimmed, done.total), (TrimState::Done, bytes, bytes));
        assert_eq!(begun.total, bytes);
        assert!(!pool.upkeep.trim.is_active());
        let mut events = vec!["trim_start: ".to_owned(); count];
        events.extend(vec![format!("trim_finish: {bytes} bytes trimmed"); 1]);
        assert_eq!(classes(&pool)[..count + 1], events);
        // Of one device alone.
        pool.upkeep.trim.start(&[DeviceIndex::new(0)], 0).unwrap();
        while pool.upkeep.trim.step().unwrap().is_some() {}
        assert!(discarded(&pool, &logs).iter().all(|slot| slot.device.get() == 0));
        common::commit(&pool, &mut model, &common::files(10, 60, 3));
        pool.store().drop_caches();
        common::verify(&pool, &model);
        common::assert_whole(&pool, word);
    }
}

#[test]
fn a_device_without_discards_says_so_once_and_has_no_errors() {
    let sim = SimWorld::new(&[SIZE; 2]);
    sim.device(1).inject(Fault::NoDiscards);
    let (pool, logs) = watched(&sim, "mirror");
    pool.set_pool_property("autotrim", "on").unwrap();
    let mut model = common::Model::new();
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    for version in 0..20 {
        common::commit(&pool, &mut model, &common::files(10, 20, version));
        while pool.upkeep.trim.step().unwrap().is_some() {}
    }
    assert_eq!(logs[1].lock().unwrap().len(), 1, "it was asked once");
    assert!(logs[0].lock().unwrap().len() > 10);
    let members: Vec<_> = pool.store().members().iter().collect();
    for member in &members {
        assert!(member.is_online());
        assert_eq!(member.counters.write_errors.load(Ordering::Relaxed), 0);
    }
    assert_eq!([members[0].discards(), members[1].discards()], [true, false]);
    assert_eq!(
        (pool.upkeep.trim.of(&members[0]).unwrap().state, pool.upkeep.trim.of(&members[1])),
        (TrimState::Done, None)
    );
    let refused = pool.upkeep.trim.start(&[DeviceIndex::new(1)], 0).unwrap_err().to_string();
    assert!(refused.ends_with("does not support trim"), "{refused}");
    assert!(classes(&pool).contains(&"trim_finish: the device does not support it".to_owned()));
    common::assert_whole(&pool, "at the end");
}

#[test]
fn a_device_that_is_out_of_use_keeps_what_it_has() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let (pool, logs) = watched(&sim, "mirror");
    pool.set_pool_property("autotrim", "on").unwrap();
    let mut model = common::Model::new();
    common::commit(&pool, &mut model, &common::files(10, 30, 1));
    let before = model.clone();
    sim.device(1).inject_window(Fault::FailFlushes, 0, 1);
    for version in 2..20 {
        common::commit(&pool, &mut model, &common::files(10, 30, version));
        while pool.upkeep.trim.step().unwrap().is_some() {}
    }
    pool.upkeep.trim.start(&[DeviceIndex::new(0)], 0).unwrap();
    while pool.upkeep.trim.step().unwrap().is_some() {}
    assert!(discarded(&pool, &logs).iter().all(|slot| slot.device.get() == 0));
    drop(pool);
    // It is all that is left.
    let alone = SimWorld::from_images(vec![sim.images().remove(1)]);
    common::verify(&common::open(&alone, 2), &before);
}

#[test]
fn a_trim_is_suspended_goes_on_where_it_was_also_after_an_export_and_is_cancelled() {
    let sim = SimWorld::new(&[SIZE]);
    let (pool, logs) = watched(&sim, "single");
    common::commit(&pool, &mut common::Model::new(), &common::files(10, 30, 1));
    let device = [DeviceIndex::new(0)];
    assert!(matches!(pool.upkeep.trim.suspend(&device), Err(PoolError::NotFound(_))));
    assert!(matches!(pool.upkeep.trim.cancel(&device), Err(PoolError::NotFound(_))));
    pool.upkeep.trim.start(&device, 0).unwrap();
    assert!(pool.upkeep.trim.step().unwrap() > Some(0));
    pool.upkeep.trim.suspend(&device).unwrap();
    assert_eq!(pool.upkeep.trim.step().unwrap(), None);
    let before: BTreeSet<_> = discarded(&pool, &logs).into_iter().collect();
    pool.commit_export().unwrap();
    drop(pool);

    let sim = SimWorld::from_images(sim.images());
    let pool = common::open(&sim, 2);
    let rest = first(&pool).unwrap();
    assert_eq!((rest.state, rest.trimmed), (TrimState::Suspended, before.len() as u64 * (1 << 20)));
    assert_eq!(pool.upkeep.trim.step().unwrap(), None);
    pool.upkeep.trim.start(&device, 0).unwrap();
    let (asked, free) =
        (sim.device(0).counters().bytes_discarded, free(&pool).difference(&before).count() as u64);
    while pool.upkeep.trim.step().unwrap().is_some() {}
    let asked = sim.device(0).counters().bytes_discarded - asked;
    // Slots that the import took or gave back before the place where it goes on are not gone through again.
    assert!(asked.abs_diff(free << 20) <= 4 << 20, "{asked} of {free} MiB");
    assert_eq!(first(&pool).unwrap().state, TrimState::Done);
    let done = first(&pool);
    pool.commit_export().unwrap();
    drop(pool);

    let pool = common::open(&SimWorld::from_images(sim.images()), 3);
    assert_eq!(first(&pool), done, "when it ended is kept");
    pool.upkeep.trim.start(&device, 0).unwrap();
    pool.upkeep.trim.cancel(&device).unwrap();
    assert_eq!((first(&pool), pool.upkeep.trim.step().unwrap()), (None, None));
}

#[test]
fn a_trim_is_no_faster_than_it_was_asked_to_be() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = common::create(&sim, "single");
    pool.upkeep.trim.start(&[DeviceIndex::new(0)], 2 << 20).unwrap();
    assert_eq!(pool.upkeep.trim.step().unwrap(), Some(2 << 20));
    assert_eq!(pool.upkeep.trim.step().unwrap(), None, "it has to rest");
    assert!(pool.upkeep.trim.is_active());
    assert_eq!(first(&pool).unwrap().trimmed, 2 << 20);
}

#[test]
fn of_a_pool_that_is_nearly_full_writers_lose_no_slot() {
    let sim = SimWorld::new(&[SIZE]);
    let (pool, logs) = watched(&sim, "single");
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let mut inode = 10;
    while common::try_put(&pool, &dataset, &[(inode, 1, 500_000)]).is_ok()
        && pool.store().space(131_072).available > 1 << 20
    {
        inode += 1;
        pool.commit().unwrap();
    }
    pool.commit().unwrap();
    let left = free(&pool).len();
    pool.upkeep.trim.start(&[DeviceIndex::new(0)], 0).unwrap();
    while pool.upkeep.trim.step().unwrap().is_some() {}
    let most = left.saturating_sub(16) as u64;
    assert!(most <= 2, "{left} slots are free");
    let lens: Vec<u64> = logs[0].lock().unwrap().iter().map(|(_, len)| len >> 20).collect();
    assert!(lens.iter().all(|len| *len <= most), "{lens:?} of {left}");
    assert!(used(&pool).len() > 40);
}

/// Trims beside writers in a world whose power is cut at any event.
#[test]
fn whatever_a_power_cut_makes_of_a_discard_what_was_promised_is_there() {
    for seed in 0..12 {
        let (word, count) = common::LAYOUTS[seed as usize % common::LAYOUTS.len()];
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = common::create(&sim, word);
        pool.set_pool_property("autotrim", "on").unwrap();
        let mut states = vec![common::Model::new()];
        for version in 0..14 {
            let mut model = states.last().unwrap().clone();
            common::commit(&pool, &mut model, &common::files(10, 4 + version % 9, version));
            states.push(model);
            sim.mark(states.len() as u64 - 1);
            if version == 5 {
                pool.upkeep.trim.start(&all(&pool), 0).unwrap();
            }
            pool.upkeep.trim.step().unwrap();
        }
        drop(pool);
        let trace = sim.trace();
        let rng = SeededEntropy::new(seed);
        let mut sweep = trace.sweep();
        let mut cut = trace.len() / 3;
        while cut < trace.len() {
            sweep.advance_to(cut);
            let promised = trace.marks_before(cut).last().unwrap_or(0) as usize;
            let after = SimWorld::from_images(sweep.images(Survival::Random { seed: rng.next_u64() }));
            let pool = common::open(&after, 2 + cut as u64);
            let case = format!("seed {seed}, {word}, cut {cut}");
            common::assert_whole(&pool, &case);
            pool.upkeep.trim.step().unwrap();
            let is_there = |model: &&common::Model| common::contents(&pool).as_ref() == Ok(*model);
            assert!(
                states[promised..].iter().any(|model| is_there(&model)),
                "{case}: state {promised} is lost"
            );
            cut += 1 + rng.next_u64() as usize % 40;
        }
    }
}
