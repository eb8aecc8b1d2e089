//! parking_lot's locks, taken in the order that a schedule has decided, where the thread is a task of one.

use crate::order;
use crate::schedule::{Want, me};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::Duration;

/// Names a lock in a schedule.
fn key<T: ?Sized>(lock: &T) -> usize {
    std::ptr::from_ref(lock).cast::<()>() as usize
}

/// A guard of parking_lot's, and the lock to be told of when it goes.
struct Held<G> {
    guard: Option<G>,
    key: usize,
}

impl<G> Held<G> {
    fn get(&self) -> &G {
        self.guard.as_ref().expect("it is there until it is dropped")
    }
    fn get_mut(&mut self) -> &mut G {
        self.guard.as_mut().expect("it is there until it is dropped")
    }
    fn give_back(&mut self) {
        self.guard = None;
        order::given_back(self.key);
        if let Some(me) = me() {
            me.given_back(self.key);
        }
    }
}

impl<G> Drop for Held<G> {
    fn drop(&mut self) {
        self.give_back();
    }
}

macro_rules! guard {
    ($(#[$doc:meta])* $name:ident of $inner:ident $(, $mutable:ident)?) => {
        $(#[$doc])*
        #[must_use]
        pub struct $name<'a, T: ?Sized>(Held<parking_lot::$inner<'a, T>>);
        impl<T: ?Sized> Deref for $name<'_, T> {
            type Target = T;
            fn deref(&self) -> &T {
                self.0.get()
            }
        }
        $(impl<T: ?Sized> $mutable for $name<'_, T> {
            fn deref_mut(&mut self) -> &mut T {
                self.0.get_mut()
            }
        })?
        impl<T: ?Sized + fmt::Debug> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    };
}

guard!(
    /// Guard of [`Mutex::lock`].
    MutexGuard of MutexGuard, DerefMut
);
guard!(
    /// Guard of [`RwLock::read`].
    RwLockReadGuard of RwLockReadGuard
);
guard!(
    /// Guard of [`RwLock::write`].
    RwLockWriteGuard of RwLockWriteGuard, DerefMut
);
guard!(
    /// Guard of [`ReentrantMutex::lock`].
    ReentrantMutexGuard of ReentrantMutexGuard
);

macro_rules! lock {
    ($(#[$doc:meta])* $name:ident { $($(#[$verb_doc:meta])* $verb:ident, $attempt:ident, $want:ident -> $guard:ident;)* }) => {
        $(#[$doc])*
        pub struct $name<T: ?Sized> {
            made: &'static Location<'static>,
            brief: bool,
            lock: parking_lot::$name<T>,
        }
        impl<T> $name<T> {
            /// A lock around `value`.
            #[track_caller]
            pub const fn new(value: T) -> Self {
                Self { made: Location::caller(), brief: false, lock: parking_lot::$name::new(value) }
            }
            /// The guarded value.
            pub fn into_inner(self) -> T {
                self.lock.into_inner()
            }
        }
        impl<T: Default> Default for $name<T> {
            #[track_caller]
            fn default() -> Self {
                Self::new(T::default())
            }
        }
        impl<T: ?Sized + fmt::Debug> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.lock.fmt(f)
            }
        }
        impl<T: ?Sized> $name<T> {
            fn kind(&self) -> order::Kind {
                order::Kind { made: self.made, of: std::any::type_name::<Self>(), brief: self.brief }
            }
            /// Whether anybody has it.
            pub fn is_locked(&self) -> bool {
                self.lock.is_locked()
            }
            /// The guarded value; nobody else has the lock.
            pub fn get_mut(&mut self) -> &mut T {
                self.lock.get_mut()
            }
            $(
                $(#[$verb_doc])*
                #[track_caller]
                pub fn $verb(&self) -> $guard<'_, T> {
                    let at = Location::caller();
                    order::wait(key(self), self.kind(), at);
                    let guard = match me() {
                        Some(me) => me.acquire(key(self), Want::$want, at, || self.lock.$attempt()),
                        None => self.lock.$verb(),
                    };
                    order::taken(key(self), self.kind(), at);
                    $guard(Held { guard: Some(guard), key: key(self) })
                }
                /// The same, if nobody has to be waited for.
                #[track_caller]
                pub fn $attempt(&self) -> Option<$guard<'_, T>> {
                    crate::schedule::step();
                    let guard = self.lock.$attempt()?;
                    order::taken(key(self), self.kind(), Location::caller());
                    Some($guard(Held { guard: Some(guard), key: key(self) }))
                }
            )*
        }
        impl<T> From<T> for $name<T> {
            #[track_caller]
            fn from(value: T) -> Self {
                Self::new(value)
            }
        }
    };
}

