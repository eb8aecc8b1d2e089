//! `pool sync`, `pool wait`.

use serde::{Deserialize, Serialize};

/// Returns when a commit holds all that was written before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// Which pools; empty for all.
    pub names: Vec<String>,
}

/// An activity whose end [`Wait`] waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// Freed space can be written again.
    Free,
    /// No scrub is running.
    Scrub,
    /// No resilver is running, and nothing has to move since groups changed their shape.
    Resilver,
    /// No trace is under way.
    Trace,
    /// No device is being trimmed.
    Trim,
    /// No rebalance is under way.
    Rebalance,
}

/// Returns when activities are over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The pool.
    pub name: String,
    /// For what; empty for everything.
    pub activities: Vec<Activity>,
}
