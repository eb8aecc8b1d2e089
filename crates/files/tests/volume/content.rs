//! Files whose records are cut by content.

use crate::bed::{Bed, ROOT};
use larder_device::{Inline, SeededEntropy, Workers};
use larder_files::*;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{BlockId, ByteLen, DeviceOffset};
use larder_pool::{Look, ROOT_DATASET};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const RECORD: u32 = 16 << 10;

fn bed() -> Bed {
    Bed::new(&[("recordsize", "16384"), ("chunking", "content"), ("compression", "off")])
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    SeededEntropy::new(seed).bytes(len)
}

/// A file's extents, by offset.
fn extents(bed: &Bed, node: NodeId) -> Vec<(u64, Extent)> {
    let (_, inode) = node.unpack();
    let mut found = Vec::new();
    let from = Key::new(inode.get(), EXTENT, 0);
    let mut scan = |key: &Key, value: &[u8]| {
        if (key.object, key.kind) != (from.object, EXTENT) {
            return ControlFlow::Break(());
        }
        found.push((key.offset, Extent::decode(value).unwrap()));
        ControlFlow::Continue(())
    };
    bed.pool.dataset(ROOT_DATASET).unwrap().view().unwrap().scan(&from, &mut scan).unwrap();
    found
}

fn blocks(bed: &Bed, node: NodeId) -> BTreeSet<BlockId> {
    extents(bed, node).into_iter().map(|(_, extent)| extent.ptr.id).collect()
}

fn ends(bed: &Bed, node: NodeId) -> Vec<u64> {
    extents(bed, node).into_iter().map(|(offset, extent)| offset + u64::from(extent.len)).collect()
}

fn cuts(bytes: &[u8]) -> Vec<u64> {
    let cutter = Cutter::new(RECORD, 1 << 20);
    let (mut at, mut ends) = (0, Vec::new());
    while let Some(len) = cutter.next(&bytes[at..], true) {
        at += len;
        ends.push(at as u64);
    }
    ends
}

#[test]
fn a_byte_at_the_front_leaves_most_records_as_they_were() {
    let bed = bed();
    let bytes = noise(10 << 20, 1);
    let (old, new) = (bed.file(ROOT, "old"), bed.file(ROOT, "new"));
    bed.write(old, 0, &bytes);
    bed.write(new, 0, b"!");
    bed.write(new, 1, &bytes);
    bed.pool.commit().unwrap();
    let records = |node| {
        let plain = |(_, extent): (u64, Extent)| bed.pool.store().read(extent.ptr).unwrap().to_vec();
        extents(&bed, node).into_iter().map(plain).collect::<BTreeSet<_>>()
    };
    let (old, new) = (records(old), records(new));
    let shared = old.intersection(&new).count();
    assert!(old.len() > 400 && old.len() - shared <= 3, "{shared} of {} records are the same", old.len());
}

#[test]
fn cuts_do_not_depend_on_how_a_file_was_written() {
    let bytes = noise(3 << 20, 2);
    for (piece, memory) in [(3 << 20, "67108864"), (100_000, "4194304"), (4096, "2097152"), (777, "4194304")]
    {
        let bed = bed();
        bed.pool.set_pool_property("memory", memory).unwrap();
        let node = bed.file(ROOT, "file");
        for (i, part) in bytes.chunks(piece).enumerate() {
            bed.write(node, (i * piece) as u64, part);
            if i % 300 == 299 {
                bed.pool.commit().unwrap();
            }
        }
        bed.pool.commit().unwrap();
        assert_eq!(ends(&bed, node), cuts(&bytes), "in pieces of {piece} bytes");
        // Nor on what was there before.
        let over = bed.file(ROOT, "over");
        bed.write(over, 0, &noise(3 << 20, 3));
        bed.pool.commit().unwrap();
        for (i, part) in bytes.chunks(piece).enumerate() {
            bed.write(over, (i * piece) as u64, part);
        }
        bed.pool.commit().unwrap();
        assert_eq!(ends(&bed, over), cuts(&bytes), "in pieces of {piece} bytes, over others");
        assert!(bed.content(over) == bytes);
        bed.check_tree();
        bed.check();
    }
}

#[test]
fn a_change_replaces_the_records_around_it_alone() {
    let bed = bed();
    let mut bytes = noise(2 << 20, 4);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &bytes);
    bed.pool.commit().unwrap();
    for (at, len) in [(1_000_000, 1), (5, 10), ((2 << 20) - 1, 1), (700_000, 50_000)] {
        let (before, change) = (blocks(&bed, node), noise(len, at as u64));
        bed.write(node, at as u64, &change);
        bytes[at..at + len].copy_from_slice(&change);
        bed.pool.commit().unwrap();
        let replaced = before.difference(&blocks(&bed, node)).count();
        assert!(replaced <= 4 + len / RECORD as usize, "{len} bytes at {at} replaced {replaced} records");
        assert_eq!(ends(&bed, node), cuts(&bytes));
    }
    let before = blocks(&bed, node);
    bed.write(node, 1 << 20, &bytes[1 << 20..][..100_000]);
    bed.pool.commit().unwrap();
    assert_eq!(ends(&bed, node), cuts(&bytes), "what is written again is cut again");
    assert!(before.intersection(&blocks(&bed, node)).count() + 12 > before.len());
    assert!(bed.reopen(2).find("file").is_ok());
}

