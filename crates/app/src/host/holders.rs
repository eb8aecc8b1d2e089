//! Processes that keep a mount busy, for the error that names them: those with a file or their working folder in it,
//! wherever they reach it. Links of `/proc` and the kernel's cache are read: that asks nothing of the mount, which may
//! not answer.

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use std::fs;
use std::path::{Path, PathBuf};

/// At most this many are named.
const MOST: usize = 5;

/// Processes in `folder`, or on the filesystem `device` (`major:minor`) by whichever path, as `bash (1234)`; those of
/// other users only when we may look.
pub fn of(folder: &Path, device: Option<&str>) -> Vec<String> {
    let device = device.and_then(|device| {
        let (major, minor) = device.split_once(':')?;
        Some(makedev(major.parse().ok()?, minor.parse().ok()?))
    });
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|&id| id != std::process::id() && is_in(&PathBuf::from(format!("/proc/{id}")), folder, device))
        .take(MOST)
        .map(|id| {
            let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            format!("{} ({id})", crate::api::name::printable(name.trim()))
        })
        .collect()
}

fn is_in(process: &Path, folder: &Path, device: Option<u64>) -> bool {
    let on_it = |link: &Path| {
        let cached = AtFlags::STATX_DONT_SYNC;
        let of = |stat: rustix::fs::Statx| makedev(stat.stx_dev_major, stat.stx_dev_minor);
        device.is_some() && statx(CWD, link, cached, StatxFlags::TYPE).ok().map(of) == device
    };
    let here =
        |link: PathBuf| fs::read_link(&link).is_ok_and(|target| target.starts_with(folder)) || on_it(&link);
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    ["cwd", "root", "exe"].iter().any(|link| here(process.join(link)))
        || files.map(|entry| entry.path()).any(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_and_a_working_folder_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("proc");
        fs::create_dir_all(process.join("fd")).unwrap();
        let folder = Path::new("/srv/pool");
        assert!(!is_in(&process, folder, None));
        std::os::unix::fs::symlink("/srv/pool2/file", process.join("fd/3")).unwrap();
        assert!(!is_in(&process, folder, None));
        std::os::unix::fs::symlink("/srv/pool/file", process.join("fd/4")).unwrap();
        assert!(is_in(&process, folder, None));
        fs::remove_file(process.join("fd/4")).unwrap();
        std::os::unix::fs::symlink("/srv/pool", process.join("cwd")).unwrap();
        assert!(is_in(&process, folder, None));
    }
}
