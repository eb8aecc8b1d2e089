//! Increments from bookmarks, whose snapshots are gone: the replica is what the snapshot is, whatever came between.

use super::*;
use larder_format::bookmark::BookmarkRecord;
use larder_format::node::Node;
use larder_pool::BookmarkSource;
use larder_store::DatasetNodes;
use larder_stream::wire::Item;
use std::collections::VecDeque;

const RECORD: u64 = 16 << 10;

fn mark(bed: &Bed, snapshot: &str) -> BookmarkRecord {
    bed.pool.make_bookmark(ROOT_DATASET, BookmarkSource::Snapshot(snapshot), snapshot).unwrap()
}

/// The stream from a bookmark, if the pool says that it can be.
fn sent_from(bed: &Bed, from: &str, to: &str, position: Option<Key>) -> Vec<Frame> {
    let mark = bed.pool.bookmark(ROOT_DATASET, from).unwrap();
    let new = bed.pool.snapshot_named(ROOT_DATASET, to).unwrap();
    assert!(bed.pool.came_of(ROOT_DATASET, &mark, &new) && bed.pool.is_traced(&mark), "{from} to {to}");
    frames_upon(&bed.pool, "tank", Base::Bookmark(&mark), to, position)
}

/// Work that puts old records at places where they were not, and has whole leaves come and go.
struct Mixed {
    work: Work,
    contents: VecDeque<Vec<u8>>,
}

impl Mixed {
    fn new(seed: u64) -> Self {
        Self { work: Work::new(seed), contents: VecDeque::new() }
    }

    fn file(&self, bed: &Bed) -> Option<NodeId> {
        let files = self.work.all(bed, FileKind::Regular);
        (!files.is_empty()).then(|| files[self.work.next(files.len() as u64) as usize].2)
    }

    fn step(&mut self, bed: &Bed) {
        let next = |n| self.work.next(n);
        let (Some(one), Some(other)) = (self.file(bed), self.file(bed)) else { return self.work.step(bed) };
        match next(20) {
            // There, and perhaps back again later.
            0..=5 => {
                let (from, to) = (next(6) * RECORD, next(6) * RECORD);
                let size = bed.mount.getattr(one).unwrap().size;
                if one != other || from != to && from.abs_diff(to) >= 2 * RECORD {
                    let len = (size.saturating_sub(from)).min(RECORD * (1 + next(2)));
                    bed.mount.copy_range((one, from), (other, to), len).unwrap();
                }
            }
            // Records are found again, where they are sought by content.
            6..=8 => {
                let known = next(self.contents.len() as u64 + 1) as usize;
                let bytes = match self.contents.get(known) {
                    Some(bytes) => bytes.clone(),
                    None => self.work.bytes(2 * RECORD as usize),
                };
                bed.write(one, next(5) * RECORD, &bytes);
                self.contents.push_back(bytes);
                self.contents.truncate(6);
            }
            9 => (0..next(300)).for_each(|at| {
                let dir = bed.file(ROOT, &format!("many{}-{at}", self.work.names));
                bed.mount.setxattr(dir, b"user.x", &self.work.bytes(100), XattrMode::Set).unwrap();
            }),
            // Neighbours in the tree, as they were made one after the other.
            10 => {
                let files = self.work.all(bed, FileKind::Regular);
                let from = next(files.len() as u64) as usize;
                let mut files: Vec<_> =
                    files.into_iter().map(|(dir, name, node)| (node, dir, name)).collect();
                files.sort_by_key(|(node, ..)| *node);
                for (_, dir, name) in files.into_iter().skip(from).take(next(200) as usize) {
                    bed.mount.unlink(dir, name.as_bytes()).unwrap();
                }
            }
            11 => settle(bed),
            12 => bed.pool.set_property(ROOT_DATASET, "dedup", ["on", "off"][next(2) as usize]).unwrap(),
            _ => self.work.step(bed),
        }
        self.work.names += 1;
    }
}

