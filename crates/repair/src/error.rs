//! Why nothing could be looked for.

use larder_pool::PoolError;
use thiserror::Error;

/// See the module's text.
#[derive(Debug, Error)]
pub enum RepairError {
    /// None of the devices is of a pool, as far as can be told.
    #[error(
        "nothing of a pool was found on {}: name all of its devices that are left",
        if *.looked_at == 1 { "it".to_owned() } else { format!("these {looked_at}") }
    )]
    NoPool {
        /// Devices that were looked at.
        looked_at: usize,
    },
    /// The devices are of other pools than the one that was asked for.
    #[error("no device is of the pool '{wanted}'; they are of {}", told(there))]
    OtherPools {
        /// The name or number that was asked for.
        wanted: String,
        /// Names and GUIDs of those that are there.
        there: Vec<(String, u64)>,
    },
    /// The devices are of more than one pool: names and GUIDs.
    #[error("the devices are of several pools; say which, by name or number: {}", told(.0))]
    SeveralPools(Vec<(String, u64)>),
    /// The commit to go back to has no root any more, or its tables are lost: those that can be had.
    #[error(
        "commit {wanted} cannot be had any more; these can: {}",
        if there.is_empty() { "none".to_owned() } else { each(there) }
    )]
    NoSuchCommit {
        /// The one that was asked for.
        wanted: u64,
        /// Those whose roots and tables are there.
        there: Vec<u64>,
    },
    /// The pool that is put together anew cannot be written or read.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

fn each(commits: &[u64]) -> String {
    commits.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn told(pools: &[(String, u64)]) -> String {
    let each: Vec<_> = pools.iter().map(|(name, guid)| format!("{name} ({guid})")).collect();
    each.join(", ")
}

/// A result of this crate.
pub type Result<T, E = RepairError> = std::result::Result<T, E>;
