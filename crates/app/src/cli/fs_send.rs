//! `larder fs send`.

use super::args::Json;
use super::progress::Progress;
use super::side::{Failure, Place, Receiver, Way};
use super::{Session, out};
use crate::api::stream::{PART_DATA, PART_PLAN, Planned, Send};
use crate::api::{ApiError, ErrorKind, Result};
use crate::render;
use larder_pool::property::format_size;
use larder_stream::Token;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

/// Arguments.
#[derive(Debug, clap::Args)]
// Help is --help alone: -h is a flag of zfs-send(8).
#[command(
    disable_help_flag = true,
    override_usage = "send [OPTIONS] [-i|-I FROM] DATASET@NAME [[[USER@]HOST:]TARGET]
       send [OPTIONS] -t <receive_resume_token>",
    after_help = "The stream goes to standard output: a pipe, or a file; or, with a TARGET, to larder fs receive -s there, by ssh where
a host is named. Records go as they are stored, and what is shared stays shared; so -L, -c, -e, -D and -w change
nothing. An increment reads only what changed. It may build upon a bookmark, whose snapshot is gone here, if the other
side has that snapshot.
To go on where a stream broke off: -t receive_resume_token, as larder fs get tells on the receiving side. With a TARGET
that is done by itself.
Example: larder fs send tank/home@monday root@backup:pool/home
         larder fs send --ssh 'ssh -p 2222' -I @monday tank/home@friday backup:pool/home
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
    /// With the properties that it was received with, rather than those of here: to bring a backup back
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
    way: Way,
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "DATASET@NAME", required_unless_present = "token")]
    snapshot: Option<String>,
    /// Dataset that receives it, on another machine or in another pool
    #[arg(value_name = "TARGET")]
    target: Option<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let dry_run = args.dryrun;
    if dry_run && let Some(token) = &args.token {
        tell_token(token);
    }
    let place = args.target.as_deref().map(|target| Place::parse(target, &args.way)).transpose()?;
    if !dry_run && place.is_none() && std::io::stdout().is_terminal() {
        return Err(ApiError::usage("a stream cannot be written to a terminal")
            .hint("name a target: larder fs send DATASET@NAME [HOST:]TARGET; or redirect standard output to a file, or pipe it"));
    }
    let intermediates = args.all_since.is_some();
    let request = Send {
        snapshot: args.snapshot.unwrap_or_default(),
        from: args.since.or(args.all_since),
        intermediates,
        replicate: args.replicate,
        properties: args.props || args.backup,
        backup: args.backup,
        holds: args.holds,
        skip_missing: args.skip_missing,
        dry_run,
        measured: dry_run || args.verbose > 0 || Progress::is_watched(),
        token: args.token,
    };
    let request = request.checked()?;
    let style = Style { verbose: args.verbose > 0, parsable: args.parsable, json: args.json.json, dry_run };
    match place.filter(|_| !dry_run) {
        Some(place) => to_place(session, request, style, &place)?,
        None => send(session, &request, style, &mut Output::standard()?)?,
    }
    Ok(0)
}

/// Sends to another dataset, after what is left of a stream that broke off there.
fn to_place(session: &Session, mut request: Send, style: Style, place: &Place) -> Result<()> {
    // With -R there may be several, below: the other side names the first that it meets.
    if let Some(token) = token_at(place).filter(|_| !request.replicate) {
        let whole = request.snapshot.clone();
        let name =
            Token::decode(&token).map_or_else(|| "a token that cannot be read".into(), |token| token.name);
        let is_between = request.intermediates && dataset_of(&name) == dataset_of(&whole);
        if name != whole && !is_between {
            let message = format!("'{}' has a part of another stream: {name}", place.told(""));
            return Err(ApiError::new(ErrorKind::Busy, message)
                .hint(format!("there: larder fs receive -A {} drops it", place.dataset)));
        }
        out::complain(&format!("{}: going on with {name}, where it broke off", place.told("")));
        let rest = Send { token: Some(token), measured: request.measured, ..Send::default() };
        send(session, &rest, style, &mut Output::start(place)?)?;
        if name == whole {
            return Ok(());
        }
        request.from = Some(name);
    }
    send(session, &request, style, &mut Output::start(place)?)
}

fn dataset_of(snapshot: &str) -> &str {
    snapshot.split('@').next().unwrap_or_default()
}

/// The token of a target; none where it is not there yet, or cannot be asked: the stream will be told why.
fn token_at(place: &Place) -> Option<String> {
    let arguments = ["fs", "get", "-Hpo", "value", "receive_resume_token", &place.dataset];
    let token = place.side.run(&arguments).ok()?.trim().to_owned();
    Some(token).filter(|token| token != "-" && !token.is_empty())
}

fn unwritten(why: &str) -> ApiError {
    ApiError::new(ErrorKind::Denied, format!("cannot write the stream: {why}"))
}

/// Bytes that a pipe holds, if it may.
const PIPE: usize = 1 << 20;

