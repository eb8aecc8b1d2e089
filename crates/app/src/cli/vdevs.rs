//! The vdev grammar of zpool(8): words and devices, as `create` and `add` take them.

use super::args;
use crate::api::pool::{Group, Word};
use crate::api::{ApiError, ErrorKind, Result};

/// Words for parts that pools do not have yet.
const LATER: &[&str] = &["log", "cache", "special", "dedup", "draid", "draid1", "draid2", "draid3"];

/// Groups and spares that words and devices make.
#[derive(Debug, Default)]
pub struct Vdevs {
    /// Groups.
    pub groups: Vec<Group>,
    /// Absolute paths of spares.
    pub spares: Vec<String>,
}

/// Reads words and devices: a word starts a group, devices before the first word are groups of one, those behind
/// `spare` are spares.
///
/// # Errors
/// Usage, when devices do not make such a group; or that the word is of a later version.
pub fn read(vdevs: &[String]) -> Result<Vdevs> {
    let mut read = Vdevs::default();
    let mut spare = false;
    for text in vdevs {
        if LATER.contains(&text.as_str()) {
            let message = format!("'{text}' devices are not available in this version of larder");
            return Err(ApiError::new(ErrorKind::Unsupported, message));
        }
        if text == "spare" {
            spare = true;
            continue;
        }
        if let Some(word) = Word::parse(text) {
            read.groups.push(Group { word, devices: Vec::new() });
            spare = false;
            continue;
        }
        let device = args::device(text)?;
        match read.groups.last_mut() {
            _ if spare => read.spares.push(device),
            Some(group) if group.word != Word::Single => group.devices.push(device),
            _ => read.groups.push(Group { word: Word::Single, devices: vec![device] }),
        }
    }
    if spare && read.spares.is_empty() {
        return Err(ApiError::usage("'spare' needs at least 1 device; 0 were given"));
    }
    read.groups.iter().try_for_each(Group::check)?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Result<(Vec<(Word, usize)>, usize)> {
        let vdevs: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let Vdevs { groups, spares } = read(&vdevs)?;
        Ok((groups.into_iter().map(|group| (group.word, group.devices.len())).collect(), spares.len()))
    }

    #[test]
    fn words_start_groups_and_bare_devices_are_a_stripe() {
        use Word::{Mirror, Raid10, Raid14, Raidz1, Raidz2, Single};
        for (line, groups, spares) in [
            ("/a", vec![(Single, 1)], 0),
            ("/a /b", vec![(Single, 1), (Single, 1)], 0),
            ("mirror /a /b mirror /c /d /e", vec![(Mirror, 2), (Mirror, 3)], 0),
            ("raidz /a /b /c", vec![(Raidz1, 3)], 0),
            ("raidz2 /a /b /c /d raid10 /e /f /g /h", vec![(Raidz2, 4), (Raid10, 4)], 0),
            ("raid14 /a /b /c /d /e", vec![(Raid14, 5)], 0),
            ("/a mirror /b /c", vec![(Single, 1), (Mirror, 2)], 0),
            ("mirror /a /b spare /c /d", vec![(Mirror, 2)], 2),
            ("spare /c mirror /a /b", vec![(Mirror, 2)], 1),
        ] {
            assert_eq!(split(line), Ok((groups, spares)), "{line}");
        }
    }

    #[test]
    fn too_few_devices_and_parts_of_later_versions_are_told() {
        assert!(split("mirror /a").unwrap_err().message.contains("at least 2 devices of 64M"));
        assert!(split("mirror raidz1 /a /b").unwrap_err().message.contains("0 were given"));
        assert!(split("mirror /a /b spare").unwrap_err().message.contains("0 were given"));
        assert!(split("/a log /b").unwrap_err().message.contains("not available in this version"));
    }
}
