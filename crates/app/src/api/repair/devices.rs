//! `pool offline`, `pool online`, `pool clear`.

use serde::{Deserialize, Serialize};

/// Takes a device out of use. Refused when data could not be read without it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offline {
    /// The pool.
    pub name: String,
    /// Its devices.
    pub devices: Vec<String>,
    /// Until the next import only.
    pub temporary: bool,
}

/// Brings devices back into use; what they missed is resilvered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Online {
    /// The pool.
    pub name: String,
    /// Its devices, or absolute paths where missing ones are now.
    pub devices: Vec<String>,
    /// All of devices that have grown is used.
    #[serde(default)]
    pub expand: bool,
}

/// Notes for people on a change that was made, a sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The sentences.
    pub notes: Vec<String>,
}

/// Sets error counts to zero; a faulted device comes back as with [`Online`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clear {
    /// The pool.
    pub name: String,
    /// One of its devices; nothing for all of them.
    pub device: Option<String>,
}
