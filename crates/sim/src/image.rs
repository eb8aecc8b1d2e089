//! Contents of a device: sparse pages, shared between images until one of them writes.
//!
//! Pages hang in leaves of 1 MiB, and both are copied on write: cloning an image costs one reference
//! a MiB ever written, not one a page. That is what makes tens of thousands of power cuts cheap.

use larder_device::{AlignedBuf, Entropy, SeededEntropy};
use larder_format::{ByteLen, DeviceOffset};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

const PAGE: usize = 4096;
const LEAF_PAGES: usize = 256;
const LEAF: u64 = (PAGE * LEAF_PAGES) as u64;

/// Keeps the seeds of discards apart from others.
const DISCARDED: u64 = 0x6469_7363_6172_6400;

type Page = [u8; PAGE];

/// Pages that were never written are absent and read as zeros.
#[derive(Clone)]
struct Leaf([Option<Arc<Page>>; LEAF_PAGES]);

/// The bytes of a simulated device. Cloning is cheap; clones do not see each other's writes.
#[derive(Clone)]
pub struct DeviceImage {
    size: u64,
    leaves: BTreeMap<u64, Arc<Leaf>>,
}

impl DeviceImage {
    /// A device of `size` zero bytes; `size` is a multiple of 4096.
    pub fn blank(size: ByteLen) -> Self {
        assert!(size.get().is_multiple_of(PAGE as u64), "device sizes are multiples of {PAGE}");
        Self { size: size.get(), leaves: BTreeMap::new() }
    }

    /// It has `size` bytes from now on, those at the end zero; a multiple of 4096, and not less than before.
    pub fn grow(&mut self, size: ByteLen) {
        assert!(
            size.get().is_multiple_of(PAGE as u64) && size.get() >= self.size,
            "devices only grow, by pages"
        );
        self.size = size.get();
    }

    /// The device's size in bytes.
    pub fn size(&self) -> ByteLen {
        ByteLen::new(self.size)
    }

    /// The `len` bytes at `offset`, at any alignment. Panics beyond the end.
    pub fn read(&self, offset: DeviceOffset, len: usize) -> AlignedBuf {
        let mut out = AlignedBuf::stale(len);
        for piece in self.pieces(offset.get(), len) {
            let leaf = self.leaves.get(&piece.leaf);
            let out = &mut out[piece.from..piece.from + piece.len];
            match leaf.and_then(|leaf| leaf.0[piece.page].as_deref()) {
                Some(page) => out.copy_from_slice(&page[piece.start..piece.start + piece.len]),
                None => out.fill(0),
            }
        }
        out
    }

    /// Overwrites what is at `offset`, at any alignment. Panics beyond the end.
    pub fn write(&mut self, offset: DeviceOffset, bytes: &[u8]) {
        for piece in self.pieces(offset.get(), bytes.len()) {
            let bytes = &bytes[piece.from..piece.from + piece.len];
            let leaf =
                self.leaves.entry(piece.leaf).or_insert_with(|| Arc::new(Leaf([const { None }; LEAF_PAGES])));
            let page = &mut Arc::make_mut(leaf).0[piece.page];
            match <&Page>::try_from(bytes) {
                Ok(whole) => *page = Some(Arc::new(*whole)),
                Err(_) => Arc::make_mut(page.get_or_insert_with(|| Arc::new([0; PAGE])))
                    [piece.start..piece.start + piece.len]
                    .copy_from_slice(bytes),
            }
        }
    }

    /// Forgets what is at `offset`, both multiples of 4096. By seed, zeros, what was there or something else is there
    /// then, as devices do: the same everywhere, or another in each page.
    pub fn discard(&mut self, offset: DeviceOffset, len: ByteLen, seed: u64) {
        let entropy = SeededEntropy::new(seed ^ DISCARDED);
        let mood = entropy.next_u64() % 4;
        let garbage: Page = std::array::from_fn(|at| (seed as u8).wrapping_mul(at as u8 | 1) ^ 0xa5);
        let garbage = Arc::new(garbage);
        for piece in self.pieces(offset.get(), usize::try_from(len.get()).expect("fits memory")) {
            assert_eq!(piece.len, PAGE, "a discard is of whole pages");
            let fate = if mood == 3 { entropy.next_u64() % 3 } else { mood };
            let page = match fate {
                0 => None,
                1 => Some(Arc::clone(&garbage)),
                _ => continue,
            };
            if page.is_none() && !self.leaves.contains_key(&piece.leaf) {
                continue;
            }
            let leaf =
                self.leaves.entry(piece.leaf).or_insert_with(|| Arc::new(Leaf([const { None }; LEAF_PAGES])));
            Arc::make_mut(leaf).0[piece.page] = page;
        }
    }

