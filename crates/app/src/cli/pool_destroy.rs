//! `larder pool destroy`.

use super::Session;
use super::args::{Force, Yes};
use crate::api::Result;
use crate::api::pool::Destroy;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    force: Force,
    name: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let question = format!("Destroying pool '{}' loses all data in it.", args.name);
    if !session.goes_ahead(args.yes, &question) {
        return Ok(1);
    }
    session.client.call(Destroy { name: args.name })?;
    Ok(0)
}
