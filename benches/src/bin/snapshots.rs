//! Cost of snapshots and clones: taking, listing, measuring and destroying them, and of writing beside them.
//!
//! `cargo run --release -p larder-benches --bin snapshots -- FOLDER` (see benches/README.md). Commands are timed whole,
//! as a script would, with the start of their process: of a pool on a file in FOLDER, with a daemon of its own. Writers
//! beside snapshots are timed in the engine, without FUSE.

use clap::Parser;
use larder_benches::daemon::{Daemon, Layout, POOL, pause};
use larder_benches::{MIB, pool_in, timed, timing};
use larder_files::{Caller, Mount, NodeId, OpenFlags, Ops};
use larder_pool::ROOT_DATASET;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Measures what snapshots cost.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// The daemon's program
    #[arg(long, env = "LARDER", default_value = "target/release/larder")]
    larder: PathBuf,
    /// Snapshots of one dataset that are listed
    #[arg(long, default_value_t = 10_000)]
    snapshots: usize,
    /// Datasets that are taken together
    #[arg(long, default_value_t = 1000)]
    datasets: usize,
    /// Seconds that writers are watched
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

const SINGLE: Layout = Layout { word: "", devices: 1, data: 1 };
/// Snapshots that one command takes.
const TOGETHER: usize = 100;
/// Bytes of a file that is rewritten.
const REWRITTEN: usize = 256 * MIB;
/// Snapshots that are there while it is.
const BESIDE: usize = 100;

fn main() {
    let args = Args::parse();
    let folder = TempDir::with_prefix_in("larder-bench-", &args.folder).expect("the folder can be written");
    let mountpoint = folder.path().join("mount");
    println!("| | milliseconds | wanted | |\n|---|---|---|---|");
    commands(&args, folder.path(), &mountpoint);
    println!("\n| | figure | wanted | |\n|---|---|---|---|");
    rewriting(&args, folder.path(), &mountpoint);
    writers(&args);
}

/// A line of the first table.
fn told(what: &str, time: Duration, wanted_ms: Option<u64>) {
    let ms = time.as_secs_f64() * 1e3;
    let (wanted, verdict) = match wanted_ms {
        Some(wanted) if ms <= wanted as f64 => (wanted.to_string(), "reached"),
        Some(wanted) => (wanted.to_string(), "missed"),
        None => (String::new(), ""),
    };
    println!("| {what} | {ms:.1} | {wanted} | {verdict} |");
}

