//! Trees with nodes that are lost.
//!
//! A node's id is greater than those of the nodes below it, and a node that changes is written anew with its path. So
//! of the nodes that were ever written for a range of keys, the one with the greatest id below that of a lost one comes
//! nearest to what was there: **the newest node wins, by ranges of keys**. An inner node decides that its children are
//! what there is between its separators; a leaf decides what there is between its bounds, which nodes above it tell, of
//! whichever age: a node that nobody changes keeps them. A leaf whose bounds nobody tells decides only what lies
//! between its first and its last key.
//!
//! Where a leaf is lost, an older one says what was there before: what came of that since may be missing, or there
//! again. Where an inner node is lost, its children are most likely there, but one of them may be lost as well, with
//! nobody left to tell. Who asks is told of both.

use crate::nodes::{NodeReader, NodeRef};
use larder_format::node::{Key, Node};
use larder_format::{BlockId, CommitId};
use larder_sorted::tree::Fence;
use std::collections::{BTreeMap, HashMap};

/// Keys from one on, up to but without another, or to the end.
pub(crate) type Span = (Key, Option<Key>);

/// Every key.
pub(crate) const ALL: Span = (Key::MIN, None);

/// Bounds of nodes, as nodes above them tell.
pub(crate) type Fences = HashMap<BlockId, Span>;

/// Entries with their values.
pub(crate) type Entries = Vec<(Key, Vec<u8>)>;

/// Datasets whose nodes a tree may have, each up to an id: itself, what it branched off, and whatever wrote nodes that
/// the tree has.
pub(crate) type Lines = BTreeMap<u64, BlockId>;

/// A node that a tree names and nobody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostNode {
    pub(crate) id: BlockId,
    pub(crate) level: u8,
    pub(crate) span: Span,
}

/// Nodes of a tree that were met.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) lost: Vec<LostNode>,
    /// The greatest id of the nodes of each dataset that were met.
    pub(crate) met: Lines,
}

/// Entries that were put together for spans.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    pub(crate) entries: Entries,
    /// Nothing tells what was here.
    pub(crate) unknown: Vec<Span>,
}

fn intersection(one: Span, other: Span) -> Option<Span> {
    let low = one.0.max(other.0);
    let high = match (one.1, other.1) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (high, None) | (None, high) => high,
    };
    high.is_none_or(|high| low < high).then_some((low, high))
}

/// Stations of a walk.
pub(crate) enum Found<'a> {
    /// A node, and its part of the span.
    Node(&'a Node),
    /// One that nobody has.
    Lost(LostNode),
}

