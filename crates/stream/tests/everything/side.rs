//! A pool at work: what it is asked to do, what it must hold after each change, and what a power cut may leave.
//!
//! # History
//! Each change of the pool is a *moment*: marks in the trace of the devices say when it began, and when something was
//! promised to be durable. A cut must leave a moment that had begun, none older than the last promise. Most changes are
//! in one commit whole or not at all; of others, which take several, a cut may leave part.

use super::model::{At, Set, Shown, State, Taken};
use super::tree;
use larder_device::{Entropy, Inline, SeededEntropy};
use larder_files::{FsError, Mount};
use larder_format::trash::TrashKey;
use larder_format::{BlockId, ByteLen, DatasetId, HostId};
use larder_pool::create::rule_for;
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::{
    Dataset, GroupSpec, ImportOptions, Limits, Pool, PoolError, PoolSpec, ROOT_DATASET, World,
};
use larder_sim::{CrashSweep, Event, SimClock, SimWorld, Survival, Trace};
use larder_upkeep::{ScrubSince, Upkeep};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The mark of policies.
pub const PERIOD: &str = "larder:period";
/// Marks of the trace: a moment began, or was promised; below it is its number.
const BEGAN: u64 = 1 << 40;
const PROMISED: u64 = 1 << 41;

/// State that a cut within a change may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// All of it, or nothing.
    Whole,
    /// Datasets and snapshots that it concerns are as before, as after, or some of each.
    Parts,
    /// The same of files.
    Files,
    /// Files were synced that tables which no commit has as yet concern: heads are as any moment since had them.
    Log,
}

struct Moment {
    state: State,
    change: Change,
    told: String,
}

/// Random choices by a seed.
pub struct Dice(SeededEntropy);

impl Dice {
    pub fn new(seed: u64) -> Self {
        // Streams of seeds that follow one another must not be one that begins a little later.
        Self(SeededEntropy::new(SeededEntropy::new(seed).next_u64()))
    }

    pub fn below(&self, n: u64) -> u64 {
        self.0.next_u64() % n.max(1)
    }

    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn one<T>(&self, all: impl IntoIterator<Item = T>) -> Option<T> {
        let mut all: Vec<T> = all.into_iter().collect();
        (!all.is_empty()).then(|| all.swap_remove(self.below(all.len() as u64) as usize))
    }

    pub fn survival(&self) -> Survival {
        match self.below(4) {
            0 => Survival::DropAll,
            1 => Survival::KeepAll,
            _ => Survival::Random { seed: self.below(1 << 40) },
        }
    }
}

pub struct Side {
    pub label: char,
    pub sim: SimWorld,
    pub clock: Arc<SimClock>,
    running: Option<Running>,
    pub now: State,
    moments: Vec<Moment>,
    /// Changes of tables that no commit has as yet.
    has_uncommitted: bool,
    /// Space may run short: what is in the trash may go at any time.
    pub is_short: bool,
    /// Several references to one block may be: what they free is left to GC.
    pub shares: bool,
    /// Datasets may ask for several places of their blocks.
    pub has_copies: bool,
    /// A stream is on its way in, which may be in the way of anything.
    pub is_receiving: bool,
    tells: bool,
    imports: u64,
    names: u64,
}

struct Running {
    pool: Arc<Pool>,
    upkeep: Arc<Upkeep>,
    mount: Arc<Mount>,
}

fn world(clock: &Arc<SimClock>, seed: u64) -> World {
    World {
        clock: Arc::clone(clock) as _,
        entropy: Arc::new(SeededEntropy::new(seed)),
        workers: Arc::new(Inline),
        host: HostId::new(1),
        host_name: "sim".into(),
    }
}

impl Running {
    /// Contents of the pool now; contents of trees of which `known` has some are taken from there. Heads are read
    /// through the mount where they are shown.
    fn observe(&self, known: Option<&State>) -> Result<State, String> {
        let pool = &self.pool;
        let trash: BTreeMap<_, _> = pool.trash().into_iter().map(|one| (one.key, one.name)).collect();
        let named = pool.datasets().into_iter().filter(|one| !one.is_staging());
        let named = named.map(|dataset| (pool.full_name(dataset.id()), dataset, false));
        let kept = pool.trees().into_iter().filter_map(|dataset| {
            Some((trash.get(&TrashKey::Dataset(dataset.id()))?.clone(), dataset, true))
        });
        let mut state = State::default();
        for (name, dataset, is_trash) in named.chain(kept) {
            state.add(dataset.id(), self.observe_set(name, &dataset, is_trash, &trash, known)?);
        }
        Ok(state)
    }

