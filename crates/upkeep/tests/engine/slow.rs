//! Devices that hang or are slow: nobody waits for them longer than need be, and what they hold is had from others.
//! Requests that hang in a simulation take no time; a test that waits for one in earnest never ends.

use crate::common::*;
use larder_device::{Clock, Completion, Device, Outcome, Pending, Request};
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::create::rule_for;
use larder_pool::member::MemberState;
use larder_pool::open::{Scan, scan};
use larder_pool::{GroupSpec, Pool, PoolError, PoolSpec, World};
use larder_sim::{Fault, SimClock, SimDevice, SimWorld, Survival};
use larder_sync::Mutex;
use std::sync::Arc;
use std::time::Duration;

const SIZE: ByteLen = ByteLen::new(64 << 20);
const REDUNDANT: [(&str, usize); 6] =
    [("mirror", 2), ("mirror", 3), ("raidz1", 3), ("raidz2", 6), ("raid10", 4), ("raid14", 5)];

/// Some files, by version.
fn files(version: u64) -> Vec<(u64, u64, usize)> {
    (0..12).map(|i| (10 + i, version, 1 + (i as usize * 9_176) % 90_000)).collect()
}

fn index(device: usize) -> DeviceIndex {
    DeviceIndex::new(device as u16)
}

/// A pool with files and nothing in its cache.
fn written(word: &str, count: usize) -> (SimWorld, Kept, Model) {
    let sim = SimWorld::new(&vec![SIZE; count]);
    let pool = create(&sim, word);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(1));
    pool.store().drop_caches();
    (sim, pool, model)
}

/// The device that reading everything asks most: one may have but parity.
fn most_read(sim: &SimWorld, pool: &Pool, model: &Model) -> usize {
    let devices = || (0..sim.devices().len()).map(|device| sim.device(device));
    pool.store().drop_caches();
    devices().for_each(|device| device.reset_counters());
    verify(pool, model);
    pool.store().drop_caches();
    devices().max_by_key(|device| device.counters().reads).expect("some device").index()
}

#[test]
fn a_device_that_hangs_at_reads_is_read_around_at_the_cost_of_a_few_requests() {
    for (word, count) in REDUNDANT {
        let (sim, pool, model) = written(word, count);
        let slow = most_read(&sim, &pool, &model);
        let (device, member) = (sim.device(slow), pool.store().members().get(index(slow)));
        device.inject(Fault::Hang);
        device.reset_counters();
        for _ in 0..5 {
            verify(&pool, &model);
            pool.store().drop_caches();
        }
        assert!(device.counters().reads <= 8, "{word}: {} reads", device.counters().reads);
        assert_eq!(member.state(), MemberState::Online, "{word}: nothing was written");

        device.resume();
        assert_eq!((member.meter().owed(), member.is_slow()), (0, false), "{word}");
        device.reset_counters();
        verify(&pool, &model);
        assert!(device.counters().reads > 0, "{word}: it is read again");
    }
}

#[test]
fn a_device_without_peers_that_hangs_fails_reads_in_time_and_gives_them_when_it_is_back() {
    let (sim, pool, model) = written("single", 1);
    sim.device(0).inject(Fault::Hang);
    let refused = contents(&pool).unwrap_err();
    assert!(refused.contains("unavailable"), "{refused}");
    let member = pool.store().members().get(index(0));
    assert!(member.counters.read_errors.load(std::sync::atomic::Ordering::Relaxed) > 0);
    sim.device(0).resume();
    verify(&pool, &model);
}

#[test]
fn a_device_that_hangs_anywhere_in_syncs_and_commits_is_faulted_and_the_pool_goes_on() {
    for (i, (word, count)) in REDUNDANT.into_iter().enumerate() {
        for spare in (i as u64 % 3..24).step_by(3) {
            let (sim, pool, mut model) = written(word, count);
            let case = format!("{word} of {count}, {spare} requests to spare");
            let hung = sim.device(spare as usize % count);
            let member = pool.store().members().get(index(hung.index()));
            hung.inject_window(Fault::Hang, spare, u64::MAX);
            for version in 2..5 {
                sync(&pool, &mut model, &files(version)[..4]);
                commit(&pool, &mut model, &files(version)[3..]);
            }
            // Those that have requests to spare hang after a few more.
            (0..5).for_each(|_| assert!(pool.commit().is_ok()));
            assert_eq!(member.state(), MemberState::Faulted, "{case}");
            assert_eq!(member.reason().as_deref(), Some("did not answer for 15 s"), "{case}");
            pool.store().drop_caches();
            verify(&pool, &model);

            // Requests still under way reach it late, and do no harm.
            hung.resume();
            commit(&pool, &mut model, &files(6)[..2]);
            pool.store().drop_caches();
            verify(&pool, &model);
            assert_whole(&pool, &case);
            if spare % 6 == 0 {
                assert!(
                    pool.upkeep.devices.online(member.index, None).is_err(),
                    "{case}: it must be opened anew"
                );
                pool.upkeep.devices.clear(None).unwrap();
                assert_eq!(member.state(), MemberState::Faulted, "{case}");
            }
            drop(pool);
            let images = sim.trace().crash_images(sim.trace().len(), Survival::DropAll);
            let again =
                import(&SimWorld::from_images(images), 7).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_ne!(
                again.store().members().get(index(hung.index())).state(),
                MemberState::Online,
                "{case}"
            );
            verify(&again, &model);
        }
    }
}

