//! Content of a pool as text: a line an object, with all that can be seen of it.

use crate::bed::Bed;
use larder_files::*;
use larder_format::items::{self, ROOT_INODE};
use larder_format::node::Key;
use larder_format::{DatasetId, Timestamp};
use larder_pool::member::MemberState;
use larder_pool::{Dataset, Look, Pool, ROOT_DATASET};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes read at once where a whole file cannot be.
const PIECE: u64 = 4096;

/// Shows every dataset, each by itself.
pub fn attach_all(bed: &Bed) {
    for dataset in others(&bed.pool) {
        bed.mount.attach(dataset, None).unwrap();
    }
}

/// All datasets but the pool's own.
pub fn others(pool: &Pool) -> Vec<Arc<Dataset>> {
    pool.datasets().into_iter().filter(|dataset| dataset.id() != ROOT_DATASET).collect()
}

/// The root directory of a dataset.
pub fn root_of(dataset: DatasetId) -> NodeId {
    NodeId::pack(dataset, ROOT_INODE)
}

/// All that the pool's datasets and snapshots hold.
pub fn tell(bed: &Bed) -> Vec<String> {
    let pool = &bed.pool;
    let mut out = vec![format!("pool {} {}", pool.name(), pairs(pool.pool_properties()))];
    let mut datasets: Vec<_> =
        pool.datasets().into_iter().map(|dataset| (pool.full_name(dataset.id()), dataset)).collect();
    datasets.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, dataset) in datasets {
        let created = time(dataset.created());
        out.push(format!(
            "dataset {name} created {created} {}",
            pairs(dataset.own_properties().local().clone())
        ));
        for (property, value) in dataset.own_properties().received() {
            let masked = if dataset.own_properties().get(property).is_none() { ", masked" } else { "" };
            out.push(format!("received {property}={value}{masked}"));
        }
        if let Some(origin) = pool.origin(dataset.id()) {
            let hidden = if origin.hidden { ", hidden" } else { "" };
            out.push(format!("origin {}@{}{hidden}", pool.full_name(origin.dataset), origin.name));
        }
        let root = if dataset.id() == ROOT_DATASET { NodeId::ROOT } else { root_of(dataset.id()) };
        Walk { bed, dataset: &name, met: BTreeMap::new(), out: &mut out }.object(root, "/");
        for snapshot in pool.snapshots(dataset.id()) {
            let name = format!("{name}@{}", snapshot.name);
            out.push(format!("snapshot {name} created {}", time(snapshot.created)));
            let properties = pool.snapshot_properties(&snapshot).unwrap();
            if !properties.is_empty() {
                out.push(format!("properties {}", pairs(properties)));
            }
            for (tag, placed) in pool.snapshot_holds(&snapshot).unwrap() {
                let deferred = if snapshot.deferred { ", deferred" } else { "" };
                out.push(format!("hold '{tag}' placed {}{deferred}", time(placed)));
            }
            let view = pool.snapshot_view(dataset.id(), &snapshot.name).unwrap();
            Snapshot::read(&view).tell(pool, &name, ROOT_INODE.get(), "/", &mut out);
        }
        for mark in pool.bookmarks(dataset.id()) {
            let (guid, high, commit) = (mark.guid, mark.high, mark.commit);
            let what = format!("guid {guid} high {high} commit {commit} created {}", time(mark.created));
            out.push(format!("bookmark {name}#{} {what}", mark.name));
        }
    }
    for one in pool.trash() {
        let (from, until) = (time(one.record.destroyed), time(one.record.until));
        let used = pool.space_of_trashed(one.key).unwrap();
        out.push(format!("trash {} destroyed {from} until {until} used {used}", one.name));
    }
    out.iter_mut().for_each(|line| line.truncate(line.trim_end().len()));
    out
}

fn pairs(properties: BTreeMap<String, String>) -> String {
    let pairs = properties.iter().map(|(name, value)| format!("{name}={}", value.escape_debug()));
    pairs.collect::<Vec<_>>().join(" ")
}

fn time(at: Timestamp) -> String {
    format!("{}.{:09}", at.secs, at.nanos)
}

/// The content itself where it is short, else its hash.
fn content(bytes: &[u8]) -> String {
    match bytes.len() {
        0..=32 => format!("\"{}\"", bytes.escape_ascii()),
        _ => format!("blake3 {}", &blake3::hash(bytes).to_hex()[..32]),
    }
}

struct Walk<'a> {
    bed: &'a Bed,
    dataset: &'a str,
    met: BTreeMap<NodeId, String>,
    out: &'a mut Vec<String>,
}

