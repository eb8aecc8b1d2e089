//! The works, and the figures that come of them.

use crate::materials::{Materials, git};
use larder_benches::peer::{Bed, Peer};
use larder_benches::usage::{self, Usage};
use larder_benches::{Latencies, MIB, process, wake_memory, work};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A piece of work, done on a new file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    Seq,
    Rand,
    Append,
    Files,
    Git,
    Tree,
}

impl Work {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Seq, Self::Rand, Self::Append, Self::Files, Self::Git, Self::Tree];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seq => "seq",
            Self::Rand => "rand",
            Self::Append => "append",
            Self::Files => "files",
            Self::Git => "git",
            Self::Tree => "tree",
        }
    }

    /// Whether a peer does it: a configuration that would say nothing new is left out.
    pub fn is_for(self, peer: Peer) -> bool {
        match peer {
            Peer::LarderOff | Peer::Passthrough | Peer::Ext4 | Peer::Xfs | Peer::ZfsFuse => true,
            Peer::Larder16k => self == Self::Rand,
            Peer::LarderZstd => self == Self::Tree,
            Peer::Btrfs => true,
            Peer::BtrfsOff => false,
            Peer::LarderRaidz2 | Peer::ZfsFuseRaidz2 => matches!(self, Self::Seq | Self::Tree),
        }
    }
}

/// A figure of a work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    Write,
    ColdRead,
    WarmRead,
    RandomRead,
    RandomRead4,
    RandomWrite,
    RandomWrite4,
    Append,
    Create,
    Stat,
    StatAgain,
    List,
    Unlink,
    Clone,
    Grep,
    Ingest,
    TreeRead,
    Remove,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Write,
        Self::ColdRead,
        Self::WarmRead,
        Self::RandomRead,
        Self::RandomRead4,
        Self::RandomWrite,
        Self::RandomWrite4,
        Self::Append,
        Self::Create,
        Self::Stat,
        Self::StatAgain,
        Self::List,
        Self::Unlink,
        Self::Clone,
        Self::Grep,
        Self::Ingest,
        Self::TreeRead,
        Self::Remove,
    ];

    /// The work that gives it.
    pub fn work(self) -> Work {
        match self {
            Self::Write | Self::ColdRead | Self::WarmRead => Work::Seq,
            Self::RandomRead | Self::RandomRead4 | Self::RandomWrite | Self::RandomWrite4 => Work::Rand,
            Self::Append => Work::Append,
            Self::Create | Self::Stat | Self::StatAgain | Self::List | Self::Unlink => Work::Files,
            Self::Clone | Self::Grep => Work::Git,
            Self::Ingest | Self::TreeRead | Self::Remove => Work::Tree,
        }
    }

    /// Its name in tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Write => "write + fsync",
            Self::ColdRead => "cold read",
            Self::WarmRead => "warm read",
            Self::RandomRead => "random read, 1 job",
            Self::RandomRead4 => "random read, 4 jobs",
            Self::RandomWrite => "random write, 1 job",
            Self::RandomWrite4 => "random write, 4 jobs",
            Self::Append => "append + fsync",
            Self::Create => "create",
            Self::Stat => "stat, cold",
            Self::StatAgain => "stat again",
            Self::List => "list",
            Self::Unlink => "unlink",
            Self::Clone => "git clone",
            Self::Grep => "git grep, cold",
            Self::Ingest => "ingest + commit",
            Self::TreeRead => "cold read",
            Self::Remove => "rm -rf + commit",
        }
    }

    /// The unit of its rate.
    pub fn unit(self) -> &'static str {
        match self.work() {
            Work::Seq | Work::Git | Work::Tree => "MB/s",
            Work::Rand | Work::Append | Work::Files => "a second",
        }
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// The metric.
    pub metric: Metric,
    /// In the metric's unit; more is better.
    pub rate: f64,
    /// Median and 99th percentile of single operations.
    pub latency: Option<(Duration, Duration)>,
    /// Wall and processor time of the work.
    pub usage: Usage,
    /// The most memory that the daemon had so far, bytes.
    pub memory: Option<u64>,
}