#[test]
fn more_hung_devices_than_the_layout_survives_suspend_the_pool_instead_of_holding_it() {
    for (word, count, hung) in [("single", 1, 1), ("mirror", 2, 2), ("raidz1", 3, 2), ("raidz2", 6, 3)] {
        let (sim, pool, mut model) = written(word, count);
        (0..hung).for_each(|device| sim.device(device).inject(Fault::Hang));
        assert!(pool.commit().is_err(), "{word}");
        assert!(pool.store().suspended().is_some_and(|why| why.contains("cannot do without sim0")), "{word}");
        assert!(matches!(pool.commit(), Err(PoolError::Suspended(_))), "{word}");
        drop(pool);
        (0..hung).for_each(|device| sim.device(device).resume());
        let again = import(&SimWorld::from_images(sim.images()), 3).unwrap();
        verify(&again, &model);
        commit(&again, &mut model, &files(2));
    }
}

#[test]
fn a_device_that_hangs_anywhere_in_an_import_is_left_out_and_the_rest_is_imported() {
    for (i, (word, count)) in REDUNDANT.into_iter().enumerate() {
        for spare in (i as u64 % 3..24).step_by(3) {
            let (sim, pool, mut model) = written(word, count);
            sync(&pool, &mut model, &files(2)[..3]);
            drop(pool);
            let sim = SimWorld::from_images(sim.images());
            let hung = sim.device(spare as usize % count);
            hung.inject_window(Fault::Hang, spare, u64::MAX);
            if spare == 0 {
                let device: Arc<dyn Device> = Arc::new(hung.clone());
                assert!(matches!(scan(&device), Scan::Failed(_)), "{word}");
            }
            let pool = open(&sim, 5);
            replay(&pool);
            commit(&pool, &mut model, &files(3));
            (0..5).for_each(|_| assert!(pool.commit().is_ok()));
            pool.store().drop_caches();
            verify(&pool, &model);
            assert_ne!(
                pool.store().members().get(index(hung.index())).state(),
                MemberState::Online,
                "{word}, {spare}"
            );
        }
    }
}

#[test]
fn the_timeout_is_a_property_that_takes_effect_at_once_and_at_imports() {
    let (sim, pool, model) = written("mirror", 2);
    let timeouts =
        |pool: &Pool| pool.store().members().iter().map(|member| member.timeout()).collect::<Vec<_>>();
    assert_eq!(timeouts(&pool), [Duration::from_secs(15); 2]);
    pool.set_pool_property("device_timeout", "3").unwrap();
    assert_eq!(timeouts(&pool), [Duration::from_secs(3); 2]);
    pool.commit().unwrap();
    drop(pool);
    let pool = open(&sim, 2);
    assert_eq!(timeouts(&pool), [Duration::from_secs(3); 2]);
    sim.device(1).inject(Fault::Hang);
    pool.commit().unwrap();
    assert_eq!(pool.store().members().get(index(1)).reason().as_deref(), Some("did not answer for 3 s"));
    verify(&pool, &model);
}

/// A device whose reads take time on the clock of a simulation. One that its caller leaves comes late.
struct Lagging {
    inner: SimDevice,
    clock: Arc<SimClock>,
    lag: Mutex<Duration>,
    late: Arc<Mutex<Vec<Late>>>,
}

/// A read that was left: when it comes, what, and the other end.
type Late = (Duration, Outcome, Completion<Outcome>);

impl Lagging {
    /// Time passes, and what was left of any device comes when it is due.
    fn pass(&self, span: Duration) {
        self.clock.advance(span);
        let now = self.clock.monotonic();
        let due = self.late.lock().extract_if(.., |(due, ..)| *due <= now).collect::<Vec<_>>();
        due.into_iter().for_each(|(_, outcome, completion)| completion.complete(outcome));
    }
}

