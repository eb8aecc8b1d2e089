//! Folders and files, seen by system calls.

use crate::model::{Seen, Sight};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything below a folder, as far as it can be seen.
#[derive(Debug, Default)]
pub struct Look {
    /// The part that can be.
    pub sight: Sight,
    /// Paths that gave an I/O error: files, attributes, folders that could not be listed.
    pub failed: Vec<String>,
    /// Bytes that were read.
    pub bytes: u64,
}

/// Looks at everything below a folder. I/O errors are noted, not returned.
///
/// # Errors
/// Any other error, with its path.
pub fn look(top: &Path) -> Result<Look, (PathBuf, io::Error)> {
    let mut found = Look::default();
    let mut known: BTreeMap<u64, Option<Arc<Vec<u8>>>> = BTreeMap::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let at = top.join(&folder);
        let listed = fs::read_dir(&at).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let Some(listed) = known_error(listed, &mut found, &folder).map_err(|error| (at, error))? else {
            continue;
        };
        for entry in listed {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let at = top.join(&path);
            let seen = see(&at, &mut known, &mut found.bytes);
            let Some(seen) = known_error(seen, &mut found, &path).map_err(|error| (at, error))? else {
                continue;
            };
            match &seen {
                Seen::Folder => folders.push(path.clone()),
                Seen::File { bytes: None, .. } => found.failed.push(path.clone()),
                _ => {}
            }
            found.sight.insert(path, seen);
        }
    }
    Ok(found)
}

/// Nothing for an I/O error, which is noted.
fn known_error<T>(result: io::Result<T>, found: &mut Look, path: &str) -> io::Result<Option<T>> {
    match result {
        Err(error) if is_io(&error) => {
            found.failed.push(path.to_owned());
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Whether it is EIO.
pub fn is_io(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// Whether it is that there is no room.
pub fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

fn see(at: &Path, known: &mut BTreeMap<u64, Option<Arc<Vec<u8>>>>, bytes: &mut u64) -> io::Result<Seen> {
    let meta = fs::symlink_metadata(at)?;
    if meta.is_dir() {
        return Ok(Seen::Folder);
    }
    if meta.is_symlink() {
        return Ok(Seen::Link(fs::read_link(at)?.to_string_lossy().into_owned()));
    }
    let content = match known.get(&meta.ino()) {
        Some(content) => content.clone(),
        None => {
            let content = match read(at) {
                Err(error) if is_io(&error) => None,
                content => Some(Arc::new(content?)),
            };
            *bytes += content.as_ref().map_or(0, |content| content.len() as u64);
            known.insert(meta.ino(), content.clone());
            content
        }
    };
    let extended = extended(at)?;
    Ok(Seen::File { inode: meta.ino(), mode: meta.mode() & 0o7777, extended, bytes: content })
}

/// All of a file.
///
/// # Errors
/// Of open and read.
pub fn read(at: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(at)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn extended(at: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(at, &mut names)?;
    let mut all = BTreeMap::new();
    for name in names[..len].split(|&byte| byte == 0) {
        let name = String::from_utf8_lossy(name).into_owned();
        if name.starts_with("user.") {
            let mut value = vec![0; 4096];
            let len = rustix::fs::lgetxattr(at, name.as_str(), &mut value)?;
            value.truncate(len);
            all.insert(name, value);
        }
    }
    Ok(all)
}
