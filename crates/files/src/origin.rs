//! Where an operation comes from.

/// Whether an operation is new, or replayed and in the log already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Live,
    Replay,
}
