//! System calls without a safe wrapper elsewhere: FIEMAP, FIDEDUPERANGE, name_to_handle_at, and a file system's UUID.
//!
//! All `unsafe` of this crate is here. Each block hands the kernel a pointer to a value of exactly the layout that
//! `linux/fs.h`, `linux/fiemap.h` and `xfs_fs.h` give, which lives until the call returns.

use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: u64 = 0xc020_660b;
/// `_IOWR(0x94, 54, struct file_dedupe_range)`.
const FIDEDUPERANGE: u64 = 0xc018_9436;
/// `_IOR(0x15, 0, struct fsuuid2)`, since Linux 6.9.
const FS_IOC_GETFSUUID: u64 = 0x8011_1500;
/// `_IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)`.
const BTRFS_IOC_FS_INFO: u64 = 0x8400_941f;
/// `_IOR('X', 100, struct xfs_fsop_geom_v1)`.
const XFS_IOC_FSGEOMETRY_V1: u64 = 0x8070_5864;
/// `XFS_FSOP_GEOM_FLAGS_REFLINK`.
const XFS_REFLINK: u32 = 1 << 20;

const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELALLOC: u32 = 0x4;
const ENCODED: u32 = 0x8;
const INLINE: u32 = 0x200;
const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;

/// Extents that one call asks for.
const EXTENTS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct RawMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS],
}

#[repr(C)]
struct RawDedupe {
    source_offset: u64,
    length: u64,
    count: u16,
    reserved1: u16,
    reserved2: u32,
    fd: i64,
    offset: u64,
    deduped: u64,
    status: i32,
    reserved: u32,
}

/// An extent of a file, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its place in the file.
    pub logical: u64,
    /// Its place on the device; of what is compressed, that of the whole extent.
    pub physical: u64,
    /// Its length in the file.
    pub length: u64,
    flags: u32,
}

impl Extent {
    /// Whether other files refer to it, too.
    pub fn is_shared(&self) -> bool {
        self.flags & SHARED != 0
    }
    /// Whether it is within the file's metadata and cannot be shared.
    pub fn is_inline(&self) -> bool {
        self.flags & INLINE != 0
    }
    /// Whether it is reserved and reads as zeros.
    pub fn is_unwritten(&self) -> bool {
        self.flags & UNWRITTEN != 0
    }
    /// Whether it is stored in another form (compressed).
    pub fn is_encoded(&self) -> bool {
        self.flags & ENCODED != 0
    }
    /// Whether its place is known.
    pub fn is_placed(&self) -> bool {
        self.flags & (UNKNOWN | DELALLOC | INLINE) == 0
    }
    /// End in the file.
    pub fn end(&self) -> u64 {
        self.logical.saturating_add(self.length)
    }
}

fn outcome(returned: i32) -> Result<(), Errno> {
    if returned >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Extents of `[start, start + length)` of a file in order; holes are what is between them. At most `most`, so that
/// a file in many pieces takes no more memory.
///
/// # Errors
/// Those of ioctl_fiemap(2).
pub fn extents(fd: BorrowedFd<'_>, start: u64, length: u64, most: usize) -> Result<Vec<Extent>, Errno> {
    let end = start.saturating_add(length);
    let (mut found, mut at) = (Vec::new(), start);
    while at < end && found.len() < most {
        let mut map = RawMap {
            start: at,
            length: end - at,
            flags: 0,
            mapped: 0,
            count: EXTENTS.min(most - found.len()) as u32,
            reserved: 0,
            extents: [RawExtent::default(); EXTENTS],
        };
        // SAFETY: `map` is a struct fiemap with room for as many extents as `count` says, alive during the call.
        outcome(unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) })?;
        let got = (map.mapped as usize).min(EXTENTS);
        for raw in &map.extents[..got] {
            found.push(Extent {
                logical: raw.logical,
                physical: raw.physical,
                length: raw.length,
                flags: raw.flags,
            });
        }
        match map.extents[..got].last() {
            Some(last) if last.flags & LAST == 0 && last.logical + last.length > at => {
                at = last.logical + last.length;
            }
            _ => break,
        }
    }
    Ok(found)
}