lock!(
    /// As `parking_lot::Mutex`.
    Mutex {
        /// Takes the lock.
        lock, try_lock, Exclusive -> MutexGuard;
    }
);
lock!(
    /// As `parking_lot::RwLock`.
    RwLock {
        /// Takes the lock together with others who read.
        read, try_read, Shared -> RwLockReadGuard;
        /// Takes the lock alone.
        write, try_write, Exclusive -> RwLockWriteGuard;
    }
);
/// Nobody may wait for a device with this lock: see [`waits`].
pub fn brief<T>(mut lock: RwLock<T>) -> RwLock<T> {
    lock.brief = true;
    lock
}
/// The calling thread is about to wait for a device.
///
/// # Panics
/// When it has a lock that is [`brief`], and is not [`patient`].
pub fn waits() {
    order::waits();
}
/// Does what waits for a device with a lock that is [`brief`]. `why` is for who reads it.
pub fn patient<T>(_why: &'static str, work: impl FnOnce() -> T) -> T {
    let _patience = order::Patience::new();
    work()
}
impl<T: ?Sized> RwLock<T> {
    /// Whether somebody has it alone.
    pub fn is_locked_exclusive(&self) -> bool {
        self.lock.is_locked_exclusive()
    }
}
lock!(
    /// As `parking_lot::ReentrantMutex`.
    ReentrantMutex {
        /// Takes the lock, once more if it is this thread's already.
        lock, try_lock, Exclusive -> ReentrantMutexGuard;
    }
);

/// Whether a wait ended by the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether it did.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// As `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Waits to be notified.
    #[track_caller]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        match me() {
            None => self.0.wait(guard.0.get_mut()),
            Some(_) => self.wait_as_task(guard, Want::Wake),
        }
    }

    /// Waits to be notified, for so long at most. In a schedule the time has passed when nobody else can go on.
    #[track_caller]
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> WaitTimeoutResult {
        match me() {
            None => WaitTimeoutResult(self.0.wait_for(guard.0.get_mut(), limit).timed_out()),
            Some(_) => {
                self.wait_as_task(guard, Want::WakeOrTime);
                // Spurious wake-ups are allowed, so nobody may rely on the answer.
                WaitTimeoutResult(true)
            }
        }
    }

    /// Waits while a condition holds, for so long at most.
    #[track_caller]
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> WaitTimeoutResult {
        match me() {
            None => {
                let waited = self.0.wait_while_for(guard.0.get_mut(), condition, limit);
                WaitTimeoutResult(waited.timed_out())
            }
            Some(_) => {
                let waits = condition(guard);
                if waits {
                    self.wait_as_task(guard, Want::WakeOrTime);
                }
                WaitTimeoutResult(waits && condition(guard))
            }
        }
    }

    /// Wakes one.
    pub fn notify_one(&self) -> bool {
        self.woken();
        self.0.notify_one()
    }

    /// Wakes all.
    pub fn notify_all(&self) -> usize {
        self.woken();
        self.0.notify_all()
    }

    /// Tasks that wait; all of them, since a wake-up may be spurious.
    fn woken(&self) {
        if let Some(me) = me() {
            me.given_back(key(self));
        }
    }

    #[track_caller]
    fn wait_as_task<T>(&self, guard: &mut MutexGuard<'_, T>, want: Want) {
        let me = me().expect("only tasks wait so");
        let mutex = parking_lot::MutexGuard::mutex(guard.0.get());
        // No step between letting go and waiting: a condition variable does both at once.
        me.wake(guard.0.key);
        guard.0.guard = None;
        me.wait(key(self), want, Location::caller());
        let at = Location::caller();
        guard.0.guard = Some(me.acquire(guard.0.key, Want::Exclusive, at, || mutex.try_lock()));
    }
}
