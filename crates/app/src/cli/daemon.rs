//! `larder daemon`: runs the daemon, tells how it is, ends it.

use super::args::Json;
use super::out;
use crate::api::daemon::DaemonStatus;
use crate::api::{ApiError, Result};
use crate::client::Client;
use crate::daemon::Beginning;
use crate::run_dir::RunDir;
use crate::{daemon, host, log, render, watchdog};
use clap::Subcommand;
use larder_app::heap;
use std::time::Duration;
use tracing::warn;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Without a verb the daemon runs in the foreground, for systemd and for looking on.
It lives in $LARDER_RUN_DIR [default: /run/larder for root, $XDG_RUNTIME_DIR/larder for others], and keeps in
$LARDER_STATE_DIR [default: /var/lib/larder, ~/.local/state/larder; beside another run folder, DIR.state] which pools
are imported. Those it imports when it starts; one that another command started imports nothing by itself.
Examples: larder daemon status -j
          larder daemon --take-over     in place of one that runs")]
pub struct Args {
    /// Leave the session of the command that started it
    #[arg(long, hide = true)]
    detached: bool,
    /// Have a daemon that runs already commit, unmount and end, and go on in its place
    #[arg(long)]
    take_over: bool,
    /// Import nothing by itself
    #[arg(long)]
    no_import: bool,
    /// For how long pools are tried again that lack devices, which may come late at boot
    #[arg(long, value_name = "SECONDS", default_value_t = 10, conflicts_with = "no_import")]
    wait: u64,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Exports all pools, then ends the daemon
    Stop,
    /// Tells whether the daemon runs: exit 0 if so, 1 if not
    Status(Json),
}

/// Runs it.
pub fn run(args: &Args, run_dir: &RunDir) -> Result<u8> {
    match &args.verb {
        None => {
            if let Err(error) = heap::share_one() {
                out::complain(&format!("the daemon could not start over with one heap: {error}"));
            }
            if args.detached {
                // Fails only in a process that leads a group already, which needs no leaving.
                let _ = rustix::process::setsid();
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
            }
            log::start();
            let import = (!args.detached && !args.no_import).then(|| Duration::from_secs(args.wait));
            // Held for as long as the daemon runs.
            let mut state = None;
            daemon::run(run_dir, Beginning { take_over: args.take_over, import }, || {
                state = run_dir.state().inspect_err(without_state).ok();
                watchdog::start(run_dir)?;
                host::start(state.as_ref().map(|(dir, _)| dir.as_path()))
            })?;
            Ok(0)
        }
        Some(Verb::Stop) => {
            if !Client::new(run_dir.clone()).stop()? {
                out::complain("the larder daemon was not running");
            }
            Ok(0)
        }
        Some(Verb::Status(json)) => status(*json, run_dir),
    }
}

fn without_state(error: &ApiError) {
    warn!("nothing is kept for the next daemon, which will not know what was imported: {}", error.message);
}

fn status(json: Json, run_dir: &RunDir) -> Result<u8> {
    let running = Client::new(run_dir.clone()).status()?;
    let code = u8::from(running.is_none());
    let status = running.unwrap_or_else(|| DaemonStatus {
        pid: None,
        version: daemon::VERSION.to_owned(),
        pools: Vec::new(),
    });
    if json.json {
        out::print_json(&render::json::reply("larder daemon status", &status));
        return Ok(code);
    }
    let text = match status.pid {
        None => format!("the larder daemon is not running in {}\n", run_dir.path().display()),
        Some(pid) => {
            let pools = if status.pools.is_empty() { "none".to_owned() } else { status.pools.join(" ") };
            format!(
                "the larder daemon is running\n    pid: {pid}\nversion: {}\n  pools: {pools}\n",
                status.version
            )
        }
    };
    out::print(&text);
    Ok(code)
}
