//! The copy-on-write B+tree under datasets and pool tables.
//!
//! # What is where
//! A committed node is never changed. The tree holds a pointer for each child that is as committed
//! (*clean*) and owns those that changed since (*dirty*). A dirty node's parent is dirty: the dirty nodes
//! are the top of the tree, and a path from the root leaves them at most once. Clean nodes are read
//! through a [`NodeStore`], which caches them; [`Tree::flush`] hands dirty nodes to a [`NodeSink`],
//! children first, and keeps the pointers it gets.
//!
//! Dirty nodes are shared with each [`Tree::frozen`], which stays as it is: who changes one that is shared changes a
//! copy of it. So whoever looks into a tree need not keep others from changing it.
//!
//! # Space
//! The pointer of a clean node that becomes dirty, or goes away, is put on the list that
//! [`Tree::take_dropped`] hands to the owner: exactly the committed nodes that this tree no longer reaches,
//! each once. Whether they can be freed (a snapshot may hold them) is for the owner to say.
//!
//! # Invariants
//! - Separators: those of [`larder_format::node`]. A child is checked against its parent's separators and
//!   level each time it is loaded; one that does not belong there is a [`Corrupt`], never a wrong answer
//!   and never an endless descent.
//! - A clean node is bounded by the same separators as when it was written: it has all that an older tree that had it
//!   has between them, and [`Since`] stands on that. Where a child goes, the nodes before it get its range of keys, and
//!   become dirty; keys in front of a node's first separator are nobody's.
//! - Leaves are all at level 0. Only the root may be an empty leaf. A dirty inner root has two children.
//! - A node is split when it passes [`NODE_MAX`], and merged with a neighbour when it falls under a third
//!   and the two fit in three quarters (so that the next few insertions do not split it again). Where an
//!   object grows at its end, the split leaves a nearly full node behind.
//!
//! # Errors
//! A change first loads the path that it needs, then changes memory only: if a load fails, the tree is what
//! it was. A range is removed leaf by leaf, each such step whole or not at all. Merging is housekeeping: a
//! neighbour that cannot be loaded, or not without a wait ([`NodeStore::load_beside`]), is left alone, and the removal
//! stands; so damage to one node does not forbid the deletion of others. If the sink fails, what it took is clean, the rest is still dirty, and
//! flushing can be tried again.

mod change;
mod difference;
mod reach;
mod remains;
mod since;
mod survey;
#[cfg(test)]
mod tests;

use larder_format::node::{Inner, Key, Leaf, NODE_MAX, Node, NodeHead};
use larder_format::{BlockPtr, Corrupt, Reason};
use larder_mutants::point;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

pub use difference::{Difference, Differs, Side};
pub use remains::{Remain, Remains};
pub use since::{Since, Told};
pub use survey::{LostNode, Met};

/// Source of clean nodes: a cache in front of the block store.
pub trait NodeStore {
    /// Why a node cannot be had.
    type Error: From<Corrupt>;
    /// The decoded node that `ptr` names.
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>, Self::Error>;
    /// The same for housekeeping that can be left undone: who would rather not wait for a device gives none.
    fn load_beside(&self, ptr: BlockPtr) -> Option<Arc<Node>> {
        self.load(ptr).ok()
    }
    /// Several of them, in this order, if there is a faster way than one after another.
    fn load_all(&self, ptrs: &[BlockPtr]) -> Vec<Result<Arc<Node>, Self::Error>> {
        ptrs.iter().map(|ptr| self.load(*ptr)).collect()
    }
}

/// Sink of dirty nodes at a commit.
pub trait NodeSink {
    /// Why a node cannot be written.
    type Error;
    /// Stores a node and gives it a pointer. Its children have theirs already. Level and first key, which a
    /// block's header wants, are the node's to tell. The sink may keep the `Arc` for its cache.
    fn write(&mut self, node: &Arc<Node>) -> Result<BlockPtr, Self::Error>;
}

