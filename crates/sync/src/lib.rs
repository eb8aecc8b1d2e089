//! Locks, and who gets them when.
//!
//! In release builds the locks are parking_lot's own. In debug builds they have the same API and behave the same,
//! unless the thread is a task of a [`schedule`]: then a seeded scheduler decides at each lock, each release and each
//! wait which task goes on, one at a time. So an interleaving of threads is replayed by its seed, and tasks
//! that wait for each other for ever are told as what they are, with what each of them waits for.

#[cfg(debug_assertions)]
mod controlled;
#[cfg(debug_assertions)]
mod order;
#[cfg(debug_assertions)]
pub mod schedule;

#[cfg(debug_assertions)]
pub use controlled::{
    Condvar, Mutex, MutexGuard, ReentrantMutex, ReentrantMutexGuard, RwLock, RwLockReadGuard,
    RwLockWriteGuard, WaitTimeoutResult, brief, patient, waits,
};
#[cfg(not(debug_assertions))]
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, ReentrantMutex, ReentrantMutexGuard, RwLock, RwLockReadGuard,
    RwLockWriteGuard, WaitTimeoutResult,
};

#[cfg(not(debug_assertions))]
mod unchecked {
    /// Nobody may wait for a device with this lock; debug builds see to it.
    pub fn brief<T>(lock: super::RwLock<T>) -> super::RwLock<T> {
        lock
    }
    /// The calling thread is about to wait for a device.
    #[inline(always)]
    pub fn waits() {}
    /// Does what waits for a device with a lock that is [`brief`].
    pub fn patient<T>(_why: &'static str, work: impl FnOnce() -> T) -> T {
        work()
    }
}
#[cfg(not(debug_assertions))]
pub use unchecked::{brief, patient, waits};
