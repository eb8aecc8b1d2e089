//! A pool on simulated devices with a mount on top.

use larder_device::{Inline, SeededEntropy, Workers};
use larder_files::*;
use larder_format::items;
use larder_format::node::Key;
use larder_format::root::GroupRole;
use larder_format::{ByteLen, HostId};
use larder_pool::create::rule_for;
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::{GroupSpec, ImportOptions, Look, Pool, PoolError, PoolSpec, ROOT_DATASET, World};
use larder_sim::{SimClock, SimWorld};
use larder_upkeep::Upkeep;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

pub const ROOT: NodeId = NodeId::ROOT;
pub const USER: Caller = Caller { uid: 1000, gid: 100, pid: 1, umask: 0 };
pub const READ_WRITE: OpenFlags = OpenFlags::READ_WRITE;

pub struct Bed {
    pub sim: SimWorld,
    pub clock: Arc<SimClock>,
    pub pool: Arc<Pool>,
    pub upkeep: Arc<Upkeep>,
    pub mount: Arc<Mount>,
}

fn world(clock: &Arc<SimClock>, seed: u64, workers: Arc<dyn Workers>) -> World {
    World {
        clock: Arc::clone(clock) as _,
        entropy: Arc::new(SeededEntropy::new(seed)),
        workers,
        host: HostId::new(1),
        host_name: "sim".into(),
    }
}

fn mount(pool: &Arc<Pool>) -> Arc<Mount> {
    let mount = Mount::new(Arc::clone(pool), (0, 0)).unwrap();
    mount.attach(pool.dataset(ROOT_DATASET).unwrap(), None).unwrap();
    // Else the first inode that is made would take this commit, which no test asked for.
    pool.commit().unwrap();
    mount
}

impl Bed {
    /// A fresh pool of two mirrored devices; properties are those of the root dataset.
    pub fn new(properties: &[(&str, &str)]) -> Self {
        Self::with_layout("mirror", &[ByteLen::new(256 << 20); 2], properties)
    }

    /// A fresh pool of one group of `word`.
    pub fn with_layout(word: &str, devices: &[ByteLen], properties: &[(&str, &str)]) -> Self {
        Self::with_workers(Arc::new(Inline), word, devices, properties)
    }

    /// The same, with these workers.
    pub fn with_workers(
        workers: Arc<dyn Workers>,
        word: &str,
        devices: &[ByteLen],
        properties: &[(&str, &str)],
    ) -> Self {
        Self::with_groups(workers, &[(GroupRole::Data, word, devices)], properties)
    }

    /// A fresh pool of such groups.
    pub fn with_groups(
        workers: Arc<dyn Workers>,
        groups: &[(GroupRole, &str, &[ByteLen])],
        properties: &[(&str, &str)],
    ) -> Self {
        let sizes: Vec<ByteLen> = groups.iter().flat_map(|(.., devices)| devices.iter().copied()).collect();
        let sim = SimWorld::new(&sizes);
        let clock = Arc::new(SimClock::new());
        let mut devices = sim.devices().into_iter();
        let group = |&(role, word, sizes): &(GroupRole, &str, &[ByteLen])| {
            let rule = rule_for(word, sizes.len()).unwrap();
            GroupSpec { rule, role, devices: devices.by_ref().take(sizes.len()).collect() }
        };
        let groups = groups.iter().map(group).collect();
        let spec = PoolSpec { name: "tank".into(), groups, ashift: 12 };
        let pool = Pool::create(world(&clock, 1, workers), spec).unwrap();
        for (name, value) in properties {
            pool.set_property(ROOT_DATASET, name, value).unwrap();
        }
        pool.commit().unwrap();
        let mount = mount(&pool);
        Self { sim, clock, upkeep: Upkeep::new(&pool), pool, mount }
    }

    /// The pool on a world's devices, imported and mounted.
    pub fn import(sim: SimWorld, clock: Arc<SimClock>, seed: u64) -> Self {
        Self::import_with(Arc::new(Inline), sim, clock, seed)
    }

