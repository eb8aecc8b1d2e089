//! `larder pool create`: the vdev grammar, and what a dry run shows.

use super::args::{self, Force, Json};
use super::{Session, out};
use crate::api::pool::{Create, Group, Word};
use crate::api::{ApiError, ErrorKind, Result};
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Devices without a word make a stripe of single devices: no loss is survived.
Words and the least number of devices (64M or more each) they take:
  mirror 2   raidz1 2   raidz2 3   raidz3 4   raid10 4 (even)   raid14 5 (odd)

Examples:
  larder pool create tank mirror /dev/sda /dev/sdb
  larder pool create -n -o memory=1G -O compression=zstd -m /srv/tank tank raidz2 disk0 disk1 disk2 disk3")]
pub struct Args {
    /// Only show what would be made
    #[arg(short = 'n')]
    dry_run: bool,
    #[command(flatten)]
    force: Force,
    /// Properties of the pool: ashift, memory, comment, ...
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = args::assignment)]
    properties: Vec<(String, String)>,
    /// Properties of its top dataset, which datasets below inherit
    #[arg(short = 'O', value_name = "PROPERTY=VALUE", value_parser = args::assignment)]
    fs_properties: Vec<(String, String)>,
    /// Where it is mounted (made when missing), none or legacy [default: /NAME]
    #[arg(short = 'm', value_name = "DIR")]
    mountpoint: Option<String>,
    #[command(flatten)]
    json: Json,
    name: String,
    /// Words and devices
    #[arg(value_name = "VDEV", required = true)]
    vdevs: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let mut fs_properties = args::properties(args.fs_properties)?;
    if let Some(mountpoint) = args.mountpoint {
        let mountpoint = match mountpoint.as_str() {
            "none" | "legacy" => mountpoint,
            _ => args::absolute(mountpoint)?,
        };
        fs_properties.insert("mountpoint".into(), mountpoint);
    }
    let request = Create {
        name: args.name,
        groups: groups(&args.vdevs)?,
        properties: args::properties(args.properties)?,
        fs_properties,
        dry_run: args.dry_run,
    };
    let created = session.client.call(request)?;
    if args.json.json {
        let command = session.spell("pool", "create");
        out::print_json(&render::json::reply(&command, &created));
    } else if args.dry_run {
        out::print(&render::status::plan(&created));
    }
    Ok(0)
}

/// Words of zpool(8) for parts that pools do not have yet.
const LATER: &[&str] = &["log", "cache", "spare", "special", "dedup", "draid", "draid1", "draid2", "draid3"];

/// Reads words and devices: a word starts a group, devices before the first word are groups of one.
fn groups(vdevs: &[String]) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for text in vdevs {
        if LATER.contains(&text.as_str()) {
            let message = format!("'{text}' devices are not available in this version of larder");
            return Err(ApiError::new(ErrorKind::Unsupported, message));
        }
        if let Some(word) = Word::parse(text) {
            groups.push(Group { word, devices: Vec::new() });
            continue;
        }
        let device = args::device(text)?;
        match groups.last_mut() {
            Some(group) if group.word != Word::Single => group.devices.push(device),
            _ => groups.push(Group { word: Word::Single, devices: vec![device] }),
        }
    }
    groups.iter().try_for_each(Group::check)?;
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Vec<(Word, usize)>> {
        let vdevs: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Ok(groups(&vdevs)?.into_iter().map(|group| (group.word, group.devices.len())).collect())
    }

    #[test]
    fn words_start_groups_and_bare_devices_are_a_stripe() {
        use Word::{Mirror, Raid10, Raid14, Raidz1, Raidz2, Single};
        for (line, expected) in [
            ("/a", vec![(Single, 1)]),
            ("/a /b", vec![(Single, 1), (Single, 1)]),
            ("mirror /a /b mirror /c /d /e", vec![(Mirror, 2), (Mirror, 3)]),
            ("raidz /a /b /c", vec![(Raidz1, 3)]),
            ("raidz2 /a /b /c /d raid10 /e /f /g /h", vec![(Raidz2, 4), (Raid10, 4)]),
            ("raid14 /a /b /c /d /e", vec![(Raid14, 5)]),
            ("/a mirror /b /c", vec![(Single, 1), (Mirror, 2)]),
        ] {
            assert_eq!(read(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn too_few_devices_and_parts_of_later_versions_are_told() {
        assert!(read("mirror /a").unwrap_err().message.contains("at least 2 devices of 64M"));
        assert!(read("mirror raidz1 /a /b").unwrap_err().message.contains("0 were given"));
        assert!(read("/a log /b").unwrap_err().message.contains("not available in this version"));
    }
}
