//! `larder pool list`.

use super::args::{Form, Json};
use super::{Session, items, out};
use crate::api::{Result, pool};
use crate::render::items::VdevForm;
use crate::render::{self, Registry};

/// The columns of `zpool list`.
const COLUMNS: &str =
    "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    form: Form,
    /// Columns to show, by property name
    #[arg(short = 'o', value_name = "COLUMN,...", value_delimiter = ',')]
    columns: Vec<String>,
    /// Groups and devices too
    #[arg(short = 'v')]
    verbose: bool,
    /// Full paths of devices
    #[arg(short = 'P')]
    paths: bool,
    #[command(flatten)]
    json: Json,
    /// Pools; all when none is given
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let columns = items::columns(Registry::Pool, &args.columns, COLUMNS)?;
    let properties = items::wanted(&columns);
    let reply = session.client.call(pool::Get { names: args.names.clone(), properties })?;
    if args.json.json {
        let command = session.spell("pool", "list");
        let mut pools = render::json::items(Registry::Pool, &reply.items);
        if args.verbose {
            let statuses = session.client.call(pool::Status { names: args.names })?;
            render::json::add_vdevs(&mut pools, &statuses.pools);
        }
        out::print_json(&render::json::envelope(&command, "pools", pools));
        return Ok(0);
    }
    if reply.items.is_empty() {
        if !args.form.scripted {
            out::complain("no pools available");
        }
        return Ok(0);
    }
    let mut table = render::items::list(Registry::Pool, &columns, args.form.exact);
    let statuses = match args.verbose {
        true => session.client.call(pool::Status { names: args.names })?.pools,
        false => Vec::new(),
    };
    let form = VdevForm { paths: args.paths, exact: args.form.exact, scripted: args.form.scripted };
    for item in &reply.items {
        render::items::list_row(&mut table, Registry::Pool, &columns, item, args.form.exact);
        if let Some(status) = statuses.iter().find(|status| status.root.name == item.name) {
            render::items::list_vdevs(&mut table, &columns, status, form);
        }
    }
    out::print(&table.render(args.form.scripted));
    Ok(0)
}