    /// The same, with these workers.
    pub fn import_with(workers: Arc<dyn Workers>, sim: SimWorld, clock: Arc<SimClock>, seed: u64) -> Self {
        let pool = Self::import_pool(workers, &sim, &clock, seed);
        Self::of_pool(sim, clock, pool)
    }

    /// As [`Bed::import`], where that may be refused.
    pub fn try_import(
        sim: SimWorld,
        clock: Arc<SimClock>,
        seed: u64,
        options: &ImportOptions,
    ) -> Result<Self, PoolError> {
        let pool = Self::try_import_pool(Arc::new(Inline), &sim, &clock, seed, options)?;
        Ok(Self::of_pool(sim, clock, pool))
    }

    fn of_pool(sim: SimWorld, clock: Arc<SimClock>, pool: Arc<Pool>) -> Self {
        let mount = mount(&pool);
        Self { sim, clock, upkeep: Upkeep::new(&pool), pool, mount }
    }

    /// The pool on a world's devices, imported, with its log not replayed yet.
    pub fn import_pool(
        workers: Arc<dyn Workers>,
        sim: &SimWorld,
        clock: &Arc<SimClock>,
        seed: u64,
    ) -> Arc<Pool> {
        Self::try_import_pool(workers, sim, clock, seed, &ImportOptions::default()).unwrap()
    }

    /// The same, if it can be imported so.
    pub fn try_import_pool(
        workers: Arc<dyn Workers>,
        sim: &SimWorld,
        clock: &Arc<SimClock>,
        seed: u64,
        options: &ImportOptions,
    ) -> Result<Arc<Pool>, PoolError> {
        let found = sim.devices().into_iter().filter_map(|device| match scan(&device) {
            Scan::Member(found) => Some(*found),
            _ => None,
        });
        let plan = assemble(found.collect()).pop().expect("a pool is there");
        Pool::import(world(clock, seed, workers), plan, options)
    }

    /// Drops everything in memory and imports the pool again, as after a crash of the process.
    pub fn crash(self, seed: u64) -> Self {
        let Self { sim, clock, pool, upkeep, mount } = self;
        drop((mount, upkeep, pool));
        Self::import(sim, clock, seed)
    }

    /// As [`Bed::crash`], with all committed before.
    pub fn reopen(self, seed: u64) -> Self {
        self.pool.commit().unwrap();
        self.crash(seed)
    }

    /// Time passes.
    pub fn tick(&self) {
        self.clock.advance(Duration::from_secs(1));
    }

    pub fn file(&self, parent: NodeId, name: &str) -> NodeId {
        let made = self.mount.mknod(parent, name.as_bytes(), FileKind::Regular, 0o644, 0, &USER).unwrap();
        made.node
    }

    pub fn dir(&self, parent: NodeId, name: &str) -> NodeId {
        self.mount.mkdir(parent, name.as_bytes(), 0o755, &USER).unwrap().node
    }

    pub fn write(&self, node: NodeId, offset: u64, data: &[u8]) {
        let written = self.mount.write(node, Handle(0), offset, data, false).unwrap();
        assert_eq!(written as usize, data.len());
    }

    pub fn read(&self, node: NodeId, offset: u64, len: u32) -> Vec<u8> {
        self.mount.read(node, Handle(0), offset, len).unwrap().to_vec()
    }

    pub fn content(&self, node: NodeId) -> Vec<u8> {
        let size = self.mount.getattr(node).unwrap().size;
        self.read(node, 0, size as u32)
    }

    pub fn find(&self, path: &str) -> Result<Attr> {
        path.split('/')
            .try_fold(self.mount.getattr(ROOT)?, |at, name| self.mount.lookup(at.node, name.as_bytes()))
    }

    pub fn resize(&self, node: NodeId, size: u64) {
        self.mount.setattr(node, &SetAttr { size: Some(size), ..SetAttr::default() }, &USER).unwrap();
    }

    pub fn fsync(&self, node: NodeId) {
        self.mount.fsync(node, Handle(0), false).unwrap();
    }

