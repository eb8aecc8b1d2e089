//! Nodes that are loaded many at once, or written anew: [`super::super::reach`].

use super::*;

/// A tree of three levels, as committed.
fn large(rng: &mut Rng) -> Bench {
    let mut bench = Bench::new();
    for _ in 0..80_000 {
        let (key, value) = (rng.key(2_000_000), rng.value(300));
        bench.insert(key, value);
    }
    bench.flush();
    assert_eq!(bench.root().level(), 2);
    bench
}

#[test]
fn leaves_are_shown_once_with_their_numbers_and_together_are_the_tree() {
    let bench = large(&mut Rng(1));
    let before = bench.shelf.loads.get();
    let mut leaves = BTreeMap::new();
    let shown = bench.tree.visit_leaves(&bench.shelf, u64::MAX, |number, node| {
        assert!(leaves.insert(number, Arc::clone(node)).is_none());
        Ok(())
    });
    assert_eq!(shown, Ok(()));
    let inner = bench.root().keys().len() + 1;
    assert_eq!(bench.shelf.loads.get() - before - 1, leaves.len() + inner, "each node is loaded once");
    let mut expected = bench.model.iter();
    for node in leaves.values() {
        let Node::Leaf(leaf) = &**node else { panic!("a leaf") };
        for (key, value) in leaf.entries(0..leaf.len()) {
            assert_eq!(expected.next(), Some((key, &value.to_vec())));
        }
    }
    assert_eq!(expected.next(), None);
    // One that is lost ends it.
    bench.shelf.fuse.set(Some(inner + 3));
    assert_eq!(bench.tree.visit_leaves(&bench.shelf, u64::MAX, |_, _| Ok(())), Err(Failure::Injected));
}

#[test]
fn leaves_that_keys_are_in_are_found_without_being_read() {
    let mut rng = Rng(2);
    let mut bench = large(&mut rng);
    let keys_of = |bench: &Bench, ptrs: &[BlockPtr]| -> Vec<Vec<Key>> {
        let blocks = bench.shelf.blocks.borrow();
        ptrs.iter().map(|ptr| blocks[&ptr.id].keys().to_vec()).collect()
    };
    for _ in 0..300 {
        let key =
            *bench.model.range(rng.key(2_000_000)..).next().unwrap_or(bench.model.iter().next().unwrap()).0;
        let before = bench.shelf.loads.get();
        let one = bench.tree.leaves_of(&bench.shelf, [key], false).unwrap();
        assert!(bench.shelf.loads.get() - before <= 3, "the nodes above alone");
        let [leaf] = &keys_of(&bench, &one)[..] else { panic!("one leaf") };
        assert!(leaf.contains(&key));
        let three = bench.tree.leaves_of(&bench.shelf, [key], true).unwrap();
        let all: Vec<Key> = keys_of(&bench, &three).concat();
        assert!(three.len() <= 3 && three.contains(&one[0]) && all.is_sorted_by(|a, b| a < b));
    }
    let all: Vec<Key> = bench.model.keys().copied().collect();
    let leaves = bench.tree.leaves_of(&bench.shelf, all.iter().copied(), false).unwrap();
    assert_eq!(keys_of(&bench, &leaves).concat(), all, "each leaf once, in order");
    // A leaf that changed is in memory.
    bench.insert(all[all.len() / 2], vec![7]);
    let clean = bench.tree.leaves_of(&bench.shelf, all.iter().copied(), false).unwrap();
    assert_eq!(clean.len(), leaves.len() - 1);
}

#[test]
fn nodes_that_are_picked_are_written_anew_and_nothing_else_changes() {
    let mut bench = large(&mut Rng(3));
    for part in [7, 3, 2] {
        let wanted = |ptr: &BlockPtr| ptr.id.get().is_multiple_of(part);
        let few = bench.tree.ways_to(&bench.shelf, wanted, 5).unwrap();
        assert_eq!(few.len(), 5);
        let last = bench.shelf.blocks.borrow().len() as u64;
        let picked = |ptr: &BlockPtr| wanted(ptr) && ptr.id.get() <= last;
        for (key, _) in bench.tree.ways_to(&bench.shelf, picked, usize::MAX).unwrap() {
            bench.tree.touch(&bench.shelf, &key).unwrap();
        }
        bench.check();
        bench.flush();
        assert_eq!(bench.tree.ways_to(&bench.shelf, picked, usize::MAX), Ok(Vec::new()));
        bench.check();
        bench.check_content();
    }
}

