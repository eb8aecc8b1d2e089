//! Bookmarks: a snapshot's GUID, `high` and time under a name of their own, to send from when the snapshot is gone.
//!
//! A bookmark holds nothing. That blocks were there when the snapshot was taken is told by their ids, up to its `high`,
//! and that they were where they are by extents ([`larder_format::items::Extent::was_here`]) and nodes
//! ([`larder_sorted::tree::Since`]): in every later snapshot that came of it by changes alone, which are those of its
//! dataset and of clones behind it.
//! It is of a dataset for good: a promote moves snapshots and leaves bookmarks, whose lineage is the same as before.
//! Only a dataset that goes back to a snapshot parts with those of newer ones: they go, or move with what is newer. A
//! stream that is taken over goes back to what it builds upon, since it began to come in before.

use crate::attached::Change;
use crate::create::check_snapshot_name;
use crate::pool::Pool;
use crate::snapshots::Snapshots;
use larder_format::bookmark::BookmarkRecord;
use larder_format::tables::SnapshotRecord;
use larder_format::{BlockId, DatasetId};
use larder_store::{PoolError, Result};

/// Source of a bookmark, by its name within the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BookmarkSource<'a> {
    /// A snapshot.
    Snapshot(&'a str),
    /// Another bookmark.
    Bookmark(&'a str),
}

/// The tables have these bookmarks of a dataset, or have them not.
pub(crate) fn changes<'a>(
    of: DatasetId,
    records: impl IntoIterator<Item = &'a BookmarkRecord>,
    are_there: bool,
) -> Vec<Change> {
    let change =
        |record: &BookmarkRecord| (BookmarkRecord::key(of, &record.name), are_there.then(|| record.encode()));
    records.into_iter().map(change).collect()
}

impl Snapshots {
    /// Bookmarks of a dataset, in the order of their names.
    pub(crate) fn bookmarks_of(&self, dataset: DatasetId) -> impl Iterator<Item = &BookmarkRecord> {
        let all = self.bookmarks.range((dataset, String::new())..);
        all.take_while(move |((of, _), _)| *of == dataset).map(|(_, record)| record)
    }

    /// Those of snapshots that are newer than one of this high id.
    pub(crate) fn bookmarks_after(&self, dataset: DatasetId, high: BlockId) -> Vec<BookmarkRecord> {
        self.bookmarks_of(dataset).filter(|record| record.high > high).cloned().collect()
    }

    pub(crate) fn add_bookmark(&mut self, dataset: DatasetId, record: BookmarkRecord) {
        self.bookmarks.insert((dataset, record.name.clone()), record);
    }

    /// They go.
    pub(crate) fn drop_bookmarks<'a>(
        &mut self,
        of: DatasetId,
        records: impl IntoIterator<Item = &'a BookmarkRecord>,
    ) {
        records.into_iter().for_each(|record| drop(self.bookmarks.remove(&(of, record.name.clone()))));
    }
}

impl Pool {
    /// The bookmarks of a dataset, those of older snapshots first.
    pub fn bookmarks(&self, dataset: DatasetId) -> Vec<BookmarkRecord> {
        let mut all: Vec<_> = self.snapshots.lock().bookmarks_of(dataset).cloned().collect();
        all.sort_by_key(|record| record.high);
        all
    }

    /// The bookmark of a name.
    ///
    /// # Errors
    /// When there is none.
    pub fn bookmark(&self, dataset: DatasetId, name: &str) -> Result<BookmarkRecord> {
        let snapshots = self.snapshots.lock();
        let found = snapshots.bookmarks.get(&(dataset, name.to_owned()));
        found.cloned().ok_or_else(|| PoolError::NotFound(format!("bookmark {name}")))
    }

    /// Whether a snapshot came, by changes alone, of the one that a bookmark of dataset `of` is left of: it is older,
    /// and of the snapshot's dataset or of one that this is a clone of. False too when one of the two is gone.
    pub fn came_of(&self, of: DatasetId, mark: &BookmarkRecord, to: &SnapshotRecord) -> bool {
        let snapshots = self.snapshots.lock();
        let is_there = snapshots.bookmarks.get(&(of, mark.name.clone())) == Some(mark)
            && snapshots.taken.contains_key(&(to.dataset, to.high));
        let (mut line, mut up_to) = (to.dataset, BlockId::new(to.high.get().saturating_sub(1)));
        while line != of {
            let Some((origin, high)) = snapshots.origin_key(line) else { return false };
            (line, up_to) = (origin, up_to.min(high));
        }
        is_there && mark.high <= up_to
    }

    /// Whether all that came after the snapshot of a bookmark tells by ids that it did.
    pub fn is_traced(&self, mark: &BookmarkRecord) -> bool {
        mark.commit >= self.shared.store.core.lock().traced
    }

    /// Makes a bookmark in the dataset that it is made from. Durable with the next commit.
    ///
    /// # Errors
    /// When there is no such snapshot or bookmark, or the name cannot be or is taken.
    pub fn make_bookmark(
        &self,
        dataset: DatasetId,
        from: BookmarkSource<'_>,
        name: &str,
    ) -> Result<BookmarkRecord> {
        check_snapshot_name(name).map_err(PoolError::Invalid)?;
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let record = match from {
            BookmarkSource::Snapshot(snapshot) => {
                let of = self.snapshot_named(dataset, snapshot)?;
                let name = name.to_owned();
                BookmarkRecord { guid: of.guid, high: of.high, created: of.created, commit: of.commit, name }
            }
            BookmarkSource::Bookmark(other) => {
                BookmarkRecord { name: name.to_owned(), ..self.bookmark(dataset, other)? }
            }
        };
        let key = BookmarkRecord::key(dataset, name);
        let is_taken = {
            let snapshots = self.snapshots.lock();
            let mut all = snapshots.bookmarks_of(dataset);
            // One that only hashes alike would be written over.
            all.any(|other| BookmarkRecord::key(dataset, &other.name) == key)
        };
        if is_taken {
            return Err(PoolError::Exists(format!("{}#{name}", self.full_name(dataset))));
        }
        self.change_tables(&[(key, Some(record.encode()))])?;
        self.snapshots.lock().add_bookmark(dataset, record.clone());
        Ok(record)
    }

    /// Destroys a bookmark. Durable with the next commit.
    ///
    /// # Errors
    /// When there is none.
    pub fn destroy_bookmark(&self, dataset: DatasetId, name: &str) -> Result<()> {
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let record = self.bookmark(dataset, name)?;
        self.change_tables(&changes(dataset, [&record], false))?;
        self.snapshots.lock().drop_bookmarks(dataset, [&record]);
        Ok(())
    }
}
