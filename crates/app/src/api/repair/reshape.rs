//! `pool replace`, `attach`, `detach`, `add`, `remove`, `reshape`: which devices a pool is made of, and how.

use crate::api::pool::{Group, Word};
use crate::api::{ApiError, Result};
use larder_device::FaultDevice;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Changes which devices a pool is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshape {
    /// The pool.
    pub name: String,
    /// The change.
    pub change: Change,
    /// Only tell. Devices are looked at, nothing is written.
    pub dry_run: bool,
}

/// A change of a pool's devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// A new device takes the place of an old one.
    Replace {
        /// The device that goes.
        old: String,
        /// The path of the one that comes; nothing for a new disk at the path of the old one.
        new: Option<String>,
    },
    /// A group gets more devices; a single device becomes a mirror.
    Attach {
        /// The group, or a device of it.
        to: String,
        /// The paths of the new ones.
        new: Vec<String>,
    },
    /// A group gets another layout.
    Layout {
        /// The group, or a device of it.
        group: String,
        /// The layout.
        word: Word,
        /// Paths of further devices.
        new: Vec<String>,
    },
    /// A mirror loses a device, or a replacing ends: either of the two goes.
    Detach {
        /// The device that goes.
        device: String,
        /// It is the old one of a replacing, and what could not be read of it is lost.
        #[serde(default)]
        accept_loss: bool,
    },
    /// The pool gets further groups, spares, or devices for copies of blocks.
    Add {
        /// The groups.
        groups: Vec<Group>,
        /// Paths of spares.
        spares: Vec<String>,
        /// Paths of devices for copies.
        #[serde(default)]
        caches: Vec<String>,
    },
    /// Devices and groups go.
    Remove {
        /// Which.
        devices: Vec<String>,
    },
    /// Devices and groups that are on their way out stay.
    Keep {
        /// Which; none for all.
        devices: Vec<String>,
    },
}

impl Reshape {
    /// The request, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        let (groups, new): (&[Group], Vec<&String>) = match &self.change {
            Change::Replace { new, .. } => (&[], new.iter().collect()),
            Change::Attach { new, .. } | Change::Layout { new, .. } => (&[], new.iter().collect()),
            Change::Add { groups, spares, caches } => (groups, spares.iter().chain(caches).collect()),
            Change::Detach { .. } | Change::Remove { .. } | Change::Keep { .. } => (&[], Vec::new()),
        };
        let is_nothing = groups.is_empty() && new.is_empty();
        check_new(groups, new.into_iter())?;
        if matches!(&self.change, Change::Add { .. }) && is_nothing {
            return Err(ApiError::usage(format!("cannot add to '{}': no devices given", self.name)));
        }
        Ok(self)
    }
}

/// Groups, other devices and capacity of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Its groups.
    pub groups: Vec<Group>,
    /// Its spares.
    pub spares: Vec<String>,
    /// Its devices with copies of blocks.
    #[serde(default)]
    pub caches: Vec<String>,
    /// Bytes that files can take, before compression.
    pub usable: u64,
    /// Device losses survived, whichever devices they hit, once all is resilvered.
    pub survives: u32,
}

/// Result of a [`Reshape`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshaped {
    /// The pool.
    pub name: String,
    /// Whether anything was changed.
    pub done: bool,
    /// Its shape before.
    pub before: Shape,
    /// Its shape after; in a dry run, as it would be.
    pub after: Shape,
    /// Notes for people: work that goes on now, and losses of redundancy.
    pub notes: Vec<String>,
}

/// Checks groups and single new devices: each makes such a group, each is an absolute path, none is there twice.
///
/// # Errors
/// Usage, with the reason.
pub fn check_new<'a>(groups: &'a [Group], single: impl Iterator<Item = &'a String>) -> Result<()> {
    groups.iter().try_for_each(Group::check)?;
    let mut seen = HashSet::new();
    for device in groups.iter().flat_map(|group| &group.devices).chain(single) {
        if !device.strip_prefix(FaultDevice::PREFIX).unwrap_or(device).starts_with('/') {
            return Err(ApiError::usage(format!("'{device}' is not an absolute path")));
        }
        if !seen.insert(device) {
            return Err(ApiError::usage(format!("'{device}' is given twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pool::{Role, Word};

    fn add(groups: Vec<Group>, spares: &[&str]) -> Result<Reshape> {
        let spares = spares.iter().map(|&path| path.to_owned()).collect();
        let change = Change::Add { groups, spares, caches: vec!["/z".into()] };
        Reshape { name: "tank".into(), change, dry_run: false }.checked()
    }

    #[test]
    fn new_devices_are_absolute_paths_and_none_is_given_twice() {
        let mirror = Group { role: Role::Data, word: Word::Mirror, devices: vec!["/a".into(), "/b".into()] };
        assert!(add(vec![mirror.clone()], &["/c"]).is_ok());
        for (groups, spares) in [
            (vec![mirror.clone()], vec!["/b"]),
            (vec![mirror.clone(), mirror], vec![]),
            (vec![], vec!["c"]),
            (vec![], vec!["/z"]),
            (vec![Group { role: Role::Data, word: Word::Mirror, devices: vec!["/a".into()] }], vec![]),
        ] {
            assert!(add(groups, &spares).is_err());
        }
        let change = Change::Add { groups: vec![], spares: vec![], caches: vec![] };
        assert!(Reshape { name: "tank".into(), change, dry_run: false }.checked().is_err());
    }
}
