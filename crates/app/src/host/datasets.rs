//! The verbs of datasets: names, properties, mounts. Each change is committed before it is told as done.

use super::Host;
use super::live::Live;
use super::mounts::{Target, below, can_mount, mountpoint, target};
use crate::api::fs::{Create, Created, Destroy, Destroyed, Get, Inherit, Mounted, Rename, Set};
use crate::api::name::pool_of;
use crate::api::{ApiError, Done, ErrorKind, Item, ItemKind, Items, PropertyValue, Result, Source};
use larder_format::DatasetId;
use larder_pool::property;
use larder_pool::{Dataset, PoolError, Usage, admin};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Makes a dataset, with its parents where asked for, and mounts what it makes.
pub fn create(host: &Host, request: Create) -> Result<Created> {
    let doing = format!("cannot create '{}'", request.name);
    let make = || {
        let live = host.pool(pool_of(&request.name))?;
        let pool = &live.pool;
        let mut missing: Vec<&str> = Vec::new();
        let mut at = request.name.as_str();
        while pool.dataset_by_name(at).is_err() {
            missing.push(at);
            match at.rsplit_once('/') {
                Some((above, _)) => at = above,
                None => break,
            }
        }
        missing.reverse();
        if missing.is_empty() {
            return match request.parents {
                true => Ok(Created { created: Vec::new() }),
                false => Err(ApiError::new(ErrorKind::Exists, "dataset already exists")),
            };
        }
        if missing.len() > 1 && !request.parents {
            return Err(ApiError::new(ErrorKind::NotFound, "parent does not exist")
                .hint(format!("larder fs create -p {}", request.name)));
        }
        let created: Vec<String> = missing.iter().map(|&name| name.to_owned()).collect();
        if request.dry_run {
            return Ok(Created { created });
        }
        let mut mounts = live.mounts.lock();
        let mut made = Vec::new();
        for name in &created {
            let own = if *name == request.name { request.properties.clone() } else { BTreeMap::new() };
            made.push(pool.create_dataset(name, own)?);
        }
        pool.commit()?;
        let mut outcome = Ok(());
        for dataset in made {
            let by_itself =
                can_mount(pool, &dataset) == "on" && matches!(target(pool, &dataset), Target::Path(_));
            if by_itself && outcome.is_ok() {
                outcome = mounts.mount(&dataset);
            }
        }
        pool.commit()?;
        outcome.map_err(|error| error.safe("the dataset: it was made, only not mounted"))?;
        Ok(Created { created })
    };
    make().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.name)))
}

/// A dataset and all below it, parents first.
fn family(live: &Live, top: DatasetId) -> Vec<Arc<Dataset>> {
    let mut all: Vec<Arc<Dataset>> = live.pool.dataset(top).into_iter().collect();
    let mut at = 0;
    while let Some(dataset) = all.get(at) {
        let children = live.pool.children(dataset.id());
        all.extend(children);
        at += 1;
    }
    all
}

/// Destroys a dataset, with all below it where asked for.
pub fn destroy(host: &Host, request: &Destroy) -> Result<Destroyed> {
    let doing = format!("cannot destroy '{}'", request.name);
    let (live, dataset) = host.dataset(&request.name)?;
    let destroy = || {
        if !request.name.contains('/') {
            return Err(ApiError::usage("it is the pool's own dataset")
                .hint(format!("larder pool destroy {} destroys the whole pool", request.name)));
        }
        let mut family = family(&live, dataset.id());
        if family.len() > 1 && !request.recursive {
            let below: Vec<_> = family[1..].iter().map(|below| live.pool.full_name(below.id())).collect();
            return Err(ApiError::new(ErrorKind::Busy, format!("it has children: {}", below.join(", ")))
                .hint(format!("larder fs destroy -r {} destroys them too", request.name)));
        }
        family.reverse();
        let destroyed: Vec<_> = family.iter().map(|dataset| live.pool.full_name(dataset.id())).collect();
        let reclaimed = family.iter().map(|dataset| dataset.usage().referenced).sum();
        if request.dry_run {
            return Ok(Destroyed { destroyed, reclaimed });
        }
        let mut mounts = live.mounts.lock();
        for dataset in &family {
            mounts.unmount(dataset.id())?;
        }
        for dataset in &family {
            live.pool.destroy_dataset(dataset.id())?;
        }
        // From here on the reaper goes on with it, after a crash as well.
        live.pool.commit()?;
        Ok(Destroyed { destroyed, reclaimed })
    };
    destroy().map_err(|error| error.within(doing).of_pool(pool_of(&request.name)))
}

