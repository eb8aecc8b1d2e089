//! Cost of sending and receiving snapshots.
//!
//! `cargo run --release -p larder-benches --bin streams -- FOLDER` (see benches/README.md). Needs root: page caches
//! are dropped before cold reads. Commands are timed whole, with the start of their processes, on two pools on files in
//! FOLDER; a received snapshot is durable when its command ends. Beside them btrfs and zfs-fuse do the same, where they
//! are installed.

use clap::Parser;
use larder_benches::content::Content;
use larder_benches::daemon::{Daemon, Layout, POOL, pause};
use larder_benches::{MIB, process, timed};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Measures streams.
#[derive(Debug, Parser)]
struct Args {
    /// Where the devices lie
    folder: PathBuf,
    /// The daemon's program
    #[arg(long, env = "LARDER", default_value = "target/release/larder")]
    larder: PathBuf,
    /// MiB of large files
    #[arg(long, default_value_t = 1024)]
    mib: usize,
    /// Small files, of 4 KiB
    #[arg(long, default_value_t = 50_000)]
    small: usize,
    /// Files of which none changes
    #[arg(long, default_value_t = 1_000_000)]
    files: usize,
}

const SINGLE: Layout = Layout { word: "", devices: 1, data: 1 };
const ATTIC: &str = "attic";
/// Bytes of a large file.
const LARGE: usize = 16 * MIB;

fn main() {
    let args = Args::parse();
    let folder = TempDir::with_prefix_in("larder-bench-", &args.folder).expect("the folder can be written");
    println!("| | figure | wanted | |\n|---|---|---|---|");
    larder(&args, folder.path());
    btrfs(&args, folder.path());
    zfs_fuse(&args, folder.path());
}

