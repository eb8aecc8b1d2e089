//! The work, on pools of Larder and beside them.

use crate::corpus::Corpus;
use crate::report::{Asked, Report, Unit};
use larder_benches::content::Content;
use larder_benches::daemon::{Daemon, Layout, POOL, pause};
use larder_benches::litter::{self, Item};
use larder_benches::peer::{self, Peer, run};
use larder_benches::usage::{self, Usage};
use larder_benches::{MIB, mb_per_s, timed, work};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const SINGLE: Layout = Layout { word: "", devices: 1, data: 1 };
/// Layout for streams, trees and the large index.
pub const RAIDZ2: Layout = Layout { word: "raidz2", devices: 6, data: 4 };
/// Between two polls of `freeing`.
const PATIENCE: Duration = Duration::from_millis(100);

/// Where everything lies.
pub struct Site {
    /// The folder.
    pub folder: PathBuf,
    /// The binary.
    pub larder: PathBuf,
    /// Rounds of each measurement.
    pub rounds: usize,
}

/// A pool with its daemon.
pub struct Bed {
    daemon: Option<Daemon>,
    /// Where its devices and its daemon's sockets are.
    pub folder: PathBuf,
    /// Its devices.
    pub devices: Vec<PathBuf>,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
}

impl Bed {
    /// A pool of about `bytes`, with properties of its top dataset.
    pub fn new(site: &Site, layout: Layout, bytes: u64, properties: &[&str]) -> Self {
        let (folder, mountpoint) = (site.folder.join("bed"), site.folder.join("mnt"));
        for path in [&folder, &mountpoint] {
            fs::create_dir_all(path).expect("the folder can be written");
        }
        litter::add(Item::Folder(folder.clone()));
        let daemon = Daemon::start(&site.larder, &folder);
        litter::add(Item::Process(daemon.pid()));
        litter::add(Item::Mount(mountpoint.clone()));
        let properties: Vec<String> = properties.iter().map(|&property| property.into()).collect();
        let devices = layout.files(&folder, bytes / layout.data as u64);
        let bed = Self { daemon: Some(daemon), folder, devices, mountpoint };
        bed.daemon().create(layout, &bed.devices, &properties, &bed.mountpoint);
        bed
    }

    /// Its daemon.
    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("it runs")
    }

    /// Live bytes in the pool as a trace finds them: one copy, its own tables and trees included.
    fn live(&self) -> u64 {
        self.daemon().sync();
        self.daemon().run(&["pool", "trace", "-w", POOL]);
        let told = self.daemon().run(&["pool", "status", "-j", POOL]);
        let told: serde_json::Value = serde_json::from_str(&told).expect("it tells JSON");
        let live = find(&told, "live").expect("a trace tells what is live");
        live["bytes"].as_u64().expect("a number of bytes")
    }
}

/// The first value of this name in a document, at any depth.
pub fn find<'a>(told: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
    if let Some(found) = told.get(name) {
        return Some(found);
    }
    let below = told.as_object().into_iter().flat_map(|object| object.values());
    below.chain(told.as_array().into_iter().flatten()).find_map(|value| find(value, name))
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let process = Item::Process(daemon.pid());
            drop(daemon);
            litter::gone(&process);
        }
        litter::remove(&self.folder);
        litter::gone(&Item::Mount(self.mountpoint.clone()));
        litter::gone(&Item::Folder(self.folder.clone()));
    }
}

/// Writes `mib` mebibytes, no page of which is like another or like one of another `seed`, and calls fsync.
pub fn write_unique(path: &Path, base: &[u8], mib: usize, seed: u64) {
    let mut file = File::create(path).expect("a file can be made");
    let mut block = vec![0; MIB];
    for (i, from) in base.chunks_exact(MIB).cycle().take(mib).enumerate() {
        block.copy_from_slice(from);
        for (page, bytes) in block.chunks_exact_mut(4096).enumerate() {
            let number = seed << 40 | (i * MIB / 4096 + page) as u64;
            bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        }
        file.write_all(&block).expect("it can be written");
    }
    file.sync_all().expect("it can be synced");
}

