//! Changes from one snapshot of a dataset to another, by files and folders, as zfs-diff(8) tells them.
//!
//! The trees are compared ([`larder_pool::Changes`]), so the cost depends on what changed. Entries of one inode lie
//! together: they make one line, whatever number of them differs. Lines come in the order of inodes, many at a time, so
//! that each folder is read once for the names of all ([`crate::paths`]); files with several names come after others,
//! for their names lie elsewhere in the trees, which are compared once more for so many of these.
//!
//! # What is a change
//! Whatever can be seen of a file or folder, but for its last access and the space it takes. Extents beyond the end,
//! which are dropped by and by after a cut, are none. An inode without a name, removed while it was open, is not there.

use crate::control::ZFS;
use crate::error::{FsError, Result};
use crate::paths::{Path, Paths, Place};
use crate::volume::inode_key;
use larder_format::items::{ENTRY, EXTENT, Entry, Extent, FileKind, INODE, Inode};
use larder_format::node::Key;
use larder_format::{Corrupt, InodeId, Timestamp};
use larder_pool::{Changes, Differs, Look, SnapshotView};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Nodes that one step of a comparison reads.
const NODES: usize = 64;
/// Changed inodes whose names are looked for together.
const TOGETHER: usize = 1 << 15;
/// Changed files with several names that are kept until theirs are looked for together: some 100 MiB.
const LINKED: usize = 1 << 17;

/// A difference's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffKind {
    /// Content, attributes, what a folder holds, or the number of names.
    Modified,
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It has another path; its content may have changed, too.
    Renamed,
}

/// A file or folder that differs. Paths are those below the dataset's root and begin with `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDiff {
    /// Its number in the dataset.
    pub inode: InodeId,
    /// Its type.
    pub file: FileKind,
    /// The difference.
    pub kind: DiffKind,
    /// Where it was, if it was there.
    pub old: Option<Vec<u8>>,
    /// Where it is, if it is there.
    pub new: Option<Vec<u8>>,
    /// Names that it has more than it had.
    pub links: i64,
    /// Its last change; of what is gone the last one that is known.
    pub ctime: Timestamp,
    /// Of a file that has or had several names: those that it lost.
    pub lost_names: Vec<Vec<u8>>,
    /// Of a file that has or had several names: those that it got.
    pub new_names: Vec<Vec<u8>>,
}

/// Outcome for one changed inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiffItem {
    /// A change.
    Change(FileDiff),
    /// A change that cannot be told whole.
    Unknown {
        /// Whose.
        inode: InodeId,
        /// The snapshot in which something cannot be read.
        snapshot: String,
        /// The reason, in words.
        why: String,
    },
}

/// A comparison under way. The snapshots cannot be destroyed meanwhile.
pub struct Diff<'a> {
    old: Paths<'a>,
    new: Paths<'a>,
    of: (&'a SnapshotView, &'a SnapshotView),
    changes: Changes<'a>,
    touched: Vec<Touched>,
    /// Changed files that have or had several names.
    linked: BTreeMap<InodeId, Pair>,
    is_over: bool,
}

/// Differences in the entries of one inode.
struct Touched {
    id: u64,
    /// Its inode's values, where these differ.
    values: Option<(Found, Found)>,
    /// The first offsets of extents that one side has alone.
    extents: (u64, u64),
    /// Anything else differs.
    others: bool,
}

/// An inode of one side, if it is there.
type Found = std::result::Result<Option<Inode>, Corrupt>;

/// A changed inode, as it was and as it is.
struct Pair {
    old: Option<Inode>,
    new: Option<Inode>,
}

/// Places of inodes, where they could be found.
type Places = HashMap<InodeId, std::result::Result<Place, String>>;

/// Places of a file with several names that only one side has.
#[derive(Default)]
struct Links {
    lost: Vec<Place>,
    new: Vec<Place>,
}

