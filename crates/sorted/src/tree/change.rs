//! Insertion, removal, splits and merges.

use super::{
    Child, Dirty, DirtyInner, Fence, Loaded, NodeStore, Pending, Tree, TreeWindow, View, load_checked, slot,
};
use larder_format::node::{InnerEntry, Key, Leaf, MAX_CHILDREN, MAX_LEVEL, NODE_MAX, Node, NodeHead};
use larder_format::{BlockId, Corrupt, Reason};
use larder_mutants::{Mutant, mutated, point};
use std::ops::RangeBounds;
use std::sync::Arc;

/// A node smaller than this looks for a neighbour to merge with (a leaf of one value of the greatest length
/// is),
pub(super) const MERGE_BELOW: usize = NODE_MAX / 3;
/// and does if both together are not larger than this.
const MERGE_UP_TO: usize = NODE_MAX / 4 * 3;
/// Bytes that a split at the end leaves in the left node at most: room for a few values to grow.
const APPENDED_FILL: usize = NODE_MAX / 16 * 15;

/// The clean nodes on the path to a leaf, from the top.
type Path = std::vec::IntoIter<Arc<Node>>;

/// The right half of a split node, and the separator in front of it.
type Split = Option<(Key, Arc<Dirty>)>;

/// Whether a removal left anything of a subtree.
#[derive(PartialEq)]
enum Remains {
    Some,
    Nothing,
}

impl Tree {
    /// Puts `value` under `key` and returns what was there. On an error nothing has changed.
    ///
    /// # Panics
    /// When the value is longer than [`larder_format::node::MAX_VALUE`].
    pub fn insert<S: NodeStore + ?Sized>(
        &mut self,
        store: &S,
        key: Key,
        value: &[u8],
    ) -> Result<Option<Vec<u8>>, S::Error> {
        let mut path = Vec::new();
        self.descend(store, &key, |node| path.push(node.clone()))?;
        let top = match &self.root {
            Child::Dirty(root) => root.level(),
            Child::Clean(_) => path[0].level(),
        };
        if top == MAX_LEVEL {
            // No pool that was written by us grows so high, and a split of the root could not be stored.
            return Err(Corrupt::new("tree node", Reason::Range).into());
        }
        point("a tree is about to change");
        let (old, split) = insert(&mut self.root, &mut path.into_iter(), &mut self.pending, key, value);
        point("a tree has changed and its root is to be split, if at all");
        if let Some((separator, right)) = split {
            let left = std::mem::replace(&mut self.root, Child::Dirty(Arc::default()));
            let Child::Dirty(node) = &left else { unreachable!("a node that was split is dirty") };
            let keys = vec![node.keys()[0], separator];
            let root = DirtyInner { level: top + 1, keys, children: vec![left, Child::Dirty(right)] };
            self.pending.dirty_bytes += root.encoded_len();
            self.root = Child::Dirty(Arc::new(Dirty::Inner(root)));
        }
        Ok(old)
    }

    /// Takes the value under `key` out and returns it. On an error nothing has changed.
    pub fn remove<S: NodeStore + ?Sized>(
        &mut self,
        store: &S,
        key: &Key,
    ) -> Result<Option<Vec<u8>>, S::Error> {
        let mut old = None;
        self.remove_range(store, *key..=*key, 1, |_, value| old = Some(value.to_vec()))?;
        Ok(old)
    }

