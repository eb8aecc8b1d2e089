//! Bookmarks: what is left of a snapshot to send from, when it is gone.

use crate::error::ensure;
use crate::ids::ensure_countable;
use crate::node::Key;
use crate::tables::{TABLE_KIND, Table};
use crate::{BlockId, CommitId, Corrupt, DatasetId, Reason, Timestamp, layout};

layout! {
    /// The fixed part of a [`BookmarkRecord`]; the name follows.
    pub struct BookmarkHead[64] {
        /// GUID of the snapshot.
        guid: u64 = 0,
        /// Its `high`: the snapshot refers to lower ids alone, what its dataset stored afterwards has higher ones.
        high: BlockId = 8,
        /// When it was taken.
        created: Timestamp = 16,
        /// The commit that took it.
        commit: u64 = 32,
        /// Bytes of the name.
        name_len: u16 = 40,
    }
}

/// A bookmark, as the table records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookmarkRecord {
    /// GUID of the snapshot.
    pub guid: u64,
    /// The snapshot refers to lower block ids alone, what its dataset stored afterwards has higher ones.
    pub high: BlockId,
    /// When the snapshot was taken.
    pub created: Timestamp,
    /// The commit that took the snapshot.
    pub commit: CommitId,
    /// Its name within the dataset.
    pub name: String,
}

impl BookmarkRecord {
    /// The key of the bookmark of this name.
    pub fn key(dataset: DatasetId, name: &str) -> Key {
        let offset = twox_hash::XxHash3_64::oneshot(name.as_bytes());
        Key { object: Table::Bookmarks.key(0).object | dataset.get(), kind: TABLE_KIND, offset }
    }

    /// The record's bytes: head, name.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; BookmarkHead::SIZE];
        BookmarkHead {
            guid: self.guid,
            high: self.high,
            created: self.created,
            commit: self.commit.get(),
            name_len: self.name.len() as u16,
        }
        .put(&mut out);
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const WHAT: &str = "bookmark record";
        let head = BookmarkHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let name = &bytes[BookmarkHead::SIZE..];
        ensure(name.len() == usize::from(head.name_len), WHAT, Reason::Range)?;
        ensure(!name.is_empty() && !name.contains(&b'/'), WHAT, Reason::Range)?;
        ensure(head.created.nanos < 1_000_000_000, WHAT, Reason::Range)?;
        ensure_countable(&[head.high.get(), head.commit], WHAT)?;
        let name = std::str::from_utf8(name).map_err(|_| Corrupt::new(WHAT, Reason::Range))?;
        ensure(!name.chars().any(char::is_control), WHAT, Reason::Range)?;
        Ok(Self {
            guid: head.guid,
            high: head.high,
            created: head.created,
            commit: CommitId::new(head.commit),
            name: name.to_owned(),
        })
    }
}
