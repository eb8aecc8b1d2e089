//! `larder versions`: which versions of a file snapshots have.

use super::args::{self, Form, Json};
use super::extents::{cannot, file_id};
use super::{Session, out};
use crate::api::extents::{FileVersions, Versions};
use crate::api::{ApiError, ErrorKind, Result};
use crate::render;
use std::fs::{self, File};
use std::path::Path;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A line for each version of what is or was at this path, oldest first: when it was last modified, its size, how
many snapshots have it, the first and the last of them, and whether it is what is there now. The file need not exist
any more, nor its folder. larder restore FILE@SNAPSHOT brings a version back.
Example: larder versions letters/will.odt"
)]
pub struct Args {
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    json: Json,
    file: String,
}

/// Runs it.
pub fn run(args: &Args, session: &Session) -> Result<u8> {
    let found = of(session, &args.file, false)?;
    found.unreadable.iter().for_each(|(_, error)| out::complain(&error.to_string()));
    if args.json.json {
        let files = render::versions::json(&args.file, &found);
        out::print_json(&render::json::envelope("larder versions", "files", files));
    } else if !found.versions.is_empty() {
        out::print(&render::versions::text(&found, args.form.scripted, args.form.exact));
    }
    if found.versions.is_empty() && found.unreadable.is_empty() {
        return Err(none(&args.file, &found));
    }
    Ok(u8::from(!found.unreadable.is_empty()))
}

/// The refusal of a path at which nothing ever was.
pub fn none(path: &str, found: &FileVersions) -> ApiError {
    let message =
        format!("cannot find '{path}': it does not exist, and no snapshot of {} has it", found.dataset);
    ApiError::new(ErrorKind::NotFound, message)
        .hint(format!("larder fs list -t snapshot {} shows the snapshots", found.dataset))
}

/// The versions of the file, or else of the folder, at a path, which need not exist.
///
/// # Errors
/// The daemon's, and when there is no such path.
pub fn of(session: &Session, path: &str, folders: bool) -> Result<FileVersions> {
    let whole = args::absolute(path)?;
    let mut folder = Path::new(&whole);
    let mut names = Vec::new();
    let folder = loop {
        let (Some(above), Some(name)) = (folder.parent(), folder.file_name()) else {
            return Err(ApiError::usage(format!("'{path}' names no file")));
        };
        names.insert(0, name.to_string_lossy().into_owned());
        folder = above;
        // Links on the way lead where they do now.
        match fs::canonicalize(folder) {
            Ok(found) if found.is_dir() => break found,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(cannot("open", path, &error)),
        }
    };
    // It is kept open so that its number stays its own.
    let open = File::open(&folder).map_err(|error| cannot("open", path, &error))?;
    let found = open.metadata().map_err(|error| cannot("open", path, &error))?;
    session.client.call(Versions { folder: file_id(path, &found)?, names, folders })
}
