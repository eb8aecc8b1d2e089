//! Whether readers are held up where the records of a tree that is larger than memory are changed.
//!
//! `cargo run --release -p larder-benches --bin stalls -- FOLDER` (see benches/README.md). A dataset of many small files
//! lies on a file whose reads take as long as those of a disk with one arm. Thousands of the files, all over the tree,
//! are overwritten, so that what they need of the tree has left memory again when they are stored. Files that are in
//! memory are looked up and read, alone and while the others are stored.

use clap::Parser;
use larder_benches::daemon::pause;
use larder_benches::device::sparse_file;
use larder_benches::slow::SlowReads;
use larder_benches::{timed, timing, world};
use larder_device::{Device, FileDevice, Inline, OpenMode, SystemWorkers};
use larder_files::{Caller, Mount, NodeId, OpenFlags, Ops};
use larder_pool::create::rule_for;
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::{GroupSpec, ImportOptions, Pool, PoolSpec, ROOT_DATASET};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Measures how long readers are held up.
#[derive(Debug, Parser)]
struct Args {
    /// Where the device lies
    folder: PathBuf,
    /// Files of the dataset
    #[arg(long, default_value_t = 1_000_000)]
    files: usize,
    /// Files that are overwritten
    #[arg(long, default_value_t = 4000)]
    cold: usize,
    /// Milliseconds of a read
    #[arg(long, default_value_t = 8)]
    read_ms: u64,
    /// The budget
    #[arg(long, default_value_t = 128)]
    memory_mib: u64,
}

const USER: Caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
const WRITES: OpenFlags = OpenFlags {
    read: true,
    write: true,
    append: false,
    truncate: false,
    exclusive: false,
    kill_suidgid: false,
};
/// Files of a folder.
const FOLDER: usize = 1000;
/// Bytes of a file.
const BYTES: usize = 600;
/// Files that are read again and again.
const WARM: usize = 64;
/// Readers.
const READERS: usize = 2;

fn main() {
    let args = Args::parse();
    let folder = TempDir::with_prefix_in("larder-bench-", &args.folder).expect("the folder can be written");
    let path = folder.path().join("device");
    sparse_file(&path, 64 << 30);
    let ((), filled) = timing(|| fill(&args, &path));
    let (pool, mount) = open(&args, &path);
    let (at, _) = find(&mount, 0);
    let warm: Vec<_> = (0..WARM).map(|file| find(&mount, file).1).collect();
    let idle = Held::of(&mount, &warm, at, || pause(Duration::from_secs(5)));
    let step = args.files / args.cold;
    let ((), cold) = timing(|| {
        for file in (step..args.files).step_by(step) {
            let node = find(&mount, file).1;
            let opened = mount.open(node, WRITES).expect("it opens");
            mount.write(node, opened, 0, &[1; BYTES / 2], false).expect("it fits");
            mount.release(node, opened).expect("it is there");
        }
    });
    let mut took = Duration::ZERO;
    let busy = Held::of(&mount, &warm, at, || {
        took = timed(|| {
            pool.commit().expect("a commit");
        });
    });
    println!(
        "{} files, made in {:.0} s; {} overwritten, cold, in {:.0} s",
        args.files,
        filled.as_secs_f64(),
        args.cold,
        cold.as_secs_f64()
    );
    println!(
        "reads of {} ms, a budget of {} MiB; they were stored and committed in {:.1} s\n",
        args.read_ms,
        args.memory_mib,
        took.as_secs_f64()
    );
    println!(
        "{:24}{:>10}{:>10}{:>10}{:>12}{:>10}",
        "looked up and read, µs", "p50", "p99", "p99.9", "longest", "times"
    );
    idle.show("idle");
    busy.show("while they are stored");
    let ratio = busy.percentile(0.99).as_secs_f64() / idle.percentile(0.99).as_secs_f64();
    println!("\np99 against idle: {ratio:.2} (wanted: 3 at most)");
    drop(mount);
    drop(pool);
}

/// Times of single look-ups and reads, ascending.
struct Held(Vec<Duration>);

