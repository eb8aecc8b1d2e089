//! The daemon's log: to standard error, as lines for people or for systemd's journal.

use crate::daemon::VERSION;
use rustix::fs::fstat;
use std::fmt;
use std::str::FromStr;
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Names the least level that is logged, also by target: `warn,larder::host=debug`; `info` for what it leaves out.
const VARIABLE: &str = "LARDER_LOG";

/// Begins to log what this process has to say.
pub fn start() {
    let wish = std::env::var(VARIABLE).unwrap_or_default();
    let info = || Targets::new().with_default(Level::INFO);
    let (targets, refused) = match Targets::from_str(&wish) {
        _ if wish.is_empty() => (info(), None),
        Ok(targets) if targets.default_level().is_none() => (targets.with_default(Level::INFO), None),
        Ok(targets) => (targets, None),
        Err(error) => (info(), Some(error)),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let lines = if is_journal() {
        lines
            .event_format(Journal(Format::default().with_ansi(false).without_time().with_level(false)))
            .boxed()
    } else {
        lines.boxed()
    };
    // Fails only where something logs already.
    let _ = tracing_subscriber::registry().with(lines.with_filter(targets)).try_init();
    if let Some(error) = refused {
        warn!("{VARIABLE}={wish:?} is not understood by version {VERSION}: {error}");
    }
}

/// Whether standard error goes to systemd's journal, which says so by device and inode.
fn is_journal() -> bool {
    let told = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(std::io::stderr()).is_ok_and(|stat| told == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Lines as the journal reads them: a priority of syslog(3) first; it adds the time.
struct Journal(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(to, "<{priority}>")?;
        self.0.format_event(ctx, to, event)
    }
}
