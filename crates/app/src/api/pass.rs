//! Requests and replies of `larder fs dedup`, `larder fs undedup` and `larder fs rewrite`.

use super::{Result, fs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Purpose of a pass over what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Shares what is stored twice.
    Dedup,
    /// Stores records as their dataset's properties say.
    Rewrite,
    /// Gives live files blocks of their own.
    Undedup,
    /// Cuts live files into records as their dataset's properties say.
    Records,
}

/// Begins a pass, or estimates what it would come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartPass {
    /// The purpose.
    pub task: Task,
    /// Datasets.
    pub names: Vec<String>,
    /// All below them as well.
    pub recursive: bool,
    /// The most that is gone through in a second, bytes; 0 for no limit.
    pub rate: u64,
    /// Estimate alone.
    pub dry_run: bool,
    /// Of an estimate, properties in place of those of the datasets.
    pub properties: BTreeMap<String, String>,
}

impl StartPass {
    /// The request with exact properties.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        Ok(Self { properties: fs::exact(self.properties, false)?, ..self })
    }
}

/// Ends the passes of pools; they go on where they were when they are started again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopPass {
    /// The pools.
    pub names: Vec<String>,
}

/// Asks for the passes of pools, of all without names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShowPasses {
    /// The pools.
    pub names: Vec<String>,
}

/// The pass of each pool that is under way, or the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassList {
    /// One a pool.
    pub passes: Vec<PassStatus>,
}

/// State of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PassState {
    /// It goes on.
    Running,
    /// It was stopped.
    Stopped,
    /// It found no room, and waits to be started again.
    Full,
    /// It went through everything.
    Done,
    /// It has not begun: the figures are estimates.
    Estimate,
}

/// A pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassStatus {
    /// The pool.
    pub pool: String,
    /// The purpose.
    pub task: Task,
    /// Its state.
    pub state: PassState,
    /// The datasets.
    pub datasets: Vec<String>,
    /// When it began, seconds since 1970; 0 of an estimate.
    pub started: i64,
    /// When it ended, seconds since 1970.
    pub finished: Option<i64>,
    /// Stored bytes of the records that were looked at.
    pub examined: u64,
    /// Stored bytes to look at, estimated.
    pub total: u64,
    /// Records that were looked at.
    pub records: u64,
    /// Plain bytes that were read for it.
    pub read: u64,
    /// Records that were shared, or are stored otherwise now.
    pub changed: u64,
    /// Bytes that those took before.
    pub before: u64,
    /// Bytes that they take now.
    pub after: u64,
    /// Records that could not be read: they stay as they are.
    pub unread: u64,
    /// Live files that are known to be damaged, once a pass that cuts files anew has met some.
    pub damaged: Vec<String>,
    /// Bytes of those that files gave up and snapshots hold, or other files.
    pub kept: u64,
}
