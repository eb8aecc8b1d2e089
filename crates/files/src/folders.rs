//! Folders as parts of datasets, for a collection that counts by folder what is shared.
//!
//! *Parts.* Folders get numbers from the top down, all datasets abreast, as long as there are numbers and memory for
//! names. What is in a folder without a number is in the nearest one above it that has one. What is removed, or in
//! snapshots alone, or nobody knows where, is *elsewhere* in its dataset. A file with several names is where it was
//! made or last moved to.
//!
//! *Table.* Then inodes are read, ascending, of each pinned tree, and runs of them that are in one part are noted. A
//! folder is mostly older than what is in it: where it is, the runs tell already; else those above it are looked up in
//! the tree. Leaves without inodes are passed over. A number that no inode has ends a run if the dataset has
//! snapshots: theirs is elsewhere. When memory is full, whatever was not come to is elsewhere.
//!
//! *Memory.* 16 bytes a run. A tree that was unpacked into one numbered folder is one run, whatever is in it; each
//! change from one numbered folder to another, in the order in which files were made, is one more.

use crate::volume::inode_key;
use larder_format::InodeId;
use larder_format::items::{ENTRY, Entry, FileKind, INODE, Inode, MAX_INODE, ROOT_INODE};
use larder_format::node::Key;
use larder_pool::pins::PinnedTree;
use larder_pool::{PinnedView, Pool, Split};
use larder_sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Memory of a folder with a number, beside its name: here, where half may be room, and by its inode while its dataset
/// is read.
const FOLDER_BYTES: usize = 2 * (size_of::<Named>() + size_of::<(u64, u32)>());
/// Runs that room is made for at first.
const FIRST_RUNS: usize = 64;
/// Folders whose parts are remembered after they were looked up.
const REMEMBERED: usize = 256;
/// Folders inside each other before they are taken for damaged.
const DEEPEST: usize = 2048;

/// Reasons why what is known of folders is not all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gaps {
    /// Numbers, or memory for names, were not enough: some folders count as part of those above them.
    pub unnumbered: bool,
    /// Memory was not enough: some inodes count as elsewhere.
    pub full: bool,
    /// Some of what had to be read cannot be.
    pub unread: bool,
}

/// See the module's text.
pub struct Folders {
    depth: u32,
    table: Mutex<Table>,
}

/// A folder with a number.
struct Named {
    origin: u32,
    level: u32,
    inode: InodeId,
    above: InodeId,
    name: Box<[u8]>,
}

/// Inodes that follow one another and are in one part.
#[derive(Clone, Copy)]
struct Run {
    first: u64,
    len: u32,
    part: u16,
}

#[derive(Default)]
struct Table {
    /// By origin: the tree, and whether there are snapshots.
    heads: Vec<Option<(PinnedTree, bool)>>,
    /// By part, but for those that are elsewhere, after numbers were given.
    named: Vec<Named>,
    /// The first part of each origin, ascending.
    elsewhere: Vec<u32>,
    /// By origin, ascending.
    runs: Vec<Vec<Run>>,
    stage: Stage,
    /// Parts that folders may be.
    room: usize,
    memory: usize,
    used: usize,
    most: usize,
    gaps: Gaps,
}

#[derive(Default)]
enum Stage {
    /// Folders get numbers: the one whose entries are read, and from which cookie on.
    Names(usize, u64),
    /// Inodes are read.
    Inodes(Box<Reading>),
    #[default]
    Over,
}

/// A dataset whose inodes are being read.
struct Reading {
    origin: u32,
    view: Option<PinnedView>,
    from: Key,
    /// The next inode; those below are in the runs.
    next: u64,
    /// Folders with numbers.
    here: HashMap<u64, u32>,
    /// Parts of folders that were looked up.
    climbed: HashMap<u64, u32>,
    /// The last folder that was asked for, and its part.
    last: Option<(u64, u32)>,
}

