//! Which snapshots are sent, each upon which.

use super::super::Host;
use super::super::datasets::family;
use super::super::live::Live;
use crate::api::name::{check_bookmark, check_snapshot, pool_of};
use crate::api::stream::Send;
use crate::api::{ApiError, ErrorKind, Result};
use larder_format::DatasetId;
use larder_format::bookmark::BookmarkRecord;
use larder_format::tables::SnapshotRecord;
use larder_pool::{Dataset, Pool, is_momentary};
use larder_stream::Token;
use std::sync::Arc;

/// A snapshot to be sent.
pub struct Step {
    /// Of its dataset, by its full name.
    pub dataset: String,
    /// It.
    pub to: SnapshotRecord,
    /// The one that it builds upon.
    pub from: Option<Source>,
}

/// A snapshot that another builds upon; it may be of another dataset.
pub enum Source {
    /// It is there.
    Snapshot(SnapshotRecord),
    /// A bookmark of this dataset is left of it.
    Bookmark(DatasetId, BookmarkRecord),
}

impl Source {
    /// The dataset that has it.
    pub fn dataset(&self) -> DatasetId {
        match self {
            Self::Snapshot(record) => record.dataset,
            Self::Bookmark(dataset, _) => *dataset,
        }
    }

    /// Its full name.
    pub fn name(&self, pool: &Pool) -> String {
        let full = pool.full_name(self.dataset());
        match self {
            Self::Snapshot(record) => format!("{full}@{}", record.name),
            Self::Bookmark(_, mark) => format!("{full}#{}", mark.name),
        }
    }

    /// A bookmark, to be sent to `to` from.
    fn of_bookmark(
        pool: &Pool,
        (dataset, mark): (DatasetId, BookmarkRecord),
        to: &SnapshotRecord,
    ) -> Result<Self> {
        let full = format!("{}#{}", pool.full_name(dataset), mark.name);
        if !pool.came_of(dataset, &mark, to) {
            return Err(not_earlier(&full));
        }
        if !pool.is_traced(&mark) {
            let why = format!(
                "cannot send from the bookmark '{full}': what changed since is not known for certain"
            );
            return Err(ApiError::new(ErrorKind::Unsupported, why).hint(
                "an older version of Larder wrote to the pool since, or it was damaged; send from a snapshot that is \
                 still there, or all of it",
            ));
        }
        Ok(Self::Bookmark(dataset, mark))
    }
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
    /// Datasets, parents and origins first.
    pub parts: Vec<Part>,
    /// Where the first snapshot goes on.
    pub token: Option<Token>,
}

/// The imported pool that a request is about.
pub fn pool_asked(host: &Host, request: &Send) -> Result<Arc<Live>> {
    let name = match &request.token {
        Some(token) => decoded(token)?.name,
        None => request.snapshot.clone(),
    };
    let (full, _) = check_snapshot(&name)?;
    host.pool(pool_of(full)).map_err(|_| match &request.token {
        Some(_) => no_longer(&format!("'{name}' used in the initial send")),
        None => ApiError::no_such_dataset(&name),
    })
}

fn decoded(token: &str) -> Result<Token> {
    Token::decode(token)
        .ok_or_else(|| ApiError::new(ErrorKind::Corrupt, "cannot resume send: resume token is corrupt"))
}

fn no_longer(what: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("cannot resume send: {what} no longer exists"))
}

impl Plan {
    /// Of a request to a pool.
    pub fn of(pool: &Pool, request: &Send) -> Result<Self> {
        match &request.token {
            Some(token) => Self::resumed(pool, token),
            None => Self::asked(pool, request),
        }
    }