/// The modes, each with its names in the report: unique random data, unique text, and a second copy of each.
type Names = (&'static str, &'static str);
const MODES: [(&str, [Names; 2]); 3] = [
    ("dedup=off", [("random, off", "random again, off"), ("text, off", "text again, off")]),
    ("dedup=on", [("random, on", "random again, on"), ("text, on", "text again, on")]),
    ("dedup=verify", [("random, verify", "random again, verify"), ("text, verify", "text again, verify")]),
];

/// Each kind of stream to the server that stores nothing.
const TO_NO_OP: [&str; 2] = ["random to a no-op server that hashes", "text to a no-op server that hashes"];
/// Each kind of stream without deduplication, and every record hashed beside: no `dedup=on` takes less.
const OFF_AND_HASHED: [&str; 2] = ["random, off, and hashed", "text, off, and hashed"];

/// Usage of `work`, which stores `bytes`. Memory is woken before: the writer's, the daemon's, and that of the
/// kernel's cache below.
pub fn storing(bytes: usize, daemon: Option<u32>, work: impl FnOnce()) -> Usage {
    larder_benches::wake_memory(4 * bytes + (2 << 30));
    usage::of(daemon, work).1
}

/// Hashes as much as a stream is, in records, by one thread.
fn hash_all(base: &[u8], mib: usize) {
    let records = base.chunks_exact(128 << 10).cycle().take(mib * 8);
    records.for_each(|record| {
        std::hint::black_box(blake3::keyed_hash(&[7; 32], record));
    });
}

/// Large files of unique data, and second copies of them, on raidz2 over six files.
pub fn streams(site: &Site, mib: usize, report: &mut Report) {
    let bytes = mib * MIB;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    for (kind, content) in [Content::Random, Content::Text].into_iter().enumerate() {
        let base = content.bytes(64 * MIB);
        for round in 0..site.rounds {
            let mut order = MODES.to_vec();
            if round % 2 == 1 {
                order.reverse();
            }
            let mut off = Usage::default();
            for (mode, names) in order {
                let (first, again) = names[kind];
                let bed = Bed::new(site, RAIDZ2, 4 * bytes as u64 + (2 << 30), &["compression=lz4", mode]);
                let store = |name: &str| {
                    storing(bytes, Some(bed.daemon().pid()), || {
                        write_unique(&bed.mountpoint.join(name), &base, mib, 1);
                        bed.daemon().sync();
                    })
                };
                let usage = store("first");
                report.rate(first, bytes, usage);
                if mode == "dedup=off" {
                    off = usage;
                }
                let before = bed.live();
                report.rate(again, bytes, store("again"));
                if mode == "dedup=on" {
                    let grown = bed.live().saturating_sub(before) as f64;
                    report.add("duplicates of a stream found", Unit::Part, 1.0 - grown / before as f64);
                }
            }
            let hashed = no_op_of(site, bytes, |path| write_unique(&path.join("stream"), &base, mib, 1));
            report.rate(TO_NO_OP[kind], bytes, hashed);
            let hash = usage::of(None, || hash_all(&base, mib)).1;
            // Without deduplication all cores are at work, and the hash is work for all of them.
            let (wall, client) = (off.wall + hash.wall / cores, off.client + hash.client);
            report.rate(OFF_AND_HASHED[kind], bytes, Usage { wall, client, ..off });
        }
    }
    use Asked::{Least, Nothing};
    report.compare("unique random: on / off", "random, on", "random, off", Least(0.9));
    report.compare("unique text: on / off", "text, on", "text, off", Least(0.9));
    report.compare("unique random: verify / off", "random, verify", "random, off", Least(0.5));
    report.compare("unique text: verify / off", "text, verify", "text, off", Least(0.5));
    report.compare("random: second copy / first", "random again, on", "random, on", Least(2.0));
    report.compare("text: second copy / first", "text again, on", "text, on", Least(2.0));
    report.compare("random: second copy, verify / first", "random again, verify", "random, verify", Nothing);
    report.compare("text: second copy, verify / first", "text again, verify", "text, verify", Nothing);
    let [random_no_op, text_no_op] = TO_NO_OP;
    report.compare("stream: second copy / no-op that hashes", "random again, on", random_no_op, Least(0.7));
    // Bounds: the hash alone for `on` / `off`, the no-op server for a second copy.
    let [random_hashed, text_hashed] = OFF_AND_HASHED;
    report.compare("bound of random: on / off", random_hashed, "random, off", Nothing);
    report.compare("bound of text: on / off", text_hashed, "text, off", Nothing);
    report.compare("bound of random: second copy / first", random_no_op, "random, on", Nothing);
    report.compare("bound of text: second copy / first", text_no_op, "text, on", Nothing);
    report.ask("duplicates found", "duplicates of a stream found", Least(0.95));
}

