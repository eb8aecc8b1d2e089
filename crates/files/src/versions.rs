//! Versions of a file: what lay at its path in each snapshot of its dataset, and lies there now.
//!
//! By path, for programs replace a file when they save it: another inode, the same file to people. A snapshot costs a
//! look-up of the path in its tree, and nothing where it has the tree of the one before it. No snapshot is opened as a
//! volume.

use crate::error::{FsError, Result};
use crate::extents::extents;
use crate::mount::Mount;
use crate::names::{find, parts_in};
use crate::posix::{FileKind, NodeId};
use crate::volume::{Volume, inode_key};
use larder_format::items::{Extent, Inode, MAX_NAME, NameKey, ROOT_INODE};
use larder_format::{DatasetId, InodeId, Timestamp};
use larder_pool::{Look, PoolError, SnapshotView};

/// Extents of two files that are compared, at most: beyond that they count as different.
const COMPARED: usize = 4096;

/// A file at a path, unchanged over some snapshots in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileVersion {
    /// Its number in the dataset.
    pub inode: InodeId,
    /// Its type.
    pub kind: FileKind,
    /// Its length, bytes.
    pub size: u64,
    /// Last change of its content.
    pub mtime: Timestamp,
    /// The snapshots that have it, oldest first.
    pub snapshots: Vec<String>,
    /// It is what lies there now.
    pub is_live: bool,
}

/// The versions of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileVersions {
    /// The dataset that it is or was in.
    pub dataset: DatasetId,
    /// Names on the way to it from the root of the dataset.
    pub path: Vec<Vec<u8>>,
    /// Oldest first; the live one, if it exists, is the last.
    pub versions: Vec<FileVersion>,
    /// Snapshots in which the way to it cannot be read, and why.
    pub unreadable: Vec<(String, FsError)>,
    /// Why what is there now, if anything, cannot be read: no version is told as live then.
    pub live_unreadable: Option<FsError>,
}

