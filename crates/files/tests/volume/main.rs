//! Mounts over simulated devices.

mod bed;
mod crash;
mod model;
mod semantics;
mod threads;
