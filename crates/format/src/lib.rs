//! On-disk bytes to checked values and back.
//!
//! The only crate that knows byte positions; it does no I/O and holds no policy. All integers are
//! little-endian. Bytes become values once: every structure has an `Unchecked…` form or a `decode`
//! that verifies magic, version, checksum and ranges, and bad bytes are a [`Corrupt`] value, never a
//! panic. `SPEC.md` is this crate's front page and a test holds it against the code.

pub mod block;
pub mod checksum;
pub mod error;
pub mod field;
pub mod ids;
pub mod items;
pub mod label;
pub mod log;
pub mod node;
pub mod ops;
pub mod root;
pub mod run;
pub mod segment;
pub mod tables;

pub use error::{Corrupt, Reason};
pub use ids::*;
