//! `larder fs snapshot`.

use super::args::{self, Json};
use super::{Session, out};
use crate::api::snapshots::Snapshot;
use crate::api::{ApiError, Result};
use crate::render;
use std::io::Read;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "All of them are of one moment; where one cannot be, none is taken.
Example: larder fs snapshot -r tank@monday
         larder fs snapshot tank/home@before-upgrade tank/mail@before-upgrade")]
pub struct Args {
    /// Of all datasets below too
    #[arg(short = 'r')]
    recursive: bool,
    /// A user property, whose name has a colon
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = args::assignment)]
    properties: Vec<(String, String)>,
    #[command(flatten)]
    json: Json,
    /// Those too whose names come from standard input, one a line: there may be more than a command line takes
    #[arg(long)]
    stdin: bool,
    #[arg(required_unless_present = "stdin", value_name = "DATASET@NAME")]
    names: Vec<String>,
}

/// The most bytes of names from standard input.
const NAMES_MAX: u64 = 64 << 20;

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let properties = args::properties(args.properties)?;
    let mut names = args.names;
    if args.stdin {
        let mut given = String::new();
        let read = std::io::stdin().lock().take(NAMES_MAX).read_to_string(&mut given);
        read.map_err(|error| ApiError::usage(format!("cannot read names of snapshots: {error}")))?;
        names.extend(given.lines().filter(|name| !name.is_empty()).map(str::to_owned));
        if names.is_empty() {
            return Err(ApiError::usage("standard input names no snapshot"));
        }
    }
    let request = Snapshot { names, recursive: args.recursive, properties };
    let taken = session.client.call(request)?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "snapshot"), &taken));
    }
    Ok(0)
}
