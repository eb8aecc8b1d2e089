//! `larder pool`: the verbs, and those of them that are only a few lines.

use super::args::{self, Force, Form, Json};
use super::{
    Session, items, out, pool_check, pool_create, pool_dedup, pool_devices, pool_events, pool_history,
    pool_import, pool_iostat, pool_rebuild_index, pool_scrub, pool_trace, pool_trim,
};
use crate::api::{Result, pool};
use crate::render::items::{Field, VdevForm};
use crate::{host, render};
use clap::{Args, Subcommand, ValueEnum};
use std::path::Path;

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Makes a pool of devices or files
    Create(pool_create::Args),
    /// Destroys a pool: its data is gone, its devices are free
    #[command(after_help = "Example: larder pool destroy --yes scratch")]
    Destroy(Destroy),
    /// Lists pools with their space and health
    #[command(after_help = "Example: larder pool list -Hp -o name,size,free")]
    List(List),
    /// Shows the state of pools: what is wrong, what to do, what would still be survived
    #[command(after_help = "Example: larder pool status -x")]
    Status(Status),
    /// Tells health in one line a pool: exit 0 healthy, 1 degraded, 2 faulted, 3 unknown
    Check(pool_check::Args),
    /// Shows properties of pools
    #[command(after_help = "Example: larder pool get memory,capacity tank")]
    Get(Get),
    /// Sets a property of a pool
    #[command(after_help = "Example: larder pool set memory=2G tank")]
    Set(Set),
    /// Imports a pool from its devices; without a name, shows what can be imported
    Import(pool_import::Args),
    /// Unmounts a pool and lets go of its devices
    #[command(after_help = "Example: larder pool export tank")]
    Export(Export),
    /// Shows traffic: operations and bytes a second
    Iostat(pool_iostat::Args),
    /// Returns when all that was written before is committed
    #[command(after_help = "Example: larder pool sync tank")]
    Sync(Sync),
    /// Wipes the labels of a device that belongs to no imported pool
    #[command(after_help = "Example: larder pool labelclear /dev/sdx")]
    Labelclear(LabelClear),
    /// Takes a device out of use; the pool goes on without it
    #[command(after_help = "Example: larder pool offline tank ata-DISK3")]
    Offline(pool_devices::Offline),
    /// Brings a device back into use, and resilvers what it missed
    #[command(after_help = "Example: larder pool online tank ata-DISK3")]
    Online(pool_devices::Online),
    /// Puts a new device in the place of an old one, which may be missing
    #[command(
        after_help = "The old device stays in use until the new one has everything. Fewer losses are survived at no time.
Example: larder pool replace tank ata-DISK3 /dev/disk/by-id/ata-DISK7"
    )]
    Replace(pool_devices::Replace),
    /// Adds a device to a mirror, or makes a mirror of a single device
    #[command(after_help = "Example: larder pool attach tank ata-DISK1 /dev/disk/by-id/ata-DISK2")]
    Attach(pool_devices::Attach),
    /// Takes a device out of a mirror for good, or ends a replacing
    #[command(
        after_help = "Of two that are being replaced by one another, detaching the new one calls it off. The old one leaves by
itself; when something of it could not be read, it stays, and --accept-loss lets it go without. It is not wiped then.
Examples:
  larder pool detach tank ata-DISK2
  larder pool detach --accept-loss tank ata-DISK4"
    )]
    Detach(pool_devices::Detach),
    /// Adds groups of devices, or spares
    #[command(after_help = "Groups must be as safe as those that are there.
Examples:
  larder pool add -n tank mirror /dev/disk/by-id/ata-DISK{5,6}
  larder pool add tank spare /dev/disk/by-id/ata-DISK7")]
    Add(pool_devices::Add),
    /// Removes spares
    #[command(after_help = "Example: larder pool remove tank ata-DISK7")]
    Remove(pool_devices::Remove),
    /// Sets the error counts of devices to zero; a faulted device, and a suspended pool if it can, come back into use
    #[command(after_help = "Example: larder pool clear tank ata-DISK3")]
    Clear(pool_devices::Clear),
    /// Verifies everything that pools hold, and repairs what is wrong
    Scrub(pool_scrub::Args),
    /// Tells devices which space is free, so that SSDs and sparse files can give it up
    Trim(pool_trim::Args),
    /// Starts rebuilding what devices lack from the beginning
    Resilver(pool_scrub::ResilverArgs),
    /// Shows what happened to pools
    Events(pool_events::Args),
    /// Shows which commands changed pools
    History(pool_history::Args),
    /// Walks everything: frees what is dead, finds what has leaked or is missing
    Trace(pool_trace::Args),
    /// Shows how often records are referred to, what that saves and where
    Dedup(pool_dedup::Args),
    /// Makes the dedup index anew, and has what was stored before dedup was on take part
    RebuildIndex(pool_rebuild_index::Args),
    /// Returns when background work is over
    #[command(after_help = "Example: larder pool wait -t free tank")]
    Wait(Wait),
}

