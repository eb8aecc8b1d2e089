//! Time until space comes back: `rm` of large files, `fs destroy`, and `rm -r` of many small files.
//!
//! `cargo run --release -p larder-benches --bin deletes -- FOLDER` (see benches/README.md). Needs root.
//! FOLDER holds the devices, and is left as it was. The records of large files are pages of zeros with a
//! number each, so all of them differ, and take about a hundredth of their plain length.

use clap::Parser;
use larder_benches::daemon::{Daemon, Layout, pause};
use larder_benches::litter::{self, Item};
use larder_benches::peer::{self, Peer, Site, open_files};
use larder_benches::usage::{self, Usage};
use larder_benches::{MIB, process, timed};
use rustix::fs::statvfs;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Measures how fast space comes back after deletes.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// Gibibytes of large files, before compression; 0 leaves them out
    #[arg(long, default_value_t = 20)]
    gib: usize,
    /// Small files; 0 leaves them out
    #[arg(long, default_value_t = 100_000)]
    files: usize,
    /// How often small files are removed
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// The binary [default: $LARDER, else beside this one]
    #[arg(long, env = "LARDER")]
    larder: Option<PathBuf>,
}

/// The largest file, mebibytes, where there is that much; all others are of [`FILE_MIB`].
const LARGEST_MIB: usize = 13 << 10;
const FILE_MIB: usize = 100;
/// The devices, bytes: sparse.
const DEVICE: u64 = 8 << 30;
/// Between two polls of `freeing` and AVAIL.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Small files in a folder.
const FOLDER_FILES: usize = 1000;

/// A pool on one sparse file, with a daemon.
struct Bed {
    daemon: Daemon,
    mountpoint: PathBuf,
}

/// Times of a delete.
struct Freed {
    /// Until the command returned.
    told: Duration,
    /// Until nothing was being freed any more.
    freed: Duration,
    /// Until as much could be written as before.
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
        litter::add(Item::Process(daemon.pid()));
        litter::add(Item::Mount(mountpoint.clone()));
        let layout = Layout { word: "", devices: 1, data: 1 };
        daemon.create(layout, &layout.files(folder, DEVICE), &[], &mountpoint);
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
        let space = statvfs(&self.mountpoint).expect("the pool is mounted");
        space.f_bavail * space.f_frsize
    }

    /// Does `delete`, and waits until about `available` bytes can be written and nothing is being freed.
    fn watch(&self, available: u64, delete: impl FnOnce()) -> Freed {
        let cpu = || process::cpu_time(self.daemon.pid()).expect("the daemon runs");
        let before = cpu();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let probe = scope.spawn(|| {
                let mut longest = Duration::ZERO;
                while !done.load(Ordering::Relaxed) {
                    longest = longest.max(timed(|| touch(&self.mountpoint.join("probe"))));
                    pause(Duration::from_millis(5));
                }
                longest
            });
            let start = now();
            let told = timed(delete);
            let (mut freed, mut back) = (None, None);
            while freed.is_none() || back.is_none() {
                if freed.is_none() && self.daemon.figure("freeing") == 0 {
                    freed = Some(start.elapsed());
                }
                if back.is_none() && self.available() >= available / 1000 * 999 {
                    back = Some((start.elapsed(), cpu() - before));
                }
                assert!(start.elapsed() < Duration::from_secs(600), "the space does not come back");
                pause(POLL_INTERVAL);
            }
            done.store(true, Ordering::Relaxed);
            let stall = probe.join().expect("the probe ends");
            let (back, cpu) = back.expect("waited for");
            Freed { told, freed: freed.expect("waited for"), back, cpu, stall }
        })
    }
}

/// Makes a file and removes it.
fn touch(file: &Path) {
    drop(File::create(file).expect("a file can be made"));
    fs::remove_file(file).expect("it can be removed");
}

fn remove(folder: &Path) {
    let status = Command::new("rm").arg("-r").arg(folder).status().expect("rm runs");
    assert!(status.success(), "rm -r {}", folder.display());
}

