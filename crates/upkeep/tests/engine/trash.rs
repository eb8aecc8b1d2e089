//! Destroyed snapshots and datasets stay in the trash, come back as they were, and leave nothing behind when they are
//! let go of; whatever is cut short: beside a model of them.

use crate::common::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::trash::TrashKey;
use larder_format::{BlockId, ByteLen, DatasetId, Timestamp};
use larder_pool::{Dataset, ImportOptions, PoolError, ROOT_DATASET};
use larder_sim::{SimClock, SimWorld, Survival};
use larder_upkeep::gc::Outcome;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A snapshot: name, contents, and whether it is in the trash.
type Taken = (String, Model, bool);

/// A dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Set {
    name: String,
    head: Model,
    snapshots: BTreeMap<BlockId, Taken>,
    is_trash: bool,
}

type State = BTreeMap<DatasetId, Set>;

fn trees(pool: &Kept) -> Vec<(Arc<Dataset>, Option<String>)> {
    let trash: BTreeMap<_, _> = pool.trash().into_iter().map(|one| (one.key, one.name)).collect();
    let named = pool.datasets().into_iter().map(|dataset| (dataset, None));
    let kept = pool.trees().into_iter().filter_map(|dataset| {
        let name = trash.get(&TrashKey::Dataset(dataset.id()))?.clone();
        Some((dataset, Some(name)))
    });
    named.chain(kept).collect()
}

fn state_of(pool: &Kept) -> State {
    let trash: Vec<_> = pool.trash().into_iter().map(|one| one.key).collect();
    let set = |(dataset, kept): (Arc<Dataset>, Option<String>)| {
        let id = dataset.id();
        let visible = pool.snapshots(id).into_iter().map(|one| (one, false));
        let hidden = pool.hidden_snapshots(id).into_iter().map(|one| (one, true));
        let all = visible.chain(hidden.filter(|(one, _)| trash.contains(&TrashKey::Snapshot(one.high))));
        let snapshots = all.map(|(one, is_trash)| {
            let view = pool.snapshot_view_of(id, one.high).unwrap();
            (one.high, (one.name, versions(&view, pool), is_trash))
        });
        let is_trash = kept.is_some();
        let name = kept.unwrap_or_else(|| pool.full_name(id));
        let snapshots = snapshots.collect();
        (id, Set { name, head: versions(&dataset.view().unwrap(), pool), snapshots, is_trash })
    };
    trees(pool).into_iter().map(set).collect()
}

