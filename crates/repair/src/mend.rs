//! A tree mended: lost nodes are cut out of it, and what is known of what was there goes in their place.

use crate::nodes::NodeReader;
use crate::trees::{ALL, Entries, Fences, Lines, LostNode, Span, fill};
use larder_format::items::{
    ENTRY, EXTENT, Entry, Extent, FileKind, INODE, Inode, MAX_COLLISIONS, MAX_FILE, MAX_INODE, NAME_SALT_LEN,
    NameKey, ORPHAN, ROOT_INODE,
};
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr, InodeId, Place, Timestamp};
use larder_sorted::tree::Tree;
use larder_store::{DatasetNodes, PoolError, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// The folder, in the root of a dataset, of what has no name any more.
pub const LOST_AND_FOUND: &str = "lost+found";
/// Bytes of a record where nobody knows how a file was cut.
const RECORD: u32 = 128 << 10;

/// Changes to a tree.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Nodes that are cut out.
    pub(crate) lost: Vec<LostNode>,
    pub(crate) entries: Entries,
    /// Ranges of which nothing is known.
    pub(crate) unknown: Vec<Span>,
    /// Objects of which an older state may be all there is: lowest and highest.
    pub(crate) older: Vec<(u64, u64)>,
}

impl Plan {
    /// For a tree of which nodes are lost.
    pub(crate) fn of(reader: NodeReader<'_>, lost: Vec<LostNode>, lines: &Lines, fences: &Fences) -> Self {
        let filled = fill(reader, lines, fences, &lost);
        // Whether a later leaf was lost with the node above it, nobody can tell.
        let objects = |(low, high): Span| (low.object, high.map_or(MAX_INODE, |high| high.object));
        let older = lost.iter().map(|node| objects(node.span)).collect();
        Self { entries: filled.entries, unknown: filled.unknown, older, lost }
    }

    /// For a tree without a root: of whatever nodes there are, with ids up to `below`.
    pub(crate) fn of_nodes(reader: NodeReader<'_>, below: BlockId, lines: &Lines, fences: &Fences) -> Self {
        Self::of(reader, vec![LostNode { id: below, level: u8::MAX, span: ALL }], lines, fences)
    }
}

/// Ranges of keys.
pub(crate) fn has(spans: &[Span], key: &Key) -> bool {
    spans.iter().any(|(low, high)| low <= key && high.is_none_or(|high| *key < high))
}

/// A record that was written for a file, as its block says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orphaned {
    pub(crate) inode: u64,
    pub(crate) offset: u64,
    pub(crate) id: BlockId,
    pub(crate) place: Place,
    pub(crate) logical: u32,
}

/// Outcome for names.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Named {
    /// Files and folders that have no name any more, and are in [`LOST_AND_FOUND`].
    pub(crate) nameless: u64,
    /// Names of which nothing else is left.
    pub(crate) only_names: u64,
    /// Folders that were made again, since names are in them.
    pub(crate) folders: u64,
}

type Result<T> = std::result::Result<T, PoolError>;

/// Cuts out what is lost, and puts in what is known.
pub(crate) fn apply(tree: &mut Tree, store: &Store, plan: &Plan) -> Result<()> {
    let nodes = DatasetNodes(store);
    for lost in &plan.lost {
        // Where all beside it went, one that is lost can be the root.
        if tree.committed_root().is_some() && !tree.excise(&nodes, &lost.span.0, lost.id)? {
            *tree = Tree::empty();
        }
    }
    for (key, value) in &plan.entries {
        tree.insert(&nodes, *key, value)?;
    }
    Ok(())
}

/// Entries that a tree has of an inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Parts {
    inode: Option<FileKind>,
    /// The folder that holds it, as it says itself.
    parent: u64,
    extents: bool,
    orphan: bool,
    named: bool,
}

/// A name.
#[derive(Debug, Clone, Copy)]
struct Name {
    key: Key,
    inode: u64,
    kind: FileKind,
}

