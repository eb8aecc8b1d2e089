//! Trims that cannot go on for a while.

use super::{SIZE, all, classes, common, first};
use crate::common::Kept;
use larder_device::Clock;
use larder_format::DeviceIndex;
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
    // For so long that nobody waits for it.
    fill(&pool);
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    trim_for(&pool, &clock, Duration::from_secs(70));
    let left = first(&pool).unwrap();
    assert!(left.state == TrimState::Suspended && left.trimmed < left.total, "{left:?}");
    let told = classes(&pool).pop().unwrap();
    assert_eq!(told, "trim_finish: suspended: writers need the space that is free");
}

#[test]
fn a_file_system_without_room_for_holes_is_asked_again_and_its_device_has_no_errors() {
    for auto in [false, true] {
        let sim = SimWorld::new(&[SIZE]);
        let clock = Arc::default();
        let pool = common::create_by(&clock, sim.devices(), "single");
        pool.set_pool_property("autotrim", if auto { "on" } else { "off" }).unwrap();
        let mut model = common::Model::new();
        common::commit(&pool, &mut model, &common::files(10, 30, 1));
        common::commit(&pool, &mut model, &common::files(10, 30, 2));
        commit(&pool);
        if !auto {
            pool.upkeep.trim.start(&all(&pool), 0).unwrap();
        }
        let before = sim.device(0).counters().bytes_discarded;
        sim.device(0).inject(Fault::Full);
        assert_eq!(pool.upkeep.trim.step().unwrap(), Some(0));
        assert_eq!(pool.upkeep.trim.step().unwrap(), None, "not at once");
        let member = pool.store().members().get(DeviceIndex::new(0));
        assert!(member.is_online() && member.discards());
        assert_eq!(member.counters.write_errors.load(Ordering::Relaxed), 0);
        sim.device(0).clear_faults();
        let failed = sim.device(0).counters().bytes_discarded;
        trim_for(&pool, &clock, Duration::from_secs(10));
        let again = sim.device(0).counters().bytes_discarded - failed;
        assert!(again >= failed - before && failed > before, "{again} of {}", failed - before);
        if auto {
            continue;
        }
        let done = first(&pool).unwrap();
        assert_eq!((done.state, done.trimmed), (TrimState::Done, again));
        // It does not end by itself.
        pool.upkeep.trim.start(&all(&pool), 0).unwrap();
        sim.device(0).inject(Fault::Full);
        trim_for(&pool, &clock, Duration::from_secs(70));
        let left = first(&pool).unwrap();
        assert_eq!((left.state, left.trimmed), (TrimState::Suspended, 0));
        let told = classes(&pool).pop().unwrap();
        assert_eq!(
            told,
            "trim_finish: suspended: the file system under the device has no room to punch holes"
        );
    }
}
