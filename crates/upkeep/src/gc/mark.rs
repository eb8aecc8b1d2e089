//! The walk: every node that the pinned roots reach, each read once, many reads at a time in order of place.
//!
//! **Lineage.** Of a dataset come its snapshots in order of birth, then its head. A committed node never
//! changes and its children are never younger than it is; so a tree has in common with its predecessor
//! exactly what is not *fresh*: nodes whose id is not above the highest that the predecessor may hold. Only
//! fresh nodes are entered, which visits each node once, without a set of those visited.
//!
//! **Order.** Pointers that wait are kept by level. The lowest level goes first, as a batch sorted by place,
//! which is read together; above the leaves a batch is only as large as its children find room. So what
//! waits is bounded by levels × batch × fan-out, and leaves, nearly all of the nodes, are read in sweeps
//! over the devices.
//!
//! **References.** Each extent of a fresh leaf is a reference, but for those that the predecessor has under
//! the same key: a leaf that was written anew carries on what did not change of it.
//!
//! Nodes are read past the cache: what is there is used, nothing is put there.

use bytes::Bytes;
use larder_format::block::BlockKind;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::{Key, Leaf, MAX_LEVEL, NODE_MAX, Node};
use larder_format::{BlockId, BlockPtr, Corrupt, Reason};
use larder_pool::Pool;
use larder_pool::pins::PinnedTree;
use larder_sorted::tree::{Fence, Tree};
use larder_store::{PassingNodes, Result, decode_node, plain_of};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Leaves that are read together, at most.
const LEAVES: usize = 64;
/// Bytes that an entry of a leaf takes at least when it is an extent.
const EXTENT_BYTES: usize = 19 + 40;
/// Extents that a leaf holds, at most.
pub(crate) const EXTENTS_PER_LEAF: usize = NODE_MAX / EXTENT_BYTES + 1;
/// Level of roots that wait: theirs is not known.
const ROOTS: usize = MAX_LEVEL as usize + 1;

/// Kind of a reference that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    /// It is a reference of its own.
    Reference,
    /// It was counted where the predecessor has it.
    Carried,
}

/// Receives what the walk finds.
pub(crate) trait Visitor {
    /// A node of `member` that could be read; when it is fresh, it is referred to here and nowhere else.
    fn node(&mut self, member: &PinnedTree, ptr: BlockPtr, fresh: bool) -> Result<()>;
    /// An extent of `member`.
    fn extent(&mut self, member: &PinnedTree, key: &Key, extent: &Extent, met: Met) -> Result<()>;
    /// A node cannot be read, so what is below it is unknown.
    fn lost(&mut self, member: &PinnedTree, what: String);
}

/// A node that waits to be read.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    ptr: BlockPtr,
    fence: Fence,
    member: u32,
    fresh: bool,
}

/// The walk's state.
pub(crate) struct TreeWalk {
    members: Vec<PinnedTree>,
    /// By level; roots last.
    waiting: Vec<Vec<Waiting>>,
    sorted: Vec<bool>,
    /// Nodes above the leaves that are read together: their children find room.
    inner: usize,
    leaves: usize,
    /// Nodes that name only ids below are not entered.
    from: BlockId,
    /// Everything is entered, not only what is fresh, and nothing is taken from the cache.
    deep: bool,
    #[cfg(test)]
    most: usize,
}

impl TreeWalk {
    /// A walk over `members`, each lineage in order, for what they name from the id `from` on, in `memory` bytes.
    pub(crate) fn new(members: Vec<PinnedTree>, from: BlockId, memory: usize, deep: bool) -> Self {
        let fan_out = larder_format::node::MAX_CHILDREN * size_of::<Waiting>();
        // Two levels above the leaves are met in any pool of less than some 10^7 leaves a dataset.
        let inner = memory / 2 / fan_out / 3;
        // A decoded leaf takes up to three times its bytes.
        let leaves = memory / 2 / (3 * NODE_MAX);
        let mut waiting = vec![Vec::new(); ROOTS + 1];
        waiting[ROOTS] = (0..members.len() as u32)
            .rev()
            .map(|member| {
                let of = &members[member as usize];
                let fresh = of.is_fresh(of.root.id);
                Waiting { ptr: of.root, fence: Fence::default(), member, fresh }
            })
            .filter(|root| (root.fresh || deep) && root.ptr.id >= from)
            .collect();
        let sorted = vec![false; ROOTS + 1];
        Self {
            members,
            waiting,
            sorted,
            inner: inner.max(1),
            leaves: leaves.clamp(1, LEAVES),
            from,
            deep,
            #[cfg(test)]
            most: 0,
        }
    }

    /// Extents that one batch shows, at most.
    pub(crate) fn extents_per_batch(&self) -> usize {
        self.leaves * EXTENTS_PER_LEAF
    }

