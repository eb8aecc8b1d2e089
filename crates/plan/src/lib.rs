//! Layouts that disks could have, compared before a pool is made: space, losses survived, risk, rebuilds, speed, price,
//! and how each grows.
//!
//! Pure computing: facts about disks come in ([`Disk`]), figures go out ([`Plan`]). Space is what `pool create` shows
//! ([`larder_pool::create::available`]), and what is survived what an import says ([`survival()`]). Risk is a Markov
//! chain over those losses ([`chances`]); speed a few lines of arithmetic ([`candidate`]). What all of it supposes is
//! in [`Assumptions`], which are told with each plan.

mod assume;
mod candidate;
mod chain;
mod disk;
mod plan;
mod shape;
mod sizes;
mod survival;
mod warning;

pub use assume::{Assumptions, HOURS};
pub use candidate::{Bulk, Candidate, Growth, Price, Rebuild, Risk, Speed};
pub use chain::{Chances, Rates, chances};
pub use disk::{Disk, Kind, Measured, known_shingled};
pub use plan::{Plan, plan};
pub use shape::{Group, Shape};
pub use sizes::{MOST_DISKS, disks, is_sizes};
pub use survival::{Share, Survival, survival};
pub use warning::{Warning, warnings};
