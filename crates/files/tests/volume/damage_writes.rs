//! Writes to files that are damaged: each is done, or told to who made it.

use crate::bed::*;
use crate::damage::*;
use larder_device::{Inline, Workers};
use larder_files::*;
use larder_format::BlockPtr;
use larder_format::checksum::ChecksumKind;
use larder_format::items;
use larder_format::node::Key;
use larder_pool::codec::Codec;
use larder_pool::{Dedup, NewRecord, Pool, PoolError, ROOT_DATASET};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

#[test]
fn a_failure_to_store_is_told_to_each_descriptor_once() {
    let bed = bed();
    let node = bed.file(ROOT, "file");
    bed.write(node, 0, &content(1, 4));
    let bed = bed.reopen(2);
    let open = || bed.mount.open(node, READ_WRITE).unwrap();
    let is_told = |handle| is_eio(bed.mount.fsync(node, handle, false));
    let (first, second) = (open(), open());
    rot_record(&bed, node, 0);
    bed.mount.write(node, second, 10, b"a part", false).unwrap();
    bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap();
    // Nobody has been told yet, so who opens it now is.
    let third = open();
    assert!(is_told(first) && !is_told(first));
    let fourth = open();
    assert!(is_told(second) && !is_told(second));
    assert!(is_eio(bed.mount.flush(node, third)) && !is_told(third));
    assert!(!is_told(fourth));
    // Another failure is news for all.
    rot_record(&bed, node, RECORD);
    bed.mount.write(node, first, RECORD + 10, b"a part", false).unwrap();
    bed.pool.commit().unwrap();
    for handle in [first, second, third, fourth] {
        assert!(is_told(handle) && !is_told(handle));
        bed.mount.release(node, handle).unwrap();
    }
    let last = open();
    assert!(!is_told(last));
    bed.mount.write(node, last, 2 * RECORD, &content(7, 1), false).unwrap();
    bed.mount.fsync(node, last, false).unwrap();
    bed.mount.release(node, last).unwrap();
}

/// Takes all the space there is, once, in the middle of the next store.
#[derive(Default)]
struct Greedy {
    of: OnceLock<Arc<Pool>>,
    armed: AtomicBool,
    taken: Mutex<Vec<BlockPtr>>,
}

impl Greedy {
    fn take_all(&self, pool: &Pool) {
        let op = pool.enter().unwrap();
        let record = |i: u64| NewRecord {
            dataset: ROOT_DATASET,
            inode: 1,
            offset: i,
            plain: content(i, 1).into(),
            codec: Codec::Off,
            encoded: None,
            checksum: ChecksumKind::Fast,
            dedup: Dedup::Off,
            copies: 1,
            replaces: None,
        };
        for count in [256, 1] {
            loop {
                match pool.store_records(&op, (0..count).map(record).collect()) {
                    Ok(pointers) => self.taken.lock().unwrap().extend(pointers),
                    Err(PoolError::NoSpace) => break,
                    other => drop(other.unwrap()),
                }
            }
        }
    }

    /// Gives it back.
    fn give_back(&self, pool: &Pool) {
        let taken = std::mem::take(&mut *self.taken.lock().unwrap());
        let op = pool.enter().unwrap();
        let give = |tree: &mut larder_pool::Update<'_>| {
            for ptr in taken {
                let (len, logical) = (RECORD as u32, RECORD as u32);
                let extent = items::Extent { ptr, len, block_offset: 0, logical, placed: 0, copies: 1 };
                tree.link_block(&extent);
                tree.drop_block(&extent);
            }
            Ok::<_, PoolError>(())
        };
        pool.dataset(ROOT_DATASET).unwrap().update(&op, give).unwrap();
    }
}

impl Workers for Greedy {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        if self.armed.swap(false, Ordering::Relaxed) {
            self.take_all(self.of.get().unwrap());
        }
        Inline.for_each(count, job);
    }
    fn later(&self, job: Box<dyn FnOnce() + Send>) {
        Inline.later(job);
    }
}