    /// Takes up to `limit` entries out of `range`, in ascending order, shows each to `removed` and returns
    /// their number; fewer than `limit` means that the range is empty now. Works leaf by leaf: a leaf that
    /// lies in the range is read, but not copied. On an error, what `removed` has seen is gone and nothing
    /// else has changed.
    pub fn remove_range<S: NodeStore + ?Sized>(
        &mut self,
        store: &S,
        range: impl RangeBounds<Key>,
        limit: usize,
        mut removed: impl FnMut(&Key, &[u8]),
    ) -> Result<usize, S::Error> {
        let mut count = 0;
        let Some(mut window) = TreeWindow::new(&range) else { return Ok(0) };
        while count < limit {
            let mut path = Vec::new();
            let (node, fence) = self.descend(store, &window.from, |node| path.push(node.clone()))?;
            let keys = node.keys();
            let start = keys.partition_point(|key| *key < window.from);
            let end = keys.partition_point(|key| !window.ends_before(key));
            let ends_here = end < keys.len();
            let n = end.saturating_sub(start).min(limit - count);
            if n > 0 {
                let first = keys[start];
                for (key, value) in node.leaf().entries(start..start + n) {
                    removed(key, value);
                }
                drop(node);
                let (cut, mut path) = (Cut { first, n }, path.into_iter());
                point("entries are about to leave a tree");
                let remains = cut.run(store, &mut self.root, None, &mut path, &mut self.pending);
                if remains == Remains::Nothing {
                    self.root = Child::Dirty(Arc::default());
                    self.pending.dirty_bytes += NodeHead::SIZE;
                }
                self.collapse(store);
                count += n;
            }
            match fence.high {
                Some(high) if !ends_here && !window.ends_before(&high) => window.from = high,
                _ => break,
            }
        }
        Ok(count)
    }

    /// Has the nodes on the way to `key` written anew by the next flush. On an error nothing has changed.
    pub fn touch<S: NodeStore + ?Sized>(&mut self, store: &S, key: &Key) -> Result<(), S::Error> {
        let mut path = Vec::new();
        self.descend(store, key, |node| path.push(node.clone()))?;
        touch(&mut self.root, key, &mut path.into_iter(), &mut self.pending);
        Ok(())
    }

    /// Takes the committed node `target` out of the tree, with all below it and without reading it; `key` leads to it.
    /// False when it does not, or when it is the root. On an error nothing has changed.
    pub fn excise<S: NodeStore + ?Sized>(
        &mut self,
        store: &S,
        key: &Key,
        target: BlockId,
    ) -> Result<bool, S::Error> {
        let is_target = |child: View<'_>| matches!(child, View::Clean(ptr) if ptr.id == target);
        if is_target(self.root.view()) {
            return Ok(false);
        }
        let (mut path, mut fence) = (Vec::new(), Fence::default());
        let mut node = Loaded::load(store, self.root.view(), &fence)?;
        loop {
            if let Loaded::Clean(clean) = &node {
                path.push(clean.clone());
            }
            if node.level() == 0 {
                return Ok(false);
            }
            let i = slot(node.keys(), key);
            fence = fence.of_child(&node, i);
            let child = node.child(i);
            if is_target(child) {
                break;
            }
            node = Loaded::load(store, child, &fence)?;
        }
        drop(node);
        let remains = excise(&mut self.root, key, target, &mut path.into_iter(), &mut self.pending);
        if remains == Remains::Nothing {
            self.root = Child::Dirty(Arc::default());
            self.pending.dirty_bytes += NodeHead::SIZE;
        }
        self.collapse(store);
        // Nodes before it have its keys from now on, and may be as hard to read.
        self.pending.blurred = true;
        Ok(true)
    }

    /// While the root has a single child, that is the root. It is dirty then: it has all keys from now on, and had not.
    fn collapse<S: NodeStore + ?Sized>(&mut self, store: &S) {
        while let Child::Dirty(root) = &self.root
            && let Dirty::Inner(inner) = &**root
            && let [child] = inner.children.as_slice()
        {
            let fence = Fence::default().below(inner.level, &inner.keys, 0);
            self.pending.dirty_bytes -= inner.encoded_len();
            self.root = child.clone();
            if let Child::Clean(ptr) = self.root {
                match load_checked(store, ptr, &fence) {
                    Ok(node) => drop(self.root.make_dirty(|| node, &mut self.pending)),
                    Err(_) => self.pending.blurred = true,
                }
            }
        }
    }
}

impl DirtyInner {
    pub(super) fn encoded_len(&self) -> usize {
        NodeHead::SIZE + self.keys.len() * InnerEntry::SIZE
    }
}

