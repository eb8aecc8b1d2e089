//! The same work on Larder and on what else is installed: ext4, a libfuse passthrough, XFS, btrfs, zfs-fuse.
//!
//! `make peers`, or `cargo run --release -p larder-benches --bin peers` (see benches/README.md). Needs root.
//! One peer at a time exists, on sparse files in a folder of the run's own, made anew for each piece of work
//! and taken away after it, also on Ctrl-C. The order of the peers turns round from round to round, so that
//! noise meets all of them.

mod materials;
mod plot;
mod report;
mod works;

use clap::Parser;
use larder_benches::MIB;
use larder_benches::litter::{self, Item};
use larder_benches::machine::machine;
use larder_benches::peer::{self, Bed, Peer, Site};
use materials::Materials;
use report::Results;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use tempfile::TempDir;
use works::{Sizes, Work};

/// Compares Larder with the file systems that are installed.
#[derive(Debug, Parser)]
struct Args {
    /// Where everything lies: on the disk that is to be measured [default: the temporary folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// small (some minutes) or full
    #[arg(long, default_value = "small")]
    size: String,
    /// Only these works: seq, rand, append, files, git, tree
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these peers; larder and zfs-fuse stand for all configurations of theirs
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// How often each piece of work is done [default: 2, in full 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Small files, instead of the size's number
    #[arg(long)]
    files: Option<usize>,
    /// Where peers.md and peers.svg are written [default: nowhere]
    #[arg(long)]
    out: Option<PathBuf>,
    /// The binary [default: $LARDER, else beside this one]
    #[arg(long, env = "LARDER")]
    larder: Option<PathBuf>,
}

const SMALL: Sizes = Sizes {
    stream_mib: 512,
    random_mib: 768,
    operations: 12_000,
    appends: 2000,
    files: 20_000,
    tree_mib: 320,
    repository_mib: 32,
    room_mib: 4096,
    rounds: 2,
};

const FULL: Sizes = Sizes {
    stream_mib: 2048,
    random_mib: 3072,
    operations: 40_000,
    appends: 5000,
    files: 100_000,
    tree_mib: 1536,
    repository_mib: 96,
    room_mib: 8192,
    rounds: 3,
};

/// Open files that a daemon needs beside those of its files.
const SPARE_FILES: u64 = 1000;

