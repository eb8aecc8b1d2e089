//! The engine alone under overwrites, nearly full: what the cleaner costs.
//!
//! `cargo run --release -p larder-benches --bin cleaner -- [FOLDER]` (see benches/README.md): a pool on one sparse
//! file, filled to a part of AVAIL, whose records are then overwritten at random, whole or in part. There is no FUSE,
//! and one writer; commits come as the daemon makes them. `--model` prints what policies of cleaning cost in
//! a model without I/O.

mod engine;
mod model;

use clap::Parser;
use larder_benches::pattern::Pattern;
use model::{Choice, Cost, Policy, Setting, Streams};
use std::path::PathBuf;

/// Overwrites records of a pool that is nearly full, and tells what that costs.
#[derive(Debug, Parser)]
pub struct Args {
    /// Where the device lies [default: the temporary folder]
    folder: Option<PathBuf>,
    /// Mebibytes of the device
    #[arg(long, default_value_t = 4096)]
    mib: usize,
    /// Per cent of AVAIL that are filled
    #[arg(long, default_value_t = 80)]
    fill: u64,
    /// What is overwritten, as a multiple of the device's size; at each step of `--rise`
    #[arg(long, default_value_t = 2.0)]
    times: f64,
    /// uniform, zipf or zipf:POWER
    #[arg(long, default_value = "zipf:1.1")]
    pattern: Pattern,
    /// KiB of an overwrite, at multiples of itself
    #[arg(long, default_value_t = 128)]
    write_kib: usize,
    /// KiB of a record
    #[arg(long, default_value_t = 128)]
    record_kib: usize,
    /// MiB of a file
    #[arg(long, default_value_t = 8)]
    file_mib: usize,
    /// MiB of the pool's memory
    #[arg(long, default_value_t = 512)]
    memory_mib: u64,
    /// fsync after so many MiB [default: never]
    #[arg(long)]
    sync_mib: Option<usize>,
    /// Of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds between lines
    #[arg(long, default_value_t = 1)]
    every: u64,
    /// Fills from `--fill` to 100 per cent in steps of so many, with overwrites at each
    #[arg(long)]
    rise: Option<usize>,
    /// Policies in a model, and no pool
    #[arg(long)]
    model: bool,
    /// Records that gather in memory before they are stored, in the model
    #[arg(long, default_value_t = 160)]
    gather: usize,
    /// Of 1024 segments, those that the cleaner keeps free, in the model; the reserve is 32, of which the pool's
    /// keeps three quarters
    #[arg(long, default_value_t = 24)]
    keep: usize,
}

fn main() {
    let args = Args::parse();
    if args.model { models(&args) } else { engine::run(&args) }
}

/// The policies of the table, with the names of its columns.
const POLICIES: [(&str, Policy); 7] = [
    ("greedy 1", Policy { choice: Choice::Greedy, streams: Streams::One }),
    ("greedy 2", Policy { choice: Choice::Greedy, streams: Streams::Two }),
    ("c-b 1", Policy { choice: Choice::CostBenefit, streams: Streams::One }),
    ("c-b 2", Policy { choice: Choice::CostBenefit, streams: Streams::Two }),
    ("sepbit", Policy { choice: Choice::CostBenefit, streams: Streams::SepBit }),
    ("pool's", Policy { choice: Choice::Worth, streams: Streams::Interval }),
    ("oracle", Policy { choice: Choice::Worth, streams: Streams::Oracle }),
];

fn models(args: &Args) {
    let times = 12;
    println!(
        "1024 segments of 31 records, {} kept free, all but 32 filled to `fill` per cent; overwritten {times} times, \
         the second half counts.\nRecords stored and moved, a record stored; `gather` records gather in memory \
         before they are stored.\n",
        args.keep
    );
    print!("{:<10}{:>5}{:>7}{:>15}", "pattern", "fill", "gather", "stored/written");
    POLICIES.iter().for_each(|(name, _)| print!("{name:>10}"));
    println!();
    for pattern in [Pattern::Zipf(1.1), Pattern::Uniform] {
        for gather in [1, args.gather] {
            for fill in [80, 90, 95] {
                let setting = Setting {
                    segments: 1024,
                    per_segment: 31,
                    keep: args.keep,
                    fill,
                    gather,
                    times,
                    seed: args.seed,
                };
                print!("{:<10}{fill:>5}{gather:>7}", pattern.to_string());
                if !setting.fits() {
                    println!("  so much cannot be kept free");
                    continue;
                }
                let costs: Vec<Cost> =
                    POLICIES.iter().map(|&(_, policy)| model::run(setting, policy, pattern)).collect();
                print!("{:>15.2}", costs[0].stored as f64 / costs[0].written as f64);
                costs.iter().for_each(|cost| print!("{:>10.2}", cost.of_stored()));
                println!();
            }
        }
    }
}
