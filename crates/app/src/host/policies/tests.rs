//! Policies on pools in files, by a clock that tests move. The pool's own maintainer looks at them, too: who of the two
//! took a snapshot is not asked.

use super::super::tests::{Bed, dataset, inherit, set};
use super::super::{Host, pause};
use super::*;
use crate::api::policy::{Run, Show};
use crate::api::pool;
use crate::api::snapshots as api;
use crate::engine::Engine;
use larder_device::{Clock, SystemClock};
use larder_format::Timestamp;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// 2027-02-03 10:20:00, a Wednesday.
const BEGIN: i64 = 1_801_650_000;

/// The system's clock, set to another time.
struct Moved {
    real: SystemClock,
    ahead: AtomicI64,
    /// Seconds that the clock which never goes back is ahead.
    waited: AtomicU64,
}

impl Moved {
    fn new() -> Arc<Self> {
        let real = SystemClock::new();
        let ahead = AtomicI64::new(BEGIN - real.now().secs);
        Arc::new(Self { real, ahead, waited: AtomicU64::new(0) })
    }

    fn pass(&self, seconds: i64) {
        self.ahead.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for Moved {
    fn now(&self) -> Timestamp {
        let now = self.real.now();
        Timestamp { secs: now.secs + self.ahead.load(Ordering::SeqCst), ..now }
    }
    fn monotonic(&self) -> Duration {
        self.real.monotonic() + Duration::from_secs(self.waited.load(Ordering::SeqCst))
    }
}

fn bed() -> (Bed, Arc<Moved>) {
    let clock = Moved::new();
    (Bed::by(Arc::clone(&clock) as _), clock)
}

fn run(host: &Host, names: &[&str]) -> Ran {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    let ran = host.policy_run(Run { names, recursive: true, dry_run: false }).unwrap();
    assert_eq!(ran.failed, []);
    ran
}

/// Takes what is due, hour by hour.
fn take_hourly(bed: &Bed, clock: &Moved, name: &str, hours: u64) {
    for _ in 0..hours {
        run(&bed.host, &[name]);
        clock.pass(HOUR);
    }
}

/// Texts of the events about policies.
fn told(pool: &Pool) -> Vec<String> {
    let events = pool.events(0).into_iter().filter(|(_, event)| event.class == "snapshot_policy");
    events.map(|(_, event)| event.text).collect()
}

/// Snapshots of a dataset in the order in which they were taken.
fn records(bed: &Bed, name: &str) -> Vec<SnapshotRecord> {
    let live = bed.host.pool("tank").unwrap();
    live.pool.snapshots(live.pool.dataset_by_name(name).unwrap().id())
}

fn names(bed: &Bed, name: &str) -> Vec<String> {
    records(bed, name).into_iter().map(|record| record.name).collect()
}

/// The same without minutes and seconds.
fn hours(bed: &Bed, name: &str) -> Vec<String> {
    let short = |name: String| match name.split_once(':') {
        Some((hour, rest)) => format!("{}_{}", &hour[9..], rest.rsplit('_').next().unwrap()),
        None => name,
    };
    names(bed, name).into_iter().map(short).collect()
}

fn take_by_hand(bed: &Bed, name: &str) {
    let request =
        api::Snapshot { names: vec![name.to_owned()], recursive: false, properties: BTreeMap::new() };
    bed.host.fs_snapshot(request).unwrap();
}

#[test]
fn the_daemon_takes_and_destroys_by_itself() {
    let (bed, clock) = bed();
    let live = bed.tank(&["tank/a", "tank/a/x", "tank/b"]);
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "2"), ("snapshots_daily", "3")])).unwrap();
    let comes = |expected: &[&str]| {
        for name in ["tank/a", "tank/a/x"] {
            let end = live.pool.store().clock().monotonic() + LOOK + Duration::from_secs(20);
            while hours(&bed, name) != expected {
                assert!(live.pool.store().clock().monotonic() < end, "{name}: {:?}", names(&bed, name));
                pause(Duration::from_millis(50));
            }
        }
    };
    // Another quarter of an hour has it look at once.
    clock.pass(900);
    comes(&["2027-02-03_10_hourly", "2027-02-03_10_daily"]);
    clock.pass(HOUR);
    comes(&["2027-02-03_10_hourly", "2027-02-03_10_daily", "2027-02-03_11_hourly"]);
    // Asleep for three days.
    clock.pass(3 * DAY);
    comes(&["2027-02-03_10_daily", "2027-02-03_11_hourly", "2027-02-06_11_hourly", "2027-02-06_11_daily"]);
    assert!(names(&bed, "tank").is_empty() && names(&bed, "tank/b").is_empty());
    // Of one moment, with what says so.
    let all = records(&bed, "tank/a").into_iter().chain(records(&bed, "tank/a/x"));
    let newest: BTreeSet<_> = all
        .filter(|one| one.name.contains("02-06"))
        .map(|one| (one.commit, one.name[..28].to_owned()))
        .collect();
    assert_eq!(newest.len(), 1, "{newest:?}");
    let marked = live.pool.marked_snapshots(live.pool.dataset_by_name("tank/a").unwrap().id(), MARK);
    assert_eq!(
        marked.iter().map(|one| one.value.as_str()).collect::<Vec<_>>(),
        ["daily", "hourly", "hourly", "daily"]
    );
}

