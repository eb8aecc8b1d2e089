//! `larder dedupe`: what files on XFS and btrfs have in common is shared. It needs no daemon and no pool.

use super::args::Json;
use super::out;
use super::progress::Progress;
use super::signals::{self, IN_PART, STOPPED};
use crate::api::{ApiError, ErrorKind, Result};
use crate::render::dedupe::{json, text};
use crate::render::json::reply;
use larder_dedupe::{Cutting, DedupeError, Phase, Place, Settings, Watch};
use larder_device::SystemWorkers;
use larder_pool::property::parse_size;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Less memory is not enough for the hash file's own pages.
const LEAST_MEMORY: u64 = 16 << 20;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --apply it reads and reports, and changes nothing. The kernel compares bytes before it shares any, so no file
changes, also when it is written meanwhile. The next run reads only what is new or has changed.
Exit codes: 0 done, 1 failed, 2 bad usage, 3 stopped by a signal (the same command goes on), 4 done but for some
files that could not be read or shared.
Example: larder dedupe /srv; larder dedupe --apply /srv"
)]
pub struct Args {
    /// Share what is found
    #[arg(long)]
    apply: bool,
    /// Length of a block, from 4K to 1M; with --by-content the mean, from 8K to 128K [default: 4K, 64K]
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    block: Option<u64>,
    /// Cut where the content says: a smaller hash file; cuts still come at multiples of 4K, as the kernel wants it
    #[arg(long)]
    by_content: bool,
    /// Let shorter pieces be, which take more metadata than they save; but for the ends of files
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = size)]
    least: u64,
    /// Look again at what earlier runs have settled; after a defragmentation, which leaves no other trace
    #[arg(long)]
    again: bool,
    /// Go into what is mounted below, where it is the same file system
    #[arg(long)]
    cross_mounts: bool,
    /// Memory for sorting and for the hash file
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    memory: u64,
    /// File of hashes [default: one for each file system in larder/dedupe below $XDG_CACHE_HOME or ~/.cache]
    #[arg(long, value_name = "FILE")]
    hash_file: Option<PathBuf>,
    /// Exact numbers: bytes
    #[arg(short = 'p')]
    exact: bool,
    #[command(flatten)]
    json: Json,
    /// Files, and folders with all that is below
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("'{text}' is no size"))
}

/// Runs it.
pub fn run(args: Args) -> Result<u8> {
    let cutting = if args.by_content {
        Cutting::by_content(args.block.unwrap_or(64 << 10))
            .ok_or_else(|| ApiError::usage("cut by content, --block is a power of two from 8K to 128K"))?
    } else {
        Cutting::blocks(args.block.unwrap_or(4 << 10))
            .ok_or_else(|| ApiError::usage("--block is a power of two from 4K to 1M"))?
    };
    if args.memory < LEAST_MEMORY {
        return Err(ApiError::usage("--memory is 16M or more"));
    }
    let mut places: Vec<(Place, Vec<PathBuf>)> = Vec::new();
    for path in &args.paths {
        let place = larder_dedupe::place(path).map_err(told)?;
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, paths)) => paths.push(path.clone()),
            None => places.push((place, vec![path.clone()])),
        }
    }
    if args.hash_file.is_some() && places.len() > 1 {
        let text = "a hash file is of one file system, and these paths are on several";
        return Err(ApiError::usage(text).hint("leave --hash-file away: each has its own"));
    }
    let settings = Settings {
        applies: args.apply,
        cutting,
        least: args.least,
        crosses_mounts: args.cross_mounts,
        again: args.again,
        memory: args.memory,
        cache: if args.hash_file.is_some() { PathBuf::new() } else { cache()? },
        hash_file: args.hash_file,
    };
    signals::watch()?;
    let workers = SystemWorkers::new().map_err(|error| internal("start threads", &error))?;
    let is_shown = Progress::is_watched() && !args.json.json;
    let (mut code, mut replies) = (0, Vec::new());
    for (place, paths) in &places {
        let shown = Shown { is_shown, line: Mutex::new(None) };
        let report = larder_dedupe::dedupe(paths, *place, &settings, &workers, &shown);
        shown.end();
        let report = report.map_err(told)?;
        code = code.max(if report.is_stopped {
            STOPPED
        } else if report.is_whole() {
            0
        } else {
            IN_PART
        });
        if args.json.json {
            replies.push(json(&report, paths, args.apply));
        } else {
            out::print(&text(&report, (!args.apply).then(applying).as_deref(), args.exact));
        }
        if report.is_stopped {
            code = STOPPED;
            break;
        }
    }
    if args.json.json {
        out::print_json(&reply("larder dedupe", &serde_json::json!({ "file_systems": replies })));
    }
    Ok(code)
}

