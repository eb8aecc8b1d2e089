//! Traffic while slots are held, and discards that no flush followed.

use super::{SIZE, all, first};
use crate::common;
use crate::common::Kept;
use crate::common::hooked::Hook;
use larder_device::{AlignedBuf, Device, Outcome, Pending, Request};
use larder_format::items::EXTENT;
use larder_format::node::Key;
use larder_format::{ByteLen, DeviceIndex, DeviceOffset};
use larder_pool::member::MemberState;
use larder_pool::{Look, Pool, PoolError, ROOT_DATASET};
use larder_sim::{Fault, SimClock, SimDevice, SimWorld};
use larder_upkeep::{ScrubSince, TrimState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A device that discards with its next flush, and not sooner; somebody acts at each request.
struct Late {
    inner: SimDevice,
    late: Mutex<Vec<(DeviceOffset, ByteLen)>>,
    hook: Hook,
}

impl Device for Late {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn size(&self) -> ByteLen {
        self.inner.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        if let Request::Discard { offset, len } = request {
            self.late.lock().unwrap().push((offset, len));
        }
        self.hook.act(&request);
        match request {
            Request::Discard { .. } => return Pending::done(Ok(AlignedBuf::zeroed(0))),
            Request::Flush => {
                for (offset, len) in self.late.lock().unwrap().drain(..) {
                    let data = Arc::new(AlignedBuf::padded(&vec![0xa5; len.get() as usize]));
                    drop(self.inner.submit(Request::Write { offset, data }).wait());
                }
            }
            _ => {}
        }
        self.inner.submit(request)
    }
}

fn is_hooked(request: &Request) -> bool {
    matches!(request, Request::Discard { .. } | Request::Flush)
}

fn late(sim: &SimWorld, word: &str) -> (Kept, Vec<Hook>) {
    late_by(&Arc::default(), sim, word)
}

fn late_by(clock: &Arc<SimClock>, sim: &SimWorld, word: &str) -> (Kept, Vec<Hook>) {
    let hooks: Vec<Hook> = sim.devices().iter().map(|_| Hook::default()).collect();
    let device = |(index, hook): (usize, &Hook)| {
        let (inner, hook) = (sim.device(index), hook.clone());
        Arc::new(Late { inner, late: Mutex::default(), hook }) as Arc<dyn Device>
    };
    (common::create_by(clock, hooks.iter().enumerate().map(device).collect(), word), hooks)
}

/// Fills a pool until so many bytes are left, none of which only wait to be free.
fn fill_up_to(pool: &Pool, left: u64) {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for inode in 10.. {
        if pool.store().space(131_072).available <= left {
            break;
        }
        common::try_put(pool, &dataset, &[(inode, 1, 500_000)]).unwrap();
        pool.commit().unwrap();
    }
    for _ in 0..3 {
        pool.commit().unwrap();
    }
}

/// Changes so much of the root dataset's tree that its nodes fill several slots.
fn grow(pool: &Pool) {
    let (dataset, op) = (pool.dataset(ROOT_DATASET).unwrap(), pool.enter().unwrap());
    let grown = dataset.update(&op, |tree| {
        (0..4000).try_for_each(|i| tree.insert(Key::new(100_000 + i, EXTENT, 0), &value(i)))
    });
    grown.unwrap();
}

fn value(i: u64) -> Vec<u8> {
    let mut state = i;
    let step = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(step).take(900).collect()
}

fn assert_grown(pool: &Pool) {
    pool.store().drop_caches();
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let view = dataset.view().unwrap();
    for i in 0..4000 {
        let key = Key::new(100_000 + i, EXTENT, 0);
        assert_eq!(view.get(&key).unwrap_or_else(|error| panic!("{i}: {error}")), Some(value(i)), "{i}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "somebody else writes while slots are trimmed")]
fn a_trim_takes_no_room_from_writers_however_little_there_is() {
    let sim = SimWorld::new(&[SIZE]);
    let (pool, hooks) = late(&sim, "single");
    // More than may be written in one go above the reserve's half.
    fill_up_to(&pool, 14 << 20);
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    pool.commit().unwrap();
    let there = pool.store().space(131_072).available;
    assert!(there > 12 << 20, "{there}");
    pool.check_space(there, 131_072).unwrap();
    let (here, (tell, told)) = (Arc::clone(&pool), channel());
    let seen = Arc::new(Mutex::new(None));
    let note = Arc::clone(&seen);
    let hook = move |request: &Request| {
        if matches!(request, Request::Discard { .. }) && note.lock().unwrap().is_none() {
            *note.lock().unwrap() = Some(here.store().space(131_072).available);
            // It may as well wait until the slots are let go.
            let (pool, tell, (done, waits)) = (Arc::clone(&here), tell.clone(), channel());
            std::thread::spawn(move || {
                tell.send(pool.check_space(there, 131_072)).unwrap();
                let _ = done.send(());
            });
            let _ = waits.recv_timeout(Duration::from_millis(300));
        }
    };
    hooks[0].set_one_at_a_time(is_hooked, hook);
    while pool.upkeep.trim.step().unwrap().is_some() {}
    hooks[0].clear();
    assert_eq!(seen.lock().unwrap().unwrap(), there, "what is there while slots are trimmed");
    told.recv().unwrap().expect("room for what there is");
    assert_eq!(first(&pool).unwrap().state, TrimState::Done);
}

#[test]
fn what_was_accepted_keeps_its_room_while_slots_are_trimmed() {
    let sim = SimWorld::new(&[SIZE]);
    let clock = Arc::default();
    let (pool, hooks) = late_by(&clock, &sim, "single");
    fill_up_to(&pool, 12 << 20);
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    pool.commit().unwrap();
    let accepted = pool.store().space(131_072).available;
    pool.store().dirty().need(0, accepted);
    let here = Arc::clone(&pool);
    let hook = move |request: &Request| {
        if matches!(request, Request::Discard { .. }) {
            let (room, needed) = (here.store().storable_now(131_072, 1), here.store().dirty().needed());
            assert!(room >= needed, "{room} of {needed}");
        }
    };
    hooks[0].set_one_at_a_time(is_hooked, hook);
    while pool.upkeep.trim.step().unwrap().is_some() {}
    assert_eq!(first(&pool).unwrap().state, TrimState::Active, "it goes on when that is stored");
    pool.store().dirty().need(accepted, 0);
    clock.advance(Duration::from_secs(5));
    while pool.upkeep.trim.step().unwrap().is_some() {}
    hooks[0].clear();
    let done = first(&pool).unwrap();
    assert!(done.state == TrimState::Done && done.trimmed > 8 << 20, "{done:?}");
}

#[test]
fn a_late_discard_spoils_nothing_that_is_written_when_a_pool_goes_on() {
    let sim = SimWorld::new(&[SIZE]);
    let (pool, hooks) = late(&sim, "single");
    let mut model = common::Model::new();
    common::commit(&pool, &mut model, &common::files(10, 9, 1));
    pool.upkeep.trim.start(&all(&pool), 0).unwrap();
    grow(&pool);
    let (here, device) = (Arc::clone(&pool), sim.device(0));
    // The file system under it is full just between the discard and its flush.
    let hook = move |request: &Request| {
        if matches!(request, Request::Discard { .. }) && here.store().suspended().is_none() {
            device.inject(Fault::Full);
            let dataset = here.dataset(ROOT_DATASET).unwrap();
            let op = here.enter().unwrap();
            let note = |tree: &mut larder_pool::Update<'_>| {
                tree.log(common::logged((9, 1, 1)));
                Ok::<_, PoolError>(())
            };
            dataset.update(&op, note).unwrap();
            drop(op);
            here.log_sync().unwrap_err();
        }
    };
    hooks[0].set_one_at_a_time(is_hooked, hook);
    drop(pool.upkeep.trim.step());
    hooks[0].clear();
    assert!(pool.store().suspended().is_some());
    sim.device(0).clear_faults();
    pool.upkeep.devices.clear(None).unwrap();
    common::verify(&pool, &model);
    assert_grown(&pool);
}

#[test]
fn a_late_discard_spoils_nothing_that_is_written_to_a_device_that_comes_back() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let (pool, hooks) = late(&sim, "mirror");
    let mut model = common::Model::new();
    common::commit(&pool, &mut model, &common::files(10, 9, 1));
    pool.upkeep.trim.start(&[DeviceIndex::new(1)], 0).unwrap();
    let device = DeviceIndex::new(1);
    let (here, of) = (Arc::clone(&pool), sim.device(1));
    let wrote = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&wrote);
    let hook = move |request: &Request| match request {
        Request::Discard { .. } if here.store().members().get(device).is_online() => {
            of.inject(Fault::FailWrites(0..u64::MAX));
            here.commit().unwrap();
        }
        // Somebody writes while the commit is made with which it comes back.
        Request::Flush
            if here.store().members().get(device).state() == MemberState::Rebuilding
                && !done.swap(true, Ordering::Relaxed) =>
        {
            common::put(&here, &here.dataset(ROOT_DATASET).unwrap(), &common::files(100, 90, 1));
        }
        _ => {}
    };
    hooks[1].set_one_at_a_time(is_hooked, hook);
    pool.upkeep.trim.step().unwrap();
    assert_eq!(pool.store().members().get(device).state(), MemberState::Faulted);
    sim.device(1).clear_faults();
    pool.upkeep.devices.clear(None).unwrap();
    while pool.upkeep.resilver.step(u64::MAX).unwrap() {}
    hooks[1].clear();
    assert!(wrote.load(Ordering::Relaxed) && pool.store().members().get(device).is_online());
    model.extend(common::files(100, 90, 1).iter().map(|&(inode, version, len)| (inode, (version, len))));
    pool.commit().unwrap();
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    assert_eq!(pool.upkeep.scrub.result().unwrap().repaired, 0, "it lacked nothing");
    common::verify(&pool, &model);
}
