use super::*;
use larder_format::node::{InnerEntry, MAX_VALUE};
use larder_format::{BlockId, Place, SegmentId};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};

mod compare;
mod reach;

type Model = BTreeMap<Key, Vec<u8>>;

#[derive(Debug, PartialEq)]
enum Failure {
    Injected,
    Corrupt(Corrupt),
}

impl From<Corrupt> for Failure {
    fn from(corrupt: Corrupt) -> Self {
        Failure::Corrupt(corrupt)
    }
}

/// Blocks in memory; the load or write that `fuse` counts down to fails, once.
#[derive(Default)]
struct Shelf {
    blocks: RefCell<HashMap<BlockId, Arc<Node>>>,
    loads: Cell<usize>,
    fuse: Cell<Option<usize>>,
}

impl Shelf {
    fn burn(&self) -> Result<(), Failure> {
        match self.fuse.get() {
            None => Ok(()),
            Some(0) => {
                self.fuse.set(None);
                Err(Failure::Injected)
            }
            Some(n) => {
                self.fuse.set(Some(n - 1));
                Ok(())
            }
        }
    }
}

impl NodeStore for Shelf {
    type Error = Failure;
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>, Failure> {
        self.burn()?;
        self.loads.set(self.loads.get() + 1);
        Ok(self.blocks.borrow()[&ptr.id].clone())
    }
}

impl NodeSink for &Shelf {
    type Error = Failure;
    fn write(&mut self, node: &Arc<Node>) -> Result<BlockPtr, Failure> {
        self.burn()?;
        let bytes = node.encode();
        let again = Node::decode(&bytes).expect("what was written can be read");
        assert!(again == **node);
        let id = BlockId::new(self.blocks.borrow().len() as u64 + 1);
        self.blocks.borrow_mut().insert(id, Arc::new(again));
        let stored = bytes.len() as u32;
        Ok(BlockPtr { id, place: Place { segment: SegmentId::new(1), column: 0, offset: 0, stored } })
    }
}

/// A tree, what it must hold, and everything it ever dropped.
struct Bench {
    shelf: Shelf,
    tree: Tree,
    model: Model,
    dropped: HashSet<BlockId>,
}

impl Bench {
    fn new() -> Self {
        Self { shelf: Shelf::default(), tree: Tree::empty(), model: Model::new(), dropped: HashSet::new() }
    }

