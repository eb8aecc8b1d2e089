//! Events of pools, and the commands that changed them.

use serde::{Deserialize, Serialize};

/// Reads what happened to pools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Which pools; empty for all.
    pub names: Vec<String>,
    /// Only events with higher numbers than this one, pool by pool in the order of the reply before.
    pub after: Vec<(String, u64)>,
    /// Forget all of them instead.
    pub clear: bool,
}

/// Events of pools, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLists {
    /// One for each pool.
    pub pools: Vec<PoolEvents>,
}

/// Events of a pool, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolEvents {
    /// Its name.
    pub name: String,
    /// The events.
    pub events: Vec<Event>,
}

/// Something that happened, or the same thing several times within a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number in the pool; they ascend.
    pub number: u64,
    /// When it happened first: seconds since 1970.
    pub time: i64,
    /// Nanoseconds beside them.
    pub time_ns: u32,
    /// When it happened last: seconds since 1970.
    pub last: i64,
    /// Number of occurrences.
    pub count: u64,
    /// One word.
    pub class: String,
    /// The device that it is about, as people knew it then.
    pub device: Option<String>,
    /// Its guid.
    pub device_guid: Option<u64>,
    /// The dataset of the file that it is about.
    pub dataset: Option<String>,
    /// That file's inode.
    pub inode: Option<u64>,
    /// Where it is now, when a name leads to it.
    pub path: Option<String>,
    /// Further details; may be empty.
    pub text: String,
}

/// Reads which commands changed pools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Which pools; empty for all.
    pub names: Vec<String>,
}

/// Histories of pools, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histories {
    /// One for each pool.
    pub pools: Vec<PoolHistory>,
}

/// The commands that changed a pool, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolHistory {
    /// Its name.
    pub name: String,
    /// The commands.
    pub commands: Vec<Command>,
}

/// A command that changed a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// When it was done: seconds since 1970.
    pub time: i64,
    /// The user's number.
    pub uid: u32,
    /// The user's name; empty when there is none.
    pub user: String,
    /// The host; empty before it is kept.
    pub host: String,
    /// As it was typed.
    pub text: String,
}
