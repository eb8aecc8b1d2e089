//! Deleting returns at once, and space comes back afterwards: in steps, through crashes, none of it lost.

use crate::bed::{Bed, READ_WRITE, ROOT};
use crate::quota::dataset;
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_format::{ByteLen, Timestamp};
use larder_pool::PoolError;
use larder_sim::{Fault, SimWorld, Survival};
use std::sync::Arc;

/// Bytes of a record.
const RECORD: usize = 4096;

/// Records that differ and compress to little, from number `first` on.
fn records(first: usize, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count * RECORD];
    for (i, record) in bytes.chunks_exact_mut(RECORD).enumerate() {
        record[..8].copy_from_slice(&((first + i) as u64 + 1).to_le_bytes());
    }
    bytes
}

/// A file of so many records.
fn file(bed: &Bed, parent: NodeId, name: &str, count: usize) -> NodeId {
    let node = bed.file(parent, name);
    for first in (0..count).step_by(256) {
        bed.write(node, (first * RECORD) as u64, &records(first, 256.min(count - first)));
    }
    node
}

fn small_records() -> Bed {
    Bed::new(&[("recordsize", "4096")])
}

/// Removes everything that is to be removed.
fn free_all(bed: &Bed) {
    while bed.mount.reap_step(50).unwrap() {}
    while bed.pool.destroy_step(50).unwrap() {}
}

/// Nothing is left of what was deleted, and the pool's own check finds nothing.
fn check_all_free(bed: &Bed) {
    // A call into a volume that was detached keeps its dataset; the commit lets go of such volumes.
    bed.pool.commit().unwrap();
    free_all(bed);
    for _ in 0..3 {
        bed.pool.commit().unwrap();
    }
    assert!(bed.pool.destroyed().is_empty(), "a destroyed dataset is left");
    assert_eq!(bed.pool.freeing_bytes(), 0);
    bed.check();
    bed.check_tree();
}

fn available(bed: &Bed) -> u64 {
    let space = bed.mount.statfs(ROOT).unwrap();
    space.available * u64::from(space.block_size)
}

#[test]
fn a_destroyed_dataset_is_gone_at_once_and_its_space_comes_back() {
    let bed = small_records();
    bed.pool.commit().unwrap();
    let before = available(&bed);
    let (home, root) = dataset(&bed, "tank/home", &[("compression", "off"), ("quota", "100000000")]);
    file(&bed, root, "file", 3000);
    bed.pool.commit().unwrap();
    let held = home.usage().referenced;
    assert!(held > 3000 * 4096);
    bed.mount.detach(home.id()).unwrap();
    let id = home.id();
    drop(home);
    bed.pool.destroy_dataset(id).unwrap();
    assert!(matches!(bed.pool.dataset_by_name("tank/home"), Err(PoolError::NotFound(_))));
    assert!(bed.pool.dataset(id).is_none() && bed.pool.datasets().len() == 1);
    assert!(matches!(bed.pool.destroy_dataset(id), Err(PoolError::NotFound(_))));
    assert_eq!(bed.pool.share(larder_pool::ROOT_DATASET).children, 0, "it counts for nobody");
    assert!(bed.pool.freeing_bytes() >= held, "nothing was freed yet");
    // The name, and what belonged to it, can be given anew while the old one goes.
    let (_, root) = dataset(&bed, "tank/home", &[]);
    file(&bed, root, "other", 10);
    assert!(
        bed.pool.effective(bed.pool.dataset_by_name("tank/home").unwrap().id(), "quota").unwrap().value
            == "0"
    );
    let bed = bed.reopen(7);
    assert_eq!(bed.pool.destroyed().len(), 1);
    assert!(bed.pool.destroy_step(100).unwrap(), "it goes in steps");
    bed.pool.commit().unwrap();
    bed.check();
    check_all_free(&bed);
    let lost = before.saturating_sub(available(&bed));
    assert!(lost < 1 << 20, "{lost} bytes did not come back");
    let home = bed.pool.dataset_by_name("tank/home").unwrap();
    assert_eq!(home.usage().logical, 10 * 4096);
}

