//! Passes over the records that datasets have stored, their snapshots' included: looking for duplicates, storing them
//! anew as the datasets' properties say, and the way back from sharing; and cutting live files into other records.
//!
//! Trees are walked as they are committed, the head first, then each snapshot without what the tree after it has, so
//! that nodes which both have are not read. Each stretch of a tree gives some thousand records, which are gone through
//! in the order in which they were stored. No tree is changed, but by passes that give live files other blocks: the
//! layer above, which knows who else changes files, goes through a head for them ([`Pool::renew`]).
//!
//! There is one pass of a pool at a time. How far it came is a note, kept with what it did: after an export, or a
//! crash, it goes on with the stretch that it was in, and what was done of that is found done.
//!
//! # Locks
//! The pass's own, for a step; below it those of the pool.

use crate::note::NoteReader;
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr, DatasetId, Fingerprint, Timestamp};
use larder_pool::{Pool, PoolError, Renew, Renewal, Renewed, Result, Settings, Tally, TreeOf, TreeRecords};
use larder_store::{Class, Dedup, Event};
use larder_sync::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Records that a step takes, at most, and stored bytes of them.
const RECORDS: usize = 256;
const BYTES: u64 = 16 << 20;
/// Records by which duplicates are estimated, at most.
const SAMPLE: usize = 1 << 18;
/// Of records that might be rewritten, so many first ones are tried, then one in so many.
const TRIED_FIRST: u64 = 4096;
const TRIED_ONE_IN: u64 = 32;
/// Datasets that a note is believed to be of, at most.
const MOST_DATASETS: usize = 1 << 20;
/// Steps that wait for an index that does not get on, as in a full pool.
const PATIENCE: u32 = 1000;
/// Time for which a pass waits for a dataset to be mounted.
const FOR_MOUNT: Duration = Duration::from_secs(300);
/// The note of the pass.
const NOTE: &str = "pass";

/// Purpose of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Records that are there twice become aliases: [`Pool::share_records`].
    Dedup,
    /// Records that are stored otherwise than the properties say are stored anew, and nodes get as many places:
    /// [`Pool::rewrite_records`], [`Pool::rewrite_nodes`].
    Rewrite,
    /// Live files get blocks of their own, and records leave the index: [`Renew::Own`].
    Undedup,
    /// Live files are cut into records as the properties say: [`Renew::Records`].
    Records,
}

/// State of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassState {
    /// It goes on.
    Active,
    /// Somebody stopped it.
    Stopped,
    /// It found no room, and waits to be started again.
    Full,
    /// It went through everything.
    Done,
}

/// A pass, or what the last one came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// Its purpose.
    pub task: Task,
    /// Its state.
    pub state: PassState,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub finished: Option<Timestamp>,
    /// The datasets.
    pub datasets: Vec<DatasetId>,
    /// Stored bytes of the records that were looked at.
    pub examined: u64,
    /// Stored bytes of all that there are, estimated; never less than `examined`.
    pub total: u64,
    /// The most that it goes through in a second, bytes; 0, whatever the devices give.
    pub rate: u64,
    /// Its outcome so far.
    pub tally: Tally,
}

/// Progress of a pass, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Course {
    pass: Pass,
    /// Datasets that are done.
    done: usize,
    /// The tree of the next at hand, and where in it.
    tree: TreeOf,
    from: Key,
    /// Of a rewrite, what the properties said when it began: what was done before they changed is to be done again.
    asked: Option<u64>,
}

