//! `fs snapshot`, and of snapshots `fs destroy` and `fs rename`: all that is asked for, or nothing.

use super::super::Host;
use super::super::error::NOTHING_CHANGED;
use super::super::live::Live;
use super::super::mounts::Mounts;
use super::trash::until;
use super::{family, found};
use crate::api::fs::Destroyed;
use crate::api::name::{MAX_NAME, check_snapshot, pool_of};
use crate::api::snapshots::{DestroySnapshots, Kept, RenameSnapshot, Snapshot, Taken, chosen, spans};
use crate::api::{ApiError, Done, ErrorKind, Result};
use larder_format::tables::SnapshotRecord;
use larder_format::{DatasetId, Timestamp};
use larder_pool::PoolError;
use std::collections::BTreeSet;

/// Snapshots of one dataset.
pub struct Going {
    /// The dataset.
    pub dataset: DatasetId,
    /// Its snapshots, oldest first.
    pub records: Vec<SnapshotRecord>,
}

impl Going {
    /// All snapshots of a dataset.
    pub fn all(live: &Live, dataset: DatasetId) -> Self {
        Self { dataset, records: live.pool.snapshots(dataset) }
    }

    fn names(&self) -> Vec<String> {
        self.records.iter().map(|record| record.name.clone()).collect()
    }

    /// Their full names.
    pub fn full_names(&self, live: &Live) -> Vec<String> {
        let dataset = live.pool.full_name(self.dataset);
        self.records.iter().map(|record| format!("{dataset}@{}", record.name)).collect()
    }

    /// Bytes that come back with them, once these clones of theirs are gone.
    pub fn space(&self, live: &Live, without: &BTreeSet<DatasetId>) -> Result<u64> {
        match self.records.as_slice() {
            [] => Ok(0),
            _ => Ok(live.pool.snapshot_space_without(self.dataset, &self.names(), without)?),
        }
    }
}

/// Takes snapshots.
pub fn snapshot(host: &Host, request: &Snapshot) -> Result<Taken> {
    let first = request.names.first().map_or("", String::as_str);
    let (dataset, _) = check_snapshot(first)?;
    let (live, _) = host.dataset(dataset)?;
    // Names change under this lock alone.
    let mounts = live.mounts.lock();
    let (mut wanted, mut seen) = (Vec::new(), BTreeSet::new());
    for name in &request.names {
        let (dataset, own) = check_snapshot(name)?;
        let dataset = found(&live, dataset)?;
        let all = if request.recursive { family(&live.pool, dataset.id()) } else { vec![dataset] };
        let new = all.iter().map(|dataset| (dataset.id(), own.to_owned()));
        wanted.extend(new.filter(|one| seen.insert(one.clone())));
    }
    let full = |(dataset, own): &(DatasetId, String)| format!("{}@{own}", live.pool.full_name(*dataset));
    let names: Vec<_> = wanted.iter().map(full).collect();
    if let Some(long) = names.iter().find(|name| name.len() > MAX_NAME) {
        let message = format!("cannot create snapshot '{long}': it has more than {MAX_NAME} bytes");
        return Err(ApiError::usage(message).safe(NOTHING_CHANGED));
    }
    match live.pool.snapshot_all(wanted.clone(), request.properties.clone()) {
        Ok(_) => {
            wanted.iter().for_each(|(dataset, own)| mounts.tell_of_snapshot(*dataset, own));
            Ok(Taken { taken: names })
        }
        Err(PoolError::Exists(_)) => Err(taken(&live, &wanted, &names)),
        Err(error) => {
            let doing = format!("cannot create snapshot '{first}'");
            Err(ApiError::from(error).within(doing).of_pool(pool_of(first)))
        }
    }
}

/// Some of the names are taken: a line for each.
fn taken(live: &Live, wanted: &[(DatasetId, String)], names: &[String]) -> ApiError {
    let is_taken = |(dataset, own): &(DatasetId, String)| live.pool.snapshot_named(*dataset, own).is_ok();
    let both = || wanted.iter().zip(names);
    let mut taken: Vec<_> = both().filter(|(one, _)| is_taken(one)).map(|(_, name)| name).collect();
    if taken.is_empty() {
        // Somebody else is just taking one of them.
        taken = names.iter().collect();
    }
    let line = |name: &String| format!("cannot create snapshot '{name}': dataset already exists");
    let lines: Vec<_> = taken.into_iter().map(line).collect();
    ApiError::new(ErrorKind::Exists, lines.join("\n")).safe(NOTHING_CHANGED)
}