    fn resumed(pool: &Pool, token: &str) -> Result<Self> {
        let token = decoded(token)?;
        let gone = |text: String| Err(no_longer(&text));
        let (full, _) = check_snapshot(&token.name)?;
        let Ok(dataset) = pool.dataset_by_name(full) else {
            return gone(format!("'{}' used in the initial send", token.name));
        };
        let all = pool.snapshots(dataset.id());
        let Some(to) = all.iter().find(|one| one.guid == token.to).cloned() else {
            return gone(format!("'{}' used in the initial send", token.name));
        };
        let from = match token.from {
            0 => None,
            guid => {
                let Some(from) = source(pool, dataset.id(), guid, &to)? else {
                    return gone(format!("incremental source {guid:#x}"));
                };
                Some(from)
            }
        };
        let step = Step { dataset: full.to_owned(), to, from };
        let parts = vec![Part { dataset, path: String::new(), steps: vec![step] }];
        Ok(Self { parts, token: Some(token) })
    }

    fn asked(pool: &Pool, request: &Send) -> Result<Self> {
        let (full, name) = check_snapshot(&request.snapshot)?;
        let missing = || ApiError::no_such_dataset(&request.snapshot);
        let dataset = pool.dataset_by_name(full).map_err(|_| missing())?;
        let is_bookmark = request.from.as_deref().is_some_and(|from| from.contains('#'));
        if is_bookmark && (request.replicate || request.intermediates) {
            let option = if request.replicate { "-R" } else { "-I" };
            return Err(ApiError::usage(format!("{option} needs a snapshot to begin with, and no bookmark")));
        }
        if request.replicate {
            return Self::package(pool, &dataset, full, name, request);
        }
        let all = shown(pool, dataset.id());
        let to = all.iter().position(|one| one.name == name).ok_or_else(missing)?;
        let up_to = &all[..=to];
        let from = request.from.as_deref().map(|from| earlier(pool, &dataset, up_to, from)).transpose()?;
        let steps = match (from, request.intermediates) {
            (None, true) => return Err(ApiError::usage("-I needs the snapshot to begin with")),
            (Some(Source::Snapshot(from)), true) => every_step(full, up_to, Some(from)),
            (from, _) => vec![Step { dataset: full.to_owned(), to: all[to].clone(), from }],
        };
        Ok(Self { parts: vec![Part { dataset, path: String::new(), steps }], token: None })
    }

    /// A dataset and all below it, with all snapshots up to those of this name.
    fn package(pool: &Pool, top: &Arc<Dataset>, full: &str, name: &str, request: &Send) -> Result<Self> {
        let mut parts = Vec::new();
        for dataset in family(pool, top.id()) {
            let own = pool.full_name(dataset.id());
            let all = shown(pool, dataset.id());
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
                None => pool.origin(dataset.id()).filter(|_| dataset.id() != top.id()),
                Some(from) => {
                    let from = from.rsplit_once('@').map_or("", |(_, from)| from);
                    all[..=to].iter().find(|one| one.name == from).cloned()
                }
            };
            let up_to = &all[..=to];
            let from_here = from.filter(|from| from.dataset != dataset.id() || from.high < up_to[to].high);
            let every = request.from.is_none() || request.intermediates;
            let steps = match from_here {
                Some(from) if !every => {
                    let from = Some(Source::Snapshot(from));
                    vec![Step { dataset: own.clone(), to: all[to].clone(), from }]
                }
                from => every_step(&own, up_to, from),
            };
            let path = own[full.len()..].trim_start_matches('/').to_owned();
            parts.push(Part { dataset, path, steps });
        }
        // Clones come after their origins, and what is below them after them.
        let mut ordered: Vec<Part> = Vec::new();
        while !parts.is_empty() {
            let is_ready = |part: &Part, left: &[Part]| {
                let first = part.steps.first().and_then(|step| step.from.as_ref());
                let before = [first.map(Source::dataset), Some(part.dataset.parent())];
                let is_left = |of: DatasetId| left.iter().any(|other| other.dataset.id() == of);
                before.into_iter().flatten().all(|of| of == part.dataset.id() || !is_left(of))
            };
            let at = (0..parts.len()).find(|&at| is_ready(&parts[at], &parts)).unwrap_or(0);
            ordered.push(parts.remove(at));
        }
        Ok(Self { parts: ordered, token: None })
    }
}

