//! `pool clear`: sets error counts to zero.

use super::super::{Host, roster};
use super::refused;
use crate::api::repair::Clear;
use crate::api::{ApiError, Done, Result};

impl Host {
    /// Sets error counts to zero.
    pub fn clear(&self, request: &Clear) -> Result<Done> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let doing = match &request.device {
            Some(device) => format!("cannot clear errors for {device}"),
            None => format!("cannot clear errors for '{}'", request.name),
        };
        let refuse = |error: ApiError| error.within(&doing).of_pool(&request.name);
        let member = request.device.as_deref().map(|text| roster::find(&live.pool, text));
        let index = member.transpose().map_err(refuse)?.map(|member| member.index);
        // One that cannot come back keeps no other from it.
        let mut outcome = live.upkeep.devices.clear(index).map_err(|error| refuse(refused(error)));
        for member in live.pool.store().members().all() {
            if member.is_given_up() && index.is_none_or(|index| index == member.index) {
                outcome = outcome.and(self.online_one(&live, &member.name()).map(drop).map_err(refuse));
            }
        }
        outcome.map(|()| Done {})
    }
}