/// Does `work`, which writes so many bytes, in a mount that stores nothing and hashes what is written, of a process of
/// its own.
fn no_op_of(site: &Site, bytes: usize, work: impl FnOnce(&Path)) -> Usage {
    let mountpoint = site.folder.join("no-op");
    fs::create_dir_all(&mountpoint).expect("the folder can be written");
    let own = std::env::current_exe().expect("it has a path");
    let mut server = Command::new(own);
    server.arg("--no-op").arg(&mountpoint).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().expect("it can be started");
    let litter = [Item::Process(server.id()), Item::Mount(mountpoint.clone())];
    litter.iter().cloned().for_each(litter::add);
    let mut told = String::new();
    let mut output = BufReader::new(server.stdout.take().expect("a pipe"));
    output.read_line(&mut told).expect("a pipe can be read");
    // Else the work would be done in the folder below.
    assert_eq!(told, "mounted\n", "the no-op server says that it is mounted");
    let usage = storing(bytes, Some(server.id()), || work(&mountpoint));
    drop(server.stdin.take());
    assert!(server.wait().expect("it was started").success(), "the no-op server");
    litter.iter().for_each(litter::gone);
    usage
}

/// Copies a tree by two at once.
pub fn copy(from: &Path, to: &Path) {
    work::copy_tree(from, to, 2);
}

/// Reads a tree into the kernel's cache, for every peer alike; and syncs first, as the disk may take long over files
/// that were removed before.
pub fn warm(path: &Path) {
    rustix::fs::sync();
    pipe(&format!("tar -C '{}' -cf - . | cat > /dev/null", path.display()));
}

fn pipe(line: &str) {
    let line = format!("set -o pipefail; {line}");
    let status = Command::new("bash").args(["-c", &line]).stdin(Stdio::null()).status().expect("bash runs");
    assert!(status.success(), "{line}");
}

/// A tree to copy, its bytes, and its names in the report: both copies without deduplication, with it, verified;
/// the no-op server; duplicates found.
type Source<'a> = (&'a Path, u64, [Names; 3], &'static str, &'static str);

