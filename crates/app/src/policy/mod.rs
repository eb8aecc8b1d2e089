//! Which snapshots a policy wants taken and destroyed, from the time, the policy and the snapshots that there are.
//!
//! *Periods* are of UTC, so that no zone's summer has a day of 23 hours: quarters of an hour, hours, days, weeks from
//! Monday, months, years. A snapshot that was taken by policy has the property [`MARK`] of its own, which names its
//! periods. All others are nobody's business here: they are neither counted nor destroyed.
//!
//! # Taking
//! A snapshot of a period is *due* when none of that period was created within the one that it is now. So after a sleep
//! of whatever length one is taken of each period, and one in each period at most, however often the clock jumps.
//!
//! # Destroying
//! Of each period, the newest are kept, as many as the policy says, and older ones are destroyed. Newest in the order
//! in which they were taken, which is not that of their times where a clock was wrong. One that is dated later than
//! now, by a clock that was ahead or is behind, *pushes out no other*; it goes itself once as many as are kept, dated
//! rightly, were taken after it. Those of a period without a count (`none`) stay, and so does a snapshot with several
//! periods as long as one of them wants it. Never destroyed are the newest snapshot of a dataset, of whatever origin,
//! held ones, and those that a target of [`crate::replicate`] lacks.

pub mod sanoid;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The property that says of which periods a snapshot is, separated by commas.
pub const MARK: &str = "larder:period";
/// The property of datasets that says which form the names have.
pub const FORMAT: &str = "snapshots_format";

/// From one snapshot to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// A quarter of an hour.
    Frequently,
    /// An hour.
    Hourly,
    /// A day.
    Daily,
    /// A week, from Monday.
    Weekly,
    /// A month.
    Monthly,
    /// A year.
    Yearly,
}

impl Period {
    /// All of them, the shortest first.
    pub const ALL: [Self; 6] =
        [Self::Frequently, Self::Hourly, Self::Daily, Self::Weekly, Self::Monthly, Self::Yearly];

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Frequently => "frequently",
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
            Self::Yearly => "yearly",
        }
    }

    /// The one of a word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|period| period.word() == word)
    }

    /// The property of datasets that says how many are kept.
    pub fn property(self) -> &'static str {
        match self {
            Self::Frequently => "snapshots_frequently",
            Self::Hourly => "snapshots_hourly",
            Self::Daily => "snapshots_daily",
            Self::Weekly => "snapshots_weekly",
            Self::Monthly => "snapshots_monthly",
            Self::Yearly => "snapshots_yearly",
        }
    }

    /// Begin and end of the one that `now` lies in, in seconds since 1970; nothing where the calendar ends.
    pub fn around(self, now: i64) -> Option<(i64, i64)> {
        let even = |length: i64, offset: i64| {
            let begin = (now - offset).div_euclid(length) * length + offset;
            (begin, begin + length)
        };
        let today = || Some(Timestamp::from_second(now).ok()?.to_zoned(TimeZone::UTC).date());
        let midnight = |date: Date| Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second());
        let dates = |begin: Date, end: Date| Some((midnight(begin)?, midnight(end)?));
        match self {
            Self::Frequently => Some(even(900, 0)),
            Self::Hourly => Some(even(3600, 0)),
            Self::Daily => Some(even(DAY, 0)),
            // 1970 began on a Thursday.
            Self::Weekly => Some(even(7 * DAY, 4 * DAY)),
            Self::Monthly => {
                let first = today()?.first_of_month();
                dates(first, first.checked_add(1.month()).ok()?)
            }
            Self::Yearly => {
                let first = today()?.first_of_year();
                dates(first, first.checked_add(1.year()).ok()?)
            }
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

const DAY: i64 = 86_400;

/// Periods of a value of [`MARK`]; none, so that it stays, where it says more than this version knows.
pub fn marked(value: &str) -> Vec<Period> {
    let periods = value.split(',').map(|word| Period::of_word(word.trim()));
    periods.collect::<Option<_>>().unwrap_or_default()
}

/// The value of [`MARK`] for these periods.
pub fn mark(periods: &[Period]) -> String {
    let words: Vec<_> = periods.iter().map(|period| period.word()).collect();
    words.join(",")
}

/// Form of the names of snapshots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// `autosnap_2026-11-23_17:59:01_daily`, as sanoid has it: one for each period.
    #[default]
    Autosnap,
    /// `GMT-2026.11.23-17.59.01`, which Samba's shadow_copy2 reads: one for all periods.
    Gmt,
}

