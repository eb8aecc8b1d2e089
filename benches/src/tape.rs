//! A tape of a pool's requests to its devices, and its replay by fio: the ceiling of whatever made them.

use crate::device::Ground;
use crate::peer::run;
use larder_device::{Device, FileDevice, OpenMode, Outcome, Pending, Request};
use larder_format::ByteLen;
use larder_format::label::LABEL_AREA;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A request's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The device's file.
    pub path: Arc<Path>,
    /// Read, write or flush.
    pub kind: Kind,
    /// Where, bytes.
    pub offset: u64,
    /// Length, bytes; 0 of a flush.
    pub len: u64,
}

/// Requests in the order in which they were submitted, while it runs.
#[derive(Default)]
pub struct Tape(Mutex<Option<Vec<Entry>>>);

impl Tape {
    /// Begins anew.
    pub fn start(&self) {
        *self.0.lock() = Some(Vec::new());
    }

    /// Ends, and gives what was recorded.
    pub fn stop(&self) -> Vec<Entry> {
        self.0.lock().take().unwrap_or_default()
    }
}

/// A file as a device, whose requests go on tape.
pub struct TapedDevice {
    file: FileDevice,
    path: Arc<Path>,
    tape: Arc<Tape>,
}

impl TapedDevice {
    /// Opens `path`.
    pub fn open(path: &Path, tape: &Arc<Tape>) -> Self {
        let file = FileDevice::open(path, OpenMode::Exclusive).expect("the file can be used");
        Self { file, path: path.into(), tape: Arc::clone(tape) }
    }

    fn note(&self, request: &Request) {
        let (kind, offset, len) = match request {
            Request::Read { offset, len } => (Kind::Read, offset.get(), len.get()),
            Request::Write { offset, data } => (Kind::Write, offset.get(), data.len() as u64),
            Request::Discard { .. } => return,
            Request::Flush => (Kind::Flush, 0, 0),
        };
        if let Some(entries) = &mut *self.tape.0.lock() {
            entries.push(Entry { path: Arc::clone(&self.path), kind, offset, len });
        }
    }
}

impl Device for TapedDevice {
    fn name(&self) -> String {
        self.file.name()
    }
    fn size(&self) -> ByteLen {
        self.file.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        self.note(&request);
        self.file.submit(request)
    }
    fn perform(&self, request: Request, limit: Duration) -> Result<Outcome, Pending<Outcome>> {
        self.note(&request);
        self.file.perform(request, limit)
    }
    fn abandon(&self) {
        self.file.abandon();
    }
}

/// Bytes of one kind.
pub fn bytes(entries: &[Entry], kind: Kind) -> u64 {
    entries.iter().filter(|entry| entry.kind == kind).map(|entry| entry.len).sum()
}

/// Bytes of one kind, by file.
pub fn bytes_by_file(entries: &[Entry], kind: Kind) -> BTreeMap<Arc<Path>, u64> {
    let mut by_file = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.kind == kind) {
        *by_file.entry(Arc::clone(&entry.path)).or_default() += entry.len;
    }
    by_file
}

/// Before each measurement, so that what came before it does not tell in it.
pub const REST: Duration = Duration::from_secs(2);
/// Bytes that fio leaves uncounted at most.
const IN_FLIGHT: u64 = 48 << 20;

/// The time that fio takes for the same requests: all reads in their order, and beside them all writes and flushes
/// in theirs, with as many in flight as the devices concerned perform at once. Reads go to the same files, writes to
/// new ones of `size` bytes in `folder`.
pub fn replay(entries: &[Entry], ground: Ground, size: u64, folder: &Path) -> Duration {
    let mut job = String::from("[global]\nioengine=libaio\ndirect=1\nreplay_no_stall=1\n");
    let mut fresh: Vec<PathBuf> = Vec::new();
    let kinds: [(&str, &[Kind]); 2] = [("reads", &[Kind::Read]), ("writes", &[Kind::Write, Kind::Flush])];
    for (name, kinds) in kinds {
        let entries: Vec<&Entry> = entries.iter().filter(|entry| kinds.contains(&entry.kind)).collect();
        if !entries.iter().any(|entry| entry.len > 0) {
            continue;
        }
        let paths: BTreeSet<&Arc<Path>> = entries.iter().map(|entry| &entry.path).collect();
        let stand_in = |path: &Path| match name {
            "reads" => path.to_owned(),
            _ => folder.join(format!("ceiling-{}", path.file_name().expect("a file").display())),
        };
        let stand_ins: BTreeMap<&Arc<Path>, PathBuf> =
            paths.iter().map(|path| (*path, stand_in(path))).collect();
        let mut log = String::from("fio version 2 iolog\n");
        for (of, path) in &stand_ins {
            if name == "writes" {
                let mine = entries.iter().filter(|entry| entry.path == **of);
                let ends = mine.map(|entry| entry.offset + entry.len);
                // Beside the labels at the device's end.
                let end = ends.filter(|end| *end <= size - LABEL_AREA).max().unwrap_or(0);
                ground.make(path, size, end);
                fresh.push(path.clone());
            }
            writeln!(log, "{0} add\n{0} open", path.display()).expect("a string takes what is written");
        }
        for entry in &entries {
            let word = match entry.kind {
                Kind::Read => "read",
                Kind::Write => "write",
                Kind::Flush => "datasync",
            };
            let path = stand_ins[&entry.path].display();
            writeln!(log, "{path} {word} {} {}", entry.offset, entry.len)
                .expect("a string takes what is written");
        }
        let path = folder.join(name);
        fs::write(&path, log).expect("the folder can be written");
        let many = entries.iter().filter(|entry| entry.len >= 4096).map(|entry| &entry.path);
        let depth = many.collect::<BTreeSet<_>>().len() * FileDevice::THREADS;
        write!(job, "[{name}]\nread_iolog={}\niodepth={depth}\n", path.display())
            .expect("a string takes what is written");
    }
    rustix::fs::sync();
    let path = folder.join("ceiling.fio");
    fs::write(&path, job).expect("the folder can be written");
    rest();
    let told = run("fio", ["--output-format=json", &path.display().to_string()]);
    fresh.iter().for_each(|path| fs::remove_file(path).expect("our own file"));
    let json = &told[told.find('{').unwrap_or(0)..];
    let told: serde_json::Value = serde_json::from_str(json).expect("fio gives JSON");
    let jobs = told["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    // fio waits for requests in flight at the end and does not count them.
    for (kind, name) in [(Kind::Read, "read"), (Kind::Write, "write")] {
        let done: u64 = jobs.iter().filter_map(|job| job[name]["io_bytes"].as_u64()).sum();
        let asked = bytes(entries, kind);
        assert!(done <= asked && asked - done < IN_FLIGHT, "fio did {done} bytes of {name}, not {asked}");
    }
    let longest = jobs.iter().filter_map(|job| job["job_runtime"].as_u64()).max();
    Duration::from_millis(longest.expect("fio tells how long it took").max(1))
}

/// Lets the disk rest: a virtual one may give more for a while to who asked for little before.
#[allow(clippy::disallowed_methods, reason = "nothing is to happen")]
pub fn rest() {
    std::thread::sleep(REST);
}
