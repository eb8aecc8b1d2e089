//! The scrub: everything that is allocated is read and proven, and what is wrong is reconstructed.
//!
//! First come labels and rings of roots ([`labels`]), then all segments in the order of their ids, those of the
//! tables and the log as well: every column of every stripe, with parity and spare copies that reads never touch, and
//! the descriptors ([`Reconstruction`]). Blocks need no check of their own: the sums of stripes prove every byte.
//!
//! A scrub goes through the segments of its beginning; those that are freed before it comes to them are left out.
//! Stripes that are not durable yet are left alone. A segment that was wholly read, and is sound now, gets the time of
//! the scrub; [`ScrubSince::Before`] passes over those with a later one.
//!
//! Its progress, and the results of the last few, are notes of the pool: a scrub goes on after an export, or after a
//! crash from where the last commit with such a note left it. Reconstructing twice does no harm.
//!
//! # Locks
//! That of the work, held for a step, outermost of all; state that others ask for is behind a short one of its own.

mod labels;

use crate::damage::DamageWalker;
use crate::note::NoteReader;
use crate::read_repair::ReadRepair;
use crate::reconstruct::{Reconstruction, Targets};
use larder_format::segment::{SegmentKind, SegmentState};
use larder_format::{SegmentId, Timestamp};
use larder_pool::Lost;
use larder_pool::Pool;
use larder_pool::Resting;
use larder_store::Store;
use larder_store::segments::SegmentEntry;
use larder_store::{Class, Event};
use larder_store::{PoolError, Result};
use larder_sync::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The notes that keep the scrub under way and the results.
const COURSE: &str = "scrub";
const RESULTS: &str = "scrubs";
/// Results that are kept.
const KEPT: usize = 10;
/// The progress becomes a note after so many segments, or after [`TIME_PER_NOTE`].
const SEGMENTS_PER_NOTE: u64 = 64;
/// Bytes of a segment that are gone through between two looks at whether the next one can be started.
const PIECE: u64 = 8 << 20;
/// Lost ranges that are looked for among those that were healed.
const LOST: usize = 4096;
/// Blocks that are healed between two looks at whether a scrub is to go on.
const HEALED: usize = 64;
const TIME_PER_NOTE: Duration = Duration::from_secs(5);

/// Scope of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubSince {
    /// Everything.
    All,
    /// Segments that were last proven before then, or never; seconds since 1970.
    Before(i64),
}

/// Progress of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubProgress {
    /// When it began.
    pub started: Timestamp,
    /// It waits until it is started again.
    pub paused: bool,
    /// Bytes gone through, over all columns.
    pub examined: u64,
    /// Bytes to go through, estimated; never less than `examined`.
    pub total: u64,
    /// Bytes rewritten.
    pub repaired: u64,
    /// Ranges that nothing can give back.
    pub lost: u64,
}

/// Outcome of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubOutcome {
    /// It went through everything that it was to.
    Done,
    /// It was stopped.
    Stopped,
}

/// Result of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubResult {
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub finished: Timestamp,
    /// Bytes gone through, over all columns.
    pub examined: u64,
    /// Bytes rewritten.
    pub repaired: u64,
    /// Ranges that nothing can give back.
    pub lost: u64,
    /// Its outcome.
    pub outcome: ScrubOutcome,
}

/// A scrub under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScrubCourse {
    started: Timestamp,
    /// Segments that were proven at this time or later are passed over; seconds since 1970.
    before: Option<i64>,
    /// The next segment, and the first that came after it began.
    next: SegmentId,
    until: SegmentId,
    examined: u64,
    repaired: u64,
    lost: u64,
    paused: bool,
}

impl ScrubCourse {
    fn encode(&self) -> String {
        let before = self.before.map_or("-".into(), |secs| secs.to_string());
        let Self { started, next, until, examined, repaired, lost, paused, .. } = self;
        let (secs, nanos, paused) = (started.secs, started.nanos, u8::from(*paused));
        format!("{secs} {nanos} {before} {next} {until} {examined} {repaired} {lost} {paused}")
    }

    fn decode(text: &str) -> Option<Self> {
        let mut note = NoteReader::new(text);
        Some(Self {
            started: note.time()?,
            before: match note.word()? {
                "-" => None,
                secs => Some(secs.parse().ok()?),
            },
            next: SegmentId::new(note.number()?),
            until: SegmentId::new(note.number()?),
            examined: note.number()?,
            repaired: note.number()?,
            lost: note.number()?,
            paused: note.number()? == 1,
        })
    }

