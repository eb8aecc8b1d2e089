//! A tree's node: the payload of a block of kind `Node` (a dataset's tree) or `Table` (a pool table).
//!
//! `SPEC.md` has the bytes ("Trees"). The block's header says that they are whole; this decoder says that
//! they mean something. An inner node's first separator may be greater than the parent's separator for the
//! node: that happens when first children go away.

use crate::error::ensure;
use crate::field::Field;
use crate::{BlockPtr, Corrupt, Reason, layout};
use std::ops::Range;

/// Bytes of a node's plain payload, at most.
pub const NODE_MAX: usize = 16 << 10;
/// Bytes of a value, at most.
pub const MAX_VALUE: usize = 4096;
/// The greatest height above the leaves.
pub const MAX_LEVEL: u8 = 15;

const WHAT: &str = "tree node";

/// Bytes by which a leaf's heap may outgrow its values before it is packed again.
const SLACK: usize = 8 << 10;

// A heap position is a u16 also in a leaf that holds one value too many and all its slack.
const _: () = assert!(NODE_MAX + 2 * MAX_VALUE + SLACK < u16::MAX as usize);

/// Whether values under keys of this kind stay in clear; the others are sealed once a dataset is encrypted.
pub const fn is_clear(kind: u8) -> bool {
    kind < 128
}

/// Key of a tree's entry, ordered by object, then kind, then offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// An inode, or whatever a pool table counts.
    pub object: u64,
    /// Kind of the value; the users of a tree own the numbers. See [`is_clear`].
    pub kind: u8,
    /// Place within object and kind: a file offset, a hash of a name.
    pub offset: u64,
}

impl Key {
    /// The smallest key.
    pub const MIN: Key = Key::new(0, 0, 0);
    /// The greatest key.
    pub const MAX: Key = Key::new(u64::MAX, u8::MAX, u64::MAX);

    /// A key of its three parts.
    pub const fn new(object: u64, kind: u8, offset: u64) -> Self {
        Self { object, kind, offset }
    }

    /// The key after this one; `None` after [`Key::MAX`].
    pub fn successor(self) -> Option<Key> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Key { offset, ..self });
        }
        if let Some(kind) = self.kind.checked_add(1) {
            return Some(Key::new(self.object, kind, 0));
        }
        self.object.checked_add(1).map(|object| Key::new(object, 0, 0))
    }

    /// The greatest smaller key.
    pub fn predecessor(self) -> Option<Key> {
        if let Some(offset) = self.offset.checked_sub(1) {
            return Some(Key { offset, ..self });
        }
        if let Some(kind) = self.kind.checked_sub(1) {
            return Some(Key::new(self.object, kind, u64::MAX));
        }
        self.object.checked_sub(1).map(|object| Key::new(object, u8::MAX, u64::MAX))
    }
}

impl Field for Key {
    const SIZE: usize = 17;
    fn store(&self, out: &mut [u8]) {
        self.object.store(out);
        self.kind.store(&mut out[8..]);
        self.offset.store(&mut out[9..]);
    }
    fn load(from: &[u8]) -> Self {
        Self { object: u64::load(from), kind: from[8], offset: u64::load(&from[9..]) }
    }
}

layout! {
    /// The start of every node.
    pub struct NodeHead[8] {
        /// Height above the leaves.
        level: u8 = 0,
        /// Number of entries.
        count: u16 = 2,
        /// Bytes of the clear heap.
        clear: u16 = 4,
        /// Bytes of the sealed heap.
        sealed: u16 = 6,
    }
}

layout! {
    /// One entry of a leaf's table.
    pub struct LeafEntry[19] {
        /// The key.
        key: Key = 0,
        /// Bytes of the value.
        len: u16 = 17,
    }
}

layout! {
    /// One entry of an inner node's table.
    pub struct InnerEntry[41] {
        /// The separator in front of the child.
        key: Key = 0,
        /// The child.
        child: BlockPtr = 17,
    }
}

