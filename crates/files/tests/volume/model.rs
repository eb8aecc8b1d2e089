//! Random operations against an in-memory model: everything that can be seen is the same, through
//! flushes, commits, imports and crashes of the process.

use crate::bed::{Bed, READ_WRITE, ROOT, USER};
use crate::lists::{self, ACCESS, DEFAULT};
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_pool::ROOT_DATASET;
use larder_upkeep::{PassState, Task};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of an object of the model; 1 is the root.
pub type Id = u64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub kind: FileKind,
    pub perm: u32,
    pub uid: u32,
    pub content: Arc<Vec<u8>>,
    /// All of its data is durable, or will be with the state it is in.
    pub exact: bool,
    pub entries: BTreeMap<Vec<u8>, Id>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub open: u32,
    /// It was made without a name and may get one.
    pub nameless: bool,
}

#[derive(Debug, Clone)]
pub struct Model {
    pub objects: BTreeMap<Id, Object>,
}

impl Object {
    fn new(kind: FileKind, perm: u32) -> Self {
        Self {
            kind,
            perm,
            uid: USER.uid,
            content: Arc::default(),
            exact: true,
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            open: 0,
            nameless: false,
        }
    }

    /// Made in `dir` by a caller with this umask.
    fn made_in(dir: &Object, kind: FileKind, perm: u32, umask: u32) -> Self {
        let mut object = Self::new(kind, perm);
        match dir.xattrs.get(DEFAULT).filter(|_| kind != FileKind::Symlink) {
            None => object.perm &= !umask,
            Some(inherited) => {
                let access = lists::create(inherited, &mut object.perm);
                object.xattrs.extend(access.map(|access| (ACCESS.to_vec(), access)));
                if kind == FileKind::Directory {
                    object.xattrs.insert(DEFAULT.to_vec(), inherited.clone());
                }
            }
        }
        object
    }

    fn chmod(&mut self, perm: u32) {
        self.perm = perm;
        if let Some(access) = self.xattrs.get_mut(ACCESS) {
            lists::chmod(access, perm);
        }
    }
}

impl Model {
    pub fn new() -> Self {
        let root = Object { uid: 0, ..Object::new(FileKind::Directory, 0o755) };
        Self { objects: BTreeMap::from([(1, root)]) }
    }

    fn links(&self, id: Id) -> u32 {
        let names = self.objects.values().flat_map(|object| object.entries.values());
        match self.objects[&id].kind {
            FileKind::Directory => {
                let below = self.objects[&id].entries.values();
                2 + below.filter(|below| self.objects[below].kind == FileKind::Directory).count() as u32
            }
            _ => names.filter(|named| **named == id).count() as u32,
        }
    }

    fn parent(&self, id: Id) -> Option<Id> {
        self.objects
            .iter()
            .find(|(_, object)| object.entries.values().any(|&below| below == id))
            .map(|(&at, _)| at)
    }

    fn is_below(&self, mut id: Id, above: Id) -> bool {
        loop {
            if id == above {
                return true;
            }
            let Some(parent) = self.parent(id) else { return false };
            id = parent;
        }
    }

    /// The process ends: all is closed, and open objects without a name go.
    pub fn close_all(&mut self) {
        self.objects.values_mut().for_each(|object| object.open = 0);
        self.sweep();
    }

    /// Forgets objects that nothing names and nobody has open.
    fn sweep(&mut self) {
        let named: BTreeSet<Id> =
            self.objects.values().flat_map(|object| object.entries.values().copied()).collect();
        self.objects.retain(|id, object| *id == 1 || named.contains(id) || object.open > 0);
    }
}