const UNTIL: Timestamp = Timestamp { secs: 4_000_000_000, nanos: 0 };

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
        run.now = state_of(&run.pool);
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

    fn write(&mut self, of: DatasetId) {
        let version = 2 + self.next(1 << 20);
        let count = [1, 5, 40][self.next(3) as usize];
        let files: Vec<_> =
            (0..count).map(|_| (10 + self.next(200), version, 20 + self.next(900) as usize)).collect();
        put(&self.pool, &self.pool.dataset(of).unwrap(), &files);
        let set = self.now.get_mut(&of).unwrap();
        set.head.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
    }

    fn snapshot(&mut self, of: DatasetId) {
        let name = ["a", "b", "c", "d"][self.next(4) as usize].to_owned();
        self.durably(|run| match run.pool.snapshot(of, &name) {
            Ok(taken) => {
                let set = run.now.get_mut(&of).unwrap();
                let model = set.head.clone();
                set.snapshots.insert(taken.high, (name, model, false));
            }
            Err(error) => assert!(matches!(error, PoolError::Exists(_)), "{error}"),
        });
    }

    fn destroy_snapshots(&mut self, of: DatasetId) {
        let set = &self.now[&of];
        let visible: Vec<_> = set.snapshots.iter().filter(|(_, one)| !one.2).collect();
        let odds = 1 + self.next(3);
        let going: Vec<_> = visible
            .iter()
            .filter(|_| self.next(odds) == 0)
            .map(|(high, one)| (**high, one.0.clone()))
            .collect();
        let names: Vec<_> = going.iter().map(|(_, name)| (of, name.clone())).collect();
        let for_good = self.next(4) == 0;
        match for_good {
            true => self.pool.destroy_snapshots(&names).unwrap(),
            false => self.pool.trash_snapshots(&names, UNTIL).unwrap(),
        }
        let snapshots = &mut self.now.get_mut(&of).unwrap().snapshots;
        for (high, _) in going {
            match for_good {
                true => drop(snapshots.remove(&high)),
                false => snapshots.get_mut(&high).unwrap().2 = true,
            }
        }
    }

    fn restore_snapshot(&mut self) {
        let trash = self.now.iter().flat_map(|(id, set)| {
            let all = set.snapshots.iter().filter(|(_, one)| one.2);
            all.map(|(high, one)| (*id, *high, one.0.clone())).collect::<Vec<_>>()
        });
        let Some((id, high, name)) = self.one(trash.collect()) else { return };
        let other = (self.next(2) == 0).then(|| self.name());
        let name = other.clone().unwrap_or(name);
        let restored = self.pool.restore_snapshot(high, other.as_deref());
        let set = self.now.get_mut(&id).unwrap();
        let is_taken = set.snapshots.values().any(|one| !one.2 && one.0 == name);
        match restored {
            Err(PoolError::Invalid(_)) => assert!(set.is_trash),
            Err(PoolError::Exists(_)) => assert!(is_taken),
            restored => {
                assert_eq!(restored.unwrap().name, name);
                assert!(!is_taken && !set.is_trash);
                let one = set.snapshots.get_mut(&high).unwrap();
                (one.0, one.2) = (name, false);
            }
        }
    }

    fn destroy_dataset(&mut self, of: DatasetId) {
        if of == ROOT_DATASET {
            assert!(matches!(self.pool.trash_dataset(of, UNTIL), Err(PoolError::Busy(_))));
            return;
        }
        self.pool.trash_dataset(of, UNTIL).unwrap();
        self.now.get_mut(&of).unwrap().is_trash = true;
        // Its name is free.
        if self.next(3) == 0 {
            let name = self.now[&of].name.clone();
            let new = self.pool.create_dataset(&name, BTreeMap::new()).unwrap().id();
            self.now.insert(new, Set { name, ..Set::default() });
        }
    }

    fn restore_dataset(&mut self) {
        let Some(id) = self.one(self.trashed()) else { return };
        let name = match self.next(2) {
            0 => self.now[&id].name.clone(),
            _ => format!("tank/{}", self.name()),
        };
        let is_taken = self.now.values().any(|set| !set.is_trash && set.name == name);
        match self.pool.restore_dataset(id, &name) {
            Err(error) => assert!(is_taken && matches!(error, PoolError::Exists(_)), "{error}"),
            Ok(_) => {
                assert!(!is_taken);
                let set = self.now.get_mut(&id).unwrap();
                (set.name, set.is_trash) = (name, false);
            }
        }
    }

    fn trashed(&self) -> Vec<DatasetId> {
        self.now.iter().filter(|(_, set)| set.is_trash).map(|(id, _)| *id).collect()
    }

    fn named(&self) -> DatasetId {
        let all = self.now.iter().filter(|(_, set)| !set.is_trash).map(|(id, _)| *id);
        self.one(all.collect()).unwrap()
    }

    /// Something is let go of: all of it, though its snapshots, which clones need, stay without a name.
    fn let_go(&mut self) {
        let Some(gone) = self.one(self.pool.trash()) else { return };
        self.durably(|run| {
            // A cut in between leaves it marked as going: what is no state of the model.
            run.committed.clear();
            run.pool.let_go(gone.key).unwrap();
            run.forget(gone.key);
        });
        let old = self.committed.len() - 1;
        self.committed.drain(..old);
    }

    fn forget(&mut self, key: TrashKey) {
        match key {
            TrashKey::Snapshot(high) => {
                self.now.values_mut().for_each(|set| drop(set.snapshots.remove(&high)));
            }
            TrashKey::Dataset(id) => drop(self.now.remove(&id)),
        }
    }

    fn clone(&mut self, of: DatasetId) {
        let visible: Vec<_> = self.now[&of].snapshots.iter().filter(|(_, one)| !one.2).collect();
        let Some((_, (snapshot, model, _))) = self.one(visible) else { return };
        let (snapshot, head) = (snapshot.clone(), model.clone());
        let name = format!("tank/{}", self.name());
        let clone = self.pool.clone_snapshot(of, &snapshot, &name, BTreeMap::new()).unwrap();
        self.now.insert(clone.id(), Set { name, head, ..Set::default() });
    }

    fn promote(&mut self, clone: DatasetId) {
        let Some(origin) = self.pool.origin(clone) else { return };
        self.durably(|run| match run.pool.promote(clone) {
            Err(error) => assert!(matches!(error, PoolError::Exists(_)), "{error}"),
            Ok(()) => {
                let Some(from) = run.now.get_mut(&origin.dataset) else { return };
                let newer = from.snapshots.split_off(&origin.high.next());
                let moved = std::mem::replace(&mut from.snapshots, newer);
                run.now.get_mut(&clone).unwrap().snapshots.extend(moved);
            }
        });
    }

    fn roll_back(&mut self, of: DatasetId) {
        let visible = self.now[&of].snapshots.iter().filter(|(_, one)| !one.2);
        let Some((high, (name, model, _))) = self.one(visible.collect()) else { return };
        let (high, name, model) = (*high, name.clone(), model.clone());
        let is_newer = |clone: &DatasetId| {
            self.pool.origin(*clone).is_some_and(|origin| origin.dataset == of && origin.high > high)
        };
        let clones: Vec<_> = self.trashed().into_iter().filter(is_newer).collect();
        self.durably(|run| match run.pool.rollback(of, &name, true) {
            Ok(()) => {
                // A cut in between leaves clones marked as going.
                if !clones.is_empty() {
                    run.committed.clear();
                }
                clones.iter().for_each(|clone| drop(run.now.remove(clone)));
                let set = run.now.get_mut(&of).unwrap();
                set.snapshots.split_off(&high.next());
                set.head = model;
            }
            // A newer snapshot has a clone with a name.
            Err(error) => assert!(matches!(error, PoolError::Busy(_)), "{error}"),
        });
    }

    fn step(&mut self) {
        let of = self.named();
        match self.next(24) {
            0..=3 => self.write(of),
            4..=7 => self.snapshot(of),
            8..=10 => self.destroy_snapshots(of),
            11..=12 => self.restore_snapshot(),
            13..=14 => self.destroy_dataset(of),
            15..=16 => self.restore_dataset(),
            17 => self.let_go(),
            18 => self.clone(of),
            19 => self.promote(of),
            20 => self.roll_back(of),
            21 => drop(self.pool.destroy_step(64).unwrap()),
            _ => self.commit(),
        }
    }

    /// The power fails at some event since the last commit but one began.
    fn cut(&mut self) {
        self.durably(|_| {});
        let trace = self.sim.trace();
        let first = self.committed[0].1;
        let at = first + self.next((trace.len() - first) as u64 + 1) as usize;
        let survival = Survival::Random { seed: self.next(1 << 40) };
        self.after(trace.crash_images(at, survival));
    }

    /// The same in the middle of things: what is there is one of the two.
    fn cut_anywhere(&mut self) {
        let trace = self.sim.trace();
        let first = self.committed[0].1;
        let at = first + self.next((trace.len() - first) as u64 + 1) as usize;
        let survival = Survival::Random { seed: self.next(1 << 40) };
        self.after(trace.crash_images(at, survival));
    }

    fn after(&mut self, images: Vec<larder_sim::DeviceImage>) {
        self.sim = SimWorld::from_images(images);
        self.imports += 1;
        self.pool = import(&self.sim, self.imports).unwrap();
        self.pool.replayed();
        let found = state_of(&self.pool);
        assert!(
            self.committed.iter().any(|(_, _, state)| *state == found),
            "{found:#?}\n{:#?}",
            self.committed
        );
        self.now = found;
        self.committed.clear();
        self.commit();
        assert_whole(&self.pool, "after a cut");
    }

    /// Nothing is left that nobody refers to, with what is in the trash and without.
    fn assert_exact(&mut self) {
        for _ in 0..2 {
            settle(&self.pool);
            assert_eq!(state_of(&self.pool), self.now);
            assert_whole(&self.pool, "settled");
            assert!(self.pool.upkeep.gc.start().unwrap());
            while self.pool.upkeep.gc.step(64).unwrap() {}
            let found = self.pool.upkeep.gc.findings().unwrap();
            assert_eq!(found.outcome, Outcome::Done);
            assert_eq!((found.missing, found.lost, found.unreachable.blocks), (0, 0, 0), "{found:?}");
            while let Some(one) = self.pool.trash().pop() {
                self.pool.let_go(one.key).unwrap();
                self.forget(one.key);
            }
        }
        assert_eq!((self.pool.trash().len(), self.pool.destroyed().len()), (0, 0));
    }
}

