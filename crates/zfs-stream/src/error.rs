//! Errors.

use thiserror::Error;

/// A kind of stream that is understood and not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// `zfs send -w`: records as they are encrypted on disk.
    #[error("it is raw (zfs send -w): its records are as they lie on disk, encrypted ones without their key")]
    Raw,
    /// `zfs send --redact`.
    #[error("it is redacted: parts of its files were left out on purpose")]
    Redacted,
    /// `zfs send -D`.
    #[error(
        "it is deduplicated (zfs send -D): records refer to earlier ones; `zstream redup` writes them out"
    )]
    Deduplicated,
    /// `zfs send -t`: the rest of one that was broken off.
    #[error("it is the rest of one that was broken off (zfs send -t)")]
    Resuming,
    /// A volume, or something else without files.
    #[error("it is of a dataset without files (a volume)")]
    NotFiles,
    /// Features that nobody here knows.
    #[error("it uses features that are not known here (bits {0:#x})")]
    Features(u64),
    /// A version of the file system that nobody here knows.
    #[error("its file system has version {0}, which is not known here")]
    Version(u64),
    /// A name that does not fit.
    #[error("it has names of more than 255 bytes")]
    LongName,
    /// A file without a name got one.
    #[error(
        "a file that had no name in the base snapshot got one, and its content is not in an increment: send it whole"
    )]
    Revived,
}

/// Why a stream cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StreamError {
    /// The source of the bytes failed.
    #[error("it cannot be read: {0}")]
    Io(String),
    /// It ends in the middle.
    #[error("it ends in the middle, after {0} bytes")]
    Truncated(u64),
    /// These are no bytes of `zfs send`.
    #[error("it is no stream of zfs send")]
    NotAStream,
    /// Bytes changed on the way.
    #[error("its checksum is wrong: bytes changed on the way, before byte {0}")]
    Checksum(u64),
    /// It contradicts itself.
    #[error("it is damaged: {0}")]
    Corrupt(&'static str),
    /// It is of a kind that is not taken.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

/// Result of reading a stream.
pub type Result<T> = std::result::Result<T, StreamError>;

pub(crate) fn corrupt(what: &'static str) -> StreamError {
    StreamError::Corrupt(what)
}

/// Why a stream was not received.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReceiveError<E> {
    /// The stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The place where it goes.
    #[error("{0}")]
    Sink(E),
    /// It is an increment upon another snapshot than the one that is here.
    #[error("it is an increment upon the snapshot with guid {wanted:#x}; here is {here:#x}")]
    WrongBase {
        /// The guid that it asks for.
        wanted: u64,
        /// The guid that was received last; 0 for none.
        here: u64,
    },
    /// The dataset holds something already, and the stream is no increment.
    #[error("it is whole, and something was received here already")]
    NotEmpty,
    /// The notes of the last receive cannot be read.
    #[error("the notes of the last receive are damaged: {0}")]
    State(&'static str),
}
