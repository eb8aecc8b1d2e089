//! `larder fs hold`, `larder fs release`, `larder fs holds`.

use super::args::{Form, Json};
use super::{Session, out};
use crate::api::Result;
use crate::api::snapshots::{Hold, Holds, Release};
use crate::render;
use crate::render::table::{Column, Table};

/// Arguments of `hold` and `release`.
#[derive(Debug, clap::Args)]
pub struct Change {
    /// Snapshots of the same name of all datasets below too
    #[arg(short = 'r')]
    recursive: bool,
    /// A name for the hold
    tag: String,
    #[arg(required = true, value_name = "DATASET@NAME")]
    names: Vec<String>,
}

/// Arguments of `holds`.
#[derive(Debug, clap::Args)]
pub struct Show {
    /// Snapshots of the same name of all datasets below too
    #[arg(short = 'r')]
    recursive: bool,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    json: Json,
    #[arg(required = true, value_name = "DATASET@NAME")]
    names: Vec<String>,
}

/// Places holds.
pub fn hold(args: Change, session: &Session) -> Result<u8> {
    let Change { recursive, tag, names } = args;
    session.client.call(Hold { names, tag, recursive })?;
    Ok(0)
}

/// Lets go of holds.
pub fn release(args: Change, session: &Session) -> Result<u8> {
    let Change { recursive, tag, names } = args;
    session.client.call(Release { names, tag, recursive })?;
    Ok(0)
}

/// Shows holds.
pub fn holds(args: Show, session: &Session) -> Result<u8> {
    let held = session.client.call(Holds { names: args.names, recursive: args.recursive })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "holds"), &held));
        return Ok(0);
    }
    let mut table = Table::new(vec![Column::left("NAME"), Column::left("TAG"), Column::left("TIMESTAMP")]);
    for hold in held.holds {
        let created = match args.form.exact {
            true => hold.created.to_string(),
            false => render::date_to_minute(hold.created),
        };
        table.row(vec![hold.name, hold.tag, created]);
    }
    out::print(&table.render(args.form.scripted));
    Ok(0)
}
