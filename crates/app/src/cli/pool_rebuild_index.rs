//! `larder pool rebuild-index`: makes the dedup index anew, of what the blocks say.

use super::{Session, out};
use crate::api::Result;
use crate::api::dedup::{Rebuild, RebuildIndex};
use crate::api::pool::{PoolStatus, Status};
use crate::client;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Interval of polls for the progress.
const INTERVAL: Duration = Duration::from_millis(500);

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Fingerprints come from the block map. Files of datasets with dedup on are read where they were stored
before it was on; so this is also how these take part. Until it is over, duplicates may be stored again.
Example: larder pool rebuild-index -w tank"
)]
pub struct Args {
    /// Wait for the end
    #[arg(short = 'w')]
    wait: bool,
    #[arg(required = true)]
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.client.call(RebuildIndex { names: args.names.clone() })?;
    if args.wait {
        wait(&args.names, session)?;
    }
    Ok(0)
}

fn wait(names: &[String], session: &Session) -> Result<()> {
    let told = std::io::stderr().is_terminal();
    let mut last = Vec::new();
    loop {
        let pools = session.client.call(Status { names: names.to_vec() })?.pools;
        let of = |pool: &PoolStatus| pool.dedup.and_then(|dedup| dedup.rebuild);
        let running: Vec<(String, Rebuild)> =
            pools.iter().filter_map(|pool| Some((pool.root.name.clone(), of(pool)?))).collect();
        if running.is_empty() {
            for pool in pools {
                let name = &pool.root.name;
                let entries = pool.dedup.map_or(0, |dedup| dedup.entries);
                let read =
                    last.iter().find(|(of, _)| of == name).map_or(0, |(_, of): &(_, Rebuild)| of.records);
                out::print(&format!(
                    "{name}: {entries} fingerprints in the index, at least {read} records read for it\n"
                ));
            }
            return Ok(());
        }
        if told {
            for (name, rebuild) in &running {
                let _ = write!(std::io::stderr(), "\r{}\x1b[K", line(name, rebuild));
            }
        }
        last = running;
        client::pause(INTERVAL);
        if told {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(name: &str, rebuild: &Rebuild) -> String {
    format!("{name}: {} extents looked at, {} records read", rebuild.extents, rebuild.records)
}
