//! `fs set`, `fs inherit`.

use super::super::Host;
use super::{family, moved, moves};
use crate::api::fs::{Inherit, Set};
use crate::api::name::pool_of;
use crate::api::{Done, Result};
use std::sync::Arc;

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
