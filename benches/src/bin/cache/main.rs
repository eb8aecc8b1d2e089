//! The read cache's policy against others, on traces, at equal total bytes: RAM and SSD together are one cache to the
//! references.
//!
//! `cargo run --release -p larder-benches --bin cache -- --traces FOLDER` (see benches/README.md). Without a folder
//! only what it makes itself: independent reads by Zipf's law. No devices, no time: the same figures each time.

mod larder;
mod page;
mod references;
mod trace;

use clap::Parser;
use larder::{Ram, Ssd};
use larder_cache::CURVE_SIZES;
use std::path::PathBuf;
use trace::Trace;

/// Parts of the blocks that a trace reads, as sizes of the cache.
const SIZES: [f64; 4] = [0.02, 0.05, 0.1, 0.2];
/// SSD bytes a byte of RAM.
const RAM_PARTS: [usize; 2] = [20, 500];
/// Ids and reads that are made.
const IDS: usize = 200_000;
const READS: usize = 2_000_000;

/// Holds the read cache's policy against others.
#[derive(Debug, Parser)]
struct Args {
    /// A folder with traces, `NAME.lis.zst` each: lines of `start count ignored request`
    #[arg(long)]
    traces: Option<PathBuf>,
    /// Of the reads that are made, and of the cache's hashes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the page into this folder, as cache.md
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the hits of each reference at each size, to compare with other implementations, and nothing else
    #[arg(long)]
    references: bool,
}

/// One trace at one size.
struct Row {
    trace: String,
    size: f64,
    /// Hit ratios, in the order of `references::REFERENCES`.
    references: Vec<f64>,
    belady: f64,
    /// With RAM as in `RAM_PARTS`.
    larder: [Figures; 2],
}

#[derive(Clone, Copy)]
struct Figures {
    hit_ratio: f64,
    /// Of what a ring that admits everything writes.
    writes: f64,
}

impl Row {
    fn best(&self) -> f64 {
        self.references.iter().copied().fold(0.0, f64::max)
    }
}

fn main() {
    let args = Args::parse();
    let mut traces: Vec<Trace> =
        args.traces.iter().flat_map(|folder| trace::in_folder(folder).expect("traces")).collect();
    let zipf = |alpha| trace::zipf(alpha, IDS, READS, args.seed);
    traces.extend([0.7, 0.9, 1.0, 1.2].map(zipf));
    if args.references {
        return traces.iter().for_each(print_references);
    }
    let rows: Vec<Row> =
        traces.iter().flat_map(|trace| SIZES.map(|size| row(trace, size, args.seed))).collect();
    let scan = [0.7, 1.0].map(|alpha| (alpha, scan(&zipf(alpha), args.seed)));
    let curves = traces.iter().map(|trace| (trace.name.clone(), curve_error(trace, 0.1, args.seed)));
    let large = trace::zipf(0.9, 4_000_000, 16_000_000, args.seed);
    let curves: Vec<_> =
        curves.chain([("zipf 0.9, 20 times as large".into(), curve_error(&large, 0.1, args.seed))]).collect();
    let memory = [1_000_000, 10_000_000].map(|blocks| (blocks, larder::memory(blocks, args.seed)));
    let page = page::page(&rows, &scan, &curves, &memory);
    println!("{page}");
    if let Some(folder) = args.out {
        std::fs::write(folder.join("cache.md"), page).expect("the page can be written");
    }
}

fn print_references(trace: &Trace) {
    for size in SIZES {
        let room = (trace.ids as f64 * size) as usize;
        for (name, policy) in references::REFERENCES {
            println!("{} {size} {room} {name} {}", trace.name, policy(&trace.reads, trace.ids, room));
        }
        println!("{} {size} {room} Belady {}", trace.name, references::belady(&trace.reads, trace.ids, room));
    }
}

fn row(trace: &Trace, size: f64, seed: u64) -> Row {
    let room = (trace.ids as f64 * size) as usize;
    let part = |hits: usize| hits as f64 / trace.reads.len() as f64;
    let larder = RAM_PARTS.map(|ram_part| {
        let ram = (room / (ram_part + 1)).max(1);
        let mut ssd = Ssd::new(seed, room - ram);
        let hits = run(&trace.reads, &mut Ram::new(trace.ids, ram), &mut ssd);
        let ring = larder::written_by_ring(&trace.reads, trace.ids, ram, room - ram);
        Figures { hit_ratio: part(hits), writes: ssd.written() as f64 / ring as f64 }
    });
    Row {
        trace: trace.name.clone(),
        size,
        references: references::REFERENCES.map(|of| part(of.1(&trace.reads, trace.ids, room))).to_vec(),
        belady: part(references::belady(&trace.reads, trace.ids, room)),
        larder,
    }
}

/// Hits of RAM and SSD.
fn run(reads: &[u32], ram: &mut Ram, ssd: &mut Ssd) -> usize {
    reads.iter().filter(|id| ram.read(**id) || ssd.read(**id)).count()
}

/// By how much the hit ratio of the second half falls if ten times the cache is read once before it.
fn scan(trace: &Trace, seed: u64) -> f64 {
    let room = trace.ids / 10;
    let (first, second) = trace.reads.split_at(trace.reads.len() / 2);
    let [without, with] = [0, 10 * room].map(|scanned| {
        let mut ram = Ram::new(trace.ids + scanned, room / 20);
        let mut ssd = Ssd::new(seed, room);
        run(first, &mut ram, &mut ssd);
        let ids: Vec<u32> = (trace.ids as u32..(trace.ids + scanned) as u32).collect();
        run(&ids, &mut ram, &mut ssd);
        run(second, &mut ram, &mut ssd) as f64 / second.len() as f64
    });
    without - with
}

/// The largest difference between what the curve of a cache tells of other sizes and what caches of these do, behind
/// the same RAM, in the second half of a trace; and the bytes of the miniatures.
fn curve_error(trace: &Trace, size: f64, seed: u64) -> (f64, usize) {
    // Four times the size is a part of the trace's blocks still.
    let room = trace.ids as f64 * size;
    let mut ram = Ram::new(trace.ids, room as usize / 20);
    let mut of_sizes = CURVE_SIZES.map(|part| Ssd::new(seed, (room * part) as usize));
    let mut reads = 0;
    let mut middle = None;
    for (i, &id) in trace.reads.iter().enumerate() {
        if i == trace.reads.len() / 2 {
            middle = Some((
                reads,
                of_sizes.each_ref().map(|ssd| ssd.cache.stats().hits),
                of_sizes[1].cache.curve(),
            ));
        }
        if !ram.read(id) {
            reads += 1;
            of_sizes.iter_mut().for_each(|ssd| _ = ssd.read(id));
        }
    }
    let (reads_before, hits, curve) = middle.expect("a trace has a middle");
    let told = of_sizes[1].cache.curve().hit_ratios_since(&curve);
    let error = |i: usize| {
        let real = (of_sizes[i].cache.stats().hits - hits[i]) as f64 / (reads - reads_before) as f64;
        (real - told[i]).abs()
    };
    ((0..4).map(error).fold(0.0, f64::max), of_sizes[1].cache.miniature_memory())
}
