//! Bookmarks: a snapshot's GUID, `high` and time under a name of their own, to send from when the snapshot is gone.
//!
//! A bookmark holds nothing: blocks of its dataset with ids up to its `high` were there when the snapshot was taken.
//! It is of a dataset for good: a promote moves snapshots and leaves bookmarks, whose lineage is the same as before.
//! Only a dataset that goes back to a snapshot parts with those of newer ones: they go, or move with what is newer.

use crate::attached::Change;
use crate::create::check_snapshot_name;
use crate::pool::Pool;
use crate::snapshots::Snapshots;
use larder_format::bookmark::BookmarkRecord;
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
