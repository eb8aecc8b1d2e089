//! `larder fs create`.

use super::args::{self, Json};
use super::{Session, out};
use crate::api::Result;
use crate::api::fs::Create;
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: larder fs create -o compression=zstd -o recordsize=1M tank/media")]
pub struct Args {
    /// Make missing parents too; be content when it exists
    #[arg(short = 'p')]
    parents: bool,
    /// Properties of its own
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = args::assignment)]
    properties: Vec<(String, String)>,
    /// Only show what would be made
    #[arg(short = 'n')]
    dry_run: bool,
    /// Show what is made
    #[arg(short = 'v')]
    verbose: bool,
    /// Leave it unmounted: the same as -o canmount=noauto
    #[arg(short = 'u')]
    unmounted: bool,
    #[command(flatten)]
    json: Json,
    name: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let mut properties = args::properties(args.properties)?;
    if args.unmounted {
        properties.entry("canmount".into()).or_insert_with(|| "noauto".into());
    }
    let request = Create { name: args.name, parents: args.parents, properties, dry_run: args.dry_run };
    let created = session.client.call(request)?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "create"), &created));
    } else if args.dry_run || args.verbose {
        let verb = if args.dry_run { "would create" } else { "create" };
        let lines: Vec<String> = created.created.iter().map(|name| format!("{verb} {name}\n")).collect();
        out::print(&lines.concat());
    }
    Ok(0)
}
