//! Mounts over simulated devices.

mod access;
mod attributes;
mod bed;
mod crash;
mod lists;
mod model;
mod nameless;
mod semantics;
mod threads;
