//! Pools with files on simulated devices, their damage, and what repair brings back.

use larder_device::{Device, Entropy, Inline, SeededEntropy};
use larder_files::*;
use larder_format::label::{LABEL_AREA, RING_OFFSET, RING_SLOT, RING_SLOTS, label_areas};
use larder_format::segment::{SegmentKind, SegmentRecord, Slot};
use larder_format::{ByteLen, DeviceOffset, HostId};
use larder_pool::create::{data_start, rule_for};
use larder_pool::{GroupSpec, Pool, PoolSpec, ROOT_DATASET, World};
use larder_repair::{Options, Repaired, repair};
use larder_sim::{DeviceImage, SimClock, SimWorld};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const USER: Caller = Caller { uid: 1000, gid: 100, pid: 1, umask: 0 };
pub const READ_WRITE: OpenFlags = OpenFlags::READ_WRITE;

/// Contents of files by their paths; folders end with a slash.
pub type Tree = BTreeMap<String, Vec<u8>>;

pub fn world(seed: u64) -> World {
    World {
        clock: Arc::new(SimClock::new()),
        entropy: Arc::new(SeededEntropy::new(seed)),
        workers: Arc::new(Inline),
        host: HostId::new(1),
        host_name: "sim".into(),
    }
}

pub struct Bed {
    pub pool: Arc<Pool>,
    pub mount: Arc<Mount>,
    pub sim: SimWorld,
}

impl Bed {
    pub fn new(word: &str, devices: usize, mib: u64) -> Self {
        Self::seeded((word, devices, mib), 1)
    }

    /// One with a number and a key of its own.
    pub fn seeded((word, devices, mib): (&str, usize, u64), seed: u64) -> Self {
        Self::made(SimWorld::new(&vec![ByteLen::new(mib << 20); devices]), word, seed)
    }

    /// One on a single disk that held something before.
    pub fn on(images: Vec<DeviceImage>, seed: u64) -> Self {
        Self::made(SimWorld::from_images(images), "single", seed)
    }

