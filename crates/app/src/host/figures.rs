//! Figures for people to watch: waits of devices and groups, and caches.

use super::live::Live;
use crate::api::figures::{Lookups, PoolCache, Wait, Waits};
use crate::api::pool::{ReadCache, Vdev};
use larder_device::RequestKind;
use larder_pool::Pool;
use larder_pool::cache;
use larder_pool::member::Member;
use larder_pool::members::Members;

/// Fills in how long the requests to each device took; above devices, those of all below together.
pub fn add_waits(vdev: &mut Vdev, members: &Members) {
    if vdev.children.is_empty() {
        let member = members.all().find(|member| member.guid.get() == vdev.guid);
        vdev.waits = member.map(|member| waits(&member)).unwrap_or_default();
        return;
    }
    vdev.children.iter_mut().for_each(|child| add_waits(child, members));
    vdev.waits = vdev.children.iter().fold(Waits::default(), |sum, child| sum.plus(&child.waits));
}

fn waits(member: &Member) -> Waits {
    let wait = |kind| {
        let waits = member.meter().waits(kind);
        Wait { total: waits.total.read(), disk: waits.disk.read() }
    };
    Waits { read: wait(RequestKind::Read), write: wait(RequestKind::Write), flush: wait(RequestKind::Flush) }
}

/// Reads from which on it can be told how other sizes would do.
const ENOUGH: f64 = 10_000.0;

/// Figures of a pool's devices with copies of blocks, when there are any in use.
pub fn read_cache(pool: &Pool) -> Option<ReadCache> {
    let stats = pool.store().read_cache.stats(pool.store().clock().monotonic())?;
    let policy = stats.policy;
    // The imitated caches began empty, at every size: their differences are what counts.
    let elsewhere = (stats.curve.reads >= ENOUGH && policy.hits + policy.misses > 0).then(|| {
        let [half, same, twice, four_times] = stats.curve.hit_ratios_since(&Default::default());
        let now = policy.hits as f64 / (policy.hits + policy.misses) as f64;
        let at = |other: f64| ((now + other - same).clamp(0.0, 1.0) * 1000.0).round() as u64;
        [at(half), at(twice), at(four_times)]
    });
    Some(ReadCache {
        size: stats.size,
        filled: stats.filled,
        blocks: stats.blocks,
        hits: policy.hits,
        misses: policy.misses,
        hit_bytes: policy.hit_bytes,
        missed_bytes: policy.missed_bytes,
        elsewhere,
        written_today: stats.written_today,
        daily: stats.daily,
        written_bytes: policy.appended_bytes + policy.kept_bytes,
        memory: stats.memory,
        memory_limit: stats.memory_limit,
        hurried: stats.hurried,
        restoring: stats.restoring,
    })
}

/// Counters and sizes of a pool's cache.
pub fn cache(live: &Live) -> PoolCache {
    let pool = &live.pool;
    let stats = pool.store().cache_stats();
    let lookups = |of: cache::Lookups| Lookups { hits: of.hits, misses: of.misses };
    PoolCache {
        name: pool.name(),
        guid: pool.store().identity().get(),
        time: pool.store().clock().now().secs,
        uptime_ns: live.uptime_ns(),
        demand_data: lookups(stats.demand_data),
        demand_metadata: lookups(stats.demand_metadata),
        prefetch_data: lookups(stats.prefetch_data),
        data_bytes: stats.record_bytes,
        data_limit: stats.record_limit,
        metadata_bytes: stats.node_bytes,
        metadata_limit: stats.node_limit,
        read_cache: read_cache(pool).unwrap_or_default(),
    }
}