/// A source and a replica, and what each snapshot must be.
struct Pair {
    a: Bed,
    b: Bed,
    mixed: Mixed,
    expected: Vec<(String, Seen)>,
    seed: u64,
    names: u64,
    from_bookmarks: usize,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let (a, b) = (source(KINDS[seed as usize % 3]), target());
        let (mixed, expected) = (Mixed::new(seed + 4000), Vec::new());
        Self { a, b, mixed, expected, seed, names: 0, from_bookmarks: 0 }
    }

    fn there(&self) -> DatasetId {
        id(&self.b.pool, "tank/r")
    }

    /// The source goes back to a snapshot that it still has, and the replica with it.
    fn go_back(&mut self) {
        let has = |(name, _): &&(String, Seen)| self.a.pool.snapshot_named(ROOT_DATASET, name).is_ok();
        let all: Vec<_> = self.expected.iter().filter(has).map(|(name, _)| name.clone()).collect();
        let Some(to) = all.get(self.mixed.work.next(all.len() as u64 + 1) as usize).cloned() else { return };
        self.a.pool.commit().unwrap();
        if self.mixed.work.next(3) == 0 {
            let name = format!("tank/branch{}", self.names);
            let branched = self.a.pool.branch(ROOT_DATASET, &to, &name, &Default::default());
            branched.unwrap();
        } else if self.a.pool.rollback(ROOT_DATASET, &to, true).is_err() {
            return;
        }
        self.reopen();
        let at = self.expected.iter().position(|(name, _)| *name == to).unwrap();
        self.expected.truncate(at + 1);
        self.b.pool.rollback(self.there(), &to, true).unwrap();
    }

    fn reopen(&mut self) {
        self.seed += 1000;
        let a = std::mem::replace(&mut self.a, Bed::new(&[]));
        self.a = a.reopen(self.seed);
    }

    /// A clone of a snapshot takes it and all before over: the dataset has its bookmarks only.
    fn promote(&mut self) {
        let taken = self.a.pool.snapshots(ROOT_DATASET);
        if taken.is_empty() {
            return;
        }
        let of = &taken[self.mixed.work.next(taken.len() as u64) as usize].name;
        let name = format!("tank/clone{}", self.names);
        let clone = self.a.pool.clone_snapshot(ROOT_DATASET, of, &name, Default::default()).unwrap();
        self.a.pool.promote(clone.id()).unwrap();
    }

    fn round(&mut self) {
        self.names += 1;
        let before = self.expected.last().map(|(name, _)| name.clone());
        for _ in 0..self.mixed.work.next(40) {
            self.mixed.step(&self.a);
        }
        let name = format!("s{}", self.names);
        take(&self.a, &name);
        mark(&self.a, &name);
        let is_there = |from: &String| self.a.pool.snapshot_named(ROOT_DATASET, from).is_ok();
        let frames = |position| match &before {
            Some(from) if !is_there(from) => sent_from(&self.a, from, &name, position),
            before => frames(&self.a.pool, "tank", before.as_deref(), &name, position),
        };
        self.from_bookmarks += usize::from(before.as_ref().is_some_and(|from| !is_there(from)));
        let mut stream = encode(&frames(None));
        while self.mixed.work.next(2) == 0 {
            let since = self.b.sim.trace().len();
            let cut = self.mixed.work.next((stream.len() - CLOSE) as u64) as usize;
            receive(&self.b.pool, "tank/r", &stream[..cut], ReceiveAs::Next).unwrap_err();
            if before.is_some() && self.mixed.work.next(2) == 0 {
                let trace = self.b.sim.trace();
                let at = since + self.mixed.work.next((trace.len() - since) as u64 + 1) as usize;
                let survival = Survival::Random { seed: self.mixed.work.entropy.next_u64() };
                let world = SimWorld::from_images(trace.crash_images(at, survival));
                self.seed += 1000;
                self.b = Bed::import(world, Arc::clone(&self.b.clock), self.seed);
            }
            let was = self.a.pool.snapshot_named(ROOT_DATASET, &name).unwrap();
            let found = self.b.pool.dataset_by_name("tank/r").ok();
            let found = found.and_then(|one| self.b.pool.received(one.id()));
            stream = encode(&frames(found.filter(|found| found.to == was.guid).and_then(|one| one.position)));
        }
        receive(&self.b.pool, "tank/r", &stream, ReceiveAs::Next).unwrap();
        let seen = see(&self.a.pool, ROOT_DATASET, &name);
        assert!(see(&self.b.pool, self.there(), &name) == seen, "{name} differs");
        self.expected.push((name, seen));
        let gone: Vec<_> = self.a.pool.snapshots(ROOT_DATASET);
        for record in gone.into_iter().filter(|_| self.mixed.work.next(3) > 0) {
            self.a.pool.destroy_snapshot(ROOT_DATASET, &record.name).unwrap();
        }
        match self.mixed.work.next(8) {
            0 => self.go_back(),
            1 => self.promote(),
            2 => self.reopen(),
            3 => check(&self.a),
            4 => check(&self.b),
            _ => {}
        }
    }
}

