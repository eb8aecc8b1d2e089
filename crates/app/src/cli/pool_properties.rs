//! `larder pool get`, `larder pool set`.

use super::args::{self, Form, Json};
use super::{Session, items, out};
use crate::api::{Result, pool};
use crate::render::items::Field;
use crate::render::{self, Registry};
use clap::Args;

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    form: Form,
    /// Fields to show: name, property, value, source
    #[arg(short = 'o', value_name = "FIELD,...", value_delimiter = ',')]
    fields: Vec<Field>,
    #[command(flatten)]
    json: Json,
    /// Properties, or all
    #[arg(value_name = "PROPERTY,...")]
    properties: String,
    /// Pools; all when none is given
    names: Vec<String>,
}

/// Arguments of `set`.
#[derive(Debug, Args)]
pub struct Set {
    /// PROPERTY=VALUE
    #[arg(value_parser = args::assignment, value_name = "PROPERTY=VALUE")]
    assignment: (String, String),
    name: String,
}

/// Shows properties.
pub fn get(args: Get, session: &Session) -> Result<u8> {
    let registry = Registry::Pool;
    let properties = items::asked(registry, &args.properties)?;
    let reply = session.client.call(pool::Get { names: args.names, properties: properties.clone() })?;
    if args.json.json {
        let pools = render::json::items(registry, &reply.items);
        out::print_json(&render::json::envelope(&session.spell("pool", "get"), "pools", pools));
        return Ok(0);
    }
    let fields = items::fields(&args.fields);
    let table = render::items::get(registry, &reply.items, &properties, &fields, &[], args.form.exact);
    out::print(&table.render(args.form.scripted));
    Ok(0)
}

/// Sets one.
pub fn set(args: Set, session: &Session) -> Result<u8> {
    let properties = [args.assignment].into();
    session.client.call(pool::Set { name: args.name, properties })?;
    Ok(0)
}