/// A tree of real files, and the whole corpus with its large files, and second copies of them, on raidz2 over six
/// files.
pub fn tree(site: &Site, corpus: &Corpus, report: &mut Report) {
    let sources: [Source<'_>; 2] = [
        (
            &corpus.tree.path,
            corpus.tree.bytes,
            [
                ("tree, off", "tree again, off"),
                ("tree, on", "tree again, on"),
                ("tree, verify", "tree again, verify"),
            ],
            "tree to a no-op server that hashes",
            "duplicates of the tree found",
        ),
        (
            &corpus.path,
            corpus.bytes,
            [
                ("all, off", "all again, off"),
                ("all, on", "all again, on"),
                ("all, verify", "all again, verify"),
            ],
            "all to a no-op server that hashes",
            "duplicates of all found",
        ),
    ];
    for (path, bytes, names, no_op, found) in sources {
        let bytes = bytes as usize;
        for round in 0..site.rounds {
            let mut order: Vec<_> = MODES.iter().map(|(mode, _)| *mode).zip(names).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for (mode, (first, again)) in order {
                let bed = Bed::new(site, RAIDZ2, 4 * bytes as u64 + (2 << 30), &["compression=lz4", mode]);
                warm(path);
                let store = |name: &str| {
                    storing(bytes, Some(bed.daemon().pid()), || {
                        copy(path, &bed.mountpoint.join(name));
                        bed.daemon().sync();
                    })
                };
                report.rate(first, bytes, store("first"));
                let before = bed.live();
                report.rate(again, bytes, store("again"));
                if mode == "dedup=on" {
                    let grown = bed.live().saturating_sub(before) as f64;
                    report.add(found, Unit::Part, 1.0 - grown / before as f64);
                }
            }
            warm(path);
            let hashed = no_op_of(site, bytes, |mount| copy(path, &mount.join("tree")));
            report.rate(no_op, bytes, hashed);
        }
    }
    use Asked::{Least, Nothing};
    report.compare("tree: on / off", "tree, on", "tree, off", Least(0.9));
    report.compare("tree: verify / off", "tree, verify", "tree, off", Least(0.5));
    report.compare("tree: second copy / first", "tree again, on", "tree, on", Least(2.0));
    let no_op = "tree to a no-op server that hashes";
    report.compare("bound of tree: second copy / first", no_op, "tree, on", Nothing);
    report.compare("tree: second copy / no-op that hashes", "tree again, on", no_op, Least(0.7));
    report.compare("corpus: on / off", "all, on", "all, off", Least(0.9));
    report.compare("corpus: verify / off", "all, verify", "all, off", Least(0.5));
    // Of small files the names take most of the time, and of a corpus half is there already in the first copy.
    report.compare("corpus: second copy / first", "all again, on", "all, on", Least(2.0));
    let no_op = "all to a no-op server that hashes";
    report.compare("bound of corpus: second copy / first", no_op, "all, on", Nothing);
    report.compare("corpus: second copy / no-op that hashes", "all again, on", no_op, Least(0.7));
    // Names and inodes of the second copy are new, and count as if they were data.
    report.ask("the second copy of the tree did not take", "duplicates of the tree found", Nothing);
    report.ask("the second copy of the corpus did not take", "duplicates of all found", Least(0.95));
}