#[test]
fn a_replica_stays_equal_through_increments_from_bookmarks() {
    let mut from_bookmarks = 0;
    for seed in 0..long_seeds(9, 300) {
        eprintln!("seed {seed}");
        let mut pair = Pair::new(seed);
        (0..9).for_each(|_| pair.round());
        for (name, seen) in &pair.expected {
            assert!(see(&pair.b.pool, pair.there(), name) == *seen, "{name} changed later");
        }
        check(&pair.a);
        check(&pair.b);
        from_bookmarks += pair.from_bookmarks;
    }
    assert!(from_bookmarks > 20, "{from_bookmarks}");
}

#[test]
fn a_record_that_was_copied_away_and_back_is_sent_though_its_file_had_it_once() {
    let (a, b) = (source(&[("recordsize", "4096")]), target());
    let (file, other) = (a.file(ROOT, "file"), a.file(ROOT, "other"));
    a.write(file, 0, &[1; 8192]);
    a.pool.commit().unwrap();
    a.mount.copy_range((file, 0), (other, 0), 8192).unwrap();
    a.write(file, 0, &[2; 8192]);
    take(&a, "one");
    mark(&a, "one");
    receive(&b.pool, "tank/r", &sent(&a, None, "one"), ReceiveAs::Next).unwrap();
    a.mount.copy_range((other, 0), (file, 0), 4096).unwrap();
    a.mount.unlink(ROOT, b"other").unwrap();
    a.pool.destroy_snapshot(ROOT_DATASET, "one").unwrap();
    take(&a, "two");
    let frames = sent_from(&a, "one", "two", None);
    let Some(Frame::End(end)) = frames.iter().rev().nth(1) else { panic!("no end") };
    assert_eq!(end.records, 1, "one of the two stayed where it was");
    let (new, mark) =
        (a.pool.snapshot_view(ROOT_DATASET, "two").unwrap(), a.pool.bookmark(ROOT_DATASET, "one").unwrap());
    let send = || Send::new(&a.pool, Base::Bookmark(&mark), &new, None);
    let (mut measured, mut really) = (send(), send());
    while measured.measure().unwrap() {}
    while really.chunk().unwrap().is_some() {}
    let (told, sent) = (measured.sent(), really.sent().bytes);
    assert!(told.bytes < sent && sent <= told.bytes + told.unsure, "{told:?}, and it was {sent}");
    receive(&b.pool, "tank/r", &encode(&frames), ReceiveAs::Next).unwrap();
    assert!(see(&b.pool, id(&b.pool, "tank/r"), "two") == see(&a.pool, ROOT_DATASET, "two"));
    check(&a);
    check(&b);
}

