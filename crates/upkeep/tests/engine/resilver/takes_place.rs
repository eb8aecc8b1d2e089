//! Writes, fsyncs and slots that are retired, just as a device takes the place of another.

use super::{SIZE, device, resilver};
use crate::common::*;
use larder_device::{Device, Outcome, Pending, Request};
use larder_format::ByteLen;
use larder_format::segment::SegmentKind;
use larder_pool::{Pool, PoolError, ROOT_DATASET};
use larder_sim::{Fault, SimDevice, SimWorld, Survival};
use larder_sync::Mutex;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_write_that_fails_on_a_stand_in_at_any_time_costs_no_stripe_and_no_copy() {
    for (word, count) in [("single", 1), ("mirror", 2)] {
        for spare in 0..40 {
            let case = format!("{word} of {count}, {spare} writes to spare");
            let sim = SimWorld::new(&vec![SIZE; count]);
            let pool = create(&sim, word);
            let dataset = pool.dataset(ROOT_DATASET).unwrap();
            let mut model = Model::new();
            commit(&pool, &mut model, &files(10, 6, 1));
            let new = sim.add_device(SIZE);
            pool.upkeep.devices.replace(device(0), Arc::new(new.clone())).unwrap();
            commit(&pool, &mut model, &files(20, 2, 2));
            // One place that fails, or the device.
            let strikes = if spare % 4 == 0 { 1 } else { 3 };
            new.inject_window(Fault::FailWrites(0..u64::MAX), spare, strikes);
            // The commit that completes it has stripes on their way.
            for version in 3..9 {
                let some = files(30, 3, version);
                put(&pool, &dataset, &some);
                model.extend(some.iter().map(|&(inode, version, len)| (inode, (version, len))));
                let stepped = pool.upkeep.resilver.step(u64::MAX);
                if pool.store().suspended().is_some() {
                    pool.upkeep.devices.clear(None).unwrap_or_else(|error| panic!("{case}: {error}"));
                } else {
                    stepped.unwrap_or_else(|error| panic!("{case}: {error}"));
                }
            }
            let _ = pool.commit();
            pool.store().drop_caches();
            verify(&pool, &model);
            // Members that count have everything.
            let goes_on = (0..3).any(|_| {
                pool.upkeep.devices.clear(None).and_then(|()| pool.commit()).is_ok()
                    && pool.store().suspended().is_none()
            });
            assert!(goes_on, "{case}: {:?}", pool.store().suspended());
            assert_whole(&pool, &case);
            drop((dataset, pool));
            let trace = sim.trace();
            let mut sweep = trace.sweep();
            sweep.advance_to(trace.len());
            let after = open(&SimWorld::from_images(sweep.images(Survival::DropAll)), 7);
            verify(&after, &model);
            assert_whole(&after, &case);
        }
    }
}

/// A device that lets somebody else do something when it is asked to flush.
struct Interrupted {
    inner: SimDevice,
    at_flush: Arc<dyn Fn() + Send + Sync>,
}

impl Device for Interrupted {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn size(&self) -> ByteLen {
        self.inner.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        if matches!(request, Request::Flush) {
            (self.at_flush)();
        }
        self.inner.submit(request)
    }
}

/// Puts a file and syncs it.
fn try_sync(pool: &Pool, file: (u64, u64, usize)) -> Result<(), PoolError> {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    try_put(pool, &dataset, &[file])?;
    let op = pool.enter()?;
    dataset.update(&op, |tree| {
        tree.log(logged(file));
        Ok::<_, PoolError>(())
    })?;
    drop(op);
    pool.log_sync()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "somebody else syncs while a commit is under way")]
fn an_fsync_while_a_device_takes_a_place_is_not_on_the_new_device_alone() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 6, 1));
    let late = (90, 1, 5_000);
    let here = Arc::downgrade(&pool);
    let (world, done) = (sim.clone(), Mutex::new(None));
    // Once the new device has the place, and before the root says so: an fsync by somebody else.
    let at_flush = move || {
        let Some(pool) = here.upgrade() else { return };
        let mut done = done.lock();
        if done.is_some() || pool.store().members().get(device(0)).name() != "sim1" {
            return;
        }
        let (tell, told) = std::sync::mpsc::channel();
        *done = Some(std::thread::spawn(move || tell.send(try_sync(&pool, late).is_ok())));
        drop(done);
        // It comes at once, or waits for the commit at hand.
        if told.recv_timeout(Duration::from_millis(300)) == Ok(true) {
            world.mark(1);
        }
    };
    let new = Interrupted { inner: sim.add_device(SIZE), at_flush: Arc::new(at_flush) };
    pool.upkeep.devices.replace(device(0), Arc::new(new)).unwrap();
    resilver(&pool);
    while try_sync(&pool, late).is_err() {}
    drop(pool);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    for cut in (0..=trace.len()).filter(|&cut| trace.marks_before(cut).last() == Some(1)) {
        sweep.advance_to(cut);
        let after = open(&SimWorld::from_images(sweep.images(Survival::DropAll)), 7);
        replay(&after);
        let found = contents(&after).unwrap();
        assert!(found.contains_key(&late.0), "cut at {cut} of {}: what was synced is lost", trace.len());
    }
}

#[test]
fn a_slot_that_is_retired_as_its_device_is_replaced_holds_what_the_last_root_names() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 12, 1));
    let here = Arc::downgrade(&pool);
    let (world, done) = (sim.clone(), Mutex::new(false));
    // Once the new device has the place, and before the root says so: somebody else writes.
    let at_flush = move || {
        let Some(pool) = here.upgrade() else { return };
        if pool.store().members().get(device(0)).name() != "sim1"
            || std::mem::replace(&mut *done.lock(), true)
        {
            return;
        }
        put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &files(100, 90, 1));
        world.mark(1);
    };
    let new = Interrupted { inner: sim.add_device(SIZE), at_flush: Arc::new(at_flush) };
    let index = pool.upkeep.devices.replace(device(0), Arc::new(new)).unwrap();
    // The segment of nodes is resilvered, and a root says so.
    let nodes =
        pool.store().segments().into_iter().find(|record| record.kind == SegmentKind::Node).unwrap().id;
    while pool.store().members().get(index).cursor() < nodes {
        pool.upkeep.resilver.step(1).unwrap();
        pool.commit().unwrap();
    }
    let old = pool.store().members().get(device(0));
    for slot in pool.store().segments().iter().flat_map(|record| &record.slots) {
        let at = old.slot_offset(slot.index, 0).get();
        sim.device(0).inject(Fault::FailWrites(at..at + u64::from(old.slot_size)));
    }
    put(&pool, &pool.dataset(ROOT_DATASET).unwrap(), &files(30, 4, 1));
    resilver(&pool);
    drop((pool, old));
    let trace = sim.trace();
    let is_mark = |cut: &usize| trace.marks_before(*cut).last() == Some(1);
    let cut = (0..=trace.len()).find(is_mark).expect("somebody wrote");
    let images = trace.crash_images(cut, Survival::KeepAll);
    let pool = open(&SimWorld::from_images(images), 7);
    resilver(&pool);
    assert_eq!(pool.store().members().iter().count(), 1, "it is replaced");
    verify(&pool, &model);
}
