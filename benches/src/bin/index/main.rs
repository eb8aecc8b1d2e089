//! The dedup index alone, with up to 10^9 fingerprints (128 TiB of records of 128 KiB).
//!
//! `cargo run --release -p larder-benches --bin index -- --counts 1e6,1e7` (see benches/README.md): an index that
//! grows from one count to the next, over a file with direct I/O, together with what the block map has of the same
//! records. Beside it redb as the index, and the arithmetic of a ZFS dedup table.

mod larder;
mod plot;
mod redb;
mod row;
mod store;

use clap::Parser;
use row::Figures;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Drives the dedup index and tells what it does a second, and what a fingerprint costs.
#[derive(Debug, Parser)]
struct Args {
    /// Numbers of fingerprints, ascending; 50 bytes each have to be free in the folder, and 2 GiB beside: with less it
    /// stops early and measures what is there
    #[arg(long, value_delimiter = ',', default_value = "1e6,1e7")]
    counts: Vec<f64>,
    /// MiB of the pool's memory, of which the index has its share [default: 8 bytes a fingerprint, 512 at least]
    #[arg(long)]
    memory: Option<u64>,
    /// The folder for its file [default: the temporary folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Numbers up to which redb is measured, too; 0 for not at all
    #[arg(long, default_value_t = 1e7)]
    redb: f64,
    /// Without the block map: no hits in the order of writing
    #[arg(long)]
    no_map: bool,
    /// Draw the plot into this file
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Fail unless each count keeps to the bytes and reads that are promised; times are not looked at
    #[arg(long)]
    check: bool,
    /// Measures redb alone; prints figures for another process
    #[arg(long, hide = true)]
    redb_alone: Option<u64>,
}

impl Args {
    fn memory(&self, count: u64) -> u64 {
        self.memory.map_or((8 * count).max(512 << 20), |mib| mib << 20)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Its filters lie in large pages as the daemon's do.
    if let Err(error) = larder_app::heap::share_one() {
        eprintln!("not with the heap that the daemon has: {error}");
    }
    let temporary = tempfile::tempdir_in(args.dir.clone().unwrap_or_else(std::env::temp_dir));
    let temporary = temporary.expect("a folder can be made there");
    let dir = temporary.path();
    if let Some(count) = args.redb_alone {
        let figures = redb::measure(dir, count, args.memory(count));
        println!("{}", serde_json::to_string(&figures).expect("plain figures"));
        return ExitCode::SUCCESS;
    }
    let counts: Vec<u64> = args.counts.iter().map(|count| *count as u64).collect();
    assert!(counts.is_sorted(), "counts ascend");
    println!("{}\n", larder_benches::machine::machine(dir));
    let (first, others) = counts.split_first().expect("some count");
    let mut smallest = larder::Larder::new(dir, *first, !args.no_map);
    let mut rows: Vec<Figures> = vec![smallest.measure(*first, args.memory(*first))];
    row::table(&rows);
    if let Some(most) = others.last() {
        let mut larder = larder::Larder::new(dir, *most, !args.no_map);
        for &count in others {
            let row = larder.measure(count, args.memory(count));
            rows.push(Figures { to_first: Some(larder.against(&mut smallest)), ..row });
            row::table(&rows[rows.len() - 1..]);
            if larder.is_cut_short {
                break;
            }
        }
    }
    drop(smallest);
    for &count in counts.iter().filter(|count| **count as f64 <= args.redb) {
        rows.extend(redb_elsewhere(&args, count));
    }
    println!();
    row::table(&rows);
    println!(
        "\nZFS: a dedup table entry takes about 320 bytes of memory where all are in it (Oracle, How to Determine \
         Memory Requirements for ZFS Deduplication)."
    );
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::svg(&rows)).expect("the plot can be written");
    }
    let broken =
        rows.iter().filter(|row| args.check && row.who == "larder").flat_map(Figures::broken_promises);
    let broken: Vec<_> = broken.collect();
    broken.iter().for_each(|promise| eprintln!("index: {promise}"));
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// In a process of its own, for the sake of its memory.
fn redb_elsewhere(args: &Args, count: u64) -> Option<Figures> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.arg("--redb-alone").arg(count.to_string());
    command.args(args.dir.iter().flat_map(|dir| [std::ffi::OsStr::new("--dir"), dir.as_os_str()]));
    command.args(args.memory.iter().flat_map(|mib| ["--memory".to_owned(), mib.to_string()]));
    let out = command.output().ok()?;
    eprint!("{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `make test` drives the benchmark itself with 10^7.
    #[test]
    fn what_is_measured_answers_right_and_stays_small() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut larder = larder::Larder::new(dir.path(), 200_000, true);
        larder.most = 50_000;
        let figures = larder.measure(200_000, 64 << 20);
        println!("{figures:?}");
        assert_eq!(figures.sampling, 1);
        assert!(figures.miss_reads < 0.006 && figures.runs <= 8);
        assert!(figures.disk_with_map.is_none_or(|bytes| bytes < 60.0));
        // A hundred times what filters have room for.
        let figures = larder.measure(300_000, 400 << 10);
        assert!(figures.sampling > 1);
    }
}