    fn observe_set(
        &self,
        name: String,
        dataset: &Arc<Dataset>,
        is_trash: bool,
        trash: &BTreeMap<TrashKey, String>,
        known: Option<&State>,
    ) -> Result<Set, String> {
        let (pool, id) = (&self.pool, dataset.id());
        let head = match known.and_then(|known| known.0.get(&id)) {
            Some(known) => Arc::clone(&known.head),
            None if self.mount.volume(id).is_some() => {
                Arc::new(tree::of_mount(&self.mount, id).map_err(|error| format!("{name}: {error}"))?)
            }
            None => {
                let view = dataset.view().map_err(|error| error.to_string())?;
                Arc::new(tree::of_view(pool, &view).map_err(|error| format!("{name}: {error}"))?)
            }
        };
        let visible = pool.snapshots(id).into_iter().map(|one| (one, Shown::Named));
        let hidden = pool.hidden_snapshots(id).into_iter().map(|one| {
            let is_trash = trash.contains_key(&TrashKey::Snapshot(one.high));
            (one, if is_trash { Shown::Trash } else { Shown::Hidden })
        });
        let mut snapshots = BTreeMap::new();
        for (record, shown) in visible.chain(hidden) {
            let tree = match known.and_then(|known| known.snapshot(record.high)) {
                Some((_, known)) => Arc::clone(&known.tree),
                None => {
                    let view =
                        pool.snapshot_view_of(id, record.high).ok_or("a snapshot that is not there")?;
                    let tree = tree::of_view(pool, &view);
                    Arc::new(tree.map_err(|error| format!("{name}@{}: {error}", record.name))?)
                }
            };
            let holds = pool.snapshot_holds(&record).map_err(|error| error.to_string())?;
            let properties = pool.snapshot_properties(&record).map_err(|error| error.to_string())?;
            let taken = Taken {
                name: record.name.clone(),
                shown,
                guid: record.guid,
                holds: holds.into_keys().collect(),
                by_policy: properties.contains_key(PERIOD),
                tree,
            };
            snapshots.insert(record.high, taken);
        }
        let local = dataset.own_properties().local().clone();
        let limits = Limits::NAMES
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), local.get(name)?.parse().expect("a number of bytes"))));
        let bookmarks = pool.bookmarks(id).into_iter().map(|one| (one.name, (one.high, one.guid)));
        Ok(Set {
            name,
            is_trash,
            head,
            snapshots,
            bookmarks: bookmarks.collect(),
            origin: pool.origin(id).map(|origin| (origin.dataset, origin.high)),
            limits: limits.collect(),
        })
    }

    /// The pool of a world's devices, its log replayed, with nothing mounted.
    fn import(sim: &SimWorld, clock: &Arc<SimClock>, seed: u64) -> Result<Self, String> {
        let found = sim.devices().into_iter().filter_map(|device| match scan(&device) {
            Scan::Member(found) => Some(*found),
            _ => None,
        });
        let plan = assemble(found.collect()).pop().ok_or("no pool is there")?;
        let pool = Pool::import(world(clock, seed), plan, &ImportOptions::default())
            .map_err(|error| format!("import: {error}"))?;
        let mount = Mount::new(Arc::clone(&pool), (0, 0)).map_err(|error| format!("replay: {error}"))?;
        Ok(Self { upkeep: Upkeep::new(&pool), pool, mount })
    }

    /// The same, checked whole, with what it holds.
    fn open(sim: &SimWorld, clock: &Arc<SimClock>, seed: u64) -> Result<(Self, State), String> {
        let running = Self::import(sim, clock, seed)?;
        // Trash that had begun to be let go of goes.
        while running.pool.trash_step().map_err(|error| format!("trash: {error}"))? {}
        running.pool.commit().map_err(|error| format!("commit: {error}"))?;
        if running.pool.store().core.lock().has_copies() {
            // A place may have been spoiled, and healed later.
            let upkeep = &running.upkeep;
            let heal = || {
                // One that was under way may have been past it.
                while upkeep.scrub.step(1 << 20)? {}
                upkeep.scrub.start(ScrubSince::All)?;
                while upkeep.scrub.step(1 << 20)? {}
                while upkeep.read_repair.step()? > 0 || upkeep.damage.step(64)? {}
                running.pool.commit()
            };
            heal().map_err(|error| format!("scrub: {error}"))?;
        }
        let report = running.upkeep.check().map_err(|error| format!("check: {error}"))?;
        if !report.problems.is_empty() {
            return Err(format!("check: {}", report.problems.join("; ")));
        }
        let found = running.observe(None)?;
        Ok((running, found))
    }
}

