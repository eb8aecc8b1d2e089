//! `pool offline`: takes devices out of use.

use super::super::{Host, roster};
use super::draft::no_cache;
use super::{can_go, refused};
use crate::api::repair::Offline;
use crate::api::{ApiError, Done, Result};

impl Host {
    /// Takes devices out of use.
    pub fn offline(&self, request: &Offline) -> Result<Done> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        for text in &request.devices {
            let refuse =
                |error: ApiError| error.within(format!("cannot offline {text}")).of_pool(&request.name);
            let member = roster::find(&live.pool, text).map_err(refuse)?;
            let way_out = format!(
                "larder pool remove POOL {text} takes it out, and larder pool add POOL cache {text} brings it back"
            );
            no_cache(&member, text, &way_out).map_err(refuse)?;
            can_go(&live.pool, &member).map_err(refuse)?;
            live.upkeep
                .devices
                .offline(member.index, request.temporary)
                .map_err(|error| refuse(refused(error)))?;
        }
        Ok(Done {})
    }
}
