//! `larder fs receive`.

use super::args::{self, Json};
use super::{Session, out};
use crate::api::stream::{Abort, Below, Receive};
use crate::api::{ApiError, Result};
use crate::render;
use larder_pool::property::format_size;
use std::io::IsTerminal;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "receive [OPTIONS] DATASET[@NAME]
       receive -A <filesystem|volume>",
    after_help = "The stream comes from standard input. Each snapshot in it arrives whole or not at all; until it is whole nothing of
it is seen, and the dataset stays as it is.
Example: ssh nas larder fs send tank/home@monday | larder fs receive -s backup/home
         larder fs receive -F backup/home < home.stream"
)]
pub struct Args {
    /// Drop what was changed or taken here since the snapshot that the stream builds upon
    #[arg(short = 'F')]
    force: bool,
    /// Keep what came when the stream breaks off, so that the rest can follow
    #[arg(short = 's')]
    resumable: bool,
    /// Leave the dataset unmounted
    #[arg(short = 'u')]
    unmounted: bool,
    /// Receive nothing: look whether all could be
    #[arg(short = 'n')]
    dryrun: bool,
    /// Tell what came
    #[arg(short = 'v')]
    verbose: bool,
    /// Below DATASET by the sender's name without its pool
    #[arg(short = 'd', conflicts_with = "last")]
    all_but_pool: bool,
    /// Below DATASET by the last part of the sender's name
    #[arg(short = 'e')]
    last: bool,
    /// Set a property
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = args::assignment)]
    properties: Vec<(String, String)>,
    /// Leave a property of the stream out
    #[arg(short = 'x', value_name = "PROPERTY")]
    without: Vec<String>,
    /// Drop what came of a stream that broke off
    #[arg(short = 'A', value_name = "filesystem|volume", conflicts_with_all = ["target", "force", "resumable"])]
    abort: Option<String>,
    /// Unmount by force (nothing stands in the way of a receive here)
    #[arg(short = 'M')]
    unmount: bool,
    /// Heal what is damaged; not yet
    #[arg(short = 'c')]
    heal: bool,
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "DATASET|DATASET@NAME", required_unless_present = "abort")]
    target: Option<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    if let Some(name) = args.abort {
        session.client.call(Abort { name })?;
        return Ok(0);
    }
    if args.heal {
        return Err(ApiError::new(crate::api::ErrorKind::Unsupported, "receive -c is not possible yet")
            .hint("larder pool scrub repairs from copies and parity"));
    }
    if std::io::stdin().is_terminal() {
        return Err(ApiError::usage("a stream cannot be read from a terminal")
            .hint("larder fs receive DATASET < FILE, or … | larder fs receive DATASET"));
    }
    let request = Receive {
        target: args.target.unwrap_or_default(),
        below: match (args.all_but_pool, args.last) {
            (true, _) => Below::AllButPool,
            (_, true) => Below::Last,
            _ => Below::Nothing,
        },
        force: args.force,
        resumable: args.resumable,
        unmounted: args.unmounted,
        properties: args::properties(args.properties)?,
        without: args.without,
        dry_run: args.dryrun,
    };
    let received = session.client.receive(&request, std::io::stdin())?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "receive"), &received));
    } else if args.verbose {
        for one in &received.received {
            let kind = if one.incremental { "incremental" } else { "full" };
            let verb = if args.dryrun { "would receive" } else { "receiving" };
            out::print(&format!("{verb} {kind} stream of {} into {}\n", one.sender, one.name));
            if !args.dryrun {
                let rate = one.bytes as f64 / (one.millis.max(1) as f64 / 1000.0);
                out::print(&format!(
                    "received {} stream in {:.2} seconds ({}/sec)\n",
                    format_size(one.bytes),
                    one.millis as f64 / 1000.0,
                    format_size(rate as u64)
                ));
            }
        }
    }
    Ok(0)
}
