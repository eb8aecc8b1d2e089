//! POSIX semantics over pool trees.
//!
//! [`Ops`] is what a transport calls; `Mount` implements it over the volumes of a pool.

mod error;
mod ops;

pub use error::{FsError, Result};
pub use ops::*;
