//! `larder fs rollback`.

use super::args::{Force, Json, Yes};
use super::{Applet, Session, out};
use crate::api::Result;
use crate::api::snapshots::{Newer, Rollback};
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Newer snapshots, with what the dataset holds now, go on in a dataset of their own,
DATASET.before-rollback; without newer ones, what was written since is lost. The dataset is unmounted meanwhile.
To get single files back, copy them out of DIR/.zfs/snapshot/NAME.
Example: larder fs rollback tank/home@monday")]
pub struct Args {
    /// Destroy the snapshots that are newer
    #[arg(short = 'r', long)]
    drop_newer: bool,
    /// Destroy the snapshots that are newer, and the clones that began as them, with all below these
    #[arg(short = 'R', long)]
    drop_clones: bool,
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
    let (what, since) = match (args.drop_newer, args.drop_clones) {
        (_, true) => ("", ", the snapshots taken since, and their clones"),
        (true, false) => ("", ", and the snapshots taken since"),
        (false, false) => (" where there is no newer snapshot", ""),
    };
    let question =
        format!("Going back to '{}' loses{what} what was written to '{dataset}' since{since}.", args.name);
    if !session.goes_ahead(args.yes, &question) {
        return Ok(1);
    }
    let newer = match session.applet {
        _ if args.drop_clones => Newer::DropClones,
        _ if args.drop_newer => Newer::Drop,
        // Scripts go by the refusal.
        Applet::Zfs => Newer::Refuse,
        _ => Newer::Keep,
    };
    let rolled_back = session.client.call(Rollback { name: args.name, newer })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "rollback"), &rolled_back));
    } else if let Some(kept) = &rolled_back.kept {
        out::print(&format!(
            "what is newer goes on in {kept}: larder fs mount {kept}, or larder fs destroy -r {kept}\n"
        ));
    }
    Ok(0)
}
