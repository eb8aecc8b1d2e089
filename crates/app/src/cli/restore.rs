//! `larder restore`: a version of a file, or a folder, comes back from a snapshot.
//!
//! It is made under another name beside its place and gets its name when it is whole and durable: a crash leaves all of
//! it or nothing, and at worst a hidden file to remove. Its content is shared with the snapshot. Nothing that is there
//! is replaced unasked, and whoever asks is told where the replaced one is kept, or that it is not.

use super::args::Yes;
use super::extents::cannot;
use super::restore_copy::{Copy, extended};
use super::restore_place::{Place, Private, Seen};
use super::{Session, out, versions};
use crate::api::extents::{FileVersions, Version};
use crate::api::name::pool_of;
use crate::api::{ApiError, ErrorKind, Result};
use crate::render::date_to_second;
use larder_pool::property::format_size;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "larder versions FILE tells which snapshots have it. The file need not exist any more. What comes back shares its
blocks with the snapshot, and has its mode, owner, times and attributes. If there is another version at its place,
nothing is done: give TO another name, or --replace. A folder comes back with all in it, to a name that is free.
Example: larder restore letters/will.odt@monday
         larder restore letters/will.odt@monday letters/will-of-monday.odt
         larder restore letters@monday letters-of-monday"
)]
pub struct Args {
    /// Replace what is at its place; tells which snapshot keeps that, or that none does
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    yes: Yes,
    /// A file or folder, and after the last @ a snapshot of its dataset
    #[arg(value_name = "FILE@SNAPSHOT")]
    version: String,
    /// Another place for it, or a folder to put it in
    to: Option<String>,
}

/// Runs it.
pub fn run(args: &Args, session: &Session) -> Result<u8> {
    let (path, snapshot) = split(&args.version)?;
    let place = Place::of(path, args.to.as_deref())?;
    // Before all checks, so that they are about this folder. A version that is not there is told first, though.
    let folder = place.folder();
    let there = folder.as_ref().map_or(Ok(None), |folder| place.there(folder));
    let found = versions::of(session, path, true)?;
    let source = source(&args.version, path, snapshot, &found)?;
    let version = fs::symlink_metadata(&source).map_err(|error| cannot("read", &args.version, &error))?;
    let (folder, there) = (folder?, there?);
    let mut lost = None;
    if let Some(there) = &there {
        let present = match args.to {
            None => Some(found.clone()),
            // It may be anywhere.
            Some(_) => versions::of(session, &place.shown, true).ok(),
        };
        let live = present.as_ref().and_then(|found| found.versions.iter().find(|version| version.live));
        let is_same = |live: &Version| args.to.is_none() && live.snapshots.iter().any(|one| one == snapshot);
        if !there.is_dir()
            && live.is_some_and(is_same)
            && looks_same((there, &place.path), (&version, &source))
        {
            out::complain(&format!("'{path}' is as it is in {snapshot}: nothing was done"));
            return Ok(0);
        }
        let kept = live.and_then(|live| live.snapshots.last()).cloned();
        if there.is_dir() || version.is_dir() || !args.replace {
            let is_folder = there.is_dir() || version.is_dir();
            return Err(refusal(args, &place, snapshot, is_folder, kept.as_deref(), present.as_ref()));
        }
        let was = format!("{} of {}", format_size(there.len()), date_to_second(there.mtime()));
        if kept.is_none() {
            let question =
                format!("What is at '{}' now ({was}) is in no snapshot and will be lost.", place.shown);
            if !session.goes_ahead(args.yes, &question) {
                return Ok(1);
            }
        }
        let of = |found: &FileVersions| found.dataset.clone();
        lost = Some(match (kept, present.as_ref().map(of)) {
            (Some(kept), Some(dataset)) => {
                format!("replaced '{}' ({was}), which is kept in {dataset}@{kept}", place.shown)
            }
            _ => format!("replaced '{}' ({was}), which was in no snapshot", place.shown),
        });
    }
    bring_back(session, pool_of(&found.dataset), &source, &place, &folder, there.as_ref().map(Seen::of))?;
    if let Some(lost) = lost {
        out::complain(&lost);
    }
    Ok(0)
}

/// Splits `FILE@SNAPSHOT`: names of files may have an `@`, those of snapshots have none.
fn split(text: &str) -> Result<(&str, &str)> {
    match text.rsplit_once('@') {
        Some((path, snapshot)) if !path.is_empty() && !snapshot.is_empty() && !snapshot.contains('/') => {
            Ok((path, snapshot))
        }
        _ => Err(ApiError::usage(format!("'{text}' names no version: that is FILE@SNAPSHOT"))
            .hint(format!("larder versions {text} tells which snapshots have it"))),
    }
}