/// An inode as far as it counts here.
struct Item {
    id: u64,
    parent: InodeId,
    is_removed: bool,
}

impl Reading {
    /// Remembers the part of a folder.
    fn remember(&mut self, folder: u64, part: u32) -> u32 {
        if self.climbed.len() == REMEMBERED {
            self.climbed.clear();
        }
        self.climbed.insert(folder, part);
        part
    }
}

impl Folders {
    /// Folders up to so many levels below the root of each dataset.
    pub fn new(depth: u32) -> Arc<Self> {
        Arc::new(Self { depth, table: Mutex::default() })
    }

    /// Levels below the root of each dataset.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The path of a part below the root of its dataset, with `/` first; none of what is elsewhere.
    pub fn path(&self, part: u32) -> Option<Vec<u8>> {
        let table = self.table.lock();
        let origin = table.elsewhere.partition_point(|first| *first <= part).checked_sub(1)?;
        if table.elsewhere[origin] == part {
            return None;
        }
        let of = &table.named[table.folders_of(origin)];
        let mut at = of.get((part - table.elsewhere[origin] - 1) as usize)?;
        let mut names = Vec::new();
        while at.level > 0 {
            names.push(&at.name);
            at = of.iter().find(|one| one.inode == at.above)?;
        }
        let path: Vec<u8> =
            names.iter().rev().flat_map(|name| [b"/", &name[..]]).flatten().copied().collect();
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }

    /// Reasons why what is known is not all.
    pub fn gaps(&self) -> Gaps {
        self.table.lock().gaps
    }

    /// The most memory that was in use, bytes.
    pub fn most_bytes(&self) -> usize {
        self.table.lock().most
    }
}

impl Split for Folders {
    fn begin(&self, members: &[PinnedTree], datasets: usize, parts: usize, memory: usize) {
        let mut table = Table { memory, room: parts.saturating_sub(datasets), ..Table::default() };
        table.heads.resize_with(datasets, || None);
        // Snapshots come before the head.
        let mut before = None;
        for tree in members {
            if tree.is_head
                && let Some(slot) = table.heads.get_mut(tree.origin as usize)
            {
                *slot = Some((tree.clone(), before == Some(tree.origin)));
            }
            before = Some(tree.origin);
        }
        for origin in 0..datasets as u32 {
            if table.heads[origin as usize].is_some() {
                table.name(Named { origin, level: 0, inode: ROOT_INODE, above: ROOT_INODE, name: [].into() });
            }
        }
        table.stage = Stage::Names(0, 0);
        *self.table.lock() = table;
    }

    fn learn(&self, pool: &Pool, effort: usize) -> bool {
        let table = &mut *self.table.lock();
        for _ in 0..effort {
            let stage = std::mem::take(&mut table.stage);
            table.stage = match stage {
                Stage::Names(at, from) => table.read_names(pool, self.depth, at, from),
                Stage::Inodes(reading) => table.read_inodes(pool, reading),
                Stage::Over => return false,
            };
        }
        true
    }

    fn origins(&self) -> Vec<u32> {
        let table = self.table.lock();
        let of = |origin: usize| std::iter::repeat_n(origin as u32, 1 + table.folders_of(origin).len());
        (0..table.elsewhere.len()).flat_map(of).collect()
    }

    fn part(&self, origin: u32, object: u64) -> u32 {
        let table = self.table.lock();
        table.look_up(origin, object).unwrap_or_else(|| table.elsewhere(origin))
    }

    fn forget(&self) {
        let mut table = self.table.lock();
        (table.runs, table.heads) = (Vec::new(), Vec::new());
    }
}

impl Table {
    /// Gives a folder a number; false when there is no room for it.
    fn name(&mut self, folder: Named) -> bool {
        let used = self.used + FOLDER_BYTES + folder.name.len();
        // As much is for runs.
        if self.room == self.named.len() || used > self.memory / 2 {
            self.gaps.unnumbered = true;
            return false;
        }
        self.used = used;
        self.most = self.most.max(used);
        self.named.push(folder);
        true
    }

