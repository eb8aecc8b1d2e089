//! Requests and replies of `larder fs` about snapshots, and the names in them: `tank/home@monday`, and where several
//! are destroyed `tank/home@a,b%d`.

use super::diff::Path;
use super::fs::Create;
use super::{ApiError, Properties, Result, name};
use larder_format::tables::{TAG_MAX, is_tag};
use larder_pool::property;
use serde::{Deserialize, Serialize};

/// Takes snapshots, all at one moment; all of them, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Their names, of datasets of one pool.
    pub names: Vec<String>,
    /// Of all datasets below too.
    pub recursive: bool,
    /// Their own properties.
    pub properties: Properties,
}

/// Snapshots that were taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Names.
    pub taken: Vec<String>,
}

/// Destroys snapshots; all of them, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestroySnapshots {
    /// `DATASET@a,b%d`; see [`spans`].
    pub name: String,
    /// Those of these names of all datasets below too.
    pub recursive: bool,
    /// Only tell.
    pub dry_run: bool,
    /// Tell how much space comes back, which takes a while.
    pub measure: bool,
    /// Destroy those that are held with their last hold; without it, they are a reason to refuse.
    pub deferred: bool,
    /// Destroy their clones before them, with all below these.
    pub clones: bool,
    /// For good: not into the trash.
    pub now: bool,
}

/// Places a hold on snapshots, which keeps them from being destroyed: on all of them, or on none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Their names, of datasets of one pool.
    pub names: Vec<String>,
    /// The hold's name.
    pub tag: String,
    /// Those of these names of all datasets below too.
    pub recursive: bool,
}

/// Lets go of a hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Names of snapshots, of datasets of one pool.
    pub names: Vec<String>,
    /// The hold's name.
    pub tag: String,
    /// Those of these names of all datasets below too, where they have it.
    pub recursive: bool,
}

/// Asks for the holds on snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holds {
    /// Their names, of datasets of one pool.
    pub names: Vec<String>,
    /// Those of these names of all datasets below too.
    pub recursive: bool,
}

/// Holds on snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// By snapshot, and then by tag.
    pub holds: Vec<Tag>,
}

/// A hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// The snapshot.
    pub name: String,
    /// The hold's name.
    pub tag: String,
    /// When it was placed: seconds since 1970.
    pub created: i64,
}

/// Has a dataset hold again what a snapshot holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// The snapshot.
    pub name: String,
    /// The fate of newer snapshots.
    pub newer: Newer,
}

/// The fate of the snapshots of a dataset that are newer than the one that it is rolled back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Newer {
    /// They are a reason to refuse.
    Refuse,
    /// They are destroyed.
    Drop,
    /// They are destroyed with their clones, and all below these.
    DropClones,
    /// They go on in a dataset of their own, with what the dataset held until now.
    Keep,
}

/// Outcome of a rollback for newer snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolledBack {
    /// Snapshots that were destroyed, oldest first; then clones.
    pub destroyed: Vec<String>,
    /// The dataset that has them.
    pub kept: Option<String>,
}

/// Makes a dataset that begins as a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeClone {
    /// The snapshot.
    pub snapshot: String,
    /// Name of the dataset, of the same pool.
    pub name: String,
    /// Make missing parents too, and be content when it exists.
    pub parents: bool,
    /// Its own properties.
    pub properties: Properties,
}

/// Has a clone take over the snapshots up to its origin, from the dataset that has them, which becomes its clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promote {
    /// The clone.
    pub name: String,
}

/// A snapshot that was destroyed, and of which clones have something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The snapshot.
    pub name: String,
    /// Its clones.
    pub clones: Vec<String>,
}

/// Makes a bookmark, from a snapshot or another bookmark of its dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bookmark {
    /// The snapshot or bookmark.
    pub from: String,
    /// The bookmark.
    pub name: String,
}

/// Destroys a bookmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestroyBookmark {
    /// The bookmark.
    pub name: String,
}

