//! Names: looking up, making, linking, removing and renaming what directories hold.
//!
//! Each change is one update of the tree and one logged operation. It is first checked against the
//! tree, under the lock on names, and only then carried out, so that a refusal changes nothing. The
//! `apply_…` functions are what replay calls; the others build the operation and pass it on.
//!
//! A name may lead to an inode that is lost with its node of the tree. It can be looked up nevertheless, as something
//! that nobody may read, of the kind that the name tells, for the kernel must look up what is to be removed; it can be
//! removed, and so can what it holds if it is a directory. Everything else that is asked of it is refused as damaged.

use crate::acl::{inherit, inherited_keys, inherited_perm};
use crate::error::{FsError, Result};
use crate::inode::{Inode, Locked, State};
use crate::origin::Origin;
use crate::posix::{Attr, Caller, RenameFlags};
use crate::volume::{Volume, inode_key, new_item, orphan_key, reaching};
use larder_format::items::{self, ENTRY, Entry, FIRST_COOKIE, FileKind, MAX_COLLISIONS, NameKey, ROOT_INODE};
use larder_format::node::Key;
use larder_format::ops::{Create, Link, LogOp, Rename, Unlink};
use larder_format::{InodeId, Timestamp};
use larder_pool::{Ahead, Look, Op, Update};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Hard links that an inode can have.
const MAX_LINKS: u32 = 1 << 20;
/// Directories inside each other before they are taken for damaged.
const MAX_DEPTH: u32 = 1 << 20;
/// Entries that are read from the tree at a time.
const LISTING: usize = 256;

const SETGID: u16 = 0o2000;

/// An entry that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundName {
    pub key: Key,
    pub inode: InodeId,
    pub kind: FileKind,
}

/// An entry as a listing has it.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub cookie: u64,
    pub inode: InodeId,
    pub kind: FileKind,
    pub name: Vec<u8>,
}

/// An inode to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewInode<'a> {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits, before the umask or a default access list.
    pub perm: u32,
    /// Device number; counts for devices only.
    pub rdev: u32,
    /// Where a symbolic link leads; of anything else empty.
    pub target: &'a [u8],
    /// It is opened at once, before anybody can remove it.
    pub open: bool,
}

impl NewInode<'_> {
    /// An inode with neither a device number nor a target, not opened.
    pub fn plain(kind: FileKind, perm: u32) -> Self {
        Self { kind, perm, rdev: 0, target: b"", open: false }
    }
}

/// Refuses what cannot be a name.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match items::valid_name(name) {
        true => Ok(()),
        false if name.len() > items::MAX_NAME => Err(FsError::NameTooLong),
        false => Err(FsError::Invalid),
    }
}

