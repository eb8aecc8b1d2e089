//! `larder pool destroy`.

use super::args::Force;
use super::{Session, out};
use crate::api::Result;
use crate::api::pool::Destroy;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    force: Force,
    name: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let question = format!("Destroying pool '{}' loses all data in it.", args.name);
    if !args.yes && !out::confirmed(&question) {
        out::complain("nothing was done");
        return Ok(1);
    }
    session.client.call(Destroy { name: args.name })?;
    Ok(0)
}
