//! `larder advise`: what compression and deduplication would gain for files anywhere.

use super::args::{self, Json};
use super::signals::{self, IN_PART, STOPPED};
use super::{Applet, Session, advise_dataset, out};
use crate::api::{ApiError, ErrorKind, Result};
use crate::client::Client;
use crate::render;
use crate::render::advise::{Compared, Known};
use crate::render::scan::duration;
use crate::run_dir::RunDir;
use larder_advise::{Options, Report, Watch, advise};
use larder_device::{Clock, SystemClock, SystemWorkers};
use larder_pool::property::{format_size, parse_size};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It reads only, and needs no daemon and no pool. Up to 5 GiB are read whole. Of more a part is read, of 100 GiB and
more at most a twentieth, and each figure has the range that holds it; where that is too wide to say something,
--exact reads everything. Symbolic links are not followed, other file systems below PATH are left out, a file with
several names counts once. Stopped by a signal, it tells what it knows.
Of a dataset, or the mount point of one, it tells its properties and what they save, too; --compare holds what was
predicted against what compression and sharing save there now, which a trace counts.
Exit codes: 0 done, 1 failed, 2 bad usage, 3 stopped by a signal, 4 some files could not be read.
Examples: larder advise /srv/backups
          larder advise --html advice.html /home
          larder advise -j /srv/backups > advice.json
          larder advise --compare=advice.json tank/backups   # later"
)]
pub struct Args {
    /// Read everything
    #[arg(long)]
    exact: bool,
    /// Memory for what is remembered
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory)]
    memory: u64,
    /// Tell of folders down to so many steps below
    #[arg(long, short = 'd', value_name = "N", default_value_t = 3)]
    depth: u32,
    /// Tell of every folder that has a hundredth of everything, however deep
    #[arg(short = 'r')]
    recursive: bool,
    /// Go into other file systems mounted below
    #[arg(long)]
    cross_mounts: bool,
    /// Write a page with the picture: folders by size, what they would gain in colour
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Hold a prediction against what happened in a dataset: what -j printed before, or what is predicted now
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    compare: Option<Option<PathBuf>>,
    /// Exact numbers: bytes
    #[arg(short = 'p')]
    exact_numbers: bool,
    #[command(flatten)]
    json: Json,
    /// Files and folders, or a dataset
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

fn memory(text: &str) -> std::result::Result<u64, String> {
    let size = parse_size(text).filter(|size| (larder_advise::LEAST_MEMORY as u64..=1 << 44).contains(size));
    size.ok_or_else(|| format!("'{text}' is no size of 64M or more"))
}

/// Runs it.
pub fn run(args: &Args, applet: Applet) -> Result<u8> {
    let session = || Ok(Session { client: Client::new(RunDir::from_environment()?), applet });
    let mut paths = Vec::new();
    let mut dataset = None;
    for text in &args.paths {
        let (path, found) = advise_dataset::place(text, session)?;
        paths.push(path);
        dataset = found;
    }
    // Of several places none is what the report is of.
    let dataset = dataset.filter(|_| paths.len() == 1);
    if args.compare.is_some() && dataset.is_none() {
        return Err(ApiError::usage("--compare takes one dataset, or the mount point of one"));
    }
    let told = !args.json.json;
    let known = match &dataset {
        Some(name) => Some(advise_dataset::known(&session()?, name, args.compare.is_some(), told)?),
        None => None,
    };
    if let (Some(Some(file)), Some(known)) = (&args.compare, &known) {
        // What was predicted is in the file.
        let compared = advise_dataset::compare(Some(file), None, known.clone())?;
        show(args, None, Some(&compared), None);
        return Ok(0);
    }
    let options = Options {
        paths,
        exact: args.exact,
        memory: usize::try_from(args.memory).unwrap_or(usize::MAX),
        cross: args.cross_mounts,
        depth: if args.recursive { u32::MAX } else { args.depth },
        ..Options::default()
    };
    let internal =
        |error: std::io::Error| ApiError::new(ErrorKind::Internal, format!("cannot start: {error}"));
    let workers = SystemWorkers::new().map_err(internal)?;
    let clock = SystemClock::new();
    signals::watch()?;
    let watch = Live::new(&clock);
    let report = advise(&options, &clock, &workers, &watch)
        .map_err(|error| ApiError::new(ErrorKind::NotFound, error.to_string()))?;
    watch.end();
    for (path, reason) in &report.failures {
        out::complain(&format!("cannot read '{}': {reason}", path.display()));
    }
    if let Some(file) = &args.html {
        let page = render::advise_page::html(&report);
        let written = args::absolute(file).and_then(|path| {
            std::fs::write(&path, page)
                .map_err(|error| ApiError::new(ErrorKind::Denied, format!("cannot write '{path}': {error}")))
        });
        written?;
    }
    let compared = match (&args.compare, &known) {
        (Some(_), Some(known)) => Some(advise_dataset::compare(None, Some(&report), known.clone())?),
        _ => None,
    };
    show(args, Some(&report), compared.as_ref(), known.as_ref());
    Ok(match () {
        () if !report.complete => STOPPED,
        () if report.unreadable > 0 => IN_PART,
        () => 0,
    })
}