    /// All entries of a directory in order, a few at a time and then more, with `.` and `..`.
    pub fn names(&self, node: NodeId) -> Vec<(String, NodeId, FileKind)> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let (before, from) = (names.len(), cookie);
            self.mount
                .readdir(node, Handle(0), from, true, &mut |entry| {
                    if names.len() == before + 3 + before / 8 {
                        return false;
                    }
                    assert!(entry.next_cookie > cookie && entry.next_cookie < 1 << 63);
                    cookie = entry.next_cookie;
                    if let Some(attr) = entry.attr {
                        assert_eq!((attr.node, attr.kind), (entry.node, entry.kind));
                    }
                    let name = String::from_utf8_lossy(entry.name).into_owned();
                    names.push((name, entry.node, entry.kind));
                    true
                })
                .unwrap();
            if names.len() == before {
                return names;
            }
        }
    }

    /// Nothing is open and all orphans are reaped: the tree holds what names lead to, counted right, and
    /// nothing else.
    pub fn check_tree(&self) {
        let (mut inodes, mut named, mut holds) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (mut stored, mut others) = (BTreeMap::new(), BTreeSet::new());
        let dataset = self.pool.dataset(ROOT_DATASET).unwrap();
        let (mut extents, mut records_of) = (None, BTreeMap::new());
        let mut scan = |key: &Key, value: &[u8]| {
            match key.kind {
                items::ORPHAN => panic!("the mark of inode {} is left", key.offset),
                items::INODE => drop(inodes.insert(key.object, items::Inode::decode(value).unwrap())),
                items::ENTRY => {
                    let entry = items::Entry::decode(value).unwrap();
                    *named.entry(entry.inode.get()).or_insert(0) += 1;
                    let (all, dirs) = holds.entry(key.object).or_insert((0, 0));
                    (*all, *dirs) = (*all + 1, *dirs + u32::from(entry.kind == FileKind::Directory));
                }
                items::EXTENT => {
                    let extent = items::Extent::decode(value).unwrap();
                    let before = extents.replace((key.object, key.offset + u64::from(extent.len)));
                    let apart = before.is_none_or(|(inode, end)| inode != key.object || end <= key.offset);
                    assert!(apart, "two extents of inode {} name what is at {}", key.object, key.offset);
                    records_of.entry(key.object).or_insert_with(Vec::new).push((key.offset, extent));
                    let (bytes, data) = stored.entry(key.object).or_insert((0, 0));
                    *bytes += extent.stored();
                    *data += u64::from(extent.logical);
                }
                _ => drop(others.insert(key.object)),
            }
            ControlFlow::Continue(())
        };
        dataset.view().unwrap().scan(&Key::new(0, 0, 0), &mut scan).unwrap();
        named.insert(items::ROOT_INODE.get(), 1);
        assert_eq!(inodes.keys().collect::<Vec<_>>(), named.keys().collect::<Vec<_>>(), "inodes and names");
        let kept = stored.keys().chain(holds.keys()).chain(&others).all(|id| inodes.contains_key(id));
        assert!(kept, "something of an inode that is gone");
        for (id, inode) in inodes {
            let (entries, dirs) = holds.get(&id).copied().unwrap_or_default();
            let links = if inode.kind == FileKind::Directory { 2 + dirs } else { named[&id] };
            let counted = (links, entries, stored.get(&id).copied().unwrap_or((0, 0)));
            let told = (inode.nlink, inode.entries, (inode.stored, inode.data));
            assert_eq!(told, counted, "inode {id}");
            let fits = |(offset, extent): &(u64, items::Extent)| {
                let len = extent.len.max(extent.logical);
                offset.is_multiple_of(inode.record_size.into()) && len <= inode.record_size
            };
            let records: &[_] = records_of.get(&id).map_or(&[], Vec::as_slice);
            assert!(
                inode.by_content() || records.iter().all(fits),
                "inode {id} is cut otherwise than it says"
            );
        }
    }

    /// The pool's own check finds nothing.
    pub fn check(&self) {
        let report = self.upkeep.check().unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }
}