    /// Whether it goes through a segment. That one was proven after this scrub began is what a clock said that was
    /// wrong, then or now: it is not believed.
    fn wants(&self, entry: &SegmentEntry) -> bool {
        let is_old =
            |before: i64| i64::try_from(entry.verified).is_ok_and(|at| at < before || at > self.started.secs);
        entry.state != SegmentState::Freed && self.before.is_none_or(is_old)
    }
}

impl ScrubResult {
    fn encode(&self) -> String {
        let Self { started, finished, examined, repaired, lost, outcome } = self;
        let (from, to, done) = (started.secs, finished.secs, u8::from(*outcome == ScrubOutcome::Done));
        let nanos = (started.nanos, finished.nanos);
        format!("{from} {} {to} {} {examined} {repaired} {lost} {done}", nanos.0, nanos.1)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut note = NoteReader::new(text);
        Some(Self {
            started: note.time()?,
            finished: note.time()?,
            examined: note.number()?,
            repaired: note.number()?,
            lost: note.number()?,
            outcome: if note.number()? == 1 { ScrubOutcome::Done } else { ScrubOutcome::Stopped },
        })
    }
}

/// See the module's text.
pub struct Scrub {
    pool: Arc<Pool>,
    store: Arc<Store>,
    repairs: Arc<ReadRepair>,
    damage: Arc<DamageWalker>,
    work: Mutex<Work>,
    shown: Mutex<Shown>,
}

#[derive(Default)]
struct Work {
    /// The segment under way, and what of its tally has been added up.
    reconstruction: Option<Reconstruction>,
    /// The segment after it: it is being read while the last stripes of the other are proven.
    next: Option<Reconstruction>,
    counted: (u64, u64, u64),
    /// Labels have been looked at, in this import.
    labels: bool,
    /// Some of the ranges that were found lost.
    lost: Vec<Lost>,
    /// Segments since the last note, and when that was.
    unnoted: u64,
    noted_at: Duration,
}

#[derive(Default)]
struct Shown {
    /// The note of the last import was looked at.
    read: bool,
    course: Option<ScrubCourse>,
}

impl Work {
    /// Lets go of what is under way.
    fn clear(&mut self) {
        self.lost.clear();
        self.let_go();
        self.labels = false;
    }

    /// Lets go of the segments under way.
    fn let_go(&mut self) {
        (self.reconstruction, self.next, self.counted) = (None, None, (0, 0, 0));
    }
}

impl Scrub {
    pub(crate) fn new(pool: &Arc<Pool>, repairs: &Arc<ReadRepair>, damage: &Arc<DamageWalker>) -> Self {
        let (pool, store) = (Arc::clone(pool), Arc::clone(pool.store()));
        let (repairs, damage) = (Arc::clone(repairs), Arc::clone(damage));
        Self { pool, store, repairs, damage, work: Mutex::default(), shown: Mutex::default() }
    }

    /// Begins a scrub, or goes on with one that is paused, whatever that goes through.
    ///
    /// # Errors
    /// [`PoolError::Busy`] when one is under way; when the pool cannot be written.
    pub fn start(&self, what: ScrubSince) -> Result<()> {
        self.store.check_writable()?;
        let mut work = self.work.lock();
        let course = match self.course() {
            Some(course) if course.paused => ScrubCourse { paused: false, ..course },
            Some(_) => return Err(PoolError::Busy("a scrub is under way".into())),
            None => {
                work.clear();
                // Healed before: of no scrub.
                drop(self.repairs.take_healed());
                ScrubCourse {
                    started: self.store.world.clock.now(),
                    before: match what {
                        ScrubSince::All => None,
                        ScrubSince::Before(secs) => Some(secs),
                    },
                    next: SegmentId::new(0),
                    until: self.store.core.lock().next_segment,
                    examined: 0,
                    repaired: 0,
                    lost: 0,
                    paused: false,
                }
            }
        };
        self.shown.lock().course = Some(course);
        self.store.event(Event::new(Class::ScrubStart));
        self.note_course(&mut work)
    }

    /// Has the scrub wait, also over imports, until it is started again.
    ///
    /// # Errors
    /// [`PoolError::NotFound`] when none is under way; when the pool cannot be written.
    pub fn pause(&self) -> Result<()> {
        self.store.check_writable()?;
        let mut work = self.work.lock();
        self.course().ok_or_else(|| PoolError::NotFound("a scrub under way".into()))?;
        if let Some(course) = &mut self.shown.lock().course {
            course.paused = true;
        }
        // It may be for long: the segment under way is let go, and begun anew.
        self.uncount(&work);
        work.let_go();
        self.note_course(&mut work)
    }

    /// Ends the scrub.
    ///
    /// # Errors
    /// As [`Scrub::pause`].
    pub fn stop(&self) -> Result<()> {
        self.store.check_writable()?;
        let mut work = self.work.lock();
        let course = self.course().ok_or_else(|| PoolError::NotFound("a scrub under way".into()))?;
        self.end_scrub(&mut work, course, ScrubOutcome::Stopped)
    }