/// Finds `name` in `dir`, or else a free key for it.
pub(crate) fn find(
    tree: &impl Look,
    names: &NameKey,
    dir: InodeId,
    name: &[u8],
) -> Result<Result<FoundName, Option<Key>>> {
    let first = names.cookie(name);
    let mut free = first;
    let mut found = Ok(None);
    tree.scan(&Key::new(dir.get(), ENTRY, first), &mut |key, value| {
        if key.object != dir.get() || key.kind != ENTRY || key.offset >= first + MAX_COLLISIONS {
            return ControlFlow::Break(());
        }
        match Entry::decode(value) {
            Ok(entry) if entry.name == name => {
                found = Ok(Some(FoundName { key: *key, inode: entry.inode, kind: entry.kind }));
                return ControlFlow::Break(());
            }
            Ok(_) => free += u64::from(free == key.offset),
            Err(corrupt) => {
                found = Err(corrupt);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    let free = (free < first + MAX_COLLISIONS).then(|| Key::new(dir.get(), ENTRY, free));
    Ok(found?.ok_or(free))
}

/// The path of an inode below the root of a dataset or snapshot; see [`Volume::path_of`].
pub(crate) fn path_in(tree: &impl Look, id: InodeId) -> Result<Option<String>> {
    let text = |part: &Vec<u8>| String::from_utf8_lossy(part).into_owned();
    let path = |parts: Vec<_>| format!("/{}", parts.iter().map(text).collect::<Vec<_>>().join("/"));
    Ok(parts_in(tree, id)?.map(path))
}

/// The names on the way from the root to an inode; none when no name leads to it.
pub(crate) fn parts_in(tree: &impl Look, id: InodeId) -> Result<Option<Vec<Vec<u8>>>> {
    let mut parts = Vec::new();
    let mut at = id;
    while at != ROOT_INODE {
        let Some(value) = tree.get(&inode_key(at))? else { return Ok(None) };
        let parent = items::Inode::decode(&value)?.parent;
        let mut name = None;
        let key = |cookie| Key::new(parent.get(), ENTRY, cookie);
        let entries = (Bound::Included(key(0)), Bound::Included(key(u64::MAX)));
        let scanned = tree.scan_within(entries, &mut |_, value| match Entry::decode(value) {
            Ok(entry) if entry.inode == at => {
                name = Some(entry.name.to_vec());
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        // A path longer than the kernel takes is none: parents read from a damaged tree may go round.
        let Some(name) = name.filter(|_| parts.len() < 2048) else { return Ok(scanned.map(|()| None)?) };
        parts.push(name);
        at = parent;
    }
    parts.reverse();
    Ok(Some(parts))
}

/// The name under a key of a directory, for people.
pub(crate) fn name_in(tree: &impl Look, dir: InodeId, cookie: u64) -> Result<Option<String>> {
    let value = tree.get(&Key::new(dir.get(), ENTRY, cookie))?;
    let entry = value.as_ref().map(|value| Entry::decode(value)).transpose()?;
    Ok(entry.map(|entry| String::from_utf8_lossy(entry.name).into_owned()))
}

/// Goes where the inodes and other keys are, and to those that are to be removed: what an operation reads before it
/// changes anything.
fn warm(states: &Locked<'_>, others: &[Key], removed: &[Key]) -> impl Fn(&Ahead<'_>) -> Result<()> + use<> {
    let keys: Vec<_> = states.items().map(|(id, _)| inode_key(id)).chain(others.iter().copied()).collect();
    let removed = removed.to_vec();
    move |tree| {
        keys.iter().try_for_each(|key| tree.reach(key))?;
        Ok(tree.reach_removal(&removed)?)
    }
}

/// Writes the inodes' values.
fn store(tree: &mut Update<'_>, states: &Locked<'_>) -> Result<()> {
    Ok(states.items().try_for_each(|(id, item)| tree.insert(inode_key(id), &item.encode()))?)
}

fn note(tree: &mut Update<'_>, origin: Origin, op: impl FnOnce() -> LogOp) {
    if origin == Origin::Live {
        tree.log(op().encode());
    }
}

/// Whether the name that was taken was the last one of a file with content.
fn was_last_of_data(state: &State) -> bool {
    state.live.nlink == 0 && state.live.kind == FileKind::Regular && state.live.size > 0
}

/// The same for an operation that took a file's last name.
fn note_removal(tree: &mut Update<'_>, origin: Origin, op: impl FnOnce() -> LogOp) {
    if origin == Origin::Live {
        tree.log_removal(op().encode());
    }
}

/// An entry was added to (1) or taken from (-1) a directory, along with `subdirs` subdirectories.
fn touch_directory(states: &mut Locked<'_>, dir: InodeId, entries: i64, subdirs: i32, time: Timestamp) {
    states.of(dir).change(|item| {
        item.entries = item.entries.saturating_add_signed(entries);
        item.nlink = item.nlink.saturating_add_signed(subdirs);
        item.mtime = time;
        item.ctime = time;
    });
}

impl Volume {
    /// A path of an inode below the volume's root, for people; none when no name leads to it (it was removed, or the
    /// name by which it was made was).
    ///
    /// # Errors
    /// When something on the way cannot be read.
    pub fn path_of(&self, id: InodeId) -> Result<Option<String>> {
        self.dataset.look(|view| path_in(view, id))
    }

    fn find_or_free(&self, dir: InodeId, name: &[u8]) -> Result<Result<FoundName, Option<Key>>> {
        self.dataset.look(|view| find(view, &self.dataset.name_key(), dir, name))
    }

    /// The entry of `name` in `dir`, if there is one.
    pub(crate) fn find(&self, dir: InodeId, name: &[u8]) -> Result<Option<FoundName>> {
        Ok(self.find_or_free(dir, name)?.ok())
    }

    fn existing(&self, dir: InodeId, name: &[u8]) -> Result<FoundName> {
        self.find(dir, name)?.ok_or(FsError::NotFound)
    }

    /// The key that a new `name` in `dir` gets.
    pub(crate) fn free_key(&self, dir: InodeId, name: &[u8]) -> Result<Key> {
        match self.find_or_free(dir, name)? {
            Ok(_) => Err(FsError::Exists),
            Err(free) => free.ok_or(FsError::NoSpace),
        }
    }

    /// The object named `name` in `parent`.
    pub fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        if name.len() > items::MAX_NAME {
            return Err(FsError::NameTooLong);
        }
        let dir = self.directory_or_lost(parent)?;
        let id = match (name, dir) {
            (b".", _) => parent,
            (b"..", Some(dir)) => dir.lock()?.live.parent,
            (b"..", None) => self.lost.lock().get(&parent).map_or(ROOT_INODE, |lost| lost.parent),
            _ => return self.look_up_entry(parent, name),
        };
        self.getattr(id)
    }

    fn look_up_entry(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        let mut gone = None;
        loop {
            let found = self.existing(parent, name)?;
            match self.inode(found.inode).and_then(|_| self.getattr(found.inode)) {
                Err(FsError::Damaged(_)) => return self.show_lost(parent, found),
                // It was removed after it was found: the name leads elsewhere by now, or nowhere.
                Err(FsError::NotFound) if gone != Some(found.inode) => gone = Some(found.inode),
                shown => return shown,
            }
        }
    }

    /// A directory, or none when its inode is lost.
    fn directory_or_lost(&self, id: InodeId) -> Result<Option<Arc<Inode>>> {
        match self.directory(id) {
            Err(FsError::Damaged(_)) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Attributes that stand in for a lost inode, which `found` leads to; its owner is its directory's.
    fn show_lost(&self, parent: InodeId, found: FoundName) -> Result<Attr> {
        let (uid, gid) = self.getattr(parent).map_or((0, 0), |dir| (dir.uid, dir.gid));
        let perm = if found.kind == FileKind::Directory { 0o700 } else { 0 };
        let item = items::Inode {
            parent,
            ..new_item(found.kind, perm, (uid, gid), Timestamp { secs: 0, nanos: 0 })
        };
        self.lost.lock().insert(found.inode, item);
        Ok(self.attr(found.inode, &Inode::new(found.inode, item).state.lock()))
    }

    /// Whether a directory holds names that can be read, and whether some cannot.
    fn look_for_names(&self, dir: InodeId) -> Result<(bool, bool)> {
        let key = |cookie| Key::new(dir.get(), ENTRY, cookie);
        let mut any = false;
        let lost = self.dataset.view()?.scan_past(key(0)..=key(u64::MAX), &mut |_, _| {
            any = true;
            ControlFlow::Break(())
        });
        Ok((any, lost))
    }

    /// Somebody reads the directory from its beginning.
    pub(crate) fn listing_begins(&self, dir: InodeId) -> Result<()> {
        if let Some(inode) = self.directory_or_lost(dir)? {
            self.touch_atime(dir, &mut *inode.lock()?);
        }
        Ok(())
    }

    /// Up to a few hundred entries of `dir` after `cookie`, ascending; none at the end.
    pub(crate) fn list(&self, dir: InodeId, cookie: u64) -> Result<Vec<Listed>> {
        let from = (cookie + 1).max(FIRST_COOKIE);
        if let Some(inode) = self.directory_or_lost(dir)? {
            self.touch_atime(dir, &mut *inode.lock()?);
        }
        let mut listed: Vec<Listed> = Vec::new();
        let mut bad = None;
        let key = |cookie| Key::new(dir.get(), ENTRY, cookie);
        let range = key(from)..=key(u64::MAX);
        let take = |listed: &mut Vec<Listed>, bad: &mut Option<_>, key: &Key, value: &[u8]| {
            match Entry::decode(value) {
                Ok(Entry { inode, kind, name }) => {
                    listed.push(Listed { cookie: key.offset, inode, kind, name: name.to_vec() });
                }
                Err(corrupt) => *bad = Some(corrupt),
            }
            if bad.is_some() || listed.len() == LISTING {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let bounds = (Bound::Included(*range.start()), Bound::Included(*range.end()));
        let scanned = self
            .dataset
            .view()?
            .scan_within(bounds, &mut |key, value| take(&mut listed, &mut bad, key, value));
        if scanned.is_err() && listed.is_empty() {
            let mut take = |key: &Key, value: &[u8]| take(&mut listed, &mut bad, key, value);
            self.dataset.view()?.scan_past(range, &mut take);
        }
        // Readable names are told first, then the error.
        match (scanned, bad) {
            _ if !listed.is_empty() => Ok(listed),
            (Err(error), _) => Err(error.into()),
            (_, Some(corrupt)) => Err(corrupt.into()),
            (Ok(()), None) if self.pool.damage().is_damaged(self.dataset.owner(), dir.get(), 0..0) => {
                match self
                    .dataset
                    .view()?
                    .scan_past(key(0)..=key(from), &mut |_, _| ControlFlow::Continue(()))
                {
                    true => Err(FsError::Damaged(format!("some names of directory {dir} cannot be read"))),
                    false => Ok(listed),
                }
            }
            (Ok(()), None) => Ok(listed),
        }
    }

    /// Makes an inode named `name` in `parent`.
    pub fn make(&self, parent: InodeId, name: &[u8], new: NewInode<'_>, caller: &Caller) -> Result<Attr> {
        let NewInode { kind, perm, rdev, target, open } = new;
        check_name(name)?;
        if kind == FileKind::Symlink && target.len() > items::MAX_TARGET {
            return Err(FsError::NameTooLong);
        }
        if kind == FileKind::Symlink && target.is_empty() {
            return Err(FsError::NotFound);
        }
        self.check_space()?;
        self.lease_ids()?;
        let op = self.enter()?;
        let _names = self.names.lock();
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let plan = self.plan(parent, kind, perm, caller)?;
        let key = self.free_key(parent, name)?;
        let create = Create {
            inode: self.next_inode(&op)?,
            name: name.to_vec(),
            rdev: if device { rdev } else { 0 },
            target: target.to_vec(),
            ..plan
        };
        self.apply_create(&op, create, Some(key), open, Origin::Live)
    }

    /// Makes a file without a name, and opens it: an orphan from birth. `linkable`: it may get a name.
    pub fn tmpfile(&self, parent: InodeId, perm: u32, linkable: bool, caller: &Caller) -> Result<Attr> {
        self.check_space()?;
        self.lease_ids()?;
        let op = self.enter()?;
        // Nobody looks for it before its number is given out, so it has all of its state by then.
        let _names = self.names.lock();
        let plan = self.plan(parent, FileKind::Regular, perm, caller)?;
        let create = Create { inode: self.next_inode(&op)?, ..plan };
        let id = create.inode;
        let attr = self.apply_create(&op, create, None, true, Origin::Live)?;
        self.inode(id)?.lock()?.nameless = linkable;
        Ok(attr)
    }

    fn next_inode(&self, op: &Op<'_>) -> Result<InodeId> {
        self.dataset.update_after(op, reaching([]), |tree| tree.allocate_inode().ok_or(FsError::NoSpace))
    }

    /// The creation of an inode in `parent`, as far as the directory and the caller decide it; inode number, name,
    /// device number and target are left out.
    fn plan(&self, parent: InodeId, kind: FileKind, perm: u32, caller: &Caller) -> Result<Create> {
        let dir = self.directory(parent)?;
        let state = dir.lock()?;
        let mut perm = (perm & 0o7777) as u16;
        let mut gid = caller.gid;
        if state.live.perm & SETGID != 0 {
            gid = state.live.gid;
            // That a stranger to the group may not ask for the bit for a program is the kernel's to see: only
            // it knows all groups of the caller.
            perm |= if kind == FileKind::Directory { SETGID } else { 0 };
        }
        let acl = if kind == FileKind::Symlink { None } else { self.default_list(parent, &state)? };
        perm = match &acl {
            Some(acl) => inherited_perm(acl, perm),
            None => perm & !(caller.umask & 0o777) as u16,
        };
        Ok(Create {
            inode: parent,
            parent,
            name: Vec::new(),
            kind,
            perm,
            uid: caller.uid,
            gid,
            rdev: 0,
            target: Vec::new(),
            acl,
            time: self.now(),
        })
    }

    /// Puts what is created under `key`, which is free, or makes it an orphan where it has no name.
    pub(crate) fn apply_create(
        &self,
        op: &Op<'_>,
        create: Create,
        key: Option<Key>,
        open: bool,
        origin: Origin,
    ) -> Result<Attr> {
        let Create { inode: id, parent, kind, time, .. } = create;
        let dir = self.directory(parent)?;
        let mut item = new_item(kind, create.perm, (create.uid, create.gid), time);
        item.rdev = create.rdev;
        item.parent = parent;
        item.size = create.target.len() as u64;
        if key.is_none() {
            item.nlink = 0;
        }
        let inode = Inode::new(id, item);
        inode.state.lock().open = u32::from(open);
        let entry = Entry { inode: id, kind, name: &create.name }.encode();
        // In the cache before it has a name: nobody else may load it from the tree meanwhile.
        self.adopt(&inode);
        let locked = Locked::lock(key.map(|_| &dir).into_iter().chain([&inode]));
        let result = locked.and_then(|mut states| {
            let mut keys = vec![Key::new(id.get(), items::SYMLINK, 0), key.unwrap_or(orphan_key(id))];
            keys.extend(create.acl.iter().flat_map(|_| inherited_keys(&self.dataset.name_key(), id)));
            let reads = warm(&states, &keys, &[]);
            self.dataset.update_after(op, reads, |tree| {
                tree.note_inode(id);
                match key {
                    Some(key) => {
                        let subdirs = i32::from(kind == FileKind::Directory);
                        touch_directory(&mut states, parent, 1, subdirs, time);
                        tree.insert(key, &entry)?;
                    }
                    None => tree.insert(orphan_key(id), &[])?,
                }
                if kind == FileKind::Symlink {
                    tree.insert(Key::new(id.get(), items::SYMLINK, 0), &create.target)?;
                }
                if let Some(acl) = &create.acl {
                    let flags = inherit(tree, &self.dataset.name_key(), id, kind, acl)?;
                    states.of(id).change(|item| item.flags |= flags);
                }
                store(tree, &states)?;
                note(tree, origin, || LogOp::Create(create));
                Ok(self.attr(id, states.of(id)))
            })
        });
        if result.is_err() {
            self.disown(id);
        }
        result
    }

    /// Gives an inode another name, or its first one while it is open.
    pub fn link(&self, inode: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        self.check_space()?;
        let op = self.enter()?;
        let _names = self.names.lock();
        let link = Link { inode, parent, name: name.to_vec(), time: self.now() };
        self.apply_link(&op, link, Origin::Live)
    }

    pub(crate) fn apply_link(&self, op: &Op<'_>, link: Link, origin: Origin) -> Result<Attr> {
        let Link { inode: id, parent, time, .. } = link;
        let dir = self.directory(parent)?;
        let inode = self.inode(id)?;
        let key = self.free_key(parent, &link.name)?;
        let mut states = Locked::lock([&dir, &inode])?;
        let item = states.of(id).live;
        // An inode without a name that nobody has open is being removed.
        let unborn = states.of(id).nameless && states.of(id).open > 0 || origin == Origin::Replay;
        match item.nlink {
            _ if item.kind == FileKind::Directory => return Err(FsError::Permission),
            0 if !unborn => return Err(FsError::NotFound),
            MAX_LINKS.. => return Err(FsError::TooManyLinks),
            _ => {}
        }
        let entry = Entry { inode: id, kind: item.kind, name: &link.name }.encode();
        let reads = warm(&states, &[key], &[orphan_key(id)]);
        self.dataset.update_after(op, reads, |tree| {
            touch_directory(&mut states, parent, 1, 0, time);
            if item.nlink == 0 {
                if item.flags & items::Inode::HAS_TAIL == 0 {
                    tree.remove(&orphan_key(id))?;
                }
                states.of(id).change(|item| item.parent = parent);
            }
            states.of(id).nameless = false;
            states.of(id).change(|item| {
                item.nlink += 1;
                item.ctime = time;
            });
            tree.insert(key, &entry)?;
            store(tree, &states)?;
            note(tree, origin, || LogOp::Link(link));
            Ok(self.attr(id, states.of(id)))
        })
    }

    /// Takes a name away: of a directory, which must be empty, or of anything else.
    pub fn unlink(&self, parent: InodeId, name: &[u8], directory: bool) -> Result<()> {
        match name {
            b"." if directory => return Err(FsError::Invalid),
            b".." if directory => return Err(FsError::NotEmpty),
            _ => check_name(name)?,
        }
        let (removing, op) = self.enter_removing()?;
        let names = self.names.lock();
        let unlink = Unlink { parent, name: name.to_vec(), directory, time: self.now() };
        let orphan = self.apply_unlink(&op, unlink, Origin::Live)?;
        drop(names);
        drop((op, removing));
        if let Some(id) = orphan {
            self.bury(id);
        }
        Ok(())
    }

    /// Gives the inode if nothing needs it any more.
    pub(crate) fn apply_unlink(
        &self,
        op: &Op<'_>,
        unlink: Unlink,
        origin: Origin,
    ) -> Result<Option<InodeId>> {
        let Unlink { parent, directory, time, .. } = unlink;
        let dir = self.directory_or_lost(parent)?;
        let found = self.existing(parent, &unlink.name)?;
        match (found.kind == FileKind::Directory, directory) {
            (true, false) => return Err(FsError::IsDirectory),
            (false, true) => return Err(FsError::NotDirectory),
            _ => {}
        }
        let inode = match self.inode(found.inode) {
            // The inode is lost already: its name can go.
            Err(FsError::Damaged(_)) => None,
            found => Some(found?),
        };
        let holds = match &inode {
            Some(inode) => inode.lock()?.live.entries > 0,
            None => true,
        };
        if directory && holds {
            let (some, lost) = self.look_for_names(found.inode)?;
            // Names that cannot be read any more keep nothing.
            if some || inode.is_some() && !lost {
                return Err(FsError::NotEmpty);
            }
        }
        let mut states = Locked::lock(dir.iter().chain(&inode))?;
        let orphan_key = inode.as_ref().map(|_| orphan_key(found.inode));
        let reads = warm(&states, orphan_key.as_slice(), &[found.key]);
        let orphan = self.dataset.update_after(op, reads, |tree| {
            if dir.is_some() {
                touch_directory(&mut states, parent, -1, -i32::from(directory), time);
            }
            tree.remove(&found.key)?;
            let orphan = match inode {
                Some(_) => self.lose_name(tree, &mut states, found.inode, time)?,
                None => None,
            };
            store(tree, &states)?;
            match inode.is_some() && was_last_of_data(states.of(found.inode)) {
                true => note_removal(tree, origin, || LogOp::Unlink(unlink)),
                false => note(tree, origin, || LogOp::Unlink(unlink)),
            }
            Ok::<_, FsError>(orphan)
        })?;
        self.lost.lock().remove(&found.inode);
        Ok(orphan)
    }

    /// An inode lost a name; without another it becomes an orphan, and is given if nobody needs it.
    fn lose_name(
        &self,
        tree: &mut Update<'_>,
        states: &mut Locked<'_>,
        id: InodeId,
        time: Timestamp,
    ) -> Result<Option<InodeId>> {
        let state = states.of(id);
        state.change(|item| {
            let last = item.kind == FileKind::Directory;
            item.nlink = if last { 0 } else { item.nlink.saturating_sub(1) };
            item.ctime = time;
        });
        if state.live.nlink > 0 {
            return Ok(None);
        }
        tree.insert(orphan_key(id), &[])?;
        Ok((!self.is_needed(id, state)).then_some(id))
    }

    /// Renames, replacing what may be replaced.
    pub fn rename(
        &self,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        if flags.noreplace && flags.exchange {
            return Err(FsError::Invalid);
        }
        let (removing, op) = self.enter_removing()?;
        let names = self.names.lock();
        if flags.noreplace && self.find(new_parent, new_name)?.is_some() {
            self.existing(parent, name)?;
            return Err(FsError::Exists);
        }
        let rename = Rename {
            parent,
            name: name.to_vec(),
            new_parent,
            new_name: new_name.to_vec(),
            exchange: flags.exchange,
            time: self.now(),
        };
        let orphan = self.apply_rename(&op, rename, Origin::Live)?;
        drop(names);
        drop((op, removing));
        if let Some(id) = orphan {
            self.bury(id);
        }
        Ok(())
    }

    /// Gives the replaced inode if nothing needs it any more.
    pub(crate) fn apply_rename(
        &self,
        op: &Op<'_>,
        rename: Rename,
        origin: Origin,
    ) -> Result<Option<InodeId>> {
        let Rename { parent, new_parent, exchange, time, .. } = rename;
        let (from_dir, to_dir) = (self.directory(parent)?, self.directory(new_parent)?);
        let from = self.existing(parent, &rename.name)?;
        let to = self.find_or_free(new_parent, &rename.new_name)?;
        let (to_key, to) = match to {
            Ok(found) => (found.key, Some(found)),
            Err(free) => (free.ok_or(FsError::NoSpace)?, None),
        };
        if exchange && to.is_none() {
            return Err(FsError::NotFound);
        }
        if to.is_some_and(|to| to.inode == from.inode) {
            return Ok(None);
        }
        self.check_subtree(from, new_parent)?;
        if let (true, Some(to)) = (exchange, to) {
            self.check_subtree(to, parent)?;
        }
        let moved = self.inode(from.inode)?;
        let target = to.map(|to| self.inode(to.inode)).transpose()?;
        let mut states = Locked::lock([&from_dir, &to_dir, &moved].into_iter().chain(target.as_ref()))?;
        let moves_dir = from.kind == FileKind::Directory;
        let meets_dir = to.is_some_and(|to| to.kind == FileKind::Directory);
        if let (false, Some(to)) = (exchange, to) {
            match (moves_dir, meets_dir) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                _ => {}
            }
            if meets_dir && states.of(to.inode).live.entries > 0 {
                return Err(FsError::NotEmpty);
            }
        }
        let entry =
            |found: FoundName, name: &[u8]| Entry { inode: found.inode, kind: found.kind, name }.encode();
        let replaced = to.map_or(to_key, |to| orphan_key(to.inode));
        let reads = warm(&states, &[to_key, replaced], &[from.key]);
        self.dataset.update_after(op, reads, |tree| {
            let mut orphan = None;
            let gained = i32::from(moves_dir) - i32::from(meets_dir);
            match to {
                Some(to) if exchange => {
                    tree.insert(from.key, &entry(to, &rename.name))?;
                    touch_directory(&mut states, parent, 0, -gained, time);
                    touch_directory(&mut states, new_parent, 0, gained, time);
                    states.of(to.inode).change(|item| (item.parent, item.ctime) = (parent, time));
                }
                Some(to) => {
                    tree.remove(&from.key)?;
                    touch_directory(&mut states, parent, -1, -i32::from(moves_dir), time);
                    touch_directory(&mut states, new_parent, 0, gained, time);
                    orphan = self.lose_name(tree, &mut states, to.inode, time)?;
                }
                None => {
                    tree.remove(&from.key)?;
                    touch_directory(&mut states, parent, -1, -i32::from(moves_dir), time);
                    touch_directory(&mut states, new_parent, 1, gained, time);
                }
            }
            tree.insert(to_key, &entry(from, &rename.new_name))?;
            states.of(from.inode).change(|item| (item.parent, item.ctime) = (new_parent, time));
            store(tree, &states)?;
            match to {
                Some(to) if !exchange && was_last_of_data(states.of(to.inode)) => {
                    note_removal(tree, origin, || LogOp::Rename(rename))
                }
                _ => note(tree, origin, || LogOp::Rename(rename)),
            }
            Ok(orphan)
        })
    }

    /// Refuses to move a directory into itself or anything below it.
    fn check_subtree(&self, moved: FoundName, into: InodeId) -> Result<()> {
        if moved.kind != FileKind::Directory {
            return Ok(());
        }
        let (mut at, mut depth) = (into, 0);
        while at != moved.inode {
            if at == ROOT_INODE {
                return Ok(());
            }
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(FsError::Io(format!("directory {into} is in a circle")));
            }
            at = self.inode(at)?.lock()?.live.parent;
        }
        Err(FsError::Invalid)
    }

    /// A symbolic link's target.
    pub fn readlink(&self, id: InodeId) -> Result<Vec<u8>> {
        let inode = self.inode(id)?;
        let mut state = inode.lock()?;
        if state.live.kind != FileKind::Symlink {
            return Err(FsError::Invalid);
        }
        self.touch_atime(id, &mut state);
        drop(state);
        let key = Key::new(id.get(), items::SYMLINK, 0);
        let target = self.dataset.look(|view| view.get(&key))?;
        target.ok_or_else(|| FsError::Io(format!("inode {id} has no target")))
    }
}
