//! `larder extents`: which blocks a file is made of, where they lie, and what is shared.

use super::args::{self, Json};
use super::{Session, out};
use crate::api::extents::{Extents, FileExtents, FileId};
use crate::api::{ApiError, ErrorKind, Result};
use crate::render;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "As filefrag -v does elsewhere: for each extent its place in the file, its block, and where that lies
(the first copy's device and offset). A block is shared when other files, or other places of this one, name it too,
or did before the last trace.
Example: larder extents -p /mnt/tank/disk.img"
)]
pub struct Args {
    /// Exact numbers, for scripts: bytes
    #[arg(short = 'p')]
    exact: bool,
    #[command(flatten)]
    json: Json,
    /// Files on a mount of larder
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
}

/// Runs it.
pub fn run(args: &Args, session: &Session) -> Result<u8> {
    let mut failed = false;
    let mut found = Vec::new();
    for path in &args.files {
        match extents(session, path) {
            Ok(file) if args.json.json => found.push((path.clone(), file)),
            Ok(file) => out::print(&render::extents::text(path, &file, args.exact)),
            Err(error) => {
                failed = true;
                out::complain(&error.to_string());
            }
        }
    }
    if args.json.json {
        let files = render::extents::json(&found);
        out::print_json(&render::json::envelope("larder extents", "files", files));
    }
    Ok(u8::from(failed))
}

/// All extents of a file.
fn extents(session: &Session, path: &str) -> Result<FileExtents> {
    // It is kept open so that its number stays its own.
    let (_file, file) = open(path)?;
    let mut all = session.client.call(Extents { file: file.clone(), from: 0 })?;
    while let Some(from) = all.next {
        let more = session.client.call(Extents { file: file.clone(), from })?;
        all.extents.extend(more.extents);
        all.next = more.next;
    }
    Ok(all)
}

/// Opens a regular file, and says how the daemon finds it.
///
/// # Errors
/// When it cannot be opened, or is something else.
pub fn open(path: &str) -> Result<(File, FileId)> {
    let kind = std::fs::metadata(path).map_err(|error| cannot("open", path, &error))?.file_type();
    if kind.is_dir() {
        return Err(ApiError::usage(format!("'{path}' is a directory")));
    }
    if !kind.is_file() {
        return Err(ApiError::usage(format!("'{path}' is no regular file")));
    }
    let file = File::open(path).map_err(|error| cannot("open", path, &error))?;
    let found = file.metadata().map_err(|error| cannot("open", path, &error))?;
    Ok((file, file_id(path, &found)?))
}

/// Identity of a file for the daemon: path, device, inode.
///
/// # Errors
/// When its path cannot be told.
pub fn file_id(path: &str, found: &Metadata) -> Result<FileId> {
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    Ok(FileId { path: args::absolute(path)?, device: format!("{major}:{minor}"), inode: found.ino() })
}

/// An I/O error on the file `path` as an [`ApiError`].
pub fn cannot(what: &str, path: &str, error: &io::Error) -> ApiError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        _ => ErrorKind::Denied,
    };
    // Without the number that Rust adds.
    let text = error.to_string();
    let why = text.split(" (os error").next().unwrap_or(&text).to_lowercase();
    ApiError::new(kind, format!("cannot {what} '{path}': {why}"))
}
