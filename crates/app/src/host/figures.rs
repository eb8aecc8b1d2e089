//! Figures for people to watch: waits of devices and groups, and caches.

use super::live::Live;
use crate::api::figures::{Lookups, PoolCache, Wait, Waits};
use crate::api::pool::Vdev;
use larder_device::RequestKind;
use larder_pool::cache;
use larder_pool::member::Member;
use larder_pool::members::Members;

/// Fills in how long the requests to each device took; above devices, those of all below together.
pub fn add_waits(vdev: &mut Vdev, members: &Members) {
    if vdev.children.is_empty() {
        let member = members.iter().find(|member| member.guid.get() == vdev.guid);
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

/// Counters and sizes of a pool's cache.
pub fn cache(live: &Live) -> PoolCache {
    let pool = &live.pool;
    let stats = pool.store().cache_stats();
    let lookups = |of: cache::Lookups| Lookups { hits: of.hits, misses: of.misses };
    PoolCache {
        name: pool.name(),
        guid: pool.store().guid().get(),
        time: pool.store().clock().now().secs,
        uptime_ns: live.uptime_ns(),
        demand_data: lookups(stats.demand_data),
        demand_metadata: lookups(stats.demand_metadata),
        prefetch_data: lookups(stats.prefetch_data),
        data_bytes: stats.record_bytes,
        data_limit: stats.record_limit,
        metadata_bytes: stats.node_bytes,
        metadata_limit: stats.node_limit,
    }
}