fn settle(pool: &Kept) {
    for round in 0.. {
        assert!(round < 100, "{} trees stay", pool.remaining());
        while pool.destroy_step(64).unwrap() {}
        pool.commit().unwrap();
        while pool.free_step(64).unwrap() {}
        pool.commit().unwrap();
        if pool.remaining() == 0 && !pool.freeing().has_queued() {
            break;
        }
    }
}

#[test]
fn what_is_in_the_trash_comes_back_whatever_is_cut_and_leaves_nothing_when_it_goes() {
    let count = repeats(30, 300);
    for seed in 0..count {
        let mut run = Run::new(seed);
        for round in 0..3 {
            (0..25).for_each(|_| run.step());
            assert_eq!(state_of(&run.pool), run.now, "seed {seed}");
            match round {
                0 => run.cut(),
                _ => run.cut_anywhere(),
            }
        }
        run.assert_exact();
    }
}

#[test]
fn the_trash_goes_when_its_time_is_over_though_not_where_the_clock_jumps() {
    let clock = Arc::new(SimClock::new());
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create_by(&clock, sim.devices(), "single");
    let hour = Duration::from_secs(3600);
    let put_away = |name: &str| {
        pool.snapshot(ROOT_DATASET, name).unwrap();
        let now = pool.store().clock().now();
        let until = Timestamp { secs: now.secs + 24 * 3600, ..now };
        pool.trash_snapshots(&[(ROOT_DATASET, name.into())], until).unwrap();
    };
    put_away("a");
    assert!(!pool.trash_step().unwrap());
    for _ in 0..23 {
        clock.advance(hour);
        assert!(!pool.trash_step().unwrap());
    }
    put_away("b");
    clock.advance(hour + Duration::from_secs(1));
    assert!(pool.trash_step().unwrap());
    assert_eq!(pool.trash().len(), 1, "that of later stays");
    // Ten years at once: there is an hour to set it right.
    let now = pool.store().clock().now();
    clock.set_wall(Timestamp { secs: now.secs + 10 * 365 * 86_400, ..now });
    for _ in 0..3 {
        assert!(!pool.trash_step().unwrap());
        clock.advance(hour / 4);
    }
    clock.set_wall(pool.store().clock().now());
    clock.set_wall(now);
    assert!(!pool.trash_step().unwrap());
    clock.set_wall(Timestamp { secs: now.secs + 10 * 365 * 86_400, ..now });
    assert!(!pool.trash_step().unwrap());
    clock.advance(hour + Duration::from_secs(1));
    assert!(pool.trash_step().unwrap());
    assert_eq!(pool.trash().len(), 0);
}

