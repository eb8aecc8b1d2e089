//! Errors.

use std::io;
use std::path::PathBuf;

/// Reasons to stop.
#[derive(Debug, thiserror::Error)]
pub enum DedupeError {
    /// A path that was named cannot be looked at.
    #[error("cannot open '{}': {error}", path.display())]
    Open {
        /// It.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The kernel cannot share blocks there.
    #[error("'{}' is on {kind}, where the kernel cannot share blocks of files: it can on XFS and btrfs", path.display())]
    Unable {
        /// The path that was named.
        path: PathBuf,
        /// Kind of the file system.
        kind: String,
    },
    /// It is a FUSE mount, which the call never reaches.
    #[error("'{}' is on FUSE, to which the kernel does not pass this on", path.display())]
    Fuse {
        /// The path that was named.
        path: PathBuf,
    },
    /// An XFS that was made without it.
    #[error("'{}' is on an XFS that was made without reflink=1: it cannot share blocks", path.display())]
    NoReflink {
        /// The path that was named.
        path: PathBuf,
    },
    /// The file system's own blocks are longer than those that were asked for.
    #[error("'{}' is on a file system whose blocks have {} KiB: it shares no shorter ones", path.display(), block >> 10)]
    SmallBlock {
        /// The path that was named.
        path: PathBuf,
        /// Bytes of the file system's blocks.
        block: u64,
    },
    /// The hash file is damaged, or something else.
    #[error("'{}' is no sound hash file: {why}", path.display())]
    BadHashFile {
        /// It.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Another run has it.
    #[error("'{}' is in use by another run", path.display())]
    Busy {
        /// It.
        path: PathBuf,
    },
    /// The hash file is of another file system, or was made with other settings.
    #[error("'{}' {why}", path.display())]
    Foreign {
        /// It.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The hash file or temporary files cannot be written or read.
    #[error("cannot write or read '{}': {error}", path.display())]
    Storage {
        /// The hash file, or the folder of temporary files.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}