/// Shows the nodes that the tree of `root` has in `span`, in the order of their keys, until `visit` says no. Leaves are
/// read if `leaves` says so; else they count as there if they were found.
fn walk(
    reader: NodeReader<'_>,
    (root, span, leaves): (BlockId, Span, bool),
    visit: &mut dyn FnMut(BlockId, Span, Found<'_>) -> bool,
) {
    let mut open: Vec<(BlockId, Fence, u8, Span)> = vec![(root, Fence::default(), u8::MAX, ALL)];
    let empty = Node::Leaf(larder_format::node::Leaf::new());
    while let Some((id, fence, level, of)) = open.pop() {
        let Some(own) = intersection(of, span) else { continue };
        let node = match level == 0 && !leaves && reader.nodes.place(id).is_some() {
            true => None,
            false => Some(reader.node(id).filter(|node| fence.admits(node))),
        };
        let goes_on = match &node {
            None => visit(id, own, Found::Node(&empty)),
            Some(Some(node)) => visit(id, own, Found::Node(node)),
            Some(None) => visit(id, own, Found::Lost(LostNode { id, level, span: of })),
        };
        if !goes_on {
            return;
        }
        if let Some(Some(node)) = node
            && let Node::Inner(inner) = &*node
        {
            for (i, child) in inner.children().iter().enumerate().rev() {
                let high = inner.keys().get(i + 1).copied().or(of.1);
                let below = fence.below(inner.level(), inner.keys(), i);
                open.push((child.id, below, inner.level() - 1, (inner.keys()[i], high)));
            }
        }
    }
}

/// All nodes below `root`, of which leaves are not read: whoever looked through the segments has proven them.
pub(crate) fn survey(reader: NodeReader<'_>, root: BlockId) -> Survey {
    let mut survey = Survey::default();
    walk(reader, (root, ALL, false), &mut |id, _, found| {
        match found {
            Found::Lost(lost) => survey.lost.push(lost),
            Found::Node(_) => {
                if let Some(dataset) = reader.nodes.dataset(id) {
                    let most = survey.met.entry(dataset).or_insert(id);
                    *most = (*most).max(id);
                }
            }
        }
        true
    });
    survey
}

/// Whether all nodes are there that the tree of `root` has in `span`.
pub(crate) fn is_whole(reader: NodeReader<'_>, root: BlockId, span: Span) -> bool {
    let mut whole = true;
    walk(reader, (root, span, true), &mut |_, _, found| {
        whole = matches!(found, Found::Node(_));
        whole
    });
    whole
}

/// The entries in `span` of the tree of `root`, or, where that is unknown or lost, of whatever nodes there are.
pub(crate) fn collect(
    reader: NodeReader<'_>,
    root: Option<BlockId>,
    lines: &Lines,
    fences: &Fences,
    span: Span,
) -> Filled {
    let (mut entries, mut lost) = (Entries::new(), Vec::new());
    match root {
        Some(root) => walk(reader, (root, span, true), &mut |_, own, found| {
            match found {
                Found::Node(Node::Leaf(leaf)) => {
                    let inside = leaf
                        .iter()
                        .filter(|(key, _)| **key >= own.0 && own.1.is_none_or(|high| **key < high));
                    entries.extend(inside.map(|(key, value)| (*key, value.to_vec())));
                }
                Found::Node(Node::Inner(_)) => {}
                Found::Lost(node) => lost.push(LostNode { span: own, ..node }),
            }
            true
        }),
        None => lost.push(LostNode { id: BlockId::new(u64::MAX), level: u8::MAX, span }),
    }
    let mut filled = fill(reader, lines, fences, &lost);
    filled.entries.extend(entries);
    filled.entries.sort_unstable_by_key(|(key, _)| *key);
    filled
}

/// Spans of which nothing is known yet, apart from each other, each with the node that is lost there.
struct Unknown(BTreeMap<Key, (Option<Key>, LostNode)>);

impl Unknown {
    /// Those that a span meets, for which a node with this id and level may tell something.
    fn met(&self, span: Span, (id, level): (BlockId, u8)) -> Vec<Span> {
        let before = self.0.range(..span.0).next_back();
        let from = before.into_iter().chain(self.0.range(span.0..));
        let within = from.take_while(|(low, _)| span.1.is_none_or(|high| **low < high));
        let told = within.filter(|(_, (_, lost))| id < lost.id && level <= lost.level);
        told.filter_map(|(low, (high, _))| intersection((*low, *high), span)).collect()
    }

    /// A part of one of them is known from now on.
    fn take(&mut self, known: Span) {
        let Some((low, (high, lost))) = self.0.range(..=known.0).next_back().map(|(low, of)| (*low, *of))
        else {
            return;
        };
        self.0.remove(&low);
        if low < known.0 {
            self.0.insert(low, (Some(known.0), lost));
        }
        if let Some(end) = known.1
            && high.is_none_or(|high| end < high)
        {
            self.0.insert(end, (high, lost));
        }
    }
}

/// Puts together what was below nodes that are lost, of nodes of these lines with lower ids, up to their levels. Their
/// spans lie apart from each other.
pub(crate) fn fill(reader: NodeReader<'_>, lines: &Lines, fences: &Fences, lost: &[LostNode]) -> Filled {
    let unknown = lost.iter().map(|node| (node.span.0, (node.span.1, *node))).collect();
    let mut filling = Filling { reader, unknown: Unknown(unknown), entries: Entries::new() };
    let Some(most) = lost.iter().map(|node| node.id).max() else { return Filled::default() };
    let of = lines.iter().flat_map(|(dataset, bound)| {
        reader.nodes.of(*dataset).iter().filter(|node| node.id <= *bound && node.id < most)
    });
    let mut candidates: Vec<&NodeRef> = of.collect();
    candidates.sort_unstable_by_key(|node| std::cmp::Reverse(node.id));
    for node in candidates {
        if filling.unknown.0.is_empty() {
            break;
        }
        let fence = fences.get(&node.id).copied();
        let widest = fence.unwrap_or((node.first, None));
        if !filling.unknown.met(widest, (node.id, node.level)).is_empty() {
            // Its last bound is known if a node above tells it.
            let ends = fence.is_some_and(|(_, high)| high.is_some());
            filling.take(node.id, (widest, ends), (node.id, node.level));
        }
    }
    let Filling { unknown, mut entries, .. } = filling;
    entries.sort_unstable_by_key(|(key, _)| *key);
    Filled { entries, unknown: unknown.0.into_iter().map(|(low, (high, _))| (low, high)).collect() }
}

struct Filling<'a> {
    reader: NodeReader<'a>,
    unknown: Unknown,
    entries: Entries,
}

