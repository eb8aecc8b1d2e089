//! A pool through a real mount, beside what its devices and FUSE give by themselves, in one run.
//!
//! `cargo run --release -p larder-benches --bin mount -- FOLDER` (see benches/README.md). Needs root, or
//! fusermount3. Starts a daemon of its own; FOLDER holds its devices, at most about 2.5 times `--mib` at
//! a time, and is left as it was.

use clap::Parser;
use larder_benches::content::Content;
use larder_benches::daemon::{Daemon, Layout};
use larder_benches::device::{self, DeviceSpeed};
use larder_benches::{Latencies, MIB, mb_per_s, no_op, process, work};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Measures a pool through a mount, beside its devices and a file system that does nothing.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// Mebibytes that each test writes
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// Small files
    #[arg(long, default_value_t = 20_000)]
    files: usize,
    /// Random reads, and appends with fsync
    #[arg(long, default_value_t = 2_000)]
    operations: usize,
    /// The binary [default: $LARDER, else beside this one]
    #[arg(long, env = "LARDER")]
    larder: Option<PathBuf>,
    /// Only pools of this layout: single or raidz2
    #[arg(long)]
    layout: Option<String>,
}

const LAYOUTS: [Layout; 2] =
    [Layout { word: "", devices: 1, data: 1 }, Layout { word: "raidz2", devices: 6, data: 4 }];
/// The pool's `memory` unless told otherwise, bytes.
const MEMORY: u64 = 512 << 20;
/// Mebibytes that fit the pool's share of memory for records.
const WARM_MIB: usize = 64;

/// Sequential work: a mount's figures, MB/s.
#[derive(Debug, Clone, Copy)]
struct Stream {
    write: f64,
    cold: f64,
    warm_pool: f64,
    warm_kernel: f64,
}

/// Processor seconds a GiB.
#[derive(Debug, Clone, Copy)]
struct Cpu {
    daemon: f64,
    client: f64,
}

/// Processor time of the daemon and of this process.
struct CpuClock {
    daemon: Option<u32>,
    at: (Duration, Duration),
}

impl CpuClock {
    fn start(daemon: Option<u32>) -> Self {
        Self { daemon, at: Self::now(daemon) }
    }

    fn now(daemon: Option<u32>) -> (Duration, Duration) {
        let of_daemon = daemon.map(|pid| process::cpu_time(pid).expect("the daemon runs"));
        (of_daemon.unwrap_or_default(), process::own_cpu_time())
    }

    fn per_gib(&self, mib: usize) -> Cpu {
        let now = Self::now(self.daemon);
        let rate = |time: Duration| time.as_secs_f64() * 1024.0 / mib as f64;
        Cpu { daemon: rate(now.0 - self.at.0), client: rate(now.1 - self.at.1) }
    }
}

/// Figures that a pool's are compared with.
struct Beside {
    device: DeviceSpeed,
    no_op: Stream,
}

fn main() {
    let mut args = Args::parse();
    args.folder = args.folder.canonicalize().expect("the folder exists");
    let beside = std::env::current_exe().map(|own| own.with_file_name("larder"));
    let larder = args.larder.clone().or(beside.ok()).expect("a path");
    let random = Content::Random.bytes(64 * MIB);
    let text = Content::Text.bytes(64 * MIB);

    println!("{} MiB, {} small files, {} operations", args.mib, args.files, args.operations);
    let device = device::measure(&args.folder, &random, args.mib, args.operations);
    println!("device (a file, direct): write {:.0} MB/s, read {:.0} MB/s", device.write, device.read);
    print_latencies("device", "4 KiB random read", &device.random);
    print_latencies("device", "4 KiB write + flush", &device.sync);

    println!(
        "\nMB/s (of the device's, of the no-op mount's); processor seconds a GiB: daemon + client\n\
         pool    codec  data    write                            cold read                        \
         warm: pool  kernel   peak memory"
    );
    let beside = no_op(&args, device, &random);
    for layout in LAYOUTS {
        if args.layout.as_ref().is_some_and(|only| only != layout.name()) {
            continue;
        }
        for (codec, content, bytes) in [
            ("off", Content::Random, &random),
            ("lz4", Content::Random, &random),
            ("off", Content::Text, &text),
            ("lz4", Content::Text, &text),
        ] {
            stream(&args, &larder, layout, codec, (content, bytes), &beside);
        }
    }
    println!("\none after another, one client");
    let folder = TempDir::new().expect("a folder for the mount");
    let mounted = no_op::mount(folder.path());
    operations(&args, "no-op", folder.path(), &text, None);
    mounted.unmount().expect("nobody is in it");
    for layout in LAYOUTS {
        if args.layout.as_ref().is_none_or(|only| only == layout.name()) {
            let bed = Bed::new(&args, &larder, layout, "lz4");
            operations(&args, layout.name(), bed.mountpoint.path(), &text, Some(&bed.daemon));
        }
    }
}

/// A daemon, its pool and where that is mounted.
struct Bed {
    // Dropped in this order: the daemon unmounts before the folders go.
    daemon: Daemon,
    mountpoint: TempDir,
    _folder: TempDir,
}

impl Bed {
    fn new(args: &Args, larder: &Path, layout: Layout, codec: &str) -> Self {
        let folder =
            TempDir::with_prefix_in("larder-bench-", &args.folder).expect("the folder can be written");
        let mountpoint = TempDir::new().expect("a folder for the mount");
        let daemon = Daemon::start(larder, folder.path());
        // Room for what is written, for the reserve, and for what is not yet free again.
        let bytes = (args.mib * MIB / layout.data) as u64 * 2 + (1 << 30);
        let properties = [format!("compression={codec}")];
        daemon.create(layout, &layout.files(folder.path(), bytes), &properties, mountpoint.path());
        Self { daemon, mountpoint, _folder: folder }
    }
}

