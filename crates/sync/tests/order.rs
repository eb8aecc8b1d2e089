//! The order in which locks are taken.
#![cfg(debug_assertions)]

use larder_sync::{Mutex, RwLock};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn said(crossing: impl FnOnce()) -> Option<String> {
    catch_unwind(AssertUnwindSafe(crossing)).err().map(|payload| *payload.downcast::<String>().unwrap())
}

#[test]
fn two_locks_that_cross_are_told_without_anybody_waiting() {
    let (one, other) = (Mutex::new(1), Mutex::new(2));
    let both = || drop((one.lock(), other.lock()));
    both();
    both();
    let told = said(|| drop((other.lock(), one.lock()))).expect("they cross");
    assert!(told.starts_with("locks cross: ") && told.matches("order.rs").count() == 8, "{told}");
    both();
}

#[test]
fn three_locks_that_cross_on_three_threads_are_told_with_the_whole_chain() {
    let (a, b, c) = (Mutex::new(1), RwLock::new(2), Mutex::new(3));
    std::thread::scope(|scope| {
        scope.spawn(|| drop((a.lock(), b.read())));
    });
    std::thread::scope(|scope| {
        scope.spawn(|| drop((b.write(), c.lock())));
    });
    let told = said(|| drop((c.lock(), a.lock()))).expect("they cross");
    assert_eq!(told.matches(" waited for ").count(), 2, "{told}");
}

#[test]
fn who_only_tries_waits_for_nobody_and_locks_of_one_kind_have_no_order() {
    let (one, other) = (Mutex::new(1), Mutex::new(2));
    drop((one.lock(), other.lock()));
    drop((other.lock(), one.try_lock()));
    let kin: Vec<_> = (0..2).map(Mutex::new).collect();
    drop((kin[0].lock(), kin[1].lock()));
    drop((kin[1].lock(), kin[0].lock()));
}

#[test]
fn a_lock_that_was_given_back_is_before_nothing() {
    let (one, other) = (Mutex::new(1), Mutex::new(2));
    drop((one.lock(), other.lock()));
    let guard = other.lock();
    drop(guard);
    drop(one.lock());
    let first = one.lock();
    let second = other.lock();
    drop(first);
    drop(second);
}