impl Child {
    /// Makes the node changeable. If it is clean, `load` gives its content and its pointer is dropped.
    fn make_dirty(&mut self, load: impl FnOnce() -> Arc<Node>, pending: &mut Pending) -> &mut Dirty {
        if let Child::Clean(ptr) = *self {
            let dirty = Dirty::from_node(Arc::unwrap_or_clone(load()));
            pending.dropped.push(ptr);
            pending.dirty_bytes += dirty.encoded_len();
            *self = Child::Dirty(Arc::new(dirty));
        }
        match self {
            Child::Dirty(dirty) => Arc::make_mut(dirty),
            Child::Clean(_) => unreachable!("made dirty above"),
        }
    }
}

/// The path was loaded for exactly this descent.
fn next(path: &mut Path) -> Arc<Node> {
    path.next().expect("the path is loaded")
}

fn insert(
    child: &mut Child,
    path: &mut Path,
    pending: &mut Pending,
    key: Key,
    value: &[u8],
) -> (Option<Vec<u8>>, Split) {
    match child.make_dirty(|| next(path), pending) {
        Dirty::Leaf(leaf) => {
            let before = leaf.encoded_len();
            let (at, old) = leaf.put(key, value);
            pending.dirty_bytes = pending.dirty_bytes - before + leaf.encoded_len();
            (old, split_leaf(leaf, at, pending))
        }
        Dirty::Inner(inner) => {
            let i = slot(&inner.keys, &key);
            inner.keys[i] = inner.keys[i].min(key);
            let (old, split) = insert(&mut inner.children[i], path, pending, key, value);
            let Some((separator, right)) = split else { return (old, None) };
            inner.keys.insert(i + 1, separator);
            inner.children.insert(i + 1, Child::Dirty(right));
            pending.dirty_bytes += InnerEntry::SIZE;
            (old, split_inner(inner, i + 1, pending))
        }
    }
}

fn touch(child: &mut Child, key: &Key, path: &mut Path, pending: &mut Pending) {
    if let Dirty::Inner(inner) = child.make_dirty(|| next(path), pending) {
        let i = slot(&inner.keys, key);
        touch(&mut inner.children[i], key, path, pending);
    }
}

fn excise(child: &mut Child, key: &Key, target: BlockId, path: &mut Path, pending: &mut Pending) -> Remains {
    if let Child::Clean(ptr) = *child
        && ptr.id == target
    {
        pending.dropped.push(ptr);
        return Remains::Nothing;
    }
    let Dirty::Inner(inner) = child.make_dirty(|| next(path), pending) else {
        unreachable!("the way to the target was found")
    };
    let i = slot(&inner.keys, key);
    if excise(&mut inner.children[i], key, target, path, pending) == Remains::Some {
        return Remains::Some;
    }
    if inner.children.len() == 1 {
        pending.dirty_bytes -= inner.encoded_len();
        return Remains::Nothing;
    }
    inner.keys.remove(i);
    inner.children.remove(i);
    pending.dirty_bytes -= InnerEntry::SIZE;
    Remains::Some
}

/// Splits a leaf that is too large after a change of entry `at`.
///
/// An entry is at most a quarter of a node and a bit, and the leaf has one too many at most, so that any
/// cut near the middle gives two halves that fit, as does a later one that leaves the left one full.
fn split_leaf(leaf: &mut Leaf, at: usize, pending: &mut Pending) -> Split {
    let total = leaf.encoded_len();
    if total <= NODE_MAX {
        return None;
    }
    let entries = |to: usize| (0..to).map(|i| leaf.entry_len(i)).sum::<usize>();
    let half = total / 2;
    // Cut behind what an object's growing end has reached, or what is written in order stays half full.
    let goal = if ends_its_object(leaf.keys(), at) {
        (NodeHead::SIZE + entries(at + 1)).min(APPENDED_FILL).max(half)
    } else {
        half
    };
    let mut cut = 0;
    let mut size = NodeHead::SIZE;
    while size + leaf.entry_len(cut) <= goal {
        size += leaf.entry_len(cut);
        cut += 1;
    }
    let right = leaf.split_off(cut);
    assert!(leaf.encoded_len() <= NODE_MAX && right.encoded_len() <= NODE_MAX && !leaf.is_empty());
    pending.dirty_bytes += NodeHead::SIZE;
    Some((right.keys()[0], Arc::new(Dirty::Leaf(right))))
}

