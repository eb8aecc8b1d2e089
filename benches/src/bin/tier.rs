//! An SSD's copies before disks with one arm: hits, reads a second, and what they take.
//!
//! `cargo run --release -p larder-benches --bin tier -- FOLDER` (see benches/README.md). A pool in this process on
//! files in FOLDER, which answer as disks would ([`larder_device::Disk`]); records are read at random from several
//! threads: as fast as the files are, then at the disks' pace, then with a device for copies beside them, of which the
//! last part counts; then after an export, and after the process was cut short.

use clap::Parser;
use larder_benches::content::Content;
use larder_benches::device::sparse_file;
use larder_benches::disks::{filling, import, open, pace};
use larder_benches::pattern::{Pattern, Picker};
use larder_benches::{MIB, record, world};
use larder_device::{Clock, FileDevice, OpenMode, SystemClock, SystemWorkers};
use larder_format::BlockPtr;
use larder_pool::codec::Codec;
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, Pool, PoolSpec};
use larder_upkeep::Upkeep;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Reads records at random from slow disks, without and with copies on a fast device.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// Mebibytes of records
    #[arg(long, default_value_t = 3072)]
    mib: usize,
    /// Mebibytes of the device for copies
    #[arg(long, default_value_t = 256)]
    cache: usize,
    /// The budget of memory, MiB
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// KiB of a record
    #[arg(long, default_value_t = 128)]
    record: usize,
    /// Records that are read: uniform, or zipf:POWER
    #[arg(long, default_value = "zipf:1.1")]
    pattern: Pattern,
    /// Threads that read
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// Seconds of each part; those with copies take three times as long
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Disks, copies of one another
    #[arg(long, default_value_t = 2)]
    disks: usize,
    /// The disk, as a line of a control file has it
    #[arg(long, default_value = "disk rpm=5400 span=300G")]
    disk: String,
}

fn main() {
    let args = Args::parse();
    let folder = TempDir::new_in(&args.folder).expect("a folder");
    let paths: Vec<PathBuf> = (0..args.disks).map(|i| folder.path().join(format!("disk{i}"))).collect();
    let pool = pool(&args, &paths);
    let records = store(&args, &pool);
    println!(
        "{} MiB in records of {} KiB, {}; {} MiB for copies; memory {} MiB; {} threads; {} x {}",
        args.mib, args.record, args.pattern, args.cache, args.memory, args.threads, args.disks, args.disk
    );
    println!("part                  reads/s   RAM hits  SSD hits  of RAM's misses   p50 ms   p99 ms");
    let fast = read(&args, &pool, &records, "files as they are", args.seconds, 1);
    pace(&paths, Some(&args.disk));
    let slow = read(&args, &pool, &records, "disks", args.seconds, 2);
    let upkeep = Upkeep::new(&pool);
    let cache = folder.path().join("cache");
    sparse_file(&cache, (args.cache * MIB) as u64);
    let device = FileDevice::open(&cache, OpenMode::Exclusive).expect("the file can be used");
    upkeep.devices.add_cache(Arc::new(device)).expect("a device for copies");
    let mut last = None;
    filling(&pool, || {
        for (part, seconds) in [("while it fills", args.seconds * 3), ("with copies", args.seconds)] {
            let got = read(&args, &pool, &records, part, seconds, part.len() as u64);
            let expected = slow.per_second * slow.missed_ram / got.missed.max(1e-9);
            println!(
                "  {:.2} of the disks' reads over the ratio of misses; reads within twice the p99 of the files: {:.3}",
                got.per_second / expected,
                got.within(fast.p99() * 2)
            );
            last = Some(got);
        }
    });
    let stats = pool.store().read_cache.stats(pool.store().clock().monotonic()).expect("a device for copies");
    println!(
        "{} blocks, {:.1} bytes of memory each; {} MiB written, {} kept; curve {:?}",
        stats.blocks,
        stats.memory as f64 / stats.blocks.max(1) as f64,
        stats.policy.appended_bytes >> 20,
        stats.policy.kept_bytes >> 20,
        stats.curve
    );
    let before = last.expect("parts with copies").of_misses;
    drop(upkeep);
    pool.commit_export().expect("an export");
    drop(pool);
    for (part, seed) in [("after an export", 31), ("after a crash", 32)] {
        let pool = import(paths.iter().chain([&cache]));
        let upkeep = Upkeep::new(&pool);
        let got = filling(&pool, || read(&args, &pool, &records, part, args.seconds, seed));
        println!("  {:.2} of the hits before, of what memory missed", got.of_misses / before.max(1e-9));
        // Nothing is told to the devices: what is in the files is what a process leaves that was killed.
        drop((upkeep, pool));
    }
    pace(&paths, None);
}

