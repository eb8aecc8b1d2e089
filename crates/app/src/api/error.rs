//! The error of a failed verb, for people and for scripts.

use larder_pool::property::PropertyError;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// A verb's outcome.
pub type Result<T, E = ApiError> = std::result::Result<T, E>;

/// By what a script can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request makes no sense: ask differently.
    Usage,
    /// There is no such pool, dataset or device.
    NotFound,
    /// The name or device is taken.
    Exists,
    /// It is in use: stop using it, or wait.
    Busy,
    /// Space has run out: free some.
    NoSpace,
    /// The pool or dataset is read-only.
    ReadOnly,
    /// The system refuses: ask with other rights.
    Denied,
    /// Devices fail or are missing: repair.
    Device,
    /// Bytes on a device are not what was written: repair. Or those of a stream, as far as it came: send again.
    Corrupt,
    /// The pool has stopped itself after failures.
    Suspended,
    /// This version cannot do that.
    Unsupported,
    /// Command and daemon are of different versions.
    Version,
    /// The daemon did not answer.
    Daemon,
    /// A bug or an operating system's failure: report.
    Internal,
}

/// Message, device, what is not lost, and the remedy. Never suggests destroying a pool.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
pub struct ApiError {
    /// By what can be done about it.
    pub kind: ErrorKind,
    /// The failure, in zfs's words where they exist: `cannot open 'tank': no such pool`.
    pub message: String,
    /// The device it happened to, with its serial number where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Data that is not lost, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safe: Option<String>,
    /// The remedy: a command to paste, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ApiError {
    /// An error that is only a message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), device: None, safe: None, hint: None }
    }

    /// The request makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// `cannot open 'NAME': no such pool`.
    pub fn no_such_pool(name: &str) -> Self {
        Self::new(ErrorKind::NotFound, format!("cannot open '{name}': no such pool"))
            .hint("larder pool import shows the pools that can be imported")
    }

    /// `cannot open 'NAME': dataset does not exist`.
    pub fn no_such_dataset(name: &str) -> Self {
        Self::new(ErrorKind::NotFound, format!("cannot open '{name}': dataset does not exist"))
    }

    /// Adds the device.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Adds what is not lost.
    #[must_use]
    pub fn safe(mut self, safe: impl Into<String>) -> Self {
        self.safe = Some(safe.into());
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The exit code of a command that failed so.
    pub fn exit_code(&self) -> u8 {
        if self.kind == ErrorKind::Usage { 2 } else { 1 }
    }
}

impl fmt::Display for ApiError {
    /// The message, and a line for each of the other parts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let parts = [("device", &self.device), ("not lost", &self.safe), ("what to do", &self.hint)];
        for (label, part) in parts {
            if let Some(text) = part {
                write!(f, "\n  {label}: {text}")?;
            }
        }
        Ok(())
    }
}

impl From<PropertyError> for ApiError {
    fn from(error: PropertyError) -> Self {
        Self::usage(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_what_happened_where_what_is_safe_and_what_to_do() {
        let error = ApiError::new(ErrorKind::Device, "cannot import 'tank': 2 of 3 devices are missing")
            .device("/dev/sdb (serial WD-42)")
            .safe("nothing was written; what was committed is on the devices")
            .hint("connect the devices, then: larder pool import tank");
        assert_eq!(
            error.to_string(),
            "cannot import 'tank': 2 of 3 devices are missing\n  \
             device: /dev/sdb (serial WD-42)\n  \
             not lost: nothing was written; what was committed is on the devices\n  \
             what to do: connect the devices, then: larder pool import tank"
        );
    }
}
