//! Stands in for the engine's device administration until that is there.

use larder_device::Device;
use larder_format::{DeviceIndex, Timestamp};
use larder_pool::open::Found;
use larder_pool::{GroupSpec, Pool, Result};
use std::sync::Arc;

pub struct ResilverProgress {
    pub devices: Vec<DeviceIndex>,
    pub started: Timestamp,
    pub total: u64,
    pub examined: u64,
    pub written: u64,
}

pub trait Pending {
    fn offline(&self, _: DeviceIndex, _: bool) -> Result<()> {
        Ok(())
    }
    fn online(&self, _: DeviceIndex, _: Option<Found>) -> Result<()> {
        Ok(())
    }
    fn replace(&self, old: DeviceIndex, _: Arc<dyn Device>) -> Result<DeviceIndex> {
        Ok(old)
    }
    fn attach(&self, to: DeviceIndex, _: Arc<dyn Device>) -> Result<DeviceIndex> {
        Ok(to)
    }
    fn detach(&self, _: DeviceIndex) -> Result<()> {
        Ok(())
    }
    fn add_group(&self, _: GroupSpec) -> Result<()> {
        Ok(())
    }
    fn add_spare(&self, _: Arc<dyn Device>) -> Result<DeviceIndex> {
        Ok(DeviceIndex::new(0))
    }
    fn remove(&self, _: DeviceIndex) -> Result<()> {
        Ok(())
    }
    fn clear(&self, _: Option<DeviceIndex>) -> Result<()> {
        Ok(())
    }
    fn resilver_step(&self, _: u64) -> Result<bool> {
        Ok(false)
    }
    fn resilver_progress(&self) -> Option<ResilverProgress> {
        None
    }
    fn resilver_restart(&self) -> Result<()> {
        Ok(())
    }
    fn take_spares(&self) -> Result<()> {
        Ok(())
    }
}

impl Pending for Pool {}
