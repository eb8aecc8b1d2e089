//! The extents of a file in its tree.

use crate::error::Result;
use larder_format::InodeId;
use larder_format::items::{self, EXTENT, Extent};
use larder_format::node::Key;
use larder_pool::{Chunking, Look, Settings};
use std::ops::{Bound, ControlFlow, Range};

/// Record size and chunking of a file; alike for all files whose record size is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub record_size: u32,
    pub by_content: bool,
    /// It is being cut anew.
    pub is_half: bool,
}

impl Cut {
    /// The flags that tell it.
    pub const FLAGS: u32 = items::Inode::BY_CONTENT | items::Inode::HALF_CUT;

    pub fn of(item: &items::Inode) -> Self {
        let is_half = item.flags & items::Inode::HALF_CUT != 0;
        Self { record_size: item.record_size, by_content: item.by_content(), is_half }
    }

    /// The one of a new file, in records of `limit` bytes at most.
    pub fn by(settings: &Settings, limit: u32) -> Self {
        let by_content = settings.chunking == Chunking::Content;
        Self { record_size: settings.record_size.min(limit), by_content, is_half: false }
    }

    pub fn put(self, item: &mut items::Inode) {
        item.record_size = self.record_size;
        item.flags &= !Self::FLAGS;
        item.flags |= if self.by_content { items::Inode::BY_CONTENT } else { 0 };
        item.flags |= if self.is_half { items::Inode::HALF_CUT } else { 0 };
    }
}

/// Where an extent at `offset` ends in its file.
pub(crate) fn extent_end(offset: u64, extent: &Extent) -> u64 {
    offset.saturating_add(u64::from(extent.len))
}

/// Up to `max` extents that cover something of `range`, in the file of `item`; none where it has no records yet.
pub(crate) fn extents_over(
    tree: &impl Look,
    id: InodeId,
    item: &items::Inode,
    range: Range<u64>,
    max: usize,
) -> Result<Vec<(u64, Extent)>> {
    if item.record_size == 0 {
        return Ok(Vec::new());
    }
    let from = if item.by_content() {
        // It may begin anywhere before.
        let before = tree.last_before(&Key::new(id.get(), EXTENT, range.start))?;
        let ours = before.filter(|(key, _)| (key.object, key.kind) == (id.get(), EXTENT));
        ours.map_or(range.start, |(key, _)| key.offset)
    } else {
        range.start / u64::from(item.record_size) * u64::from(item.record_size)
    };
    let mut found = extents(tree, id, from..range.end, max.saturating_add(1))?;
    found.retain(|(offset, extent)| extent_end(*offset, extent) > range.start);
    found.truncate(max);
    Ok(found)
}

/// Up to `max` extents that begin in `range`.
pub(crate) fn extents(
    tree: &impl Look,
    id: InodeId,
    range: Range<u64>,
    max: usize,
) -> Result<Vec<(u64, Extent)>> {
    let mut found = Ok(Vec::new());
    if range.is_empty() || max == 0 {
        return Ok(Vec::new());
    }
    // No further than it has to be: what lies behind need not be readable.
    let key = |offset| Key::new(id.get(), EXTENT, offset);
    let range = (Bound::Included(key(range.start)), Bound::Included(key(range.end - 1)));
    tree.scan_within(range, &mut |key, value| {
        let Ok(list) = &mut found else { return ControlFlow::Break(()) };
        match Extent::decode(value) {
            Ok(extent) => list.push((key.offset, extent)),
            Err(corrupt) => {
                found = Err(corrupt);
                return ControlFlow::Break(());
            }
        }
        if list.len() == max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found?)
}
