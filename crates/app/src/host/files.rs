//! Verbs about single files, which people find by their paths on a mount.

use super::Host;
use super::live::Live;
use crate::api::extents::{
    CloneFile, Cloned, Copy, Extent, Extents, FileExtents, FileId, FileVersions, Version, Versions,
};
use crate::api::{ApiError, ErrorKind, Result};
use larder_app::fuse::Invalidator;
use larder_files::{FileKind, FileVersion, FsError, NodeId};
use larder_format::block::BLOCK_OVERHEAD;
use std::sync::Arc;

/// Extents of one reply.
const PAGE: usize = 4096;

/// A file that was found.
struct Found {
    live: Arc<Live>,
    node: NodeId,
    /// The node as the kernel of its mount knows it.
    outer: NodeId,
    invalidator: Invalidator,
}

impl Host {
    fn file(&self, file: &FileId) -> Result<Found> {
        for live in self.pools_named(&[])? {
            let Some((dataset, invalidator)) = live.table.on_device(&file.device) else { continue };
            let outer = NodeId::from_raw(file.inode);
            let node = match outer {
                NodeId::ROOT => NodeId::pack(dataset, larder_format::items::ROOT_INODE),
                node => node,
            };
            return Ok(Found { live, node, outer, invalidator });
        }
        let message = format!("'{}' is not on a mount of larder", file.path);
        Err(ApiError::new(ErrorKind::NotFound, message).hint("larder fs mount shows what is mounted where"))
    }

    /// A part of a file's extents.
    ///
    /// # Errors
    /// When it is not on one of our mounts, no file, or cannot be read.
    pub fn extents(&self, request: &Extents) -> Result<FileExtents> {
        let Found { live, node, .. } = self.file(&request.file)?;
        let refuse = |error: FsError| told(&request.file, error).of_pool(&live.pool.name());
        let layout = live.mount.layout(node, request.from, PAGE + 1).map_err(refuse)?;
        let next = layout.extents.get(PAGE).map(|(offset, _)| *offset);
        let mut extents = Vec::new();
        for (offset, extent) in layout.extents.iter().take(PAGE) {
            // A block that was overwritten meanwhile is shown where it was.
            let found = live.pool.store().whereabouts(extent.ptr.id)?;
            let (place, copies, shared) = match found {
                Some(found) => (found.place, found.copies, found.shared),
                None => (extent.ptr.place, Vec::new(), false),
            };
            let copy = |(device, offset): (_, larder_format::DeviceOffset)| Copy {
                device: live.pool.store().members().get(device).name(),
                offset: offset.get(),
            };
            extents.push(Extent {
                offset: *offset,
                length: extent.len,
                block: extent.ptr.id.get(),
                block_offset: extent.block_offset,
                logical: extent.logical,
                stored: place.stored,
                segment: place.segment.get(),
                copies: copies.into_iter().map(copy).collect(),
                shared,
                compressed: place.stored - BLOCK_OVERHEAD.min(place.stored) < extent.logical,
            });
        }
        let dataset = live.pool.full_name(layout.dataset);
        Ok(FileExtents { dataset, size: layout.size, record_size: layout.record_size, extents, next })
    }

    /// Versions of a file over the snapshots of its dataset.
    ///
    /// # Errors
    /// When it is not on one of our mounts, no file but a folder, or in a snapshot.
    pub fn versions(&self, request: &Versions) -> Result<FileVersions> {
        let Versions { folder, names, folders } = request;
        let Found { live, node, .. } = self.file(folder)?;
        let names: Vec<_> = names.iter().map(|name| name.clone().into_bytes()).collect();
        let found = live.mount.versions(node, &names, *folders).map_err(|error| match error {
            FsError::IsDirectory => {
                ApiError::usage(format!("'{}' is a folder: files have versions", folder.path))
                    .hint("larder fs diff DATASET@SNAPSHOT tells what changed in it since")
            }
            FsError::Invalid => ApiError::usage(format!("'{}' is in a snapshot itself", folder.path))
                .hint("name the file by its path outside of .zfs, whether it still exists or not"),
            error => told(folder, error).of_pool(&live.pool.name()),
        })?;
        let dataset = live.pool.full_name(found.dataset);
        let within = |doing: String, error| ApiError::from(error).within(doing).of_pool(&live.pool.name());
        let unreadable = found.unreadable.into_iter().map(|(snapshot, error)| {
            let doing = format!("cannot look for '{}' in '{dataset}@{snapshot}'", folder.path);
            (Some(snapshot), within(doing, error))
        });
        let now = found
            .live_unreadable
            .map(|error| (None, within(format!("cannot read what is in '{}' now", folder.path), error)));
        let version = |version: FileVersion| Version {
            inode: version.inode.get(),
            size: (version.kind != FileKind::Directory).then_some(version.size),
            mtime: (version.mtime.secs, version.mtime.nanos),
            snapshots: version.snapshots,
            live: version.is_live,
        };
        let path: Vec<_> = found.path.iter().map(|part| String::from_utf8_lossy(part)).collect();
        Ok(FileVersions {
            mountpoint: live.table.path(found.dataset).map(|path| path.to_string_lossy().into_owned()),
            path: path.join("/"),
            versions: found.versions.into_iter().map(version).collect(),
            unreadable: unreadable.chain(now).collect(),
            dataset,
        })
    }

    /// Copies a part of a file over another.
    ///
    /// # Errors
    /// When the two are not files of one pool; those of reading and writing.
    pub fn clone_file(&self, request: &CloneFile) -> Result<Cloned> {
        let (source, target) = (self.file(&request.source)?, self.file(&request.target)?);
        if !Arc::ptr_eq(&source.live, &target.live) {
            let (from, to) = (source.live.pool.name(), target.live.pool.name());
            let message = format!(
                "'{}' is in pool {from} and '{}' in pool {to}: only files of one pool can share",
                request.source.path, request.target.path
            );
            return Err(ApiError::usage(message).hint("cp copies the bytes"));
        }
        if request.length == 0 {
            return Ok(Cloned { copied: 0, shared: 0 });
        }
        let mount = &target.live.mount;
        let (from, to) = ((source.node, request.offset), (target.node, request.offset));
        let copied = mount.copy_range(from, to, request.length);
        // Programs that have the target open see its new content; a kernel that does not know it has nothing to forget.
        let _ = target.invalidator.node(target.outer);
        let copied =
            copied.map_err(|error| told(&request.target, error).of_pool(&target.live.pool.name()))?;
        Ok(Cloned { copied: copied.bytes, shared: copied.shared })
    }
}

/// Error of a failed verb on a file.
fn told(file: &FileId, error: FsError) -> ApiError {
    let doing = format!("'{}'", file.path);
    match error {
        FsError::IsDirectory => ApiError::usage("it is a directory").within(doing),
        FsError::Invalid => ApiError::usage("it is no regular file").within(doing),
        FsError::NotFound => ApiError::new(ErrorKind::NotFound, "it was removed").within(doing),
        other => ApiError::from(other).within(doing),
    }
}
