//! `pool get`, `pool set`.

use crate::api::{Properties, Result};
use larder_pool::property;
use serde::{Deserialize, Serialize};

/// Reads properties of pools; what `list` and `get` show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Get {
    /// Which pools; empty for all.
    pub names: Vec<String>,
    /// Full names of properties; empty for all.
    pub properties: Vec<String>,
}

/// Sets properties of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// The pool.
    pub name: String,
    /// To what.
    pub properties: Properties,
}

impl Set {
    /// The request with exact properties.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        Ok(Self { properties: exact(self.properties, false)?, ..self })
    }
}

/// Values in their exact form.
pub(super) fn exact(given: Properties, creating: bool) -> Result<Properties> {
    given.iter().map(|(name, value)| Ok(property::parse_pool(name, value, creating)?)).collect()
}
