//! `larder fs snapshot`.

use super::args::{self, Json};
use super::{Session, out};
use crate::api::Result;
use crate::api::snapshots::Snapshot;
use crate::render;

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
    #[arg(required = true, value_name = "DATASET@NAME")]
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let properties = args::properties(args.properties)?;
    let request = Snapshot { names: args.names, recursive: args.recursive, properties };
    let taken = session.client.call(request)?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "snapshot"), &taken));
    }
    Ok(0)
}
