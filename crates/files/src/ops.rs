//! The operations that stand above any transport.
//!
//! A transport (FUSE today) turns requests into calls of [`Ops`] and results into replies, and knows
//! nothing else of this crate. Access rights are the kernel's to check; what is left here is what
//! POSIX says an operation does.
//!
//! Each operation is said once: its provided body finds the volumes that it is about and has them do it. A [`Mount`]
//! and a [`View`](crate::View) of it differ only in their [`Seat`].

use crate::control::{DOT_DOT, Object, SNAPSHOT, ZFS};
use crate::error::{FsError, Result};
use crate::mount::Mount;
use crate::names::NewInode;
use crate::posix::*;
use crate::read_data::ReadData;
use crate::volume::Volume;
use larder_format::InodeId;
use larder_format::items::{FIRST_COOKIE, MAX_NAME, ROOT_INODE};
use larder_pool::{Class, Event};
use std::sync::Arc;

/// Cookies of `.` and, behind that of `..`, a directory that is not stored; those of junctions follow, by dataset.
const DOT: u64 = 1;
const CONTROL: u64 = 3;
/// Unit of `statfs`, bytes.
const STATFS_UNIT: u32 = 4096;
/// More inodes than anybody makes.
const FILES: u64 = 1 << 40;
/// The handle of directories.
const DIRECTORY: Handle = Handle(0);

fn is_appended_to(handle: Handle) -> bool {
    handle.0 & APPEND != 0
}

/// From where a mount is seen: as a whole, or from one of its datasets, whose root is the root then and whose
/// look-ups are counted, or from a snapshot, of which nothing else is seen.
#[derive(Clone, Copy)]
pub struct Seat<'a> {
    mount: &'a Mount,
    root: Option<NodeId>,
    snapshot: Option<&'a Arc<Volume>>,
}

impl<'a> Seat<'a> {
    /// `root` is the root directory of a dataset that is attached without a parent, or of `snapshot`.
    pub(crate) fn new(mount: &'a Mount, root: Option<NodeId>, snapshot: Option<&'a Arc<Volume>>) -> Self {
        Self { mount, root, snapshot }
    }

    /// A node as the mount knows it. File handles let programs ask for any number: what is not seen from here is
    /// [`FsError::Stale`].
    fn inner(self, node: NodeId) -> Result<NodeId> {
        let Some(root) = self.root else { return Ok(node) };
        let ((top, _), (dataset, inode)) = (root.unpack(), node.unpack());
        match self.snapshot {
            _ if node == NodeId::ROOT => Ok(root),
            Some(snapshot) if dataset == snapshot.id() => Ok(snapshot.node(inode)),
            None if self.mount.is_within(dataset, top) => Ok(node),
            _ => Err(FsError::Stale),
        }
    }

    /// A node as it is shown.
    fn outer(self, node: NodeId) -> NodeId {
        if self.root == Some(node) {
            return NodeId::ROOT;
        }
        match self.snapshot {
            Some(snapshot) => NodeId::pack(snapshot.id(), node.unpack().1),
            None => self.mount.show_node(node),
        }
    }

    /// The object of a node that is shown.
    fn object(self, node: NodeId) -> Result<Object> {
        self.inner_object(self.inner(node)?)
    }

    fn inner_object(self, node: NodeId) -> Result<Object> {
        match self.snapshot {
            Some(snapshot) => Ok(Object::Inode(Arc::clone(snapshot), node.unpack().1)),
            None => self.mount.object(node),
        }
    }

    fn at(self, node: NodeId) -> Result<(Arc<Volume>, InodeId)> {
        self.object(node)?.stored()
    }

    /// As [`Seat::at`], of what is to be changed.
    fn changing(self, node: NodeId) -> Result<(Arc<Volume>, InodeId)> {
        self.object(node)?.changing()
    }

    fn show(self, attr: Attr) -> Attr {
        Attr { node: self.outer(attr.node), ..attr }
    }

