//! Which datasets a command is about.

use super::{Session, args};
use crate::api::{ApiError, ErrorKind, Item, ItemKind, Result, fs};
use clap::{Args, ValueEnum};
use std::path::Path;

/// Which datasets, as `list` and `get` take it.
#[derive(Debug, Args)]
pub struct Selection {
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

/// Types of datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Type {
    /// Datasets with files
    #[value(alias = "fs")]
    Filesystem,
    /// Snapshots
    #[value(alias = "snap")]
    Snapshot,
    /// None in this version
    #[value(alias = "vol")]
    Volume,
    /// Places in time to send from
    #[value(alias = "bookmarks")]
    Bookmark,
    /// All
    All,
}

impl Selection {
    /// Levels below the named datasets, None for no limit. Without names all datasets are meant.
    fn depth(&self, names: &[String]) -> Option<u32> {
        let under = |kind: &Type| matches!(kind, Type::Snapshot | Type::Bookmark);
        match self.depth {
            Some(depth) => Some(depth),
            None if self.recursive || names.is_empty() => None,
            // As zfs has it: what else could be meant.
            None if !self.types.is_empty() && self.types.iter().all(under) => Some(1),
            None => Some(0),
        }
    }

    /// The kinds that are asked for, unless told otherwise `default`.
    fn kinds(&self, default: &[ItemKind]) -> Vec<ItemKind> {
        if self.types.is_empty() {
            return default.to_vec();
        }
        let asked = |kind: &Type| self.types.contains(&Type::All) || self.types.contains(kind);
        let known = [
            (Type::Filesystem, ItemKind::Filesystem),
            (Type::Snapshot, ItemKind::Snapshot),
            (Type::Bookmark, ItemKind::Bookmark),
        ];
        known.into_iter().filter(|(kind, _)| asked(kind)).map(|(_, kind)| kind).collect()
    }

    /// Asks for `properties` of what is selected; of the kinds in `default` unless told otherwise.
    ///
    /// # Errors
    /// The daemon's.
    pub fn ask(
        &self,
        names: Vec<String>,
        properties: Vec<String>,
        default: &[ItemKind],
        session: &Session,
    ) -> Result<Vec<Item>> {
        let (depth, kinds) = (self.depth(&names), self.kinds(default));
        if !self.types.is_empty() && kinds.is_empty() {
            return Ok(Vec::new());
        }
        let names = resolve(names, session)?;
        Ok(session.client.call(fs::Get { names, depth, kinds, properties })?.items)
    }
}

/// Names for names and paths: for a path, the dataset that is mounted where it lies.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{PropertyValue, Source};

    #[test]
    fn types_and_depth_are_read_as_zfs_reads_them() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            selection: Selection,
        }
        let of = |line: &str, names: &[&str]| {
            let line: Line = clap::Parser::parse_from(std::iter::once("list").chain(line.split_whitespace()));
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            (line.selection.depth(&names), line.selection.kinds(&[ItemKind::Filesystem]))
        };
        let (files, snapshots) = (vec![ItemKind::Filesystem], vec![ItemKind::Snapshot]);
        let both = vec![ItemKind::Filesystem, ItemKind::Snapshot];
        assert_eq!(of("", &["tank"]), (Some(0), files.clone()));
        assert_eq!(of("", &[]), (None, files));
        assert_eq!(of("-t snapshot", &["tank"]), (Some(1), snapshots.clone()));
        let marks = vec![ItemKind::Snapshot, ItemKind::Bookmark];
        assert_eq!(of("-t snap,bookmark -r", &["tank"]), (None, marks));
        assert_eq!(of("-d 2 -t snapshot", &["tank"]), (Some(2), snapshots));
        let every = vec![ItemKind::Filesystem, ItemKind::Snapshot, ItemKind::Bookmark];
        assert_eq!(of("-t all", &["tank"]), (Some(0), every));
        assert_eq!(of("-rt filesystem,snapshot", &["tank"]), (None, both));
        assert_eq!(of("-t volume", &["tank"]), (Some(0), vec![]));
    }

    #[test]
    fn a_path_names_the_dataset_it_lies_in() {
        let item = |name: &str, mounted: &str, mountpoint: &str| {
            let property = |name: &str, value: &str| PropertyValue::new(name, value, Source::None);
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