#[derive(Debug, Args)]
pub struct Destroy {
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    force: Force,
    name: String,
}

#[derive(Debug, Args)]
pub struct List {
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

#[derive(Debug, Args)]
pub struct Status {
    /// Name the files that are damaged
    #[arg(short = 'v')]
    verbose: bool,
    /// With the histogram of references, as the last trace found it
    #[arg(short = 'D')]
    dedup: bool,
    /// Only pools that something is wrong with
    #[arg(short = 'x')]
    unhealthy: bool,
    /// How far devices are trimmed, and when that was
    #[arg(short = 't')]
    trim: bool,
    /// Full paths of devices
    #[arg(short = 'P')]
    paths: bool,
    /// Guids of devices instead of their names
    #[arg(short = 'g')]
    guids: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    exact: bool,
    #[command(flatten)]
    json: Json,
    /// Pools; all when none is given
    names: Vec<String>,
}

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

#[derive(Debug, Args)]
pub struct Set {
    /// PROPERTY=VALUE
    #[arg(value_parser = args::assignment, value_name = "PROPERTY=VALUE")]
    assignment: (String, String),
    name: String,
}

#[derive(Debug, Args)]
pub struct Export {
    /// All pools
    #[arg(short = 'a')]
    all: bool,
    /// Also a suspended pool: what was neither committed nor synced is dropped
    #[arg(short = 'f')]
    force: bool,
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Sync {
    /// Pools; all when none is given
    names: Vec<String>,
}

#[derive(Debug, Args)]
pub struct LabelClear {
    #[command(flatten)]
    force: Force,
    device: String,
}

#[derive(Debug, Args)]
pub struct Wait {
    /// What to wait for; everything when not given
    #[arg(short = 't', value_name = "ACTIVITY,...", value_delimiter = ',')]
    activities: Vec<Activity>,
    name: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Activity {
    /// Freed space can be written again
    Free,
    /// No scrub is running
    Scrub,
    /// Nothing is being resilvered, or moved because devices came or went
    #[value(alias = "replace", alias = "remove")]
    Resilver,
    /// No trace is under way
    Trace,
    /// No device is being trimmed
    Trim,
}

/// Runs a verb.
pub fn run(verb: Verb, session: &Session) -> Result<u8> {
    match verb {
        Verb::Create(args) => pool_create::run(args, session),
        Verb::Destroy(args) => destroy(args, session),
        Verb::List(args) => list(args, session),
        Verb::Status(args) => status(args, session),
        Verb::Check(args) => pool_check::run(args, session),
        Verb::Get(args) => get(args, session),
        Verb::Set(args) => {
            let properties = [args.assignment].into();
            session.client.call(pool::Set { name: args.name, properties })?;
            Ok(0)
        }
        Verb::Import(args) => pool_import::run(args, session),
        Verb::Export(args) => export(args, session),
        Verb::Iostat(args) => pool_iostat::run(args, session),
        Verb::Sync(args) => {
            session.client.call(pool::Sync { names: args.names })?;
            Ok(0)
        }
        Verb::Labelclear(args) => {
            session.tolerate(args.force)?;
            host::clear_label(Path::new(&args::device(&args.device)?))?;
            Ok(0)
        }
        Verb::Offline(args) => pool_devices::offline(args, session),
        Verb::Online(args) => pool_devices::online(args, session),
        Verb::Replace(args) => pool_devices::replace(args, session),
        Verb::Attach(args) => pool_devices::attach(args, session),
        Verb::Detach(args) => pool_devices::detach(args, session),
        Verb::Add(args) => pool_devices::add(args, session),
        Verb::Remove(args) => pool_devices::remove(args, session),
        Verb::Clear(args) => pool_devices::clear(args, session),
        Verb::Scrub(args) => pool_scrub::run(args, session),
        Verb::Trim(args) => pool_trim::run(args, session),
        Verb::Resilver(args) => pool_scrub::resilver(args, session),
        Verb::Events(args) => pool_events::run(args, session),
        Verb::History(args) => pool_history::run(args, session),
        Verb::Trace(args) => pool_trace::run(args, session),
        Verb::Dedup(args) => pool_dedup::run(args, session),
        Verb::RebuildIndex(args) => pool_rebuild_index::run(args, session),
        Verb::Wait(args) => wait(args, session),
    }
}

fn destroy(args: Destroy, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let question = format!("Destroying pool '{}' loses all data in it.", args.name);
    if !args.yes && !out::confirmed(&question) {
        out::complain("nothing was done");
        return Ok(1);
    }
    session.client.call(pool::Destroy { name: args.name })?;
    Ok(0)
}

/// The columns of `zpool list`.
const COLUMNS: &str =
    "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

fn list(args: List, session: &Session) -> Result<u8> {
    let columns = items::columns(render::Registry::Pool, &args.columns, COLUMNS)?;
    let properties = items::wanted(&columns);
    let reply = session.client.call(pool::Get { names: args.names.clone(), properties })?;
    if args.json.json {
        let command = session.spell("pool", "list");
        let mut pools = render::json::items(render::Registry::Pool, &reply.items);
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
    let mut table = render::items::list(render::Registry::Pool, &columns, args.form.exact);
    let statuses = match args.verbose {
        true => session.client.call(pool::Status { names: args.names })?.pools,
        false => Vec::new(),
    };
    let form = VdevForm { paths: args.paths, exact: args.form.exact, scripted: args.form.scripted };
    for item in &reply.items {
        render::items::list_row(&mut table, render::Registry::Pool, &columns, item, args.form.exact);
        if let Some(status) = statuses.iter().find(|status| status.root.name == item.name) {
            render::items::list_vdevs(&mut table, &columns, &status.root, form);
        }
    }
    out::print(&table.render(args.form.scripted));
    Ok(0)
}

fn status(args: Status, session: &Session) -> Result<u8> {
    let mut pools = session.client.call(pool::Status { names: args.names.clone() })?.pools;
    let any = !pools.is_empty();
    if args.unhealthy {
        pools.retain(render::status::needs_attention);
    }
    if args.json.json {
        let command = session.spell("pool", "status");
        out::print_json(&render::json::envelope(&command, "pools", render::json::statuses(&pools)));
        return Ok(0);
    }
    if pools.is_empty() {
        out::print(
            match (any, args.names.as_slice()) {
                (false, _) => "no pools available\n".to_owned(),
                (true, [name]) => format!("pool '{name}' is healthy\n"),
                (true, _) => "all pools are healthy\n".to_owned(),
            }
            .as_str(),
        );
        return Ok(0);
    }
    let form = render::status::Form {
        damaged: args.verbose,
        paths: args.paths,
        guids: args.guids,
        exact: args.exact,
        trim: args.trim,
    };
    let text = pools.iter().map(|pool| {
        let dedup = if args.dedup { render::dedup::status(pool) } else { String::new() };
        render::status::text(pool, form) + &dedup
    });
    let text: Vec<String> = text.collect();
    out::print(&text.join("\n"));
    Ok(0)
}

fn get(args: Get, session: &Session) -> Result<u8> {
    let registry = render::Registry::Pool;
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

fn export(args: Export, session: &Session) -> Result<u8> {
    let names = match args.all {
        true => session.client.status()?.map(|daemon| daemon.pools).unwrap_or_default(),
        false => args.names,
    };
    for name in names {
        session.client.call(pool::Export { name, force: args.force })?;
    }
    Ok(0)
}

fn wait(args: Wait, session: &Session) -> Result<u8> {
    let activities = args.activities.into_iter().map(|activity| match activity {
        Activity::Free => pool::Activity::Free,
        Activity::Scrub => pool::Activity::Scrub,
        Activity::Resilver => pool::Activity::Resilver,
        Activity::Trace => pool::Activity::Trace,
        Activity::Trim => pool::Activity::Trim,
    });
    session.client.call(pool::Wait { name: args.name, activities: activities.collect() })?;
    Ok(0)
}
