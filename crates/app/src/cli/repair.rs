//! `larder repair`: what is left of a pool that cannot be imported any more, or lost more than it tolerates.

use super::args::{self, Json};
use super::{out, signals};
use crate::api::{ErrorKind, Result};
use crate::client::Client;
use crate::render;
use crate::render::repair::Saved;
use crate::run_dir::RunDir;
use crate::salvage::{Place, Salvaged, Target, Wanted, check_folder, make_folder, name_of, salvage, scratch};
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
    /// Save what can be saved: in a folder, which is made, or is empty; or in an imported pool, as a dataset
    #[arg(long, value_name = "FOLDER|POOL[/DATASET]")]
    to: Option<String>,
    /// To a folder: snapshots as well, each into DATASET@SNAPSHOT. A pool gets them always
    #[arg(long, requires = "to")]
    snapshots: bool,
    /// Only tell what can be saved; with --to also what would become of it there
    #[arg(short = 'n')]
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

/// Destination of what is saved.
enum Goes {
    Folder(PathBuf),
    Dataset(Client, Place),
}

impl Goes {
    /// Where `--to` says, if that can be: nobody is to find out after hours of reading.
    fn find(to: &str, devices: &[String], args: &Args, live: &Live) -> Result<Self> {
        let client = || Ok(Client::new(RunDir::from_environment()?));
        match Target::parse(to, &client)? {
            Target::Folder(folder) => {
                if args.dry {
                    check_folder(&folder)?
                } else {
                    make_folder(&folder)?
                };
                Ok(Self::Folder(folder))
            }
            Target::Dataset(name) => {
                let name_found = name_of(devices, args.pool.as_deref(), &|progress| live.show(progress));
                live.end();
                let pool = name_found.map_err(|error| match error.kind {
                    ErrorKind::Busy => error.hint(
                        "a pool that is imported is not repaired; and what is saved goes to other devices",
                    ),
                    _ => error,
                })?;
                let client = client()?;
                let place = Place::find(&name, &pool, &client)?;
                Ok(Self::Dataset(client, place))
            }
        }
    }

    /// Saves it.
    fn save(&self, salvaged: &Salvaged, args: &Args, live: &Live) -> Result<Saved> {
        match self {
            Self::Folder(folder) if args.dry => Ok(Saved::WouldCopy(folder.clone())),
            Self::Folder(folder) => {
                let shown = |bytes| live.tell(|| format!("{} copied", format_size(bytes)));
                Ok(Saved::Copied(folder.clone(), salvaged.copy_to(folder, args.snapshots, &shown)?))
            }
            Self::Dataset(client, place) => {
                let shown = |sent, of| {
                    live.tell(|| format!("{} of {} sent", format_size(sent), format_size(of)));
                };
                Ok(Saved::Sent(salvaged.send_to((client, place), args.dry, &shown)?))
            }
        }
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<u8> {
    signals::watch()?;
    let devices: Vec<String> = args.devices.iter().map(|name| args::device(name)).collect::<Result<_>>()?;
    let live = Live::new();
    let goes = args.to.as_deref().map(|to| Goes::find(to, &devices, args, &live)).transpose()?;
    let scratch = args.scratch.clone().unwrap_or_else(scratch);
    let shown = |progress| live.show(progress);
    let wanted = Wanted {
        devices: &devices,
        pool: args.pool.as_deref(),
        commit: args.commit,
        log: !args.no_log,
        cut: matches!(goes, Some(Goes::Dataset(..))),
        scratch: &scratch,
        shown: &shown,
    };
    let salvaged = salvage(&wanted);
    live.end();
    let salvaged = salvaged?;
    // What was found took long, and is told also where it cannot be saved.
    let saved = goes.map_or(Ok(Saved::Nothing), |goes| goes.save(&salvaged, args, &live));
    live.end();
    let (saved, failed) = match saved {
        Ok(saved) => (saved, None),
        Err(error) => (Saved::Nothing, Some(error)),
    };
    let path = |dataset: &str, inode| salvaged.path(dataset, inode);
    let report = &salvaged.report;
    if args.json.json {
        let value = render::repair::json(report, &saved, &path);
        out::print_json(&render::json::reply("larder repair", &value));
    } else {
        out::print(&render::repair::text(report, &saved, args.verbose, failed.is_some(), &path));
    }
    if let Some(failed) = failed {
        return Err(failed);
    }
    Ok(if report.is_whole() && saved.is_whole() { 0 } else { IN_PART })
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
                Stage::Key => {
                    let (done, of) = (format_size(done), format_size(of));
                    return format!("{done} of {of} looked through for the pool's key");
                }
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