impl Course {
    fn encode(&self) -> String {
        let Self { pass, done, tree, from, asked } = self;
        let state = match pass.state {
            PassState::Active => 0,
            PassState::Stopped => 1,
            PassState::Done => 2,
            PassState::Full => 3,
        };
        let finished = pass.finished.unwrap_or(Timestamp { secs: 0, nanos: 0 });
        // High ids are greater than 0.
        let tree = match tree {
            TreeOf::Head => 0,
            TreeOf::Snapshot(high) => high.get(),
        };
        let task = match pass.task {
            Task::Dedup => "dedup",
            Task::Rewrite => "rewrite",
            Task::Undedup => "undedup",
            Task::Records => "records",
        };
        let tally = pass.tally;
        let numbers = [
            pass.examined,
            pass.total,
            pass.rate,
            tally.records,
            tally.read,
            tally.changed,
            tally.before,
            tally.after,
            tally.unread,
            *done as u64,
            tree,
            from.object,
            u64::from(from.kind),
            from.offset,
        ];
        let times =
            format!("{} {} {} {}", pass.started.secs, pass.started.nanos, finished.secs, finished.nanos);
        let mut numbers = numbers.map(|number| number.to_string()).join(" ");
        if pass.task == Task::Records {
            numbers += &format!(" {}", tally.kept);
        }
        // Numbers in a row are told by the first and the last: a note is short.
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for of in pass.datasets.iter().map(|of| of.get()) {
            match runs.last_mut().filter(|(_, last)| *last + 1 == of) {
                Some((_, last)) => *last = of,
                None => runs.push((of, of)),
            }
        }
        let datasets: Vec<String> = runs.iter().map(|(first, last)| format!("{first} {last}")).collect();
        let asked = asked.map(|asked| format!(" {asked}")).unwrap_or_default();
        format!("{task} {state} {times} {numbers} {}{asked}", datasets.join(" "))
    }

    fn decode(text: &str) -> Option<Self> {
        let mut note = NoteReader::new(text);
        let task = match note.word()? {
            "dedup" => Task::Dedup,
            "rewrite" => Task::Rewrite,
            "undedup" => Task::Undedup,
            "records" => Task::Records,
            _ => return None,
        };
        let state = match note.number()? {
            0 => PassState::Active,
            1 => PassState::Stopped,
            2 => PassState::Done,
            3 => PassState::Full,
            _ => return None,
        };
        let started = note.time()?;
        let finished = Some(note.time()?).filter(|time| time.secs > 0);
        let [examined, total, rate] = [note.number()?, note.number()?, note.number()?];
        let mut tally = Tally {
            records: note.number()?,
            read: note.number()?,
            changed: note.number()?,
            before: note.number()?,
            after: note.number()?,
            unread: note.number()?,
            kept: 0,
        };
        let done = note.number()? as usize;
        let tree = match note.number()? {
            0 => TreeOf::Head,
            high => TreeOf::Snapshot(BlockId::new(high)),
        };
        let (object, kind) = (note.number()?, u8::try_from(note.number()?).ok()?);
        let from = Key::new(object, kind, note.number()?);
        if task == Task::Records {
            tally.kept = note.number()?;
        }
        // Runs are pairs; an odd one is what the properties said.
        let mut runs: Vec<u64> = std::iter::from_fn(|| note.number()).collect();
        let asked = if runs.len() % 2 == 1 { runs.pop() } else { None };
        let runs = runs.chunks(2).flat_map(|run| run[0]..=run[1]);
        let datasets = runs.take(MOST_DATASETS).map(DatasetId::new).collect();
        let pass = Pass { task, state, started, finished, datasets, examined, total, rate, tally };
        Some(Self { pass, done, tree, from, asked })
    }
}

/// Outcome that a pass would have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Stored bytes of the records.
    pub examined: u64,
    /// Records and bytes that would change; what was read for it.
    pub tally: Tally,
}

/// Fingerprints of some records, by which duplicates of all are estimated: those whose hash ends with so many zeros,
/// the more the more there are (Flajolet, "On adaptive sampling", Computing 43, 1990).
struct PrintSample {
    seen: HashMap<Fingerprint, HashSet<BlockId>>,
    again: HashMap<Fingerprint, u64>,
    ids: usize,
    zeros: u32,
    most: usize,
}

impl PrintSample {
    fn new(most: usize) -> Self {
        Self { seen: HashMap::new(), again: HashMap::new(), ids: 0, zeros: 0, most }
    }

