//! `larder fs bookmark`.

use super::args::Json;
use super::{Session, out};
use crate::api::Result;
use crate::api::snapshots::Bookmark;
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A bookmark takes no space and holds nothing: the snapshot can be destroyed, and what came after it can still be
told apart, to be sent as an increment. list -t bookmark shows them, destroy DATASET#NAME destroys one.
Example: larder fs bookmark tank/home@monday tank/home#monday"
)]
pub struct Args {
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "DATASET@SNAPSHOT|DATASET#BOOKMARK")]
    from: String,
    #[arg(value_name = "DATASET#NEW")]
    name: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let done = session.client.call(Bookmark { from: args.from, name: args.name })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "bookmark"), &done));
    }
    Ok(0)
}
