//! The vdev grammar of zpool(8): words and devices, as `create` and `add` take them.

use super::args;
use crate::api::pool::{Group, Role, Word};
use crate::api::{ApiError, ErrorKind, Result};

/// Words for parts that pools do not have yet.
const LATER: &[&str] = &["dedup", "draid", "draid1", "draid2", "draid3"];

/// Groups, spares and caches that words and devices make.
#[derive(Debug, Default)]
pub struct Vdevs {
    /// Groups.
    pub groups: Vec<Group>,
    /// Absolute paths of spares.
    pub spares: Vec<String>,
    /// Absolute paths of devices for copies of blocks.
    pub caches: Vec<String>,
}

/// The use of the devices behind a word.
#[derive(PartialEq, Eq)]
enum Use {
    Group,
    Spare,
    Cache,
}

/// Reads words and devices: a word starts a group, devices before the first word are groups of one, those behind
/// `spare` are spares, those behind `cache` have copies. Groups behind `log`, `special` or `fast` are for that.
///
/// # Errors
/// Usage, when devices do not make such a group; or that the word is of a later version.
pub fn read(vdevs: &[String]) -> Result<Vdevs> {
    let mut read = Vdevs::default();
    let (mut of, mut role, mut starts) = (Use::Group, Role::Data, true);
    for text in vdevs {
        if LATER.contains(&text.as_str()) {
            let message = format!("'{text}' devices are not available in this version of larder");
            return Err(ApiError::new(ErrorKind::Unsupported, message));
        }
        if matches!(text.as_str(), "spare" | "cache") {
            of = if text == "spare" { Use::Spare } else { Use::Cache };
            (role, starts) = (Role::Data, true);
            continue;
        }
        if let Some(next) = Role::parse(text) {
            (of, role, starts) = (Use::Group, next, true);
            continue;
        }
        if let Some(word) = Word::parse(text) {
            read.groups.push(Group { role, word, devices: Vec::new() });
            (of, starts) = (Use::Group, false);
            continue;
        }
        let device = args::device(text)?;
        match read.groups.last_mut() {
            _ if of == Use::Spare => read.spares.push(device),
            _ if of == Use::Cache => read.caches.push(device),
            Some(group) if group.word != Word::Single && !starts => group.devices.push(device),
            _ => read.groups.push(Group { role, word: Word::Single, devices: vec![device] }),
        }
    }
    for (word, role) in [("log", Role::Log), ("special", Role::Special), ("fast", Role::Fast)] {
        let is_there = read.groups.iter().any(|group| group.role == role);
        if !is_there && vdevs.iter().any(|text| text == word) {
            return Err(ApiError::usage(format!("'{word}' needs at least 1 device; 0 were given")));
        }
    }
    for (word, devices) in [("spare", &read.spares), ("cache", &read.caches)] {
        if devices.is_empty() && vdevs.iter().any(|text| text == word) {
            return Err(ApiError::usage(format!("'{word}' needs at least 1 device; 0 were given")));
        }
    }
    read.groups.iter().try_for_each(Group::check)?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_role_hold_for_all_groups_behind_them() {
        let of = |line: &str| -> Vec<(Role, Word, usize)> {
            let vdevs: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let groups = read(&vdevs).unwrap().groups;
            groups.into_iter().map(|group| (group.role, group.word, group.devices.len())).collect()
        };
        use Role::{Data, Fast, Log, Special};
        use Word::{Mirror, Single};
        assert_eq!(of("mirror /a /b log /c"), [(Data, Mirror, 2), (Log, Single, 1)]);
        assert_eq!(of("log mirror /c /d"), [(Log, Mirror, 2)]);
        assert_eq!(of("log /c /d"), [(Log, Single, 1), (Log, Single, 1)]);
        assert_eq!(
            of("/a special mirror /c /d log /e cache /f"),
            [(Data, Single, 1), (Special, Mirror, 2), (Log, Single, 1)]
        );
        assert_eq!(of("fast mirror /c /d spare /e"), [(Fast, Mirror, 2)]);
        assert_eq!(of("log /c cache /d mirror /e /f"), [(Log, Single, 1), (Data, Mirror, 2)]);
        assert!(split("/a log").unwrap_err().message.contains("0 were given"));
        assert!(split("/a special mirror").is_err());
    }

    /// Groups with their number of devices; numbers of spares and of caches.
    type Split = (Vec<(Word, usize)>, (usize, usize));

    fn split(line: &str) -> Result<Split> {
        let vdevs: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let Vdevs { groups, spares, caches } = read(&vdevs)?;
        let groups = groups.into_iter().map(|group| (group.word, group.devices.len())).collect();
        Ok((groups, (spares.len(), caches.len())))
    }

    #[test]
    fn words_start_groups_and_bare_devices_are_a_stripe() {
        use Word::{Mirror, Raid10, Raid14, Raidz1, Raidz2, Single};
        const NONE: (usize, usize) = (0, 0);
        for (line, groups, others) in [
            ("/a", vec![(Single, 1)], NONE),
            ("/a /b", vec![(Single, 1), (Single, 1)], NONE),
            ("mirror /a /b mirror /c /d /e", vec![(Mirror, 2), (Mirror, 3)], NONE),
            ("raidz /a /b /c", vec![(Raidz1, 3)], NONE),
            ("raidz2 /a /b /c /d raid10 /e /f /g /h", vec![(Raidz2, 4), (Raid10, 4)], NONE),
            ("raid14 /a /b /c /d /e", vec![(Raid14, 5)], NONE),
            ("/a mirror /b /c", vec![(Single, 1), (Mirror, 2)], NONE),
            ("mirror /a /b spare /c /d", vec![(Mirror, 2)], (2, 0)),
            ("spare /c mirror /a /b", vec![(Mirror, 2)], (1, 0)),
            ("mirror /a /b cache /c /d spare /e", vec![(Mirror, 2)], (1, 2)),
            ("cache /a", vec![], (0, 1)),
        ] {
            assert_eq!(split(line), Ok((groups, others)), "{line}");
        }
    }

    #[test]
    fn too_few_devices_and_parts_of_later_versions_are_told() {
        assert!(split("mirror /a").unwrap_err().message.contains("at least 2 devices of 64M"));
        assert!(split("mirror raidz1 /a /b").unwrap_err().message.contains("0 were given"));
        assert!(split("mirror /a /b spare").unwrap_err().message.contains("0 were given"));
        assert!(split("cache mirror /a /b").unwrap_err().message.contains("0 were given"));
        assert!(split("/a dedup /b").unwrap_err().message.contains("not available in this version"));
    }
}
