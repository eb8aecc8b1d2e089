//! Tests of the store that take a whole pool.

mod miscounted;
mod runs;
mod snapshots;
