//! A file is written anew and then the old one removed: after a power cut one of them is there, in whatever way either
//! was done, and whatever goes on beside.

use crate::bed::{Bed, READ_WRITE, ROOT};
use crate::cuts::{Tasks, attach, committing, explore, flushing, rest, task};
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_format::ByteLen;
use larder_pool::ROOT_DATASET;
use larder_sim::DeviceImage;
use larder_sync::schedule::Task;
use std::ops::Range;

const LEN: usize = 9_000;
const FILES: u64 = 8;
/// Files, and datasets, where several workers replace them.
const MANY: u64 = 30;
const DATASETS: u64 = 8;

fn bytes(letter: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (letter as usize * 31 + i * 7 + i / 251) as u8).collect()
}

/// A pool with a second dataset, `d1`, in which there are some files.
fn prepared(files: u64, properties: &[(&str, &str)], age: impl FnOnce(&Bed)) -> Vec<DeviceImage> {
    let bed = Bed::with_layout("single", &[ByteLen::new(64 << 20)], properties);
    age(&bed);
    bed.pool.create_dataset("tank/d1", Default::default()).unwrap();
    bed.pool.commit().unwrap();
    attach(&bed);
    let dir = bed.find("d1").unwrap().node;
    for i in 0..files {
        bed.write(bed.file(dir, &format!("old{i}")), 0, &bytes(i, LEN));
    }
    bed.pool.commit().unwrap();
    bed.sim.images()
}

fn is_whole(bed: &Bed, path: &str, i: u64) -> bool {
    bed.find(path).is_ok_and(|at| bed.content(at.node) == bytes(i, LEN))
}

/// Every file is whole in one of its places.
fn check<const COUNT: u64>(bed: &Bed, (): &()) -> Result<(), String> {
    match (0..COUNT).find(|i| {
        let places = [format!("d1/old{i}"), format!("d1/new{i}"), format!("new{i}")];
        !places.into_iter().any(|path| is_whole(bed, &path, *i))
    }) {
        Some(lost) => Err(format!("file {lost} is nowhere")),
        None => Ok(()),
    }
}

/// A worker that replaces one file after the other, and rests after each for up to so many steps.
fn replacing<'a>(seed: u64, bed: &'a Bed, files: Range<u64>, most: u64) -> Task<'a> {
    let entropy = SeededEntropy::new(seed ^ 0x5eed);
    task("worker", move || {
        for i in files {
            make_anew(bed, &entropy, i);
            take_away(bed, &entropy, i);
            rest(entropy.next_u64() % most);
        }
    })
}

/// Three workers that replace many files without a rest.
fn thirds(seed: u64, bed: &Bed) -> impl Iterator<Item = Task<'_>> {
    let third = MANY / 3;
    (0..3).map(move |n| replacing(seed ^ n << 32, bed, n * third..(n + 1) * third, 1))
}

/// Makes a file anew, in one of three ways.
fn make_anew(bed: &Bed, entropy: &SeededEntropy, i: u64) {
    let dir = bed.find("d1").unwrap().node;
    let old = bed.find(&format!("d1/old{i}")).unwrap().node;
    let to = if entropy.next_u64().is_multiple_of(2) { ROOT } else { dir };
    let new = bed.file(to, &format!("new{i}"));
    let data = bytes(i, LEN);
    match entropy.next_u64() % 3 {
        0 => bed.write(new, 0, &data),
        1 => (data.chunks(2_500).enumerate()).for_each(|(n, part)| bed.write(new, n as u64 * 2_500, part)),
        _ => {
            let mut done = 0;
            while done < LEN as u64 {
                let (from, to) = ((old, Handle(0), done), (new, Handle(0), done));
                done += bed.mount.copy_file_range(from, to, LEN as u64 - done).unwrap();
            }
        }
    }
}

/// Takes what a file held away, in one of five ways.
fn take_away(bed: &Bed, entropy: &SeededEntropy, i: u64) {
    let dir = bed.find("d1").unwrap().node;
    let name = format!("old{i}");
    let old = bed.find(&format!("d1/{name}")).unwrap().node;
    match entropy.next_u64() % 5 {
        0 => bed.mount.unlink(dir, name.as_bytes()).unwrap(),
        1 => {
            let empty = format!("empty{i}");
            bed.file(dir, &empty);
            bed.mount.rename(dir, empty.as_bytes(), dir, name.as_bytes(), RenameFlags::default()).unwrap();
        }
        2 => bed.resize(old, 100),
        3 => bed.mount.fallocate(old, Handle(0), 0, LEN as u64, Allocate::Punch).unwrap(),
        _ => {
            let opened = bed.mount.open(old, OpenFlags { truncate: true, ..READ_WRITE }).unwrap();
            bed.mount.release(old, opened).unwrap();
        }
    }
}

#[test]
fn no_power_cut_leaves_neither_old_nor_new_beside_fsyncs_and_commits() {
    let images = ["fixed", "content"].map(|chunking| {
        prepared(FILES, &[("recordsize", "4096"), ("chunking", chunking), ("compression", "off")], |_| {})
    });
    let tasks: Tasks<()> = |seed, bed, ()| {
        let bystander = move || {
            let node = bed.file(ROOT, "db");
            for i in 0..25u64 {
                bed.write(node, i % 3 * 4096, &[i as u8; 4096]);
                bed.fsync(node);
                rest(30);
            }
        };
        let bystander = task("bystander", bystander);
        vec![replacing(seed, bed, 0..FILES, 60), bystander, flushing(bed, 6, 80), committing(bed, 4, 120)]
    };
    explore(&images, tasks, check::<FILES>);
}

