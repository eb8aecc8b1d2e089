//! Upkeep of a pool, in bounded steps to be called when there is time.
//!
//! [`Upkeep`] holds the parts. Each has its state and its locks, and a pool below it; none is known to the pool, which
//! sees only what they leave in it: progress of devices being rebuilt, pins of a collection, known damage.

#[cfg(test)]
mod bed;
mod check;
mod damage;
mod devices;
mod expand;
pub mod gc;
mod heal;
mod identity;
mod lost_aliases;
mod note;
mod pass;
mod read_repair;
mod rebalance;
mod reconstruct;
mod reshape;
mod resilver;
mod scrub;
mod trim;

use larder_pool::{OnlyUpkeep, Pool};
use larder_store::Result;
use std::sync::Arc;

pub use check::Report;
pub use damage::DamageWalker;
pub use devices::Devices;
pub use expand::{Expandable, Expanded};
pub use gc::Collector;
pub use pass::{Estimate, Pass, PassState, Passes, Task};
pub use read_repair::ReadRepair;
pub use rebalance::{Rebalance, RebalanceProgress, RebalanceState};
pub use reconstruct::Tally;
pub use reshape::{Reshape, rule_of};
pub use resilver::{Resilver, ResilverProgress, ResilverResult};
pub use scrub::{Scrub, ScrubOutcome, ScrubProgress, ScrubResult, ScrubSince};
pub use trim::{Trim, TrimState, Trimmer};

/// Upkeep of an imported pool. There is one of a pool: of two, one would report ends to the pool that the other has not
/// come to.
pub struct Upkeep {
    pool: Arc<Pool>,
    _only: OnlyUpkeep,
    /// Devices in and out of use.
    pub devices: Arc<Devices>,
    /// Groups and what belongs to them.
    pub reshape: Reshape,
    /// Segments that would gain from being written anew.
    pub rebalance: Rebalance,
    /// Devices that are rebuilt.
    pub resilver: Arc<Resilver>,
    /// Damage that reads met.
    pub read_repair: Arc<ReadRepair>,
    /// Everything that is allocated.
    pub scrub: Arc<Scrub>,
    /// Free slots.
    pub trim: Trimmer,
    /// Duplicates among what is stored.
    pub passes: Passes,
    /// Garbage collection.
    pub gc: Collector,
    /// Names of what is lost.
    pub damage: Arc<DamageWalker>,
}

impl Upkeep {
    /// That of `pool`. Panics while there is another.
    pub fn new(pool: &Arc<Pool>) -> Arc<Self> {
        let only = pool.only_upkeep().expect("a pool has one upkeep");
        let devices = Arc::new(Devices::new(pool));
        let read_repair = Arc::new(ReadRepair::new(pool));
        let resilver = Arc::new(Resilver::new(pool, &devices, &read_repair));
        let damage = Arc::new(DamageWalker::new(pool, &read_repair));
        let scrub = Arc::new(Scrub::new(pool, &read_repair, &damage));
        pool.add_resting(Arc::downgrade(&resilver) as _);
        pool.add_resting(Arc::downgrade(&scrub) as _);
        Arc::new(Self {
            pool: Arc::clone(pool),
            _only: only,
            reshape: Reshape::new(pool, &devices, &resilver),
            rebalance: Rebalance::new(pool),
            trim: Trimmer::new(pool),
            passes: Passes::new(pool),
            gc: Collector::new(pool),
            damage,
            devices,
            resilver,
            read_repair,
            scrub,
        })
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Checks the whole pool: see [`check`].
    ///
    /// # Errors
    /// Only when the check itself cannot go on; damage is in the report.
    pub fn check(&self) -> Result<Report> {
        check::check(&self.pool)
    }
}
