//! Room in slots: see [`crate::space`].

/// Number of segments that slots make, and their data columns together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Segments, the widest first.
    pub segments: u64,
    /// Data columns of all of them.
    pub columns: u64,
}
