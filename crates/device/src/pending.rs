//! The two ends of one request: the device completes it, the caller waits for it.
//!
//! Nobody has to wait for ever. [`Pending::wait_for`] and [`wait_any`] give up after a while and leave the request
//! in flight: its buffers belong to the device until it is done with them, and an outcome that nobody wants any
//! more is dropped when it comes. A device that knows that it will not answer says so ([`Completion::hang`]); whoever
//! would wait a limited time then returns at once, as if the time had passed. Simulated devices hang like that,
//! so that tests of hung devices take no time.
//!
//! Time may be virtual ([`VirtualTime`]): then it passes only while somebody waits, and by just as much as that takes.
//!
//! A request that was started in a ring of its caller's thread ([`crate::Device::start`]) completes in that caller's
//! hands, when it waits. Once it has waited in vain, or lets go of the request, another thread does.

use crate::latency::Stopwatch;
use crate::{Clock, DeviceError, Outcome, SystemClock};
use larder_sync::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

struct Channel<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

struct State<T> {
    value: Option<T>,
    begun: bool,
    hangs: bool,
    watch: Option<Stopwatch>,
    /// Waker of a caller that waits for this request among others.
    waker: Option<Arc<Waker>>,
}

impl<T> Channel<T> {
    fn new(value: Option<T>) -> Arc<Self> {
        let state = State { value, begun: false, hangs: false, watch: None, waker: None };
        Arc::new(Self { state: Mutex::new(state), ready: Condvar::new() })
    }

    /// Tells everybody who waits that the state is another.
    fn tell(&self, state: MutexGuard<'_, State<T>>) {
        let waker = state.waker.clone();
        drop(state);
        self.ready.notify_all();
        if let Some(waker) = waker {
            *waker.woken.lock() = true;
            waker.ready.notify_all();
        }
    }
}

/// Rings when one of several requests completes or hangs.
#[derive(Default)]
struct Waker {
    woken: Mutex<bool>,
    ready: Condvar,
}

/// The device's end of a request, when who waits for it is to see to that. Dropped, it is left to another thread.
pub(crate) trait OtherEnd: Send + Sync {
    /// Waits at most `limit`, and completes it if the outcome is there.
    fn wait(self: Box<Self>, limit: Option<Duration>);
}

/// Time of a simulation, which passes only while somebody waits.
pub trait VirtualTime: Send + Sync {
    /// Lets it pass until requests complete, at most for `limit`: how much of that is left. None if none completes
    /// within it; then all of it has passed, unless it was [`Duration::MAX`].
    fn pass(&self, limit: Duration) -> Option<Duration>;
}

/// The caller's end of a request in flight.
pub struct Pending<T> {
    shared: Arc<Channel<T>>,
    on_taken: Option<Box<dyn FnOnce() + Send + Sync>>,
    /// The other end, when who waits is to see to it.
    own: Option<Box<dyn OtherEnd>>,
    /// Time that passes while somebody waits, if it is not the machine's.
    time: Option<Arc<dyn VirtualTime>>,
}

/// The device's end; dropping it unused leaves the request hanging, as a hung device does.
pub struct Completion<T>(Arc<Channel<T>>);

impl<T> Pending<T> {
    /// A request in flight and its completion.
    pub fn new() -> (Completion<T>, Self) {
        let shared = Channel::new(None);
        (Completion(Arc::clone(&shared)), Self { shared, on_taken: None, own: None, time: None })
    }

    /// A request that completed at once.
    pub fn done(value: T) -> Self {
        Self { shared: Channel::new(Some(value)), on_taken: None, own: None, time: None }
    }

    /// Calls `hook` in the thread that takes the outcome, just before it gets it; never, if nobody does.
    /// A simulation learns by it what its caller knows to be done.
    #[must_use]
    pub fn on_taken(self, hook: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { on_taken: Some(Box::new(hook)), ..self }
    }

    /// Has `watch` stopped when the request completes; now, if it has. Whoever gets the outcome finds it
    /// counted.
    #[must_use]
    pub fn timed(self, mut watch: Stopwatch) -> Self {
        let mut state = self.shared.state.lock();
        if state.value.is_some() {
            watch.done();
        } else {
            if state.begun {
                watch.begin();
            }
            state.watch = Some(watch);
        }
        drop(state);
        self
    }

    /// Has whoever waits let `time` pass.
    #[must_use]
    pub fn in_time(self, time: Arc<dyn VirtualTime>) -> Self {
        Self { time: Some(time), ..self }
    }

    /// Has whoever waits see to the other end.
    pub(crate) fn owned(self, own: Box<dyn OtherEnd>) -> Self {
        Self { own: Some(own), ..self }
    }

    /// Leaves the other end to another thread, if it was this one's.
    pub(crate) fn left(self) -> Self {
        Self { own: None, ..self }
    }

    /// Whether the outcome is there; of one that was started, whether it was when somebody waited last.
    pub fn is_done(&self) -> bool {
        if let Some(time) = &self.time {
            time.pass(Duration::ZERO);
        }
        self.is_here()
    }

    fn is_here(&self) -> bool {
        self.shared.state.lock().value.is_some()
    }

    /// Whether the device has taken the request up; before, it waits in a queue.
    pub fn has_begun(&self) -> bool {
        self.shared.state.lock().begun
    }

    /// Whether the device said that it hangs.
    pub fn hangs(&self) -> bool {
        self.shared.state.lock().hangs
    }

    /// Notes with the device's meter, if it is timed, that its caller goes other ways: the device owes an answer
    /// until the request completes ([`crate::Meter::owed`]).
    pub fn note_late(&self) {
        if let Some(watch) = &mut self.shared.state.lock().watch {
            watch.note_late();
        }
    }

