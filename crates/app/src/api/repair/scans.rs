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
