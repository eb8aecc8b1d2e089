//! `list` and `get`, of pools and of datasets.

use super::table::{Column, Table};
use super::{Registry, short_path};
use crate::api::pool::{PoolStatus, Vdev};
use crate::api::{Item, PropertyValue, Source};
use clap::ValueEnum;
use larder_pool::property::Kind;
use std::cmp::Ordering;

/// A field of `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Field {
    /// The pool or dataset
    Name,
    /// The property
    Property,
    /// Its value
    Value,
    /// The value that a stream brought
    Received,
    /// Where the value comes from
    Source,
    /// All of them
    All,
}

impl Field {
    /// The fields that are shown unless told otherwise.
    pub const USUAL: [Self; 4] = [Self::Name, Self::Property, Self::Value, Self::Source];
    /// All that datasets have.
    pub const ALL: [Self; 5] = [Self::Name, Self::Property, Self::Value, Self::Received, Self::Source];
}

/// A kind of source, as `get -s` filters by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceKind {
    /// Set on the dataset
    Local,
    /// Set nowhere
    Default,
    /// Set on a dataset above
    Inherited,
    /// Holds until unmounted
    Temporary,
    /// Came with a stream
    Received,
    /// Told by larder
    None,
}

impl SourceKind {
    /// Whether `source` is of this kind.
    pub fn matches(self, source: &Source) -> bool {
        match source {
            Source::None => self == Self::None,
            Source::Default => self == Self::Default,
            Source::Local => self == Self::Local,
            Source::Inherited(_) => self == Self::Inherited,
            Source::Temporary => self == Self::Temporary,
            Source::Received => self == Self::Received,
        }
    }
}

/// Form in which groups and devices are listed.
#[derive(Debug, Clone, Copy, Default)]
pub struct VdevForm {
    /// Full paths of devices.
    pub paths: bool,
    /// Exact numbers.
    pub exact: bool,
    /// A tab before names instead of indentation.
    pub scripted: bool,
}

/// The narrowest column of numbers; `1023K` fits.
const NUMBER: usize = 5;
/// The narrowest column of health; `DEGRADED` fits.
const HEALTH: usize = 8;

/// An empty table of `list` with these columns (full property names, or `name`).
pub fn list(registry: Registry, columns: &[String], exact: bool) -> Table {
    let column = |name: &String| match registry.find(name) {
        Some(known) if known.name == "health" => Column::right("HEALTH", HEALTH),
        // Of several snapshots.
        Some(known) if known.name.ends_with('@') => Column::right(name.to_uppercase(), NUMBER),
        Some(known) if known.is_number() && (exact || known.kind != Kind::Time) => {
            Column::right(known.column.to_uppercase(), NUMBER)
        }
        Some(known) => Column::left(known.column.to_uppercase()),
        None => Column::left(name.to_uppercase()),
    };
    Table::new(columns.iter().map(column).collect())
}

/// Adds the row of one item.
pub fn list_row(table: &mut Table, registry: Registry, columns: &[String], item: &Item, exact: bool) {
    let cell = |column: &String| {
        if column == "name" {
            return item.name.clone();
        }
        item.get(column).map_or_else(|| "-".to_owned(), |property| show(registry, property, exact))
    };
    table.row(columns.iter().map(cell).collect());
}

/// Adds rows for the groups and devices of a pool, then for those that are there for something.
pub fn list_vdevs(table: &mut Table, columns: &[String], pool: &PoolStatus, form: VdevForm) {
    rows(table, columns, &pool.root.children, form, 1);
    for class in &pool.classes {
        let cell = |column: &String| if column == "name" { &class.head } else { "-" }.to_owned();
        table.row(columns.iter().map(cell).collect());
        rows(table, columns, &class.vdevs, form, 1);
    }
}

fn rows(table: &mut Table, columns: &[String], vdevs: &[Vdev], form: VdevForm, depth: usize) {
    for vdev in vdevs {
        let name = if form.paths { vdev.name.as_str() } else { short_path(&vdev.name) };
        let show = |property: &str, value: u64| match form.exact {
            true => value.to_string(),
            false => Registry::Pool.display(property, &value.to_string()),
        };
        let known = vdev.size > 0;
        let cell = |column: &String| match column.as_str() {
            "name" if form.scripted => format!("\t{name}"),
            "name" => format!("{:1$}{name}", "", depth * 2),
            "health" => vdev.state.to_string(),
            "size" if known => show("size", vdev.size),
            "allocated" if known => show("allocated", vdev.allocated),
            "free" if known => show("free", vdev.size.saturating_sub(vdev.allocated)),
            "fragmentation" if known => show("fragmentation", u64::from(vdev.fragmentation)),
            "capacity" if known => show("capacity", percent(vdev.allocated, vdev.size)),
            _ => "-".to_owned(),
        };
        table.row(columns.iter().map(cell).collect());
        rows(table, columns, &vdev.children, form, depth + 1);
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100 / u128::from(whole.max(1))) as u64
}

