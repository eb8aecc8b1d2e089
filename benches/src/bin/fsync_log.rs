//! What a log on an SSD makes of fsync before disks with one arm: 4 KiB appended and synced, over and over.
//!
//! `cargo run --release -p larder-benches --bin fsync_log -- FOLDER` (see benches/README.md). Pools in this process on
//! files in FOLDER, mirrors of two: files that answer as disks would ([`larder_device::Disk`]), the same with a log on
//! files as they are, and all on files as they are.

use clap::Parser;
use larder_benches::committer::Committer;
use larder_benches::device::{Ground, sparse_file};
use larder_benches::disks::{open, pace};
use larder_benches::world;
use larder_device::{Clock, SystemClock, SystemWorkers};
use larder_files::{Caller, FileKind, Handle, Mount, NodeId, Ops};
use larder_format::root::GroupRole;
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, Pool, PoolSpec, ROOT_DATASET};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Appends 4 KiB and syncs, over and over, on disks, on disks with a log, and on SSDs.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// Seconds of each part
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// The disk, as a line of a control file has it
    #[arg(long, default_value = "disk rpm=5400 span=300G")]
    disk: String,
    /// KiB of each append
    #[arg(long, default_value_t = 4)]
    append: usize,
}

/// A device, bytes: sparse.
const DEVICE: u64 = 8 << 30;

/// Times of a part, sorted, and how many a second.
struct Part {
    times: Vec<Duration>,
    per_second: f64,
}

impl Part {
    fn ms(&self, percent: usize) -> f64 {
        self.times[(self.times.len() - 1) * percent / 100].as_secs_f64() * 1e3
    }
}

fn main() {
    let args = Args::parse();
    println!(
        "appends of {} KiB with fsync, {} s each; mirrors of two; {}",
        args.append, args.seconds, args.disk
    );
    println!("{:<14} {:>8} {:>9} {:>8} {:>8} {:>8}", "", "fsyncs", "a second", "p50 ms", "p99 ms", "most ms");
    let disks = measure(&args, "disks", true, false);
    let log = measure(&args, "disks and log", true, true);
    let files = measure(&args, "SSDs", false, false);
    let of = |figure: &str, value: f64, wanted: &str, reached: bool| {
        println!("{figure}: {value:.2} (wanted: {wanted}; {})", if reached { "reached" } else { "missed" });
    };
    let (tail, rate) = (log.ms(99) / files.ms(99), log.per_second / disks.per_second);
    of("p99 with a log over that of SSDs", tail, "1.3 at most", tail <= 1.3);
    of("fsyncs a second with a log over those of disks", rate, "20 at least", rate >= 20.0);
}

/// Appends for so long to a file in a pool of its own, and prints a line.
fn measure(args: &Args, name: &str, slow: bool, has_log: bool) -> Part {
    let folder = TempDir::new_in(&args.folder).expect("the folder can be written");
    let path = |name: &str| folder.path().join(name);
    let data = [path("disk0"), path("disk1")];
    let make = |path: &PathBuf| {
        match path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log")) {
            // A file system that has to find room for each write would be measured along.
            true => Ground::Written.make(path, 1 << 30, 1 << 30),
            false => sparse_file(path, DEVICE),
        }
        open(path)
    };
    let mirror = |role, paths: &[PathBuf]| GroupSpec {
        rule: rule_for("mirror", 2).expect("two devices"),
        role,
        devices: paths.iter().map(make).collect(),
    };
    let mut groups = vec![mirror(GroupRole::Data, &data)];
    groups.extend(has_log.then(|| mirror(GroupRole::Log, &[path("log0"), path("log1")])));
    let spec = PoolSpec { name: "bench".into(), groups, ashift: 12 };
    let workers = Arc::new(SystemWorkers::new().expect("threads"));
    let pool = Pool::create(world(workers), spec).expect("a pool");
    let mount = Mount::new(Arc::clone(&pool), (0, 0)).expect("a mount");
    mount.attach(pool.dataset(ROOT_DATASET).expect("there is one"), None).expect("it is attached");
    pool.commit().expect("a commit");
    if slow {
        pace(&data, Some(&args.disk));
    }
    let committer = Committer::of(&pool);
    let part = std::thread::scope(|scope| {
        scope.spawn(|| committer.work(&pool, &mount));
        let part = append(&*mount, args);
        committer.stop();
        part
    });
    if slow {
        pace(&data, None);
        // With the next request the line is looked for, and what is left of the disk tells how late it was.
        append(&*mount, &Args { seconds: 0, ..args.clone() });
        pool.commit().expect("a commit");
    }
    println!(
        "{name:<14} {:>8} {:>9.0} {:>8.2} {:>8.2} {:>8.2}",
        part.times.len(),
        part.per_second,
        part.ms(50),
        part.ms(99),
        part.ms(100)
    );
    part
}

fn append(mount: &dyn Ops, args: &Args) -> Part {
    let caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
    let name = format!("log of {} s", args.seconds);
    let made = mount.mknod(NodeId::ROOT, name.as_bytes(), FileKind::Regular, 0o644, 0, &caller);
    let (node, handle) = (made.expect("a file").node, Handle(0));
    let bytes = vec![3; args.append << 10];
    let clock = SystemClock::new();
    let (began, time) = (clock.monotonic(), Duration::from_secs(args.seconds));
    let (mut times, mut offset, mut now) = (Vec::new(), 0, began);
    while now - began < time || times.is_empty() {
        mount.write(node, handle, offset, &bytes, false).expect("it fits");
        mount.fsync(node, handle, true).expect("it is synced");
        offset += bytes.len() as u64;
        let then = clock.monotonic();
        times.push(then - now);
        now = then;
    }
    let per_second = times.len() as f64 / (now - began).as_secs_f64();
    times.sort_unstable();
    Part { times, per_second }
}
