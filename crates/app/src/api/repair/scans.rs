//! `pool scrub`, `pool resilver`, `pool trim`.

use serde::{Deserialize, Serialize};

/// Scrubs pools: verifies everything that they hold, and repairs what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// Which pools.
    pub names: Vec<String>,
    /// The action.
    pub action: ScrubAction,
    /// Seconds since 1970: only what was last verified before that, or never.
    pub since: Option<i64>,
}

/// Action on scrubs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubAction {
    /// Start one, or go on with one that was paused.
    Start,
    /// Keep its place.
    Pause,
    /// End it.
    Stop,
}

/// Starts resilvers from the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resilver {
    /// Which pools.
    pub names: Vec<String>,
}

/// Tells devices what is free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trim {
    /// The pool.
    pub name: String,
    /// Its devices; none for all to which it applies.
    pub devices: Vec<String>,
    /// The action.
    pub action: TrimAction,
    /// The most of each device that is gone through in a second, bytes; 0 for no limit.
    pub rate: u64,
}

/// Writes anew what would gain from it, now that devices or groups were added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalance {
    /// The pool.
    pub name: String,
    /// The action.
    pub action: RebalanceAction,
    /// The most that is moved in a second, bytes; 0 for no limit.
    pub rate: u64,
    /// Only tell what it would do.
    pub dry_run: bool,
}

/// Action on a rebalance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RebalanceAction {
    /// Begin.
    Start,
    /// End it where it is.
    Stop,
}

/// Figures of a rebalance that somebody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalanced {
    /// Bytes, before copies and parity, that are to be moved.
    pub moves: u64,
    /// Bytes that files can take more afterwards.
    pub gains: u64,
}

/// Action on trims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrimAction {
    /// Begin, or go on with those that are suspended.
    Start,
    /// Wait until it is started again.
    Suspend,
    /// End it.
    Cancel,
}