/// Children of an inner node, at most.
pub const MAX_CHILDREN: usize = (NODE_MAX - NodeHead::SIZE) / InnerEntry::SIZE;

/// A decoded node.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// Keys and values.
    Leaf(Leaf),
    /// Separators and children.
    Inner(Inner),
}

/// Where a value lies in its leaf's heap.
#[derive(Debug, Clone, Copy)]
struct Span {
    at: u16,
    len: u16,
}

impl Span {
    fn range(self) -> Range<usize> {
        usize::from(self.at)..usize::from(self.at) + usize::from(self.len)
    }
}

/// A leaf: keys in one array, which searches touch alone, and values in one heap.
///
/// A leaf that changes may hold holes in its heap (bounded, packed on the way) and, for a moment, one entry
/// more than fits a node; whoever puts entries in must split it before it is encoded.
#[derive(Debug, Clone, Default)]
pub struct Leaf {
    keys: Vec<Key>,
    spans: Vec<Span>,
    heap: Vec<u8>,
    /// Bytes of the heap that values occupy.
    live: usize,
}

/// An inner node: separator `i` stands in front of child `i`.
#[derive(Debug, Clone, PartialEq)]
pub struct Inner {
    level: u8,
    keys: Vec<Key>,
    children: Vec<BlockPtr>,
}

impl Node {
    /// Reads a node's plain payload, believing nothing: level, counts, lengths, order and total size are
    /// checked, so that every accessor of the result is in bounds.
    pub fn decode(bytes: &[u8]) -> Result<Node, Corrupt> {
        let head = NodeHead::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(bytes.len() <= NODE_MAX && head.level <= MAX_LEVEL && bytes[1] == 0, WHAT, Reason::Range)?;
        let entry = if head.level == 0 { LeafEntry::SIZE } else { InnerEntry::SIZE };
        let (clear, sealed) = (usize::from(head.clear), usize::from(head.sealed));
        let table_end = NodeHead::SIZE + usize::from(head.count) * entry;
        let end = table_end + clear + sealed;
        ensure(bytes.len() >= end, WHAT, Reason::Short)?;
        ensure(bytes.len() == end, WHAT, Reason::Range)?;
        let table = &bytes[NodeHead::SIZE..table_end];
        let keys: Vec<Key> = table.chunks_exact(entry).map(Key::load).collect();
        ensure(keys.is_sorted_by(|a, b| a < b), WHAT, Reason::Order)?;
        if head.level == 0 {
            let heap = &bytes[table_end..];
            return Leaf::from_parts(keys, table, heap, clear).map(Node::Leaf);
        }
        ensure(head.count > 0 && clear == 0 && sealed == 0, WHAT, Reason::Range)?;
        let children = table.chunks_exact(entry).map(|e| BlockPtr::load(&e[Key::SIZE..]).checked());
        Ok(Node::Inner(Inner { level: head.level, keys, children: children.collect::<Result<_, _>>()? }))
    }

