//! The segment that is being emptied; see [`crate::clean`].

use larder_format::SegmentId;
use larder_store::readahead::Readahead;

/// A segment that is being emptied, and how far its stripes have been looked at.
pub(crate) struct Cleaning {
    pub(crate) segment: SegmentId,
    pub(crate) offset: u32,
    /// Its stripes, as soon as the first step has begun.
    pub(crate) readahead: Option<Readahead>,
}
