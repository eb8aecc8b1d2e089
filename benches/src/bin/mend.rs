//! A scrub, and the rebuilding of a device, beside fio doing the same reads and writes on the same disk.
//!
//! `cargo run --release -p larder-benches --bin mend -- [FOLDER]`: a pool of sparse files that is filled, scrubbed,
//! and rebuilt after it lost a device. Then fio reads as many bytes of as many files, and writes as many to one, with
//! the same size of request; each takes turns with the pool, so that a noisy neighbour meets both.

use clap::Parser;
use larder_benches::device::sparse_file;
use larder_benches::timed;
use larder_device::{
    Device, Entropy, FileDevice, OpenMode, SeededEntropy, SystemClock, SystemEntropy, Workers,
};
use larder_format::checksum::ChecksumKind;
use larder_format::segment::SegmentState;
use larder_format::{DeviceIndex, HostId};
use larder_pool::codec::Codec;
use larder_pool::create::rule_for;
use larder_pool::{Dedup, GroupSpec, NewRecord, Pool, PoolSpec, ROOT_DATASET, ScrubSince, World};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// Measures scrub and resilver beside fio.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie [default: the temporary folder]
    folder: Option<PathBuf>,
    /// The layout
    #[arg(long, default_value = "raidz2")]
    layout: String,
    /// How many devices
    #[arg(long, default_value_t = 6)]
    devices: usize,
    /// Gibibytes of each, sparse
    #[arg(long, default_value_t = 64)]
    gib: u64,
    /// Mebibytes of data
    #[arg(long, default_value_t = 768)]
    mib: usize,
    /// KiB of a record
    #[arg(long, default_value_t = 128)]
    record_kib: usize,
    /// Times that each is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Bytes that a step goes through.
const STEP: u64 = 64 << 20;

/// Two threads for what is independent.
struct Pair;

impl Workers for Pair {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(piece) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < count) {
                job(piece);
            }
        };
        std::thread::scope(|scope| {
            if count > 1 {
                scope.spawn(work);
            }
            work();
        });
    }
    fn later(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

fn world() -> World {
    World {
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(SystemEntropy),
        workers: Arc::new(Pair),
        host: HostId::new(1),
        host_name: "bench".into(),
    }
}

fn open(path: &Path, bytes: u64) -> Arc<dyn Device> {
    sparse_file(path, bytes);
    Arc::new(FileDevice::open(path, OpenMode::Exclusive).expect("the file can be used"))
}

fn fill(pool: &Pool, args: &Args) {
    let dice = SeededEntropy::new(1);
    let len = args.record_kib << 10;
    let mut content = vec![0; len];
    content.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&dice.next_u64().to_le_bytes()));
    let records = (args.mib << 20) / len;
    for batch in 0..records.div_ceil(64) {
        let op = pool.enter().expect("it can be written");
        let record = |i: usize| {
            content[..8].copy_from_slice(&(i as u64).to_le_bytes());
            NewRecord {
                dataset: ROOT_DATASET,
                inode: 2,
                offset: (i * len) as u64,
                plain: content.clone().into(),
                codec: Codec::Off,
                checksum: ChecksumKind::Fast,
                dedup: Dedup::Off,
                replaces: None,
            }
        };
        let range = batch * 64..records.min(batch * 64 + 64);
        pool.store(&op, range.map(record).collect()).expect("there is room");
    }
    pool.set_note("bench", "filled").expect("a note");
    pool.commit().expect("a commit");
}

/// Reads `bytes` of each of some files and writes as many to another, all at once, with fio.
fn fio(folder: &Path, read: &[usize], write: bool, bytes: u64) {
    let mut command = Command::new("fio");
    command.args([
        "--direct=1",
        "--bs=1M",
        "--iodepth=4",
        "--ioengine=libaio",
        "--thread",
        "--output=/dev/null",
    ]);
    command.args([format!("--size={bytes}"), "--offset=1M".into()]);
    for device in read {
        let file = folder.join(device.to_string());
        command.args([
            format!("--name=read{device}"),
            format!("--filename={}", file.display()),
            "--rw=read".into(),
        ]);
    }
    if write {
        let file = folder.join("fio");
        sparse_file(&file, bytes + (1 << 20));
        command.args(["--name=write".into(), format!("--filename={}", file.display()), "--rw=write".into()]);
        command.arg("--end_fsync=1");
    }
    let status = command.stdin(Stdio::null()).status().expect("fio can be started");
    assert!(status.success(), "fio failed");
    let _ = std::fs::remove_file(folder.join("fio"));
}

fn main() {
    let args = Args::parse();
    let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = TempDir::with_prefix_in("larder-bench-", folder).expect("the folder can be written");
    let path = |name: &str| folder.path().join(name);
    let size = args.gib << 30;
    let devices: Vec<_> = (0..args.devices).map(|i| open(&path(&i.to_string()), size)).collect();
    let rule = rule_for(&args.layout, args.devices).expect("a layout");
    let groups = vec![GroupSpec { rule, devices }];
    let spec = PoolSpec { name: "bench".into(), groups, ashift: 12 };
    let pool = Pool::create(world(), spec).expect("a pool");
    fill(&pool, &args);
    let alive = pool.segments().into_iter().filter(|record| record.state != SegmentState::Freed);
    let raw: u64 = alive.map(|record| u64::from(record.height) * record.slots.len() as u64).sum();
    let column = raw / args.devices as u64;
    println!("{} of {}: {} MiB on each device", args.layout, args.devices, column >> 20);
    let rate = |bytes: u64, seconds: f64| bytes as f64 / 1e6 / seconds;
    println!("{:<10}{:>12}{:>12}{:>8}", "", "larder MB/s", "fio MB/s", "ratio");
    let all: Vec<usize> = (0..args.devices).collect();
    for _ in 0..args.rounds {
        let ours = timed(|| {
            pool.scrub_start(ScrubSince::All).expect("a scrub");
            while pool.scrub_step(STEP).expect("it goes on") {}
        });
        let theirs = timed(|| fio(folder.path(), &all, false, column));
        let (ours, theirs) = (rate(raw, ours.as_secs_f64()), rate(raw, theirs.as_secs_f64()));
        println!("{:<10}{ours:>12.0}{theirs:>12.0}{:>8.2}", "scrub", ours / theirs);
    }
    let layout = rule.layout;
    let sources = if layout.r() > 1 { 1 } else { layout.k() };
    let moved = column * (sources as u64 + 1);
    for round in 0..args.rounds {
        let name = path("new");
        let device = open(&name, size);
        let old = DeviceIndex::new(args.devices as u16 - 1);
        pool.offline(old, false).expect("the layout survives it");
        pool.replace(old, device).expect("it is large enough");
        let ours = timed(|| while pool.resilver_step(STEP).expect("it goes on") {});
        // It keeps its file under another name.
        std::fs::rename(&name, path(&format!("was-new-{round}"))).expect("a name");
        if round > 0 {
            std::fs::remove_file(path(&format!("was-new-{}", round - 1))).expect("it was replaced");
        } else {
            std::fs::remove_file(path(&(args.devices - 1).to_string())).expect("it was replaced");
        }
        let theirs = timed(|| fio(folder.path(), &all[..sources], true, column));
        let (ours, theirs) = (rate(moved, ours.as_secs_f64()), rate(moved, theirs.as_secs_f64()));
        println!("{:<10}{ours:>12.0}{theirs:>12.0}{:>8.2}", "resilver", ours / theirs);
    }
}
