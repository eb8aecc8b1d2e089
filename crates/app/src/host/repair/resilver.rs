//! `pool resilver`: starts resilvers from the beginning.

use super::super::Host;
use super::{NOTHING_CHANGED, refused};
use crate::api::repair::Resilver;
use crate::api::{ApiError, Done, ErrorKind, Result};
use larder_pool::member::MemberState;

impl Host {
    /// Starts resilvers from the beginning.
    pub fn resilver(&self, request: &Resilver) -> Result<Done> {
        for name in &request.names {
            let live = self.writable(name)?;
            let doing = format!("cannot restart resilver of {name}");
            let waits =
                live.pool.store().members().iter().any(|member| member.state() == MemberState::Waiting);
            if live.upkeep.resilver.progress().is_none() && !waits {
                let error =
                    ApiError::new(ErrorKind::NotFound, "no device lacks anything").safe(NOTHING_CHANGED);
                return Err(error
                    .within(doing)
                    .hint(format!("larder pool scrub {name} verifies everything")));
            }
            live.upkeep.resilver.restart().map_err(|error| refused(error).within(doing).of_pool(name))?;
        }
        Ok(Done {})
    }
}
