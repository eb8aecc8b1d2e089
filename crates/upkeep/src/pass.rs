//! Passes over the records that datasets have stored, their snapshots' included: looking for duplicates.
//!
//! Trees are walked as they are committed, the head first, then each snapshot without what the tree after it has, so that
//! nodes which both have are not read. Each stretch of a tree gives some thousand records, which are gone through in
//! the order in which they were stored. No tree is changed.
//!
//! There is one pass of a pool at a time. How far it came is a note, kept with what it did: after an export, or a
//! crash, it goes on with the stretch that it was in, and what was done of that is found done.
//!
//! # Locks
//! The pass's own, for a step; below it those of the pool.

use crate::note::NoteReader;
use larder_format::node::Key;
use larder_format::{BlockId, BlockPtr, DatasetId, Timestamp};
use larder_pool::{Pool, PoolError, Result, SharedRecords, TreeOf};
use larder_store::{Class, Event};
use larder_sync::Mutex;
use std::sync::Arc;

/// Records that a step takes, at most.
const RECORDS: usize = 1024;
/// The note of the pass.
const NOTE: &str = "pass";

/// State of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassState {
    /// It goes on.
    Active,
    /// Somebody stopped it.
    Stopped,
    /// It went through everything.
    Done,
}

/// A pass, or what the last one came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
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
    /// What was found.
    pub found: SharedRecords,
}

/// How far a pass came.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Course {
    pass: Pass,
    /// Datasets that are done.
    done: usize,
    /// The tree of the next at hand, and where in it.
    tree: TreeOf,
    from: Key,
}

impl Course {
    fn encode(&self) -> String {
        let Self { pass, done, tree, from } = self;
        let state = match pass.state {
            PassState::Active => 0,
            PassState::Stopped => 1,
            PassState::Done => 2,
        };
        let finished = pass.finished.unwrap_or(Timestamp { secs: 0, nanos: 0 });
        // High ids are greater than 0.
        let tree = match tree {
            TreeOf::Head => 0,
            TreeOf::Snapshot(high) => high.get(),
        };
        let found = pass.found;
        let numbers = [
            pass.examined,
            pass.total,
            pass.rate,
            found.records,
            found.read,
            found.shared,
            found.freed,
            found.unread,
            *done as u64,
            tree,
            from.object,
            u64::from(from.kind),
            from.offset,
        ];
        let times = format!(
            "{} {} {} {}",
            pass.started.secs, pass.started.nanos, finished.secs, finished.nanos
        );
        let numbers = numbers.map(|number| number.to_string()).join(" ");
        let datasets: Vec<String> = pass.datasets.iter().map(|of| of.get().to_string()).collect();
        format!("dedup {state} {times} {numbers} {}", datasets.join(" "))
    }

    fn decode(text: &str) -> Option<Self> {
        let mut note = NoteReader::new(text);
        if note.word()? != "dedup" {
            return None;
        }
        let state = match note.number()? {
            0 => PassState::Active,
            1 => PassState::Stopped,
            2 => PassState::Done,
            _ => return None,
        };
        let started = note.time()?;
        let finished = Some(note.time()?).filter(|time| time.secs > 0);
        let [examined, total, rate] = [note.number()?, note.number()?, note.number()?];
        let found = SharedRecords {
            records: note.number()?,
            read: note.number()?,
            shared: note.number()?,
            freed: note.number()?,
            unread: note.number()?,
        };
        let done = note.number()? as usize;
        let tree = match note.number()? {
            0 => TreeOf::Head,
            high => TreeOf::Snapshot(BlockId::new(high)),
        };
        let (object, kind) = (note.number()?, u8::try_from(note.number()?).ok()?);
        let from = Key::new(object, kind, note.number()?);
        let datasets = std::iter::from_fn(|| note.number()).map(DatasetId::new).collect();
        let pass = Pass { state, started, finished, datasets, examined, total, rate, found };
        Some(Self { pass, done, tree, from })
    }
}

#[derive(Default)]
struct Inner {
    /// As the note has it, or further; none before that was looked at.
    course: Option<Option<Course>>,
    /// Records of the stretch at hand that are not done, those that come first at the end.
    waiting: Vec<BlockPtr>,
    /// Where the stretch after it begins; none when a stretch has to be fetched first.
    next: Option<(usize, TreeOf, Key)>,
}

/// See the module's text.
pub struct Passes {
    pool: Arc<Pool>,
    inner: Mutex<Inner>,
}

