//! `-j`: the shapes that zpool and zfs give JSON (`output_version`; pools, datasets and vdevs by name),
//! with numbers as numbers and always exact.

use super::Registry;
use super::status::{health, health_word, needs_attention, risk};
use crate::api::pool::{Class, PoolStatus, Vdev};
use crate::api::trace::PoolFolders;
use crate::api::{Item, ItemKind, Source, name};
use larder_pool::property::Kind;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Rises when a field changes its meaning or goes.
const MAJOR: u32 = 0;
/// Rises when fields are added.
const MINOR: u32 = 8;

fn version(command: &str) -> Value {
    json!({ "command": command, "vers_major": MAJOR, "vers_minor": MINOR })
}

/// The whole output of a command that shows things by name.
pub fn envelope(command: &str, key: &str, things: Map<String, Value>) -> Value {
    json!({ "output_version": version(command), key: things })
}

/// The whole output of a command that shows a reply of the API as it is.
pub fn reply(command: &str, reply: &impl Serialize) -> Value {
    let mut whole = plain(reply);
    whole["output_version"] = version(command);
    whole
}

/// Plain data of the API as it is.
pub fn plain(data: &impl Serialize) -> Value {
    serde_json::to_value(data).expect("replies are plain data")
}

/// Pools or datasets with their properties, by name.
pub fn items(registry: Registry, items: &[Item]) -> Map<String, Value> {
    items.iter().map(|item| (item.name.clone(), one_item(registry, item))).collect()
}

fn one_item(registry: Registry, item: &Item) -> Value {
    let properties: Map<String, Value> = (item.properties.iter())
        .map(|property| {
            let exact = |exact: &str| value(registry, &property.name, exact);
            let mut one = json!({ "value": exact(&property.value), "source": source(&property.source) });
            if let Some(received) = &property.received {
                one["received"] = exact(received);
            }
            (property.name.clone(), one)
        })
        .collect();
    let kind = match item.kind {
        ItemKind::Pool => "POOL",
        ItemKind::Filesystem => "FILESYSTEM",
        ItemKind::Snapshot => "SNAPSHOT",
        ItemKind::Bookmark => "BOOKMARK",
    };
    let pool = name::pool_of(&item.name);
    json!({ "name": item.name, "type": kind, "pool": pool, "properties": properties })
}

/// A number where the property is one; null for no value.
fn value(registry: Registry, name: &str, exact: &str) -> Value {
    let known = registry.find(name);
    if exact == "-" && known.is_some() {
        return Value::Null;
    }
    let number = match known.map(|known| known.kind) {
        Some(Kind::Ratio | Kind::Share(_)) => exact.parse::<f64>().ok().map(Value::from),
        Some(Kind::Time) => exact.parse::<i64>().ok().map(Value::from),
        Some(_) if known.is_some_and(|known| known.is_number()) => exact.parse::<u64>().ok().map(Value::from),
        _ => None,
    };
    number.unwrap_or_else(|| Value::from(exact))
}

fn source(source: &Source) -> Value {
    let (kind, data) = match source {
        Source::None => ("NONE", "-"),
        Source::Default => ("DEFAULT", "-"),
        Source::Local => ("LOCAL", "-"),
        Source::Inherited(from) => ("INHERITED", from.as_str()),
        Source::Temporary => ("TEMPORARY", "-"),
        Source::Received => ("RECEIVED", "-"),
    };
    json!({ "type": kind, "data": data })
}

/// Pools' whole state, by name.
pub fn statuses(pools: &[PoolStatus]) -> Map<String, Value> {
    let one = |pool: &PoolStatus| {
        let root = &pool.root;
        let mut status = json!({
            "name": root.name,
            "state": root.state,
            "pool_guid": root.guid,
            "txg": pool.commit,
            "status": pool.status,
            "action": pool.action,
            "see": pool.see,
            "scan_stats": pool.scans.first(),
            "scans": pool.scans,
            "read_cache": pool.read_cache,
            "spares": named(&pool.spares),
            "freeing": pool.freeing,
            "trash": pool.trash,
            "cleaned": pool.cleaned,
            "write_amplification": pool.write_amplification as f64 / 100.0,
            "trace": pool.trace,
            "dedup": pool.dedup,
            "pass": pool.pass,
            "rebalance": pool.rebalance,
            "to_gain": pool.to_gain,
            "to_expand": pool.to_expand,
            "expand_gain": pool.expand_gain,
            "reshaping": pool.reshaping,
            "reshaping_stuck": pool.reshaping_stuck,
            "survives": pool.survives,
            "risk": risk(pool.survives),
            "log_survives": pool.log_survives,
            "healthy": !needs_attention(pool),
            "vdevs": { root.name.as_str(): vdev(root) },
            "error_count": pool.damaged.len(),
            "damaged": pool.damaged,
        });
        add_classes(&mut status, pool);
        (root.name.clone(), status)
    };
    pools.iter().map(one).collect()
}

/// Pools' traces, by name.
pub fn traces(pools: &[PoolStatus]) -> Map<String, Value> {
    pools.iter().map(|pool| (pool.root.name.clone(), json!({ "trace": pool.trace }))).collect()
}

/// Pools' scrubs and resilvers, by name.
pub fn scans(pools: &[PoolStatus]) -> Map<String, Value> {
    pools.iter().map(|pool| (pool.root.name.clone(), json!({ "scans": pool.scans }))).collect()
}

