//! That which the pool knows of a dataset that advice is asked for, and what became of a prediction.

use super::{Session, pool_dedup};
use crate::api::fs::Get;
use crate::api::pool::{PoolStatus, Status};
use crate::api::{ApiError, Item, Result};
use crate::render::advise::{Compared, Known, Line};
use larder_advise::{CodecReport, DedupReport, Report, size};
use larder_app::fuse::is_ours;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Properties that are asked for.
const ASKED: [&str; 7] =
    ["mountpoint", "mounted", "compression", "recordsize", "chunking", "dedup", "compressratio"];

/// A path to look at, and the dataset that it is the top of, if it is one: named as a dataset, or by its mount point.
///
/// # Errors
/// The daemon's, and when it is neither a path nor a mounted dataset.
pub fn place(text: &Path, session: impl FnOnce() -> Result<Session>) -> Result<(PathBuf, Option<String>)> {
    let name = text.to_string_lossy();
    if let Ok(path) = text.canonicalize() {
        // Only what is mounted by a daemon is asked of it: others need none.
        if !is_ours(&path).unwrap_or(false) {
            return Ok((path, None));
        }
        let items = datasets(&session()?, Vec::new())?;
        let top = items.iter().find(|item| value(item, "mountpoint") == path.to_string_lossy());
        return Ok((path, top.map(|item| item.name.clone())));
    }
    if name.starts_with(['/', '.']) {
        return Ok((text.to_owned(), None));
    }
    let items = datasets(&session()?, vec![name.into_owned()])?;
    let item = items.first().ok_or_else(|| ApiError::usage(format!("'{}' is no path", text.display())))?;
    if value(item, "mounted") != "yes" {
        let text = format!("'{}' is not mounted: its files cannot be read", item.name);
        return Err(ApiError::usage(text).hint(format!("larder fs mount {}", item.name)));
    }
    Ok((value(item, "mountpoint").into(), Some(item.name.clone())))
}

fn datasets(session: &Session, names: Vec<String>) -> Result<Vec<Item>> {
    let depth = if names.is_empty() { None } else { Some(0) };
    let properties = ASKED.map(str::to_owned).to_vec();
    Ok(session.client.call(Get { names, depth, properties, ..Get::default() })?.items)
}

fn value<'a>(item: &'a Item, name: &str) -> &'a str {
    item.get(name).map_or("", |property| property.value.as_str())
}

/// That which is known of a dataset: its properties, what compression saves, what sharing saved by the last trace, or
/// by one that is made now.
///
/// # Errors
/// The daemon's.
pub fn known(session: &Session, dataset: &str, trace: bool, told: bool) -> Result<Known> {
    let items = datasets(session, vec![dataset.to_owned()])?;
    let item = items.first().ok_or_else(|| ApiError::usage(format!("'{dataset}' is no dataset")))?;
    let pool = dataset.split('/').next().unwrap_or(dataset).to_owned();
    let pools = match trace {
        true => pool_dedup::traced(session, &[pool], None, told)?,
        false => session.client.call(Status { names: vec![pool] })?.pools,
    };
    let ratio: f64 = value(item, "compressratio").trim_end_matches('x').parse().unwrap_or(1.0);
    Ok(Known {
        dataset: dataset.to_owned(),
        compression: value(item, "compression").to_owned(),
        recordsize: value(item, "recordsize").parse().unwrap_or(128 << 10),
        by_content: value(item, "chunking") == "content",
        dedup: value(item, "dedup").to_owned(),
        compression_saves: if ratio > 0.0 { 1.0 - 1.0 / ratio } else { 0.0 },
        sharing_saves: pools.first().and_then(|pool| sharing(pool, dataset)),
    })
}

/// Part that sharing saved of a dataset and its snapshots; nothing before a trace.
fn sharing(pool: &PoolStatus, dataset: &str) -> Option<f64> {
    let trace = pool.trace.as_ref().filter(|trace| trace.has_counts())?;
    let of = trace.sharing.iter().find(|of| of.dataset == dataset);
    // One that shares nothing is not told of.
    Some(of.map_or(0.0, |of| of.allocated.saturating_sub(of.share) as f64 / of.allocated.max(1) as f64))
}

/// That which is needed of an earlier `larder advise -j`.
#[derive(Debug, Deserialize)]
struct Prediction {
    folders: Vec<PredictedFolder>,
}

#[derive(Debug, Deserialize)]
struct PredictedFolder {
    codecs: Vec<CodecReport>,
    dedup: Vec<DedupReport>,
}

/// Reads what `larder advise -j` said.
///
/// # Errors
/// When it cannot be read, or is something else.
fn earlier(text: &[u8], file: &Path) -> Result<PredictedFolder> {
    let refused = |why: String| {
        ApiError::usage(format!("'{}' is nothing that larder advise -j printed: {why}", file.display()))
    };
    let all: Prediction = serde_json::from_slice(text).map_err(|error| refused(error.to_string()))?;
    all.folders.into_iter().next().ok_or_else(|| refused("it has no folders".to_owned()))
}

/// Holds a prediction against what is known of a dataset.
///
/// # Errors
/// When the file cannot be read.
pub fn compare(file: Option<&Path>, report: Option<&Report>, known: Known) -> Result<Compared> {
    let text = match file {
        Some(file) => {
            fs::read(file).map_err(|error| super::extents::cannot("read", &file.to_string_lossy(), &error))?
        }
        // The same form, so that there is one way to take it.
        None => serde_json::to_vec(&report).expect("reports are plain data"),
    };
    let predicted = earlier(&text, file.unwrap_or(Path::new("-")))?;
    let record = u32::try_from(known.recordsize).unwrap_or(u32::MAX);
    let codec = match known.compression.as_str() {
        "on" => "lz4",
        "zstd" => "zstd-3",
        other => other,
    };
    let codec = predicted.codecs.iter().find(|one| one.codec == codec);
    let dedup = predicted
        .dedup
        .iter()
        .find(|one| u64::from(one.record) == known.recordsize && one.by_content == known.by_content);
    let cut = if known.by_content { " by content" } else { "" };
    Ok(Compared {
        compression: Line {
            what: format!("compression={}", known.compression),
            predicted: codec.map(|one| one.at(record)),
            measured: Some(known.compression_saves),
        },
        dedup: Line {
            what: format!("dedup={} recordsize={}{cut}", known.dedup, size(record)),
            predicted: dedup.map(|one| one.gain),
            measured: known.sharing_saves,
        },
        known,
    })
}
