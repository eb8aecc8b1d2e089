//! Buffers that direct I/O accepts, without unsafe code: a vector with slack and a start that is aligned.
//!
//! Large buffers are used again: memory that is new to the process costs a page fault and the kernel's
//! zeroing for each 4 KiB, together more than the copying that a request needs anyway. What is dropped waits
//! on a shelf for the next of its size; sizes are rounded up to eighths of a power of two, so that they meet.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Addresses, offsets and lengths of requests are multiples of this many bytes.
pub const ALIGN: usize = 4096;

/// Smaller buffers are not kept: the allocator has them at hand.
const SHELF_MIN: usize = 32 << 10;
/// Bytes that wait on the shelf at most.
const SHELF_MAX: usize = 24 << 20;

/// Buffers to be used again.
struct Shelf {
    /// The last one to come is the first to go: it may be in the processor's caches yet. Each has a number by which
    /// they came.
    by_size: BTreeMap<usize, VecDeque<(u64, Vec<u8>)>>,
    bytes: usize,
    came: u64,
}

impl Shelf {
    fn take(&mut self, size: usize) -> Option<Vec<u8>> {
        let (_, bytes) = self.by_size.get_mut(&size)?.pop_back()?;
        self.bytes -= size;
        Some(bytes)
    }

    /// Gives back what there is no room for.
    fn put(&mut self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        if bytes.len() > SHELF_MAX {
            return vec![bytes];
        }
        let mut gone = Vec::new();
        while self.bytes + bytes.len() > SHELF_MAX {
            let oldest =
                self.by_size.values_mut().filter(|kept| !kept.is_empty()).min_by_key(|kept| kept[0].0);
            let (_, oldest) = oldest.and_then(VecDeque::pop_front).expect("it is not empty");
            self.bytes -= oldest.len();
            gone.push(oldest);
        }
        self.bytes += bytes.len();
        self.came += 1;
        self.by_size.entry(bytes.len()).or_default().push_back((self.came, bytes));
        gone
    }
}

/// One for the process, so it is no lock of any schedule.
static SHELF: Mutex<Shelf> = Mutex::new(Shelf { by_size: BTreeMap::new(), bytes: 0, came: 0 });

fn shelf() -> MutexGuard<'static, Shelf> {
    SHELF.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes whose address is a multiple of [`ALIGN`].
pub struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::stale(len);
        buf.fill(0);
        buf
    }

    /// `len` bytes left over from whatever the process did before: for who overwrites all of them.
    pub fn stale(len: usize) -> Self {
        if len == 0 {
            return Self { bytes: Vec::new(), start: 0, len: 0 };
        }
        // The vector is never grown, so its address stays.
        let bytes = take(size_class(len + ALIGN));
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start, len }
    }

    /// A copy of `from`, padded with zeros to a multiple of [`ALIGN`].
    pub fn padded(from: &[u8]) -> Self {
        let mut buf = Self::stale(from.len().next_multiple_of(ALIGN));
        buf[..from.len()].copy_from_slice(from);
        buf[from.len()..].fill(0);
        buf
    }

    /// Bytes of memory that it holds, slack included.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Up to an eighth more than `len`.
fn size_class(len: usize) -> usize {
    if len < SHELF_MIN { len } else { len.next_multiple_of(1 << (len.ilog2() - 3)) }
}

fn take(size: usize) -> Vec<u8> {
    let kept = if size >= SHELF_MIN { shelf().take(size) } else { None };
    kept.unwrap_or_else(|| vec![0; size])
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.bytes.len() >= SHELF_MIN {
            let gone = shelf().put(std::mem::take(&mut self.bytes));
            drop(gone);
        }
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

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_before_is_aligned_and_zeroed_again() {
        for _ in 0..2 {
            for len in [1, ALIGN, SHELF_MIN, 5 * SHELF_MIN + 1] {
                let mut buf = AlignedBuf::zeroed(len);
                assert!(buf.iter().all(|&byte| byte == 0));
                assert_eq!((buf.len(), buf.as_ptr().align_offset(ALIGN)), (len, 0));
                assert!(buf.memory_bytes() < (len + ALIGN) * 9 / 8 + 1);
                buf.fill(0xee);
            }
        }
        let padded = AlignedBuf::padded(&[7; SHELF_MIN + 3]);
        assert!(padded[SHELF_MIN + 3..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_full_shelf_keeps_what_came_last() {
        let mut shelf = Shelf { by_size: BTreeMap::new(), bytes: 0, came: 0 };
        for _ in 0..SHELF_MAX / (1 << 20) {
            assert!(shelf.put(vec![0; 1 << 20]).is_empty());
        }
        assert_eq!(shelf.put(vec![0; 3 << 20]).len(), 3);
        assert!(shelf.take(3 << 20).is_some() && shelf.take(3 << 20).is_none());
        assert_eq!(shelf.bytes, SHELF_MAX - (3 << 20));
        assert_eq!(shelf.put(vec![0; SHELF_MAX + 1]).len(), 1, "what is too large for it is not kept");
        assert_eq!(shelf.bytes, SHELF_MAX - (3 << 20));
    }
}
