//! `larder pool trace`: walks everything that pools hold, beside all that goes on.

use super::args::Json;
use super::{Session, out};
use crate::api::pool::{PoolStatus, Status};
use crate::api::trace::{Trace, TraceState, TraceStatus};
use crate::api::{ApiError, Result};
use crate::client;
use crate::render::json::{envelope, traces};
use crate::render::scan::duration;
use crate::render::status::trace_line;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Interval of polls for the progress.
const INTERVAL: Duration = Duration::from_millis(500);

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Frees what nothing refers to any more, and finds what has leaked or is missing. With -w, the
exit code is 1 when data is missing.
Example: larder pool trace -w tank"
)]
pub struct Args {
    /// Wait for the end, and show what was found
    #[arg(short = 'w')]
    wait: bool,
    /// Stop it
    #[arg(short = 's', conflicts_with = "wait")]
    stop: bool,
    #[command(flatten)]
    json: Json,
    #[arg(required = true)]
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.client.call(Trace { names: args.names.clone(), stop: args.stop, folders: None })?;
    let pools = match args.wait {
        true => finished(session, &args.names, !args.json.json)?,
        false => status(session, &args.names)?,
    };
    if args.json.json {
        out::print_json(&envelope(&session.spell("pool", "trace"), "pools", traces(&pools)));
    } else if args.wait {
        let line = |pool: &PoolStatus| {
            let text = pool.trace.as_ref().map_or_else(|| "nothing is known of it".to_owned(), trace_line);
            format!("{}: trace {text}\n", pool.root.name)
        };
        out::print(&pools.iter().map(line).collect::<String>());
    }
    let failed = |trace: &TraceStatus| trace.is_loss() || trace.state == TraceState::Failed;
    let bad = args.wait && pools.iter().filter_map(|pool| pool.trace.as_ref()).any(failed);
    Ok(u8::from(bad))
}

/// The state of pools when no trace of them is under way; until then progress is `told`.
pub(super) fn finished(session: &Session, names: &[String], told: bool) -> Result<Vec<PoolStatus>> {
    let progress = Progress::new(told);
    loop {
        let pools = status(session, names)?;
        if pools.iter().filter_map(|pool| pool.trace.as_ref()).all(|trace| trace.finished.is_some()) {
            progress.clear();
            return Ok(pools);
        }
        let running = pools.iter().filter_map(|pool| Some((&pool.root.name, pool.trace.as_ref()?)));
        for (name, trace) in running.filter(|(_, trace)| trace.finished.is_none()) {
            progress.show(&progress_line(name, trace, progress.begun.elapsed()));
        }
        client::pause(INTERVAL);
    }
}

fn status(session: &Session, names: &[String]) -> Result<Vec<PoolStatus>, ApiError> {
    Ok(session.client.call(Status { names: names.to_vec() })?.pools)
}

/// A line on a terminal that is written again and again.
pub(super) struct Progress {
    shown: bool,
    begun: Instant,
}

impl Progress {
    /// One that is shown if it is `wanted` and somebody is there to see it.
    pub(super) fn new(wanted: bool) -> Self {
        Self { shown: wanted && std::io::stderr().is_terminal(), begun: now() }
    }

    /// Writes the line anew.
    pub(super) fn show(&self, line: &str) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
        }
    }

    /// Takes the line away.
    pub(super) fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a command measures how long it has been waiting")]
fn now() -> Instant {
    Instant::now()
}

/// `tank: 12.34% done, 1234 of 10000 blocks, 56/s, 00:02:36 to go`.
fn progress_line(name: &str, trace: &TraceStatus, waited: Duration) -> String {
    let (examined, total) = (trace.examined, trace.total.max(1));
    let percent = examined as f64 * 100.0 / total as f64;
    let seconds = waited.as_secs_f64().max(0.001);
    let rate = examined as f64 / seconds;
    let left = match examined {
        0 => String::new(),
        _ => format!(", {} to go", duration(((total - examined.min(total)) as f64 / rate) as i64)),
    };
    format!("{name}: {percent:.2}% done, {examined} of {total} blocks, {rate:.0}/s{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_rate_and_what_is_left() {
        let trace = TraceStatus { examined: 250, total: 1000, ..TraceStatus::default() };
        let line = progress_line("tank", &trace, Duration::from_secs(10));
        assert_eq!(line, "tank: 25.00% done, 250 of 1000 blocks, 25/s, 00:00:30 to go");
        let begun = progress_line("tank", &TraceStatus::default(), Duration::ZERO);
        assert_eq!(begun, "tank: 0.00% done, 0 of 1 blocks, 0/s");
    }
}