#[test]
fn what_is_left_of_a_batch_when_space_ends_after_damage_stays_dirty() {
    let workers = Arc::new(Greedy::default());
    let properties = [("recordsize", "4096"), ("compression", "off"), ("atime", "off")];
    let bed = Bed::with_workers(Arc::clone(&workers) as _, "mirror", &[SIZE; 2], &properties);
    let files: Vec<_> = (0..400).map(|i| bed.file(ROOT, &format!("f{i}"))).collect();
    files.iter().for_each(|node| bed.write(*node, 0, &content(1, 1)));
    bed.pool.commit().unwrap();
    let Bed { sim, clock, pool, upkeep, mount } = bed;
    drop((pool, upkeep, mount));
    let bed = Bed::import_with(Arc::clone(&workers) as _, sim, clock, 3);
    assert!(workers.of.set(Arc::clone(&bed.pool)).is_ok());
    let leaves = nodes(&bed, 0);
    let inode = |node: &NodeId| id_of(&bed, *node).1.get();
    let keys: Vec<_> = leaves.keys().copied().filter(|key| key.object > inode(&files[0])).collect();
    // The leaf of the first file is lost once the file is in memory; the others lie in leaves behind it.
    let lost = *files.iter().find(|node| inode(node) > keys[0].object).unwrap();
    let others: Vec<_> =
        files.iter().copied().filter(|node| inode(node) > keys[1].object + 1).take(3).collect();
    let wanted: Vec<_> = (0..others.len() as u64).map(|i| content(10 + i, 2)).collect();
    bed.write(lost, 0, &content(5, 1));
    others.iter().zip(&wanted).for_each(|(node, wanted)| bed.write(*node, 0, wanted));
    others.iter().for_each(|node| bed.fsync(*node));
    rot(&bed, &leaves[&keys[0]]);
    bed.pool.store().drop_caches();

    workers.armed.store(true, Ordering::Relaxed);
    let volume = bed.mount.volume(ROOT_DATASET).unwrap();
    assert_eq!(volume.flush_all(), Err(FsError::NoSpace));
    assert!(!volume.is_clean());
    workers.give_back(&bed.pool);
    others.iter().for_each(|node| bed.fsync(*node));
    for _ in 0..4 {
        bed.pool.commit().unwrap();
    }
    assert_eq!(bed.pool.store().dirty().get(), 0);
    let bed = bed.crash(4);
    others.iter().zip(&wanted).for_each(|(node, wanted)| assert!(bed.content(*node) == *wanted, "{node:?}"));
    assert!(is_eio(bed.mount.getattr(lost)));
}

/// A file of eight records, the first of them rotten and known to be.
fn with_a_rotten_record(properties: &[(&str, &str)]) -> (Bed, NodeId) {
    let bed = Bed::with_layout("mirror", &[SIZE; 2], properties);
    let node = bed.file(ROOT, "a");
    bed.write(node, 0, &content(1, 8));
    let bed = bed.reopen(2);
    rot_record(&bed, node, 0);
    assert!(is_eio(bed.mount.read(node, Handle(0), 0, RECORD as u32)));
    (bed, node)
}

#[test]
fn a_damaged_file_is_written_over_by_its_backup() {
    let fixed = [("recordsize", "4096"), ("compression", "off"), ("atime", "off")];
    let by_content = [fixed[0], fixed[1], fixed[2], ("chunking", "content")];
    for properties in [&fixed[..], &by_content[..]] {
        let (bed, node) = with_a_rotten_record(properties);
        bed.resize(node, 0);
        let backup = content(1, 8);
        bed.write(node, 0, &backup);
        assert_eq!(bed.pool.store().suspended(), None);
        bed.fsync(node);
        settle(&bed);
        assert_eq!(bed.content(node), backup);
        assert_eq!(named(&bed), BTreeSet::new());
        let bed = bed.reopen(3);
        assert_eq!(bed.content(node), backup);
    }
}

