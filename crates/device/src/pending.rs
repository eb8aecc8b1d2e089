//! The two ends of one request: the device keeps the promise, the caller waits for it.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

struct Shared<T> {
    value: Mutex<Option<T>>,
    ready: Condvar,
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
        let shared = Arc::new(Shared { value: Mutex::new(None), ready: Condvar::new() });
        (Promise(Arc::clone(&shared)), Self { shared, on_taken: None })
    }

    /// A request that completed at once.
    pub fn done(value: T) -> Self {
        let shared = Arc::new(Shared { value: Mutex::new(Some(value)), ready: Condvar::new() });
        Self { shared, on_taken: None }
    }

    /// Calls `hook` in the thread that takes the outcome, just before it gets it; never, if nobody does.
    /// A simulation learns by it what its caller knows to be done.
    #[must_use]
    pub fn on_taken(self, hook: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { on_taken: Some(Box::new(hook)), ..self }
    }

    /// Waits for the outcome.
    pub fn wait(mut self) -> T {
        let mut value = self.shared.value.lock();
        loop {
            if let Some(taken) = value.take() {
                drop(value);
                self.on_taken.take().into_iter().for_each(|hook| hook());
                return taken;
            }
            self.shared.ready.wait(&mut value);
        }
    }

    /// Waits at most `limit`; gives the request back when it is still in flight.
    pub fn wait_for(self, limit: Duration) -> Result<T, Self> {
        let mut value = self.shared.value.lock();
        self.shared.ready.wait_while_for(&mut value, |value| value.is_none(), limit);
        let ready = value.is_some();
        drop(value);
        if ready { Ok(self.wait()) } else { Err(self) }
    }
}

impl<T> Promise<T> {
    /// Completes the request.
    pub fn keep(self, value: T) {
        *self.0.value.lock() = Some(value);
        self.0.ready.notify_all();
    }
}