/// The no-op mount's figures: printed, and kept for the ratios.
fn no_op(args: &Args, device: DeviceSpeed, content: &[u8]) -> Beside {
    let folder = TempDir::new().expect("a folder for the mount");
    let mounted = no_op::mount(folder.path());
    let (file, rate) = (folder.path().join("stream"), |time| mb_per_s(args.mib * MIB, time));
    let clock = CpuClock::start(None);
    let write = rate(work::write(&file, content, args.mib));
    let write_cpu = clock.per_gib(args.mib);
    // The file written is in the kernel's cache: a fresh one of the same size is not.
    let cold = folder.path().join("cold");
    std::fs::File::create(&cold).and_then(|file| file.set_len((args.mib * MIB) as u64)).expect("a size");
    let clock = CpuClock::start(None);
    let cold_read = rate(work::read(&cold));
    let cold_cpu = clock.per_gib(args.mib);
    let warm_mib = WARM_MIB.min(args.mib);
    let warm_pool = mb_per_s(warm_mib * MIB, work::read_direct(&cold, warm_mib));
    let warm_kernel = rate(work::read(&cold));
    mounted.unmount().expect("nobody is in it");
    let no_op = Stream { write, cold: cold_read, warm_pool, warm_kernel };
    let beside = Beside { device, no_op };
    print_stream(("no-op", "-", "-"), &no_op, (write_cpu, cold_cpu), &beside, "");
    beside
}

/// One line of the table of sequential work.
fn stream(
    args: &Args,
    larder: &Path,
    layout: Layout,
    codec: &str,
    (content, bytes): (Content, &[u8]),
    beside: &Beside,
) {
    let bed = Bed::new(args, larder, layout, codec);
    let (file, pid) = (bed.mountpoint.path().join("stream"), bed.daemon.pid());
    let rate = |time| mb_per_s(args.mib * MIB, time);
    let clock = CpuClock::start(Some(pid));
    let write = rate(work::write(&file, bytes, args.mib));
    let write_cpu = clock.per_gib(args.mib);
    bed.daemon.import_again(bed.mountpoint.path());
    let clock = CpuClock::start(Some(pid));
    let cold = rate(work::read(&file));
    let cold_cpu = clock.per_gib(args.mib);
    let warm_mib = WARM_MIB.min(args.mib);
    work::read_direct(&file, warm_mib);
    let warm_pool = mb_per_s(warm_mib * MIB, work::read_direct(&file, warm_mib));
    work::read(&file);
    let warm_kernel = rate(work::read(&file));
    let peak = process::peak_memory(pid).expect("the daemon runs");
    let memory = format!("{:4} MiB ({:.2} of budget)", peak >> 20, peak as f64 / MEMORY as f64);
    let stream = Stream { write, cold, warm_pool, warm_kernel };
    print_stream((layout.name(), codec, content.name()), &stream, (write_cpu, cold_cpu), beside, &memory);
}

fn print_stream(
    (pool, codec, data): (&str, &str, &str),
    stream: &Stream,
    (write_cpu, cold_cpu): (Cpu, Cpu),
    beside: &Beside,
    memory: &str,
) {
    let cell = |rate: f64, device: f64, no_op: f64, cpu: Cpu| {
        format!(
            "{rate:5.0} ({:4.2}, {:4.2}) {:4.2} + {:4.2}",
            rate / device,
            rate / no_op,
            cpu.daemon,
            cpu.client
        )
    };
    println!(
        "{pool:7} {codec:5}  {data:6}  {}  {}  {:9.0}  {:7.0}   {memory}",
        cell(stream.write, beside.device.write, beside.no_op.write, write_cpu),
        cell(stream.cold, beside.device.read, beside.no_op.cold, cold_cpu),
        stream.warm_pool,
        stream.warm_kernel,
    );
}

/// Small files, appends with fsync, random reads.
fn operations(args: &Args, name: &str, folder: &Path, content: &[u8], daemon: Option<&Daemon>) {
    let pid = daemon.map(Daemon::pid);
    let clock = CpuClock::start(pid);
    let import = || daemon.into_iter().for_each(|daemon| daemon.import_again(folder));
    let files = work::small_files(folder, content, args.files, import);
    // Per file, as seconds "a GiB" of 1 MiB pieces would be: 1024 times too many.
    let cpu = clock.per_gib(args.files);
    let rate = |time: Duration| args.files as f64 / time.as_secs_f64();
    println!(
        "{name:7} files a second: create {:6.0}, stat (cold) {:6.0}, unlink {:6.0}; processor microseconds \
         a file: {:.0} + {:.0}",
        rate(files.create),
        rate(files.stat),
        rate(files.unlink),
        cpu.daemon / 1024.0 * 1e6,
        cpu.client / 1024.0 * 1e6,
    );
    let appends = work::append(&folder.join("appended"), content, args.operations);
    print_latencies(name, "4 KiB append + fsync", &appends);
    let file = folder.join("random");
    work::write(&file, content, args.mib);
    import();
    print_latencies(name, "4 KiB random read", &work::read_randomly(&file, args.mib, args.operations));
}

fn print_latencies(of: &str, what: &str, latencies: &Latencies) {
    let us = |percent| latencies.percentile(percent).as_secs_f64() * 1e6;
    println!(
        "{of:7} {what:20} {:7.0} a second, p50 {:6.0} us, p99 {:6.0} us",
        latencies.per_second(),
        us(50),
        us(99)
    );
}
