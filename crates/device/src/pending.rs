//! The two ends of one request: the device keeps the promise, the caller waits for it.

use crate::latency::Stopwatch;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

struct Shared<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

struct State<T> {
    value: Option<T>,
    begun: bool,
    watch: Option<Stopwatch>,
}

impl<T> Shared<T> {
    fn new(value: Option<T>) -> Arc<Self> {
        let state = State { value, begun: false, watch: None };
        Arc::new(Self { state: Mutex::new(state), ready: Condvar::new() })
    }
}

/// The caller's end of a request in flight.
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
    on_taken: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// The device's end; dropping it unkept leaves the request hanging, as a hung device does.
pub struct Promise<T>(Arc<Shared<T>>);

impl<T> Pending<T> {
    /// A request in flight and the promise of its outcome.
    pub fn new() -> (Promise<T>, Self) {
        let shared = Shared::new(None);
        (Promise(Arc::clone(&shared)), Self { shared, on_taken: None })
    }

    /// A request that completed at once.
    pub fn done(value: T) -> Self {
        Self { shared: Shared::new(Some(value)), on_taken: None }
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

    /// Waits for the outcome.
    pub fn wait(mut self) -> T {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(taken) = state.value.take() {
                drop(state);
                self.on_taken.take().into_iter().for_each(|hook| hook());
                return taken;
            }
            self.shared.ready.wait(&mut state);
        }
    }

    /// Waits at most `limit`; gives the request back when it is still in flight.
    pub fn wait_for(self, limit: Duration) -> Result<T, Self> {
        let mut state = self.shared.state.lock();
        self.shared.ready.wait_while_for(&mut state, |state| state.value.is_none(), limit);
        let ready = state.value.is_some();
        drop(state);
        if ready { Ok(self.wait()) } else { Err(self) }
    }
}

impl<T> Promise<T> {
    /// The device takes the request up: it waits in no queue any more.
    pub fn begin(&self) {
        let mut state = self.0.state.lock();
        state.begun = true;
        if let Some(watch) = &mut state.watch {
            watch.begin();
        }
    }

    /// Completes the request.
    pub fn keep(self, value: T) {
        let mut state = self.0.state.lock();
        if let Some(watch) = state.watch.take() {
            watch.done();
        }
        state.value = Some(value);
        drop(state);
        self.0.ready.notify_all();
    }
}