/// A sorted map from [`Key`] to byte strings; see the module's text.
#[derive(Debug)]
pub struct Tree {
    root: Child,
    /// The root as opened or last flushed.
    committed: Option<BlockPtr>,
    pending: Pending,
}

/// Changes that the tree's owner has to account for.
#[derive(Debug, Default)]
struct Pending {
    dropped: Vec<BlockPtr>,
    /// Sum of the encoded lengths of all dirty nodes.
    dirty_bytes: usize,
    /// A clean node got keys of a neighbour.
    blurred: bool,
}

#[derive(Debug, Clone)]
enum Child {
    Clean(BlockPtr),
    Dirty(Arc<Dirty>),
}

#[derive(Debug, Clone)]
enum Dirty {
    Leaf(Leaf),
    Inner(DirtyInner),
}

/// An inner node some of whose children may be dirty.
#[derive(Debug, Clone)]
struct DirtyInner {
    level: u8,
    keys: Vec<Key>,
    children: Vec<Child>,
}

impl Default for Tree {
    fn default() -> Self {
        Self::empty()
    }
}

impl Tree {
    /// A tree of nothing, not yet committed.
    pub fn empty() -> Self {
        let pending = Pending { dirty_bytes: NodeHead::SIZE, ..Pending::default() };
        Self { root: Child::Dirty(Arc::default()), committed: None, pending }
    }

    /// The tree whose committed root is `root`. Nothing is read yet.
    pub fn open(root: BlockPtr) -> Self {
        Self { root: Child::Clean(root), committed: Some(root), pending: Pending::default() }
    }

    /// The tree as it is now, whatever becomes of it: nodes that a change meets in both are copied first.
    pub fn frozen(&self) -> Self {
        Self { root: self.root.clone(), committed: self.committed, pending: Pending::default() }
    }

    /// The root as opened or last flushed; `None` if the tree was never committed.
    pub fn committed_root(&self) -> Option<BlockPtr> {
        self.committed
    }

    /// Whether a commit would give the tree another root. (It need not write a node for that: when a tree
    /// shrinks, a committed node can become the root.)
    pub fn is_dirty(&self) -> bool {
        match &self.root {
            Child::Dirty(_) => true,
            Child::Clean(ptr) => self.committed != Some(*ptr),
        }
    }

    /// Bytes of plain payload that [`Tree::flush`] would write now. In memory, dirty nodes take two to three
    /// times as much (spare capacity, wider keys).
    pub fn dirty_bytes(&self) -> usize {
        self.pending.dirty_bytes
    }

    /// Pointers of committed nodes that the tree has stopped reaching since the last call, each once.
    pub fn take_dropped(&mut self) -> Vec<BlockPtr> {
        std::mem::take(&mut self.pending.dropped)
    }

    /// Those that the next call of [`Tree::take_dropped`] gives.
    pub fn dropped(&self) -> &[BlockPtr] {
        &self.pending.dropped
    }

    /// Whether, since the last call, a committed node was given keys that it had not, as a neighbour could not be read:
    /// what such a node has does not tell any more what was there when it was written.
    pub fn take_blurred(&mut self) -> bool {
        std::mem::take(&mut self.pending.blurred)
    }

    /// The value under `key`.
    pub fn get<S: NodeStore + ?Sized>(&self, store: &S, key: &Key) -> Result<Option<Vec<u8>>, S::Error> {
        self.get_with(store, key, <[u8]>::to_vec)
    }

    /// Applies `read` to the value under `key`, without a copy of it.
    pub fn get_with<S: NodeStore + ?Sized, R>(
        &self,
        store: &S,
        key: &Key,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, S::Error> {
        let (leaf, _) = self.descend(store, key, |_| ())?;
        Ok(leaf.leaf().get(key).map(read))
    }

    /// The entry with the greatest key that is not greater than `key`.
    pub fn last_before<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        key: &Key,
    ) -> Result<Option<(Key, Vec<u8>)>, S::Error> {
        last_before(store, Loaded::load(store, self.root.view(), &Fence::default())?, &Fence::default(), key)
    }

