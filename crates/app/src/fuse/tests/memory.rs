//! A tree of files in memory, as small as [`Ops`] lets it be. It counts what it is asked.

use larder_files::{
    Allocate, Attr, Caller, Created, DirEntry, FileKind, FsError, Handle, NodeId, OpenFlags, Ops, ReadData,
    RenameFlags, Result, Seek, SetAttr, SetTime, StatFs, XattrMode,
};
use larder_format::Timestamp;
use larder_sync::{Condvar, Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const DIR_PERM: u32 = 0o755;

struct Node {
    attr: Attr,
    parent: u64,
    /// Name to number; the position of a name among all that were ever made is its cookie.
    names: BTreeMap<Vec<u8>, u64>,
    cookies: BTreeMap<u64, Vec<u8>>,
    content: Arc<RwLock<Vec<u8>>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct Tree {
    nodes: HashMap<u64, Node>,
    last: u64,
    clock: i64,
}

pub(super) struct Memory {
    tree: Mutex<Tree>,
    /// Names that have met in [`Memory::meet`].
    waiting: Mutex<u32>,
    arrived: Condvar,
    pub(super) xattr_reads: AtomicU64,
    pub(super) lookups: AtomicU64,
    /// Calls that panicked, as the mount told.
    pub(super) panics: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) released: AtomicU64,
    pub(super) forgotten: AtomicU64,
    pub(super) largest_write: AtomicU64,
    /// Before what is written can be read, milliseconds.
    pub(super) write_delay: AtomicU64,
}

impl Tree {
    fn get(&mut self, node: NodeId) -> Result<&mut Node> {
        self.nodes.get_mut(&node.raw()).ok_or(FsError::NotFound)
    }

    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp { secs: self.clock, nanos: 5 }
    }

    fn child(&mut self, parent: NodeId, name: &[u8]) -> Result<NodeId> {
        self.get(parent)?.names.get(name).map(|&n| NodeId::from_raw(n)).ok_or(FsError::NotFound)
    }

    fn attach(&mut self, parent: NodeId, name: &[u8], child: NodeId) -> Result<()> {
        if name.len() > 255 {
            return Err(FsError::NameTooLong);
        }
        self.last += 1;
        let cookie = self.last + 2;
        let dir = self.get(parent)?;
        dir.names.insert(name.to_vec(), child.raw());
        dir.cookies.insert(cookie, name.to_vec());
        self.get(child)?.parent = parent.raw();
        Ok(())
    }

    fn detach(&mut self, parent: NodeId, name: &[u8]) -> Result<NodeId> {
        let dir = self.get(parent)?;
        let child = dir.names.remove(name).ok_or(FsError::NotFound)?;
        dir.cookies.retain(|_, n| n != name);
        Ok(NodeId::from_raw(child))
    }

    fn make(
        &mut self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        perm: u32,
        caller: &Caller,
    ) -> Result<&mut Node> {
        if self.child(parent, name).is_ok() {
            return Err(FsError::Exists);
        }
        self.last += 1;
        let node = NodeId::from_raw(self.last + 100);
        let now = self.now();
        let made = new_node(node, kind, perm, caller, now);
        self.nodes.insert(node.raw(), made);
        if let Err(error) = self.attach(parent, name, node) {
            self.nodes.remove(&node.raw());
            return Err(error);
        }
        self.get(node)
    }
}

fn new_node(node: NodeId, kind: FileKind, perm: u32, caller: &Caller, now: Timestamp) -> Node {
    Node {
        attr: Attr {
            node,
            generation: 7,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            kind,
            perm: if kind == FileKind::Symlink { perm } else { perm & !caller.umask },
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: caller.uid,
            gid: caller.gid,
            rdev: 0,
            blksize: 4096,
        },
        parent: NodeId::ROOT.raw(),
        names: BTreeMap::new(),
        cookies: BTreeMap::new(),
        content: Arc::default(),
        xattrs: BTreeMap::new(),
    }
}

fn kill_suidgid(attr: &mut Attr) {
    attr.perm &= !0o4000;
    if attr.perm & 0o010 != 0 {
        attr.perm &= !0o2000;
    }
}