fn show(args: &Args, report: Option<&Report>, compared: Option<&Compared>, known: Option<&Known>) {
    if args.json.json {
        let mut whole = match report {
            Some(report) => render::json::reply("larder advise", report),
            None => render::json::reply("larder advise", &serde_json::Map::new()),
        };
        if let Some(known) = known {
            whole["dataset"] = serde_json::to_value(known).expect("plain data");
        }
        if let Some(compared) = compared {
            whole["compared"] = serde_json::to_value(compared).expect("plain data");
        }
        out::print_json(&whole);
    } else {
        let mut text = String::new();
        if let Some(report) = report {
            text += &render::advise::text(report, known, args.exact_numbers);
        }
        if let Some(compared) = compared {
            text += &render::advise::compared(compared);
        }
        out::print(&text);
    }
}

/// Progress on a terminal.
struct Live<'a> {
    clock: &'a SystemClock,
    shown: bool,
    files: AtomicU64,
    planned: AtomicU64,
    read: AtomicU64,
    began: AtomicU64,
    told: AtomicU64,
}

/// Milliseconds between two lines, and before the first estimate of the time that is left.
const TELL: u64 = 500;
const TRUST: u64 = 3000;

impl<'a> Live<'a> {
    fn new(clock: &'a SystemClock) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            clock,
            shown: std::io::stderr().is_terminal(),
            files: zero(),
            planned: zero(),
            read: zero(),
            began: zero(),
            told: zero(),
        }
    }

    /// Shows a line if it is time; one of those who ask at once does.
    fn tell(&self, line: impl Fn(u64) -> String) {
        if !self.shown {
            return;
        }
        let now = millis(self.clock.monotonic());
        let told = self.told.load(Ordering::Relaxed);
        let turn = || self.told.compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if now >= told + TELL && turn() {
            eprint!("\r{:<70}", line(now));
        }
    }

    fn end(&self) {
        if self.shown && self.told.load(Ordering::Relaxed) > 0 {
            eprint!("\r{:70}\r", "");
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Watch for Live<'_> {
    fn counted(&self, files: u64, _: u64) {
        let files = self.files.fetch_add(files, Ordering::Relaxed) + files;
        self.tell(|_| format!("{files} files counted"));
    }

    fn planned(&self, bytes: u64, _: bool) {
        self.planned.store(bytes, Ordering::Relaxed);
        self.began.store(millis(self.clock.monotonic()), Ordering::Relaxed);
    }

    fn read(&self, bytes: u64) {
        let read = self.read.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.tell(|now| {
            let planned = self.planned.load(Ordering::Relaxed).max(read);
            let took = now.saturating_sub(self.began.load(Ordering::Relaxed)).max(1);
            let rate = read as f64 * 1000.0 / took as f64;
            let line =
                format!("{} of {}, {}/s", format_size(read), format_size(planned), format_size(rate as u64));
            // A rate of little time says nothing about what comes.
            match took > TRUST && read * 50 > planned {
                true => format!("{line}, {} left", duration(((planned - read) as f64 / rate) as i64)),
                false => line,
            }
        });
    }

    fn stopped(&self) -> bool {
        signals::stopped()
    }
}
