//! Items: what a file is made of, as its hashes tell.
//!
//! An item is 64 bits: a hash of 56, and how many units it is long. Cut at fixed offsets, a unit is the block size and
//! each item one unit; cut by content, a unit is 4 KiB, and items end where the content says, always at a whole unit,
//! since the kernel shares nothing else. So many bits are enough: the kernel compares the bytes, and a collision
//! costs one comparison.
//!
//! A file is hashed in segments that do not depend on each other; a segment that is a hole has no items.

use crate::kernel;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::os::fd::AsFd;
use twox_hash::XxHash3_64;

/// The least that the kernel shares, bytes, but for the end of a file.
pub const LEAST_UNIT: u64 = 4096;
/// Units of a segment: their items fill the pages of the database that they take. Of large units there are fewer, so
/// that a segment is a piece of work for one thread and soon done.
const SEGMENT: u64 = 4000;
const LEAST_SEGMENT: u64 = 64;
/// Bytes that are read at once.
const READ: usize = 256 << 10;

/// One item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item(u64);

impl Item {
    const HOLE: u64 = 0;
    const ZEROS: u64 = 1;

    fn new(hash: u64, units: u8) -> Self {
        // The two lowest have a meaning of their own.
        Self((hash >> 8).max(2) << 8 | u64::from(units))
    }
    /// Nothing is stored there.
    pub fn hole(units: u8) -> Self {
        Self(Self::HOLE << 8 | u64::from(units))
    }
    /// Zeros are stored there.
    pub fn zeros(units: u8) -> Self {
        Self(Self::ZEROS << 8 | u64::from(units))
    }
    /// From its bits, of whatever a file says.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    /// Its bits.
    pub fn bits(self) -> u64 {
        self.0
    }
    /// Whether nothing is stored there.
    pub fn is_hole(self) -> bool {
        self.0 >> 8 == Self::HOLE
    }
    /// Whether zeros are stored there.
    pub fn is_zeros(self) -> bool {
        self.0 >> 8 == Self::ZEROS
    }
    /// Its length in units.
    pub fn units(self) -> u32 {
        (self.0 & 0xff) as u32
    }
}

/// A way of cutting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cutting {
    block: u64,
    by_content: bool,
}

impl Cutting {
    /// Into blocks of so many bytes: a power of two from 4 KiB to 1 MiB, else `None`.
    pub fn blocks(block: u64) -> Option<Self> {
        (block.is_power_of_two() && (LEAST_UNIT..=1 << 20).contains(&block))
            .then_some(Self { block, by_content: false })
    }
    /// By content, into pieces of so many bytes in the mean: a power of two from 8 KiB to 128 KiB, else `None`.
    pub fn by_content(mean: u64) -> Option<Self> {
        (mean.is_power_of_two() && (8 << 10..=128 << 10).contains(&mean))
            .then_some(Self { block: mean, by_content: true })
    }
    /// Bytes of a block; cut by content, in the mean.
    pub fn block(&self) -> u64 {
        self.block
    }
    /// Whether the content says where items end.
    pub fn is_by_content(&self) -> bool {
        self.by_content
    }
    /// Bytes of a unit.
    pub fn unit(&self) -> u64 {
        if self.by_content { LEAST_UNIT } else { self.block }
    }
    /// Units of a segment.
    pub fn segment_units(&self) -> u32 {
        (SEGMENT * LEAST_UNIT / self.unit()).max(LEAST_SEGMENT) as u32
    }
    /// Bytes of a segment.
    pub fn segment(&self) -> u64 {
        u64::from(self.segment_units()) * self.unit()
    }
}

/// Items of the segment at `start` (a multiple of a segment) of a file that has `size` bytes; none when it is a hole.
///
/// # Errors
/// Those of reading. A file that has become shorter reads as holes.
pub fn segment(file: impl AsFd, start: u64, size: u64, cutting: Cutting) -> Result<(Vec<Item>, u64), Errno> {
    let unit = cutting.unit();
    let end = (start + cutting.segment()).min(size);
    let zeros = hash(&vec![0; unit as usize], unit);
    let mut units = Vec::with_capacity((end - start).div_ceil(unit) as usize);
    let mut buffer = vec![0; READ.max(unit as usize)];
    let (mut at, mut read, mut any) = (start, 0, false);
    // Up to there it is known to be data.
    let mut data_until = start;
    while at < end {
        if at >= data_until {
            let data = match seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data / unit * unit,
                Err(Errno::NXIO) => end,
                Err(error) => return Err(error),
            };
            while at < data.min(end) {
                units.push(Item::hole(1));
                at += unit;
            }
            if at >= end {
                break;
            }
            data_until = seek(&file, SeekFrom::Hole(at)).unwrap_or(end).clamp(at + 1, end);
        }
        let wanted = ((data_until - at).next_multiple_of(unit).min(end - at) as usize).min(buffer.len());
        let mut got = 0;
        while got < wanted {
            match rustix::io::pread(&file, &mut buffer[got..wanted], at + got as u64) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if got < wanted {
            // Shorter than it was: whoever asked will see that.
            return Ok((units, read));
        }
        any = true;
        read += wanted as u64;
        for block in buffer[..wanted].chunks(unit as usize) {
            let hash = hash(block, unit);
            units.push(if hash == zeros && block.len() as u64 == unit {
                Item::zeros(1)
            } else {
                Item::new(hash, 1)
            });
            at += unit;
        }
    }
    if !any {
        return Ok((Vec::new(), read));
    }
    Ok((if cutting.by_content { joined(&units, cutting.block) } else { units }, read))
}

