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
    RwLockWriteGuard, WaitTimeoutResult,
};
#[cfg(not(debug_assertions))]
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, ReentrantMutex, ReentrantMutexGuard, RwLock, RwLockReadGuard,
    RwLockWriteGuard, WaitTimeoutResult,
};