    /// The node's plain payload: [`Node::encoded_len`] bytes.
    ///
    /// # Panics
    /// When it is larger than [`NODE_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let len = self.encoded_len();
        assert!(len <= NODE_MAX, "a node of {len} bytes was not split");
        let mut out = vec![0; len];
        let (clear, sealed) = match self {
            Node::Leaf(leaf) => leaf.store(&mut out),
            Node::Inner(inner) => inner.store(&mut out),
        };
        let count = self.keys().len() as u16;
        NodeHead { level: self.level(), count, clear, sealed }.put(&mut out);
        out
    }

    /// Bytes of the plain payload.
    pub fn encoded_len(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.encoded_len(),
            Node::Inner(inner) => inner.encoded_len(),
        }
    }

    /// Bytes of memory that the node takes, for a cache.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Node>()
            + match self {
                Node::Leaf(leaf) => {
                    leaf.keys.capacity() * size_of::<Key>()
                        + leaf.spans.capacity() * size_of::<Span>()
                        + leaf.heap.capacity()
                }
                Node::Inner(inner) => {
                    inner.keys.capacity() * size_of::<Key>()
                        + inner.children.capacity() * size_of::<BlockPtr>()
                }
            }
    }

    /// Height above the leaves.
    pub fn level(&self) -> u8 {
        match self {
            Node::Leaf(_) => 0,
            Node::Inner(inner) => inner.level,
        }
    }

    /// The keys of a leaf or the separators of an inner node, ascending.
    pub fn keys(&self) -> &[Key] {
        match self {
            Node::Leaf(leaf) => &leaf.keys,
            Node::Inner(inner) => &inner.keys,
        }
    }

    /// The node's first key, which its block header repeats; [`Key::MIN`] for an empty leaf.
    pub fn first_key(&self) -> Key {
        self.keys().first().copied().unwrap_or(Key::MIN)
    }
}

