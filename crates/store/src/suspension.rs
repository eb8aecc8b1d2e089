//! Why nothing is written any more.

use crate::error::PoolError;

/// Why a pool is suspended.
#[derive(Debug, Clone)]
pub struct Suspension {
    /// In words.
    pub reason: String,
    /// Nothing but an import helps.
    pub lasting: bool,
    /// It is for want of room on the file system under the devices.
    pub(crate) full: bool,
}

impl Suspension {
    pub(crate) fn error(&self) -> PoolError {
        if self.full {
            PoolError::HostFull(self.reason.clone())
        } else {
            PoolError::Suspended(self.reason.clone())
        }
    }
}
