//! Changes of files, each beside the same in the model.

use super::side::{Change, Dice, Side};
use super::tree::{Node, ROOT, Tree};
use larder_files::{
    Allocate, Caller, FileKind, FsError, Handle, NodeId, Ops, RenameFlags, SetAttr, XattrMode,
};
use larder_format::{DatasetId, InodeId};
use std::sync::Arc;

const USER: Caller = Caller { uid: 1000, gid: 100, pid: 1, umask: 0 };
const NOBODY: Handle = Handle(0);
/// Files are shorter than this, in bytes.
const LONGEST: u64 = 200_000;
/// Contents that come again and again.
const KNOWN: u64 = 12;

fn at(id: DatasetId, inode: u64) -> NodeId {
    NodeId::pack(id, InodeId::new(inode))
}

/// Bytes that a seed stands for: half of them compress.
pub fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let plain = seed.is_multiple_of(2);
    (0..len)
        .map(|i| {
            if plain && i % 64 != 0 {
                return (state >> 56) as u8;
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

impl Side {
    fn some_of(&self, dice: &Dice, id: DatasetId, kind: FileKind) -> Option<u64> {
        let head = &self.now.get(id).head;
        dice.one(head.iter().filter(|(_, node)| node.kind == kind).map(|(inode, _)| *inode))
    }

    /// A directory, a name in it, and what that names.
    fn some_name(&self, dice: &Dice, id: DatasetId) -> Option<(u64, Vec<u8>, u64)> {
        let head = &self.now.get(id).head;
        let names = head.iter().flat_map(|(dir, node)| {
            node.entries.iter().map(move |(name, inode)| (*dir, name.clone(), *inode))
        });
        dice.one(names)
    }

    fn change(&mut self, id: DatasetId, how: Change, told: &str, change: impl FnOnce(&mut Tree)) {
        change(Arc::make_mut(&mut self.now.set(id).head));
        self.done(how, format!("{told} in {id}"));
    }

    /// True when it was done; a refusal for want of space has changed nothing.
    fn allowed<T>(&self, told: &str, result: Result<T, FsError>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(error) if Self::is_refusal(&error) => None,
            Err(error) => panic!("{}: {told}: {error}", self.label),
        }
    }

    /// One change of a file of a dataset.
    pub fn work(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        self.tick();
        self.begin();
        let few = self.now.get(id).head.len() < 12;
        match dice.below(24) {
            0..=4 if few => self.make(dice, id),
            5..=10 => self.write(dice, id),
            11..=12 => self.resize(dice, id),
            13 => self.punch(dice, id),
            14..=15 => self.remove(dice, id),
            16 => self.rename(dice, id),
            17 => self.link(dice, id),
            18 => self.xattr(dice, id),
            19..=21 if self.shares => self.copy(dice, id),
            22 => self.chmod(dice, id),
            23 => self.look_back(dice, id),
            _ => self.write(dice, id),
        }
    }

    fn make(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let dir = self.some_of(dice, id, FileKind::Directory).unwrap_or(ROOT);
        let (name, perm) = (self.name("n").into_bytes(), 0o600 + dice.below(64) as u32);
        let (parent, mount) = (at(id, dir), Arc::clone(self.mount()));
        let (kind, target) = match dice.below(6) {
            0 => (FileKind::Directory, Vec::new()),
            1 => (FileKind::Symlink, format!("to/{}", dice.below(100)).into_bytes()),
            _ => (FileKind::Regular, Vec::new()),
        };
        let made = match kind {
            FileKind::Directory => mount.mkdir(parent, &name, perm, &USER),
            FileKind::Symlink => mount.symlink(parent, &name, &target, &USER),
            _ => mount.mknod(parent, &name, kind, perm, 0, &USER),
        };
        let Some(made) = self.allowed("make", made) else { return "refused" };
        let inode = made.node.unpack().1.get();
        self.change(id, Change::Whole, "make", |tree| {
            let mut node = Node::new(kind, if kind == FileKind::Symlink { 0o777 } else { perm });
            node.content = Arc::new(target);
            tree.insert(inode, Arc::new(node));
            let parent = Arc::make_mut(tree.get_mut(&dir).expect("a directory"));
            parent.entries.insert(name, inode);
            parent.nlink += u32::from(kind == FileKind::Directory);
        });
        "make"
    }

    fn write(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let Some(inode) = self.some_of(dice, id, FileKind::Regular) else { return self.make(dice, id) };
        let (mut offset, len) = match dice.below(4) {
            0 => (0, 1 + dice.below(LONGEST / 2)),
            1 => (dice.below(LONGEST / 2), 1 + dice.below(500)),
            _ => (dice.below(LONGEST / 2), 1 + dice.below(30_000)),
        };
        let mut seed = KNOWN + dice.below(1 << 40);
        let mut len = len;
        if dice.one_in(3) {
            // So that records are found again.
            (seed, offset, len) = (dice.below(KNOWN), offset / 16_384 * 16_384, 32_768);
        }
        let data = bytes(seed, len);
        let written = self.mount().write(at(id, inode), NOBODY, offset, &data, false);
        let Some(written) = self.allowed("write", written) else { return "refused" };
        assert_eq!(u64::from(written), len);
        self.change(id, Change::Whole, "write", |tree| {
            let node = Arc::make_mut(tree.get_mut(&inode).expect("a file"));
            let content = Arc::make_mut(&mut node.content);
            let end = (offset + len) as usize;
            if content.len() < end {
                content.resize(end, 0);
            }
            content[offset as usize..end].copy_from_slice(&data);
        });
        "write"
    }

    fn resize(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let Some(inode) = self.some_of(dice, id, FileKind::Regular) else { return "nothing" };
        let size = if dice.one_in(4) { 0 } else { dice.below(LONGEST) };
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let resized = self.mount().setattr(at(id, inode), &set, &USER);
        let Some(_) = self.allowed("resize", resized) else { return "refused" };
        self.change(id, Change::Whole, "resize", |tree| {
            let node = Arc::make_mut(tree.get_mut(&inode).expect("a file"));
            Arc::make_mut(&mut node.content).resize(size as usize, 0);
        });
        "resize"
    }

    fn punch(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let Some(inode) = self.some_of(dice, id, FileKind::Regular) else { return "nothing" };
        let (from, len) = (dice.below(LONGEST / 2), 1 + dice.below(60_000));
        let punched = self.mount().fallocate(at(id, inode), NOBODY, from, len, Allocate::Punch);
        let Some(()) = self.allowed("punch", punched) else { return "refused" };
        self.change(id, Change::Files, "punch", |tree| {
            let node = Arc::make_mut(tree.get_mut(&inode).expect("a file"));
            let content = Arc::make_mut(&mut node.content);
            let end = content.len().min((from + len) as usize);
            let from = end.min(from as usize);
            content[from..end].fill(0);
        });
        "punch"
    }

    fn remove(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let Some((dir, name, inode)) = self.some_name(dice, id) else { return "nothing" };
        let node = Arc::clone(&self.now.get(id).head[&inode]);
        let is_dir = node.kind == FileKind::Directory;
        let removed = match is_dir {
            true => self.mount().rmdir(at(id, dir), &name),
            false => self.mount().unlink(at(id, dir), &name),
        };
        if is_dir && !node.entries.is_empty() {
            assert_eq!(removed, Err(FsError::NotEmpty));
            return "refused";
        }
        let Some(()) = self.allowed("remove", removed) else { return "refused" };
        self.change(id, Change::Whole, "remove", |tree| {
            let parent = Arc::make_mut(tree.get_mut(&dir).expect("a directory"));
            parent.entries.remove(&name);
            parent.nlink -= u32::from(is_dir);
            let node = Arc::make_mut(tree.get_mut(&inode).expect("it is there"));
            node.nlink -= 1;
            if is_dir || node.nlink == 0 {
                tree.remove(&inode);
            }
        });
        "remove"
    }

    fn rename(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let Some((dir, name, inode)) = self.some_name(dice, id) else { return "nothing" };
        if self.now.get(id).head[&inode].kind == FileKind::Directory {
            return "nothing";
        }
        let to = self.some_of(dice, id, FileKind::Directory).unwrap_or(ROOT);
        // Over another one, now and then.
        let other = self.now.get(id).head[&to]
            .entries
            .iter()
            .find(|(_, other)| **other != inode && self.now.get(id).head[*other].kind != FileKind::Directory);
        let over = other.filter(|_| dice.one_in(2)).map(|(name, other)| (name.clone(), *other));
        let new = over.as_ref().map_or_else(|| self.name("r").into_bytes(), |(name, _)| name.clone());
        let renamed = self.mount().rename(at(id, dir), &name, at(id, to), &new, RenameFlags::default());
        let Some(()) = self.allowed("rename", renamed) else { return "refused" };
        self.change(id, Change::Whole, "rename", |tree| {
            if let Some((_, other)) = over {
                let node = Arc::make_mut(tree.get_mut(&other).expect("it is there"));
                node.nlink -= 1;
                if node.nlink == 0 {
                    tree.remove(&other);
                }
            }
            Arc::make_mut(tree.get_mut(&dir).expect("a directory")).entries.remove(&name);
            Arc::make_mut(tree.get_mut(&to).expect("a directory")).entries.insert(new, inode);
        });
        "rename"
    }

    fn link(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let Some(inode) = self.some_of(dice, id, FileKind::Regular) else { return "nothing" };
        let dir = self.some_of(dice, id, FileKind::Directory).unwrap_or(ROOT);
        let name = self.name("l").into_bytes();
        let linked = self.mount().link(at(id, inode), at(id, dir), &name);
        let Some(_) = self.allowed("link", linked) else { return "refused" };
        self.change(id, Change::Whole, "link", |tree| {
            Arc::make_mut(tree.get_mut(&inode).expect("a file")).nlink += 1;
            Arc::make_mut(tree.get_mut(&dir).expect("a directory")).entries.insert(name, inode);
        });
        "link"
    }

    fn xattr(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let Some(inode) = self.some_of(dice, id, FileKind::Regular) else { return "nothing" };
        let name = format!("user.{}", dice.below(3)).into_bytes();
        let node = at(id, inode);
        if self.now.get(id).head[&inode].xattrs.contains_key(&name) && dice.one_in(2) {
            let removed = self.mount().removexattr(node, &name);
            let Some(()) = self.allowed("xattr", removed) else { return "refused" };
            self.change(id, Change::Whole, "removexattr", |tree| {
                Arc::make_mut(tree.get_mut(&inode).expect("a file")).xattrs.remove(&name);
            });
            return "xattr";
        }
        let len = [10, 500, 9000][dice.below(3) as usize];
        let value = bytes(dice.below(1 << 30), len);
        let set = self.mount().setxattr(node, &name, &value, XattrMode::Set);
        let Some(()) = self.allowed("xattr", set) else { return "refused" };
        self.change(id, Change::Whole, "setxattr", |tree| {
            Arc::make_mut(tree.get_mut(&inode).expect("a file")).xattrs.insert(name, value);
        });
        "xattr"
    }

    fn chmod(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let Some(inode) = self.some_of(dice, id, FileKind::Regular) else { return "nothing" };
        let perm = 0o600 + dice.below(64) as u32;
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        let changed = self.mount().setattr(at(id, inode), &set, &USER);
        let Some(_) = self.allowed("chmod", changed) else { return "refused" };
        self.change(id, Change::Whole, "chmod", |tree| {
            Arc::make_mut(tree.get_mut(&inode).expect("a file")).perm = perm;
        });
        "chmod"
    }

    /// Shares a range of a file of any dataset with one of this.
    fn copy(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let from = self.some_named(dice);
        let Some(source) = self.some_of(dice, from, FileKind::Regular) else { return "nothing" };
        let Some(target) = self.some_of(dice, id, FileKind::Regular) else { return "nothing" };
        if (from, source) == (id, target) {
            return "nothing";
        }
        let place = |dice: &Dice| dice.below(6) * 16_384;
        let (read, written) = if dice.one_in(3) { (0, 0) } else { (place(dice), place(dice)) };
        let len = if dice.one_in(3) { LONGEST } else { (1 + dice.below(4)) * 16_384 };
        let mount = Arc::clone(self.mount());
        let copied = mount.copy_range((at(from, source), read), (at(id, target), written), len);
        let Some(copied) = self.allowed("copy", copied) else { return "refused" };
        let content = Arc::clone(&self.now.get(from).head[&source].content);
        let all = (content.len() as u64).saturating_sub(read).min(len);
        assert!(copied.bytes <= all && (copied.bytes > 0 || all == 0), "{copied:?} of {all}");
        if copied.bytes == 0 {
            return "nothing";
        }
        let (read, written, len) = (read as usize, written as usize, copied.bytes as usize);
        self.change(id, Change::Files, "copy", |tree| {
            let node = Arc::make_mut(tree.get_mut(&target).expect("a file"));
            let new = Arc::make_mut(&mut node.content);
            new.resize(new.len().max(written + len), 0);
            new[written..written + len].copy_from_slice(&content[read..read + len]);
        });
        if copied.shared > 0 { "share" } else { "copy" }
    }

    /// Looks into a snapshot through the mount, as people do: its volume stays open.
    fn look_back(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let Some(high) = dice.one(self.now.get(id).named().map(|(high, _)| *high)) else { return "nothing" };
        let taken = self.now.get(id).snapshots[&high].clone();
        let Some(root) = taken.tree.get(&ROOT) else { return "nothing" };
        let mount = Arc::clone(self.mount());
        let path = [&b".zfs"[..], b"snapshot", taken.name.as_bytes()];
        let dir =
            path.iter().try_fold(at(id, ROOT), |dir, name| mount.lookup(dir, name).map(|found| found.node));
        let dir = dir.unwrap_or_else(|error| panic!("{}@{}: {error}", self.now.get(id).name, taken.name));
        let Some((name, inode)) = dice.one(root.entries.iter()) else { return "look back" };
        let found = mount.lookup(dir, name).unwrap();
        let wanted = &taken.tree[inode];
        assert_eq!((found.kind, found.nlink), (wanted.kind, wanted.nlink));
        if wanted.kind == FileKind::Regular {
            let read = mount.read(found.node, NOBODY, 0, found.size as u32).unwrap().to_vec();
            assert!(read == **wanted.content, "{}@{} through the mount", self.now.get(id).name, taken.name);
        }
        "look back"
    }

    /// A file of this length that does not compress; false where there is no room.
    pub fn fill(&mut self, id: DatasetId, seed: u64, len: u64) -> bool {
        self.begin();
        let name = self.name("ballast").into_bytes();
        let made = self.mount().mknod(at(id, ROOT), &name, FileKind::Regular, 0o644, 0, &USER);
        let Some(made) = self.allowed("make", made) else { return false };
        let inode = made.node.unpack().1.get();
        self.change(id, Change::Whole, "ballast", |tree| {
            tree.insert(inode, Arc::new(Node::new(FileKind::Regular, 0o644)));
            Arc::make_mut(tree.get_mut(&ROOT).expect("a directory")).entries.insert(name, inode);
        });
        self.begin();
        let data = bytes(seed | 1, len);
        let written = self.mount().write(made.node, NOBODY, 0, &data, false);
        let Some(_) = self.allowed("write", written) else { return false };
        self.change(id, Change::Whole, "ballast", |tree| {
            Arc::make_mut(tree.get_mut(&inode).expect("a file")).content = Arc::new(data);
        });
        true
    }
}