#[test]
fn of_what_stayed_as_it_was_nothing_is_sent() {
    let a = source(&[("recordsize", "4096")]);
    for at in 0..300 {
        let file = a.file(ROOT, &format!("file{at}"));
        a.write(file, 0, &[at as u8 | 1; 9000]);
    }
    for name in ["one", "two"] {
        take(&a, name);
    }
    mark(&a, "one");
    a.pool.destroy_snapshot(ROOT_DATASET, "one").unwrap();
    assert_eq!(sent_from(&a, "one", "two", None).len(), 4, "no chunk");
    // One byte more: one record, and the entries beside it by their keys alone.
    let file = a.mount.lookup(ROOT, b"file7").unwrap().node;
    a.write(file, 3, &[9]);
    take(&a, "three");
    let frames = sent_from(&a, "one", "three", None);
    let Some(Frame::End(end)) = frames.iter().rev().nth(1) else { panic!("no end") };
    assert_eq!(end.records, 1);
    let new = a.pool.snapshot_view(ROOT_DATASET, "three").unwrap();
    let mark = a.pool.bookmark(ROOT_DATASET, "one").unwrap();
    let mut send = Send::new(&a.pool, Base::Bookmark(&mark), &new, None);
    while send.measure().unwrap() {}
    assert_eq!(send.sent().end, *end, "and that is what is told before");
}

#[test]
fn what_went_with_a_whole_leaf_of_the_tree_is_told() {
    let (a, b) = (source(&[("recordsize", "4096")]), target());
    let file = a.file(ROOT, "file");
    for at in 0..900 {
        a.write(file, at * 4096, &[at as u8 | 1; 4096]);
    }
    a.file(ROOT, "behind");
    take(&a, "one");
    mark(&a, "one");
    receive(&b.pool, "tank/r", &sent(&a, None, "one"), ReceiveAs::Next).unwrap();
    let mut leaves: Vec<Key> = Vec::new();
    {
        let view = a.pool.snapshot_view(ROOT_DATASET, "one").unwrap();
        let note = |_, node: Result<&Node, PoolError>| {
            let node = node?;
            leaves.extend(node.keys().first().filter(|key| node.level() == 0 && key.kind == EXTENT));
            Ok::<_, PoolError>(())
        };
        view.parts().1.for_each_node(&DatasetNodes(a.pool.store()), |_| true, note).unwrap();
    }
    // The leaf before it does not change.
    let from =
        leaves.iter().map(|key| key.offset).filter(|at| *at > 0).nth(1).expect("three leaves of extents");
    a.resize(file, from);
    a.pool.destroy_snapshot(ROOT_DATASET, "one").unwrap();
    take(&a, "two");
    receive(&b.pool, "tank/r", &encode(&sent_from(&a, "one", "two", None)), ReceiveAs::Next).unwrap();
    assert!(see(&b.pool, id(&b.pool, "tank/r"), "two") == see(&a.pool, ROOT_DATASET, "two"));
    check(&b);
}

#[test]
fn a_stream_that_is_taken_over_takes_bookmarks_behind_its_base_away() {
    let (_a, b, stream, _) = half_way(3);
    let there = id(&b.pool, "tank/r");
    let whole = encode(&stream);
    // Its nodes get their ids now, and the bookmark a higher one.
    receive(&b.pool, "tank/r", &whole[..whole.len() - 60], ReceiveAs::Next).unwrap_err();
    for (snapshot, is_newer) in [("one", false), ("local", true)] {
        if is_newer {
            b.pool.snapshot(there, snapshot).unwrap();
        }
        b.pool.make_bookmark(there, BookmarkSource::Snapshot(snapshot), snapshot).unwrap();
        if is_newer {
            b.pool.destroy_snapshot(there, snapshot).unwrap();
        }
    }
    let position = b.pool.received(there).and_then(|found| found.position);
    let rest = encode(&frames(&_a.pool, "tank", Some("one"), "two", position));
    receive(&b.pool, "tank/r", &rest, ReceiveAs::Next).unwrap();
    let names = |bed: &Bed| bed.pool.bookmarks(there).into_iter().map(|one| one.name).collect::<Vec<_>>();
    assert_eq!(names(&b), ["one"]);
    let one = b.pool.bookmark(there, "one").unwrap();
    assert!(b.pool.came_of(there, &one, &b.pool.snapshot_named(there, "two").unwrap()));
    assert_eq!(names(&b.reopen(5)), ["one"]);
}