impl Side {
    pub fn new(label: char, word: &str, count: usize, seed: u64, properties: &[(&str, &str)]) -> Self {
        let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
        let clock = Arc::new(SimClock::new());
        let groups = vec![GroupSpec::data(rule_for(word, count).unwrap(), sim.devices())];
        let spec = PoolSpec { name: "tank".into(), groups, ashift: 12 };
        let pool = Pool::create(world(&clock, seed), spec).unwrap();
        for (name, value) in properties {
            pool.set_property(ROOT_DATASET, name, value).unwrap();
        }
        pool.set_pool_property("memory", "2097152").unwrap();
        pool.commit().unwrap();
        let mount = Mount::new(Arc::clone(&pool), (0, 0)).unwrap();
        let running = Running { upkeep: Upkeep::new(&pool), pool, mount };
        let mut side = Self {
            label,
            sim,
            clock,
            running: Some(running),
            now: State::default(),
            moments: Vec::new(),
            has_uncommitted: false,
            is_short: false,
            shares: false,
            has_copies: false,
            is_receiving: false,
            tells: std::env::var_os("LARDER_TELL").is_some(),
            imports: seed << 16,
            names: 0,
        };
        side.now.add(ROOT_DATASET, Set { name: "tank".into(), ..Set::default() });
        side.attach(ROOT_DATASET);
        side.pool().commit().unwrap();
        side.begin_anew();
        side
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.running.as_ref().expect("the pool is imported").pool
    }

    pub fn upkeep(&self) -> &Arc<Upkeep> {
        &self.running.as_ref().expect("the pool is imported").upkeep
    }

    pub fn mount(&self) -> &Arc<Mount> {
        &self.running.as_ref().expect("the pool is imported").mount
    }