/// Destroys snapshots.
pub fn destroy(host: &Host, request: &DestroySnapshots) -> Result<Destroyed> {
    let (dataset, _) = spans(&request.name)?;
    let (live, _) = host.dataset(dataset)?;
    let until = until(&live).filter(|_| !request.now);
    if request.dry_run {
        let told = told(&live, &asked(&live, request)?, request.measure, &BTreeSet::new())?;
        return Ok(Destroyed { until: until.map(|until| until.secs), ..told });
    }
    // Names and mounts change under this lock alone.
    let mut mounts = live.mounts.lock();
    let mut going = asked(&live, request)?;
    let held = if request.deferred { take_held(&live, &mut going)? } else { Vec::new() };
    let told = told(&live, &going, request.measure, &BTreeSet::new())?;
    let mut destroy = || {
        live.pool.set_deferred(&held, true)?;
        end(&live, &mut mounts, &going, until).or_else(|error| {
            live.pool.set_deferred(&held, false)?;
            Err(error)
        })?;
        end_deferred(&live, &mut mounts)
    };
    destroy()?;
    let committed = live.pool.commit();
    committed.map_err(|error| {
        ApiError::from(error).within(format!("cannot destroy '{}'", request.name)).of_pool(pool_of(dataset))
    })?;
    Ok(Destroyed { until: until.map(|until| until.secs), ..told })
}

/// Takes those out that somebody holds.
fn take_held(live: &Live, going: &mut [Going]) -> Result<Vec<(DatasetId, String)>> {
    let mut held = Vec::new();
    for Going { dataset, records } in going {
        for record in std::mem::take(records) {
            match live.pool.snapshot_holds(&record)?.is_empty() {
                true => records.push(record),
                false => held.push((*dataset, record.name)),
            }
        }
    }
    Ok(held)
}

/// The snapshots that are to be destroyed.
pub fn asked(live: &Live, request: &DestroySnapshots) -> Result<Vec<Going>> {
    let (dataset, spans) = spans(&request.name)?;
    let top = found(live, dataset)?;
    let datasets = if request.recursive { family(&live.pool, top.id()) } else { vec![top] };
    let mut going = Vec::new();
    for dataset in datasets {
        let all = Going::all(live, dataset.id());
        let names: Vec<_> = all.records.iter().map(|record| record.name.as_str()).collect();
        let chosen: BTreeSet<_> = chosen(&spans, &names).into_iter().map(str::to_owned).collect();
        let records: Vec<_> =
            all.records.into_iter().filter(|record| chosen.contains(&record.name)).collect();
        if !records.is_empty() {
            going.push(Going { dataset: dataset.id(), records });
        }
    }
    if going.is_empty() {
        let message = "could not find any snapshots to destroy; check snapshot names.";
        return Err(ApiError::new(ErrorKind::NotFound, message)
            .hint(format!("larder fs list -t snapshot {dataset} shows those that there are")));
    }
    Ok(going)
}

/// The reply for snapshots that go after these clones.
pub fn told(live: &Live, going: &[Going], measure: bool, without: &BTreeSet<DatasetId>) -> Result<Destroyed> {
    let space = |going: &Going| if measure { going.space(live, without) } else { Ok(0) };
    Ok(Destroyed {
        destroyed: going.iter().flat_map(|going| going.full_names(live)).collect(),
        reclaimed: going.iter().map(space).sum::<Result<_>>()?,
        kept: going.iter().flat_map(|going| kept_for_clones(live, going, without)).collect(),
        until: None,
    })
}

/// Those of these snapshots that have clones, but for clones that are going as well.
pub fn kept_for_clones(live: &Live, going: &Going, without: &BTreeSet<DatasetId>) -> Vec<Kept> {
    let names = going.full_names(live);
    let kept = going.records.iter().zip(names).filter_map(|(record, name)| {
        let clones = live.pool.clones(record).into_iter().filter(|clone| !without.contains(clone));
        let clones: Vec<_> = clones.map(|clone| live.pool.full_name(clone)).collect();
        (!clones.is_empty()).then_some(Kept { name, clones })
    });
    kept.collect()
}

/// Somebody uses snapshots: a line for each.
pub fn busy(lines: &[String]) -> ApiError {
    ApiError::new(ErrorKind::Busy, lines.join("\n")).safe(NOTHING_CHANGED)
}

/// Such a line.
pub fn line(name: &str) -> String {
    format!("cannot destroy snapshot {name}: dataset is busy")
}

