//! Increments from bookmarks, whose snapshots are gone: the replica is what the snapshot is, whatever came between.

use super::*;
use larder_format::bookmark::BookmarkRecord;
use larder_pool::{BookmarkSource, ROOT_DATASET};
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
            // What was written before is found again, where records are sought by content.
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
                let mut files: Vec<_> = files.into_iter().map(|(dir, name, node)| (node, dir, name)).collect();
                files.sort_by_key(|(node, ..)| *node);
                for (_, dir, name) in files.into_iter().skip(from).take(next(200) as usize) {
                    bed.mount.unlink(dir, name.as_bytes()).unwrap();
                }
            }
            11 => drop(settle(bed)),
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
    for seed in 0..seeds(9, 300) {
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
