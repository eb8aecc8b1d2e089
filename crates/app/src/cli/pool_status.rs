//! `larder pool status`.

use super::args::Json;
use super::{Session, out};
use crate::api::{Result, pool};
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name the files that are damaged
    #[arg(short = 'v')]
    verbose: bool,
    /// With the histogram of references, as the last trace found it
    #[arg(short = 'D')]
    dedup: bool,
    /// Only pools that something is wrong with
    #[arg(short = 'x')]
    unhealthy: bool,
    /// How far devices are trimmed, and when that was
    #[arg(short = 't')]
    trim: bool,
    /// Full paths of devices
    #[arg(short = 'P')]
    paths: bool,
    /// Guids of devices instead of their names
    #[arg(short = 'g')]
    guids: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    exact: bool,
    #[command(flatten)]
    json: Json,
    /// Pools; all when none is given
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let pool::Statuses { mut pools, absent } =
        session.client.call(pool::Status { names: args.names.clone() })?;
    let any = !pools.is_empty();
    if args.unhealthy {
        pools.retain(render::status::needs_attention);
    }
    if args.json.json {
        let command = session.spell("pool", "status");
        let mut whole = render::json::envelope(&command, "pools", render::json::statuses(&pools));
        whole["absent"] = render::json::plain(&absent);
        out::print_json(&whole);
        return Ok(0);
    }
    if pools.is_empty() && absent.is_empty() {
        out::print(
            match (any, args.names.as_slice()) {
                (false, _) => "no pools available\n".to_owned(),
                (true, [name]) => format!("pool '{name}' is healthy\n"),
                (true, _) => "all pools are healthy\n".to_owned(),
            }
            .as_str(),
        );
        return Ok(0);
    }
    let form = render::status::Form {
        damaged: args.verbose,
        paths: args.paths,
        guids: args.guids,
        exact: args.exact,
        trim: args.trim,
    };
    let text = pools.iter().map(|pool| {
        let dedup = if args.dedup { render::dedup::status(pool) } else { String::new() };
        render::status::text(pool, form) + &dedup
    });
    let text: Vec<String> = text.chain(absent.iter().map(render::absent::text)).collect();
    out::print(&text.join("\n"));
    Ok(0)
}