/// The line on the terminal.
struct Shown {
    is_shown: bool,
    line: Mutex<Option<(Phase, Progress)>>,
}

impl Shown {
    fn end(&self) {
        if let Some((_, mut line)) = self.line.lock().unwrap_or_else(PoisonError::into_inner).take() {
            line.end();
        }
    }
}

impl Watch for Shown {
    fn progress(&self, phase: Phase, done: u64, more: u64) {
        // How many files there are is not known before they are found: of that there is no line.
        if !self.is_shown || phase == Phase::Find {
            return;
        }
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.as_ref().is_none_or(|(its, _)| *its != phase) {
            if let Some((_, mut before)) = line.take() {
                before.end();
            }
            let what = match phase {
                Phase::Find | Phase::Read => "reading: ",
                Phase::Plan => "comparing hashes: ",
                Phase::Share => "comparing and sharing: ",
            };
            *line = Some((phase, Progress::named(what, 0)));
        }
        if let Some((_, line)) = &mut *line {
            line.expect(more);
            if line.add(done).is_some() {
                line.show();
            }
        }
    }

    fn is_stopped(&self) -> bool {
        signals::stopped()
    }
}

/// This command with `--apply`, to paste.
fn applying() -> String {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words = ["larder", "dedupe", "--apply"].into_iter().chain(words.iter().skip(1).map(String::as_str));
    shlex::try_join(words).unwrap_or_else(|_| "larder dedupe --apply PATH...".to_owned())
}

/// The folder of hash files.
fn cache() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let none = || ApiError::usage("neither XDG_CACHE_HOME nor HOME is set").hint("name a --hash-file");
    Ok(cache.ok_or_else(none)?.join("larder/dedupe"))
}

fn internal(what: &str, error: &std::io::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("cannot {what}: {error}"))
}

fn told(error: DedupeError) -> ApiError {
    let message = error.to_string();
    let anew = |path: &Path| {
        format!(
            "rm '{}' (it is made anew, and all files read again), or name another --hash-file",
            path.display()
        )
    };
    let safe = "your files: the hash file only says what they were when they were read";
    match error {
        DedupeError::Open { error, .. } if error.kind() == Io::NotFound => {
            ApiError::new(ErrorKind::NotFound, message)
        }
        DedupeError::Open { .. } => ApiError::new(ErrorKind::Denied, message),
        DedupeError::Fuse { .. } => ApiError::new(ErrorKind::Unsupported, message)
            .hint("if it is a dataset of larder's: larder fs dedup DATASET"),
        DedupeError::Unable { .. } | DedupeError::NoReflink { .. } => {
            ApiError::new(ErrorKind::Unsupported, message)
        }
        DedupeError::SmallBlock { block, .. } => {
            ApiError::usage(message).hint(format!("--block {}K", block >> 10))
        }
        DedupeError::BadHashFile { path, .. } => {
            ApiError::new(ErrorKind::Corrupt, message).safe(safe).hint(anew(&path))
        }
        DedupeError::Foreign { path, .. } => ApiError::new(ErrorKind::Usage, message).hint(anew(&path)),
        DedupeError::Busy { .. } => {
            ApiError::new(ErrorKind::Busy, message).hint("wait for it, or name another --hash-file")
        }
        DedupeError::Storage { error, .. } if matches!(error.kind(), Io::StorageFull | Io::QuotaExceeded) => {
            ApiError::new(ErrorKind::NoSpace, message)
                .safe("your files, and what was noted of them before")
                .hint("free some space there, or name a --hash-file elsewhere; the same command goes on")
        }
        DedupeError::Storage { .. } => {
            ApiError::new(ErrorKind::Denied, message).hint("name another --hash-file")
        }
    }
}