/// The version as a path in `.zfs`.
fn source(asked: &str, path: &str, snapshot: &str, found: &FileVersions) -> Result<PathBuf> {
    let Some(root) = &found.mountpoint else {
        let message = format!("cannot restore '{asked}': {} is not mounted", found.dataset);
        return Err(
            ApiError::new(ErrorKind::NotFound, message).hint(format!("larder fs mount {}", found.dataset))
        );
    };
    if let Some((_, error)) = found.unreadable.iter().find(|(one, _)| one.as_deref() == Some(snapshot)) {
        return Err(error.clone());
    }
    let folder = Path::new(root).join(".zfs/snapshot").join(snapshot);
    if fs::symlink_metadata(&folder).is_err() {
        let message = format!("cannot restore '{asked}': there is no snapshot {}@{snapshot}", found.dataset);
        let error = ApiError::new(ErrorKind::NotFound, message);
        // The last @ may have been meant as a part of the name.
        return Err(error.hint(match fs::symlink_metadata(asked) {
            Ok(_) => {
                format!("'{asked}' is a file; a version of it is {asked}@SNAPSHOT: larder versions {asked}")
            }
            Err(_) => format!("larder versions {path} tells which snapshots have it"),
        }));
    }
    let has = |version: &Version| version.snapshots.iter().any(|one| one == snapshot);
    if !found.versions.iter().any(has) {
        let message = format!("cannot restore '{asked}': '{path}' is not in {}@{snapshot}", found.dataset);
        return Err(ApiError::new(ErrorKind::NotFound, message)
            .hint(format!("larder versions {path} tells which snapshots have it")));
    }
    Ok(folder.join(&found.path))
}

/// Whether attributes that a version does not count are the same.
fn looks_same(there: (&Metadata, &Path), version: (&Metadata, &Path)) -> bool {
    let key = |of: &Metadata| (of.mode(), of.uid(), of.gid());
    let more = |path: &Path| File::open(path).ok().and_then(|open| extended(&open).ok());
    key(there.0) == key(version.0) && (!version.0.is_file() || more(there.1) == more(version.1))
}

/// The refusal to replace what is there.
fn refusal(
    args: &Args,
    place: &Place,
    snapshot: &str,
    is_folder: bool,
    kept: Option<&str>,
    present: Option<&FileVersions>,
) -> ApiError {
    let shown = &place.shown;
    let why = match is_folder {
        true => format!("cannot restore '{}': '{shown}' exists", args.version),
        false => format!("cannot restore '{}': '{shown}' exists and is another version", args.version),
    };
    let beside = format!("larder restore {} {shown}.{snapshot}", args.version);
    let hint = match (is_folder, kept, present) {
        (true, ..) => format!("to have it beside: {beside}"),
        (false, Some(kept), _) => {
            format!("to have it beside: {beside}; to replace what is there, which {kept} keeps: --replace")
        }
        (false, None, Some(present)) => format!(
            "to have it beside: {beside}; what is there is in no snapshot: larder fs snapshot {}@NAME keeps it, then \
             --replace",
            present.dataset
        ),
        (false, None, None) => format!("to have it beside: {beside}; to replace what is there: --replace"),
    };
    ApiError::new(ErrorKind::Exists, why).safe("everything: nothing was changed").hint(hint)
}

/// Makes it beside its place, and gives it its name.
fn bring_back(
    session: &Session,
    pool: &str,
    source: &Path,
    place: &Place,
    folder: &File,
    there: Option<Seen>,
) -> Result<()> {
    let name = place.name()?;
    // Modes are those of the snapshot.
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut private = Private::new(folder, name, &place.shown)?;
    {
        let mut copy = Copy::new(session, private.open());
        copy.object(source, private.open(), name, &place.shown)?;
        copy.sync(pool, &place.shown)?;
    }
    place.take(folder, &mut private, there)?;
    drop(private);
    folder.sync_all().map_err(|error| {
        let error = cannot("sync the folder of", &place.shown, &error);
        error.safe("it is in place").hint("after a power cut it may be gone again: larder pool sync")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_at_sign_parts_file_and_snapshot() {
        assert_eq!(split("a@b@c"), Ok(("a@b", "c")));
        assert_eq!(split("dir@x/a@2026-11-24_17:59:01"), Ok(("dir@x/a", "2026-11-24_17:59:01")));
        for bad in ["a", "a@", "@a", "dir@x/a"] {
            assert_eq!(split(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn the_way_out_of_a_refusal_loses_nothing() {
        let args = Args { replace: false, yes: Yes::default(), version: "a@x".into(), to: None };
        let place = Place::of("a", None).unwrap();
        let found = FileVersions {
            dataset: "tank/d".into(),
            mountpoint: None,
            path: "a".into(),
            versions: vec![],
            unreadable: vec![],
        };
        let hint = |is_folder, kept| refusal(&args, &place, "x", is_folder, kept, Some(&found)).hint.unwrap();
        assert!(hint(false, Some("y")).ends_with("which y keeps: --replace"));
        assert!(hint(false, None).contains("larder fs snapshot tank/d@NAME keeps it, then --replace"));
        assert_eq!(hint(true, None), "to have it beside: larder restore a@x a.x");
    }
}
