//! System calls, raw: what a program sees, without what a library makes of it.
//!
//! Memory maps are never looked into by this process: the kernel copies from and to them, so that what lies
//! beyond the end of a file is an EFAULT to compare, not a SIGBUS.

use libc::c_long;
use std::ffi::CString;

/// Return value of a call, or its errno.
pub type Answer = Result<i64, i32>;

/// Any system call. Pointers in `args` belong to buffers of the wrappers below.
fn call<const N: usize>(number: c_long, args: [usize; N]) -> Answer {
    let arg = |i: usize| args.get(i).copied().unwrap_or(0);
    // SAFETY: every wrapper passes addresses of buffers that it holds, with their lengths, or addresses of
    // maps, which only the kernel touches.
    let got = unsafe { libc::syscall(number, arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)) };
    if got == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(got) }
}

fn text(path: &[u8]) -> CString {
    CString::new(path).expect("paths have no NUL")
}

macro_rules! at {
    ($path:expr) => {
        text($path).as_ptr() as usize
    };
}

/// A buffer whose beginning lies as direct I/O wants it.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Zeros.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, len }
    }

    /// The bytes.
    pub fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes.
    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Addresses and lengths of `pieces` parts, each a multiple of `unit` but the last.
    fn vectors(&self, pieces: usize, unit: usize) -> Vec<[usize; 2]> {
        let base = self.bytes.as_ptr() as usize + self.start;
        let step = (self.len / pieces.max(1)).next_multiple_of(unit).max(unit);
        (0..self.len).step_by(step).map(|at| [base + at, step.min(self.len - at)]).collect()
    }
}

pub fn openat(dir: i32, path: &[u8], flags: i32, mode: u32) -> Answer {
    call(libc::SYS_openat, [dir as usize, at!(path), flags as usize, mode as usize])
}

pub fn close(fd: i32) -> Answer {
    call(libc::SYS_close, [fd as usize])
}

pub fn dup(fd: i32) -> Answer {
    call(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD_CLOEXEC as usize, 3])
}

pub fn get_flags(fd: i32) -> Answer {
    call(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize])
}

pub fn set_flags(fd: i32, flags: i32) -> Answer {
    call(libc::SYS_fcntl, [fd as usize, libc::F_SETFL as usize, flags as usize])
}

/// `offset` None: at the descriptor's position. `flags` are `RWF_…`.
pub fn write(fd: i32, from: &Aligned, offset: Option<i64>, pieces: usize, unit: usize, flags: i32) -> Answer {
    let vectors = from.vectors(pieces, unit);
    let (base, count) = (vectors.as_ptr() as usize, vectors.len());
    let offset = offset.unwrap_or(-1) as usize;
    call(libc::SYS_pwritev2, [fd as usize, base, count, offset, 0, flags as usize])
}

/// As [`fn@write`].
pub fn read(fd: i32, into: &mut Aligned, offset: Option<i64>, pieces: usize, unit: usize) -> Answer {
    let vectors = into.vectors(pieces, unit);
    let (base, count) = (vectors.as_ptr() as usize, vectors.len());
    call(libc::SYS_preadv2, [fd as usize, base, count, offset.unwrap_or(-1) as usize, 0, 0])
}

pub fn pread(fd: i32, into: &mut [u8], offset: i64) -> Answer {
    call(libc::SYS_pread64, [fd as usize, into.as_mut_ptr() as usize, into.len(), offset as usize])
}

pub fn pwrite(fd: i32, from: &[u8], offset: i64) -> Answer {
    call(libc::SYS_pwrite64, [fd as usize, from.as_ptr() as usize, from.len(), offset as usize])
}

pub fn lseek(fd: i32, offset: i64, whence: i32) -> Answer {
    call(libc::SYS_lseek, [fd as usize, offset as usize, whence as usize])
}

pub fn truncate(path: &[u8], len: i64) -> Answer {
    call(libc::SYS_truncate, [at!(path), len as usize])
}

pub fn ftruncate(fd: i32, len: i64) -> Answer {
    call(libc::SYS_ftruncate, [fd as usize, len as usize])
}

pub fn fallocate(fd: i32, mode: i32, offset: i64, len: i64) -> Answer {
    call(libc::SYS_fallocate, [fd as usize, mode as usize, offset as usize, len as usize])
}

pub fn fsync(fd: i32) -> Answer {
    call(libc::SYS_fsync, [fd as usize])
}

pub fn fdatasync(fd: i32) -> Answer {
    call(libc::SYS_fdatasync, [fd as usize])
}

pub fn syncfs(fd: i32) -> Answer {
    call(libc::SYS_syncfs, [fd as usize])
}

pub fn sync_range(fd: i32, offset: i64, len: i64) -> Answer {
    call(libc::SYS_sync_file_range, [fd as usize, offset as usize, len as usize, 7])
}

pub fn fadvise(fd: i32, advice: i32) -> Answer {
    call(libc::SYS_fadvise64, [fd as usize, 0, 0, advice as usize])
}

