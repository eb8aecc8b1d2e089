//! Two trees beside each other: differences, and remains.

use super::*;

fn nodes_of(shelf: &Shelf, root: BlockPtr) -> HashSet<BlockId> {
    let mut all = HashSet::new();
    let walked = Tree::open(root).for_each_node(
        shelf,
        |_| true,
        |ptr, node| {
            all.insert(ptr.id);
            node.map(|_| ())
        },
    );
    walked.expect("no failure was set");
    all
}

/// Entries that differ, nodes of only the old and only the new tree, and the number of nodes read.
type Compared = (Vec<Changed>, [HashSet<BlockId>; 2], usize);

/// A key with its values in the old and in the new tree.
type Changed = (Key, Option<Vec<u8>>, Option<Vec<u8>>);

fn compare(shelf: &Shelf, old: BlockPtr, new: BlockPtr, max: usize) -> Compared {
    let (mut entries, mut nodes) = (Vec::new(), [HashSet::new(), HashSet::new()]);
    let mut difference = Difference::new(Some(old), Some(new));
    shelf.loads.set(0);
    while difference
        .step(shelf, max, |differs| match differs {
            Differs::Entry { key, old, new } => {
                entries.push((key, old.map(<[u8]>::to_vec), new.map(<[u8]>::to_vec)));
            }
            Differs::Node(side, ptr) => {
                assert!(nodes[side as usize].insert(ptr.id), "told twice");
            }
        })
        .expect("no failure was set")
    {}
    (entries, nodes, shelf.loads.get())
}

fn differing(old: &Model, new: &Model) -> Vec<Changed> {
    let keys: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let both = keys.into_iter().map(|key| (*key, old.get(key).cloned(), new.get(key).cloned()));
    both.filter(|(_, old, new)| old != new).collect()
}

/// A state of a tree: contents, root, and the highest id that was given out by then.
type State = (Model, BlockPtr, BlockId);

/// A tree that goes through so many states.
fn history(seed: u64, states: u64) -> (Bench, Vec<State>) {
    let (mut rng, mut bench) = (Rng(seed), Bench::new());
    let space = [50, 2_000, 40_000][rng.roll(3) as usize];
    let mut next = |round| {
        // From none to nearly all of it changes; now and then nearly all of it goes, and the tree loses levels.
        let changes = if round == 0 { 6_000 } else { [0, 1, 20, 3_000][rng.roll(4) as usize] };
        for _ in 0..changes {
            let key = rng.key(space);
            if rng.roll(3) > 0 {
                let value = rng.value(300);
                bench.insert(key, value);
            } else {
                bench.remove(&key);
            }
        }
        if rng.roll(4) == 0 {
            let (from, to) = (rng.key(space), rng.key(space));
            bench.remove_range(from.min(to), from.max(to), usize::MAX);
        }
        bench.flush();
        let high = bench.shelf.blocks.borrow().keys().max().copied().expect("there is a node");
        (bench.model.clone(), bench.tree.committed_root().expect("it was flushed"), high)
    };
    let states = (0..states).map(&mut next).collect();
    (bench, states)
}

#[test]
fn a_difference_is_every_entry_and_every_node_that_only_one_tree_has() {
    for seed in 0..if std::env::var_os("LARDER_LARGE").is_some() { 60 } else { 12 } {
        let (bench, states) = history(seed, 8);
        for (old, old_root, _) in &states {
            for (new, new_root, _) in &states {
                let (entries, nodes, loads) = compare(&bench.shelf, *old_root, *new_root, 1 + seed as usize);
                assert!(entries == differing(old, new), "seed {seed}");
                let [a, b] = [old_root, new_root].map(|root| nodes_of(&bench.shelf, *root));
                assert!(nodes[0] == &a - &b && nodes[1] == &b - &a, "seed {seed}");
                let (needed, level) = (nodes[0].len() + nodes[1].len(), |root| bench.shelf.load(root));
                // Where one tree is higher than the other, some that both have are read.
                let more =
                    usize::from(level(*old_root).unwrap().level() != level(*new_root).unwrap().level()) * 16;
                assert!((needed..=needed + more).contains(&loads), "seed {seed}: {loads} of {needed}");
            }
        }
    }
}