fn told(what: &str, figure: &str, wanted: &str, is_reached: Option<bool>) {
    let verdict = is_reached.map_or("", |reached| if reached { "reached" } else { "missed" });
    println!("| {what} | {figure} | {wanted} | {verdict} |");
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn speed(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / MIB as f64 / time.as_secs_f64()
}

/// Nothing that was read or written is in the kernel's memory any more.
fn forget() {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may");
}

fn write_large(folder: &Path, mib: usize) {
    fs::create_dir_all(folder).expect("a folder");
    let content = Content::Random.bytes(LARGE);
    for i in 0..mib * MIB / LARGE {
        let mut file = File::create(folder.join(format!("large{i}"))).expect("a file");
        let mut piece = content.clone();
        // No two are alike.
        piece.iter_mut().step_by(4096).for_each(|byte| *byte ^= i as u8 + 1);
        file.write_all(&piece).expect("it fits");
    }
}

fn write_small(folder: &Path, count: usize, bytes: usize) {
    let content = Content::Random.bytes(bytes.max(1));
    for i in 0..count {
        if i % 500 == 0 {
            fs::create_dir_all(folder.join(format!("{}", i / 500))).expect("a folder");
        }
        let mut piece = content[..bytes].to_vec();
        piece.iter_mut().take(8).zip(i.to_le_bytes()).for_each(|(byte, new)| *byte = new);
        fs::write(folder.join(format!("{}/{i}", i / 500)), piece).expect("it fits");
    }
}

fn read_all(folder: &Path) {
    let mut buffer = vec![0; MIB];
    for entry in fs::read_dir(folder).expect("a folder") {
        let mut file = File::open(entry.expect("an entry").path()).expect("a file");
        while file.read(&mut buffer).expect("it can be read") > 0 {}
    }
}

/// One command's output into another's input, or a file.
fn piped(mut from: Command, mut into: Command) {
    let mut source = from.stdout(Stdio::piped()).spawn().expect("it starts");
    let pipe = source.stdout.take().expect("a pipe");
    let taken = into.stdin(pipe).stdout(Stdio::null()).status().expect("it starts");
    assert!(source.wait().expect("it ends").success() && taken.success(), "both did what they should");
}

fn larder(args: &Args, folder: &Path) {
    let (mount, attic) = (folder.join("mount"), folder.join("attic"));
    let daemon = Daemon::start(&args.larder, folder);
    daemon.create(SINGLE, &SINGLE.files(folder, 16 << 30), &[], &mount);
    let device = folder.join("attic-device");
    File::create(&device).expect("a file").set_len(16 << 30).expect("it is sparse");
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    daemon.run(&["pool", "create", "-m", &path(&attic), ATTIC, &path(&device)]);
    let (large, small, many) = (mount.join("large"), mount.join("small"), mount.join("many"));
    for name in ["large", "small", "many"] {
        daemon.run(&["fs", "create", &format!("{POOL}/{name}")]);
    }
    let bytes = args.mib * MIB;
    let file = folder.join("stream");
    let send = |arguments: &[&str]| {
        let mut command = daemon.command(&["fs", "send"]);
        command.args(arguments);
        command
    };
    let receive = |name: &str| daemon.command(&["fs", "receive", &format!("{ATTIC}/{name}")]);
    let into_file = |arguments: &[&str]| {
        let output = File::create(&file).expect("a file");
        assert!(send(arguments).stdout(output).status().expect("it starts").success());
        fs::metadata(&file).expect("it is there").len()
    };

    // Large files.
    let written = timed(|| {
        write_large(&large, args.mib);
        daemon.sync();
    });
    let snapshot = format!("{POOL}/large@a");
    daemon.run(&["fs", "snapshot", &snapshot]);
    let cold = || {
        daemon.import_again(&mount);
        forget();
    };
    cold();
    let read = timed(|| read_all(&large));
    cold();
    let sent = timed(|| piped(send(&[&snapshot]), discard()));
    let ratio = read.as_secs_f64() / sent.as_secs_f64();
    let what = format!("sent cold, against our own cold read ({:.0} MiB/s)", speed(bytes, read));
    told(&what, &format!("{ratio:.2} ({:.0} MiB/s)", speed(bytes, sent)), "0.8", Some(ratio >= 0.8));
    into_file(&[&snapshot]);
    let from_file = |name: &str| {
        let input = File::open(&file).expect("it is there");
        assert!(receive(name).stdin(input).status().expect("it starts").success());
    };
    let received = timed(|| from_file("large"));
    let ratio = written.as_secs_f64() / received.as_secs_f64();
    let what = format!("received, against our own writes ({:.0} MiB/s)", speed(bytes, written));
    told(&what, &format!("{ratio:.2} ({:.0} MiB/s)", speed(bytes, received)), "0.8", Some(ratio >= 0.8));

    cold();
    let time = timed(|| piped(send(&[&snapshot]), receive("again")));
    told(&format!("{} MiB sent and received, cold", args.mib), &seconds(time), "", None);

    // Small files.
    write_small(&small, args.small, 4096);
    let snapshot = format!("{POOL}/small@a");
    daemon.run(&["fs", "snapshot", &snapshot]);
    cold();
    let time = timed(|| piped(send(&[&snapshot]), receive("small")));
    let what = format!("{} files of 4 KiB sent and received, cold", args.small);
    told(&what, &seconds(time), "4 s", Some(time <= Duration::from_secs(4)));
    for i in 1..=25 {
        daemon.run(&["fs", "snapshot", &format!("{POOL}/small@e{i}")]);
    }
    into_file(&["-I", "@a", &format!("{POOL}/small@e25")]);
    let time = timed(|| from_file("small"));
    told("25 empty snapshots received", &seconds(time), "0.5 s", Some(time <= Duration::from_millis(500)));

    // Nothing changed.
    write_small(&many, args.files, 0);
    let before = format!("{POOL}/many@a");
    let after = format!("{POOL}/many@b");
    daemon.run(&["fs", "snapshot", &before]);
    daemon.run(&["fs", "snapshot", &after]);
    let mut size = 0;
    let time = timed(|| size = into_file(&["-i", "@a", &after]));
    let what = format!("nothing changed in {} files", args.files);
    let is_reached = time <= Duration::from_millis(50) && size <= 10_240;
    told(&what, &format!("{:.0} ms, {size} B", time.as_secs_f64() * 1e3), "50 ms, 10 KB", Some(is_reached));
    let budget = |pool: &str| -> u64 {
        let told = daemon.run(&["pool", "get", "-Hp", "-o", "value", "memory", pool]);
        told.trim().parse().expect("a number of bytes")
    };
    let (budgets, peak) =
        (budget(POOL) + budget(ATTIC), process::peak_memory(daemon.pid()).expect("the daemon runs"));
    let figure = format!("{} MiB", peak >> 20);
    let what = format!("peak memory of the daemon, with budgets of {} MiB for two pools", budgets >> 20);
    told(&what, &figure, "within", Some(peak <= budgets));
    daemon.run(&["pool", "destroy", "--now", "--yes", ATTIC]);
    daemon.run(&["pool", "destroy", "--now", "--yes", POOL]);
}

fn discard() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "cat >/dev/null"]);
    command
}