/// Has every inode a name, every name an inode, every folder one name that leads to it from the root, and its counts.
/// `orphaned` are records of ranges of which nothing else is known.
pub(crate) fn settle_names(
    tree: &mut Tree,
    store: &Store,
    (salt, now): (&[u8; NAME_SALT_LEN], Timestamp),
    orphaned: &[Orphaned],
    next_inode: &mut u64,
) -> Result<Named> {
    let nodes = DatasetNodes(store);
    let mut named = Named::default();
    let (mut parts, names) = parts_of(tree, store)?;
    let highest = parts.keys().next_back().copied().unwrap_or(0).min(MAX_INODE);
    *next_inode = (*next_inode).max(highest + 1).max(ROOT_INODE.get() + 1);
    // Folders that have names in them, or are named as such, and the root.
    let holders: BTreeSet<u64> = names.iter().map(|name| name.key.object).collect();
    let as_folders = names.iter().filter(|name| name.kind == FileKind::Directory).map(|name| name.inode);
    for id in holders.into_iter().chain(as_folders).chain([ROOT_INODE.get()]) {
        let of = parts.entry(id).or_default();
        if of.inode.is_none() {
            of.inode = Some(FileKind::Directory);
            tree.insert(&nodes, Key::new(id, INODE, 0), &folder(now).encode())?;
            named.folders += 1;
        }
    }
    // Names of nothing.
    let (names, gone): (Vec<Name>, Vec<Name>) =
        names.into_iter().partition(|name| parts.get(&name.inode).is_some_and(|of| of.inode.is_some()));
    named.only_names += gone.len() as u64;
    for name in gone {
        tree.remove(&nodes, &name.key)?;
    }
    let mut adopted = unreached(tree, store, &mut parts, names)?;
    // Files of which there are extents alone.
    let by_extents: Vec<u64> =
        parts.iter().filter(|(_, of)| of.inode.is_none() && of.extents).map(|(id, _)| *id).collect();
    for id in by_extents {
        let mut made = file(now);
        let span = Key::new(id, EXTENT, 0)..=Key::new(id, EXTENT, u64::MAX);
        tree.scan(&nodes, span, |key, value| {
            if let Ok(extent) = Extent::decode(value) {
                made.count_extent(&extent);
                made.size = made.size.max(key.offset.saturating_add(extent.len.into())).min(MAX_FILE);
            }
            ControlFlow::Continue(())
        })?;
        tree.insert(&nodes, Key::new(id, INODE, 0), &made.encode())?;
        adopted.push((id, FileKind::Regular, id));
    }
    adopted.extend(files_of_blocks(tree, store, now, orphaned, next_inode)?);
    if !adopted.is_empty() {
        named.nameless = adopted.len() as u64;
        put_into_lost_and_found(tree, store, (salt, now), &adopted, next_inode)?;
    }
    recount(tree, store)?;
    Ok(named)
}

