//! Groups of devices, as people ask for them.

use crate::api::{ApiError, Result};
use larder_format::label::{GroupRule, MIN_DEVICE};
use larder_format::root::GroupRole;
use larder_format::segment::MAX_COLUMNS;
use larder_pool::property;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Redundancy of a group, by its word on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// One device, no redundancy.
    Single,
    /// Copies on every device.
    Mirror,
    /// One parity column.
    Raidz1,
    /// Two parity columns.
    Raidz2,
    /// Three parity columns.
    Raidz3,
    /// A stripe of two-way mirrors.
    Raid10,
    /// Mirrored columns and one parity column over them.
    Raid14,
}

impl Word {
    /// The word as people type it; `raidz` is `raidz1`.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "mirror" => Self::Mirror,
            "raidz" | "raidz1" => Self::Raidz1,
            "raidz2" => Self::Raidz2,
            "raidz3" => Self::Raidz3,
            "raid10" => Self::Raid10,
            "raid14" => Self::Raid14,
            _ => return None,
        })
    }

    /// The least number of devices.
    pub fn least(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Mirror | Self::Raidz1 => 2,
            Self::Raidz2 => 3,
            Self::Raidz3 | Self::Raid10 => 4,
            Self::Raid14 => 5,
        }
    }

    /// The rule of a group of `devices` devices, when that many make one.
    pub fn rule(self, devices: usize) -> Option<GroupRule> {
        larder_pool::create::rule_for(&self.to_string(), devices).ok()
    }

    /// The most devices that make a group: what the format allows of columns, and of data under parity.
    fn most(self) -> usize {
        (self.least()..=MAX_COLUMNS).rev().find(|&count| self.rule(count).is_some()).unwrap_or(self.least())
    }

    /// Number of devices that it takes, as a phrase for errors.
    fn takes(self) -> String {
        let parity = match self {
            Self::Raid10 => "an even number of devices, ",
            Self::Raid14 => "an odd number of devices (mirrored pairs and one for parity), ",
            _ => "",
        };
        let size = property::format_size(MIN_DEVICE);
        let plural = if self.least() == 1 { "device" } else { "devices" };
        format!("{parity}at least {} {plural} of {size} or more each", self.least())
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::Mirror => "mirror",
            Self::Raidz1 => "raidz1",
            Self::Raidz2 => "raidz2",
            Self::Raidz3 => "raidz3",
            Self::Raid10 => "raid10",
            Self::Raid14 => "raid14",
        })
    }
}

/// Contents of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Files, and all that no other group is there for.
    #[default]
    Data,
    /// Metadata.
    Special,
    /// Metadata and the intent log.
    Fast,
    /// The intent log.
    Log,
}

impl Role {
    /// The role that a word on the command line asks for; none of data.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "special" => Self::Special,
            "fast" => Self::Fast,
            "log" => Self::Log,
            _ => return None,
        })
    }

    /// The head of such groups in tables, as zpool has it; none for data.
    pub fn head(self) -> Option<&'static str> {
        match self {
            Self::Data => None,
            Self::Special => Some("special"),
            Self::Fast => Some("fast"),
            Self::Log => Some("logs"),
        }
    }

    /// That of a group's root entry.
    pub fn of(role: GroupRole) -> Self {
        match role {
            GroupRole::Log => Self::Log,
            GroupRole::Special => Self::Special,
            GroupRole::Fast => Self::Fast,
            GroupRole::Data | GroupRole::Cache | GroupRole::Front => Self::Data,
        }
    }

    /// As the root entry has it.
    pub fn stored(self) -> GroupRole {
        match self {
            Self::Data => GroupRole::Data,
            Self::Special => GroupRole::Special,
            Self::Fast => GroupRole::Fast,
            Self::Log => GroupRole::Log,
        }
    }
}

/// A group that is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its contents.
    #[serde(default)]
    pub role: Role,
    /// Its redundancy.
    pub word: Word,
    /// Absolute paths of its devices: block devices or files.
    pub devices: Vec<String>,
}

impl Group {
    /// Checks that the number of devices makes such a group.
    ///
    /// # Errors
    /// Usage, telling what the word takes.
    pub fn check(&self) -> Result<()> {
        if self.word.rule(self.devices.len()).is_some() {
            return Ok(());
        }
        let (word, count) = (self.word, self.devices.len());
        if count > word.most() {
            let most = word.most();
            return Err(ApiError::usage(format!("{word} takes at most {most} devices; {count} were given")));
        }
        let given = if count == 1 { "1 was given".to_owned() } else { format!("{count} were given") };
        Err(ApiError::usage(format!("{word} needs {}; {given}", word.takes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(word: Word, count: usize) -> Group {
        Group { role: Role::Data, word, devices: (0..count).map(|at| format!("/disk/{at}")).collect() }
    }

    #[test]
    fn a_word_tells_the_least_number_and_size_of_its_devices() {
        let told = |word, count| group(word, count).check().unwrap_err().message;
        assert_eq!(
            told(Word::Raidz2, 2),
            "raidz2 needs at least 3 devices of 64M or more each; 2 were given"
        );
        assert_eq!(told(Word::Mirror, 1), "mirror needs at least 2 devices of 64M or more each; 1 was given");
        assert_eq!(
            told(Word::Raid10, 5),
            "raid10 needs an even number of devices, at least 4 devices of 64M or more each; 5 were given"
        );
        assert_eq!(
            told(Word::Raid14, 4),
            "raid14 needs an odd number of devices (mirrored pairs and one for parity), at least 5 devices of 64M \
             or more each; 4 were given"
        );
        assert_eq!(told(Word::Mirror, 65), "mirror takes at most 64 devices; 65 were given");
        assert_eq!(told(Word::Raidz2, 64), "raidz2 takes at most 63 devices; 64 were given");
    }

    #[test]
    fn one_formula_gives_every_layout() {
        for (word, devices, layout) in [
            (Word::Single, 1, (1, 1, 0)),
            (Word::Mirror, 3, (1, 3, 0)),
            (Word::Raidz1, 2, (1, 1, 1)),
            (Word::Raidz3, 8, (5, 1, 3)),
            (Word::Raid10, 6, (3, 2, 0)),
            (Word::Raid14, 5, (2, 2, 1)),
        ] {
            let rule = word.rule(devices).unwrap();
            assert_eq!((rule.layout.k(), rule.layout.r(), rule.layout.m()), layout, "{word}");
            assert_eq!(rule.name(), word.to_string());
        }
    }
}