    fn made(sim: SimWorld, word: &str, seed: u64) -> Self {
        let rule = rule_for(word, sim.devices().len()).unwrap();
        let groups = vec![GroupSpec::data(rule, sim.devices())];
        let pool = Pool::create(world(seed), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap();
        let mount = mounted(&pool);
        Self { pool, mount, sim }
    }

    /// Stores a tree of files of random sizes, some of them in several commits.
    pub fn fill(&self, node: NodeId, seed: u64, folders: u64, files: u64) -> Tree {
        let random = SeededEntropy::new(seed);
        let mut tree = Tree::new();
        for folder in 0..folders {
            let name = format!("folder-{folder}");
            let made = self.mount.mkdir(node, name.as_bytes(), 0o755, &USER).unwrap();
            tree.insert(format!("{name}/"), Vec::new());
            for file in 0..files {
                let len = match random.next_u64() % 8 {
                    0 => 0,
                    1..=5 => random.next_u64() % 20_000,
                    _ => random.next_u64() % 400_000,
                };
                let content = random.bytes(len as usize);
                let file = format!("file {file}");
                self.write(made.node, &file, &content);
                tree.insert(format!("{name}/{file}"), content);
            }
            self.pool.commit().unwrap();
        }
        tree
    }

    /// A folder in the root.
    pub fn mount_folder(&self, name: &str) -> NodeId {
        self.mount.lookup(NodeId::ROOT, name.as_bytes()).unwrap().node
    }

    pub fn write(&self, folder: NodeId, name: &str, content: &[u8]) {
        let (attr, handle) = match self.mount.lookup(folder, name.as_bytes()) {
            Ok(attr) => (attr, self.mount.open(attr.node, READ_WRITE).unwrap()),
            Err(_) => {
                let made = self.mount.create(folder, name.as_bytes(), 0o644, READ_WRITE, &USER).unwrap();
                (made.attr, made.handle)
            }
        };
        for (at, part) in content.chunks(1 << 17).enumerate() {
            self.mount.write(attr.node, handle, (at << 17) as u64, part, false).unwrap();
        }
        self.mount.release(attr.node, handle).unwrap();
    }

    /// A file has this content and no other.
    pub fn replace(&self, folder: NodeId, name: &str, content: &[u8]) {
        let attr = self.mount.lookup(folder, name.as_bytes()).unwrap();
        self.mount.setattr(attr.node, &SetAttr { size: Some(0), ..SetAttr::default() }, &USER).unwrap();
        self.write(folder, name, content);
    }

    /// Ends with an export; the devices, and the segments that there were.
    pub fn export(self) -> (Vec<DeviceImage>, Vec<SegmentRecord>) {
        self.pool.commit().unwrap();
        self.pool.commit_export().unwrap();
        let segments = self.pool.store().segments();
        drop((self.mount, self.pool));
        (self.sim.images(), segments)
    }
}

/// The whole pool as one tree.
pub fn mounted(pool: &Arc<Pool>) -> Arc<Mount> {
    try_mounted(pool).unwrap()
}

/// The same, where that may fail.
pub fn try_mounted(pool: &Arc<Pool>) -> Result<Arc<Mount>> {
    let mount = Mount::new(Arc::clone(pool), (0, 0))?;
    for dataset in pool.datasets() {
        let name = dataset.last_name().into_bytes();
        let parent = (dataset.id() != ROOT_DATASET).then(|| (dataset.parent(), name));
        mount.attach(dataset, parent)?;
    }
    Ok(mount)
}

/// All that can be read below a node.
pub fn read(ops: &dyn Ops, node: NodeId) -> Tree {
    let mut tree = Tree::new();
    let mut open = vec![(node, String::new())];
    while let Some((node, path)) = open.pop() {
        let mut entries = Vec::new();
        let Ok(handle) = ops.opendir(node) else { continue };
        let listed = ops.readdir(node, handle, 0, false, &mut |entry| {
            entries.push((entry.node, entry.kind, String::from_utf8(entry.name.to_vec()).unwrap()));
            true
        });
        if listed.is_err() {
            continue;
        }
        for (node, kind, name) in entries.into_iter().filter(|(.., name)| name != "." && name != "..") {
            let path = format!("{path}{name}");
            match kind {
                FileKind::Directory => {
                    tree.insert(format!("{path}/"), Vec::new());
                    open.push((node, format!("{path}/")));
                }
                FileKind::Regular => {
                    let Ok(attr) = ops.getattr(node) else { continue };
                    let handle = ops.open(node, OpenFlags { write: false, ..READ_WRITE }).unwrap();
                    let len = u32::try_from(attr.size).unwrap();
                    // A part of it is what is before something lost.
                    if let Ok(data) = ops.read(node, handle, 0, len)
                        && data.len() == len as usize
                    {
                        tree.insert(path, data.to_vec());
                    }
                }
                _ => {}
            }
        }
    }
    tree
}

fn zero(image: &mut DeviceImage, at: u64, len: u64) {
    image.write(DeviceOffset::new(at), &vec![0; len as usize]);
}

/// No root is left.
pub fn zero_roots(images: &mut [DeviceImage]) {
    for image in images {
        for area in label_areas(image.size()) {
            zero(image, area.get() + RING_OFFSET, RING_SLOTS * RING_SLOT as u64);
        }
    }
}

/// No label is left.
pub fn zero_labels(image: &mut DeviceImage) {
    for area in label_areas(image.size()) {
        zero(image, area.get(), LABEL_AREA);
    }
}

/// Nothing of a segment is left.
pub fn zero_segment(images: &mut [DeviceImage], segment: &SegmentRecord, slot_size: u32) {
    for slot in &segment.slots {
        zero_slot(images, *slot, slot_size);
    }
}

pub fn zero_slot(images: &mut [DeviceImage], slot: Slot, slot_size: u32) {
    let at = data_start(12).get() + u64::from(slot.index.get()) * u64::from(slot_size);
    zero(&mut images[usize::from(slot.device.get())], at, slot_size.into());
}

/// A sector of a slot, counted from its start, is lost.
pub fn zero_sector(images: &mut [DeviceImage], slot: Slot, slot_size: u32, sector: u64) {
    let at = data_start(12).get() + u64::from(slot.index.get()) * u64::from(slot_size) + sector * 4096;
    zero(&mut images[usize::from(slot.device.get())], at, 4096);
}

/// Whether a kind of segments is of what repair can do without.
pub fn is_of_tables(segment: &SegmentRecord) -> bool {
    matches!(segment.kind, SegmentKind::Table | SegmentKind::Run | SegmentKind::Log)
}

/// Devices as files would be, to look at.
pub fn devices(images: Vec<DeviceImage>) -> Vec<Arc<dyn Device>> {
    SimWorld::from_images(images).devices()
}

/// Repairs what is on these devices.
pub fn repaired(devices: &[Arc<dyn Device>]) -> Repaired {
    repaired_and(devices, false)
}

/// The same, and, if said so, lost records become holes.
pub fn repaired_and(devices: &[Arc<dyn Device>], cut: bool) -> Repaired {
    let scratch = |size| Ok(SimWorld::new(&[size]).devices().remove(0));
    let options = Options { pool: None, commit: None, log: true, cut, scratch: &scratch, shown: &|_| {} };
    repair(world(7), devices, &options).unwrap()
}