/// Parts of each inode, and all names.
fn parts_of(tree: &Tree, store: &Store) -> Result<(BTreeMap<u64, Parts>, Vec<Name>)> {
    let (mut parts, mut names) = (BTreeMap::<u64, Parts>::new(), Vec::new());
    tree.scan(&DatasetNodes(store), .., |key, value| {
        let object = if key.kind == ORPHAN { key.offset } else { key.object };
        if object > MAX_INODE {
            return ControlFlow::Continue(());
        }
        match key.kind {
            EXTENT => parts.entry(object).or_default().extents = true,
            ORPHAN => parts.entry(object).or_default().orphan = true,
            INODE => {
                if let Ok(inode) = Inode::decode(value) {
                    let of = parts.entry(object).or_default();
                    (of.inode, of.parent) = (Some(inode.kind), inode.parent.get());
                }
            }
            ENTRY => {
                if let Ok(entry) = Entry::decode(value) {
                    names.push(Name { key: *key, inode: entry.inode.get(), kind: entry.kind });
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    Ok((parts, names))
}

/// Inodes that no name leads to from the root. Of several names of one folder those go that are not where it says it
/// is; names that go in a circle lead nowhere.
fn unreached(
    tree: &mut Tree,
    store: &Store,
    parts: &mut BTreeMap<u64, Parts>,
    names: Vec<Name>,
) -> Result<Vec<(u64, FileKind, u64)>> {
    let mut within: BTreeMap<u64, Vec<Name>> = BTreeMap::new();
    let mut of_folders: BTreeMap<u64, Vec<Name>> = BTreeMap::new();
    for name in names {
        match parts.get(&name.inode).and_then(|of| of.inode) {
            Some(FileKind::Directory) => of_folders.entry(name.inode).or_default().push(name),
            _ => within.entry(name.key.object).or_default().push(name),
        }
    }
    for (folder, names) in of_folders {
        let parent = parts.get(&folder).map_or(0, |of| of.parent);
        let kept = names.iter().position(|name| name.key.object == parent).unwrap_or(0);
        for (number, name) in names.into_iter().enumerate() {
            if number == kept && folder != ROOT_INODE.get() {
                within.entry(name.key.object).or_default().push(name);
            } else {
                tree.remove(&DatasetNodes(store), &name.key)?;
            }
        }
    }
    let mut reach = |from: u64, parts: &mut BTreeMap<u64, Parts>| {
        let mut open = vec![from];
        while let Some(folder) = open.pop() {
            for name in within.remove(&folder).unwrap_or_default() {
                if let Some(of) = parts.get_mut(&name.inode)
                    && !std::mem::replace(&mut of.named, true)
                    && of.inode == Some(FileKind::Directory)
                {
                    open.push(name.inode);
                }
            }
        }
    };
    if let Some(root) = parts.get_mut(&ROOT_INODE.get()) {
        root.named = true;
    }
    reach(ROOT_INODE.get(), parts);
    // Folders whose parents are not there come first, with all below them; then circles, broken anywhere.
    let mut adopted = Vec::new();
    let is_lone = |parts: &BTreeMap<u64, Parts>, of: &Parts| {
        parts.get(&of.parent).is_none_or(|parent| parent.named || parent.inode != Some(FileKind::Directory))
    };
    for only_lone in [true, false] {
        let folders: Vec<u64> = parts
            .iter()
            .filter(|(_, of)| of.inode == Some(FileKind::Directory) && !of.named && !of.orphan)
            .filter(|(_, of)| !only_lone || is_lone(parts, of))
            .map(|(id, _)| *id)
            .collect();
        for id in folders {
            let Some(of) = parts.get_mut(&id).filter(|of| !of.named) else { continue };
            of.named = true;
            adopted.push((id, FileKind::Directory, id));
            reach(id, parts);
        }
    }
    for (id, of) in parts.iter_mut().filter(|(_, of)| !of.named && !of.orphan) {
        if let Some(kind) = of.inode {
            of.named = true;
            adopted.push((*id, kind, *id));
        }
    }
    Ok(adopted)
}

/// Files made of blocks of which no tree tells: number, kind, and the number that their blocks have.
fn files_of_blocks(
    tree: &mut Tree,
    store: &Store,
    now: Timestamp,
    orphaned: &[Orphaned],
    next_inode: &mut u64,
) -> Result<Vec<(u64, FileKind, u64)>> {
    let nodes = DatasetNodes(store);
    let mut by_inode: BTreeMap<u64, Vec<Orphaned>> = BTreeMap::new();
    for record in orphaned.iter().filter(|record| record.logical > 0 && record.offset < MAX_FILE) {
        by_inode.entry(record.inode).or_default().push(*record);
    }
    let mut made = Vec::new();
    for (inode, mut records) in by_inode {
        // The newest first: what an older one has besides is of another state of the file.
        records.sort_unstable_by_key(|record| std::cmp::Reverse(record.id));
        let end = |record: &Orphaned| record.offset.saturating_add(record.logical.into());
        let mut taken: BTreeMap<u64, Orphaned> = BTreeMap::new();
        for record in records {
            let before = taken.range(..end(&record)).next_back();
            if before.is_none_or(|(_, before)| end(before) <= record.offset) {
                taken.insert(record.offset, record);
            }
        }
        let id = *next_inode;
        *next_inode += 1;
        let mut file = file(now);
        for record in taken.values() {
            let extent = Extent {
                ptr: BlockPtr { id: record.id, place: record.place },
                len: record.logical,
                block_offset: 0,
                logical: record.logical,
                placed: 0,
                copies: 1,
            };
            file.count_extent(&extent);
            file.size = end(record).min(MAX_FILE);
            tree.insert(&nodes, Key::new(id, EXTENT, record.offset), &extent.encode())?;
        }
        tree.insert(&nodes, Key::new(id, INODE, 0), &file.encode())?;
        made.push((id, FileKind::Regular, inode));
    }
    Ok(made)
}

/// Makes the folder of what has no name, and names it there by its number.
fn put_into_lost_and_found(
    tree: &mut Tree,
    store: &Store,
    (salt, now): (&[u8; NAME_SALT_LEN], Timestamp),
    names: &[(u64, FileKind, u64)],
    next_inode: &mut u64,
) -> Result<()> {
    let (nodes, key) = (DatasetNodes(store), NameKey::new(salt));
    let name_in = |tree: &mut Tree, folder: u64, name: &[u8], inode: u64, kind: FileKind| -> Result<bool> {
        let cookie = key.cookie(name);
        for at in cookie..cookie + MAX_COLLISIONS {
            let place = Key::new(folder, ENTRY, at);
            let Some(known) = tree.get(&nodes, &place)? else {
                let entry = Entry { inode: InodeId::new(inode), kind, name };
                tree.insert(&nodes, place, &entry.encode())?;
                return Ok(true);
            };
            if Entry::decode(&known).is_ok_and(|known| known.name == name) {
                return Ok(false);
            }
        }
        Ok(false)
    };
    let folder_id = *next_inode;
    *next_inode += 1;
    tree.insert(&nodes, Key::new(folder_id, INODE, 0), &folder(now).encode())?;
    let mut name = LOST_AND_FOUND.to_owned();
    while !name_in(tree, ROOT_INODE.get(), name.as_bytes(), folder_id, FileKind::Directory)? {
        name.push('+');
    }
    for (id, kind, was) in names {
        let (name, other) = (was.to_string(), format!("{was}.blocks"));
        if !name_in(tree, folder_id, name.as_bytes(), *id, *kind)? {
            name_in(tree, folder_id, other.as_bytes(), *id, *kind)?;
        }
        let at = Key::new(*id, INODE, 0);
        if let Some(Ok(mut inode)) = tree.get(&nodes, &at)?.map(|value| Inode::decode(&value)) {
            inode.parent = InodeId::new(folder_id);
            inode.nlink = inode.nlink.max(1);
            tree.insert(&nodes, at, &inode.encode())?;
        }
    }
    Ok(())
}

/// Gives every folder as many entries and links as it has.
fn recount(tree: &mut Tree, store: &Store) -> Result<()> {
    let nodes = DatasetNodes(store);
    let mut wrong = Vec::new();
    let mut at: Option<(u64, Inode)> = None;
    let (mut entries, mut folders) = (0u64, 0u32);
    let mut end = |at: &mut Option<(u64, Inode)>, entries: u64, folders: u32| {
        if let Some((id, inode)) = at.take()
            && inode.kind == FileKind::Directory
            && (inode.entries, inode.nlink) != (entries, 2 + folders)
        {
            wrong.push((id, Inode { entries, nlink: 2 + folders, ..inode }));
        }
    };
    tree.scan(&nodes, .., |key, value| {
        if at.as_ref().is_some_and(|(id, _)| *id != key.object) {
            end(&mut at, entries, folders);
        }
        match key.kind {
            INODE => {
                at = Inode::decode(value).ok().map(|inode| (key.object, inode));
                (entries, folders) = (0, 0);
            }
            ENTRY => {
                entries += 1;
                folders +=
                    u32::from(Entry::decode(value).is_ok_and(|entry| entry.kind == FileKind::Directory));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    end(&mut at, entries, folders);
    for (id, inode) in wrong {
        tree.insert(&nodes, Key::new(id, INODE, 0), &inode.encode())?;
    }
    Ok(())
}

fn file(now: Timestamp) -> Inode {
    Inode {
        kind: FileKind::Regular,
        perm: 0o600,
        flags: Inode::BY_CONTENT,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size: 0,
        generation: 0,
        project: 0,
        record_size: RECORD,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        stored: 0,
        parent: ROOT_INODE,
        entries: 0,
        data: 0,
    }
}

fn folder(now: Timestamp) -> Inode {
    Inode { kind: FileKind::Directory, perm: 0o700, flags: 0, nlink: 2, record_size: 0, ..file(now) }
}
