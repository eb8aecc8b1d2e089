//! `fs get`, `fs list`: what datasets are.

use super::super::Host;
use super::super::live::Live;
use super::super::mounts::{below, mountpoint};
use super::family;
use crate::api::fs::Get;
use crate::api::{Item, ItemKind, Items, PropertyValue, Result, Source};
use larder_pool::{Dataset, PropertySource, Usage, property};
use std::collections::BTreeSet;

/// Properties of the datasets that are asked for, by name.
pub fn get(host: &Host, request: &Get) -> Result<Items> {
    for name in &request.names {
        host.dataset(name)?;
    }
    let mut items = Vec::new();
    for live in host.pools_named(&[])? {
        let pool = &live.pool;
        for dataset in family(&live, larder_pool::ROOT_DATASET) {
            let name = pool.full_name(dataset.id());
            if request.selects(&name) {
                items.push(item(&live, &dataset, name, &request.properties));
            }
        }
    }
    items.sort_by(|a, b| a.name.split('/').cmp(b.name.split('/')));
    Ok(Items { items })
}

fn item(live: &Live, dataset: &Dataset, name: String, asked: &[String]) -> Item {
    let names: Vec<String> = match asked {
        [] => {
            let known = property::DATASET.iter().map(|known| known.name.to_owned());
            known.chain(user_properties(live, dataset)).collect()
        }
        _ => asked.to_vec(),
    };
    let properties = names.iter().filter_map(|property| value(live, dataset, property)).collect();
    Item { name, kind: ItemKind::Filesystem, properties }
}

/// Names of the user properties that apply to a dataset.
fn user_properties(live: &Live, dataset: &Dataset) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut at = live.pool.dataset(dataset.id());
    while let Some(dataset) = at {
        names.extend(dataset.local_properties().into_keys().filter(|name| property::is_user(name)));
        let parent = dataset.parent();
        at = live.pool.dataset(parent).filter(|_| parent != dataset.id());
    }
    names
}

/// Usage of a dataset and all below it.
fn total(live: &Live, dataset: &Dataset) -> Usage {
    family(live, dataset.id()).iter().map(|dataset| dataset.usage()).fold(Usage::default(), |sum, one| {
        Usage {
            referenced: sum.referenced + one.referenced,
            logical: sum.logical + one.logical,
            stored: sum.stored + one.stored,
        }
    })
}

fn value(live: &Live, dataset: &Dataset, name: &str) -> Option<PropertyValue> {
    let pool = &live.pool;
    let told = |value: String| Some(PropertyValue { name: name.to_owned(), value, source: Source::None });
    match name {
        "type" => return told("filesystem".to_owned()),
        "creation" => return told(dataset.created().secs.to_string()),
        "used" => return told(pool.share(dataset.id()).used.to_string()),
        "usedbysnapshots" => return told("0".to_owned()),
        "usedbydataset" => return told(pool.share(dataset.id()).dataset.to_string()),
        "usedbychildren" => return told(pool.share(dataset.id()).children.to_string()),
        "usedbyrefreservation" => return told(pool.share(dataset.id()).refreservation.to_string()),
        "available" => return told(pool.space_of(dataset).available.to_string()),
        "referenced" => return told(dataset.usage().referenced.to_string()),
        "logicalused" => return told(total(live, dataset).logical.to_string()),
        "logicalreferenced" => return told(dataset.usage().logical.to_string()),
        "compressratio" => {
            let total = total(live, dataset);
            return told(ratio(total.logical, total.stored));
        }
        "mounted" => {
            let mounted = live.table.path(dataset.id()).is_some();
            return told(if mounted { "yes" } else { "no" }.to_owned());
        }
        "createtxg" => return told(dataset.birth().to_string()),
        "guid" => return told(dataset.guid().to_string()),
        "mountpoint" => {
            let (value, from) = mountpoint(pool, dataset);
            let value = match value.strip_prefix('/') {
                Some(_) => below(live.altroot.as_deref(), value.into()).to_string_lossy().into_owned(),
                None => value,
            };
            let source = match from {
                None => Source::Default,
                Some(id) if id == dataset.id() => Source::Local,
                Some(id) => Source::Inherited(pool.full_name(id)),
            };
            return Some(PropertyValue { name: name.to_owned(), value, source });
        }
        _ => {}
    }
    let known = property::dataset(name);
    if known.is_some_and(|known| known.access == property::Access::ReadOnly) {
        return None;
    }
    let effective = pool.effective(dataset.id(), name)?;
    let source = match effective.source {
        PropertySource::Local => Source::Local,
        PropertySource::Default => Source::Default,
        PropertySource::Inherited(id) => Source::Inherited(pool.full_name(id)),
    };
    Some(PropertyValue { name: name.to_owned(), value: effective.value, source })
}

/// Compression ratio, as `1.50`; at least 1.00.
fn ratio(logical: u64, stored: u64) -> String {
    if stored == 0 {
        return "1.00".to_owned();
    }
    let hundredths = (u128::from(logical) * 100 / u128::from(stored)).max(100);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_has_two_decimals_and_is_one_at_least() {
        assert_eq!(ratio(0, 0), "1.00");
        assert_eq!(ratio(300, 200), "1.50");
        assert_eq!(ratio(100, 107), "1.00");
        assert_eq!(ratio(205, 100), "2.05");
    }
}
