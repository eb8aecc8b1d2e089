//! `pool create`, `pool destroy`.

use super::{Group, Role, exact};
use crate::api::{ApiError, Properties, Result, fs, name, repair};
use serde::{Deserialize, Serialize};

/// Makes a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// Its name.
    pub name: String,
    /// Its groups.
    pub groups: Vec<Group>,
    /// Absolute paths of its spares.
    pub spares: Vec<String>,
    /// Absolute paths of its devices for copies of blocks.
    #[serde(default)]
    pub caches: Vec<String>,
    /// Its own properties: `ashift`, `memory`, `comment`, …
    pub properties: Properties,
    /// The properties of its top dataset; `mountpoint` is made when missing.
    pub fs_properties: Properties,
    /// An absolute path that all of its mount points are below, until it is exported.
    #[serde(default)]
    pub altroot: Option<String>,
    /// Only tell. Devices are looked at, nothing is written.
    pub dry_run: bool,
}

impl Create {
    /// The request with exact properties, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        name::check_pool(&self.name)?;
        if !self.groups.iter().any(|group| group.role == Role::Data) {
            return Err(ApiError::usage(format!("cannot create '{}': no devices for data given", self.name)));
        }
        repair::check_new(&self.groups, self.spares.iter().chain(&self.caches))?;
        Ok(Self {
            properties: exact(self.properties, true)?,
            fs_properties: fs::exact_at_creation(self.fs_properties)?,
            ..self
        })
    }
}

/// A new pool, as made or, in a dry run, as it would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// Its name.
    pub name: String,
    /// Its groups.
    pub groups: Vec<Group>,
    /// Its spares.
    pub spares: Vec<String>,
    /// Its devices for copies of blocks.
    #[serde(default)]
    pub caches: Vec<String>,
    /// Bytes of all devices in groups but the log's together.
    pub size: u64,
    /// Bytes that files can take, before compression.
    pub usable: u64,
    /// Device losses survived, whichever devices they hit.
    pub survives: u32,
    /// Where its top dataset is mounted, if it is.
    pub mountpoint: Option<String>,
    /// Remarks for people, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Destroys a pool: its devices are free; until they are used it can be imported as a destroyed one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destroy {
    /// Its name.
    pub name: String,
    /// Its labels are wiped: it cannot be brought back.
    #[serde(default)]
    pub now: bool,
}

/// Result of destroying a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDestroyed {
    /// It can be brought back.
    pub kept: bool,
}