/// The first thing that differs between the mount and the model, or the nodes met.
pub fn compare(bed: &Bed, model: &Model) -> Result<BTreeMap<Id, NodeId>, String> {
    let mut met = BTreeMap::from([(1, ROOT)]);
    let mut queue = vec![(1, ROOT, ROOT)];
    while let Some((id, node, parent)) = queue.pop() {
        let object = model.objects.get(&id).ok_or("an object too many")?;
        let attr = bed.mount.getattr(node).unwrap();
        let found = (attr.kind, attr.perm, attr.uid, attr.nlink);
        same(&format!("{id}"), found, (object.kind, object.perm, object.uid, model.links(id)))?;
        let names = bed.mount.listxattr(node).unwrap();
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        let (names, wanted) = (names.map(text), object.xattrs.keys().map(|name| text(name)));
        same::<BTreeSet<_>>("attributes", names.collect(), wanted.collect())?;
        for (name, value) in &object.xattrs {
            if bed.mount.getxattr(node, name).unwrap() != *value {
                return Err(format!("attribute {} of {id}", text(name)));
            }
        }
        match object.kind {
            FileKind::Directory => {
                same("entries", attr.size, object.entries.len() as u64)?;
                let mut names = bed.names(node);
                let dots: Vec<_> = names.drain(..2).map(|(name, node, _)| (name, node)).collect();
                assert_eq!(dots, [(".".to_owned(), node), ("..".to_owned(), parent)]);
                let wanted: BTreeSet<_> =
                    object.entries.keys().map(|name| String::from_utf8(name.clone()).unwrap()).collect();
                same("names", names.iter().map(|(name, ..)| name.clone()).collect(), wanted)?;
                assert_eq!(names.len(), object.entries.len(), "a name is listed twice in {id}");
                for (name, below, _) in names {
                    let id = object.entries[name.as_bytes()];
                    assert_eq!(bed.mount.lookup(node, name.as_bytes()).unwrap().node, below);
                    match met.insert(id, below) {
                        Some(before) => same("hard link", before, below)?,
                        None => queue.push((id, below, node)),
                    }
                }
            }
            FileKind::Symlink => same("target", bed.mount.readlink(node).unwrap(), object.content.to_vec())?,
            FileKind::Regular if object.exact => compare_content(bed, node, &object.content)?,
            _ => {}
        }
    }
    Ok(met)
}

/// Told much faster than as bytes.
fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).unwrap()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?} is not {wanted:?}")) }
}

fn compare_content(bed: &Bed, node: NodeId, wanted: &[u8]) -> Result<(), String> {
    let content = bed.content(node);
    if content == wanted {
        return Ok(());
    }
    same(&format!("length of {node:?}"), content.len(), wanted.len())?;
    match content.iter().zip(wanted).position(|(is, wanted)| is != wanted) {
        Some(at) => Err(format!("{node:?} differs at {at}: {} is not {}", content[at], wanted[at])),
        None => Ok(()),
    }
}

/// A mount and its model, driven by a seed.
pub struct Run {
    pub bed: Bed,
    pub model: Model,
    /// The model as everything durable has it.
    pub durable: Model,
    /// Number of times that something was made durable.
    pub synced: u64,
    pub nodes: BTreeMap<Id, NodeId>,
    /// Operations refused for want of space; `None` where there has to be enough.
    pub refusals: Option<u64>,
    entropy: SeededEntropy,
    next: Id,
}

impl Run {
    pub fn new(seed: u64, properties: &[(&str, &str)]) -> Self {
        Self::on(Bed::new(properties), seed)
    }

    pub fn on(bed: Bed, seed: u64) -> Self {
        let model = Model::new();
        Self {
            bed,
            durable: model.clone(),
            synced: 0,
            model,
            nodes: BTreeMap::from([(1, ROOT)]),
            refusals: None,
            entropy: SeededEntropy::new(seed),
            next: 2,
        }
    }

