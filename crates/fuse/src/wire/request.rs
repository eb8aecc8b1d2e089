//! Requests of the kernel.

use super::abi::{self, fattr, opcode};
use larder_posix::{SetAttr, SetTime, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

/// Look-ups of a node that the kernel forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forget {
    /// The node.
    pub node: u64,
    /// Number of its look-ups that no longer count.
    pub lookups: u64,
}

/// Nodes that one request forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl<'a> Forgets<'a> {
    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = Forget> + 'a {
        self.0.chunks_exact(size_of::<abi::ForgetOne>()).filter_map(|bytes| {
            let one = abi::ForgetOne::read_from_bytes(bytes).ok()?;
            Some(Forget { node: one.nodeid, lookups: one.nlookup })
        })
    }
}

/// A request, borrowed from where it was read to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its number, which the answer repeats.
    pub unique: u64,
    /// The node; for operations on a name in a directory, the directory.
    pub node: u64,
    /// User on whose behalf. Not told for what the kernel does by itself.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process.
    pub pid: u32,
    /// The number of its kind.
    pub opcode: u32,
    /// The operation.
    pub operation: Operation<'a>,
}

/// The operation of a request. Names are not empty and hold no NUL; `flags` and modes are those of system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[rustfmt::skip] // one line each
#[allow(missing_docs, reason = "as the system calls have them")]
pub enum Operation<'a> {
    /// Answered by `Entry` or `NoEntry`, as are all that make something.
    Lookup { name: &'a [u8] },
    /// Not answered. Also many at once.
    Forget { lookups: u64 },
    BatchForget(Forgets<'a>),
    GetAttr { handle: Option<u64> },
    /// Permissions come without what says which kind of file it is, and nothing says `kill_setgid`.
    SetAttr(SetAttr),
    /// `mask` says which fields, as statx(2) has them.
    Statx { handle: Option<u64>, mask: u32 },
    ReadLink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    MkNod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    MkDir { name: &'a [u8], mode: u32, umask: u32 },
    Unlink { name: &'a [u8] },
    RmDir { name: &'a [u8] },
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// Gives `from` the name `name` in the request's node.
    Link { from: u64, name: &'a [u8] },
    /// `kill_suidgid`: with O_TRUNC, as for [`SetAttr`].
    Open { flags: u32, kill_suidgid: bool },
    Create { name: &'a [u8], flags: u32, mode: u32, umask: u32, kill_suidgid: bool },
    /// A file without a name in the request's directory; answered like `Create`.
    TmpFile { flags: u32, mode: u32, umask: u32 },
    Read { handle: u64, offset: u64, size: u32 },
    /// `durable`: the caller wants it to be, by O_DSYNC or more. The kernel asks for that by `Fsync` as well, but of
    /// what was opened as direct.
    Write { handle: u64, offset: u64, data: &'a [u8], kill_suidgid: bool, durable: bool },
    StatFs,
    /// A descriptor was closed.
    Flush { handle: u64 },
    /// The last descriptor was closed.
    Release { handle: u64 },
    Fsync { handle: u64, datasync: bool },
    /// `acl_kill_sgid`: with an ACL that is set, set-group-id goes.
    SetXattr { name: &'a [u8], value: &'a [u8], flags: u32, acl_kill_sgid: bool },
    /// `size` 0 asks how long the value is.
    GetXattr { name: &'a [u8], size: u32 },
    ListXattr { size: u32 },
    RemoveXattr { name: &'a [u8] },
    OpenDir { flags: u32 },
    /// With `plus` each name counts as a look-up, but for `.` and `..`.
    ReadDir { handle: u64, cookie: u64, size: u32, plus: bool },
    ReleaseDir { handle: u64 },
    FsyncDir { handle: u64, datasync: bool },
    Fallocate { handle: u64, offset: u64, length: u64, mode: u32 },
    Lseek { handle: u64, offset: u64, whence: u32 },
    /// `length` is what the answer can count: older kernels give it 32 bits.
    CopyFileRange { from: (u64, u64), to: (u64, u64, u64), length: u64, flags: u64 },
    SyncFs,
    /// Not answered; nothing is given up for it.
    Interrupt { unique: u64 },
    /// The mount is going; only some mounts hear of it.
    Destroy,
    /// Not known to this version.
    Unknown,
}

/// Most bytes of a `copy_file_range` whose answer counts in 32 bits. A multiple of every record size, so that a
/// long copy is cut where records are.
const MAX_NARROW_COPY: u64 = 0xfff0_0000;

/// A request that is too short, or makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// Its number, if that can be told: it wants an answer.
    pub unique: Option<u64>,
}

/// Where the parts of a request are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Layout<'a> {
    /// All in one piece, as read(2) gives it.
    Whole(&'a [u8]),
    /// As an entry of a ring has it: header, structure (with whatever lies behind it), and the rest.
    Split { header: &'a [u8], structure: &'a [u8], rest: &'a [u8] },
}

/// FUSE_INIT, the kernel's first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Init {
    pub(crate) unique: u64,
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    /// `flags`, and `flags2` in the upper half.
    pub(crate) flags: u64,
}

impl Init {
    /// None if it is anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = abi::InHeader::read_from_prefix(bytes).ok()?;
        let (init, rest) = abi::InitIn::read_from_prefix(rest).ok()?;
        let ext = abi::InitInExt::read_from_prefix(rest).map(|(ext, _)| ext).unwrap_or_default();
        let mut flags = u64::from(init.flags);
        if flags & abi::init::INIT_EXT != 0 {
            flags |= u64::from(ext.flags2) << 32;
        }
        let abi::InitIn { major, minor, max_readahead, .. } = init;
        (header.opcode == opcode::INIT).then_some(Self {
            unique: header.unique,
            major,
            minor,
            max_readahead,
            flags,
        })
    }
}

impl<'a> Request<'a> {
    /// Reads a request that lies in one piece, as `/dev/fuse` gives it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::from_layout(Layout::Whole(bytes))
    }

    pub(crate) fn from_layout(layout: Layout<'a>) -> Result<Self, Malformed> {
        let (Layout::Whole(bytes) | Layout::Split { header: bytes, .. }) = layout;
        let Ok((header, body)) = abi::InHeader::read_from_prefix(bytes) else {
            return Err(Malformed { unique: None });
        };
        let mut parts = match layout {
            Layout::Whole(_) => Parts { structure: None, rest: body },
            Layout::Split { structure, rest, .. } => Parts { structure: Some(structure), rest },
        };
        let unique = header.unique;
        let operation = operation(header.opcode, &mut parts).ok_or(Malformed { unique: Some(unique) })?;
        let abi::InHeader { opcode, nodeid: node, uid, gid, pid, .. } = header;
        Ok(Self { unique, node, uid, gid, pid, opcode, operation })
    }

    /// Whether the kernel waits for an answer.
    pub fn wants_answer(&self) -> bool {
        use Operation::{BatchForget, Forget, Interrupt};
        !matches!(self.operation, Forget { .. } | BatchForget(_) | Interrupt { .. })
    }
}

/// Parts of a request not decoded yet.
struct Parts<'a> {
    /// Where the structure is when it is not at the beginning of `rest`.
    structure: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The structure of the request.
    fn take<T: FromBytes + IntoBytes>(&mut self) -> Option<T> {
        match self.structure {
            Some(bytes) => Some(T::read_from_prefix(bytes).ok()?.0),
            None => {
                let (value, rest) = T::read_from_prefix(self.rest).ok()?;
                self.rest = rest;
                Some(value)
            }
        }
    }

    /// A string that ends with NUL.
    fn string(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|&byte| byte == 0)?;
        let (string, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Some(string)
    }

    fn name(&mut self) -> Option<&'a [u8]> {
        self.string().filter(|name| !name.is_empty())
    }

    fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len as usize)?;
        self.rest = rest;
        Some(bytes)
    }
}

fn time(secs: u64, nanos: u32) -> Option<Timestamp> {
    (nanos < 1_000_000_000).then_some(Timestamp { secs: secs.cast_signed(), nanos })
}

fn set_attr(set: &abi::SetattrIn) -> Option<SetAttr> {
    let has = |flag| set.valid & flag != 0;
    let set_time = |flag, now, secs, nanos| match (has(flag), has(now)) {
        (false, _) => Some(None),
        (true, true) => Some(Some(SetTime::Now)),
        (true, false) => time(secs, nanos).map(|time| Some(SetTime::To(time))),
    };
    Some(SetAttr {
        perm: has(fattr::MODE).then_some(set.mode & 0o7777),
        uid: has(fattr::UID).then_some(set.uid),
        gid: has(fattr::GID).then_some(set.gid),
        size: has(fattr::SIZE).then_some(set.size),
        atime: set_time(fattr::ATIME, fattr::ATIME_NOW, set.atime, set.atimensec)?,
        mtime: set_time(fattr::MTIME, fattr::MTIME_NOW, set.mtime, set.mtimensec)?,
        ctime: if has(fattr::CTIME) { Some(time(set.ctime, set.ctimensec)?) } else { None },
        btime: None,
        kill_suidgid: has(fattr::KILL_SUIDGID),
        kill_setgid: false,
    })
}

fn operation<'a>(code: u32, parts: &mut Parts<'a>) -> Option<Operation<'a>> {
    use Operation as Op;
    Some(match code {
        opcode::LOOKUP => Op::Lookup { name: parts.name()? },
        opcode::FORGET => Op::Forget { lookups: parts.take::<abi::ForgetIn>()?.nlookup },
        opcode::BATCH_FORGET => {
            let count = parts.take::<abi::BatchForgetIn>()?.count;
            let len = count.checked_mul(size_of::<abi::ForgetOne>() as u32)?;
            Op::BatchForget(Forgets(parts.bytes(len)?))
        }
        opcode::GETATTR => {
            let get: abi::GetattrIn = parts.take()?;
            Op::GetAttr { handle: (get.getattr_flags & abi::GETATTR_FH != 0).then_some(get.fh) }
        }
        opcode::SETATTR => Op::SetAttr(set_attr(&parts.take()?)?),
        opcode::STATX => {
            let get: abi::StatxIn = parts.take()?;
            let handle = (get.getattr_flags & abi::GETATTR_FH != 0).then_some(get.fh);
            Op::Statx { handle, mask: get.sx_mask }
        }
        opcode::READLINK => Op::ReadLink,
        opcode::SYMLINK => Op::Symlink { name: parts.name()?, target: parts.string()? },
        opcode::MKNOD => {
            let abi::MknodIn { mode, rdev, umask, .. } = parts.take()?;
            Op::MkNod { name: parts.name()?, mode, rdev, umask }
        }
        opcode::MKDIR => {
            let abi::MkdirIn { mode, umask } = parts.take()?;
            Op::MkDir { name: parts.name()?, mode, umask }
        }
        opcode::UNLINK => Op::Unlink { name: parts.name()? },
        opcode::RMDIR => Op::RmDir { name: parts.name()? },
        opcode::RENAME => {
            let new_parent = parts.take::<abi::RenameIn>()?.newdir;
            Op::Rename { name: parts.name()?, new_parent, new_name: parts.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let abi::Rename2In { newdir: new_parent, flags, .. } = parts.take()?;
            Op::Rename { name: parts.name()?, new_parent, new_name: parts.name()?, flags }
        }
        opcode::LINK => Op::Link { from: parts.take::<abi::LinkIn>()?.oldnodeid, name: parts.name()? },
        opcode::OPEN => {
            let abi::OpenIn { flags, open_flags } = parts.take()?;
            Op::Open { flags, kill_suidgid: open_flags & abi::OPEN_KILL_SUIDGID != 0 }
        }
        opcode::CREATE => {
            let abi::CreateIn { flags, mode, umask, open_flags } = parts.take()?;
            let kill_suidgid = open_flags & abi::OPEN_KILL_SUIDGID != 0;
            Op::Create { name: parts.name()?, flags, mode, umask, kill_suidgid }
        }
        // The name in this request means nothing.
        opcode::TMPFILE => {
            let abi::CreateIn { flags, mode, umask, .. } = parts.take()?;
            Op::TmpFile { flags, mode, umask }
        }
        opcode::READ => {
            let abi::ReadIn { fh: handle, offset, size, .. } = parts.take()?;
            Op::Read { handle, offset, size }
        }
        opcode::WRITE => {
            let abi::WriteIn { fh: handle, offset, size, write_flags, flags, .. } = parts.take()?;
            let kill_suidgid = write_flags & abi::WRITE_KILL_SUIDGID != 0;
            let durable = flags & abi::O_DSYNC != 0;
            Op::Write { handle, offset, data: parts.bytes(size)?, kill_suidgid, durable }
        }
        opcode::STATFS => Op::StatFs,
        opcode::FLUSH => Op::Flush { handle: parts.take::<abi::FlushIn>()?.fh },
        opcode::RELEASE => Op::Release { handle: parts.take::<abi::ReleaseIn>()?.fh },
        opcode::FSYNC | opcode::FSYNCDIR => {
            let abi::FsyncIn { fh: handle, fsync_flags, .. } = parts.take()?;
            let datasync = fsync_flags & abi::FSYNC_FDATASYNC != 0;
            match code {
                opcode::FSYNC => Op::Fsync { handle, datasync },
                _ => Op::FsyncDir { handle, datasync },
            }
        }
        opcode::SETXATTR => {
            let abi::SetxattrIn { size, flags, setxattr_flags, .. } = parts.take()?;
            let acl_kill_sgid = setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
            Op::SetXattr { name: parts.name()?, value: parts.bytes(size)?, flags, acl_kill_sgid }
        }
        opcode::GETXATTR => {
            let size = parts.take::<abi::GetxattrIn>()?.size;
            Op::GetXattr { name: parts.name()?, size }
        }
        opcode::LISTXATTR => Op::ListXattr { size: parts.take::<abi::GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Op::RemoveXattr { name: parts.name()? },
        opcode::OPENDIR => Op::OpenDir { flags: parts.take::<abi::OpenIn>()?.flags },
        opcode::READDIR | opcode::READDIRPLUS => {
            let abi::ReadIn { fh: handle, offset: cookie, size, .. } = parts.take()?;
            Op::ReadDir { handle, cookie, size, plus: code == opcode::READDIRPLUS }
        }
        opcode::RELEASEDIR => Op::ReleaseDir { handle: parts.take::<abi::ReleaseIn>()?.fh },
        opcode::FALLOCATE => {
            let abi::FallocateIn { fh: handle, offset, length, mode, .. } = parts.take()?;
            Op::Fallocate { handle, offset, length, mode }
        }
        opcode::LSEEK => {
            let abi::LseekIn { fh: handle, offset, whence, .. } = parts.take()?;
            Op::Lseek { handle, offset, whence }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            let copy: abi::CopyFileRangeIn = parts.take()?;
            let most = if code == opcode::COPY_FILE_RANGE { MAX_NARROW_COPY } else { u64::MAX };
            Op::CopyFileRange {
                from: (copy.fh_in, copy.off_in),
                to: (copy.nodeid_out, copy.fh_out, copy.off_out),
                length: copy.len.min(most),
                flags: copy.flags,
            }
        }
        opcode::SYNCFS => Op::SyncFs,
        opcode::INTERRUPT => Op::Interrupt { unique: parts.take::<abi::InterruptIn>()?.unique },
        opcode::DESTROY => Op::Destroy,
        _ => Op::Unknown,
    })
}

#[cfg(test)]
mod tests;
