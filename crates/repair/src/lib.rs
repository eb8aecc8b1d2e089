//! A pool from its blocks, where roots, tables, the block map, nodes or whole segments are lost.
//!
//! **One mechanism: repair makes new tables for the blocks that exist**, and has the engine commit them. It looks
//! through all slots ([`slots`], [`stripes`]): each stripe says which segment it is of, each block says who it is. Of
//! nodes it puts trees together ([`trees`], [`mend`]), of the tables' nodes the datasets and snapshots ([`rows`]). The
//! outcome is a pool like any other ([`larder_pool::rebuild`]), whose devices are overlays: nothing reaches the
//! damaged pool's own. Whoever wants its files reads them there.
//!
//! *Believed* are columns by their stripe's sums; blocks in them one behind the other, never by their look; a node
//! where a node above it names it, else the newest below the lost one ([`trees`]). Blocks of imports that the pool's
//! history does not have are left out.
//!
//! *Crash:* there is nothing to lose; it is begun anew.

mod count;
mod cut;
mod error;
mod identify;
mod key;
mod mend;
mod nodes;
mod read;
mod repair;
mod report;
mod rows;
mod slots;
mod stripes;
mod trees;

pub use count::{Files, Partial};
pub use error::{RepairError, Result};
pub use mend::LOST_AND_FOUND;
pub use repair::{Options, Progress, Repaired, Stage, name_of, repair};
pub use report::{DeviceReport, LogReport, Report, TreeReport};
