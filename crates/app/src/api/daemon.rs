//! Requests about the daemon itself. They work across versions: nothing here may change its meaning.

use serde::{Deserialize, Serialize};

/// Asks how the daemon is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Status {}

/// State of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its process; nothing when it does not run.
    pub pid: Option<u32>,
    /// Its version, or the command's when it does not run.
    pub version: String,
    /// The names of the pools that are imported.
    pub pools: Vec<String>,
}

/// Asks it to export all pools and end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Stop {}