    /// Waits for the outcome, for ever if need be.
    pub fn wait(mut self) -> T {
        self.own.take().into_iter().for_each(|own| own.wait(None));
        while let Some(time) = self.time.as_ref().filter(|_| !self.is_here())
            && time.pass(Duration::MAX).is_some()
        {}
        let mut state = self.shared.state.lock();
        while state.value.is_none() {
            self.shared.ready.wait(&mut state);
        }
        drop(state);
        self.take()
    }

    /// Waits at most `limit`; gives the request back when it is still in flight.
    pub fn wait_for(mut self, mut limit: Duration) -> Result<T, Self> {
        if let Some(own) = self.own.take() {
            let clock = SystemClock::new();
            own.wait(Some(limit));
            limit = limit.saturating_sub(clock.monotonic());
        }
        if let Some(time) = &self.time {
            let mut left = Some(limit);
            while let Some(rest) = left.filter(|_| !self.is_here() && !self.hangs()) {
                left = time.pass(rest);
            }
            limit = Duration::ZERO;
        }
        let mut state = self.shared.state.lock();
        let still = |state: &mut State<T>| state.value.is_none() && !state.hangs;
        self.shared.ready.wait_while_for(&mut state, still, limit);
        let ready = state.value.is_some();
        drop(state);
        if ready { Ok(self.take()) } else { Err(self) }
    }

    /// The outcome, which is there.
    fn take(mut self) -> T {
        let taken = self.shared.state.lock().value.take().expect("an outcome is taken once");
        self.on_taken.take().into_iter().for_each(|hook| hook());
        taken
    }
}

impl Pending<Outcome> {
    /// Waits at most `limit`; [`DeviceError::Overdue`] when the request is still in flight then.
    pub fn within(self, limit: Duration) -> Outcome {
        self.wait_for(limit).unwrap_or(Err(DeviceError::Overdue))
    }
}

/// Waits at most `limit` until one of `requests` is done, and tells which; none when the time has passed, or when
/// all of them hang. Not for requests that were started by [`crate::Device::start`].
pub fn wait_any<T>(requests: &[&Pending<T>], mut limit: Duration) -> Option<usize> {
    assert!(
        requests.iter().all(|request| request.own.is_none()),
        "who waits for all completes none by itself"
    );
    let waker = Arc::new(Waker::default());
    for request in requests {
        request.shared.state.lock().waker = Some(Arc::clone(&waker));
    }
    let mut out_of_time = false;
    loop {
        if let Some(done) = requests.iter().position(|request| request.is_done()) {
            return Some(done);
        }
        if out_of_time || requests.iter().all(|request| request.hangs()) {
            return None;
        }
        if let Some(time) = requests.iter().find_map(|request| request.time.as_ref()) {
            let left = time.pass(limit);
            out_of_time = left.is_none();
            limit = left.unwrap_or_default();
            continue;
        }
        let mut woken = waker.woken.lock();
        out_of_time = waker.ready.wait_while_for(&mut woken, |woken| !*woken, limit).timed_out();
        *woken = false;
    }
}

impl<T> Completion<T> {
    /// The device takes the request up: it waits in no queue any more.
    pub fn begin(&self) {
        let mut state = self.0.state.lock();
        state.begun = true;
        if let Some(watch) = &mut state.watch {
            watch.begin();
        }
    }

    /// The device hangs with this request: nobody need wait out a limit for it. The promise can be kept
    /// nevertheless, late as it is.
    pub fn hang(&self) {
        let mut state = self.0.state.lock();
        state.begun = true;
        state.hangs = true;
        self.0.tell(state);
    }

    /// Completes the request.
    pub fn complete(self, value: T) {
        let mut state = self.0.state.lock();
        if let Some(watch) = state.watch.take() {
            watch.done();
        }
        state.value = Some(value);
        state.hangs = false;
        self.0.tell(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_request_that_hangs_is_not_waited_for_and_can_still_complete() {
        let (completion, pending) = Pending::new();
        completion.hang();
        let Err(pending) = pending.wait_for(LONG) else { panic!("it hangs") };
        assert!(pending.hangs() && pending.has_begun() && !pending.is_done());
        completion.complete(7);
        assert!(!pending.hangs());
        assert_eq!(pending.wait_for(Duration::ZERO).ok(), Some(7));
    }

    #[test]
    fn of_several_requests_the_one_that_completes_is_told() {
        let (first, a) = Pending::new();
        let (second, b) = Pending::new();
        assert_eq!(wait_any(&[&a, &b], Duration::from_millis(1)), None);
        first.hang();
        std::thread::scope(|scope| {
            scope.spawn(|| second.complete(2));
            assert_eq!(wait_any(&[&a, &b], LONG), Some(1));
        });
        let (third, c) = Pending::<i32>::new();
        third.hang();
        assert_eq!(wait_any(&[&a, &c], LONG), None, "both hang");
        assert_eq!(wait_any::<i32>(&[], LONG), None, "nothing comes of nothing");
        first.complete(1);
        assert_eq!((wait_any(&[&a, &b], Duration::ZERO), a.wait(), b.wait()), (Some(0), 1, 2));
    }

    #[test]
    fn an_outcome_that_nobody_waits_for_any_more_is_dropped() {
        let (completion, pending) = Pending::new();
        let buffer = Arc::new(());
        assert!(pending.wait_for(Duration::ZERO).map_err(drop).is_err());
        completion.complete(Arc::clone(&buffer));
        assert_eq!(Arc::strong_count(&buffer), 1);
    }
}