#[test]
fn a_call_that_began_before_a_dataset_was_destroyed_leaves_nothing() {
    let bed = small_records();
    let (home, root) = dataset(&bed, "tank/home", &[]);
    let node = file(&bed, root, "file", 100);
    bed.pool.commit().unwrap();
    let volume = bed.mount.volume(home.id()).unwrap();
    bed.mount.detach(home.id()).unwrap();
    bed.pool.destroy_dataset(home.id()).unwrap();
    free_all(&bed);
    bed.pool.commit().unwrap();
    // A writer comes late, who still has the inode; the dataset waits for the volume.
    let (_, inode) = node.unpack();
    volume.write(inode, Some(1 << 20), &records(0, 9), false).unwrap();
    bed.pool.commit().unwrap();
    assert!(home.usage().logical > 0);
    drop((volume, home));
    check_all_free(&bed);
}

#[test]
fn a_call_that_began_before_a_dataset_went_into_the_trash_is_done_again_after_a_crash() {
    let bed = small_records();
    let (home, root) = dataset(&bed, "tank/home", &[]);
    let node = file(&bed, root, "file", 100);
    bed.pool.commit().unwrap();
    let volume = bed.mount.volume(home.id()).unwrap();
    bed.mount.detach(home.id()).unwrap();
    let until = Timestamp { secs: 4_000_000_000, nanos: 0 };
    bed.pool.trash_dataset(home.id(), until).unwrap();
    bed.pool.commit().unwrap();
    // A writer comes late, who still has the inode; somebody else's fsync logs it.
    let (_, inode) = node.unpack();
    volume.setattr(inode, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    let other = file(&bed, ROOT, "other", 10);
    bed.fsync(other);
    let id = home.id();
    drop((volume, home));
    let bed = bed.crash(7);
    assert!(bed.mount.lookup(ROOT, b"other").is_ok(), "it was synced");
    bed.pool.restore_dataset(id, "tank/home").unwrap();
    bed.pool.commit().unwrap();
    bed.check();
    bed.check_tree();
}

#[test]
fn what_is_being_freed_only_falls_until_it_is_nothing() {
    let bed = small_records();
    let (home, root) = dataset(&bed, "tank/home", &[]);
    file(&bed, root, "file", 2000);
    for name in ["a", "b", "c"] {
        file(&bed, ROOT, name, 1500);
    }
    let kept = file(&bed, ROOT, "kept", 10);
    bed.pool.commit().unwrap();
    bed.mount.detach(home.id()).unwrap();
    bed.pool.destroy_dataset(home.id()).unwrap();
    drop(home);
    for name in ["a", "b", "c"] {
        bed.mount.unlink(ROOT, name.as_bytes()).unwrap();
    }
    let mut last = bed.pool.freeing_bytes();
    assert!(last > 6000 * 100, "{last}");
    let bed = bed.reopen(3);
    let mut steps = 0;
    loop {
        let more = bed.mount.reap_step(100).unwrap() | bed.pool.destroy_step(100).unwrap();
        steps += 1;
        if steps % 7 == 0 || !more {
            bed.pool.commit().unwrap();
        }
        let now = bed.pool.freeing_bytes();
        assert!(now <= last, "step {steps}: {now} bytes after {last}");
        last = now;
        if now == 0 {
            break;
        }
        assert!(steps < 1000);
    }
    assert!(steps > 40, "it took {steps} steps");
    assert_eq!(bed.read(kept, 0, 10 * 4096), records(0, 10));
    check_all_free(&bed);
}

/// Power is cut at every event of destroying a dataset and removing a file, and of the steps and commits
/// that free them; at each the dataset is whole or gone, and all space comes back.
#[test]
fn power_cuts_while_space_is_freed_lose_nothing_and_leak_nothing() {
    let bed = Bed::with_layout("mirror", &[ByteLen::new(64 << 20); 2], &[("recordsize", "4096")]);
    let (home, root) = dataset(&bed, "tank/home", &[]);
    file(&bed, root, "file", 400);
    file(&bed, ROOT, "big", 300);
    let cut_off = file(&bed, ROOT, "cut", 1500);
    file(&bed, ROOT, "kept", 20);
    bed.pool.commit().unwrap();
    let start = bed.sim.trace().len();
    bed.mount.detach(home.id()).unwrap();
    bed.pool.destroy_dataset(home.id()).unwrap();
    drop(home);
    bed.mount.unlink(ROOT, b"big").unwrap();
    bed.resize(cut_off, 5000);
    bed.pool.commit().unwrap();
    bed.sim.mark(1);
    dataset(&bed, "tank/home", &[]);
    for _ in 0..3 {
        bed.mount.reap_step(100).unwrap();
        bed.pool.destroy_step(100).unwrap();
        bed.pool.commit().unwrap();
    }
    free_all(&bed);
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
        let gone = bed.find("big").is_err();
        assert!(gone || !promised, "cut {cut}: the file is back");
        let content = bed.content(bed.find("cut").unwrap().node);
        let wanted = if gone { 5000 } else { 1500 * RECORD };
        assert!(content == records(0, 1500)[..wanted], "cut {cut}: {} bytes", content.len());
        assert_eq!(bed.content(bed.find("kept").unwrap().node), records(0, 20));
        let home = bed.pool.dataset_by_name("tank/home");
        let whole = home.as_ref().is_ok_and(|home| home.usage().logical == 400 * RECORD as u64);
        let empty = home.as_ref().map_or(true, |home| home.usage().logical == 0);
        assert!(if gone { empty } else { whole }, "cut {cut}: half a dataset");
        drop(home);
        // Another crash at once, in the middle of going on.
        bed.pool.destroy_step(60).unwrap();
        bed.mount.reap_step(60).unwrap();
        let bed = if cut % 3 == 0 { bed.reopen(cut as u64 + 1) } else { bed.crash(cut as u64 + 1) };
        check_all_free(&bed);
    }
}