    /// Counts a look-up, if they are counted from here.
    fn hold(self, node: NodeId) -> Result<()> {
        match self.root.and_then(|_| self.mount.counted(node)) {
            Some((volume, inode)) => volume.hold(inode),
            None => Ok(()),
        }
    }

    /// Takes look-ups back. A volume that is not attached any more has forgotten everything.
    fn forget(self, node: NodeId, lookups: u64) {
        if let Some((volume, inode)) = self.mount.counted(node) {
            volume.forget(inode, lookups);
        }
    }

    /// As [`Seat::show`], of what an answer tells of, which is counted as a look-up. What was made may be removed
    /// already: then the answer is right all the same, and there is nothing to keep.
    fn show_held(self, attr: Attr) -> Attr {
        let _ = self.hold(attr.node);
        self.show(attr)
    }

    /// Attributes of the object that a name leads to.
    fn find(self, parent: NodeId, name: &[u8]) -> Result<Attr> {
        let parent = self.inner(parent)?;
        let object = self.inner_object(parent)?;
        if name == b"." || name == b".." && self.root == Some(parent) {
            return object.getattr();
        }
        match object {
            Object::Control(control) => control.find(&self.mount.snapshots, name)?.getattr(),
            Object::Inode(volume, dir) => match self.mount.fixed(&volume, dir, name)? {
                Some(object) => object.getattr(),
                None => volume.lookup(dir, name),
            },
        }
    }

    /// The directory, for a name that is to be made there.
    fn making(self, parent: NodeId, name: &[u8]) -> Result<(Arc<Volume>, InodeId)> {
        let (volume, dir) = self.changing(parent)?;
        match self.mount.fixed(&volume, dir, name)? {
            Some(_) => Err(FsError::Exists),
            None => Ok((volume, dir)),
        }
    }

    /// The directory, for a name that is to be moved or removed.
    fn taking(self, parent: NodeId, name: &[u8]) -> Result<(Arc<Volume>, InodeId)> {
        let (volume, dir) = self.changing(parent)?;
        match self.mount.fixed(&volume, dir, name)? {
            Some(Object::Control(_)) => Err(FsError::ReadOnly),
            Some(_) => Err(FsError::Busy),
            None => Ok((volume, dir)),
        }
    }

    fn make(self, parent: NodeId, name: &[u8], new: NewInode<'_>, caller: &Caller) -> Result<Attr> {
        let (volume, dir) = self.making(parent, name)?;
        Ok(self.show_held(volume.make(dir, name, new, caller)?))
    }

    fn open(self, volume: &Volume, inode: InodeId, flags: OpenFlags) -> Result<Handle> {
        if volume.getattr(inode)?.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        if flags.write || flags.truncate {
            volume.check_writable()?;
        }
        let handle = self.mount.new_handle(flags);
        volume.acquire(inode, handle)?;
        if flags.truncate {
            let set = SetAttr { size: Some(0), kill_suidgid: flags.kill_suidgid, ..SetAttr::default() };
            if let Err(error) = volume.setattr(inode, &set) {
                volume.release(inode, handle)?;
                return Err(error);
            }
        }
        Ok(handle)
    }

    /// `.`, `..` and what else of a directory is none of a volume, each with its cookie.
    fn special(self, node: NodeId, object: &Object) -> Result<Vec<Special>> {
        let above = self.find(node, b"..")?.node;
        let mut special = vec![
            Special { cookie: DOT, node: object.node(), name: b".".to_vec(), object: None },
            Special { cookie: DOT_DOT, node: above, name: b"..".to_vec(), object: None },
        ];
        let mut add = |cookie, name: &[u8], object: Object| {
            special.push(Special { cookie, node: object.node(), name: name.to_vec(), object: Some(object) });
        };
        match object {
            Object::Control(control) => {
                control.below().into_iter().for_each(|below| add(CONTROL, SNAPSHOT, below));
            }
            Object::Inode(volume, ROOT_INODE) if !volume.dataset().is_snapshot() => {
                if volume.dataset().settings().snapdir {
                    add(CONTROL, ZFS, Object::zfs(Arc::clone(volume)));
                }
                for (id, name, child) in self.mount.junctions(volume.id()) {
                    add(CONTROL + id.get(), &name, Object::Inode(child, ROOT_INODE));
                }
            }
            Object::Inode(..) => {}
        }
        Ok(special)
    }
}

