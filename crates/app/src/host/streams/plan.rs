//! Which snapshots are sent, each upon which.

use super::super::Host;
use super::super::live::Live;
use crate::api::name::{check_snapshot, pool_of};
use crate::api::stream::Send;
use crate::api::{ApiError, ErrorKind, Result};
use larder_format::DatasetId;
use larder_format::tables::SnapshotRecord;
use larder_pool::{Dataset, is_momentary};
use larder_stream::Token;
use std::sync::Arc;

/// A snapshot to be sent.
pub struct Step {
    /// Of its dataset, by its full name.
    pub dataset: String,
    /// It.
    pub to: SnapshotRecord,
    /// The one that it builds upon, which may be of another dataset.
    pub from: Option<SnapshotRecord>,
}

/// A dataset, and its snapshots in their order.
pub struct Part {
    /// The dataset.
    pub dataset: Arc<Dataset>,
    /// Its name below the one that is sent.
    pub path: String,
    /// Its snapshots.
    pub steps: Vec<Step>,
}

/// All that a request asks for.
pub struct Plan {
    /// The pool.
    pub live: Arc<Live>,
    /// Datasets, parents and origins first.
    pub parts: Vec<Part>,
    /// Where the first snapshot goes on.
    pub token: Option<Token>,
}

impl Plan {
    /// Of a request.
    pub fn of(host: &Host, request: &Send) -> Result<Self> {
        match &request.token {
            Some(token) => Self::resumed(host, token),
            None => Self::asked(host, request),
        }
    }

    fn resumed(host: &Host, token: &str) -> Result<Self> {
        let token = Token::decode(token).ok_or_else(|| {
            ApiError::new(ErrorKind::Corrupt, "cannot resume send: resume token is corrupt")
        })?;
        let gone = |text: String| {
            Err(ApiError::new(ErrorKind::NotFound, format!("cannot resume send: {text} no longer exists")))
        };
        let (full, _) = check_snapshot(&token.name)?;
        let Ok((live, dataset)) = host.dataset(full) else {
            return gone(format!("'{}' used in the initial send", token.name));
        };
        let all = live.pool.snapshots(dataset.id());
        let Some(to) = all.iter().find(|one| one.guid == token.to).cloned() else {
            return gone(format!("'{}' used in the initial send", token.name));
        };
        let from = match token.from {
            0 => None,
            guid => {
                let origin = live.pool.origin(dataset.id()).filter(|one| one.guid == guid);
                let Some(from) = all.into_iter().find(|one| one.guid == guid).or(origin) else {
                    return gone(format!("incremental source {guid:#x}"));
                };
                Some(from)
            }
        };
        let step = Step { dataset: full.to_owned(), to, from };
        let parts = vec![Part { dataset, path: String::new(), steps: vec![step] }];
        Ok(Self { live, parts, token: Some(token) })
    }

    fn asked(host: &Host, request: &Send) -> Result<Self> {
        let (full, name) = check_snapshot(&request.snapshot)?;
        let missing = || ApiError::no_such_dataset(&request.snapshot);
        let (live, dataset) = host.dataset(full).map_err(|_| missing())?;
        if request.replicate {
            return Self::package(live, &dataset, full, name, request);
        }
        let all = shown(&live, dataset.id());
        let to = all.iter().position(|one| one.name == name).ok_or_else(missing)?;
        let from = match &request.from {
            None => None,
            Some(from) => Some(earlier(&live, &dataset, &all[..=to], from)?),
        };
        let steps = steps(full, &all[..=to], from, request.intermediates)?;
        Ok(Self { live, parts: vec![Part { dataset, path: String::new(), steps }], token: None })
    }

