//! Tests of the store that take a whole pool.

mod miscounted;
mod received;
mod rows;
mod runs;
mod snapshots;
mod tables;
