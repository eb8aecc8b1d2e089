//! `larder clone`: a copy of a file that shares its blocks.
//!
//! Within a mount the kernel is asked (copy_file_range(2)), which knows what other programs have mapped; it does not
//! go from one mount to another, so there the daemon is. Either way the daemon shares what it can and copies the rest.

use super::extents::{cannot, file_id, open};
use super::{Session, out};
use crate::api::extents::CloneFile;
use crate::api::{ApiError, Result};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Bytes that are asked for at a time.
const AT_ONCE: u64 = 1 << 30;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Source and target lie on mounts of one pool; they may be in different datasets. Nothing is read or written:
the copy names the blocks of the source, and whatever is written to either later is its own. What cannot be shared
(files whose recordsize differs) is copied. cp within one mount shares as well; larder extents shows it.
Example: larder clone vm.img vm-test.img"
)]
pub struct Args {
    /// Replace the content of a target that exists
    #[arg(long)]
    overwrite: bool,
    #[arg(value_name = "SOURCE")]
    source: String,
    /// The new file, or a folder for it
    #[arg(value_name = "TARGET")]
    target: String,
}

/// Runs it.
pub fn run(args: &Args, session: &Session) -> Result<u8> {
    let (source, from) = open(&args.source).map_err(|error| match Path::new(&args.source).is_dir() {
        true => error.hint("cp -a shares the blocks of a whole tree within one mount"),
        false => error,
    })?;
    let known = source.metadata().map_err(|error| cannot("open", &args.source, &error))?;
    let path = target_path(args);
    let exists = fs::symlink_metadata(&path).is_ok();
    let target = (OpenOptions::new().write(true).create(true).create_new(!args.overwrite))
        .mode(known.permissions().mode() & 0o777)
        .open(&path)
        .map_err(|error| match exists && !args.overwrite {
            true => cannot("make", &path, &error).hint("--overwrite replaces its content"),
            false => cannot("make", &path, &error),
        })?;
    let outcome = fill(session, (&source, from), &target, &path);
    if outcome.is_err() && !exists {
        // It is ours, and there is nothing in it that anybody wants.
        let _ = fs::remove_file(&path);
    }
    outcome
}

/// The new file's path: in a folder the source's name.
fn target_path(args: &Args) -> String {
    let target = Path::new(&args.target);
    match Path::new(&args.source).file_name().filter(|_| target.is_dir()) {
        Some(name) => target.join(name).to_string_lossy().into_owned(),
        None => args.target.clone(),
    }
}

/// Gives `target`, which is open at `path`, the content of `source`.
///
/// # Errors
/// When they are not of one pool, or it cannot be written.
pub fn fill(
    session: &Session,
    (source, from): (&File, crate::api::extents::FileId),
    target: &File,
    path: &str,
) -> Result<u8> {
    let failed = |error| cannot("copy to", path, &error);
    let (known, found) = (source.metadata().map_err(failed)?, target.metadata().map_err(failed)?);
    if (known.dev(), known.ino()) == (found.dev(), found.ino()) {
        return Err(ApiError::usage(format!("'{}' and '{path}' are the same file", from.path)));
    }
    let ask = CloneFile { source: from, target: file_id(path, &found)?, offset: 0, length: 0 };
    // Both must be files of one pool before anything of the target is cut off.
    session.client.call(ask.clone())?;
    target.set_len(0).map_err(failed)?;
    if known.dev() == found.dev() {
        loop {
            let copied = rustix::fs::copy_file_range(source, None, target, None, AT_ONCE as usize);
            if copied.map_err(|errno| failed(errno.into()))? == 0 {
                return Ok(0);
            }
        }
    }
    // Writes through mmap may not have reached the daemon yet.
    source.sync_data().map_err(failed)?;
    let (mut offset, mut shared) = (0, 0);
    loop {
        let done = session.client.call(CloneFile { offset, length: AT_ONCE, ..ask.clone() })?;
        offset += done.copied;
        shared += done.shared;
        if done.copied == 0 {
            break;
        }
    }
    if shared < offset {
        let copied = larder_pool::property::format_size(offset - shared);
        out::complain(&format!("'{path}': {copied} could not be shared and were copied"));
    }
    Ok(0)
}
