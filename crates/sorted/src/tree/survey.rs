//! Looking through a tree parts of which cannot be read.

use super::{Fence, Loaded, NodeStore, Tree, View, load_checked, slot};
use larder_format::BlockPtr;
use larder_format::node::{Key, Leaf};

/// A subtree that cannot be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostNode {
    /// Its root.
    pub ptr: BlockPtr,
    /// No key in it is smaller; none for the whole tree.
    pub low: Option<Key>,
    /// Every key in it is smaller; none at the tree's end.
    pub high: Option<Key>,
}

/// Receives what a survey finds.
pub enum Met<'a> {
    /// A leaf.
    Leaf(&'a Leaf),
    /// A node that cannot be loaded.
    Lost(LostNode),
}

impl Tree {
    /// Shows the leaf where `from` is or would be and those behind it, `max` of them at most; what cannot be loaded is
    /// shown as lost and counts as one. Returns where to go on, `None` at the tree's end.
    pub fn survey<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        from: Key,
        max: usize,
        mut visit: impl FnMut(Met<'_>),
    ) -> Option<Key> {
        let mut at = from;
        for _ in 0..max {
            let fence = match self.way(store, &at, |_| false) {
                Ok((leaf, fence)) => {
                    visit(Met::Leaf(leaf.leaf()));
                    fence
                }
                Err((ptr, fence)) => {
                    visit(Met::Lost(LostNode { ptr, low: fence.low, high: fence.high }));
                    fence
                }
            };
            at = fence.high?;
        }
        Some(at)
    }

    /// The committed node on the way to `key` that `is` the one, which need not be readable; none when the way
    /// leads past it, or ends before at another that cannot be loaded.
    pub fn on_way<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        key: &Key,
        is: impl Fn(BlockPtr) -> bool,
    ) -> Option<LostNode> {
        match self.way(store, key, &is) {
            Err((ptr, fence)) if is(ptr) => Some(LostNode { ptr, low: fence.low, high: fence.high }),
            _ => None,
        }
    }

    /// Where the leaf that `key` is in, or would be, ends; none at the tree's end, or when it cannot be loaded.
    pub fn leaf_end<S: NodeStore + ?Sized>(&self, store: &S, key: &Key) -> Option<Key> {
        self.way(store, key, |_| false).ok().and_then(|(_, fence)| fence.high)
    }

    /// The leaf where `key` is or would be; or the node at which the way there ends, as it cannot be loaded or is the
    /// one to `stop` at.
    fn way<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        key: &Key,
        stop: impl Fn(BlockPtr) -> bool,
    ) -> Result<(Loaded<'_>, Fence), (BlockPtr, Fence)> {
        let mut fence = Fence::default();
        let mut node = load(store, self.root.view(), fence, &stop)?;
        while node.level() > 0 {
            let i = slot(node.keys(), key);
            fence = fence.of_child(&node, i);
            node = load(store, node.child(i), fence, &stop)?;
        }
        Ok((node, fence))
    }
}

fn load<'a, S: NodeStore + ?Sized>(
    store: &S,
    child: View<'a>,
    fence: Fence,
    stop: &impl Fn(BlockPtr) -> bool,
) -> Result<Loaded<'a>, (BlockPtr, Fence)> {
    match child {
        View::Dirty(dirty) => Ok(Loaded::Dirty(dirty)),
        View::Clean(ptr) if stop(ptr) => Err((ptr, fence)),
        View::Clean(ptr) => match load_checked(store, ptr, &fence) {
            Ok(node) => Ok(Loaded::Clean(node)),
            Err(_) => Err((ptr, fence)),
        },
    }
}