impl Memory {
    pub(super) fn new() -> Self {
        let root =
            new_node(NodeId::ROOT, FileKind::Directory, DIR_PERM, &Caller::default(), Timestamp::default());
        Self {
            tree: Mutex::new(Tree { nodes: HashMap::from([(1, root)]), last: 0, clock: 1_000_000_000 }),
            waiting: Mutex::new(0),
            arrived: Condvar::new(),
            xattr_reads: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            released: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            largest_write: AtomicU64::new(0),
            write_delay: AtomicU64::new(0),
        }
    }

    /// Changes a file's content behind the kernel's back.
    pub(super) fn overwrite(&self, node: NodeId, content: &[u8]) {
        let mut tree = self.tree.lock();
        let node = tree.get(node).unwrap();
        *node.content.write() = content.to_vec();
        node.attr.size = content.len() as u64;
    }

    /// Renames a name of the root behind the kernel's back.
    pub(super) fn move_name(&self, name: &[u8], new_name: &[u8]) -> NodeId {
        let mut tree = self.tree.lock();
        let node = tree.detach(NodeId::ROOT, name).unwrap();
        tree.attach(NodeId::ROOT, new_name, node).unwrap();
        node
    }

    /// Returns when two requests are here at once; in vain after a minute.
    fn meet(&self) -> Result<()> {
        let mut waiting = self.waiting.lock();
        *waiting += 1;
        self.arrived.notify_all();
        let alone =
            self.arrived.wait_while_for(&mut waiting, |n| *n < 2, Duration::from_secs(60)).timed_out();
        if alone { Err(FsError::Busy) } else { Ok(()) }
    }

    fn content(&self, node: NodeId) -> Result<Arc<RwLock<Vec<u8>>>> {
        Ok(self.tree.lock().get(node)?.content.clone())
    }
}