#[test]
fn more_than_new_ones_push_out_goes_by_itself_after_a_while_only() {
    let (bed, clock) = bed();
    let live = bed.tank(&["tank/a"]);
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "9")])).unwrap();
    take_hourly(&bed, &clock, "tank/a", 5);
    assert_eq!(names(&bed, "tank/a").len(), 5);
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "1")])).unwrap();
    let text = || told(&live.pool);
    let comes = |is_there: &dyn Fn() -> bool| {
        for _ in 0..400 {
            if is_there() {
                return;
            }
            pause(Duration::from_millis(50));
        }
        panic!("{:?}, {:?}", names(&bed, "tank/a"), text());
    };
    clock.pass(900);
    comes(&|| !text().is_empty());
    assert!(text()[0].contains("snapshots of tank/a are more than its policy keeps"), "{:?}", text());
    assert!(names(&bed, "tank/a").len() >= 5);
    clock.waited.fetch_add(GRACE.as_secs() + 1, Ordering::SeqCst);
    clock.pass(900);
    comes(&|| names(&bed, "tank/a").len() == 1);
    // Asked for, it happens at once.
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "9")])).unwrap();
    take_hourly(&bed, &clock, "tank/a", 5);
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "2")])).unwrap();
    run(&bed.host, &["tank/a"]);
    assert_eq!(names(&bed, "tank/a").len(), 2);
}

