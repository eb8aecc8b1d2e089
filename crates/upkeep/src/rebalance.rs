//! Rebalancing: segments that are narrower than they could be, or on groups that are fuller than others, are written
//! anew.
//!
//! A group that got devices keeps what it has as it is: narrow segments survive as much as wide ones. But they take
//! more room, leave the new devices idle, and where the old ones are full nothing wide can be opened. So it empties
//! them one by one, as the cleaner does, the narrowest first, and writes what lives there as wide as the group can have
//! it now. It takes those alone that were opened before it began: so it ends, whatever is written meanwhile. Which of
//! them gain is seen from the free slots each time ([`larder_store::core::Core::poor`]): nothing is planned.
//!
//! A note of the pool keeps where it began and what it moved; it goes on after an export or a crash. Where nothing can
//! be moved any more, for want of room, it ends and says so.

use crate::note::NoteReader;
use larder_format::{SegmentId, Timestamp};
use larder_pool::Pool;
use larder_store::{Class, Event, PoolError, Result, Store};
use larder_sync::Mutex;
use std::sync::Arc;
use std::time::Duration;

const NOTE: &str = "rebalance";
/// Interval between notes of its progress.
const TIME_PER_NOTE: Duration = Duration::from_secs(5);
/// Commits after which the slots of what was moved are free: the one that frees it, and two more.
const COMMITS_TO_FREE: usize = 3;
/// Commits in a row that brought no room to move anything to.
const TRIES: u32 = 8;

/// Seconds from the end of one until another begins by itself.
const SELDOM: i64 = 6 * 3600;
/// Part of what is stored that one has to move to begin by itself.
const PAYS: u64 = 20;

/// State of a rebalance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebalanceState {
    /// It goes on.
    Active,
    /// Nothing would gain any more.
    Done,
    /// Something would, but there is no room to move it to.
    NoRoom,
    /// Somebody stopped it.
    Stopped,
}

/// The last rebalance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebalanceProgress {
    /// Its state.
    pub state: RebalanceState,
    /// When it began.
    pub began: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Bytes moved, before copies and parity.
    pub moved: u64,
    /// Bytes that are still to be moved, as it looks now.
    pub left: u64,
    /// The most that it moves in a second, bytes; 0, whatever the devices take.
    pub rate: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Course {
    state: RebalanceState,
    /// Segments from here on were opened later.
    below: SegmentId,
    began: Timestamp,
    ended: Timestamp,
    moved: u64,
    rate: u64,
}

impl Course {
    fn encode(&self) -> String {
        let Self { state, below, began, ended, moved, rate } = self;
        let state = match state {
            RebalanceState::Active => 0,
            RebalanceState::Done => 1,
            RebalanceState::NoRoom => 2,
            RebalanceState::Stopped => 3,
        };
        let (began, ended) = ([began.secs, began.nanos.into()], [ended.secs, ended.nanos.into()]);
        let [a, b] = [began, ended].map(|[secs, nanos]| format!("{secs} {nanos}"));
        format!("{state} {below} {a} {b} {moved} {rate}")
    }

    fn decode(text: &str) -> Option<Self> {
        let mut note = NoteReader::new(text);
        Some(Self {
            state: match note.number()? {
                0 => RebalanceState::Active,
                1 => RebalanceState::Done,
                2 => RebalanceState::NoRoom,
                3 => RebalanceState::Stopped,
                _ => return None,
            },
            below: SegmentId::new(note.number()?),
            began: note.time()?,
            ended: note.time()?,
            moved: note.number()?,
            rate: note.number()?,
        })
    }
}

/// See the module's text.
pub struct Rebalance {
    pool: Arc<Pool>,
    store: Arc<Store>,
    progress: Mutex<Progress>,
    /// Held while the note is written, so that the last one is of the state as it is.
    noting: Mutex<()>,
}

#[derive(Default)]
struct Progress {
    /// As far as the note was looked at.
    course: Option<Option<Course>>,
    /// When the note was written.
    noted: Duration,
    /// When the next step may be taken.
    due: Duration,
    /// Commits since something moved.
    vain: u32,
}

