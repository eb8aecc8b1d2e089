//! `larder fs send`.

use super::args::Json;
use super::{Session, out};
use crate::api::stream::{PART_DATA, PART_PLAN, Planned, Send};
use crate::api::{ApiError, ErrorKind, Result};
use crate::render;
use crate::render::scan::duration;
use larder_pool::property::format_size;
use larder_stream::Token;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two lines of progress.
const TELL: Duration = Duration::from_secs(1);

/// Arguments.
#[derive(Debug, clap::Args)]
// Help is --help alone: -h is a flag of zfs-send(8).
#[command(
    disable_help_flag = true,
    override_usage = "send [OPTIONS] [-i|-I FROM] DATASET@NAME
       send [OPTIONS] -t <receive_resume_token>",
    after_help = "The stream goes to standard output: a pipe, or a file. Records go as they are stored, and what is shared stays
shared; so -L, -c, -e, -D and -w change nothing. An increment reads only what changed. It may build upon a bookmark,
whose snapshot is gone here, if the other side has that snapshot.
To go on where a stream broke off: -t receive_resume_token, as larder fs get tells on the receiving side.
Example: larder fs send tank/home@monday | ssh backup larder fs receive -s pool/home
         larder fs send -i @monday tank/home@tuesday | ssh backup larder fs receive -s pool/home
         larder fs send -i '#monday' tank/home@tuesday | ssh backup larder fs receive -s pool/home
         larder fs send -R tank@monday > /media/usb/tank.stream"
)]
pub struct Args {
    /// Only what came since this snapshot, DATASET@NAME, @NAME or NAME, or this bookmark, DATASET#NAME or #NAME
    #[arg(short = 'i', value_name = "FROM", conflicts_with = "all_since", allow_hyphen_values = true)]
    since: Option<String>,
    /// The same, from a snapshot and with all between
    #[arg(short = 'I', value_name = "SNAPSHOT")]
    all_since: Option<String>,
    /// With all datasets below, all their snapshots, clones and properties
    #[arg(short = 'R', long)]
    replicate: bool,
    /// With the properties of the dataset
    #[arg(short = 'p', long)]
    props: bool,
    /// With its properties as they were set here
    #[arg(short = 'b', long)]
    backup: bool,
    /// With holds
    #[arg(short = 'h', long)]
    holds: bool,
    /// Send nothing: tell what would be
    #[arg(short = 'n', long)]
    dryrun: bool,
    /// Tell how far it is
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Tell it so that scripts can read it
    #[arg(short = 'P', long)]
    parsable: bool,
    /// Go on where a stream broke off
    #[arg(short = 't', value_name = "receive_resume_token", conflicts_with = "snapshot")]
    token: Option<String>,
    /// Large records as they are (always)
    #[arg(short = 'L', long)]
    large_block: bool,
    /// Compressed records as they are (always)
    #[arg(short = 'c', long)]
    compressed: bool,
    /// Small records within others (always)
    #[arg(short = 'e', long)]
    embed: bool,
    /// As it is stored (always)
    #[arg(short = 'w', long)]
    raw: bool,
    /// What is shared stays shared (always)
    #[arg(short = 'D', long)]
    dedup: bool,
    /// With -R: pass over datasets below that have no such snapshot
    #[arg(short = 's', long)]
    skip_missing: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "DATASET@NAME", required_unless_present = "token")]
    snapshot: Option<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let dry_run = args.dryrun;
    if dry_run && let Some(token) = &args.token {
        tell_token(token);
    }
    if !dry_run && std::io::stdout().is_terminal() {
        return Err(ApiError::usage("a stream cannot be written to a terminal")
            .hint("redirect standard output to a file, or pipe it: larder fs send … | larder fs receive …"));
    }
    let intermediates = args.all_since.is_some();
    let request = Send {
        snapshot: args.snapshot.unwrap_or_default(),
        from: args.since.or(args.all_since),
        intermediates,
        replicate: args.replicate,
        properties: args.props || args.backup,
        holds: args.holds,
        skip_missing: args.skip_missing,
        dry_run,
        measured: dry_run || args.verbose > 0 || std::io::stderr().is_terminal(),
        token: args.token,
    };
    let request = request.checked()?;
    let style = Style { verbose: args.verbose > 0, parsable: args.parsable, json: args.json.json, dry_run };
    let mut progress = Progress::new(style);
    let mut output = std::io::stdout().lock();
    session.client.send(&request, &mut |kind, bytes| {
        match kind {
            PART_PLAN => progress.plan(bytes)?,
            PART_DATA => {
                let written = output.write_all(bytes);
                written.map_err(|error| {
                    ApiError::new(ErrorKind::Denied, format!("cannot write the stream: {error}"))
                })?;
                progress.sent(bytes.len() as u64);
            }
            _ => {}
        }
        Ok(())
    })?;
    let flushed = output.flush();
    flushed.map_err(|error| ApiError::new(ErrorKind::Denied, format!("cannot write the stream: {error}")))?;
    progress.end();
    Ok(0)
}

