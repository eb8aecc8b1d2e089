//! The end of a stream: what waited for it is made, and attributes are set, after all that changes them.

use super::state::{Receiver, Result, broken, parked};
use crate::attrs::{Attrs, Registry, ZNODE};
use crate::error::{ReceiveError, Refusal, StreamError};
use crate::notes::Kind;
use crate::sink::{New, Sink, SinkAttr};
use std::collections::{BTreeMap, BTreeSet};

/// The newest version of the file system that is known: ZPL 5, with system attributes.
const NEWEST: u64 = 5;
/// Owner of what belongs to names of a domain, as NFS has it.
const NOBODY: u32 = 65534;
/// Largest value of an extended attribute, bytes.
const MAX_VALUE: usize = 64 << 10;
/// Namespaces of extended attributes on Linux.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
/// Prefixes that other systems put before theirs.
const FOREIGN: [&[u8]; 2] = [b"freebsd:", b"SUNWattr_"];

type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Major and minor number. In 64 bits as Solaris and FreeBSD have them; else as the Linux kernel does, or, in a znode,
/// as it passes them to FUSE, for that is who writes those on Linux.
fn device(rdev: u64, bonus_kind: u32) -> (u32, u32) {
    let low = rdev as u32;
    match (rdev >> 32, bonus_kind) {
        (0, ZNODE) => (low >> 8 & 0xfff, low & 0xff | low >> 12 & 0xf_ff00),
        (0, _) => (low >> 20, low & 0xf_ffff),
        (major, _) => (major as u32, low),
    }
}

