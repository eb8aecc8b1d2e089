//! Requests to calls of [`Ops`], results to answers.

use super::around::{self, Around};
use super::convert;
use super::errno::errno;
use super::privilege::{attr_ttl, take_bits, takes_setgid};
use larder_files::{
    Caller, Created, DirEntry, FsError, Handle, NodeId, OpenFlags, Ops, ReadData, Result as FsResult, Seek,
    SetAttr, XattrMode,
};
use larder_fuse::{Entry, Listing, Opened, Operation, Request, Response, Service};
use rustix::io::Errno;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::error;

/// Time that the kernel may cache names and attributes. All changes of a mount go through it, and changes from below
/// are announced by the `Invalidator`; this bounds the cost of a missed announcement.
const TTL: Duration = Duration::from_secs(10);
/// The same for names that do not exist. Shorter: who restores names from below may not know each of them.
const NEGATIVE_TTL: Duration = Duration::from_secs(1);
/// File capabilities of a program; a write to the file takes them away.
const CAPABILITY: &[u8] = b"security.capability";
/// `whence` of lseek(2), as Linux numbers it.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Serves the requests of a mount.
pub(super) struct Server {
    pub(super) ops: Arc<dyn Ops>,
    /// A call has panicked: an invariant is gone, and nothing more is asked of the engine.
    pub(super) broken: Arc<AtomicBool>,
    around: Around,
}

impl Server {
    pub(super) fn new(ops: Arc<dyn Ops>, broken: Arc<AtomicBool>) -> Self {
        Self { ops, broken, around: Around::default() }
    }
}

/// Result of a read, sent without a copy.
pub(super) struct Data(ReadData);

impl larder_fuse::Data for Data {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.0.slices()
    }
}

impl Service for Server {
    type Data = Data;

    fn serve(&self, request: &Request<'_>) -> Response<Data> {
        if self.broken.load(Ordering::Acquire) {
            return Response::Error(Errno::IO);
        }
        match catch_unwind(AssertUnwindSafe(|| answer(&*self.ops, &self.around, request))) {
            Ok(result) => result.unwrap_or_else(|error| Response::Error(errno(&error))),
            Err(_) => {
                self.panicked();
                Response::Error(Errno::IO)
            }
        }
    }

    fn panicked(&self) {
        self.broken.store(true, Ordering::Release);
        self.ops.panicked();
    }

    fn ended(&self, error: &io::Error) {
        error!("a thread of FUSE has ended: {error}");
        self.ops.serves_less(&error.to_string());
    }

    fn refused(&self, node: u64, response: &Response<Data>) {
        let (named, opened) = match response {
            Response::Entry(entry) => (Some(entry), None),
            Response::Created(entry, opened) => (Some(entry), Some(opened)),
            Response::Opened(opened) => (None, Some(opened)),
            _ => return,
        };
        let node = named.map_or(node, |entry| entry.attr.node);
        if let Some(opened) = opened {
            self.around.released(node, opened.handle);
            // Fails for a damaged folder, which is answered without being opened.
            let _ = self.ops.release(NodeId::from_raw(node), own(opened.handle));
        }
        if named.is_some() {
            self.ops.forget(NodeId::from_raw(node), 1);
        }
    }
}

pub(super) fn caller(request: &Request<'_>, umask: u32) -> Caller {
    Caller { uid: request.uid, gid: request.gid, pid: request.pid, umask }
}

fn entry(attr: &larder_files::Attr) -> Entry {
    let attr_ttl = attr_ttl(attr, TTL);
    Entry { attr: convert::attr(attr), generation: attr.generation, ttl: TTL, attr_ttl }
}

/// Options of an open file for the kernel. Its pages stay valid, since nothing changes content without the kernel or an
/// invalidation; O_DIRECT goes around them by itself. Nothing is asked at close: data that write(2) took is in our
/// hands, and fsync reports later errors, as elsewhere.
fn opened(handle: Handle, way: u64) -> Opened {
    let direct = around::is_direct(way);
    Opened { handle: handle.0 | way, keep_cache: true, no_flush: true, direct, ..Opened::default() }
}

/// A handle as the engine knows it.
fn own(handle: u64) -> Handle {
    Handle(around::own(handle))
}

/// Takes away what a write takes away, where the kernel does not.
fn kill_capability(ops: &dyn Ops, node: NodeId) -> FsResult<()> {
    match ops.getxattr(node, CAPABILITY).and_then(|_| ops.removexattr(node, CAPABILITY)) {
        Err(FsError::NoAttr) => Ok(()),
        done => done,
    }
}

