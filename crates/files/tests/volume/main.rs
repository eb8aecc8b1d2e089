//! Mounts over simulated devices.

mod bed;
mod crash;
mod model;
mod quota;
mod semantics;
mod threads;
