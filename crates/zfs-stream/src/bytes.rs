//! Integers of either byte order out of bytes that may be too few.

use crate::error::{Result, corrupt};

/// The byte order of who wrote a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// x86 and most others.
    #[default]
    Little,
    /// SPARC, s390x.
    Big,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

impl Order {
    /// The other one.
    pub fn other(self) -> Self {
        if self == Self::Little { Self::Big } else { Self::Little }
    }

    /// The 16 bits at `at`.
    pub fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let array = array(bytes, at)?;
        Some(if self == Self::Little { u16::from_le_bytes(array) } else { u16::from_be_bytes(array) })
    }

    /// The 32 bits at `at`.
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let array = array(bytes, at)?;
        Some(if self == Self::Little { u32::from_le_bytes(array) } else { u32::from_be_bytes(array) })
    }

    /// The 64 bits at `at`.
    pub fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let array = array(bytes, at)?;
        Some(if self == Self::Little { u64::from_le_bytes(array) } else { u64::from_be_bytes(array) })
    }
}

/// Reads one after the other; of our own state, which is little-endian, and of XDR, which is big-endian.
pub struct Cursor<'a> {
    rest: &'a [u8],
    order: Order,
    told: &'static str,
}

impl<'a> Cursor<'a> {
    /// Over `bytes`; errors say `told`.
    pub fn new(bytes: &'a [u8], order: Order, told: &'static str) -> Self {
        Self { rest: bytes, order, told }
    }

    /// The next bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| corrupt(self.told))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        self.order.u32(bytes, 0).ok_or_else(|| corrupt(self.told))
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        self.order.u64(bytes, 0).ok_or_else(|| corrupt(self.told))
    }

    /// Bytes behind their length in 32 bits.
    pub fn counted(&mut self) -> Result<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// Appends bytes behind their length in 32 bits.
pub fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}