/// An entry of a directory that is none of a volume.
struct Special {
    cookie: u64,
    node: NodeId,
    name: Vec<u8>,
    /// None for `.` and `..`, whose attributes nobody asks for.
    object: Option<Object>,
}

/// A mounted tree of files. Calls may come from any number of threads.
///
/// Names are bytes without `/` and NUL. What returns without an error is visible to every call that
/// starts later; it is durable after `fsync`, `fsyncdir` or `sync`, or when the pool commits by itself.
#[expect(unused_variables, reason = "some are for who stands in for a mount")]
pub trait Ops: Send + Sync {
    /// The mount that does what is asked, and from where it is seen. What has none (a stand-in for tests) says itself
    /// what an operation does; the others are refused.
    fn seat(&self) -> Result<Seat<'_>> {
        Err(FsError::NotSupported)
    }

    /// A call has panicked: what it changed in memory may be half done.
    fn panicked(&self) {
        if let Ok(seat) = self.seat() {
            seat.mount.pool.store().panicked("a request");
        }
    }

    /// A thread that passed requests on has ended, for this reason; others go on.
    fn serves_less(&self, why: &str) {
        if let Ok(seat) = self.seat() {
            let text = format!("a thread that served a mount has ended: {why}");
            seat.mount.pool.store().event(Event::new(Class::MountThread).text(text));
        }
    }

    /// The object named `name` in `parent`. `.` is `parent` itself, whatever it is.
    ///
    /// [`View`](crate::View), which is what a kernel sees, counts each answer of this and of what makes something,
    /// and each entry that [`Ops::readdir`] gives with attributes, as a look-up of the object, which stays, with or
    /// without a name, until all of them are forgotten.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr> {
        let seat = self.seat()?;
        let mut gone = None;
        loop {
            let attr = seat.find(parent, name)?;
            match seat.hold(attr.node) {
                // It was removed after it was found: the name leads elsewhere by now, or nowhere.
                Err(FsError::NotFound) if gone != Some(attr.node) => gone = Some(attr.node),
                // A lost inode can be looked up to be removed, and needs no keeping.
                Ok(()) | Err(FsError::Damaged(_)) => return Ok(seat.show(attr)),
                Err(error) => return Err(error),
            }
        }
    }

    /// The kernel forgets `lookups` references to `node`.
    fn forget(&self, node: NodeId, lookups: u64) {
        if let Ok(seat) = self.seat()
            && let Ok(node) = seat.inner(node)
        {
            seat.forget(node, lookups);
        }
    }

    /// Attributes.
    fn getattr(&self, node: NodeId) -> Result<Attr> {
        let seat = self.seat()?;
        Ok(seat.show(seat.object(node)?.getattr()?))
    }

    /// Changes attributes and gives the new ones.
    fn setattr(&self, node: NodeId, set: &SetAttr, caller: &Caller) -> Result<Attr> {
        let seat = self.seat()?;
        let (volume, inode) = seat.changing(node)?;
        Ok(seat.show(volume.setattr(inode, set)?))
    }

    /// A symbolic link's target.
    fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        let (volume, inode) = self.seat()?.at(node)?;
        volume.readlink(inode)
    }

    /// Makes a file, pipe, socket or device node; `rdev` counts for devices only.
    fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        perm: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid);
        }
        self.seat()?.make(parent, name, NewInode { rdev, ..NewInode::plain(kind, perm) }, caller)
    }

    /// Makes a directory.
    fn mkdir(&self, parent: NodeId, name: &[u8], perm: u32, caller: &Caller) -> Result<Attr> {
        self.seat()?.make(parent, name, NewInode::plain(FileKind::Directory, perm), caller)
    }

    /// Makes a symbolic link to `target` (1 to 4095 bytes).
    fn symlink(&self, parent: NodeId, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        // A link's permissions mean nothing; no umask applies to them.
        let caller = Caller { umask: 0, ..*caller };
        let new = NewInode { target, ..NewInode::plain(FileKind::Symlink, 0o777) };
        self.seat()?.make(parent, name, new, &caller)
    }

    /// Gives `node` another name, or its first one: a file from [`Ops::tmpfile`] that is open.
    fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr> {
        let seat = self.seat()?;
        let (volume, dir) = seat.making(new_parent, new_name)?;
        let (from, inode) = seat.at(node)?;
        if from.number() != volume.number() {
            return Err(FsError::CrossDevice);
        }
        Ok(seat.show_held(volume.link(inode, dir, new_name)?))
    }

    /// Takes a name away; the last one takes the file, once nobody has it open and its look-ups are forgotten.
    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let (volume, dir) = self.seat()?.taking(parent, name)?;
        volume.unlink(dir, name, false)
    }

    /// Removes an empty directory.
    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let (volume, dir) = self.seat()?.taking(parent, name)?;
        volume.unlink(dir, name, true)
    }

    /// Renames, replacing what may be replaced.
    fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let seat = self.seat()?;
        let (volume, dir) = seat.taking(parent, name)?;
        let (to, new_dir) = seat.taking(new_parent, new_name)?;
        if volume.number() != to.number() {
            return Err(FsError::CrossDevice);
        }
        volume.rename(dir, name, new_dir, new_name, flags)
    }

    /// Opens a file.
    fn open(&self, node: NodeId, flags: OpenFlags) -> Result<Handle> {
        let seat = self.seat()?;
        let (volume, inode) = seat.at(node)?;
        seat.open(&volume, inode, flags)
    }

    /// Makes a file and opens it; opens an existing one unless `flags.exclusive`. What exists and is no file is
    /// [`Stale`](crate::FsError::Stale): whoever looks the name up again sees it.
    fn create(
        &self,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<Created> {
        let seat = self.seat()?;
        let (volume, dir) = seat.making(parent, name)?;
        let new = NewInode { open: true, ..NewInode::plain(FileKind::Regular, perm) };
        let mut gone = None;
        loop {
            match volume.make(dir, name, new, caller) {
                Err(FsError::Exists) if !flags.exclusive => {}
                made => {
                    let attr = made?;
                    let handle = seat.mount.new_handle(flags);
                    return Ok(Created { attr: seat.show_held(attr), handle, made: true });
                }
            }
            let found = volume.find(dir, name)?.map(|found| found.inode);
            let open = |inode| match volume.getattr(inode)?.kind {
                FileKind::Regular => Ok((inode, seat.open(&volume, inode, flags)?)),
                FileKind::Directory => Err(FsError::IsDirectory),
                // The kernel takes files alone for an answer, and opens all else by itself.
                _ => Err(FsError::Stale),
            };
            match found.map_or(Err(FsError::NotFound), open) {
                // It was removed after it was found: so the name is free, or leads elsewhere.
                Err(FsError::NotFound) if found.is_none() || gone != found => gone = found,
                opened => {
                    let (inode, handle) = opened?;
                    let attr = seat.show_held(volume.getattr(inode)?);
                    return Ok(Created { attr, handle, made: false });
                }
            }
        }
    }

    /// Makes a file without a name in the dataset of the directory `parent`, whose group and default access
    /// list it inherits, and opens it: it goes with its last descriptor unless `link` gives it a name, which
    /// `flags.exclusive` forbids.
    fn tmpfile(
        &self,
        parent: NodeId,
        perm: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<(Attr, Handle)> {
        let seat = self.seat()?;
        let (volume, dir) = seat.changing(parent)?;
        let attr = volume.tmpfile(dir, perm, !flags.exclusive, caller)?;
        Ok((seat.show_held(attr), seat.mount.new_handle(flags)))
    }

    /// Up to `len` bytes from `offset`; less only at the end of the file.
    fn read(&self, node: NodeId, handle: Handle, offset: u64, len: u32) -> Result<ReadData> {
        let (volume, inode) = self.seat()?.at(node)?;
        volume.read(inode, offset, len)
    }

    /// Writes all of `data` and gives its length. `kill_suidgid`: the writer may not keep those bits.
    fn write(
        &self,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suidgid: bool,
    ) -> Result<u32> {
        let (volume, inode) = self.seat()?.changing(node)?;
        let offset = (!is_appended_to(handle)).then_some(offset);
        volume.write(inode, offset, data, kill_suidgid)
    }

    /// A descriptor of the file was closed; says what went wrong with earlier writes, as `fsync` does.
    fn flush(&self, node: NodeId, handle: Handle) -> Result<()> {
        let (volume, inode) = self.seat()?.at(node)?;
        volume.report(inode, handle)
    }

    /// The last descriptor of `handle` is closed.
    fn release(&self, node: NodeId, handle: Handle) -> Result<()> {
        self.seat()?.object(node)?.release(handle)
    }

    /// Returns when the file's data and size (and, unless `datasync`, all else of it) are durable. What was written
    /// earlier and is lost is an error, once to each handle.
    fn fsync(&self, node: NodeId, handle: Handle, datasync: bool) -> Result<()> {
        let (volume, inode) = self.seat()?.at(node)?;
        volume.fsync(inode, handle)
    }

    /// Changes what a range of the file occupies.
    fn fallocate(&self, node: NodeId, handle: Handle, offset: u64, len: u64, mode: Allocate) -> Result<()> {
        let (volume, inode) = self.seat()?.changing(node)?;
        volume.allocate(inode, offset, len, mode)
    }

    /// The next data or hole at or after `offset`.
    fn lseek(&self, node: NodeId, handle: Handle, offset: u64, seek: Seek) -> Result<u64> {
        let (volume, inode) = self.seat()?.at(node)?;
        volume.seek(inode, offset, seek)
    }

    /// Copies up to `len` bytes between files of this mount, by reference where that can be; gives the number
    /// copied, which is less at the end of the source, and where more would take long.
    fn copy_file_range(
        &self,
        from: (NodeId, Handle, u64),
        to: (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let seat = self.seat()?;
        let ((from, _, from_offset), (to, handle, to_offset)) = (from, to);
        let ((source, inode), (target, to)) = (seat.at(from)?, seat.changing(to)?);
        if is_appended_to(handle) {
            return Err(FsError::BadHandle);
        }
        Ok(target.copy_range((&source, inode, from_offset), to, to_offset, len)?.bytes)
    }

    /// Opens a directory.
    fn opendir(&self, node: NodeId) -> Result<Handle> {
        self.seat()?.object(node)?.opendir(DIRECTORY)?;
        Ok(DIRECTORY)
    }

    /// Emits the entries after `cookie` (0: from the start), `.` and `..` first, until `emit` returns
    /// false: that entry was not taken and comes again with the cookie before it. `plus` asks for
    /// attributes.
    fn readdir(
        &self,
        node: NodeId,
        handle: Handle,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let seat = self.seat()?;
        let object = seat.object(node)?;
        let mut emit = |entry: DirEntry<'_>| {
            // Without attributes it is no look-up, and the caller looks it up when somebody wants it.
            let held = entry.attr.filter(|attr| seat.hold(attr.node).is_ok());
            let attr = held.map(|attr| seat.show(*attr));
            let taken = emit(DirEntry { node: seat.outer(entry.node), attr: attr.as_ref(), ..entry });
            if let Some(held) = held.filter(|_| !taken && seat.root.is_some()) {
                seat.forget(held.node, 1);
            }
            taken
        };
        if let (0, Object::Inode(volume, dir)) = (cookie, &object) {
            volume.listing_begins(*dir)?;
        }
        let special = if cookie < FIRST_COOKIE { seat.special(node, &object)? } else { Vec::new() };
        for entry in special.iter().filter(|entry| entry.cookie > cookie) {
            let attr = match &entry.object {
                Some(object) if plus => Some(object.getattr()?),
                _ => None,
            };
            let taken = emit(DirEntry {
                node: entry.node,
                kind: FileKind::Directory,
                name: &entry.name,
                next_cookie: entry.cookie,
                attr: attr.as_ref(),
            });
            if !taken {
                return Ok(());
            }
        }
        let (volume, dir) = match object {
            Object::Inode(volume, dir) => (volume, dir),
            Object::Control(control) => {
                control.list(&seat.mount.snapshots, cookie, &mut emit);
                return Ok(());
            }
        };
        let is_shown = |name: &[u8], inode| {
            dir != ROOT_INODE
                || match volume.dataset().is_snapshot() {
                    true => name != ZFS || !volume.is_own(inode),
                    false => !seat.mount.hides(volume.id(), name),
                }
        };
        let mut at = cookie;
        loop {
            let entries = volume.list(dir, at)?;
            let Some(last) = entries.last() else { return Ok(()) };
            at = last.cookie;
            for entry in entries {
                if !is_shown(&entry.name, entry.inode) {
                    continue;
                }
                // Removed since it was listed: without attributes the caller looks it up, and sees.
                let attr = if plus { volume.getattr(entry.inode).ok() } else { None };
                let taken = emit(DirEntry {
                    node: volume.node(entry.inode),
                    kind: entry.kind,
                    name: &entry.name,
                    next_cookie: entry.cookie,
                    attr: attr.as_ref(),
                });
                if !taken {
                    return Ok(());
                }
            }
        }
    }

    /// Closes a directory.
    fn releasedir(&self, node: NodeId, handle: Handle) -> Result<()> {
        match self.release(node, handle) {
            Err(FsError::Damaged(_)) => Ok(()),
            released => released,
        }
    }

    /// Returns when the directory's names are durable.
    fn fsyncdir(&self, node: NodeId, handle: Handle, datasync: bool) -> Result<()> {
        self.seat()?.object(node)?.fsync(handle)
    }

    /// The value of an extended attribute. Access lists are those of Linux (`system.posix_acl_access`,
    /// `system.posix_acl_default`), kept in step with the permissions; where the dataset has none, they are
    /// absent ([`crate::FsError::NoAttr`]), and cannot be set ([`crate::FsError::NotSupported`]).
    fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.seat()?.object(node)?.getxattr(name)
    }

    /// Sets an extended attribute: name 1 to 255 bytes, value up to 64 KiB.
    fn setxattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let (volume, inode) = self.seat()?.changing(node)?;
        volume.setxattr(inode, name, value, mode)
    }

    /// The names of all extended attributes, each with a NUL behind it.
    fn listxattr(&self, node: NodeId) -> Result<Vec<u8>> {
        self.seat()?.object(node)?.listxattr()
    }

    /// Takes an extended attribute away.
    fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        let (volume, inode) = self.seat()?.changing(node)?;
        volume.removexattr(inode, name)
    }

    /// The space of the dataset that the node is in. A snapshot takes what it refers to and has its room, as in ZFS.
    fn statfs(&self, node: NodeId) -> Result<StatFs> {
        let seat = self.seat()?;
        let object = seat.object(node)?;
        let dataset = object.volume().dataset();
        let space = seat.mount.pool.space_of(dataset);
        let size = match dataset.is_snapshot() {
            true => dataset.usage().referenced + space.available,
            false => space.size,
        };
        let unit = u64::from(STATFS_UNIT);
        Ok(StatFs {
            block_size: STATFS_UNIT,
            blocks: size / unit,
            free: space.available / unit,
            available: space.available / unit,
            files: FILES,
            files_free: FILES,
            name_max: MAX_NAME as u32,
        })
    }

    /// Makes everything durable (`sync`, `syncfs`).
    fn sync(&self) -> Result<()> {
        self.seat()?.mount.pool.commit()?;
        Ok(())
    }
}

impl Ops for Mount {
    fn seat(&self) -> Result<Seat<'_>> {
        Ok(Seat::new(self, None, None))
    }
}
