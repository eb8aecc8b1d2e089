//! Pools of 1, 10 and 100 TiB that have their tables and no data: what grows with the number of segments.
//!
//! `cargo run --release -p larder-benches --bin scale -- [FOLDER]` (see benches/README.md). Sparse files of 10 TiB, a
//! group each, are filled with closed segments, of which the tables tell and which hold nothing: those of tables and
//! log are real. Then as many are changed at random that leaves of the tables lie scattered as in an old pool. All is
//! measured in a process that imported the pool, with reads of 8 ms.

use clap::Parser;
use larder_benches::daemon::pause;
use larder_benches::device::sparse_file;
use larder_benches::slow::SlowReads;
use larder_benches::{Latencies, process, timed, timing, world};
use larder_device::{Device, Entropy, FileDevice, OpenMode, SeededEntropy, SystemWorkers};
use larder_format::segment::{SegmentKind, SegmentRecord, SegmentState};
use larder_format::{BlockId, CommitId, GroupIndex, SegmentId};
use larder_pool::create::rule_for;
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::segments::SegmentEntry;
use larder_pool::{GroupSpec, ImportOptions, Pool, PoolSpec};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Measures pools of many segments without data.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie [default: the temporary folder]
    folder: Option<PathBuf>,
    /// Segments of a pool
    #[arg(long, value_delimiter = ',', default_values_t = [16_384, 163_840, 1_638_400])]
    segments: Vec<u64>,
    /// Milliseconds of a read
    #[arg(long, default_value_t = 8)]
    read_ms: u64,
    /// MiB of the pool's memory
    #[arg(long, default_value_t = 1024)]
    memory_mib: u64,
    /// Segments that change between two commits
    #[arg(long, default_value_t = 200)]
    changed: u64,
    /// Only measures the pool that is there
    #[arg(long, hide = true)]
    measure: bool,
}

/// Full segments of a device, and others.
const OF_A_DEVICE: u64 = 163_840;
const SPARE: u64 = 12_000;
const SLOT: u64 = 64 << 20;
/// Segments that a commit brings into the tables.
const AT_ONCE: u64 = 1 << 16;
/// Commits that scatter the tables, and segments that each of them changes.
const SCATTER: (u64, u64) = (60, 1000);
const COMMITS: usize = 40;

fn main() {
    let args = Args::parse();
    if args.measure {
        measure(&args);
        return;
    }
    let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    println!(
        "| segments | TiB | import, s | reads | resident, MiB | commit p50, ms | max | gate closed p50, ms | max | \
         reads of a commit, max | open, us | victim, us | urgent | AVAIL, us |\n|---|---|---|---|---|---|---|---|---|---|\
         ---|---|---|---|"
    );
    for &segments in &args.segments {
        let folder = TempDir::with_prefix_in("larder-bench-", &folder).expect("the folder can be written");
        make(folder.path(), segments);
        let status = Command::new(std::env::current_exe().expect("we run"))
            .arg(folder.path())
            .args(["--measure", "--segments", &segments.to_string()])
            .args(["--read-ms", &args.read_ms.to_string(), "--memory-mib", &args.memory_mib.to_string()])
            .args(["--changed", &args.changed.to_string()])
            .status();
        assert!(status.expect("we can be started").success(), "{segments} segments");
    }
}

fn devices(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).expect("the folder is there").flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.collect();
    files.sort_unstable();
    files
}

/// The groups of a pool have as many segments as told, all of them full.
fn make(folder: &Path, segments: u64) {
    let groups = segments.div_ceil(OF_A_DEVICE);
    let each = segments / groups;
    let spec = |group| {
        let path = folder.join(format!("device{group:02}"));
        sparse_file(&path, (each + SPARE.min(each / 4 + 1000)) * SLOT);
        let device = FileDevice::open(&path, OpenMode::Exclusive).expect("the file can be used");
        GroupSpec::data(rule_for("single", 1).expect("a rule"), vec![Arc::new(device) as Arc<dyn Device>])
    };
    let groups: Vec<_> = (0..groups).map(spec).collect();
    let count = groups.len() as u64;
    let workers = Arc::new(SystemWorkers::new().expect("threads"));
    let pool = Pool::create(world(workers), PoolSpec { name: "bench".into(), groups, ashift: 12 });
    let (pool, rng) = (pool.expect("a pool"), SeededEntropy::new(1));
    let mut made = 0;
    while made < segments {
        let until = segments.min(made + AT_ONCE);
        (made..until).for_each(|n| add(&pool, n, GroupIndex::new((n % count) as u16), &rng));
        made = until;
        pool.commit().expect("a commit");
    }
    for _ in 0..SCATTER.0 {
        change(&pool, SCATTER.1, segments, &rng);
        pool.commit().expect("a commit");
    }
    pool.commit_export().expect("it is exported");
}