/// Renames a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameSnapshot {
    /// The old name.
    pub from: String,
    /// The new name, of the same dataset.
    pub to: String,
    /// Those of this name of all datasets below too.
    pub recursive: bool,
}

/// Asks what snapshots of a dataset hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// The dataset, or some of its snapshots, as [`spans`] has them.
    pub name: String,
    /// The number of files to name at most.
    #[serde(default)]
    pub files: u32,
}

/// Space that the snapshots of a dataset hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spaces {
    /// Bytes of those that are in the trash, all together.
    pub trash: u64,
    /// Oldest first.
    pub snapshots: Vec<SnapshotSpace>,
    /// Bytes that come back when all of these snapshots are destroyed.
    #[serde(default)]
    pub together: u64,
    /// The files with most of that, the largest first.
    #[serde(default)]
    pub files: Vec<HeldFile>,
}

/// A file of which snapshots hold something that nothing else does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldFile {
    /// Its number.
    pub inode: u64,
    /// Bytes that it takes.
    pub size: u64,
    /// Its path below the dataset's root in the newest of them that holds some of it.
    pub path: Option<Path>,
}

/// Space that a snapshot holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSpace {
    /// Its name in full.
    pub name: String,
    /// When it was taken: seconds since 1970.
    pub created: i64,
    /// Somebody holds it: it cannot be destroyed.
    pub held: bool,
    /// Bytes that come back when it alone is destroyed.
    pub used: u64,
    /// Bytes that come back when it and all older ones are.
    pub with_older: u64,
}

/// Some snapshots of a dataset, as one part of a list names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Span {
    /// The one of this name.
    One(String),
    /// From one to another, both included, as they were taken; without a name from the oldest, or to the newest.
    Range(Option<String>, Option<String>),
}

impl Span {
    /// Adds those that are meant of `all` (oldest first), by their places. Of a range whose ends are not both there
    /// none is.
    fn choose(&self, all: &[&str], chosen: &mut [bool]) {
        let at = |wanted: &String| all.iter().position(|name| name == wanted);
        let ends = match self {
            Self::One(name) => at(name).map(|at| (at, at)),
            Self::Range(from, to) => {
                let from = from.as_ref().map_or(Some(0), at);
                let to = to.as_ref().map_or(all.len().checked_sub(1), at);
                from.zip(to)
            }
        };
        if let Some((from, to)) = ends
            && from <= to
        {
            chosen[from..=to].fill(true);
        }
    }
}

/// Which of `all` names (oldest first) are meant, in that order; those that are not there are passed over.
pub fn chosen<'a>(spans: &[Span], all: &[&'a str]) -> Vec<&'a str> {
    let mut chosen = vec![false; all.len()];
    spans.iter().for_each(|span| span.choose(all, &mut chosen));
    all.iter().zip(chosen).filter(|(_, is)| *is).map(|(name, _)| *name).collect()
}

/// Splits `DATASET@a,b%d`: names separated by commas, ranges by `%`.
///
/// # Errors
/// Usage, when it is none, or names what no snapshot can be called.
pub fn spans(text: &str) -> Result<(&str, Vec<Span>)> {
    let Some((dataset, list)) = text.split_once('@') else {
        return Err(ApiError::usage(format!("'{text}' names no snapshot: that is DATASET@NAME")));
    };
    name::check_dataset(dataset)?;
    let name = |part: &str| name::check_snapshot(&format!("{dataset}@{part}")).map(|_| part.to_owned());
    let end = |part: &str| if part.is_empty() { Ok(None) } else { name(part).map(Some) };
    let span = |part: &str| match part.split_once('%') {
        Some((from, to)) => Ok(Span::Range(end(from)?, end(to)?)),
        None => Ok(Span::One(name(part)?)),
    };
    Ok((dataset, list.split(',').map(span).collect::<Result<_>>()?))
}

