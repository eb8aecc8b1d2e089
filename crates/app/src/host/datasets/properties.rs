//! `fs set`, `fs inherit`.

use super::super::Host;
use super::super::live::Live;
use super::{Remounted, family, found, moved, moves};
use crate::api::fs::{Inherit, Set};
use crate::api::name::{check_snapshot, pool_of};
use crate::api::{ApiError, Done, Result};
use larder_format::DatasetId;
use larder_pool::{Dataset, Here};
use std::sync::Arc;

/// Sets properties of datasets: all of them, or none where one is refused.
pub fn set(host: &Host, request: &Set) -> Result<Done> {
    if request.names.iter().any(|name| name.contains('@')) {
        let changes: Vec<_> =
            request.properties.iter().map(|(name, value)| (name.as_str(), Some(value.as_str()))).collect();
        return of_snapshots(host, &request.names, &changes);
    }
    let moving = request.properties.keys().any(|property| moves(property));
    let set = |live: &Live, dataset: &Arc<Dataset>, before: &mut Before| {
        request.properties.iter().try_for_each(|(property, value)| before.set(live, dataset, property, value))
    };
    let doing = |name: &str| format!("cannot set properties of '{name}'");
    change(host, &request.names, moving, set, doing)
}

/// Takes local values away: of all of the datasets, or of none where one is refused.
pub fn inherit(host: &Host, request: &Inherit) -> Result<Done> {
    let property = &request.property;
    if request.names.iter().any(|name| name.contains('@')) {
        return of_snapshots(host, &request.names, &[(property, None)]);
    }
    let inherit = |live: &Live, dataset: &Arc<Dataset>, before: &mut Before| {
        let all =
            if request.recursive { family(&live.pool, dataset.id()) } else { vec![Arc::clone(dataset)] };
        all.iter().try_for_each(|dataset| before.inherit(live, dataset, property, request.received))
    };
    let doing = |name: &str| format!("cannot inherit '{property}' for '{name}'");
    change(host, &request.names, moves(property), inherit, doing)
}

/// Sets properties of snapshots of one pool, or takes their own away: all of them, or none where one is refused.
fn of_snapshots(host: &Host, names: &[String], changes: &[(&str, Option<&str>)]) -> Result<Done> {
    let (live, _) = host.dataset(check_snapshot(&names[0])?.0)?;
    // Names change under this lock alone.
    let _mounts = live.mounts.lock();
    let record = |name: &String| {
        let (dataset, own) = check_snapshot(name)?;
        let record = live.pool.snapshot_named(found(&live, dataset)?.id(), own);
        record.map_err(|_| ApiError::no_such_dataset(name))
    };
    let records = names.iter().map(record).collect::<Result<Vec<_>>>()?;
    let mut before = Vec::new();
    let mut change = || {
        for record in &records {
            let own = live.pool.snapshot_properties(record)?;
            for (property, value) in changes {
                live.pool.set_snapshot_property(record, property, *value)?;
                before.push((record, *property, own.get(*property).cloned()));
            }
        }
        live.pool.commit()
    };
    if let Err(error) = change() {
        let back = before.iter().rev().map(|(record, property, value)| {
            live.pool.set_snapshot_property(record, property, value.as_deref())
        });
        let back = back.fold(Ok(()), std::result::Result::and).map_err(ApiError::from);
        let doing = format!("cannot set properties of '{}'", names.join("', '"));
        return Err(beside(error.into(), back).within(doing).of_pool(pool_of(&names[0])));
    }
    Ok(Done {})
}

/// Changes properties of datasets, and of what is below them: all of them, or none where one is refused.
fn change(
    host: &Host,
    names: &[String],
    moving: bool,
    each: impl Fn(&Live, &Arc<Dataset>, &mut Before) -> Result<()>,
    doing: impl Fn(&str) -> String,
) -> Result<Done> {
    let all = names.iter().map(|name| Ok((host.dataset(name)?.0, name)));
    let all: Vec<_> = all.collect::<Result<_>>()?;
    let (mut done, mut mounted) = (Vec::new(), Ok(()));
    for (live, name) in &all {
        let doing = |error: ApiError| error.within(doing(name)).of_pool(pool_of(name));
        match change_one(live, name, moving, &each) {
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

/// Changes what one name stands for; gives what was before.
fn change_one(
    live: &Live,
    name: &str,
    moving: bool,
    each: impl Fn(&Live, &Arc<Dataset>, &mut Before) -> Result<()>,
) -> Result<(Before, Remounted)> {
    let mut mounts = live.mounts.lock();
    let dataset = found(live, name)?;
    let mut before = Before { top: dataset.id(), values: Vec::new() };
    let mut change = || {
        let changed = each(live, &dataset, &mut before).and_then(|()| Ok(live.pool.commit().map(drop)?));
        changed.map_err(|error| beside(error, put_back(live, &before)))
    };
    let remounted =
        if moving { moved(live, &mut mounts, &[dataset.id()], change)? } else { change().map(Ok)? };
    Ok((before, remounted))
}

/// Own values of a dataset, and of those below it, before they were changed, in that order.
struct Before {
    top: DatasetId,
    values: Vec<Value>,
}

/// State of a property of a dataset, as it was set there.
struct Value {
    id: DatasetId,
    property: String,
    here: Here,
}

impl Before {
    fn set(&mut self, live: &Live, dataset: &Dataset, property: &str, value: &str) -> Result<()> {
        let before = Value::of(dataset, property);
        live.pool.set_property(before.id, property, value)?;
        self.values.push(before);
        Ok(())
    }

    fn inherit(&mut self, live: &Live, dataset: &Dataset, property: &str, received: bool) -> Result<()> {
        let before = Value::of(dataset, property);
        match received {
            true => live.pool.set_here(before.id, property, Here::Nothing)?,
            false => live.pool.inherit_property(before.id, property)?,
        }
        self.values.push(before);
        Ok(())
    }
}

impl Value {
    fn of(dataset: &Dataset, property: &str) -> Self {
        let here = dataset.own_properties().here(property);
        Self { id: dataset.id(), property: property.to_owned(), here }
    }
}

/// Gives datasets the values again that they had, and commits that.
fn take_back(live: &Live, before: &Before, moving: bool) -> Result<()> {
    let mut mounts = live.mounts.lock();
    let back = || {
        put_back(live, before)?;
        live.pool.commit()?;
        Ok(())
    };
    if moving { moved(live, &mut mounts, &[before.top], back)? } else { back() }
}

/// Gives datasets the values again that they had, as many as can be. The last goes first: a reservation goes down
/// before its quota does.
fn put_back(live: &Live, before: &Before) -> Result<()> {
    let back = before.values.iter().rev();
    let back = back.map(|Value { id, property, here }| live.pool.set_here(*id, property, here.clone()));
    Ok(back.fold(Ok(()), std::result::Result::and)?)
}

/// The error, which tells of it where what was set before it could not be taken back.
fn beside(mut error: ApiError, back: Result<()>) -> ApiError {
    if let Err(also) = back {
        error.message += &format!("; what was changed before could not be taken back: {}", also.message);
    }
    error
}
