//! The accounts against counting from scratch, and the limits against what zfs(8) does.

use super::*;
use larder_device::{Entropy, SeededEntropy};

const FREE: u64 = 1 << 20;

fn id(number: u64) -> DatasetId {
    DatasetId::new(number)
}

/// Root 1, below it 2 and 3, below 2 also 4.
fn family() -> Accounts {
    let accounts = Accounts::default();
    for (child, parent) in [(1, None), (2, Some(1)), (3, Some(1)), (4, Some(2))] {
        accounts.open(id(child), parent.map(id), 4096);
    }
    accounts
}

fn used(accounts: &Accounts, number: u64) -> i64 {
    accounts.by_dataset.read()[&id(number)].used.load(Relaxed)
}

/// The sums kept up to date by climbing are those of a full count.
fn assert_balanced(accounts: &Accounts, case: &str) {
    let by_dataset = accounts.by_dataset.read();
    let seen = |by_dataset: &AccountMap| {
        let used: Vec<_> = by_dataset.values().map(|account| account.used.load(Relaxed)).collect();
        (used, accounts.reserved.load(Relaxed))
    };
    let kept_up = seen(&by_dataset);
    accounts.count(&by_dataset);
    assert_eq!(kept_up, seen(&by_dataset), "{case}");
}

fn text(result: Result<()>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn use_climbs_and_reservations_swallow_what_they_kept() {
    let accounts = family();
    accounts.set(id(2), "reservation", 1000, FREE).unwrap();
    assert_eq!((used(&accounts, 1), used(&accounts, 2)), (1000, 0));
    accounts.post(id(4), 600);
    assert_eq!((used(&accounts, 1), used(&accounts, 2), used(&accounts, 4)), (1000, 600, 600));
    accounts.post(id(4), 600);
    assert_eq!((used(&accounts, 1), used(&accounts, 2)), (1200, 1200));
    accounts.post(id(4), -1000);
    assert_eq!((used(&accounts, 1), used(&accounts, 2)), (1000, 200));
    assert_eq!(accounts.reserved.load(Relaxed), 800);
    accounts.set(id(3), "refreservation", 500, FREE).unwrap();
    assert_eq!((used(&accounts, 1), used(&accounts, 3)), (1500, 500));
    accounts.close(id(3));
    assert_eq!(used(&accounts, 1), 1000);
    assert_balanced(&accounts, "at the end");
}

#[test]
fn a_claim_is_refused_by_the_limit_that_it_would_pass_and_leaves_nothing() {
    let accounts = family();
    accounts.set(id(1), "quota", 1000, FREE).unwrap();
    accounts.set(id(4), "refquota", 400, FREE).unwrap();
    let refused = |result: Result<()>, by: u64| match result {
        Err(PoolError::Quota(over)) => assert_eq!(over, id(by)),
        other => panic!("{other:?}"),
    };
    refused(accounts.claim(id(4), 401), 4);
    accounts.claim(id(4), 400).unwrap();
    refused(accounts.claim(id(3), 601), 1);
    accounts.claim(id(3), 600).unwrap();
    refused(accounts.claim(id(2), 1), 1);
    assert_eq!(used(&accounts, 1), 1000);
    assert_eq!(accounts.claimants(id(3)), BTreeSet::from([id(3), id(4)]));
    // Posting is not checked against limits; freeing always works.
    accounts.post(id(4), 100);
    accounts.adjust_claim(id(4), -400);
    accounts.claim(id(2), 300).unwrap();
    assert_balanced(&accounts, "at the end");
}

#[test]
fn use_within_a_reservation_does_not_meet_the_quota_above() {
    let accounts = family();
    accounts.set(id(2), "reservation", 800, FREE).unwrap();
    accounts.set(id(1), "quota", 1000, FREE).unwrap();
    accounts.claim(id(3), 200).unwrap();
    assert!(accounts.claim(id(3), 1).is_err());
    accounts.claim(id(4), 800).unwrap();
    assert!(accounts.claim(id(4), 1).is_err());
}

#[test]
fn limits_that_cannot_hold_are_refused_with_the_figure() {
    let accounts = family();
    accounts.post(id(4), 3072);
    let set = |number, name, value| accounts.set(id(number), name, value, FREE);
    assert_eq!(text(set(2, "quota", 2048)), "quota=2K is less than the 3K that are used or reserved");
    assert_eq!(text(set(4, "refquota", 1024)), "refquota=1K is less than the 3K that are used or reserved");
    set(2, "refquota", 1024).unwrap();
    set(2, "quota", 8192).unwrap();
    assert_eq!(text(set(2, "reservation", 9 << 10)), "reservation=9K is more than the quota of 8K");
    assert_eq!(text(set(2, "refreservation", 2048)), "refreservation=2K is more than the quota of 1K");
    assert_eq!(
        text(set(3, "reservation", FREE + 1024)),
        "reservation=1.00M is more than the 1M that are available"
    );
    set(3, "reservation", FREE - 1024).unwrap();
    assert_eq!(text(set(2, "reservation", 5 << 10)), "reservation=5K is more than the 4K that are available");
    set(2, "reservation", 4 << 10).unwrap();
    assert_eq!(text(set(2, "quota", 3500)), "quota=3.42K is less than the 4K that are used or reserved");
    set(3, "reservation", 0).unwrap();
    set(2, "quota", 0).unwrap();
    set(2, "reservation", 64 << 10).unwrap();
    assert_balanced(&accounts, "at the end");
}

#[test]
fn available_is_the_least_of_what_bounds_and_the_sum_of_what_is_kept() {
    let accounts = family();
    let available = |number| accounts.available(id(number), 10_000);
    assert_eq!([1, 2, 3, 4].map(available), [10_000; 4]);
    accounts.set(id(3), "reservation", 4000, 10_000).unwrap();
    assert_eq!([1, 2, 3, 4].map(available), [6000, 6000, 10_000, 6000]);
    accounts.set(id(2), "quota", 5000, 10_000).unwrap();
    accounts.set(id(2), "refreservation", 1000, 10_000).unwrap();
    assert_eq!([1, 2, 3, 4].map(available), [5000, 5000, 9000, 4000]);
    accounts.set(id(4), "refquota", 1500, 10_000).unwrap();
    accounts.post(id(4), 500);
    assert_eq!([2, 4].map(available), [4500, 1000]);
    accounts.post(id(4), 2000);
    assert_eq!(available(4), 0);
    assert_eq!(accounts.reservations(id(3)).1, 1000);
    assert_eq!(accounts.reservations(id(4)).1, 5000);
    assert_eq!(accounts.reservations(id(2)), (1000, 4000));
}

#[test]
fn a_dataset_takes_what_it_uses_along_unless_a_quota_there_is_passed() {
    let accounts = family();
    accounts.post(id(4), 3000);
    accounts.set(id(3), "quota", 2000, FREE).unwrap();
    let refusal = text(accounts.transfer(id(4), id(3), FREE));
    assert!(refusal.contains("the quota of 1.95K there would be passed: 2.93K"), "{refusal}");
    assert_eq!((used(&accounts, 2), used(&accounts, 3)), (3000, 0));
    accounts.set(id(3), "quota", 3000, FREE).unwrap();
    accounts.transfer(id(4), id(3), FREE).unwrap();
    assert_eq!((used(&accounts, 1), used(&accounts, 2), used(&accounts, 3)), (3000, 0, 3000));
    // The space it leaves behind was inside of a reservation, which is a promise again.
    accounts.set(id(3), "reservation", 3000, FREE).unwrap();
    assert!(accounts.transfer(id(4), id(2), 2999).is_err());
    accounts.transfer(id(4), id(2), 3000).unwrap();
    assert_eq!(used(&accounts, 1), 6000);
    assert_balanced(&accounts, "at the end");
}

#[test]
fn random_changes_stay_balanced() {
    for seed in 0..40 {
        let entropy = SeededEntropy::new(seed);
        let next = |n: u64| entropy.next_u64() % n;
        let accounts = family();
        let mut own = BTreeMap::from([1u64, 2, 3, 4].map(|number| (number, 0i64)));
        for step in 0..200 {
            let at = 1 + next(4);
            match next(8) {
                0..4 => {
                    let delta = (next(2000) as i64 - 1000).max(-own[&at]);
                    *own.get_mut(&at).unwrap() += delta;
                    accounts.post(id(at), delta);
                }
                4..6 => {
                    let before: Vec<_> = (1..=4).map(|number| used(&accounts, number)).collect();
                    match accounts.claim(id(at), next(1000)) {
                        Ok(()) => *own.get_mut(&at).unwrap() = own_of(&accounts, at),
                        Err(_) => {
                            let after: Vec<_> = (1..=4).map(|number| used(&accounts, number)).collect();
                            assert_eq!(before, after, "seed {seed}, step {step}");
                        }
                    }
                }
                6 => {
                    let name = Limits::NAMES[next(4) as usize];
                    drop(accounts.set(id(at), name, next(5000), 20_000));
                }
                _ => drop(accounts.transfer(id(4), id(1 + next(3)), 20_000)),
            }
            assert_eq!(own_of(&accounts, at), own[&at]);
            assert_balanced(&accounts, &format!("seed {seed}, step {step}"));
        }
    }
}

fn own_of(accounts: &Accounts, number: u64) -> i64 {
    accounts.by_dataset.read()[&id(number)].own.load(Relaxed)
}

#[test]
fn many_hands_at_once_stay_balanced_and_never_pass_a_quota_together() {
    let accounts = family();
    accounts.set(id(2), "reservation", 3000, FREE).unwrap();
    accounts.set(id(3), "refreservation", 500, FREE).unwrap();
    accounts.set(id(1), "quota", 8000, FREE).unwrap();
    std::thread::scope(|scope| {
        for hand in 0..4u64 {
            let accounts = &accounts;
            scope.spawn(move || {
                let entropy = SeededEntropy::new(hand);
                let at = id(1 + hand);
                let mut held = Vec::new();
                for _ in 0..5000 {
                    let bytes = entropy.next_u64() % 700;
                    if entropy.next_u64().is_multiple_of(2) && accounts.claim(at, bytes).is_ok() {
                        held.push(bytes);
                    } else if let Some(bytes) = held.pop() {
                        accounts.adjust_claim(at, -(bytes as i64));
                    }
                    // Those of others that are being refused may be counted for a moment.
                    assert!(used(accounts, 1) <= 8000 + 4 * 700);
                }
            });
        }
    });
    assert!(used(&accounts, 1) <= 8000);
    assert_balanced(&accounts, "at the end");
}