impl Mount {
    /// Versions of the file that the names lead to from a folder which exists; neither the file nor folders below that
    /// one need exist any more. With `folders` it may be one, whose versions are told by what lies right in it.
    ///
    /// # Errors
    /// [`FsError::IsDirectory`] when it is a folder, or the root of a dataset; [`FsError::Invalid`] when it is in a
    /// snapshot itself; [`FsError::NotFound`] when the folder was removed; when the way to the folder cannot be read.
    pub fn versions(&self, folder: NodeId, names: &[Vec<u8>], folders: bool) -> Result<FileVersions> {
        let (volume, top) = self.at(folder)?;
        if volume.dataset().is_snapshot() {
            return Err(FsError::Invalid);
        }
        if names.iter().any(|name| name.len() > MAX_NAME) {
            return Err(FsError::NameTooLong);
        }
        let is_fixed = names.first().is_none_or(|name| top == ROOT_INODE && self.hides(volume.id(), name));
        // Damage to what is there now hides no snapshot's version.
        let live = if is_fixed { Ok(None) } else { volume.live_at(top, names) };
        let (live, live_unreadable) = match live {
            Ok(live) => (live, None),
            Err(error) => (None, Some(error)),
        };
        let is_folder = live.is_some_and(|(_, inode)| inode.kind == FileKind::Directory);
        if is_fixed || (is_folder && !folders) {
            return Err(FsError::IsDirectory);
        }
        let mut path = parts_in(&volume.dataset().view()?, top)?.ok_or(FsError::NotFound)?;
        path.extend_from_slice(names);
        let mut found = Versions::default();
        for record in self.pool.snapshots(volume.id()) {
            let is_like_before = found.before.as_ref().is_some_and(|(_, of)| of.record().root == record.root);
            if is_like_before && found.before.as_ref().is_some_and(|(seen, _)| seen.is_none()) {
                continue;
            }
            match self.pool.snapshot_view(volume.id(), &record.name) {
                Ok(_) if is_like_before => found.extend(&record.name),
                Ok(view) => match at_path(&view, &volume.dataset().name_key(), ROOT_INODE, &path) {
                    Ok(seen) => found.add(seen, view),
                    Err(error) => {
                        found.unreadable.push((record.name, error));
                        found.before = None;
                    }
                },
                // It was destroyed meanwhile.
                Err(PoolError::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(live) = live {
            found.add_live(live, &volume);
        }
        let is_file = |version: &FileVersion| version.kind != FileKind::Directory;
        if !folders && !found.versions.is_empty() && !found.versions.iter().any(is_file) {
            return Err(FsError::IsDirectory);
        }
        let Versions { versions, unreadable, .. } = found;
        Ok(FileVersions { dataset: volume.id(), path, versions, unreadable, live_unreadable })
    }
}

impl Volume {
    /// The inode as it is now. What is dirty of it is stored, for only stored content can be compared.
    fn live_at(&self, top: InodeId, names: &[Vec<u8>]) -> Result<Option<(InodeId, Inode)>> {
        let mut at = top;
        for name in names {
            let found = find(&self.dataset().view()?, &self.dataset().name_key(), at, name)?;
            let Ok(found) = found else { return Ok(None) };
            at = found.inode;
        }
        match self.stored_now(at) {
            // It was removed after it was found.
            Err(FsError::NotFound) => Ok(None),
            inode => Ok(Some((at, inode?))),
        }
    }

    fn stored_now(&self, id: InodeId) -> Result<Inode> {
        let inode = self.inode(id)?;
        let is_dirty = !inode.lock()?.data.is_empty();
        if is_dirty {
            self.flush_one(id)?;
        }
        Ok(inode.lock()?.live)
    }

    /// Whether nothing was written to the inode since it was seen like that, all of it stored.
    fn is_still(&self, id: InodeId, seen: &Inode) -> Result<bool> {
        let key = |inode: &Inode| (inode.size, inode.mtime, inode.ctime);
        let inode = self.inode(id)?;
        let state = inode.lock()?;
        Ok(state.data.is_empty() && key(&state.live) == key(seen))
    }
}

/// The inode that names lead to from a folder.
fn at_path(
    tree: &impl Look,
    key: &NameKey,
    top: InodeId,
    names: &[Vec<u8>],
) -> Result<Option<(InodeId, Inode)>> {
    let mut at = top;
    for name in names {
        let Ok(found) = find(tree, key, at, name)? else { return Ok(None) };
        at = found.inode;
    }
    let value = tree.get(&inode_key(at))?;
    let inode = value.map(|value| Inode::decode(&value)).transpose()?;
    // The name says that there is one.
    let lost = || FsError::Damaged(format!("inode {at} is missing"));
    inode.map(|inode| Some((at, inode))).ok_or_else(lost)
}

#[derive(Default)]
struct Versions {
    versions: Vec<FileVersion>,
    unreadable: Vec<(String, FsError)>,
    /// The file in the snapshot before, if it was there; none when it could not be read.
    before: Option<(Option<(InodeId, Inode)>, SnapshotView)>,
}

impl Versions {
    /// A snapshot holds what the one before it does.
    fn extend(&mut self, snapshot: &str) {
        if let Some(last) = self.versions.last_mut() {
            last.snapshots.push(snapshot.to_owned());
        }
    }

    fn add(&mut self, seen: Option<(InodeId, Inode)>, view: SnapshotView) {
        let name = view.record().name.clone();
        if let Some(seen) = seen {
            // A version that cannot be compared may be another.
            match self.is_like_before(seen, &view).unwrap_or(false) {
                true => self.extend(&name),
                false => self.versions.push(version(seen, vec![name], false)),
            }
        }
        self.before = Some((seen, view));
    }

    fn add_live(&mut self, seen: (InodeId, Inode), volume: &Volume) {
        let view = volume.dataset().view().map_err(FsError::from);
        let is_like_before = view.and_then(|view| self.is_like_before(seen, &view));
        // It may be written to meanwhile.
        let is_like_before =
            is_like_before.and_then(|is| Ok(is && volume.is_still(seen.0, &seen.1)?)).unwrap_or(false);
        match self.versions.last_mut() {
            Some(last) if is_like_before => last.is_live = true,
            _ => self.versions.push(version(seen, Vec::new(), true)),
        }
    }

    /// Whether the snapshot before has the same version: the same file with the same content.
    fn is_like_before(&self, (id, inode): (InodeId, Inode), tree: &impl Look) -> Result<bool> {
        let Some((Some((before_id, before)), view)) = &self.before else { return Ok(false) };
        let key = |inode: &Inode| (inode.kind, inode.size, inode.mtime);
        if *before_id != id || key(before) != key(&inode) {
            return Ok(false);
        }
        if before.ctime == inode.ctime || inode.kind != FileKind::Regular {
            return Ok(true);
        }
        // Its attributes changed; or its content, and the time was set back.
        let part = |(at, extent): (u64, Extent)| (at, extent.ptr.id, extent.len, extent.block_offset);
        let old = extents(view, id, 0..inode.size, COMPARED + 1)?.into_iter().map(part);
        let new = extents(tree, id, 0..inode.size, COMPARED + 1)?.into_iter().map(part);
        Ok(old.len() <= COMPARED && old.eq(new))
    }
}

fn version((id, inode): (InodeId, Inode), snapshots: Vec<String>, is_live: bool) -> FileVersion {
    FileVersion { inode: id, kind: inode.kind, size: inode.size, mtime: inode.mtime, snapshots, is_live }
}