    fn add(&mut self, print: Fingerprint, id: BlockId, bytes: u64) {
        if print.low().trailing_zeros() < self.zeros {
            return;
        }
        let ids = self.seen.entry(print).or_default();
        // One that a clone has as well is no duplicate.
        if !ids.insert(id) {
            return;
        }
        self.ids += 1;
        if ids.len() > 1 {
            *self.again.entry(print).or_default() += bytes;
        }
        while self.ids > self.most && self.zeros < 32 {
            self.zeros += 1;
            let zeros = self.zeros;
            self.seen.retain(|print, _| print.low().trailing_zeros() >= zeros);
            self.again.retain(|print, _| print.low().trailing_zeros() >= zeros);
            self.ids = self.seen.values().map(HashSet::len).sum();
        }
    }

    /// Records that are there again, and their bytes.
    fn again(&self) -> (u64, u64) {
        let records: u64 = self.seen.values().map(|ids| ids.len() as u64 - 1).sum();
        let bytes: u64 = self.again.values().sum();
        (records << self.zeros, bytes << self.zeros)
    }
}

#[derive(Default)]
struct Inner {
    /// As the note has it, or further; none before that was looked at.
    course: Option<Option<Course>>,
    /// Records of the stretch at hand that are not done, those that come first at the end.
    waiting: Vec<BlockPtr>,
    /// Its nodes, where they are wanted.
    nodes: Vec<BlockPtr>,
    /// Where the stretch after it begins; none when a stretch has to be fetched first.
    next: Option<(usize, TreeOf, Key)>,
    /// Place that the index had caught up to, and steps since it got on.
    catching_up: (Option<BlockId>, u32),
    /// Since when nobody serves the files of the dataset at hand.
    unserved_since: Option<Duration>,
}

/// See the module's text.
pub struct Passes {
    pool: Arc<Pool>,
    inner: Mutex<Inner>,
    /// As it stood after the last step, for those who must not wait for one; none before the note was looked at.
    shown: Mutex<Option<Option<Pass>>>,
}