/// Dedup index and trace of pools.
pub fn sharing(pools: &[PoolStatus]) -> Map<String, Value> {
    let of = |pool: &PoolStatus| json!({ "index": pool.dedup, "trace": pool.trace });
    pools.iter().map(|pool| (pool.root.name.clone(), of(pool))).collect()
}

/// Adds sharing by folder to that of pools; null where it is not known.
pub fn add_folders(pools: &mut Map<String, Value>, found: &[PoolFolders]) {
    for PoolFolders { name, found } in found {
        if let Some(pool) = pools.get_mut(name) {
            pool["folders"] = json!(found);
        }
    }
}

fn vdev(vdev_: &Vdev) -> Value {
    let mut value = json!({
        "name": vdev_.name,
        "vdev_type": vdev_.kind,
        "guid": vdev_.guid,
        "index": vdev_.index,
        "path": vdev_.path,
        "state": vdev_.state,
        "note": vdev_.note,
        "alloc_space": vdev_.allocated,
        "total_space": vdev_.size,
        "fragmentation": vdev_.fragmentation,
        "read_errors": vdev_.read_errors,
        "write_errors": vdev_.write_errors,
        "checksum_errors": vdev_.checksum_errors,
        "trim": vdev_.trim,
    });
    if !vdev_.children.is_empty() {
        value["vdevs"] = below(vdev_);
    }
    value
}

fn below(above: &Vdev) -> Value {
    named(&above.children)
}

fn named(vdevs: &[Vdev]) -> Value {
    vdevs.iter().map(|one| (one.name.clone(), vdev(one))).collect::<Map<_, _>>().into()
}

/// The key of a class, as zpool has it.
pub fn class_key(class: &Class) -> &str {
    if class.head == "cache" { "l2cache" } else { &class.head }
}

fn add_classes(to: &mut Value, status: &PoolStatus) {
    to["l2cache"] = named(&[]);
    status.classes.iter().for_each(|class| to[class_key(class)] = named(&class.vdevs));
}

/// Adds groups, devices and those with copies to listed pools.
pub fn add_vdevs(pools: &mut Map<String, Value>, statuses: &[PoolStatus]) {
    for status in statuses {
        if let Some(pool) = pools.get_mut(&status.root.name) {
            pool["vdevs"] = below(&status.root);
            add_classes(pool, status);
        }
    }
}

/// Pools that can be imported. Two pools may have one name: these are told apart by guid.
pub fn importable(pools: &[PoolStatus]) -> Map<String, Value> {
    let mut all = Map::new();
    for pool in pools {
        let name = &pool.root.name;
        let taken = all.contains_key(name);
        let key = if taken { format!("{name} {}", pool.root.guid) } else { name.clone() };
        all.extend(statuses(std::slice::from_ref(pool)).into_values().map(|value| (key.clone(), value)));
    }
    all
}

/// The whole output of `check`.
pub fn check(command: &str, pools: &[PoolStatus]) -> Value {
    let one = |pool: &PoolStatus| {
        let health = health(pool);
        let value = json!({
            "health": health_word(health),
            "code": health as u8,
            "state": pool.root.state,
            "status": pool.status,
            "survives": pool.survives,
        });
        (pool.root.name.clone(), value)
    };
    envelope(command, "pools", pools.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PropertyValue;
    use crate::render::status::tests::pool;

    #[test]
    fn numbers_are_numbers_and_words_are_words() {
        let property = |name: &str, value: &str, source| PropertyValue::new(name, value, source);
        let item = Item {
            name: "tank/a".into(),
            kind: ItemKind::Filesystem,
            properties: vec![
                property("used", "18446744073709551615", Source::None),
                property("compressratio", "1.50", Source::None),
                property("compression", "lz4", Source::Inherited("tank".into())),
                property("my:number", "12", Source::Local),
            ],
        };
        let shown = envelope("zfs list", "datasets", items(Registry::Dataset, &[item]));
        assert_eq!(shown["output_version"]["command"], "zfs list");
        let properties = &shown["datasets"]["tank/a"]["properties"];
        assert_eq!(properties["used"]["value"], u64::MAX);
        assert_eq!(properties["compressratio"]["value"], 1.5);
        assert_eq!(properties["compression"]["source"], json!({ "type": "INHERITED", "data": "tank" }));
        assert_eq!(properties["my:number"]["value"], "12");
    }

    #[test]
    fn status_nests_devices_below_groups_below_the_pool() {
        let shown = statuses(&[pool()]);
        let tank = &shown["tank"];
        assert_eq!((&tank["state"], &tank["error_count"]), (&json!("DEGRADED"), &json!(0)));
        assert_eq!(tank["dedup"], Value::Null);
        let missing = &tank["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"]["/srv/b"];
        assert_eq!((&missing["state"], &missing["read_errors"]), (&json!("UNAVAIL"), &json!(1240)));
    }

    #[test]
    fn daemon_status_is_at_the_top_level() {
        let status = crate::api::daemon::DaemonStatus { pid: Some(7), version: "1".into(), pools: vec![] };
        let shown = reply("larder daemon status", &status);
        assert_eq!((&shown["pid"], &shown["pools"]), (&json!(7), &json!([])));
        assert_eq!(shown["output_version"]["vers_major"], 0);
    }

    #[test]
    fn pools_of_one_name_are_told_apart() {
        let mut other = pool();
        other.root.guid = 43;
        let shown = importable(&[pool(), other]);
        assert_eq!(shown.keys().collect::<Vec<_>>(), ["tank", "tank 43"]);
    }
}