    /// Shows the entries of `range` in ascending order until `visit` breaks. Each node is loaded once, and
    /// none that lies outside the range.
    pub fn scan<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        range: impl RangeBounds<Key>,
        mut visit: impl FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), S::Error> {
        let Some(window) = TreeWindow::new(&range) else { return Ok(()) };
        let root = Loaded::load(store, self.root.view(), &Fence::default())?;
        scan(store, &root, &Fence::default(), &window, &mut visit).map(|_| ())
    }

    /// Walks the committed nodes that the tree reaches, parents first. A subtree is skipped when `enter`
    /// refuses its root's pointer (born before some snapshot, say), which is then not read. What cannot be
    /// loaded is shown as an error: `visit` passes it on to end the walk, or notes it and returns `Ok` to
    /// go on without that subtree.
    pub fn for_each_node<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        mut enter: impl FnMut(BlockPtr) -> bool,
        mut visit: impl FnMut(BlockPtr, Result<&Node, S::Error>) -> Result<(), S::Error>,
    ) -> Result<(), S::Error> {
        walk(store, self.root.view(), &Fence::default(), &mut enter, &mut visit)
    }

    /// Writes all dirty nodes, children before parents, and returns the root's pointer. Afterwards the tree
    /// is clean. Writes nothing if it was.
    pub fn flush<S: NodeSink + ?Sized>(&mut self, sink: &mut S) -> Result<BlockPtr, S::Error> {
        let root = flush(&mut self.root, sink, &mut self.pending)?;
        self.committed = Some(root);
        Ok(root)
    }

    /// Loads the leaf where `key` is or would be, and the bounds of that leaf; `on_path` is shown each clean
    /// node on the way.
    fn descend<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        key: &Key,
        mut on_path: impl FnMut(&Arc<Node>),
    ) -> Result<(Loaded<'_>, Fence), S::Error> {
        let mut fence = Fence::default();
        let mut node = Loaded::load(store, self.root.view(), &Fence::default())?;
        loop {
            if let Loaded::Clean(clean) = &node {
                on_path(clean);
            }
            if node.level() == 0 {
                return Ok((node, fence));
            }
            let i = slot(node.keys(), key);
            fence = fence.of_child(&node, i);
            node = Loaded::load(store, node.child(i), &fence)?;
        }
    }
}

/// Which child of an inner node with these separators holds `key`.
fn slot(separators: &[Key], key: &Key) -> usize {
    separators.partition_point(|separator| separator <= key).saturating_sub(1)
}

impl Default for Dirty {
    fn default() -> Self {
        Dirty::Leaf(Leaf::new())
    }
}

impl Dirty {
    fn level(&self) -> u8 {
        match self {
            Dirty::Leaf(_) => 0,
            Dirty::Inner(inner) => inner.level,
        }
    }

    fn keys(&self) -> &[Key] {
        match self {
            Dirty::Leaf(leaf) => leaf.keys(),
            Dirty::Inner(inner) => &inner.keys,
        }
    }

    fn encoded_len(&self) -> usize {
        match self {
            Dirty::Leaf(leaf) => leaf.encoded_len(),
            Dirty::Inner(inner) => inner.encoded_len(),
        }
    }

    /// A changeable copy of a committed node.
    fn from_node(node: Node) -> Self {
        match node {
            Node::Leaf(leaf) => Dirty::Leaf(leaf),
            Node::Inner(inner) => {
                let level = inner.level();
                let (keys, children) = inner.into_parts();
                let children = children.into_iter().map(Child::Clean).collect();
                Dirty::Inner(DirtyInner { level, keys, children })
            }
        }
    }

    /// The node to write, once all children are clean.
    fn into_node(self) -> Node {
        match self {
            Dirty::Leaf(mut leaf) => {
                leaf.pack();
                Node::Leaf(leaf)
            }
            Dirty::Inner(inner) => {
                let children = inner.children.into_iter().map(|child| match child {
                    Child::Clean(ptr) => ptr,
                    Child::Dirty(_) => unreachable!("children are written before their parent"),
                });
                Node::Inner(Inner::new(inner.level, inner.keys, children.collect()))
            }
        }
    }
}

