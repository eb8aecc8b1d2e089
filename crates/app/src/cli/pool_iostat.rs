//! `larder pool iostat`: traffic since import, then over each interval.

use super::args::{Form, Json};
use super::{Session, out};
use crate::api::pool::{PoolStatus, Status};
use crate::api::{ApiError, Result};
use crate::{client, render};
use std::time::Duration;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The first lines are averages since import. With an INTERVAL (seconds) others follow, COUNT in all.
Example: larder pool iostat -v tank 5"
)]
pub struct Args {
    /// Groups and devices too
    #[arg(short = 'v')]
    verbose: bool,
    #[command(flatten)]
    form: Form,
    /// Leave out the averages since import
    #[arg(short = 'y')]
    no_boot: bool,
    /// Full paths of devices
    #[arg(short = 'P')]
    paths: bool,
    #[command(flatten)]
    json: Json,
    /// Pools, all when none is given; then INTERVAL and COUNT
    #[arg(value_name = "NAME|INTERVAL|COUNT")]
    words: Vec<String>,
}

/// What the positional words say.
#[derive(Debug, PartialEq)]
struct Plan {
    names: Vec<String>,
    interval: Option<Duration>,
    count: Option<u64>,
}

/// Pool names never start with a digit, so the numbers at the end are interval and count.
fn plan(words: &[String]) -> Result<Plan> {
    let first = words.iter().position(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let (names, numbers) = words.split_at(first.unwrap_or(words.len()));
    let refuse = |why: &str| ApiError::usage(format!("cannot read '{}': {why}", numbers.join(" ")));
    let interval = |text: &String| match text.parse::<f64>() {
        Ok(seconds) if (0.001..1e9).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(refuse("an interval is a number of seconds")),
    };
    let count = |text: &String| match text.parse::<u64>() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(refuse("a count is a whole number above 0")),
    };
    let (interval, count) = match numbers {
        [] => (None, None),
        [first] => (Some(interval(first)?), None),
        [first, second] => (Some(interval(first)?), Some(count(second)?)),
        _ => return Err(refuse("at most an interval and a count come last")),
    };
    Ok(Plan { names: names.to_vec(), interval, count })
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let plan = plan(&args.words)?;
    let read = || Ok::<_, ApiError>(session.client.call(Status { names: plan.names.clone() })?.pools);
    let form = render::iostat::Form { verbose: args.verbose, paths: args.paths, exact: args.form.exact };
    let mut before: Option<Vec<PoolStatus>> = None;
    let mut shown = 0;
    let mut header = !args.form.scripted;
    loop {
        let now = read()?;
        if now.is_empty() && !args.json.json {
            out::complain("no pools available");
            return Ok(0);
        }
        let skip = before.is_none() && args.no_boot && plan.interval.is_some();
        if !skip {
            let earlier = before.as_deref().unwrap_or_default();
            if args.json.json {
                let command = session.spell("pool", "iostat");
                let sample = render::json::iostat(&command, earlier, &now);
                match plan.interval {
                    Some(_) => out::print_json_line(&sample),
                    None => out::print_json(&sample),
                }
            } else {
                out::print(&render::iostat::text(earlier, &now, form, header, args.form.scripted));
            }
            header = false;
            shown += 1;
        }
        let Some(interval) = plan.interval else { return Ok(0) };
        if plan.count.is_some_and(|count| shown >= count) {
            return Ok(0);
        }
        before = Some(now);
        client::pause(interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Plan> {
        plan(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn numbers_at_the_end_are_interval_and_count() {
        let plan = read("tank dozer 0.5 10").unwrap();
        assert_eq!(plan.names, ["tank", "dozer"]);
        assert_eq!((plan.interval, plan.count), (Some(Duration::from_millis(500)), Some(10)));
        let plan = read("5").unwrap();
        assert_eq!((plan.names.len(), plan.interval, plan.count), (0, Some(Duration::from_secs(5)), None));
        for bad in ["tank 0", "tank 1 0", "tank 1 2 3", "1 tank", "tank 1 1.5"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
