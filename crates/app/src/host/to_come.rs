//! TO BE JOINED AT MERGE: stands in for what the engine and the files are about to have under these names. Methods of
//! their own come before those of a trait: once they are there, this file goes, and with it the lines that use it.

use larder_files::{FsError, Mount, View};
use larder_format::{BlockId, DatasetId};
use larder_pool::{Pool, PoolError};
use std::sync::Arc;

/// Of [`Pool`].
pub trait SnapshotSpace {
    /// Bytes that destroying exactly these snapshots of a dataset frees.
    fn snapshot_space(&self, dataset: DatasetId, names: &[String]) -> Result<u64, PoolError>;
    /// Bytes that the head of a dataset refers to and that were written after a snapshot was taken.
    fn written_since(&self, dataset: DatasetId, name: Option<&str>) -> Result<u64, PoolError>;
}

impl SnapshotSpace for Pool {
    fn snapshot_space(&self, _: DatasetId, _: &[String]) -> Result<u64, PoolError> {
        Ok(0)
    }
    fn written_since(&self, _: DatasetId, _: Option<&str>) -> Result<u64, PoolError> {
        Ok(0)
    }
}

/// Of [`View`].
pub trait OfSnapshot: Sized {
    /// Shows a snapshot, which cannot be destroyed meanwhile.
    fn of_snapshot(mount: Arc<Mount>, dataset: DatasetId, name: &str) -> Result<Self, FsError>;
}

impl OfSnapshot for View {
    fn of_snapshot(_: Arc<Mount>, _: DatasetId, _: &str) -> Result<Self, FsError> {
        Err(FsError::NotSupported)
    }
}

/// Of [`Mount`].
pub trait LetGo {
    /// Closes what `.zfs` opened of a snapshot; busy when somebody has a file of it open.
    fn let_go_of_snapshot(&self, dataset: DatasetId, high: BlockId) -> Result<(), FsError>;
}

impl LetGo for Mount {
    fn let_go_of_snapshot(&self, _: DatasetId, _: BlockId) -> Result<(), FsError> {
        Ok(())
    }
}
