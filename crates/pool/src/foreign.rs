//! Foreign contents of a device: other people's file systems, partition tables, volumes and images.
//!
//! A pool is never made over something that somebody may still want. Signatures are those that
//! blkid(8) and file(1) go by; the table is ordered so that the more telling name comes first (a disk with a
//! partition table also has a boot sector's mark). A file system that does not know the table is not
//! found: this protects against mistakes, it proves nothing.

use larder_device::{ALIGN, Device, DeviceError, Request, TIMEOUT};
use larder_format::{ByteLen, DeviceOffset};

/// Foreign content of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// Its description, with an article: `an ext4 file system`.
    pub what: &'static str,
}

/// From where a signature's offset counts.
#[derive(Clone, Copy)]
enum From {
    Start,
    End,
}

struct Signature {
    what: &'static str,
    from: From,
    offset: u64,
    bytes: &'static [u8],
}

const fn start(what: &'static str, offset: u64, bytes: &'static [u8]) -> Signature {
    Signature { what, from: From::Start, offset, bytes }
}

const fn end(what: &'static str, offset: u64, bytes: &'static [u8]) -> Signature {
    Signature { what, from: From::End, offset, bytes }
}

const MD: &str = "a member of a Linux RAID array (mdraid)";
const MD_MAGIC: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
const ZFS: &str = "a member of a ZFS pool";
/// `0x00bab10c`, little and big endian.
const ZFS_MAGIC: [&[u8]; 2] = [&[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]];
/// Where a ZFS label's uberblocks begin and end, and how close they can lie, bytes.
const ZFS_RING: std::ops::Range<usize> = 128 << 10..256 << 10;
const ZFS_STEP: usize = 1024;
const GPT: &str = "a partition table (GPT)";
const BCACHE: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];
const BCACHEFS: &[u8] =
    &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef];