impl Held {
    /// Looks warm files up and reads them while `work` is done.
    fn of(mount: &Mount, warm: &[NodeId], folder: NodeId, work: impl FnOnce()) -> Self {
        let done = AtomicBool::new(false);
        let mut times = std::thread::scope(|scope| {
            let read = || {
                let mut times = Vec::new();
                for turn in 0.. {
                    let file = turn % warm.len();
                    times.push(timed(|| {
                        let found = mount.lookup(folder, name(file).as_bytes()).expect("it is there");
                        let opened = mount.open(found.node, WRITES).expect("it opens");
                        assert_eq!(
                            mount
                                .read(found.node, opened, 0, BYTES as u32)
                                .expect("it can be read")
                                .to_vec()
                                .len(),
                            BYTES
                        );
                        mount.release(found.node, opened).expect("it is there");
                    }));
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    pause(Duration::from_millis(1));
                }
                times
            };
            let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
            work();
            done.store(true, Ordering::Relaxed);
            readers.into_iter().flat_map(|one| one.join().expect("it only reads")).collect::<Vec<_>>()
        });
        times.sort_unstable();
        Self(times)
    }

    fn percentile(&self, part: f64) -> Duration {
        self.0[((self.0.len() as f64 * part) as usize).min(self.0.len() - 1)]
    }

    fn show(&self, what: &str) {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let [p50, p99, p999, longest] = [0.5, 0.99, 0.999, 1.0].map(|part| micros(self.percentile(part)));
        println!("{what:24}{p50:>10.0}{p99:>10.0}{p999:>10.0}{longest:>12.0}{:>10}", self.0.len());
    }
}

fn name(file: usize) -> String {
    format!("a-file-of-{file:08}.txt")
}

/// A file, and the folder that it is in.
fn find(mount: &Mount, file: usize) -> (NodeId, NodeId) {
    let folder = format!("folder{}", file / FOLDER);
    let folder = mount.lookup(NodeId::ROOT, folder.as_bytes()).expect("it is there").node;
    (folder, mount.lookup(folder, name(file).as_bytes()).expect("it is there").node)
}

fn mounted(pool: &Arc<Pool>) -> Arc<Mount> {
    let mount = Mount::new(Arc::clone(pool), (0, 0)).expect("a mount");
    mount.attach(pool.dataset(ROOT_DATASET).expect("there is one"), None).expect("it is attached");
    mount
}

fn fill(args: &Args, path: &Path) {
    let file = FileDevice::open(path, OpenMode::Exclusive).expect("the file can be used");
    let device = Arc::new(file) as Arc<dyn Device>;
    let rule = rule_for("single", 1).expect("one is enough");
    let spec =
        PoolSpec { name: "bench".into(), groups: vec![GroupSpec::data(rule, vec![device])], ashift: 12 };
    let pool = Pool::create(world(Arc::new(Inline)), spec).expect("a pool");
    let mount = mounted(&pool);
    let mut folder = NodeId::ROOT;
    let data = [7; BYTES];
    for file in 0..args.files {
        if file.is_multiple_of(FOLDER) {
            let name = format!("folder{}", file / FOLDER);
            folder = mount.mkdir(NodeId::ROOT, name.as_bytes(), 0o755, &USER).expect("a folder").node;
        }
        let made = mount.create(folder, name(file).as_bytes(), 0o600, WRITES, &USER).expect("a file");
        mount.write(made.attr.node, made.handle, 0, &data, false).expect("it fits");
        mount.release(made.attr.node, made.handle).expect("it is there");
        if file % 50_000 == 0 {
            pool.commit().expect("a commit");
        }
    }
    drop(mount);
    pool.commit_export().expect("an export");
}

fn open(args: &Args, path: &Path) -> (Arc<Pool>, Arc<Mount>) {
    let file = FileDevice::open(path, OpenMode::Exclusive).expect("the file can be used");
    let device = Arc::new(SlowReads::new(file, Duration::from_millis(args.read_ms)));
    let Scan::Member(found) = scan(&(device as Arc<dyn Device>)) else {
        panic!("it is a device of the pool")
    };
    let plan = assemble(vec![*found]).pop().expect("the file is a pool");
    let world = world(Arc::new(SystemWorkers::new().expect("threads")));
    let pool = Pool::import(world, plan, &ImportOptions::default()).expect("an import");
    pool.set_pool_property("memory", &(args.memory_mib << 20).to_string()).expect("a budget");
    assert!(pool.take_replay().is_empty(), "it was exported");
    pool.replayed();
    let mount = mounted(&pool);
    (pool, mount)
}
