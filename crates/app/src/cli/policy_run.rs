//! `larder policy run`.

use super::args::Json;
use super::{Session, out};
use crate::api::Result;
use crate::api::policy::Run;
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only show what would be taken and destroyed
    #[arg(short = 'n')]
    dry_run: bool,
    /// Of all datasets below too
    #[arg(short = 'r')]
    recursive: bool,
    #[command(flatten)]
    json: Json,
    /// Datasets; all when none is given
    #[arg(value_name = "DATASET")]
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let Args { dry_run, recursive, json, names } = args;
    let ran = session.client.call(Run { names, recursive, dry_run })?;
    if json.json {
        out::print_json(&render::json::reply(&session.spell("policy", "run"), &ran));
    } else {
        out::print(&render::policy::ran(&ran, dry_run));
    }
    ran.failed.iter().for_each(|error| out::complain(&error.to_string()));
    Ok(u8::from(!ran.failed.is_empty()))
}
