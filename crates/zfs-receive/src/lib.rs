//! Streams of ZFS into a volume: the [`Sink`] that a dataset is.
//!
//! Notes for the next stream are kept in the dataset itself, so that it goes with its snapshots,
//! clones and rollbacks: as extended attributes of a file [`NOTES`] in its root directory, where `.zfs` hides it. A
//! receive changes the volume step by step, like any program; whoever asks for it gives a volume that nobody sees yet,
//! and throws it away after an error or a crash.

use larder_files::{
    Allocate, Caller, FileKind, FsError, NewInode, OWN_MARK, RenameFlags, SetAttr, SetTime, Volume, XattrMode,
};
use larder_format::items::ROOT_INODE;
use larder_format::{InodeId, Timestamp};
use larder_zfs_stream::{Begin, New, Node, ReceiveError, Received, Sink, SinkAttr, Streams};
use std::collections::BTreeSet;
use std::io::Read;

/// The name of the file that has the notes, which no file can have that anybody sees.
pub const NOTES: &[u8] = b".zfs";
/// The name of the directory for what has no name yet; it is there during a receive alone.
const STAGING: &[u8] = b"\x01zfs receive\x01";
/// Bytes of a note in one attribute; a longer one takes several.
const PART: usize = 60 << 10;
const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// Receives the stream that `begin` came from into a volume: an empty one, or for an increment the one that received
/// the stream before, or its clone, with nothing changed since. After an error the volume is half done.
///
/// # Errors
/// [`ReceiveError`].
pub fn receive<R: Read>(
    streams: &mut Streams<R>,
    begin: &Begin,
    volume: &Volume,
) -> Result<Received, ReceiveError<FsError>> {
    larder_zfs_stream::receive(streams, begin, &mut VolumeSink::new(volume))
}

/// The guid of the snapshot that a volume received last, 0 for none: what the next increment must be upon.
///
/// # Errors
/// When it cannot be read.
pub fn received_guid(volume: &Volume) -> Result<u64, ReceiveError<FsError>> {
    larder_zfs_stream::received_guid(&mut VolumeSink::new(volume))
}

/// A volume as a place for files.
struct VolumeSink<'a> {
    volume: &'a Volume,
    /// The file that has the notes, once it was looked up.
    notes: Option<InodeId>,
    /// Last change of content and of anything of the root directory, which what a receive keeps there does not change.
    root_times: Option<(Timestamp, Timestamp)>,
}

fn id(node: Node) -> InodeId {
    InodeId::new(node)
}

/// The kernel's encoding of a device number in 32 bits.
fn rdev(major: u32, minor: u32) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The name of the attribute that has a part of a note.
fn part_name(key: &[u8], part: usize) -> Vec<u8> {
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("trusted.{hex}.{part}").into_bytes()
}

/// Whether an error says that a volume does not take an extended attribute, not that it failed.
fn is_refusal(error: &FsError) -> bool {
    matches!(
        error,
        FsError::NotSupported | FsError::Invalid | FsError::Range | FsError::AttrTooBig | FsError::Access
    )
}

impl<'a> VolumeSink<'a> {
    fn new(volume: &'a Volume) -> Self {
        Self { volume, notes: None, root_times: None }
    }

