//! Statistics of the pool: latencies of requests to its devices, hits and misses of its cache.

use crate::common;
use crate::common::Kept;
use crate::common::{Model, commit, import_from, world};
use larder_device::{Counts, Device, Outcome, Pending, Request, RequestKind};
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{BlockPtr, ByteLen, GroupIndex};
use larder_pool::cache::Lookups;
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, Look, Pool, PoolSpec, ROOT_DATASET, World};
use larder_sim::{Fault, SimClock, SimDevice, SimWorld};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SIZE: ByteLen = ByteLen::new(64 << 20);

/// A device that lets time pass with each request.
struct Slow {
    inner: SimDevice,
    clock: Arc<SimClock>,
    read: Duration,
    write: Duration,
    flush: Duration,
}

impl Device for Slow {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn size(&self) -> ByteLen {
        self.inner.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        self.clock.advance(match request {
            Request::Read { .. } => self.read,
            Request::Write { .. } | Request::Discard { .. } => self.write,
            Request::Flush => self.flush,
        });
        self.inner.submit(request)
    }
}

/// A mirror of which the second device is ten times as slow as the first.
fn mirror(sim: &SimWorld) -> Kept {
    let clock = Arc::new(SimClock::new());
    let device = |index: usize, factor: u32| {
        let ms = |ms| Duration::from_millis(ms) * factor;
        let (read, write, flush) = (ms(1), ms(2), ms(4));
        let inner = sim.device(index);
        Arc::new(Slow { inner, clock: Arc::clone(&clock), read, write, flush }) as Arc<dyn Device>
    };
    let rule = rule_for("mirror", 2).unwrap();
    let groups = vec![GroupSpec::data(rule, vec![device(0, 1), device(1, 10)])];
    let world = World { clock: clock as _, ..world(1) };
    Kept::create(world, PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap()
}

fn ptr(pool: &Pool, inode: u64) -> BlockPtr {
    let key = Key::new(inode, EXTENT, 0);
    let value = pool.dataset(ROOT_DATASET).unwrap().view().unwrap().get(&key).unwrap();
    Extent::decode(&value.unwrap()).unwrap().ptr
}

fn total(pool: &Pool, kind: RequestKind) -> Vec<Counts> {
    let members = pool.store().members().of_group(GroupIndex::new(0));
    members.map(|member| member.meter().waits(kind).total.read()).collect()
}

#[test]
fn a_slow_device_shows_in_its_percentiles() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = mirror(&sim);
    let mut model = Model::new();
    for version in 0..20 {
        commit(&pool, &mut model, &[(10, version, 100_000), (11, version, 100_000)]);
    }
    for (kind, ms) in [(RequestKind::Write, 2), (RequestKind::Flush, 4)] {
        let [fast, slow] = &total(&pool, kind)[..] else { panic!("two devices") };
        for (counts, ms) in [(fast, ms), (slow, ms * 10)] {
            assert!(counts.total() >= 20);
            for per_mille in [500, 990, 999] {
                let told = Duration::from_nanos(counts.percentile(per_mille).unwrap());
                // The simulated clock moves on by some microseconds as it is looked at.
                let exact = Duration::from_millis(ms);
                assert!((exact..exact * 9 / 8).contains(&told), "{kind:?}: {told:?} for {exact:?}");
            }
        }
    }
}

#[test]
fn every_request_is_timed_once_also_one_that_fails() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = mirror(&sim);
    let mut model = Model::new();
    commit(&pool, &mut model, &[(10, 1, 100_000), (11, 1, 100_000)]);
    pool.store().drop_caches();
    sim.device(0).inject(Fault::FailReads(0..u64::MAX));
    (10..12).for_each(|inode| assert!(pool.store().read(ptr(&pool, inode)).is_ok()));
    for member in pool.store().members().iter() {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &member.counters;
        for (kind, requests) in [
            (RequestKind::Read, load(&counters.reads)),
            (RequestKind::Write, load(&counters.writes)),
            (RequestKind::Flush, load(&counters.flushes)),
        ] {
            let waits = member.meter().waits(kind);
            assert_eq!(
                (waits.total.read().total(), waits.disk.read().total()),
                (requests, requests),
                "{kind:?}"
            );
        }
    }
}

#[test]
fn the_cache_tells_demand_from_prefetch_and_data_from_metadata() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = common::create(&sim, "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &[(10, 1, 50_000), (11, 1, 50_000), (12, 1, 50_000)]);
    drop(pool);
    let pool = import_from(sim.devices(), 2).unwrap();
    let ptrs = [10, 11, 12].map(|inode| ptr(&pool, inode));
    let before = pool.store().cache_stats();
    assert!(before.demand_metadata.misses > 0, "nodes were looked up to find the extents");
    assert_eq!(before.demand_data, Lookups::default());
    pool.store().read(ptrs[0]).unwrap();
    pool.store().prefetch(&ptrs);
    ptrs.iter().for_each(|&ptr| assert!(pool.store().read(ptr).is_ok()));
    let after = pool.store().cache_stats();
    assert_eq!(after.demand_data, Lookups { hits: 3, misses: 1 });
    assert_eq!(after.prefetch_data, Lookups { hits: 1, misses: 2 });
    assert!(after.record_bytes >= 150_000);
}
