//! The two ends of one request: the device keeps the promise, the caller waits for it.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

struct Shared<T> {
    value: Mutex<Option<T>>,
    ready: Condvar,
}

/// The caller's end of a request in flight.
pub struct Pending<T>(Arc<Shared<T>>);

/// The device's end; dropping it unkept leaves the request hanging, as a hung device does.
pub struct Promise<T>(Arc<Shared<T>>);

impl<T> Pending<T> {
    /// A request in flight and the promise of its outcome.
    pub fn new() -> (Promise<T>, Self) {
        let shared = Arc::new(Shared { value: Mutex::new(None), ready: Condvar::new() });
        (Promise(Arc::clone(&shared)), Self(shared))
    }

    /// A request that completed at once.
    pub fn done(value: T) -> Self {
        Self(Arc::new(Shared { value: Mutex::new(Some(value)), ready: Condvar::new() }))
    }

    /// Waits for the outcome.
    pub fn wait(self) -> T {
        let mut value = self.0.value.lock();
        loop {
            match value.take() {
                Some(value) => return value,
                None => self.0.ready.wait(&mut value),
            }
        }
    }

    /// Waits at most `limit`; gives the request back when it is still in flight.
    pub fn wait_for(self, limit: Duration) -> Result<T, Self> {
        let mut value = self.0.value.lock();
        if value.is_none() {
            self.0.ready.wait_for(&mut value, limit);
        }
        match value.take() {
            Some(value) => Ok(value),
            None => {
                drop(value);
                Err(self)
            }
        }
    }
}

impl<T> Promise<T> {
    /// Completes the request.
    pub fn keep(self, value: T) {
        *self.0.value.lock() = Some(value);
        self.0.ready.notify_all();
    }
}