    pub fn below(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    /// Value of an operation, `None` when a full pool refused it: then nothing has changed.
    pub fn allowed<T>(&mut self, result: Result<T>) -> Option<T> {
        match (result, &mut self.refusals) {
            (Err(FsError::NoSpace), Some(refusals)) => {
                *refusals += 1;
                None
            }
            (result, _) => Some(result.unwrap()),
        }
    }

    /// Whether a full pool refused an operation that has other reasons to fail.
    fn refused<T>(&mut self, result: &Result<T>) -> bool {
        let refused = self.refusals.is_some() && matches!(result, Err(FsError::NoSpace));
        self.refusals = self.refusals.map(|refusals| refusals + u64::from(refused));
        refused
    }

    pub fn pick(&self, wanted: impl Fn(&Object) -> bool) -> Option<Id> {
        let found: Vec<Id> =
            self.model.objects.iter().filter(|(_, object)| wanted(object)).map(|(&id, _)| id).collect();
        (!found.is_empty()).then(|| found[self.below(found.len() as u64) as usize])
    }

    /// A directory that is in the tree.
    fn pick_dir(&self) -> Id {
        self.pick(|object| object.kind == FileKind::Directory && object.open == 0).unwrap()
    }

    fn name(&self) -> Vec<u8> {
        format!("name-{}", self.below(8)).into_bytes()
    }

    fn data(&self, len: u64) -> Vec<u8> {
        let byte = self.below(256) as u8;
        match self.below(4) {
            0 => vec![0; len as usize],
            1 => (0..len).map(|i| (i as u8).wrapping_mul(31) ^ byte).collect(),
            _ => vec![byte; len as usize],
        }
    }

    pub fn node(&self, id: Id) -> NodeId {
        self.nodes[&id]
    }

    /// One random operation; returns its name.
    pub fn step(&mut self) -> &'static str {
        self.bed.tick();
        let (name, run): (_, fn(&mut Self)) = match self.below(100) {
            0..11 => ("make", Self::make),
            11 => ("dataset", Self::dataset),
            12..34 => ("write", Self::write),
            34..37 => ("tmpfile", Self::tmpfile),
            37..40 => ("access list", Self::access_list),
            40..48 => ("resize", Self::resize),
            48..53 => ("fallocate", Self::zero),
            53..61 => ("rename", Self::rename),
            61..65 => ("link", Self::link),
            65..73 => ("remove", Self::remove),
            73..78 => ("xattr", Self::xattr),
            78..81 => ("chmod", Self::set_perm),
            81..85 => ("open/close", Self::open_or_close),
            85..88 => ("read", Self::read),
            88..91 => ("copy range", Self::copy),
            91..96 => ("fsync", Self::fsync),
            96 if self.below(2) == 0 => ("recut", Self::recut),
            96 => ("renew", Self::renew),
            97 => ("flush", |run| {
                let flushed = run.bed.mount.volume(larder_pool::ROOT_DATASET).unwrap().flush_all();
                run.allowed(flushed);
            }),
            98 => ("commit", Self::commit),
            _ => ("reap", |run| {
                run.bed.mount.reap_step(5).unwrap();
                run.bed.pool.destroy_step(5).unwrap();
                run.bed.upkeep.gc.step(2).unwrap();
                run.bed.pool.free_step(2).unwrap();
            }),
        };
        run(self);
        name
    }

    fn make(&mut self) {
        let (dir, name) = (self.pick_dir(), self.name());
        let perm = 0o600 + self.below(64) as u32;
        let parent = self.node(dir);
        let umask = self.below(64) as u32;
        let caller = Caller { umask, ..USER };
        let (kind, made) = match self.below(8) {
            0 | 1 => (FileKind::Directory, self.bed.mount.mkdir(parent, &name, perm, &caller)),
            2 => (FileKind::Symlink, self.bed.mount.symlink(parent, &name, b"some/where", &caller)),
            3 => (FileKind::Fifo, self.bed.mount.mknod(parent, &name, FileKind::Fifo, perm, 0, &caller)),
            _ => {
                (FileKind::Regular, self.bed.mount.mknod(parent, &name, FileKind::Regular, perm, 0, &caller))
            }
        };
        if self.refused(&made) {
            return;
        }
        if self.model.objects[&dir].entries.contains_key(&name) {
            assert_eq!(made, Err(FsError::Exists));
            return;
        }
        let (perm, umask) = if kind == FileKind::Symlink { (0o777, 0) } else { (perm, umask) };
        let mut object = Object::made_in(&self.model.objects[&dir], kind, perm, umask);
        if kind == FileKind::Symlink {
            object.content = Arc::new(b"some/where".to_vec());
        }
        self.nodes.insert(self.next, made.unwrap().node);
        self.model.objects.insert(self.next, object);
        self.model.objects.get_mut(&dir).unwrap().entries.insert(name, self.next);
        self.next += 1;
    }

    /// Makes another dataset with a file in it, or destroys it.
    fn dataset(&mut self) {
        if let Ok(dataset) = self.bed.pool.dataset_by_name("tank/other") {
            // It is not attached after an import.
            drop(self.bed.mount.detach(dataset.id()));
            self.bed.pool.destroy_dataset(dataset.id()).unwrap();
            return;
        }
        let len = (1 + self.below(40)) * 4096;
        let properties = BTreeMap::from([(LENGTH.to_owned(), len.to_string())]);
        let made = self.bed.pool.create_dataset("tank/other", properties);
        let Some(made) = self.allowed(made.map_err(FsError::from)) else { return };
        let id = made.id();
        let filled = self.fill_dataset(made, len);
        if self.allowed(filled).is_none() {
            drop(self.bed.mount.detach(id));
            self.bed.pool.destroy_dataset(id).unwrap();
        }
        self.commit();
    }