    fn root(&self) -> Loaded<'_> {
        Loaded::load(&self.shelf, self.tree.root.view(), &Fence::default()).expect("the root is there")
    }

    fn insert(&mut self, key: Key, value: Vec<u8>) {
        let old = self.tree.insert(&self.shelf, key, &value).expect("no failure was set");
        assert_eq!(old, self.model.insert(key, value));
    }

    fn remove(&mut self, key: &Key) {
        let old = self.tree.remove(&self.shelf, key).expect("no failure was set");
        assert_eq!(old, self.model.remove(key));
    }

    fn remove_range(&mut self, from: Key, to: Key, limit: usize) {
        let model = &mut self.model;
        let mut seen = 0;
        let removed = self.tree.remove_range(&self.shelf, from..to, limit, |key, value| {
            seen += 1;
            assert_eq!(model.range(from..).next().map(|(k, _)| k), Some(key));
            assert_eq!(model.remove(key).as_deref(), Some(value));
        });
        assert_eq!(removed, Ok(seen));
        assert!(seen == limit || (seen < limit && model.range(from..to.max(from)).next().is_none()));
    }

    fn flush(&mut self) {
        let expected = self.tree.dirty_bytes();
        let before = self.shelf.blocks.borrow().len();
        let root = self.tree.flush(&mut &self.shelf).expect("no failure was set");
        assert!(!self.tree.is_dirty() && self.tree.dirty_bytes() == 0);
        let blocks = self.shelf.blocks.borrow();
        let written = (before + 1..=blocks.len()).map(|id| blocks[&BlockId::new(id as u64)].encoded_len());
        assert_eq!(written.sum::<usize>(), expected);
        drop(blocks);
        self.collect_dropped();
        self.tree = Tree::open(root);
    }

    fn collect_dropped(&mut self) {
        for ptr in self.tree.take_dropped() {
            assert!(self.dropped.insert(ptr.id), "block {} was dropped twice", ptr.id);
        }
    }

    /// Every invariant that the module names, on the tree as it is in memory and on the shelf.
    fn check(&mut self) {
        self.shelf.fuse.set(None);
        self.collect_dropped();
        let mut reached = HashSet::new();
        let mut dirty_bytes = 0;
        let root =
            Loaded::load(&self.shelf, self.tree.root.view(), &Fence::default()).expect("the root is there");
        if let View::Clean(ptr) = self.tree.root.view() {
            reached.insert(ptr.id);
        } else {
            assert!(root.level() == 0 || root.keys().len() > 1, "a dirty root has two children");
        }
        check_node(&self.shelf, &root, true, None, &mut reached, &mut dirty_bytes);
        assert_eq!(dirty_bytes, self.tree.dirty_bytes());
        let mut expected: HashSet<BlockId> = self.shelf.blocks.borrow().keys().copied().collect();
        expected.retain(|id| !self.dropped.contains(id));
        assert_eq!(reached, expected, "reached or dropped, never both, never neither");
        let mut walked = HashSet::new();
        let walk = self.tree.for_each_node(
            &self.shelf,
            |_| true,
            |ptr, node| {
                assert!(walked.insert(ptr.id) && node.is_ok());
                Ok(())
            },
        );
        assert!(walk == Ok(()) && walked == reached);
    }

    fn check_content(&self) {
        let mut expected = self.model.iter();
        self.tree
            .scan(&self.shelf, .., |key, value| {
                assert_eq!(expected.next(), Some((key, &value.to_vec())));
                ControlFlow::Continue(())
            })
            .expect("no failure was set");
        assert_eq!(expected.next(), None);
    }

    fn check_reads(&self, from: Key, to: Key) {
        assert_eq!(self.tree.get(&self.shelf, &from), Ok(self.model.get(&from).cloned()));
        let last = self.model.range(..=from).next_back().map(|(k, v)| (*k, v.clone()));
        assert_eq!(self.tree.last_before(&self.shelf, &from), Ok(last));
        let mut found = Vec::new();
        self.tree
            .scan(&self.shelf, from..=to, |key, _| {
                found.push(*key);
                if found.len() < 50 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .expect("no failure was set");
        let expected = if from <= to { Some(self.model.range(from..=to)) } else { None };
        assert!(expected.into_iter().flatten().map(|(key, _)| *key).take(50).eq(found));
    }
}

fn check_node(
    shelf: &Shelf,
    node: &Loaded<'_>,
    is_root: bool,
    high: Option<Key>,
    reached: &mut HashSet<BlockId>,
    dirty_bytes: &mut usize,
) {
    let keys = node.keys();
    assert!(is_root || !keys.is_empty(), "only a root may be empty");
    assert!(keys.is_sorted_by(|a, b| a < b));
    assert!(high.is_none_or(|high| keys.last() < Some(&high)));
    let len = match node {
        Loaded::Clean(node) => node.encoded_len(),
        Loaded::Dirty(dirty) => {
            *dirty_bytes += dirty.encoded_len();
            dirty.encoded_len()
        }
    };
    assert!(len <= NODE_MAX);
    if node.level() == 0 {
        return;
    }
    assert_eq!(len, NodeHead::SIZE + keys.len() * InnerEntry::SIZE);
    for i in 0..keys.len() {
        if let View::Clean(ptr) = node.child(i) {
            assert!(reached.insert(ptr.id), "a node has one parent");
        }
        let fence = Fence { level: None, low: None, high: keys.get(i + 1).copied().or(high) };
        let child = Loaded::load(shelf, node.child(i), &fence).expect("a child is there");
        assert_eq!(child.level() + 1, node.level());
        assert!(child.keys()[0] >= keys[i], "no key is smaller than its separator");
        check_node(shelf, &child, false, fence.high, reached, dirty_bytes);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Rng(u64);

impl Rng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn key(&mut self, space: u64) -> Key {
        let kind = [1, 2, 127, 128, 200][self.roll(5) as usize];
        Key::new(self.roll(4), kind, self.roll(space.div_ceil(20)))
    }

    /// Mostly short values, some of the greatest length.
    fn value(&mut self, longest: usize) -> Vec<u8> {
        let len = match self.roll(4) {
            0 => self.roll(8) as usize,
            1 => longest,
            _ => self.roll(longest as u64 + 1) as usize,
        };
        vec![self.roll(256) as u8; len]
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(Key, usize),
    Remove(Key),
    RemoveRange(Key, Key, usize),
    Read(Key, Key),
    Flush,
}

fn key() -> impl Strategy<Value = Key> {
    (0..3u64, prop_oneof![Just(1u8), Just(2), Just(128)], 0..60u64).prop_map(|(o, k, at)| Key::new(o, k, at))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (key(), prop_oneof![0..60usize, 0..=MAX_VALUE, Just(MAX_VALUE)])
            .prop_map(|(k, len)| Step::Insert(k, len)),
        4 => key().prop_map(Step::Remove),
        1 => (key(), key(), 0..200usize).prop_map(|(a, b, n)| Step::RemoveRange(a, b, n)),
        2 => (key(), key()).prop_map(|(a, b)| Step::Read(a, b)),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_tree_holds_what_a_map_holds(steps in proptest::collection::vec(step(), 1..300)) {
        let mut bench = Bench::new();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(key, len) => bench.insert(key, vec![i as u8; len]),
                Step::Remove(key) => bench.remove(&key),
                Step::RemoveRange(from, to, limit) => bench.remove_range(from, to, limit),
                Step::Read(from, to) => bench.check_reads(from, to),
                Step::Flush => bench.flush(),
            }
            bench.check();
        }
        bench.check_content();
    }
}

/// Grows to three levels and shrinks to nothing, over and over.
#[test]
fn a_large_tree_holds_what_a_map_holds() {
    for seed in 0..3 {
        let mut rng = Rng(seed);
        let mut bench = Bench::new();
        let (space, longest) = [(6_000, MAX_VALUE), (60_000, 300), (20_000, 1_000)][seed as usize];
        let mut height = 0;
        for round in 0..12_000 {
            let growing = (round / 3_000) % 2 == 0;
            for _ in 0..rng.roll(8) {
                let (a, b) = (rng.key(space), rng.key(space));
                match rng.roll(10) {
                    0 => bench.check_reads(a, b),
                    1 if !growing => bench.remove_range(a, b, rng.roll(60) as usize),
                    1 => bench.remove_range(a, Key { offset: a.offset + 9, ..a }, 5),
                    2..8 if growing => bench.insert(a, rng.value(longest)),
                    2..8 => {
                        let next = bench.model.range(a..).next().map(|(key, _)| *key);
                        bench.remove(&next.unwrap_or(b));
                    }
                    8 => bench.remove(&b),
                    _ => bench.insert(a, rng.value(longest)),
                }
            }
            if rng.roll(40) == 0 {
                bench.flush();
            }
            if rng.roll(10) == 0 {
                bench.check();
            }
            let root = bench.root();
            height = height.max(root.level());
        }
        bench.check();
        bench.check_content();
        bench.remove_range(Key::MIN, Key::MAX, usize::MAX);
        bench.check();
        bench.flush();
        bench.check();
        assert_eq!(bench.tree.get(&bench.shelf, &Key::MIN), Ok(None));
        assert!(height >= if longest == MAX_VALUE { 2 } else { 1 }, "seed {seed} reached level {height}");
    }
}

/// Mean fill of the leaves of a flushed tree.
fn leaf_fill(bench: &Bench) -> f64 {
    let (mut leaves, mut bytes) = (0, 0);
    bench
        .tree
        .for_each_node(
            &bench.shelf,
            |_| true,
            |_, node| {
                let node = node?;
                if node.level() == 0 {
                    leaves += 1;
                    bytes += node.encoded_len();
                }
                Ok(())
            },
        )
        .expect("no failure was set");
    bytes as f64 / (leaves * NODE_MAX) as f64
}

#[test]
fn what_is_inserted_in_order_leaves_full_leaves() {
    let mut bench = Bench::new();
    for i in 0..60_000 {
        bench.insert(Key::new(i / 900, 1, i % 900), vec![7; 24]);
    }
    bench.flush();
    bench.check();
    assert!(leaf_fill(&bench) >= 0.9, "fill {}", leaf_fill(&bench));
}

#[test]
fn files_that_grow_side_by_side_leave_full_leaves() {
    let mut bench = Bench::new();
    for offset in 0..8_000 {
        for object in 0..8 {
            bench.insert(Key::new(object, 1, offset), vec![7; 24]);
        }
    }
    bench.flush();
    bench.check();
    assert!(leaf_fill(&bench) >= 0.85, "fill {}", leaf_fill(&bench));
}

#[test]
fn random_insertions_leave_leaves_two_thirds_full() {
    let (mut bench, mut rng) = (Bench::new(), Rng(5));
    for _ in 0..40_000 {
        bench.insert(Key::new(1, 1, rng.roll(u64::MAX)), vec![7; 24]);
    }
    bench.flush();
    assert!(leaf_fill(&bench) >= 0.63, "fill {}", leaf_fill(&bench));
}

/// A committed tree of three levels with gaps.
fn tall() -> Bench {
    let (mut bench, mut rng) = (Bench::new(), Rng(9));
    for _ in 0..2_500 {
        bench.insert(rng.key(40_000), vec![3; MAX_VALUE]);
    }
    bench.flush();
    let root = bench.root();
    assert_eq!(root.level(), 2);
    drop(root);
    bench
}

#[test]
fn a_change_whose_load_fails_leaves_the_tree_as_it_was() {
    let mut bench = tall();
    let mut rng = Rng(11);
    for _ in 0..60 {
        let key = rng.key(40_000);
        for fuse in 0.. {
            bench.shelf.fuse.set(Some(fuse));
            let is_dirty = bench.tree.is_dirty();
            match bench.tree.insert(&bench.shelf, key, b"new") {
                Ok(old) => {
                    assert_eq!(old, bench.model.insert(key, b"new".to_vec()));
                    break;
                }
                Err(error) => assert_eq!(error, Failure::Injected),
            }
            assert_eq!(bench.tree.is_dirty(), is_dirty);
            bench.check();
        }
        bench.check();
        let key = *bench.model.range(rng.key(40_000)..).next().unwrap_or((&key, &Vec::new())).0;
        for fuse in 0.. {
            bench.shelf.fuse.set(Some(fuse));
            match bench.tree.remove(&bench.shelf, &key) {
                Ok(old) => {
                    assert_eq!(old, bench.model.remove(&key));
                    break;
                }
                Err(error) => assert_eq!(error, Failure::Injected),
            }
            bench.check();
        }
        bench.check();
    }
    bench.check_content();
}

#[test]
fn a_range_whose_load_fails_is_removed_as_far_as_was_shown() {
    for fuse in 0..40 {
        let mut bench = tall();
        bench.shelf.fuse.set(Some(fuse));
        let model = &mut bench.model;
        let result =
            bench.tree.remove_range(&bench.shelf, Key::new(1, 0, 0)..Key::new(2, 0, 0), 30, |key, _| {
                model.remove(key).expect("it was there");
            });
        assert!(matches!(result, Ok(30) | Err(Failure::Injected)));
        bench.check();
        bench.check_content();
    }
}

#[test]
fn a_flush_that_fails_can_be_tried_again() {
    let mut bench = tall();
    for i in 0..300 {
        bench.insert(Key::new(i % 4, 1, i * 6), vec![5; 50]);
    }
    for fuse in (0..200).step_by(7) {
        bench.shelf.fuse.set(Some(fuse));
        if bench.tree.flush(&mut &bench.shelf).is_err() {
            assert!(bench.tree.is_dirty());
        }
        bench.check();
        bench.insert(Key::new(1, 1, fuse as u64), vec![6; 500]);
    }
    bench.flush();
    bench.check();
    bench.check_content();
}

#[test]
fn a_node_that_belongs_elsewhere_is_corrupt() {
    let bench = tall();
    let Child::Clean(root) = bench.tree.root else { panic!("it was flushed") };
    let nodes = bench.shelf.blocks.borrow().clone();
    let Node::Inner(top) = &*nodes[&root.id] else { panic!("the root is an inner node") };
    let (first, second) = (top.children()[0].id, top.children()[1].id);
    let misdirected = Err(Failure::Corrupt(Corrupt::new("tree node", Reason::Identity)));
    let get = |wrong: Arc<Node>| {
        bench.shelf.blocks.borrow_mut().insert(second, wrong);
        bench.tree.get(&bench.shelf, &top.keys()[1])
    };
    assert_eq!(get(nodes[&first].clone()), misdirected, "a neighbour");
    assert_eq!(get(nodes[&root.id].clone()), misdirected, "an ancestor");
    assert_eq!(get(Arc::new(Node::Leaf(Leaf::new()))), misdirected, "an empty leaf");
    assert_eq!(get(nodes[&second].clone()), Ok(bench.model.get(&top.keys()[1]).cloned()));
}

#[test]
fn a_range_removal_reads_each_leaf_once_and_copies_only_the_edges() {
    let mut bench = Bench::new();
    for i in 0..40_000 {
        bench.insert(Key::new(1, 1, i), vec![7; 24]);
    }
    bench.flush();
    let leaves = bench.shelf.blocks.borrow().len() - 1;
    bench.shelf.loads.set(0);
    bench.remove_range(Key::new(1, 1, 100), Key::new(1, 1, 39_900), usize::MAX);
    assert!(bench.shelf.loads.get() <= leaves + 8, "{} loads, {leaves} leaves", bench.shelf.loads.get());
    assert!(bench.tree.dirty_bytes() <= 3 * NODE_MAX);
    bench.check();
    bench.check_content();
}

#[test]
fn a_scan_loads_each_node_once_and_nothing_outside_its_range() {
    let mut bench = Bench::new();
    for i in 0..40_000 {
        bench.insert(Key::new(1, 1, i), vec![7; 24]);
    }
    bench.flush();
    bench.shelf.loads.set(0);
    bench.check_content();
    assert_eq!(bench.shelf.loads.get(), bench.shelf.blocks.borrow().len());
    bench.shelf.loads.set(0);
    bench
        .tree
        .scan(&bench.shelf, Key::new(1, 1, 9)..Key::new(1, 1, 12), |_, _| ControlFlow::Continue(()))
        .expect("reads");
    assert_eq!(bench.shelf.loads.get(), 2);
}

#[test]
fn a_walk_skips_what_it_is_told_and_goes_on_after_an_error_if_asked() {
    let bench = tall();
    let last = bench.shelf.blocks.borrow().len() as u64;
    let (mut seen, mut refused) = (0, 0);
    let enter = |ptr: BlockPtr| {
        ptr.id.get() > last / 2 || {
            refused += 1;
            false
        }
    };
    bench
        .tree
        .for_each_node(&bench.shelf, enter, |ptr, node| {
            seen += 1;
            assert!(ptr.id.get() > last / 2);
            node.map(|_| ())
        })
        .expect("reads");
    assert!(seen > 1 && refused > 0);
    bench.shelf.fuse.set(Some(1));
    let (mut good, mut bad) = (0, 0);
    bench
        .tree
        .for_each_node(
            &bench.shelf,
            |_| true,
            |_, node| {
                if node.is_ok() {
                    good += 1
                } else {
                    bad += 1
                }
                Ok(())
            },
        )
        .expect("errors were noted");
    assert!(bad == 1 && good > 1);
    bench.shelf.fuse.set(Some(5));
    let stopped = bench.tree.for_each_node(&bench.shelf, |_| true, |_, node| node.map(|_| ()));
    assert_eq!(stopped, Err(Failure::Injected));
}

/// Nodes that decode, with sums that match, in the wrong places: nothing can be promised but that no
/// operation panics or runs for ever.
#[test]
fn a_tree_of_shuffled_nodes_gives_errors_and_never_panics() {
    let good = tall();
    let mut rng = Rng(21);
    for _ in 0..150 {
        let nodes = good.shelf.blocks.borrow().clone();
        let count = nodes.len() as u64;
        let shelf = Shelf { blocks: RefCell::new(nodes.clone()), ..Shelf::default() };
        for _ in 0..1 + rng.roll(count) {
            let (a, b) = (BlockId::new(1 + rng.roll(count)), BlockId::new(1 + rng.roll(count)));
            let wrong = match &*nodes[&a] {
                Node::Leaf(leaf) => {
                    let mut leaf = leaf.clone();
                    leaf.remove(0..1);
                    leaf.put(rng.key(40_000), b"wrong");
                    Node::Leaf(leaf)
                }
                Node::Inner(inner) => {
                    let keep = 1 + rng.roll(inner.keys().len() as u64) as usize;
                    let (mut keys, mut children) = inner.clone().into_parts();
                    keys.truncate(keep);
                    let turn = rng.roll(children.len() as u64) as usize;
                    children.rotate_left(turn);
                    children.truncate(keep);
                    Node::Inner(Inner::new(inner.level(), keys, children))
                }
            };
            shelf.blocks.borrow_mut().insert(if rng.roll(2) == 0 { a } else { b }, Arc::new(wrong));
        }
        let Child::Clean(root) = good.tree.root else { panic!("it was flushed") };
        let mut tree = Tree::open(root);
        for _ in 0..150 {
            let (a, b) = (rng.key(40_000), rng.key(40_000));
            let _ = tree.insert(&shelf, a, &rng.value(MAX_VALUE));
            let _ = tree.remove(&shelf, &b);
            let _ = tree.remove_range(&shelf, a..b, 40, |_, _| ());
            let _ = tree.last_before(&shelf, &b);
            let _ = tree.scan(&shelf, b.., |_, _| ControlFlow::Continue(()));
        }
        tree.flush(&mut &shelf).expect("no failure was set");
    }
}

#[test]
fn a_thinned_tree_shrinks() {
    let mut bench = tall();
    let keys: Vec<Key> = bench.model.keys().copied().collect();
    for (i, key) in keys.iter().enumerate() {
        if i % 20 != 0 {
            bench.remove(key);
        }
        if i % 100 == 0 {
            bench.check();
        }
    }
    assert_eq!(bench.root().level(), 1);
    bench.flush();
    bench.check();
    bench.check_content();
    assert!(leaf_fill(&bench) >= 0.4, "fill {}", leaf_fill(&bench));
}
