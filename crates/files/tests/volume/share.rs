//! Copies by reference: what is shared, what is not, and that nobody can tell but by the space.

use crate::bed::{Bed, ROOT};
use crate::quota::dataset;
use larder_device::SeededEntropy;
use larder_files::*;
use larder_format::ByteLen;
use larder_format::items::{EXTENT, Extent};
use larder_pool::{Changes, Differs, ROOT_DATASET, SnapshotView};
use larder_sim::{SimWorld, Survival};
use std::sync::Arc;

/// Bytes of a record.
const RECORD: u64 = 4096;

/// Bytes that do not compress.
fn noise(seed: u64, len: u64) -> Vec<u8> {
    SeededEntropy::new(seed).bytes(len as usize)
}

fn small_records() -> Bed {
    Bed::new(&[("recordsize", "4096")])
}

pub fn file(bed: &Bed, parent: NodeId, name: &str, content: &[u8]) -> NodeId {
    let node = bed.file(parent, name);
    bed.write(node, 0, content);
    node
}

fn copy(bed: &Bed, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Copied {
    bed.mount.copy_range(from, to, len).unwrap()
}

/// Copies a whole file to a new one; all of it is shared.
fn clone(bed: &Bed, from: NodeId, parent: NodeId, name: &str) -> NodeId {
    let (node, size) = (bed.file(parent, name), bed.mount.getattr(from).unwrap().size);
    assert_eq!(copy(bed, (from, 0), (node, 0), u64::MAX), Copied { bytes: size, shared: size });
    node
}

/// Traces to the end, and works off what it found.
pub fn trace(bed: &Bed) {
    assert!(bed.upkeep.gc.start().unwrap());
    while bed.upkeep.gc.step(64).unwrap() {}
    while bed.pool.free_step(64).unwrap() {}
    bed.pool.commit().unwrap();
    bed.check();
}

fn live_blocks(bed: &Bed) -> usize {
    bed.pool.commit().unwrap();
    while bed.pool.free_step(64).unwrap() {}
    bed.pool.commit().unwrap();
    bed.pool.blocks().unwrap().len()
}

#[test]
fn a_copy_of_a_whole_file_stores_nothing_and_outlives_the_original() {
    let bed = small_records();
    let content = noise(1, 300 * RECORD + 77);
    let from = file(&bed, ROOT, "from", &content);
    bed.pool.commit().unwrap();
    let before = bed.pool.writes().stored;
    let to = clone(&bed, from, ROOT, "to");
    bed.pool.commit().unwrap();
    let stored = bed.pool.writes().stored - before;
    assert!(stored < 100 << 10, "{stored} bytes were stored");
    bed.mount.unlink(ROOT, b"from").unwrap();
    while bed.mount.reap_step(1000).unwrap() {}
    let bed = bed.reopen(2);
    assert!(bed.content(to) == content);
    trace(&bed);
    assert!(bed.content(to) == content);
    bed.mount.unlink(ROOT, b"to").unwrap();
    while bed.mount.reap_step(1000).unwrap() {}
    trace(&bed);
    assert!(live_blocks(&bed) < 20, "what nobody refers to is free");
    bed.check_tree();
}

#[test]
fn what_is_written_to_one_is_not_seen_in_the_other() {
    let bed = small_records();
    let mut content = noise(1, 20 * RECORD + 5);
    let from = file(&bed, ROOT, "from", &content);
    let to = clone(&bed, from, ROOT, "to");
    bed.write(from, 3 * RECORD + 9, b"changed in the original");
    let mut other = content.clone();
    bed.write(to, 7 * RECORD - 4, b"changed in the copy");
    bed.resize(to, 15 * RECORD + 1);
    content[3 * RECORD as usize + 9..][..23].copy_from_slice(b"changed in the original");
    other[7 * RECORD as usize - 4..][..19].copy_from_slice(b"changed in the copy");
    other.truncate(15 * RECORD as usize + 1);
    let bed = bed.reopen(2);
    assert!(bed.content(from) == content && bed.content(to) == other);
    trace(&bed);
    assert!(bed.content(from) == content && bed.content(to) == other);
}

#[test]
fn ranges_are_shared_by_whole_records_and_copied_at_their_ends() {
    let bed = small_records();
    let content = noise(1, 20 * RECORD);
    let from = file(&bed, ROOT, "from", &content);
    let mut other = noise(2, 20 * RECORD);
    let to = file(&bed, ROOT, "to", &other);
    // Nine whole records, and parts of one at each end.
    let (at, len) = (2 * RECORD + 100, 10 * RECORD);
    let copied = copy(&bed, (from, at), (to, at + 3 * RECORD), len);
    assert_eq!(copied, Copied { bytes: len, shared: 9 * RECORD });
    other[(at + 3 * RECORD) as usize..][..len as usize]
        .copy_from_slice(&content[at as usize..(at + len) as usize]);
    assert!(bed.content(to) == other);
    // No two offsets that agree.
    let copied = copy(&bed, (from, 1), (to, 0), 5 * RECORD);
    assert_eq!(copied, Copied { bytes: 5 * RECORD, shared: 0 });
    other[..5 * RECORD as usize].copy_from_slice(&content[1..1 + 5 * RECORD as usize]);
    let bed = bed.reopen(2);
    assert!(bed.content(to) == other && bed.content(from) == content);
    bed.check();
}

#[test]
fn the_last_record_is_shared_when_the_copy_ends_with_it() {
    let bed = small_records();
    let from = file(&bed, ROOT, "from", &noise(1, 5 * RECORD));
    let to = bed.file(ROOT, "to");
    let len = 2 * RECORD + 10;
    assert_eq!(copy(&bed, (from, 0), (to, 0), len), Copied { bytes: len, shared: len });
    assert!(bed.content(to) == noise(1, len));
    // The rest of the block does not show when the file grows.
    bed.resize(to, 3 * RECORD);
    let mut wanted = noise(1, len);
    wanted.resize(3 * RECORD as usize, 0);
    assert!(bed.content(to) == wanted);
    // Before something else it goes through memory.
    assert_eq!(copy(&bed, (from, 0), (to, 0), RECORD + 10), Copied { bytes: RECORD + 10, shared: RECORD });
    assert!(bed.content(to) == wanted);
}

#[test]
fn holes_stay_holes_and_take_what_was_there_away() {
    let bed = Bed::new(&[("recordsize", "4096"), ("compression", "off")]);
    let from = bed.file(ROOT, "from");
    bed.write(from, 0, &noise(1, RECORD));
    bed.write(from, 300 * RECORD, &noise(2, RECORD));
    bed.resize(from, 3000 * RECORD);
    let to = file(&bed, ROOT, "to", &noise(3, 200 * RECORD));
    let all = copy(&bed, (from, 0), (to, 0), u64::MAX);
    assert_eq!(all, Copied { bytes: 3000 * RECORD, shared: 3000 * RECORD });
    assert!(bed.content(to) == bed.content(from));
    assert_eq!(bed.mount.getattr(to).unwrap().blocks, bed.mount.getattr(from).unwrap().blocks);
    // Large ones do where nothing can be shared, too.
    let third = bed.file(ROOT, "third");
    let mut done = 0;
    while done < 3000 * RECORD {
        done += copy(&bed, (from, done), (third, done + 1), u64::MAX).bytes;
    }
    bed.pool.commit().unwrap();
    assert!(bed.content(third)[1..] == bed.content(from));
    let blocks = bed.mount.getattr(third).unwrap().blocks;
    assert!(blocks < 400, "{blocks} blocks for two records");
    // A source without any data.
    let empty = bed.file(ROOT, "empty");
    bed.resize(empty, 100 * RECORD);
    copy(&bed, (empty, 0), (to, 0), 100 * RECORD);
    assert!(bed.read(to, 0, 100 << 12).iter().all(|&byte| byte == 0));
    bed.pool.commit().unwrap();
    bed.check();
    bed.check_tree();
}

#[test]
fn a_copy_made_again_changes_nothing() {
    let bed = small_records();
    let from = file(&bed, ROOT, "from", &noise(1, 100 * RECORD));
    let to = clone(&bed, from, ROOT, "to");
    let blocks = live_blocks(&bed);
    let all = copy(&bed, (from, 0), (to, 0), u64::MAX);
    assert_eq!(all.shared, 100 * RECORD);
    bed.pool.commit().unwrap();
    assert_eq!((bed.pool.freeing().left_bytes(), live_blocks(&bed)), (0, blocks));
    bed.check();
}

#[test]
fn files_of_other_records_are_copied_unless_theirs_are_smaller_than_the_dataset_asks_for() {
    let bed = small_records();
    let (large, root) = dataset(&bed, "tank/large", &[("recordsize", "65536")]);
    let content = noise(1, 40 * RECORD);
    let small = file(&bed, ROOT, "small", &content);
    let shared = clone(&bed, small, root, "small");
    let big = file(&bed, root, "big", &content);
    let copied = bed.file(ROOT, "big");
    assert_eq!(copy(&bed, (big, 0), (copied, 0), u64::MAX), Copied { bytes: 40 * RECORD, shared: 0 });
    assert_eq!(copy(&bed, (small, 0), (big, 0), u64::MAX), Copied { bytes: 40 * RECORD, shared: 0 });
    let bed = {
        large.usage();
        drop(large);
        bed.reopen(2)
    };
    let found = bed.pool.dataset_by_name("tank/large").unwrap();
    crate::quota::show(&bed, &found);
    for node in [small, shared, big, copied] {
        assert!(bed.content(node) == content);
    }
    bed.check();
}

#[test]
fn files_of_two_datasets_share_and_either_can_be_destroyed() {
    let bed = small_records();
    let content = noise(1, 500 * RECORD + 9);
    let (home, root) = dataset(&bed, "tank/home", &[]);
    let from = file(&bed, root, "from", &content);
    bed.pool.commit().unwrap();
    // Also when the head has a snapshot that is younger than the blocks.
    bed.pool.snapshot(larder_pool::ROOT_DATASET, "before").unwrap();
    let to = clone(&bed, from, ROOT, "to");
    let back = clone(&bed, to, root, "back");
    bed.pool.commit().unwrap();
    assert!(home.usage().logical >= 1000 * RECORD, "each of them counts");
    assert!(bed.content(back) == content);
    bed.mount.detach(home.id()).unwrap();
    bed.pool.destroy_dataset(home.id()).unwrap();
    drop(home);
    bed.pool.commit().unwrap();
    while bed.pool.destroy_step(100).unwrap() {}
    trace(&bed);
    assert!(bed.content(to) == content);
    bed.mount.unlink(ROOT, b"to").unwrap();
    while bed.mount.reap_step(1000).unwrap() {}
    bed.pool.destroy_snapshot(larder_pool::ROOT_DATASET, "before").unwrap();
    trace(&bed);
    assert!(live_blocks(&bed) < 20);
}

#[test]
fn ranges_of_one_file_are_shared_unless_they_overlap() {
    let bed = small_records();
    let content = noise(1, 10 * RECORD);
    let node = file(&bed, ROOT, "file", &content);
    let into = |at: u64, len| bed.mount.copy_range((node, 0), (node, at), len);
    assert_eq!(into(5 * RECORD, 5 * RECORD + 1), Err(FsError::Invalid));
    assert_eq!(into(0, 1), Err(FsError::Invalid));
    assert_eq!(into(10 * RECORD, u64::MAX), Ok(Copied { bytes: 10 * RECORD, shared: 10 * RECORD }));
    assert!(bed.content(node) == [content.clone(), content.clone()].concat());
    bed.resize(node, 10 * RECORD);
    let bed = bed.reopen(2);
    trace(&bed);
    assert!(bed.content(node) == content);
}

#[test]
fn an_fsync_of_the_copy_makes_it_durable() {
    let bed = small_records();
    let from = file(&bed, ROOT, "from", &noise(1, 50 * RECORD + 1));
    let to = file(&bed, ROOT, "to", b"logged, and covered by the copy");
    bed.fsync(to);
    copy(&bed, (from, 0), (to, 0), u64::MAX);
    bed.fsync(to);
    let bed = bed.crash(2);
    assert!(bed.content(bed.find("to").unwrap().node) == noise(1, 50 * RECORD + 1));
    bed.check();
}

#[test]
fn a_copy_is_a_write_for_times_limits_and_kinds() {
    let bed = small_records();
    let content = noise(1, 100 * RECORD);
    let from = file(&bed, ROOT, "from", &content);
    bed.tick();
    let to = clone(&bed, from, ROOT, "to");
    let (source, target) = (bed.mount.getattr(from).unwrap(), bed.mount.getattr(to).unwrap());
    assert!(target.mtime > source.mtime && target.ctime == target.mtime && source.atime > source.mtime);
    assert_eq!(target.blocks, source.blocks);
    let (_, root) = dataset(&bed, "tank/limited", &[("refquota", "200000")]);
    let limited = bed.file(root, "file");
    let refused = bed.mount.copy_range((from, 0), (limited, 0), u64::MAX);
    assert_eq!(refused, Err(FsError::Quota));
    assert_eq!(copy(&bed, (from, 0), (limited, 0), 20 * RECORD).shared, 20 * RECORD);
    let (_, root) = dataset(&bed, "tank/fixed", &[]);
    let fixed = bed.file(root, "file");
    let id = bed.pool.dataset_by_name("tank/fixed").unwrap().id();
    bed.pool.set_property(id, "readonly", "on").unwrap();
    assert_eq!(bed.mount.copy_range((from, 0), (fixed, 0), 1), Err(FsError::ReadOnly));
    let dir = bed.dir(ROOT, "dir");
    assert_eq!(bed.mount.copy_range((from, 0), (dir, 0), 1), Err(FsError::IsDirectory));
    assert_eq!(bed.mount.copy_range((dir, 0), (to, 0), 1), Err(FsError::IsDirectory));
    let append = OpenFlags { append: true, ..crate::bed::READ_WRITE };
    let handle = bed.mount.open(to, append).unwrap();
    let refused = bed.mount.copy_file_range((from, Handle(0), 0), (to, handle, 0), 1);
    assert_eq!(refused, Err(FsError::BadHandle));
    bed.mount.release(to, handle).unwrap();
}

/// Power is cut at every event of a copy over an older file and of the commits that follow; a part of it from its
/// beginning on is there, and behind it the older content.
#[test]
fn a_power_cut_leaves_a_beginning_of_the_copy() {
    const RECORDS: u64 = 2500;
    let bed = Bed::with_layout("mirror", &[ByteLen::new(96 << 20); 2], &[("recordsize", "4096")]);
    let (new, old) = (noise(1, RECORDS * RECORD), noise(2, RECORDS * RECORD));
    let from = file(&bed, ROOT, "from", &new);
    let to = file(&bed, ROOT, "to", &old);
    bed.pool.commit().unwrap();
    let start = bed.sim.trace().len();
    let mut done = 0;
    while done < RECORDS * RECORD {
        let copied = copy(&bed, (from, done), (to, done), 1000 * RECORD);
        assert_eq!(copied.bytes, copied.shared);
        done += copied.bytes;
        bed.pool.commit().unwrap();
    }
    bed.sim.mark(1);
    bed.mount.unlink(ROOT, b"from").unwrap();
    while bed.mount.reap_step(1000).unwrap() {}
    bed.pool.commit().unwrap();
    let (sim, clock) = (bed.sim.clone(), Arc::clone(&bed.clock));
    drop(bed);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    for cut in start..=trace.len() {
        sweep.advance_to(cut);
        let promised = trace.marks_before(cut).last().is_some();
        let survival = if cut % 2 == 0 { Survival::DropAll } else { Survival::Random { seed: cut as u64 } };
        let bed = Bed::import(SimWorld::from_images(sweep.images(survival)), Arc::clone(&clock), cut as u64);
        bed.check();
        let content = bed.content(bed.find("to").unwrap().node);
        let differ = content.iter().zip(&new).position(|(found, new)| found != new);
        let shared = differ.unwrap_or(new.len()) / RECORD as usize * RECORD as usize;
        assert!(content[shared..] == old[shared..], "cut {cut}: a mixture after {shared} bytes");
        assert!(!promised || shared == new.len(), "cut {cut}: {shared} bytes");
        bed.check_tree();
    }
}

#[test]
fn files_cut_by_content_share_whole_records_wherever_they_go() {
    let bed = Bed::new(&[("recordsize", "4096"), ("chunking", "content")]);
    let content = noise(1, 400 * RECORD + 77);
    let len = content.len() as u64;
    let from = file(&bed, ROOT, "from", &content);
    let whole = clone(&bed, from, ROOT, "whole");
    // At another distance, and over something else.
    let mut wanted = noise(2, 500 * RECORD);
    let to = file(&bed, ROOT, "to", &wanted);
    let copied = copy(&bed, (from, 100), (to, 777), 300 * RECORD);
    assert_eq!(copied.bytes, 300 * RECORD);
    wanted[777..777 + 300 * RECORD as usize].copy_from_slice(&content[100..100 + 300 * RECORD as usize]);
    let third = file(&bed, ROOT, "third", b"a beginning");
    let copied = copy(&bed, (from, 0), (third, 11), u64::MAX);
    assert_eq!(copied, Copied { bytes: len, shared: len });
    let (fixed, root) = dataset(&bed, "tank/fixed", &[("chunking", "fixed")]);
    let other = bed.file(root, "other");
    assert_eq!(copy(&bed, (from, 0), (other, 0), u64::MAX), Copied { bytes: len, shared: 0 });
    drop(fixed);
    bed.write(from, 50 * RECORD, b"changed in the original");
    let bed = bed.reopen(2);
    let fixed = bed.pool.dataset_by_name("tank/fixed").unwrap();
    crate::quota::show(&bed, &fixed);
    drop(fixed);
    trace(&bed);
    assert!(bed.content(whole) == content && bed.content(to) == wanted && bed.content(other) == content);
    assert!(bed.content(third) == [b"a beginning".as_slice(), &content].concat());
    bed.check_tree();
}

#[test]
fn what_a_copy_refers_to_is_in_the_difference_of_two_snapshots_however_old_it_is() {
    let bed = small_records();
    let old = file(&bed, ROOT, "old", &noise(1, 40 * RECORD));
    file(&bed, ROOT, "beside", &noise(2, 2000 * RECORD));
    bed.pool.snapshot(ROOT_DATASET, "monday").unwrap();
    clone(&bed, old, ROOT, "copy");
    bed.pool.snapshot(ROOT_DATASET, "tuesday").unwrap();
    bed.write(old, 0, &noise(9, RECORD));
    bed.pool.snapshot(ROOT_DATASET, "wednesday").unwrap();
    let [monday, tuesday, wednesday] =
        ["monday", "tuesday", "wednesday"].map(|name| bed.pool.snapshot_view(ROOT_DATASET, name).unwrap());
    let extents = |old: Option<&SnapshotView>, new: &SnapshotView| {
        let (mut found, mut nodes) = (Vec::new(), 0);
        let mut changes = Changes::between(old, new);
        while changes
            .step(4, |differs| match differs {
                Differs::Entry { key, new: Some(new), .. } if key.kind == EXTENT => {
                    found.push(Extent::decode(new).unwrap().ptr.id);
                }
                Differs::Node(..) => nodes += 1,
                Differs::Entry { .. } => {}
            })
            .unwrap()
        {}
        (found, nodes)
    };
    let (all, in_all) = extents(None, &monday);
    assert_eq!(all.len(), 40 + 2000);
    let (copied, nodes) = extents(Some(&monday), &tuesday);
    assert_eq!(copied.len(), 40, "the copy's, all of them");
    assert!(copied.iter().all(|id| *id < monday.record().high), "older than either");
    assert!(nodes < in_all, "{nodes} nodes were read, of {in_all}");
    let (written, _) = extents(Some(&tuesday), &wednesday);
    assert!(matches!(written[..], [id] if id > tuesday.record().high));
    assert_eq!(extents(Some(&monday), &wednesday).0.len(), 41);
}
