//! Requests that are answered when a disk with one arm would have, though they are performed at once.
//!
//! The owner of a request [`ask`](Paced::ask)s, performs it, and says so with [`Paced::done`]; a thread of its own
//! lives in [`Paced::answer`] and completes it when the disk would have. A request that takes longer than on the disk,
//! by [`SLACK`] or more, is late, and counted: a machine that has no time for all that is no such disk.

use crate::disk::{Disk, DiskShape, DiskWork};
use crate::{Clock, Completion, SystemClock};
use larder_sync::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// By so much a request may be answered later than by the disk.
const SLACK: Duration = Duration::from_micros(500);

/// Requests to a disk that was played, and how many were late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// All of them.
    pub asked: u64,
    /// Those that took longer than on the disk by half a millisecond or more.
    pub late: u64,
}

impl Kept {
    /// More than one in a hundred was late: what was measured says nothing.
    pub fn is_void(&self) -> bool {
        self.late > self.asked / 100
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, late } = *self;
        let part = late as f64 * 100.0 / asked.max(1) as f64;
        write!(f, "of {asked} requests {late} ({part:.1} %) took longer than on the disk")?;
        if self.is_void() { f.write_str(": what was measured says nothing") } else { Ok(()) }
    }
}

/// Requests that a disk holds back, with outcomes of this type. At first there is no disk.
pub struct Paced<T> {
    clock: SystemClock,
    state: Mutex<State<T>>,
    woken: Condvar,
}

struct State<T> {
    disk: Option<Disk>,
    shape: Option<DiskShape>,
    /// Requests that the disk knows, by number.
    held: HashMap<u64, Held<T>>,
    asked: u64,
    /// Those that were answered later than by the disk.
    late: u64,
    /// Numbers below are of a disk before this one.
    first: u64,
    closed: bool,
}

enum Held<T> {
    /// Being performed.
    Asked,
    /// The disk has answered, at this time.
    Due(Duration),
    /// Performed, and to be answered later.
    Done(Completion<T>, T),
}

impl<T> State<T> {
    fn new(shape: Option<DiskShape>, first: u64, closed: bool) -> Self {
        let disk = shape.map(Disk::new);
        Self { disk, shape, held: HashMap::new(), asked: 0, late: 0, first, closed }
    }
}

impl<T> Default for Paced<T> {
    fn default() -> Self {
        Self {
            clock: SystemClock::new(),
            state: Mutex::new(State::new(None, 0, false)),
            woken: Condvar::new(),
        }
    }
}

impl<T> Paced<T> {
    /// The disk that it is from now on, if any; how well the one before was kept to, if it is another.
    pub fn set(&self, shape: Option<DiskShape>) -> Option<Kept> {
        let state = self.state.lock();
        if state.closed || state.shape == shape { None } else { self.replace(state, shape, false) }
    }

    /// Nobody is held back any more, and [`Paced::answer`] returns; how well the disk was kept to.
    pub fn close(&self) -> Option<Kept> {
        self.replace(self.state.lock(), None, true)
    }

    fn replace(
        &self,
        mut state: MutexGuard<'_, State<T>>,
        shape: Option<DiskShape>,
        closed: bool,
    ) -> Option<Kept> {
        let kept = state.kept();
        let first = state.first + state.asked;
        let before = std::mem::replace(&mut *state, State::new(shape, first, closed));
        drop(state);
        for held in before.held.into_values() {
            if let Held::Done(completion, outcome) = held {
                completion.complete(outcome);
            }
        }
        self.woken.notify_all();
        kept
    }

    /// A request came; its number, if a disk answers it. It is then to be [`Paced::done`].
    pub fn ask(&self, work: DiskWork) -> Option<u64> {
        let mut state = self.state.lock();
        let number = state.first + state.asked;
        let now = self.clock.monotonic();
        state.disk.as_mut()?.ask(now, number, work);
        state.asked += 1;
        state.held.insert(number, Held::Asked);
        drop(state);
        self.woken.notify_all();
        Some(number)
    }

    /// A request was performed: it is completed now, or when the disk would have.
    pub fn done(&self, number: u64, completion: Completion<T>, outcome: T) {
        let mut state = self.state.lock();
        match state.held.remove(&number) {
            Some(Held::Asked) => {
                state.held.insert(number, Held::Done(completion, outcome));
                return;
            }
            Some(Held::Due(at)) => state.late += u64::from(self.clock.monotonic() > at + SLACK),
            Some(Held::Done(..)) | None => {}
        }
        drop(state);
        completion.complete(outcome);
    }

    /// The life of the thread that answers.
    pub fn answer(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            let now = self.clock.monotonic();
            let first = state.disk.as_ref().and_then(Disk::next).unwrap_or(now);
            let due = state.disk.as_mut().map(|disk| disk.answered(now)).unwrap_or_default();
            let mut done = Vec::new();
            for number in due {
                match state.held.remove(&number) {
                    Some(Held::Done(completion, outcome)) => {
                        done.push((completion, outcome));
                        // This thread got no turn.
                        state.late += u64::from(now > first + SLACK);
                    }
                    Some(_) => drop(state.held.insert(number, Held::Due(first.min(now)))),
                    None => {}
                }
            }
            if !done.is_empty() {
                drop(state);
                done.into_iter().for_each(|(completion, outcome)| completion.complete(outcome));
                state = self.state.lock();
                continue;
            }
            match state.disk.as_ref().and_then(Disk::next) {
                Some(next) => {
                    let wait = next.saturating_sub(now).max(Duration::from_micros(1));
                    self.woken.wait_for(&mut state, wait);
                }
                None => self.woken.wait(&mut state),
            }
        }
    }
}

impl<T> State<T> {
    fn kept(&self) -> Option<Kept> {
        let Self { asked, late, .. } = *self;
        (self.disk.is_some() && asked > 0).then_some(Kept { asked, late })
    }
}
