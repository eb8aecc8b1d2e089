//! Files that are cut anew again and again beside readers and writers, who write what is there already: at any moment,
//! and after any power cut, everybody reads that.

use crate::bed::{Bed, ROOT};
use crate::cuts::{Tasks, committing, explore, flushing, rest, task};
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_format::ByteLen;
use larder_pool::ROOT_DATASET;
use larder_upkeep::Task;

const LEN: u64 = 150_000;
const CUTS: [(&str, &str); 5] =
    [("4096", "fixed"), ("65536", "fixed"), ("512", "fixed"), ("8192", "content"), ("16384", "fixed")];

fn content() -> Vec<u8> {
    SeededEntropy::new(1).bytes(LEN as usize)
}

fn check(bed: &Bed, _: &()) -> Result<(), String> {
    for name in ["large", "small"] {
        let found = bed.content(bed.find(name).unwrap().node);
        let differs = found.iter().zip(content()).position(|(a, b)| *a != b);
        if let Some(at) = differs {
            return Err(format!("{name} differs at {at}"));
        }
    }
    bed.check_tree();
    Ok(())
}

fn tasks<'a>(seed: u64, bed: &'a Bed, _: &'a ()) -> Vec<larder_sync::schedule::Task<'a>> {
    let mut tasks = Vec::new();
    let nodes = ["large", "small"].map(|name| bed.find(name).unwrap().node);
    for number in 0..4 {
        let entropy = SeededEntropy::new(seed ^ (number + 1) << 32);
        let below = move |n: u64| entropy.next_u64() % n;
        tasks.push(task(if number < 2 { "reader" } else { "writer" }, move || {
            let content = content();
            for turn in 0..60 {
                let node = nodes[turn % 2];
                let end = if turn % 2 == 0 { LEN } else { 30_000 };
                let (at, len) = (below(end), 1 + below(20_000));
                let range = at as usize..(at + len).min(end) as usize;
                if number < 2 {
                    let found = bed.read(node, at, range.len() as u32);
                    assert!(found == content[range.clone()], "{range:?} is another");
                } else {
                    bed.write(node, at, &content[range]);
                    if below(15) == 0 {
                        bed.fsync(node);
                    }
                }
                rest(below(20));
            }
        }));
    }
    tasks.extend([flushing(bed, 6, 60), committing(bed, 4, 100)]);
    tasks.push(task("recut", move || {
        for turn in 0..6 {
            let (size, chunking) = CUTS[(seed + turn) as usize % CUTS.len()];
            bed.pool.set_property(ROOT_DATASET, "recordsize", size).unwrap();
            bed.pool.set_property(ROOT_DATASET, "chunking", chunking).unwrap();
            bed.upkeep.passes.start(Task::Records, vec![ROOT_DATASET], 0).unwrap();
            for _ in 0..10 {
                rest(5);
                bed.upkeep.passes.step([1, 40_000, 1 << 20][(seed + turn) as usize % 3]).unwrap();
            }
            drop(bed.upkeep.passes.stop());
        }
    }));
    tasks
}

#[test]
fn whoever_reads_meanwhile_reads_what_is_there() {
    let images = [("4096", "off"), ("65536", "off"), ("16384", "lz4")].map(|(record_size, codec)| {
        let properties = [("recordsize", record_size), ("compression", codec)];
        let bed = Bed::with_layout("raidz1", &[ByteLen::new(64 << 20); 3], &properties);
        bed.pool.set_pool_property("memory", "2097152").unwrap();
        let (large, small): (NodeId, NodeId) = (bed.file(ROOT, "large"), bed.file(ROOT, "small"));
        bed.write(large, 0, &content());
        bed.write(small, 0, &content()[..30_000]);
        bed.pool.commit().unwrap();
        bed.sim.images()
    });
    explore(&images, tasks as Tasks<()>, check);
}

/// Many moments between a look at a file and one at its tree, with the pass in one of them.
#[test]
fn whoever_looked_at_a_file_before_its_records_were_others_reads_what_is_there() {
    const SMALL: usize = 30_000;
    let bed = Bed::with_layout("single", &[ByteLen::new(64 << 20)], &[("recordsize", "4096")]);
    let small = bed.file(ROOT, "small");
    bed.write(small, 0, &content()[..SMALL]);
    bed.pool.commit().unwrap();
    let tasks: Tasks<()> = |seed, bed, ()| {
        let reader = task("reader", move || {
            let (node, content) = (bed.find("small").unwrap().node, content());
            for turn in 0..400 {
                let at = (seed + turn * 977) as usize % (SMALL - 3000);
                assert!(bed.read(node, at as u64, 3000) == content[at..at + 3000], "from {at}");
            }
        });
        let recut = task("recut", move || {
            for size in ["65536", "4096"].into_iter().cycle().take(12) {
                bed.pool.set_property(ROOT_DATASET, "recordsize", size).unwrap();
                bed.upkeep.passes.start(Task::Records, vec![ROOT_DATASET], 0).unwrap();
                while bed.upkeep.passes.step(1 << 20).unwrap().is_some() {}
            }
        });
        vec![reader, recut]
    };
    explore(&[bed.sim.images()], tasks, |bed, ()| {
        let found = bed.content(bed.find("small").unwrap().node);
        if found == content()[..SMALL] { Ok(()) } else { Err("it is another".into()) }
    });
}