/// The end of a file is another thing than the same bytes elsewhere: only ends can be shared with ends.
fn hash(block: &[u8], unit: u64) -> u64 {
    let seed = if block.len() as u64 == unit { 0 } else { block.len() as u64 };
    XxHash3_64::oneshot_with_seed(seed, block)
}

/// Joins units to items that end where a unit's own hash says, one in `mean / 4 KiB` of them, or where holes or zeros
/// begin or end.
fn joined(units: &[Item], mean: u64) -> Vec<Item> {
    let mask = (mean / LEAST_UNIT).next_power_of_two() - 1;
    let most = ((mean / LEAST_UNIT * 4).clamp(1, 255)) as usize;
    let kind = |item: Item| (item.is_hole(), item.is_zeros());
    let (mut items, mut from) = (Vec::new(), 0);
    for at in 0..units.len() {
        let next_differs = units.get(at + 1).is_none_or(|next| kind(*next) != kind(units[at]));
        let plain = !units[at].is_hole() && !units[at].is_zeros();
        // From the middle of the hash: its lowest bits are the length.
        let ends = plain && (units[at].bits() >> 24) & mask == 0;
        if !next_differs && !ends && at + 1 - from < most {
            continue;
        }
        let part = &units[from..=at];
        let len = part.len() as u8;
        items.push(match (part[0].is_hole(), part[0].is_zeros()) {
            (true, _) => Item::hole(len),
            (_, true) => Item::zeros(len),
            _ => {
                let bytes: Vec<u8> = part.iter().flat_map(|unit| unit.bits().to_le_bytes()).collect();
                Item::new(XxHash3_64::oneshot(&bytes), len)
            }
        });
        from = at + 1;
    }
    items
}

/// Of a file's first extents: its place on the device (0 when there is none), and whether others share it.
pub fn place(file: impl AsFd) -> (u64, bool) {
    let first = kernel::extents(file.as_fd(), 0, u64::MAX / 2, 8).unwrap_or_default();
    (first.first().map_or(0, |extent| extent.physical), first.iter().any(kernel::Extent::is_shared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    const FIXED: Cutting = Cutting { block: 4096, by_content: false };
    const CONTENT: Cutting = Cutting { block: 32 << 10, by_content: true };

    #[test]
    fn segments_are_soon_read_whatever_the_block() {
        for log in 12..=20 {
            let cutting = Cutting::blocks(1 << log).unwrap();
            assert!((8 << 20..=64 << 20).contains(&cutting.segment()), "{cutting:?}");
        }
        let refused = [0, 2048, 4097, 12 << 10, 2 << 20];
        assert!(refused.iter().all(|block| Cutting::blocks(*block).is_none()));
        assert!(Cutting::by_content(256 << 10).is_none() && Cutting::by_content(64 << 10).is_some());
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        larder_device::SeededEntropy::new(seed).bytes(len)
    }
    fn of(bytes: &[u8], cutting: Cutting) -> Vec<Item> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        segment(&file, 0, bytes.len() as u64, cutting).unwrap().0
    }

    #[test]
    fn the_same_blocks_have_the_same_items_and_others_not() {
        let mut bytes = noise(1, 40_000);
        let before = of(&bytes, FIXED);
        bytes[5000] ^= 1;
        let after = of(&bytes, FIXED);
        assert_eq!(before.len(), 10);
        let differ: Vec<usize> = (0..10).filter(|at| before[*at] != after[*at]).collect();
        assert_eq!(differ, [1]);
    }

    #[test]
    fn the_end_of_a_file_is_no_whole_block_and_no_other_end() {
        let bytes = noise(2, 4096);
        let ends: Vec<Item> = [4096, 4095, 100].iter().map(|len| of(&bytes[..*len], FIXED)[0]).collect();
        assert!(ends[0] != ends[1] && ends[1] != ends[2]);
        assert!(!of(&[0; 100], FIXED)[0].is_zeros());
    }

    #[test]
    fn holes_and_zeros_are_told_apart() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&noise(3, 4096), 0).unwrap();
        file.write_all_at(&[0; 8192], 64 << 10).unwrap();
        file.set_len(1 << 20).unwrap();
        let (items, read) = segment(&file, 0, 1 << 20, FIXED).unwrap();
        assert_eq!(items.len(), 256);
        assert!(!items[0].is_hole() && items[1].is_hole() && items[255].is_hole());
        assert_eq!(items.iter().filter(|item| item.is_zeros()).count(), 2);
        assert_eq!(read, 12 << 10);
        file.set_len(1 << 30).unwrap();
        assert_eq!(segment(&file, FIXED.segment(), 1 << 30, FIXED).unwrap(), (Vec::new(), 0));
    }

    #[test]
    fn content_that_moves_by_whole_units_keeps_its_items() {
        let bytes = noise(4, 4 << 20);
        let mut moved = noise(5, 12 << 10);
        moved.extend_from_slice(&bytes);
        let (before, after) = (of(&bytes, CONTENT), of(&moved, CONTENT));
        let kept = before.iter().filter(|item| after.contains(item)).count();
        assert!(kept * 10 > before.len() * 9, "{kept} of {}", before.len());
        assert!(before.len() < 300, "{}", before.len());
        assert_eq!(before.iter().map(|item| item.units()).sum::<u32>(), 1024);
    }
}