#[test]
fn a_file_of_many_extents_is_cut_at_once_and_its_tail_goes_in_steps() {
    let bed = small_records();
    let node = file(&bed, ROOT, "file", 100_000);
    bed.pool.commit().unwrap();
    let stored =
        |bed: &Bed| bed.pool.dataset(larder_pool::ROOT_DATASET).unwrap().usage().logical / RECORD as u64;
    bed.resize(node, 10 * RECORD as u64 + 5);
    let left = stored(&bed);
    assert!(left > 98_000, "one operation dropped {} extents", 100_000 - left);
    let bed = bed.reopen(2);
    assert!(bed.mount.reap_step(1000).unwrap());
    assert_eq!(stored(&bed), left - 1000);
    // Nobody sees the tail; who makes the file longer takes it away.
    assert_eq!(bed.mount.lseek(node, Handle(0), 0, Seek::Hole), Ok(10 * RECORD as u64 + 5));
    bed.resize(node, 100_000 * RECORD as u64);
    assert_eq!(stored(&bed), 11);
    let mut wanted = records(0, 10);
    wanted.extend(&records(10, 1)[..5]);
    wanted.resize(20 * RECORD, 0);
    assert_eq!(bed.read(node, 0, wanted.len() as u32), wanted);
    assert!(bed.read(node, 50_000 * RECORD as u64, 1 << 20).iter().all(|&byte| byte == 0));
    check_all_free(&bed);
}

#[test]
fn an_unlinked_file_of_many_extents_goes_in_steps_though_it_was_cut_while_open() {
    let bed = small_records();
    let node = file(&bed, ROOT, "file", 5000);
    bed.pool.commit().unwrap();
    bed.mount.open(node, READ_WRITE).unwrap();
    bed.mount.unlink(ROOT, b"file").unwrap();
    bed.resize(node, 2 * RECORD as u64);
    free_all(&bed);
    assert_eq!(bed.read(node, 0, 1 << 20), records(0, 2), "it is still open");
    bed.mount.release(node, Handle(0)).unwrap();
    check_all_free(&bed);
    assert_eq!(bed.pool.dataset(larder_pool::ROOT_DATASET).unwrap().usage().logical, 0);
}

#[test]
fn a_hole_of_many_extents_is_punched_in_steps() {
    let bed = small_records();
    let node = file(&bed, ROOT, "file", 5000);
    bed.fsync(node);
    bed.pool.commit().unwrap();
    let (from, len) = (3 * RECORD as u64 + 7, 4990 * RECORD as u64);
    bed.mount.fallocate(node, Handle(0), from, len, Allocate::Punch).unwrap();
    bed.fsync(node);
    let bed = bed.crash(2);
    let mut wanted = records(0, 5000);
    wanted[from as usize..(from + len) as usize].fill(0);
    assert!(bed.content(node) == wanted);
    check_all_free(&bed);
}

