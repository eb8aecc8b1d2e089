//! Policies over months, by clocks that sleep and jump.

use super::*;

/// Seconds since 1970 of a time in UTC.
fn at(text: &str) -> i64 {
    let time: jiff::civil::DateTime = text.parse().unwrap();
    time.to_zoned(TimeZone::UTC).unwrap().timestamp().as_second()
}

fn policy(counts: &[(Period, u64)]) -> Policy {
    counts.iter().copied().collect()
}

/// Of all periods.
fn usual() -> Policy {
    use Period::*;
    policy(&[(Frequently, 4), (Hourly, 24), (Daily, 30), (Weekly, 5), (Monthly, 12), (Yearly, 3)])
}

/// A dataset under a policy, with its snapshots in the order in which they were taken.
#[derive(Default)]
struct World {
    policy: Policy,
    snapshots: Vec<Snapshot>,
    destroyed: Vec<Snapshot>,
    format: Format,
}

impl World {
    fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// A look of the daemon at its clock: what it took, and what it destroyed.
    fn look(&mut self, now: i64) -> (Vec<Period>, Vec<Snapshot>) {
        let due = due(&self.policy, now, &self.snapshots);
        for (_, periods) in self.format.names(now, &due) {
            self.snapshots.iter_mut().for_each(|snapshot| snapshot.is_last = false);
            self.snapshots.push(Snapshot {
                created: now,
                periods,
                is_held: false,
                is_unreplicated: false,
                is_last: true,
            });
        }
        (due, self.prune(now))
    }

    fn prune(&mut self, now: i64) -> Vec<Snapshot> {
        let fates = fates(&self.policy, now, &self.snapshots);
        let all = std::mem::take(&mut self.snapshots).into_iter().zip(fates);
        let (going, kept): (Vec<_>, Vec<_>) = all.partition(|(_, fate)| *fate == Fate::Goes);
        self.snapshots = kept.into_iter().map(|(snapshot, _)| snapshot).collect();
        let going: Vec<_> = going.into_iter().map(|(snapshot, _)| snapshot).collect();
        self.destroyed.extend(going.iter().cloned());
        going
    }

    /// Looks every few minutes from one time to another.
    fn live(&mut self, from: i64, to: i64) {
        (from..to).step_by(300).for_each(|now| drop(self.look(now)));
    }

    fn created(&self, period: Period) -> Vec<i64> {
        let of_period = self.snapshots.iter().filter(|snapshot| snapshot.periods.contains(&period));
        of_period.map(|snapshot| snapshot.created).collect()
    }

    fn count(&self, period: Period) -> usize {
        self.created(period).len()
    }
}

#[test]
fn periods_begin_and_end_in_utc_by_the_calendar() {
    use Period::*;
    let now = at("2024-02-29T13:44:59");
    for (period, begin, end) in [
        (Frequently, "2024-02-29T13:30:00", "2024-02-29T13:45:00"),
        (Hourly, "2024-02-29T13:00:00", "2024-02-29T14:00:00"),
        (Daily, "2024-02-29T00:00:00", "2024-03-01T00:00:00"),
        (Weekly, "2024-02-26T00:00:00", "2024-03-04T00:00:00"),
        (Monthly, "2024-02-01T00:00:00", "2024-03-01T00:00:00"),
        (Yearly, "2024-01-01T00:00:00", "2025-01-01T00:00:00"),
    ] {
        assert_eq!(period.around(now), Some((at(begin), at(end))), "{period}");
    }
    // The length of months and years; the first instant of a period is its own.
    for (month, days) in [("2023-02", 28), ("2024-02", 29), ("2100-02", 28), ("2000-02", 29), ("2026-12", 31)]
    {
        let first = at(&format!("{month}-01T00:00:00"));
        assert_eq!(Monthly.around(first), Some((first, first + days * DAY)), "{month}");
        assert_eq!(Monthly.around(first - 1).unwrap().1, first, "{month}");
    }
    let (begin, end) = Yearly.around(at("2028-12-31T23:59:59")).unwrap();
    assert_eq!((end - begin) / DAY, 366);
    // Before 1970, and where the calendar ends.
    assert_eq!(Hourly.around(-1), Some((-3600, 0)));
    assert_eq!(Weekly.around(0), Some((at("1969-12-29T00:00:00"), at("1970-01-05T00:00:00"))));
    assert_eq!(Monthly.around(i64::MAX / 2), None);
    assert!(!is_due(Monthly, i64::MAX / 2, std::iter::empty()));
    for period in Period::ALL {
        assert_eq!(Period::of_word(period.word()), Some(period));
        assert_eq!(period.property(), format!("snapshots_{period}"));
        let known = larder_pool::property::dataset(period.property()).unwrap();
        assert!(known.inherited && known.default == Some("none"), "{period}");
    }
}