#[test]
fn little_writes_near_each_other_share_a_record_and_far_ones_leave_holes() {
    let bed = bed();
    let node = bed.file(ROOT, "file");
    for i in 0..8 {
        bed.write(node, i * 1000, b"here");
    }
    bed.write(node, 1 << 20, b"there");
    bed.pool.commit().unwrap();
    let found: Vec<_> = extents(&bed, node).into_iter().map(|(at, extent)| (at, extent.len)).collect();
    assert_eq!(found, [(0, 7004), (1 << 20, 5)]);
    let seek = |from, what| bed.mount.lseek(node, Handle(0), from, what);
    assert_eq!((seek(0, Seek::Hole), seek(7004, Seek::Data)), (Ok(7004), Ok(1 << 20)));
    bed.mount.fallocate(node, Handle(0), 2000, 3000, Allocate::Punch).unwrap();
    bed.pool.commit().unwrap();
    let mut wanted = vec![0; 7004];
    for i in [0, 1, 5, 6, 7] {
        wanted[i * 1000..][..4].copy_from_slice(b"here");
    }
    assert_eq!(bed.read(node, 0, 7004), wanted);
}

#[test]
fn a_file_stays_as_its_first_write_found_the_property() {
    let bed = bed();
    let bytes = noise(100_000, 5);
    let (content, fixed) = (bed.file(ROOT, "content"), bed.file(ROOT, "fixed"));
    bed.write(content, 0, &bytes[..10]);
    bed.pool.set_property(ROOT_DATASET, "chunking", "fixed").unwrap();
    bed.write(fixed, 0, &bytes[..10]);
    let bed = bed.reopen(2);
    bed.pool.set_property(ROOT_DATASET, "chunking", "content").unwrap();
    bed.write(content, 0, &bytes);
    bed.write(fixed, 0, &bytes);
    bed.pool.commit().unwrap();
    let multiples: Vec<u64> = (1..=6).map(|i| i * u64::from(RECORD)).chain([100_000]).collect();
    assert_eq!((ends(&bed, content), ends(&bed, fixed)), (cuts(&bytes), multiples));
    // Unless it is emptied.
    bed.resize(fixed, 0);
    bed.write(fixed, 0, &bytes);
    bed.pool.commit().unwrap();
    assert_eq!(ends(&bed, fixed), cuts(&bytes));
}

#[test]
fn a_record_that_cannot_be_read_costs_what_was_written_to_it_alone() {
    let size = ByteLen::new(64 << 20);
    let properties = [("recordsize", "16384"), ("chunking", "content"), ("compression", "off")];
    let bed = Bed::with_layout("single", &[size], &properties);
    let mut bytes = noise(200_000, 6);
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &bytes);
    let bed = bed.reopen(2);
    let (offset, extent) = extents(&bed, node)[5];
    let (start, end) = (offset as usize, offset as usize + extent.len as usize);
    let device = bed.sim.device(0);
    let image = device.image().read(DeviceOffset::new(0), size.get() as usize);
    let at = image.windows(32).position(|window| *window == bytes[start + 100..][..32]).unwrap();
    device.flip_bits(DeviceOffset::new(at as u64), 32, 5);
    for border in [start, end] {
        bed.write(node, border as u64 - 10, &[7; 20]);
        bytes[border - 10..border + 10].fill(7);
    }
    bed.pool.commit().unwrap();
    assert!(matches!(bed.mount.fsync(node, Handle(0), false), Err(FsError::Damaged(_))));
    assert_eq!(extents(&bed, node)[5], (offset, extent), "it stays");
    assert!(bed.mount.read(node, Handle(0), offset, 1).is_err());
    assert!(bed.read(node, 0, offset as u32) == bytes[..start]);
    assert!(bed.read(node, end as u64, 200_000) == bytes[end..]);
}

/// Counts how often anything is worked on at once.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Workers for Counting {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
        Inline.for_each(count, job);
    }

    fn later(&self, job: Box<dyn FnOnce() + Send>) {
        Inline.later(job);
    }
}

#[test]
fn new_small_files_are_stored_together_however_they_are_cut() {
    let times = ["fixed", "content"].map(|chunking| {
        let workers = Arc::new(Counting::default());
        let properties = [("chunking", chunking), ("dedup", "on")];
        let bed = Bed::with_workers(
            Arc::clone(&workers) as _,
            "mirror",
            &[ByteLen::new(256 << 20); 2],
            &properties,
        );
        for i in 0..1000 {
            let file = bed.file(ROOT, &format!("f{i}"));
            bed.write(file, 0, &noise(2000 + i, i as u64));
        }
        let before = workers.0.load(Ordering::Relaxed);
        bed.pool.commit().unwrap();
        workers.0.load(Ordering::Relaxed) - before
    });
    assert!(times[0] > 0 && times[1] <= times[0], "{times:?}");
}