    fn fill_dataset(&self, made: Arc<larder_pool::Dataset>, len: u64) -> Result<()> {
        let root = NodeId::pack(made.id(), larder_format::items::ROOT_INODE);
        let mount = &self.bed.mount;
        mount.attach(made, None)?;
        let file = mount.mknod(root, b"file", FileKind::Regular, 0o644, 0, &USER)?;
        mount.write(file.node, Handle(0), 0, &vec![7; len as usize], false)?;
        Ok(())
    }

    fn tmpfile(&mut self) {
        let (dir, perm, umask) = (self.pick_dir(), 0o600 + self.below(64) as u32, self.below(64) as u32);
        let flags = OpenFlags { exclusive: self.below(4) == 0, ..READ_WRITE };
        let caller = Caller { umask, ..USER };
        let made = self.bed.mount.tmpfile(self.node(dir), perm, flags, &caller);
        let Some((made, _)) = self.allowed(made) else { return };
        let object = Object::made_in(&self.model.objects[&dir], FileKind::Regular, perm, umask);
        assert_eq!((made.nlink, made.perm), (0, object.perm));
        self.nodes.insert(self.next, made.node);
        self.model.objects.insert(self.next, Object { open: 1, nameless: !flags.exclusive, ..object });
        self.next += 1;
    }

    pub fn change(&mut self, id: Id, change: impl FnOnce(&mut Vec<u8>)) {
        let object = self.model.objects.get_mut(&id).unwrap();
        change(Arc::make_mut(&mut object.content));
        object.exact = false;
    }

    fn write_model(&mut self, id: Id, offset: u64, data: &[u8]) {
        self.change(id, |content| {
            let end = offset as usize + data.len();
            content.resize(content.len().max(end), 0);
            content[offset as usize..end].copy_from_slice(data);
        });
    }

    fn pick_file(&self) -> Option<Id> {
        self.pick(|object| object.kind == FileKind::Regular)
    }

    fn write(&mut self) {
        let Some(id) = self.pick_file() else { return };
        let len = 1 + if self.below(3) == 0 { self.below(30_000) } else { self.below(3000) };
        let data = self.data(len);
        let size = self.model.objects[&id].content.len() as u64;
        let offset = match self.below(3) {
            0 => size,
            1 => self.below(size + 1),
            _ => self.below(60_000),
        };
        self.write_at(id, offset, &data);
    }

    /// Writes; false when that was refused.
    pub fn write_at(&mut self, id: Id, offset: u64, data: &[u8]) -> bool {
        let written = self.bed.mount.write(self.node(id), Handle(0), offset, data, false);
        let Some(written) = self.allowed(written) else { return false };
        assert_eq!(written as usize, data.len());
        self.write_model(id, offset, data);
        true
    }

    fn resize(&mut self) {
        let Some(id) = self.pick_file() else { return };
        let size = match self.below(4) {
            0 => 0,
            1 => self.below(20) * 4096,
            _ => self.below(70_000),
        };
        self.bed.resize(self.node(id), size);
        self.change(id, |content| content.resize(size as usize, 0));
    }

    fn zero(&mut self) {
        let Some(id) = self.pick_file() else { return };
        let (offset, len) = (self.below(50_000), 1 + self.below(20_000));
        let (mode, grow) = match self.below(4) {
            0 => (Allocate::Zero { keep_size: false }, true),
            1 => (Allocate::Zero { keep_size: true }, false),
            2 => (Allocate::Extend, true),
            _ => (Allocate::Punch, false),
        };
        let done = self.bed.mount.fallocate(self.node(id), Handle(0), offset, len, mode);
        if mode != Allocate::Extend {
            done.unwrap();
        } else if self.allowed(done).is_none() {
            return;
        }
        self.change(id, |content| {
            let (start, end) = (offset as usize, (offset + len) as usize);
            if mode != Allocate::Extend {
                let size = content.len();
                content[start.min(size)..end.min(size)].fill(0);
            }
            if grow {
                content.resize(content.len().max(end), 0);
            }
        });
    }