    fn elsewhere(&self, origin: u32) -> u32 {
        // No more is known of a dataset for which there was no number.
        self.elsewhere.get(origin as usize).copied().unwrap_or(origin)
    }

    /// The folders of a dataset, in the order of their numbers.
    fn folders_of(&self, origin: usize) -> std::ops::Range<usize> {
        let first = |origin: usize| self.elsewhere.get(origin).map(|part| *part as usize - origin);
        first(origin).unwrap_or(0)..first(origin + 1).unwrap_or(self.named.len())
    }

    /// Reads a leaf of the entries of a folder.
    fn read_names(&mut self, pool: &Pool, depth: u32, at: usize, from: u64) -> Stage {
        let dir = self.named.get(at).filter(|dir| dir.level < depth && !self.gaps.unnumbered);
        let Some(&Named { origin, level, inode, .. }) = dir else {
            // Of those that come after it, none is nearer to the root.
            return self.number();
        };
        let Some((head, _)) = &self.heads[origin as usize] else { return Stage::Names(at + 1, 0) };
        let view = pool.pinned_view(head);
        let is_wanted = |key: &Key| key.object == inode.get() && key.kind == ENTRY;
        let (next, is_lost) = view.leaf(Key::new(inode.get(), ENTRY, from), &mut |key, value| {
            if is_wanted(key)
                && key.offset >= from
                && let Ok(entry) = Entry::decode(value)
                && entry.kind == FileKind::Directory
            {
                let (above, name) = (inode, entry.name.into());
                self.name(Named { origin, level: level + 1, inode: entry.inode, above, name });
            }
        });
        self.gaps.unread |= is_lost;
        match next.filter(is_wanted) {
            Some(next) => Stage::Names(at, next.offset),
            None => Stage::Names(at + 1, 0),
        }
    }

    /// Gives parts their numbers, those of a dataset one after another.
    fn number(&mut self) -> Stage {
        self.named.sort_by_key(|folder| folder.origin);
        let mut folders = 0;
        for origin in 0..self.heads.len() {
            self.elsewhere.push((origin + folders) as u32);
            let of = self.named[folders..].iter().take_while(|folder| folder.origin == origin as u32);
            folders += of.count();
        }
        self.runs.resize_with(self.heads.len(), Vec::new);
        self.turn_to(0)
    }

    /// Begins to read the inodes of the first dataset from `origin` on that has any.
    fn turn_to(&self, origin: usize) -> Stage {
        let next = (origin..self.heads.len()).find(|&origin| self.heads[origin].is_some());
        let Some(origin) = next.filter(|_| !self.gaps.full) else { return Stage::Over };
        let first = self.elsewhere[origin] + 1;
        let here = self.named[self.folders_of(origin)].iter().map(|folder| folder.inode.get());
        Stage::Inodes(Box::new(Reading {
            origin: origin as u32,
            view: None,
            from: Key::MIN,
            next: 0,
            here: here.zip(first..).collect(),
            climbed: HashMap::new(),
            last: None,
        }))
    }

