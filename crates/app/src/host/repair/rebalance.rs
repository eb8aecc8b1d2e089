//! `pool rebalance`: starts or stops a rebalance.

use super::super::Host;
use super::plan::RECORD;
use super::refused;
use crate::api::Result;
use crate::api::repair::{Rebalance, RebalanceAction, Rebalanced};

impl Host {
    /// Starts or stops a rebalance, or tells what one would do.
    pub fn rebalance(&self, request: &Rebalance) -> Result<Rebalanced> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let (of, store) = (&live.upkeep.rebalance, live.pool.store());
        let would = Rebalanced { moves: of.wanted(), gains: store.gain(RECORD) };
        if request.dry_run {
            return Ok(would);
        }
        let doing = match request.action {
            RebalanceAction::Start => "cannot rebalance",
            RebalanceAction::Stop => "cannot stop rebalancing",
        };
        let done = match request.action {
            RebalanceAction::Stop => of.stop(),
            _ => of.start(request.rate),
        };
        // So that it outlives this process.
        done.and_then(|()| live.pool.commit().map(drop)).map_err(|error| {
            refused(error).within(format!("{doing} '{}'", request.name)).of_pool(&request.name)
        })?;
        Ok(would)
    }
}
