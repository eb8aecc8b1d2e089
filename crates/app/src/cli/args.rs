//! Arguments that several verbs share, and how their texts are read.

use crate::api::{ApiError, Properties, Result};
use larder_device::FaultDevice;
use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// `-f`, which real scripts pass: tolerated under the names `zpool` and `zfs`, and without effect.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Force {
    /// Tolerated for scripts written for zpool and zfs
    #[arg(short = 'f', hide = true)]
    pub force: bool,
}

/// `--yes`, for what loses something.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Yes {
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

/// `-H` and `-p`.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Form {
    /// For scripts: no header, columns separated by one tab
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers: bytes, seconds since 1970
    #[arg(short = 'p')]
    pub exact: bool,
}

/// `-j`.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Json {
    /// Print JSON
    #[arg(short = 'j', long = "json")]
    pub json: bool,
}

/// Splits `name=value`.
///
/// # Errors
/// When there is no `=`, or nothing before it.
pub fn assignment(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not of the form property=value")),
    }
}

/// Collects assignments.
///
/// # Errors
/// Usage, when a property is given twice.
pub fn properties(pairs: Vec<(String, String)>) -> Result<Properties> {
    let mut all = Properties::new();
    for (name, value) in pairs {
        if all.insert(name.clone(), value).is_some() {
            return Err(ApiError::usage(format!("property '{name}' is given twice")));
        }
    }
    Ok(all)
}

/// The absolute form of a path that a person typed here; the daemon lives elsewhere.
///
/// # Errors
/// Usage, when it is empty or not UTF-8.
pub fn absolute(path: impl AsRef<OsStr>) -> Result<String> {
    let path = Path::new(path.as_ref());
    let absolute = std::path::absolute(path)
        .map_err(|error| ApiError::usage(format!("'{}' is no path: {error}", path.display())))?;
    // `std::path::absolute` leaves `..` alone; what exists is better named without.
    let absolute = match absolute.components().any(|part| part.as_os_str() == "..") {
        true => absolute.canonicalize().unwrap_or(absolute),
        false => absolute,
    };
    absolute
        .into_os_string()
        .into_string()
        .map_err(|path| ApiError::usage(format!("'{}' is not UTF-8", Path::new(&path).display())))
}

/// The device that a person names: `sda` is `/dev/sda` where that is a block device, all else is a path. A path
/// that is to be opened with faults keeps its prefix.
///
/// # Errors
/// As [`absolute`].
pub fn device(text: &str) -> Result<String> {
    if let Some(behind) = text.strip_prefix(FaultDevice::PREFIX) {
        return Ok(format!("{}{}", FaultDevice::PREFIX, device(behind)?));
    }
    let bare = !text.contains('/');
    let in_dev = Path::new("/dev").join(text);
    if bare && in_dev.metadata().is_ok_and(|found| found.file_type().is_block_device()) {
        return Ok(format!("/dev/{text}"));
    }
    absolute(text)
}

/// Bytes a second, of `200M`; 0 where no limit is asked for.
///
/// # Errors
/// Usage, when it is none.
pub fn rate(text: Option<&str>) -> Result<u64> {
    let Some(text) = text else { return Ok(0) };
    let rate = larder_pool::property::parse_size(text).filter(|&rate| rate > 0);
    rate.ok_or_else(|| ApiError::usage(format!("'{text}' is no rate: bytes a second, as 200M")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_split_at_the_first_equals_sign() {
        assert_eq!(assignment("a:b=c=d"), Ok(("a:b".into(), "c=d".into())));
        assert_eq!(assignment("comment="), Ok(("comment".into(), String::new())));
        assert!(assignment("nothing").is_err());
        assert!(assignment("=x").is_err());
    }

    #[test]
    fn paths_become_absolute_where_they_were_typed() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(Path::new(&device("disk0").unwrap()), here.join("disk0"));
        assert_eq!(Path::new(&device("./x/disk0").unwrap()), here.join("x/disk0"));
        assert_eq!(device("/a/b").unwrap(), "/a/b");
        assert_eq!(device("fault:/a/b").unwrap(), "fault:/a/b");
        assert_eq!(device("fault:x").unwrap(), format!("fault:{}", here.join("x").display()));
        assert!(device("").is_err() && device("fault:").is_err());
    }
}
