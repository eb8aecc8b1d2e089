//! `larder pool check`: health for probes, one line a pool and an exit code.

use super::args::Json;
use super::{Session, out};
use crate::api::Result;
use crate::api::pool::Status;
use crate::render;
use crate::render::status::Health;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "The worst pool decides the exit code; without any pool it is 3.
Example: larder pool check tank || mail -s 'tank needs care' root </dev/null")]
pub struct Args {
    #[command(flatten)]
    json: Json,
    /// Pools; all when none is given
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let pools = match session.client.call(Status { names: args.names }) {
        Ok(reply) => reply.pools,
        Err(error) => {
            if args.json.json {
                out::print_json(&render::json::check(&session.spell("pool", "check"), &[]));
            }
            out::complain(&format!("unknown: {error}"));
            return Ok(Health::Unknown as u8);
        }
    };
    if args.json.json {
        out::print_json(&render::json::check(&session.spell("pool", "check"), &pools));
    } else if pools.is_empty() {
        out::print("unknown: no pools available\n");
    } else {
        let lines: Vec<String> = pools.iter().map(render::status::check_line).collect();
        out::print(&lines.concat());
    }
    Ok(pools.iter().map(render::status::health).max().unwrap_or(Health::Unknown) as u8)
}