#[test]
fn a_node_that_is_the_root_of_one_tree_and_deep_in_the_other_is_no_difference() {
    for kept in 0.. {
        let mut bench = tall();
        let (old, root) = (bench.model.clone(), bench.tree.committed_root().expect("it was flushed"));
        let top = bench.shelf.load(root).unwrap();
        let Node::Inner(inner) = &*top else { panic!("a tall tree's root is no leaf") };
        if kept == inner.keys().len() {
            assert!(kept > 2);
            return;
        }
        let (low, high) = (inner.keys()[kept], inner.keys().get(kept + 1).copied());
        bench.model.retain(|key, _| *key >= low && high.is_none_or(|high| *key < high));
        // Trees did so once where nothing else was left.
        let new = inner.children()[kept];
        for (old_root, new_root, old, new_model) in
            [(root, new, &old, &bench.model), (new, root, &bench.model, &old)]
        {
            let (entries, nodes, _) = compare(&bench.shelf, old_root, new_root, 3);
            assert!(entries == differing(old, new_model));
            let [a, b] = [old_root, new_root].map(|root| nodes_of(&bench.shelf, root));
            assert!(nodes[0] == &a - &b && nodes[1] == &b - &a, "{kept}");
        }
    }
}

#[test]
fn of_nothing_all_is_new_and_two_trees_that_are_one_are_not_read() {
    let bench = tall();
    let root = bench.tree.committed_root().expect("it was flushed");
    let (entries, nodes, loads) = compare(&bench.shelf, root, root, 1);
    assert!(entries.is_empty() && nodes.iter().all(HashSet::is_empty) && loads == 0);
    let (mut entries, mut nodes) = (0, 0);
    let mut difference = Difference::new(None, Some(root));
    while difference
        .step(&bench.shelf, 7, |differs| match differs {
            Differs::Entry { old, .. } => entries += usize::from(old.is_none()),
            Differs::Node(side, _) => nodes += usize::from(side == Side::New),
        })
        .expect("no failure was set")
    {}
    assert_eq!((entries, nodes), (bench.model.len(), nodes_of(&bench.shelf, root).len()));
}

#[test]
fn a_difference_whose_load_fails_goes_on_where_it_was() {
    let mut bench = tall();
    let (old, root) = (bench.model.clone(), bench.tree.committed_root().expect("it was flushed"));
    let mut rng = Rng(3);
    for _ in 0..40 {
        let (key, value) = (rng.key(5_000), rng.value(200));
        bench.insert(key, value);
    }
    bench.flush();
    let new = bench.tree.committed_root().expect("it was flushed");
    let mut entries = Vec::new();
    let mut difference = Difference::new(Some(root), Some(new));
    for fuse in 0.. {
        bench.shelf.fuse.set(Some(fuse % 3));
        let stepped = difference.step(&bench.shelf, usize::MAX, |differs| {
            if let Differs::Entry { key, old, new } = differs {
                entries.push((key, old.map(<[u8]>::to_vec), new.map(<[u8]>::to_vec)));
            }
        });
        match stepped {
            Ok(more) => {
                assert!(!more && fuse > 3);
                break;
            }
            Err(error) => assert_eq!(error, Failure::Injected),
        }
    }
    assert!(entries == differing(&old, &bench.model));
}

/// A key with what remains of it, and what came instead.
type Remained = (Key, Vec<u8>, Option<Vec<u8>>);

/// As [`compare`], of what remains above `floor`; each step is taken up anew by another walk.
fn remains(
    shelf: &Shelf,
    (old, new): (BlockPtr, BlockPtr),
    floor: BlockId,
    max: usize,
) -> (Vec<Remained>, HashSet<BlockId>, usize) {
    let (mut entries, mut nodes) = (Vec::new(), HashSet::new());
    let mut from = Key::MIN;
    shelf.loads.set(0);
    // The way down is read again by each, so that none comes nowhere.
    for max in max.. {
        let mut walk = Remains::new(Some(old), Some(new), floor, from);
        let more = walk.step(shelf, max, |remain| match remain {
            Remain::Entry(key, value, now) => entries.push((key, value.to_vec(), now.map(<[u8]>::to_vec))),
            Remain::Node(ptr) => assert!(nodes.insert(ptr.id), "told twice"),
        });
        if !more.expect("no failure was set") {
            break;
        }
        assert!(walk.cursor() >= from);
        from = walk.cursor();
    }
    (entries, nodes, shelf.loads.get())
}

