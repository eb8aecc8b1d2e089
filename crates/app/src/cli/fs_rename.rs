//! `larder fs rename`.

use super::Session;
use super::args::Force;
use crate::api::fs::Rename;
use crate::api::snapshots::RenameSnapshot;
use crate::api::{ApiError, Result};

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: larder fs rename tank/media tank/archive/media
         larder fs rename -r tank@monday @first-of-month")]
pub struct Args {
    /// Make missing parents too
    #[arg(short = 'p')]
    parents: bool,
    /// Of a snapshot: those of this name of all datasets below too
    #[arg(short = 'r', conflicts_with = "parents")]
    recursive: bool,
    #[command(flatten)]
    force: Force,
    /// A dataset or snapshot
    from: String,
    /// Its new name; of a snapshot @NAME is enough
    to: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let Args { parents, recursive, from, to, .. } = args;
    if from.contains('@') {
        session.client.call(RenameSnapshot { from, to, recursive })?;
    } else if recursive {
        return Err(ApiError::usage("-r is for snapshots: what is below a dataset keeps its place in it"));
    } else {
        session.client.call(Rename { from, to, parents })?;
    }
    Ok(0)
}