impl Rebalance {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Self {
            pool: Arc::clone(pool),
            store: Arc::clone(pool.store()),
            progress: Mutex::default(),
            noting: Mutex::default(),
        }
    }

    fn course(&self) -> Option<Course> {
        let mut progress = self.progress.lock();
        let read = || self.pool.note(NOTE).and_then(|note| Course::decode(&note));
        *progress.course.get_or_insert_with(read)
    }

    /// A commit, unless there is no room for all that it would store.
    fn commit_what_can(&self) -> Result<()> {
        match self.pool.commit() {
            Err(PoolError::NoSpace) => Ok(()),
            committed => committed.map(drop),
        }
    }

    fn keep(&self, course: Course) -> Result<()> {
        let _mine = self.noting.lock();
        let before = self.course();
        self.progress.lock().course = Some(Some(course));
        let noted = self.pool.set_note(NOTE, &course.encode());
        if noted.is_err() {
            self.progress.lock().course = Some(before);
        }
        noted
    }

    /// Begins, with at most `rate` bytes a second unless that is 0.
    ///
    /// # Errors
    /// [`PoolError::Busy`] while there is one; when the pool cannot be written.
    pub fn start(&self, rate: u64) -> Result<()> {
        self.store.check_writable()?;
        if self.is_active() {
            return Err(PoolError::Busy("the pool is being rebalanced".into()));
        }
        // So that what is open becomes wide as well; and the map knows of all that is there.
        self.pool.close_narrow();
        self.commit_what_can()?;
        let below = self.store.core.lock().next_segment;
        let now = self.store.world.clock.now();
        self.store.event(Event::new(Class::StateChange).text("a rebalance begins"));
        {
            let mut progress = self.progress.lock();
            (progress.vain, progress.due) = (0, Duration::ZERO);
        }
        self.keep(Course { state: RebalanceState::Active, below, began: now, ended: now, moved: 0, rate })
    }

    /// Begins if `autorebalance` asks for it, and it moves more than a little; every six hours at most.
    ///
    /// # Errors
    /// As [`Rebalance::start`].
    pub fn begin_by_itself(&self) -> Result<()> {
        let is_wanted =
            || self.pool.pool_properties().get("autorebalance").is_some_and(|value| value == "on");
        if self.store.is_read_only() || self.is_active() || !is_wanted() {
            return Ok(());
        }
        let now = self.store.world.clock.now().secs;
        let rests = self.course().is_some_and(|last| (0..SELDOM).contains(&(now - last.ended.secs)));
        let (used, _) = self.store.raw_space();
        if rests || self.wanted() < used / PAYS {
            return Ok(());
        }
        self.start(0)
    }

    /// Ends it where it is.
    ///
    /// # Errors
    /// [`PoolError::NotFound`] when there is none; when the pool cannot be written.
    pub fn stop(&self) -> Result<()> {
        self.store.check_writable()?;
        let course = self.course().filter(|course| course.state == RebalanceState::Active);
        let course = course.ok_or_else(|| PoolError::NotFound("a rebalance under way".into()))?;
        self.end(course, RebalanceState::Stopped, "the rebalance was stopped")
    }

    /// Unless it was ended, or another began.
    fn end_if_same(&self, course: Course, state: RebalanceState, text: &str) -> Result<()> {
        let is_same = |known: Course| known.began == course.began && known.state == RebalanceState::Active;
        if self.course().is_some_and(is_same) { self.end(course, state, text) } else { Ok(()) }
    }

    fn end(&self, course: Course, state: RebalanceState, text: &str) -> Result<()> {
        self.store.event(Event::new(Class::StateChange).text(text));
        self.keep(Course { state, ended: self.store.world.clock.now(), ..course })
    }

    /// Whether one is under way.
    pub fn is_active(&self) -> bool {
        !self.store.is_read_only()
            && self.course().is_some_and(|course| course.state == RebalanceState::Active)
    }

    /// Whether [`Rebalance::step`] has something to do now.
    pub fn is_due(&self) -> bool {
        self.is_active() && self.store.world.clock.monotonic() >= self.progress.lock().due
    }

    /// Bytes that one would move.
    pub fn wanted(&self) -> u64 {
        let core = self.store.core.lock();
        core.poor_bytes(core.next_segment)
    }

    /// The one under way, or the last one.
    pub fn progress(&self) -> Option<RebalanceProgress> {
        let Course { state, below, began, ended, moved, rate } = self.course()?;
        let is_active = state == RebalanceState::Active;
        let left = if is_active { self.store.core.lock().poor_bytes(below) } else { 0 };
        let ended = (!is_active).then_some(ended);
        Some(RebalanceProgress { state, began, ended, moved, left, rate })
    }

    /// Moves about `bytes`; the bytes moved, or none when there is nothing to do now.
    ///
    /// # Errors
    /// When the pool is suspended, or a commit fails.
    pub fn step(&self, bytes: u64) -> Result<Option<u64>> {
        let Some(mut course) = self.course().filter(|_| self.is_due()) else { return Ok(None) };
        let (mut moved, mut spent, mut waits) = (0, 0, false);
        while spent < bytes && !waits {
            match self.pool.clean_poor(course.below)? {
                Some(some) => (moved, spent) = (moved + some, spent + some.max(4096)),
                None => waits = true,
            }
        }
        course.moved += moved;
        let now = self.store.world.clock.monotonic();
        if moved > 0 {
            self.progress.lock().vain = 0;
        }
        if waits {
            if self.store.core.lock().poor(course.below).is_none() {
                (0..COMMITS_TO_FREE).try_for_each(|_| self.commit_what_can())?;
                self.end_if_same(course, RebalanceState::Done, "the rebalance is done")?;
                return Ok(Some(moved));
            }
            self.commit_what_can()?;
            let vain = {
                let mut progress = self.progress.lock();
                progress.vain += u32::from(moved == 0);
                progress.vain
            };
            if vain > TRIES {
                let text = "the rebalance ends: there is no room to move more to";
                self.end_if_same(course, RebalanceState::NoRoom, text)?;
                return Ok(Some(moved));
            }
        }
        let _mine = self.noting.lock();
        let text = {
            let progress = &mut *self.progress.lock();
            if course.rate > 0 {
                progress.due = now + Duration::from_secs_f64(moved as f64 / course.rate as f64);
            }
            // It may have been stopped meanwhile.
            let known = progress.course.iter_mut().flatten().find(|known| known.began == course.began);
            known.and_then(|known| {
                known.moved = course.moved;
                let is_due = now.saturating_sub(progress.noted) >= TIME_PER_NOTE;
                is_due.then(|| {
                    progress.noted = now;
                    known.encode()
                })
            })
        };
        text.map_or(Ok(()), |text| self.pool.set_note(NOTE, &text))?;
        Ok(Some(moved))
    }
}