/// Properties of snapshots, in their exact form: those of users alone.
///
/// # Errors
/// Usage, when there is another, or one cannot be.
pub fn exact(given: Properties) -> Result<Properties> {
    let one = |(name, value): (String, String)| {
        property::check_user(&name, &value).map_err(|error| match property::is_user(&name) {
            true => error.into(),
            false => ApiError::usage(format!("'{name}' cannot be set on a snapshot"))
                .hint("snapshots take user properties, whose names have a colon"),
        })?;
        Ok((name, value))
    };
    given.into_iter().map(one).collect()
}

/// Checks names of snapshots, which have to be of one pool; `cannot` begins the message.
pub(super) fn check_names(names: &[String], cannot: &str, why_one_pool: &str) -> Result<()> {
    let cannot = |name: &str, why: &str| format!("{cannot} '{name}': {why}");
    let Some(first) = names.first() else { return Err(ApiError::usage("name a snapshot")) };
    for name in names {
        let checked = name::check_snapshot(name);
        checked.map_err(|error| ApiError { message: cannot(name, &error.message), ..error })?;
        if name::pool_of(name) != name::pool_of(first) {
            return Err(ApiError::usage(cannot(name, why_one_pool)));
        }
    }
    Ok(())
}

pub(super) const ONE_POOL: &str = "all snapshots of one command are of one pool";

/// Checks a hold's name.
fn check_tag(tag: &str) -> Result<()> {
    if is_tag(tag) {
        return Ok(());
    }
    Err(ApiError::usage(format!("a hold has a name of 1 to {TAG_MAX} bytes without control characters")))
}

impl Snapshot {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        let why = "snapshots of several pools are not of one moment";
        check_names(&self.names, "cannot create snapshot", why)?;
        Ok(Self { properties: exact(self.properties)?, ..self })
    }
}

impl Hold {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        check_names(&self.names, "cannot hold snapshot", ONE_POOL)?;
        check_tag(&self.tag).map(|()| self)
    }
}

impl Release {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        check_names(&self.names, "cannot release hold from snapshot", ONE_POOL)?;
        check_tag(&self.tag).map(|()| self)
    }
}

impl Holds {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        check_names(&self.names, "cannot show holds of snapshot", ONE_POOL).map(|()| self)
    }
}

impl DestroySnapshots {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        spans(&self.name)?;
        Ok(self)
    }
}

impl Rollback {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        name::check_snapshot(&self.name)?;
        Ok(self)
    }
}

impl MakeClone {
    /// The request in its exact form, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        name::check_snapshot(&self.snapshot)?;
        let doing = format!("cannot create '{}'", self.name);
        let Self { snapshot, name, parents, properties } = self;
        if name::pool_of(&name) != name::pool_of(&snapshot) {
            let error = ApiError::usage("a clone is of the same pool as its snapshot");
            let hint = "to copy between pools, copy the files out of DIR/.zfs/snapshot";
            return Err(error.hint(hint).within(doing));
        }
        let made = Create { name, parents, properties, dry_run: false }.checked()?;
        Ok(Self { snapshot, name: made.name, parents, properties: made.properties })
    }
}

impl Bookmark {
    /// The request with both names in full, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(mut self) -> Result<Self> {
        let dataset = |name: &str| name.split(['@', '#']).next().unwrap_or_default().to_owned();
        match (dataset(&self.from), dataset(&self.name)) {
            (from, of) if of.is_empty() => self.name.insert_str(0, &from),
            (from, of) if from.is_empty() => self.from.insert_str(0, &of),
            _ => {}
        }
        let check = || {
            let (of, _) = name::check_bookmark(&self.name)?;
            let from = match self.from.contains('#') {
                true => name::check_bookmark(&self.from),
                false => name::check_snapshot(&self.from),
            };
            if from?.0 == of {
                return Ok(());
            }
            Err(ApiError::usage("a bookmark is of the dataset that it is made from"))
        };
        check().map_err(|error: ApiError| error.within(format!("cannot create bookmark '{}'", self.name)))?;
        Ok(self)
    }
}