impl Walk<'_> {
    fn object(&mut self, node: NodeId, path: &str) {
        let mount = &self.bed.mount;
        let attr = mount.getattr(node).unwrap_or_else(|error| panic!("{path}: {error}"));
        let head = format!("{} {path}", self.dataset);
        if let Some(first) = self.met.insert(attr.node, path.to_owned()) {
            self.out.push(format!("{head} is {first}"));
            return;
        }
        let Attr { kind, perm, uid, gid, nlink, size, blocks, rdev, .. } = attr;
        let mut line =
            format!("{head} {kind:?} {perm:04o} {uid}:{gid} links {nlink} size {size} data {blocks}");
        for (name, at) in [("a", attr.atime), ("m", attr.mtime), ("c", attr.ctime), ("b", attr.btime)] {
            write!(line, " {name} {}", time(at)).unwrap();
        }
        match kind {
            FileKind::Regular => write!(line, " {}", self.content(node, size)).unwrap(),
            FileKind::Symlink => write!(line, " {}", content(&mount.readlink(node).unwrap())).unwrap(),
            FileKind::CharDevice | FileKind::BlockDevice => write!(line, " device {rdev:#x}").unwrap(),
            _ => {}
        }
        self.out.push(line);
        let names = mount.listxattr(node).unwrap();
        let mut names: Vec<_> = names.split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        for name in names {
            let value = content(&mount.getxattr(node, name).unwrap());
            self.out.push(format!("{head} xattr {} {value}", name.escape_ascii()));
        }
        if kind == FileKind::Directory {
            for (name, below) in entries(self.bed, node) {
                self.object(below, &format!("{}/{}", path.trim_end_matches('/'), name.escape_ascii()));
            }
        }
    }

    fn content(&self, node: NodeId, size: u64) -> String {
        let read = |at: u64, len: u64| self.bed.mount.read(node, Handle(0), at, len as u32);
        let mut bytes = Vec::new();
        let mut damaged = String::new();
        for at in (0..size).step_by(PIECE as usize) {
            match read(at, PIECE) {
                Ok(piece) => bytes.extend(piece.to_vec()),
                Err(FsError::Damaged(_)) => write!(damaged, " damaged {at}").unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
        if damaged.is_empty() && size > 0 {
            // At once, it is the same.
            let whole = read(0, size).unwrap().to_vec();
            assert!(whole == bytes, "a file reads otherwise in pieces");
        }
        content(&bytes) + &damaged
    }
}

/// Names in a directory but `.` and `..`, sorted.
pub fn entries(bed: &Bed, dir: NodeId) -> Vec<(Vec<u8>, NodeId)> {
    let mut found = Vec::new();
    let mut take = |entry: DirEntry<'_>| {
        if ![&b"."[..], b".."].contains(&entry.name) {
            found.push((entry.name.to_vec(), entry.node));
        }
        true
    };
    bed.mount.readdir(dir, Handle(0), 0, false, &mut take).unwrap();
    found.sort();
    found
}

/// A snapshot, which no mount shows yet, from its tree's items.
#[derive(Default)]
struct Snapshot {
    inodes: BTreeMap<u64, items::Inode>,
    names: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
    extents: BTreeMap<u64, Vec<(u64, items::Extent)>>,
    targets: BTreeMap<u64, Vec<u8>>,
}

impl Snapshot {
    fn read(view: &impl Look) -> Self {
        let mut found = Self::default();
        let mut take = |key: &Key, value: &[u8]| {
            match key.kind {
                items::INODE => drop(found.inodes.insert(key.object, items::Inode::decode(value).unwrap())),
                items::ENTRY => {
                    let entry = items::Entry::decode(value).unwrap();
                    let names = found.names.entry(key.object).or_default();
                    names.insert(entry.name.to_vec(), entry.inode.get());
                }
                items::EXTENT => {
                    let extent = items::Extent::decode(value).unwrap();
                    found.extents.entry(key.object).or_default().push((key.offset, extent));
                }
                items::SYMLINK => drop(found.targets.insert(key.object, value.to_vec())),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        view.scan(&Key::MIN, &mut take).unwrap();
        found
    }

    fn tell(&self, pool: &Pool, name: &str, inode: u64, path: &str, out: &mut Vec<String>) {
        let of = &self.inodes[&inode];
        let mut bytes = vec![0; if of.kind == FileKind::Regular { of.size as usize } else { 0 }];
        for (at, extent) in self.extents.get(&inode).into_iter().flatten() {
            let plain = pool.store().read(extent.ptr).unwrap();
            let len = (bytes.len() - *at as usize).min(extent.len as usize);
            bytes[*at as usize..][..len].copy_from_slice(&plain[extent.block_offset as usize..][..len]);
        }
        let items::Inode { kind, perm, uid, gid, nlink, size, .. } = of;
        let (m, c, b) = (time(of.mtime), time(of.ctime), time(of.btime));
        let what = content(self.targets.get(&inode).unwrap_or(&bytes));
        out.push(format!(
            "{name} {path} {kind:?} {perm:04o} {uid}:{gid} links {nlink} size {size} m {m} c {c} b {b} {what}"
        ));
        for (below, inode) in self.names.get(&inode).into_iter().flatten() {
            let path = format!("{}/{}", path.trim_end_matches('/'), below.escape_ascii());
            self.tell(pool, name, *inode, &path, out);
        }
    }
}

/// Faults, and work not done yet, when the pool has just been imported.
pub fn conditions(bed: &Bed) -> Vec<String> {
    let (pool, upkeep) = (&bed.pool, &bed.upkeep);
    let mut out = Vec::new();
    let mut tell = |is_so: bool, what: String| out.extend(is_so.then_some(what));
    tell(upkeep.gc.was_cut(), "task trace".into());
    for member in pool.store().members().iter().filter(|member| member.state() != MemberState::Online) {
        tell(true, format!("device {} {:?}", member.index, member.state()));
    }
    tell(upkeep.reshape.is_due(), "task reshape".into());
    tell(!pool.destroyed().is_empty(), format!("task destroy {}", pool.destroyed().len()));
    tell(!pool.store().bad_slots().is_empty(), format!("retired slots {}", pool.store().bad_slots().len()));
    for damaged in bed.mount.damaged(&bed.upkeep.damage.known()) {
        let path = damaged.path.unwrap_or_default();
        tell(true, format!("damaged {path} {:?}", damaged.ranges));
    }
    out
}