#[test]
fn no_power_cut_leaves_neither_old_nor_new_beside_a_stream_and_fsyncs_that_wait_for_all_of_it() {
    const PART: usize = 256 << 10;
    let images = [prepared(FILES, &[("compression", "off")], |_| {})];
    let tasks: Tasks<()> = |seed, bed, ()| {
        let stream = move || {
            let node = bed.file(ROOT, "stream");
            for i in 0..40u64 {
                bed.write(node, i % 12 * PART as u64, &bytes(i, PART));
                rest(10);
            }
        };
        // More than the log takes is dirty, so with a removal since the last one each is a commit.
        let bystander = move || {
            let node = bed.file(ROOT, "db");
            for i in 0..25u64 {
                bed.write(node, i % 3 * 4096, &[i as u8; 4096]);
                bed.fsync(node);
                rest(10);
            }
        };
        vec![replacing(seed, bed, 0..FILES, 60), task("stream", stream), task("bystander", bystander)]
    };
    explore(&images, tasks, check::<FILES>);
}

#[test]
fn no_power_cut_leaves_neither_old_nor_new_in_a_pool_that_was_written_through() {
    let age = |bed: &Bed| {
        // Plenty of room in segments that lost some of what they held, and few that are free.
        const RECORD: usize = 128 << 10;
        bed.pool.set_pool_property("memory", "16777216").unwrap();
        let filler = bed.file(ROOT, "filler");
        for round in 1..5u64 {
            for i in (0..160).step_by(round as usize) {
                bed.write(filler, i * RECORD as u64, &bytes(1_000 * round + i, RECORD));
                if i.is_multiple_of(4 * round) {
                    bed.pool.commit().unwrap();
                }
            }
            bed.pool.commit().unwrap();
        }
    };
    let images = [prepared(MANY, &[("compression", "off")], age)];
    let tasks: Tasks<()> = |seed, bed, ()| {
        let tending = move || {
            for _ in 0..12 {
                bed.pool.tick().unwrap();
                rest(10);
            }
        };
        thirds(seed, bed).chain([task("tick", tending)]).collect()
    };
    explore(&images, tasks, check::<MANY>);
}

#[test]
fn no_power_cut_leaves_neither_a_destroyed_dataset_or_snapshot_nor_the_copies_of_its_files() {
    let images = [prepared(FILES, &[("recordsize", "4096")], |bed| {
        bed.pool.snapshot(ROOT_DATASET, "shot").unwrap();
    })];
    let tasks: Tasks<()> = |seed, bed, ()| {
        let worker = move || {
            for i in 0..FILES {
                let new = bed.file(ROOT, &format!("new{i}"));
                bed.write(new, 0, &bytes(i, LEN));
            }
            if seed.is_multiple_of(2) {
                bed.pool.destroy_snapshot(ROOT_DATASET, "shot").unwrap();
            } else {
                let d1 = bed.pool.dataset_by_name("tank/d1").unwrap().id();
                bed.mount.detach(d1).unwrap();
                bed.pool.destroy_dataset(d1).unwrap();
            }
            bed.pool.commit().unwrap();
        };
        vec![task("worker", worker), committing(bed, 3, 40)]
    };
    explore(&images, tasks, |bed, ()| {
        check::<FILES>(bed, &())?;
        let has_shot = !bed.pool.snapshots(ROOT_DATASET).is_empty();
        match (0..FILES).find(|&i| !has_shot && !is_whole(bed, &format!("new{i}"), i)) {
            Some(lost) => Err(format!("the snapshot that held file {lost} is gone, and so is its copy")),
            None => Ok(()),
        }
    });
}

/// Commits find no moment without removals by themselves: then those who remove something wait.
#[test]
fn no_power_cut_leaves_neither_old_nor_new_where_removals_never_cease() {
    let images = [prepared(MANY, &[("recordsize", "4096"), ("compression", "off")], |bed| {
        for i in 0..DATASETS {
            bed.pool.create_dataset(&format!("tank/kept{i}"), Default::default()).unwrap();
        }
    })];
    let tasks: Tasks<()> = |seed, bed, ()| {
        let destroyer = move || {
            for i in 0..DATASETS {
                bed.write(bed.file(ROOT, &format!("kept{i}")), 0, &bytes(i, LEN));
                let dataset = bed.pool.dataset_by_name(&format!("tank/kept{i}")).unwrap().id();
                bed.pool.destroy_dataset(dataset).unwrap();
                rest(30);
            }
        };
        thirds(seed, bed).chain([task("destroyer", destroyer), committing(bed, 8, 1)]).collect()
    };
    explore(&images, tasks, |bed, ()| {
        check::<MANY>(bed, &())?;
        match (0..DATASETS).find(|i| {
            let name = format!("kept{i}");
            bed.pool.dataset_by_name(&format!("tank/{name}")).is_err() && !is_whole(bed, &name, *i)
        }) {
            Some(lost) => Err(format!("dataset {lost} and what it held is nowhere")),
            None => Ok(()),
        }
    });
}