impl Format {
    /// The one of a property's value.
    pub fn of_value(value: &str) -> Self {
        if value == "gmt" { Self::Gmt } else { Self::Autosnap }
    }

    /// Names of snapshots of these periods that are taken now, each with its periods. None where the calendar ends.
    pub fn names(self, now: i64, due: &[Period]) -> Vec<(String, Vec<Period>)> {
        let Ok(now) = Timestamp::from_second(now) else { return Vec::new() };
        let time = |format: &str| now.to_zoned(TimeZone::UTC).strftime(format).to_string();
        match self {
            _ if due.is_empty() => Vec::new(),
            Self::Autosnap => {
                let time = time("%Y-%m-%d_%H:%M:%S");
                due.iter().map(|period| (format!("autosnap_{time}_{period}"), vec![*period])).collect()
            }
            Self::Gmt => vec![(time("GMT-%Y.%m.%d-%H.%M.%S"), due.to_vec())],
        }
    }
}

/// Number of snapshots of each period that are kept; of a period that is not in it, none is taken or destroyed.
pub type Policy = BTreeMap<Period, u64>;

/// A snapshot that was taken by policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// When it was taken, by the clock of then: seconds since 1970.
    pub created: i64,
    /// Of which periods it is.
    pub periods: Vec<Period>,
    /// It is held.
    pub is_held: bool,
    /// It was not replicated to all targets yet.
    pub is_unreplicated: bool,
    /// It is the newest of its dataset's snapshots, of whatever origin.
    pub is_last: bool,
}

/// Fate of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The policy wants it, or says nothing.
    Wanted,
    /// It is to be destroyed.
    Goes,
    /// It would be, if it were not held.
    Held,
    /// It would be, if all targets had it, or a newer one.
    Unreplicated,
    /// It would be, if there were a newer one.
    Last,
}

/// Whether a period lacks its snapshot, where there are some created at these times.
pub fn is_due(period: Period, now: i64, mut created: impl Iterator<Item = i64>) -> bool {
    let around = period.around(now);
    around.is_some_and(|(begin, end)| !created.any(|created| (begin..end).contains(&created)))
}

/// The periods of which a snapshot is to be taken.
pub fn due(policy: &Policy, now: i64, snapshots: &[Snapshot]) -> Vec<Period> {
    let lacks = |period: Period| {
        let of_period = snapshots.iter().filter(|snapshot| snapshot.periods.contains(&period));
        is_due(period, now, of_period.map(|snapshot| snapshot.created))
    };
    let kept = policy.iter().filter(|(_, keep)| **keep > 0);
    kept.map(|(period, _)| *period).filter(|period| lacks(*period)).collect()
}

/// Whether more go than new ones push out: of some period more than one. Then the policy has changed, or it is another
/// dataset's by now, or a clock was wrong.
pub fn is_surprising(snapshots: &[Snapshot], fates: &[Fate]) -> bool {
    let going = || snapshots.iter().zip(fates).filter(|(_, fate)| **fate == Fate::Goes);
    let of = |period: &Period| going().filter(|(one, _)| one.periods.contains(period)).count();
    Period::ALL.iter().any(|period| of(period) > 1)
}

/// Fates of a dataset's snapshots, which are given in the order in which they were taken.
pub fn fates(policy: &Policy, now: i64, snapshots: &[Snapshot]) -> Vec<Fate> {
    let mut wanted: Vec<bool> = snapshots
        .iter()
        .map(|snapshot| {
            snapshot.periods.is_empty() || snapshot.periods.iter().any(|of| !policy.contains_key(of))
        })
        .collect();
    for (period, keep) in policy {
        let mut kept = 0;
        for (at, snapshot) in snapshots.iter().enumerate().rev() {
            if snapshot.periods.contains(period) && kept < *keep {
                wanted[at] = true;
                kept += u64::from(snapshot.created <= now);
            }
        }
    }
    let fate = |(snapshot, wanted): (&Snapshot, bool)| match snapshot {
        _ if wanted => Fate::Wanted,
        Snapshot { is_held: true, .. } => Fate::Held,
        Snapshot { is_unreplicated: true, .. } => Fate::Unreplicated,
        Snapshot { is_last: true, .. } => Fate::Last,
        _ => Fate::Goes,
    };
    snapshots.iter().zip(wanted).map(fate).collect()
}

#[cfg(test)]
mod tests;
