//! `larder pool events`: what happened to pools.

use super::args::Json;
use super::{Session, out};
use crate::api::Result;
use crate::api::events::Events;
use crate::client;
use crate::render::events::{self, Form};
use crate::render::json;
use std::time::Duration;

/// Interval of polls for new events.
const INTERVAL: Duration = Duration::from_secs(1);

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What happens to one device or file again and again is one event a minute, with how often it did. The
newest 4096 are kept with the pool.
Example: larder pool events -v tank"
)]
pub struct Args {
    /// With all that is known of each: device, file, how often
    #[arg(short = 'v')]
    verbose: bool,
    /// Go on with what happens from now on
    #[arg(short = 'f', conflicts_with_all = ["clear", "json"])]
    follow: bool,
    /// For scripts: no heads, tabs between the columns
    #[arg(short = 'H')]
    scripted: bool,
    /// Forget all that happened
    #[arg(short = 'c')]
    clear: bool,
    #[command(flatten)]
    json: Json,
    /// Pools; all when none is given
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let mut request = Events { names: args.names, after: Vec::new(), clear: args.clear };
    let mut reply = session.client.call(request.clone())?;
    if args.clear {
        return Ok(0);
    }
    if args.json.json {
        out::print_json(&json::reply(&session.spell("pool", "events"), &reply));
        return Ok(0);
    }
    let form = Form { verbose: args.verbose, scripted: args.scripted };
    out::print(&events::text(&reply.pools, form));
    if !args.follow {
        return Ok(0);
    }
    loop {
        for pool in reply.pools.iter().filter(|pool| !pool.events.is_empty()) {
            request.after.retain(|(name, _)| *name != pool.name);
            let last = pool.events.last().map_or(0, |event| event.number);
            request.after.push((pool.name.clone(), last));
        }
        client::pause(INTERVAL);
        reply = session.client.call(request.clone())?;
        out::print(&events::lines(&reply.pools, form));
    }
}
