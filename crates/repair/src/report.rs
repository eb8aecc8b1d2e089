//! Findings of a repair: what is there, and what can be saved.

use crate::count::Files;
use larder_format::{CommitId, Timestamp};

/// A device of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its number in the pool.
    pub index: u16,
    /// Its path, when it is there.
    pub name: Option<String>,
    /// Its label is lost.
    pub unlabelled: bool,
}

/// Operations of the intent log: what `fsync` made durable after the newest commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogReport {
    /// So many are there, and done again when the pool is mounted.
    Again(u64),
    /// So many are; then comes a part that cannot be read.
    InPart(u64),
    /// They are left out: the root that tells of them, or a tree that they are for, is not as it was.
    LeftOut,
}

/// A dataset as it is now, or one of its snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeReport {
    /// The dataset's full name.
    pub dataset: String,
    /// The snapshot's name within it; none for what the dataset is now.
    pub snapshot: Option<String>,
    /// Only its number is known: it got a name.
    pub nameless: bool,
    /// Nodes of its tree that are lost.
    pub lost_nodes: u64,
    /// Its root was not told by the tables: it is the newest that was found.
    pub guessed: bool,
    /// Ranges of its tree of which nothing is known.
    pub unknown: u64,
    /// Files and folders, by the numbers of their inodes, that may be as they were before their last changes: ranges.
    pub older: Vec<(u64, u64)>,
    /// Files and folders without a name: they are in [`crate::LOST_AND_FOUND`].
    pub in_lost_and_found: u64,
    /// Names of which nothing else is left.
    pub only_names: u64,
    /// Folders that were made again, since names are in them: with nobody's owner and mode.
    pub folders: u64,
    /// Why its files could not be counted.
    pub unread: Option<String>,
    /// Its files.
    pub files: Files,
}

/// Findings of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The pool's name.
    pub pool: String,
    /// The GUID that its blocks name.
    pub guid: u64,
    /// Its devices.
    pub devices: Vec<DeviceReport>,
    /// The newest root that is left: its commit and time.
    pub newest_root: Option<(CommitId, Timestamp)>,
    /// The root whose tables are whole, which tells what there was; none when that was put together of what was found.
    pub root: Option<(CommitId, Timestamp)>,
    /// The last commit that blocks were written for, after that of the root: it was under way, or its root is lost.
    pub newer: Option<CommitId>,
    /// Slots that were looked at, segments and blocks that were found.
    pub slots: u64,
    /// See `slots`.
    pub segments: u64,
    /// See `slots`.
    pub blocks: u64,
    /// Bytes of stripes that were gone through.
    pub bytes: u64,
    /// Columns of stripes that were wrong and could be computed of the others.
    pub rebuilt_columns: u64,
    /// Columns that nothing gives: blocks in them count as far as they prove themselves.
    pub lost_columns: u64,
    /// Bytes that devices could not read.
    pub unread: u64,
    /// Parts of the tables of which nothing is known.
    pub unknown_tables: u64,
    /// Operations that were made durable after the newest commit.
    pub log: LogReport,
    /// Sentences about devices that are set aside.
    pub remarks: Vec<String>,
    /// Datasets and snapshots.
    pub trees: Vec<TreeReport>,
}

impl Report {
    /// Whether nothing is known to be lost. What is put together without a root can lack what nobody knows of.
    pub fn is_whole(&self) -> bool {
        let whole = |tree: &TreeReport| {
            let lost =
                tree.files.partial + tree.unknown + tree.in_lost_and_found + tree.only_names + tree.folders;
            lost == 0 && tree.older.is_empty() && !tree.nameless && tree.unread.is_none()
        };
        let is_log_whole = !matches!(self.log, LogReport::InPart(_));
        self.unknown_tables == 0 && is_log_whole && self.trees.iter().all(whole)
    }
}