/// A full segment, in which between a fifth and all is alive.
fn add(pool: &Pool, n: u64, group: GroupIndex, rng: &SeededEntropy) {
    let mut core = pool.store().core.lock();
    let core = &mut *core;
    let id = core.next_segment;
    core.next_segment = id.next();
    let space = core.groups.change(group).expect("it is there");
    let (layout, slots) = space.allocate(false, id).expect("slots are free");
    let height = space.slot_size;
    let placed = u64::from(height) / 64 * 63;
    let record = SegmentRecord {
        id,
        kind: SegmentKind::Data,
        state: SegmentState::Closed,
        group,
        layout,
        height,
        live_blocks: 400,
        live_bytes: placed / 1000 * (200 + rng.next_u64() % 800) / 8 * 8,
        birth: core.open_commit,
        freed: CommitId::new(0),
        incarnation: core.incarnation,
        placed,
        closed_at: BlockId::new((n + 1) * 512),
        class: (rng.next_u64() % 6) as u8,
        copy: 0,
        unnamed: false,
        filled: core.open_commit,
        verified: 0,
        slots,
    };
    core.next_block = core.next_block.max(BlockId::new((n + 2) * 512));
    core.block_lease = core.block_lease.max(BlockId::new(core.next_block.get() + (1 << 24)));
    let mut entry = SegmentEntry::from_record(&record);
    entry.dirty = true;
    pool.store().readable.insert(&entry.segment);
    core.entries.insert(entry);
}

/// A block dies in each of `count` segments.
fn change(pool: &Pool, count: u64, segments: u64, rng: &SeededEntropy) {
    let mut core = pool.store().core.lock();
    for _ in 0..count {
        let id = SegmentId::new(8 + rng.next_u64() % (segments - 8));
        core.entries.change(id, |entry| {
            if entry.segment.kind == SegmentKind::Data && entry.live_blocks > 100 {
                entry.live_blocks -= 1;
                entry.live_bytes -= 8;
                entry.dirty = true;
            }
        });
    }
}

fn measure(args: &Args) {
    let folder = args.folder.as_ref().expect("it is told");
    let wait = Duration::from_millis(args.read_ms);
    let mut reads = Vec::new();
    let found = devices(folder).into_iter().map(|path| {
        let file = FileDevice::open(&path, OpenMode::Exclusive).expect("the file can be used");
        let device = Arc::new(SlowReads::new(file, wait));
        reads.push(Arc::clone(&device.reads));
        match scan(&(device as Arc<dyn Device>)) {
            Scan::Member(found) => *found,
            _ => panic!("{} is a device of the pool", path.display()),
        }
    });
    let plan = assemble(found.collect()).pop().expect("the files are a pool");
    let count = || reads.iter().map(|reads| reads.load(Ordering::Relaxed)).sum::<u64>();
    let world = world(Arc::new(SystemWorkers::new().expect("threads")));
    let (before, resident) = (count(), process::resident_memory());
    let (pool, import) = timing(|| Pool::import(world, plan, &ImportOptions::default()).expect("an import"));
    let (import_reads, resident) = (count() - before, process::resident_memory().saturating_sub(resident));
    pool.set_pool_property("memory", &(args.memory_mib << 20).to_string()).expect("a budget");
    assert!(pool.take_replay().is_empty(), "it was exported");
    pool.replayed();
    let (segments, rng) = (args.segments[0], SeededEntropy::new(2));

    let (mut most_reads, mut gate) = (0, Vec::new());
    let commits = {
        let mut times = Vec::new();
        for _ in 0..COMMITS {
            change(&pool, args.changed, segments, &rng);
            let before = count();
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    let mut longest = Duration::ZERO;
                    while !done.load(Ordering::Relaxed) {
                        longest = longest.max(timed(|| drop(pool.enter())));
                        pause(Duration::from_micros(100));
                    }
                    longest
                });
                times.push(timed(|| assert!(pool.commit().is_ok())));
                done.store(true, Ordering::Relaxed);
                gate.push(waits.join().expect("it only looks"));
            });
            most_reads = most_reads.max(count() - before);
        }
        times.sort_unstable();
        times
    };
    gate.sort_unstable();
    let open = Latencies::of(1000, |_| {
        let mut core = pool.store().core.lock();
        let core = &mut *core;
        let id = core.next_segment;
        let space = core.groups.change(GroupIndex::new(0)).expect("it is there");
        let (layout, slots) = space.allocate(false, id).expect("slots are free");
        std::hint::black_box(layout);
        slots.into_iter().for_each(|slot| space.give_back(slot));
    });
    let victim = Latencies::of(50, |_| assert!(pool.next_victim(false).is_some()));
    let urgent = Latencies::of(50, |_| assert!(pool.next_victim(true).is_some()));
    let avail = Latencies::of(200, |_| assert!(pool.store().space(128 << 10).size > 0));
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let us = |times: &Latencies| times.percentile(50).as_secs_f64() * 1e6;
    println!(
        "| {segments} | {:.0} | {:.2} | {import_reads} | {:.0} | {:.1} | {:.1} | {:.1} | {:.1} | {most_reads} | {:.1} | \
         {:.0} | {:.0} | {:.1} |",
        segments as f64 * SLOT as f64 / (1u64 << 40) as f64,
        import.as_secs_f64(),
        resident as f64 / (1 << 20) as f64,
        ms(commits[COMMITS / 2]),
        ms(commits[COMMITS - 1]),
        ms(gate[COMMITS / 2]),
        ms(gate[COMMITS - 1]),
        us(&open),
        us(&victim),
        us(&urgent),
        us(&avail),
    );
}
