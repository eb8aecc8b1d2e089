//! Requests and replies about a pool's devices and what is done to keep them whole: taken out and brought
//! back, replaced, added, scrubbed, resilvered.
//!
//! A device of a pool is named as people type it: by its path, the last part of that, its guid, or its
//! number. New devices are absolute paths.

mod devices;
mod reshape;
mod scans;
mod split;

pub use devices::*;
pub use reshape::*;
pub use scans::*;
pub use split::*;