impl<'a> Diff<'a> {
    /// From one snapshot of a dataset to a later one.
    pub fn new(old: &'a SnapshotView, new: &'a SnapshotView) -> Self {
        Self {
            old: Paths::new(old),
            new: Paths::new(new),
            of: (old, new),
            changes: Changes::between(Some(old), new),
            touched: Vec::new(),
            linked: BTreeMap::new(),
            is_over: false,
        }
    }

    /// Goes on, and returns whether there is more. What is told before an error is right.
    ///
    /// # Errors
    /// When a part of the trees cannot be read; its text says behind which inode.
    pub fn step(&mut self, emit: &mut dyn FnMut(DiffItem)) -> Result<bool> {
        let mut shown = |item: DiffItem| {
            if !is_hidden(&item) {
                emit(item)
            }
        };
        let emit: &mut dyn FnMut(DiffItem) = &mut shown;
        if self.is_over {
            return self.tell_linked(emit);
        }
        let touched = &mut self.touched;
        let compared = self.changes.step(NODES, |differs| {
            if let Differs::Entry { key, old, new } = differs {
                touch(touched, key, old, new);
            }
        });
        match compared {
            Err(error) => {
                // The last one may not be whole.
                let last = self.touched.pop();
                self.tell_touched(emit);
                self.give_up_linked(emit);
                let behind = last.map_or_else(String::new, |last| format!(" behind inode {}", last.id));
                Err(match FsError::from(error) {
                    FsError::Damaged(why) => {
                        FsError::Damaged(format!("their trees cannot be read{behind}: {why}"))
                    }
                    FsError::Io(why) => FsError::Io(format!("their trees cannot be read{behind}: {why}")),
                    other => other,
                })
            }
            Ok(true) if self.touched.len() <= TOGETHER => Ok(true),
            Ok(more) => {
                self.is_over = !more;
                let last = if more { self.touched.pop() } else { None };
                self.tell_touched(emit);
                self.touched.extend(last);
                if self.linked.len() > LINKED {
                    self.tell_linked(emit)?;
                }
                Ok(true)
            }
        }
    }

    fn unknown(&self, inode: InodeId, is_old: bool, why: String) -> DiffItem {
        let of = if is_old { self.of.0 } else { self.of.1 };
        DiffItem::Unknown { inode, snapshot: of.record().name.clone(), why }
    }

    /// Tells of all that is touched; of files with several names later.
    fn tell_touched(&mut self, emit: &mut dyn FnMut(DiffItem)) {
        let mut pairs = Vec::new();
        for touched in std::mem::take(&mut self.touched) {
            let id = InodeId::new(touched.id);
            match self.pair(&touched) {
                Ok(None) => {}
                Ok(Some(pair)) if pair.is_linked() => drop(self.linked.insert(id, pair)),
                Ok(Some(pair)) => pairs.push((id, pair)),
                Err((is_old, why)) => emit(self.unknown(id, is_old, why)),
            }
        }
        let (mut old, mut new) = self.paths(pairs.iter().map(|(id, pair)| (*id, pair)));
        for (id, pair) in pairs {
            let paths = (self.old.path(old.remove(&id)), self.new.path(new.remove(&id)));
            emit(self.told(id, &pair, paths, Links::default()));
        }
    }

