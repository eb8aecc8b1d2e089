//! Buffers that direct I/O accepts, without unsafe code: a vector with slack and a start that is aligned.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Addresses, offsets and lengths of requests are multiples of this many bytes.
pub const ALIGN: usize = 4096;

/// Zeroed bytes whose address is a multiple of [`ALIGN`].
pub struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { bytes: Vec::new(), start: 0, len: 0 };
        }
        // The vector is never grown, so its address stays.
        let bytes = vec![0; len + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start, len }
    }

    /// A copy of `from`, padded with zeros to a multiple of [`ALIGN`].
    pub fn padded(from: &[u8]) -> Self {
        let mut buf = Self::zeroed(from.len().next_multiple_of(ALIGN));
        buf[..from.len()].copy_from_slice(from);
        buf
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}
