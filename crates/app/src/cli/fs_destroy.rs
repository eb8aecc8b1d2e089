//! `larder fs destroy`.

use super::args::{Force, Json, Yes};
use super::{Applet, Session, out};
use crate::api::fs::{Destroy, Destroyed};
use crate::api::snapshots::{DestroyBookmark, DestroySnapshots};
use crate::api::{ApiError, Result};
use crate::render;
use larder_pool::property::format_size;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "destroy [OPTIONS] DATASET...
       destroy [OPTIONS] <filesystem|volume>@<snap>[%<snap>][,...]...
       destroy <filesystem|volume>#<bookmark>...",
    after_help = "Of several snapshots, names are separated by commas; A%B is all from A to B, %B all up to B, A% all
since A. Where one is in use, none is destroyed.
Example: larder fs destroy -rnv tank/old
         larder fs destroy -nv tank/home@monday,january%march"
)]
pub struct Args {
    /// All datasets below too, and snapshots; of snapshots, those of these names of all datasets below
    #[arg(short = 'r')]
    recursive: bool,
    /// The same, and clones of the snapshots before them, with all below these
    #[arg(short = 'R')]
    clones: bool,
    /// Only show what would be destroyed
    #[arg(short = 'n')]
    dry_run: bool,
    /// Show what is destroyed and how much space comes back
    #[arg(short = 'v')]
    verbose: bool,
    /// Show it in the form that scripts like
    #[arg(short = 'p')]
    exact: bool,
    /// Of snapshots: destroy those that are held with their last hold
    #[arg(short = 'd')]
    deferred: bool,
    /// For good: the space comes back at once, and undestroy cannot help
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    json: Json,
    #[arg(required = true, value_name = "DATASET|DATASET@NAME,...|DATASET#NAME")]
    names: Vec<String>,
}

/// Runs it: of several, which zfs does not take, one after the other up to the first that fails.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    for name in &args.names {
        let code =
            if name.contains('#') { bookmark(&args, name, session)? } else { one(&args, name, session)? };
        if code > 0 {
            return Ok(code);
        }
    }
    Ok(0)
}

fn one(args: &Args, name: &str, session: &Session) -> Result<u8> {
    let snapshots = name.contains('@');
    let scope = match (args.clones, args.recursive) {
        (true, _) => " and all below it, and clones",
        (_, true) => " and all below it",
        _ => "",
    };
    let what = match snapshots {
        true => format!("Destroying the snapshots '{name}'{scope} loses what only they hold"),
        false => format!("Destroying '{name}'{scope} loses the files in it"),
    };
    let question = match args.now {
        true => format!("{what}."),
        false => format!("{what}, as soon as they are gone from the trash (larder pool get trash)."),
    };
    if !args.dry_run && !session.goes_ahead(args.yes, &question) {
        return Ok(1);
    }
    let destroyed = call(args, name, snapshots, session)?;
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
        // As zfs has it, nothing more is said under its name.
        if let Some(until) = destroyed.until.filter(|_| !args.exact && session.applet == Applet::Larder) {
            let until = render::date_to_minute(until);
            text += &format!("in the trash until {until}, or until space is needed: larder fs undestroy\n");
        }
        for kept in destroyed.kept.iter().filter(|_| !args.exact) {
            text += &format!("kept of {}: what {} began as\n", kept.name, kept.clones.join(", "));
        }
        out::print(&text);
    }
    Ok(0)
}

/// A bookmark holds nothing, so nobody is asked.
fn bookmark(args: &Args, name: &str, session: &Session) -> Result<u8> {
    if args.dry_run {
        return Err(ApiError::usage("-n is for datasets and snapshots: a bookmark holds nothing"));
    }
    let done = session.client.call(DestroyBookmark { name: name.to_owned() })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "destroy"), &done));
    }
    Ok(0)
}

fn call(args: &Args, name: &str, snapshots: bool, session: &Session) -> Result<Destroyed> {
    let measure = args.json.json || args.verbose || args.exact;
    let Args { dry_run, deferred, clones, now, .. } = *args;
    let recursive = args.recursive || clones;
    let name = name.to_owned();
    match snapshots {
        true => {
            session.client.call(DestroySnapshots { name, recursive, dry_run, measure, deferred, clones, now })
        }
        false => session.client.call(Destroy { name, recursive, dry_run, measure, clones, now }),
    }
}
