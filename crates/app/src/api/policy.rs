//! Requests and replies of `larder policy`. A policy is a dataset's properties: [`super::fs::Set`] sets it.

use super::{ApiError, Result, Source, name};
use crate::policy::{Format, Period};
use serde::{Deserialize, Serialize};

/// Asks for policies, and what has become of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Show {
    /// Of which datasets; empty for all that have a policy, or snapshots of one.
    pub names: Vec<String>,
    /// Of all datasets below too.
    pub recursive: bool,
}

/// Policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policies {
    /// Of each dataset, each after its parent.
    pub datasets: Vec<DatasetPolicy>,
}

/// Policy of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetPolicy {
    /// Its name.
    pub name: String,
    /// Form of the names of its snapshots.
    pub format: Format,
    /// Each period, the shortest first.
    pub periods: Vec<PeriodPolicy>,
}

/// Policy of a dataset for one period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodPolicy {
    /// The period.
    pub period: Period,
    /// Number of snapshots that are kept; without it, none is taken or destroyed.
    pub keep: Option<u64>,
    /// Where that comes from.
    pub source: Source,
    /// Number of those that there are.
    pub snapshots: u64,
    /// When the newest was taken: seconds since 1970.
    pub newest: Option<i64>,
    /// When the next is due, if any is: seconds since 1970, at the earliest now.
    pub next: Option<i64>,
    /// It is due now.
    pub due: bool,
}

/// Takes the snapshots that are due, and destroys those that are too many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Of which datasets; empty for all.
    pub names: Vec<String>,
    /// Of all datasets below too.
    pub recursive: bool,
    /// Only tell.
    pub dry_run: bool,
}

/// Snapshots that were taken and destroyed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// Taken, all of a pool at one moment.
    pub taken: Vec<String>,
    /// Destroyed.
    pub destroyed: Vec<String>,
    /// Too many, and kept all the same.
    pub kept: Vec<Kept>,
    /// Failures; all else was done.
    pub failed: Vec<ApiError>,
}

/// A snapshot that is kept though its policy does not want it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// The reason.
    pub why: String,
}

fn check_names(names: &[String]) -> Result<()> {
    names.iter().try_for_each(|name| name::check_dataset(name))
}

impl Show {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        check_names(&self.names).map(|()| self)
    }
}

impl Run {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        check_names(&self.names).map(|()| self)
    }
}
