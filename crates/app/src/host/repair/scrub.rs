//! `pool scrub`: starts, pauses or stops scrubs.

use super::super::live::Live;
use super::super::{Host, maintenance};
use super::{NOTHING_CHANGED, refused};
use crate::api::repair::{Scrub, ScrubAction};
use crate::api::{ApiError, Done, ErrorKind, Result};
use larder_upkeep::ScrubSince;

impl Host {
    /// Starts, pauses or stops scrubs.
    pub fn scrub(&self, request: &Scrub) -> Result<Done> {
        for name in &request.names {
            let live = self.writable(name)?;
            let doing = match request.action {
                ScrubAction::Start => format!("cannot scrub {name}"),
                ScrubAction::Pause => format!("cannot pause scrubbing {name}"),
                ScrubAction::Stop => format!("cannot cancel scrubbing {name}"),
            };
            scrub_one(&live, request).map_err(|error| error.within(doing).of_pool(name))?;
        }
        Ok(Done {})
    }
}

fn scrub_one(live: &Live, request: &Scrub) -> Result<()> {
    let pool = &live.pool;
    let progress = live.upkeep.scrub.progress();
    let idle = || ApiError::new(ErrorKind::NotFound, "there is no active scrub").safe(NOTHING_CHANGED);
    match request.action {
        ScrubAction::Start => {
            if progress.is_some_and(|progress| !progress.paused) {
                return Err(ApiError::new(ErrorKind::Busy, "currently scrubbing").hint(
                    "larder pool wait -t scrub POOL waits for it, larder pool scrub -s POOL stops it",
                ));
            }
            let what = request.since.map_or(ScrubSince::All, ScrubSince::Before);
            live.upkeep.scrub.start(what).map_err(refused)?;
            maintenance::asked_for(pool)?;
        }
        ScrubAction::Pause => {
            if progress.ok_or_else(idle)?.paused {
                return Err(idle().hint("it is paused: larder pool scrub POOL goes on with it"));
            }
            live.upkeep.scrub.pause().map_err(refused)?;
            maintenance::paused(pool)?;
        }
        ScrubAction::Stop => {
            progress.ok_or_else(idle)?;
            live.upkeep.scrub.stop().map_err(refused)?;
        }
    }
    Ok(())
}
