//! Nodes that were found, and the pages of the map that tell of aliases: what trees are put together of.

use crate::slots::Segments;
use bytes::Bytes;
use larder_format::block::{BlockKind, CheckedHeader};
use larder_format::checksum::Sums;
use larder_format::node::{Key, Node};
use larder_format::run::{PageCursor, RunPage, Target};
use larder_format::{BlockId, BlockPtr, CommitId, Incarnation, Place};
use larder_store::{decode_node, plain_of};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The trees of the tables, as the dataset that owns their nodes.
pub(crate) const TABLES: u64 = 0;

/// A node, as its block's header tells of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeRef {
    pub(crate) id: BlockId,
    pub(crate) level: u8,
    pub(crate) birth: CommitId,
    pub(crate) incarnation: Incarnation,
    pub(crate) first: Key,
}

/// The nodes of all trees.
#[derive(Default)]
pub(crate) struct Nodes {
    /// By dataset, in the order of ids.
    by_dataset: BTreeMap<u64, Vec<NodeRef>>,
    /// Places of nodes, and their datasets.
    places: HashMap<BlockId, (Place, u64)>,
}

impl Nodes {
    /// Notes a node.
    pub(crate) fn add(&mut self, header: &CheckedHeader, place: Place) {
        let info = &header.info;
        let dataset = if info.kind == BlockKind::Table { TABLES } else { info.dataset.get() };
        let node = NodeRef {
            id: header.id,
            level: info.level,
            birth: header.birth,
            incarnation: header.incarnation,
            first: Key::new(info.object, info.key_kind, info.offset),
        };
        if self.places.insert(node.id, (place, dataset)).is_none() {
            self.by_dataset.entry(dataset).or_default().push(node);
        }
    }

    /// Leaves out those of which `keeps` is false.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&NodeRef) -> bool) {
        for nodes in self.by_dataset.values_mut() {
            nodes.retain(|node| {
                let kept = keeps(node);
                if !kept {
                    self.places.remove(&node.id);
                }
                kept
            });
        }
    }

    /// Everything was added.
    pub(crate) fn sort(&mut self) {
        self.by_dataset.values_mut().for_each(|nodes| nodes.sort_unstable_by_key(|node| node.id));
    }

    /// Datasets that nodes were written for, without the tables.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = u64> {
        self.by_dataset.keys().copied().filter(|dataset| *dataset != TABLES)
    }

    /// The nodes of a dataset, in the order of their ids.
    pub(crate) fn of(&self, dataset: u64) -> &[NodeRef] {
        self.by_dataset.get(&dataset).map_or(&[], Vec::as_slice)
    }

    /// The dataset that a node was written for.
    pub(crate) fn dataset(&self, id: BlockId) -> Option<u64> {
        self.places.get(&id).map(|(_, dataset)| *dataset)
    }

    /// Where a node is.
    pub(crate) fn place(&self, id: BlockId) -> Option<Place> {
        self.places.get(&id).map(|(place, _)| *place)
    }
}

/// Reads nodes.
#[derive(Clone, Copy)]
pub(crate) struct NodeReader<'a> {
    pub(crate) nodes: &'a Nodes,
    pub(crate) segments: &'a Segments,
    pub(crate) sums: &'a Sums,
}

impl NodeReader<'_> {
    /// The node, wherever it was found: a pointer's place is a hint.
    pub(crate) fn node(&self, id: BlockId) -> Option<Arc<Node>> {
        let place = self.nodes.place(id)?;
        let (header, bytes) = self.segments.block(self.sums, id, place)?;
        let plain = plain_of(&header, &bytes.into(), header.info.kind).ok()?;
        let is_node = matches!(header.info.kind, BlockKind::Node | BlockKind::Table);
        decode_node(&header, &plain).ok().filter(|_| is_node)
    }

    /// Bounds of nodes, as the inner nodes of these datasets tell.
    pub(crate) fn fences(&self, datasets: impl Iterator<Item = u64>) -> HashMap<BlockId, (Key, Option<Key>)> {
        let mut fences = HashMap::new();
        for node in datasets.flat_map(|dataset| self.nodes.of(dataset)).filter(|node| node.level > 0) {
            let Some(node) = self.node(node.id) else { continue };
            let Node::Inner(inner) = &*node else { continue };
            for (i, child) in inner.children().iter().enumerate() {
                let high = inner.keys().get(i + 1).copied();
                let known: &mut (Key, Option<Key>) =
                    fences.entry(child.id).or_insert((inner.keys()[i], high));
                // The last child's bound is its parent's, which may be told where that one is a child itself.
                known.1 = known.1.or(high);
            }
        }
        fences
    }
}

/// Aliases that pages of the map's runs tell. An alias has the bytes of its target, and an id never gets others: so it
/// does not matter which page is the newest.
#[derive(Default)]
pub(crate) struct Aliases(HashMap<BlockId, BlockId>);

impl Aliases {
    /// Takes what a page says, if it is one of entries.
    pub(crate) fn add(&mut self, header: &CheckedHeader, bytes: &[u8]) {
        let plain = plain_of(header, &Bytes::copy_from_slice(bytes), BlockKind::Run);
        let Some((_, page)) = plain.ok().and_then(|plain| RunPage::of_any_run(plain.as_ref().into()).ok())
        else {
            return;
        };
        let mut cursor = PageCursor::seek(&page, page.first());
        while let Some((id, delta)) = cursor.next(&page) {
            if let Target::Alias(to) = delta.target {
                self.0.insert(id, to);
            }
        }
    }

    /// Takes those of others.
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Those of the pages.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockId, BlockId)> {
        self.0.iter().map(|(id, to)| (*id, *to))
    }
}

/// A pointer to a node, with its place as it was found.
pub(crate) fn pointer(nodes: &Nodes, id: BlockId) -> Option<BlockPtr> {
    nodes.place(id).map(|place| BlockPtr { id, place })
}
