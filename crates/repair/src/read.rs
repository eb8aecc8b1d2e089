//! Reading what can be read.

use larder_device::{ALIGN, AlignedBuf, Device, DeviceError, Request, TIMEOUT};
use larder_format::{ByteLen, DeviceOffset};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the pieces that are tried where a large read fails, before single sectors are.
const PIECE: usize = 64 << 10;

/// Bytes that no read gave, all in all.
#[derive(Debug, Default)]
pub(crate) struct Unread(AtomicU64);

impl Unread {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// One read, whole or not at all.
fn read(device: &dyn Device, at: u64, len: usize) -> Result<AlignedBuf, DeviceError> {
    let (offset, len) = (DeviceOffset::new(at), ByteLen::new(len as u64));
    device.submit(Request::Read { offset, len }).within(TIMEOUT)
}

/// `len` bytes at `at`, with zeros for sectors that cannot be read, and for what is beyond the end. Large pieces come
/// first, single sectors only where these fail.
pub(crate) fn read_all_there_is(
    device: &Arc<dyn Device>,
    at: u64,
    len: usize,
    unread: &Unread,
) -> AlignedBuf {
    let there = device.size().get().saturating_sub(at).min(len as u64) as usize / ALIGN * ALIGN;
    if there == len
        && len > 0
        && let Ok(bytes) = read(&**device, at, len)
    {
        return bytes;
    }
    let mut bytes = AlignedBuf::zeroed(len);
    let mut pieces = Vec::new();
    pieces.extend((there > 0).then_some((0, there)));
    while let Some((from, len)) = pieces.pop() {
        match read(&**device, at + from as u64, len) {
            Ok(read) => bytes[from..from + len].copy_from_slice(&read),
            Err(DeviceError::Io { .. }) if len > ALIGN => {
                let size = if len > PIECE { PIECE } else { ALIGN };
                let starts = (from..from + len).step_by(size);
                pieces.extend(starts.map(|start| (start, size.min(from + len - start))).rev());
            }
            Err(_) => unread.add(len),
        }
    }
    bytes
}

/// A column of a slot, read in large pieces from the front.
pub(crate) struct Column<'a> {
    device: &'a Arc<dyn Device>,
    /// Where its slot begins.
    start: u64,
    slot_size: u32,
    unread: &'a Unread,
    held: (u32, AlignedBuf),
}

/// Bytes of a column that are read at once.
const AHEAD: u32 = 2 << 20;

impl<'a> Column<'a> {
    pub(crate) fn new(device: &'a Arc<dyn Device>, start: u64, slot_size: u32, unread: &'a Unread) -> Self {
        Self { device, start, slot_size, unread, held: (0, AlignedBuf::zeroed(0)) }
    }

    /// `len` bytes at `offset` of the slot, which are within it; both are multiples of a sector.
    pub(crate) fn get(&mut self, offset: u32, len: u32) -> &[u8] {
        let (from, bytes) = &self.held;
        if offset < *from || (offset + len) as usize > *from as usize + bytes.len() {
            let len = len.max(AHEAD).min(self.slot_size - offset);
            let at = self.start + u64::from(offset);
            self.held = (offset, read_all_there_is(self.device, at, len as usize, self.unread));
        }
        let (from, bytes) = &self.held;
        &bytes[(offset - from) as usize..][..len as usize]
    }
}