/// Whether entry `at` is the last one of its object and kind here, behind another one of them; or the last
/// of the leaf.
fn ends_its_object(keys: &[Key], at: usize) -> bool {
    let same = |other: Option<&Key>| {
        other.is_some_and(|other| (other.object, other.kind) == (keys[at].object, keys[at].kind))
    };
    at + 1 == keys.len() || (at > 0 && same(keys.get(at - 1)) && !same(keys.get(at + 1)))
}

/// Splits an inner node that is too large after child `at` was added.
fn split_inner(inner: &mut DirtyInner, at: usize, pending: &mut Pending) -> Split {
    let count = inner.children.len();
    if count <= MAX_CHILDREN {
        return None;
    }
    let cut = if at + 1 == count { count * 15 / 16 } else { count / 2 };
    let keys = inner.keys.split_off(cut);
    let children = inner.children.split_off(cut);
    pending.dirty_bytes += NodeHead::SIZE;
    Some((keys[0], Arc::new(Dirty::Inner(DirtyInner { level: inner.level, keys, children }))))
}

/// The removal of `n` entries of one leaf, from the key `first` on.
struct Cut {
    first: Key,
    n: usize,
}

impl Cut {
    /// Removes from the subtree `child`, all of whose keys are smaller than `high`.
    fn run<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        child: &mut Child,
        high: Option<Key>,
        path: &mut Path,
        pending: &mut Pending,
    ) -> Remains {
        if let Child::Clean(ptr) = *child
            && let Node::Leaf(leaf) = &*path.as_slice()[0]
            && leaf.len() == self.n
        {
            pending.dropped.push(ptr);
            return Remains::Nothing;
        }
        match child.make_dirty(|| next(path), pending) {
            Dirty::Leaf(leaf) => {
                let before = leaf.encoded_len();
                if leaf.len() == self.n {
                    pending.dirty_bytes -= before;
                    return Remains::Nothing;
                }
                let start = leaf.keys().binary_search(&self.first).expect("the leaf was searched");
                leaf.remove(start..start + self.n);
                pending.dirty_bytes = pending.dirty_bytes - before + leaf.encoded_len();
            }
            Dirty::Inner(inner) => {
                let i = slot(&inner.keys, &self.first);
                let child_high = inner.keys.get(i + 1).copied().or(high);
                if self.run(store, &mut inner.children[i], child_high, path, pending) == Remains::Some {
                    merge(store, inner, i, high, pending);
                } else if inner.children.len() == 1 {
                    pending.dirty_bytes -= inner.encoded_len();
                    return Remains::Nothing;
                } else {
                    if i > 0 && !mutated(Mutant::FenceGrows) {
                        let fence = Fence::default().below(inner.level, &inner.keys, i - 1);
                        dirty_end(store, &mut inner.children[i - 1], fence, pending);
                    }
                    inner.keys.remove(i);
                    inner.children.remove(i);
                    pending.dirty_bytes -= InnerEntry::SIZE;
                }
            }
        }
        Remains::Some
    }
}

/// Makes the last nodes of a subtree dirty, from its top to a leaf: what followed it goes, and they have the keys up to
/// what is next from now on. Where one cannot be loaded the tree is blurred.
fn dirty_end<S: NodeStore + ?Sized>(store: &S, child: &mut Child, fence: Fence, pending: &mut Pending) {
    let dirty = match child {
        Child::Dirty(dirty) => Arc::make_mut(dirty),
        Child::Clean(ptr) => match load_checked(store, *ptr, &fence) {
            Ok(node) => child.make_dirty(|| node, pending),
            Err(_) => {
                pending.blurred = true;
                return;
            }
        },
    };
    if let Dirty::Inner(inner) = dirty
        && let Some(last) = inner.children.len().checked_sub(1)
    {
        let fence = fence.below(inner.level, &inner.keys, last);
        dirty_end(store, &mut inner.children[last], fence, pending);
    }
}