#[test]
fn what_is_used_or_held_or_taken_by_hand_stays_and_keeps_no_other() {
    let (bed, clock) = bed();
    let live = bed.tank(&["tank/a"]);
    let id = live.pool.dataset_by_name("tank/a").unwrap().id();
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "9")])).unwrap();
    take_by_hand(&bed, "tank/a@autosnap_2001-01-01_00:00:00_hourly");
    let by_hand = "autosnap_2001-01-01_00:00:00_hourly".to_owned();
    for _ in 0..6 {
        run(&bed.host, &[]);
        clock.pass(HOUR);
    }
    let taken = names(&bed, "tank/a");
    assert_eq!(taken.len(), 7);
    // One is held, one looked into, one renamed.
    let held = vec![format!("tank/a@{}", taken[2])];
    bed.host.fs_hold(api::Hold { names: held.clone(), tag: "x".into(), recursive: false }).unwrap();
    let looked_into = live.pool.snapshot_view(id, &taken[3]).unwrap();
    let rename = api::RenameSnapshot {
        from: format!("tank/a@{}", taken[5]),
        to: "tank/a@other".into(),
        recursive: false,
    };
    bed.host.fs_rename_snapshot(rename).unwrap();
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "1")])).unwrap();
    run(&bed.host, &["tank"]);
    let newest = names(&bed, "tank/a").pop().unwrap();
    let kept = [by_hand.clone(), taken[2].clone(), taken[3].clone(), newest.clone()];
    assert_eq!(names(&bed, "tank/a"), kept, "taken by policy, whatever it is called");
    let ran = run(&bed.host, &["tank/a"]);
    let why: Vec<_> = ran.kept.iter().map(|kept| (kept.name.as_str(), kept.why.as_str())).collect();
    assert_eq!(why.len(), 2, "{why:?}");
    assert_eq!(why[0], (held[0].as_str(), "it is held by x"));
    assert!(why[1].1.ends_with("is in use"), "{why:?}");
    // They go when they can.
    drop(looked_into);
    bed.host.fs_release(api::Release { names: held, tag: "x".into(), recursive: false }).unwrap();
    run(&bed.host, &[]);
    assert_eq!(names(&bed, "tank/a"), [by_hand.clone(), newest.clone()]);
    // A count of 0 takes all but the last one, and that as soon as there is a newer one; none takes nothing away.
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "0")])).unwrap();
    let ran = run(&bed.host, &[]);
    assert_eq!(
        ran.kept.iter().map(|kept| kept.why.as_str()).collect::<Vec<_>>(),
        ["it is the last one of its dataset"]
    );
    bed.host.fs_inherit(inherit("snapshots_hourly", &["tank/a"])).unwrap();
    take_by_hand(&bed, "tank/a@hand");
    run(&bed.host, &[]);
    assert_eq!(names(&bed, "tank/a"), [by_hand.clone(), newest, "hand".to_owned()]);
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "0")])).unwrap();
    run(&bed.host, &[]);
    assert_eq!(names(&bed, "tank/a"), [by_hand, "hand".to_owned()]);
}

#[test]
fn what_a_target_lacks_stays_until_it_has_it() {
    let (bed, clock) = bed();
    bed.tank(&["tank/a", "tank/a/b"]);
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "9")])).unwrap();
    take_hourly(&bed, &clock, "tank/a", 4);
    let taken = records(&bed, "tank/a");
    let (nas, attic) = ("larder:replicated:nas:3atank::a", "larder:replicated:attic");
    let through = |at: usize| format!("{} tank/a@{}", taken[at].commit, taken[at].name);
    let replicated = |name: &str, value: &str| bed.host.fs_set(set(&["tank/a"], &[(name, value)])).unwrap();
    replicated(nas, &through(1));
    replicated(attic, &through(2));
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "1")])).unwrap();
    let ran = run(&bed.host, &["tank/a"]);
    let newest = names(&bed, "tank/a").pop().unwrap();
    assert_eq!(names(&bed, "tank/a/b").len(), 1, "a child goes by its own");
    let all = [taken[2].name.clone(), taken[3].name.clone(), newest.clone()];
    assert_eq!(names(&bed, "tank/a"), all, "the target that has least counts");
    let why: Vec<_> = ran.kept.iter().map(|kept| kept.why.as_str()).collect();
    assert_eq!(why, ["nas:tank/a lacks it: larder fs replicate"; 2]);
    // A value that cannot be read is no reason to destroy.
    replicated(nas, "unknown");
    run(&bed.host, &["tank/a"]);
    assert_eq!(names(&bed, "tank/a"), all);
    replicated(nas, &through(3));
    run(&bed.host, &["tank/a"]);
    assert_eq!(names(&bed, "tank/a"), all[1..], "the other one still lacks it");
    bed.host.fs_inherit(inherit(attic, &["tank/a"])).unwrap();
    run(&bed.host, &["tank/a"]);
    assert_eq!(names(&bed, "tank/a"), [newest]);
}