impl Device for Lagging {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn size(&self) -> ByteLen {
        self.inner.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        if matches!(request, Request::Read { .. }) {
            let lag = *self.lag.lock();
            self.pass(lag);
        }
        self.inner.submit(request)
    }
    fn perform(&self, request: Request, limit: Duration) -> Result<Outcome, Pending<Outcome>> {
        let lag = *self.lag.lock();
        if lag <= limit || !matches!(request, Request::Read { .. }) {
            return self.submit(request).wait_for(limit);
        }
        let due = self.clock.monotonic() + lag;
        let (completion, pending) = Pending::new();
        completion.begin();
        self.late.lock().push((due, self.inner.submit(request).wait(), completion));
        self.pass(limit);
        Err(pending)
    }
}

#[test]
fn a_device_ten_times_slower_than_its_peers_is_read_around_named_and_taken_back_when_it_is_well() {
    for (word, count) in REDUNDANT {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let clock = Arc::new(SimClock::new());
        let late = Arc::new(Mutex::new(Vec::new()));
        let lagging = |device| {
            let lag = Mutex::new(Duration::from_millis(2));
            let (clock, late) = (Arc::clone(&clock), Arc::clone(&late));
            Arc::new(Lagging { inner: sim.device(device), clock, lag, late })
        };
        let devices: Vec<Arc<Lagging>> = (0..count).map(lagging).collect();
        let world = World { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..world(1) };
        let all = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let groups = vec![GroupSpec::data(rule_for(word, count).unwrap(), all)];
        let pool = Kept::create(world, PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        let mut model = Model::new();
        commit(&pool, &mut model, &files(1));
        let slow = most_read(&sim, &pool, &model);
        let member = pool.store().members().get(index(slow));
        let read_all = |times: usize| {
            let before = devices.iter().map(|device| device.inner.counters().reads).collect::<Vec<_>>();
            for _ in 0..times {
                pool.store().drop_caches();
                verify(&pool, &model);
            }
            let after = devices.iter().map(|device| device.inner.counters().reads);
            after.zip(before).map(|(after, before)| after - before).collect::<Vec<_>>()
        };
        read_all(40);
        assert!(!member.is_slow(), "{word}");

        *devices[slow].lag.lock() = Duration::from_millis(25);
        read_all(40);
        assert!(member.is_slow(), "{word}");
        let reason = member.reason().unwrap_or_else(|| panic!("{word}: {:?}", member.meter().typical_read()));
        assert!(
            reason.starts_with("slow: takes ") && reason.ends_with("for a read, others 2.0 ms"),
            "{reason}"
        );
        let reads = read_all(20);
        let all: u64 = reads.iter().sum();
        assert!(reads[slow] * 8 < all, "{word}: {reads:?}");
        assert_eq!(member.state(), MemberState::Online, "{word}: it is not faulted");
        let writes = devices[slow].inner.counters().writes;
        pool.commit().unwrap();
        assert!(devices[slow].inner.counters().writes > writes, "{word}: it is written");

        *devices[slow].lag.lock() = Duration::from_millis(2);
        read_all(200);
        assert_eq!((member.is_slow(), member.reason()), (false, None), "{word}");
        assert!(read_all(20)[slow] > 0, "{word}: it is read again");
    }
}

#[test]
fn a_segment_two_of_whose_devices_are_out_is_emptied_by_large_reads() {
    let sim = SimWorld::new(&[ByteLen::new(256 << 20); 6]);
    let pool = create(&sim, "raidz2");
    let mut model = Model::new();
    for version in 1..=2 {
        let first: Vec<_> = (0..600).map(|i| (10 + i, version, 60_000)).collect();
        // Every other file is replaced.
        let some: Vec<_> = first.into_iter().step_by(version as usize).collect();
        // Short stripes, as of programs that sync.
        some.chunks(8).for_each(|few| commit(&pool, &mut model, few));
    }
    for device in [1, 4] {
        pool.upkeep.devices.offline(index(device), true).unwrap();
    }
    pool.store().drop_caches();
    (0..6).for_each(|device| sim.device(device).reset_counters());
    let (mut moved, before) = (0, pool.store().durable_commit().get());
    while let Some(bytes) = pool.clean_step(true).unwrap() {
        moved += bytes;
        pool.commit().unwrap();
    }
    assert!(moved > 10 << 20, "{moved} bytes were moved");
    // Each commit looks at the heartbeat twice.
    let looks = 2 * (pool.store().durable_commit().get() - before);
    let reads = (0..6).map(|device| sim.device(device).counters().reads.saturating_sub(looks));
    let reads: Vec<u64> = reads.collect();
    assert!(reads.iter().all(|&reads| reads <= 40), "{moved} bytes by {reads:?} reads");
    pool.store().drop_caches();
    verify(&pool, &model);
    assert_whole(&pool, "emptied");
}