/// Whether [`dirty_end`] would load all that it has to.
fn has_end<S: NodeStore + ?Sized>(store: &S, child: &Child) -> bool {
    let mut at = child.clone();
    loop {
        let last = match &at {
            Child::Dirty(dirty) => match &**dirty {
                Dirty::Inner(inner) => inner.children.last().cloned(),
                Dirty::Leaf(_) => None,
            },
            Child::Clean(ptr) => match store.load_beside(*ptr).as_deref() {
                Some(Node::Inner(inner)) => inner.children().last().map(|ptr| Child::Clean(*ptr)),
                Some(Node::Leaf(_)) => None,
                None => return false,
            },
        };
        let Some(last) = last else { return true };
        at = last;
    }
}

/// Merges child `i`, which just shrank, with a neighbour if it is small and one is not too large. A
/// neighbour that cannot be loaded, or not now, stays as it is.
fn merge<S: NodeStore + ?Sized>(
    store: &S,
    inner: &mut DirtyInner,
    i: usize,
    high: Option<Key>,
    pending: &mut Pending,
) {
    let Child::Dirty(small) = &inner.children[i] else { unreachable!("what shrank is dirty") };
    let size = small.encoded_len();
    if size >= MERGE_BELOW {
        return;
    }
    for j in [i.wrapping_sub(1), i + 1] {
        let (other_size, other) = match inner.children.get(j) {
            None => continue,
            Some(Child::Dirty(dirty)) => (dirty.encoded_len(), None),
            Some(Child::Clean(ptr)) => {
                let fence = Fence {
                    level: Some(inner.level - 1),
                    low: Some(inner.keys[j]),
                    high: inner.keys.get(j + 1).copied().or(high),
                };
                match store.load_beside(*ptr).filter(|node| fence.admits(node)) {
                    Some(node) => (node.encoded_len(), Some(node)),
                    None => continue,
                }
            }
        };
        if size + other_size - NodeHead::SIZE > MERGE_UP_TO {
            continue;
        }
        let left = i.min(j);
        let separator = inner.keys[left + 1];
        // Keys before the first child on the right were nobody's: the last one on the left has them from now on.
        let has_gap = match &inner.children[left + 1] {
            Child::Dirty(right) => right.level() > 0 && right.keys()[0] > separator,
            Child::Clean(_) => {
                let right = other.as_ref().expect("a clean neighbour is loaded");
                right.level() > 0 && right.keys()[0] > separator
            }
        };
        if has_gap && !has_end(store, &inner.children[left]) {
            continue;
        }
        inner.children[j].make_dirty(|| other.expect("a clean neighbour is loaded"), pending);
        if has_gap {
            let fence = Fence::default().below(inner.level, &inner.keys, left);
            dirty_end(store, &mut inner.children[left], fence, pending);
        }
        inner.keys.remove(left + 1);
        let right = inner.children.remove(left + 1);
        let (Child::Dirty(left), Child::Dirty(right)) = (&mut inner.children[left], right) else {
            unreachable!("both are dirty")
        };
        match (Arc::make_mut(left), Arc::unwrap_or_clone(right)) {
            (Dirty::Leaf(left), Dirty::Leaf(right)) => left.append(&right),
            (Dirty::Inner(left), Dirty::Inner(right)) => {
                left.keys.extend(right.keys);
                left.children.extend(right.children);
            }
            _ => unreachable!("neighbours are on one level"),
        }
        pending.dirty_bytes -= InnerEntry::SIZE + NodeHead::SIZE;
        return;
    }
}