/// Destroys those that were to go with their last hold, which is gone. One that somebody uses goes another time.
pub fn end_deferred(live: &Live, mounts: &mut Mounts) -> Result<()> {
    for record in live.pool.deferred() {
        let going = Going { dataset: record.dataset, records: vec![record] };
        match end(live, mounts, [&going], until(live)) {
            Err(error) if error.kind != ErrorKind::Busy => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Refuses when somebody holds one of these: a line for each. To be asked before anything is taken away for them.
pub fn check_not_held<'a>(live: &Live, going: impl IntoIterator<Item = &'a Going>) -> Result<()> {
    let mut held = Vec::new();
    for one in going {
        for (record, name) in one.records.iter().zip(one.full_names(live)) {
            if let Some(tag) = live.pool.snapshot_holds(record)?.into_keys().next() {
                held.push((name, tag));
            }
        }
    }
    let Some((name, tag)) = held.first() else { return Ok(()) };
    let hint = format!(
        "{name} is held: larder fs release '{tag}' {name} lets go of it; larder fs destroy -d destroys it with its last hold"
    );
    let lines: Vec<_> = held.iter().map(|(name, _)| line(name)).collect();
    Err(busy(&lines).hint(hint))
}

/// Whether the pool's reason is about the snapshot of this name.
pub fn names_one(text: &str, name: &str) -> bool {
    text.starts_with(&format!("snapshot {name} is "))
}

/// One of these is kept, and `text` says which.
pub fn kept(names: &[String], text: &str) -> ApiError {
    let one = names.iter().find(|name| names_one(text, name));
    let lines = one.map_or_else(|| names.iter().map(|name| line(name)).collect(), |name| vec![line(name)]);
    busy(&lines).hint("it is being read; try again when that is over")
}

/// Has the mount let go of snapshots that are to be destroyed.
///
/// # Errors
/// Busy, with a line for each that somebody uses.
pub fn let_go<'a>(
    live: &Live,
    mounts: &mut Mounts,
    going: impl IntoIterator<Item = &'a Going>,
) -> Result<()> {
    let (mut lines, mut why) = (Vec::new(), Vec::new());
    for one in going {
        for (record, name) in one.records.iter().zip(one.full_names(live)) {
            if let Err(who) = mounts.let_go_of_snapshot(record) {
                lines.push(line(&name));
                why.push(format!("{name}: {who}"));
            }
        }
    }
    if lines.is_empty() { Ok(()) } else { Err(busy(&lines).hint(why.join("; "))) }
}

/// Destroys snapshots that nobody uses, durably with the next commit; with a time, they are in the trash until then.
///
/// # Errors
/// Busy, with a line for each that somebody uses; none is destroyed then.
pub fn end<'a>(
    live: &Live,
    mounts: &mut Mounts,
    going: impl IntoIterator<Item = &'a Going>,
    until: Option<Timestamp>,
) -> Result<()> {
    let going: Vec<_> = going.into_iter().filter(|one| !one.records.is_empty()).collect();
    if going.is_empty() {
        return Ok(());
    }
    check_not_held(live, going.iter().copied())?;
    let_go(live, mounts, going.iter().copied())?;
    let each = going.iter().flat_map(|one| one.names().into_iter().map(|name| (one.dataset, name)));
    let each: Vec<_> = each.collect();
    let gone = match until {
        Some(until) => live.pool.trash_snapshots(&each, until),
        None => live.pool.destroy_snapshots(&each),
    };
    match gone {
        Ok(()) => {
            each.iter().for_each(|(dataset, name)| mounts.tell_of_snapshot(*dataset, name));
            Ok(())
        }
        Err(PoolError::Busy(text)) => {
            let names: Vec<_> = going.iter().flat_map(|one| one.full_names(live)).collect();
            Err(kept(&names, &text))
        }
        Err(error) => {
            let name = live.pool.name();
            Err(ApiError::from(error).within("cannot destroy snapshots").of_pool(&name))
        }
    }
}

/// Renames a snapshot, and those of its name below.
pub fn rename(host: &Host, request: &RenameSnapshot) -> Result<Done> {
    let ((dataset, from), (_, to)) = (check_snapshot(&request.from)?, check_snapshot(&request.to)?);
    let (live, _) = host.dataset(dataset)?;
    // Names change under this lock alone.
    let mounts = live.mounts.lock();
    let top = found(&live, dataset)?;
    let has = |dataset: DatasetId, name: &str| live.pool.snapshot_named(dataset, name).is_ok();
    if !has(top.id(), from) {
        return Err(ApiError::no_such_dataset(&request.from));
    }
    let all = if request.recursive { family(&live.pool, top.id()) } else { vec![top] };
    let renamed: Vec<_> =
        all.iter().map(|dataset| dataset.id()).filter(|&dataset| has(dataset, from)).collect();
    let doing = format!("cannot rename '{}'", request.from);
    for &dataset in &renamed {
        let new = format!("{}@{to}", live.pool.full_name(dataset));
        if has(dataset, to) {
            let message = format!("cannot rename to '{new}': dataset already exists");
            return Err(ApiError::new(ErrorKind::Exists, message).safe(NOTHING_CHANGED));
        }
        if new.len() > MAX_NAME {
            let error = ApiError::usage(format!("'{new}' has more than {MAX_NAME} bytes"));
            return Err(error.safe(NOTHING_CHANGED).within(doing));
        }
    }
    let renames: Vec<_> =
        renamed.into_iter().map(|dataset| (dataset, from.to_owned(), to.to_owned())).collect();
    let rename = || {
        live.pool.rename_snapshots(&renames)?;
        live.pool.commit()
    };
    let renamed = rename();
    renamed.map_err(|error| ApiError::from(error).within(doing).of_pool(pool_of(dataset)))?;
    for (dataset, from, to) in &renames {
        mounts.tell_of_snapshot(*dataset, from);
        mounts.tell_of_snapshot(*dataset, to);
    }
    Ok(Done {})
}