    /// Reads a leaf with inodes.
    fn read_inodes(&mut self, pool: &Pool, mut reading: Box<Reading>) -> Stage {
        let origin = reading.origin;
        let Some((head, has_snapshots)) = &self.heads[origin as usize] else { return Stage::Over };
        let is_exact = *has_snapshots;
        let view = reading.view.take().unwrap_or_else(|| pool.pinned_view(head));
        let (mut items, mut unread) = (Vec::new(), false);
        let (next, is_lost) = view.leaf(reading.from, &mut |key, value| {
            if key.kind != INODE || !(reading.next..=MAX_INODE).contains(&key.object) {
                return;
            }
            match Inode::decode(value) {
                Ok(inode) => {
                    let Inode { parent, nlink, .. } = inode;
                    items.push(Item { id: key.object, parent, is_removed: nlink == 0 });
                }
                Err(_) => unread = true,
            }
        });
        self.gaps.unread |= is_lost || unread;
        for item in items {
            let part = self.part_of(&view, &mut reading, &item);
            if !self.note(origin, item.id, part, is_exact) {
                self.gaps.full = true;
                return Stage::Over;
            }
            reading.next = item.id + 1;
        }
        let next = next.filter(|next| next.object <= MAX_INODE);
        let Some(next) = next else { return self.turn_to(origin as usize + 1) };
        // A file's extents come before its inode, all else behind it.
        let inode = Key::new(next.object, INODE, 0);
        reading.from = if next <= inode { inode } else { Key::new(next.object + 1, 0, 0) };
        reading.view = Some(view);
        Stage::Inodes(reading)
    }

    /// The part of an inode: the next one.
    fn part_of(&mut self, view: &PinnedView, reading: &mut Reading, item: &Item) -> u32 {
        if let Some(part) = reading.here.get(&item.id) {
            return *part;
        }
        if item.is_removed {
            return self.elsewhere(reading.origin);
        }
        let folder = item.parent.get();
        if let Some((_, part)) = reading.last.filter(|(last, _)| *last == folder) {
            return part;
        }
        let part = self.part_of_folder(view, reading, folder, item.id);
        reading.last = Some((folder, part));
        part
    }

    /// The part of a folder; inodes below `next` are in the runs.
    fn part_of_folder(&mut self, view: &PinnedView, reading: &mut Reading, folder: u64, next: u64) -> u32 {
        let elsewhere = self.elsewhere(reading.origin);
        let mut at = folder;
        for _ in 0..DEEPEST {
            let known = reading.here.get(&at).or_else(|| reading.climbed.get(&at)).copied();
            let is_root = at == ROOT_INODE.get();
            let known = known.or_else(|| (at < next).then(|| self.look_up(reading.origin, at)).flatten());
            if let Some(part) = known.or((at < next || is_root).then_some(elsewhere)) {
                return reading.remember(folder, part);
            }
            let value = view.get(&inode_key(InodeId::new(at)));
            self.gaps.unread |= value.is_err();
            let inode = value.ok().flatten().and_then(|value| Inode::decode(&value).ok());
            match inode.filter(|inode| inode.kind == FileKind::Directory && inode.nlink > 0) {
                Some(inode) => at = inode.parent.get(),
                None => break,
            }
        }
        reading.remember(folder, elsewhere)
    }

    fn look_up(&self, origin: u32, inode: u64) -> Option<u32> {
        let runs = self.runs.get(origin as usize)?;
        let run = runs[..runs.partition_point(|run| run.first <= inode)].last()?;
        (inode - run.first < u64::from(run.len)).then_some(run.part.into())
    }

    /// Notes the part of the next inode; false when there is no memory for it.
    fn note(&mut self, origin: u32, inode: u64, part: u32, is_exact: bool) -> bool {
        let runs = &mut self.runs[origin as usize];
        if let Some(run) = runs.last_mut().filter(|run| u32::from(run.part) == part)
            && let Ok(len) = u32::try_from(inode + 1 - run.first)
            && (!is_exact || len == run.len + 1)
        {
            run.len = len;
            return true;
        }
        let room = runs.capacity();
        if runs.len() == room {
            // While it grows, both are there.
            let bytes = |runs: usize| runs * size_of::<Run>();
            let most = (self.memory.saturating_sub(self.used) / size_of::<Run>()).saturating_sub(room);
            let more = room.max(FIRST_RUNS).min(most);
            if more == 0 {
                return false;
            }
            runs.reserve_exact(more);
            self.most = self.most.max(self.used + bytes(room + more));
            self.used += bytes(runs.capacity() - room);
        }
        runs.push(Run { first: inode, len: 1, part: part as u16 });
        true
    }
}