#[test]
fn names_are_those_that_tools_read() {
    use Period::*;
    let now = at("2026-11-23T17:59:01");
    let names = Format::Autosnap.names(now, &[Hourly, Daily]);
    let expected =
        [("autosnap_2026-11-23_17:59:01_hourly", Hourly), ("autosnap_2026-11-23_17:59:01_daily", Daily)];
    assert_eq!(names, expected.map(|(name, period)| (name.to_owned(), vec![period])));
    let names = Format::Gmt.names(now, &[Hourly, Daily]);
    assert_eq!(names, [("GMT-2026.11.23-17.59.01".to_owned(), vec![Hourly, Daily])]);
    for format in [Format::Autosnap, Format::Gmt] {
        assert!(format.names(now, &[]).is_empty() && format.names(i64::MAX, &[Daily]).is_empty());
        for (name, _) in format.names(now, &Period::ALL) {
            crate::api::name::check_snapshot(&format!("tank/a@{name}")).unwrap();
        }
    }
    assert_eq!(marked(&mark(&[Hourly, Yearly])), [Hourly, Yearly]);
    assert_eq!(marked("daily, weekly"), [Daily, Weekly]);
    // A later version may know more of it.
    assert!(marked("daily,fortnightly").is_empty() && marked("").is_empty());
}

#[test]
fn a_year_and_a_half_leaves_as_many_as_the_policy_says() {
    let mut world = World::new(usual());
    let (from, to) = (at("2023-09-10T07:03:00"), at("2025-03-02T10:02:00"));
    world.live(from, to);
    for (period, keep) in usual() {
        let expected = if period == Period::Yearly { 3 } else { keep as usize };
        assert_eq!(world.count(period), expected, "{period}");
    }
    let days = world.created(Period::Daily);
    assert!(days.windows(2).all(|pair| pair[1] / DAY == pair[0] / DAY + 1), "one each day, none left out");
    let months: Vec<_> = world.created(Period::Monthly).iter().map(|&time| at_month(time)).collect();
    let expected =
        ["2024-04", "2024-05", "2024-06", "2024-07", "2024-08", "2024-09", "2024-10", "2024-11", "2024-12"];
    assert_eq!(months[..9], expected);
    assert_eq!(months[9..], ["2025-01", "2025-02", "2025-03"]);
    // Every one was taken within minutes of the begin of its period, but for the first of all.
    for snapshot in &world.snapshots {
        let (begin, _) = snapshot.periods[0].around(snapshot.created).unwrap();
        assert!(snapshot.created - begin < 300 || snapshot.created == from, "{snapshot:?}");
    }
}

fn at_month(time: i64) -> String {
    Timestamp::from_second(time).unwrap().to_zoned(TimeZone::UTC).strftime("%Y-%m").to_string()
}

#[test]
fn no_hour_is_missed_or_doubled_where_summer_begins_and_ends() {
    let hourly = policy(&[(Period::Hourly, 1000), (Period::Daily, 1000)]);
    for change in ["2026-03-29T00:00:00", "2026-10-25T00:00:00", "2026-11-01T00:00:00"] {
        let mut world = World::new(hourly.clone());
        world.live(at(change), at(change) + 2 * DAY);
        assert_eq!((world.count(Period::Hourly), world.count(Period::Daily)), (48, 2), "{change}");
    }
}

#[test]
fn after_a_sleep_one_of_each_period_catches_up() {
    let mut world = World::new(usual());
    let monday = at("2026-03-02T08:00:00");
    world.live(monday, monday + DAY);
    // Asleep for an hour and ten minutes, for a weekend, and for over a year.
    for (slept, taken) in [(4200, 2), (3 * DAY, 3), (400 * DAY, 6)] {
        let before: BTreeMap<_, _> = Period::ALL.map(|period| (period, world.created(period))).into();
        let now = world.snapshots.last().unwrap().created + slept;
        let (due, destroyed) = world.look(now);
        assert_eq!(due.len(), taken, "{slept}: {due:?}");
        assert!(destroyed.len() <= taken, "as many go as come: {destroyed:?}");
        assert_eq!(world.look(now + 1), (vec![], vec![]));
        for (period, before) in before {
            assert!(world.count(period) >= before.len(), "old ones are not destroyed for their age");
        }
    }
}

