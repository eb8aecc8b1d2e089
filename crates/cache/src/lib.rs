//! The read cache on SSDs, without I/O: which blocks are cached, where they lie, and what leaves.
//!
//! Ids of blocks never return, so what is cached is never out of date. Blocks lie in slots of one size, as stored.
//! [`Cache`] decides and the caller does: time comes in as seconds, chance as a seed.
//!
//! - A read that RAM did not answer: [`Cache::find`]; the caller reads there and looks at the block's id. If it is the
//!   block: [`Cache::hit`]. If not, or if nothing was found: [`Cache::missed`], and if that says so, once the block was
//!   read, [`Cache::append`], which says where it is to be written.
//! - A place in another slot than the one before: that one is full, and is not written to again.
//! - After each append, while [`Cache::next_victim`] names a slot: the caller reads which ids lie there,
//!   [`Cache::evict`] says which are to be copied, [`Cache::append_again`] where to, and [`Cache::release`] ends it.
//! - A slot that somebody else needs: [`Cache::reclaim`].

mod budget;
mod cache;
mod ghost;
mod miniature;
mod policy;
mod table;

pub use budget::WriteBudget;
pub use cache::{Cache, Config, Fate, Reclaimed, Stats, Verdict};
pub use ghost::GhostLength;
pub use miniature::{CURVE_SIZES, Curve};
pub use policy::{Cached, Kind, Place, Read};
pub use table::{LONGEST, PLACES, UNIT, is_length, units_of};
