//! `larder fs`: the verbs, and those of them that are only a few lines.

use super::args::{self, Force, Form, Json};
use super::items;
use super::{Session, fs_create, fs_destroy, fs_mount, out};
use crate::api::{ApiError, ErrorKind, Item, ItemKind, Result, fs};
use crate::render::items::{Field, SourceKind};
use crate::render::{self, Registry};
use clap::{Args, Subcommand, ValueEnum};
use std::path::Path;

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Makes a dataset
    Create(fs_create::Args),
    /// Destroys a dataset
    Destroy(fs_destroy::Args),
    /// Renames a dataset within its pool
    #[command(after_help = "Example: larder fs rename tank/media tank/archive/media")]
    Rename(Rename),
    /// Lists datasets with their space and mount points
    #[command(after_help = "Example: larder fs list -r -o name,used,compressratio -S used tank")]
    List(List),
    /// Shows properties of datasets and where their values come from
    #[command(after_help = "Example: larder fs get -r -s local all tank")]
    Get(Get),
    /// Sets properties of datasets
    #[command(after_help = "Example: larder fs set compression=zstd-6 recordsize=1M tank/media")]
    Set(Set),
    /// Takes a property's own value away, so that the parent's holds
    #[command(after_help = "Example: larder fs inherit -r compression tank/media")]
    Inherit(Inherit),
    /// Mounts a dataset, or all; without arguments, shows what is mounted
    Mount(fs_mount::MountArgs),
    /// Unmounts a dataset, or all
    #[command(visible_alias = "umount")]
    Unmount(fs_mount::UnmountArgs),
}

#[derive(Debug, Args)]
pub struct Rename {
    /// Make missing parents too
    #[arg(short = 'p')]
    parents: bool,
    #[command(flatten)]
    force: Force,
    from: String,
    to: String,
}

/// Which datasets, as `list` and `get` take it.
#[derive(Debug, Args)]
struct Selection {
    /// All datasets below too
    #[arg(short = 'r')]
    recursive: bool,
    /// Datasets below too, to this depth
    #[arg(short = 'd', value_name = "DEPTH")]
    depth: Option<u32>,
    /// Only these types of datasets
    #[arg(short = 't', value_name = "TYPE,...", value_delimiter = ',')]
    types: Vec<Type>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Type {
    /// Datasets with files
    #[value(alias = "fs")]
    Filesystem,
    /// Snapshots
    #[value(alias = "snap")]
    Snapshot,
    /// None in this version
    #[value(alias = "vol")]
    Volume,
    /// None in this version
    Bookmark,
    /// All
    All,
}

#[derive(Debug, Args)]
pub struct List {
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
    /// Datasets; all when none is given
    names: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    form: Form,
    /// Fields to show: name, property, value, source
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
    /// Datasets; all when none is given
    names: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Set {
    /// PROPERTY=VALUE..., then datasets
    #[arg(value_name = "PROPERTY=VALUE... NAME", required = true, num_args = 2..)]
    words: Vec<String>,
}

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

/// Runs a verb.
pub fn run(verb: Verb, session: &Session) -> Result<u8> {
    match verb {
        Verb::Create(args) => fs_create::run(args, session),
        Verb::Destroy(args) => fs_destroy::run(args, session),
        Verb::Rename(args) => {
            session.tolerate(args.force)?;
            session.client.call(fs::Rename { from: args.from, to: args.to, parents: args.parents })?;
            Ok(0)
        }
        Verb::List(args) => list(args, session),
        Verb::Get(args) => get(args, session),
        Verb::Set(args) => set(args, session),
        Verb::Inherit(args) => {
            let Inherit { recursive, received, property, names } = args;
            session.client.call(fs::Inherit { names, property, recursive, received })?;
            Ok(0)
        }
        Verb::Mount(args) => fs_mount::mount(args, session),
        Verb::Unmount(args) => fs_mount::unmount(args, session),
    }
}

impl Selection {
    /// How deep below the datasets that are named; all are meant when none is.
    fn depth(&self, names: &[String]) -> Option<u32> {
        match self.depth {
            Some(depth) => Some(depth),
            None if self.recursive || names.is_empty() => None,
            None => Some(0),
        }
    }