    pub fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}{}", self.label, self.names)
    }

    /// All that is there is durable, and nothing else is known of the past.
    fn begin_anew(&mut self) {
        self.moments.clear();
        self.moments.push(Moment { state: self.now.clone(), change: Change::Whole, told: "import".into() });
        self.sim.mark(PROMISED);
        self.has_uncommitted = false;
    }

    /// Tells what is done, where somebody wants to know.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            println!("  {} {}", self.label, what());
        }
    }

    /// A change begins.
    pub fn begin(&self) {
        self.sim.mark(BEGAN | self.moments.len() as u64);
    }

    /// One that may come as two begins.
    pub fn begin_two(&self) {
        self.begin();
        self.sim.mark(BEGAN | (self.moments.len() as u64 + 1));
    }

    /// It was made.
    pub fn done(&mut self, change: Change, told: impl Into<String>) {
        let told = told.into();
        self.tell(|| format!("{}: {told} ({change:?})", self.moments.len()));
        self.moments.push(Moment { state: self.now.clone(), change, told });
    }

    /// The same of one that is in tables, and durable with the next commit.
    pub fn done_uncommitted(&mut self, change: Change, told: impl Into<String>) {
        self.done(change, told);
        self.has_uncommitted = true;
    }

    /// All is durable.
    pub fn promise(&mut self) {
        self.has_uncommitted = false;
        self.sync_promise();
    }

    fn sync_promise(&self) {
        self.sim.mark(PROMISED | (self.moments.len() as u64 - 1));
    }

    pub fn commit(&mut self) {
        self.pool().commit().unwrap_or_else(|error| panic!("commit of {}: {error}", self.label));
        self.promise();
    }

    pub fn tick(&self) {
        self.clock.advance(Duration::from_secs(1));
    }

    /// Shows a dataset, as the daemon does when it mounts it.
    pub fn attach(&mut self, id: DatasetId) {
        if self.mount().volume(id).is_some() {
            return;
        }
        let dataset = self.pool().dataset(id).expect("it has a name");
        self.begin();
        self.mount()
            .attach(dataset, None)
            .unwrap_or_else(|error| panic!("attach of {}: {error}", self.now.get(id).name));
        if self.now.get(id).head.is_empty() {
            self.now.set(id).mounted();
            // No log tells of a root directory; where it is missing the next mount makes it.
            self.done_uncommitted(Change::Whole, "mount");
        }
    }

    /// Hides one before something is done to it that nobody may look at.
    pub fn detach(&self, id: DatasetId) {
        match self.mount().detach(id) {
            // A stream made it, and is not there yet.
            Err(FsError::NotFound) if self.is_receiving => {}
            Ok(()) | Err(FsError::NoSpace | FsError::Quota) => {}
            Err(error) => panic!("detach of {id}: {error}"),
        }
        self.pool().commit().unwrap();
        assert!(self.mount().is_gone(id), "{id} is in use");
    }

    /// Closes snapshots that are to go or to move.
    pub fn let_go_of(&self, id: DatasetId, highs: &[BlockId]) {
        for high in highs {
            self.mount().let_go_of_snapshot(id, *high).unwrap();
        }
    }

    pub fn some_named(&self, dice: &Dice) -> DatasetId {
        dice.one(self.now.named().map(|(id, _)| id)).expect("the root")
    }

    pub fn some_snapshot(&self, dice: &Dice) -> Option<At> {
        dice.one(self.now.named().flat_map(|(id, set)| set.named().map(move |(high, _)| (id, *high))))
    }

    /// Notes whether space is short, which it stays: whoever wants some may let go of what is in the trash.
    pub fn note_room(&mut self) {
        let space = self.pool().store().space(128 << 10);
        self.is_short |= space.available < space.size / 3;
    }

    /// Trash that may go by itself when space is short, and is gone, goes in the model.
    pub fn reconcile(&mut self, found: &State) {
        if let Some(now) = let_go_as(&self.now, found).filter(|_| self.is_short) {
            self.begin();
            self.now = now;
            self.done_uncommitted(Change::Parts, "the oldest in the trash went");
        }
    }

    /// Everything is as it must be: `deep`, all contents are read anew.
    pub fn verify(&mut self, deep: bool) {
        if deep {
            self.pool().store().drop_caches();
        }
        let known = (!deep).then(|| self.now.clone());
        let running = self.running.as_ref().expect("the pool is imported");
        let found = running.observe(known.as_ref()).unwrap_or_else(|error| panic!("{}: {error}", self.label));
        self.note_room();
        self.reconcile(&found);
        if let Some(how) = found.settled().difference(&self.now.settled()) {
            panic!("{}: {how}", self.label);
        }
    }

    /// Pool and mount go, and come from these devices. What is there then; nothing is mounted.
    fn restart(&mut self, sim: SimWorld) -> Result<State, String> {
        self.running = None;
        self.sim = sim;
        self.imports += 1;
        let (running, found) = Running::open(&self.sim, &self.clock, self.imports)?;
        self.running = Some(running);
        Ok(found)
    }

    /// All datasets are shown.
    fn attach_all(&mut self) {
        let all: Vec<_> = self.now.named().map(|(id, _)| id).collect();
        all.into_iter().for_each(|id| self.attach(id));
    }

    pub fn export(&mut self) {
        let all: Vec<_> = self.now.named().map(|(id, _)| id).collect();
        all.into_iter().for_each(|id| self.detach(id));
        self.pool().commit_export().unwrap();
        self.promise();
        let sim = SimWorld::from_images(self.sim.images());
        let found = self.restart(sim).unwrap_or_else(|error| panic!("{}: {error}", self.label));
        self.reconcile(&found);
        if let Some(how) = found.settled().difference(&self.now.settled()) {
            panic!("{}, exported and imported: {how}", self.label);
        }
        self.begin_anew();
        self.attach_all();
    }

    /// Numbers of the events behind each promise of a trace.
    pub fn promises(trace: &Trace) -> Vec<usize> {
        let is_promise = |event: &Event| matches!(event, Event::Mark(mark) if mark & PROMISED > 0);
        let all = trace.events().iter().enumerate().filter(|(_, event)| is_promise(event));
        all.map(|(at, _)| at + 1).collect()
    }

    /// Events before which the power may be cut: since one of the last promises.
    pub fn cuts(&self, dice: &Dice) -> std::ops::RangeInclusive<usize> {
        let trace = self.sim.trace();
        let promises = Self::promises(&trace);
        let back = 1 + dice.below(4) as usize;
        promises[promises.len() - back.min(promises.len())]..=trace.len()
    }

    /// The power fails before an event; life goes on with what is there. The moment that this is is told.
    pub fn cut(&mut self, at: usize, survival: Survival) -> Result<String, String> {
        let trace = self.sim.trace();
        let found = self.restart(SimWorld::from_images(trace.crash_images(at, survival)));
        let told = self.fits(&trace, at, &found)?;
        self.now = found?;
        self.begin_anew();
        self.attach_all();
        Ok(told)
    }

    /// State that would be there if the power had failed before an event.
    pub fn look_after(
        &self,
        sweep: &CrashSweep<'_>,
        trace: &Trace,
        survival: Survival,
    ) -> Result<String, String> {
        let sim = SimWorld::from_images(sweep.images(survival));
        let found = Running::open(&sim, &self.clock, 1_000_000 + sweep.cut() as u64).map(|(_, found)| found);
        self.fits(trace, sweep.cut(), &found)
    }

    /// The moment that was found after a cut.
    fn fits(&self, trace: &Trace, at: usize, found: &Result<State, String>) -> Result<String, String> {
        let (mut promised, mut last) = (0, 0);
        for mark in trace.marks_before(at) {
            let number = (mark & !(PROMISED | BEGAN)) as usize;
            if mark & PROMISED > 0 {
                promised = number;
            }
            last = last.max(number);
        }
        let last = last.min(self.moments.len() - 1);
        let all = || self.moments.iter().enumerate().take(last + 1).skip(promised);
        let told = || {
            let all = all().map(|(number, one)| format!("{number}: {} ({:?})", one.told, one.change));
            all.collect::<Vec<_>>()
        };
        let found = found.as_ref().map_err(|error| format!("cut {at}: {error}\nmay be {:#?}", told()))?;
        let settled = found.settled();
        let may_be = |number: &usize| may_be(&self.moments, *number, promised, &settled, self.is_short);
        let fits = (promised..=last).rev().find_map(|number| Some((number, may_be(&number)?)));
        fits.map(|(number, how)| format!("{number}, {how}: {}", self.moments[number].told)).ok_or_else(|| {
            let why = |(number, one): (usize, &Moment)| {
                format!("{number}: {}", settled.difference(&one.state.settled()).unwrap_or_default())
            };
            format!("cut {at}: none of {:#?}\nsince {:#?}", told(), all().map(why).collect::<Vec<_>>())
        })
    }

    /// Makes all files durable without a commit, if it can be.
    pub fn sync(&mut self) {
        let before = self.pool().store().durable_commit();
        self.begin();
        let all: Vec<_> =
            self.now.named().flat_map(|(id, set)| set.head.keys().map(move |inode| (id, *inode))).collect();
        for (id, inode) in all {
            let node = larder_files::NodeId::pack(id, larder_format::InodeId::new(inode));
            larder_files::Ops::fsync(&**self.mount(), node, larder_files::Handle(0), false)
                .unwrap_or_else(|error| panic!("fsync of {id}:{inode}: {error}"));
        }
        if !self.has_uncommitted {
            self.done(Change::Files, "fsync");
            self.sync_promise();
        } else if self.pool().store().durable_commit() > before {
            // It was one of the last that made it so: what is not durable yet is known to nobody.
            self.done(Change::Log, "fsync that became a commit");
        } else {
            self.done(Change::Log, "fsync");
        }
    }

    /// Whether a refusal is one of want of space or of a quota.
    pub fn is_refusal(error: &FsError) -> bool {
        matches!(error, FsError::NoSpace | FsError::Quota)
    }

    pub fn is_want(error: &PoolError) -> bool {
        matches!(error, PoolError::NoSpace | PoolError::Quota(_))
    }
}