#[test]
fn a_bookmark_is_on_the_lines_behind_it_and_on_no_others() {
    let mut a = source(&[]);
    a.file(ROOT, "file");
    take(&a, "old");
    let old = mark(&a, "old");
    a.file(ROOT, "more");
    take(&a, "new");
    let new = mark(&a, "new");
    let clone = a.pool.clone_snapshot(ROOT_DATASET, "old", "tank/clone", Default::default()).unwrap().id();
    let of_clone = a.pool.snapshot(clone, "x").unwrap();
    let named = |a: &Bed, name: &str| a.pool.snapshot_named(ROOT_DATASET, name).unwrap();
    assert!(a.pool.came_of(ROOT_DATASET, &old, &named(&a, "new")));
    assert!(a.pool.came_of(ROOT_DATASET, &old, &of_clone), "a clone of it");
    assert!(!a.pool.came_of(ROOT_DATASET, &new, &of_clone), "of one before it");
    assert!(!a.pool.came_of(ROOT_DATASET, &new, &named(&a, "old")), "later");
    assert!(!a.pool.came_of(ROOT_DATASET, &new, &named(&a, "new")), "itself");
    a.pool.promote(clone).unwrap();
    assert!(a.pool.came_of(ROOT_DATASET, &old, &named(&a, "new")), "its line is as before");
    assert!(!a.pool.came_of(ROOT_DATASET, &old, &of_clone), "by no origin");
    a.pool.commit().unwrap();
    a.pool.branch(ROOT_DATASET, "new", "tank/branch", &Default::default()).unwrap();
    a = a.reopen(4);
    a.file(ROOT, "then");
    take(&a, "then");
    assert!(a.pool.came_of(ROOT_DATASET, &new, &named(&a, "then")));
    a.pool.destroy_bookmark(ROOT_DATASET, "new").unwrap();
    assert!(!a.pool.came_of(ROOT_DATASET, &new, &named(&a, "then")), "it is gone");
}

/// As [`half_way`], from a bookmark.
fn half_way_marked(seed: u64) -> (Bed, Bed, Vec<Frame>, [Seen; 2]) {
    let (a, b) = (source(KINDS[seed as usize % 3]), target());
    let mut mixed = Mixed::new(seed);
    (0..40).for_each(|_| mixed.step(&a));
    take(&a, "one");
    mark(&a, "one");
    receive(&b.pool, "tank/r", &sent(&a, None, "one"), ReceiveAs::Next).unwrap();
    (0..40).for_each(|_| mixed.step(&a));
    take(&a, "two");
    let seen = ["one", "two"].map(|name| see(&a.pool, ROOT_DATASET, name));
    a.pool.destroy_snapshot(ROOT_DATASET, "one").unwrap();
    let stream = sent_from(&a, "one", "two", None);
    (a, b, stream, seen)
}

#[test]
fn streams_from_bookmarks_that_say_what_cannot_be_do_no_harm() {
    for seed in [3, 5] {
        let (_a, b, stream, seen) = half_way_marked(seed);
        no_harm(&b, &stream, &seen, long_seeds(400, 25_000));
    }
}

#[test]
fn what_clears_is_refused_where_nobody_said_so_or_nothing_is_there() {
    let (_a, b, stream, seen) = half_way_marked(4);
    let mut unsaid = stream.clone();
    unsaid[0] = Frame::Start(Start { flags: 0, name: "tank".into() });
    receive(&b.pool, "tank/r", &encode(&unsaid), ReceiveAs::Next).unwrap_err();
    let mut whole = stream.clone();
    let Frame::Begin(begin) = &mut whole[1] else { panic!("no snapshot") };
    begin.from = 0;
    receive(&b.pool, "tank/other", &encode(&whole), ReceiveAs::Next).unwrap_err();
    let mut open = stream.clone();
    for frame in &mut open {
        if let Frame::Chunk(items) = frame {
            items.retain(|item| !matches!(item, Item::Keep(_)));
        }
    }
    receive(&b.pool, "tank/r", &encode(&open), ReceiveAs::Next).unwrap_err();
    receive(&b.pool, "tank/r", &encode(&stream), ReceiveAs::Next).unwrap();
    assert!(see(&b.pool, id(&b.pool, "tank/r"), "two") == seen[1]);
    check(&b);
}

