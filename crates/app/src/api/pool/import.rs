//! `pool import`, `pool export`.

use super::{PoolStatus, exact};
use crate::api::{ApiError, Properties, Result, name};
use serde::{Deserialize, Serialize};

/// Looks for pools that can be imported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Importable {
    /// Absolute paths of folders and devices to look at; empty for all block devices and where pools were last seen.
    pub search: Vec<String>,
    /// Those that were destroyed, and no others.
    #[serde(default)]
    pub destroyed: bool,
}

/// Pools that are on devices and not imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportablePools {
    /// One for each; a pool that cannot be imported as it is tells so in `status` and `action`.
    pub pools: Vec<PoolStatus>,
}

/// Imports pools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// Absolute paths of folders and devices to look at; empty as in [`Importable`].
    pub search: Vec<String>,
    /// A name or guid; nothing for all pools that are found.
    pub pool: Option<String>,
    /// One that was destroyed; of no name, all those.
    #[serde(default)]
    pub destroyed: bool,
    /// A new name for it.
    pub new_name: Option<String>,
    /// Leave its datasets unmounted.
    pub no_mount: bool,
    /// Write nothing at all.
    pub readonly: bool,
    /// A device that waits to replace one that is missing takes its place: what could not be read of that one is lost.
    #[serde(default)]
    pub accept_loss: bool,
    /// Go on without the log's own devices, where these are missing, and without what may be there.
    #[serde(default)]
    pub without_log: bool,
    /// Take it from another host that has not exported it and gives no sign of life.
    #[serde(default)]
    pub take_over: bool,
    /// An absolute path that all of its mount points are below, for this import.
    #[serde(default)]
    pub altroot: Option<String>,
    /// Properties to set: `memory`, `comment`, …
    pub properties: Properties,
}

impl Import {
    /// The request with exact properties, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        if let Some(name) = &self.new_name {
            name::check_pool(name)?;
            if self.pool.is_none() {
                return Err(ApiError::usage("a new name needs the name or guid of one pool"));
            }
        }
        Ok(Self { properties: exact(self.properties, false)?, ..self })
    }
}

/// Result of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Names of the pools that are imported now.
    pub names: Vec<String>,
    /// Notes for people: devices that are missing, datasets that could not be mounted.
    pub notes: Vec<String>,
    /// Errors of other pools.
    pub failed: Vec<ApiError>,
}

/// Exports a pool: unmounts, commits, lets go of the devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Also when it is suspended, and drops what was not committed.
    #[serde(default)]
    pub force: bool,
    /// Of one that is not imported and that the daemon expects: do not expect it any more.
    #[serde(default)]
    pub forget: bool,
}

/// Result of an export: the pool is closed, its devices are let go of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// Why its devices do not say so: another host takes it only by force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmarked: Option<ApiError>,
}