fn main() -> ExitCode {
    let args = Args::parse();
    let mut sizes = match args.size.as_str() {
        "small" => SMALL,
        "full" => FULL,
        other => return refuse(&format!("no such size: {other}")),
    };
    sizes.rounds = args.rounds.unwrap_or(sizes.rounds).max(1);
    sizes.files = args.files.unwrap_or(sizes.files);
    let works = match chosen(&args.only, &Work::ALL, Work::name) {
        Ok(works) => works,
        Err(word) => return refuse(&format!("no such work: {word}")),
    };
    let peers = match chosen(&args.peers, &Peer::ALL, Peer::name) {
        Ok(peers) => peers,
        Err(word) => return refuse(&format!("no such peer: {word}")),
    };
    if peers.contains(&Peer::Passthrough) && sizes.files as u64 + SPARE_FILES > peer::open_files() {
        sizes.files = (peer::open_files().saturating_sub(SPARE_FILES)) as usize;
        eprintln!("{} small files: the passthrough may not open more here", sizes.files);
    }
    let beside = std::env::current_exe().map(|own| own.with_file_name("larder"));
    let larder = args.larder.clone().or(beside.ok()).expect("a path");
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let needed = (sizes.room_mib + 2 * sizes.tree_mib + sizes.repository_mib * 3) as u64 * MIB as u64;
    match rustix::fs::statvfs(&dir) {
        Ok(stat) if stat.f_bavail * stat.f_frsize > needed => {}
        Ok(_) => return refuse(&format!("{} has less than {} MiB free", dir.display(), needed >> 20)),
        Err(error) => return refuse(&format!("{}: {error}", dir.display())),
    }

    litter::clean_up_on_signals();
    let folder = TempDir::with_prefix_in("larder-peers-", &dir).expect("the folder can be written");
    let path = folder.path().canonicalize().expect("it exists");
    litter::add(Item::Folder(path.clone()));
    let site = Site { folder: path, larder, bytes: (sizes.room_mib * MIB) as u64, metered: false };
    let (results, absent, failed) = measure(&site, &sizes, &works, &peers);

    let told = results.markdown(&args.size, &sizes, &machine(&dir), &absent, &failed);
    println!("{told}");
    if let Some(out) = &args.out {
        let written = fs::write(out.join("peers.md"), &told)
            .and_then(|()| fs::write(out.join("peers.svg"), plot::svg(&results)));
        if let Err(error) = written {
            return refuse(&format!("{}: {error}", out.display()));
        }
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Items of `all` that `words` name, in full or up to a dash; without words all. An unknown word is the error.
fn chosen<T: Copy>(words: &[String], all: &[T], name: impl Fn(T) -> &'static str) -> Result<Vec<T>, String> {
    let fits = |word: &str, one: T| {
        name(one) == word || name(one).strip_prefix(word).is_some_and(|rest| rest.starts_with('-'))
    };
    match words.iter().find(|word| !all.iter().any(|&one| fits(word, one))) {
        Some(word) => Err(word.clone()),
        None => Ok(all
            .iter()
            .copied()
            .filter(|&one| words.is_empty() || words.iter().any(|word| fits(word, one)))
            .collect()),
    }
}

fn measure(
    site: &Site,
    sizes: &Sizes,
    works: &[Work],
    peers: &[Peer],
) -> (Results, Vec<String>, Vec<String>) {
    let (mut results, mut absent, mut failed) = (Results::default(), Vec::new(), Vec::new());
    let mut present = Vec::new();
    for &peer in peers {
        match site.obstacle(peer) {
            None => present.push(peer),
            Some(why) => absent.push(format!("{}: {why}", peer.name())),
        }
    }
    absent.iter().for_each(|why| eprintln!("absent: {why}"));
    let wants = |work| works.contains(&work);
    let materials = Materials::new(
        &site.folder,
        if wants(Work::Tree) { sizes.tree_mib } else { 0 },
        if wants(Work::Git) { sizes.repository_mib } else { 0 },
    );
    if wants(Work::Tree) {
        eprintln!("tree: {} files, {} MiB", materials.tree.files, materials.tree.bytes >> 20);
    }
    for &work in works {
        for round in 0..sizes.rounds {
            let mut order: Vec<_> = present.iter().copied().filter(|&peer| work.is_for(peer)).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for peer in order {
                let too_many = materials.tree.files as u64 + SPARE_FILES > peer::open_files();
                if work == Work::Tree && peer == Peer::Passthrough && too_many {
                    let why = format!("{}, tree: not so many open files are allowed here", peer.name());
                    absent.extend((!absent.contains(&why)).then_some(why));
                    continue;
                }
                // A failure on one peer (a panic, already printed) leaves the others to be measured.
                let done = catch_unwind(AssertUnwindSafe(|| {
                    let mut bed = Bed::new(peer, site);
                    bed.settle();
                    works::perform(work, &mut bed, sizes, &materials)
                }));
                let Ok(samples) = done else {
                    failed.push(format!("{} on {}", work.name(), peer.name()));
                    continue;
                };
                for sample in &samples {
                    eprintln!(
                        "{:7} {:16} {:22} {:10.0} {:8}  {:6.2} s, processor {:.2} s",
                        work.name(),
                        peer.name(),
                        sample.metric.title(),
                        sample.rate,
                        sample.metric.unit(),
                        sample.usage.wall.as_secs_f64(),
                        sample.usage.cpu().as_secs_f64()
                    );
                }
                results.add(peer, samples);
            }
        }
    }
    (results, absent, failed)
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("peers: {why}");
    ExitCode::from(2)
}