fn shown(pool: &Pool, dataset: DatasetId) -> Vec<SnapshotRecord> {
    pool.snapshots(dataset).into_iter().filter(|one| !is_momentary(&one.name)).collect()
}

/// Source of this GUID, older than a snapshot of a dataset: a snapshot of the dataset, its origin, or a bookmark.
fn source(pool: &Pool, dataset: DatasetId, guid: u64, to: &SnapshotRecord) -> Result<Option<Source>> {
    if let Some(found) = still_there(pool, dataset, guid, to) {
        return Ok(Some(found));
    }
    let mut of = Some(dataset);
    while let Some(dataset) = of {
        if let Some(mark) = pool.bookmarks(dataset).into_iter().find(|one| one.guid == guid) {
            return Source::of_bookmark(pool, (dataset, mark), to).map(Some);
        }
        of = pool.origin(dataset).map(|origin| origin.dataset);
    }
    Ok(None)
}

/// The snapshot of this GUID that came before another one of the dataset: of the dataset, or its origin.
fn still_there(pool: &Pool, dataset: DatasetId, guid: u64, to: &SnapshotRecord) -> Option<Source> {
    let origin = pool.origin(dataset).filter(|one| one.guid == guid);
    let taken = pool.snapshots(dataset).into_iter().find(|one| one.guid == guid && one.high < to.high);
    taken.or(origin).map(Source::Snapshot)
}

/// Source that a bookmark is left of: the snapshot while it is there, since its tree tells more, else the bookmark.
fn marked(pool: &Pool, dataset: &Dataset, to: &SnapshotRecord, from: &str) -> Result<Source> {
    let missing =
        || ApiError::new(ErrorKind::NotFound, format!("incremental source ({from}) does not exist"));
    let (full, name) = check_bookmark(from)?;
    let of = pool.dataset_by_name(full).map_err(|_| missing())?.id();
    let mark = pool.bookmark(of, name).map_err(|_| missing())?;
    if mark.guid == to.guid {
        return Err(not_earlier(from));
    }
    match still_there(pool, dataset.id(), mark.guid, to) {
        Some(found) => Ok(found),
        None => Source::of_bookmark(pool, (of, mark), to),
    }
}

/// Source of an increment by its name: a snapshot of the dataset or its origin, or a bookmark.
fn earlier(pool: &Pool, dataset: &Dataset, up_to: &[SnapshotRecord], from: &str) -> Result<Source> {
    let missing = || ApiError::no_such_dataset(from);
    let (last, before) = up_to.split_last().ok_or_else(missing)?;
    if from.contains('#') {
        return marked(pool, dataset, last, from);
    }
    let (full, name) = check_snapshot(from)?;
    if pool.full_name(dataset.id()) == full {
        if last.name == name {
            return Err(not_earlier(from));
        }
        let found = before.iter().find(|one| one.name == name).cloned();
        return found.map(Source::Snapshot).ok_or_else(|| match pool.snapshot_named(dataset.id(), name) {
            Ok(_) => not_earlier(from),
            Err(_) => missing(),
        });
    }
    if pool_of(full) != pool.name() {
        return Err(not_earlier(from));
    }
    let origin = pool
        .origin(dataset.id())
        .filter(|origin| origin.name == name && pool.full_name(origin.dataset) == full);
    origin.map(Source::Snapshot).ok_or_else(|| not_earlier(from))
}

fn not_earlier(from: &str) -> ApiError {
    ApiError::usage(format!("incremental source ({from}) is not earlier than it"))
}

/// From `from` to each of `all` that is later, one by one.
fn every_step(full: &str, all: &[SnapshotRecord], from: Option<SnapshotRecord>) -> Vec<Step> {
    let high = from.as_ref().map(|from| from.high);
    let mut before = from;
    let later = all.iter().filter(|one| high.is_none_or(|high| one.high > high));
    let step = |to: &SnapshotRecord| {
        let from = before.replace(to.clone()).map(Source::Snapshot);
        Step { dataset: full.to_owned(), to: to.clone(), from }
    };
    later.map(step).collect()
}
