//! A pool on sparse files, filled, and used in part.

use larder_benches::MIB;
use larder_benches::committer::Committer;
use larder_benches::content::Content;
use larder_benches::device::{Ground, sparse_file};
use larder_benches::tape::{Tape, TapedDevice};
use larder_device::{Device, FaultDevice, OpenMode, SystemWorkers};
use larder_files::{Caller, FileKind, Handle, Mount, NodeId, Ops};
use larder_format::DeviceIndex;
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, Pool, PoolSpec, ROOT_DATASET};
use larder_upkeep::Upkeep;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::JoinHandle;

const WRITER: Caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };

/// A layout, over as many devices as it is measured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The layout's word.
    pub word: &'static str,
    /// Devices.
    pub devices: usize,
    /// Columns of data: a device holds one of so many parts of it.
    pub k: usize,
}

/// The shapes that are measured.
pub const SHAPES: [Shape; 3] = [
    Shape { word: "raidz2", devices: 6, k: 4 },
    Shape { word: "mirror", devices: 2, k: 1 },
    Shape { word: "raid14", devices: 5, k: 2 },
];

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.word, self.devices)
    }
}

/// Which devices a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Devices {
    /// Files whose requests can be recorded.
    Taped,
    /// Files that obey a control file.
    Faulty,
}

/// A file of a pool.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Its node.
    pub node: NodeId,
    /// Its size, bytes.
    pub bytes: u64,
}

/// A pool at work.
pub struct Bed {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Its upkeep: devices, resilver, scrub.
    pub upkeep: Arc<Upkeep>,
    /// Its root dataset, as files.
    pub mount: Arc<Mount>,
    /// Requests to its devices.
    pub tape: Arc<Tape>,
    /// Where they lie.
    pub folder: PathBuf,
    /// Bytes of a device.
    pub size: u64,
    content: Vec<u8>,
    made: AtomicU32,
    committer: Arc<Committer>,
    thread: Option<JoinHandle<()>>,
}

impl Bed {
    /// An empty pool on files of `size` bytes in `folder`, with `memory` bytes.
    pub fn new(folder: &Path, shape: Shape, kind: Devices, size: u64, memory: u64) -> Self {
        let tape = Arc::new(Tape::default());
        let devices = (0..shape.devices).map(|number| -> Arc<dyn Device> {
            let path = folder.join(format!("device-{number}"));
            sparse_file(&path, size);
            match kind {
                Devices::Taped => Arc::new(TapedDevice::open(&path, &tape)),
                Devices::Faulty => {
                    let opened = FaultDevice::open(&path, OpenMode::Exclusive, |line| eprintln!("{line}"));
                    Arc::new(opened.expect("the file can be used"))
                }
            }
        });
        let rule = rule_for(shape.word, shape.devices).expect("as many devices as it needs");
        let groups = vec![GroupSpec::data(rule, devices.collect())];
        let world = larder_benches::world(Arc::new(SystemWorkers::new().expect("threads can be made")));
        let pool =
            Pool::create(world, PoolSpec { name: "bench".into(), groups, ashift: 12 }).expect("a pool");
        pool.set_property(ROOT_DATASET, "compression", "off").expect("a property");
        pool.set_pool_property("memory", &memory.to_string()).expect("a property");
        let mount = Mount::new(Arc::clone(&pool), (0, 0)).expect("a mount");
        mount.attach(pool.dataset(ROOT_DATASET).expect("there is one"), None).expect("it is attached");
        pool.commit().expect("a commit");
        let committer = Committer::of(&pool);
        let (worker, its_pool, its_mount) = (Arc::clone(&committer), Arc::clone(&pool), Arc::clone(&mount));
        #[allow(clippy::disallowed_methods, reason = "it stands in for a thread of the daemon")]
        let thread = std::thread::spawn(move || worker.work(&its_pool, &its_mount));
        Self {
            upkeep: Upkeep::new(&pool),
            pool,
            mount,
            tape,
            folder: folder.to_owned(),
            size,
            content: Content::Random.bytes(16 * MIB),
            made: AtomicU32::new(0),
            committer,
            thread: Some(thread),
        }
    }

    /// Something that no codec makes smaller, other bytes for each `n`.
    pub fn piece(&self, n: usize, len: usize) -> &[u8] {
        let at = n.wrapping_mul(4096 * 7 + 8) % (self.content.len() - len);
        &self.content[at..at + len]
    }

    fn name(number: u32) -> Vec<u8> {
        format!("file{number}").into_bytes()
    }

    /// Writes a file in records of `record_kib`.
    pub fn write(&self, mib: usize, record_kib: usize) -> Written {
        let size = format!("{record_kib}K");
        self.pool.set_property(ROOT_DATASET, "recordsize", &size).expect("a property");
        let number = self.made.fetch_add(1, Relaxed);
        let made = self.mount.mknod(NodeId::ROOT, &Self::name(number), FileKind::Regular, 0o644, 0, &WRITER);
        let node = made.expect("a file can be made").node;
        for at in 0..mib {
            let data = self.piece(number as usize * 1000 + at, MIB);
            self.mount.write(node, Handle(0), (at * MIB) as u64, data, false).expect("it fits");
        }
        Written { node, bytes: (mib * MIB) as u64 }
    }

    /// Writes `mib` mebibytes that stay, as files, and two thirds as much that does not: it comes in two pieces
    /// between the others. So 40 % of what was written is gone.
    pub fn fill(&self, mib: usize) -> Vec<Written> {
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            kept.push(self.write(mib / 2, 128));
            let number = self.made.load(Relaxed);
            gone.push((number, self.write(mib / 3, 128).node));
        }
        self.pool.commit().expect("a commit");
        for (number, node) in gone {
            self.mount.unlink(NodeId::ROOT, &Self::name(number)).expect("it is there");
            // As long as the kernel knew it, it would stay.
            self.mount.forget(node, 1);
        }
        self.settle();
        kept
    }

    /// Until nothing that was removed waits to be freed, and slots that became free are.
    pub fn settle(&self) {
        while self.mount.reap_step(usize::MAX).expect("it is removed") {}
        // A slot that a commit freed is free two commits later.
        for _ in 0..4 {
            self.pool.commit().expect("a commit");
        }
    }

    /// A new device, beside the others, of which no more than `end` bytes will be written.
    pub fn fresh(&self, name: &str, ground: Ground, end: u64) -> (PathBuf, Arc<dyn Device>) {
        let path = self.folder.join(name);
        ground.make(&path, self.size, end);
        let device = TapedDevice::open(&path, &self.tape);
        (path, Arc::new(device))
    }

    /// The file of a device that the pool has.
    pub fn path_of(&self, device: DeviceIndex) -> PathBuf {
        self.pool.store().members().get(device).name().into()
    }

    /// Takes devices back that were out of use, and brings them what they missed.
    pub fn all_back(&self, devices: impl Iterator<Item = DeviceIndex>) {
        devices.for_each(|device| self.upkeep.devices.online(device, None).expect("it is there"));
        while self.upkeep.resilver.step(u64::MAX).expect("it is rebuilt") {}
    }
}

impl Drop for Bed {
    /// Ends the thread and takes the files away.
    fn drop(&mut self) {
        self.committer.stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            drop(thread.join());
        }
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        files.for_each(|file| drop(fs::remove_file(file.path())));
    }
}
