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
    pub types: Vec<Type>,
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
    /// None in this version
    Bookmark,
    /// All
    All,
}

impl Selection {
    /// Levels below the named datasets, None for no limit. Without names all datasets are meant.
    pub fn depth(&self, names: &[String]) -> Option<u32> {
        match self.depth {
            Some(depth) => Some(depth),
            None if self.recursive || names.is_empty() => None,
            None => Some(0),
        }
    }

    /// Whether it is of a type that is asked for.
    pub fn keeps(&self, item: &Item) -> bool {
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
pub fn resolve(names: Vec<String>, session: &Session) -> Result<Vec<String>> {
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
