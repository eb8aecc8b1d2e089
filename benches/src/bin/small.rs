//! Cost of a small file in the engine, step by step, without FUSE.
//!
//! `cargo run --release -p larder-benches --bin small -- FOLDER` (see benches/README.md). A tree of small files is
//! stored three times in a dataset with `dedup=on`, in a pool on six files in FOLDER, by the calls that the kernel
//! makes for `cp -rp`; the same calls are made to a server that only hashes.

use clap::Parser;
use larder_benches::content::Content;
use larder_benches::no_op::NoOp;
use larder_benches::{MIB, pool_in, process, timing};
use larder_files::{Caller, Mount, NodeId, OpenFlags, Ops, SetAttr, SetTime};
use larder_format::Timestamp;
use larder_pool::{Pool, ROOT_DATASET};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Measures what a small file costs.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// Files of the tree
    #[arg(long, default_value_t = 8000)]
    files: usize,
}

const COPIER: Caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };
const WRITES: OpenFlags = OpenFlags { read: false, ..OpenFlags::READ_WRITE };
/// Files of a folder.
const FOLDER: usize = 64;
/// Bytes of files, in turns.
const SIZES: [usize; 8] = [150, 600, 1300, 2500, 4000, 7000, 16_000, 45_000];
/// Timed calls for each file; the last is getattr on its folder.
const STEPS: [&str; 7] = ["look up", "create", "write", "set times", "set mode", "release", "folder"];

fn main() {
    let args = Args::parse();
    let source = Content::Text.bytes(64 * MIB);
    let no_op = NoOp::hashing();
    println!("{} files, microseconds a file by the wall\n", args.files);
    print!("{:14}", "");
    STEPS.iter().for_each(|step| print!("{step:>10}"));
    println!("{:>10}{:>10}{:>12}", "together", "to commit", "processor");
    show("only hashes", &args, &source, &no_op, "first", || ());
    let (pool, mount, _folder) = pool(&args);
    for copy in ["first", "second", "third"] {
        let commit = || {
            pool.commit().expect("a commit");
        };
        show(&format!("{copy} copy"), &args, &source, &*mount, copy, commit);
    }
}

/// Stores the tree in a folder of its own, and prints a line.
fn show(name: &str, args: &Args, source: &[u8], mount: &dyn Ops, copy: &str, commit: impl FnOnce()) {
    let before = process::own_cpu_time();
    let steps = store(args, source, mount, copy);
    let ((), commit) = timing(commit);
    let cpu = process::own_cpu_time() - before;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / args.files as f64;
    print!("{name:14}");
    steps.iter().for_each(|&step| print!("{:10.2}", each(step)));
    println!("{:10.2}{:10.2}{:12.2}", each(steps.iter().sum()), each(commit), each(cpu));
}

fn store(args: &Args, source: &[u8], mount: &dyn Ops, copy: &str) -> [Duration; STEPS.len()] {
    let mut times = [Duration::ZERO; STEPS.len()];
    let top = mount.mkdir(NodeId::ROOT, copy.as_bytes(), 0o755, &COPIER).expect("a folder").node;
    let mut folder = top;
    let mut at = 0;
    let times_of = SetAttr {
        atime: Some(SetTime::To(Timestamp { secs: 1_700_000_000, nanos: 1 })),
        mtime: Some(SetTime::To(Timestamp { secs: 1_700_000_000, nanos: 2 })),
        ..SetAttr::default()
    };
    let mode = SetAttr { perm: Some(0o640), ..SetAttr::default() };
    for file in 0..args.files {
        if file.is_multiple_of(FOLDER) {
            let name = format!("folder{file}");
            folder = mount.mkdir(top, name.as_bytes(), 0o755, &COPIER).expect("a folder").node;
        }
        let name = format!("a-file-of-{file:05}.txt");
        let name = name.as_bytes();
        let len = SIZES[file % SIZES.len()] + file % 97;
        at = (at + len) % (source.len() - 50_000);
        let data = &source[at..at + len];
        let (_, looked) = timing(|| mount.lookup(folder, name).is_err());
        let (made, created) = timing(|| mount.create(folder, name, 0o600, WRITES, &COPIER).expect("a file"));
        let node = made.attr.node;
        let (_, wrote) = timing(|| mount.write(node, made.handle, 0, data, false).expect("it fits"));
        let (_, timed) = timing(|| mount.setattr(node, &times_of, &COPIER).expect("it is there"));
        let (_, moded) = timing(|| mount.setattr(node, &mode, &COPIER).expect("it is there"));
        let (_, released) = timing(|| mount.release(node, made.handle).expect("it is there"));
        let (_, shown) = timing(|| mount.getattr(folder).expect("it is there"));
        for (sum, time) in times.iter_mut().zip([looked, created, wrote, timed, moded, released, shown]) {
            *sum += time;
        }
    }
    times
}

/// A raidz2 pool on six files.
fn pool(args: &Args) -> (Arc<Pool>, Arc<Mount>, TempDir) {
    let folder = TempDir::with_prefix_in("larder-bench-", &args.folder).expect("the folder can be written");
    let pool = pool_in(folder.path(), "raidz2", 6, 4 << 30);
    pool.set_property(ROOT_DATASET, "dedup", "on").expect("a property");
    let mount = Mount::new(Arc::clone(&pool), (0, 0)).expect("a mount");
    mount.attach(pool.dataset(ROOT_DATASET).expect("there is one"), None).expect("it is attached");
    pool.commit().expect("a commit");
    (pool, mount, folder)
}
