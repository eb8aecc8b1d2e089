//! `fs get`, `fs list`: what datasets and snapshots are. Only what is asked for is looked up: what snapshots hold takes
//! reading.

use super::super::Host;
use super::super::live::Live;
use super::super::mounts::{below, id_of, mountpoint};
use super::{family, source};
use crate::api::fs::Get;
use crate::api::name::{check_bookmark, check_snapshot};
use crate::api::{ApiError, Item, ItemKind, Items, PropertyValue, Result, Source, properties};
use larder_format::tables::SnapshotRecord;
use larder_format::{CommitId, DatasetId};
use larder_pool::{Dataset, PropertySource, Usage, property};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Snapshots that are asked for by name, by their dataset.
type Named<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Properties of the datasets, snapshots and bookmarks that are asked for, by name; the latter two behind their
/// dataset, in the order in which snapshots were taken.
pub fn get(host: &Host, request: &Get) -> Result<Items> {
    let (mut named, mut marks) = (Named::new(), Named::new());
    for name in &request.names {
        if name.contains('#') {
            let (dataset, own) = check_bookmark(name)?;
            host.dataset(dataset).map_err(|_| ApiError::no_such_dataset(name))?;
            marks.entry(dataset).or_default().insert(own);
        } else if name.contains('@') {
            let (dataset, own) = check_snapshot(name)?;
            host.dataset(dataset).map_err(|_| ApiError::no_such_dataset(name))?;
            named.entry(dataset).or_default().insert(own);
        } else {
            host.dataset(name)?;
        }
    }
    let pools = host.pools_named(&[])?;
    let mut datasets = Vec::new();
    for live in &pools {
        let looking = Rc::new(Looking { live, held: RefCell::default() });
        let all = family(&live.pool, larder_pool::ROOT_DATASET).into_iter();
        datasets.extend(all.map(|dataset| (live.pool.full_name(dataset.id()), dataset, Rc::clone(&looking))));
    }
    datasets.sort_by(|a, b| a.0.split('/').cmp(b.0.split('/')));
    let mut items = Vec::new();
    for (name, dataset, looking) in datasets {
        if request.selects(&name) {
            items.push(looking.dataset(&dataset, name.clone(), &request.properties));
        }
        let mut below = looking.snapshots(&dataset, &name, request, named.remove(name.as_str()))?;
        below.extend(looking.bookmarks(&dataset, &name, request, marks.remove(name.as_str()))?);
        below.sort_by_key(|(commit, _)| *commit);
        items.extend(below.into_iter().map(|(_, item)| item));
    }
    Ok(Items { items })
}

/// A look at a pool's datasets, for one request.
struct Looking<'a> {
    live: &'a Live,
    /// Bytes that only the snapshots of datasets hold, where they are known already.
    held: RefCell<BTreeMap<DatasetId, Option<u64>>>,
}

/// A property that Larder tells.
fn told(name: &str, value: impl ToString) -> Option<PropertyValue> {
    Some(PropertyValue::new(name, value, Source::None))
}