pub fn mkdirat(dir: i32, path: &[u8], mode: u32) -> Answer {
    call(libc::SYS_mkdirat, [dir as usize, at!(path), mode as usize])
}

pub fn mknodat(dir: i32, path: &[u8], mode: u32, device: u64) -> Answer {
    call(libc::SYS_mknodat, [dir as usize, at!(path), mode as usize, device as usize])
}

pub fn symlinkat(target: &[u8], dir: i32, path: &[u8]) -> Answer {
    call(libc::SYS_symlinkat, [at!(target), dir as usize, at!(path)])
}

pub fn linkat(from: (i32, &[u8]), to: (i32, &[u8]), flags: i32) -> Answer {
    call(libc::SYS_linkat, [from.0 as usize, at!(from.1), to.0 as usize, at!(to.1), flags as usize])
}

pub fn unlinkat(dir: i32, path: &[u8], flags: i32) -> Answer {
    call(libc::SYS_unlinkat, [dir as usize, at!(path), flags as usize])
}

pub fn renameat(from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Answer {
    call(libc::SYS_renameat2, [from.0 as usize, at!(from.1), to.0 as usize, at!(to.1), flags as usize])
}

pub fn readlinkat(dir: i32, path: &[u8], into: &mut [u8]) -> Answer {
    call(libc::SYS_readlinkat, [dir as usize, at!(path), into.as_mut_ptr() as usize, into.len()])
}

pub fn chmodat(dir: i32, path: &[u8], mode: u32) -> Answer {
    call(libc::SYS_fchmodat, [dir as usize, at!(path), mode as usize])
}

pub fn fchmod(fd: i32, mode: u32) -> Answer {
    call(libc::SYS_fchmod, [fd as usize, mode as usize])
}

pub fn chownat(dir: i32, path: &[u8], uid: u32, gid: u32, flags: i32) -> Answer {
    call(libc::SYS_fchownat, [dir as usize, at!(path), uid as usize, gid as usize, flags as usize])
}

/// Seconds and nanoseconds of access and change; `UTIME_NOW` and `UTIME_OMIT` as nanoseconds.
pub fn utimensat(dir: i32, path: Option<&[u8]>, times: &[[i64; 2]; 2], flags: i32) -> Answer {
    let name = path.map(text);
    let name = name.as_ref().map_or(0, |name| name.as_ptr() as usize);
    call(libc::SYS_utimensat, [dir as usize, name, times.as_ptr() as usize, flags as usize])
}

pub fn accessat(dir: i32, path: &[u8], mode: i32, flags: i32) -> Answer {
    call(libc::SYS_faccessat2, [dir as usize, at!(path), mode as usize, flags as usize])
}

/// 256 bytes, laid out as the kernel's `struct statx`.
pub fn statx(dir: i32, path: &[u8], flags: i32, into: &mut [u8; 256]) -> Answer {
    let flags = flags | libc::AT_STATX_FORCE_SYNC;
    call(libc::SYS_statx, [dir as usize, at!(path), flags as usize, 0xfff, into.as_mut_ptr() as usize])
}

pub fn fstatfs(fd: i32, into: &mut [u64; 15]) -> Answer {
    call(libc::SYS_fstatfs, [fd as usize, into.as_mut_ptr() as usize])
}

pub fn getdents(fd: i32, into: &mut [u8]) -> Answer {
    call(libc::SYS_getdents64, [fd as usize, into.as_mut_ptr() as usize, into.len()])
}

pub fn fsetxattr(fd: i32, name: &[u8], value: &[u8], flags: i32) -> Answer {
    call(libc::SYS_fsetxattr, [fd as usize, at!(name), value.as_ptr() as usize, value.len(), flags as usize])
}

pub fn lsetxattr(path: &[u8], name: &[u8], value: &[u8], flags: i32) -> Answer {
    call(libc::SYS_lsetxattr, [at!(path), at!(name), value.as_ptr() as usize, value.len(), flags as usize])
}

pub fn lgetxattr(path: &[u8], name: &[u8], into: &mut [u8]) -> Answer {
    call(libc::SYS_lgetxattr, [at!(path), at!(name), into.as_mut_ptr() as usize, into.len()])
}

pub fn llistxattr(path: &[u8], into: &mut [u8]) -> Answer {
    call(libc::SYS_llistxattr, [at!(path), into.as_mut_ptr() as usize, into.len()])
}

pub fn lremovexattr(path: &[u8], name: &[u8]) -> Answer {
    call(libc::SYS_lremovexattr, [at!(path), at!(name)])
}

/// Offsets None: the descriptors' positions.
pub fn copy_file_range(from: (i32, Option<i64>), to: (i32, Option<i64>), len: usize) -> Answer {
    two_files(libc::SYS_copy_file_range, from, to, len)
}

pub fn splice(from: (i32, Option<i64>), to: (i32, Option<i64>), len: usize) -> Answer {
    two_files(libc::SYS_splice, from, to, len)
}

fn two_files(number: c_long, from: (i32, Option<i64>), to: (i32, Option<i64>), len: usize) -> Answer {
    let mut offsets = [from.1.unwrap_or(0), to.1.unwrap_or(0)];
    let [a, b] = &mut offsets;
    let (a, b) = (std::ptr::from_mut(a) as usize, std::ptr::from_mut(b) as usize);
    let (a, b) = (if from.1.is_some() { a } else { 0 }, if to.1.is_some() { b } else { 0 });
    call(number, [from.0 as usize, a, to.0 as usize, b, len, 0])
}

pub fn sendfile(to: i32, from: i32, offset: Option<i64>, len: usize) -> Answer {
    let mut at = offset.unwrap_or(0);
    let pointer = if offset.is_some() { std::ptr::from_mut(&mut at) as usize } else { 0 };
    call(libc::SYS_sendfile, [to as usize, from as usize, pointer, len])
}

pub fn pipe() -> Option<[i32; 2]> {
    let mut ends = [0i32; 2];
    call(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize])
        .ok()?;
    Some(ends)
}

