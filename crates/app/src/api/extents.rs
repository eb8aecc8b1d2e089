//! Requests and replies about what files are made of.

use super::ApiError;
use serde::{Deserialize, Serialize};

/// A file of a mount, as stat(2) tells it: whoever asks has found it by its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileId {
    /// Its path, for messages.
    pub path: String,
    /// The device of the mount, as `major:minor`.
    pub device: String,
    /// Its inode number.
    pub inode: u64,
}

/// Asks for a part of a file's extents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extents {
    /// The file.
    pub file: FileId,
    /// Extents that begin here or later, bytes.
    pub from: u64,
}

/// A file's extents, or a part of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileExtents {
    /// The dataset that the file is in.
    pub dataset: String,
    /// Its length, bytes.
    pub size: u64,
    /// Bytes that its records are cut at; 0 for one without data.
    pub record_size: u32,
    /// By their offset.
    pub extents: Vec<Extent>,
    /// Where to go on asking; nothing when these were the last.
    pub next: Option<u64>,
}

/// A range of a file and the block that holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where it begins in the file, bytes.
    pub offset: u64,
    /// Bytes of the file.
    pub length: u32,
    /// The id of the block.
    pub block: u64,
    /// Where it begins in the block's content, bytes.
    pub block_offset: u32,
    /// Bytes of the block's content.
    pub logical: u32,
    /// Bytes that the block takes on a device, its header included.
    pub stored: u32,
    /// The segment that the block is in.
    pub segment: u64,
    /// Where it lies: one for each copy.
    pub copies: Vec<Copy>,
    /// The block has, or had before the last trace, further references.
    pub shared: bool,
    /// It is stored compressed.
    pub compressed: bool,
}

/// Where a block lies on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Its path.
    pub device: String,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// Asks for the versions of a file over the snapshots of its dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The nearest folder above it that exists; its path is the file's, for messages.
    pub folder: FileId,
    /// Names on the way from there.
    pub names: Vec<String>,
    /// It may be a folder, whose versions are told by what lies right in it.
    pub folders: bool,
}

/// The versions of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersions {
    /// The dataset that it is or was in.
    pub dataset: String,
    /// Where that is mounted.
    pub mountpoint: Option<String>,
    /// Its path below the dataset's root, without a slash before it.
    pub path: String,
    /// Oldest first; the live one, if it exists, is the last.
    pub versions: Vec<Version>,
    /// Snapshots in which the way to it cannot be read, and why; without a name for what is there now.
    pub unreadable: Vec<(Option<String>, ApiError)>,
}

/// A file as it was over some snapshots in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Its number in the dataset.
    pub inode: u64,
    /// Its length, bytes; of folders nothing.
    pub size: Option<u64>,
    /// Last change of its content: seconds since 1970, and nanoseconds.
    pub mtime: (i64, u32),
    /// The snapshots that have it, oldest first.
    pub snapshots: Vec<String>,
    /// It is what is there now.
    pub live: bool,
}

/// Copies a file over another by reference: a part of it, for the next request goes on where this one ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneFile {
    /// From where.
    pub source: FileId,
    /// To where.
    pub target: FileId,
    /// Where to begin in both, bytes.
    pub offset: u64,
    /// Bytes to copy; 0 only checks that both files are found.
    pub length: u64,
}

/// Result of one [`CloneFile`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cloned {
    /// Bytes; none at the end of the source.
    pub copied: u64,
    /// Those of them that are shared, or in holes.
    pub shared: u64,
}
