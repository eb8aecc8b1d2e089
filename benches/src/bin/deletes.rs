//! How fast space comes back: `rm` of large files, `fs destroy`, and `rm -r` of many small files.
//!
//! `cargo run --release -p larder-benches --bin deletes -- FOLDER` (see benches/README.md). Needs root.
//! FOLDER holds the pool's device, of which the records of large files take about a hundredth of their
//! plain length; it is left as it was.

use clap::Parser;
use larder_benches::daemon::{Daemon, Layout, pause};
use larder_benches::{MIB, process, timed, timing};
use rustix::fs::{StatVfs, statvfs};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Measures how fast space comes back after deletes.
#[derive(Debug, Parser)]
struct Args {
    /// Where the device lies
    folder: PathBuf,
    /// Gibibytes of large files, before compression
    #[arg(long, default_value_t = 20)]
    gib: usize,
    /// The binary [default: $LARDER, else beside this one]
    #[arg(long, env = "LARDER")]
    larder: Option<PathBuf>,
}

/// The largest file, mebibytes, where there is that much; all others are of [`FILE_MIB`].
const LARGEST_MIB: usize = 13 << 10;
const FILE_MIB: usize = 100;
/// The device, bytes: sparse.
const DEVICE: u64 = 8 << 30;
/// How often the pool is asked what it still frees.
const GLANCE: Duration = Duration::from_millis(50);

/// A pool on one sparse file, with a daemon.
struct Bed {
    daemon: Daemon,
    mountpoint: PathBuf,
}

/// What became of a delete.
struct Freed {
    /// Until the command returned.
    told: Duration,
    /// Until nothing was being freed any more.
    freed: Duration,
    /// Until what can be written was as much as before.
    back: Duration,
    /// Processor time of the daemon until then.
    cpu: Duration,
    /// The longest time that making and removing a file took meanwhile.
    stall: Duration,
}

impl Bed {
    fn new(larder: &Path, folder: &Path) -> Self {
        let mountpoint = folder.join("mnt");
        fs::create_dir_all(&mountpoint).expect("the folder can be written");
        let daemon = Daemon::start(larder, folder);
        daemon.create(Layout { word: "", devices: 1, data: 1 }, DEVICE, &[], &mountpoint);
        Self { daemon, mountpoint }
    }

    /// Fills a folder with `mib` mebibytes.
    fn fill(&self, folder: &Path, mib: usize) {
        fs::create_dir_all(folder).expect("a folder can be made");
        let mut page = 0u64;
        let mut block = vec![0u8; MIB];
        let (mut left, mut number) = (mib, 0);
        while left > 0 {
            let size = if number == 0 { LARGEST_MIB.min(mib / 4) } else { FILE_MIB.min(left) };
            let mut file = File::create(folder.join(format!("{number}"))).expect("a file can be made");
            for _ in 0..size {
                for part in block.chunks_exact_mut(4096) {
                    part[..8].copy_from_slice(&page.to_le_bytes());
                    page += 1;
                }
                file.write_all(&block).expect("it can be written");
            }
            (left, number) = (left - size, number + 1);
        }
        self.daemon.sync();
    }

    fn forget(&self) {
        self.daemon.import_again(&self.mountpoint);
        fs::write("/proc/sys/vm/drop_caches", "3").expect("root may do this");
    }

    fn available(&self) -> u64 {
        let space: StatVfs = statvfs(&self.mountpoint).expect("the pool is mounted");
        space.f_bavail * space.f_frsize
    }

    /// Does `delete`, and waits until `available` bytes can be written.
    fn watch(&self, available: u64, delete: impl FnOnce()) -> Freed {
        let cpu = || process::cpu_time(self.daemon.pid()).expect("the daemon runs");
        let before = cpu();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let probe = scope.spawn(|| {
                let file = self.mountpoint.join("probe");
                let mut longest = Duration::ZERO;
                while !done.load(Ordering::Relaxed) {
                    let time = timed(|| {
                        drop(File::create(&file).expect("a file can be made"));
                        fs::remove_file(&file).expect("it can be removed");
                    });
                    longest = longest.max(time);
                    pause(Duration::from_millis(5));
                }
                longest
            });
            let start = now();
            let told = timed(delete);
            let mut freed = None;
            let back = loop {
                if freed.is_none() && self.daemon.figure("freeing") == 0 {
                    freed = Some(start.elapsed());
                }
                if self.available() >= available / 1000 * 999 {
                    break start.elapsed();
                }
                assert!(start.elapsed() < Duration::from_secs(600), "the space does not come back");
                pause(GLANCE);
            };
            let cpu = cpu() - before;
            while freed.is_none() {
                freed = (self.daemon.figure("freeing") == 0).then(|| start.elapsed());
                pause(GLANCE);
            }
            done.store(true, Ordering::Relaxed);
            let stall = probe.join().expect("the probe ends");
            Freed { told, freed: freed.expect("waited for"), back, cpu, stall }
        })
    }
}

fn main() {
    let args = Args::parse();
    let beside = || std::env::current_exe().expect("we run").with_file_name("larder");
    let larder = args.larder.clone().unwrap_or_else(beside);
    let folder = tempfile::tempdir_in(&args.folder).expect("the folder can be written");
    let bed = Bed::new(&larder, folder.path());
    let mib = args.gib << 10;
    println!(
        "{} GiB of records of 128 KiB, every one distinct, lz4; one file of {} MiB, the others of {FILE_MIB} MiB",
        args.gib,
        LARGEST_MIB.min(mib / 4)
    );
    println!(
        "{:<12} {:>9} {:>9} {:>9} {:>9} {:>12} {:>12} {:>9}",
        "", "returns", "freeing 0", "AVAIL", "GiB/s", "records/s", "cpu s", "stall"
    );
    let empty = bed.available();
    for (what, part) in [("rm -r", "files"), ("fs destroy", "set")] {
        if part == "set" {
            bed.daemon.run(&["fs", "create", "bench/set"]);
        }
        let path = bed.mountpoint.join(part);
        let (_, wrote) = timing(|| bed.fill(&path, mib));
        bed.forget();
        let freed = bed.watch(empty, || match part {
            "set" => drop(bed.daemon.run(&["fs", "destroy", "--yes", "bench/set"])),
            _ => {
                let status = Command::new("rm").arg("-r").arg(&path).status().expect("rm runs");
                assert!(status.success(), "rm -r");
            }
        });
        let seconds = freed.back.as_secs_f64();
        println!(
            "{what:<12} {:>8.3}s {:>8.2}s {:>8.2}s {:>9.2} {:>12.0} {:>12.2} {:>7.0}ms   (written in {:.0} s)",
            freed.told.as_secs_f64(),
            freed.freed.as_secs_f64(),
            seconds,
            args.gib as f64 / seconds,
            (mib * 8) as f64 / seconds,
            freed.cpu.as_secs_f64(),
            freed.stall.as_secs_f64() * 1e3,
            wrote.as_secs_f64(),
        );
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}
