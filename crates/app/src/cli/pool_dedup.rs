//! `larder pool dedup`, and `zdb -D`: who shares what, and what that saves.

use super::args::Json;
use super::{Session, out, pool_trace};
use crate::api::Result;
use crate::api::pool::{PoolStatus, Status};
use crate::api::trace::Trace;
use crate::render::dedup;
use crate::render::json::{envelope, sharing};

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Traces first, so that the figures are of now. LSIZE is plain, PSIZE as stored, DSIZE what it takes
before parity and mirror copies.
Example: larder pool dedup tank"
)]
pub struct Args {
    /// Do not trace: as the last trace found it
    #[arg(short = 'n')]
    last: bool,
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
    let pools = match args.last {
        true => session.client.call(Status { names: args.names })?.pools,
        false => traced(session, args.names, !args.json.json)?,
    };
    if args.json.json {
        out::print_json(&envelope(&session.spell("pool", "dedup"), "pools", sharing(&pools)));
    } else {
        let text: Vec<String> = pools.iter().map(|pool| dedup::text(pool, args.exact)).collect();
        out::print(&text.join("\n"));
    }
    Ok(0)
}

/// Runs it by zdb's name.
pub fn run_zdb(args: ZdbArgs, session: &Session) -> Result<u8> {
    for pool in traced(session, vec![args.name], true)? {
        out::print(&dedup::zdb(&pool, args.depth));
    }
    Ok(0)
}

/// The state of pools after a trace that is made now; until then progress is `told`.
pub(super) fn traced(session: &Session, names: Vec<String>, told: bool) -> Result<Vec<PoolStatus>> {
    session.client.call(Trace { names: names.clone(), stop: false })?;
    pool_trace::finished(session, &names, told)
}