    /// Paths of the inodes on either side where they are there.
    fn paths<'b>(&mut self, pairs: impl Iterator<Item = (InodeId, &'b Pair)> + Clone) -> (Places, Places) {
        let old: Vec<_> = pairs.clone().filter_map(|(id, pair)| Some((id, pair.old?.parent))).collect();
        let new: Vec<_> = pairs.filter_map(|(id, pair)| Some((id, pair.new?.parent))).collect();
        (self.old.of(&old), self.new.of(&new))
    }

    /// The inode on both sides, when there is something to tell of it; or why and where it cannot be read.
    fn pair(&self, touched: &Touched) -> std::result::Result<Option<Pair>, (bool, String)> {
        let (old, new) = match &touched.values {
            Some(both) => *both,
            None => {
                let value = self.of.1.get(&inode_key(InodeId::new(touched.id)));
                let value = value.map_err(|error| (false, error.to_string()))?;
                let both = value.map(|value| Inode::decode(&value)).transpose();
                (both, both)
            }
        };
        let named = |found: Found, is_old: bool| match found {
            Ok(inode) => Ok(inode.filter(|inode| inode.nlink > 0)),
            Err(corrupt) => Err((is_old, corrupt.to_string())),
        };
        let (old, new) = (named(old, true)?, named(new, false)?);
        let is_changed = match (&old, &new) {
            (None, None) => false,
            (Some(old), Some(new)) => {
                let data = touched.extents.0 < old.size || touched.extents.1 < new.size;
                data || touched.others || visible(old) != visible(new)
            }
            _ => true,
        };
        Ok(is_changed.then_some(Pair { old, new }))
    }

    /// Tells of some files with several names. True while there are more.
    fn tell_linked(&mut self, emit: &mut dyn FnMut(DiffItem)) -> Result<bool> {
        if self.linked.is_empty() {
            return Ok(false);
        }
        let mut links = match self.links(&self.linked) {
            Ok(links) => links,
            Err(error) => {
                self.give_up_linked(emit);
                return Err(error);
            }
        };
        let linked = std::mem::take(&mut self.linked);
        let (mut old, mut new) = self.paths(linked.iter().map(|(id, pair)| (*id, pair)));
        for (id, pair) in linked {
            let paths = (self.old.path(old.remove(&id)), self.new.path(new.remove(&id)));
            emit(self.told(id, &pair, paths, links.remove(&id).unwrap_or_default()));
        }
        Ok(false)
    }

    /// Tells that files with several names changed, the names of which cannot all be found.
    fn give_up_linked(&mut self, emit: &mut dyn FnMut(DiffItem)) {
        for id in std::mem::take(&mut self.linked).into_keys() {
            emit(self.unknown(id, false, "it changed; its names may be in what cannot be read".to_owned()));
        }
    }

    /// Places that these files lost and got.
    fn links(&self, of: &BTreeMap<InodeId, Pair>) -> Result<HashMap<InodeId, Links>> {
        let mut links: HashMap<InodeId, Links> = HashMap::new();
        let mut changes = Changes::between(Some(self.of.0), self.of.1);
        let mut visit = |differs: Differs<'_>| {
            let Differs::Entry { key: Key { object, kind: ENTRY, .. }, old, new } = differs else { return };
            for (value, is_old) in [(old, true), (new, false)] {
                let entry = value.and_then(|value| Entry::decode(value).ok());
                let Some(entry) = entry.filter(|entry| of.contains_key(&entry.inode)) else { continue };
                let links = links.entry(entry.inode).or_default();
                let side = if is_old { &mut links.lost } else { &mut links.new };
                side.push((InodeId::new(object), entry.name.to_vec()));
            }
        };
        while changes.step(NODES, &mut visit)? {}
        for Links { lost, new } in links.values_mut() {
            // A name that was taken away and given again may have another key.
            let both: HashSet<_> = new.iter().cloned().collect();
            let kept: HashSet<_> = lost.iter().filter(|place| both.contains(place)).cloned().collect();
            lost.retain(|place| !kept.contains(place));
            new.retain(|place| !kept.contains(place));
        }
        Ok(links)
    }

    /// The line of an inode.
    fn told(
        &mut self,
        id: InodeId,
        pair: &Pair,
        (old, new): (Option<Path>, Option<Path>),
        links: Links,
    ) -> DiffItem {
        let lost_names: std::result::Result<Vec<_>, _> =
            self.old.of_places(&links.lost).into_iter().collect();
        let new_names: std::result::Result<Vec<_>, _> = self.new.of_places(&links.new).into_iter().collect();
        let (lost_names, new_names) = match (lost_names, new_names) {
            (Ok(lost), Ok(new)) => (lost, new),
            (Err(why), _) => return self.unknown(id, true, why),
            (_, Err(why)) => return self.unknown(id, false, why),
        };
        let links = match (&pair.old, &pair.new) {
            (Some(old), Some(new)) if old.kind != FileKind::Directory => {
                i64::from(new.nlink) - i64::from(old.nlink)
            }
            _ => 0,
        };
        // A name that it lost, or got, says more than one that it keeps.
        let is_moved = links == 0 && !lost_names.is_empty() && !new_names.is_empty();
        let chosen = |path: Option<Path>, names: &[Vec<u8>]| match names.first() {
            Some(name) if is_moved || matches!(path, Some(Err(_))) => Ok(Some(name.clone())),
            _ => path.transpose(),
        };
        let (old, new) = match (chosen(old, &lost_names), chosen(new, &new_names)) {
            (Ok(old), Ok(new)) => (old, new),
            (Err(why), _) => return self.unknown(id, true, why),
            (_, Err(why)) => return self.unknown(id, false, why),
        };
        let kind = match (&old, &new) {
            (None, _) => DiffKind::Added,
            (_, None) => DiffKind::Removed,
            _ if links != 0 => DiffKind::Modified,
            (old, new) if old == new => DiffKind::Modified,
            _ => DiffKind::Renamed,
        };
        let Some(inode) = pair.new.or(pair.old) else {
            return self.unknown(id, false, "it is on neither side".to_owned());
        };
        let (file, ctime) = (inode.kind, inode.ctime);
        DiffItem::Change(FileDiff { inode: id, file, kind, old, new, links, ctime, lost_names, new_names })
    }
}

