//! Calls of the kernel that rustix does not wrap: FIDEDUPERANGE and FIEMAP. All `unsafe` of the crate is here.

use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};
use std::os::fd::{AsFd, AsRawFd};

/// Extents that one FIEMAP call asks for.
const EXTENTS: usize = 256;
const LAST: u32 = 0x1;
/// No place on the device that means anything: unknown, delayed, encoded (but compressed ones have one), inline, tail.
const PLACELESS: u32 = 0x2 | 0x4 | 0x100 | 0x200 | 0x400;
const UNWRITTEN: u32 = 0x800;
const SAME: i32 = 0;
const DIFFERS: i32 = 1;

/// `struct file_dedupe_range` with one `file_dedupe_range_info`.
#[repr(C)]
#[derive(Default)]
struct Range {
    src_offset: u64,
    src_length: u64,
    dest_count: u16,
    reserved1: u16,
    reserved2: u32,
    dest_fd: i64,
    dest_offset: u64,
    bytes_deduped: u64,
    status: i32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with its extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS],
}

/// `struct fiemap` alone: the size that the number of the call is made of.
type MapHead = [u64; 4];
/// `struct file_dedupe_range` alone.
type RangeHead = [u64; 3];

/// An extent of a file; all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// From the beginning of the file.
    pub logical: u64,
    /// On the device, where it has a place that means anything.
    pub physical: Option<u64>,
    /// Length.
    pub len: u64,
    /// Reserved, and never written.
    pub is_unwritten: bool,
}

/// The kernel's answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// So many bytes are shared now, fewer than asked for perhaps.
    Shared(u64),
    /// The bytes are not the same.
    Differs,
}

/// Has `len` bytes of `to` share the extents of `from`, if they are equal: the kernel compares with both locked.
///
/// # Errors
/// The kernel's, for the call or for the destination.
pub fn dedupe(from: impl AsFd, at: u64, len: u64, to: impl AsFd, to_at: u64) -> Result<Answer, Errno> {
    const OPCODE: u32 = opcode::read_write::<RangeHead>(0x94, 54);
    let mut range = Range {
        src_offset: at,
        src_length: len,
        dest_count: 1,
        dest_fd: i64::from(to.as_fd().as_raw_fd()),
        dest_offset: to_at,
        ..Range::default()
    };
    // SAFETY: the kernel reads and writes the head and as many infos as `dest_count` says: one, which `Range` has.
    // Both descriptors are borrowed for the call.
    unsafe { ioctl(from, Updater::<OPCODE, Range>::new(&mut range)) }?;
    match range.status {
        SAME => Ok(Answer::Shared(range.bytes_deduped)),
        DIFFERS => Ok(Answer::Differs),
        refused => Err(Errno::from_raw_os_error(refused.wrapping_neg())),
    }
}

/// The extents of a whole file, in order; holes are left out.
///
/// # Errors
/// The kernel's.
pub fn extents(file: impl AsFd) -> Result<Vec<Extent>, Errno> {
    const OPCODE: u32 = opcode::read_write::<MapHead>(b'f', 11);
    let mut found: Vec<Extent> = Vec::new();
    let mut map = Map {
        start: 0,
        length: 0,
        flags: 0,
        mapped_extents: 0,
        extent_count: EXTENTS as u32,
        reserved: 0,
        extents: [RawExtent::default(); EXTENTS],
    };
    let mut from = 0;
    loop {
        (map.start, map.length, map.mapped_extents) = (from, u64::MAX - from, 0);
        // SAFETY: the kernel writes at most `extent_count` extents behind the head; `Map` has that many.
        unsafe { ioctl(&file, Updater::<OPCODE, Map>::new(&mut map)) }?;
        let told = &map.extents[..(map.mapped_extents as usize).min(EXTENTS)];
        found.extend(told.iter().map(|raw| Extent {
            logical: raw.logical,
            physical: (raw.flags & PLACELESS == 0).then_some(raw.physical),
            len: raw.length,
            is_unwritten: raw.flags & UNWRITTEN != 0,
        }));
        match told.last() {
            Some(last) if last.flags & LAST == 0 && last.logical.saturating_add(last.length) > from => {
                from = last.logical.saturating_add(last.length);
            }
            _ => return Ok(found),
        }
    }
}
