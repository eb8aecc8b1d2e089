//! Requests and replies of the trace, which walks everything a pool holds.

use super::diff::Path;
use serde::{Deserialize, Serialize};

/// Starts a trace of pools, unless one is under way, or stops it; how it goes on is part of
/// [`super::pool::PoolStatus`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Which pools.
    pub names: Vec<String>,
    /// Stop it.
    pub stop: bool,
    /// It counts by folder as well, up to so many levels below the root of each dataset.
    #[serde(default)]
    pub folders: Option<u32>,
}

/// Asks what the last trace found by folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShowFolders {
    /// Of which pools.
    pub names: Vec<String>,
}

/// Sharing by folder in pools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderLists {
    /// The pools.
    pub pools: Vec<PoolFolders>,
}

/// Sharing by folder in a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFolders {
    /// Its name.
    pub name: String,
    /// None when the last trace did not count by folder, or was before the last import.
    pub found: Option<SharingByFolder>,
}

/// Sharing by folder, as a trace found it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharingByFolder {
    /// Levels below the root of each dataset.
    pub depth: u32,
    /// There are more folders than could be counted apart: some are part of those above them.
    pub unnumbered: bool,
    /// Memory was full before all files were assigned to folders: the rest is elsewhere.
    pub full: bool,
    /// Some folders could not be read: what is in them may be elsewhere.
    pub unread: bool,
    /// Bytes of memory that it took to know which file is in which folder.
    pub memory: u64,
    /// The folders; those of a dataset add up to it.
    pub folders: Vec<FolderSharing>,
}

/// Records of the files of a folder, each counted as often as they refer to it; folders in it that are told themselves
/// do not count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderSharing {
    /// The dataset that it is in.
    pub dataset: String,
    /// Its path below the root of the dataset. None stands for what is elsewhere: in snapshots alone, removed, or in a
    /// folder that is not known.
    pub path: Option<Path>,
    /// Whether deduplication is on in the dataset.
    pub dedup: bool,
    /// References.
    pub references: u64,
    /// Plain bytes of them.
    pub logical: u64,
    /// Bytes they would take if nothing were shared, one copy of them.
    pub allocated: u64,
    /// Its share of what they take: a record that is referred to `n` times counts as an `n`-th for each.
    pub share: u64,
}

/// State of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceState {
    /// It is under way.
    #[default]
    Running,
    /// It saw everything.
    Done,
    /// Somebody stopped it.
    Stopped,
    /// It could not go on.
    Failed,
}

/// A trace, under way or over. What it found is told when it is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStatus {
    /// Its state.
    pub state: TraceState,
    /// Why it failed.
    pub failure: Option<String>,
    /// Blocks below this id were judged by one that was cut short or failed, and were not looked at again; 0 when all
    /// were.
    pub from: u64,
    /// Seconds since 1970.
    pub started: i64,
    /// Seconds since 1970; nothing while it runs.
    pub finished: Option<i64>,
    /// Blocks to be looked at, once in the trees and once in the block map; estimated.
    pub total: u64,
    /// Blocks looked at.
    pub examined: u64,
    /// Blocks in use.
    pub live: Blocks,
    /// Blocks in the free queue.
    pub queued: Blocks,
    /// Dead blocks, left by snapshots and second references; they are being freed.
    pub dead: Blocks,
    /// Leaked blocks; they are being freed.
    pub unreachable: Blocks,
    /// Blocks that are referred to and not there.
    pub missing: u64,
    /// Ids of some of them.
    pub missing_sample: Vec<u64>,
    /// Nodes of trees that could not be read; then nothing was freed.
    pub lost: u64,
    /// Datasets that some of them belong to, or to a snapshot of.
    pub lost_in: Vec<String>,
    /// Records by the number of references.
    pub references: Vec<References>,
    /// Records with a fingerprint that are referred to once, and more often.
    pub fingerprinted: (u64, u64),
    /// Datasets that save by sharing, those first that save most.
    pub sharing: Vec<Sharing>,
}

impl TraceStatus {
    /// Things that are wrong: blocks that had leaked, blocks that are missing, nodes that cannot be read. What nothing
    /// refers to may be below such a node.
    pub fn errors(&self) -> u64 {
        let leaked = if self.lost == 0 { self.unreachable.blocks } else { 0 };
        leaked + self.missing + self.lost
    }

    /// Whether it has counted all references.
    pub fn has_counts(&self) -> bool {
        self.state == TraceState::Done && self.finished.is_some()
    }

    /// All records together.
    pub fn total_references(&self) -> References {
        let mut sum = References::default();
        for of in &self.references {
            sum.blocks += of.blocks;
            sum.logical += of.logical;
            sum.stored += of.stored;
            sum.allocated += of.allocated;
            sum.referenced_blocks += of.referenced_blocks;
            sum.referenced_logical += of.referenced_logical;
            sum.referenced_stored += of.referenced_stored;
            sum.referenced_allocated += of.referenced_allocated;
        }
        sum
    }

    /// Whether data is lost.
    pub fn is_loss(&self) -> bool {
        self.missing + self.lost > 0
    }
}

/// Some blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes they take, one copy of them.
    pub bytes: u64,
}

/// Records that are referred to about equally often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct References {
    /// So often at least, and less than twice that.
    pub references: u64,
    /// Records.
    pub blocks: u64,
    /// Their plain bytes.
    pub logical: u64,
    /// Their stored bytes.
    pub stored: u64,
    /// Bytes they take, one copy of them.
    pub allocated: u64,
    /// References to them.
    pub referenced_blocks: u64,
    /// Their plain bytes, as often as they are referred to.
    pub referenced_logical: u64,
    /// Their stored bytes, as often.
    pub referenced_stored: u64,
    /// Bytes they would take, as often.
    pub referenced_allocated: u64,
}

/// Records of a dataset and its snapshots, each counted as often as they refer to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// Its name.
    pub dataset: String,
    /// References.
    pub references: u64,
    /// Plain bytes of them.
    pub logical: u64,
    /// Bytes they would take if nothing were shared, one copy of them.
    pub allocated: u64,
    /// Its share of what they take: a record that is referred to `n` times counts as an `n`-th for each.
    pub share: u64,
}