#[test]
fn the_trash_goes_oldest_first_where_its_space_is_needed_and_counts_as_available() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    const RECORD: u32 = 128 << 10;
    let sets = ["tank/a", "tank/b", "tank/c"];
    for (version, name) in (2..).zip(sets) {
        let dataset = pool.create_dataset(name, BTreeMap::new()).unwrap();
        let files: Vec<_> = (0..80).map(|inode| (10 + inode, version, 100_000)).collect();
        for some in files.chunks(20) {
            put(&pool, &dataset, some);
            pool.commit().unwrap();
        }
    }
    let root = pool.dataset(ROOT_DATASET).unwrap();
    let before = pool.space_of(&root).available;
    let used = pool.share(ROOT_DATASET).used;
    for name in sets {
        pool.trash_dataset(pool.dataset_by_name(name).unwrap().id(), UNTIL).unwrap();
    }
    pool.commit().unwrap();
    settle(&pool);
    assert!(!pool.trash_step().unwrap(), "there is room");
    let (bytes, own) = (pool.trash_bytes(), pool.share(ROOT_DATASET).used);
    assert!(bytes > 3 * 80 * 60_000 && own < used / 100, "{bytes} {own} of {used}");
    let available = pool.space_of(&root).available;
    assert!(available >= before + bytes * 9 / 10, "{available} {before} {bytes}");

    let left = |pool: &Kept| pool.trash().into_iter().map(|one| one.name).collect::<Vec<_>>();
    let free = pool.store().space(RECORD).available;
    pool.check_space(free - (1 << 20), RECORD).unwrap();
    assert_eq!(left(&pool), sets, "nobody needs it");
    pool.check_space(free + (2 << 20), RECORD).unwrap();
    assert_eq!(left(&pool), &sets[1..]);
    let refused = pool.check_space(1 << 30, RECORD).unwrap_err();
    assert!(matches!(refused, PoolError::NoSpace), "{refused}");
    assert_eq!(left(&pool), &sets[1..], "all of it would not be enough");
    settle(&pool);
    assert!(!pool.trash_step().unwrap());
    let all = pool.store().space(RECORD).available + pool.trash_bytes() * 8 / 10;
    pool.check_space(all, RECORD).unwrap();
    assert_eq!(left(&pool), [""; 0]);
    assert_whole(&pool, "afterwards");
}