/// Renames a dataset; what is mounted of it is mounted again where its new name puts it.
pub fn rename(host: &Host, request: &Rename) -> Result<Done> {
    let doing = format!("cannot rename '{}'", request.from);
    let (live, dataset) = host.dataset(&request.from)?;
    let rename = || {
        if let Some((above, _)) = request.to.rsplit_once('/')
            && request.parents
            && live.pool.dataset_by_name(above).is_err()
        {
            let parents =
                Create { name: above.to_owned(), parents: true, properties: BTreeMap::new(), dry_run: false };
            create(host, parents)?;
        }
        if live.pool.dataset_by_name(&request.to).is_ok() {
            return Err(PoolError::Exists(request.to.clone()).into());
        }
        moved(&live, &[dataset.id()], || Ok(live.pool.rename_dataset(dataset.id(), &request.to)?))
    };
    rename().map_err(|error: ApiError| error.within(doing).of_pool(pool_of(&request.from)))?;
    Ok(Done {})
}

/// Does what may move datasets: those of them (and below them) that are mounted are unmounted before and
/// mounted again after, unless they may not be any more.
fn moved(live: &Live, tops: &[DatasetId], change: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut mounts = live.mounts.lock();
    let all: BTreeSet<_> =
        tops.iter().flat_map(|&top| family(live, top)).map(|dataset| dataset.id()).collect();
    let was: BTreeSet<_> = all.iter().copied().filter(|&id| mounts.path(id).is_some()).collect();
    for &top in tops {
        for dataset in family(live, top) {
            mounts.unmount(dataset.id())?;
        }
    }
    let outcome = change();
    if outcome.is_ok() {
        live.pool.commit()?;
    }
    let mut again: Vec<_> = all
        .into_iter()
        .filter_map(|id| live.pool.dataset(id))
        .filter(|dataset| {
            let wanted = can_mount(&live.pool, dataset);
            wanted == "on" || (wanted == "noauto" && was.contains(&dataset.id()))
        })
        .filter(|dataset| matches!(target(&live.pool, dataset), Target::Path(_)))
        .map(|dataset| (live.pool.full_name(dataset.id()), dataset))
        .collect();
    again.sort_by(|a, b| a.0.cmp(&b.0));
    let mut mounted = Ok(());
    for (_, dataset) in again {
        if mounts.path(dataset.id()).is_none() {
            mounted = mounted.and(mounts.mount(&dataset));
        }
    }
    outcome.and(mounted)
}

/// Whether a property says where datasets are mounted.
fn moves(property: &str) -> bool {
    matches!(property, "mountpoint" | "canmount")
}

/// Sets properties of datasets.
pub fn set(host: &Host, request: &Set) -> Result<Done> {
    let found: Vec<_> = request.names.iter().map(|name| host.dataset(name)).collect::<Result<_>>()?;
    for (live, dataset) in found {
        let name = live.pool.full_name(dataset.id());
        let set = || {
            for (property, value) in &request.properties {
                live.pool.set_property(dataset.id(), property, value)?;
            }
            Ok(())
        };
        let outcome = if request.properties.keys().any(|property| moves(property)) {
            moved(&live, &[dataset.id()], set)
        } else {
            set().and_then(|()| Ok(live.pool.commit().map(drop)?))
        };
        outcome.map_err(|error| {
            error.within(format!("cannot set properties of '{name}'")).of_pool(pool_of(&name))
        })?;
    }
    Ok(Done {})
}

