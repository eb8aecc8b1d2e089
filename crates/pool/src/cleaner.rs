//! State of the cleaner, and of who wins space back: see [`crate::clean`].

use crate::column::FailedReads;
use bytes::Bytes;
use larder_format::segment::DESCRIPTOR_LEN;
use larder_format::{BlockPtr, SegmentId};
use larder_sorted::map::LostPages;
use larder_store::Readahead;
use larder_sync::Mutex;
use std::sync::atomic::AtomicU64;

/// A segment that is being emptied, and how far its stripes have been looked at.
pub(crate) struct Cleaning {
    pub(crate) segment: SegmentId,
    pub(crate) offset: u32,
    /// Its stripes, as soon as the first step has begun.
    pub(crate) readahead: Option<Readahead>,
    /// Blocks before there that do not fill a row of columns: they move with those that follow.
    pub(crate) carried: Vec<(BlockPtr, Bytes)>,
    /// Pages of the map that are lost.
    pub(crate) lost: LostPages,
    /// Number of its blocks that are on them.
    pub(crate) unknown: u32,
    /// Some of it cannot be read.
    pub(crate) unread: bool,
    /// Reads of it that are not tried again.
    pub(crate) failed: FailedReads,
}

impl Cleaning {
    pub(crate) fn of(segment: SegmentId) -> Self {
        Self {
            segment,
            offset: DESCRIPTOR_LEN,
            readahead: None,
            carried: Vec::new(),
            lost: LostPages::default(),
            unknown: 0,
            unread: false,
            failed: FailedReads::default(),
        }
    }
}

/// See the module's text.
pub(crate) struct Cleaner {
    /// The segment that is being emptied. Locked under the commit lock, or with nothing but the core below it.
    pub(crate) cleaning: Mutex<Option<Cleaning>>,
    /// Bytes of blocks moved since import.
    pub(crate) moved: AtomicU64,
    /// Held while space is won back for a writer.
    pub(crate) reclaiming: Mutex<()>,
    /// The commit at which nothing more could be won back.
    pub(crate) exhausted: AtomicU64,
    /// The commit at which nothing that was accepted or deleted brought more space.
    pub(crate) reclaimed_in_vain: AtomicU64,
}

impl Default for Cleaner {
    fn default() -> Self {
        Self {
            cleaning: Mutex::new(None),
            moved: AtomicU64::new(0),
            reclaiming: Mutex::new(()),
            exhausted: AtomicU64::new(u64::MAX),
            reclaimed_in_vain: AtomicU64::new(u64::MAX),
        }
    }
}
