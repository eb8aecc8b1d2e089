//! Outcome of a pass over stored records.

use crate::dataset::Settings;
use larder_format::DatasetId;
use larder_format::node::Key;

/// Counts of records that were gone through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Records that were looked at.
    pub records: u64,
    /// Plain bytes that were read.
    pub read: u64,
    /// Records that are stored otherwise now, or are aliases.
    pub changed: u64,
    /// Bytes that those took before.
    pub before: u64,
    /// Bytes that they take now.
    pub after: u64,
    /// Records that could not be read, or not be compared.
    pub unread: u64,
    /// Bytes of those that files gave up and snapshots hold, or other files.
    pub kept: u64,
}

impl Tally {
    /// Adds up.
    pub fn add(&mut self, other: &Self) {
        self.records += other.records;
        self.read += other.read;
        self.changed += other.changed;
        self.before += other.before;
        self.after += other.after;
        self.unread += other.unread;
        self.kept += other.kept;
    }
}

/// Purpose of a [`Renewal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renew {
    /// Extents get blocks of their own, as those are stored.
    Own,
    /// Files whose records are cut otherwise than these settings say are cut anew.
    Records(Settings),
}

/// Part of a dataset's live files, whose extents are to get other blocks with the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// The purpose.
    pub what: Renew,
    /// The dataset.
    pub dataset: DatasetId,
    /// Where to go on.
    pub from: Key,
    /// Plain bytes of records to go through, about.
    pub bytes: u64,
    /// Tell what it would take; nothing is changed.
    pub dry_run: bool,
}

/// Outcome of a [`Renewal`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Its counts: `after` has the bytes of the new blocks.
    pub tally: Tally,
    /// Stored bytes of the extents that were looked at.
    pub examined: u64,
    /// Stored bytes of those that were passed over.
    pub skipped: u64,
    /// Where to go on, if there is more.
    pub next: Option<Key>,
}