impl DestroyBookmark {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        name::check_bookmark(&self.name)?;
        Ok(self)
    }
}

impl Space {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        match self.name.contains('@') {
            true => drop(spans(&self.name)?),
            false => name::check_dataset(&self.name)?,
        }
        Ok(self)
    }
}

impl RenameSnapshot {
    /// The request with both names in full, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(mut self) -> Result<Self> {
        let (dataset, _) = name::check_snapshot(&self.from)?;
        if self.to.starts_with('@') {
            self.to = format!("{dataset}{}", self.to);
        }
        let refuse = |why: &str| Err(ApiError::usage(format!("cannot rename '{}': {why}", self.from)));
        if !self.to.contains('@') {
            return refuse("a snapshot stays one: DATASET@NAME, or @NAME");
        }
        if name::check_snapshot(&self.to)?.0 != dataset {
            return refuse("a snapshot stays with its dataset");
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 5] = ["a", "b", "c", "d", "e"];

    fn among_all(list: &str) -> String {
        let name = format!("tank/x@{list}");
        let (dataset, spans) = spans(&name).unwrap();
        assert_eq!(dataset, "tank/x");
        chosen(&spans, &ALL).concat()
    }

    #[test]
    fn lists_and_ranges_name_snapshots_as_they_were_taken() {
        for (list, names) in [
            ("a", "a"),
            ("d,b", "bd"),
            ("a,b%d", "abcd"),
            ("b%", "bcde"),
            ("%b", "ab"),
            ("%", "abcde"),
            ("c%c", "c"),
            ("a,gone,e", "ae"),
            ("gone", ""),
            ("d%b", ""),
            ("a,b%gone", "a"),
            ("gone%d,e", "e"),
            ("a%b,b%c,a", "abc"),
        ] {
            assert_eq!(among_all(list), names, "{list}");
        }
        assert!(chosen(&[Span::Range(None, None)], &[]).is_empty());
    }

    #[test]
    fn what_names_no_snapshot_is_refused() {
        for bad in ["tank", "tank@", "tank@a,", "tank@a b#", "@a", "tank//x@a", "tank@a@b", "tank@a%b%c"] {
            assert!(spans(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn snapshots_of_one_request_are_of_one_pool_and_have_properties_of_users_alone() {
        let request = |names: &[&str], properties: Properties| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            Snapshot { names, recursive: false, properties }.checked()
        };
        request(&["tank/a@x", "tank@x"], Properties::new()).unwrap();
        let error = request(&["tank@x", "other@x"], Properties::new()).unwrap_err();
        assert!(error.message.starts_with("cannot create snapshot 'other@x': "), "{error}");
        let error = request(&["tank@a*"], Properties::new()).unwrap_err();
        assert!(error.message.starts_with("cannot create snapshot 'tank@a*': "), "{error}");
        request(&["tank@x"], [("a:b".into(), "c".into())].into()).unwrap();
        let error = request(&["tank@x"], [("atime".into(), "off".into())].into()).unwrap_err();
        assert_eq!(error.message, "'atime' cannot be set on a snapshot");
        let error = request(&["tank@x"], [("A:b".into(), "off".into())].into()).unwrap_err();
        assert!(error.message.contains("a name is made of"), "{error}");
        assert!(request(&[], Properties::new()).is_err());
    }

    #[test]
    fn a_snapshot_is_renamed_within_its_dataset() {
        let rename = |from: &str, to: &str| {
            RenameSnapshot { from: from.into(), to: to.into(), recursive: false }.checked().map(|it| it.to)
        };
        assert_eq!(rename("tank/a@x", "@y").unwrap(), "tank/a@y");
        assert_eq!(rename("tank/a@x", "tank/a@y").unwrap(), "tank/a@y");
        for to in ["tank@y", "tank/b@y", "y", "@", "@y#"] {
            assert!(rename("tank/a@x", to).is_err(), "{to}");
        }
    }
}
