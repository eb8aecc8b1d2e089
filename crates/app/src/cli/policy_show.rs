//! `larder policy show`.

use super::args::{Form, Json};
use super::{Session, out};
use crate::api::Result;
use crate::api::policy::Show;
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Of all datasets below too
    #[arg(short = 'r')]
    recursive: bool,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    json: Json,
    /// Datasets; all that have a policy when none is given
    #[arg(value_name = "DATASET")]
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let reply = session.client.call(Show { names: args.names, recursive: args.recursive })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("policy", "show"), &reply));
        return Ok(0);
    }
    let table = render::policy::table(&reply.datasets, args.form.exact);
    out::print(&table.render(args.form.scripted));
    Ok(0)
}