#[test]
fn what_remains_is_each_entry_and_node_of_the_old_tree_alone_once_however_often_it_is_taken_up_again() {
    for seed in 0..if std::env::var_os("LARDER_LARGE").is_some() { 60 } else { 12 } {
        let (bench, states) = history(1000 + seed, 6);
        for (at, (old, old_root, _)) in states.iter().enumerate() {
            let floors = states[..at].iter().map(|state| state.2);
            for floor in std::iter::once(BlockId::new(0)).chain(floors) {
                for (new, new_root, _) in &states {
                    let roots = (*old_root, *new_root);
                    let (entries, nodes, _) = remains(&bench.shelf, roots, floor, 1 + seed as usize);
                    let [a, b] = [old_root, new_root].map(|root| nodes_of(&bench.shelf, *root));
                    let wanted: HashSet<_> = (&a - &b).into_iter().filter(|id| *id > floor).collect();
                    assert!(nodes == wanted, "seed {seed}");
                    let all: Vec<Remained> = differing(old, new)
                        .into_iter()
                        .filter_map(|(key, old, new)| Some((key, old?, new)))
                        .collect();
                    // Those in subtrees below the floor are not asked for.
                    let told: Vec<_> = all.iter().filter(|one| entries.contains(one)).collect();
                    assert_eq!(told.len(), entries.len(), "seed {seed}: none is told twice");
                    if floor == BlockId::new(0) {
                        assert!(entries == all, "seed {seed}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_remains_of_a_tree_of_which_little_changed_is_found_by_reading_little() {
    let mut bench = tall();
    let (old, floor) =
        (bench.tree.committed_root().expect("it was flushed"), bench.shelf.blocks.borrow().len());
    let mut rng = Rng(3);
    let (key, value) = (rng.key(5_000), rng.value(200));
    bench.insert(key, value);
    bench.flush();
    let snapshot = bench.tree.committed_root().expect("it was flushed");
    // Much changes afterwards.
    for _ in 0..3_000 {
        let (key, value) = (rng.key(40_000), rng.value(200));
        bench.insert(key, value);
    }
    bench.flush();
    let head = bench.tree.committed_root().expect("it was flushed");
    let way = nodes_of(&bench.shelf, snapshot).difference(&nodes_of(&bench.shelf, old)).count();
    let (_, nodes, loads) = remains(&bench.shelf, (snapshot, head), BlockId::new(floor as u64), 1_000);
    assert_eq!(nodes.len(), way);
    assert!(loads <= 4 * way, "{loads} nodes were read for {way}");
}

#[test]
fn a_node_that_cannot_be_read_keeps_what_is_below_it_alone() {
    let mut bench = tall();
    let root = bench.tree.committed_root().expect("it was flushed");
    let all = nodes_of(&bench.shelf, root);
    for fuse in 0..4 {
        let mut walk = Remains::new(Some(root), None, BlockId::new(0), Key::MIN);
        let (mut nodes, mut entries, mut unread) = (HashSet::new(), 0, None);
        bench.shelf.fuse.set(Some(fuse));
        let mut visit = |remain: Remain<'_>| match remain {
            Remain::Entry(..) => entries += 1,
            Remain::Node(ptr) => assert!(nodes.insert(ptr.id)),
        };
        loop {
            match walk.step(&bench.shelf, 5, &mut visit) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    assert_eq!((error, unread), (Failure::Injected, None));
                    unread = walk.pass_unread(&mut visit);
                    assert!(unread.is_some());
                }
            }
        }
        let below = nodes_of(&bench.shelf, unread.expect("a load failed"));
        assert!(nodes == &all - &below);
        assert_eq!(entries == 0, fuse == 0, "with the root, all");
    }
    // Of the newer tree nothing can be told.
    bench.insert(Key::MIN, b"new".to_vec());
    bench.flush();
    let mut walk = Remains::new(Some(root), bench.tree.committed_root(), BlockId::new(0), Key::MIN);
    bench.shelf.fuse.set(Some(1));
    let mut nothing = |_: Remain<'_>| panic!("it is not known");
    assert_eq!(walk.step(&bench.shelf, 1_000, &mut nothing), Err(Failure::Injected));
    assert_eq!(walk.pass_unread(nothing), None);
}

/// The older contents with what is told put over them, and the number of nodes read.
fn brought_up(shelf: &Shelf, old: &Model, root: BlockPtr, high: BlockId, max: usize) -> (Model, usize) {
    let (mut new, mut clears, mut last) = (old.clone(), None, None);
    let mut since = Since::new(Some(root), high);
    shelf.loads.set(0);
    let clear = |new: &mut Model, from: Key, to: Key| new.retain(|key, _| *key < from || *key >= to);
    while since
        .step(shelf, max, |told| match told {
            Told::Clear(from) => {
                assert!(clears.is_none() && last.is_none_or(|last| last < from));
                clears = Some(from);
            }
            Told::Keep(to) => {
                clear(&mut new, clears.take().expect("it was clearing"), to);
                last = Some(to);
            }
            Told::Entry(key, value) => {
                let from = clears.expect("it is clearing");
                assert!(from <= key && last.is_none_or(|last| last <= key));
                clear(&mut new, from, key);
                new.insert(key, value.to_vec());
                clears = key.successor();
                last = Some(key);
            }
        })
        .expect("no failure was set")
    {}
    assert!(clears.is_none(), "it ends by keeping");
    (new, shelf.loads.get())
}

#[test]
fn a_tree_tells_by_its_ids_what_an_older_one_had_not() {
    for seed in 0..if std::env::var_os("LARDER_LARGE").is_some() { 60 } else { 8 } {
        let (bench, states) = history(seed, 6);
        for (at, (old, _, high)) in states.iter().enumerate() {
            for (new, root, _) in &states[at..] {
                let (found, _) = brought_up(&bench.shelf, old, *root, *high, 1 + seed as usize % 7);
                assert!(found == *new, "seed {seed}");
            }
            let (same, loads) = brought_up(&bench.shelf, old, states[at].1, *high, 9);
            assert!(same == *old && loads == 0, "seed {seed}: nothing changed, and it reads");
        }
    }
}

/// A tree of `leaves` leaves, and its keys by leaf.
fn leaves(count: u64) -> Bench {
    let mut bench = Bench::new();
    (0..count * 16).for_each(|at| bench.insert(Key::new(1, 1, at), vec![7; 900]));
    bench.flush();
    bench
}

#[test]
fn what_goes_with_a_whole_leaf_is_told_though_its_neighbours_stay_as_they_are() {
    for count in [2, 3, 40, 900] {
        let mut bench = leaves(count);
        let (old, high) = (bench.model.clone(), BlockId::new(bench.shelf.blocks.borrow().len() as u64));
        // Leaf by leaf, from one that is not the first: each goes without having been thin before.
        for (from, to) in [(16, 32), (count * 8, count * 16), (0, 15), (17, count * 16)] {
            bench.remove_range(Key::new(1, 1, from), Key::new(1, 1, to), usize::MAX);
            bench.check();
            bench.flush();
            let root = bench.tree.committed_root().expect("it was flushed");
            let (found, _) = brought_up(&bench.shelf, &old, root, high, 3);
            assert!(found == bench.model, "{count} leaves, {from}..{to}");
        }
        assert!(!bench.tree.take_blurred());
    }
}

#[test]
fn what_goes_with_a_level_of_the_tree_is_told_though_what_is_left_stays_as_it_was() {
    for count in 2..6 {
        // Each number of keys from either end: one of them leaves the first or the last leaf alone, untouched.
        for gone in 1..count * 16 {
            for (from, to) in [(0, gone), (gone, count * 16)] {
                let mut bench = leaves(count);
                let (old, high) =
                    (bench.model.clone(), BlockId::new(bench.shelf.blocks.borrow().len() as u64));
                bench.remove_range(Key::new(1, 1, from), Key::new(1, 1, to), usize::MAX);
                bench.check();
                bench.flush();
                let root = bench.tree.committed_root().expect("it was flushed");
                let (found, _) = brought_up(&bench.shelf, &old, root, high, 3);
                assert!(found == bench.model, "{count} leaves, {from}..{to}");
            }
        }
    }
}

#[test]
fn a_neighbour_that_cannot_be_read_blurs_the_tree_and_forbids_no_removal() {
    let mut blurred = 0;
    for fuse in 0..40 {
        let mut bench = leaves(40);
        bench.shelf.fuse.set(Some(fuse));
        let range = Key::new(1, 1, 160)..Key::new(1, 1, 320);
        let removed = bench.tree.remove_range(&bench.shelf, range, usize::MAX, |key, _| {
            bench.model.remove(key);
        });
        bench.shelf.fuse.set(None);
        blurred += usize::from(removed.is_ok() && bench.tree.take_blurred());
        bench.check();
        bench.check_content();
    }
    assert!(blurred > 0, "no neighbour was read");
}
