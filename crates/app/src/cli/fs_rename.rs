//! `larder fs rename`.

use super::Session;
use super::args::Force;
use crate::api::Result;
use crate::api::fs::Rename;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Make missing parents too
    #[arg(short = 'p')]
    parents: bool,
    #[command(flatten)]
    force: Force,
    from: String,
    to: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    session.client.call(Rename { from: args.from, to: args.to, parents: args.parents })?;
    Ok(0)
}
