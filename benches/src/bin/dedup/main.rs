//! Costs and savings of deduplication: on and off in one run, beside borg, restic and zfs-fuse on one corpus.
//!
//! `make dedup`, or `cargo run --release -p larder-benches --bin dedup` (see benches/README.md). Needs root. Everything
//! lies in a folder of the run's own, one pool or repository at a time, and is taken away, also on Ctrl-C.

mod corpus;
mod indexed;
mod report;
mod runs;

use clap::Parser;
use corpus::Corpus;
use larder_benches::litter::{self, Item};
use larder_benches::machine::machine;
use larder_benches::no_op;
use report::Report;
use runs::Site;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use tempfile::TempDir;

/// Measures deduplication, beside what else is installed.
#[derive(Debug, Parser)]
struct Args {
    /// Where everything lies: on the disk that is to be measured [default: the temporary folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Mebibytes of the corpus
    #[arg(long, default_value_t = 600)]
    mib: usize,
    /// Mebibytes of the files of unique data
    #[arg(long, default_value_t = 512)]
    stream_mib: usize,
    /// Gibibytes of the duplicate that is removed
    #[arg(long, default_value_t = 13)]
    rm_gib: usize,
    /// How often each is done
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Fingerprints of absent records in the index of the part `indexed`, some 20 bytes of disk each [default: none,
    /// and no such part]
    #[arg(long, default_value_t = 0.0)]
    indexed: f64,
    /// MiB of memory of that pool
    #[arg(long, default_value_t = 128)]
    indexed_memory: u64,
    /// Only these parts: streams, tree, peers, rm, indexed
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Where dedup.md and dedup.svg are written [default: nowhere]
    #[arg(long)]
    out: Option<PathBuf>,
    /// The binary [default: $LARDER, else beside this one]
    #[arg(long, env = "LARDER")]
    larder: Option<PathBuf>,
    /// Be the server that does nothing but hash, mounted there, until standard input ends
    #[arg(long, hide = true)]
    no_op: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(mountpoint) = &args.no_op {
        // Its heap is the daemon's.
        if let Err(error) = larder_app::heap::share_one() {
            eprintln!("not with the heap that the daemon has: {error}");
        }
        no_op::serve_hashing(mountpoint);
        return ExitCode::SUCCESS;
    }
    let beside = std::env::current_exe().map(|own| own.with_file_name("larder"));
    let larder = args.larder.clone().or(beside.ok()).expect("a path");
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let needed = (8 * args.mib.max(args.stream_mib)) as u64 * larder_benches::MIB as u64;
    match rustix::fs::statvfs(&dir) {
        Ok(stat) if stat.f_bavail * stat.f_frsize > needed => {}
        Ok(_) => return refuse(&format!("{} has less than {} MiB free", dir.display(), needed >> 20)),
        Err(error) => return refuse(&format!("{}: {error}", dir.display())),
    }
    if !rustix::process::geteuid().is_root() {
        return refuse("needs root");
    }
    litter::clean_up_on_signals();
    let folder = TempDir::with_prefix_in("larder-dedup-", &dir).expect("the folder can be written");
    let path = folder.path().canonicalize().expect("it exists");
    litter::add(Item::Folder(path.clone()));
    let corpus = Corpus::new(&path, args.mib);
    eprintln!(
        "corpus: {} MiB, of it {} real files of {} MiB",
        corpus.bytes >> 20,
        corpus.tree.files,
        corpus.tree.bytes >> 20
    );
    let site = Site { folder: path, larder, rounds: args.rounds.max(1) };
    let mut report = Report::new(&machine(&dir), &corpus, args.stream_mib, site.rounds);
    type Part<'a> = (&'static str, Box<dyn Fn(&mut Report) + 'a>);
    let burden = (args.indexed as u64, args.indexed_memory);
    let indexed = |report: &mut Report| {
        if burden.0 > 0 {
            indexed::indexed(&site, burden, args.stream_mib, &corpus, report);
        }
    };
    let parts: [Part<'_>; 5] = [
        ("streams", Box::new(|report| runs::streams(&site, args.stream_mib, report))),
        ("tree", Box::new(|report| runs::tree(&site, &corpus, report))),
        ("peers", Box::new(|report| runs::peers(&site, &corpus, report))),
        ("rm", Box::new(|report| runs::remove(&site, args.rm_gib, report))),
        ("indexed", Box::new(indexed)),
    ];
    let mut failed = false;
    for (name, part) in
        parts.iter().filter(|(name, _)| args.only.is_empty() || args.only.iter().any(|only| only == name))
    {
        // A failed part (a panic, already printed) leaves the others to be measured.
        if catch_unwind(AssertUnwindSafe(|| part(&mut report))).is_err() {
            report.absent(&format!("{name} failed"));
            failed = true;
        }
    }
    let told = report.markdown();
    println!("{told}");
    if let Some(out) = &args.out {
        let written = fs::write(out.join("dedup.md"), &told)
            .and_then(|()| fs::write(out.join("dedup.svg"), report.svg()));
        if let Err(error) = written {
            return refuse(&format!("{}: {error}", out.display()));
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("dedup: {why}");
    ExitCode::from(2)
}
