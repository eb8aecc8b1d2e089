//! `larder pool history`: which commands changed pools.

use super::args::Json;
use super::{Session, out};
use crate::api::Result;
use crate::api::events::{Events, History};
use crate::render::events::history;
use crate::render::json;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "The command that made the pool is kept, and the newest 10,000.
Example: larder pool history -l tank")]
pub struct Args {
    /// What the pool did by itself, too
    #[arg(short = 'i')]
    internal: bool,
    /// With user and host
    #[arg(short = 'l')]
    long: bool,
    #[command(flatten)]
    json: Json,
    /// Pools; all when none is given
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let reply = session.client.call(History { names: args.names.clone() })?;
    if args.json.json {
        out::print_json(&json::reply(&session.spell("pool", "history"), &reply));
        return Ok(0);
    }
    let events = match args.internal {
        true => session.client.call(Events { names: args.names, ..Events::default() })?.pools,
        false => Vec::new(),
    };
    let text = reply.pools.iter().map(|pool| {
        let internal = events.iter().find(|of| of.name == pool.name).map_or(&[][..], |of| &of.events);
        history(pool, internal, args.long)
    });
    out::print(&text.collect::<String>());
    Ok(0)
}
