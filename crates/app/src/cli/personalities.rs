//! `larder personalities`: links by whose names the binary speaks like other tools.

use super::args;
use crate::api::{ApiError, ErrorKind, Result};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Makes DIR and in it the links zpool, zfs, zdb and arcstat. Put DIR first in PATH to use them.
Example: larder personalities ~/.local/lib/larder"
)]
pub struct Args {
    dir: PathBuf,
}

const NAMES: &[&str] = &["zpool", "zfs", "zdb", "arcstat"];

/// Runs it.
pub fn run(args: &Args) -> Result<u8> {
    let dir = PathBuf::from(args::absolute(&args.dir)?);
    let failed = |path: &Path, error: &io::Error| {
        ApiError::new(ErrorKind::Denied, format!("cannot make {}: {error}", path.display()))
    };
    let binary = std::env::current_exe().map_err(|error| failed(&dir, &error))?;
    fs::create_dir_all(&dir).map_err(|error| failed(&dir, &error))?;
    for name in NAMES {
        let link = dir.join(name);
        make(&binary, &link).map_err(|error| failed(&link, &error))?;
    }
    Ok(0)
}

/// Makes a link; an older link is replaced, anything else in its place is left alone.
fn make(binary: &Path, link: &Path) -> io::Result<()> {
    match fs::symlink_metadata(link) {
        Ok(found) if found.is_symlink() => fs::remove_file(link)?,
        Ok(_) => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something that is no link is there"));
        }
        Err(_) => {}
    }
    symlink(binary, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_made_and_renewed_but_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("deep/er");
        let args = Args { dir: target.clone() };
        assert_eq!(run(&args), Ok(0));
        assert_eq!(run(&args), Ok(0));
        for name in NAMES {
            assert_eq!(fs::read_link(target.join(name)).unwrap(), std::env::current_exe().unwrap());
        }
        fs::remove_file(target.join("zfs")).unwrap();
        fs::write(target.join("zfs"), "the real one").unwrap();
        assert!(run(&args).is_err());
        assert_eq!(fs::read_to_string(target.join("zfs")).unwrap(), "the real one");
    }
}
