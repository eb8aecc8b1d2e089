//! Bookmarks come, stay and go with their datasets, whatever is cut short: beside a model of them.

mod common;

use common::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::bookmark::BookmarkRecord;
use larder_format::{ByteLen, DatasetId};
use larder_pool::{BookmarkSource, Pool, PoolError, ROOT_DATASET};
use larder_sim::{SimWorld, Survival};
use std::collections::BTreeMap;

/// Bookmarks of all datasets.
type State = BTreeMap<(DatasetId, String), BookmarkRecord>;

fn state_of(pool: &Pool) -> State {
    let of = |dataset: DatasetId| {
        let all = pool.bookmarks(dataset);
        assert!(all.is_sorted_by_key(|record| record.high));
        all.into_iter().map(move |record| ((dataset, record.name.clone()), record))
    };
    pool.datasets().iter().flat_map(|dataset| of(dataset.id())).collect()
}

struct Run {
    sim: SimWorld,
    pool: Kept,
    entropy: SeededEntropy,
    now: State,
    /// As the last two commits left it, with the number of events before and after them.
    committed: Vec<(usize, usize, State)>,
    names: u64,
    imports: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let pool = create(&sim, "single");
        let entropy = SeededEntropy::new(seed.wrapping_mul(0x9e37_79b9) + 1);
        let mut run =
            Self { sim, pool, entropy, now: State::new(), committed: Vec::new(), names: 0, imports: 1 };
        run.pool.create_dataset("tank/first", BTreeMap::new()).unwrap();
        run.commit();
        run
    }

    fn next(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn one<T>(&self, mut all: Vec<T>) -> Option<T> {
        (!all.is_empty()).then(|| all.swap_remove(self.next(all.len() as u64) as usize))
    }

    fn dataset(&self) -> DatasetId {
        self.one(self.pool.datasets()).unwrap().id()
    }

    fn noted(&mut self, before: usize) {
        self.committed.push((before, self.sim.trace().len(), self.now.clone()));
        let old = self.committed.len().saturating_sub(2);
        self.committed.drain(..old);
    }

    fn commit(&mut self) {
        let before = self.sim.trace().len();
        self.pool.commit().unwrap();
        self.noted(before);
    }

    /// A change with commits before and after: nothing else is on the way then.
    fn durably(&mut self, change: impl FnOnce(&mut Self)) {
        self.commit();
        let before = self.sim.trace().len();
        change(self);
        self.pool.commit().unwrap();
        self.noted(before);
    }

    fn mark(&mut self, of: DatasetId) {
        let name = ["a", "b", "c", "d", "e", "f"][self.next(6) as usize].to_owned();
        let snapshot = self.one(self.pool.snapshots(of));
        let other = self.one(self.pool.bookmarks(of));
        let (from, record) = match (&snapshot, &other) {
            (_, Some(other)) if self.next(3) == 0 => (BookmarkSource::Bookmark(&other.name), other.clone()),
            (Some(snapshot), _) => {
                let (guid, high, commit) = (snapshot.guid, snapshot.high, snapshot.commit);
                let (created, name) = (snapshot.created, name.clone());
                let record = BookmarkRecord { guid, high, created, commit, name };
                (BookmarkSource::Snapshot(&snapshot.name), record)
            }
            _ => return,
        };
        let made = self.pool.make_bookmark(of, from, &name);
        let key = (of, name.clone());
        if self.now.contains_key(&key) {
            assert!(matches!(made, Err(PoolError::Exists(_))), "{made:?}");
        } else {
            assert_eq!(made.unwrap(), BookmarkRecord { name, ..record.clone() });
            self.now.insert(key.clone(), BookmarkRecord { name: key.1, ..record });
        }
    }

    fn roll_back(&mut self, of: DatasetId) {
        let Some(to) = self.one(self.pool.snapshots(of)) else { return };
        let is_newer =
            |key: &(DatasetId, String), record: &BookmarkRecord| key.0 == of && record.high > to.high;
        let newer = self.now.iter().any(|(key, record)| is_newer(key, record));
        if newer {
            let refused = self.pool.rollback(of, &to.name, false);
            assert!(matches!(refused, Err(PoolError::Busy(_))), "{refused:?}");
        }
        self.durably(|run| match run.pool.rollback(of, &to.name, true) {
            Ok(()) => run.now.retain(|key, record| !is_newer(key, record)),
            // A newer snapshot has a clone.
            refused => assert!(matches!(refused, Err(PoolError::Busy(_))), "{refused:?}"),
        });
    }

    fn branch(&mut self, of: DatasetId) {
        let Some(to) = self.one(self.pool.snapshots(of)) else { return };
        let name = format!("tank/{}", self.name());
        self.durably(|run| {
            run.pool.branch(of, &to.name, &name, &BTreeMap::new()).unwrap();
            let branch = run.pool.dataset_by_name(&name).unwrap().id();
            let was = std::mem::take(&mut run.now);
            run.now = was
                .into_iter()
                .map(|(key, record)| match key.0 == of && record.high > to.high {
                    true => ((branch, key.1), record),
                    false => (key, record),
                })
                .collect();
        });
    }

    fn clone(&mut self, of: DatasetId) {
        let Some(snapshot) = self.one(self.pool.snapshots(of)) else { return };
        let name = format!("tank/{}", self.name());
        let clone = self.pool.clone_snapshot(of, &snapshot.name, &name, BTreeMap::new()).unwrap();
        if self.next(2) == 0 {
            self.durably(|run| run.pool.promote(clone.id()).unwrap());
        }
    }

    fn destroy(&mut self, of: DatasetId) {
        if of == ROOT_DATASET || self.pool.datasets().len() < 3 {
            return;
        }
        self.durably(|run| {
            let all = run.pool.snapshots(of).into_iter().map(|one| (of, one.name)).collect::<Vec<_>>();
            run.pool.destroy_snapshots(&all).unwrap();
            run.pool.commit().unwrap();
            run.pool.destroy_dataset(of).unwrap();
            run.now.retain(|key, _| key.0 != of);
        });
    }

    fn step(&mut self) {
        let of = self.dataset();
        match self.next(16) {
            0..4 => {
                let name = self.name();
                self.durably(|run| drop(run.pool.snapshot(of, &name).unwrap()));
            }
            4..8 => self.mark(of),
            8 => {
                if let Some((dataset, name)) = self.one(self.now.keys().cloned().collect()) {
                    self.pool.destroy_bookmark(dataset, &name).unwrap();
                    self.now.remove(&(dataset, name));
                }
            }
            9 => {
                if let Some(one) = self.one(self.pool.snapshots(of)) {
                    self.pool.destroy_snapshot(of, &one.name).unwrap();
                }
            }
            10 => self.roll_back(of),
            11 => self.branch(of),
            12 => self.clone(of),
            13 => self.destroy(of),
            _ => self.commit(),
        }
        assert_eq!(state_of(&self.pool), self.now);
    }

    /// The power fails at some event since the last commit but one began.
    fn cut(&mut self) {
        let trace = self.sim.trace();
        let first = self.committed[0].1;
        let at = first + self.next((trace.len() - first) as u64 + 1) as usize;
        let survival = Survival::Random { seed: self.next(1 << 40) };
        self.sim = SimWorld::from_images(trace.crash_images(at, survival));
        self.imports += 1;
        self.pool = import(&self.sim, self.imports).unwrap();
        self.pool.replayed();
        let found = state_of(&self.pool);
        let newest = self.committed.last().expect("there was one");
        let can_be = |(before, after, state): &(usize, usize, State)| {
            let in_time = if *after == newest.1 { at > *before } else { at < newest.1 };
            in_time && *state == found
        };
        assert!(self.committed.iter().any(can_be), "cut at {at}: {found:?}\n{:?}", self.committed);
        self.now = found;
        self.committed.clear();
        self.commit();
        assert_whole(&self.pool, "after a cut");
    }
}

