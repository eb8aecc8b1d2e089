//! `larder pool scrub` and `larder pool resilver`: what is read through, and written anew where it is wrong or not
//! there.

use super::args::Json;
use super::pool_trace::Progress;
use super::{Session, out};
use crate::api::pool::{PoolStatus, Scan, ScanKind, Status};
use crate::api::repair::{Resilver, Scrub, ScrubAction};
use crate::api::{ApiError, Result};
use crate::client;
use crate::render::json::{envelope, scans};
use crate::render::scan::{progress_line, text};
use jiff::civil::Date;
use jiff::{Span, Timestamp, tz::TimeZone};
use std::time::Duration;

/// Interval of polls for the progress.
const INTERVAL: Duration = Duration::from_millis(500);

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Reads everything that pools hold, parity and copies included, and writes what is wrong anew. It keeps its
place over exports and crashes; without a flag, one that was paused goes on. With -w, the exit code is 1 when
something could not be repaired, or the scrub was stopped.
Examples:
  larder pool scrub -w tank
  larder pool scrub --since 30d tank        what was not verified in the last thirty days"
)]
pub struct Args {
    /// Stop it
    #[arg(short = 's', conflicts_with_all = ["pause", "wait", "since"])]
    stop: bool,
    /// Pause it: it keeps its place
    #[arg(short = 'p', conflicts_with_all = ["wait", "since"])]
    pause: bool,
    /// Wait for the end, and show what came of it
    #[arg(short = 'w')]
    wait: bool,
    /// Only what was last verified before WHEN, or never: a date (2026-10-01) or so long ago (12h, 30d, 8w)
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    #[command(flatten)]
    json: Json,
    #[arg(required = true)]
    names: Vec<String>,
}

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: larder pool resilver tank")]
pub struct ResilverArgs {
    #[arg(required = true)]
    names: Vec<String>,
}

/// `scrub`.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let action = match (args.stop, args.pause) {
        (true, _) => ScrubAction::Stop,
        (_, true) => ScrubAction::Pause,
        _ => ScrubAction::Start,
    };
    let since = args.since.as_deref().map(|text| moment(text, Timestamp::now())).transpose()?;
    session.client.call(Scrub { names: args.names.clone(), action, since })?;
    let pools = match args.wait {
        true => finished(session, &args.names, !args.json.json)?,
        false => status(session, &args.names)?,
    };
    if args.json.json {
        out::print_json(&envelope(&session.spell("pool", "scrub"), "pools", scans(&pools)));
    } else if args.wait {
        let line = |pool: &PoolStatus| {
            let text = scrub_of(pool).map_or_else(|| "nothing is known of its scrub".to_owned(), text);
            format!("{}: {text}\n", pool.root.name)
        };
        out::print(&pools.iter().map(line).collect::<String>());
    }
    let whole = |scan: &Scan| scan.finished.is_some() && !scan.canceled && scan.errors == 0;
    Ok(u8::from(args.wait && !pools.iter().all(|pool| scrub_of(pool).is_some_and(whole))))
}

/// `resilver`.
pub fn resilver(args: ResilverArgs, session: &Session) -> Result<u8> {
    session.client.call(Resilver { names: args.names })?;
    Ok(0)
}

fn scrub_of(pool: &PoolStatus) -> Option<&Scan> {
    pool.scans.iter().find(|scan| scan.kind == ScanKind::Scrub)
}

/// The state of pools when their scrubs are over, or stand still because somebody paused them.
fn finished(session: &Session, names: &[String], told: bool) -> Result<Vec<PoolStatus>> {
    let progress = Progress::new(told);
    loop {
        let pools = status(session, names)?;
        let goes_on = |scan: &Scan| scan.finished.is_none() && scan.paused.is_none();
        let running =
            pools.iter().filter_map(|pool| Some((pool, scrub_of(pool).filter(|scan| goes_on(scan))?)));
        let lines: Vec<String> =
            running.map(|(pool, scan)| format!("{}: {}", pool.root.name, progress_line(scan))).collect();
        if lines.is_empty() {
            progress.clear();
            return Ok(pools);
        }
        lines.iter().for_each(|line| progress.show(line));
        client::pause(INTERVAL);
    }
}

fn status(session: &Session, names: &[String]) -> Result<Vec<PoolStatus>, ApiError> {
    Ok(session.client.call(Status { names: names.to_vec() })?.pools)
}

/// Seconds since 1970 of `30d` ago or `2026-10-01`, which begins at midnight here.
fn moment(text: &str, now: Timestamp) -> Result<i64> {
    let refused =
        || ApiError::usage(format!("'{text}' is neither a date (2026-10-01) nor so long ago (12h, 30d, 8w)"));
    if let Ok(date) = text.parse::<Date>() {
        let midnight = date.to_zoned(TimeZone::system()).map_err(|_| refused())?;
        return Ok(midnight.timestamp().as_second());
    }
    let back: Span = text.parse().map_err(|_| refused())?;
    let then = now.to_zoned(TimeZone::UTC).checked_sub(back).map_err(|_| refused())?.timestamp();
    if then > now { Err(refused()) } else { Ok(then.as_second()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_takes_a_date_or_so_long_ago() {
        let now = Timestamp::from_second(1_000_000_000).unwrap();
        assert_eq!(moment("2h", now), Ok(1_000_000_000 - 7200));
        assert_eq!(moment("30d", now), Ok(1_000_000_000 - 30 * 86_400));
        assert_eq!(moment("1w", now), Ok(1_000_000_000 - 7 * 86_400));
        let day = moment("2001-09-09", now).unwrap();
        assert!((day - 1_000_000_000).abs() < 2 * 86_400, "{day}");
        for text in ["", "d", "30", "-1d", "30x", "2026-13-01", "tomorrow", "9223372036854775807w", "3ä"] {
            assert!(moment(text, now).is_err(), "{text}");
        }
    }
}
