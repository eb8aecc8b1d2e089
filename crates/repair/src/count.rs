//! Files of a tree, and whether all of their blocks are there.

use larder_format::items::{EXTENT, Extent, FileKind, INODE, Inode};
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr};
use larder_sorted::tree::Tree;
use larder_store::{DatasetNodes, PoolError, Store};
use std::ops::{ControlFlow, Range};

/// A file of which something is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    /// Its inode.
    pub inode: u64,
    /// Bytes that are lost, of so many.
    pub lost: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Ranges of it that are lost, the first ones.
    pub ranges: Vec<Range<u64>>,
}

/// Files of a tree, by what of them is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// Files all of whose blocks are there.
    pub whole: u64,
    /// Files of which something is lost.
    pub partial: u64,
    /// Folders, links and special files.
    pub others: u64,
    /// Bytes in files, and those of them that are lost.
    pub bytes: u64,
    /// See `bytes`.
    pub lost: u64,
    /// Those that are partial, the first [`TOLD`] of them.
    pub told: Vec<Partial>,
}

/// Partial files of a tree, and ranges of each and of all of them, that are told one by one.
pub const TOLD: usize = 10_000;

/// Counts the files of the tree of `root`. What a file names counts as there when the map has it.
///
/// # Errors
/// When the map or the tree cannot be read.
pub(crate) fn count(store: &Store, root: Option<BlockPtr>) -> Result<Files, PoolError> {
    let mut files = Files::default();
    let Some(root) = root else { return Ok(files) };
    let tree = Tree::open(root);
    let (mut object, mut lost, mut failed) = (0, 0u64, None);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut last: Option<(BlockId, bool)> = None;
    tree.scan(&DatasetNodes(store), .., |key, value| {
        if key.object != object {
            (object, lost) = (key.object, 0);
            ranges.clear();
        }
        match key.kind {
            EXTENT => {
                let Ok(extent) = Extent::decode(value) else { return ControlFlow::Continue(()) };
                let id = extent.ptr.id;
                let is_there = match last.filter(|(known, _)| *known == id) {
                    Some((_, is_there)) => Ok(is_there),
                    None => store.places_of(id).map(|places| !places.is_empty()),
                };
                match is_there {
                    Ok(is_there) => last = Some((id, is_there)),
                    Err(error) => {
                        failed = Some(error);
                        return ControlFlow::Break(());
                    }
                }
                if last.is_some_and(|(_, is_there)| !is_there) {
                    lost = lost.saturating_add(extent.len.into());
                    note(&mut ranges, key.offset, extent.len);
                }
            }
            INODE => take(&mut files, (key, value), lost, &ranges),
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok(files), Err)
}

fn note(ranges: &mut Vec<Range<u64>>, from: u64, len: u32) {
    let to = from.saturating_add(len.into());
    let has_room = ranges.len() < TOLD;
    match ranges.last_mut() {
        Some(last) if last.end == from => last.end = to,
        _ if has_room => ranges.push(from..to),
        _ => {}
    }
}

fn take(files: &mut Files, (key, value): (&Key, &[u8]), lost: u64, ranges: &[Range<u64>]) {
    let Ok(inode) = Inode::decode(value) else { return };
    if inode.kind != FileKind::Regular {
        files.others += 1;
        return;
    }
    files.bytes = files.bytes.saturating_add(inode.size);
    if lost == 0 {
        files.whole += 1;
        return;
    }
    files.partial += 1;
    files.lost = files.lost.saturating_add(lost);
    if files.told.len() < TOLD {
        let told: usize = files.told.iter().map(|file| file.ranges.len()).sum();
        let ranges = ranges[..ranges.len().min(TOLD - told)].to_vec();
        files.told.push(Partial { inode: key.object, lost, size: inode.size, ranges });
    }
}