#[test]
fn bookmarks_stay_with_their_datasets_whatever_is_cut() {
    let count = if std::env::var("LARDER_FULL").is_ok() { 200 } else { 25 };
    for seed in 0..count {
        let mut run = Run::new(seed);
        for _ in 0..3 {
            (0..20).for_each(|_| run.step());
            run.cut();
        }
    }
}

#[test]
fn a_bookmark_keeps_what_names_its_snapshot_and_outlives_it() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let snapshot = pool.snapshot(ROOT_DATASET, "monday").unwrap();
    let mark = pool.make_bookmark(ROOT_DATASET, BookmarkSource::Snapshot("monday"), "mark").unwrap();
    pool.destroy_snapshot(ROOT_DATASET, "monday").unwrap();
    pool.commit().unwrap();
    drop(pool);
    let pool = open(&SimWorld::from_images(sim.images()), 2);
    assert_eq!(pool.bookmarks(ROOT_DATASET), std::slice::from_ref(&mark));
    assert_eq!(
        (mark.guid, mark.high, mark.created, mark.commit),
        (snapshot.guid, snapshot.high, snapshot.created, snapshot.commit)
    );
    for bad in ["", "a/b", "a\nb"] {
        let made = pool.make_bookmark(ROOT_DATASET, BookmarkSource::Bookmark("mark"), bad);
        assert!(matches!(made, Err(PoolError::Invalid(_))), "{bad:?}");
    }
    for from in [BookmarkSource::Bookmark("none"), BookmarkSource::Snapshot("monday")] {
        assert!(matches!(pool.make_bookmark(ROOT_DATASET, from, "new"), Err(PoolError::NotFound(_))));
    }
    assert!(matches!(pool.destroy_bookmark(ROOT_DATASET, "none"), Err(PoolError::NotFound(_))));
}