fn large(larder: &Path, folder: &Path, gib: usize) {
    let bed = Bed::new(larder, folder);
    let mib = gib << 10;
    let largest = LARGEST_MIB.min(mib / 4);
    println!(
        "{gib} GiB in records of 128 KiB, every one distinct, lz4: one file of {largest} MiB, the others of {FILE_MIB} MiB;\n\
         exported and imported before\n"
    );
    let titles = ["returns", "freeing 0", "AVAIL back", "GiB/s", "records/s", "daemon", "longest stall"];
    println!("{:<12}{}", "", titles.map(|title| format!("{title:>14}")).concat());
    let empty = bed.available();
    for (what, part) in [("rm -r", "files"), ("fs destroy", "set")] {
        if part == "set" {
            bed.daemon.run(&["fs", "create", "bench/set"]);
        }
        let path = bed.mountpoint.join(part);
        bed.fill(&path, mib);
        bed.forget();
        let freed = bed.watch(empty, || match part {
            "set" => drop(bed.daemon.run(&["fs", "destroy", "--now", "--yes", "bench/set"])),
            _ => remove(&path),
        });
        let seconds = freed.back.as_secs_f64();
        let cells = [
            format!("{:.3} s", freed.told.as_secs_f64()),
            format!("{:.2} s", freed.freed.as_secs_f64()),
            format!("{seconds:.2} s"),
            format!("{:.1}", gib as f64 / seconds),
            format!("{:.0}", (mib * 8) as f64 / seconds),
            format!("{:.2} cpu s", freed.cpu.as_secs_f64()),
            format!("{:.0} ms", freed.stall.as_secs_f64() * 1e3),
        ];
        println!("{what:<12}{}", cells.map(|cell| format!("{cell:>14}")).concat());
    }
    litter::gone(&Item::Process(bed.daemon.pid()));
    litter::gone(&Item::Mount(bed.mountpoint.clone()));
}

/// Makes small files on a peer and removes them; what removing them used.
fn small(site: &Site, peer: Peer, files: usize, cold: bool) -> Usage {
    let mut bed = peer::Bed::new(peer, site);
    let top = bed.path().join("top");
    // The passthrough keeps a file open for each that the kernel knows.
    let forget_every = (open_files() as usize / 2 / FOLDER_FILES).max(1);
    for first in (0..files).step_by(FOLDER_FILES) {
        let number = first / FOLDER_FILES;
        let folder = top.join(format!("{number}"));
        fs::create_dir_all(&folder).expect("a folder can be made");
        for i in first..files.min(first + FOLDER_FILES) {
            fs::write(folder.join(format!("file-{i}")), [7; 1024]).expect("a file can be made");
        }
        if peer == Peer::Passthrough && number % forget_every == forget_every - 1 {
            fs::write("/proc/sys/vm/drop_caches", "2").expect("root may do this");
        }
    }
    bed.settle();
    if cold {
        bed.remount();
    }
    let top = bed.path().join("top");
    usage::of(bed.daemon(), || remove(&top)).1
}

fn main() {
    let args = Args::parse();
    litter::clean_up_on_signals();
    let beside = || std::env::current_exe().expect("we run").with_file_name("larder");
    let larder = args.larder.clone().unwrap_or_else(beside);
    let folder = tempfile::tempdir_in(&args.folder).expect("the folder can be written");
    litter::add(Item::Folder(folder.path().to_owned()));
    if args.gib > 0 {
        let apart = folder.path().join("large");
        fs::create_dir_all(&apart).expect("the folder can be written");
        large(&larder, &apart, args.gib);
    }
    let site = Site { folder: folder.path().to_owned(), larder, bytes: DEVICE, metered: false };
    let peers = [Peer::LarderOff, Peer::Passthrough];
    let obstacle = peers.iter().find_map(|&peer| site.obstacle(peer));
    if let Some(obstacle) = obstacle.filter(|_| args.files > 0) {
        println!("\nsmall files: {obstacle}");
        return;
    }
    if args.files > 0 {
        println!(
            "\nrm -r of {} files of 1 KiB, {FOLDER_FILES} a folder: files/s, in microseconds a file",
            args.files
        );
    }
    for cold in [true, false] {
        for round in 0..if args.files > 0 { args.rounds } else { 0 } {
            let mut speeds = Vec::new();
            for peer in peers {
                let used = small(&site, peer, args.files, cold);
                let each = |time: Duration| time.as_secs_f64() * 1e6 / args.files as f64;
                speeds.push(args.files as f64 / used.wall.as_secs_f64());
                println!(
                    "{:<6} {round} {:<14} {:>9.0}/s  wall {:>6.1}  client {:>5.1}  daemon {:>5.1}  kernel {:>5.1}  others {:>6.1}",
                    if cold { "cold" } else { "warm" },
                    peer.name(),
                    speeds[speeds.len() - 1],
                    each(used.wall),
                    each(used.client),
                    each(used.daemon),
                    each(used.kernel),
                    each(used.others),
                );
            }
            println!("       {round} ratio          {:>9.2}", speeds[0] / speeds[1]);
        }
    }
    litter::gone(&Item::Folder(folder.path().to_owned()));
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}
