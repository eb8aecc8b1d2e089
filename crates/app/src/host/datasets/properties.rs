//! `fs set`, `fs inherit`.

use super::super::Host;
use super::super::live::Live;
use super::{Remounted, family, found, moved, moves};
use crate::api::fs::{Inherit, Set};
use crate::api::name::pool_of;
use crate::api::{ApiError, Done, Properties, Result};
use larder_format::DatasetId;
use larder_pool::Dataset;
use std::sync::Arc;

/// Sets properties of datasets: all of them, or none where one is refused.
pub fn set(host: &Host, request: &Set) -> Result<Done> {
    let all = request.names.iter().map(|name| Ok((host.dataset(name)?.0, name)));
    let all: Vec<_> = all.collect::<Result<_>>()?;
    let moving = request.properties.keys().any(|property| moves(property));
    let (mut done, mut mounted) = (Vec::new(), Ok(()));
    for (live, name) in &all {
        let doing = |error: ApiError| {
            error.within(format!("cannot set properties of '{name}'")).of_pool(pool_of(name))
        };
        match set_all(live, name, &request.properties, moving) {
            Ok((before, remounted)) => {
                done.push((live, before));
                mounted = mounted.and(remounted.map_err(doing));
            }
            Err(error) => {
                let back = done.iter().rev().map(|(live, before)| take_back(live, before, moving));
                let back = back.fold(Ok(()), Result::and);
                return Err(doing(beside(error, back)));
            }
        }
    }
    mounted.map(|()| Done {})
}

/// Own values of a dataset before they were changed, in that order; none where it had none.
struct Before {
    id: DatasetId,
    values: Vec<(String, Option<String>)>,
}

/// Sets properties of one dataset; gives what was before.
fn set_all(live: &Live, name: &str, properties: &Properties, moving: bool) -> Result<(Before, Remounted)> {
    let mut mounts = live.mounts.lock();
    let dataset = found(live, name)?;
    let mut before = Before { id: dataset.id(), values: Vec::new() };
    let mut set = || {
        let set = set_each(live, &dataset, properties, &mut before);
        set.map_err(|error| beside(error, put_back(live, &before)))
    };
    let remounted = if moving { moved(live, &mut mounts, &[dataset.id()], set)? } else { set().map(Ok)? };
    Ok((before, remounted))
}

/// Adds to `before` what it changes.
fn set_each(live: &Live, dataset: &Dataset, properties: &Properties, before: &mut Before) -> Result<()> {
    let local = dataset.local_properties();
    for (property, value) in properties {
        live.pool.set_property(before.id, property, value)?;
        before.values.push((property.clone(), local.get(property).cloned()));
    }
    live.pool.commit()?;
    Ok(())
}

/// Gives a dataset the values again that it had, and commits that.
fn take_back(live: &Live, before: &Before, moving: bool) -> Result<()> {
    let mut mounts = live.mounts.lock();
    let back = || {
        put_back(live, before)?;
        live.pool.commit()?;
        Ok(())
    };
    if moving { moved(live, &mut mounts, &[before.id], back)? } else { back() }
}

/// Gives a dataset the values again that it had, as many as can be. The last goes first: a reservation goes down
/// before its quota does.
fn put_back(live: &Live, before: &Before) -> Result<()> {
    let back = before.values.iter().rev().map(|(property, value)| match value {
        Some(value) => live.pool.set_property(before.id, property, value),
        None => live.pool.inherit_property(before.id, property),
    });
    Ok(back.fold(Ok(()), std::result::Result::and)?)
}

/// The error, which tells of it where what was set before it could not be taken back.
fn beside(mut error: ApiError, back: Result<()>) -> ApiError {
    if let Err(also) = back {
        error.message += &format!("; what was set before could not be taken back: {}", also.message);
    }
    error
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
            live.pool.commit()?;
            Ok(())
        };
        let outcome = if moves(&request.property) {
            moved(&live, &mut live.mounts.lock(), &[dataset.id()], inherit).flatten()
        } else {
            inherit()
        };
        outcome
            .map_err(|error| error.within(format!("cannot inherit '{}' for '{name}'", request.property)))?;
    }
    Ok(Done {})
}