/// The state with what the trash has lost let go of, if that is any.
fn let_go_as(state: &State, found: &State) -> Option<State> {
    let left: BTreeSet<_> = found.trash().into_iter().collect();
    let gone: Vec<_> = state.trash().into_iter().filter(|key| !left.contains(key)).collect();
    if gone.is_empty() {
        return None;
    }
    let mut state = state.clone();
    for key in gone {
        if state.trash().contains(&key) {
            state.let_go(key);
        }
    }
    Some(state)
}

/// Whether what was found is what a moment left, and in what way.
fn may_be(
    moments: &[Moment],
    number: usize,
    promised: usize,
    found: &State,
    is_short: bool,
) -> Option<&'static str> {
    let moment = &moments[number];
    let wanted = moment.state.settled();
    if *found == wanted {
        return Some("whole");
    }
    if is_short && let_go_as(&moment.state, found).is_some_and(|state| *found == state.settled()) {
        return Some("whole but for the trash");
    }
    // Files that were synced may be of any moment since; tables are of the one before.
    let since = if moment.change == Change::Files { promised } else { number.wrapping_sub(1) };
    let before = &moments.get(since)?.state;
    match moment.change {
        Change::Parts if number > promised && is_between(found, before, &moment.state, false) => {
            Some("in part")
        }
        Change::Files if number > promised && is_between(found, before, &moment.state, true) => {
            Some("some files")
        }
        _ => {
            let since = &moments[promised..=number];
            let is_synced = since.iter().any(|one| one.change == Change::Log);
            let is_like = |one: &Moment| tables(found) == tables(&one.state.settled());
            (is_synced && since.iter().any(is_like)).then_some("synced")
        }
    }
}