pub fn mmap(fd: i32, offset: i64, len: usize, protection: i32, flags: i32) -> Answer {
    call(libc::SYS_mmap, [0, len, protection as usize, flags as usize, fd as usize, offset as usize])
}

pub fn munmap(address: i64, len: usize) -> Answer {
    call(libc::SYS_munmap, [address as usize, len])
}

pub fn msync(address: i64, len: usize, flags: i32) -> Answer {
    call(libc::SYS_msync, [address as usize, len, flags as usize])
}

/// Copies `into.len()` bytes at `address` of a map, as far as they are there.
pub fn peek(memory: i32, address: i64, into: &mut [u8]) -> Answer {
    let got = call(libc::SYS_pwrite64, [memory as usize, address as usize, into.len(), 0])?;
    pread(memory, &mut into[..got as usize], 0)
}

/// Copies `from` to `address` of a map.
pub fn poke(memory: i32, address: i64, from: &[u8]) -> Answer {
    pwrite(memory, from, 0)?;
    call(libc::SYS_pread64, [memory as usize, address as usize, from.len(), 0])
}

pub fn memory_file() -> i32 {
    call(libc::SYS_memfd_create, [at!(b"pair"), 1]).expect("a file in memory") as i32
}

pub fn flock(fd: i32, how: i32) -> Answer {
    call(libc::SYS_flock, [fd as usize, how as usize])
}

/// Record locks: `F_SETLK`, `F_OFD_SETLK` and their `GETLK`. Gives kind, start and length that it left.
pub fn lock(fd: i32, command: i32, kind: i32, start: i64, len: i64) -> Result<(i32, i64, i64), i32> {
    let whence = libc::SEEK_SET as i16;
    let mut lock =
        libc::flock { l_type: kind as i16, l_whence: whence, l_start: start, l_len: len, l_pid: 0 };
    call(libc::SYS_fcntl, [fd as usize, command as usize, std::ptr::from_mut(&mut lock) as usize])?;
    Ok((i32::from(lock.l_type), lock.l_start, lock.l_len))
}

/// From now on this thread has descriptors, and so POSIX locks, of its own.
pub fn own_descriptors() {
    call(libc::SYS_unshare, [libc::CLONE_FILES as usize]).expect("root may");
}

pub fn ioctl(fd: i32, request: u64, argument: &mut [u8; 64]) -> Answer {
    call(libc::SYS_ioctl, [fd as usize, request as usize, argument.as_mut_ptr() as usize])
}

/// Binds a fresh socket to a path and closes it.
pub fn bind_socket(path: &[u8]) -> Answer {
    let socket = call(libc::SYS_socket, [libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0])? as i32;
    let mut address = [0u8; 110];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    let len = path.len().min(107);
    address[2..2 + len].copy_from_slice(&path[..len]);
    let bound = call(libc::SYS_bind, [socket as usize, address.as_ptr() as usize, 3 + len]);
    close(socket).and(bound)
}

pub fn umask(mask: u32) {
    call(libc::SYS_umask, [mask as usize]).expect("it cannot fail");
}

/// Sets the thread's identity for file access: user, group, more groups.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) {
    if uid == 0 {
        capabilities(true);
    }
    call(libc::SYS_setgroups, [groups.len(), groups.as_ptr() as usize]).expect("root may");
    if uid == 0 {
        call(libc::SYS_setfsuid, [0]).expect("it cannot fail");
        call(libc::SYS_setfsgid, [0]).expect("it cannot fail");
    } else {
        call(libc::SYS_setfsgid, [gid as usize]).expect("it cannot fail");
        call(libc::SYS_setfsuid, [uid as usize]).expect("it cannot fail");
        capabilities(false);
    }
}

/// All that are permitted, or none.
fn capabilities(all: bool) {
    let header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    let args = [header.as_ptr() as usize, sets.as_mut_ptr() as usize];
    call(libc::SYS_capget, args).expect("it cannot fail");
    for half in [0, 3] {
        sets[half] = if all { sets[half + 1] } else { 0 };
    }
    call(libc::SYS_capset, [header.as_ptr() as usize, sets.as_ptr() as usize])
        .expect("no more than permitted");
}
