//! Stands in for the engine's device administration until that is there.

use larder_device::Device;
use larder_format::DeviceIndex;
use larder_pool::{GroupSpec, Pool, PoolError, Result};
use std::sync::Arc;

pub trait Pending {
    fn attach(&self, _: DeviceIndex, _: Arc<dyn Device>) -> Result<DeviceIndex> {
        Err(PoolError::Invalid("not yet".into()))
    }
    fn add_group(&self, _: GroupSpec) -> Result<()> {
        Err(PoolError::Invalid("not yet".into()))
    }
}

impl Pending for Pool {}