impl Child {
    fn view(&self) -> View<'_> {
        match self {
            Child::Clean(ptr) => View::Clean(*ptr),
            Child::Dirty(dirty) => View::Dirty(dirty),
        }
    }
}

/// A child as a reader sees it in its parent.
#[derive(Clone, Copy)]
enum View<'a> {
    Clean(BlockPtr),
    Dirty(&'a Dirty),
}

/// A node that can be read.
enum Loaded<'a> {
    Clean(Arc<Node>),
    Dirty(&'a Dirty),
}

impl<'a> Loaded<'a> {
    fn load<S: NodeStore + ?Sized>(store: &S, child: View<'a>, fence: &Fence) -> Result<Self, S::Error> {
        match child {
            View::Clean(ptr) => load_checked(store, ptr, fence).map(Loaded::Clean),
            View::Dirty(dirty) => Ok(Loaded::Dirty(dirty)),
        }
    }

    fn level(&self) -> u8 {
        match self {
            Loaded::Clean(node) => node.level(),
            Loaded::Dirty(dirty) => dirty.level(),
        }
    }

    fn keys(&self) -> &[Key] {
        match self {
            Loaded::Clean(node) => node.keys(),
            Loaded::Dirty(dirty) => dirty.keys(),
        }
    }

    fn leaf(&self) -> &Leaf {
        match self {
            Loaded::Dirty(Dirty::Leaf(leaf)) => leaf,
            Loaded::Clean(node) => match &**node {
                Node::Leaf(leaf) => leaf,
                Node::Inner(_) => panic!("an inner node is not a leaf"),
            },
            Loaded::Dirty(Dirty::Inner(_)) => panic!("an inner node is not a leaf"),
        }
    }

    fn child(&self, i: usize) -> View<'a> {
        match self {
            Loaded::Dirty(Dirty::Inner(inner)) => inner.children[i].view(),
            Loaded::Clean(node) => match &**node {
                Node::Inner(inner) => View::Clean(inner.children()[i]),
                Node::Leaf(_) => panic!("a leaf has no children"),
            },
            Loaded::Dirty(Dirty::Leaf(_)) => panic!("a leaf has no children"),
        }
    }
}

/// Constraints on a node by its place in the tree. The root may be anything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fence {
    /// Its level.
    level: Option<u8>,
    /// No key is smaller.
    low: Option<Key>,
    /// Every key is smaller.
    high: Option<Key>,
}

impl Fence {
    fn of_child(&self, parent: &Loaded<'_>, i: usize) -> Fence {
        self.below(parent.level(), parent.keys(), i)
    }

    /// Constraints on the `i`-th child of an inner node of this level with these separators, given what the
    /// node itself must be.
    pub fn below(&self, level: u8, keys: &[Key], i: usize) -> Fence {
        Fence { level: Some(level - 1), low: Some(keys[i]), high: keys.get(i + 1).copied().or(self.high) }
    }

    /// Whether a node belongs there.
    pub fn admits(&self, node: &Node) -> bool {
        self.level.is_none_or(|level| {
            node.level() == level
                && node.keys().first() >= self.low.as_ref()
                && self.high.is_none_or(|high| node.keys().last() < Some(&high))
                && !node.keys().is_empty()
        })
    }
}

/// Loads a child and checks that it belongs where its parent names it.
fn load_checked<S: NodeStore + ?Sized>(
    store: &S,
    ptr: BlockPtr,
    fence: &Fence,
) -> Result<Arc<Node>, S::Error> {
    let node = store.load(ptr)?;
    if fence.admits(&node) { Ok(node) } else { Err(Corrupt::new("tree node", Reason::Identity).into()) }
}

/// A range of keys that is not empty by its form.
struct TreeWindow {
    from: Key,
    to: Bound<Key>,
}

