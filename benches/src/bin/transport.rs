//! Cost of FUSE itself: a file system that does nothing, served by a process of its own, over each transport
//! that `LARDER_FUSE` can name. The rivals take turns, so that a noisy neighbour meets them all.
//!
//! `cargo run --release -p larder-benches --bin transport` (see benches/README.md). Needs root.

use clap::Parser;
use larder_benches::{MIB, no_op, process};
use larder_device::AlignedBuf;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Measures a mount that does nothing over each transport.
#[derive(Debug, Parser)]
struct Args {
    /// Transports to compare; a path is another build of this program
    #[arg(long, value_delimiter = ',', default_value = "classic,io_uring")]
    transports: Vec<String>,
    /// Mebibytes of each sequential turn
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// Requests of each turn of small ones
    #[arg(long, default_value_t = 40_000)]
    requests: usize,
    /// Turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Serve a mount here instead, until standard input ends
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
}

/// A process that serves a mount.
struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    fn start(transport: &str) -> Self {
        let folder = TempDir::new().expect("a folder for the mount");
        let mut command = if transport.contains('/') {
            Command::new(transport)
        } else {
            let mut own = Command::new(std::env::current_exe().expect("a path"));
            own.env("LARDER_FUSE", transport);
            own
        };
        let mut child = command
            .arg("--serve")
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut ready = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut ready).expect("it says when it is ready");
        assert_eq!(ready.trim(), "ready", "{transport} cannot be mounted");
        Self { child, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn serve(folder: &Path) {
    let mounted = no_op::mount(folder);
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    mounted.unmount().expect("nobody is in it");
}

/// Work on a mount: its name, how many units, in what they are counted, how it is done.
type Work<'a> = (&'a str, f64, &'a str, &'a dyn Fn(&Server));

/// The best of some turns: wall time, processor time of the server and of this process.
#[derive(Clone, Copy)]
struct Best {
    wall: Duration,
    server: Duration,
    client: Duration,
}

fn main() {
    let args = Args::parse();
    if let Some(folder) = &args.serve {
        return serve(folder);
    }
    let (mib, requests) = (args.mib, args.requests);
    let gib = mib as f64 / 1024.0;
    let thousand = requests as f64 / 1000.0;
    let works: [Work; 8] = [
        ("write, 1 MiB blocks", gib, "GiB", &|server| write(server, mib)),
        ("read, 1 MiB blocks", gib, "GiB", &|server| read(server, mib)),
        ("read, 1 MiB direct", gib, "GiB", &|server| read_direct(server, mib, MIB, 1, mib)),
        ("random 4 KiB, 1 job", thousand, "1000", &|server| read_direct(server, mib, 4096, 1, requests)),
        ("random 4 KiB, 4 jobs", thousand, "1000", &|server| read_direct(server, mib, 4096, 4, requests)),
        ("write 4 KiB, direct", thousand, "1000", &|server| write_direct(server, requests)),
        ("getattr", thousand, "1000", &|server| getattr(server, requests)),
        ("look up, make, remove", thousand, "1000", &|server| create(server, requests)),
    ];
    println!("processor seconds of server + client a unit; time; both against the first transport");
    for (name, units, unit, work) in works {
        let mut best: Vec<Option<Best>> = vec![None; args.transports.len()];
        for _ in 0..args.rounds {
            for (transport, best) in args.transports.iter().zip(&mut best) {
                let turn = turn(transport, work);
                let least = best.get_or_insert(turn);
                // Processor time and wall time are spoilt by different neighbours.
                *least = Best {
                    wall: least.wall.min(turn.wall),
                    server: least.server.min(turn.server),
                    client: least.client.min(turn.client),
                };
            }
        }
        let best: Vec<Best> = best.into_iter().flatten().collect();
        for (transport, one) in args.transports.iter().zip(&best) {
            let cpu = |best: &Best| (best.server + best.client).as_secs_f64() / units;
            let transport = transport.rsplit('/').next().expect("at least one part");
            println!(
                "{name:22} {transport:15} {:8.4} + {:.4} s/{unit:4} ({:4.2})  {:9.1} {unit}/s ({:4.2})",
                one.server.as_secs_f64() / units,
                one.client.as_secs_f64() / units,
                cpu(one) / cpu(&best[0]),
                units / one.wall.as_secs_f64(),
                best[0].wall.as_secs_f64() / one.wall.as_secs_f64(),
            );
        }
    }
}

fn turn(transport: &str, work: &dyn Fn(&Server)) -> Best {
    let server = Server::start(transport);
    let file = File::create(server.path("file")).expect("a file can be made");
    drop(file);
    let pid = server.child.id();
    let before = (process::cpu_time(pid).expect("it runs"), process::own_cpu_time());
    let wall = larder_benches::timed(|| work(&server));
    let after = (process::cpu_time(pid).expect("it runs"), process::own_cpu_time());
    Best { wall, server: after.0 - before.0, client: after.1 - before.1 }
}

fn write(server: &Server, mib: usize) {
    let block = vec![7; MIB];
    let mut file = File::create(server.path("file")).expect("it can be opened");
    (0..mib).for_each(|_| file.write_all(&block).expect("it is taken"));
}

fn sized(server: &Server, mib: usize) -> PathBuf {
    let path = server.path("file");
    File::create(&path).and_then(|file| file.set_len((mib * MIB) as u64)).expect("a size");
    path
}

fn read(server: &Server, mib: usize) {
    let mut file = File::open(sized(server, mib)).expect("it is there");
    let mut block = vec![0; MIB];
    while file.read(&mut block).expect("it can be read") > 0 {}
}

fn open_direct(path: &Path) -> File {
    let flags = OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).expect("the file is there")
}

fn read_direct(server: &Server, mib: usize, block: usize, jobs: usize, count: usize) {
    let path = sized(server, mib);
    let blocks = mib * MIB / block;
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let path = &path;
            scope.spawn(move || {
                let file = open_direct(path);
                let mut buffer = AlignedBuf::zeroed(block);
                for i in 0..count / jobs {
                    let at = (i + job).wrapping_mul(0x9e37_79b9) % blocks;
                    file.read_exact_at(&mut buffer, (at * block) as u64).expect("it can be read");
                }
            });
        }
    });
}

fn write_direct(server: &Server, count: usize) {
    let file = open_direct(&server.path("file"));
    let buffer = AlignedBuf::zeroed(4096);
    (0..count).for_each(|i| file.write_all_at(&buffer, (i * 4096) as u64).expect("it is taken"));
}

/// Asks the server each time (AT_STATX_FORCE_SYNC).
fn getattr(server: &Server, count: usize) {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let path = server.path("file");
    for _ in 0..count {
        statx(CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).expect("it is there");
    }
}

/// A name that does not exist yet: look-up, create, release, unlink.
fn create(server: &Server, count: usize) {
    let path = server.path("another");
    for _ in 0..count / 4 {
        drop(File::create(&path).expect("it can be made"));
        fs::remove_file(&path).expect("it is there");
    }
}
