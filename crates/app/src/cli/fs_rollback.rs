//! `larder fs rollback`.

use super::args::{Force, Json, Yes};
use super::{Session, out};
use crate::api::Result;
use crate::api::snapshots::Rollback;
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "What was written since the snapshot is lost. The dataset is unmounted meanwhile.
To get single files back, copy them out of DIR/.zfs/snapshot/NAME.
Example: larder fs rollback tank/home@monday")]
pub struct Args {
    /// Destroy the snapshots that are newer
    #[arg(short = 'r', long, visible_short_alias = 'R')]
    drop_newer: bool,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "DATASET@NAME")]
    name: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let dataset = args.name.split('@').next().unwrap_or_default();
    let newer = if args.drop_newer { ", and the snapshots taken since" } else { "" };
    let question =
        format!("Going back to '{}' loses what was written to '{dataset}' since{newer}.", args.name);
    if !session.goes_ahead(args.yes, &question) {
        return Ok(1);
    }
    let destroyed = session.client.call(Rollback { name: args.name, drop_newer: args.drop_newer })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "rollback"), &destroyed));
    }
    Ok(0)
}
