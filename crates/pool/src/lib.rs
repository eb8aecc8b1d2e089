//! A pool without file names: layout, segments, block store, block map, trees, commit, log.
pub mod codec;
pub mod parity;
pub mod property;
