//! Nearly full and overwritten at random, for long: what is left of the speed, and what it costs.
//!
//! `make ageing`, or `cargo run --release -p larder-benches --bin ageing` (see benches/README.md). Needs root. Larder,
//! btrfs and zfs-fuse do the same on pools of one size, each on a loop device, whose traffic the kernel counts for
//! all of them alike. One pool at a time exists, made anew for each cell and taken away after it, also on Ctrl-C.

mod cell;
mod plot;
mod report;
mod run;

use cell::{Cell, Chosen};
use clap::Parser;
use larder_benches::MIB;
use larder_benches::content::Content;
use larder_benches::litter::{self, Item};
use larder_benches::machine::machine;
use larder_benches::peer::{Peer, Site};
use report::{Measured, Results};
use run::Amounts;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tempfile::TempDir;

/// Overwrites pools that are nearly full.
#[derive(Debug, Parser)]
struct Args {
    /// Where everything lies: on the disk that is to be measured [default: the temporary folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Only these cells: FILL/UNIT/PATTERN of 80, 90, 95, room / 4K, 128K, file / zipf, uniform; `*` for all of a kind
    #[arg(long, value_delimiter = ',')]
    cells: Vec<Chosen>,
    /// Only these peers: larder, btrfs, zfs-fuse
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Mebibytes of a pool
    #[arg(long, default_value_t = 4096)]
    mib: usize,
    /// What is overwritten, as a multiple of the pool's size
    #[arg(long, default_value_t = 2.0)]
    times: f64,
    /// The same, for Larder at 80/128K/zipf, which has targets
    #[arg(long, default_value_t = 10.0)]
    target_times: f64,
    /// Seconds that overwriting may take; in that cell longer, as its multiple is
    #[arg(long, default_value_t = 60)]
    cap: u64,
    /// MiB between two fsyncs
    #[arg(long, default_value_t = 16)]
    sync_mib: usize,
    /// Of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where figures are kept: the report tells those of earlier runs beside those of this one
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Where ageing.md and ageing.svg are written [default: nowhere]
    #[arg(long)]
    out: Option<PathBuf>,
    /// What the report says of the version of Larder
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    version_told: String,
    /// The binary [default: $LARDER, else beside this one]
    #[arg(long, env = "LARDER")]
    larder: Option<PathBuf>,
}

/// The peers, with their names here.
const PEERS: [(&str, Peer); 3] =
    [("larder", Peer::LarderOff), ("btrfs", Peer::BtrfsOff), ("zfs-fuse", Peer::ZfsFuse)];

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(word) = args.peers.iter().find(|word| !PEERS.iter().any(|(name, _)| name == word)) {
        return refuse(&format!("no such peer: {word}"));
    }
    let chosen = |cell: &Cell| args.cells.is_empty() || args.cells.iter().any(|word| cell.is(word));
    let cells: Vec<_> = Cell::all().into_iter().filter(chosen).collect();
    let mut peers = PEERS.to_vec();
    peers.retain(|(name, _)| args.peers.is_empty() || args.peers.iter().any(|word| word == name));
    let mut results = match args.keep.as_ref().map(fs::read).transpose() {
        Ok(None) => Results::default(),
        Ok(Some(kept)) => match serde_json::from_slice(&kept) {
            Ok(kept) => kept,
            Err(error) => return refuse(&format!("what was kept cannot be used: {error}")),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Results::default(),
        Err(error) => return refuse(&format!("what was kept cannot be read: {error}")),
    };
    let beside = std::env::current_exe().map(|own| own.with_file_name("larder"));
    let larder = args.larder.clone().or(beside.ok()).expect("a path");
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    // A pool with room holds what a full one does, and what it was overwritten with.
    let needed = 4 * (args.mib * MIB) as u64;
    match rustix::fs::statvfs(&dir) {
        Ok(stat) if stat.f_bavail * stat.f_frsize > needed => {}
        Ok(_) => return refuse(&format!("{} has less than {} MiB free", dir.display(), needed >> 20)),
        Err(error) => return refuse(&format!("{}: {error}", dir.display())),
    }

    litter::clean_up_on_signals();
    let folder = TempDir::with_prefix_in("larder-ageing-", &dir).expect("the folder can be written");
    let path = folder.path().canonicalize().expect("it exists");
    litter::add(Item::Folder(path.clone()));
    let amounts = Amounts {
        pool: (args.mib * MIB) as u64,
        times: args.times,
        target_times: args.target_times,
        cap: Duration::from_secs(args.cap),
        sync: args.sync_mib * MIB,
        seed: args.seed,
    };
    let site = Site { folder: path, larder, bytes: amounts.pool, metered: true };
    let content = Content::Random.bytes(32 * MIB);
    let mut failed = false;
    peers.retain(|(name, peer)| {
        let obstacle = site.obstacle(*peer);
        results.absent.remove(*name);
        results.absent.extend(obstacle.iter().map(|why| ((*name).to_owned(), why.clone())));
        obstacle.is_none()
    });
    // Cells that are compared are measured close together, as the machine is not equally quiet all the time.
    let kinds = cells.chunk_by(|a, b| a.with_room() == b.with_room());
    let work =
        kinds.flat_map(|kind| peers.iter().flat_map(move |peer| kind.iter().map(move |cell| (*peer, *cell))));
    for ((name, peer), cell) in work {
        // A failure on one peer (a panic, already printed) leaves the others to be measured.
        let done = catch_unwind(AssertUnwindSafe(|| run::measure(cell, peer, &site, &amounts, &content)));
        let Ok(outcome) = done else {
            eprintln!("{name:9} {cell:18} failed");
            results.remove(name, cell);
            results.absent.insert(format!("{name}, {cell}"), "it failed".to_owned());
            failed = true;
            continue;
        };
        let measured = Measured { peer: name.to_owned(), cell, version: args.version_told.clone(), outcome };
        eprintln!("{}", measured.line());
        results.absent.remove(&format!("{name}, {cell}"));
        results.add(measured);
        let kept = serde_json::to_vec(&results).expect("plain figures");
        if let Some(Err(error)) = args.keep.as_ref().map(|keep| fs::write(keep, kept)) {
            return refuse(&format!("cannot keep what was measured: {error}"));
        }
    }

    let told = results.markdown(&amounts, &machine(&dir));
    println!("{told}");
    if let Some(out) = &args.out {
        let written = fs::write(out.join("ageing.md"), &told)
            .and_then(|()| fs::write(out.join("ageing.svg"), plot::svg(&results)));
        if let Err(error) = written {
            return refuse(&format!("{}: {error}", out.display()));
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("ageing: {why}");
    ExitCode::from(2)
}