    /// Bit rot: flips one to eight bits, by seed, among the `len` bytes at `offset`.
    pub fn flip_bits(&mut self, offset: DeviceOffset, len: usize, seed: u64) {
        assert!(len > 0, "no bits to flip");
        let entropy = SeededEntropy::new(seed);
        let mut bytes = self.read(offset, len);
        let bits = len as u64 * 8;
        let mut flipped = Vec::new();
        for _ in 0..=entropy.next_u64() % 8 {
            let bit = (entropy.next_u64() % bits) as usize;
            // The same bit twice would be no rot at all.
            if !flipped.contains(&bit) {
                flipped.push(bit);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        self.write(offset, &bytes);
    }

    /// The same bytes on a device of `size` bytes, a multiple of 4096: those beyond are gone, new ones are zero.
    pub fn resized(mut self, size: ByteLen) -> Self {
        let kept = self.size.min(size.get());
        assert!(size.get().is_multiple_of(PAGE as u64), "device sizes are multiples of {PAGE}");
        self.leaves.retain(|&leaf, _| leaf * LEAF < kept);
        if let Some(last) = self.leaves.get_mut(&(kept / LEAF)) {
            Arc::make_mut(last).0[(kept % LEAF) as usize / PAGE..].fill(None);
        }
        self.size = size.get();
        self
    }

    /// A range cut at page borders.
    fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = Piece> + use<> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.size);
        let end = end.expect("inside the device");
        let mut at = offset;
        std::iter::from_fn(move || {
            let start = (at % PAGE as u64) as usize;
            let piece = Piece {
                leaf: at / LEAF,
                page: (at % LEAF) as usize / PAGE,
                start,
                from: (at - offset) as usize,
                len: (PAGE - start).min((end - at) as usize),
            };
            at += piece.len as u64;
            (piece.len > 0).then_some(piece)
        })
    }
}

/// The part of a range that lies in one page.
struct Piece {
    leaf: u64,
    page: usize,
    /// Where it starts in the page.
    start: usize,
    /// Where it starts in the range.
    from: usize,
    len: usize,
}

impl PartialEq for DeviceImage {
    /// Equal bytes; a page of zeros equals one that was never written.
    fn eq(&self, other: &Self) -> bool {
        let within = |a: &Self, b: &Self| a.leaves.iter().all(|(at, leaf)| leaf.matches(b.leaves.get(at)));
        self.size == other.size && within(self, other) && within(other, self)
    }
}

impl Eq for DeviceImage {}

impl Leaf {
    fn matches(&self, other: Option<&Arc<Leaf>>) -> bool {
        if other.is_some_and(|other| std::ptr::eq(self, &**other)) {
            return true;
        }
        self.0.iter().enumerate().all(|(i, page)| match (page, other.and_then(|other| other.0[i].as_ref())) {
            (None, None) => true,
            (Some(page), None) | (None, Some(page)) => **page == [0; PAGE],
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        })
    }
}

impl fmt::Debug for DeviceImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages: usize = self.leaves.values().map(|leaf| leaf.0.iter().flatten().count()).sum();
        write!(f, "DeviceImage({} bytes, {pages} pages written)", self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u64) -> DeviceOffset {
        DeviceOffset::new(offset)
    }

    #[test]
    fn what_was_never_written_reads_as_zeros() {
        let image = DeviceImage::blank(ByteLen::new(1 << 40));
        assert_eq!(&image.read(at((1 << 40) - 5000), 5000)[..], &[0; 5000]);
    }

    #[test]
    fn a_write_over_page_and_leaf_borders_reads_back() {
        let mut image = DeviceImage::blank(ByteLen::new(4 << 20));
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
        image.write(at((1 << 20) - 4999), &bytes);
        assert_eq!(&image.read(at((1 << 20) - 4999), bytes.len())[..], &bytes[..]);
        assert_eq!(image.read(at((1 << 20) - 5000), 1)[0], 0);
        assert_eq!(image.read(at((1 << 20) + 5001), 1)[0], 0);
    }

    #[test]
    fn clones_do_not_see_each_others_writes() {
        let mut first = DeviceImage::blank(ByteLen::new(8192));
        first.write(at(0), &[1; 8192]);
        let mut second = first.clone();
        second.write(at(4096), &[2; 4096]);
        second.write(at(10), &[3; 1]);
        assert_eq!(&first.read(at(0), 8192)[..], &[1; 8192]);
        assert_eq!(second.read(at(10), 1)[0], 3);
        assert_ne!(first, second);
    }

    #[test]
    fn what_was_cut_off_does_not_come_back() {
        let mut image = DeviceImage::blank(ByteLen::new(4 << 20));
        image.write(at(0), &[1; 4 << 20]);
        let short = image.clone().resized(ByteLen::new((1 << 20) + 8192));
        assert_eq!(short.size(), ByteLen::new((1 << 20) + 8192));
        assert_eq!(short.read(at((1 << 20) + 8191), 1)[0], 1);
        let long = short.resized(ByteLen::new(4 << 20));
        assert_eq!(long.read(at((1 << 20) + 8191), 2)[..], [1, 0]);
        assert_eq!(long.read(at(3 << 20), 1)[0], 0);
        assert_eq!(image.clone().resized(ByteLen::new(4 << 20)), image);
    }

    #[test]
    fn written_zeros_equal_absent_pages() {
        let mut image = DeviceImage::blank(ByteLen::new(8192));
        image.write(at(4096), &[0; 4096]);
        assert_eq!(image, DeviceImage::blank(ByteLen::new(8192)));
        image.write(at(4096), &[1]);
        assert_ne!(DeviceImage::blank(ByteLen::new(8192)), image);
    }

    #[test]
    fn bit_rot_always_changes_the_range_and_nothing_else() {
        for seed in 0..200 {
            let mut image = DeviceImage::blank(ByteLen::new(4096));
            image.flip_bits(at(100), 2, seed);
            let bytes = image.read(at(0), 4096);
            assert!(bytes[100] != 0 || bytes[101] != 0, "seed {seed}");
            assert!(bytes[..100].iter().chain(&bytes[102..]).all(|byte| *byte == 0), "seed {seed}");
        }
    }
}
