//! `larder fs get`, `larder fs set`, `larder fs inherit`.

use super::args::{self, Form, Json};
use super::selection::Selection;
use super::{Session, items, out};
use crate::api::{ApiError, ItemKind, Result, fs};
use crate::render::items::{Field, SourceKind};
use crate::render::{self, Registry};
use clap::Args;

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    form: Form,
    /// Fields to show: name, property, value, received, source, or all
    #[arg(short = 'o', value_name = "FIELD,...", value_delimiter = ',')]
    fields: Vec<Field>,
    /// Only values from these sources
    #[arg(short = 's', value_name = "SOURCE,...", value_delimiter = ',')]
    sources: Vec<SourceKind>,
    #[command(flatten)]
    json: Json,
    /// Properties, or all
    #[arg(value_name = "PROPERTY,...")]
    properties: String,
    /// Datasets and snapshots; all when none is given
    names: Vec<String>,
}

/// Arguments of `set`.
#[derive(Debug, Args)]
pub struct Set {
    /// PROPERTY=VALUE..., then datasets
    #[arg(value_name = "PROPERTY=VALUE... NAME", required = true, num_args = 2..)]
    words: Vec<String>,
}

/// Arguments of `inherit`.
#[derive(Debug, Args)]
pub struct Inherit {
    /// Of all datasets below too
    #[arg(short = 'r')]
    recursive: bool,
    /// Go back to the received value where there is one
    #[arg(short = 'S')]
    received: bool,
    property: String,
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Shows properties.
pub fn get(args: Get, session: &Session) -> Result<u8> {
    let registry = Registry::Dataset;
    let properties = items::asked(registry, &args.properties)?;
    // Unlike `list`, `get` shows every type unless told otherwise.
    let every = [ItemKind::Filesystem, ItemKind::Snapshot, ItemKind::Bookmark];
    let mut items = args.selection.ask(args.names, properties.clone(), &every, session)?;
    if args.json.json {
        for item in &mut items {
            item.properties.retain(|property| {
                args.sources.is_empty() || args.sources.iter().any(|kind| kind.matches(&property.source))
            });
        }
        let datasets = render::json::items(registry, &items);
        out::print_json(&render::json::envelope(&session.spell("fs", "get"), "datasets", datasets));
        return Ok(0);
    }
    let fields = items::fields(&args.fields);
    let table = render::items::get(registry, &items, &properties, &fields, &args.sources, args.form.exact);
    out::print(&table.render(args.form.scripted));
    Ok(0)
}

/// Sets properties.
pub fn set(args: Set, session: &Session) -> Result<u8> {
    let (pairs, names): (Vec<String>, Vec<String>) =
        args.words.into_iter().partition(|word| word.contains('='));
    if pairs.is_empty() || names.is_empty() {
        return Err(ApiError::usage("give at least one PROPERTY=VALUE and at least one dataset or snapshot"));
    }
    let pairs = pairs.iter().map(|pair| args::assignment(pair).map_err(ApiError::usage));
    let properties = args::properties(pairs.collect::<Result<_>>()?)?;
    session.client.call(fs::Set { names, properties })?;
    Ok(0)
}

/// Takes a property's own value away.
pub fn inherit(args: Inherit, session: &Session) -> Result<u8> {
    let Inherit { recursive, received, property, names } = args;
    session.client.call(fs::Inherit { names, property, recursive, received })?;
    Ok(0)
}