/// Amounts of work.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Mebibytes of the sequential file.
    pub stream_mib: usize,
    /// Mebibytes of the file that is read and written at random places.
    pub random_mib: usize,
    /// Random reads, and random writes.
    pub operations: usize,
    /// Appends.
    pub appends: usize,
    /// Small files.
    pub files: usize,
    /// Mebibytes of the tree.
    pub tree_mib: usize,
    /// Mebibytes of the repository.
    pub repository_mib: usize,
    /// Mebibytes that each peer has room for.
    pub room_mib: usize,
    /// Rounds of each piece of work.
    pub rounds: usize,
}

impl Sizes {
    /// Bytes of memory that a piece of work may need: of who stores and who writes, and the kernel's pages of both.
    fn memory(&self) -> usize {
        let largest = self.stream_mib.max(self.random_mib).max(self.tree_mib);
        2 * largest * MIB + (2 << 30)
    }
}

/// A piece of work under way.
struct Bench<'a> {
    bed: &'a mut Bed,
    memory: usize,
    samples: Vec<Sample>,
}

impl Bench<'_> {
    /// Does `work` and notes the rate of `amount`.
    fn step(&mut self, metric: Metric, amount: f64, work: impl FnOnce(&Bed)) {
        let daemon = self.bed.daemon();
        let ((), usage) = usage::of(daemon, || work(self.bed));
        self.note(metric, amount / usage.wall.as_secs_f64(), None, usage);
    }

    fn note(&mut self, metric: Metric, rate: f64, latency: Option<(Duration, Duration)>, usage: Usage) {
        let memory = self.bed.daemon().map(|pid| process::peak_memory(pid).expect("the daemon runs"));
        self.samples.push(Sample { metric, rate, latency, usage, memory });
    }

    fn forget(&mut self) {
        self.bed.remount();
        wake_memory(self.memory);
    }
}

/// Does `work` in `bed`.
pub fn perform(work: Work, bed: &mut Bed, sizes: &Sizes, materials: &Materials) -> Vec<Sample> {
    let mut bench = Bench { bed, memory: sizes.memory(), samples: Vec::new() };
    wake_memory(bench.memory);
    match work {
        Work::Seq => seq(&mut bench, sizes, &materials.random),
        Work::Rand => rand(&mut bench, sizes, &materials.random),
        Work::Append => append(&mut bench, sizes, &materials.random),
        Work::Files => files(&mut bench, sizes, &materials.random),
        Work::Git => repository(&mut bench, materials),
        Work::Tree => tree(&mut bench, materials),
    }
    bench.samples
}

fn seq(bench: &mut Bench<'_>, sizes: &Sizes, random: &[u8]) {
    let (file, mib) = (bench.bed.path().join("stream"), sizes.stream_mib);
    let megabytes = (mib * MIB) as f64 / 1e6;
    bench.step(Metric::Write, megabytes, |_| _ = work::write(&file, random, mib));
    bench.forget();
    bench.step(Metric::ColdRead, megabytes, |_| _ = work::read(&file));
    bench.step(Metric::WarmRead, megabytes, |_| _ = work::read(&file));
}

fn rand(bench: &mut Bench<'_>, sizes: &Sizes, random: &[u8]) {
    let file = bench.bed.path().join("random");
    work::write(&file, random, sizes.random_mib);
    for (metric, direction, jobs) in [
        (Metric::RandomRead, "read", 1),
        (Metric::RandomRead4, "read", 4),
        (Metric::RandomWrite, "write", 1),
        (Metric::RandomWrite4, "write", 4),
    ] {
        bench.forget();
        let daemon = bench.bed.daemon();
        let (told, usage) = usage::of(daemon, || fio(&file, direction, jobs, sizes));
        let told = &told["jobs"][0][direction];
        // Wall time includes fio's start; the rate is by fio's own clock, with its fsync at the end.
        let seconds = told["runtime"].as_f64().unwrap_or(0.0).max(1.0) / 1e3;
        let rate = told["total_ios"].as_f64().unwrap_or(0.0) / seconds;
        let percentile =
            |name: &str| Duration::from_nanos(told["clat_ns"]["percentile"][name].as_u64().unwrap_or(0));
        let latency = (percentile("50.000000"), percentile("99.000000"));
        bench.note(metric, rate, Some(latency), usage);
    }
}

