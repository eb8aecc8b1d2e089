//! `larder fs undestroy` and `larder fs trash`.

use super::args::{Form, Json, Yes};
use super::{Session, out};
use crate::api::trash::{EmptyTrash, Trash, TrashList, Undestroy};
use crate::api::{ApiError, Result};
use crate::render;
use crate::render::table::{Column, Table};
use larder_pool::property::format_size;

/// Arguments of `undestroy`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A dataset comes back with its snapshots, bookmarks and properties. Of several that had one name the last comes
back; NEW gives it another name. How long the trash keeps what was destroyed says the pool's property `trash`.
Example: larder fs undestroy -l tank
         larder fs undestroy -r tank/home
         larder fs undestroy tank/home@monday @monday-again"
)]
pub struct Args {
    /// Datasets too that were below it
    #[arg(short = 'r')]
    recursive: bool,
    /// Show what can be brought back
    #[arg(short = 'l')]
    list: bool,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "DATASET|DATASET@NAME", required_unless_present = "list")]
    name: Option<String>,
    #[arg(value_name = "NEW", conflicts_with = "list")]
    to: Option<String>,
}

/// Arguments of `trash`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "USED is what comes back with each alone. It counts as available: when somebody needs it, the oldest goes.
Example: larder fs trash tank
         larder fs trash --empty tank/home@monday"
)]
pub struct TrashArgs {
    /// Let go of it for good, of all of a pool's or of what is named
    #[arg(long, requires = "name")]
    empty: bool,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "POOL|DATASET|DATASET@NAME")]
    name: Option<String>,
}

/// Brings something back.
pub fn undestroy(args: Args, session: &Session) -> Result<u8> {
    if args.list {
        return list(args.name, args.form, args.json, session);
    }
    let Args { name, to, recursive, .. } = args;
    let name = name.ok_or_else(|| ApiError::usage("name what is to come back"))?;
    let restored = session.client.call(Undestroy { name, to, recursive })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "undestroy"), &restored));
    } else {
        out::print(&restored.restored.iter().map(|name| format!("{name} is back\n")).collect::<String>());
    }
    Ok(0)
}

/// Shows the trash, or lets go of it.
pub fn trash(args: TrashArgs, session: &Session) -> Result<u8> {
    let Some(name) = args.name.clone().filter(|_| args.empty) else {
        return list(args.name, args.form, args.json, session);
    };
    let question = format!("What '{name}' has in the trash cannot be brought back afterwards.");
    if !session.goes_ahead(args.yes, &question) {
        return Ok(1);
    }
    let gone = session.client.call(EmptyTrash { name })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "trash"), &gone));
    }
    Ok(0)
}

fn list(name: Option<String>, form: Form, json: Json, session: &Session) -> Result<u8> {
    let found = session.client.call(Trash { name })?;
    if json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "trash"), &found));
        return Ok(0);
    }
    out::print(&table(&found, form.exact).render(form.scripted));
    Ok(0)
}

fn table(found: &TrashList, exact: bool) -> Table {
    let mut table = Table::new(vec![
        Column::left("NAME"),
        Column::right("USED", 5),
        Column::left("DESTROYED"),
        Column::left("UNTIL"),
    ]);
    for one in &found.items {
        let date = |at: i64| if exact { at.to_string() } else { render::date_to_minute(at) };
        let used = match one.used {
            None => "-".to_owned(),
            Some(used) if exact => used.to_string(),
            Some(used) => format_size(used),
        };
        table.row(vec![one.name.clone(), used, date(one.destroyed), date(one.until)]);
    }
    table
}
