//! Requests and replies of `larder fs`.

use super::snapshots::Kept;
use super::{ApiError, ItemKind, Properties, Result, name, properties, snapshots};
use larder_pool::property;
use serde::{Deserialize, Serialize};

/// Makes a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// Its name, pool included.
    pub name: String,
    /// Make missing parents too, and be content when it exists.
    pub parents: bool,
    /// Its own properties.
    pub properties: Properties,
    /// Only tell.
    pub dry_run: bool,
}

/// Datasets that were made, parents first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// Names.
    pub created: Vec<String>,
}

/// Destroys a dataset, with its snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destroy {
    /// Its name.
    pub name: String,
    /// All below it and its snapshots too; without it, a dataset that has any is refused.
    pub recursive: bool,
    /// Only tell.
    pub dry_run: bool,
    /// Tell what snapshots gave back too, which takes a while.
    pub measure: bool,
    /// Destroy clones of its snapshots before it, with all below these.
    pub clones: bool,
    /// For good: not into the trash.
    pub now: bool,
}

/// Datasets and snapshots that were destroyed, deepest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destroyed {
    /// Names.
    pub destroyed: Vec<String>,
    /// Bytes that come back.
    pub reclaimed: u64,
    /// Those of which clones have something: that comes back with the last of these.
    pub kept: Vec<Kept>,
    /// Until when all of it can be brought back, seconds since 1970: it is in the trash.
    pub until: Option<i64>,
}

/// Renames a dataset, within its pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    /// The old name.
    pub from: String,
    /// The new name; its parent exists.
    pub to: String,
    /// Make missing parents too.
    pub parents: bool,
}

/// Reads properties of datasets; what `list`, `get` and `mount` show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Get {
    /// Which datasets; empty for those of all pools.
    pub names: Vec<String>,
    /// Levels below them to include, where snapshots and bookmarks are one level below their dataset; nothing for all.
    pub depth: Option<u32>,
    /// Of which kinds; empty for datasets with files, and for what `names` has of others.
    pub kinds: Vec<ItemKind>,
    /// Full names of properties, user properties included; empty for all that have a value.
    pub properties: Vec<String>,
}

impl Get {
    /// Whether `dataset` is asked for.
    pub fn selects(&self, dataset: &str) -> bool {
        self.is_of(ItemKind::Filesystem, true) && self.reaches(dataset, 0)
    }

    /// Whether the snapshots of `dataset` are asked for, all of them.
    pub fn selects_snapshots_of(&self, dataset: &str) -> bool {
        self.is_of(ItemKind::Snapshot, false) && self.reaches(dataset, 1)
    }

    /// Whether a snapshot is asked for by its own name.
    pub fn names_snapshot(&self, full: &str) -> bool {
        self.is_of(ItemKind::Snapshot, true) && self.names.iter().any(|name| name == full)
    }

    /// Whether the bookmarks of `dataset` are asked for, all of them.
    pub fn selects_bookmarks_of(&self, dataset: &str) -> bool {
        self.is_of(ItemKind::Bookmark, false) && self.reaches(dataset, 1)
    }

    /// Whether a bookmark is asked for by its own name.
    pub fn names_bookmark(&self, full: &str) -> bool {
        self.is_of(ItemKind::Bookmark, true) && self.names.iter().any(|name| name == full)
    }

    fn is_of(&self, kind: ItemKind, unless_told: bool) -> bool {
        if self.kinds.is_empty() { unless_told } else { self.kinds.contains(&kind) }
    }

    /// Whether something `deeper` levels below `dataset` is near enough.
    fn reaches(&self, dataset: &str, deeper: usize) -> bool {
        let within = |below: &str| {
            let levels = below.matches('/').count() + deeper;
            self.depth.is_none_or(|depth| levels <= depth as usize)
        };
        if self.names.is_empty() {
            return within(dataset);
        }
        self.names.iter().any(|name| {
            dataset
                .strip_prefix(name.as_str())
                .is_some_and(|below| (below.is_empty() || below.starts_with('/')) && within(below))
        })
    }
}

/// Sets properties of datasets, or of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// Which.
    pub names: Vec<String>,
    /// To what.
    pub properties: Properties,
}

/// Takes a property's local value away, so that the parent's holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inherit {
    /// Of which datasets.
    pub names: Vec<String>,
    /// The property.
    pub property: String,
    /// Of all datasets below as well.
    pub recursive: bool,
    /// Go back to the received value where there is one.
    pub received: bool,
}

/// Mounts one dataset, or all that mount by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Which, or a snapshot; nothing for all.
    pub name: Option<String>,
    /// For a snapshot, or a dataset whose mount point is legacy: the folder where, an absolute path.
    pub at: Option<String>,
}

/// Unmounts one dataset, or all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmount {
    /// The name of a dataset or snapshot, or an absolute mount point; nothing for all.
    pub target: Option<String>,
}

/// Result of mounting or unmounting several datasets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounted {
    /// The names of those it worked for.
    pub names: Vec<String>,
    /// Errors of the others.
    pub failed: Vec<ApiError>,
}

/// Properties of a dataset in their exact form.
pub(super) fn exact(given: Properties, creating: bool) -> Result<Properties> {
    given.iter().map(|(name, value)| Ok(property::parse_dataset(name, value, creating)?)).collect()
}

/// Properties of a dataset that is being made, in their exact form.
pub(super) fn exact_at_creation(given: Properties) -> Result<Properties> {
    exact(given, true)
}

