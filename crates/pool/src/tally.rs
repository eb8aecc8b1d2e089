//! Outcome of a pass over stored records.

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
    }
}
