//! `larder pool dedup`, and `zdb -D`: who shares what, and what that saves.

use super::args::Json;
use super::{Session, out, pool_trace};
use crate::api::Result;
use crate::api::pool::{PoolStatus, Status};
use crate::api::trace::{PoolFolders, ShowFolders, Trace};
use crate::render::json::{add_folders, envelope, sharing};
use crate::render::{dedup, folders};

/// Levels of folders that are told.
const DEPTH: u32 = 2;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Traces first, so that the figures are of now. LSIZE is plain, PSIZE as stored, DSIZE what it takes
before parity and mirror copies. A line of --folders is a folder without those below it that have a line; what only
snapshots have, or is removed, is (elsewhere). Figures by folder are known until the next trace or export.
Examples: larder pool dedup tank
          larder pool dedup --folders -d 3 tank"
)]
pub struct Args {
    /// Do not trace: as the last trace found it
    #[arg(short = 'n')]
    last: bool,
    /// By folder as well: where sharing pays, and where it does not
    #[arg(long)]
    folders: bool,
    /// Levels of folders below the root of each dataset: 2 unless told
    #[arg(short = 'd', value_name = "DEPTH", requires = "folders", conflicts_with = "last")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: Option<u32>,
    /// Exact numbers
    #[arg(short = 'p')]
    exact: bool,
    #[command(flatten)]
    json: Json,
    #[arg(required = true)]
    names: Vec<String>,
}

/// What of zdb(8) there is: the options of its table of references.
#[derive(Debug, clap::Args)]
pub struct ZdbArgs {
    /// The closing line; twice, with the histogram
    #[arg(short = 'D', action = clap::ArgAction::Count, required = true)]
    depth: u8,
    name: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let Args { last, folders: by_folder, depth, exact, json, names } = args;
    let pools = match last {
        true => session.client.call(Status { names: names.clone() })?.pools,
        false => {
            let depth = by_folder.then_some(depth.unwrap_or(DEPTH));
            traced(session, &names, depth, !json.json)?
        }
    };
    let found = match by_folder {
        true => session.client.call(ShowFolders { names })?.pools,
        false => Vec::new(),
    };
    if json.json {
        let mut all = sharing(&pools);
        add_folders(&mut all, &found);
        out::print_json(&envelope(&session.spell("pool", "dedup"), "pools", all));
    } else {
        let of = |pool: &PoolStatus| found.iter().find(|of| of.name == pool.root.name);
        let text = |pool: &PoolStatus| {
            let by_folder = of(pool).map(|of: &PoolFolders| folders::text(of, exact));
            dedup::text(pool, exact) + &by_folder.unwrap_or_default()
        };
        out::print(&pools.iter().map(text).collect::<Vec<_>>().join("\n"));
    }
    Ok(0)
}

/// Runs it by zdb's name.
pub fn run_zdb(args: ZdbArgs, session: &Session) -> Result<u8> {
    for pool in traced(session, &[args.name], None, true)? {
        out::print(&dedup::zdb(&pool, args.depth));
    }
    Ok(0)
}

/// The state of pools after a trace that is made now, and counts by folder when it has a depth; until then progress is
/// `told`.
pub(super) fn traced(
    session: &Session,
    names: &[String],
    folders: Option<u32>,
    told: bool,
) -> Result<Vec<PoolStatus>> {
    if folders.is_some() {
        // One that does not is under way.
        pool_trace::finished(session, names, told)?;
    }
    session.client.call(Trace { names: names.to_vec(), stop: false, folders })?;
    pool_trace::finished(session, names, told)
}
