//! Description of the machine, for reports.

use crate::peer;
use std::fs;
use std::path::Path;

/// The machine and the file system of `dir`, in a line.
pub fn machine(dir: &Path) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("?", |m| m.1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let release = read("/proc/sys/kernel/osrelease");
    let kernel = release.split('-').next().unwrap_or("?").trim();
    let memory = read("/proc/meminfo");
    let kib = memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    let dir = dir.display().to_string();
    let below = peer::run("findmnt", ["-n", "-o", "FSTYPE,OPTIONS", "-T", &dir]);
    let below = below.split_whitespace().collect::<Vec<_>>().join(", ");
    format!(
        "Linux {kernel}, {cores} cores ({model}), {} GiB of memory; the folder below: {below}.",
        kib.unwrap_or(0) >> 20
    )
}