    /// A dataset and all below it, with all snapshots up to those of this name.
    fn package(live: Arc<Live>, top: &Arc<Dataset>, full: &str, name: &str, request: &Send) -> Result<Self> {
        let mut parts = Vec::new();
        for dataset in super::super::datasets::family(&live, top.id()) {
            let own = live.pool.full_name(dataset.id());
            let all = shown(&live, dataset.id());
            let Some(to) = all.iter().position(|one| one.name == name) else {
                if dataset.id() == top.id() {
                    return Err(ApiError::no_such_dataset(&request.snapshot));
                }
                if request.skip_missing {
                    continue;
                }
                // Nobody is to find out when the backup is needed.
                let message =
                    format!("cannot send {full}@{name} recursively: snapshot {own}@{name} does not exist");
                let hint = format!("larder fs snapshot -r {full}@NAME takes it of all; -s passes over {own}");
                return Err(ApiError::new(ErrorKind::NotFound, message).hint(hint));
            };
            let from = match &request.from {
                None => live.pool.origin(dataset.id()).filter(|_| dataset.id() != top.id()),
                Some(from) => {
                    let from = from.rsplit_once('@').map_or("", |(_, from)| from);
                    all[..=to].iter().find(|one| one.name == from).cloned()
                }
            };
            let up_to = &all[..=to];
            let from_here = from.filter(|from| from.dataset != dataset.id() || from.high < up_to[to].high);
            let every = request.from.is_none() || request.intermediates;
            let steps = if every || from_here.is_none() {
                every_step(&own, up_to, from_here)
            } else {
                steps(&own, up_to, from_here, false)?
            };
            let path = own[full.len()..].trim_start_matches('/').to_owned();
            parts.push(Part { dataset, path, steps });
        }
        // Clones come after their origins.
        let mut ordered: Vec<Part> = Vec::new();
        while !parts.is_empty() {
            let is_ready = |part: &Part, left: &[Part]| {
                let first = part.steps.first().and_then(|step| step.from.as_ref());
                let of = first.map(|from| from.dataset).filter(|of| *of != part.dataset.id());
                of.is_none_or(|of| left.iter().all(|other| other.dataset.id() != of))
            };
            let at = (0..parts.len()).find(|&at| is_ready(&parts[at], &parts)).unwrap_or(0);
            ordered.push(parts.remove(at));
        }
        Ok(Self { live, parts: ordered, token: None })
    }
}

fn shown(live: &Live, dataset: DatasetId) -> Vec<SnapshotRecord> {
    live.pool.snapshots(dataset).into_iter().filter(|one| !is_momentary(&one.name)).collect()
}

/// The snapshot, of the dataset or its origin, that an increment builds upon.
fn earlier(live: &Live, dataset: &Dataset, up_to: &[SnapshotRecord], from: &str) -> Result<SnapshotRecord> {
    let missing = || ApiError::no_such_dataset(from);
    if from.contains('#') {
        let why = format!("cannot send from the bookmark '{from}'");
        return Err(ApiError::new(ErrorKind::Unsupported, why).hint("send from a snapshot: -i DATASET@NAME"));
    }
    let (full, name) = check_snapshot(from)?;
    let (last, before) = up_to.split_last().ok_or_else(missing)?;
    if live.pool.full_name(dataset.id()) == full {
        if last.name == name {
            return Err(not_earlier(from));
        }
        return before.iter().find(|one| one.name == name).cloned().ok_or_else(|| {
            match live.pool.snapshot_named(dataset.id(), name) {
                Ok(_) => not_earlier(from),
                Err(_) => missing(),
            }
        });
    }
    if pool_of(full) != live.pool.name() {
        return Err(not_earlier(from));
    }
    let origin = live
        .pool
        .origin(dataset.id())
        .filter(|origin| origin.name == name && live.pool.full_name(origin.dataset) == full);
    origin.ok_or_else(|| not_earlier(from))
}

fn not_earlier(from: &str) -> ApiError {
    ApiError::usage(format!("incremental source ({from}) is not earlier than it"))
}

/// From `from` to the last of `up_to`: at once, or one by one.
fn steps(
    full: &str,
    up_to: &[SnapshotRecord],
    from: Option<SnapshotRecord>,
    intermediates: bool,
) -> Result<Vec<Step>> {
    if intermediates && from.is_none() {
        return Err(ApiError::usage("-I needs the snapshot to begin with"));
    }
    if intermediates {
        let high = from.as_ref().map(|from| from.high);
        let first = up_to.iter().position(|one| high.is_none_or(|high| one.high > high)).unwrap_or(0);
        return Ok(every_step(full, &up_to[first..], from));
    }
    let to = up_to.last().cloned().ok_or_else(|| ApiError::no_such_dataset(full))?;
    Ok(vec![Step { dataset: full.to_owned(), to, from }])
}

fn every_step(full: &str, all: &[SnapshotRecord], from: Option<SnapshotRecord>) -> Vec<Step> {
    let high = from.as_ref().map(|from| from.high);
    let mut before = from;
    let later = all.iter().filter(|one| high.is_none_or(|high| one.high > high));
    let step = |to: &SnapshotRecord| {
        let from = before.replace(to.clone());
        Step { dataset: full.to_owned(), to: to.clone(), from }
    };
    later.map(step).collect()
}