/// Runs a backup program, without anybody's settings.
fn backup(site: &Site, program: &str, arguments: &[&str]) {
    let home = site.folder.join("home");
    let mut command = Command::new(program);
    command.args(arguments).env("HOME", &home).env("BORG_BASE_DIR", &home).env("RESTIC_PASSWORD", "bench");
    command
        .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes")
        .env("RESTIC_CACHE_DIR", home.join("cache"));
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A new repository in our folder, and what `store` takes, MB/s and bytes.
fn repository(
    site: &Site,
    corpus: &Corpus,
    report: &mut Report,
    (rate, size): (&'static str, &'static str),
    (make, store): (impl FnOnce(&str), impl FnOnce(&str)),
) {
    let path = site.folder.join("repository");
    litter::add(Item::Folder(path.clone()));
    let text = path.to_str().expect("our own path");
    fs::create_dir_all(site.folder.join("home")).expect("the folder can be written");
    make(text);
    warm(&corpus.path);
    let bytes = corpus.bytes as usize;
    let usage = storing(bytes, None, || {
        store(text);
        run("sync", ["-f", text]);
    });
    report.rate(rate, bytes, usage);
    let told = run("du", ["-sb", text]);
    let bytes = told.split_whitespace().next().and_then(|word| word.parse().ok()).expect("du tells a number");
    report.add(size, Unit::Bytes, bytes);
    litter::remove(&path);
    litter::remove(&site.folder.join("home"));
    litter::gone(&Item::Folder(path));
}

/// The corpus into pools with content-cut and fixed records, and into what else is installed.
pub fn peers(site: &Site, corpus: &Corpus, report: &mut Report) {
    let zfs_site = peer::Site {
        folder: site.folder.clone(),
        larder: site.larder.clone(),
        bytes: 4 * corpus.bytes + (1 << 30),
        metered: false,
    };
    let source = corpus.path.to_str().expect("our own path").to_owned();
    let bytes = corpus.bytes as usize;
    for round in 0..site.rounds {
        // With the codec of borg and restic, and with what `compression=on` is, as zfs-fuse has it.
        let mut pools = [
            ("compression=zstd-3", "chunking=fixed", "corpus, fixed", "size, fixed"),
            ("compression=on", "chunking=fixed", "corpus, fixed, on", "size, fixed, on"),
            ("compression=zstd-3", "chunking=content", "corpus, content", "size, content"),
        ];
        if round % 2 == 1 {
            pools.reverse();
        }
        for (codec, chunking, rate, size) in pools {
            let bed = Bed::new(site, SINGLE, 2 * corpus.bytes + (1 << 30), &[codec, "dedup=on", chunking]);
            warm(&corpus.path);
            let usage = storing(bytes, Some(bed.daemon().pid()), || {
                copy(&corpus.path, &bed.mountpoint.join("corpus"));
                bed.daemon().sync();
            });
            report.rate(rate, bytes, usage);
            report.add(size, Unit::Bytes, bed.live() as f64);
        }
        if installed("borg") {
            let make = |path: &str| backup(site, "borg", &["init", "-e", "none", path]);
            let archive = |path: &str| {
                let name = format!("{path}::corpus");
                backup(site, "borg", &["create", "--compression", "zstd,3", &name, &source]);
            };
            repository(site, corpus, report, ("corpus, borg", "size, borg"), (make, archive));
        }
        if installed("restic") {
            let make = |path: &str| backup(site, "restic", &["init", "-q", "-r", path]);
            let store = |path: &str| backup(site, "restic", &["backup", "-q", "-r", path, &source]);
            repository(site, corpus, report, ("corpus, restic", "size, restic"), (make, store));
        }
        match zfs_site.obstacle(Peer::ZfsFuse) {
            Some(why) => report.absent(&format!("zfs-fuse: {why}")),
            None => {
                let bed = peer::Bed::new(Peer::ZfsFuse, &zfs_site);
                bed.set("dedup", "on");
                bed.set("compression", "on");
                bed.settle();
                warm(&corpus.path);
                let usage = storing(bytes, bed.daemon(), || {
                    copy(&corpus.path, &bed.path().join("corpus"));
                    bed.commit();
                });
                report.rate("corpus, zfs-fuse", bytes, usage);
            }
        }
    }
    use Asked::{Least, Most};
    report.compare("corpus: content / fixed", "corpus, content", "corpus, fixed", Least(0.8));
    report.compare("corpus: content / borg", "corpus, content", "corpus, borg", Least(1.0));
    report.compare("corpus: content / restic", "corpus, content", "corpus, restic", Least(1.5));
    let zfs = "corpus, zfs-fuse";
    report.compare(
        "corpus: fixed, compression=on / zfs-fuse with both",
        "corpus, fixed, on",
        zfs,
        Least(3.0),
    );
    report.compare("corpus: fixed, zstd-3 / zfs-fuse with dedup", "corpus, fixed", zfs, Asked::Nothing);
    report.compare("space: content / borg", "size, content", "size, borg", Most(1.03));
    report.compare("space: content / restic", "size, content", "size, restic", Most(1.03));
    report.compare("space: fixed / borg", "size, fixed", "size, borg", Asked::Nothing);
}

fn installed(program: &str) -> bool {
    let version = if program == "restic" { "version" } else { "--version" };
    Command::new(program).arg(version).output().is_ok_and(|output| output.status.success())
}

/// A large duplicate is removed.
pub fn remove(site: &Site, gib: usize, report: &mut Report) {
    let bed = Bed::new(site, SINGLE, 16 << 30, &["compression=lz4", "dedup=on"]);
    let zeros = vec![0; MIB];
    for name in ["first", "again"] {
        write_unique(&bed.mountpoint.join(name), &zeros, gib << 10, 1);
        bed.daemon().sync();
    }
    // The kernel's own pages of the file would go with it, which takes it seconds.
    bed.daemon().import_again(&bed.mountpoint);
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may do this");
    let path = bed.mountpoint.join("again");
    report.add(
        "rm of a duplicate",
        Unit::Seconds,
        timed(|| fs::remove_file(&path).expect("it is there")).as_secs_f64(),
    );
    let freed = timed(|| {
        while bed.daemon().figure("freeing") > 0 {
            pause(PATIENCE);
        }
    });
    report.add("until it was freed", Unit::Seconds, freed.as_secs_f64());
    // The other one is whole.
    let read = timed(|| _ = work::read(&bed.mountpoint.join("first")));
    report.add("reading the other one", Unit::MbPerS, mb_per_s(gib << 30, read));
    report.ask("rm of a large duplicate returns", "rm of a duplicate", Asked::Most(1.0));
}