    fn keeps(&self, item: &Item) -> bool {
        let kind = match item.kind {
            ItemKind::Filesystem => Type::Filesystem,
            ItemKind::Snapshot => Type::Snapshot,
            ItemKind::Pool => return false,
        };
        let asked = if self.types.is_empty() { &[Type::Filesystem][..] } else { &self.types };
        asked.contains(&Type::All) || asked.contains(&kind)
    }
}

/// Dataset names for names and paths: for a path, the dataset that is mounted where it lies.
fn resolve(names: Vec<String>, session: &Session) -> Result<Vec<String>> {
    if !names.iter().any(|name| name.starts_with(['/', '.'])) {
        return Ok(names);
    }
    let properties = vec!["mounted".to_owned(), "mountpoint".to_owned()];
    let items = session.client.call(fs::Get { properties, ..fs::Get::default() })?.items;
    let one = |name: String| {
        if !name.starts_with(['/', '.']) {
            return Ok(name);
        }
        let path = args::absolute(&name)?;
        dataset_at(&items, &path).ok_or_else(|| {
            let message = format!("cannot open '{name}': no dataset is mounted there");
            ApiError::new(ErrorKind::NotFound, message)
        })
    };
    names.into_iter().map(one).collect()
}

/// The mounted dataset with the longest mount point that `path` is at or below.
fn dataset_at(items: &[Item], path: &str) -> Option<String> {
    let value = |item: &Item, name: &str| item.get(name).map(|property| property.value.clone());
    items
        .iter()
        .filter(|item| value(item, "mounted").as_deref() == Some("yes"))
        .filter_map(|item| Some((value(item, "mountpoint")?, item)))
        .filter(|(mountpoint, _)| Path::new(path).starts_with(mountpoint))
        .max_by_key(|(mountpoint, _)| mountpoint.len())
        .map(|(_, item)| item.name.clone())
}

/// The columns of `zfs list`.
const COLUMNS: &str = "name,used,available,referenced,mountpoint";

fn list(args: List, session: &Session) -> Result<u8> {
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
    let depth = args.selection.depth(&args.names);
    let names = resolve(args.names, session)?;
    let mut items = session.client.call(fs::Get { names, depth, properties })?.items;
    items.retain(|item| args.selection.keeps(item));
    if !args.ascending.is_empty() {
        items.sort_by(|a, b| render::items::order(a, b, &ascending));
    }
    if !args.descending.is_empty() {
        items.sort_by(|a, b| render::items::order(b, a, &descending));
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
    Ok(0)
}

fn get(args: Get, session: &Session) -> Result<u8> {
    let registry = Registry::Dataset;
    let properties = items::asked(registry, &args.properties)?;
    let depth = args.selection.depth(&args.names);
    let names = resolve(args.names, session)?;
    let request = fs::Get { names, depth, properties: properties.clone() };
    let mut items = session.client.call(request)?.items;
    // Unlike `list`, `get` shows every type unless told otherwise.
    if !args.selection.types.is_empty() {
        items.retain(|item| args.selection.keeps(item));
    }
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

fn set(args: Set, session: &Session) -> Result<u8> {
    let (pairs, names): (Vec<String>, Vec<String>) =
        args.words.into_iter().partition(|word| word.contains('='));
    if pairs.is_empty() || names.is_empty() {
        return Err(ApiError::usage("give at least one PROPERTY=VALUE and at least one dataset"));
    }
    let pairs = pairs.iter().map(|pair| args::assignment(pair).map_err(ApiError::usage));
    let properties = args::properties(pairs.collect::<Result<_>>()?)?;
    session.client.call(fs::Set { names, properties })?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{PropertyValue, Source};

    #[test]
    fn a_path_names_the_dataset_it_lies_in() {
        let item = |name: &str, mounted: &str, mountpoint: &str| {
            let property = |name: &str, value: &str| PropertyValue {
                name: name.into(),
                value: value.into(),
                source: Source::None,
            };
            let properties = vec![property("mounted", mounted), property("mountpoint", mountpoint)];
            Item { name: name.into(), kind: ItemKind::Filesystem, properties }
        };
        let items =
            [item("tank", "yes", "/tank"), item("tank/a", "yes", "/tank/a"), item("tank/b", "no", "/tank/b")];
        let at = |path| dataset_at(&items, path);
        assert_eq!(at("/tank/a/deep/file").as_deref(), Some("tank/a"));
        assert_eq!(at("/tank/ab").as_deref(), Some("tank"));
        assert_eq!(at("/tank/b").as_deref(), Some("tank"));
        assert_eq!(at("/srv"), None);
    }
}