/// The kernel's word on two ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// So many bytes from their beginning are shared now; fewer than asked for where the kernel has a limit.
    Shared(u64),
    /// They are not the same.
    Differs,
}

/// Has the kernel compare `length` bytes of two files and, if they are the same, lets `target` refer to the blocks
/// of `source`; see ioctl_fideduperange(2).
///
/// # Errors
/// Those of the call, or of the target.
pub fn share(
    source: BorrowedFd<'_>,
    from: u64,
    target: BorrowedFd<'_>,
    to: u64,
    length: u64,
) -> Result<Answer, Errno> {
    const DIFFERS: i32 = 1;
    let mut ask = RawDedupe {
        source_offset: from,
        length,
        count: 1,
        reserved1: 0,
        reserved2: 0,
        fd: i64::from(target.as_raw_fd()),
        offset: to,
        deduped: 0,
        status: 0,
        reserved: 0,
    };
    // SAFETY: `ask` is a struct file_dedupe_range with one struct file_dedupe_range_info, alive during the call.
    outcome(unsafe { libc::ioctl(source.as_raw_fd(), FIDEDUPERANGE as _, &raw mut ask) })?;
    match ask.status {
        0 => Ok(Answer::Shared(ask.deduped)),
        DIFFERS => Ok(Answer::Differs),
        error => Err(Errno::from_raw_os_error(-error)),
    }
}

/// Name of a file that no other file of its file system ever has: inode and generation, of btrfs the subvolume, too
/// (`name_to_handle_at(2)`). A symbolic link is not followed.
///
/// # Errors
/// Those of the call.
pub fn handle(folder: BorrowedFd<'_>, name: &CStr) -> Result<Vec<u8>, Errno> {
    const ROOM: usize = 128;
    #[repr(C)]
    struct RawHandle {
        bytes: u32,
        kind: i32,
        handle: [u8; ROOM],
    }
    let mut raw = RawHandle { bytes: ROOM as u32, kind: 0, handle: [0; ROOM] };
    let mut mount = 0i32;
    // SAFETY: `name` ends with a zero; `raw` is a struct file_handle with as much room as `bytes` says.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            folder.as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount,
            0,
        )
    };
    outcome(returned as i32)?;
    let mut name = vec![raw.kind as u8];
    name.extend_from_slice(&raw.handle[..(raw.bytes as usize).min(ROOM)]);
    Ok(name)
}

/// UUID of the file system of `fd`, which is XFS or btrfs, and whether it can share blocks at all.
///
/// # Errors
/// Those of the calls.
pub fn identity(fd: BorrowedFd<'_>, is_xfs: bool) -> Result<([u8; 16], bool), Errno> {
    if is_xfs {
        let mut geometry = [0u64; 112 / 8];
        // SAFETY: struct xfs_fsop_geom_v1 has 112 bytes.
        outcome(unsafe { libc::ioctl(fd.as_raw_fd(), XFS_IOC_FSGEOMETRY_V1 as _, geometry.as_mut_ptr()) })?;
        let mut bytes = [0; 112];
        for (to, word) in bytes.chunks_exact_mut(8).zip(geometry) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        let flags = u32::from_ne_bytes(bytes[92..96].try_into().expect("four bytes"));
        return Ok((bytes[64..80].try_into().expect("sixteen bytes"), flags & XFS_REFLINK != 0));
    }
    let mut uuid = [0u8; 17];
    // SAFETY: struct fsuuid2 is a length and sixteen bytes.
    let known = outcome(unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_GETFSUUID as _, uuid.as_mut_ptr()) });
    if known.is_ok() && uuid[0] == 16 {
        return Ok((uuid[1..].try_into().expect("sixteen bytes"), true));
    }
    let mut info = [0u64; 1024 / 8];
    // SAFETY: struct btrfs_ioctl_fs_info_args has 1024 bytes.
    outcome(unsafe { libc::ioctl(fd.as_raw_fd(), BTRFS_IOC_FS_INFO as _, info.as_mut_ptr()) })?;
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&info[2].to_ne_bytes());
    uuid[8..].copy_from_slice(&info[3].to_ne_bytes());
    Ok((uuid, true))
}