/// Gives nodes and keeps them; once it is closed, gives no others.
struct Keeper<'a> {
    shelf: &'a Shelf,
    kept: RefCell<HashMap<BlockId, Arc<Node>>>,
    is_closed: Cell<bool>,
}

impl<'a> Keeper<'a> {
    fn new(shelf: &'a Shelf) -> Self {
        Self { shelf, kept: RefCell::default(), is_closed: Cell::new(false) }
    }
}

impl NodeStore for Keeper<'_> {
    type Error = Failure;
    fn load(&self, ptr: BlockPtr) -> Result<Arc<Node>, Failure> {
        if let Some(node) = self.kept.borrow().get(&ptr.id) {
            return Ok(Arc::clone(node));
        }
        assert!(!self.is_closed.get(), "a node is needed that was not reached");
        let node = self.shelf.load(ptr)?;
        self.kept.borrow_mut().insert(ptr.id, Arc::clone(&node));
        Ok(node)
    }
    fn load_beside(&self, ptr: BlockPtr) -> Option<Arc<Node>> {
        let kept = self.kept.borrow().get(&ptr.id).cloned();
        kept.or_else(|| (!self.is_closed.get()).then(|| self.load(ptr).ok()).flatten())
    }
}

/// Keys of a few stretches of the tree, or strewn over it.
fn some_keys(bench: &Bench, rng: &mut Rng) -> Vec<Key> {
    let mut keys = std::collections::BTreeSet::new();
    for _ in 0..=rng.roll(3) {
        let (from, many) = (rng.key(40_000), [1, 1, 6, 60, 400][rng.roll(5) as usize]);
        let every = [1, 1, 5][rng.roll(3) as usize];
        keys.extend(bench.model.range(from..).step_by(every).take(many).map(|(key, _)| *key));
    }
    // One that is not there.
    keys.insert(rng.key(40_000));
    keys.into_iter().collect()
}

#[test]
fn what_is_reached_before_a_removal_is_all_that_it_takes() {
    for seed in 0..6 {
        let (mut bench, mut rng) = (tall(), Rng(seed));
        let mut rounds = 0;
        while !bench.model.is_empty() {
            rounds += 1;
            let keys = some_keys(&bench, &mut rng);
            let shelf =
                Shelf { blocks: RefCell::new(bench.shelf.blocks.borrow().clone()), ..Shelf::default() };
            let keeper = Keeper::new(&shelf);
            bench.tree.reach_removal(&keeper, keys.iter().copied()).unwrap();
            keeper.is_closed.set(true);
            for key in &keys {
                let old = bench.tree.remove(&keeper, key).unwrap();
                assert_eq!(old, bench.model.remove(key));
            }
            assert!(!bench.tree.take_blurred(), "nothing was unreadable");
            if rng.roll(3) > 0 {
                bench.flush();
            }
            if rounds % 16 == 0 {
                bench.check();
            }
        }
        bench.check();
        assert!(rounds > 10, "{rounds} rounds");
    }
}

#[test]
fn a_frozen_tree_stays_as_it_was_whatever_is_changed_and_flushed() {
    let (mut bench, mut rng) = (tall(), Rng(4));
    for round in 0..12u8 {
        let (frozen, was) = (bench.tree.frozen(), bench.model.clone());
        for key in some_keys(&bench, &mut rng) {
            bench.remove(&key);
        }
        for _ in 0..60 {
            let key = rng.key(40_000);
            bench.insert(key, vec![round; 700]);
        }
        if round % 3 == 1 {
            bench.flush();
        }
        let mut expected = was.iter();
        let same = frozen.scan(&bench.shelf, .., |key, value| {
            assert_eq!(expected.next().map(|(key, value)| (key, value.as_slice())), Some((key, value)));
            ControlFlow::Continue(())
        });
        assert_eq!((same, expected.next()), (Ok(()), None));
        bench.check();
    }
}
