//! Trims that cannot go on for a while.

use super::{SIZE, all, classes, first};
use crate::common;
use crate::common::Kept;
use larder_device::Clock;
use larder_format::segment::Slot;
use larder_format::{DeviceIndex, SlotIndex};
use larder_pool::{Pool, ROOT_DATASET};
use larder_sim::{Fault, SimClock, SimWorld};
use larder_upkeep::TrimState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Fills a pool until it takes no more; nothing waits to be free then.
fn fill(pool: &Pool) {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for inode in 10.. {
        if common::try_put(pool, &dataset, &[(inode, 1, 500_000)]).is_err() {
            break;
        }
        pool.commit().unwrap();
    }
    commit(pool);
}

/// So often that what was freed is free.
fn commit(pool: &Pool) {
    for _ in 0..4 {
        pool.commit().unwrap();
    }
}

/// Bytes of the free slots of the first device.
fn free_bytes(pool: &Pool) -> u64 {
    let of = |slot: &&Slot| slot.device == DeviceIndex::new(0);
    super::free(pool).iter().filter(of).count() as u64
        * u64::from(pool.store().members().get(DeviceIndex::new(0)).slot_size)
}

/// Steps of a trim for so long.
fn trim_for(pool: &Kept, clock: &SimClock, time: Duration) {
    let until = clock.monotonic() + time;
    while clock.monotonic() < until {
        while pool.upkeep.trim.step().unwrap().is_some() {}
        clock.advance(Duration::from_secs(1));
    }
}

#[test]
fn a_trim_goes_on_when_a_full_pool_has_room_again_and_is_never_called_done_before() {
    let sim = SimWorld::new(&[SIZE]);
    let clock = Arc::default();
    let pool = common::create_by(&clock, sim.devices(), "single");
    pool.upkeep.trim.start(&all(&pool), 4 << 20).unwrap();
    assert_eq!(pool.upkeep.trim.step().unwrap(), Some(4 << 20));
    fill(&pool);
    trim_for(&pool, &clock, Duration::from_secs(50));
    let full = first(&pool).unwrap();
    assert!(full.state == TrimState::Active && full.trimmed < full.total, "{full:?}");
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    common::try_remove(&pool, &dataset, &(10..60).collect::<Vec<_>>()).unwrap();
    commit(&pool);
    trim_for(&pool, &clock, Duration::from_secs(50));
    let done = first(&pool).unwrap();
    assert!(done.state == TrimState::Done && done.trimmed > full.trimmed, "{done:?}");
    // One that is cancelled leaves nothing of its patience to the next.
    fill(&pool);
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    trim_for(&pool, &clock, Duration::from_secs(40));
    pool.upkeep.trim.cancel(&all(&pool)).unwrap();
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    trim_for(&pool, &clock, Duration::from_secs(40));
    assert_eq!(first(&pool).unwrap().state, TrimState::Active);
    pool.upkeep.trim.cancel(&all(&pool)).unwrap();
    // For so long that nobody waits for it.
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    trim_for(&pool, &clock, Duration::from_secs(70));
    let left = first(&pool).unwrap();
    assert!(left.state == TrimState::Suspended && left.trimmed < left.total, "{left:?}");
    let told = classes(&pool).pop().unwrap();
    assert_eq!(told, "trim_finish: suspended: writers need the space that is free");
}

#[test]
fn where_no_hole_can_be_punched_a_trim_goes_on_and_is_not_called_done() {
    let sim = SimWorld::new(&[SIZE]);
    let clock = Arc::default();
    let pool = common::create_by(&clock, sim.devices(), "single");
    let mut model = common::Model::new();
    common::commit(&pool, &mut model, &common::files(10, 30, 1));
    let member = pool.store().members().get(DeviceIndex::new(0));
    let slot = u64::from(member.slot_size);
    let at = |index: u64| member.slot_offset(SlotIndex::new(index as u32), 0).get();
    // Of two free slots in the middle.
    sim.device(0).inject(Fault::FullWithin(at(30)..at(30) + 2 * slot));
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    trim_for(&pool, &clock, Duration::from_secs(3));
    let (left, all_of_it) = (first(&pool).unwrap(), free_bytes(&pool));
    assert_eq!(left.state, TrimState::Suspended);
    // Neighbours that were punched with those two count as not punched.
    assert!(left.trimmed < all_of_it && left.trimmed >= all_of_it - 16 * slot, "{left:?} of {all_of_it}");
    assert!(left.total > left.trimmed, "{left:?}");
    let told = classes(&pool).pop().unwrap();
    assert_eq!(told, "trim_finish: suspended: the file system under the device has no room to punch holes");
    assert!(member.is_online() && member.discards());
    assert_eq!(member.counters.write_errors.load(Ordering::Relaxed), 0);
    sim.device(0).clear_faults();
    let before = sim.device(0).counters().bytes_discarded;
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    trim_for(&pool, &clock, Duration::from_secs(3));
    assert_eq!(first(&pool).unwrap().state, TrimState::Done);
    let again = sim.device(0).counters().bytes_discarded - before;
    assert!((2 * slot..all_of_it).contains(&again), "{again}: from the first that was passed over");
    // Freed slots go on being trimmed, though nothing can be punched for a while.
    pool.set_pool_property("autotrim", "on").unwrap();
    let write = |model: &mut common::Model, versions: std::ops::Range<u64>| {
        for version in versions {
            common::commit(&pool, model, &common::files(10, 30, version));
            while pool.upkeep.trim.step().unwrap().is_some() {}
        }
    };
    sim.device(0).inject(Fault::FullWithin(0..u64::MAX));
    write(&mut model, 2..12);
    let refused = sim.device(0).counters().bytes_discarded;
    assert!(refused > before + again, "they were tried");
    sim.device(0).clear_faults();
    write(&mut model, 12..22);
    assert!(sim.device(0).counters().bytes_discarded > refused);
    common::verify(&pool, &model);
}

#[test]
fn the_pause_of_a_slow_trim_is_nobody_elses() {
    let sim = SimWorld::new(&[SIZE]);
    let clock: Arc<SimClock> = Arc::default();
    let pool = common::create_by(&clock, sim.devices(), "single");
    pool.set_pool_property("autotrim", "on").unwrap();
    pool.upkeep.trim.start(&all(&pool), 1).unwrap();
    assert_eq!(pool.upkeep.trim.step().unwrap(), Some(1 << 20));
    let before = sim.device(0).counters().bytes_discarded;
    let mut model = common::Model::new();
    for version in 0..12 {
        common::commit(&pool, &mut model, &common::files(10, 30, version));
        while pool.upkeep.trim.step().unwrap().is_some() {}
    }
    assert!(sim.device(0).counters().bytes_discarded > before, "what was freed");
    pool.upkeep.trim.cancel(&all(&pool)).unwrap();
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    assert!(pool.upkeep.trim.step().unwrap() > Some(1 << 20), "the next trim need not rest");
}