/// Offsets are bytes from the start; those from the end count backwards from the device's size.
const SIGNATURES: &[Signature] = &[
    start("a btrfs file system", 0x10040, b"_BHRfS_M"),
    start("an XFS file system", 0, b"XFSB"),
    start("a bcachefs file system", 0x1018, BCACHEFS),
    start("a bcache device", 0x1018, BCACHE),
    start("an f2fs file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    start("an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    start("a NILFS2 file system", 1030, &[0x34, 0x34]),
    start("an HFS+ file system", 1024, b"H+"),
    start("an HFS+ file system", 1024, b"HX"),
    start("an APFS container", 32, b"NXSB"),
    start("a JFS file system", 0x8000, b"JFS1"),
    start("a ReiserFS file system", 0x10034, b"ReIsEr"),
    start("a Reiser4 file system", 0x10000, b"ReIsEr4"),
    start("an ISO 9660 image", 0x8001, b"CD001"),
    start("a UDF file system", 0x8001, b"BEA01"),
    start("a SquashFS image", 0, b"hsqs"),
    start("an LVM physical volume", 512, b"LABELONE"),
    start("an LVM physical volume", 0, b"LABELONE"),
    start("an LVM physical volume", 1024, b"LABELONE"),
    start("an LVM physical volume", 1536, b"LABELONE"),
    start("a LUKS encrypted volume", 0, &[b'L', b'U', b'K', b'S', 0xba, 0xbe]),
    start("a BitLocker volume", 3, b"-FVE-FS-"),
    start("a dm-integrity device", 0, b"integrt\0"),
    start("a dm-verity device", 0, b"verity\0\0"),
    start("a Ceph BlueStore device", 0, b"bluestore block device"),
    start(MD, 4096, MD_MAGIC),
    start(MD, 0, MD_MAGIC),
    start("swap space", 4086, b"SWAPSPACE2"),
    start("swap space", 4086, b"SWAP-SPACE"),
    start("swap space", 65526, b"SWAPSPACE2"),
    start("a hibernated system's memory", 4086, b"S1SUSPEND"),
    start("an NTFS file system", 3, b"NTFS    "),
    start("an exFAT file system", 3, b"EXFAT   "),
    start("a FAT file system", 82, b"FAT32   "),
    start("a FAT file system", 54, b"FAT16   "),
    start("a FAT file system", 54, b"FAT12   "),
    start("a qcow2 disk image", 0, &[b'Q', b'F', b'I', 0xfb]),
    start("a VMDK disk image", 0, b"KDMV"),
    start("a VHDX disk image", 0, b"vhdxfile"),
    start("a VDI disk image", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    start(GPT, 512, b"EFI PART"),
    start(GPT, 4096, b"EFI PART"),
    end(GPT, 512, b"EFI PART"),
    end(GPT, 4096, b"EFI PART"),
    end("a VHD disk image", 512, b"conectix"),
];

/// Bytes that are read at either end of a device.
const HEAD: u64 = 256 << 10;
const TAIL: u64 = 256 << 10;

/// Looks for what somebody else has put on a device.
///
/// # Errors
/// When the device cannot be read.
pub fn identify(device: &dyn Device) -> Result<Option<Foreign>, DeviceError> {
    let size = device.size().get() / ALIGN as u64 * ALIGN as u64;
    let read = |offset: u64, len: u64| {
        device
            .submit(Request::Read { offset: DeviceOffset::new(offset), len: ByteLen::new(len) })
            .within(TIMEOUT)
            .map(|bytes| bytes.to_vec())
    };
    let head = read(0, HEAD.min(size))?;
    let tail = read(size - TAIL.min(size), TAIL.min(size))?;
    Ok(look(&head, &tail, size))
}

fn look(head: &[u8], tail: &[u8], size: u64) -> Option<Foreign> {
    let found = |what| Some(Foreign { what });
    if zfs(head) || zfs(tail) {
        return found(ZFS);
    }
    if let Some(kind) = ext(head) {
        return found(kind);
    }
    let known = SIGNATURES.iter().find(|signature| {
        let at = match signature.from {
            From::Start => Some(signature.offset as usize),
            From::End => tail.len().checked_sub(signature.offset as usize),
        };
        let bytes = if matches!(signature.from, From::Start) { head } else { tail };
        at.and_then(|at| bytes.get(at..at + signature.bytes.len())) == Some(signature.bytes)
    });
    if let Some(signature) = known {
        return found(signature.what);
    }
    if mdraid_at_end(tail, size) {
        return found(MD);
    }
    partitions(head).then_some(Foreign { what: "a partition table (MBR)" })
}

/// ext2, 3 and 4 share their magic number; a journal makes 3, newer features make 4.
fn ext(head: &[u8]) -> Option<&'static str> {
    let superblock = head.get(1024..2048)?;
    if superblock[56..58] != [0x53, 0xef] {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes(superblock[at..at + 4].try_into().expect("four bytes"));
    let (compatible, incompatible, read_compatible) = (word(92), word(96), word(100));
    // extents, 64bit, flex_bg, mmp; huge_file and later.
    let four = incompatible & 0x3c0 != 0 || read_compatible & !0x7 != 0;
    Some(match (four, compatible & 4 != 0) {
        (true, _) => "an ext4 file system",
        (false, true) => "an ext3 file system",
        (false, false) => "an ext2 file system",
    })
}

/// Labels of ZFS are 256 KiB each, two at either end; their second half is a ring of uberblocks.
fn zfs(area: &[u8]) -> bool {
    let Some(ring) = area.get(ZFS_RING) else { return false };
    ring.chunks_exact(ZFS_STEP).any(|place| ZFS_MAGIC.contains(&&place[..8]))
}

/// Version 0.90 keeps its superblock in the last 64 KiB-aligned 64 KiB, version 1.0 at 8 KiB from the end.
fn mdraid_at_end(tail: &[u8], size: u64) -> bool {
    let tail_start = size - tail.len() as u64;
    let old = (size / 65536).checked_sub(1).map(|unit| unit * 65536);
    let new = size.checked_sub(8192).map(|at| at / 4096 * 4096);
    [old, new].into_iter().flatten().any(|at| {
        let at = at.checked_sub(tail_start).map(|at| at as usize);
        at.and_then(|at| tail.get(at..at + 4)) == Some(MD_MAGIC)
    })
}

/// A boot sector's mark with at least one sound partition entry.
fn partitions(head: &[u8]) -> bool {
    let Some(sector) = head.get(..512) else { return false };
    sector[510..] == [0x55, 0xaa]
        && sector[446..510].chunks_exact(16).any(|entry| {
            let sectors = u32::from_le_bytes(entry[12..].try_into().expect("four bytes"));
            matches!(entry[0], 0 | 0x80) && entry[4] != 0 && sectors != 0
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 20;

    fn seen(head: &[u8], tail: &[u8]) -> Option<&'static str> {
        look(head, tail, SIZE).map(|foreign| foreign.what)
    }

    fn blank() -> (Vec<u8>, Vec<u8>) {
        (vec![0; HEAD as usize], vec![0; TAIL as usize])
    }

    #[test]
    fn an_empty_device_holds_nothing() {
        let (head, tail) = blank();
        assert_eq!(seen(&head, &tail), None);
        assert_eq!(look(&[], &[], 0), None);
    }

    #[test]
    fn every_signature_is_found_where_it_lies() {
        for signature in SIGNATURES {
            let (mut head, mut tail) = blank();
            let (bytes, at) = match signature.from {
                From::Start => (&mut head, signature.offset as usize),
                From::End => (&mut tail, TAIL as usize - signature.offset as usize),
            };
            bytes[at..at + signature.bytes.len()].copy_from_slice(signature.bytes);
            assert_eq!(seen(&head, &tail), Some(signature.what));
        }
    }

    #[test]
    fn the_three_ext_file_systems_are_told_apart() {
        let (mut head, tail) = blank();
        head[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(seen(&head, &tail), Some("an ext2 file system"));
        head[1024 + 92] = 4;
        assert_eq!(seen(&head, &tail), Some("an ext3 file system"));
        head[1024 + 96] = 0x40;
        assert_eq!(seen(&head, &tail), Some("an ext4 file system"));
    }

    #[test]
    fn pools_arrays_and_partitions_are_found() {
        let (mut head, tail) = blank();
        head[(128 << 10) + 5 * 1024..][..8].copy_from_slice(ZFS_MAGIC[0]);
        assert_eq!(seen(&head, &tail), Some(ZFS));
        let (head, mut tail) = blank();
        let at = tail.len() - 65536;
        tail[at..at + 4].copy_from_slice(MD_MAGIC);
        assert_eq!(seen(&head, &tail), Some(MD));
        let (mut head, tail) = blank();
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(seen(&head, &tail), None, "a boot sector without partitions");
        head[446 + 4] = 0x83;
        head[446 + 12] = 1;
        assert_eq!(seen(&head, &tail), Some("a partition table (MBR)"));
    }
}
