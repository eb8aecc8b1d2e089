//! `pool split`, `pool reguid`.

use serde::{Deserialize, Serialize};

/// Makes a pool of its own of one device of each mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// The pool.
    pub name: String,
    /// Name of the new one, which is exported.
    pub new_name: String,
    /// Devices that go; of mirrors of which none is named, the last.
    pub devices: Vec<String>,
    /// Only look which would go.
    pub dry_run: bool,
}

/// Devices that make a pool of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parted {
    /// Their paths.
    pub devices: Vec<String>,
    /// Losses of any devices that the first pool survives now, or would.
    pub survives: u32,
}

/// Gives a pool another GUID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reguid {
    /// The pool.
    pub name: String,
}