impl PartialEq for Leaf {
    /// Holes in a heap are no difference.
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Leaf {
    /// A leaf of nothing.
    pub const fn new() -> Self {
        Self { keys: Vec::new(), spans: Vec::new(), heap: Vec::new(), live: 0 }
    }

    fn from_parts(keys: Vec<Key>, table: &[u8], heap: &[u8], clear: usize) -> Result<Self, Corrupt> {
        let mut next = [clear, 0];
        let mut spans = Vec::with_capacity(keys.len());
        for (key, entry) in keys.iter().zip(table.chunks_exact(LeafEntry::SIZE)) {
            let len = u16::load(&entry[Key::SIZE..]);
            ensure(usize::from(len) <= MAX_VALUE, WHAT, Reason::Range)?;
            let at = &mut next[usize::from(is_clear(key.kind))];
            ensure(*at + usize::from(len) <= heap.len(), WHAT, Reason::Range)?;
            spans.push(Span { at: *at as u16, len });
            *at += usize::from(len);
        }
        ensure(next == [heap.len(), clear], WHAT, Reason::Range)?;
        Ok(Self { keys, spans, heap: heap.to_vec(), live: heap.len() })
    }

    fn store(&self, out: &mut [u8]) -> (u16, u16) {
        let heaps = NodeHead::SIZE + self.len() * LeafEntry::SIZE;
        let clear: usize =
            self.iter().filter(|(key, _)| is_clear(key.kind)).map(|(_, value)| value.len()).sum();
        let (table, heap) = out.split_at_mut(heaps);
        let mut next = [clear, 0];
        for ((key, value), entry) in
            self.iter().zip(table[NodeHead::SIZE..].chunks_exact_mut(LeafEntry::SIZE))
        {
            LeafEntry { key: *key, len: value.len() as u16 }.put(entry);
            let at = &mut next[usize::from(is_clear(key.kind))];
            heap[*at..*at + value.len()].copy_from_slice(value);
            *at += value.len();
        }
        (clear as u16, (self.live - clear) as u16)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes of the plain payload.
    pub fn encoded_len(&self) -> usize {
        NodeHead::SIZE + self.len() * LeafEntry::SIZE + self.live
    }

    /// Bytes that entry `i` adds to the payload.
    pub fn entry_len(&self, i: usize) -> usize {
        LeafEntry::SIZE + usize::from(self.spans[i].len)
    }

    /// The keys, ascending.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The value of entry `i`.
    pub fn value(&self, i: usize) -> &[u8] {
        &self.heap[self.spans[i].range()]
    }

    /// The value under `key`.
    pub fn get(&self, key: &Key) -> Option<&[u8]> {
        self.keys.binary_search(key).ok().map(|i| self.value(i))
    }

    /// Entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &[u8])> {
        self.entries(0..self.len())
    }

    /// The entries of an index range, in the order of their keys.
    pub fn entries(&self, range: Range<usize>) -> impl Iterator<Item = (&Key, &[u8])> {
        let spans = &self.spans[range.clone()];
        self.keys[range].iter().zip(spans).map(|(key, span)| (key, &self.heap[span.range()]))
    }

    /// Puts `value` under `key`; returns the entry's index and the value that was there.
    ///
    /// # Panics
    /// When the value is longer than [`MAX_VALUE`], or the leaf was already too large for a node.
    pub fn put(&mut self, key: Key, value: &[u8]) -> (usize, Option<Vec<u8>>) {
        assert!(value.len() <= MAX_VALUE, "a value of {} bytes under {key:?}", value.len());
        assert!(self.encoded_len() <= NODE_MAX, "a leaf was not split");
        match self.keys.binary_search(&key) {
            Ok(i) => {
                let old = self.value(i).to_vec();
                self.live -= old.len();
                if value.len() <= old.len() {
                    self.spans[i].len = value.len() as u16;
                    let at = self.spans[i].range();
                    self.heap[at].copy_from_slice(value);
                    self.live += value.len();
                } else {
                    self.spans[i].len = 0;
                    self.spans[i] = self.push_value(value);
                }
                (i, Some(old))
            }
            Err(i) => {
                let span = self.push_value(value);
                self.keys.insert(i, key);
                self.spans.insert(i, span);
                (i, None)
            }
        }
    }

    /// Takes the entries of `range` out.
    pub fn remove(&mut self, range: Range<usize>) {
        self.keys.drain(range.clone());
        let freed: usize = self.spans.drain(range).map(|span| usize::from(span.len)).sum();
        self.live -= freed;
        self.pack_beyond(SLACK);
    }

    /// Takes entry `i` and all behind it into a new leaf.
    pub fn split_off(&mut self, i: usize) -> Leaf {
        let mut right = Leaf::new();
        let tail: usize = self.spans[i..].iter().map(|span| usize::from(span.len)).sum();
        right.reserve(self.len() - i, tail);
        for at in i..self.len() {
            right.push(self.keys[at], self.value(at));
        }
        self.keys.truncate(i);
        self.spans.truncate(i);
        self.live -= tail;
        self.pack_beyond(0);
        right
    }

    /// Adds the entries of `right`, whose keys are all greater.
    ///
    /// # Panics
    /// When they are not, or the two do not fit a node.
    pub fn append(&mut self, right: &Leaf) {
        assert!(self.keys.last() < right.keys.first() || right.is_empty(), "leaves out of order");
        assert!(self.encoded_len() + right.encoded_len() - NodeHead::SIZE <= NODE_MAX, "leaves do not fit");
        self.pack_beyond(0);
        self.reserve(right.len(), right.live);
        for (key, value) in right.iter() {
            self.push(*key, value);
        }
    }

    /// Drops holes and spare capacity, before a cache keeps the leaf.
    pub fn pack(&mut self) {
        self.pack_beyond(0);
        self.keys.shrink_to_fit();
        self.spans.shrink_to_fit();
        self.heap.shrink_to_fit();
    }

    fn reserve(&mut self, entries: usize, bytes: usize) {
        self.keys.reserve(entries);
        self.spans.reserve(entries);
        self.heap.reserve(bytes);
    }

    fn push(&mut self, key: Key, value: &[u8]) {
        let span = self.push_value(value);
        self.keys.push(key);
        self.spans.push(span);
    }

    fn push_value(&mut self, value: &[u8]) -> Span {
        self.pack_beyond(SLACK);
        let at = self.heap.len() as u16;
        self.heap.extend_from_slice(value);
        self.live += value.len();
        Span { at, len: value.len() as u16 }
    }

    /// Rewrites the heap without holes if they are more than `slack` bytes.
    fn pack_beyond(&mut self, slack: usize) {
        if self.heap.len() - self.live <= slack {
            return;
        }
        let mut heap = Vec::with_capacity(self.live);
        for span in &mut self.spans {
            let at = heap.len() as u16;
            heap.extend_from_slice(&self.heap[span.range()]);
            span.at = at;
        }
        self.heap = heap;
    }
}

impl Inner {
    /// An inner node of separators and children.
    ///
    /// # Panics
    /// When these are not as many, none, more than [`MAX_CHILDREN`] or out of order, or the level is not an
    /// inner one.
    pub fn new(level: u8, keys: Vec<Key>, children: Vec<BlockPtr>) -> Self {
        assert!((1..=MAX_LEVEL).contains(&level), "level {level} is not an inner one");
        assert!(keys.len() == children.len() && (1..=MAX_CHILDREN).contains(&keys.len()), "children");
        assert!(keys.is_sorted_by(|a, b| a < b), "separators out of order");
        Self { level, keys, children }
    }