impl Ops for Memory {
    fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        assert_ne!(name, b"panic", "asked to");
        if name.starts_with(b"meet") {
            self.meet()?;
        }
        let mut tree = self.tree.lock();
        let node = if name == b"." { parent } else { tree.child(parent, name)? };
        Ok(tree.get(node)?.attr)
    }

    fn forget(&self, _node: NodeId, lookups: u64) {
        self.forgotten.fetch_add(lookups, Ordering::Relaxed);
    }

    fn getattr(&self, node: NodeId) -> Result<Attr> {
        Ok(self.tree.lock().get(node)?.attr)
    }

    fn setattr(&self, node: NodeId, set: &SetAttr, _caller: &Caller) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let now = tree.now();
        let node = tree.get(node)?;
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        node.attr.perm = set.perm.unwrap_or(node.attr.perm);
        node.attr.uid = set.uid.unwrap_or(node.attr.uid);
        node.attr.gid = set.gid.unwrap_or(node.attr.gid);
        if let Some(size) = set.size {
            node.content.write().resize(size as usize, 0);
            node.attr.size = size;
            node.attr.mtime = now;
        }
        node.attr.atime = set.atime.map_or(node.attr.atime, time);
        node.attr.mtime = set.mtime.map_or(node.attr.mtime, time);
        node.attr.ctime = set.ctime.unwrap_or(now);
        if set.kill_suidgid {
            kill_suidgid(&mut node.attr);
            node.attr.perm &= if set.kill_setgid { !0o2000 } else { !0 };
        }
        Ok(node.attr)
    }

    fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        Ok(self.content(node)?.read().clone())
    }

    fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        perm: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let node = tree.make(parent, name, kind, perm, caller)?;
        node.attr.rdev = rdev;
        Ok(node.attr)
    }

    fn mkdir(&self, parent: NodeId, name: &[u8], perm: u32, caller: &Caller) -> Result<Attr> {
        Ok(self.tree.lock().make(parent, name, FileKind::Directory, perm, caller)?.attr)
    }

    fn symlink(&self, parent: NodeId, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let node = tree.make(parent, name, FileKind::Symlink, 0o777, caller)?;
        *node.content.write() = target.to_vec();
        node.attr.size = target.len() as u64;
        Ok(node.attr)
    }

    fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr> {
        let mut tree = self.tree.lock();
        tree.attach(new_parent, new_name, node)?;
        let node = tree.get(node)?;
        node.attr.nlink += 1;
        Ok(node.attr)
    }

    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let mut tree = self.tree.lock();
        let node = tree.detach(parent, name)?;
        tree.get(node)?.attr.nlink -= 1;
        Ok(())
    }

    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let mut tree = self.tree.lock();
        let node = tree.child(parent, name)?;
        if !tree.get(node)?.names.is_empty() {
            return Err(FsError::NotEmpty);
        }
        tree.detach(parent, name).map(drop)
    }

    fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let mut tree = self.tree.lock();
        let node = tree.child(parent, name)?;
        let target = tree.child(new_parent, new_name);
        if flags.noreplace && target.is_ok() {
            return Err(FsError::Exists);
        }
        tree.detach(parent, name)?;
        if let Ok(target) = target {
            tree.detach(new_parent, new_name)?;
            if flags.exchange {
                tree.attach(parent, name, target)?;
            }
        }
        tree.attach(new_parent, new_name, node)
    }

    fn open(&self, node: NodeId, _flags: OpenFlags) -> Result<Handle> {
        Ok(Handle(node.raw()))
    }

    fn create(
        &self,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        _flags: OpenFlags,
        caller: &Caller,
    ) -> Result<Created> {
        let attr = self.tree.lock().make(parent, name, FileKind::Regular, perm, caller)?.attr;
        Ok(Created { attr, handle: Handle(attr.node.raw()), made: true })
    }

    fn tmpfile(
        &self,
        parent: NodeId,
        perm: u32,
        _flags: OpenFlags,
        caller: &Caller,
    ) -> Result<(Attr, Handle)> {
        let mut tree = self.tree.lock();
        let attr = tree.make(parent, b"nameless", FileKind::Regular, perm, caller)?.attr;
        tree.detach(parent, b"nameless")?;
        let node = tree.get(attr.node)?;
        node.attr.nlink = 0;
        Ok((node.attr, Handle(attr.node.raw())))
    }

    fn read(&self, node: NodeId, _handle: Handle, offset: u64, len: u32) -> Result<ReadData> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let content = self.content(node)?;
        let content = content.read();
        let from = (offset as usize).min(content.len());
        let to = (from + len as usize).min(content.len());
        let mut data = ReadData::default();
        data.push(content[from..to].to_vec().into());
        Ok(data)
    }

    fn write(&self, node: NodeId, _handle: Handle, offset: u64, data: &[u8], kill: bool) -> Result<u32> {
        self.largest_write.fetch_max(data.len() as u64, Ordering::Relaxed);
        let delay = Duration::from_millis(self.write_delay.load(Ordering::Relaxed));
        #[expect(clippy::disallowed_methods, reason = "others are to read meanwhile")]
        std::thread::sleep(delay);
        let content = self.content(node)?;
        let mut content = content.write();
        let (from, to) = (offset as usize, offset as usize + data.len());
        if content.len() == from {
            content.extend_from_slice(data);
        } else {
            if content.len() < to {
                content.resize(to, 0);
            }
            content[from..to].copy_from_slice(data);
        }
        drop(content);
        let mut tree = self.tree.lock();
        let now = tree.now();
        let node = tree.get(node)?;
        node.attr.size = node.content.read().len() as u64;
        node.attr.blocks = node.attr.size.div_ceil(512);
        node.attr.mtime = now;
        if kill {
            kill_suidgid(&mut node.attr);
        }
        Ok(data.len() as u32)
    }

    fn flush(&self, _node: NodeId, _handle: Handle) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn release(&self, _node: NodeId, _handle: Handle) -> Result<()> {
        self.released.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn fsync(&self, _node: NodeId, _handle: Handle, _datasync: bool) -> Result<()> {
        Err(FsError::Io("the disk said no".into()))
    }

    fn fallocate(&self, node: NodeId, _handle: Handle, offset: u64, len: u64, mode: Allocate) -> Result<()> {
        let content = self.content(node)?;
        let mut content = content.write();
        let (from, to) = (offset as usize, (offset + len) as usize);
        let grows = matches!(mode, Allocate::Extend | Allocate::Zero { keep_size: false });
        if grows && content.len() < to {
            content.resize(to, 0);
        }
        if matches!(mode, Allocate::Punch | Allocate::Zero { .. }) {
            let to = to.min(content.len());
            content[from.min(to)..to].fill(0);
        }
        let len = content.len() as u64;
        drop(content);
        self.tree.lock().get(node)?.attr.size = len;
        Ok(())
    }

    /// Zeros count as holes, byte by byte.
    fn lseek(&self, node: NodeId, _handle: Handle, offset: u64, seek: Seek) -> Result<u64> {
        let content = self.content(node)?;
        let content = content.read();
        let rest = content.get(offset as usize..).filter(|rest| !rest.is_empty()).ok_or(FsError::NoExtent)?;
        match seek {
            Seek::Data => {
                rest.iter().position(|&b| b != 0).map(|at| offset + at as u64).ok_or(FsError::NoExtent)
            }
            Seek::Hole => Ok(offset + rest.iter().position(|&b| b == 0).unwrap_or(rest.len()) as u64),
        }
    }

    fn copy_file_range(
        &self,
        from: (NodeId, Handle, u64),
        to: (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let data = self.read(from.0, from.1, from.2, len as u32)?.to_vec();
        Ok(self.write(to.0, to.1, to.2, &data, false)?.into())
    }

    fn opendir(&self, node: NodeId) -> Result<Handle> {
        Ok(Handle(node.raw()))
    }

    fn readdir(
        &self,
        node: NodeId,
        _handle: Handle,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut tree = self.tree.lock();
        let parent = NodeId::from_raw(tree.get(node)?.parent);
        for (next_cookie, name, of) in [(1, &b"."[..], node), (2, b"..", parent)] {
            let entry = DirEntry { node: of, kind: FileKind::Directory, name, next_cookie, attr: None };
            if cookie < next_cookie && !emit(entry) {
                return Ok(());
            }
        }
        let dir = tree.get(node)?;
        let after: Vec<_> =
            dir.cookies.range(cookie + 1..).map(|(c, name)| (*c, name.clone(), dir.names[name])).collect();
        for (next_cookie, name, child) in after {
            let attr = tree.get(NodeId::from_raw(child))?.attr;
            let (node, kind) = (attr.node, attr.kind);
            if !emit(DirEntry { node, kind, name: &name, next_cookie, attr: plus.then_some(&attr) }) {
                break;
            }
        }
        Ok(())
    }

    fn releasedir(&self, _node: NodeId, _handle: Handle) -> Result<()> {
        Ok(())
    }

    fn fsyncdir(&self, _node: NodeId, _handle: Handle, _datasync: bool) -> Result<()> {
        Ok(())
    }

    fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr_reads.fetch_add(1, Ordering::Relaxed);
        self.tree.lock().get(node)?.xattrs.get(name).cloned().ok_or(FsError::NoAttr)
    }

    fn setxattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let mut tree = self.tree.lock();
        let xattrs = &mut tree.get(node)?.xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(FsError::Exists),
            (XattrMode::Replace, false) => Err(FsError::NoAttr),
            _ => {
                xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }

    fn listxattr(&self, node: NodeId) -> Result<Vec<u8>> {
        let mut tree = self.tree.lock();
        Ok(tree.get(node)?.xattrs.keys().flat_map(|name| [&name[..], b"\0"].concat()).collect())
    }

    fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.tree.lock().get(node)?.xattrs.remove(name).map(drop).ok_or(FsError::NoAttr)
    }

    fn statfs(&self, _node: NodeId) -> Result<StatFs> {
        Ok(StatFs {
            block_size: 4096,
            blocks: 1000,
            free: 600,
            available: 500,
            files: 99,
            files_free: 88,
            name_max: 255,
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