    fn rename(&mut self) {
        let (dir, new_dir) = (self.pick_dir(), self.pick_dir());
        let (name, new_name) = (self.name(), self.name());
        let exchange = self.below(4) == 0;
        let flags = RenameFlags { exchange, noreplace: !exchange && self.below(3) == 0 };
        let result = self.bed.mount.rename(self.node(dir), &name, self.node(new_dir), &new_name, flags);
        let from = self.model.objects[&dir].entries.get(&name).copied();
        let to = self.model.objects[&new_dir].entries.get(&new_name).copied();
        let is_dir = |id: Id| self.model.objects[&id].kind == FileKind::Directory;
        let refused = match (from, to) {
            (None, _) => Some(FsError::NotFound),
            (_, Some(_)) if flags.noreplace => Some(FsError::Exists),
            (_, None) if exchange => Some(FsError::NotFound),
            (Some(from), Some(to)) if from == to => None,
            (Some(from), _) if self.model.is_below(new_dir, from) => Some(FsError::Invalid),
            (_, Some(to)) if exchange && self.model.is_below(dir, to) => Some(FsError::Invalid),
            (Some(from), Some(to)) if !exchange => match (is_dir(from), is_dir(to)) {
                (true, false) => Some(FsError::NotDirectory),
                (false, true) => Some(FsError::IsDirectory),
                (true, true) if !self.model.objects[&to].entries.is_empty() => Some(FsError::NotEmpty),
                _ => None,
            },
            _ => None,
        };
        if let Some(refused) = refused {
            assert_eq!(result, Err(refused));
            return;
        }
        result.unwrap();
        let from = from.unwrap();
        if to == Some(from) {
            return;
        }
        let objects = &mut self.model.objects;
        objects.get_mut(&dir).unwrap().entries.remove(&name);
        objects.get_mut(&new_dir).unwrap().entries.insert(new_name, from);
        if let (true, Some(to)) = (exchange, to) {
            objects.get_mut(&dir).unwrap().entries.insert(name, to);
        }
        self.model.sweep();
    }

    fn link(&mut self) {
        let nameless = self.pick(|object| object.nameless).filter(|_| self.below(2) == 0);
        let any = || self.pick(|object| object.kind != FileKind::Directory);
        let Some(id) = nameless.or_else(any) else { return };
        let (dir, name) = (self.pick_dir(), self.name());
        let result = self.bed.mount.link(self.node(id), self.node(dir), &name);
        if self.refused(&result) {
            return;
        }
        if self.model.objects[&dir].entries.contains_key(&name) {
            assert_eq!(result, Err(FsError::Exists));
        } else if self.model.links(id) == 0 && !self.model.objects[&id].nameless {
            assert_eq!(result, Err(FsError::NotFound));
        } else {
            assert_eq!(result.unwrap().node, self.node(id));
            self.model.objects.get_mut(&id).unwrap().nameless = false;
            self.model.objects.get_mut(&dir).unwrap().entries.insert(name, id);
        }
    }

    /// A file in the root directory that was just made.
    pub fn adopt(&mut self, name: Vec<u8>, node: NodeId) -> Id {
        let object = Object::made_in(&self.model.objects[&1], FileKind::Regular, 0o644, USER.umask);
        let id = self.next;
        self.nodes.insert(id, node);
        self.model.objects.insert(id, object);
        self.model.objects.get_mut(&1).unwrap().entries.insert(name, id);
        self.next += 1;
        id
    }

    /// Takes one of its names from a file.
    pub fn unlink(&mut self, id: Id) {
        let named = |(&dir, object): (&Id, &Object)| {
            let name = object.entries.iter().find(|(_, below)| **below == id)?;
            Some((dir, name.0.clone()))
        };
        let Some((dir, name)) = self.model.objects.iter().find_map(named) else { return };
        self.bed.mount.unlink(self.node(dir), &name).unwrap();
        self.model.objects.get_mut(&dir).unwrap().entries.remove(&name);
        self.model.sweep();
    }

    fn remove(&mut self) {
        let (dir, name) = (self.pick_dir(), self.name());
        let parent = self.node(dir);
        let Some(&id) = self.model.objects[&dir].entries.get(&name) else {
            assert_eq!(self.bed.mount.unlink(parent, &name), Err(FsError::NotFound));
            return;
        };
        if self.model.objects[&id].kind == FileKind::Directory {
            assert_eq!(self.bed.mount.unlink(parent, &name), Err(FsError::IsDirectory));
            let removed = self.bed.mount.rmdir(parent, &name);
            if !self.model.objects[&id].entries.is_empty() {
                assert_eq!(removed, Err(FsError::NotEmpty));
                return;
            }
            removed.unwrap();
        } else {
            assert_eq!(self.bed.mount.rmdir(parent, &name), Err(FsError::NotDirectory));
            self.bed.mount.unlink(parent, &name).unwrap();
        }
        self.model.objects.get_mut(&dir).unwrap().entries.remove(&name);
        self.model.sweep();
        if !self.model.objects.contains_key(&id) {
            assert!(self.bed.mount.open(self.node(id), READ_WRITE).is_err());
        }
    }