fn pool(args: &Args, paths: &[PathBuf]) -> Arc<Pool> {
    let open = |path: &PathBuf| {
        sparse_file(path, (args.mib * MIB) as u64 * 5 / 4 + (256 << 20));
        open(path)
    };
    let word = if paths.len() == 1 { "single" } else { "mirror" };
    let rule = rule_for(word, paths.len()).expect("enough devices");
    let groups = vec![GroupSpec::data(rule, paths.iter().map(open).collect())];
    let spec = PoolSpec { name: "bench".into(), groups, ashift: 12 };
    let pool = Pool::create(world(Arc::new(SystemWorkers::new().expect("threads"))), spec).expect("a pool");
    pool.set_pool_property("memory", &(args.memory << 20).to_string()).expect("a budget");
    pool
}

fn store(args: &Args, pool: &Arc<Pool>) -> Vec<BlockPtr> {
    let source = Content::Random.bytes(32 * MIB);
    let len = args.record << 10;
    let mut all = Vec::new();
    for number in 0..args.mib * MIB / len {
        let mut plain = source[number * 4096 % (source.len() - len)..][..len].to_vec();
        plain[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let op = pool.enter().expect("the pool is writable");
        let record = record(plain, Codec::Off);
        all.extend(pool.store_records(&op, vec![record]).expect("room"));
        drop(op);
        if number % 512 == 511 {
            pool.commit().expect("a commit");
        }
    }
    pool.commit().expect("a commit");
    all
}

/// Figures of a part.
struct Part {
    per_second: f64,
    /// Of reads, those that RAM, and those that nothing but the disks answered.
    missed_ram: f64,
    missed: f64,
    /// Of those that RAM missed, what copies answered.
    of_misses: f64,
    times: Vec<Duration>,
}

impl Part {
    fn p99(&self) -> Duration {
        self.times[self.times.len() * 99 / 100]
    }

    fn within(&self, limit: Duration) -> f64 {
        self.times.partition_point(|time| *time <= limit) as f64 / self.times.len() as f64
    }
}

/// Reads for so long, and prints a line.
fn read(args: &Args, pool: &Pool, records: &[BlockPtr], name: &str, seconds: u64, seed: u64) -> Part {
    let stats = || {
        let ram = pool.store().cache_stats().demand_data;
        let ssd = pool.store().read_cache.stats(Duration::ZERO).map_or(0, |stats| stats.policy.hits);
        (ram.hits, ram.misses, ssd)
    };
    let before = stats();
    let clock = SystemClock::new();
    let end = clock.monotonic() + Duration::from_secs(seconds);
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let reader = |thread: u64| {
            let picker = Picker::new(args.pattern, records.len(), 7);
            // All threads have the same records in mind, and each its own order.
            for _ in 0..seed * 10_000 + thread * 100_000 {
                picker.pick();
            }
            let mut times = Vec::new();
            while clock.monotonic() < end {
                let began = clock.monotonic();
                pool.store().read(records[picker.pick()]).expect("a record");
                times.push(clock.monotonic() - began);
            }
            times
        };
        let threads: Vec<_> =
            (0..args.threads as u64).map(|thread| scope.spawn(move || reader(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a reader")).collect()
    });
    times.sort_unstable();
    let after = stats();
    let [ram, missed, ssd] = [after.0 - before.0, after.1 - before.1, after.2 - before.2].map(|n| n as f64);
    let all = (ram + missed).max(1.0);
    let part = Part {
        per_second: times.len() as f64 / seconds as f64,
        missed_ram: missed / all,
        missed: (missed - ssd).max(0.0) / all,
        of_misses: ssd / missed.max(1.0),
        times,
    };
    println!(
        "{name:20} {:9.0} {:10.3} {:9.3} {:16.3} {:8.2} {:8.2}",
        part.per_second,
        ram / all,
        ssd / all,
        ssd / missed.max(1.0),
        part.times[part.times.len() / 2].as_secs_f64() * 1e3,
        part.p99().as_secs_f64() * 1e3
    );
    part
}
