//! `larder dedupe` beside duperemove: the same corpus on XFS and btrfs, a first run, and another when 1 % has changed.
//!
//! `make dedupe`, or `cargo run --release -p larder-benches --bin dedupe` (see benches/README.md). Needs root. One file
//! system at a time exists, made anew for each tool, on a loop device with direct I/O; before each run it is unmounted,
//! so that nothing of it is in memory. It is taken away in the end, also on Ctrl-C.

mod corpus;

use clap::Parser;
use larder_benches::daemon::pause;
use larder_benches::litter::{self, Item};
use larder_benches::machine::machine;
use larder_benches::{MIB, peer, process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Shares what a corpus has in common, with two tools.
#[derive(Debug, Parser)]
struct Args {
    /// Where everything lies: on the disk that is to be measured [default: the temporary folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Mebibytes of the corpus
    #[arg(long, default_value_t = 4096)]
    mib: usize,
    /// Of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these file systems
    #[arg(long, value_delimiter = ',', default_value = "xfs,btrfs")]
    on: Vec<String>,
    /// Only these tools
    #[arg(long, value_delimiter = ',', default_value = "larder,duperemove,duperemove-4K")]
    tools: Vec<String>,
    /// Seconds that a run may take
    #[arg(long, default_value_t = 600)]
    cap: u64,
    /// The binary [default: $LARDER, else beside this one]
    #[arg(long, env = "LARDER")]
    larder: Option<PathBuf>,
}

/// One run of a tool.
#[derive(Debug, Clone, Copy, Default)]
struct Ran {
    is_over: bool,
    wall: Duration,
    cpu: Duration,
    peak: u64,
    freed: i64,
    hash_file: u64,
}

struct Site {
    folder: PathBuf,
    kind: String,
    larder: PathBuf,
    cap: Duration,
}

impl Site {
    fn mount(&self) -> (PathBuf, String) {
        let (image, at) = (self.folder.join("image"), self.folder.join("mnt"));
        let device =
            peer::run("losetup", [as_os("--direct-io=on"), as_os("-f"), as_os("--show"), image.as_os_str()]);
        let device = device.trim().to_owned();
        litter::add(Item::Loop(device.clone()));
        fs::create_dir_all(&at).expect("a folder of ours");
        peer::run("mount", [as_os(&device), at.as_os_str()]);
        litter::add(Item::Mount(at.clone()));
        (at, device)
    }

    fn unmount(&self, (at, device): &(PathBuf, String)) {
        peer::run("umount", [at]);
        litter::gone(&Item::Mount(at.clone()));
        peer::run("losetup", ["-d", device]);
        litter::gone(&Item::Loop(device.clone()));
    }

    fn make(&self, mib: usize) {
        let image = self.folder.join("image");
        let _ = fs::remove_file(&image);
        let file = File::create(&image).expect("a file of ours");
        file.set_len((mib * MIB * 2) as u64).expect("a sparse file");
        peer::run(&format!("mkfs.{}", self.kind), [as_os("-q"), image.as_os_str()]);
    }

    #[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn run(&self, tool: &str, at: &Path) -> Ran {
        let hashes = self.folder.join("hashes");
        let mut command = if tool == "larder" {
            let mut command = Command::new(&self.larder);
            command.args(["dedupe", "--apply", "--hash-file"]).arg(&hashes).arg(at);
            command
        } else {
            let mut command = Command::new("duperemove");
            let block = if tool == "duperemove" { "128K" } else { "4K" };
            command.args(["-rdq", "-b", block]).arg(format!("--hashfile={}", hashes.display())).arg(at);
            command
        };
        let free = || {
            peer::run("sync", [as_os("-f"), at.as_os_str()]);
            let found = rustix::fs::statvfs(at).expect("it is mounted");
            (found.f_bfree * found.f_frsize) as i64
        };
        let (before, cpu, began) = (free(), process::children_cpu_time(), Instant::now());
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the tool can be started");
        litter::add(Item::Process(child.id()));
        let mut ran = Ran::default();
        while child.try_wait().expect("it is our child").is_none() {
            ran.peak = process::peak_memory(child.id()).unwrap_or(0).max(ran.peak);
            if began.elapsed() > self.cap {
                ran.is_over = true;
                child.kill().expect("it is our child");
            }
            pause(Duration::from_millis(2));
        }
        litter::gone(&Item::Process(child.id()));
        ran.wall = began.elapsed();
        ran.cpu = process::children_cpu_time().saturating_sub(cpu);
        ran.freed = free() - before;
        ran.hash_file = hashes.metadata().map_or(0, |found| found.len());
        ran
    }
}

