//! `pool split`: half of the mirrors of a pool become a pool of its own. `pool reguid`: another GUID.

use super::super::devices::Scope;
use super::super::import::Force;
use super::super::live::Live;
use super::super::{Host, roster};
use super::refused;
use crate::api::repair::{Parted, Reguid, Split};
use crate::api::{ApiError, Done, ErrorKind, Result};
use larder_device::Device;
use larder_format::PoolGuid;
use larder_pool::create::check_name;
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::{ImportOptions, Pool};
use std::sync::Arc;

impl Host {
    /// Splits a pool of mirrors.
    pub fn split(&self, request: &Split) -> Result<Parted> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let (name, new) = (&request.name, &request.new_name);
        let doing = |error: ApiError| error.within(format!("cannot split '{name}'")).of_pool(name);
        check_name(new).map_err(|text| doing(ApiError::usage(text)))?;
        let coming = self.coming(new).map_err(doing)?;
        let named = request.devices.iter().map(|text| Ok(roster::find(&live.pool, text)?.index));
        let named = named.collect::<Result<Vec<_>>>().map_err(doing)?;
        let devices = &live.upkeep.devices;
        let chosen = devices.choose_half(&named).map_err(refused).map_err(doing)?;
        let mut parted = Parted {
            devices: chosen.iter().map(|member| roster::called(&live.pool, member)).collect(),
            survives: losses(&live.pool).saturating_sub(1),
        };
        if request.dry_run {
            return Ok(parted);
        }
        let half = devices.let_half_go(&named).map_err(refused).map_err(doing)?;
        parted.survives = losses(&live.pool);
        let pool = self.import_half(half, new).map_err(|error| {
            error.within(format!("{} left '{name}' and did not become '{new}'", parted.devices.join(" and ")))
        })?;
        let exported = Live::start(pool, Scope::default(), None).and_then(|live| {
            self.bring_in(&live, false)?;
            let guid = live.pool.store().identity();
            drop((live, coming));
            let left = self.leave(new, Force { mounts: false, suspended: false }, false);
            self.remembered.lock().expect(guid, None);
            left
        });
        match exported.map(|exported| exported.unmarked) {
            Ok(None) => Ok(parted),
            Ok(Some(error)) | Err(error) => {
                Err(error.within(format!("'{name}' was split, but '{new}' could not be exported")))
            }
        }
    }

    /// Makes a pool of devices that were let go of; it has all that was synced.
    fn import_half(&self, devices: Vec<Arc<dyn Device>>, name: &str) -> Result<Arc<Pool>> {
        let found = devices.iter().filter_map(|device| match scan(device) {
            Scan::Member(found) => Some(*found),
            _ => None,
        });
        let Some(mut plan) = assemble(found.collect()).pop() else {
            return Err(ApiError::new(ErrorKind::Device, "no device of it can be read"));
        };
        plan.split_off(PoolGuid::new(self.world.entropy.next_u64().max(1)));
        let options = ImportOptions { rename: Some(name.to_owned()), ..ImportOptions::default() };
        Ok(Pool::import(self.world.clone(), plan, &options)?)
    }

    /// Gives a pool another GUID.
    pub fn reguid(&self, request: &Reguid) -> Result<Done> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let doing = |error: ApiError| {
            error.within(format!("cannot give '{}' another guid", request.name)).of_pool(&request.name)
        };
        let before = live.pool.store().identity();
        let changed = live.upkeep.devices.reguid();
        if live.pool.store().identity() != before {
            self.note_identity(&live);
            self.remembered.lock().expect(before, None);
        }
        changed.map_err(refused).map_err(doing).map(|_| Done {})
    }
}

fn losses(pool: &Pool) -> u32 {
    u32::try_from(pool.store().losses_survived()).unwrap_or(u32::MAX)
}
