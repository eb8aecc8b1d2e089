//! Contents of a dataset or a snapshot as anybody sees them: read from a tree's items, and through a mount.
//!
//! The two ways have no code in common, and neither has any with the model's: what both show is what is there.

use larder_files::{FileKind, Handle, Mount, NodeId, Ops};
use larder_format::items::{
    ENTRY, EXTENT, Entry, Extent, INODE, Inode, ORPHAN, ROOT_INODE, SYMLINK, XATTR, XATTR_PIECE,
    XATTR_PIECES, Xattr, XattrValue,
};
use larder_format::node::Key;
use larder_format::{DatasetId, InodeId};
use larder_pool::{Look, Pool};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The root directory.
pub const ROOT: u64 = ROOT_INODE.get();

/// A file, a directory or a link.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: FileKind,
    pub perm: u32,
    pub nlink: u32,
    /// Bytes of a file, holes as zeros; the target of a link.
    pub content: Arc<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub entries: BTreeMap<Vec<u8>, u64>,
}

/// By inode: numbers are the same in snapshots, clones and replicas.
pub type Tree = BTreeMap<u64, Arc<Node>>;

impl Node {
    pub fn new(kind: FileKind, perm: u32) -> Self {
        let nlink = if kind == FileKind::Directory { 2 } else { 1 };
        let (xattrs, entries) = (BTreeMap::new(), BTreeMap::new());
        Self { kind, perm, nlink, content: Arc::default(), xattrs, entries }
    }

    pub fn root() -> Self {
        Self::new(FileKind::Directory, 0o755)
    }
}

/// Shows the first difference of two trees.
pub fn difference(found: &Tree, wanted: &Tree) -> Option<String> {
    let ids = found.keys().chain(wanted.keys()).copied().collect::<std::collections::BTreeSet<_>>();
    ids.into_iter().find_map(|id| match (found.get(&id), wanted.get(&id)) {
        (Some(found), Some(wanted)) => differs(found, wanted).map(|how| format!("inode {id}: {how}")),
        (Some(_), None) => Some(format!("inode {id} is there")),
        (None, _) => Some(format!("inode {id} is not there")),
    })
}

fn differs(found: &Node, wanted: &Node) -> Option<String> {
    if found == wanted {
        return None;
    }
    let of = |node: &Node| (node.kind, node.perm, node.nlink, node.content.len());
    if of(found) != of(wanted) {
        return Some(format!("{:?} is not {:?}", of(found), of(wanted)));
    }
    if found.xattrs != wanted.xattrs {
        return Some("attributes".into());
    }
    if found.entries != wanted.entries {
        return Some(format!("entries {:?} are not {:?}", found.entries.len(), wanted.entries.len()));
    }
    let at = found.content.iter().zip(wanted.content.iter()).position(|(a, b)| a != b)?;
    Some(format!(
        "byte {at} of {} is {} and not {}",
        found.content.len(),
        found.content[at],
        wanted.content[at]
    ))
}

/// All that a tree's items say; of what has no name any more nothing.
pub fn of_view(pool: &Pool, view: &dyn Look) -> Result<Tree, String> {
    let mut items: Vec<(Key, Vec<u8>)> = Vec::new();
    view.scan(&Key::MIN, &mut |key, value| {
        items.push((*key, value.to_vec()));
        ControlFlow::Continue(())
    })
    .map_err(|error| format!("scan: {error}"))?;
    let mut nodes: BTreeMap<u64, Option<Node>> = BTreeMap::new();
    for (key, value) in items.iter().filter(|(key, _)| key.kind == INODE) {
        let inode = Inode::decode(value).map_err(|error| error.to_string())?;
        let mut node = Node::new(inode.kind, inode.perm.into());
        node.nlink = inode.nlink;
        if inode.kind == FileKind::Regular {
            node.content = Arc::new(vec![0; inode.size as usize]);
        }
        nodes.insert(key.object, (inode.nlink > 0).then_some(node));
    }
    let mut pieces: BTreeMap<u64, BTreeMap<u64, &[u8]>> = BTreeMap::new();
    for (key, value) in items.iter().filter(|(key, _)| key.kind == XATTR_PIECE) {
        pieces.entry(key.object).or_default().insert(key.offset, value);
    }
    for (key, value) in items.iter().filter(|(key, _)| ![INODE, ORPHAN, XATTR_PIECE].contains(&key.kind)) {
        let Some(node) = nodes.get_mut(&key.object) else {
            return Err(format!("something of inode {}, which is not there: kind {}", key.object, key.kind));
        };
        let Some(node) = node else { continue };
        item(pool, node, key, value, pieces.get(&key.object))?;
    }
    Ok(nodes.into_iter().filter_map(|(id, node)| Some((id, Arc::new(node?)))).collect())
}

