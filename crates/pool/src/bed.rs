//! A pool on simulated devices, for tests beside the code.

use crate::create::{GroupSpec, PoolSpec, rule_for};
use crate::import::ImportOptions;
use crate::open::{Scan, assemble, scan};
use crate::pool::Pool;
use larder_device::{Device, Inline, SeededEntropy};
use larder_format::HostId;
use larder_sim::SimClock;
use larder_store::{Result, World};
use std::sync::Arc;

pub(crate) fn world(seed: u64) -> World {
    World {
        clock: Arc::new(SimClock::new()),
        entropy: Arc::new(SeededEntropy::new(seed)),
        workers: Arc::new(Inline),
        host: HostId::new(1),
        host_name: "sim".into(),
    }
}

/// A new pool of one group of all these devices.
pub(crate) fn pool(devices: Vec<Arc<dyn Device>>, word: &str) -> Arc<Pool> {
    let groups = vec![GroupSpec::data(rule_for(word, devices.len()).unwrap(), devices)];
    Pool::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap()
}

/// The one pool on these devices, imported.
pub(crate) fn import(devices: Vec<Arc<dyn Device>>) -> Result<Arc<Pool>> {
    let found = devices.iter().filter_map(|device| match scan(device) {
        Scan::Member(found) => Some(*found),
        _ => None,
    });
    let mut plans = assemble(found.collect());
    assert_eq!(plans.len(), 1, "one pool is there");
    Pool::import(world(2), plans.remove(0), &ImportOptions::default())
}
