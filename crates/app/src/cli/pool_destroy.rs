//! `larder pool destroy`.

use super::args::{Force, Yes};
use super::{Applet, Session, out};
use crate::api::Result;
use crate::api::pool::Destroy;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    force: Force,
    /// For good: its labels are wiped, and import -D cannot help
    #[arg(long)]
    now: bool,
    name: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let question = match args.now {
        true => format!("Destroying pool '{}' loses all data in it.", args.name),
        false => format!(
            "Destroying pool '{}' loses all data in it, as soon as its devices are used for something else.",
            args.name
        ),
    };
    if !session.goes_ahead(args.yes, &question) {
        return Ok(1);
    }
    let destroyed = session.client.call(Destroy { name: args.name.clone(), now: args.now })?;
    if destroyed.kept && session.applet == Applet::Larder {
        out::print(&format!("until its devices are used: larder pool import -D {}\n", args.name));
    }
    Ok(0)
}