impl<S: Sink> Receiver<'_, S> {
    pub fn finish(&mut self, guid: u64) -> Result<(), S::Error> {
        self.finish_content()?;
        self.find_root()?;
        let registry = self.registry()?;
        let touched = std::mem::take(&mut self.touched);
        for &object in &touched {
            self.make_late(object, &registry)?;
        }
        self.apply_names()?;
        for &object in &touched {
            self.drop_nameless(object)?;
        }
        let mut owners = std::mem::take(&mut self.owners);
        for &object in &touched {
            self.find_owner(object, &mut owners)?;
        }
        for &object in &touched {
            let Some(attrs) = self.attrs(object, &registry)? else { continue };
            self.set_attrs(object, &attrs, owners.remove(&object))?;
        }
        for owner in owners {
            self.set_old_xattrs(owner)?;
        }
        for &object in &touched {
            if let Some(known) = self.notes.change(object)? {
                known.bonus.clear();
                known.data.clear();
                known.fresh = false;
            }
        }
        self.sink().drop_staging().map_err(ReceiveError::Sink)?;
        self.head.guid = guid;
        self.notes.finish(&mut self.head)
    }

    /// The root directory is the sink's, though it may have come before anybody knew.
    fn find_root(&mut self) -> Result<(), S::Error> {
        match self.master(b"VERSION") {
            Some(1..=NEWEST) => {}
            Some(version) => return Err(StreamError::from(Refusal::Version(version)).into()),
            None => return broken("a file system without a version"),
        }
        let Some(object) = self.master(b"ROOT") else { return broken("a file system without a root") };
        let (root, staging) = (self.root, self.staging);
        let known = self.existing(object, "a root directory that is not there")?;
        if known.kind != Kind::Directory {
            return broken("a root that is no directory");
        }
        if known.node == root {
            return Ok(());
        }
        if !known.fresh {
            return broken("another root directory");
        }
        known.node = root;
        known.parked = false;
        self.sink().remove(staging, &parked(object), true).map_err(ReceiveError::Sink)
    }

    /// The attributes of a file that the stream told of.
    fn attrs(&mut self, object: u64, registry: &Registry) -> Result<Option<Attrs>, S::Error> {
        let Some(known) = self.notes.known(object)? else { return Ok(None) };
        if !(known.kind.is_file() || known.kind == Kind::XattrDir) || known.bonus.is_empty() {
            return Ok(None);
        }
        let (bonus, spill) = (&known.bonus, &known.spill);
        if known.spill_order == known.bonus_order || spill.is_empty() {
            return Ok(Some(registry.read(known.bonus_kind, bonus, spill, known.bonus_order)?));
        }
        // Both are of one file, but written down by machines of two kinds.
        let other = registry.read(known.bonus_kind, spill, &[], known.spill_order)?;
        let attrs = registry.read(known.bonus_kind, bonus, &[], known.bonus_order)?;
        Ok(Some(Attrs { xattrs: other.xattrs, target: attrs.target.clone().or(other.target), ..attrs }))
    }

    /// Makes links and devices, whose attributes had to be known.
    fn make_late(&mut self, object: u64, registry: &Registry) -> Result<(), S::Error> {
        let known = self.notes.known(object)?;
        let Some(known) = known.filter(|known| known.kind.is_file() && known.node == 0) else {
            return Ok(());
        };
        let (kind, data, size, bonus_kind) = (known.kind, known.data.clone(), known.size, known.bonus_kind);
        let Some(attrs) = self.attrs(object, registry)? else { return Ok(()) };
        let (major, minor) = device(attrs.rdev, bonus_kind);
        let target = match &attrs.target {
            Some(target) => target.clone(),
            None => data.get(..size as usize).unwrap_or_default().to_vec(),
        };
        let new = match (kind, attrs.early.file_type()) {
            (Kind::Symlink, _) if target.is_empty() || target.contains(&0) => {
                return broken("a symbolic link that leads nowhere");
            }
            (Kind::Symlink, _) => New::Symlink(&target),
            (_, 0o010_000) => New::Fifo,
            (_, 0o020_000) => New::CharDevice(major, minor),
            (_, 0o060_000) => New::BlockDevice(major, minor),
            (_, 0o140_000) => New::Socket,
            _ => return Ok(()),
        };
        let staging = self.staging;
        let node = self.sink().make(staging, &parked(object), new).map_err(ReceiveError::Sink)?;
        if let Some(known) = self.notes.change(object)? {
            known.node = node;
            known.parked = true;
        }
        Ok(())
    }

    /// Takes names in the staging directory away. What has no other one was open at the sender when it lost its last.
    fn drop_nameless(&mut self, object: u64) -> Result<(), S::Error> {
        let staging = self.staging;
        let Some(known) = self.notes.change(object)?.filter(|known| known.parked) else { return Ok(()) };
        known.parked = false;
        let (node, is_dir, names) = (known.node, known.kind == Kind::Directory, known.names);
        if self.sink().links(node).map_err(ReceiveError::Sink)? == 1 {
            if is_dir && names > 0 {
                return broken("a directory with names and without one");
            }
            let known = self.existing(object, "an object that went")?;
            known.kind = Kind::Nameless;
            known.node = 0;
        }
        self.sink().remove(staging, &parked(object), is_dir).map_err(ReceiveError::Sink)
    }

    /// Whose extended attributes an object is part of.
    fn find_owner(&mut self, object: u64, owners: &mut BTreeSet<u64>) -> Result<(), S::Error> {
        let Some(known) = self.notes.known(object)? else { return Ok(()) };
        let (kind, parent) = (known.kind, known.parent);
        match kind {
            Kind::XattrDir => drop(owners.insert(parent)),
            Kind::XattrFile => {
                if let Some(owner) = self.notes.known(parent)?.map(|dir| dir.parent) {
                    owners.insert(owner);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn owner(&mut self, id: u64) -> u32 {
        u32::try_from(id).unwrap_or_else(|_| {
            self.received.domain_owners += 1;
            NOBODY
        })
    }

    fn set_attrs(&mut self, object: u64, attrs: &Attrs, is_owner: bool) -> Result<(), S::Error> {
        let known = self.existing(object, "an object that went")?;
        if !known.kind.is_file() {
            return Ok(());
        }
        let (node, kind, names) = (known.node, known.kind, known.names);
        let had = std::mem::replace(&mut known.xattr, attrs.xattr);
        let changes = is_owner || known.has_xattrs || attrs.xattr != had || !attrs.xattrs.is_empty();
        if attrs.has_acl() {
            self.received.access_lists += 1;
        }
        // Before version 2 of the file system it was another number.
        if kind == Kind::Directory && attrs.early.size != names + 2 {
            self.received.miscounted += 1;
        }
        if changes {
            self.set_xattrs(object, attrs.xattrs.clone())?;
        }
        let attr = SinkAttr {
            perm: (attrs.early.mode & 0o7777) as u32,
            uid: self.owner(attrs.uid),
            gid: self.owner(attrs.gid),
            atime: attrs.atime,
            mtime: attrs.mtime,
            ctime: attrs.ctime,
            btime: attrs.btime,
        };
        self.sink().set_attr(node, &attr).map_err(ReceiveError::Sink)
    }

    /// Sets extended attributes of something that the stream did not tell of itself. All senders tell of a file whose
    /// attributes change, if it has some among its own; of others Solaris does not.
    fn set_old_xattrs(&mut self, owner: u64) -> Result<(), S::Error> {
        match self.notes.known(owner)? {
            Some(known) if known.kind.is_file() && known.mixes_xattrs => {
                broken("attributes of an unchanged file")
            }
            Some(known) if known.kind.is_file() => self.set_xattrs(owner, Vec::new()),
            _ => Ok(()),
        }
    }

    /// All extended attributes of a file: those among its attributes, and those that are objects.
    fn set_xattrs(&mut self, object: u64, among: Xattrs) -> Result<(), S::Error> {
        let known = self.existing(object, "an object that went")?;
        let (node, dir, is_mixed) = (known.node, known.xattr, !among.is_empty());
        let mut xattrs = BTreeMap::new();
        for (name, value) in self.objects_of(dir)?.into_iter().chain(among) {
            match linux_name(&name) {
                Some(name) if value.len() <= MAX_VALUE => drop(xattrs.insert(name, value)),
                _ => self.received.left_xattrs += 1,
            }
        }
        let xattrs: Xattrs = xattrs.into_iter().collect();
        let left = self.sink().set_xattrs(node, &xattrs).map_err(ReceiveError::Sink)?;
        self.received.left_xattrs += left as u64;
        let known = self.existing(object, "an object that went")?;
        (known.has_xattrs, known.mixes_xattrs) = (!xattrs.is_empty(), is_mixed);
        Ok(())
    }

    /// The extended attributes that a directory of them holds.
    fn objects_of(&mut self, dir: u64) -> Result<Xattrs, S::Error> {
        let known = self.notes.known(dir)?.filter(|known| known.kind == Kind::XattrDir);
        let Some(known) = known.cloned() else { return Ok(Xattrs::new()) };
        let blocks: Vec<u64> = self.notes.blocks(dir, &known)?.iter().copied().collect();
        let mut xattrs = Xattrs::new();
        for block in blocks {
            for (name, object) in self.notes.names(dir, block)?.new {
                let known = self.existing(object, "an extended attribute that is not there")?;
                let size = known.size;
                let mut value = self.notes.value(object)?;
                // One that is too large is counted by its length.
                value.resize(usize::try_from(size).unwrap_or(usize::MAX).min(MAX_VALUE + 1), 0);
                xattrs.push((name, value));
            }
        }
        Ok(xattrs)
    }
}

/// The name on Linux: those of systems without namespaces are users'.
fn linux_name(name: &[u8]) -> Option<Vec<u8>> {
    if FOREIGN.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    match NAMESPACES.iter().any(|space| name.starts_with(space)) {
        true => Some(name.to_vec()),
        false => Some([b"user.", name].concat()),
    }
}
