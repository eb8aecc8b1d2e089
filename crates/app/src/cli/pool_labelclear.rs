//! `larder pool labelclear`.

use super::Session;
use super::args::{self, Force};
use crate::api::Result;
use crate::host;
use std::path::Path;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    force: Force,
    device: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    host::clear_label(Path::new(&args::device(&args.device)?))?;
    Ok(0)
}