fn item(
    pool: &Pool,
    node: &mut Node,
    key: &Key,
    value: &[u8],
    pieces: Option<&BTreeMap<u64, &[u8]>>,
) -> Result<(), String> {
    match key.kind {
        EXTENT => {
            let extent = Extent::decode(value).map_err(|error| error.to_string())?;
            let plain = pool
                .store()
                .read(extent.ptr)
                .map_err(|error| format!("inode {} at {}: {error}", key.object, key.offset))?;
            let content = Arc::make_mut(&mut node.content);
            // Beyond its end there may be a tail, which nobody sees.
            let from = (key.offset as usize).min(content.len());
            let len = (content.len() - from).min(extent.len as usize);
            let at = extent.block_offset as usize;
            content[from..from + len].copy_from_slice(&plain[at..at + len]);
        }
        ENTRY => {
            let entry = Entry::decode(value).map_err(|error| error.to_string())?;
            node.entries.insert(entry.name.to_vec(), entry.inode.get());
        }
        SYMLINK => node.content = Arc::new(value.to_vec()),
        XATTR => {
            let xattr = Xattr::decode(value).map_err(|error| error.to_string())?;
            let value = match xattr.value {
                XattrValue::Inline(value) => value.to_vec(),
                XattrValue::Pieces { number, .. } => {
                    let range = number * XATTR_PIECES..(number + 1) * XATTR_PIECES;
                    let all = pieces.into_iter().flat_map(|pieces| pieces.range(range.clone()));
                    all.flat_map(|(_, piece)| piece.iter().copied()).collect()
                }
            };
            node.xattrs.insert(xattr.name.to_vec(), value);
        }
        kind => return Err(format!("an item of kind {kind}")),
    }
    Ok(())
}

/// All that a mount shows of a dataset.
pub fn of_mount(mount: &Mount, dataset: DatasetId) -> Result<Tree, String> {
    let (mut tree, mut queue) = (Tree::new(), vec![ROOT]);
    while let Some(id) = queue.pop() {
        if tree.contains_key(&id) {
            continue;
        }
        let node = node_of_mount(mount, NodeId::pack(dataset, InodeId::new(id)))
            .map_err(|error| format!("inode {id}: {error}"))?;
        queue.extend(node.entries.values().copied());
        tree.insert(id, Arc::new(node));
    }
    Ok(tree)
}

fn node_of_mount(mount: &Mount, at: NodeId) -> larder_files::Result<Node> {
    let attr = mount.getattr(at)?;
    let mut node = Node::new(attr.kind, attr.perm);
    node.nlink = attr.nlink;
    match attr.kind {
        FileKind::Regular => {
            node.content = Arc::new(mount.read(at, Handle(0), 0, attr.size as u32)?.to_vec());
        }
        FileKind::Symlink => node.content = Arc::new(mount.readlink(at)?),
        FileKind::Directory => {
            let mut cookie = 0;
            loop {
                let before = cookie;
                mount.readdir(at, Handle(0), before, true, &mut |entry| {
                    cookie = entry.next_cookie;
                    if entry.name != b"." && entry.name != b".." {
                        node.entries.insert(entry.name.to_vec(), entry.node.unpack().1.get());
                    }
                    true
                })?;
                if cookie == before {
                    break;
                }
            }
        }
        _ => {}
    }
    let names = mount.listxattr(at)?;
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        node.xattrs.insert(name.to_vec(), mount.getxattr(at, name)?);
    }
    Ok(node)
}