#[test]
fn a_file_behind_a_lost_leaf_that_cannot_take_its_first_write_says_so() {
    let bed = bed();
    let files: Vec<_> = (0..400).map(|i| bed.file(ROOT, &format!("f{i}"))).collect();
    let bed = bed.reopen(2);
    let leaves = nodes(&bed, 0);
    let keys: Vec<_> = leaves.keys().filter(|key| key.kind == items::INODE && key.object > 1).collect();
    rot(&bed, &leaves[keys[0]]);
    let bed = bed.crash(3);
    let lost = files.iter().find(|node| id_of(&bed, **node).1.get() == keys[0].object).unwrap();
    assert!(is_eio(bed.mount.getattr(*lost)));
    let behind = *files.iter().find(|node| id_of(&bed, **node).1.get() == keys[1].object).unwrap();
    // Where its content would be noted is lost, too.
    assert!(is_eio(bed.mount.write(behind, Handle(0), 0, b"the first", false)));
    let next = *files.iter().find(|node| id_of(&bed, **node).1.get() == keys[1].object + 1).unwrap();
    bed.write(next, 0, b"the first");
    bed.fsync(next);
    bed.pool.commit().unwrap();
    assert_eq!((bed.content(next), bed.pool.store().suspended()), (b"the first".to_vec(), None));
}

#[test]
fn an_attribute_with_an_unreadable_piece_is_neither_replaced_nor_removed_and_stops_nobody() {
    let bed = bed();
    let (node, other) = (bed.file(ROOT, "a"), bed.file(ROOT, "b"));
    bed.mount.setxattr(node, b"user.large", &[7; 64 << 10], XattrMode::Set).unwrap();
    let bed = bed.reopen(2);
    let inode = id_of(&bed, node).1.get();
    let leaves = nodes(&bed, 0);
    let pieces: Vec<_> =
        leaves.iter().filter(|(key, _)| (key.object, key.kind) == (inode, items::XATTR_PIECE)).collect();
    assert!(pieces.len() > 3, "{pieces:?}");
    rot(&bed, pieces[pieces.len() / 2].1);
    bed.pool.store().drop_caches();
    for value in [&b"small"[..], &[8; 64 << 10]] {
        assert!(is_eio(bed.mount.setxattr(node, b"user.large", value, XattrMode::Set)));
        assert_eq!(bed.pool.store().suspended(), None);
    }
    assert!(is_eio(bed.mount.removexattr(node, b"user.large")));
    assert_eq!(bed.pool.store().suspended(), None);
    assert!(is_eio(bed.mount.getxattr(node, b"user.large")));
    bed.mount.setxattr(node, b"user.small", b"value", XattrMode::Set).unwrap();
    bed.write(other, 0, b"goes on");
    bed.fsync(other);
    bed.pool.commit().unwrap();
    assert_eq!(bed.mount.getxattr(node, b"user.small").unwrap(), b"value");
    assert_eq!(bed.pool.store().suspended(), None);
}

#[test]
fn a_cut_that_is_refused_for_a_lost_leaf_takes_nothing_away() {
    let bed = bed();
    let wanted = content(3, 2000);
    let big = bed.file(ROOT, "big");
    bed.write(big, 0, &wanted);
    let bed = bed.reopen(2);
    let inode = id_of(&bed, big).1.get();
    let leaves = nodes(&bed, 0);
    let of_big: Vec<_> =
        leaves.iter().filter(|(key, _)| (key.object, key.kind) == (inode, items::EXTENT)).collect();
    let (low, high) = (of_big[2].0.offset / RECORD, of_big[3].0.offset / RECORD);
    rot(&bed, of_big[2].1);
    let bed = bed.crash(3);
    // Not stored yet, behind the new end.
    let fresh = content(9, 1);
    bed.write(big, 1990 * RECORD, &fresh);
    let mut now = wanted.clone();
    now[1990 * RECORD as usize..][..RECORD as usize].copy_from_slice(&fresh);
    let cut = |size| bed.mount.setattr(big, &SetAttr { size: Some(size), ..SetAttr::default() }, &USER);
    let before = bed.mount.getattr(big).unwrap();
    assert!(is_eio(cut(high * RECORD - 100)));
    assert_eq!(bed.mount.getattr(big).unwrap(), before);
    let lost: Vec<u64> = (low..high).collect();
    assert_served(&bed, big, &now, &lost);
    settle(&bed);
    let bed = bed.reopen(4);
    assert_served(&bed, big, &now, &lost);
    // Just before the lost leaf it can be cut.
    bed.resize(big, low * RECORD);
    assert_served(&bed, big, &now[..(low * RECORD) as usize], &[]);
    settle(&bed);
    assert_eq!((bed.mount.getattr(big).unwrap().size, bed.pool.store().suspended()), (low * RECORD, None));
}