/// A line of the second, of a ratio.
fn held(what: &str, figure: f64, wanted: &str, is_reached: bool) {
    println!("| {what} | {figure:.2} | {wanted} | {} |", if is_reached { "reached" } else { "missed" });
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A pool that is mounted, with a daemon.
fn mounted(args: &Args, folder: &Path, mountpoint: &Path, bytes: u64) -> Daemon {
    let daemon = Daemon::start(&args.larder, folder);
    daemon.create(SINGLE, &SINGLE.files(folder, bytes), &[], mountpoint);
    daemon
}

fn commands(args: &Args, folder: &Path, mountpoint: &Path) {
    let daemon = mounted(args, folder, mountpoint, 8 << 30);
    let run = |arguments: &[&str]| timed(|| drop(daemon.run(arguments)));
    let dataset = format!("{POOL}/a");
    daemon.run(&["fs", "create", &dataset]);
    let place = mountpoint.join("a");
    for i in 0..200 {
        fs::write(place.join(format!("file{i}")), vec![i as u8; 10_000]).expect("it fits");
    }
    daemon.sync();
    told("a command that does nothing", median((0..20).map(|_| run(&["daemon", "status"])).collect()), None);
    let idle = (0..20).map(|i| run(&["fs", "snapshot", &format!("{dataset}@idle{i}")]));
    told("a snapshot, nothing to commit", median(idle.collect()), Some(10));
    let changed = (0..20).map(|i| {
        fs::write(place.join("changed"), format!("{i}")).expect("it fits");
        run(&["fs", "snapshot", &format!("{dataset}@changed{i}")])
    });
    told("a snapshot after a file was written", median(changed.collect()), None);
    let clones =
        (0..20).map(|i| run(&["fs", "clone", &format!("{dataset}@changed{i}"), &format!("{POOL}/clone{i}")]));
    told("a clone, mounted", median(clones.collect()), None);
    told("a promote", run(&["fs", "promote", &format!("{POOL}/clone0")]), None);
    told("a promote back", run(&["fs", "promote", &dataset]), None);
    (0..20).for_each(|i| drop(daemon.run(&["fs", "destroy", "--yes", &format!("{POOL}/clone{i}")])));

    for first in (0..args.snapshots).step_by(TOGETHER) {
        fs::write(place.join(format!("file{}", first / TOGETHER % 200)), format!("{first}"))
            .expect("it fits");
        let names = (first..first + TOGETHER).map(|i| format!("{dataset}@s{i:06}"));
        let names: Vec<_> = names.collect();
        let mut arguments = vec!["fs", "snapshot"];
        arguments.extend(names.iter().map(String::as_str));
        daemon.run(&arguments);
    }
    daemon.import_again(mountpoint);
    let list = |columns: &str| run(&["fs", "list", "-Ht", "snapshot", "-o", columns, &dataset]);
    let what = |rest: &str| format!("{} snapshots listed{rest}", args.snapshots);
    told(&what(": names, after an import"), list("name"), None);
    told(&what(": names"), median((0..5).map(|_| list("name")).collect()), Some(100));
    told(&what(": used, refer, written, the first time"), list("name,used,refer,written,creation"), None);
    told(&what(": used, refer, written, again"), list("name,used,refer,written,creation"), None);
    let all = || run(&["fs", "get", "-Hrt", "snapshot", "all", &dataset]);
    told(&what(": all properties"), median((0..5).map(|_| all()).collect()), Some(500));
    let destroy = |from: usize, to: usize| {
        run(&["fs", "destroy", "--now", "--yes", &format!("{dataset}@s{from:06}%s{to:06}")])
    };
    told("1,000 snapshots destroyed", destroy(0, 999), Some(1000));
    told(&format!("{} more destroyed", args.snapshots - 1000), destroy(1000, args.snapshots - 1), None);

    for i in 0..args.datasets {
        daemon.run(&["fs", "create", "-u", &format!("{POOL}/a/d{i}")]);
    }
    let together = (0..5).map(|i| run(&["fs", "snapshot", "-r", &format!("{POOL}@r{i}")]));
    told(&format!("a snapshot of {} datasets", args.datasets + 2), median(together.collect()), Some(100));
    told("and destroyed", run(&["fs", "destroy", "-r", "--now", "--yes", &format!("{POOL}@r0")]), None);
    daemon.run(&["pool", "destroy", "--yes", POOL]);
}

/// A file rewritten, without snapshots and with many that hold what it was: each has some of it.
fn rewriting(args: &Args, folder: &Path, mountpoint: &Path) {
    let daemon = mounted(args, folder, mountpoint, 16 << 30);
    let block = larder_benches::content::Content::Random.bytes(MIB);
    let path = mountpoint.join("file");
    let rewrite = || {
        let file = File::options().write(true).create(true).truncate(false).open(&path).expect("a file");
        (0..REWRITTEN / MIB).for_each(|i| file.write_all_at(&block, (i * MIB) as u64).expect("it fits"));
        file.sync_all().expect("it is durable");
    };
    rewrite();
    let without = median((0..5).map(|_| timed(rewrite)).collect());
    let file = File::options().write(true).open(&path).expect("it is there");
    for i in 0..BESIDE {
        let at = i * REWRITTEN / BESIDE / MIB * MIB;
        file.write_all_at(&block, at as u64).expect("it fits");
        daemon.run(&["fs", "snapshot", &format!("{POOL}@s{i}")]);
    }
    drop(file);
    let with = median((0..5).map(|_| timed(rewrite)).collect());
    let ratio = without.as_secs_f64() / with.as_secs_f64();
    held(
        &format!("rewriting {} MiB under {BESIDE} snapshots, speed against none", REWRITTEN / MIB),
        ratio,
        "0.9",
        ratio >= 0.9,
    );
    daemon.run(&["pool", "destroy", "--yes", POOL]);
}

/// Writers in the engine, alone and beside 100 snapshots a second.
fn writers(args: &Args) {
    let folder = TempDir::with_prefix_in("larder-bench-", &args.folder).expect("the folder can be written");
    let pool = pool_in(folder.path(), "single", 1, 16 << 30);
    let mount = Mount::new(Arc::clone(&pool), (0, 0)).expect("a mount");
    mount.attach(pool.dataset(ROOT_DATASET).expect("there is one"), None).expect("it is attached");
    let caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let made = mount.create(NodeId::ROOT, b"file", 0o600, flags, &caller).expect("a file");
    let data = larder_benches::content::Content::Random.bytes(64 << 10);
    // Some MiB a second, as a busy server writes: the question is who waits, not how much goes through.
    let p99 = |seconds: u64| {
        let (mut times, mut at) = (Vec::new(), 0u64);
        let (mut left, pace) = (Duration::from_secs(seconds), Duration::from_millis(2));
        while !left.is_zero() {
            at = (at + 7919 * data.len() as u64) % (256 * MIB) as u64;
            let (_, time) =
                timing(|| mount.write(made.attr.node, made.handle, at, &data, false).expect("it fits"));
            times.push(time);
            pause(pace);
            left = left.saturating_sub(pace.max(time));
        }
        times.sort_unstable();
        times[times.len() * 99 / 100]
    };
    let committed = |seconds| {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    pool.commit().expect("a commit");
                    pause(Duration::from_secs(1));
                }
            });
            let p99 = p99(seconds);
            is_over.store(true, Ordering::Relaxed);
            p99
        })
    };
    p99(2);
    let alone = committed(args.seconds);
    let is_over = AtomicBool::new(false);
    let (beside, taken) = std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let mut taken = 0u32;
            while !is_over.load(Ordering::Relaxed) {
                let time = timed(|| {
                    pool.snapshot(ROOT_DATASET, &format!("s{taken}")).expect("a snapshot");
                });
                taken += 1;
                pause(Duration::from_millis(10).saturating_sub(time));
            }
            taken
        });
        let beside = p99(args.seconds);
        is_over.store(true, Ordering::Relaxed);
        (beside, taker.join().expect("it took them"))
    });
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    let (alone, beside) = (alone.as_secs_f64() * 1e3, beside.as_secs_f64() * 1e3);
    let rate = f64::from(taken) / args.seconds as f64;
    let what = format!(
        "p99 of 64 KiB writes beside {rate:.0} snapshots a second ({beside:.2} ms) against a commit a second ({alone:.2} ms)"
    );
    held(&what, ratio, "2", ratio <= 2.0);
}
