//! Requests and replies about what files are made of.

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
