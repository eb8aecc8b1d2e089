//! `larder pool export`.

use super::{Session, out};
use crate::api::Result;
use crate::api::pool::Export;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// All pools
    #[arg(short = 'a')]
    all: bool,
    /// Also a suspended pool: what was neither committed nor synced is dropped
    #[arg(short = 'f')]
    force: bool,
    /// Do not wait for these any more, which were imported when the daemon stopped and are not now; nothing is written
    #[arg(long, conflicts_with_all = ["all", "force"])]
    forget: bool,
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let names = match args.all {
        true => session.client.status()?.map(|daemon| daemon.pools).unwrap_or_default(),
        false => args.names,
    };
    let mut is_marked = true;
    for name in names {
        if let Some(error) =
            session.client.call(Export { name, force: args.force, forget: args.forget })?.unmarked
        {
            out::complain(&error.to_string());
            is_marked = false;
        }
    }
    Ok(u8::from(!is_marked && !args.force))
}