/// Manner of telling.
#[derive(Clone, Copy)]
struct Style {
    verbose: bool,
    parsable: bool,
    json: bool,
    dry_run: bool,
}

struct Progress {
    style: Style,
    planned: Vec<Planned>,
    total: u64,
    sent: u64,
    began: Instant,
    told: Instant,
    is_shown: bool,
}

impl Progress {
    fn new(style: Style) -> Self {
        let now = now();
        Self { style, planned: Vec::new(), total: 0, sent: 0, began: now, told: now, is_shown: false }
    }

    fn plan(&mut self, json: &[u8]) -> Result<()> {
        self.planned = serde_json::from_slice(json).map_err(|error| {
            ApiError::new(ErrorKind::Daemon, format!("the daemon did not say what it sends: {error}"))
        })?;
        self.total = self.planned.iter().map(|one| one.bytes).sum();
        let Style { verbose, parsable, json, dry_run } = self.style;
        if json && dry_run {
            out::print_json(&render::json::reply("fs send", &self.planned));
            return Ok(());
        }
        if !(verbose || dry_run && parsable) {
            return Ok(());
        }
        let mut lines = String::new();
        for one in &self.planned {
            lines.push_str(&match (parsable, &one.from) {
                (true, None) => format!("full\t{}\t{}\n", one.to, one.bytes),
                (true, Some(from)) => format!("incremental\t{from}\t{}\t{}\n", one.to, one.bytes),
                (false, None) => {
                    format!("full send of {} estimated size is {}\n", one.to, format_size(one.bytes))
                }
                (false, Some(from)) => {
                    format!("send from {from} to {} estimated size is {}\n", one.to, format_size(one.bytes))
                }
            });
        }
        lines.push_str(&match parsable {
            true => format!("size\t{}\n", self.total),
            false => format!("total estimated size is {}\n", format_size(self.total)),
        });
        // A dry run has nothing else to write; else the stream goes there.
        match dry_run {
            true => out::print(&lines),
            false => out::complain(lines.trim_end()),
        }
        Ok(())
    }

    fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
        let now = now();
        if now.duration_since(self.told) < TELL {
            return;
        }
        self.told = now;
        let to = self.planned.last().map_or("", |one| one.to.as_str());
        if self.style.verbose && self.style.parsable {
            out::complain(&format!("{}\t{}\t{to}", self.began.elapsed().as_secs(), self.sent));
        } else if self.style.verbose || std::io::stderr().is_terminal() {
            let seconds = self.began.elapsed().as_secs_f64().max(0.001);
            let rate = self.sent as f64 / seconds;
            let left = self.total.saturating_sub(self.sent) as f64 / rate.max(1.0);
            let line = format!(
                "\r{} of {}, {}/s, {} left   ",
                format_size(self.sent),
                format_size(self.total),
                format_size(rate as u64),
                duration(left as i64),
            );
            eprint!("{line}");
            self.is_shown = true;
        }
    }

    fn end(&self) {
        if self.is_shown {
            eprintln!();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a command's own progress, of which no engine knows")]
fn now() -> Instant {
    Instant::now()
}

/// What a token says, as zfs tells it.
fn tell_token(token: &str) {
    let Some(token) = Token::decode(token) else { return };
    let (object, offset) = token.position.map_or((0, 0), |key| (key.object, key.offset));
    let from = if token.from == 0 { String::new() } else { format!("\tfromguid = {:#x}\n", token.from) };
    out::print(&format!(
        "resume token contents:\nnvlist version: 0\n{from}\tobject = {object:#x}\n\toffset = {offset:#x}\n\
         \tbytes = {:#x}\n\ttoguid = {:#x}\n\ttoname = {}\n",
        token.bytes, token.to, token.name
    ));
}
