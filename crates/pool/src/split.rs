//! Counts of a collection that are finer than by dataset, and the look into pinned trees that they take.

use crate::pins::PinnedTree;
use crate::pool::Pool;
use larder_format::node::Key;
use larder_sorted::tree::{Met, Tree};
use larder_store::{PassingNodes, Result, Store};
use std::any::Any;
use std::sync::Arc;

/// Parts of datasets, for figures that are finer than by dataset. The layer above makes them, which knows what is in
/// the trees. Each part has a number, and those of a dataset come one after another, in order of
/// [`PinnedTree::origin`]: first whatever is in no other part of it.
pub trait Split: Any + Send + Sync {
    /// A collection begins that walks these trees, of `datasets` datasets. It has numbers for `parts`, and `memory`
    /// bytes for all that must be kept until [`Split::forget`].
    fn begin(&self, members: &[PinnedTree], datasets: usize, parts: usize, memory: usize);
    /// Learns some more of the trees, which stay as they are pinned, by reading about `effort` nodes; whether there is
    /// more to be learned.
    fn learn(&self, pool: &Pool, effort: usize) -> bool;
    /// The origin of each part, ascending, after all was learned.
    fn origins(&self) -> Vec<u32>;
    /// The part that an object of a dataset, or of a snapshot of it, is in.
    fn part(&self, origin: u32, object: u64) -> u32;
    /// Nobody asks for [`Split::part`] any more.
    fn forget(&self);
}

/// A look into the tree of a dataset as it is pinned, past the cache.
pub struct PinnedView {
    store: Arc<Store>,
    tree: Tree,
}

impl PinnedView {
    /// The value under `key`.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.tree.get(&PassingNodes(&self.store), key)
    }

    /// Shows the entries of the leaf where `from` is or would be. Returns the key at which the next one begins, if
    /// there is one, and whether this one cannot be read.
    pub fn leaf(&self, from: Key, visit: &mut dyn FnMut(&Key, &[u8])) -> (Option<Key>, bool) {
        let mut is_lost = false;
        let next = self.tree.survey(&PassingNodes(&self.store), from, 1, |met| match met {
            Met::Leaf(leaf) => leaf.iter().for_each(|(key, value)| visit(key, value)),
            Met::Lost(_) => is_lost = true,
        });
        (next, is_lost)
    }
}

impl Pool {
    /// Looks into a dataset as it is pinned, while the collection has not walked everything: until then nodes are held.
    pub fn pinned_view(&self, head: &PinnedTree) -> PinnedView {
        PinnedView { store: Arc::clone(self.store()), tree: Tree::open(head.root) }
    }
}