/// The table of `get`: a row for every item and property. With properties `asked` for by name, those
/// that an item has not are shown as `-`; without, all that there are.
pub fn get(
    registry: Registry,
    items: &[Item],
    asked: &[String],
    fields: &[Field],
    sources: &[SourceKind],
    exact: bool,
) -> Table {
    let head = |field: &Field| match field {
        Field::Name => "NAME",
        Field::Property => "PROPERTY",
        Field::Value => "VALUE",
        Field::Received => "RECEIVED",
        Field::Source | Field::All => "SOURCE",
    };
    let mut table = Table::new(fields.iter().map(|field| Column::left(head(field))).collect());
    let absent = |name: &String| PropertyValue::new(name, "-", Source::None);
    for item in items {
        let properties: Vec<PropertyValue> = match asked {
            [] => item.properties.clone(),
            _ => asked.iter().map(|name| item.get(name).cloned().unwrap_or_else(|| absent(name))).collect(),
        };
        for property in properties {
            if !sources.is_empty() && !sources.iter().any(|kind| kind.matches(&property.source)) {
                continue;
            }
            let cell = |field: &Field| match field {
                Field::Name => item.name.clone(),
                Field::Property => property.name.clone(),
                Field::Value => show(registry, &property, exact),
                Field::Received => match &property.received {
                    Some(value) if exact => value.clone(),
                    Some(value) => registry.display(&property.name, value),
                    None => "-".to_owned(),
                },
                Field::Source | Field::All => source(&property.source),
            };
            table.row(fields.iter().map(cell).collect());
        }
    }
    table
}

fn show(registry: Registry, property: &PropertyValue, exact: bool) -> String {
    if exact { property.value.clone() } else { registry.display(&property.name, &property.value) }
}

fn source(source: &Source) -> String {
    match source {
        Source::None => "-".to_owned(),
        Source::Default => "default".to_owned(),
        Source::Local => "local".to_owned(),
        Source::Inherited(from) => format!("inherited from {from}"),
        Source::Temporary => "temporary".to_owned(),
        Source::Received => "received".to_owned(),
    }
}