/// Refuses extended attributes that could be stored but not honoured: everything in `system` but POSIX ACLs,
/// which the kernel enforces. Storing what nobody enforces would be worse than refusing it.
fn check_xattr(name: &[u8]) -> FsResult<&[u8]> {
    let acl = matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default");
    if name.starts_with(b"system.") && !acl { Err(FsError::NotSupported) } else { Ok(name) }
}

/// A value, or its length when the caller asks for that by offering no room.
fn value(value: Vec<u8>, room: u32) -> FsResult<Response<Data>> {
    match u32::try_from(value.len()) {
        Ok(len) if room == 0 => Ok(Response::Size(len)),
        Ok(len) if len <= room => Ok(Response::Bytes(value)),
        _ => Err(FsError::Range),
    }
}

/// The names of attributes that a caller may know of; being root stands for CAP_SYS_ADMIN.
fn listed(names: Vec<u8>, request: &Request<'_>) -> Vec<u8> {
    if request.uid == 0 {
        return names;
    }
    let shown = names.split_inclusive(|&byte| byte == 0).filter(|name| !name.starts_with(b"trusted."));
    shown.flatten().copied().collect()
}

fn answer(ops: &dyn Ops, around: &Around, request: &Request<'_>) -> FsResult<Response<Data>> {
    let node = NodeId::from_raw(request.node);
    let as_caller = |umask| caller(request, umask);
    let done = |result: FsResult<()>| result.map(|()| Response::Done);
    Ok(match request.operation {
        Operation::Lookup { name } => {
            // By number and `.` the kernel finds again what a file handle of NFS names.
            match ops.lookup(node, name) {
                Err(FsError::NotFound) => Response::NoEntry(NEGATIVE_TTL),
                found => Response::Entry(entry(&found?)),
            }
        }
        Operation::Forget { lookups } => {
            ops.forget(node, lookups);
            Response::Done
        }
        Operation::BatchForget(forgets) => {
            forgets.iter().for_each(|one| ops.forget(NodeId::from_raw(one.node), one.lookups));
            Response::Done
        }
        Operation::GetAttr { .. } => {
            let attr = ops.getattr(node)?;
            Response::Attr(convert::attr(&attr), attr_ttl(&attr, TTL))
        }
        Operation::Statx { .. } => {
            let attr = ops.getattr(node)?;
            Response::Statx(convert::attr(&attr), attr_ttl(&attr, TTL))
        }
        Operation::SetAttr(set) => {
            let kill_setgid = set.kill_suidgid && takes_setgid(ops, node, request)?;
            let set = SetAttr { kill_setgid, ..set };
            let attr = ops.setattr(node, &set, &as_caller(0))?;
            Response::Attr(convert::attr(&attr), attr_ttl(&attr, TTL))
        }
        Operation::ReadLink => Response::Bytes(ops.readlink(node)?),
        Operation::Symlink { name, target } => {
            Response::Entry(entry(&ops.symlink(node, name, target, &as_caller(0))?))
        }
        Operation::MkNod { name, mode, rdev, umask } => {
            let kind = convert::kind_to_make(mode)?;
            Response::Entry(entry(&ops.mknod(node, name, kind, mode & 0o7777, rdev, &as_caller(umask))?))
        }
        Operation::MkDir { name, mode, umask } => {
            Response::Entry(entry(&ops.mkdir(node, name, mode & 0o7777, &as_caller(umask))?))
        }
        Operation::Unlink { name } => done(ops.unlink(node, name))?,
        Operation::RmDir { name } => done(ops.rmdir(node, name))?,
        Operation::Rename { name, new_parent, new_name, flags } => {
            let flags = convert::rename_flags(flags)?;
            done(ops.rename(node, name, NodeId::from_raw(new_parent), new_name, flags))?
        }
        Operation::Link { from, name } => {
            Response::Entry(entry(&ops.link(NodeId::from_raw(from), node, name)?))
        }
        // O_TRUNC does not come here: the kernel truncates by `setattr` before it opens.
        Operation::Open { flags, kill_suidgid } => {
            let access = convert::access(flags);
            let flags = convert::open_flags(flags, kill_suidgid);
            let flags = OpenFlags { truncate: false, exclusive: false, ..flags };
            let handle = ops.open(node, flags)?;
            Response::Opened(opened(handle, around.opened(request.node, access)))
        }
        Operation::Create { name, flags, mode, umask, kill_suidgid } => {
            let how = convert::open_flags(flags, kill_suidgid);
            let created = ops.create(node, name, mode & 0o7777, how, &as_caller(umask))?;
            let Created { attr, handle, made } = created;
            let (node, access) = (attr.node.raw(), convert::access(flags));
            let way = if made { around.made(node, access) } else { around.opened(node, access) };
            Response::Created(entry(&attr), opened(handle, way))
        }
        Operation::TmpFile { flags, mode, umask } => {
            let how = convert::open_flags(flags, false);
            let (attr, handle) = ops.tmpfile(node, mode & 0o7777, how, &as_caller(umask))?;
            let way = around.made(attr.node.raw(), convert::access(flags));
            Response::Created(entry(&attr), opened(handle, way))
        }
        Operation::Read { handle, offset, size } => {
            Response::Data(Data(ops.read(node, own(handle), offset, size)?))
        }
        Operation::Write { handle, offset, data, kill_suidgid, durable } => {
            if kill_suidgid {
                take_bits(ops, node, request, true)?;
            }
            let direct = around::is_direct(handle);
            if direct {
                kill_capability(ops, node)?;
            }
            let written = ops.write(node, own(handle), offset, data, kill_suidgid)?;
            if direct && durable {
                ops.fsync(node, own(handle), true)?;
            }
            Response::Written(written)
        }
        Operation::StatFs => Response::Space(ops.statfs(node)?),
        Operation::Flush { handle } => done(ops.flush(node, own(handle)))?,
        Operation::Release { handle } => {
            around.released(request.node, handle);
            done(ops.release(node, own(handle)))?
        }
        Operation::Fsync { handle, datasync } => done(ops.fsync(node, own(handle), datasync))?,
        Operation::SetXattr { name, value, flags, acl_kill_sgid } => {
            let mode = if acl_kill_sgid { XattrMode::KillSetgid } else { convert::xattr_mode(flags)? };
            ops.setxattr(node, check_xattr(name)?, value, mode)?;
            Response::Done
        }
        Operation::GetXattr { name, size } => value(ops.getxattr(node, check_xattr(name)?)?, size)?,
        Operation::ListXattr { size } => value(listed(ops.listxattr(node)?, request), size)?,
        Operation::RemoveXattr { name } => done(ops.removexattr(node, check_xattr(name)?))?,
        Operation::OpenDir { .. } => {
            Response::Opened(Opened { handle: ops.opendir(node)?.0, ..Opened::default() })
        }
        Operation::ReadDir { handle, cookie, size, plus } => {
            let mut listing = Listing::new(size);
            let mut emit = |found: DirEntry<'_>| {
                let (node, mode) = (found.node.raw(), convert::type_bits(found.kind));
                if !plus {
                    return listing.add(node, mode, found.name, found.next_cookie);
                }
                // None for an entry that is being removed.
                let known = found.attr.map(entry);
                listing.add_plus(known.as_ref(), node, mode, found.name, found.next_cookie)
            };
            ops.readdir(node, Handle(handle), cookie, plus, &mut emit)?;
            Response::Listing(listing)
        }
        Operation::ReleaseDir { handle } => done(ops.releasedir(node, Handle(handle)))?,
        Operation::FsyncDir { handle, datasync } => done(ops.fsyncdir(node, Handle(handle), datasync))?,
        Operation::Fallocate { handle, offset, length, mode } => {
            take_bits(ops, node, request, false)?;
            done(ops.fallocate(node, own(handle), offset, length, convert::allocate(mode)?))?
        }
        Operation::Lseek { handle, offset, whence } => {
            let seek = match whence {
                SEEK_DATA => Seek::Data,
                SEEK_HOLE => Seek::Hole,
                _ => return Err(FsError::Invalid),
            };
            // The kernel's offsets are signed.
            if i64::try_from(offset).is_err() {
                return Err(FsError::NoExtent);
            }
            let found = ops.lseek(node, own(handle), offset, seek)?;
            i64::try_from(found).map_err(|_| FsError::TooBig)?;
            Response::Found(found)
        }
        Operation::CopyFileRange { from, to, length, flags } => {
            if flags != 0 {
                return Err(FsError::Invalid);
            }
            let from = (node, own(from.0), from.1);
            let to = (NodeId::from_raw(to.0), own(to.1), to.2);
            take_bits(ops, to.0, request, false)?;
            Response::Copied(ops.copy_file_range(from, to, length)?)
        }
        Operation::SyncFs => done(ops.sync())?,
        // Answered before they come here.
        Operation::Interrupt { .. } | Operation::Destroy | Operation::Unknown => {
            Response::Error(Errno::NOSYS)
        }
    })
}
