//! Requests and replies of `larder fs undestroy` and `larder fs trash`.

use super::{ApiError, ItemKind, Result, name};
use serde::{Deserialize, Serialize};

/// Brings a destroyed dataset or snapshot back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undestroy {
    /// Its name when it was destroyed; of several of this name the one that was destroyed last.
    pub name: String,
    /// The name that it gets instead: of a snapshot, one of the same dataset.
    pub to: Option<String>,
    /// Datasets too that were below it.
    pub recursive: bool,
}

/// Datasets and snapshots that are back, parents first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// Names.
    pub restored: Vec<String>,
}

/// Asks what is in the trash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trash {
    /// Of a pool, or of a dataset and all below it, by the names then; of all pools without.
    pub name: Option<String>,
}

/// The trash, what was destroyed first first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashList {
    /// All of it.
    pub items: Vec<TrashItem>,
}

/// Something in the trash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashItem {
    /// Its name.
    pub name: String,
    /// A dataset with its snapshots, or a snapshot.
    pub kind: ItemKind,
    /// When it was destroyed, seconds since 1970.
    pub destroyed: i64,
    /// Until when it stays, unless its space is needed before, seconds since 1970.
    pub until: i64,
    /// Bytes that come back with it alone; nothing where that cannot be read.
    pub used: Option<u64>,
}

/// Lets go of what is in the trash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyTrash {
    /// A pool, all of whose trash goes; or something in it.
    pub name: String,
}

impl Undestroy {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(mut self) -> Result<Self> {
        let Some((dataset, _)) = self.name.split_once('@') else {
            name::check_dataset(&self.name)?;
            self.to.as_deref().map_or(Ok(()), name::check_dataset)?;
            return Ok(self);
        };
        name::check_snapshot(&self.name)?;
        if let Some(to) = &mut self.to {
            if to.starts_with('@') {
                to.insert_str(0, dataset);
            }
            if name::check_snapshot(to)?.0 != dataset {
                return Err(ApiError::usage("a snapshot stays with its dataset: give DATASET@NEW, or @NEW"));
            }
        }
        Ok(self)
    }
}