    fn xattr(&mut self) {
        let Some(id) = self.pick(|_| true) else { return };
        let name = format!("user.{}", self.below(4)).into_bytes();
        let node = self.node(id);
        let exists = self.model.objects[&id].xattrs.contains_key(&name);
        if self.below(3) == 0 {
            let removed = self.bed.mount.removexattr(node, &name);
            assert_eq!(removed, if exists { Ok(()) } else { Err(FsError::NoAttr) });
            self.model.objects.get_mut(&id).unwrap().xattrs.remove(&name);
            return;
        }
        let len = if self.below(3) == 0 { self.below(65_536) } else { self.below(50) };
        let value = self.data(len);
        let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][self.below(3) as usize];
        let result = self.bed.mount.setxattr(node, &name, &value, mode);
        if self.refused(&result) {
            return;
        }
        match (mode, exists) {
            (XattrMode::Create, true) => assert_eq!(result, Err(FsError::Exists)),
            (XattrMode::Replace, false) => assert_eq!(result, Err(FsError::NoAttr)),
            _ => {
                result.unwrap();
                self.model.objects.get_mut(&id).unwrap().xattrs.insert(name, value);
            }
        }
    }

    fn access_list(&mut self) {
        let Some(id) = self.pick(|_| true) else { return };
        let node = self.node(id);
        let name = if self.below(2) == 0 { ACCESS } else { DEFAULT };
        let list = match self.below(4) {
            0 => None,
            1 => Some(lists::plain(self.below(0o1000) as u32)),
            _ => Some(lists::random(|n| self.below(n))),
        };
        let result = match &list {
            None => self.bed.mount.removexattr(node, name),
            Some(list) => self.bed.mount.setxattr(node, name, list, XattrMode::Set),
        };
        if list.is_some() && self.refused(&result) {
            return;
        }
        let object = self.model.objects.get_mut(&id).unwrap();
        match (object.kind, list) {
            (FileKind::Symlink, _) => assert_eq!(result, Err(FsError::NotSupported)),
            (FileKind::Directory, Some(list)) if name == DEFAULT => {
                object.xattrs.insert(name.to_vec(), list);
            }
            (_, Some(_)) if name == DEFAULT => assert_eq!(result, Err(FsError::Access)),
            (_, Some(list)) => {
                object.perm = object.perm & 0o7000 | lists::mode(&list);
                if lists::is_mode(&list) {
                    object.xattrs.remove(name);
                } else {
                    object.xattrs.insert(name.to_vec(), list);
                }
            }
            (_, None) => {
                result.unwrap();
                object.xattrs.remove(name);
            }
        }
    }

    fn set_perm(&mut self) {
        let Some(id) = self.pick(|_| true) else { return };
        let what = self.below(3);
        let perm = Some(self.below(0o10000) as u32 & !0o2000).filter(|_| what != 0);
        let uid = Some(self.below(3) as u32).filter(|_| what != 1);
        let set = SetAttr { perm, uid, ..SetAttr::default() };
        let attr = self.bed.mount.setattr(self.node(id), &set, &USER).unwrap();
        let object = self.model.objects.get_mut(&id).unwrap();
        object.uid = uid.unwrap_or(object.uid);
        match perm {
            Some(perm) => object.chmod(perm),
            None if object.kind != FileKind::Directory => object.perm &= !0o4000,
            None => {}
        }
        assert_eq!((attr.perm, attr.uid), (object.perm, object.uid));
    }

    fn open_or_close(&mut self) {
        let open = self.pick(|object| object.open > 0);
        if let (Some(id), true) = (open, self.below(2) == 0) {
            self.bed.mount.release(self.node(id), Handle(0)).unwrap();
            self.model.objects.get_mut(&id).unwrap().open -= 1;
            self.model.sweep();
        } else if let Some(id) = self.pick_file() {
            self.bed.mount.open(self.node(id), READ_WRITE).unwrap();
            self.model.objects.get_mut(&id).unwrap().open += 1;
        }
    }

    fn read(&mut self) {
        let Some(id) = self.pick_file() else { return };
        let (offset, len) = (self.below(70_000), self.below(40_000));
        let content = &self.model.objects[&id].content;
        let end = content.len().min((offset + len) as usize);
        let wanted = content.get(offset as usize..end).unwrap_or_default();
        assert_eq!(self.bed.read(self.node(id), offset, len as u32), wanted);
    }

    fn copy(&mut self) {
        let (Some(from), Some(to)) = (self.pick_file(), self.pick_file()) else { return };
        // Half of them so that records can be shared.
        let unit = if self.below(2) == 0 { 4096 } else { 1 };
        let place = || self.below(30_000 / unit) * unit;
        let (offset, at) = (place(), place());
        let len = if self.below(3) == 0 { u64::MAX } else { place() };
        let content = &self.model.objects[&from].content;
        let end = content.len().min(offset.saturating_add(len) as usize);
        let data = content.get(offset as usize..end).unwrap_or_default().to_vec();
        let source = (self.node(from), Handle(0), offset);
        let copied = self.bed.mount.copy_file_range(source, (self.node(to), Handle(0), at), len);
        if from == to && !data.is_empty() && offset.abs_diff(at) < data.len() as u64 {
            assert_eq!(copied, Err(FsError::Invalid));
            return;
        }
        let Some(copied) = self.allowed(copied) else { return };
        // A pool that runs full takes the beginning.
        let whole = copied as usize == data.len();
        assert!(whole || self.refusals.is_some(), "{copied} of {} bytes", data.len());
        let data = data[..copied as usize].to_vec();
        if !data.is_empty() {
            self.write_model(to, at, &data);
        }
    }

    /// Shares what is there twice, or takes that back; to the end, or not.
    fn renew(&mut self) {
        let task = if self.below(3) == 0 { Task::Dedup } else { Task::Undedup };
        let steps = if self.below(2) == 0 { 1000 } else { self.below(8) };
        // Dirty data may come to share something once it is stored.
        self.commit();
        let passes = &self.bed.upkeep.passes;
        // One that goes on does not meet what was copied behind it.
        let is_new = passes.last().is_none_or(|last| (last.task, last.state) != (task, PassState::Stopped));
        let begun = passes.start(task, vec![ROOT_DATASET], 0).map_err(FsError::from);
        if self.allowed(begun).is_none() {
            return;
        }
        self.pass_steps(steps);
        let passes = &self.bed.upkeep.passes;
        let last = passes.last().unwrap();
        if task == Task::Undedup && last.state == PassState::Done && is_new {
            assert_eq!(passes.estimate_undedup(&[ROOT_DATASET]).unwrap().tally.changed, 0, "{last:?}");
        }
        self.commit();
    }

    /// Steps of the pass that has begun, which is over then, by itself or in the middle.
    pub fn pass_steps(&self, steps: u64) {
        let passes = &self.bed.upkeep.passes;
        for _ in 0..steps {
            let step = passes.step(16 << 10).map_err(FsError::from);
            if matches!((&step, self.refusals), (Err(FsError::NoSpace), Some(_))) || step.unwrap().is_none() {
                break;
            }
        }
        drop(passes.stop());
    }

    fn fsync(&mut self) {
        let Some(id) = self.pick_file() else { return };
        let before = self.bed.pool.store().durable_commit();
        self.bed.fsync(self.node(id));
        self.model.objects.get_mut(&id).unwrap().exact = true;
        if self.bed.pool.store().durable_commit() > before {
            self.all_exact();
        }
        self.durable = self.model.clone();
        self.synced += 1;
    }

    fn all_exact(&mut self) {
        self.model.objects.values_mut().for_each(|object| object.exact = true);
    }

    pub fn commit(&mut self) {
        let traces = self.refusals.is_none() && self.below(4) == 0;
        if !(traces && self.bed.upkeep.gc.start().unwrap()) {
            self.bed.pool.commit().unwrap();
        }
        self.committed();
    }

    /// All that was done is durable.
    pub fn committed(&mut self) {
        self.all_exact();
        self.durable = self.model.clone();
        self.synced += 1;
    }

    pub fn verify(&mut self) {
        let exact = self.model.clone();
        self.model.objects.values_mut().for_each(|object| object.exact = true);
        let met = compare(&self.bed, &self.model).unwrap();
        for (id, node) in met {
            assert_eq!(self.node(id), node);
        }
        for (id, object) in self.model.objects.iter().filter(|(_, object)| object.kind == FileKind::Regular) {
            compare_content(&self.bed, self.node(*id), &object.content).unwrap();
        }
        self.model = exact;
    }

    /// Commits, and imports the pool anew.
    pub fn reopen(mut self, seed: u64) -> Self {
        self.bed = self.bed.reopen(seed);
        self.all_exact();
        self.model.close_all();
        self.durable = self.model.clone();
        self
    }

    /// Loses everything in memory.
    pub fn crash(mut self, seed: u64) -> Self {
        self.bed = self.bed.crash(seed);
        let mut model = self.durable.clone();
        model.close_all();
        let nodes = compare(&self.bed, &model).unwrap();
        self.go_on_from(model, nodes);
        self
    }

    /// Goes on from the state that a crash left.
    pub fn go_on_from(&mut self, model: Model, nodes: BTreeMap<Id, NodeId>) {
        (self.model, self.nodes) = (model, nodes);
        // Content that was not synced is whatever it is now.
        for (id, node) in &self.nodes {
            let object = self.model.objects.get_mut(id).unwrap();
            if object.kind == FileKind::Regular && !object.exact {
                object.content = Arc::new(self.bed.content(*node));
                object.exact = true;
            }
        }
        self.durable = self.model.clone();
    }
}

