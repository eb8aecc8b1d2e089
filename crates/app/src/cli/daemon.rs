//! `larder daemon`: runs the daemon, tells how it is, ends it.

use super::args::Json;
use super::out;
use crate::api::Result;
use crate::api::daemon::DaemonStatus;
use crate::client::Client;
use crate::run_dir::RunDir;
use crate::{daemon, host, log, render};
use clap::Subcommand;
use larder_app::heap;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Without a verb the daemon runs in the foreground, for systemd and for looking on.
It lives in $LARDER_RUN_DIR [default: /run/larder for root, $XDG_RUNTIME_DIR/larder for others].
Example: larder daemon status -j")]
pub struct Args {
    /// Leave the session of the command that started it
    #[arg(long, hide = true)]
    detached: bool,
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
            daemon::run(run_dir, || host::start(run_dir.path()))?;
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