#[test]
fn a_month_with_sleeps_every_night_has_a_snapshot_for_each_hour_awake() {
    let mut world =
        World::new(policy(&[(Period::Hourly, 10_000), (Period::Daily, 10_000), (Period::Weekly, 10_000)]));
    for day in 0..31 {
        let morning = at("2026-05-01T07:40:00") + day * DAY;
        world.live(morning, morning + 14 * 3600);
    }
    assert_eq!(world.count(Period::Daily), 31);
    assert_eq!(world.count(Period::Hourly), 31 * 15);
    assert_eq!(world.count(Period::Weekly), 5, "Friday, then four Mondays");
}

#[test]
fn a_clock_that_jumps_back_takes_no_flood_and_destroys_nothing_early() {
    for back in [1800, 5 * 3600, 3 * DAY, 40 * DAY, 5000 * DAY] {
        let mut world = World::new(usual());
        let start = at("2026-01-01T00:00:00");
        world.live(start, start + 60 * DAY);
        let now = start + 60 * DAY - back;
        let before = world.snapshots.clone();
        let (due, destroyed) = world.look(now);
        assert!(due.len() <= 6 && destroyed.is_empty(), "{back}: {due:?} {destroyed:?}");
        assert_eq!(world.look(now + 1), (vec![], vec![]), "{back}");
        assert_eq!(world.look(now - 1).1, [], "{back}");
        // Those of the time to come stay until as many were taken since.
        world.live(now, now + 2 * 3600);
        let hourly = |all: &[Snapshot]| all.iter().filter(|one| one.periods == [Period::Hourly]).count();
        assert!(hourly(&world.snapshots) >= hourly(&before), "{back}");
        // In the end all is as ever.
        world.live(now + 2 * 3600, now + 2 * 3600 + back.min(90 * DAY) + 45 * DAY);
        assert_eq!((world.count(Period::Hourly), world.count(Period::Daily)), (24, 30), "{back}");
    }
}

#[test]
fn a_clock_that_was_ahead_for_a_while_costs_nothing_for_good() {
    let mut world = World::new(usual());
    let start = at("2026-01-01T00:00:00");
    world.live(start, start + 60 * DAY);
    // The battery of the clock is dead: ten years ahead for an hour, then set right.
    let ahead = at("2036-06-15T12:00:00");
    world.destroyed.clear();
    world.live(ahead, ahead + 3600);
    assert!(world.destroyed.len() <= 4 + 2 + 1 + 1 + 1 + 1, "as many as were taken: {:?}", world.destroyed);
    let (right, kept) = (start + 60 * DAY + 3600, world.snapshots.len());
    let (due, destroyed) = world.look(right);
    // That is a Monday.
    assert!(due.len() <= 4 && destroyed.is_empty(), "{due:?} {destroyed:?}");
    assert!(world.snapshots.len() >= kept);
    world.live(right, right + 40 * DAY);
    assert_eq!((world.count(Period::Hourly), world.count(Period::Daily)), (24, 30));
    let of_later = |period| world.created(period).iter().filter(|&&created| created >= ahead).count();
    assert_eq!(of_later(Period::Daily), 0, "those that are dated ten years ahead are gone");
    assert_eq!(of_later(Period::Yearly), 1, "as many as are kept were not taken since");
}

#[test]
fn a_clock_that_jumps_back_and_forth_takes_one_in_each_period_at_most() {
    let mut world = World::new(usual());
    let (a, b) = (at("2026-06-10T10:07:00"), at("1970-01-01T00:00:05"));
    for turn in 0..1000 {
        world.look(a + turn % 60);
        world.look(b + turn % 60);
    }
    assert_eq!(world.snapshots.len(), 12);
    assert!(world.destroyed.is_empty());
}