impl Looking<'_> {
    fn dataset(&self, dataset: &Dataset, name: String, asked: &[String]) -> Item {
        let names: Vec<String> = match asked {
            [] => {
                let known = properties::of_filesystems().map(str::to_owned);
                known.chain(self.user_properties(dataset)).collect()
            }
            _ => asked.to_vec(),
        };
        let own = dataset.own_properties();
        let value = |property: &String| {
            let value = self.value(dataset, &name, property);
            let Some(received) = own.received().get(property) else { return value };
            // It may be all that there is, and have no effect.
            let value = value.unwrap_or_else(|| PropertyValue::new(property, "-", Source::None));
            Some(PropertyValue { received: Some(received.clone()), ..value })
        };
        let properties = names.iter().filter_map(value).collect();
        Item { name, kind: ItemKind::Filesystem, properties }
    }

    /// Those bookmarks of a dataset that are asked for, with the commits that took their snapshots.
    fn bookmarks(
        &self,
        dataset: &Dataset,
        full: &str,
        request: &Get,
        mut named: Option<BTreeSet<&str>>,
    ) -> Result<Vec<(CommitId, Item)>> {
        let (all, mut items) = (request.selects_bookmarks_of(full), Vec::new());
        if !all && named.is_none() {
            return Ok(items);
        }
        for record in self.live.pool.bookmarks(dataset.id()) {
            let is_named = named.as_mut().is_some_and(|named| named.remove(record.name.as_str()));
            let name = format!("{full}#{}", record.name);
            if all || (is_named && request.names_bookmark(&name)) {
                let value = |property: &str| match property {
                    "name" => told(property, &name),
                    "type" => told(property, "bookmark"),
                    "creation" => told(property, record.created.secs),
                    "createtxg" => told(property, record.commit),
                    "guid" => told(property, record.guid),
                    "sendable" => {
                        told(property, if self.live.pool.is_traced(&record) { "yes" } else { "no" })
                    }
                    _ => None,
                };
                let properties = match request.properties.as_slice() {
                    [] => properties::OF_BOOKMARKS.iter().filter_map(|property| value(property)).collect(),
                    asked => asked.iter().filter_map(|property| value(property)).collect(),
                };
                items.push((record.commit, Item { name, kind: ItemKind::Bookmark, properties }));
            }
        }
        match named.and_then(|missing| missing.first().copied()) {
            Some(missing) => Err(ApiError::no_such_dataset(&format!("{full}#{missing}"))),
            None => Ok(items),
        }
    }

    /// Those snapshots of a dataset that are asked for, with the commits that took them.
    fn snapshots(
        &self,
        dataset: &Dataset,
        full: &str,
        request: &Get,
        mut named: Option<BTreeSet<&str>>,
    ) -> Result<Vec<(CommitId, Item)>> {
        let (all, mut items) = (request.selects_snapshots_of(full), Vec::new());
        if !all && named.is_none() {
            return Ok(items);
        }
        let records = self.live.pool.snapshots(dataset.id());
        let inherited =
            if request.properties.is_empty() { self.user_properties(dataset) } else { BTreeSet::new() };
        let names = |own: &BTreeMap<String, String>| -> Vec<String> {
            match request.properties.as_slice() {
                [] => {
                    let known = properties::OF_SNAPSHOTS.iter().map(|&name| name.to_owned());
                    let of_users: BTreeSet<_> = inherited.iter().chain(own.keys()).cloned().collect();
                    known.chain(of_users).collect()
                }
                asked => asked.to_vec(),
            }
        };
        for record in &records {
            let is_named = named.as_mut().is_some_and(|named| named.remove(record.name.as_str()));
            let name = format!("{full}@{}", record.name);
            if all || (is_named && request.names_snapshot(&name)) {
                // Nothing is told of one that was destroyed meanwhile.
                let Ok(own) = self.live.pool.snapshot_properties(record) else { continue };
                let value = |property: &String| self.of_snapshot(dataset, record, &own, &name, property);
                let properties = names(&own).iter().filter_map(value).collect();
                items.push((record.commit, Item { name, kind: ItemKind::Snapshot, properties }));
            }
        }
        match named.and_then(|missing| missing.first().copied()) {
            Some(missing) => Err(ApiError::no_such_dataset(&format!("{full}@{missing}"))),
            None => Ok(items),
        }
    }

    /// Names of the user properties that apply to a dataset.
    fn user_properties(&self, dataset: &Dataset) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut at = self.live.pool.dataset(dataset.id());
        while let Some(dataset) = at {
            names.extend(
                dataset.own_properties().effective().into_keys().filter(|name| property::is_user(name)),
            );
            let parent = dataset.parent();
            at = self.live.pool.dataset(parent).filter(|_| parent != dataset.id());
        }
        names
    }

    /// Bytes that only the snapshots of a dataset hold, all of them together; none where that cannot be read.
    fn held(&self, dataset: DatasetId) -> Option<u64> {
        let known = self.held.borrow().get(&dataset).copied();
        known.unwrap_or_else(|| {
            // Nobody is charged for what is in the trash.
            let held = self.live.pool.space_of_snapshots(dataset).ok();
            let held = held.map(|held| held - self.live.pool.trash_of(dataset).unwrap_or(0).min(held));
            self.held.borrow_mut().insert(dataset, held);
            held
        })
    }

    /// The same of a dataset and all below it, as far as it can be read.
    fn held_by_family(&self, dataset: DatasetId) -> u64 {
        family(&self.live.pool, dataset).iter().filter_map(|dataset| self.held(dataset.id())).sum()
    }

    /// Usage of a dataset and all below it.
    fn total(&self, dataset: &Dataset) -> Usage {
        let family = family(&self.live.pool, dataset.id());
        family.iter().map(|dataset| dataset.usage()).fold(Usage::default(), |sum, one| Usage {
            referenced: sum.referenced + one.referenced,
            own: sum.own + one.own,
            logical: sum.logical + one.logical,
            stored: sum.stored + one.stored,
            held: sum.held + one.held,
        })
    }

    fn value(&self, dataset: &Dataset, full: &str, name: &str) -> Option<PropertyValue> {
        let (live, pool, id) = (self.live, &self.live.pool, dataset.id());
        match name {
            "name" => return told(name, full),
            "type" => return told(name, "filesystem"),
            "creation" => return told(name, dataset.created().secs),
            "used" => return told(name, pool.share(id).used + self.held_by_family(id)),
            "usedbysnapshots" => return told(name, self.held(id)?),
            "usedbydataset" => return told(name, pool.share(id).dataset),
            "usedbychildren" => {
                let own = self.held(id).unwrap_or(0);
                return told(name, pool.share(id).children + self.held_by_family(id) - own);
            }
            "usedbyrefreservation" => return told(name, pool.share(id).refreservation),
            "available" => return told(name, pool.space_of(dataset).available),
            "referenced" => return told(name, dataset.usage().referenced),
            "logicalused" => return told(name, self.total(dataset).logical),
            "logicalreferenced" => return told(name, dataset.usage().logical),
            "compressratio" => {
                let total = self.total(dataset);
                return told(name, ratio(total.logical, total.stored));
            }
            "mounted" => {
                let mounted = live.table.path(id).is_some();
                return told(name, if mounted { "yes" } else { "no" });
            }
            "trash" => return told(name, pool.trash_of(id).ok()?),
            "origin" => {
                // Of one that was destroyed the name counts no more.
                let origin = pool.origin(id).filter(|origin| !origin.hidden)?;
                // Nor do those of one in the trash.
                pool.dataset(origin.dataset)?;
                return told(name, format!("{}@{}", pool.full_name(origin.dataset), origin.name));
            }
            "receive_resume_token" => {
                let record = pool.received(id).filter(|record| record.resumable)?;
                return told(name, super::super::streams::token(&record));
            }
            "refcompressratio" => return told(name, ratio(dataset.usage().logical, dataset.usage().stored)),
            "objsetid" => return told(name, id.get()),
            "createtxg" => return told(name, dataset.birth()),
            "guid" => return told(name, dataset.guid()),
            "written" => return told(name, pool.written(id, None, None).ok()?),
            "mountpoint" => {
                let (value, from) = mountpoint(pool, dataset);
                let value = match value.strip_prefix('/') {
                    Some(_) => below(live.altroot.as_deref(), value.into()).to_string_lossy().into_owned(),
                    None => value,
                };
                let source = match from {
                    None => Source::Default,
                    Some(from) if from != id => Source::Inherited(pool.full_name(from)),
                    Some(_) => match dataset.own_properties().get(name) {
                        Some((_, true)) => Source::Received,
                        _ => Source::Local,
                    },
                };
                return Some(PropertyValue::new(name, value, source));
            }
            _ => {}
        }
        if let Some(snapshot) = properties::since(name) {
            return told(name, pool.written(id, None, Some(snapshot)).ok()?);
        }
        let known = properties::dataset(name);
        if known.is_some_and(|known| known.access == property::Access::ReadOnly) {
            return None;
        }
        let effective = pool.effective(id, name)?;
        let source = source(pool, effective.source);
        Some(PropertyValue::new(name, effective.value, source))
    }

    /// A property of the snapshot `record` of `dataset`.
    fn of_snapshot(
        &self,
        dataset: &Dataset,
        record: &SnapshotRecord,
        own: &BTreeMap<String, String>,
        full: &str,
        name: &str,
    ) -> Option<PropertyValue> {
        let pool = &self.live.pool;
        let at = || self.live.table.path_of_snapshot(id_of(record));
        match name {
            "name" => told(name, full),
            "type" => told(name, "snapshot"),
            "creation" => told(name, record.created.secs),
            "used" => told(name, pool.space_of_snapshot(record).ok()?),
            "referenced" => told(name, record.referenced),
            "logicalreferenced" => told(name, record.logical),
            "compressratio" | "refcompressratio" => told(name, ratio(record.logical, record.stored)),
            "encryption" => told(name, "off"),
            "createtxg" => told(name, record.commit),
            "guid" => told(name, record.guid),
            "userrefs" => told(name, pool.snapshot_holds(record).ok()?.len()),
            "defer_destroy" => told(name, if record.deferred { "on" } else { "off" }),
            "clones" => {
                let clones = pool.clones(record).into_iter().map(|clone| pool.full_name(clone));
                told(name, clones.collect::<Vec<_>>().join(","))
            }
            "written" => told(name, pool.written(record.dataset, Some(&record.name), None).ok()?),
            "mounted" => at().and_then(|_| told(name, "yes")),
            "mountpoint" => told(name, at()?.to_string_lossy()),
            _ if name.starts_with("written@") => {
                let since = properties::since(name)?;
                told(name, pool.written(record.dataset, Some(&record.name), Some(since)).ok()?)
            }
            _ if property::is_user(name) => {
                if let Some(value) = own.get(name) {
                    return Some(PropertyValue::new(name, value, Source::Local));
                }
                let effective = pool.effective(dataset.id(), name)?;
                let from = match effective.source {
                    PropertySource::Inherited(from) => from,
                    _ => dataset.id(),
                };
                let source = Source::Inherited(pool.full_name(from));
                Some(PropertyValue::new(name, effective.value, source))
            }
            _ => None,
        }
    }
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
