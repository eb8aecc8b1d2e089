//! A pool on simulated devices, for tests beside the code.

use larder_device::{Device, Inline, SeededEntropy};
use larder_format::HostId;
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, Pool, PoolSpec, World};
use larder_sim::SimClock;
use std::sync::Arc;

/// A new pool of one group of all these devices.
pub(crate) fn pool(devices: Vec<Arc<dyn Device>>, word: &str) -> Arc<Pool> {
    let world = World {
        clock: Arc::new(SimClock::new()),
        entropy: Arc::new(SeededEntropy::new(1)),
        workers: Arc::new(Inline),
        host: HostId::new(1),
        host_name: "sim".into(),
    };
    let groups = vec![GroupSpec::data(rule_for(word, devices.len()).unwrap(), devices)];
    Pool::create(world, PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap()
}
