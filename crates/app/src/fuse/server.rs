//! Requests to calls of [`Ops`], results to replies.

use super::convert;
use super::errno::reply_errno;
use fuser::{
    AccessFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenAccMode, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use larder_files::{
    Attr, Caller, DirEntry, FileKind, FsError, Handle, NodeId, OpenFlags, Ops, Result as FsResult, Seek,
    SetAttr,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// How long the kernel may answer from names and attributes that it knows. All changes of a mount go
/// through it, and changes from below are announced by the `Invalidator`; this bounds what a missed
/// announcement costs.
const TTL: Duration = Duration::from_secs(10);
/// The same for names that do not exist. Shorter: who restores names from below may not know each of them.
const NEGATIVE_TTL: Duration = Duration::from_secs(1);
/// Requests that the kernel keeps under way without a process waiting for each: read-ahead and
/// asynchronous direct I/O. More than fuser's 16, so that read-ahead can keep several disks busy.
const MAX_BACKGROUND: u16 = 64;
/// Most bytes of one `copy_file_range`: the reply counts in 32 bits. A multiple of the largest record,
/// so that a long copy is cut where records are.
const MAX_COPY: u64 = 0xfff0_0000;
/// `whence` of lseek(2), as Linux numbers it.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// What a read is gathered in; kept, as a fresh megabyte costs more than copying it.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a session shares with its handle.
pub(super) struct Server {
    pub(super) ops: Arc<dyn Ops>,
    pub(super) max_readahead: u32,
    pub(super) max_write: u32,
    /// A call has panicked: an invariant is gone, and nothing more is asked of the engine.
    pub(super) broken: Arc<AtomicBool>,
}

impl Server {
    fn call<T>(&self, request: impl FnOnce(&dyn Ops) -> FsResult<T>) -> Result<T, Errno> {
        if self.broken.load(Ordering::Acquire) {
            return Err(Errno::EIO);
        }
        match catch_unwind(AssertUnwindSafe(|| request(&*self.ops))) {
            Ok(result) => result.map_err(|error| reply_errno(&error)),
            Err(_) => {
                self.broken.store(true, Ordering::Release);
                Err(Errno::EIO)
            }
        }
    }

    fn empty(&self, reply: ReplyEmpty, request: impl FnOnce(&dyn Ops) -> FsResult<()>) {
        match self.call(request) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn entry(&self, reply: ReplyEntry, request: impl FnOnce(&dyn Ops) -> FsResult<Attr>) {
        match self.call(request) {
            Ok(attr) => reply.entry(&TTL, &convert::attr(&attr), Generation(attr.generation)),
            Err(errno) => reply.error(errno),
        }
    }

    fn attr(&self, reply: ReplyAttr, request: impl FnOnce(&dyn Ops) -> FsResult<Attr>) {
        match self.call(request) {
            Ok(attr) => reply.attr(&TTL, &convert::attr(&attr)),
            Err(errno) => reply.error(errno),
        }
    }

    /// Answers with a value, or its length when the caller asks for that by offering no room.
    fn value(&self, room: u32, reply: ReplyXattr, request: impl FnOnce(&dyn Ops) -> FsResult<Vec<u8>>) {
        let sized = self.call(|ops| {
            let value = request(ops)?;
            match u32::try_from(value.len()) {
                Ok(len) if room == 0 || len <= room => Ok((value, len)),
                _ => Err(FsError::Range),
            }
        });
        match sized {
            Ok((_, len)) if room == 0 => reply.size(len),
            Ok((value, _)) => reply.data(&value),
            Err(errno) => reply.error(errno),
        }
    }
}

fn node(ino: INodeNo) -> NodeId {
    NodeId::from_raw(ino.0)
}

fn handle(fh: FileHandle) -> Handle {
    Handle(fh.0)
}

/// The kernel has taken the umask off the permissions already.
fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid(), umask: 0 }
}

/// Whether the caller may keep set-user-id bits of what it changes. The kernel decides by CAP_FSETID and
/// tells us, but fuser does not pass that on for truncation: being root stands for it.
fn loses_suid(request: &Request) -> bool {
    request.uid() != 0
}

/// How to open. `append` is left out on purpose: the kernel knows the size, names the offset of every
/// write, and lets a process switch O_APPEND later without a word to us.
fn open_flags(flags: fuser::OpenFlags) -> OpenFlags {
    let mode = flags.acc_mode();
    OpenFlags {
        read: mode != OpenAccMode::O_WRONLY,
        write: mode != OpenAccMode::O_RDONLY,
        ..OpenFlags::default()
    }
}

/// What the kernel may do with an open file. Its pages stay valid, since nothing changes content without
/// the kernel or an invalidation; O_DIRECT goes around them by itself. A file that cannot be written has
/// nothing to flush, which saves a request a close.
fn cache_flags(opened: OpenFlags) -> FopenFlags {
    if opened.write {
        FopenFlags::FOPEN_KEEP_CACHE
    } else {
        FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
    }
}

/// Whether an extended attribute could be stored but not honoured: everything in `system`, POSIX ACLs
/// above all. Storing what nobody enforces would be worse than refusing it.
fn is_refused(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"system.")
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wished = [
            // Many look-ups and listings of one directory at once.
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Listings bring attributes along, when the kernel sees that they will be asked for.
            InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO,
            // A new mtime (every write makes one) is no reason to drop cached pages.
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            // We clear set-user-id bits. Otherwise each write(2) asks for `security.capability` first.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            // A link's target never changes.
            InitFlags::FUSE_CACHE_SYMLINKS,
            // Pieces of a large direct read or write at once.
            InitFlags::FUSE_ASYNC_DIO,
        ];
        for flags in wished {
            // An older kernel lacks some; each is a gain in speed only.
            let _ = config.add_capabilities(flags);
        }
        if let Err(most) = config.set_max_write(self.max_write) {
            let _ = config.set_max_write(most);
        }
        if let Err(most) = config.set_max_readahead(self.max_readahead) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.call(|ops| ops.lookup(node(parent), name.as_bytes())) {
            Ok(attr) => reply.entry(&TTL, &convert::attr(&attr), Generation(attr.generation)),
            // Number 0 says that there is no such name, and how long that holds.
            Err(Errno::ENOENT) => {
                let none = convert::bare_attr(0, FileKind::Regular);
                reply.entry(&NEGATIVE_TTL, &none, Generation(0));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        // Nothing is answered to a forget.
        let _ = self.call(|ops| {
            ops.forget(node(ino), lookups);
            Ok(())
        });
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.attr(reply, |ops| ops.getattr(node(ino)));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.attr(reply, |ops| {
            // A change of owner clears the bits whoever makes it, but not those of a directory.
            let new_owner =
                (uid.is_some() || gid.is_some()) && ops.getattr(node(ino))?.kind != FileKind::Directory;
            let set = SetAttr {
                perm: mode.map(|mode| mode & 0o7777),
                uid,
                gid,
                size,
                atime: atime.map(convert::set_time),
                mtime: mtime.map(convert::set_time),
                ctime: ctime.map(convert::change_time),
                btime: None,
                kill_suidgid: new_owner || (size.is_some() && loses_suid(request)),
            };
            ops.setattr(node(ino), &set, &caller(request))
        });
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.call(|ops| ops.readlink(node(ino))) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.entry(reply, |ops| {
            let kind = convert::kind_to_make(mode)?;
            ops.mknod(node(parent), name.as_bytes(), kind, mode & 0o7777, rdev, &caller(request))
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.entry(reply, |ops| ops.mkdir(node(parent), name.as_bytes(), mode & 0o7777, &caller(request)));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(reply, |ops| ops.unlink(node(parent), name.as_bytes()));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(reply, |ops| ops.rmdir(node(parent), name.as_bytes()));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        self.entry(reply, |ops| ops.symlink(node(parent), name.as_bytes(), target, &caller(request)));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.empty(reply, |ops| {
            let flags = convert::rename_flags(flags)?;
            ops.rename(node(parent), name.as_bytes(), node(new_parent), new_name.as_bytes(), flags)
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(reply, |ops| ops.link(node(ino), node(parent), name.as_bytes()));
    }

    /// O_TRUNC does not come here: the kernel truncates by `setattr` before it opens.
    fn open(&self, _request: &Request, ino: INodeNo, flags: fuser::OpenFlags, reply: ReplyOpen) {
        let flags = open_flags(flags);
        match self.call(|ops| ops.open(node(ino), flags)) {
            Ok(handle) => reply.opened(FileHandle(handle.0), cache_flags(flags)),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let asked = rustix::fs::OFlags::from_bits_retain(flags as u32);
        let flags = OpenFlags {
            truncate: asked.contains(rustix::fs::OFlags::TRUNC),
            exclusive: asked.contains(rustix::fs::OFlags::EXCL),
            kill_suidgid: loses_suid(request),
            ..open_flags(fuser::OpenFlags(flags))
        };
        let made = self
            .call(|ops| ops.create(node(parent), name.as_bytes(), mode & 0o7777, flags, &caller(request)));
        match made {
            Ok((attr, handle)) => reply.created(
                &TTL,
                &convert::attr(&attr),
                Generation(attr.generation),
                FileHandle(handle.0),
                cache_flags(flags),
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.call(|ops| ops.read(node(ino), handle(fh), offset, size)) {
            // One slice is what fuser takes.
            Ok(data) => READ_BUFFER.with_borrow_mut(|out| {
                out.clear();
                data.slices().for_each(|slice| out.extend_from_slice(slice));
                reply.data(out);
            }),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill_suidgid = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.call(|ops| ops.write(node(ino), handle(fh), offset, data, kill_suidgid)) {
            Ok(written) => reply.written(written),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _request: &Request, ino: INodeNo, fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        self.empty(reply, |ops| ops.flush(node(ino), handle(fh)));
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(reply, |ops| ops.release(node(ino), handle(fh)));
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.empty(reply, |ops| ops.fsync(node(ino), handle(fh), datasync));
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: fuser::OpenFlags, reply: ReplyOpen) {
        match self.call(|ops| ops.opendir(node(ino))) {
            Ok(handle) => reply.opened(FileHandle(handle.0), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut emit = |entry: DirEntry<'_>| {
            let (ino, kind) = (INodeNo(entry.node.raw()), convert::file_type(entry.kind));
            !reply.add(ino, entry.next_cookie, kind, OsStr::from_bytes(entry.name))
        };
        match self.call(|ops| ops.readdir(node(ino), handle(fh), cookie, false, &mut emit)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    /// Each entry with attributes counts as a look-up, to be forgotten one day; `.` and `..`, which have
    /// none, do not: of them the kernel takes number and kind alone.
    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut emit = |entry: DirEntry<'_>| {
            let dots = matches!(entry.name, b"." | b"..");
            assert!(dots || entry.attr.is_some(), "a listing with attributes has them for every name");
            let (attr, generation) = match entry.attr {
                Some(attr) if !dots => (convert::attr(attr), attr.generation),
                _ => (convert::bare_attr(entry.node.raw(), entry.kind), 0),
            };
            let name = OsStr::from_bytes(entry.name);
            !reply.add(attr.ino, entry.next_cookie, name, &TTL, &attr, Generation(generation))
        };
        match self.call(|ops| ops.readdir(node(ino), handle(fh), cookie, true, &mut emit)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: fuser::OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.empty(reply, |ops| ops.releasedir(node(ino), handle(fh)));
    }

    fn fsyncdir(&self, _request: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.empty(reply, |ops| ops.fsyncdir(node(ino), handle(fh), datasync));
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.call(|ops| ops.statfs(node(ino))) {
            Ok(s) => reply.statfs(
                s.blocks,
                s.free,
                s.available,
                s.files,
                s.files_free,
                s.block_size,
                s.name_max,
                s.block_size,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.empty(reply, |ops| {
            if is_refused(name) {
                return Err(FsError::NotSupported);
            }
            ops.setxattr(node(ino), name.as_bytes(), value, convert::xattr_mode(flags)?)
        });
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.value(size, reply, |ops| {
            if is_refused(name) {
                return Err(FsError::NotSupported);
            }
            ops.getxattr(node(ino), name.as_bytes())
        });
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.value(size, reply, |ops| ops.listxattr(node(ino)));
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(reply, |ops| {
            if is_refused(name) {
                return Err(FsError::NotSupported);
            }
            ops.removexattr(node(ino), name.as_bytes())
        });
    }

    /// The kernel checks access by itself (`default_permissions`) and does not ask; this is what it would
    /// hear: do not ask again.
    fn access(&self, _request: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.empty(reply, |ops| {
            ops.fallocate(node(ino), handle(fh), offset, length, convert::allocate(mode)?)
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.call(|ops| {
            let seek = match whence {
                SEEK_DATA => Seek::Data,
                SEEK_HOLE => Seek::Hole,
                _ => return Err(FsError::Invalid),
            };
            let offset = u64::try_from(offset).map_err(|_| FsError::NoExtent)?;
            let found = ops.lseek(node(ino), handle(fh), offset, seek)?;
            i64::try_from(found).map_err(|_| FsError::TooBig)
        });
        match found {
            Ok(found) => reply.offset(found),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self.call(|ops| {
            if !flags.is_empty() {
                return Err(FsError::Invalid);
            }
            let from = (node(ino_in), handle(fh_in), offset_in);
            let to = (node(ino_out), handle(fh_out), offset_out);
            let copied = ops.copy_file_range(from, to, len.min(MAX_COPY))?;
            Ok(u32::try_from(copied).expect("no more is copied than asked for"))
        });
        match copied {
            Ok(copied) => reply.written(copied),
            Err(errno) => reply.error(errno),
        }
    }
}
