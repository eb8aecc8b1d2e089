//! The engine on simulated devices. One binary, for each would be linked with all of the engine, and tests that take
//! long would run alone: a new test of the engine is a module here, unless it is named in the Makefile.

mod aliases;
mod attached;
mod bad_slots;
mod clones;
#[cfg(debug_assertions)]
mod column_moves;
mod commit_records;
#[path = "../common/mod.rs"]
mod common;
mod copies;
mod dedup;
#[path = "../sweep/elsewhere.rs"]
mod elsewhere;
mod export;
mod figures;
#[path = "../forge/mod.rs"]
mod forge;
mod forging;
mod gc;
mod growth;
mod healing;
mod hostile;
mod log_unread;
mod map_damage;
mod partial_reads;
mod passes;
mod places;
mod power_cuts;
mod read_cache;
mod reconstruct;
mod remains;
mod reshape;
mod resilver;
mod slow;
#[cfg(debug_assertions)]
mod snapshot_races;
mod space;
mod suspended;
#[path = "../sweep/mod.rs"]
mod sweep;
mod trash;
mod trim;