    /// Goes on for about `bytes`; true while there is more, and it is not paused.
    ///
    /// # Errors
    /// When the pool is suspended, or a commit fails.
    pub fn step(&self, bytes: u64) -> Result<bool> {
        self.store.check_writable()?;
        let mut work = self.work.lock();
        let mut left = bytes.max(1);
        while left > 0 {
            let Some(course) = self.course().filter(|course| !course.paused) else { return Ok(false) };
            if !work.labels {
                let (examined, repaired) = self.scrub_labels()?;
                work.labels = true;
                if let Some(course) = &mut self.shown.lock().course {
                    // Once a scrub, however often it was interrupted.
                    course.examined += if course.next.get() == 0 { examined } else { 0 };
                    course.repaired += repaired;
                }
                left = left.saturating_sub(examined);
                continue;
            }
            if work.reconstruction.is_none() {
                let started = work.next.take();
                let Some(reconstruction) = started.or_else(|| self.next_to_scrub(&course)) else {
                    if course.lost > 0 && self.damage.heal_step(HEALED)? {
                        return Ok(true);
                    }
                    let course = self.with_healed(&work, course);
                    self.end_scrub(&mut work, course, ScrubOutcome::Done)?;
                    return Ok(false);
                };
                (work.reconstruction, work.counted) = (Some(reconstruction), (0, 0, 0));
            }
            let Work { reconstruction: Some(reconstruction), next, counted, lost, .. } = &mut *work else {
                continue;
            };
            reconstruction.start(&self.pool);
            if next.is_none() && reconstruction.is_asked() {
                *next =
                    self.next_to_scrub(&ScrubCourse { next: reconstruction.segment_id().next(), ..course });
                next.iter_mut().for_each(|next| next.start(&self.pool));
            }
            let stepped = reconstruction.step(&self.pool, left.min(PIECE));
            let tally = reconstruction.tally();
            let now = (tally.examined, tally.repaired, tally.lost.len() as u64);
            let before = std::mem::replace(counted, now);
            left = left.saturating_sub((now.0 - before.0).max(1));
            let done = stepped?;
            if let Some(course) = &mut self.shown.lock().course {
                course.examined += now.0 - before.0;
                course.repaired += now.1 - before.1;
                course.lost += now.2 - before.2;
                if done {
                    course.next = reconstruction.segment_id().next();
                }
            }
            if done {
                self.scrubbed(reconstruction, course.started);
                let found = reconstruction.tally().lost.iter();
                lost.extend(found.take(LOST.saturating_sub(lost.len())).cloned());
                (work.reconstruction, work.counted) = (None, (0, 0, 0));
                work.unnoted += 1;
                let now = self.store.world.clock.monotonic();
                if work.unnoted >= SEGMENTS_PER_NOTE || now.saturating_sub(work.noted_at) >= TIME_PER_NOTE {
                    self.note_course(&mut work)?;
                }
            }
        }
        Ok(true)
    }

    /// The scrub under way or paused.
    pub fn progress(&self) -> Option<ScrubProgress> {
        let course = self.course()?;
        let core = self.store.core.lock();
        let readahead = core.entries.range(course.next..course.until.max(course.next));
        let left: u64 = readahead
            .filter(|(_, entry)| course.wants(entry))
            .map(|(_, entry)| u64::from(entry.height) * entry.segment.layout.columns() as u64)
            .sum();
        let ScrubCourse { started, examined, repaired, lost, paused, .. } = course;
        Some(ScrubProgress { started, paused, examined, total: examined + left, repaired, lost })
    }

    /// Result of the last one, on whichever host.
    pub fn result(&self) -> Option<ScrubResult> {
        self.results().pop()
    }

    /// Results of the last few, the latest at the end.
    pub fn results(&self) -> Vec<ScrubResult> {
        let note = self.pool.note(RESULTS).unwrap_or_default();
        note.split(';').filter_map(ScrubResult::decode).collect()
    }

    /// The scrub under way, at first as the last import left it.
    fn course(&self) -> Option<ScrubCourse> {
        let mut shown = self.shown.lock();
        if !shown.read {
            shown.read = true;
            shown.course = self.pool.note(COURSE).and_then(|note| ScrubCourse::decode(&note));
        }
        shown.course
    }