/// The property that tells how much was written to a dataset.
const LENGTH: &str = "test:length";

/// Frees what was deleted. Every other dataset is whole, or as it was made, and none that was destroyed is left.
pub fn free_all(bed: &Bed) {
    while bed.mount.reap_step(1000).unwrap() {}
    while bed.pool.destroy_step(10).unwrap() {}
    bed.pool.commit().unwrap();
    assert!(bed.pool.destroyed().is_empty());
    for dataset in bed.pool.datasets().into_iter().filter(|dataset| dataset.last_name() == "other") {
        let (len, found) = (dataset.own_properties().local()[LENGTH].parse(), dataset.usage().logical);
        assert!(found == 0 || Ok(found) == len, "{found} bytes of {len:?}");
    }
}

fn run(seed: u64, steps: u64, properties: &[(&str, &str)]) {
    println!("seed {seed}");
    let mut run = Run::new(seed, properties);
    // So little that writers have to flush.
    run.bed.pool.set_pool_property("memory", "2097152").unwrap();
    for step in 0..steps {
        run.step();
        match run.below(200) {
            0 => run = run.reopen(seed + step),
            1 => run = run.crash(seed + step),
            2..5 => run.verify(),
            _ => {}
        }
    }
    run.verify();
    run = run.reopen(seed + steps);
    run.verify();
    free_all(&run.bed);
    run.bed.check();
    run.bed.check_tree();
    assert_eq!(run.bed.pool.store().dirty().get(), 0);
}

