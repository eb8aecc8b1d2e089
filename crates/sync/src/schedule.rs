//! A scheduler of tasks: one runs at a time, and who goes on is decided by a seed.
//!
//! Each task is a thread. A task may lose its turn at a *step*: before it takes a lock, after it gives one back, and
//! where it has to wait. Between two steps nobody else runs, so what is not guarded by locks is seen in whole steps
//! only. A task that waits is ready again when what it waits for was given back; when no task is ready and not all
//! have ended, that is a deadlock (or a wake-up that was lost), and the run ends with the places where each waits.
//!
//! Two ways to choose, since neither finds all: at random, more or less often; and by priorities that change at a few
//! random steps (PCT: Burckhardt, Kothari, Musuvathi, Nagarakatte, *A Randomized Scheduler with Probabilistic
//! Guarantees of Finding Bugs*, 2010), which finds what needs one task to rest while others do much.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Steps after which a run is taken to go on for ever.
const MAX_STEPS: u64 = 5_000_000;

/// Policy for choosing the next task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switching {
    /// At one step in so many, any task that is ready; else the same goes on.
    Random {
        /// At least 1.
        one_in: u64,
    },
    /// The one of the highest priority; at so many random steps, of about `length` in all, the running task's becomes
    /// the lowest.
    Priorities {
        /// Changes of priorities.
        changes: usize,
        /// Steps that a run is expected to take.
        length: u64,
    },
}

/// Plan of a run: the same plan for the same tasks gives the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Seed of every random choice.
    pub seed: u64,
    /// Policy.
    pub switching: Switching,
    /// The step at which the running task panics, or the next one that is no giving back.
    pub panic_at: Option<u64>,
}

/// A task: its name, for messages, and what it does.
pub type Task<'a> = (String, Box<dyn FnOnce() + Send + 'a>);

/// Outcome of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Steps in all.
    pub steps: u64,
    /// The task that the planned panic hit.
    pub panicked: Option<String>,
    /// Tasks that panicked by themselves, with what they said.
    pub failed: Vec<(String, String)>,
    /// Tasks that waited for each other, or went on for ever.
    pub stuck: Option<String>,
}

/// The payload of a planned panic.
struct Planned;
/// The payload that ends tasks of a run that is stuck.
struct Stopped;

/// A task's need: a lock, exclusive or shared, or a wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Exclusive,
    Shared,
    Wake,
    /// A wake-up, or the end of a time.
    WakeOrTime,
}

#[derive(Debug, Clone, Copy)]
enum Status {
    Ready,
    Waits { key: usize, want: Want, at: &'static Location<'static> },
    Ended,
}

struct State {
    tasks: Vec<Status>,
    running: usize,
    random: u64,
    switching: Switching,
    priorities: Vec<i64>,
    lowest: i64,
    changes: Vec<u64>,
    panic_at: Option<u64>,
    outcome: Outcome,
}

struct Run {
    names: Vec<String>,
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

/// The running thread's part in a run.
#[derive(Clone)]
pub(crate) struct Me {
    run: Arc<Run>,
    index: usize,
}

thread_local! {
    static ME: RefCell<Option<Me>> = const { RefCell::new(None) };
}

/// The task that this thread is, if it is one.
pub(crate) fn me() -> Option<Me> {
    ME.try_with(|me| me.borrow().clone()).ok().flatten()
}

/// A step of its own: others may go on here. Nothing outside of a run.
pub fn step() {
    if let Some(me) = me() {
        me.step();
    }
}

impl State {
    fn draw(&mut self, below: u64) -> u64 {
        // SplitMix64: Steele, Lea, Flood, 2014.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn is_ready(&self, task: usize) -> bool {
        matches!(self.tasks[task], Status::Ready)
    }

    /// The task that goes on; `None` when none can.
    fn choose(&mut self) -> Option<usize> {
        let ready: Vec<usize> = (0..self.tasks.len()).filter(|&task| self.is_ready(task)).collect();
        match self.switching {
            _ if ready.is_empty() => None,
            Switching::Random { one_in } => {
                if self.is_ready(self.running) && self.draw(one_in) > 0 {
                    return Some(self.running);
                }
                Some(ready[self.draw(ready.len() as u64) as usize])
            }
            Switching::Priorities { .. } => ready.into_iter().max_by_key(|&task| self.priorities[task]),
        }
    }

    /// Tasks that wait for this go on and try again.
    fn wake(&mut self, given_back: usize) {
        for task in &mut self.tasks {
            if matches!(task, Status::Waits { key, .. } if *key == given_back) {
                *task = Status::Ready;
            }
        }
    }

    /// Time passes when nobody can go on otherwise; false when nobody waits for that either.
    fn pass_time(&mut self) -> bool {
        let timed = |task: &&mut Status| matches!(task, Status::Waits { want: Want::WakeOrTime, .. });
        self.tasks.iter_mut().find(timed).map(|task| *task = Status::Ready).is_some()
    }
}

impl Run {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the turn to whoever is chosen; tells when everybody waits.
    fn pass_turn(&self, state: &mut State) {
        if state.outcome.stuck.is_some() {
            return;
        }
        let next = state.choose().or_else(|| state.pass_time().then(|| state.choose()).flatten());
        if let Some(next) = next {
            state.running = next;
            self.turns[next].notify_one();
        } else if state.tasks.iter().any(|task| !matches!(task, Status::Ended)) {
            let mut told = String::from("everybody waits:");
            for (name, task) in self.names.iter().zip(&state.tasks) {
                if let Status::Waits { want, at, key } = task {
                    let _ = write!(told, "\n  {name} at {at} for {key:x} ({want:?})");
                }
            }
            self.stop(state, told);
        }
    }