    /// The next segment that a scrub goes through.
    fn next_to_scrub(&self, course: &ScrubCourse) -> Option<Reconstruction> {
        let durable = self.store.durable_commit();
        let core = self.store.core.lock();
        let mut readahead =
            core.entries.range(course.next..course.until.max(course.next)).map(|(_, entry)| entry);
        let found = readahead.find(|entry| {
            // The log of an import before: it was replayed, and its end may be torn.
            let old_log =
                entry.segment.kind == SegmentKind::Log && entry.segment.incarnation != core.incarnation;
            course.wants(entry) && entry.segment.birth <= durable && !old_log
        });
        found.map(|entry| Reconstruction::new(Arc::clone(&entry.segment), entry.height, Targets::All))
    }

    /// A segment was gone through.
    fn scrubbed(&self, reconstruction: &Reconstruction, started: Timestamp) {
        self.repairs.was_reconstructed(reconstruction);
        if !reconstruction.is_proven() {
            return;
        }
        self.store.core.lock().entries.change(reconstruction.segment_id(), |entry| {
            // It may have got stripes meanwhile.
            if entry.height == reconstruction.end() {
                entry.verified = started.secs.max(0) as u64;
                entry.dirty = true;
            }
        });
    }

    /// The segment under way counts as not begun.
    fn uncount(&self, work: &Work) {
        if let Some(course) = &mut self.shown.lock().course {
            course.examined -= work.counted.0;
            course.lost -= work.counted.2;
        }
    }

    /// Keeps how far the scrub is; durable with the next commit.
    fn note_course(&self, work: &mut Work) -> Result<()> {
        let mut course = self.shown.lock().course;
        if let Some(course) = &mut course {
            // A segment under way is begun anew.
            course.examined -= work.counted.0;
            course.lost -= work.counted.2;
        }
        (work.unnoted, work.noted_at) = (0, self.store.world.clock.monotonic());
        self.pool.set_note(COURSE, &course.map(|course| course.encode()).unwrap_or_default())
    }

    /// Without the ranges that were healed since they were found.
    fn with_healed(&self, work: &Work, course: ScrubCourse) -> ScrubCourse {
        if course.lost == 0 {
            return course;
        }
        let (healed, bytes) = self.repairs.take_healed();
        let count = work.lost.iter().filter(|lost| healed.contains(lost)).count() as u64;
        ScrubCourse { lost: course.lost.saturating_sub(count), repaired: course.repaired + bytes, ..course }
    }

    /// The scrub is over; with the commit, what it rewrote is durable, and what came of it.
    fn end_scrub(&self, work: &mut Work, course: ScrubCourse, outcome: ScrubOutcome) -> Result<()> {
        work.clear();
        self.shown.lock().course = None;
        if outcome == ScrubOutcome::Done {
            self.store.suspects.all_seen();
        }
        let ScrubCourse { started, examined, repaired, lost, .. } = course;
        let finished = self.store.world.clock.now();
        let result = ScrubResult { started, finished, examined, repaired, lost, outcome };
        let mut results = self.results();
        results.push(result);
        let kept = results.len().saturating_sub(KEPT);
        let note: Vec<String> = results[kept..].iter().map(ScrubResult::encode).collect();
        // Losses may have come back with a device.
        self.pool.damage().recheck();
        let text = format!("{repaired} bytes repaired, {lost} ranges lost");
        self.store.event(Event::new(Class::ScrubFinish).text(text));
        self.pool.set_note(RESULTS, &note.join(";"))?;
        self.note_course(work)?;
        self.pool.commit().map(drop)
    }
}

impl Resting for Scrub {
    fn let_go(&self, is_freed: &dyn Fn(SegmentId) -> bool) {
        let Some(mut work) = self.work.try_lock() else { return };
        work.next.take_if(|next| is_freed(next.segment_id()));
        if work.reconstruction.take_if(|reconstruction| is_freed(reconstruction.segment_id())).is_some() {
            self.uncount(&work);
            work.counted = (0, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_and_its_result_come_back_from_their_notes() {
        let started = Timestamp { secs: 1_800_000_000, nanos: 17 };
        for (before, paused) in [(None, true), (Some(12), false)] {
            let (next, until) = (SegmentId::new(3), SegmentId::new(99));
            let course =
                ScrubCourse { started, before, next, until, examined: 4, repaired: 5, lost: 6, paused };
            assert_eq!(ScrubCourse::decode(&course.encode()), Some(course));
        }
        let finished = Timestamp { secs: 1_800_000_060, nanos: 0 };
        for outcome in [ScrubOutcome::Done, ScrubOutcome::Stopped] {
            let result = ScrubResult { started, finished, examined: 1, repaired: 2, lost: 3, outcome };
            assert_eq!(ScrubResult::decode(&result.encode()), Some(result));
        }
        for bad in ["", "1 2", "x 2 - 3 4 5 6 7 0", "1 2 3 4 5 6 7 nine"] {
            assert_eq!((ScrubCourse::decode(bad), ScrubResult::decode(bad)), (None, None));
        }
    }
}
