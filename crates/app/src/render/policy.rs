//! Policies of snapshots, and what a run of them did.

use super::date_to_minute;
use super::table::{Column, Table};
use crate::api::Source;
use crate::api::policy::{DatasetPolicy, PeriodPolicy, Ran};

/// A row for each period that has a count or snapshots; one for a dataset without any.
pub fn table(datasets: &[DatasetPolicy], exact: bool) -> Table {
    let mut table = Table::new(vec![
        Column::left("NAME"),
        Column::left("PERIOD"),
        Column::right("KEEP", 0),
        Column::right("SNAPS", 0),
        Column::left("NEWEST"),
        Column::left("NEXT"),
        Column::left("SOURCE"),
    ]);
    for dataset in datasets {
        let is_shown = |one: &&PeriodPolicy| one.keep.is_some_and(|keep| keep > 0) || one.snapshots > 0;
        let before = table.height();
        for one in dataset.periods.iter().filter(is_shown) {
            table.row(row(&dataset.name, one, exact));
        }
        if table.height() == before {
            let none = ["-", "none", "0", "-", "-", "-"].map(str::to_owned);
            table.row([dataset.name.clone()].into_iter().chain(none).collect());
        }
    }
    table
}

fn row(name: &str, one: &PeriodPolicy, exact: bool) -> Vec<String> {
    let time = |time: Option<i64>| match time {
        None => "-".to_owned(),
        Some(time) if exact => time.to_string(),
        Some(time) => date_to_minute(time),
    };
    let next = if one.due && !exact { "now".to_owned() } else { time(one.next) };
    let source = match &one.source {
        Source::Inherited(from) => format!("inherited from {from}"),
        Source::Local => "local".to_owned(),
        Source::Received => "received".to_owned(),
        _ => "default".to_owned(),
    };
    let keep = one.keep.map_or_else(|| "none".to_owned(), |keep| keep.to_string());
    let (period, snapshots) = (one.period.to_string(), one.snapshots.to_string());
    vec![name.to_owned(), period, keep, snapshots, time(one.newest), next, source]
}

/// A line for each snapshot.
pub fn ran(ran: &Ran, dry_run: bool) -> String {
    let (take, destroy) = if dry_run { ("would take", "would destroy") } else { ("took", "destroyed") };
    let lines = |verb: &'static str, names: &[String]| {
        names.iter().map(|name| format!("{verb} {name}\n")).collect::<String>()
    };
    let kept = ran.kept.iter().map(|kept| format!("kept {}: {}\n", kept.name, kept.why));
    lines(take, &ran.taken) + &lines(destroy, &ran.destroyed) + &kept.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::policy::Kept;
    use crate::policy::{Format, Period};

    #[test]
    fn each_period_has_a_row_and_a_dataset_one_at_least() {
        let one = |period, keep, snapshots, source| PeriodPolicy {
            period,
            keep,
            source,
            snapshots,
            newest: (snapshots > 0).then_some(1_700_000_000),
            next: Some(1_700_003_600).filter(|_| keep.is_some()),
            due: snapshots == 0,
        };
        let policy =
            |name: &str, periods| DatasetPolicy { name: name.into(), format: Format::Autosnap, periods };
        let datasets = [
            policy(
                "tank/a",
                vec![
                    one(Period::Frequently, Some(0), 0, Source::Local),
                    one(Period::Hourly, Some(24), 3, Source::Local),
                    one(Period::Daily, Some(7), 0, Source::Inherited("tank".into())),
                    one(Period::Monthly, None, 2, Source::Default),
                ],
            ),
            policy("tank/b", vec![one(Period::Daily, None, 0, Source::Default)]),
        ];
        let exact = "tank/a\thourly\t24\t3\t1700000000\t1700003600\tlocal\n\
                     tank/a\tdaily\t7\t0\t-\t1700003600\tinherited from tank\n\
                     tank/a\tmonthly\tnone\t2\t1700000000\t-\tdefault\n\
                     tank/b\t-\tnone\t0\t-\t-\t-\n";
        assert_eq!(table(&datasets, true).render(true), exact);
        let shown = table(&datasets, false).render(false);
        assert!(shown.starts_with("NAME ") && shown.contains("now"), "{shown}");
    }

    #[test]
    fn a_rehearsal_says_would() {
        let done = Ran {
            taken: vec!["tank@a".into()],
            destroyed: vec!["tank@b".into()],
            kept: vec![Kept { name: "tank@c".into(), why: "it is held by x".into() }],
            failed: vec![],
        };
        assert_eq!(
            ran(&done, true),
            "would take tank@a\nwould destroy tank@b\nkept tank@c: it is held by x\n"
        );
        assert_eq!(ran(&done, false), "took tank@a\ndestroyed tank@b\nkept tank@c: it is held by x\n");
    }
}
