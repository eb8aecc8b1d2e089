//! Requests of the command line, scripts and the dashboard to the daemon, and its replies, as plain data.
//!
//! One request struct a verb, in [`pool`] and [`fs`]; [`crate::engine`] ties each to its route and its
//! reply. Property values travel in their exact form (see [`larder_pool::property`]): the daemon checks
//! requests before the engine sees them, and only clients turn values into something to look at.

pub mod daemon;
pub mod dedup;
pub mod diff;
mod error;
pub mod events;
pub mod extents;
pub mod figures;
pub mod fs;
pub mod name;
pub mod pass;
pub mod policy;
pub mod pool;
pub mod properties;
pub mod repair;
pub mod snapshots;
pub mod stream;
pub mod trace;
pub mod trash;

pub use error::{ApiError, ErrorKind, Result};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Names and exact values of properties.
pub type Properties = BTreeMap<String, String>;

/// The reply of verbs that have nothing to tell but that they are done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// A pool or dataset with the properties that were asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// `tank`, `tank/home`.
    pub name: String,
    /// Pool, filesystem, snapshot or bookmark.
    pub kind: ItemKind,
    /// In the order in which they were asked for, or that of the registry; unknown ones are left out.
    pub properties: Vec<PropertyValue>,
}

/// Kind of an [`Item`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemKind {
    /// A pool.
    Pool,
    /// A dataset that holds files.
    Filesystem,
    /// A dataset as it was.
    Snapshot,
    /// A place in time to send from.
    Bookmark,
}

/// One property's value and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropertyValue {
    /// The property's full name.
    pub name: String,
    /// Its exact value; `-` when it has none.
    pub value: String,
    /// Where it comes from.
    pub source: Source,
    /// The exact value that a stream brought, whether it has effect or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<String>,
}

impl PropertyValue {
    /// A value, where no stream brought one.
    pub fn new(name: &str, value: impl ToString, source: Source) -> Self {
        Self { name: name.to_owned(), value: value.to_string(), source, received: None }
    }
}

/// Where a property's value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "type", content = "data")]
pub enum Source {
    /// Larder tells it.
    None,
    /// Nobody set it.
    Default,
    /// It was set here.
    Local,
    /// It was set on this dataset, above.
    Inherited(String),
    /// It holds until unmounted or exported.
    Temporary,
    /// It came with a stream.
    Received,
}

/// Pools or datasets with their properties, in the order of their names or that of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Items {
    /// One for each.
    pub items: Vec<Item>,
}

impl Item {
    /// The value of a property, when it is here.
    pub fn get(&self, name: &str) -> Option<&PropertyValue> {
        self.properties.iter().find(|property| property.name == name)
    }
}
