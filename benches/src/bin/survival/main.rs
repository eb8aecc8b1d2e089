//! The cost of survival: resilver and scrub beside fio making the same requests, reading on while devices are lost
//! or slow.
//!
//! `make survival`, or `cargo run --release -p larder-benches --bin survival` (see benches/README.md). The engine
//! alone, without FUSE, on sparse files with direct I/O in a folder of the run's own, which is taken away, also on
//! Ctrl-C.

mod bed;
mod degraded;
mod rebuild;
mod report;

use bed::{Bed, Devices, SHAPES, Shape};
use clap::Parser;
use larder_benches::MIB;
use larder_benches::device::Ground;
use larder_benches::litter::{self, Item};
use larder_benches::machine::machine;
use report::Report;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::TempDir;

/// States of a new device that a resilver is measured with.
const GROUNDS: [Ground; 2] = [Ground::Written, Ground::Holes];

/// Measures resilver, scrub, and reading while devices are lost or slow.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie: on the disk that is to be measured [default: /var/tmp]
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Mebibytes alive on each device
    #[arg(long, default_value_t = 768)]
    mib: usize,
    /// Gibibytes of a device, a sparse file. Slots are a 1024th of it, at most 64 MiB, as on all disks of 64 GiB and
    /// more
    #[arg(long, default_value_t = 64)]
    device_gib: u64,
    /// How often each is done, an even number: half of the times the pool comes first, half of the times fio
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// Seconds of each cell of reading, in each round
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Only these parts: scrub, resilver, beside, lost, slow
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these layouts
    #[arg(long, value_delimiter = ',')]
    layouts: Vec<String>,
    /// Where survival.md and survival.svg are written [default: nowhere]
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Args {
    fn does(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }

    /// Bytes taken on disk at most: live data, removed data, and a new device beside fio's.
    fn needed(&self) -> u64 {
        let most = SHAPES.map(|shape| shape.devices).into_iter().max().unwrap_or(1);
        (self.mib * MIB) as u64 * (most as u64 * 5 / 3 + 2)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    // The pool's buffers lie in large pages as the daemon's do.
    if let Err(error) = larder_app::heap::share_one() {
        eprintln!("not with the heap that the daemon has: {error}");
    }
    if !args.rounds.is_multiple_of(2) || args.rounds == 0 {
        return refuse("--rounds is to be an even number");
    }
    match rustix::fs::statvfs(&args.dir) {
        Ok(stat) if stat.f_bavail * stat.f_frsize > args.needed() => {}
        Ok(_) => {
            return refuse(&format!("{} has less than {} MiB free", args.dir.display(), args.needed() >> 20));
        }
        Err(error) => return refuse(&format!("{}: {error}", args.dir.display())),
    }
    litter::clean_up_on_signals();
    let folder = TempDir::with_prefix_in("larder-survival-", &args.dir).expect("the folder can be written");
    let path = folder.path().canonicalize().expect("it exists");
    litter::add(Item::Folder(path.clone()));
    let mut report = Report::new(&machine(&args.dir), args.mib, args.device_gib, args.rounds, args.seconds);
    for shape in SHAPES {
        if args.layouts.is_empty() || args.layouts.iter().any(|word| word == shape.word) {
            measure(&args, shape, &path, &mut report);
        }
    }
    let told = report.markdown();
    println!("{told}");
    if let Some(out) = &args.out {
        let written = fs::write(out.join("survival.md"), &told)
            .and_then(|()| fs::write(out.join("survival.svg"), report.svg()));
        if let Err(error) = written {
            return refuse(&format!("{}: {error}", out.display()));
        }
    }
    ExitCode::SUCCESS
}

/// All parts with one layout; nothing is left.
fn measure(args: &Args, shape: Shape, folder: &Path, report: &mut Report) {
    let size = args.device_gib << 30;
    // With a mirror nothing is told that the others do not tell.
    let reads = shape.word != "mirror";
    if ["scrub", "resilver", "beside", "lost"].iter().any(|part| args.does(part)) {
        eprintln!("{shape}: filling");
        let bed = Bed::new(folder, shape, Devices::Taped, size, 512 << 20);
        let large = bed.fill(args.mib * shape.k);
        if args.does("scrub") {
            report.scrub(rebuild::scrub(&bed, shape, args.rounds));
        }
        if args.does("resilver") {
            for ground in GROUNDS {
                report.resilver(rebuild::resilver(&bed, shape, ground, args.rounds, &large));
            }
        }
        if args.does("beside") && shape.word == "raidz2" {
            report.beside(rebuild::beside(&bed, &large, 6.0 * args.seconds));
        }
        if args.does("lost") && reads {
            let small = vec![bed.write((args.mib / 4).max(1), 4)];
            bed.settle();
            let files = degraded::Files { large, small };
            report.table(degraded::lost(&bed, shape, &files, args.rounds, args.seconds));
        }
    }
    if args.does("slow") && reads {
        let mib = (args.mib / 2).max(8);
        report.table(degraded::slow(folder, shape, mib, size, args.rounds.min(2), args.seconds));
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("survival: {why}");
    ExitCode::from(2)
}