    fn store(&self, out: &mut [u8]) -> (u16, u16) {
        let table = out[NodeHead::SIZE..].chunks_exact_mut(InnerEntry::SIZE);
        for ((key, child), entry) in self.keys.iter().zip(&self.children).zip(table) {
            InnerEntry { key: *key, child: *child }.put(entry);
        }
        (0, 0)
    }

    /// Height above the leaves, at least 1.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// The separators, ascending.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The children, in the order of their separators.
    pub fn children(&self) -> &[BlockPtr] {
        &self.children
    }

    /// Bytes of the plain payload.
    pub fn encoded_len(&self) -> usize {
        NodeHead::SIZE + self.keys.len() * InnerEntry::SIZE
    }

    /// Separators and children.
    pub fn into_parts(self) -> (Vec<Key>, Vec<BlockPtr>) {
        (self.keys, self.children)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockId, Place, SegmentId};
    use proptest::collection::{btree_map, btree_set, vec};
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        (0..4u64, prop_oneof![0..3u8, 127..130u8], 0..40u64).prop_map(|(o, k, at)| Key::new(o, k, at))
    }

    fn ptr(id: u64) -> BlockPtr {
        let place = Place {
            segment: SegmentId::new(id / 3),
            column: (id % 7) as u8,
            offset: (id as u32 % 1000) * 8,
            stored: 160 + id as u32 % 999,
        };
        BlockPtr { id: BlockId::new(id), place }
    }

    fn leaf() -> impl Strategy<Value = Node> {
        btree_map(key(), vec(any::<u8>(), 0..160), 0..80).prop_map(|entries| {
            let mut leaf = Leaf::new();
            for (key, value) in entries {
                leaf.put(key, &value);
            }
            Node::Leaf(leaf)
        })
    }

