//! The log beside damage and beside devices that do not answer.

use crate::bed::*;
use crate::damage::*;
use larder_device::Inline;
use larder_files::*;
use larder_format::items;
use larder_format::node::Key;
use larder_pool::ROOT_DATASET;
use larder_sim::Fault;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn synced_parts_of_records_outlive_a_device_that_does_not_answer_for_a_while() {
    for (chunking, lasts) in [("fixed", 2), ("fixed", 9), ("content", 2), ("content", 9)] {
        let properties = [("recordsize", "4096"), ("chunking", chunking)];
        let bed = Bed::with_layout("single", &[SIZE], &properties);
        let node = bed.file(ROOT, "a");
        let old = content(1, 16);
        bed.write(node, 0, &old);
        let bed = bed.reopen(2);
        bed.write(node, RECORD + 1, b"accepted");
        bed.fsync(node);
        // The link is reset, say: reads give errors, and nothing is written meanwhile.
        bed.pool.store().drop_caches();
        bed.sim.device(0).inject(Fault::FailReads(0..u64::MAX));
        for _ in 0..lasts {
            bed.pool.commit().unwrap_err();
            bed.clock.advance(Duration::from_secs(5));
        }
        assert_eq!(bed.pool.store().suspended().is_some(), lasts > 6, "{chunking}, {lasts}");
        bed.sim.device(0).clear_faults();
        bed.upkeep.devices.clear(None).unwrap();
        bed.pool.commit().unwrap();
        bed.pool.store().drop_caches();
        let mut wanted = old.clone();
        wanted[RECORD as usize + 1..][..8].copy_from_slice(b"accepted");
        assert!(bed.read(node, 0, wanted.len() as u32) == wanted, "{chunking}, {lasts}");
        bed.fsync(node);
        assert_eq!(named(&bed), BTreeSet::new(), "nothing is damaged");
        let bed = bed.reopen(3);
        assert!(bed.read(node, 0, wanted.len() as u32) == wanted, "{chunking}, {lasts}");
    }
}

#[test]
fn a_replay_beside_a_device_that_does_not_answer_fails_and_leaves_the_log() {
    let bed = Bed::with_layout("single", &[SIZE], &[("recordsize", "4096")]);
    let node = bed.file(ROOT, "a");
    bed.write(node, 0, &content(1, 4));
    let bed = bed.reopen(2);
    bed.write(node, RECORD + 1, b"accepted");
    bed.fsync(node);
    let made = bed.file(ROOT, "b");
    bed.write(made, 0, b"new");
    bed.fsync(made);
    let Bed { sim, clock, pool, upkeep, mount } = bed;
    drop((mount, upkeep, pool));
    let pool = Bed::import_pool(Arc::new(Inline), &sim, &clock, 3);
    pool.store().drop_caches();
    sim.device(0).inject(Fault::FailReads(0..u64::MAX));
    assert!(Mount::new(pool, (0, 0)).is_err());
    sim.device(0).clear_faults();
    let bed = Bed::import(sim, clock, 4);
    assert_eq!(bed.read(node, RECORD + 1, 8), b"accepted");
    assert_eq!(bed.read(made, 0, 3), b"new");
}

#[test]
fn logged_changes_of_what_is_lost_are_lost_with_what_follows_on_them_and_no_others() {
    let bed = bed();
    let (dir, empty) = (bed.dir(ROOT, "names"), bed.dir(ROOT, "empty"));
    let name = |i: u64| format!("a name that is rather long, so that there are several leaves {i}");
    for i in 0..1500 {
        bed.file(dir, &name(i));
    }
    let bed = bed.reopen(2);
    let inode = id_of(&bed, dir).1.get();
    let leaves = nodes(&bed, 0);
    let of_dir: Vec<_> =
        leaves.iter().filter(|(key, _)| (key.object, key.kind) == (inode, items::ENTRY)).collect();
    let (low, high) = (of_dir[1].0.offset, of_dir[2].0.offset);
    let dataset = bed.pool.dataset(ROOT_DATASET).unwrap();
    let mut within =
        (1500..).map(name).filter(|name| (low..high).contains(&dataset.name_key().cookie(name.as_bytes())));
    let (made, below) = (within.next().unwrap(), within.next().unwrap());
    drop(within);
    drop(dataset);
    let wanted = content(4, 2);
    let (before, node) = (bed.file(ROOT, "before"), bed.file(dir, &made));
    bed.write(before, 0, &wanted);
    bed.fsync(before);
    bed.write(node, 0, &content(5, 1));
    bed.fsync(node);
    bed.mount.setxattr(node, b"user.a", b"value", XattrMode::Set).unwrap();
    // A name of it that can be made, were it there; a directory in one that is not there; names that change.
    bed.mount.link(node, ROOT, b"linked").unwrap();
    bed.mount.rename(ROOT, b"linked", ROOT, b"renamed", RenameFlags::default()).unwrap();
    let inner = bed.dir(dir, &below);
    bed.file(inner, "inside");
    let after = bed.file(empty, "after");
    bed.write(after, 0, &wanted);
    bed.fsync(after);
    bed.mount.unlink(ROOT, b"renamed").unwrap();
    bed.mount.fsyncdir(ROOT, Handle(0), false).unwrap();
    rot(&bed, of_dir[1].1);
    let bed = bed.crash(3);
    for path in ["before", "empty/after"] {
        assert_eq!(bed.content(bed.find(path).unwrap().node), wanted, "{path}");
    }
    assert!(is_eio(bed.mount.lookup(dir, made.as_bytes())));
    for name in [&b"linked"[..], b"renamed"] {
        assert!(matches!(bed.mount.lookup(ROOT, name), Err(FsError::NotFound)));
    }
    assert_eq!(bed.pool.store().suspended(), None);
    let bed = bed.reopen(4);
    assert_eq!(bed.content(bed.find("empty/after").unwrap().node), wanted);
}

#[test]
fn a_dataset_that_cannot_be_opened_loses_its_logged_changes_and_keeps_no_other_out() {
    let bed = bed();
    let (home, root) = crate::quota::dataset(&bed, "tank/home", &[("atime", "off")]);
    let id = home.id();
    drop(home);
    bed.pool.commit().unwrap();
    // The newest node that begins with a root directory is that of the dataset that was changed last.
    bed.file(root, "old");
    bed.pool.commit().unwrap();
    let first = Key::new(items::ROOT_INODE.get(), items::INODE, 0);
    let lost = nodes(&bed, 0).remove(&first).unwrap();
    let (a, b) = (bed.file(root, "a"), bed.file(ROOT, "b"));
    for node in [a, b, a] {
        bed.write(node, 0, b"content");
        bed.fsync(node);
    }
    rot(&bed, &lost);
    let bed = bed.crash(3);
    assert_eq!(bed.content(bed.find("b").unwrap().node), b"content");
    let home = bed.pool.dataset(id).unwrap();
    assert!(is_eio(bed.mount.attach(home, Some((ROOT_DATASET, b"home".to_vec())))));
    assert_eq!(bed.pool.store().suspended(), None);
    bed.reopen(4);
}