impl Passes {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Self { pool: Arc::clone(pool), inner: Mutex::default(), shown: Mutex::default() }
    }

    /// Begins to go through what these datasets and their snapshots have stored, at most `rate` bytes a second, unless
    /// that is 0; goes on where one for the same was stopped.
    ///
    /// # Errors
    /// [`PoolError::Busy`] while a pass is under way; [`PoolError::Invalid`] when there are too many datasets for a
    /// note; when the pool cannot be written.
    pub fn start(&self, task: Task, mut datasets: Vec<DatasetId>, rate: u64) -> Result<()> {
        self.pool.store().check_writable()?;
        datasets.sort_unstable();
        datasets.dedup();
        let mut inner = self.inner.lock();
        self.look(&mut inner);
        let before = inner.course.take().flatten();
        if let Some(course) = before.as_ref().filter(|course| course.pass.state == PassState::Active) {
            let names: Vec<_> = course.pass.datasets.iter().map(|of| self.pool.full_name(*of)).collect();
            let doing = match course.pass.task {
                Task::Dedup => "duplicates are being looked for in",
                Task::Rewrite => "records are being rewritten in",
                Task::Undedup => "files are given blocks of their own in",
                Task::Records => "files are being cut anew in",
            };
            inner.course = Some(before);
            return Err(PoolError::Busy(format!("{doing} {}", names.join(", "))));
        }
        let same = |course: &Course| {
            let Pass { task: of, state, datasets: all, .. } = &course.pass;
            *of == task && matches!(state, PassState::Stopped | PassState::Full) && *all == datasets
        };
        let asked = (task == Task::Rewrite).then(|| self.asked(&datasets));
        let course = match before.filter(same) {
            Some(mut course) => {
                (course.pass.state, course.pass.rate, course.pass.finished) = (PassState::Active, rate, None);
                // The properties may be others by now; files that are cut so cost a look.
                if task == Task::Records || course.asked != asked {
                    (course.done, course.tree, course.from) = (0, TreeOf::Head, Key::MIN);
                    (course.pass.examined, course.asked) = (0, asked);
                }
                course
            }
            None => Course {
                pass: Pass {
                    task,
                    state: PassState::Active,
                    started: self.pool.store().world.clock.now(),
                    finished: None,
                    total: datasets.iter().map(|of| self.stored(task, *of)).sum(),
                    datasets,
                    examined: 0,
                    rate,
                    tally: Tally::default(),
                },
                done: 0,
                tree: TreeOf::Head,
                from: Key::MIN,
                asked,
            },
        };
        *inner = Inner::default();
        if task == Task::Rewrite {
            // Data accepted before the properties changed is stored as they said then, and is met.
            self.pool.commit()?;
        }
        self.pool.set_note(NOTE, &course.encode())?;
        self.show(&course);
        inner.course = Some(Some(course));
        drop(inner);
        self.pool.use_index(task == Task::Dedup);
        let class = match task {
            Task::Dedup => Class::DedupStart,
            Task::Rewrite => Class::RewriteStart,
            Task::Undedup => Class::UndedupStart,
            Task::Records => Class::RecordsStart,
        };
        self.pool.store().event(Event::new(class));
        Ok(())
    }

    /// The properties of datasets by which records are stored, as a number.
    fn asked(&self, datasets: &[DatasetId]) -> u64 {
        let mut hasher = DefaultHasher::new();
        for settings in datasets.iter().filter_map(|of| Some(self.pool.dataset(*of)?.settings())) {
            format!("{:?} {:?} {}", settings.codec, settings.checksum, settings.copies).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Ends the pass under way; one of the same datasets goes on there.
    ///
    /// # Errors
    /// [`PoolError::NotFound`] when there is none; when it cannot be noted.
    pub fn stop(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        self.look(&mut inner);
        let active = |course: &&mut Course| course.pass.state == PassState::Active;
        let Some(course) = inner.course.as_mut().and_then(Option::as_mut).filter(active) else {
            return Err(PoolError::NotFound("a pass under way".into()));
        };
        self.end(course, PassState::Stopped)?;
        (inner.waiting, inner.nodes, inner.next) = Default::default();
        Ok(())
    }

    /// The pass under way, as it stood after its last step, or the last one.
    pub fn last(&self) -> Option<Pass> {
        let read = || Some(Course::decode(&self.pool.note(NOTE)?)?.pass);
        self.shown.lock().get_or_insert_with(read).clone()
    }

    fn show(&self, course: &Course) {
        *self.shown.lock() = Some(Some(course.pass.clone()));
    }

    /// Whether a pass is under way.
    pub fn is_active(&self) -> bool {
        self.last().is_some_and(|pass| pass.state == PassState::Active) && !self.pool.store().is_read_only()
    }

    /// Goes on with the pass by records of about `bytes`; the bytes gone through, none when nothing is under way.
    ///
    /// # Errors
    /// When nothing may be written, or the map or the trees cannot be read for now.
    pub fn step(&self, bytes: u64) -> Result<Option<u64>> {
        if !self.is_active() {
            return Ok(None);
        }
        let mut inner = self.inner.lock();
        self.look(&mut inner);
        let Inner { course: Some(Some(course)), waiting, nodes, next, catching_up, unserved_since } =
            &mut *inner
        else {
            return Ok(None);
        };
        if course.pass.task == Task::Dedup {
            // After an import nobody has asked for it yet.
            self.pool.use_index(true);
            // Duplicates of the rest are not found then; the pass must end.
            let at = self.pool.catch_up()?;
            *catching_up = (at, if at == catching_up.0 { catching_up.1 + 1 } else { 0 });
            if at.is_some() && catching_up.1 < PATIENCE {
                return Ok(Some(0));
            }
        }
        let is_of_files = matches!(course.pass.task, Task::Undedup | Task::Records);
        if is_of_files && course.tree == TreeOf::Head && next.is_none() {
            return self.renew(course, bytes, unserved_since);
        }
        if next.is_none() {
            if course.pass.task == Task::Rewrite {
                let asked = Some(self.asked(&course.pass.datasets));
                if course.asked != asked {
                    // All that was done before goes by the properties as they were then.
                    (course.done, course.tree, course.from) = (0, TreeOf::Head, Key::MIN);
                    (course.pass.examined, course.asked) = (0, asked);
                    self.pool.commit()?;
                }
            }
            let Some(&dataset) = course.pass.datasets.get(course.done) else {
                self.end(course, PassState::Done)?;
                return Ok(Some(0));
            };
            let found = match self.pool.tree_records(dataset, course.tree, course.from) {
                // A node that nothing can give back: the rest of this tree is left out.
                Err(error) if error.is_loss() && self.pool.store().silence().is_none() => {
                    TreeRecords { is_partial: true, ..TreeRecords::default() }
                }
                found => found?,
            };
            course.pass.tally.unread += u64::from(found.is_partial);
            *waiting = found.records;
            if course.pass.task == Task::Rewrite {
                *nodes = found.nodes;
            }
            waiting.sort_unstable_by_key(|ptr| std::cmp::Reverse(ptr.id));
            *next = Some(match found.next {
                Some(from) => (course.done, course.tree, from),
                None => self.tree_after(course.done, dataset, course.tree),
            });
        }
        let (mut batch, mut examined) = (Vec::new(), 0);
        // Several of each are in memory, plain.
        let bytes = bytes.min(BYTES);
        while batch.len() < RECORDS
            && (batch.is_empty() || examined < bytes)
            && let Some(ptr) = waiting.pop()
        {
            examined += u64::from(ptr.place.stored);
            batch.push(ptr);
        }
        let mut so_far = Tally::default();
        let tally = match (course.pass.task, course.pass.datasets.get(course.done)) {
            (Task::Dedup, _) => self.pool.share_records(batch.clone()),
            (Task::Rewrite, Some(&dataset)) => {
                let last = if waiting.is_empty() { &mut *nodes } else { &mut Vec::new() };
                let done = self.rewrite(dataset, batch.clone(), last, &mut so_far);
                done.map(|()| std::mem::take(&mut so_far))
            }
            (Task::Rewrite, None) => Ok(Tally::default()),
            (Task::Undedup, _) => self.pool.forget_fingerprints(&batch),
            (Task::Records, _) => Ok(Tally::default()),
        };
        let tally = match tally {
            Err(PoolError::NoSpace) => {
                (*waiting, *nodes, *next) = Default::default();
                course.pass.tally.add(&so_far);
                self.end(course, PassState::Full)?;
                return Ok(Some(0));
            }
            // These come again.
            tally => tally.inspect_err(|_| {
                waiting.extend(batch.into_iter().rev());
                course.pass.tally.add(&Tally { records: 0, unread: 0, read: 0, ..so_far });
            })?,
        };
        course.pass.tally.add(&tally);
        course.pass.examined += examined;
        course.pass.total = course.pass.total.max(course.pass.examined);
        self.show(course);
        if waiting.is_empty()
            && let Some((done, tree, from)) = next.take()
        {
            (course.done, course.tree, course.from) = (done, tree, from);
            self.keep(course)?;
            // Nothing else may have anything to commit, and the map grows.
            self.pool.commit()?;
        }
        Ok(Some(examined))
    }

    /// Rewrites records, then nodes: where records get smaller there is more room for them.
    fn rewrite(
        &self,
        dataset: DatasetId,
        records: Vec<BlockPtr>,
        nodes: &mut Vec<BlockPtr>,
        tally: &mut Tally,
    ) -> Result<()> {
        self.pool.rewrite_records(dataset, records, tally)?;
        let mut of_nodes = Tally::default();
        let done = self.pool.rewrite_nodes(dataset, nodes.clone(), &mut of_nodes);
        *tally = with_nodes(*tally, &of_nodes);
        done.map(|()| nodes.clear())
    }

    /// A step through the files of a head.
    fn renew(
        &self,
        course: &mut Course,
        bytes: u64,
        unserved_since: &mut Option<Duration>,
    ) -> Result<Option<u64>> {
        let Some(&dataset) = course.pass.datasets.get(course.done) else {
            self.end(course, PassState::Done)?;
            return Ok(Some(0));
        };
        let task = course.pass.task;
        let settings = self.pool.dataset(dataset).map(|of| of.settings());
        // Somebody thought better of it.
        let is_off = |of: Settings| of.readonly || (task == Task::Undedup && of.dedup != Dedup::Off);
        if settings.is_some_and(is_off) && !self.pool.store().is_read_only() {
            return self.end(course, PassState::Stopped).map(|()| Some(0));
        }
        let renewed = settings.map_or_else(
            || Err(PoolError::NotFound("the dataset".into())),
            |settings| {
                let what = if task == Task::Records { Renew::Records(settings) } else { Renew::Own };
                let (from, bytes) = (course.from, bytes.min(BYTES));
                self.pool.renew(&Renewal { what, dataset, from, bytes, dry_run: false })
            },
        );
        let renewed = match renewed {
            // Destroyed meanwhile.
            Err(PoolError::NotFound(_)) if self.pool.dataset(dataset).is_none() => Renewed::default(),
            // Not mounted yet, or not for now.
            Err(PoolError::NotFound(_)) => {
                let now = self.pool.store().world.clock.monotonic();
                if now.saturating_sub(*unserved_since.get_or_insert(now)) < FOR_MOUNT {
                    return Ok(None);
                }
                return self.end(course, PassState::Stopped).map(|()| Some(0));
            }
            Err(PoolError::NoSpace) => return self.end(course, PassState::Full).map(|()| Some(0)),
            renewed => renewed?,
        };
        *unserved_since = None;
        course.pass.tally.add(&renewed.tally);
        course.pass.examined += renewed.examined + renewed.skipped;
        course.pass.total = course.pass.total.max(course.pass.examined);
        (course.done, course.tree, course.from) = match renewed.next {
            Some(from) => (course.done, course.tree, from),
            // Snapshots stay as they are.
            None if task == Task::Records => (course.done + 1, TreeOf::Head, Key::MIN),
            None => self.tree_after(course.done, dataset, course.tree),
        };
        self.show(course);
        self.keep(course)?;
        Ok(Some(renewed.examined))
    }

    /// Room that giving these datasets' live files blocks of their own would take.
    ///
    /// # Errors
    /// As [`Pool::renew`].
    pub fn estimate_undedup(&self, datasets: &[DatasetId]) -> Result<Estimate> {
        self.estimate_renewal(datasets, |_| Some(Renew::Own))
    }

    /// Estimates what cutting these datasets' live files anew would come to, if these properties were set.
    ///
    /// # Errors
    /// As [`Pool::renew`].
    pub fn estimate_records(
        &self,
        datasets: &[DatasetId],
        properties: &BTreeMap<String, String>,
    ) -> Result<Estimate> {
        self.estimate_renewal(datasets, |dataset| {
            Some(Renew::Records(self.pool.dataset(dataset)?.settings_with(properties)))
        })
    }

    fn estimate_renewal(
        &self,
        datasets: &[DatasetId],
        what: impl Fn(DatasetId) -> Option<Renew>,
    ) -> Result<Estimate> {
        let mut estimate = Estimate::default();
        for &dataset in datasets {
            let (mut from, what) = (Some(Key::MIN), what(dataset));
            while let (Some(key), Some(what)) = (from, what) {
                let renewal = Renewal { what, dataset, from: key, bytes: u64::MAX, dry_run: true };
                let renewed = self.pool.renew(&renewal)?;
                estimate.tally.add(&renewed.tally);
                estimate.examined += renewed.examined;
                from = renewed.next;
            }
        }
        Ok(estimate)
    }

    /// Estimates what looking for duplicates among these datasets would share. Reads every record that has no
    /// fingerprint; those of records that others in the pool have are not known.
    ///
    /// # Errors
    /// When the trees or the map cannot be read for now.
    pub fn estimate_dedup(&self, datasets: &[DatasetId]) -> Result<Estimate> {
        let mut sample = PrintSample::new(SAMPLE);
        let mut estimate = Estimate::default();
        self.visit(datasets, |_, batch, _| {
            estimate.examined += batch.iter().map(|ptr| u64::from(ptr.place.stored)).sum::<u64>();
            let (prints, tally) = self.pool.fingerprints(batch)?;
            estimate.tally.add(&tally);
            for (ptr, print) in prints {
                sample.add(print, ptr.id, u64::from(ptr.place.footprint()));
            }
            Ok(())
        })?;
        (estimate.tally.changed, estimate.tally.before) = sample.again();
        Ok(estimate)
    }

    /// Estimates what rewriting these datasets would change, from some of their records, if these properties were set;
    /// what further places of nodes take, and of records that only aliases name, is summed up.
    ///
    /// # Errors
    /// As [`Passes::estimate_dedup`].
    pub fn estimate_rewrite(
        &self,
        datasets: &[DatasetId],
        properties: &BTreeMap<String, String>,
    ) -> Result<Estimate> {
        let mut estimate = Estimate::default();
        let mut sampled = Tally::default();
        let (mut number, mut of_nodes) = (0_u64, Tally::default());
        let mut targets = HashMap::new();
        let has_aliases = self.pool.store().core.lock().has_aliases();
        self.visit(datasets, |dataset, batch, nodes| {
            let ids = nodes.iter().map(|ptr| ptr.id).collect();
            of_nodes.add(&self.pool.try_copies(dataset, ids, properties)?);
            if has_aliases && targets.len() < SAMPLE {
                targets.extend(self.pool.targets_of(&batch)?.into_iter().map(|id| (id, dataset)));
            }
            let stored = |ptr: &BlockPtr| u64::from(ptr.place.stored);
            estimate.examined += batch.iter().map(stored).sum::<u64>();
            estimate.tally.records += batch.len() as u64;
            // All of the first ones, then one in so many.
            let chosen = batch.into_iter().filter(|_| {
                number += 1;
                number <= TRIED_FIRST || number.is_multiple_of(TRIED_ONE_IN)
            });
            let tally = self.pool.try_rewrite(dataset, chosen.collect(), properties)?;
            sampled.add(&tally);
            Ok(())
        })?;
        let scaled = |part: u64| {
            (u128::from(part) * u128::from(estimate.tally.records) / u128::from(sampled.records.max(1)))
                as u64
        };
        let tally = Tally {
            records: estimate.tally.records,
            changed: scaled(sampled.changed),
            before: scaled(sampled.before),
            after: scaled(sampled.after),
            ..sampled
        };
        estimate.tally = with_nodes(tally, &of_nodes);
        if !targets.is_empty() {
            self.visit(datasets, |_, batch, _| {
                for ptr in batch {
                    targets.remove(&ptr.id);
                }
                Ok(())
            })?;
        }
        for &dataset in datasets {
            let of_it = targets.iter().filter(|(_, of)| **of == dataset).map(|(id, _)| *id);
            estimate.tally.add(&self.pool.try_copies(dataset, of_it.collect(), properties)?);
        }
        Ok(estimate)
    }

    /// Shows all records of datasets and of their snapshots, some at a time, in order of id, and nodes with them.
    fn visit(
        &self,
        datasets: &[DatasetId],
        mut visit: impl FnMut(DatasetId, Vec<BlockPtr>, Vec<BlockPtr>) -> Result<()>,
    ) -> Result<()> {
        for &dataset in datasets {
            for tree in self.pool.trees_of(dataset) {
                let mut from = Some(Key::MIN);
                while let Some(key) = from {
                    let mut found = self.pool.tree_records(dataset, tree, key)?;
                    from = found.next;
                    found.records.sort_unstable_by_key(|ptr| ptr.id);
                    for batch in found.records.chunks(RECORDS) {
                        visit(dataset, batch.to_vec(), std::mem::take(&mut found.nodes))?;
                    }
                    if !found.nodes.is_empty() {
                        visit(dataset, Vec::new(), found.nodes)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The tree that comes after one, and where it begins.
    fn tree_after(&self, done: usize, dataset: DatasetId, tree: TreeOf) -> (usize, TreeOf, Key) {
        // Snapshots may come and go meanwhile: the next older one.
        let older = |other: &TreeOf| match (tree, other) {
            (TreeOf::Head, TreeOf::Snapshot(_)) => true,
            (TreeOf::Snapshot(at), TreeOf::Snapshot(high)) => *high < at,
            (_, TreeOf::Head) => false,
        };
        match self.pool.trees_of(dataset).into_iter().find(older) {
            Some(next) => (done, next, Key::MIN),
            None => (done + 1, TreeOf::Head, Key::MIN),
        }
    }

    /// Stored bytes of a dataset's records that a pass goes through: what its snapshots hold, or its files alone.
    fn stored(&self, task: Task, dataset: DatasetId) -> u64 {
        let usage = self.pool.dataset(dataset).map(|of| of.usage()).unwrap_or_default();
        if task == Task::Records { usage.stored } else { usage.referenced + usage.held }
    }

    fn look(&self, inner: &mut Inner) {
        let read = || self.pool.note(NOTE).and_then(|note| Course::decode(&note));
        inner.course.get_or_insert_with(read);
    }

    fn keep(&self, course: &Course) -> Result<()> {
        let _op = self.pool.enter()?;
        self.pool.keep_note(NOTE, &course.encode())
    }

    fn end(&self, course: &mut Course, state: PassState) -> Result<()> {
        let ended = Course {
            pass: Pass { state, finished: Some(self.pool.store().world.clock.now()), ..course.pass.clone() },
            ..course.clone()
        };
        self.pool.set_note(NOTE, &ended.encode())?;
        if course.pass.task == Task::Records
            && let Some(&dataset) = course.pass.datasets.get(course.done)
            && let Some(of) = self.pool.dataset(dataset)
        {
            // Behind all files: the one that it was in is left. Where nobody serves them none is under way.
            let (what, from) = (Renew::Records(of.settings()), Key::MAX);
            drop(self.pool.renew(&Renewal { what, dataset, from, bytes: 0, dry_run: false }));
        }
        if course.pass.task == Task::Undedup && state == PassState::Done {
            self.pool.drop_unwanted_index();
        }
        self.pool.commit()?;
        *course = ended;
        self.show(course);
        self.pool.use_index(false);
        let how = match state {
            PassState::Full => "no room is left: ",
            PassState::Stopped => "stopped: ",
            PassState::Active | PassState::Done => "",
        };
        let Tally { changed, before, after, .. } = course.pass.tally;
        let (class, text) = match course.pass.task {
            Task::Dedup => {
                (Class::DedupFinish, format!("{how}{changed} records shared, {before} bytes freed"))
            }
            Task::Rewrite => {
                let text = format!("{how}{changed} records rewritten, {before} bytes became {after}");
                (Class::RewriteFinish, text)
            }
            Task::Undedup => {
                let text = format!("{how}{changed} records got blocks of their own, {after} bytes");
                (Class::UndedupFinish, text)
            }
            Task::Records => {
                let kept = course.pass.tally.kept;
                let text = format!(
                    "{how}{changed} records cut anew, {before} bytes became {after}, others hold {kept}"
                );
                (Class::RecordsFinish, text)
            }
        };
        self.pool.store().event(Event::new(class).text(text));
        Ok(())
    }
}

/// Counts are of records; of nodes there are bytes, and what cannot be read.
fn with_nodes(tally: Tally, of_nodes: &Tally) -> Tally {
    let Tally { unread, before, after, .. } = *of_nodes;
    let (unread, before) = (tally.unread + unread, tally.before + before);
    Tally { unread, before, after: tally.after + after, ..tally }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_thousands_of_datasets_is_short_and_says_what_it_said() {
        let time = Timestamp { secs: 1_000_000, nanos: 7 };
        let datasets = [1, 3, 4].into_iter().chain(100..5000).map(DatasetId::new).collect();
        let tally = Tally { records: 1, read: 2, changed: 3, before: 4, after: 5, unread: 6, kept: 0 };
        let older = TreeOf::Snapshot(BlockId::new(9));
        for (task, tree, state) in [
            (Task::Rewrite, TreeOf::Head, PassState::Active),
            (Task::Records, TreeOf::Head, PassState::Full),
            (Task::Rewrite, older, PassState::Stopped),
        ] {
            let tally = Tally { kept: if task == Task::Records { 7 } else { 0 }, ..tally };
            let pass = Pass {
                task,
                state,
                started: time,
                finished: (state != PassState::Active).then_some(time),
                datasets: Vec::clone(&datasets),
                examined: 10,
                total: 20,
                rate: 30,
                tally,
            };
            let asked = (task == Task::Rewrite).then_some(u64::MAX);
            let course = Course { pass, done: 2, tree, from: Key::new(8, 2, 4096), asked };
            let note = course.encode();
            assert!(note.len() < 400, "{note}");
            assert_eq!(Course::decode(&note), Some(course));
        }
        assert_eq!(Course::decode("dedup 0 1"), None);
    }
}
