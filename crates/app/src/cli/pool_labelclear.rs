//! `larder pool labelclear`.

use super::{args, out};
use crate::api::Result;
use crate::host;
use std::path::Path;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also when the label is that of a pool, unless a host is using it right now
    #[arg(short = 'f', long)]
    force: bool,
    device: String,
}

/// Runs it.
pub fn run(args: Args) -> Result<u8> {
    host::clear_label(Path::new(&args::device(&args.device)?), args.force, &out::complain)?;
    Ok(0)
}