fn fio(file: &Path, direction: &str, jobs: usize, sizes: &Sizes) -> Value {
    let mut fio = Command::new("fio");
    fio.args(["--name=random", "--bs=4k", "--ioengine=psync", "--direct=0", "--group_reporting"])
        .args(["--fallocate=none", "--end_fsync=1", "--output-format=json"])
        .arg(format!("--rw=rand{direction}"))
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--runtime={}", longest(sizes.operations)))
        .arg(format!("--numjobs={jobs}"))
        .arg(format!("--size={}m", sizes.random_mib))
        .arg(format!("--io_size={}k", sizes.operations / jobs * 4));
    let output = fio.stdin(Stdio::null()).output().expect("fio runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("fio tells JSON")
}

/// Seconds after which fio is stopped: a peer that does less than 1,500 a second is too slow to be waited for. To fio,
/// 0 is no limit.
fn longest(operations: usize) -> usize {
    (operations / 1500).max(1)
}

fn append(bench: &mut Bench<'_>, sizes: &Sizes, random: &[u8]) {
    let (file, daemon) = (bench.bed.path().join("appended"), bench.bed.daemon());
    let (times, usage): (Latencies, _) = usage::of(daemon, || work::append(&file, random, sizes.appends));
    let latency = (times.percentile(50), times.percentile(99));
    bench.note(Metric::Append, times.per_second(), Some(latency), usage);
}

fn files(bench: &mut Bench<'_>, sizes: &Sizes, random: &[u8]) {
    let folder = bench.bed.path().join("small");
    fs::create_dir(&folder).expect("a folder can be made");
    let (paths, count) = (work::small_paths(&folder, sizes.files), sizes.files as f64);
    bench.step(Metric::Create, count, |_| work::create(&paths, random));
    bench.forget();
    bench.step(Metric::Stat, count, |_| work::stat(&paths));
    bench.step(Metric::StatAgain, count, |_| work::stat(&paths));
    bench.step(Metric::List, count, |_| {
        assert_eq!(fs::read_dir(&folder).expect("it is there").count(), paths.len());
    });
    bench.step(Metric::Unlink, count, |_| work::unlink(&paths));
}

fn repository(bench: &mut Bench<'_>, materials: &Materials) {
    let source = &materials.repository;
    let (clone, megabytes) = (bench.bed.path().join("clone"), source.bytes as f64 / 1e6);
    // Reads the source into the kernel's cache, for every peer.
    pipe(&format!("tar -C '{}' -cf - . | cat > /dev/null", source.path.display()));
    bench.step(Metric::Clone, megabytes, |_| {
        let status = git().args(["clone", "-q", "--no-local"]).arg(&source.path).arg(&clone).status();
        assert!(status.expect("git runs").success(), "git clone");
    });
    bench.forget();
    bench.step(Metric::Grep, megabytes, |_| {
        let status =
            git().arg("-C").arg(&clone).args(["grep", "-c", "unsigned"]).stdout(Stdio::null()).status();
        assert!(status.expect("git runs").success(), "git grep");
    });
}

fn tree(bench: &mut Bench<'_>, materials: &Materials) {
    let (source, copy) = (&materials.tree, bench.bed.path().join("tree"));
    let megabytes = source.bytes as f64 / 1e6;
    fs::create_dir(&copy).expect("a folder can be made");
    pipe(&format!("tar -C '{}' -cf - . | cat > /dev/null", source.path.display()));
    bench.step(Metric::Ingest, megabytes, |bed| {
        pipe(&format!("tar -C '{}' -cf - . | tar -C '{}' -xf -", source.path.display(), copy.display()));
        bed.commit();
    });
    bench.forget();
    // tar does not read anything when it writes to /dev/null itself.
    bench.step(Metric::TreeRead, megabytes, |_| {
        pipe(&format!("tar -C '{}' -cf - . | cat > /dev/null", copy.display()));
    });
    bench.step(Metric::Remove, megabytes, |bed| {
        let status = Command::new("rm").arg("-rf").arg(&copy).status();
        assert!(status.expect("rm runs").success(), "rm -rf");
        bed.commit();
    });
}

fn pipe(line: &str) {
    let line = format!("set -o pipefail; {line}");
    let status = Command::new("bash").args(["-c", &line]).stdin(Stdio::null()).status().expect("bash runs");
    assert!(status.success(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_is_stopped_however_little_it_is_to_do() {
        assert_eq!([1, 1_499, 1_500, 12_000].map(longest), [1, 1, 1, 8]);
    }
}