    fn stop(&self, state: &mut State, told: String) {
        state.outcome.stuck = Some(told);
        self.turns.iter().for_each(Condvar::notify_all);
    }
}

impl Me {
    /// A step: another may go on.
    pub fn step(&self) {
        let mut state = self.run.lock();
        let due = state.panic_at.is_some_and(|at| state.outcome.steps >= at);
        if due && state.outcome.panicked.is_none() && !std::thread::panicking() {
            state.outcome.panicked = Some(self.run.names[self.index].clone());
            drop(state);
            resume_unwind(Box::new(Planned));
        }
        self.go_on(state);
    }

    fn go_on<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        if std::thread::panicking() {
            return;
        }
        state.outcome.steps += 1;
        let steps = state.outcome.steps;
        if steps > MAX_STEPS && state.outcome.stuck.is_none() {
            let told = format!("it goes on for ever, {} last", self.run.names[self.index]);
            self.run.stop(&mut state, told);
        }
        if state.changes.contains(&steps) {
            state.lowest -= 1;
            let (index, lowest) = (self.index, state.lowest);
            state.priorities[index] = lowest;
        }
        self.run.pass_turn(&mut state);
        self.await_turn(state);
    }

    fn await_turn<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        while state.running != self.index && state.outcome.stuck.is_none() {
            let turn = &self.run.turns[self.index];
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(told) = &state.outcome.stuck {
            if std::thread::panicking() {
                // Nobody can be unwound who is being unwound.
                eprintln!("a destructor waits for ever: {told}");
                std::process::abort();
            }
            drop(state);
            resume_unwind(Box::new(Stopped));
        }
    }

    /// Takes what `attempt` gives, when it does.
    pub fn acquire<G>(
        &self,
        key: usize,
        want: Want,
        at: &'static Location<'static>,
        mut attempt: impl FnMut() -> Option<G>,
    ) -> G {
        self.step();
        loop {
            // As in parking_lot, who wants to read waits behind who waits to write.
            let behind = want == Want::Shared && self.run.lock().tasks.iter().any(|task| {
                matches!(task, Status::Waits { key: other, want: Want::Exclusive, .. } if *other == key)
            });
            if !behind && let Some(got) = attempt() {
                return got;
            }
            self.wait(key, want, at);
        }
    }

    /// Waits until this is given back, or notified.
    pub fn wait(&self, key: usize, want: Want, at: &'static Location<'static>) {
        let mut state = self.run.lock();
        state.tasks[self.index] = Status::Waits { key, want, at };
        self.run.pass_turn(&mut state);
        self.await_turn(state);
    }

    /// A lock was given back, or a condition notified.
    pub fn given_back(&self, key: usize) {
        let mut state = self.run.lock();
        state.wake(key);
        self.go_on(state);
    }

    /// The same without a step.
    pub fn wake(&self, key: usize) {
        self.run.lock().wake(key);
    }

    fn end(&self) {
        let mut state = self.run.lock();
        state.tasks[self.index] = Status::Ended;
        self.run.pass_turn(&mut state);
    }
}

/// Runs tasks to their ends, one at a time, as the plan has it.
///
/// # Panics
/// Without tasks.
pub fn run(plan: &Plan, tasks: Vec<Task<'_>>) -> Outcome {
    assert!(!tasks.is_empty(), "somebody has to run");
    let count = tasks.len();
    let mut state = State {
        tasks: vec![Status::Ready; count],
        running: 0,
        random: plan.seed,
        switching: plan.switching,
        priorities: (0..count as i64).collect(),
        lowest: 0,
        changes: Vec::new(),
        panic_at: plan.panic_at,
        outcome: Outcome::default(),
    };
    for task in (1..count).rev() {
        let other = state.draw(task as u64 + 1) as usize;
        state.priorities.swap(task, other);
    }
    if let Switching::Priorities { changes, length } = plan.switching {
        state.changes = (0..changes).map(|_| 1 + state.draw(length)).collect();
    }
    state.running = state.choose().expect("all are ready");
    let (names, bodies): (Vec<_>, Vec<_>) = tasks.into_iter().unzip();
    let turns = (0..count).map(|_| Condvar::new()).collect();
    let run = Arc::new(Run { names, state: Mutex::new(state), turns });
    std::thread::scope(|scope| {
        for (index, body) in bodies.into_iter().enumerate() {
            let me = Me { run: Arc::clone(&run), index };
            scope.spawn(move || {
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    me.await_turn(me.run.lock());
                    ME.set(Some(me.clone()));
                    body();
                }));
                ME.set(None);
                if let Err(payload) = ended
                    && !payload.is::<Planned>()
                    && !payload.is::<Stopped>()
                {
                    let said = (payload.downcast_ref::<String>().cloned())
                        .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
                        .unwrap_or_default();
                    me.run.lock().outcome.failed.push((me.run.names[index].clone(), said));
                }
                me.end();
            });
        }
    });
    std::mem::take(&mut run.lock().outcome)
}
