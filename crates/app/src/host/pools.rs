//! Properties of pools.

use super::live::Live;
use super::status::fragmentation;
use crate::api::{Item, ItemKind, Properties, PropertyValue, Result, Source};
use larder_format::label::FORMAT_VERSION;
use larder_pool::property::{self, Access};
use larder_upkeep::gc::Outcome;

/// A pool with the properties asked for, all when none is.
pub fn item(live: &Live, asked: &[String]) -> Item {
    let names: Vec<&str> = match asked {
        [] => property::POOL.iter().map(|known| known.name).collect(),
        _ => asked.iter().map(String::as_str).collect(),
    };
    let properties = names.into_iter().filter_map(|name| value(live, name)).collect();
    Item { name: live.pool.name(), kind: ItemKind::Pool, properties }
}

fn value(live: &Live, name: &str) -> Option<PropertyValue> {
    let known = property::pool(name)?;
    let pool = &live.pool;
    let (allocated, size) = pool.store().raw_space();
    let free = size.saturating_sub(allocated);
    let told = |value: String| Some(PropertyValue::new(known.name, value, Source::None));
    match known.name {
        "size" => return told(size.to_string()),
        "allocated" => return told(allocated.to_string()),
        "free" => return told(free.to_string()),
        "freeing" => return told(pool.freeing_bytes().to_string()),
        "trashed" => return told(pool.trash_bytes().to_string()),
        "cleaned" => return told(pool.cleaned_bytes().to_string()),
        "writeamp" => return told(ratio(pool.writes().amplification_percent())),
        "capacity" => {
            return told((u128::from(allocated) * 100 / u128::from(size.max(1))).to_string());
        }
        "fragmentation" => return told(fragmentation(pool.store().dead_space(), free).to_string()),
        "health" => return told(super::status::health(live).to_string()),
        "guid" => return told(pool.store().identity().to_string()),
        "version" => return told(FORMAT_VERSION.to_string()),
        "dedupratio" => {
            // Nothing was ever shared, or nobody has counted yet.
            if !pool.freeing().has_shared() {
                return told(ratio(100));
            }
            let counted = live.upkeep.gc.findings().filter(|found| found.outcome == Outcome::Done);
            let Some(found) = counted else { return told("-".to_owned()) };
            let all = found.references();
            let percent = all.referenced_allocated.saturating_mul(100) / all.allocated.max(1);
            return told(ratio(percent.max(100)));
        }
        "altroot" => {
            return told(
                live.altroot.as_ref().map_or_else(|| "-".to_owned(), |root| root.display().to_string()),
            );
        }
        "expandsize" => {
            let bytes = live.upkeep.devices.expandable(super::repair::RECORD).bytes;
            return told(if bytes > 0 { bytes.to_string() } else { "-".to_owned() });
        }
        "leaked" => return told("0".to_owned()),
        feature if feature.starts_with("feature@") => return told("active".to_owned()),
        "readonly" => return told(if pool.store().is_read_only() { "on" } else { "off" }.to_owned()),
        _ if known.access == Access::ReadOnly => return told("-".to_owned()),
        _ => {}
    }
    let local = pool.pool_properties().remove(known.name);
    let source = if local.is_some() { Source::Local } else { Source::Default };
    let value = match known.name {
        "ashift" => pool.store().ashift().to_string(),
        _ => local.or_else(|| known.default.map(str::to_owned)).unwrap_or_else(|| "-".to_owned()),
    };
    Some(PropertyValue::new(known.name, value, source))
}

/// Hundredths as a ratio.
fn ratio(percent: u64) -> String {
    format!("{}.{:02}", percent / 100, percent % 100)
}

/// Sets properties, durably.
///
/// # Errors
/// When the pool cannot be written.
pub fn set(live: &Live, properties: &Properties) -> Result<()> {
    for (name, value) in properties {
        live.pool.set_pool_property(name, value)?;
    }
    live.pool.commit()?;
    Ok(())
}