    /// Bytes of memory in use.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.waiting.iter().map(|level| level.capacity() * size_of::<Waiting>()).sum()
    }

    /// The most memory that was in use.
    #[cfg(test)]
    pub(crate) fn most_bytes(&self) -> usize {
        self.most
    }

    /// Reads one batch; how many nodes, 0 when nothing is left.
    pub(crate) fn step(&mut self, pool: &Pool, visitor: &mut impl Visitor) -> Result<usize> {
        let Some(level) = self.waiting.iter().position(|level| !level.is_empty()) else { return Ok(0) };
        let batch = self.take(level);
        let nodes = self.read(pool, &batch);
        for (at, node) in batch.iter().zip(nodes) {
            let member = self.members[at.member as usize].clone();
            match node {
                Err(error) => visitor.lost(&member, format!("node {}: {error}", at.ptr.id)),
                Ok(node) => {
                    visitor.node(&member, at.ptr, at.fresh)?;
                    match &*node {
                        Node::Inner(inner) => {
                            for (i, &ptr) in inner.children().iter().enumerate() {
                                let fresh = at.fresh && member.is_fresh(ptr.id);
                                if (fresh || self.deep) && ptr.id >= self.from {
                                    let fence = at.fence.below(inner.level(), inner.keys(), i);
                                    let below = usize::from(inner.level()) - 1;
                                    self.waiting[below].push(Waiting { ptr, fence, fresh, ..*at });
                                    self.sorted[below] = false;
                                }
                            }
                        }
                        Node::Leaf(leaf) => show_leaf(pool, leaf, &member, self.from, at.fresh, visitor)?,
                    }
                }
            }
        }
        #[cfg(test)]
        {
            self.most = self.most.max(self.memory_bytes());
        }
        Ok(batch.len())
    }

    /// The next batch of a level, in order of place.
    fn take(&mut self, level: usize) -> Vec<Waiting> {
        let waiting = &mut self.waiting[level];
        if !std::mem::replace(&mut self.sorted[level], true) && level != ROOTS {
            waiting.sort_unstable_by_key(|one| std::cmp::Reverse(one.ptr.place));
        }
        let most = if level == 0 { self.leaves } else { self.inner };
        let mut batch = waiting.split_off(waiting.len().saturating_sub(most));
        batch.reverse();
        if waiting.is_empty() {
            *waiting = Vec::new();
        }
        batch
    }

    /// Reads and decodes nodes, in the order given.
    fn read(&self, pool: &Pool, batch: &[Waiting]) -> Vec<Result<Arc<Node>>> {
        let cached: Vec<_> =
            batch.iter().map(|one| pool.store().cache.peek_node(one.ptr.id).filter(|_| !self.deep)).collect();
        let missing = batch.iter().zip(&cached).filter(|(_, cached)| cached.is_none());
        let arrived = pool.store().fetch(missing.map(|(one, _)| one.ptr));
        let arrived: HashMap<BlockId, Bytes> = arrived.into_iter().map(|one| (one.id, one.bytes)).collect();
        pool.store().world.workers.map(batch.len(), |i| {
            let one = &batch[i];
            let node = cached[i].clone().map_or_else(|| load(pool, one.ptr, arrived.get(&one.ptr.id)), Ok);
            node.and_then(|node| match one.fence.admits(&node) {
                true => Ok(node),
                false => Err(Corrupt::new("tree node", Reason::Identity).into()),
            })
        })
    }
}

/// A node from the bytes that arrived, else from whatever can give it.
fn load(pool: &Pool, ptr: BlockPtr, arrived: Option<&Bytes>) -> Result<Arc<Node>> {
    let arrived = arrived.and_then(|bytes| {
        let header = pool.store().prove(ptr.id, bytes)?;
        let plain = plain_of(&header, bytes, BlockKind::Node).ok()?;
        decode_node(&header, &plain).ok()
    });
    match arrived {
        Some(node) => Ok(node),
        None => {
            let (header, plain) = pool.store().read_plain(ptr, BlockKind::Node)?;
            decode_node(&header, &plain)
        }
    }
}

/// Shows the extents of a leaf that name blocks from the id `from` on.
fn show_leaf(
    pool: &Pool,
    leaf: &Leaf,
    member: &PinnedTree,
    from: BlockId,
    fresh: bool,
    visitor: &mut impl Visitor,
) -> Result<()> {
    let mut before: Option<HashMap<Key, Extent>> = None;
    for (key, value) in leaf.iter().filter(|(key, _)| key.kind == EXTENT) {
        let extent = match Extent::decode(value) {
            Ok(extent) => extent,
            Err(corrupt) => {
                visitor.lost(member, format!("{corrupt} at {key:?}"));
                continue;
            }
        };
        if extent.ptr.id < from {
            continue;
        }
        let mut met = if fresh { Met::Reference } else { Met::Carried };
        if let Some((root, _)) = member.predecessor.filter(|_| fresh && !member.is_fresh(extent.ptr.id)) {
            // A predecessor that cannot be read is told of where it is walked; here it only makes counts too high.
            let before =
                before.get_or_insert_with(|| extents_of(pool, root, leaf.keys()).unwrap_or_default());
            let part = |extent: &Extent| (extent.ptr.id, extent.block_offset, extent.len);
            if before.get(key).is_some_and(|old| part(old) == part(&extent)) {
                met = Met::Carried;
            }
        }
        visitor.extent(member, key, &extent, met)?;
    }
    Ok(())
}

/// Extents in a tree under a leaf's keys.
fn extents_of(pool: &Pool, root: BlockPtr, keys: &[Key]) -> Result<HashMap<Key, Extent>> {
    let mut found = HashMap::new();
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(found) };
    Tree::open(root).scan(&PassingNodes(pool.store()), *first..=*last, |key, value| {
        if key.kind == EXTENT && keys.binary_search(key).is_ok() {
            found.extend(Extent::decode(value).map(|extent| (*key, extent)));
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}
