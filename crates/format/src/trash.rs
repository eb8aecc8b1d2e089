//! Trash: what was destroyed and can be brought back for a while.

use crate::error::ensure;
use crate::node::Key;
use crate::tables::Table;
use crate::{BlockId, Corrupt, DatasetId, Reason, Timestamp, layout};

/// Something in the trash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrashKey {
    /// A snapshot, by its `high`: which dataset it is of may change.
    Snapshot(BlockId),
    /// A dataset.
    Dataset(DatasetId),
}

impl TrashKey {
    /// Its key in the tables.
    pub fn key(self) -> Key {
        match self {
            Self::Snapshot(high) => Table::Trash.piece_key(high.get(), 0),
            Self::Dataset(id) => Table::Trash.piece_key(id.get(), 1),
        }
    }

    /// The same from a key's offset, and what its object says beside the table.
    pub fn of(within: u64, offset: u64) -> Option<Self> {
        match within {
            0 => Some(Self::Snapshot(BlockId::new(offset))),
            1 => Some(Self::Dataset(DatasetId::new(offset))),
            _ => None,
        }
    }
}

layout! {
    /// The fixed part of a [`TrashRecord`]; the name follows.
    pub struct TrashHead[64] {
        /// When it was destroyed.
        destroyed: Timestamp = 0,
        /// Until when it is kept.
        until: Timestamp = 16,
        /// Of a dataset, the one it was inside of; else 0.
        parent: DatasetId = 32,
        /// 1 when it is being let go of, and cannot be brought back.
        going: u8 = 40,
        /// Bytes of the name.
        name_len: u16 = 42,
    }
}

/// An entry of the trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrashRecord {
    /// When it was destroyed.
    pub destroyed: Timestamp,
    /// Until when it is kept.
    pub until: Timestamp,
    /// Of a dataset, the one it was inside of; else 0.
    pub parent: DatasetId,
    /// Whether it is being let go of, and cannot be brought back.
    pub going: bool,
    /// Its full name when it was destroyed.
    pub name: String,
}

impl TrashRecord {
    /// The record's bytes: head, name.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; TrashHead::SIZE];
        TrashHead {
            destroyed: self.destroyed,
            until: self.until,
            parent: self.parent,
            going: u8::from(self.going),
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
        const WHAT: &str = "trash record";
        let head = TrashHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        let name = &bytes[TrashHead::SIZE..];
        ensure(name.len() == usize::from(head.name_len) && head.going <= 1, WHAT, Reason::Range)?;
        ensure(
            head.destroyed.nanos < 1_000_000_000 && head.until.nanos < 1_000_000_000,
            WHAT,
            Reason::Range,
        )?;
        let name = std::str::from_utf8(name).map_err(|_| Corrupt::new(WHAT, Reason::Range))?;
        ensure(!name.is_empty() && !name.chars().any(char::is_control), WHAT, Reason::Range)?;
        Ok(Self {
            destroyed: head.destroyed,
            until: head.until,
            parent: head.parent,
            going: head.going != 0,
            name: name.to_owned(),
        })
    }
}
