//! Common parts of `list` and `get` of pools and of datasets: columns, fields, properties asked for.

use crate::api::{ApiError, Result};
use crate::render::Registry;
use crate::render::items::Field;

/// The fields of `get`, by default all four.
pub fn fields(given: &[Field]) -> Vec<Field> {
    match given {
        [] => Field::USUAL.to_vec(),
        _ if given.contains(&Field::All) => Field::ALL.to_vec(),
        _ => given.to_vec(),
    }
}

/// The columns of `list` by full name; `name` is one that is no property.
///
/// # Errors
/// Usage, when there is no such property.
pub fn columns(registry: Registry, given: &[String], default: &str) -> Result<Vec<String>> {
    let default = default.split(',').map(str::to_owned).collect::<Vec<_>>();
    let given = if given.is_empty() { &default } else { given };
    given.iter().map(|name| if name == "name" { Ok(name.clone()) } else { full(registry, name) }).collect()
}

/// The properties to ask the daemon for to fill `columns`. An empty list would ask for all: a column of
/// names alone asks for the guid, which is always there.
pub fn wanted(columns: &[String]) -> Vec<String> {
    let mut properties: Vec<String> = columns.iter().filter(|column| *column != "name").cloned().collect();
    if properties.is_empty() {
        properties.push("guid".to_owned());
    }
    properties
}

/// The properties that `get` is asked for, separated by commas, by full name; none stands for all.
///
/// # Errors
/// Usage, when there is no such property.
pub fn asked(registry: Registry, given: &str) -> Result<Vec<String>> {
    if given.split(',').any(|name| name == "all") {
        return Ok(Vec::new());
    }
    given.split(',').map(|name| full(registry, name)).collect()
}

fn full(registry: Registry, name: &str) -> Result<String> {
    registry.full_name(name).ok_or_else(|| {
        let verb = if registry == Registry::Pool { "pool" } else { "fs" };
        ApiError::usage(format!("bad property list: invalid property '{name}'"))
            .hint(format!("larder {verb} get all shows the properties there are"))
    })
}