fn as_os(word: &str) -> &std::ffi::OsStr {
    word.as_ref()
}

fn main() -> ExitCode {
    let args = Args::parse();
    let beside = || std::env::current_exe().ok().map(|path| path.with_file_name("larder"));
    let Some(larder) = args.larder.clone().or_else(beside).filter(|path| path.exists()) else {
        eprintln!("there is no larder: build it, or name it with --larder");
        return ExitCode::FAILURE;
    };
    if !rustix::process::geteuid().is_root() {
        eprintln!("needs root, to mount file systems");
        return ExitCode::FAILURE;
    }
    litter::clean_up_on_signals();
    let folder =
        tempfile::tempdir_in(args.dir.clone().unwrap_or_else(std::env::temp_dir)).expect("a folder of ours");
    litter::add(Item::Folder(folder.path().to_owned()));
    println!("{}", machine(folder.path()));
    for kind in &args.on {
        let site = Site {
            folder: folder.path().to_owned(),
            kind: kind.clone(),
            larder: larder.clone(),
            cap: Duration::from_secs(args.cap),
        };
        let mut all = Vec::new();
        for tool in &args.tools {
            let _ = fs::remove_file(site.folder.join("hashes"));
            site.make(args.mib);
            let mounted = site.mount();
            let total = corpus::write(&mounted.0, args.mib, args.seed);
            site.unmount(&mounted);
            let mounted = site.mount();
            let first = site.run(tool, &mounted.0);
            let changed = corpus::change(&mounted.0, total, args.seed + 1);
            site.unmount(&mounted);
            let mounted = site.mount();
            let second = site.run(tool, &mounted.0);
            site.unmount(&mounted);
            eprintln!("{kind} {tool}: {total} bytes, {changed} changed: {first:?} {second:?}");
            all.push((tool.clone(), total, first, second));
        }
        print(kind, &all);
    }
    litter::gone(&Item::Folder(folder.path().to_owned()));
    ExitCode::SUCCESS
}

fn print(kind: &str, all: &[(String, u64, Ran, Ran)]) {
    let mib = |bytes: i64| bytes / MIB as i64;
    println!(
        "\n| {kind} | run | wall s | processor s | peak MiB | freed MiB | hash file MiB (bytes a 4K block) |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (tool, total, first, second) in all {
        for (name, ran) in [("first", first), ("1 % changed", second)] {
            let over = if ran.is_over { "over " } else { "" };
            println!(
                "| {tool} | {name} | {over}{:.2} | {:.2} | {} | {} | {} ({:.1}) |",
                ran.wall.as_secs_f64(),
                ran.cpu.as_secs_f64(),
                mib(ran.peak as i64),
                mib(ran.freed),
                mib(ran.hash_file as i64),
                ran.hash_file as f64 / (*total as f64 / 4096.0),
            );
        }
    }
    let Some((_, _, first, second)) = all.iter().find(|(tool, ..)| tool == "larder") else { return };
    for (tool, _, theirs, later) in all.iter().filter(|(tool, ..)| tool != "larder") {
        let times = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64().max(0.001);
        let goal = |is: bool| if is { "reached" } else { "missed" };
        let (one, two) = (times(theirs.wall, first.wall), times(later.wall, second.wall));
        let memory = first.peak.max(second.peak) as f64 / theirs.peak.max(later.peak).max(1) as f64;
        let freed = (first.freed + second.freed) as f64 / (theirs.freed + later.freed).max(1) as f64;
        println!("\n{tool} on {kind}, theirs by ours:");
        println!(
            "- first run {one:.1} (wanted 5: {}), processor {:.1}",
            goal(one >= 5.0),
            times(theirs.cpu, first.cpu)
        );
        println!(
            "- 1 % changed {two:.1} (wanted 20: {}), processor {:.1}",
            goal(two >= 20.0),
            times(later.cpu, second.cpu)
        );
        println!("- ours by theirs: memory {memory:.2} (wanted 0.5: {})", goal(memory <= 0.5));
        println!("- ours by theirs: freed {freed:.3} (wanted 1: {})", goal(freed >= 1.0));
    }
}