#[test]
fn a_rehearsal_tells_what_would_be_done_and_does_nothing() {
    let (bed, _) = bed();
    let live = bed.tank(&["tank/a", "tank/b"]);
    let now = live.pool.store().clock().now().secs;
    let id = live.pool.dataset_by_name("tank/a").unwrap().id();
    for (name, mark) in [("one", "daily"), ("two", "daily,weekly")] {
        let mark = BTreeMap::from([(MARK.to_owned(), mark.to_owned())]);
        live.pool.snapshot_all(vec![(id, name.to_owned())], mark).unwrap();
    }
    let rehearse = |names: &[&str]| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        bed.host.policy_run(Run { names, recursive: false, dry_run: true }).unwrap()
    };
    assert_eq!(rehearse(&[]), Ran::default());
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_daily", "1"), ("snapshots_hourly", "1")])).unwrap();
    let told = rehearse(&["tank/a"]);
    assert_eq!(told.destroyed, ["tank/a@one"], "the other one is weekly, too, without a count");
    assert!(told.taken.len() == 1 && told.taken[0].ends_with("_hourly"), "{told:?}");
    assert_eq!(names(&bed, "tank/a")[..1], ["one"]);
    assert_eq!(rehearse(&["tank"]), Ran::default(), "that one alone");
    let error = bed.host.policy_run(Run { names: vec!["tank/c".into()], recursive: false, dry_run: true });
    assert_eq!(error.unwrap_err(), ApiError::no_such_dataset("tank/c"));

    let show = |names: &[&str]| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        bed.host.policy_show(Show { names, recursive: false }).unwrap().datasets
    };
    let shown = show(&[]);
    assert_eq!(shown.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["tank/a"]);
    let (hourly, weekly) = (&shown[0].periods[1], &shown[0].periods[3]);
    assert_eq!((hourly.keep, weekly.keep, weekly.snapshots, weekly.next), (Some(1), None, 1, None));
    assert!(weekly.newest.is_some_and(|newest| newest >= now));
    run(&bed.host, &[]);
    let hourly = &show(&["tank/a"])[0].periods[1];
    assert_eq!((hourly.snapshots, hourly.next, hourly.due), (1, Some(BEGIN - BEGIN % HOUR + HOUR), false));
    assert!(show(&["tank/b"])[0].periods.iter().all(|one| one.keep.is_none() && one.next.is_none()));
}

#[test]
fn a_clock_that_is_set_back_takes_one_of_each_period_and_destroys_none() {
    let (bed, clock) = bed();
    bed.tank(&["tank/a"]);
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "3"), ("snapshots_daily", "3")])).unwrap();
    for _ in 0..3 {
        run(&bed.host, &[]);
        clock.pass(HOUR);
    }
    run(&bed.host, &[]);
    let before = names(&bed, "tank/a");
    clock.pass(-30 * DAY);
    for _ in 0..3 {
        run(&bed.host, &[]);
    }
    let after = names(&bed, "tank/a");
    assert_eq!(after.len(), before.len() + 2, "{after:?}");
    assert_eq!(after[..before.len()], before);
    clock.pass(30 * DAY);
    assert_eq!(run(&bed.host, &[]).taken, [""; 0]);
}

#[test]
fn one_snapshot_in_the_form_of_samba_serves_all_periods() {
    let (bed, clock) = bed();
    let live = bed.tank(&["tank/a"]);
    let counts = [("snapshots_hourly", "1"), ("snapshots_daily", "2"), ("snapshots_format", "gmt")];
    bed.host.fs_set(set(&["tank/a"], &counts)).unwrap();
    let id = live.pool.dataset_by_name("tank/a").unwrap().id();
    let marks = || live.pool.marked_snapshots(id, MARK).into_iter().map(|one| one.value).collect::<Vec<_>>();
    run(&bed.host, &[]);
    assert!(names(&bed, "tank/a")[0].starts_with("GMT-2027.02.03-10.20."), "{:?}", names(&bed, "tank/a"));
    for expected in [&["hourly,daily", "hourly"][..], &["hourly,daily", "hourly"]] {
        clock.pass(HOUR);
        run(&bed.host, &[]);
        assert_eq!(marks(), expected);
    }
    clock.pass(DAY);
    run(&bed.host, &[]);
    assert_eq!(marks(), ["hourly,daily", "hourly,daily"]);
}

