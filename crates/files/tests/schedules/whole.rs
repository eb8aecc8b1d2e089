//! Data of one write is found after a power cut as a whole, or not at all, whatever was written over it, however it
//! lies to the ends of records, and whatever is stored and committed beside it.

use crate::bed::{Bed, ROOT};
use crate::cuts::{Tasks, committing, explore, flushing, rest, task};
use larder_device::{Entropy, SeededEntropy};
use larder_format::ByteLen;
use larder_pool::ROOT_DATASET;
use larder_sim::{SimWorld, Survival};
use larder_upkeep::Task;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Writes to a file; each wrote its number, from 1 on.
const WRITES: u64 = 40;
const FILES: u64 = 2;

/// The writes to each file.
type Written = Mutex<[Vec<Range<u64>>; FILES as usize]>;

fn check(bed: &Bed, written: &Written) -> Result<(), String> {
    for (file, writes) in written.lock().unwrap().iter().enumerate() {
        let content = bed.find(&format!("file{file}")).map_or_else(|_| Vec::new(), |at| bed.content(at.node));
        for (number, range) in writes.iter().enumerate().map(|(index, range)| (index as u8 + 1, range)) {
            if !content.contains(&number) {
                continue;
            }
            // Later ones may lie over it.
            let lacking =
                range.clone().find(|&at| content.get(at as usize).is_none_or(|&byte| byte < number));
            if let Some(at) = lacking {
                return Err(format!("file {file} has a part of what was written to {range:?}, not at {at}"));
            }
        }
    }
    Ok(())
}

fn tasks<'a>(seed: u64, bed: &'a Bed, written: &'a Written) -> Vec<larder_sync::schedule::Task<'a>> {
    let mut tasks = Vec::new();
    for file in 0..FILES {
        let entropy = SeededEntropy::new(seed ^ (file + 1) << 32);
        let below = move |n: u64| entropy.next_u64() % n;
        tasks.push(task("writer", move || {
            let node = bed.file(ROOT, &format!("file{file}"));
            let (record, mut end) = if seed.is_multiple_of(2) { (4096, 0) } else { (32_768, 0) };
            // A stream, aligned or not, or all over the place.
            let (kind, len) = (below(3), [record / 4 + below(record), 8 * record][below(2) as usize]);
            for number in 0..WRITES {
                let range = match kind {
                    0 | 1 => end % (40 * record)..end % (40 * record) + len,
                    _ => {
                        let start = below(20 * record);
                        start..start + 1 + below(6 * record)
                    }
                };
                end = range.end;
                written.lock().unwrap()[file as usize].push(range.clone());
                bed.write(node, range.start, &vec![number as u8 + 1; (range.end - range.start) as usize]);
                if below(20) == 0 {
                    bed.fsync(node);
                }
                rest(below(20));
            }
        }));
    }
    tasks.extend([flushing(bed, 6, 80), committing(bed, 5, 100)]);
    if seed % 3 == 1 {
        tasks.push(task("recut", move || {
            for turn in 0..4 {
                rest(100);
                let size = ["512", "65536", "4096", "16384"][(seed / 3 + turn) as usize % 4];
                let chunking = if (seed + turn).is_multiple_of(5) { "content" } else { "fixed" };
                bed.pool.set_property(ROOT_DATASET, "recordsize", size).unwrap();
                bed.pool.set_property(ROOT_DATASET, "chunking", chunking).unwrap();
                bed.upkeep.passes.start(Task::Records, vec![ROOT_DATASET], 0).unwrap();
                for _ in 0..12 {
                    rest(20);
                    bed.upkeep.passes.step(30_000).unwrap();
                }
                drop(bed.upkeep.passes.stop());
            }
        }));
    }
    tasks.push(task("tick", move || {
        for _ in 0..8 {
            bed.pool.tick().unwrap();
            rest(50);
        }
    }));
    tasks
}

#[test]
fn no_power_cut_leaves_a_part_of_one_write() {
    let kinds = [("4096", "fixed"), ("32768", "fixed"), ("4096", "content"), ("32768", "content")];
    let images = kinds.map(|(record_size, chunking)| {
        let properties = [("recordsize", record_size), ("chunking", chunking), ("compression", "off")];
        let bed = Bed::with_layout("raidz1", &[ByteLen::new(64 << 20); 3], &properties);
        bed.pool.set_pool_property("memory", "2097152").unwrap();
        bed.pool.commit().unwrap();
        bed.sim.images()
    });
    explore(&images, tasks as Tasks<Written>, check);
}

#[test]
fn no_power_cut_leaves_a_part_of_one_write_that_is_longer_than_a_record_of_the_log() {
    let bed = Bed::with_layout("single", &[ByteLen::new(64 << 20)], &[("compression", "off")]);
    let (node, len) = (bed.file(ROOT, "file"), 700_000);
    bed.write(node, 0, &vec![1; len]);
    bed.pool.commit().unwrap();
    let start = bed.sim.trace().len();
    bed.write(node, 0, &vec![2; len]);
    bed.fsync(node);
    let trace = bed.sim.trace();
    let mut sweep = trace.sweep();
    for cut in start..=trace.len() {
        sweep.advance_to(cut);
        let world = SimWorld::from_images(sweep.images(Survival::DropAll));
        let after = Bed::import(world, Arc::clone(&bed.clock), 2);
        let content = after.content(after.find("file").unwrap().node);
        assert!(content == vec![content[0]; len], "cut {cut} of {}", trace.len());
    }
}