#[test]
fn a_range_that_cannot_be_made_zero_for_a_lost_leaf_keeps_what_was_written_there() {
    let properties =
        [("recordsize", "4096"), ("compression", "off"), ("atime", "off"), ("chunking", "content")];
    let bed = Bed::with_layout("mirror", &[SIZE; 2], &properties);
    let node = bed.file(ROOT, "a");
    bed.write(node, 0, &content(1, 4000));
    let bed = bed.reopen(2);
    let inode = id_of(&bed, node).1.get();
    let starts = |bed: &Bed| -> Vec<u64> {
        let leaves = nodes(bed, 0);
        let of_file = leaves.keys().filter(|key| (key.object, key.kind) == (inode, items::EXTENT));
        of_file.map(|key| key.offset).collect()
    };
    let punch =
        |bed: &Bed, from: u64, len: u64| bed.mount.fallocate(node, Handle(0), from, len, Allocate::Punch);
    let found = starts(&bed);
    assert!(found.len() > 4, "{found:?}");
    // A leaf that begins with a hole: where an extent reaches into that, only the leaf before can tell.
    let hole = found[2];
    punch(&bed, hole, 64 * RECORD).unwrap();
    let bed = bed.reopen(3);
    let lost = nodes(&bed, 0).remove(&Key::new(inode, items::EXTENT, found[1])).unwrap();
    let fresh = content(7, 40);
    bed.write(node, hole + 10 * RECORD, &fresh);
    rot(&bed, &lost);
    bed.pool.store().drop_caches();
    let before = bed.mount.getattr(node).unwrap();
    assert!(is_eio(punch(&bed, hole, 60 * RECORD)));
    assert_eq!(bed.mount.getattr(node).unwrap(), before, "what was not stored yet is there");
    bed.fsync(node);
    assert_eq!(bed.pool.store().suspended(), None);
}

#[test]
fn a_damaged_orphan_fails_no_writer_at_its_quota() {
    let bed = bed();
    let big = bed.file(ROOT, "big");
    bed.write(big, 0, &content(1, 2000));
    for i in 0..200 {
        bed.file(ROOT, &format!("f{i}"));
    }
    let writer = bed.file(ROOT, "writer");
    bed.pool.commit().unwrap();
    let inode = id_of(&bed, big).1.get();
    bed.mount.unlink(ROOT, b"big").unwrap();
    bed.pool.commit().unwrap();
    // Its last leaf holds others, too, and so stays.
    let leaves = nodes(&bed, 0);
    let last = leaves.range(..=Key::new(inode, items::INODE, 0)).next_back().unwrap();
    rot(&bed, last.1);
    let bed = bed.crash(3);
    let used = bed.pool.dataset(ROOT_DATASET).unwrap().usage().referenced;
    bed.pool.set_property(ROOT_DATASET, "quota", &used.to_string()).unwrap();
    let refused = bed.mount.write(writer, Handle(0), 0, &content(2, 4000), false);
    assert_eq!(refused, Err(FsError::Quota));
    assert!(!bed.mount.reap_step(1000).unwrap(), "it is on the list no more");
    assert_eq!(bed.pool.store().suspended(), None);
}
