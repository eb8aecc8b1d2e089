//! `larder dedupe`: shares what is equal among the files of an XFS or btrfs. It needs no daemon and no pool.

use super::args::Json;
use super::out;
use super::progress::Progress;
use crate::api::{ApiError, ErrorKind, Result};
use crate::render::json::reply;
use larder_dedupe::{Error, Options, Phase, Report};
use larder_device::SystemWorkers;
use larder_pool::property::{format_size, parse_size};
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

/// Set by SIGINT and SIGTERM.
static STOP: AtomicBool = AtomicBool::new(false);
/// Exit code of a run that was stopped: what it did holds, and the next goes on.
const STOPPED: u8 = 3;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --apply it only reads and reports. The kernel compares bytes before it shares any, so no file changes, also
when it is written meanwhile. A second run reads only what is new or changed since. Exit codes: 0 done, 1 failed or
not all could be read or shared, 2 bad usage, 3 stopped by a signal.
Example: larder dedupe --apply /srv"
)]
pub struct Args {
    /// Share what is equal
    #[arg(long)]
    apply: bool,
    /// Length of a block, from 4K to 1M
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    block: u64,
    /// Memory for the index of blocks and the hash file
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    memory: u64,
    /// File of hashes [default: larder/dedupe/ID.redb in $XDG_CACHE_HOME]
    #[arg(long, value_name = "FILE")]
    hash_file: Option<PathBuf>,
    /// Go into what is mounted below
    #[arg(long)]
    cross_mounts: bool,
    /// Exact numbers: bytes
    #[arg(short = 'p')]
    exact: bool,
    #[command(flatten)]
    json: Json,
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("'{text}' is no size"))
}

/// Runs it.
pub fn run(args: Args) -> Result<u8> {
    let id = larder_dedupe::file_system_id(&args.paths[0]).map_err(told)?;
    let hash_file = match args.hash_file {
        Some(file) => file,
        None => cached(&format!("{id}.redb"))?,
    };
    let options = Options {
        block: args.block,
        memory: usize::try_from(args.memory).unwrap_or(usize::MAX),
        apply: args.apply,
        crosses_mounts: args.cross_mounts,
    };
    watch_signals()?;
    let workers = SystemWorkers::new().map_err(|error| internal("start threads", &error))?;
    let shown = Shown { is_watched: Progress::is_watched() && !args.json.json, line: Mutex::new(None) };
    let report =
        larder_dedupe::run(&args.paths, &hash_file, &options, &workers, &shown, &STOP).map_err(told)?;
    if let Some((_, mut line)) = shown.line.into_inner().unwrap_or_else(PoisonError::into_inner) {
        line.end();
    }
    if args.json.json {
        out::print_json(&reply("larder dedupe", &json(&report, args.apply)));
    } else {
        out::print(&text(&report, args.apply, args.exact));
    }
    let is_whole = report.refused.is_empty() && report.unreadable == 0;
    Ok(if report.is_stopped { STOPPED } else { u8::from(!is_whole) })
}

struct Shown {
    is_watched: bool,
    line: Mutex<Option<(Phase, Progress)>>,
}

impl larder_dedupe::Progress for Shown {
    fn begin(&self, phase: Phase, bytes: u64) {
        if self.is_watched {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, mut before)) = line.take() {
                before.end();
            }
            *line = Some((phase, Progress::of(bytes)));
        }
    }

    fn at(&self, bytes: u64) {
        if !self.is_watched {
            return;
        }
        if let Some((phase, line)) = &mut *self.line.lock().unwrap_or_else(PoisonError::into_inner) {
            let more = bytes.saturating_sub(line.moved());
            if line.add(more).is_some() {
                line.show();
                eprint!(
                    "{}",
                    match phase {
                        Phase::Read => "(reading)",
                        Phase::Compare => "(comparing)",
                        Phase::Share => "(sharing)",
                    }
                );
            }
        }
    }
}

/// The default place, whose folder is made.
fn cached(name: &str) -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let Some(cache) = cache else {
        return Err(ApiError::usage("neither XDG_CACHE_HOME nor HOME is set: name a --hash-file"));
    };
    let folder = cache.join("larder/dedupe");
    let made = std::fs::create_dir_all(&folder);
    made.map_err(|error| {
        ApiError::new(ErrorKind::Denied, format!("cannot make '{}': {error}", folder.display()))
    })?;
    Ok(folder.join(name))
}

fn internal(what: &str, error: &std::io::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("cannot {what}: {error}"))
}

