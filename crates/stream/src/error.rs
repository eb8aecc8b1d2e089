//! Errors of streams.

use larder_format::Corrupt;
use larder_pool::PoolError;

/// Reasons to refuse a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It does not begin as a stream does.
    #[error("this is no stream of Larder's")]
    Magic,
    /// It was made by a later version.
    #[error("it is of a later version")]
    Version,
    /// It has something that only a later version knows.
    #[error("it has something in it that only a later version knows")]
    Feature,
    /// A sum is not that of what came.
    #[error("its checksum is wrong: it was damaged on the way")]
    Sum,
    /// Something does not follow what came before.
    #[error("its parts are out of order")]
    Order,
    /// A number, a length or a name cannot be.
    #[error("it says what cannot be")]
    Range,
    /// Names and files, or extents, do not agree with each other.
    #[error("its names and files do not agree with each other")]
    Disagreement,
    /// A record does not decode to what it should.
    #[error("a record in it cannot be decoded")]
    Record,
    /// It names content that is not here.
    #[error("it refers to content that is not here")]
    Reference,
}

/// Errors of sending and receiving.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The pool refuses, or cannot.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The stream cannot be read on.
    #[error("the stream cannot be read: {0}")]
    Read(std::io::Error),
    /// It ends before its end.
    #[error("the stream ended early, after {0} bytes")]
    Short(u64),
    /// It is refused, at this byte.
    #[error("the stream is bad at byte {at}: {wrong}")]
    Bad {
        /// Bytes before the part that is bad.
        at: u64,
        /// The reason.
        wrong: Wrong,
    },
    /// Records are longer than the slots of this pool have room for, bytes.
    #[error("it has records of {found} bytes, and this pool has room for records of {room} at most")]
    RecordTooLong {
        /// Bytes of a record in the stream.
        found: u32,
        /// Bytes of the longest record that the pool can store.
        room: u32,
    },
}

impl From<Corrupt> for Wrong {
    fn from(_: Corrupt) -> Self {
        Self::Range
    }
}
