//! Why a run ended early.

use std::fmt;

/// A failure, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(String);

/// A value, or why there is none.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// That sentence.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// When it happened, before what.
    pub fn when(self, when: impl fmt::Display) -> Self {
        Self(format!("{when}: {}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}