/// Cuts, growth, writes and holes of one large file by seed, with steps, commits and crashes between.
#[test]
fn a_large_file_has_the_content_that_it_was_given_whatever_of_it_is_being_freed() {
    const MOST: u64 = 3000 * RECORD as u64;
    for seed in 0..4 {
        let entropy = SeededEntropy::new(seed);
        let below = |n: u64| entropy.next_u64() % n;
        let mut bed = small_records();
        let node = bed.file(ROOT, "file");
        let mut model: Vec<u8> = Vec::new();
        for step in 0..60 {
            match below(12) {
                0..3 => {
                    let at = below(model.len() as u64 + 1);
                    let first = below(1 << 30) as usize;
                    let count = (1 + below(1500)).min(MOST.saturating_sub(at) / RECORD as u64) as usize;
                    let data = records(first, count);
                    for (i, part) in data.chunks(1 << 20).enumerate() {
                        bed.write(node, at + (i << 20) as u64, part);
                    }
                    model.resize(model.len().max(at as usize + data.len()), 0);
                    model[at as usize..][..data.len()].copy_from_slice(&data);
                }
                3 | 4 => {
                    let size = if below(3) == 0 { below(MOST) } else { below(model.len() as u64 + 1) };
                    bed.resize(node, size);
                    model.resize(size as usize, 0);
                }
                5 => {
                    let at = below(MOST);
                    bed.write(node, at, b"far away");
                    model.resize(model.len().max(at as usize + 8), 0);
                    model[at as usize..][..8].copy_from_slice(b"far away");
                }
                6 => {
                    let (at, len) = (below(MOST), 1 + below(MOST));
                    let keep_size = below(2) == 0;
                    bed.mount.fallocate(node, Handle(0), at, len, Allocate::Zero { keep_size }).unwrap();
                    if !keep_size {
                        model.resize(model.len().max((at + len) as usize), 0);
                    }
                    let size = model.len() as u64;
                    model[at.min(size) as usize..(at + len).min(size) as usize].fill(0);
                }
                7 => drop(bed.mount.reap_step(1 + below(500) as usize).unwrap()),
                8 => drop(bed.pool.commit().unwrap()),
                9 => {
                    bed.fsync(node);
                    bed = bed.crash(1000 * seed + step);
                }
                10 => bed = bed.reopen(1000 * seed + step),
                _ => {
                    let found = bed.content(node);
                    assert_eq!(found.len(), model.len(), "seed {seed}, step {step}");
                    assert!(found == model, "seed {seed}, step {step}");
                }
            }
        }
        assert!(bed.content(node) == model, "seed {seed}");
        check_all_free(&bed);
    }
}

#[test]
fn what_was_to_be_freed_when_the_pool_was_suspended_is_freed_when_it_goes_on() {
    let bed = Bed::with_layout("single", &[ByteLen::new(64 << 20)], &[("recordsize", "4096")]);
    let other = file(&bed, ROOT, "other", 10);
    bed.pool.commit().unwrap();
    let root = bed.pool.dataset(larder_pool::ROOT_DATASET).unwrap();
    let before = root.usage().referenced;
    file(&bed, ROOT, "file", 2000);
    bed.pool.commit().unwrap();
    bed.mount.unlink(ROOT, b"file").unwrap();
    bed.sim.device(0).inject(Fault::Full);
    while bed.pool.store().suspended().is_none() {
        bed.write(other, 0, &records(7, 1));
        let _ = bed.pool.commit();
    }
    for _ in 0..3 {
        bed.mount.reap_step(50).unwrap_err();
    }
    bed.sim.device(0).clear_faults();
    bed.upkeep.devices.clear(None).unwrap();
    while bed.mount.reap_step(50).unwrap() {}
    for _ in 0..3 {
        bed.pool.commit().unwrap();
    }
    let after = root.usage().referenced;
    assert!(after <= before + 4096, "{after} bytes, {before} before");
    assert_eq!(bed.pool.freeing_bytes(), 0);
    drop(root);
    check_all_free(&bed);
}