#[test]
fn a_failure_is_told_once_and_stops_nobody_else() {
    let (bed, clock) = bed();
    let long = format!("tank/{}", "l".repeat(240));
    let live = bed.tank(&["tank/a", &long]);
    bed.host.fs_set(set(&["tank"], &[("snapshots_hourly", "9")])).unwrap();
    let mut rounds = Rounds::new(live.policies());
    for _ in 0..3 {
        rounds.turn();
        clock.pass(HOUR);
    }
    assert_eq!(rounds.told.len(), 1);
    let hourly = hours(&bed, "tank/a");
    assert!((3..=4).contains(&hourly.len()), "{hourly:?}");
    assert!(names(&bed, &long).is_empty());
    let events = told(&live.pool);
    // The pool's own maintainer tells it, too.
    assert!((1..=2).contains(&events.len()), "{events:?}");
    assert!(events[0].contains("their names would have more than 255 bytes"), "{events:?}");
}

#[test]
fn a_pool_for_reading_only_is_left_alone_and_a_run_says_so() {
    let (bed, clock) = bed();
    bed.tank(&["tank/a"]);
    bed.host.fs_set(set(&["tank/a"], &[("snapshots_hourly", "1")])).unwrap();
    run(&bed.host, &[]);
    bed.host.pool_export(pool::Export { name: "tank".into(), force: false, forget: false }).unwrap();
    let search = vec![bed.path("tank")];
    let import = pool::Import { readonly: true, ..super::super::tests::import("tank", search) };
    bed.host.pool_import(import).unwrap();
    clock.pass(HOUR);
    let ran = bed.host.policy_run(Run { names: vec![], recursive: false, dry_run: false }).unwrap();
    assert_eq!((ran.taken.len(), ran.destroyed.len(), ran.failed.len()), (0, 0, 1));
    assert_eq!(ran.failed[0].kind, crate::api::ErrorKind::ReadOnly);
    assert!(ran.failed[0].message.starts_with("cannot take snapshots by policy: "), "{:?}", ran.failed);
}

#[test]
fn datasets_that_are_made_meanwhile_are_taken_along() {
    let (bed, clock) = bed();
    bed.tank(&["tank/a"]);
    bed.host.fs_set(set(&["tank"], &[("snapshots_hourly", "2")])).unwrap();
    run(&bed.host, &[]);
    bed.host.fs_create(dataset("tank/new")).unwrap();
    run(&bed.host, &["tank/new"]);
    assert_eq!((names(&bed, "tank/a").len(), names(&bed, "tank/new").len()), (1, 1));
    clock.pass(HOUR);
    run(&bed.host, &["tank/new"]);
    assert_eq!(names(&bed, "tank/new").len(), 2);
}

#[test]
fn clones_and_what_a_rollback_keeps_are_not_touched() {
    let (bed, clock) = bed();
    let live = bed.tank(&["tank/a"]);
    bed.host.fs_set(set(&["tank"], &[("snapshots_hourly", "2")])).unwrap();
    run(&bed.host, &["tank/a"]);
    clock.pass(HOUR);
    run(&bed.host, &["tank/a"]);
    let taken = names(&bed, "tank/a");
    let id = live.pool.dataset_by_name("tank/a").unwrap().id();
    live.pool.clone_snapshot(id, &taken[0], "tank/clone", BTreeMap::new()).unwrap();
    clock.pass(HOUR);
    run(&bed.host, &["tank/a"]);
    assert_eq!(names(&bed, "tank/a")[..1], taken[1..], "one that has a clone goes, too");
    assert_eq!(run(&bed.host, &["tank/a"]), Ran::default(), "and is not counted any more");
    clock.pass(HOUR);
    run(&bed.host, &["tank/a"]);
    let [first, second] = &names(&bed, "tank/a")[..] else { panic!("two of them") };
    let request = api::Rollback { name: format!("tank/a@{first}"), newer: api::Newer::Keep };
    let kept = bed.host.fs_rollback(request).unwrap().kept.unwrap();
    for _ in 0..4 {
        clock.pass(HOUR);
        run(&bed.host, &[]);
    }
    assert_eq!(&names(&bed, &kept), std::slice::from_ref(second));
    assert_eq!(names(&bed, "tank/a").len(), 2);
}