#[test]
fn what_is_looked_into_or_held_is_not_put_away_and_a_quota_holds_for_what_comes_back() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let dataset = pool.create_dataset("tank/a", BTreeMap::new()).unwrap();
    put(&pool, &dataset, &[(10, 2, 100_000)]);
    let (id, one) = (dataset.id(), (dataset.id(), "one".to_owned()));
    pool.snapshot(id, "one").unwrap();
    let is_busy = |result: Result<(), PoolError>| matches!(result, Err(PoolError::Busy(_)));
    let all_busy = || {
        is_busy(pool.trash_dataset(id, UNTIL))
            && is_busy(pool.trash_snapshots(std::slice::from_ref(&one), UNTIL))
    };
    let view = pool.snapshot_view(id, "one").unwrap();
    assert!(all_busy());
    drop(view);
    pool.hold_snapshots(std::slice::from_ref(&one), "kept").unwrap();
    assert!(all_busy());
    pool.release_snapshots(std::slice::from_ref(&one), "kept").unwrap();
    let child = pool.create_dataset("tank/a/child", BTreeMap::new()).unwrap().id();
    assert!(is_busy(pool.trash_dataset(id, UNTIL)));
    pool.trash_dataset(child, UNTIL).unwrap();
    pool.trash_dataset(id, UNTIL).unwrap();
    assert!(pool.datasets().len() == 1 && pool.dataset_by_name("tank/a").is_err());
    pool.create_dataset("tank/q", BTreeMap::from([("quota".to_owned(), "20000".to_owned())])).unwrap();
    let over = pool.restore_dataset(id, "tank/q/a").err().expect("a refusal");
    assert!(matches!(&over, PoolError::Invalid(why) if why.contains("quota")), "{over}");
    pool.restore_dataset(id, "tank/a").unwrap();
    pool.restore_dataset(child, "tank/a/child").unwrap();
    assert_eq!(pool.full_name(child), "tank/a/child");
    assert_eq!(pool.snapshots(id).len(), 1);
    pool.commit().unwrap();
    assert_whole(&pool, "afterwards");
}

