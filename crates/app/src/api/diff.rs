//! Requests and lines of `larder fs diff`. The reply is a stream, one [`Line`] after the other.

use super::{ApiError, ErrorKind, Result, name};
use serde::{Deserialize, Serialize};

/// Compares a dataset as it was with what it was later, or is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    /// A snapshot.
    pub from: String,
    /// A later one of the same dataset, or the dataset.
    pub to: String,
}

impl Diff {
    /// The request with both names in full, when its parts make sense: `DATASET@A`, and `DATASET@B`, `@B` or `DATASET`;
    /// or `@A` and one of the others in full.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        let Self { mut from, mut to } = self;
        let dataset = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
        if from.starts_with('@') {
            from = format!("{}{from}", dataset(&to));
        } else if to.starts_with('@') {
            to = format!("{}{to}", dataset(&from));
        }
        let refuse = |why: &str| Err(ApiError::usage(format!("cannot compare '{from}' with '{to}': {why}")));
        if !from.contains('@') {
            return refuse("the first is a snapshot: DATASET@NAME");
        }
        name::check_snapshot(&from)?;
        match to.contains('@') {
            true => drop(name::check_snapshot(&to)?),
            false => name::check_dataset(&to)?,
        }
        if dataset(&from) != dataset(&to) {
            return refuse("they are not of the same dataset");
        }
        if from == to {
            return refuse("they are the same snapshot");
        }
        Ok(Self { from, to })
    }
}

/// A part of the reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first one: where the dataset is mounted. Paths begin below it.
    Began(Option<String>),
    /// A file or folder that differs.
    Change(Change),
    /// One that differs, of which something cannot be read.
    Unknown(ApiError),
    /// More is being looked for; nobody is shown this.
    Going,
    /// The last one, when all was told.
    Ended,
    /// The last one, when not.
    Failed(ApiError),
}

/// A file or folder that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The difference.
    pub kind: Kind,
    /// Its type, as zfs writes it.
    pub file: char,
    /// Its number in the dataset.
    pub inode: u64,
    /// Where it was.
    pub old: Option<Path>,
    /// Where it is.
    pub new: Option<Path>,
    /// Names that it has more than it had.
    pub links: i64,
    /// Its last change: seconds since 1970, and nanoseconds.
    pub ctime: (i64, u32),
    /// Of a file that has or had several names: those that it lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_names: Vec<Path>,
    /// Of a file that has or had several names: those that it got.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub new_names: Vec<Path>,
}

/// See [`Change::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Content, attributes, entries or the number of names.
    Modified,
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It has another path.
    Renamed,
}

/// A path below the dataset's root, which need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Path {
    /// Most are.
    Text(String),
    /// One that is not.
    Bytes(Vec<u8>),
}

impl From<Vec<u8>> for Path {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

impl Path {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// A stream that breaks off is no success.
pub fn broken_off() -> ApiError {
    ApiError::new(ErrorKind::Daemon, "the daemon ended before all was told")
        .safe("everything that was committed or synced before")
        .hint("larder daemon status; daemon.log in the run folder tells why")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_zfs_diff_takes() {
        let names = |from: &str, to: &str| {
            Diff { from: from.into(), to: to.into() }.checked().map(|diff| (diff.from, diff.to))
        };
        let full = |from: &str, to: &str| Ok((from.to_owned(), to.to_owned()));
        assert_eq!(names("tank/a@x", "tank/a@y"), full("tank/a@x", "tank/a@y"));
        assert_eq!(names("tank/a@x", "@y"), full("tank/a@x", "tank/a@y"));
        assert_eq!(names("@x", "tank/a@y"), full("tank/a@x", "tank/a@y"));
        assert_eq!(names("@x", "tank/a"), full("tank/a@x", "tank/a"));
        assert_eq!(names("tank/a@x", "tank/a"), full("tank/a@x", "tank/a"));
        for (from, to) in [("tank/a", "tank/a@x"), ("tank@x", "tank/a@y"), ("tank@x", "tank@x"), ("@x", "@y")]
        {
            assert!(names(from, to).is_err(), "{from} {to}");
        }
    }

    #[test]
    fn paths_of_any_bytes_travel() {
        for bytes in [&b"/a \xc3\xa9"[..], b"/\xff"] {
            let sent = serde_json::to_string(&Path::from(bytes.to_vec())).unwrap();
            assert_eq!(serde_json::from_str::<Path>(&sent).unwrap().bytes(), bytes, "{sent}");
        }
    }
}
