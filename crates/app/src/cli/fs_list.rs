//! `larder fs list`.

use super::args::{Form, Json};
use super::selection::Selection;
use super::{Applet, Session, items, out};
use crate::api::{Item, Result};
use crate::render::{self, Registry};

/// The property that tells whether a bookmark is of any use.
const SENDABLE: &str = "sendable";
/// The columns of `zfs list`.
const COLUMNS: &str = "name,used,available,referenced,mountpoint";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    form: Form,
    /// Columns to show: name and properties
    #[arg(short = 'o', value_name = "COLUMN,...", value_delimiter = ',')]
    columns: Vec<String>,
    /// Sort by this column; may be repeated
    #[arg(short = 's', value_name = "COLUMN")]
    ascending: Vec<String>,
    /// Sort by this column, greatest first; may be repeated
    #[arg(short = 'S', value_name = "COLUMN")]
    descending: Vec<String>,
    #[command(flatten)]
    json: Json,
    /// Datasets and snapshots; all datasets when none is given
    names: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let registry = Registry::Dataset;
    let columns = items::columns(registry, &args.columns, COLUMNS)?;
    let ascending = items::columns(registry, &args.ascending, "name")?;
    let descending = items::columns(registry, &args.descending, "name")?;
    let mut properties = items::wanted(&columns);
    for key in ascending.iter().chain(&descending) {
        if key != "name" && !properties.contains(key) {
            properties.push(key.clone());
        }
    }
    if !properties.iter().any(|property| property == SENDABLE) {
        properties.push(SENDABLE.to_owned());
    }
    // No kind told stands for datasets, and for what is named.
    let mut items = args.selection.ask(args.names, properties, &[], session)?;
    if !args.ascending.is_empty() {
        items.sort_by(|a, b| render::items::order(a, b, &ascending));
    }
    if !args.descending.is_empty() {
        items.sort_by(|a, b| render::items::order(b, a, &descending));
    }
    let is_useless = |item: &&Item| item.get(SENDABLE).is_some_and(|sendable| sendable.value == "no");
    let useless: Vec<_> = items.iter().filter(is_useless).map(|item| item.name.clone()).collect();
    if !columns.iter().any(|column| column == SENDABLE) {
        items.iter_mut().for_each(|item| item.properties.retain(|property| property.name != SENDABLE));
    }
    if args.json.json {
        let datasets = render::json::items(registry, &items);
        out::print_json(&render::json::envelope(&session.spell("fs", "list"), "datasets", datasets));
        return Ok(0);
    }
    if items.is_empty() {
        if !args.form.scripted {
            out::complain("no datasets available");
        }
        return Ok(0);
    }
    let mut table = render::items::list(registry, &columns, args.form.exact);
    for item in &items {
        render::items::list_row(&mut table, registry, &columns, item, args.form.exact);
    }
    out::print(&table.render(args.form.scripted));
    if let Some(first) = useless.first().filter(|_| !args.form.scripted && session.applet == Applet::Larder) {
        let (count, are) = (useless.len(), if useless.len() == 1 { "bookmark" } else { "bookmarks" });
        out::complain(&format!(
            "{count} {are} of these cannot be sent from any more ({first}): what changed since is not known for certain\n  \
             which: larder fs list -t bookmark -o name,sendable; why: larder pool events\n  \
             what to do: send from a snapshot that both sides have, or all of it; larder fs destroy {first}"
        ));
    }
    Ok(0)
}