/// Where a stream goes.
enum Output {
    /// Standard output, without a buffer that looks for lines.
    Standard(File),
    Place(Option<Receiver>),
}

impl Output {
    fn standard() -> Result<Self> {
        let output = std::io::stdout().as_fd().try_clone_to_owned();
        let output = output.map_err(|error| unwritten(&error.to_string()))?;
        // Of a pipe: no more turns between both ends than need be. Others have no such size, and it is a wish.
        let _ = rustix::pipe::fcntl_setpipe_size(&output, PIPE);
        Ok(Self::Standard(output.into()))
    }

    fn start(place: &Place) -> Result<Self> {
        let started = place.side.receive(&[], &place.dataset);
        Ok(Self::Place(Some(started.map_err(Failure::into_error)?)))
    }

    fn take(&mut self, piece: &[u8]) -> Result<()> {
        match self {
            Self::Standard(output) => output.write_all(piece).map_err(|error| unwritten(&error.to_string())),
            Self::Place(receiver) => match receiver.as_mut().is_some_and(|receiver| receiver.take(piece)) {
                true => Ok(()),
                false => Err(unwritten("nobody takes it")),
            },
        }
    }

    /// Ends it, after an outcome of sending: where the other side failed too, that is why.
    fn end(&mut self, sent: Result<()>, was_taken: bool) -> Result<()> {
        let Self::Place(receiver) = self else { return sent };
        let received = receiver.take().map_or(Ok(Default::default()), Receiver::finish);
        match (sent, received) {
            // It only tells that the stream is not whole.
            (Err(error), Err(_)) if was_taken => Err(error),
            (_, Err(failure)) => Err(failure.into_error()),
            (sent, Ok(_)) => sent,
        }
    }
}

fn send(session: &Session, request: &Send, style: Style, output: &mut Output) -> Result<()> {
    let mut telling = Telling { style, planned: Vec::new(), progress: Progress::of(0) };
    let mut was_taken = true;
    let sent = session.client.send(request, &mut |kind, bytes| {
        match kind {
            PART_PLAN => telling.plan(bytes)?,
            PART_DATA => {
                output.take(bytes).inspect_err(|_| was_taken = false)?;
                telling.sent(bytes.len() as u64);
            }
            _ => {}
        }
        Ok(())
    });
    telling.progress.end();
    output.end(sent, was_taken)
}

/// Manner of telling.
#[derive(Clone, Copy)]
struct Style {
    verbose: bool,
    parsable: bool,
    json: bool,
    dry_run: bool,
}

struct Telling {
    style: Style,
    planned: Vec<Planned>,
    progress: Progress,
}

impl Telling {
    fn plan(&mut self, json: &[u8]) -> Result<()> {
        self.planned = serde_json::from_slice(json).map_err(|error| {
            ApiError::new(ErrorKind::Daemon, format!("the daemon did not say what it sends: {error}"))
        })?;
        let total = self.planned.iter().map(|one| one.bytes).sum();
        self.progress = Progress::of(total);
        let Style { verbose, parsable, json, dry_run } = self.style;
        if json && dry_run {
            out::print_json(&render::json::reply("fs send", &self.planned));
            return Ok(());
        }
        if !(verbose || dry_run && parsable) {
            return Ok(());
        }
        let mut lines = String::new();
        let size = |bytes: u64, at_most: Option<u64>| {
            let most = at_most.map(|most| format!(", at most {}", format_size(most)));
            format_size(bytes) + &most.unwrap_or_default()
        };
        for one in &self.planned {
            lines.push_str(&match (parsable, &one.from) {
                (true, None) => format!("full\t{}\t{}\n", one.to, one.bytes),
                (true, Some(from)) => format!("incremental\t{from}\t{}\t{}\n", one.to, one.bytes),
                (false, None) => {
                    format!("full send of {} estimated size is {}\n", one.to, size(one.bytes, one.at_most))
                }
                (false, Some(from)) => {
                    format!(
                        "send from {from} to {} estimated size is {}\n",
                        one.to,
                        size(one.bytes, one.at_most)
                    )
                }
            });
        }
        lines.push_str(&match parsable {
            true => format!("size\t{}\n", total),
            false => {
                let most = self.planned.iter().map(|one| one.at_most.unwrap_or(one.bytes)).sum();
                format!("total estimated size is {}\n", size(total, Some(most).filter(|most| *most > total)))
            }
        });
        // A dry run has nothing else to write; else the stream goes there.
        match dry_run {
            true => out::print(&lines),
            false => out::complain(lines.trim_end()),
        }
        Ok(())
    }

    fn sent(&mut self, bytes: u64) {
        let Some((seconds, moved)) = self.progress.add(bytes) else { return };
        if self.style.verbose && self.style.parsable {
            let to = self.planned.last().map_or("", |one| one.to.as_str());
            out::complain(&format!("{seconds}\t{moved}\t{to}"));
        } else if self.style.verbose || Progress::is_watched() {
            self.progress.show();
        }
    }
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
