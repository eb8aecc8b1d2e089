//! `larder fs destroy`.

use super::args::{Force, Json};
use super::{Session, out};
use crate::api::Result;
use crate::api::fs::Destroy;
use crate::render;
use larder_pool::property::format_size;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: larder fs destroy -rnv tank/old")]
pub struct Args {
    /// All datasets below too
    #[arg(short = 'r')]
    recursive: bool,
    /// Only show what would be destroyed
    #[arg(short = 'n')]
    dry_run: bool,
    /// Show what is destroyed and how much space comes back
    #[arg(short = 'v')]
    verbose: bool,
    /// Show it in the form that scripts like
    #[arg(short = 'p')]
    exact: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    json: Json,
    name: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let scope = if args.recursive { " and all below it" } else { "" };
    let question = format!("Destroying '{}'{scope} loses the files in it.", args.name);
    if !args.yes && !args.dry_run && !out::confirmed(&question) {
        out::complain("nothing was done");
        return Ok(1);
    }
    let request = Destroy { name: args.name, recursive: args.recursive, dry_run: args.dry_run };
    let destroyed = session.client.call(request)?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "destroy"), &destroyed));
    } else if args.verbose || args.exact {
        let mut text = String::new();
        let (destroy, reclaim) = match (args.exact, args.dry_run) {
            (true, _) => ("destroy\t", "reclaim\t"),
            (false, true) => ("would destroy ", "would reclaim "),
            (false, false) => ("will destroy ", "will reclaim "),
        };
        for name in &destroyed.destroyed {
            text += &format!("{destroy}{name}\n");
        }
        let size = destroyed.reclaimed;
        let size = if args.exact { size.to_string() } else { format_size(size) };
        text += &format!("{reclaim}{size}\n");
        out::print(&text);
    }
    Ok(0)
}