    fn find(&self, dir: InodeId, name: &[u8]) -> Result<Option<InodeId>, FsError> {
        match self.volume.lookup(dir, name) {
            Ok(attr) => Ok(Some(attr.node.unpack().1)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn notes(&mut self) -> Result<Option<InodeId>, FsError> {
        if self.notes.is_none() {
            self.notes = self.find(ROOT_INODE, NOTES)?;
        }
        Ok(self.notes)
    }

    fn made_notes(&mut self) -> Result<InodeId, FsError> {
        if let Some(notes) = self.notes()? {
            return Ok(notes);
        }
        let made = id(self.make(ROOT_INODE.get(), NOTES, New::File)?);
        self.volume.set_own_xattr(made, OWN_MARK, b"")?;
        Ok(*self.notes.insert(made))
    }

    fn part(&self, notes: InodeId, key: &[u8], part: usize) -> Result<Option<Vec<u8>>, FsError> {
        match self.volume.getxattr(notes, &part_name(key, part)) {
            Ok(value) => Ok(Some(value)),
            Err(FsError::NoAttr) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The number of a note's parts, which its first tells, and the rest of that.
fn split_count(first: &[u8]) -> Result<(usize, &[u8]), FsError> {
    let (count, rest) = first.split_first_chunk().ok_or_else(|| FsError::Io("a note is damaged".into()))?;
    Ok((usize::from(u16::from_le_bytes(*count)), rest))
}

impl Sink for VolumeSink<'_> {
    type Error = FsError;

    fn root(&mut self) -> Node {
        ROOT_INODE.get()
    }

    fn staging(&mut self) -> Result<Node, FsError> {
        let root = self.volume.getattr(ROOT_INODE)?;
        self.root_times = Some((root.mtime, root.ctime));
        self.made_notes()?;
        match self.find(ROOT_INODE, STAGING)? {
            Some(found) => Ok(found.get()),
            None => self.make(ROOT_INODE.get(), STAGING, New::Directory),
        }
    }

    fn drop_staging(&mut self) -> Result<(), FsError> {
        self.volume.unlink(ROOT_INODE, STAGING, true)?;
        let Some((mtime, ctime)) = self.root_times else { return Ok(()) };
        let set = SetAttr { mtime: Some(SetTime::To(mtime)), ctime: Some(ctime), ..SetAttr::default() };
        self.volume.setattr(ROOT_INODE, &set).map(drop)
    }

    fn make(&mut self, dir: Node, name: &[u8], new: New<'_>) -> Result<Node, FsError> {
        let plain = |kind| NewInode::plain(kind, 0o600);
        let new = match new {
            New::File => plain(FileKind::Regular),
            New::Directory => plain(FileKind::Directory),
            New::Symlink(target) => NewInode { target, ..plain(FileKind::Symlink) },
            New::Fifo => plain(FileKind::Fifo),
            New::Socket => plain(FileKind::Socket),
            New::CharDevice(major, minor) => {
                NewInode { rdev: rdev(major, minor), ..plain(FileKind::CharDevice) }
            }
            New::BlockDevice(major, minor) => {
                NewInode { rdev: rdev(major, minor), ..plain(FileKind::BlockDevice) }
            }
        };
        Ok(self.volume.make(id(dir), name, new, &ROOT)?.node.unpack().1.get())
    }

    fn lookup(&mut self, dir: Node, name: &[u8]) -> Result<Option<Node>, FsError> {
        Ok(self.find(id(dir), name)?.map(InodeId::get))
    }

    fn write(&mut self, file: Node, offset: u64, data: &[u8]) -> Result<(), FsError> {
        self.volume.write(id(file), Some(offset), data, false).map(drop)
    }

    fn zero(&mut self, file: Node, offset: u64, len: u64) -> Result<(), FsError> {
        self.volume.allocate(id(file), offset, len, Allocate::Punch)
    }

    fn set_size(&mut self, file: Node, size: u64) -> Result<(), FsError> {
        self.volume.setattr(id(file), &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
    }

    fn link(&mut self, node: Node, dir: Node, name: &[u8]) -> Result<(), FsError> {
        self.volume.link(id(node), id(dir), name).map(drop)
    }

    fn rename(&mut self, from: (Node, &[u8]), to: (Node, &[u8])) -> Result<(), FsError> {
        let flags = RenameFlags { noreplace: true, exchange: false };
        self.volume.rename(id(from.0), from.1, id(to.0), to.1, flags)
    }

    fn remove(&mut self, dir: Node, name: &[u8], directory: bool) -> Result<(), FsError> {
        self.volume.unlink(id(dir), name, directory)
    }

    fn links(&mut self, node: Node) -> Result<u32, FsError> {
        let attr = self.volume.getattr(id(node))?;
        Ok(if attr.kind == FileKind::Directory { 1 } else { attr.nlink })
    }

    fn set_attr(&mut self, node: Node, attr: &SinkAttr) -> Result<(), FsError> {
        if id(node) == ROOT_INODE {
            self.root_times = Some((attr.mtime, attr.ctime));
        }
        let set = SetAttr {
            perm: Some(attr.perm),
            uid: Some(attr.uid),
            gid: Some(attr.gid),
            atime: Some(SetTime::To(attr.atime)),
            mtime: Some(SetTime::To(attr.mtime)),
            ctime: Some(attr.ctime),
            btime: Some(attr.btime),
            ..SetAttr::default()
        };
        self.volume.setattr(id(node), &set).map(drop)
    }

    fn set_xattrs(&mut self, node: Node, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<usize, FsError> {
        let (volume, node) = (self.volume, id(node));
        let before = volume.getattr(node)?.ctime;
        let names: BTreeSet<&[u8]> = xattrs.iter().map(|(name, _)| name.as_slice()).collect();
        let here = volume.listxattr(node)?;
        for name in here.split(|&byte| byte == 0).filter(|name| !name.is_empty() && !names.contains(name)) {
            volume.removexattr(node, name)?;
        }
        let mut left = 0;
        for (name, value) in xattrs {
            match volume.setxattr(node, name, value, XattrMode::Set) {
                Err(error) if is_refusal(&error) => left += 1,
                set => set?,
            }
        }
        volume.setattr(node, &SetAttr { ctime: Some(before), ..SetAttr::default() })?;
        Ok(left)
    }

    fn note(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        let Some(notes) = self.notes()? else { return Ok(None) };
        let Some(first) = self.part(notes, key, 0)? else { return Ok(None) };
        let (count, rest) = split_count(&first)?;
        let mut note = rest.to_vec();
        for part in 1..count {
            let part = self.part(notes, key, part)?;
            note.extend(part.ok_or_else(|| FsError::Io("a note lacks a part".into()))?);
        }
        Ok(Some(note))
    }

    fn set_note(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), FsError> {
        let notes = self.made_notes()?;
        let before = match self.part(notes, key, 0)? {
            Some(first) => split_count(&first)?.0,
            None => 0,
        };
        let count = value.map_or(0, |value| value.len().div_ceil(PART).max(1));
        if let Some(value) = value {
            let told = u16::try_from(count).map_err(|_| FsError::TooBig)?.to_le_bytes();
            for part in 0..count {
                let end = value.len().min((part + 1) * PART);
                let head = if part == 0 { &told[..] } else { &[] };
                let bytes = [head, &value[part * PART..end]].concat();
                self.volume.set_own_xattr(notes, &part_name(key, part), &bytes)?;
            }
        }
        for part in count..before {
            self.volume.removexattr(notes, &part_name(key, part))?;
        }
        Ok(())
    }
}
