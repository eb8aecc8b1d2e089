//! Mounts over simulated devices.

mod access;
mod attributes;
mod bed;
mod content;
mod copies;
mod crash;
mod damage;
mod damage_log;
mod damage_writes;
mod diff;
mod disks;
mod folders;
mod freeing;
mod full;
mod large;
mod lists;
mod log_device;
mod lookups;
mod model;
mod nameless;
mod nearly_full;
#[cfg(feature = "mutants")]
mod panics;
mod quota;
mod records;
mod replay;
mod semantics;
mod share;
mod small_blocks;
mod snapshots;
mod synced;
mod threads;
mod undedup;
mod versions;
