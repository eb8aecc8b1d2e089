//! The error for bad bytes.

use thiserror::Error;

/// Why bytes were refused. The caller knows the device and the offset; this says what was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Reason {
    /// Fewer bytes than the structure needs.
    #[error("cut short")]
    Short,
    /// The magic number is not this structure's: nothing of ours was written here.
    #[error("wrong magic number")]
    Magic,
    /// A version that this build does not know.
    #[error("unknown version")]
    Version,
    /// The checksum of a header or payload does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// The structure is intact but is another one than was asked for (misdirected or stale write).
    #[error("belongs to something else")]
    Identity,
    /// A field holds a value out of its range.
    #[error("value out of range")]
    Range,
    /// An enumeration holds a number that names nothing.
    #[error("unknown kind")]
    Kind,
    /// Entries out of order or overlapping.
    #[error("entries out of order")]
    Order,
    /// A codec could not decode its payload.
    #[error("payload does not decode")]
    Codec,
    /// The pool uses a feature that this build does not have.
    #[error("unsupported feature")]
    Feature,
}

/// Bytes that were refused: a structure's name and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{}{what}: {reason}", if matches!(reason, Reason::Feature) { "" } else { "corrupt " })]
pub struct Corrupt {
    /// Which structure was expected here.
    pub what: &'static str,
    /// Why it was refused.
    pub reason: Reason,
}

impl Corrupt {
    /// A refusal of the structure named `what`.
    pub const fn new(what: &'static str, reason: Reason) -> Self {
        Self { what, reason }
    }
}

/// Shorthand: `Err(Corrupt)` for `what` unless `ok`.
pub fn ensure(ok: bool, what: &'static str, reason: Reason) -> Result<(), Corrupt> {
    if ok { Ok(()) } else { Err(Corrupt::new(what, reason)) }
}
