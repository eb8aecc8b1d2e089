//! `larder pool import`: brings pools back from their devices, or shows which could be.

use super::args::{self, Force, Json};
use super::{Session, out};
use crate::api::Result;
use crate::api::pool::{Import, Importable};
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder pool import                      what can be imported
  larder pool import tank
  larder pool import -d /srv/images -o readonly=on tank rescue
  larder pool import -R /mnt/other tank   what came from another host, below /mnt/other
  larder pool import -D tank              what was destroyed")]
pub struct Args {
    /// Look at this device, or at the files in this folder, and nowhere else
    #[arg(short = 'd', value_name = "DIR|DEVICE")]
    search: Vec<String>,
    /// Pools that were destroyed, and whose devices nothing else has used since
    #[arg(short = 'D')]
    destroyed: bool,
    /// All pools that are found
    #[arg(short = 'a', conflicts_with_all = ["pool", "new_name"])]
    all: bool,
    /// Leave its datasets unmounted
    #[arg(short = 'N')]
    no_mount: bool,
    /// Where a device is missing, go on with the one that was to replace it, without what that one could not be given;
    /// where the intent log cannot be read on, without what may follow
    #[arg(long)]
    accept_loss: bool,
    /// Go on without the log's own devices, where these are missing: what was synced after the last commit may be lost
    #[arg(short = 'm')]
    without_log: bool,
    /// Take it from another host, which has not exported it: only if that host is dead, or cut off from the devices
    #[arg(long)]
    take_over: bool,
    /// Mount everything below DIR, for this import
    #[arg(short = 'R', value_name = "DIR", conflicts_with = "no_mount")]
    altroot: Option<String>,
    #[command(flatten)]
    force: Force,
    /// readonly=on writes nothing at all; else properties of the pool
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = args::assignment)]
    properties: Vec<(String, String)>,
    #[command(flatten)]
    json: Json,
    /// The pool
    #[arg(value_name = "NAME|GUID")]
    pool: Option<String>,
    /// A new name for it
    #[arg(value_name = "NEWNAME")]
    new_name: Option<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let search = args.search.iter().map(|text| args::device(text)).collect::<Result<Vec<_>>>()?;
    if args.pool.is_none() && !args.all {
        return show(Importable { search, destroyed: args.destroyed }, args.json, session);
    }
    let mut properties = args::properties(args.properties)?;
    let readonly = properties.remove("readonly").is_some_and(|value| value == "on");
    let altroot = args.altroot.or(properties.remove("altroot")).map(args::absolute).transpose()?;
    let request = Import {
        search,
        pool: args.pool,
        destroyed: args.destroyed,
        new_name: args.new_name,
        no_mount: args.no_mount,
        readonly,
        accept_loss: args.accept_loss,
        without_log: args.without_log,
        // The meaning of zpool's -f.
        take_over: args.take_over || args.force.force,
        altroot,
        properties,
    };
    let imported = session.client.call(request)?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("pool", "import"), &imported));
    }
    for note in &imported.notes {
        out::complain(note);
    }
    for error in &imported.failed {
        out::complain(&error.to_string());
    }
    Ok(u8::from(!imported.failed.is_empty()))
}

fn show(request: Importable, json: Json, session: &Session) -> Result<u8> {
    let found = session.client.call(request)?.pools;
    if json.json {
        let command = session.spell("pool", "import");
        out::print_json(&render::json::envelope(&command, "pools", render::json::importable(&found)));
    } else if found.is_empty() {
        out::print("no pools available to import\n");
    } else {
        let texts: Vec<String> = found.iter().map(render::status::importable).collect();
        out::print(&texts.join("\n"));
    }
    Ok(0)
}
