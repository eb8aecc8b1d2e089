//! Races, deadlocks and lost wake-ups are found, and a seed replays them.
#![cfg(debug_assertions)]

use larder_sync::schedule::{Outcome, Plan, Switching, Task, run};
use larder_sync::{Condvar, Mutex, RwLock};

fn plan(seed: u64) -> Plan {
    let switching = match seed % 3 {
        0 => Switching::Random { one_in: 1 },
        1 => Switching::Random { one_in: 4 },
        _ => Switching::Priorities { changes: 2, length: 20 },
    };
    Plan { seed, switching, panic_at: None }
}

/// Number of seeds, of 200, with an outcome that `is_found` accepts.
fn found(run_seed: impl Fn(&Plan) -> Outcome, is_found: impl Fn(&Outcome) -> bool) -> usize {
    (0..200).filter(|&seed| is_found(&run_seed(&plan(seed)))).count()
}

fn task<'a>(name: &str, body: impl FnOnce() + Send + 'a) -> Task<'a> {
    (name.into(), Box::new(body))
}

#[test]
fn a_sum_that_is_read_and_written_under_two_locks_is_seen_to_lose_one() {
    let lossy = |plan: &Plan| {
        let sum = Mutex::new(0);
        let add = || {
            let before = *sum.lock();
            *sum.lock() = before + 1;
        };
        let mut outcome = run(plan, vec![task("a", add), task("b", add)]);
        if *sum.lock() != 2 {
            outcome.failed.push(("both".into(), "one was lost".into()));
        }
        outcome
    };
    let lost = found(lossy, |outcome| !outcome.failed.is_empty());
    assert!((20..200).contains(&lost), "{lost}");
    for seed in 0..50 {
        let (once, again) = (lossy(&plan(seed)), lossy(&plan(seed)));
        assert_eq!((once.steps, once.failed), (again.steps, again.failed), "seed {seed}");
    }
}

#[test]
fn locks_taken_in_two_orders_are_seen_to_deadlock() {
    let deadlocks = |plan: &Plan| {
        // Of one kind, or their order would be told before anybody waits.
        let [a, b] = [(); 2].map(RwLock::new);
        let one = || {
            let _a = a.write();
            drop(b.write());
        };
        let other = || {
            let _b = b.read();
            drop(a.write());
        };
        run(plan, vec![task("one", one), task("other", other)])
    };
    assert!(found(deadlocks, |outcome| outcome.stuck.is_some()) > 10);
}

#[test]
fn who_reads_twice_is_seen_to_wait_behind_a_writer_for_ever() {
    let recursive = |plan: &Plan| {
        let lock = RwLock::new(());
        let reader = || {
            let _once = lock.read();
            drop(lock.read());
        };
        run(plan, vec![task("reader", reader), task("writer", || drop(lock.write()))])
    };
    assert!(found(recursive, |outcome| outcome.stuck.is_some()) > 10);
}

#[test]
fn a_lost_wake_up_is_seen_and_one_that_is_not_lost_wakes() {
    let waits = |checks: bool| {
        move |plan: &Plan| {
            let (ready, bell) = (Mutex::new(false), Condvar::new());
            let waiter = || {
                let mut ready = ready.lock();
                if !checks {
                    bell.wait(&mut ready);
                }
                while !*ready {
                    bell.wait(&mut ready);
                }
            };
            let waker = || {
                *ready.lock() = true;
                bell.notify_all();
            };
            run(plan, vec![task("waiter", waiter), task("waker", waker)])
        }
    };
    assert!(found(waits(false), |outcome| outcome.stuck.is_some()) > 10);
    assert_eq!(found(waits(true), |outcome| outcome.stuck.is_some()), 0);
}

#[test]
fn a_planned_panic_hits_one_task_and_the_others_go_on() {
    for at in 1..30 {
        let sum = Mutex::new(0);
        let add = || (0..10).for_each(|_| *sum.lock() += 1);
        let plan = Plan { panic_at: Some(at), ..plan(at) };
        let outcome = run(&plan, vec![task("a", add), task("b", add)]);
        assert!(outcome.panicked.is_some() && outcome.failed.is_empty() && outcome.stuck.is_none());
        assert!((10..20).contains(&*sum.lock()) || at > 20, "{}", *sum.lock());
    }
}
