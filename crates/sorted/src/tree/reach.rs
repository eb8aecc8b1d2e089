//! Committed nodes by their pointers alone, for who reads many at once, or has some written anew.

use super::change::MERGE_BELOW;
use super::{Child, Fence, Loaded, NodeStore, Tree, View, slot};
use larder_format::node::{Key, Node};
use larder_format::{BlockPtr, Corrupt, Reason};
use std::sync::Arc;

/// Leaves that are loaded together.
const TOGETHER: usize = 512;

impl Tree {
    /// Pointers of the committed leaves where `keys` are, or would be, and of those beside them under the same parent
    /// if these are wanted: in ascending order, each once if the keys ascend. Reads the nodes above alone.
    pub fn leaves_of<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        keys: impl IntoIterator<Item = Key>,
        and_beside: bool,
    ) -> Result<Vec<BlockPtr>, S::Error> {
        let mut found = Vec::new();
        if let Child::Clean(root) = self.root
            && store.load(root)?.level() == 0
        {
            found.push(root);
            return Ok(found);
        }
        // All keys below are in leaves that were found.
        let mut until = None;
        for key in keys {
            if until.is_some_and(|until| key < until) {
                continue;
            }
            let mut fence = Fence::default();
            let mut node = Loaded::load(store, self.root.view(), &fence)?;
            while node.level() > 1 {
                let i = slot(node.keys(), &key);
                fence = fence.of_child(&node, i);
                node = Loaded::load(store, node.child(i), &fence)?;
            }
            if node.level() == 0 {
                break;
            }
            let i = slot(node.keys(), &key);
            until = fence.of_child(&node, i).high;
            let beside = usize::from(and_beside);
            let last = (i + beside).min(node.keys().len() - 1);
            for i in i.saturating_sub(beside)..=last {
                if let View::Clean(ptr) = node.child(i)
                    && found.last() != Some(&ptr)
                {
                    found.push(ptr);
                }
            }
            if until.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// Loads the leaves where `keys`, which ascend, are or would be; and, of leaves that would have nothing left without
    /// them, or little, those beside them with the nodes above. So whoever takes these keys out finds all that it takes
    /// in a store that keeps what it gave. That a neighbour cannot be loaded is no error, as when they are taken out.
    pub fn reach_removal<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        keys: impl IntoIterator<Item = Key>,
    ) -> Result<(), S::Error> {
        let mut keys = keys.into_iter().peekable();
        while let Some(key) = keys.peek() {
            let (node, fence) = self.descend(store, key, |_| ())?;
            let leaf = node.leaf();
            let (mut count, mut len) = (leaf.len(), leaf.encoded_len());
            while let Some(key) = keys.next_if(|key| fence.high.is_none_or(|high| *key < high)) {
                if let Ok(i) = leaf.keys().binary_search(&key) {
                    (count, len) = (count.saturating_sub(1), len.saturating_sub(leaf.entry_len(i)));
                }
            }
            if count == 0 || len < MERGE_BELOW {
                for beside in [fence.low.and_then(Key::predecessor), fence.high].into_iter().flatten() {
                    let _ = self.descend(store, &beside, |_| ());
                }
            }
        }
        Ok(())
    }

    /// Keys that lead to committed nodes that `wanted` picks, with their pointers, `most` at most. Reads the nodes
    /// above the leaves alone.
    pub fn ways_to<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        wanted: impl Fn(&BlockPtr) -> bool,
        most: usize,
    ) -> Result<Vec<(Key, BlockPtr)>, S::Error> {
        let mut found = Vec::new();
        if let Child::Clean(root) = self.root
            && wanted(&root)
        {
            found.push((Key::MIN, root));
        }
        let root = Loaded::load(store, self.root.view(), &Fence::default())?;
        ways_to(store, &root, &Fence::default(), &wanted, most, &mut found)?;
        Ok(found)
    }

    /// Shows all leaves of a tree that was not changed since it was opened, each with its number in the order of keys,
    /// but in the order in which they lie: many are loaded together ([`NodeStore::load_all`]). Nodes that would take
    /// more than `most` bytes are refused: pointers cannot be believed before what they lead to.
    pub fn visit_leaves<S: NodeStore + ?Sized>(
        &self,
        store: &S,
        most: u64,
        mut visit: impl FnMut(usize, &Arc<Node>) -> Result<(), S::Error>,
    ) -> Result<(), S::Error> {
        let Child::Clean(root) = self.root else {
            debug_assert!(false, "a tree that was changed");
            return Err(Corrupt::new("tree node", Reason::Order).into());
        };
        let top = store.load(root)?;
        if top.level() == 0 {
            return visit(0, &top);
        }
        let mut bytes = 0;
        let mut below = |node: &Arc<Node>, fence: &Fence, to: &mut Vec<(BlockPtr, Fence)>| {
            if let Node::Inner(inner) = &**node {
                bytes += inner.children().iter().map(|ptr| u64::from(ptr.place.footprint())).sum::<u64>();
                if bytes > most {
                    return Err(Corrupt::new("tree node", Reason::Range));
                }
                let fence = |i| fence.below(inner.level(), inner.keys(), i);
                to.extend(inner.children().iter().enumerate().map(|(i, ptr)| (*ptr, fence(i))));
            }
            Ok(())
        };
        let (mut level, mut nodes) = (top.level() - 1, Vec::new());
        below(&top, &Fence::default(), &mut nodes)?;
        while level > 0 {
            let mut next = Vec::new();
            for part in nodes.chunks(TOGETHER) {
                let ptrs: Vec<_> = part.iter().map(|(ptr, _)| *ptr).collect();
                for (node, (_, fence)) in store.load_all(&ptrs).into_iter().zip(part) {
                    below(&checked(node?, fence)?, fence, &mut next)?;
                }
            }
            (level, nodes) = (level - 1, next);
        }
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_unstable_by_key(|&at| {
            let place = nodes[at].0.place;
            (place.segment, place.column, place.offset)
        });
        for part in order.chunks(TOGETHER) {
            let ptrs: Vec<_> = part.iter().map(|&at| nodes[at].0).collect();
            for (node, &at) in store.load_all(&ptrs).into_iter().zip(part) {
                visit(at, &checked(node?, &nodes[at].1)?)?;
            }
        }
        Ok(())
    }
}

fn checked(node: Arc<Node>, fence: &Fence) -> Result<Arc<Node>, Corrupt> {
    if fence.admits(&node) { Ok(node) } else { Err(Corrupt::new("tree node", Reason::Identity)) }
}

fn ways_to<S: NodeStore + ?Sized>(
    store: &S,
    node: &Loaded<'_>,
    fence: &Fence,
    wanted: &impl Fn(&BlockPtr) -> bool,
    most: usize,
    found: &mut Vec<(Key, BlockPtr)>,
) -> Result<(), S::Error> {
    if node.level() == 0 {
        return Ok(());
    }
    for (i, key) in node.keys().iter().enumerate() {
        if found.len() >= most {
            return Ok(());
        }
        let child = node.child(i);
        if let View::Clean(ptr) = child
            && wanted(&ptr)
        {
            found.push((*key, ptr));
        }
        if node.level() > 1 {
            let fence = fence.of_child(node, i);
            let child = Loaded::load(store, child, &fence)?;
            ways_to(store, &child, &fence, wanted, most, found)?;
        }
    }
    Ok(())
}