impl TreeWindow {
    fn new(range: &impl RangeBounds<Key>) -> Option<Self> {
        let from = match range.start_bound() {
            Bound::Included(key) => *key,
            Bound::Excluded(key) => key.successor()?,
            Bound::Unbounded => Key::MIN,
        };
        Some(Self { from, to: range.end_bound().cloned() })
    }

    fn ends_before(&self, key: &Key) -> bool {
        match &self.to {
            Bound::Included(to) => key > to,
            Bound::Excluded(to) => key >= to,
            Bound::Unbounded => false,
        }
    }
}

fn last_before<S: NodeStore + ?Sized>(
    store: &S,
    node: Loaded<'_>,
    fence: &Fence,
    key: &Key,
) -> Result<Option<(Key, Vec<u8>)>, S::Error> {
    let end = node.keys().partition_point(|k| k <= key);
    if node.level() == 0 {
        return Ok(end.checked_sub(1).map(|i| (node.keys()[i], node.leaf().value(i).to_vec())));
    }
    // A separator may be smaller than what is behind it, so the child before can hold the answer; as no
    // child is empty, no other can.
    for i in (0..end).rev() {
        let fence = fence.of_child(&node, i);
        let child = Loaded::load(store, node.child(i), &fence)?;
        if let Some(found) = last_before(store, child, &fence, key)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn scan<S: NodeStore + ?Sized>(
    store: &S,
    node: &Loaded<'_>,
    fence: &Fence,
    window: &TreeWindow,
    visit: &mut impl FnMut(&Key, &[u8]) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, S::Error> {
    let keys = node.keys();
    if node.level() == 0 {
        let start = keys.partition_point(|key| *key < window.from);
        for (key, value) in node.leaf().entries(start..keys.len()) {
            if window.ends_before(key) || visit(key, value).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        return Ok(ControlFlow::Continue(()));
    }
    for (i, separator) in keys.iter().enumerate().skip(slot(keys, &window.from)) {
        if window.ends_before(separator) {
            return Ok(ControlFlow::Break(()));
        }
        let fence = fence.of_child(node, i);
        let child = Loaded::load(store, node.child(i), &fence)?;
        if scan(store, &child, &fence, window, visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn walk<S: NodeStore + ?Sized>(
    store: &S,
    at: View<'_>,
    fence: &Fence,
    enter: &mut impl FnMut(BlockPtr) -> bool,
    visit: &mut impl FnMut(BlockPtr, Result<&Node, S::Error>) -> Result<(), S::Error>,
) -> Result<(), S::Error> {
    let node = match at {
        View::Dirty(dirty) => Loaded::Dirty(dirty),
        View::Clean(ptr) if !enter(ptr) => return Ok(()),
        View::Clean(ptr) => match load_checked(store, ptr, fence) {
            Ok(node) => {
                visit(ptr, Ok(&node))?;
                Loaded::Clean(node)
            }
            Err(error) => return visit(ptr, Err(error)),
        },
    };
    if node.level() > 0 {
        for i in 0..node.keys().len() {
            walk(store, node.child(i), &fence.of_child(&node, i), enter, visit)?;
        }
    }
    Ok(())
}

fn flush<S: NodeSink + ?Sized>(
    child: &mut Child,
    sink: &mut S,
    pending: &mut Pending,
) -> Result<BlockPtr, S::Error> {
    let dirty = match child {
        Child::Clean(ptr) => return Ok(*ptr),
        Child::Dirty(dirty) => Arc::make_mut(dirty),
    };
    if let Dirty::Inner(inner) = &mut *dirty {
        for child in &mut inner.children {
            flush(child, sink, pending)?;
        }
    }
    let len = dirty.encoded_len();
    debug_assert!(len <= NODE_MAX);
    let node = Arc::new(std::mem::take(dirty).into_node());
    point("a node is about to be stored");
    match sink.write(&node) {
        Ok(ptr) => {
            *child = Child::Clean(ptr);
            pending.dirty_bytes -= len;
            Ok(ptr)
        }
        Err(error) => {
            *dirty = Dirty::from_node(Arc::unwrap_or_clone(node));
            Err(error)
        }
    }
}