#[test]
fn a_dataset_that_is_let_go_of_goes_on_going_after_any_cut_or_is_still_there_whole() {
    let every = if std::env::var("LARDER_FULL").is_ok() { 1 } else { 5 };
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let dataset = pool.create_dataset("tank/a", BTreeMap::new()).unwrap();
    let id = dataset.id();
    for (version, name) in (2..).zip(["one", "two", "three"]) {
        put(&pool, &dataset, &[(10, version, 900), (10 + version, version, 2000)]);
        pool.snapshot(id, name).unwrap();
    }
    drop(dataset);
    let clone = pool.clone_snapshot(id, "two", "tank/clone", BTreeMap::new()).unwrap();
    put(&pool, &clone, &[(20, 9, 700)]);
    let clone = clone.id();
    pool.trash_snapshots(&[(id, "one".into())], UNTIL).unwrap();
    pool.trash_dataset(id, UNTIL).unwrap();
    settle(&pool);
    let before = state_of(&pool);
    let first = sim.trace().len();
    pool.let_go(TrashKey::Dataset(id)).unwrap();
    settle(&pool);
    let after = state_of(&pool);
    assert_eq!(after, BTreeMap::from([ROOT_DATASET, clone].map(|id| (id, before[&id].clone()))));
    drop(pool);
    let trace = sim.trace();
    let (mut whole, mut gone) = (0, 0);
    for at in (first..=trace.len()).step_by(every) {
        let sim = SimWorld::from_images(trace.crash_images(at, Survival::Random { seed: at as u64 }));
        let pool = import(&sim, 2).unwrap();
        pool.replayed();
        assert_whole(&pool, "after a cut");
        let is_there = pool.trash().iter().any(|one| one.key == TrashKey::Dataset(id));
        // By itself goes on what had begun, and nothing else.
        while pool.trash_step().unwrap() {}
        settle(&pool);
        let found = state_of(&pool);
        let expected = if is_there { &before } else { &after };
        assert_eq!(found, *expected, "cut at {at}");
        *(if is_there { &mut whole } else { &mut gone }) += 1;
        assert_whole(&pool, "settled");
        assert!(pool.upkeep.gc.start().unwrap());
        while pool.upkeep.gc.step(64).unwrap() {}
        let found = pool.upkeep.gc.findings().unwrap();
        assert_eq!(
            (found.missing, found.lost, found.unreachable.blocks),
            (0, 0, 0),
            "cut at {at}: {found:?}"
        );
    }
    assert!(whole > 0 && gone > 0, "{whole} {gone}");
}

fn set(pool: &Kept, name: &str, properties: &[(&str, &str)], files: u64) -> DatasetId {
    let properties = properties.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let dataset = pool.create_dataset(name, properties.collect()).unwrap();
    for some in (0..files).collect::<Vec<_>>().chunks(20) {
        let some: Vec<_> = some.iter().map(|inode| (10 + inode, 2, 100_000)).collect();
        put(pool, &dataset, &some);
        pool.commit().unwrap();
    }
    dataset.id()
}

#[test]
fn a_dataset_comes_back_with_its_reservation_and_to_a_parent_that_is_full_itself() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let available = pool.store().space(128 << 10).available;
    let files = available * 6 / 10 / 110_000;
    let reserved = (available * 6 / 10).to_string();
    let kept = set(&pool, "tank/kept", &[("refreservation", &reserved)], files);
    pool.trash_dataset(kept, UNTIL).unwrap();
    pool.restore_dataset(kept, "tank/kept").unwrap();

    let full = set(&pool, "tank/full", &[("refquota", "40000"), ("refreservation", "30000")], 0);
    let child = set(&pool, "tank/full/child", &[], 2);
    pool.trash_dataset(child, UNTIL).unwrap();
    pool.restore_dataset(child, "tank/full/child").unwrap();
    pool.trash_dataset(child, UNTIL).unwrap();
    pool.set_property(full, "quota", "90000").unwrap();
    let over = pool.restore_dataset(child, "tank/full/child").err().expect("a refusal");
    assert!(matches!(&over, PoolError::Invalid(why) if why.contains("quota")), "{over}");
    pool.restore_dataset(child, "tank/elsewhere").unwrap();
    let used = pool.share(ROOT_DATASET).used;
    pool.trash_dataset(child, UNTIL).unwrap();
    pool.let_go(TrashKey::Dataset(child)).unwrap();
    assert!(pool.share(ROOT_DATASET).used < used);
    settle(&pool);
    assert_whole(&pool, "afterwards");
}

#[test]
fn a_dataset_that_lives_on_in_a_clone_is_not_given_up_for_space() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let old = set(&pool, "tank/old", &[], 80);
    pool.snapshot(old, "one").unwrap();
    let clone = pool.clone_snapshot(old, "one", "tank/clone", BTreeMap::new()).unwrap().id();
    let other = set(&pool, "tank/other", &[], 40);
    pool.trash_dataset(old, UNTIL).unwrap();
    pool.trash_dataset(other, UNTIL).unwrap();
    settle(&pool);
    assert_eq!(pool.space_of_trashed(TrashKey::Dataset(old)).unwrap(), 0);
    assert!(!pool.trash_step().unwrap());
    assert!(pool.trash_bytes() < 50 * 100_000, "{}", pool.trash_bytes());
    let free = pool.store().space(128 << 10).available;
    pool.check_space(free + (2 << 20), 128 << 10).unwrap();
    let left: Vec<_> = pool.trash().into_iter().map(|one| one.key).collect();
    assert_eq!(left, [TrashKey::Dataset(old)], "it would have brought nothing");
    let found = pool.restore_dataset(old, "tank/old").unwrap();
    assert_eq!(versions(&found.view().unwrap(), &pool).len(), 80);
    assert_eq!(pool.origin(clone).map(|of| of.dataset), Some(old));
    settle(&pool);
    assert_whole(&pool, "afterwards");
}