/// Takes local values away.
pub fn inherit(host: &Host, request: &Inherit) -> Result<Done> {
    let found: Vec<_> = request.names.iter().map(|name| host.dataset(name)).collect::<Result<_>>()?;
    for (live, dataset) in found {
        let name = live.pool.full_name(dataset.id());
        let inherit = || {
            let all =
                if request.recursive { family(&live, dataset.id()) } else { vec![Arc::clone(&dataset)] };
            for dataset in all {
                live.pool.inherit_property(dataset.id(), &request.property)?;
            }
            Ok(())
        };
        let outcome = if moves(&request.property) {
            moved(&live, &[dataset.id()], inherit)
        } else {
            inherit().and_then(|()| Ok(live.pool.commit().map(drop)?))
        };
        outcome
            .map_err(|error| error.within(format!("cannot inherit '{}' for '{name}'", request.property)))?;
    }
    Ok(Done {})
}

/// Mounts one dataset, or all that mount by themselves.
pub fn mount(host: &Host, name: Option<&str>) -> Result<Mounted> {
    let Some(name) = name else {
        let mut all = Mounted::default();
        for live in host.pools_named(&[])? {
            let (mut names, mut failed) = live.mounts.lock().mount_all();
            all.names.append(&mut names);
            all.failed.append(&mut failed);
        }
        return Ok(all);
    };
    let (live, dataset) = host.dataset(name)?;
    if can_mount(&live.pool, &dataset) == "off" {
        return Err(ApiError::usage(format!("cannot mount '{name}': its canmount is off"))
            .hint(format!("larder fs set canmount=on {name}")));
    }
    live.mounts.lock().mount(&dataset)?;
    Ok(Mounted { names: vec![name.to_owned()], failed: Vec::new() })
}

/// Unmounts one dataset, by its name or mount point, or all.
pub fn unmount(host: &Host, wanted: Option<&str>) -> Result<Mounted> {
    let Some(wanted) = wanted else {
        let mut all = Mounted::default();
        for live in host.pools_named(&[])? {
            match live.mounts.lock().unmount_all() {
                Ok(gone) => all.names.extend(gone.into_iter().map(|id| live.pool.full_name(id))),
                Err(error) => all.failed.push(error),
            }
        }
        return Ok(all);
    };
    let not_mounted = || ApiError::usage(format!("cannot unmount '{wanted}': not currently mounted"));
    let (live, id) = if wanted.starts_with('/') {
        let all = host.pools_named(&[])?;
        let found = all.into_iter().find_map(|live| {
            let id = live.mounts.lock().at(Path::new(wanted))?;
            Some((live, id))
        });
        found.ok_or_else(not_mounted)?
    } else {
        let (live, dataset) = host.dataset(wanted)?;
        (live, dataset.id())
    };
    let mut mounts = live.mounts.lock();
    if mounts.path(id).is_none() {
        return Err(not_mounted());
    }
    mounts.unmount(id)?;
    Ok(Mounted { names: vec![live.pool.full_name(id)], failed: Vec::new() })
}

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

/// What a dataset and all below it amount to.
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
    if known.is_some_and(|known| known.access == property::Access::Told) {
        return None;
    }
    let effective = pool.effective(dataset.id(), name)?;
    let source = match effective.source {
        admin::Source::Local => Source::Local,
        admin::Source::Default => Source::Default,
        admin::Source::Inherited(id) => Source::Inherited(pool.full_name(id)),
    };
    Some(PropertyValue { name: name.to_owned(), value: effective.value, source })
}

/// What compression saves, as `1.50`; nothing is never worse than 1.00.
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
