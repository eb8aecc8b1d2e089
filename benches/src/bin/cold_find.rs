//! What copies of metadata on an SSD make of a walk over a tree that is not in memory, before disks with one arm.
//!
//! `cargo run --release -p larder-benches --bin cold_find -- FOLDER` (see benches/README.md). A tree of small files in
//! a pool on files in FOLDER; all names and attributes are listed after an import, as `find -size +1` does: from files
//! that answer as disks would ([`larder_device::Disk`]), and from those with a device for copies beside them.

use clap::Parser;
use larder_benches::content::Content;
use larder_benches::device::sparse_file;
use larder_benches::disks::{filling, import, open, pace};
use larder_benches::{timing, world};
use larder_device::{FileDevice, OpenMode, SystemWorkers};
use larder_files::{Caller, FileKind, Handle, Mount, NodeId, Ops};
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, Pool, PoolSpec, ROOT_DATASET};
use larder_upkeep::Upkeep;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Lists a tree that is not in memory, from disks and from copies of its metadata.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// Files of the tree
    #[arg(long, default_value_t = 100_000)]
    files: usize,
    /// The disk, as a line of a control file has it
    #[arg(long, default_value = "disk rpm=5400 span=300G")]
    disk: String,
}

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
/// Files of a folder.
const FOLDER: usize = 100;
/// Bytes of a file.
const LEN: usize = 6000;
/// Devices, bytes: sparse.
const DEVICE: u64 = 8 << 30;

fn main() {
    let args = Args::parse();
    let folder = TempDir::new_in(&args.folder).expect("the folder can be written");
    let path = |name: &str| folder.path().join(name);
    let (disks, cache) = ([path("disk0"), path("disk1")], path("cache"));
    make(&args, &disks);
    println!("{} files of {LEN} bytes in folders of {FOLDER}; mirrors of two; {}", args.files, args.disk);
    pace(&disks, Some(&args.disk));
    let alone = {
        let pool = import(&disks);
        let time = list(&args, &pool, "disks");
        pool.commit_export().expect("an export");
        time
    };
    pace(&disks, None);
    {
        let pool = import(&disks);
        pool.set_property(ROOT_DATASET, "secondarycache", "metadata").expect("a property");
        let upkeep = Upkeep::new(&pool);
        sparse_file(&cache, DEVICE);
        let device = FileDevice::open(&cache, OpenMode::Exclusive).expect("the file can be used");
        upkeep.devices.add_cache(Arc::new(device)).expect("a device for copies");
        while pool.store().fill_read_cache() {}
        filling(&pool, || {
            (0..3).for_each(|_| {
                pool.store().drop_caches();
                list(&args, &pool, "while copied");
            });
        });
        while pool.store().fill_read_cache() {}
        pool.commit_export().expect("an export");
    }
    pace(&disks, Some(&args.disk));
    let pool = import(disks.iter().chain([&cache]));
    while pool.store().fill_read_cache() {}
    let with = filling(&pool, || list(&args, &pool, "disks and copies"));
    pool.commit_export().expect("an export");
    pace(&disks, None);
    let ratio = alone.as_secs_f64() / with.as_secs_f64();
    let word = if ratio >= 10.0 { "reached" } else { "missed" };
    println!("with copies {ratio:.1} times as fast (wanted: 10 at least; {word})");
}

fn make(args: &Args, disks: &[PathBuf]) {
    disks.iter().for_each(|path| sparse_file(path, DEVICE));
    let rule = rule_for("mirror", 2).expect("two devices");
    let groups = vec![GroupSpec::data(rule, disks.iter().map(|path| open(path)).collect())];
    let spec = PoolSpec { name: "bench".into(), groups, ashift: 12 };
    let pool = Pool::create(world(Arc::new(SystemWorkers::new().expect("threads"))), spec).expect("a pool");
    let mount = mounted(&pool);
    let bytes = Content::Random.bytes(LEN);
    let mut at = NodeId::ROOT;
    for file in 0..args.files {
        if file.is_multiple_of(FOLDER) {
            let name = format!("folder{}", file / FOLDER);
            at = mount.mkdir(NodeId::ROOT, name.as_bytes(), 0o755, &CALLER).expect("a folder").node;
        }
        let name = format!("a-file-of-{file:06}.txt");
        let made = mount.mknod(at, name.as_bytes(), FileKind::Regular, 0o644, 0, &CALLER).expect("a file");
        mount.write(made.node, Handle(0), 0, &bytes, false).expect("it fits");
        if file % 2000 == 1999 {
            pool.commit().expect("a commit");
        }
    }
    pool.commit_export().expect("an export");
}

fn mounted(pool: &Arc<Pool>) -> Arc<Mount> {
    let mount = Mount::new(Arc::clone(pool), (0, 0)).expect("a mount");
    mount.attach(pool.dataset(ROOT_DATASET).expect("there is one"), None).expect("it is attached");
    mount
}

/// Lists everything with its attributes, and prints a line.
fn list(args: &Args, pool: &Arc<Pool>, name: &str) -> Duration {
    let mount = mounted(pool);
    let (count, time) = timing(|| {
        let (mut folders, mut files) = (vec![NodeId::ROOT], 0);
        while let Some(folder) = folders.pop() {
            let mut count = |entry: larder_files::DirEntry<'_>| {
                match (entry.attr, entry.kind) {
                    (Some(attr), FileKind::Directory) => folders.push(attr.node),
                    (Some(_), _) => files += 1,
                    _ => {}
                }
                true
            };
            mount.readdir(folder, Handle(0), 0, true, &mut count).expect("a list");
        }
        files
    });
    assert_eq!(count, args.files, "all are listed");
    println!("{name:18} {:8.2} s", time.as_secs_f64());
    time
}