/// The same on btrfs, on loop devices over files in the same folder.
fn btrfs(args: &Args, folder: &Path) {
    let has = |name: &str| Command::new(name).arg("--help").output().is_ok();
    if !has("mkfs.btrfs") || !has("btrfs") {
        println!("\nbtrfs is not installed.");
        return;
    }
    let run = |program: &str, arguments: &[&str]| {
        let done = Command::new(program).args(arguments).output().expect("it starts");
        assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let places: Vec<PathBuf> = ["b1", "b2"].iter().map(|name| folder.join(name)).collect();
    for place in &places {
        let image = place.with_extension("img");
        File::create(&image).expect("a file").set_len(16 << 30).expect("it is sparse");
        fs::create_dir(place).expect("a folder");
        run("mkfs.btrfs", &["-q", &path(&image)]);
        run("mount", &["-o", "loop", &path(&image), &path(place)]);
    }
    let (one, two) = (&places[0], &places[1]);
    let measure = |name: &str, what: &str, write: &dyn Fn(&Path)| {
        let source = one.join(name);
        run("btrfs", &["subvolume", "create", &path(&source)]);
        write(&source);
        let snapshot = one.join(format!("{name}-a"));
        run("btrfs", &["subvolume", "snapshot", "-r", &path(&source), &path(&snapshot)]);
        forget();
        let time = timed(|| {
            let mut send = Command::new("btrfs");
            send.args(["-q", "send", &path(&snapshot)]);
            let mut receive = Command::new("btrfs");
            receive.args(["-q", "receive", &path(two)]);
            piped(send, receive);
            run("btrfs", &["filesystem", "sync", &path(two)]);
        });
        told(&format!("btrfs: {what}"), &seconds(time), "", None);
    };
    measure("large", &format!("{} MiB sent and received, cold", args.mib), &|at| write_large(at, args.mib));
    measure("small", &format!("{} files of 4 KiB sent and received, cold", args.small), &|at| {
        write_small(at, args.small, 4096);
    });
    places.iter().for_each(|place| run("umount", &[&path(place)]));
}

/// The same with zfs-fuse, on files in the same folder.
fn zfs_fuse(args: &Args, folder: &Path) {
    let runs = || Command::new("zpool").arg("list").output().is_ok_and(|out| out.status.success());
    if Command::new("zfs-fuse").arg("--help").output().is_err() || runs() {
        println!("\nzfs-fuse is not installed, or runs already.");
        return;
    }
    let run = |program: &str, arguments: &[&str]| {
        let done = Command::new(program).args(arguments).output().expect("it starts");
        assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let mut server = Command::new("zfs-fuse")
        .args(["--no-daemon", "--pidfile", &path(&folder.join("zfs.pid"))])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    (0..100).take_while(|_| !runs()).for_each(|_| pause(Duration::from_millis(100)));
    let (one, two) = (folder.join("z1"), folder.join("z2"));
    for (pool, place) in [("zone", &one), ("ztwo", &two)] {
        let devices = folder.join(format!("{pool}-devices"));
        fs::create_dir(&devices).expect("a folder");
        let image = devices.join("0");
        File::create(&image).expect("a file").set_len(16 << 30).expect("it is sparse");
        run("zpool", &["create", "-o", "cachefile=none", "-m", &path(place), pool, &path(&image)]);
    }
    let measure = |name: &str, what: &str, write: &dyn Fn(&Path)| {
        run("zfs", &["create", &format!("zone/{name}")]);
        write(&one.join(name));
        let snapshot = format!("zone/{name}@a");
        run("zfs", &["snapshot", &snapshot]);
        run("zpool", &["export", "zone"]);
        let devices = path(&folder.join("zone-devices"));
        run("zpool", &["import", "-o", "cachefile=none", "-d", &devices, "zone"]);
        forget();
        let time = timed(|| {
            let (mut send, mut receive) = (Command::new("zfs"), Command::new("zfs"));
            send.args(["send", &snapshot]);
            receive.args(["receive", &format!("ztwo/{name}")]);
            piped(send, receive);
        });
        told(&format!("zfs-fuse: {what}"), &seconds(time), "", None);
    };
    measure("large", &format!("{} MiB sent and received, cold", args.mib), &|at| write_large(at, args.mib));
    measure("small", &format!("{} files of 4 KiB sent and received, cold", args.small), &|at| {
        write_small(at, args.small, 4096);
    });
    ["zone", "ztwo"].iter().for_each(|pool| run("zpool", &["destroy", pool]));
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}
