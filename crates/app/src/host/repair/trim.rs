//! `pool trim`: starts, suspends or cancels trims.

use super::super::{Host, roster};
use super::draft::no_cache;
use super::{NOTHING_CHANGED, refused};
use crate::api::repair::{Trim, TrimAction};
use crate::api::{ApiError, Done, ErrorKind, Result};
use larder_format::DeviceIndex;
use larder_pool::member::Member;
use larder_upkeep::TrimState;
use larder_upkeep::Upkeep;
use std::sync::Arc;

impl Host {
    /// Starts, suspends or cancels trims.
    pub fn trim(&self, request: &Trim) -> Result<Done> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let doing = match request.action {
            TrimAction::Start => "cannot trim",
            TrimAction::Suspend => "cannot suspend trimming",
            TrimAction::Cancel => "cannot cancel trimming",
        };
        let what = match request.devices.is_empty() {
            true => request.name.clone(),
            false => request.devices.join(", "),
        };
        trim_some(&live.upkeep, request)
            .map_err(|error| error.within(format!("{doing} {what}")).of_pool(&request.name))?;
        Ok(Done {})
    }
}

fn trim_some(upkeep: &Upkeep, request: &Trim) -> Result<()> {
    let pool = upkeep.pool();
    let devices: Vec<DeviceIndex> = match request.devices.is_empty() {
        true => {
            // Those to which it applies.
            let state = |member: &Member| upkeep.trim.of(member).map(|trim| trim.state);
            let applies = |member: &Arc<Member>| match request.action {
                TrimAction::Start => member.discards() && state(member) != Some(TrimState::Active),
                TrimAction::Suspend => state(member) == Some(TrimState::Active),
                TrimAction::Cancel => {
                    matches!(state(member), Some(TrimState::Active | TrimState::Suspended))
                }
            };
            let members =
                pool.store().members().iter().filter(|member| member.is_written() && applies(member));
            members.map(|member| member.index).collect()
        }
        false => {
            let found = request.devices.iter().map(|text| {
                let member = roster::find(pool, text)?;
                no_cache(
                    &member,
                    text,
                    "all of it is written anew by and by: there is nothing to tell it of",
                )?;
                Ok(member.index)
            });
            found.collect::<Result<_>>()?
        }
    };
    if devices.is_empty() {
        return Err(match request.action {
            TrimAction::Start if upkeep.trim.is_active() => {
                ApiError::new(ErrorKind::Busy, "currently trimming")
                    .hint("larder pool wait -t trim POOL waits for it, larder pool trim -c POOL cancels it")
            }
            TrimAction::Start => ApiError::new(ErrorKind::Unsupported, "no device in use supports trim"),
            _ => ApiError::new(ErrorKind::NotFound, "there is no active trim"),
        }
        .safe(NOTHING_CHANGED));
    }
    match request.action {
        TrimAction::Start => upkeep.trim.start(&devices, request.rate),
        TrimAction::Suspend => upkeep.trim.suspend(&devices),
        TrimAction::Cancel => upkeep.trim.cancel(&devices),
    }
    .map_err(refused)
}