#[cfg(feature = "mutants")]
#[test]
fn mutants_that_have_an_increment_say_too_little_are_found() {
    use larder_mutants::{Mutant, mutate};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    std::panic::set_hook(Box::new(|_| ()));
    let differs = |mutant, test: fn()| {
        mutate(Some(mutant));
        let outcome = catch_unwind(AssertUnwindSafe(test));
        mutate(None);
        outcome.is_err()
    };
    let replicas = || {
        for seed in 0..30 {
            let mut pair = Pair::new(seed);
            (0..9).for_each(|_| pair.round());
        }
    };
    let found = Mutant::OF_BOOKMARKS.map(|mutant| match mutant {
        Mutant::BookmarkKept => {
            differs(mutant, a_stream_that_is_taken_over_takes_bookmarks_behind_its_base_away)
        }
        Mutant::FenceGrows => differs(mutant, what_went_with_a_whole_leaf_of_the_tree_is_told),
        _ => differs(mutant, replicas),
    });
    drop(std::panic::take_hook());
    assert_eq!(found, [true; 3], "{:?}", Mutant::OF_BOOKMARKS);
}

#[test]
fn a_stream_goes_on_from_within_what_it_clears() {
    let (a, b) = (source(KINDS[0]), target());
    for at in 0..2000 {
        let node = a.file(ROOT, &format!("file{at}"));
        a.mount.setxattr(node, b"user.x", &[7; 60], XattrMode::Set).unwrap();
    }
    take(&a, "one");
    mark(&a, "one");
    receive(&b.pool, "tank/r", &sent(&a, None, "one"), ReceiveAs::Next).unwrap();
    for at in (20..1980).chain(1990..2000) {
        a.mount.unlink(ROOT, format!("file{at}").as_bytes()).unwrap();
    }
    a.pool.destroy_snapshot(ROOT_DATASET, "one").unwrap();
    take(&a, "two");
    let stream = sent_from(&a, "one", "two", None);
    // All up to the files that stay behind the many that go, and then what cannot be.
    let items =
        stream.iter().filter_map(|frame| if let Frame::Chunk(items) = frame { Some(items) } else { None });
    let items: Vec<_> = items.flatten().cloned().collect();
    let widest = items.windows(2).max_by_key(|two| match &two[0] {
        Item::Keep(_) => 0,
        _ if two[1].key() == Key::MAX => 0,
        _ => two[1].key().object - two[0].key().object,
    });
    let to = widest.expect("there are two items")[1].key();
    let mut bad = items.into_iter().take_while(|item| item.key() < to).collect::<Vec<_>>();
    bad.extend([Item::Keep(to), Item::Remove(Key::MAX)]);
    let frames = [stream[0].clone(), stream[1].clone(), Frame::Chunk(bad)];
    receive(&b.pool, "tank/r", &encode(&frames), ReceiveAs::Next).unwrap_err();
    let position = b.pool.received(id(&b.pool, "tank/r")).and_then(|found| found.position).unwrap();
    assert!(position < to && position.object > 40, "it broke off within: {position:?}");
    let rest = sent_from(&a, "one", "two", Some(position));
    receive(&b.pool, "tank/r", &encode(&rest), ReceiveAs::Next).unwrap();
    assert!(see(&b.pool, id(&b.pool, "tank/r"), "two") == see(&a.pool, ROOT_DATASET, "two"));
    check(&b);
}