/// The order of two items by some columns: numbers by size, words by the alphabet, no value first.
pub fn order(a: &Item, b: &Item, columns: &[String]) -> Ordering {
    let value = |item: &Item, column: &String| match column.as_str() {
        "name" => Some(item.name.clone()),
        _ => item.get(column).map(|property| property.value.clone()).filter(|value| value != "-"),
    };
    let by = |column: &String| match (value(a, column), value(b, column)) {
        (Some(a), Some(b)) => match (a.parse::<f64>(), b.parse::<f64>()) {
            (Ok(a), Ok(b)) => a.total_cmp(&b),
            _ => a.cmp(&b),
        },
        (a, b) => a.cmp(&b),
    };
    columns.iter().map(by).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ItemKind;

    fn value(name: &str, value: &str, source: Source) -> PropertyValue {
        PropertyValue::new(name, value, source)
    }

    fn dataset(name: &str, used: u64) -> Item {
        Item {
            name: name.into(),
            kind: ItemKind::Filesystem,
            properties: vec![
                value("used", &used.to_string(), Source::None),
                value("available", "1649267441664", Source::None),
                value("referenced", "98304", Source::None),
                value("mountpoint", &format!("/{name}"), Source::Default),
                value("compression", "zstd", Source::Inherited("tank".into())),
                value("com.example:tag", "yes", Source::Local),
            ],
        }
    }

    fn names(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn datasets_are_listed_as_zfs_lists_them() {
        let columns = names("name,used,available,referenced,mountpoint");
        let mut table = list(Registry::Dataset, &columns, false);
        for item in [dataset("tank", 3 << 39), dataset("tank/home", 0)] {
            list_row(&mut table, Registry::Dataset, &columns, &item, false);
        }
        assert_eq!(
            table.render(false),
            "NAME        USED  AVAIL  REFER  MOUNTPOINT\n\
             tank       1.50T  1.50T    96K  /tank\n\
             tank/home     0B  1.50T    96K  /tank/home\n"
        );
    }

    fn snapshot(name: &str, used: u64) -> Item {
        let properties = vec![
            value("used", &used.to_string(), Source::None),
            value("referenced", "98304", Source::None),
            value("written@monday", "2048", Source::None),
            value("clones", "", Source::None),
            value("userrefs", "0", Source::None),
        ];
        Item { name: name.into(), kind: ItemKind::Snapshot, properties }
    }

    #[test]
    fn snapshots_are_listed_as_zfs_lists_them() {
        let columns = names("name,used,available,referenced,mountpoint,written@monday");
        let mut table = list(Registry::Dataset, &columns, false);
        for item in [dataset("tank", 3 << 39), snapshot("tank@b", 1 << 20), snapshot("tank@a", 0)] {
            list_row(&mut table, Registry::Dataset, &columns, &item, false);
        }
        assert_eq!(
            table.render(false),
            "NAME     USED  AVAIL  REFER  MOUNTPOINT  WRITTEN@MONDAY\n\
             tank    1.50T  1.50T    96K  /tank                    -\n\
             tank@b     1M      -    96K  -                       2K\n\
             tank@a     0B      -    96K  -                       2K\n"
        );
        let asked = names("used,available,clones,userrefs,written@monday,written@tuesday");
        let table = get(Registry::Dataset, &[snapshot("tank@b", 7)], &asked, &Field::USUAL, &[], true);
        assert_eq!(
            table.render(true),
            "tank@b\tused\t7\t-\ntank@b\tavailable\t-\t-\ntank@b\tclones\t\t-\ntank@b\tuserrefs\t0\t-\n\
             tank@b\twritten@monday\t2048\t-\ntank@b\twritten@tuesday\t-\t-\n"
        );
    }

    #[test]
    fn scripts_get_tabs_and_exact_numbers() {
        let columns = names("name,used");
        let mut table = list(Registry::Dataset, &columns, true);
        list_row(&mut table, Registry::Dataset, &columns, &dataset("tank", 3 << 39), true);
        assert_eq!(table.render(true), "tank\t1649267441664\n");
    }

    #[test]
    fn get_shows_values_with_their_sources() {
        let asked = names("compression,used,com.example:tag,com.example:none");
        let items = [dataset("tank/home", 98_304)];
        let table = get(Registry::Dataset, &items, &asked, &Field::USUAL, &[], false);
        assert_eq!(
            table.render(false),
            "NAME       PROPERTY          VALUE  SOURCE\n\
             tank/home  compression       zstd   inherited from tank\n\
             tank/home  used              96K    -\n\
             tank/home  com.example:tag   yes    local\n\
             tank/home  com.example:none  -      -\n"
        );
        let only = get(Registry::Dataset, &items, &[], &[Field::Property], &[SourceKind::Local], false);
        assert_eq!(only.render(true), "com.example:tag\n");
    }

    #[test]
    fn sorting_knows_numbers() {
        let mut items = [dataset("b", 9), dataset("c", 10), dataset("a", 10)];
        items.sort_by(|a, b| order(a, b, &names("used,name")));
        assert_eq!(items.map(|item| item.name), ["b", "a", "c"]);
    }

    #[test]
    fn pools_are_listed_as_zpool_lists_them() {
        let columns = names(
            "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot",
        );
        let item = Item {
            name: "tank".into(),
            kind: ItemKind::Pool,
            properties: vec![
                value("size", "10200547328", Source::None),
                value("allocated", "110592", Source::None),
                value("free", "10200436736", Source::None),
                value("fragmentation", "0", Source::None),
                value("capacity", "0", Source::None),
                value("dedupratio", "1.00", Source::None),
                value("health", "ONLINE", Source::None),
            ],
        };
        let mut table = list(Registry::Pool, &columns, false);
        list_row(&mut table, Registry::Pool, &columns, &item, false);
        let status = crate::render::status::tests::pool();
        list_vdevs(&mut table, &columns, &status, VdevForm::default());
        assert_eq!(
            table.render(false),
            "NAME         SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
             tank        9.50G   108K  9.50G        -         -     0%     0%  1.00x    ONLINE  -\n\
            \x20 mirror-0  9.50G   512M     9G        -         -     3%     5%      -  DEGRADED  -\n\
            \x20   sda         -      -      -        -         -      -      -      -    ONLINE  -\n\
            \x20   /srv/b      -      -      -        -         -      -      -      -   UNAVAIL  -\n"
        );
        let mut table = list(Registry::Pool, &columns, false);
        list_vdevs(&mut table, &columns, &crate::render::status::tests::with_caches(), VdevForm::default());
        let shown = table.render(false);
        assert!(
            shown.ends_with(
                "cache           -      -      -        -         -      -      -      -         -  -\n\
                 \x20 nvme-a      64G     3G    61G        -         -     0%     4%      -    ONLINE  -\n\
                 \x20 4711          -      -      -        -         -      -      -      -   UNAVAIL  -\n"
            ),
            "{shown}"
        );
    }
}
