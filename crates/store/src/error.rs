//! Errors of a pool, by what the caller can do about them.

use crate::refusal::Refusal;
use larder_device::DeviceError;
use larder_format::{BlockId, Corrupt, DatasetId};
use thiserror::Error;

/// An error of the store. Committed data is intact unless a variant says otherwise.
#[derive(Debug, Clone, Error)]
pub enum PoolError {
    /// Free space and try again.
    #[error("no space left in the pool")]
    NoSpace,
    /// Free space in this dataset or below it, or raise its quota.
    #[error("the quota of dataset {0} is used up")]
    Quota(DatasetId),
    /// A block could not be read from any of its copies, nor rebuilt. Only this block is affected.
    #[error("block {id} cannot be read: {cause}")]
    Unreadable {
        /// The block.
        id: BlockId,
        /// Error of the last attempt.
        cause: String,
    },
    /// A structure other than a block is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// Too many devices fail: nothing more is acknowledged until they are back.
    #[error("the pool is suspended: {0}")]
    Suspended(String),
    /// The file system that devices lie on is full: the pool is suspended until there is room, and then resumed.
    #[error("the pool is suspended: {0}")]
    HostFull(String),
    /// A device request failed where no redundancy could cover it.
    #[error("{device}: {error}")]
    Device {
        /// The device's name.
        device: String,
        /// The device's error.
        error: DeviceError,
    },
    /// No such name.
    #[error("{0} does not exist")]
    NotFound(String),
    /// The name is taken.
    #[error("{0} exists")]
    Exists(String),
    /// It cannot be done with this pool and these devices as they are; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request makes no sense as it stands; the text says why.
    #[error("{0}")]
    Invalid(String),
    /// The pool or dataset may not be written.
    #[error("read-only")]
    ReadOnly,
    /// It would have to be read from a device, which must not be waited for now: for the caller to do first.
    #[error("not in memory")]
    NotAtHand,
    /// In use; the text says by what.
    #[error("{0}")]
    Busy(String),
}

impl PoolError {
    /// Whether what was to be read is lost, as far as is known, and nothing else is.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Unreadable { .. } | Self::Corrupt(_))
    }
}

/// Shorthand.
pub type Result<T, E = PoolError> = std::result::Result<T, E>;