impl Filling<'_> {
    /// Has a node decide what it can of `span`, as part of the tree below `top`, a candidate's id and level; unless it
    /// `ends` where the span does, only up to its last key.
    fn take(&mut self, id: BlockId, (span, ends): (Span, bool), top: (BlockId, u8)) {
        let Some(node) = self.reader.node(id) else { return };
        match &*node {
            Node::Leaf(leaf) => {
                let span = match (leaf.keys().first(), leaf.keys().last()) {
                    _ if ends => span,
                    (Some(first), Some(last)) => (span.0.min(*first), last.successor()),
                    _ => return,
                };
                for known in self.unknown.met(span, top) {
                    let keys = leaf.keys();
                    let start = keys.partition_point(|key| *key < known.0);
                    let end = known.1.map_or(keys.len(), |high| keys.partition_point(|key| *key < high));
                    let entries = leaf.entries(start..end.max(start));
                    self.entries.extend(entries.map(|(key, value)| (*key, value.to_vec())));
                    self.unknown.take(known);
                }
            }
            Node::Inner(inner) => {
                for (i, child) in inner.children().iter().enumerate() {
                    let next = inner.keys().get(i + 1).copied();
                    let Some(own) = intersection((inner.keys()[i], next.or(span.1)), span) else { continue };
                    if child.id < id && !self.unknown.met(own, top).is_empty() {
                        self.take(child.id, (own, next.is_some() || ends), top);
                    }
                }
            }
        }
    }
}

/// A root that no table tells of.
pub(crate) struct Newest {
    pub(crate) node: NodeRef,
    /// Nodes of the tree that are there.
    pub(crate) survey: Survey,
    /// Nothing newer of the dataset is there: else either that was not committed, or its root is lost.
    pub(crate) is_last: bool,
}

/// The root of a tree of a dataset, if it is sure to be the newest that was committed: a root is written last, so
/// nothing of it is newer, unless it is of the commit under way when the pool stopped, the `last` that anything was
/// written for.
pub(crate) fn newest_root(
    reader: NodeReader<'_>,
    dataset: u64,
    fences: &Fences,
    (below, last): (BlockId, CommitId),
) -> Option<Newest> {
    let of = || reader.nodes.of(dataset).iter().filter(|node| node.id < below);
    let newest = of().max_by_key(|node| node.id)?;
    // The commit under way may be all there is, and whole.
    let before = of().filter(|node| node.birth < last).max_by_key(|node| node.id);
    let candidates = [Some(newest), before].into_iter().flatten();
    // One that stands lower than others ever stood may be a child of a root that is lost.
    let highest = of().map(|node| node.level).max()?;
    let may_be = candidates.filter(|node| !fences.contains_key(&node.id) && node.level == highest);
    let mut found: Vec<(&NodeRef, Survey)> = may_be.map(|node| (node, survey(reader, node.id))).collect();
    let whole = found.iter().position(|(_, survey)| survey.lost.is_empty());
    if found.is_empty() {
        return None;
    }
    let (node, survey) = found.swap_remove(whole.unwrap_or(0));
    Some(Newest { node: *node, survey, is_last: node.id == newest.id })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(object: u64) -> Key {
        Key::new(object, 0, 0)
    }

    #[test]
    fn spans_without_others_are_what_is_left_of_them() {
        let lost = LostNode { id: BlockId::new(9), level: 1, span: ALL };
        let mut unknown = Unknown(BTreeMap::from([(Key::MIN, (None, lost))]));
        let spans = |unknown: &Unknown| unknown.met(ALL, (BlockId::new(8), 1));
        unknown.take((key(5), Some(key(9))));
        assert_eq!(spans(&unknown), [(Key::MIN, Some(key(5))), (key(9), None)]);
        assert_eq!(
            unknown.met((key(3), Some(key(12))), (BlockId::new(8), 0)),
            [(key(3), Some(key(5))), (key(9), Some(key(12)))]
        );
        unknown.take((key(3), Some(key(5))));
        unknown.take((key(9), Some(key(12))));
        assert_eq!(spans(&unknown), [(Key::MIN, Some(key(3))), (key(12), None)]);
        // Nodes that are as new as the lost one, or stand higher, tell nothing.
        assert!(unknown.met(ALL, (BlockId::new(9), 0)).is_empty());
        assert!(unknown.met(ALL, (BlockId::new(8), 2)).is_empty());
    }
}