#[test]
fn a_mount_shows_what_the_model_does_with_small_records() {
    for seed in 0..12 {
        run(seed, 1200, &[("recordsize", "4096"), ("atime", "off")]);
    }
}

#[test]
fn a_mount_shows_what_the_model_does_with_records_cut_by_content() {
    for seed in 300..312 {
        let codec = if seed % 3 == 0 { "off" } else { "lz4" };
        let dedup = if seed % 2 == 0 { "on" } else { "off" };
        let properties =
            [("recordsize", "4096"), ("chunking", "content"), ("compression", codec), ("dedup", dedup)];
        run(seed, 1200, &properties);
    }
    for seed in 312..314 {
        run(seed, 1200, &[("recordsize", "131072"), ("chunking", "content")]);
    }
}

#[test]
fn a_mount_shows_what_the_model_does_with_large_records() {
    for seed in 100..108 {
        run(seed, 1200, &[("recordsize", "131072")]);
    }
}

#[test]
fn a_mount_shows_what_the_model_does_without_compression() {
    for seed in 200..206 {
        run(seed, 1200, &[("recordsize", "8192"), ("compression", "off"), ("atime", "relatime")]);
    }
    // So large that parts of them are read.
    for seed in 206..212 {
        run(seed, 1200, &[("recordsize", "131072"), ("compression", "off")]);
    }
}

#[test]
fn a_mount_shows_what_the_model_does_while_records_are_shared() {
    for seed in 300..304 {
        let dedup = if seed % 2 == 0 { "on" } else { "verify" };
        run(seed, 1200, &[("recordsize", "4096"), ("dedup", dedup)]);
    }
}