impl Pair {
    fn is_linked(&self) -> bool {
        let has_several = |inode: &Inode| inode.kind != FileKind::Directory && inode.nlink > 1;
        self.old.iter().chain(&self.new).any(has_several)
    }
}

/// Whether it is what a dataset keeps of its own by the name of the directory of its snapshots.
fn is_hidden(item: &DiffItem) -> bool {
    let path = |path: &Option<Vec<u8>>| path.as_deref().and_then(|path| path.strip_prefix(b"/")) == Some(ZFS);
    matches!(item, DiffItem::Change(change) if path(&change.old) || path(&change.new))
}

/// The part of an inode whose change anybody sees, apart from its path: not its last access, nor how it is stored.
fn visible(inode: &Inode) -> Inode {
    let never = Timestamp { secs: 0, nanos: 0 };
    Inode { atime: never, flags: 0, record_size: 0, stored: 0, data: 0, ..*inode }
}

/// Notes the difference of one entry; they come in the order of their keys.
fn touch(touched: &mut Vec<Touched>, key: Key, old: Option<&[u8]>, new: Option<&[u8]>) {
    // Marks of inodes without a name.
    if key.object == 0 {
        return;
    }
    if touched.last().is_none_or(|last| last.id != key.object) {
        let extents = (u64::MAX, u64::MAX);
        touched.push(Touched { id: key.object, values: None, extents, others: false });
    }
    let Some(last) = touched.last_mut() else { return };
    match key.kind {
        INODE => {
            let decode = |value: Option<&[u8]>| value.map(Inode::decode).transpose();
            last.values = Some((decode(old), decode(new)));
        }
        EXTENT if !is_same_data(old, new) => {
            let first = |known: u64, side: Option<&[u8]>| match side {
                Some(_) => known.min(key.offset),
                None => known,
            };
            last.extents = (first(last.extents.0, old), first(last.extents.1, new));
        }
        EXTENT => {}
        _ => last.others = true,
    }
}

/// Whether two extents hold the same, wherever it lies.
fn is_same_data(old: Option<&[u8]>, new: Option<&[u8]>) -> bool {
    let decode = |value: Option<&[u8]>| value.and_then(|value| Extent::decode(value).ok());
    let part = |extent: Extent| (extent.ptr.id, extent.len, extent.block_offset);
    matches!((decode(old), decode(new)), (Some(old), Some(new)) if part(old) == part(new))
}