impl Create {
    /// The request with exact properties, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        name::check_dataset(&self.name)?;
        if !self.name.contains('/') {
            return Err(ApiError::usage(format!("cannot create '{}': missing dataset name", self.name))
                .hint(format!("a dataset is made in a pool: larder fs create {}/NAME", self.name)));
        }
        Ok(Self { properties: exact(self.properties, true)?, ..self })
    }
}

impl Rename {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        name::check_dataset(&self.to)?;
        let refuse = |why: &str| Err(ApiError::usage(format!("cannot rename '{}': {why}", self.from)));
        if name::pool_of(&self.from) != name::pool_of(&self.to) {
            return refuse("datasets cannot move to another pool by renaming");
        }
        if !self.from.contains('/') || !self.to.contains('/') {
            return refuse("the pool's own dataset keeps the pool's name");
        }
        if self.to.strip_prefix(&self.from).is_some_and(|rest| rest.starts_with('/')) {
            return refuse("a dataset cannot move below itself");
        }
        Ok(self)
    }
}

impl Set {
    /// The request with exact properties.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        let properties = match of_snapshots(&self.names)? {
            true => snapshots::exact(self.properties)?,
            false => exact(self.properties, false)?,
        };
        Ok(Self { properties, ..self })
    }
}

/// Whether these are names of snapshots, all of them.
///
/// # Errors
/// Usage, when some are.
fn of_snapshots(names: &[String]) -> Result<bool> {
    match names.iter().filter(|name| name.contains('@')).count() {
        0 => Ok(false),
        count if count == names.len() => {
            snapshots::check_names(names, "cannot set properties of", snapshots::ONE_POOL).map(|()| true)
        }
        _ => Err(ApiError::usage("name datasets or snapshots, not both at once")),
    }
}

impl Inherit {
    /// The request with the property's full name, when it can be inherited or reset.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        let is_of_snapshots = of_snapshots(&self.names)?;
        if property::is_user(&self.property) {
            return Ok(self);
        }
        if is_of_snapshots {
            return Err(ApiError::usage(format!("'{}' cannot be set on a snapshot", self.property)));
        }
        let known = properties::dataset(&self.property)
            .ok_or_else(|| property::PropertyError::Unknown(self.property.clone()))?;
        if known.access == property::Access::ReadOnly {
            return Err(property::PropertyError::ReadOnly(known.name).into());
        }
        if !known.inherited && !self.received {
            let name = known.name;
            let value = known.default.map_or_else(|| "VALUE".to_owned(), |default| known.display(default));
            return Err(ApiError::usage(format!("'{name}' is not inherited from the parent"))
                .hint(format!("larder fs set {name}={value} NAME")));
        }
        Ok(Self { property: known.name.to_owned(), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn get_selects_by_name_and_depth() {
        let get = |names: &[&str], depth| Get {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            depth,
            ..Get::default()
        };
        assert!(get(&["tank"], Some(0)).selects("tank"));
        assert!(!get(&["tank"], Some(0)).selects("tank/a"));
        assert!(get(&["tank"], Some(1)).selects("tank/a"));
        assert!(!get(&["tank"], Some(1)).selects("tank/a/b"));
        assert!(get(&["tank"], None).selects("tank/a/b/c"));
        assert!(!get(&["tank/a"], None).selects("tank/ab"));
        assert!(get(&["tank/a", "other"], Some(0)).selects("other"));
        assert!(get(&[], None).selects("tank/a"));
        assert!(!get(&[], Some(0)).selects("tank/a"));
    }

    #[test]
    fn get_selects_snapshots_a_level_below_their_dataset_when_told() {
        let get = |names: &[&str], depth, kinds: &[ItemKind]| Get {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            depth,
            kinds: kinds.to_vec(),
            ..Get::default()
        };
        let both = [ItemKind::Filesystem, ItemKind::Snapshot];
        assert!(!get(&["tank"], None, &[]).selects_snapshots_of("tank"));
        assert!(get(&["tank"], None, &both).selects_snapshots_of("tank/a"));
        assert!(!get(&["tank"], Some(0), &both).selects_snapshots_of("tank"));
        assert!(get(&["tank"], Some(1), &both).selects_snapshots_of("tank"));
        assert!(!get(&["tank"], Some(1), &both).selects_snapshots_of("tank/a"));
        assert!(get(&[], None, &both[1..]).selects_snapshots_of("tank/a"));
        assert!(!get(&["tank"], None, &both[1..]).selects("tank"));

        for kinds in [&[][..], &both, &both[1..]] {
            let request = get(&["tank@a", "tank/b"], Some(0), kinds);
            assert!(request.names_snapshot("tank@a") && !request.names_snapshot("tank@b"));
            assert!(!request.selects("tank") && !request.selects_snapshots_of("tank"));
        }
        assert!(!get(&["tank@a"], Some(0), &both[..1]).names_snapshot("tank@a"));
    }

    #[test]
    fn requests_reach_the_engine_with_exact_properties() {
        let create = Create {
            name: "tank/a".into(),
            parents: false,
            properties: [("recordsize".into(), "1M".into()), ("my:note".into(), "Yes".into())].into(),
            dry_run: false,
        };
        let checked = create.checked().unwrap();
        assert_eq!(checked.properties["recordsize"], "1048576");
        assert_eq!(checked.properties["my:note"], "Yes");
    }

    #[test]
    fn senseless_renames_are_refused() {
        let rename = |from: &str, to: &str| {
            Rename { from: from.into(), to: to.into(), parents: false }.checked().is_err()
        };
        assert!(rename("tank/a", "other/a"));
        assert!(rename("tank", "tank/a"));
        assert!(rename("tank/a", "tank/a/b"));
        assert!(!rename("tank/a", "tank/ab"));
    }
}