#[test]
fn snapshots_in_the_trash_that_hold_something_together_give_it_back_when_it_is_needed() {
    for cloned in [false, true] {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let pool = create(&sim, "single");
        let id = set(&pool, "tank/a", &[], 80);
        pool.snapshot(id, "one").unwrap();
        if cloned {
            let clone = pool.clone_snapshot(id, "one", "tank/clone", BTreeMap::new()).unwrap().id();
            pool.trash_dataset(clone, UNTIL).unwrap();
        }
        pool.snapshot(id, "two").unwrap();
        let all: Vec<_> = (10..90).collect();
        try_remove(&pool, &pool.dataset(id).unwrap(), &all).unwrap();
        pool.trash_snapshots(&[(id, "one".into()), (id, "two".into())], UNTIL).unwrap();
        settle(&pool);
        assert!(!pool.trash_step().unwrap());
        assert!(pool.trash_bytes() > 80 * 60_000, "{}", pool.trash_bytes());
        let free = pool.store().space(128 << 10).available;
        pool.check_space(free + (4 << 20), 128 << 10).unwrap();
        settle(&pool);
        assert_whole(&pool, "afterwards");
    }
}

#[test]
fn a_clone_in_the_trash_is_not_in_the_way_of_a_rollback() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let id = set(&pool, "tank/a", &[], 3);
    pool.snapshot(id, "one").unwrap();
    put(&pool, &pool.dataset(id).unwrap(), &[(50, 3, 100_000)]);
    pool.snapshot(id, "two").unwrap();
    let clone = pool.clone_snapshot(id, "two", "tank/clone", BTreeMap::new()).unwrap().id();
    pool.trash_dataset(clone, UNTIL).unwrap();
    let busy = |result: Result<(), PoolError>| matches!(result, Err(PoolError::Busy(_)));
    assert!(busy(pool.rollback(id, "one", false)));
    assert_eq!(pool.trash().len(), 1, "it was refused");
    pool.rollback(id, "one", true).unwrap();
    assert_eq!(pool.trash(), []);
    settle(&pool);
    assert_whole(&pool, "afterwards");
}

#[test]
fn a_rollback_that_is_refused_leaves_the_trash_alone() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let id = set(&pool, "tank/a", &[], 3);
    for name in ["one", "two", "three"] {
        pool.snapshot(id, name).unwrap();
    }
    pool.trash_snapshots(&[(id, "two".into())], UNTIL).unwrap();
    pool.hold_snapshots(&[(id, "three".into())], "kept").unwrap();
    let refused = pool.rollback(id, "one", true).unwrap_err();
    assert!(refused.to_string().contains("tank/a@three is held by kept"), "{refused}");
    assert_eq!(pool.trash().len(), 1);
    pool.release_snapshots(&[(id, "three".into())], "kept").unwrap();
    pool.rollback(id, "one", true).unwrap();
    assert_eq!(pool.trash(), []);
    settle(&pool);
    assert_whole(&pool, "afterwards");
}

#[test]
fn the_trash_of_a_pool_with_a_new_name_has_that() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let id = set(&pool, "tank/a", &[], 1);
    pool.snapshot(id, "one").unwrap();
    pool.snapshot(id, "two").unwrap();
    pool.trash_snapshots(&[(id, "one".into())], UNTIL).unwrap();
    pool.trash_dataset(id, UNTIL).unwrap();
    pool.commit_export().unwrap();
    drop(pool);
    let options = ImportOptions { rename: Some("rescue".into()), ..ImportOptions::default() };
    let pool = Kept::import(world(3), plan(sim.devices()), &options).unwrap();
    let names: Vec<_> = pool.trash().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["rescue/a@one", "rescue/a"]);
    pool.restore_dataset(id, "rescue/a").unwrap();
}
