//! `larder torture`: whether anything is lost on this machine, found out on pools that are made for it.

use super::args::Json;
use super::{out, signals};
use crate::api::{ApiError, ErrorKind, Result};
use larder_pool::property::format_size;
use larder_torture::{Layout, Options, Ran, Tally, Watch};
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Exit code of a run in which something was lost.
const LOST: u8 = 1;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It makes a pool on files in a folder of its own, with a daemon of its own, and lives with it: files are
written, synced, renamed, copied and removed, snapshots taken, rolled back, cloned and sent, while the daemon is killed
(kill -9) and devices rot, vanish, refuse, hang, lie, forget, come back old, change names, are taken out, replaced,
attached and removed: never more of them at once than the layout tolerates. All is compared with a model in memory:
what was synced must be there, what was not may be older, and never anything else. Then comes the next pool, with the
next seed and another layout. No other pool is touched, nor anything outside of the folder.
--beyond damages more than the layout tolerates in the end: files that are hit must be named, and no others; and what
larder repair then calls whole must be.
The same seed and layout give the same steps and the same harm; when within a call the daemon is killed differs.
What was lost leaves the folder, and is told with the command that does the same again. Ctrl-C ends it.
Exit codes: 0 nothing was lost, 1 something was, or it failed, 2 bad usage, 3 it was stopped.
Examples: larder torture --time 8h --dir /mnt/scratch
          larder torture --seed 17 --layout raidz1 --pools 1"
)]
pub struct Args {
    /// How long: 90s, 10m, 8h; a round that has begun is ended
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    time: Duration,
    /// Of the first pool; the next ones have the next seeds [default: by chance]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Where to make the folder [default: $TMPDIR or /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Of all pools: single, mirror, raidz1, raidz2, raidz3, raid10 or raid14 [default: one after the other]
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<Layout>,
    /// In the end damage more than the layout tolerates, and have it repaired
    #[arg(long)]
    beyond: bool,
    /// End after so many pools
    #[arg(long, value_name = "N")]
    pools: Option<u64>,
    #[command(flatten)]
    json: Json,
}

fn time(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || format!("'{text}' is no time: 90s, 10m, 8h");
    let (number, factor) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        Some((at, 'd')) => (&text[..at], 86400),
        _ => (text, 1),
    };
    let seconds: u64 = number.parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(seconds.checked_mul(factor).ok_or_else(wrong)?))
}

/// Runs it.
pub fn run(args: &Args) -> Result<u8> {
    signals::watch()?;
    let failed = |error: std::io::Error| ApiError::new(ErrorKind::Internal, format!("cannot begin: {error}"));
    let program = std::env::current_exe().map_err(failed)?;
    let dir = args.dir.clone().unwrap_or_else(crate::salvage::scratch);
    let dir = std::path::absolute(dir).map_err(failed)?;
    // Few digits: somebody may type them.
    let seed = args.seed.unwrap_or_else(|| chance() % 1_000_000);
    let options = Options {
        program,
        dir,
        seed,
        layout: args.layout,
        time: args.time,
        pools: args.pools,
        beyond: args.beyond,
    };
    let most = larder_torture::most_bytes(options.layout, options.beyond);
    out::complain(&format!(
        "seed {seed}, in {}: sparse files, {} at most; ends after {} s",
        options.dir.display(),
        format_size(most),
        args.time.as_secs()
    ));
    let line = Line { is_shown: std::io::stderr().is_terminal() };
    let ran = larder_torture::run(&options, &line);
    line.end();
    let ran = ran.map_err(|failure| ApiError::new(ErrorKind::Internal, failure.to_string()))?;
    if args.json.json {
        out::print_json(&crate::render::json::reply("larder torture", &json(&ran, seed)));
    } else {
        out::print(&text(&ran, seed));
    }
    Ok(match (&ran.lost, ran.is_stopped) {
        (Some(_), _) => LOST,
        (None, true) => signals::STOPPED,
        (None, false) => 0,
    })
}

fn chance() -> u64 {
    use larder_device::Entropy;
    larder_device::SystemEntropy.next_u64()
}

fn json(ran: &Ran, seed: u64) -> Value {
    let lost = ran.lost.as_ref().map(|lost| {
        json!({
            "what": lost.failure.to_string(),
            "seed": lost.seed,
            "layout": lost.layout.name(),
            "folder": lost.folder,
            "command": lost.command(),
        })
    });
    json!({
        "seed": seed,
        "seconds": ran.took.as_secs_f64(),
        "stopped": ran.is_stopped,
        "done": ran.tally.json(),
        "lost": lost,
    })
}

fn text(ran: &Ran, seed: u64) -> String {
    let Tally { pools, operations, faults, kills, exports, comparisons, .. } = &ran.tally;
    let mut text = String::new();
    let mut line =
        |what: &str, value: String| writeln!(text, "{what:>11}: {value}").expect("strings take all");
    let some = |kinds: &mut dyn Iterator<Item = (&str, u64)>| {
        let all: Vec<_> = kinds.map(|(kind, count)| format!("{kind} {count}")).collect();
        all.join(", ")
    };
    let all: u64 = pools.values().sum();
    line("pools", format!("{all} ({})", some(&mut pools.iter().map(|(kind, count)| (*kind, *count)))));
    let kinds = some(&mut operations.iter().map(|(kind, count)| (kind.as_str(), *count)));
    line("operations", format!("{} ({kinds})", ran.tally.all_operations()));
    line("crashes", format!("{kills} daemons killed, {exports} exports"));
    let kinds = some(&mut faults.iter().map(|(kind, count)| (kind.as_str(), *count)));
    line("faults", format!("{} ({kinds})", ran.tally.all_faults()));
    line(
        "bytes",
        format!(
            "{} written, {} compared in {comparisons} comparisons, {} healed",
            format_size(ran.tally.written),
            format_size(ran.tally.compared),
            format_size(ran.tally.healed)
        ),
    );
    if ran.tally.lost + ran.tally.saved > 0 {
        line(
            "beyond",
            format!("{} files hit and named, {} saved whole by repair", ran.tally.lost, ran.tally.saved),
        );
    }
    let took = ran.took.as_secs();
    match &ran.lost {
        None => {
            let told = if ran.is_stopped { ", and was stopped" } else { "" };
            line("result", format!("nothing lost; seed {seed}, took {took} s{told}"));
        }
        Some(lost) => {
            line("result", format!("FAILED after {took} s, with seed {}, {}", lost.seed, lost.layout));
            line("what", lost.failure.to_string());
            line("evidence", format!("{} (torture.log says what was done)", lost.folder.display()));
            line("again", lost.command());
        }
    }
    text
}

/// A line on the terminal.
struct Line {
    is_shown: bool,
}

impl Line {
    fn end(&self) {
        if self.is_shown {
            eprint!("\r{:90}\r", "");
        }
    }
}

impl Watch for Line {
    fn is_stopped(&self) -> bool {
        signals::stopped()
    }

    fn tell(&self, line: &str) {
        if self.is_shown {
            eprint!("\r{line:<90}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(time("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(time("7"), Ok(Duration::from_secs(7)));
        for wrong in ["", "m", "x", "-1s", "99999999999999999999h", "9999999999999999999d"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
