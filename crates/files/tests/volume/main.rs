//! Mounts over simulated devices.

mod bed;
mod crash;
mod lists;
mod model;
mod semantics;
mod threads;
