//! `larder repair`: what is left of a pool that cannot be imported any more, or lost more than it tolerates.

use super::args::{self, Json};
use super::{out, signals};
use crate::api::Result;
use crate::render;
use crate::salvage::{Wanted, make_target, salvage, scratch};
use larder_device::{Clock, SystemClock};
use larder_pool::property::format_size;
use larder_repair::{Progress, Stage};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Exit code: something is lost.
const IN_PART: u8 = 1;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "For what import and scrub cannot cure: no root is left, tables or the block map are lost, segments were
overwritten, more devices are gone than the layout tolerates. It reads every block that is left, tells what can be
saved, and with --to saves it. The pool's devices are only read. Name all of them that are left; the pool must not be
imported. It makes temporary files (--scratch), for the new block map and for metadata that is mended.
In the folder each dataset gets a folder of its own. What cannot be read of a file is a hole there, and is told. What
has no name any more is in lost+found of its dataset, by number.
Exit codes: 0 nothing is known to be lost, 1 something is, or it failed, 2 bad usage.
Examples: larder repair /dev/sda /dev/sdb            # tells, and writes nothing
          larder repair --to /mnt/saved /dev/sda /dev/sdb
          larder repair -j /images | jq '.trees[] | {dataset, files}'"
)]
pub struct Args {
    /// Copy what can be saved into this folder, which is made, or is empty
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
    /// Copy snapshots as well: into DATASET@SNAPSHOT
    #[arg(long, requires = "to")]
    snapshots: bool,
    /// Only tell what can be saved: as without --to
    #[arg(short = 'n', conflicts_with = "to")]
    dry: bool,
    /// The pool, by its name or the number that is told, where the devices are of several
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Go back to this commit, if its root is left
    #[arg(long, value_name = "N")]
    commit: Option<u64>,
    /// Leave out what the intent log holds above the newest commit
    #[arg(long)]
    no_log: bool,
    /// Where to make temporary files [default: $TMPDIR or /var/tmp]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// List all files of which something is lost, not only the first of them
    #[arg(short = 'v')]
    verbose: bool,
    #[command(flatten)]
    json: Json,
    /// The pool's devices, or folders of files that are
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<String>,
}

/// Runs it.
pub fn run(args: &Args) -> Result<u8> {
    signals::watch()?;
    // Not after hours of reading.
    args.to.as_deref().map_or(Ok(()), make_target)?;
    let devices: Vec<String> = args.devices.iter().map(|name| args::device(name)).collect::<Result<_>>()?;
    let live = Live::new();
    let scratch = args.scratch.clone().unwrap_or_else(scratch);
    let shown = |progress| live.show(progress);
    let wanted = Wanted {
        devices: &devices,
        pool: args.pool.as_deref(),
        commit: args.commit,
        log: !args.no_log,
        scratch: &scratch,
        shown: &shown,
    };
    let salvaged = salvage(&wanted);
    live.end();
    let salvaged = salvaged?;
    let copied = args.to.as_ref().map(|folder| {
        let shown = |bytes| live.tell(|| format!("{} copied", format_size(bytes)));
        let copied = salvaged.copy_to(folder, args.snapshots, &shown);
        live.end();
        copied
    });
    // What was found took long, and is told also where it cannot be copied.
    let (copied, failed) = match copied.transpose() {
        Ok(copied) => (copied, None),
        Err(error) => (None, Some(error)),
    };
    let path = |dataset: &str, inode| salvaged.path(dataset, inode);
    let (report, all) = (&salvaged.report, copied.as_deref().unwrap_or_default());
    if args.json.json {
        let value = render::repair::json(report, all, &path);
        out::print_json(&render::json::reply("larder repair", &value));
    } else {
        let folder = args.to.as_deref().filter(|_| failed.is_none());
        out::print(&render::repair::text(report, all, folder, args.verbose, &path));
    }
    if let Some(failed) = failed {
        return Err(failed);
    }
    let is_copied = all.iter().all(|(_, copied)| copied.in_part.is_empty() && copied.failed.is_empty());
    Ok(if report.is_whole() && is_copied { 0 } else { IN_PART })
}

/// Milliseconds between two lines.
const TELL: u64 = 500;

/// Progress on a terminal. A signal ends the command: there is nothing to lose.
struct Live {
    clock: SystemClock,
    is_shown: bool,
    told: AtomicU64,
}

impl Live {
    fn new() -> Self {
        Self { clock: SystemClock::new(), is_shown: std::io::stderr().is_terminal(), told: AtomicU64::new(0) }
    }

    fn show(&self, Progress { stage, done, of }: Progress) {
        self.tell(|| {
            let what = match stage {
                Stage::Slots => "slots looked at",
                Stage::Segments => "segments read",
                Stage::Trees => "trees put together",
                Stage::Orphaned => "segments read again",
                Stage::Files => "trees counted",
            };
            format!("{done} of {of} {what}")
        });
    }

    fn tell(&self, line: impl Fn() -> String) {
        if signals::stopped() {
            self.end();
            std::process::exit(130);
        }
        if !self.is_shown {
            return;
        }
        let now = u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX).max(1);
        let told = self.told.load(Ordering::Relaxed);
        let turn = || self.told.compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if now >= told + TELL && turn() {
            eprint!("\r{:<70}", line());
        }
    }

    fn end(&self) {
        if self.is_shown && self.told.load(Ordering::Relaxed) > 0 {
            eprint!("\r{:70}\r", "");
        }
    }
}