/// A state without what heads hold.
fn tables(state: &State) -> State {
    let mut tables = state.clone();
    let all: Vec<_> = tables.0.keys().copied().collect();
    all.into_iter().for_each(|id| tables.set(id).head = Arc::default());
    tables
}

/// Whether each thing is as in one of two states, and what is the same in both is there.
fn is_between(found: &State, before: &State, after: &State, by_files: bool) -> bool {
    let either = |id: &DatasetId| [before.0.get(id), after.0.get(id)];
    let none_lacks = before.0.keys().filter(|id| after.0.contains_key(id)).all(|id| found.0.contains_key(id));
    let is_one = |(id, set): (&DatasetId, &Arc<Set>)| {
        let known: Vec<&Arc<Set>> = either(id).into_iter().flatten().collect();
        let any = |is: &dyn Fn(&Set) -> bool| known.iter().any(|one| is(one));
        let head = match by_files {
            true => known.len() == 2 && are_files_between(&set.head, &known[0].head, &known[1].head),
            false => any(&|one| one.head == set.head),
        };
        let stays = known.len() == 2;
        let lacks = |high: &BlockId| !set.snapshots.contains_key(high);
        let is_lost = |(high, one): (&BlockId, &Taken)| {
            stays && one.shown == Shown::Named && known[1].snapshots.get(high) == Some(one) && lacks(high)
        };
        let is_known = |(high, one): (&BlockId, &Taken)| {
            let of = [before.snapshot(*high), after.snapshot(*high)];
            of.into_iter().flatten().any(|(_, known)| known.tree == one.tree && known.guid == one.guid)
        };
        head && any(&|one| one.name == set.name)
            && any(&|one| one.is_trash == set.is_trash)
            && any(&|one| one.limits == set.limits)
            && any(&|one| one.bookmarks == set.bookmarks)
            && !known[0].snapshots.iter().any(is_lost)
            && set.snapshots.iter().all(is_known)
    };
    none_lacks && found.0.iter().all(is_one)
}

/// Files that are the same in both are that; of the others nothing is said.
fn are_files_between(found: &tree::Tree, before: &tree::Tree, after: &tree::Tree) -> bool {
    before.iter().all(|(id, node)| after.get(id) != Some(node) || found.get(id) == Some(node))
}