impl Passes {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Self { pool: Arc::clone(pool), inner: Mutex::default() }
    }

    /// Begins to look for duplicates among what these datasets and their snapshots have stored, at most `rate` bytes a
    /// second, unless that is 0; goes on where one of the same datasets was stopped.
    ///
    /// # Errors
    /// [`PoolError::Busy`] while a pass is under way; when the pool cannot be written.
    pub fn start(&self, mut datasets: Vec<DatasetId>, rate: u64) -> Result<()> {
        self.pool.store().check_writable()?;
        datasets.sort_unstable();
        datasets.dedup();
        let mut inner = self.inner.lock();
        self.look(&mut inner);
        let before = inner.course.take().flatten();
        if let Some(course) = before.as_ref().filter(|course| course.pass.state == PassState::Active) {
            let names: Vec<_> = course.pass.datasets.iter().map(|of| self.pool.full_name(*of)).collect();
            inner.course = Some(before);
            return Err(PoolError::Busy(format!("duplicates are being looked for in {}", names.join(", "))));
        }
        let same = |course: &Course| course.pass.state == PassState::Stopped && course.pass.datasets == datasets;
        let course = match before.filter(same) {
            Some(mut course) => {
                (course.pass.state, course.pass.rate, course.pass.finished) = (PassState::Active, rate, None);
                course
            }
            None => Course {
                pass: Pass {
                    state: PassState::Active,
                    started: self.pool.store().world.clock.now(),
                    finished: None,
                    total: datasets.iter().map(|of| self.stored(*of)).sum(),
                    datasets,
                    examined: 0,
                    rate,
                    found: SharedRecords::default(),
                },
                done: 0,
                tree: TreeOf::Head,
                from: Key::MIN,
            },
        };
        (inner.waiting, inner.next) = (Vec::new(), None);
        self.pool.set_note(NOTE, &course.encode())?;
        inner.course = Some(Some(course));
        drop(inner);
        self.pool.use_index(true);
        self.pool.store().event(Event::new(Class::DedupStart));
        Ok(())
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
            return Err(PoolError::NotFound("a search for duplicates under way".into()));
        };
        self.end(course, PassState::Stopped)?;
        (inner.waiting, inner.next) = (Vec::new(), None);
        Ok(())
    }

    /// The pass under way, or the last one.
    pub fn last(&self) -> Option<Pass> {
        let mut inner = self.inner.lock();
        self.look(&mut inner);
        inner.course.as_ref().and_then(Option::as_ref).map(|course| course.pass.clone())
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
        let Inner { course: Some(Some(course)), waiting, next } = &mut *inner else { return Ok(None) };
        // After an import nobody has asked for it yet.
        self.pool.use_index(true);
        if next.is_none() {
            let Some(&dataset) = course.pass.datasets.get(course.done) else {
                self.end(course, PassState::Done)?;
                return Ok(Some(0));
            };
            let found = self.pool.tree_records(dataset, course.tree, course.from)?;
            *waiting = found.records;
            waiting.sort_unstable_by_key(|ptr| std::cmp::Reverse(ptr.id));
            *next = Some(match found.next {
                Some(from) => (course.done, course.tree, from),
                None => self.tree_after(course.done, dataset, course.tree),
            });
        }
        let (mut batch, mut examined) = (Vec::new(), 0);
        while batch.len() < RECORDS
            && (batch.is_empty() || examined < bytes)
            && let Some(ptr) = waiting.pop()
        {
            examined += u64::from(ptr.place.stored);
            batch.push(ptr);
        }
        let found = self.pool.share_records(batch)?;
        course.pass.found.add(&found);
        course.pass.examined += examined;
        course.pass.total = course.pass.total.max(course.pass.examined);
        if waiting.is_empty()
            && let Some((done, tree, from)) = next.take()
        {
            (course.done, course.tree, course.from) = (done, tree, from);
            self.keep(course)?;
        }
        Ok(Some(examined))
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

    /// Stored bytes of a dataset's records, with what its snapshots hold.
    fn stored(&self, dataset: DatasetId) -> u64 {
        self.pool.dataset(dataset).map_or(0, |of| of.usage().referenced + of.usage().held)
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
            pass: Pass {
                state,
                finished: Some(self.pool.store().world.clock.now()),
                ..course.pass.clone()
            },
            ..course.clone()
        };
        self.pool.set_note(NOTE, &ended.encode())?;
        *course = ended;
        self.pool.use_index(false);
        let how = if state == PassState::Done { "" } else { "stopped: " };
        let found = course.pass.found;
        let text = format!("{how}{} records shared, {} bytes freed", found.shared, found.freed);
        self.pool.store().event(Event::new(Class::DedupFinish).text(text));
        Ok(())
    }
}