/// The request under way ends, the hash file is committed, and the report is made.
#[expect(clippy::disallowed_methods, reason = "a thread of the command's own")]
fn watch_signals() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(|error| internal("watch signals", &error))?;
    let guard = runtime.enter();
    let both = signal(SignalKind::interrupt()).and_then(|int| Ok((int, signal(SignalKind::terminate())?)));
    let (mut int, mut term) = both.map_err(|error| internal("watch signals", &error))?;
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            std::future::poll_fn(|context| match int.poll_recv(context) {
                Poll::Pending => term.poll_recv(context),
                came => came,
            })
            .await;
            STOP.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        });
    });
    Ok(())
}

fn told(error: Error) -> ApiError {
    let hash_file_hint = |path: &Path| {
        format!(
            "move '{}' away, or name another with --hash-file; it is a cache and is made anew",
            path.display()
        )
    };
    let message = error.to_string();
    match error {
        Error::Open(_, error) if error.kind() == std::io::ErrorKind::NotFound => {
            ApiError::new(ErrorKind::NotFound, message)
        }
        Error::Open(..) => ApiError::new(ErrorKind::Denied, message),
        Error::Unsupported(..) => ApiError::new(ErrorKind::Unsupported, message),
        Error::Apart(..) => ApiError::usage(message).hint("run it once for each"),
        Error::InUse(_) => {
            ApiError::new(ErrorKind::Busy, message).hint("wait for it, or name another with --hash-file")
        }
        Error::HashFile(path, _) => ApiError::new(ErrorKind::Corrupt, message)
            .safe("your files: it only says what they were when they were read")
            .hint(hash_file_hint(&path)),
        Error::Usage(_) => ApiError::usage(message),
    }
}

fn text(report: &Report, applied: bool, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { format_size(bytes) };
    let mut text = String::new();
    let mut line = |label: &str, what: String| {
        let _ = writeln!(text, "{label:>14}: {what}");
    };
    if applied {
        let freed = report.free_after as i64 - report.free_before as i64;
        let sign = if freed < 0 { "-" } else { "" };
        let measured = format!(
            "{} before, {} after: {sign}{} freed",
            size(report.free_before),
            size(report.free_after),
            size(freed.unsigned_abs())
        );
        line("free space", measured);
    }
    line("files", format!("{}, {}", report.files, size(report.bytes)));
    line(
        "read",
        format!("{} files, {}; {} forgotten", report.files_read, size(report.bytes_read), report.forgotten),
    );
    line("equal", format!("{}, of which {} shared already", size(report.equal), size(report.shared_before)));
    if applied {
        line("shared", format!("{} of {} tried", size(report.shared), size(report.tried)));
    } else {
        line("could share", format!("{}; nothing was done: --apply shares it", size(report.could_share)));
    }
    if report.changed > 0 {
        line("changed", format!("{} meanwhile, left alone", size(report.changed)));
    }
    for (reason, (bytes, names)) in &report.refused {
        let names: Vec<_> = names.iter().map(|name| name.display().to_string()).collect();
        line("not shared", format!("{}, {reason}: {}", size(*bytes), names.join(" ")));
    }
    let counts = [
        (report.nocow, "files written in place (nocow)"),
        (report.unreadable, "that could not be read"),
        (report.other_mounts, "folders with something mounted on them"),
    ];
    for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
        line("passed over", format!("{count} {what}"));
    }
    if report.is_stopped {
        line("stopped", "what was done holds; the same command goes on".into());
    }
    text
}

fn json(report: &Report, applied: bool) -> serde_json::Value {
    let refused: serde_json::Map<_, _> = report
        .refused
        .iter()
        .map(|(reason, (bytes, names))| {
            let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
            ((*reason).to_owned(), json!({ "bytes": bytes, "examples": names }))
        })
        .collect();
    json!({
        "applied": applied,
        "stopped": report.is_stopped,
        "free_before": report.free_before,
        "free_after": report.free_after,
        "files": report.files,
        "bytes": report.bytes,
        "files_read": report.files_read,
        "bytes_read": report.bytes_read,
        "forgotten": report.forgotten,
        "blocks": report.blocks,
        "equal": report.equal,
        "shared_before": report.shared_before,
        "could_share": report.could_share,
        "tried": report.tried,
        "shared": report.shared,
        "changed": report.changed,
        "refused": refused,
        "nocow": report.nocow,
        "unreadable": report.unreadable,
        "other_mounts": report.other_mounts,
    })
}