#[test]
fn a_snapshot_of_the_future_pushes_out_no_other() {
    let daily = policy(&[(Period::Daily, 2)]);
    let now = at("2026-06-10T10:00:00");
    let one = |days: i64| Snapshot {
        created: now + days * DAY,
        periods: vec![Period::Daily],
        is_held: false,
        is_unreplicated: false,
        is_last: false,
    };
    use Fate::*;
    for (days, expected) in [
        (&[-3, -2, -1][..], &[Goes, Wanted, Wanted][..]),
        // Taken last, but dated tomorrow and later.
        (&[-3, -2, 1, 2, 3], &[Wanted, Wanted, Wanted, Wanted, Wanted]),
        // As many as are kept were taken since.
        (&[-9, 1, 2, -2, -1], &[Goes, Goes, Goes, Wanted, Wanted]),
        (&[-9, 1, -2, 2, -1], &[Goes, Goes, Wanted, Wanted, Wanted]),
        (&[1, 2, 3], &[Wanted, Wanted, Wanted]),
    ] {
        let snapshots: Vec<_> = days.iter().map(|days| one(*days)).collect();
        assert_eq!(fates(&daily, now, &snapshots), expected, "{days:?}");
    }
}

#[test]
fn held_ones_the_last_one_and_those_without_a_count_stay() {
    use Fate::*;
    use Period::*;
    let now = at("2026-06-10T10:00:00");
    let one = |period: &[Period]| Snapshot {
        created: now - 1000 * DAY,
        periods: period.to_vec(),
        is_held: false,
        is_unreplicated: false,
        is_last: false,
    };
    let held = |period: &[Period]| Snapshot { is_held: true, ..one(period) };
    let all = [one(&[Daily]), held(&[Daily]), one(&[Hourly]), one(&[]), one(&[Daily])];
    assert_eq!(fates(&policy(&[(Daily, 1)]), now, &all), [Goes, Held, Wanted, Wanted, Wanted]);
    assert_eq!(
        fates(&policy(&[(Daily, 0)]), now, &all),
        [Goes, Held, Wanted, Wanted, Goes],
        "0: all of them"
    );
    assert_eq!(fates(&Policy::new(), now, &all), [Wanted; 5], "no policy: none of them");
    let last = [one(&[Daily]), Snapshot { is_last: true, ..one(&[Daily]) }];
    assert_eq!(fates(&policy(&[(Daily, 0)]), now, &last), [Goes, Last]);
    let lacking = [Snapshot { is_unreplicated: true, ..one(&[Daily]) }, one(&[Daily])];
    assert_eq!(fates(&policy(&[(Daily, 0)]), now, &lacking), [Unreplicated, Goes]);
    // One for several periods stays while one of them wants it, or has no count.
    let shared = [one(&[Hourly, Daily]), one(&[Hourly]), one(&[Hourly])];
    assert_eq!(fates(&policy(&[(Hourly, 1), (Daily, 1)]), now, &shared), [Wanted, Goes, Wanted]);
    assert_eq!(fates(&policy(&[(Hourly, 1), (Daily, 0)]), now, &shared), [Goes, Goes, Wanted]);
    assert_eq!(fates(&policy(&[(Hourly, 1)]), now, &shared), [Wanted, Goes, Wanted]);
}

#[test]
fn nothing_is_taken_without_a_count() {
    let now = at("2026-06-10T10:00:00");
    assert_eq!(due(&policy(&[(Period::Daily, 0)]), now, &[]), []);
    assert_eq!(due(&Policy::new(), now, &[]), []);
    assert_eq!(due(&policy(&[(Period::Daily, 1)]), now, &[]), [Period::Daily]);
}

#[test]
fn one_snapshot_serves_all_periods_that_begin_together() {
    let mut world = World { format: Format::Gmt, ..World::new(usual()) };
    let start = at("2026-01-01T00:00:00");
    world.live(start, start + 40 * DAY);
    for (period, keep) in usual() {
        let expected = match period {
            Period::Monthly => 2,
            Period::Yearly => 1,
            _ => keep as usize,
        };
        assert!(world.count(period) >= expected, "{period}");
    }
    assert!(world.snapshots.len() < 4 + 24 + 30 + 5 + 2 + 1, "{}", world.snapshots.len());
    assert!(world.snapshots.iter().any(|snapshot| snapshot.periods.len() > 3));
    let mut created: Vec<_> = world.snapshots.iter().map(|snapshot| snapshot.created).collect();
    created.dedup();
    assert_eq!(created.len(), world.snapshots.len(), "names are of one second, and differ");
}