    fn inner() -> impl Strategy<Value = Node> {
        (1..=MAX_LEVEL, btree_set(key(), 1..300), any::<u32>()).prop_map(|(level, keys, first)| {
            let children = (0..keys.len() as u64).map(|i| ptr(u64::from(first) + i)).collect();
            Node::Inner(Inner::new(level, keys.into_iter().collect(), children))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_node_comes_back_as_it_was(node in prop_oneof![leaf(), inner()]) {
            let bytes = node.encode();
            prop_assert_eq!(bytes.len(), node.encoded_len());
            prop_assert_eq!(Node::decode(&bytes), Ok(node));
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_meant(bytes in vec(any::<u8>(), 0..600)) {
            if let Ok(node) = Node::decode(&bytes) {
                prop_assert_eq!(node.encode(), bytes);
            }
        }

        #[test]
        fn damaged_nodes_are_refused_or_meant(
            node in prop_oneof![leaf(), inner()],
            damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            head_only in any::<bool>(),
            cut in 0..3usize,
        ) {
            let mut bytes = node.encode();
            let reach = if head_only { 8 } else { bytes.len() };
            for (at, byte) in damage {
                bytes[at.index(reach)] = byte;
            }
            bytes.truncate(bytes.len() - cut);
            if let Ok(node) = Node::decode(&bytes) {
                prop_assert_eq!(node.encode(), bytes);
            }
        }

        #[test]
        fn a_changed_leaf_holds_what_a_map_holds(
            steps in vec((key(), prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..900)], 0..4u8), 1..200)
        ) {
            let mut leaf = Leaf::new();
            let mut model = std::collections::BTreeMap::new();
            for (key, value, what) in steps {
                if what == 0 {
                    if let Ok(i) = leaf.keys().binary_search(&key) {
                        leaf.remove(i..i + 1);
                    }
                    model.remove(&key);
                } else if leaf.encoded_len() <= NODE_MAX {
                    prop_assert_eq!(leaf.put(key, &value).1, model.insert(key, value));
                }
                if leaf.encoded_len() > NODE_MAX {
                    let mut right = leaf.split_off(leaf.len() / 2);
                    prop_assert!(leaf.keys().last() < right.keys().first());
                    model = model.split_off(&right.keys()[0]);
                    std::mem::swap(&mut leaf, &mut right);
                }
                prop_assert!(leaf.heap.len() - leaf.live <= SLACK);
                prop_assert!(leaf.iter().eq(model.iter().map(|(k, v)| (k, v.as_slice()))));
            }
        }
    }

    #[test]
    fn a_key_is_sorted_by_object_kind_offset_and_has_a_successor() {
        let ascending = [
            Key::MIN,
            Key::new(0, 0, u64::MAX),
            Key::new(0, 1, 0),
            Key::new(0, 255, u64::MAX),
            Key::new(1, 0, 0),
            Key::MAX,
        ];
        assert!(ascending.is_sorted_by(|a, b| a < b));
        assert_eq!(ascending[1].successor(), Some(ascending[2]));
        assert_eq!(ascending[3].successor(), Some(ascending[4]));
        assert_eq!(Key::MAX.successor(), None);
    }

    #[test]
    fn sealed_values_lie_behind_all_clear_ones() {
        let mut leaf = Leaf::new();
        leaf.put(Key::new(1, 200, 0), b"NAME");
        leaf.put(Key::new(1, 7, 0), b"extent");
        leaf.put(Key::new(2, 7, 0), b"other");
        let bytes = Node::Leaf(leaf).encode();
        assert!(bytes.ends_with(b"extentotherNAME"));
        assert_eq!(NodeHead::get(&bytes).map(|head| (head.clear, head.sealed)), Some((11, 4)));
    }

    #[test]
    fn each_rule_is_refused_by_its_reason() {
        let mut leaf = Leaf::new();
        leaf.put(Key::new(1, 1, 1), b"a");
        leaf.put(Key::new(1, 1, 2), b"bc");
        let good = Node::Leaf(leaf).encode();
        let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            Node::decode(&bytes).expect_err("refused").reason
        };
        assert_eq!(refusal(&|b| b.truncate(7)), Reason::Short);
        assert_eq!(refusal(&|b| b.truncate(40)), Reason::Short);
        assert_eq!(refusal(&|b| b.push(0)), Reason::Range);
        assert_eq!(refusal(&|b| b[0] = 16), Reason::Range);
        assert_eq!(refusal(&|b| b[1] = 1), Reason::Range);
        assert_eq!(refusal(&|b| b[8 + 9] = 2), Reason::Order);
        assert_eq!(refusal(&|b| b[8 + 17] = 2), Reason::Range);
        assert_eq!(refusal(&|b| b[8 + 8] = 200), Reason::Order);
        assert_eq!(refusal(&|b| b[8 + 19 + 8] = 200), Reason::Range);
        let childless = NodeHead { level: 1, count: 0, clear: 0, sealed: 0 };
        let mut bytes = vec![0; NodeHead::SIZE];
        childless.put(&mut bytes);
        assert_eq!(Node::decode(&bytes).expect_err("refused").reason, Reason::Range);
    }
}
