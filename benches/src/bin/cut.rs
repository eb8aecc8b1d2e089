//! Cutting by content: MB/s of ours and of the `fastcdc` crate (its v2020) on one thread, and what the cuts look
//! like; then what it costs the engine. `cargo run --release -p larder-benches --bin cut -- [FOLDER]`
//!
//! In FOLDER, if one is given, files are written to a pool without FUSE and read back, cut at multiples of the record
//! size and by content in turn: processor seconds a GiB, and MB/s, the best of some rounds. It takes 2 GiB.

use fastcdc::v2020::{FastCDC, Normalization};
use larder_benches::content::Content;
use larder_benches::{MIB, mb_per_s, pool_in, process, race, timing};
use larder_files::{Caller, Cutter, FileKind, Handle, Mount, NodeId, Ops};
use larder_pool::ROOT_DATASET;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const BYTES: usize = 64 * MIB;
const ROUNDS: usize = 15;
/// Bytes of a file, and how often each kind is written and read.
const FILE: usize = 256 * MIB;
const FILE_ROUNDS: usize = 5;
const NOBODY: Caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };

fn main() {
    cutters();
    if let Some(folder) = std::env::args_os().nth(1) {
        let folder = PathBuf::from(folder);
        println!("\ncontent   codec  chunking       write: s a GiB, MB/s       read: s a GiB, MB/s");
        for content in [Content::Random, Content::Text] {
            let bytes = content.bytes(FILE);
            for codec in ["off", "lz4"] {
                files(&folder, (content, &bytes), codec);
            }
        }
    }
}

fn cutters() {
    println!("content   average      cutter    MB/s   records   mean bytes   the longest");
    for content in [Content::Random, Content::Text] {
        let bytes = content.bytes(BYTES);
        for average in [16 << 10, 128 << 10, 512 << 10] {
            let cutter = Cutter::new(average, 1 << 20);
            let (min, max) = (cutter.min() as u32, cutter.max() as u32);
            let ours = || {
                let (mut at, mut lens) = (0, Vec::new());
                while let Some(len) = cutter.next(&bytes[at..], true) {
                    at += len;
                    lens.push(len);
                }
                lens
            };
            let crates = || {
                let chunks = FastCDC::with_level(&bytes, min, average, max, Normalization::Level2);
                chunks.map(|chunk| chunk.length).collect::<Vec<_>>()
            };
            let times = race(ROUNDS, [&mut || drop(black_box(ours())), &mut || drop(black_box(crates()))]);
            for (name, lens, time) in [("ours", ours(), times[0]), ("fastcdc", crates(), times[1])] {
                assert_eq!(lens.iter().sum::<usize>(), BYTES);
                let longest = lens.iter().filter(|&&len| len == cutter.max()).count();
                println!(
                    "{:8} {average:8} {name:>11} {:7.0} {:9} {:12} {:11.1} %",
                    content.name(),
                    mb_per_s(BYTES, time),
                    lens.len(),
                    BYTES / lens.len(),
                    100.0 * longest as f64 / lens.len() as f64,
                );
            }
        }
    }
}

/// The least time and processor time of some rounds.
#[derive(Clone, Copy)]
struct Best(Duration, Duration);

impl Best {
    const NONE: Self = Self(Duration::MAX, Duration::MAX);

    fn of(&mut self, work: impl FnOnce()) {
        let before = process::own_cpu_time();
        let ((), time) = timing(work);
        *self = Self(self.0.min(time), self.1.min(process::own_cpu_time() - before));
    }

    fn shown(&self) -> String {
        let per_gib = self.1.as_secs_f64() * (1 << 30) as f64 / FILE as f64;
        format!("{per_gib:8.3} {:8.0}", mb_per_s(FILE, self.0))
    }
}

fn files(folder: &Path, (content, bytes): (Content, &[u8]), codec: &str) {
    let mut best = [[Best::NONE; 2]; 2];
    for _ in 0..FILE_ROUNDS {
        for (chunking, [write, read]) in ["fixed", "content"].into_iter().zip(&mut best) {
            let folder = TempDir::with_prefix_in("larder-bench-", folder).expect("the folder can be written");
            let pool = pool_in(folder.path(), "single", 1, 4 << 30);
            for (name, value) in [("compression", codec), ("chunking", chunking)] {
                pool.set_property(ROOT_DATASET, name, value).expect("a property");
            }
            let mount = Mount::new(Arc::clone(&pool), (0, 0)).expect("a mount");
            mount.attach(pool.dataset(ROOT_DATASET).expect("it is there"), None).expect("a volume");
            let made = mount.mknod(NodeId::ROOT, b"file", FileKind::Regular, 0o644, 0, &NOBODY);
            let node = made.expect("a file").node;
            write.of(|| {
                for (i, part) in bytes.chunks(MIB).enumerate() {
                    mount.write(node, Handle(0), (i * MIB) as u64, part, false).expect("room");
                }
                pool.commit().expect("a commit");
            });
            pool.store().drop_caches();
            read.of(|| {
                for i in 0..FILE / MIB {
                    let part = mount.read(node, Handle(0), (i * MIB) as u64, MIB as u32);
                    black_box(part.expect("it is there"));
                }
            });
        }
    }
    for (chunking, [write, read]) in ["fixed", "content"].into_iter().zip(best) {
        let (write, read) = (write.shown(), read.shown());
        println!("{:8} {codec:>6}  {chunking:8} {write:>26} {read:>27}", content.name());
    }
}
