//! `larder pool create`, and what a dry run shows.

use super::args::{self, Force, Json};
use super::{Session, out, vdevs};
use crate::api::Result;
use crate::api::pool::Create;
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Devices without a word make a stripe of single devices: no loss is survived.
Words and the least number of devices (64M or more each) they take:
  mirror 2   raidz1 2   raidz2 3   raidz3 4   raid10 4 (even)   raid14 5 (odd)
Devices behind the word spare wait until another one is lost, and take its place. Those behind the word cache get
copies of what is read often: SSDs before disks, of which nothing is lost with them. Groups behind the word log have
what is synced until it is committed, those behind special have metadata, those behind fast both.

Examples:
  larder pool create tank mirror /dev/sda /dev/sdb
  larder pool create tank mirror /dev/sda /dev/sdb fast mirror /dev/nvme0n1 /dev/nvme1n1
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
    /// Mount everything below DIR, until it is exported
    #[arg(short = 'R', value_name = "DIR")]
    altroot: Option<String>,
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
    let vdevs::Vdevs { groups, spares, caches } = vdevs::read(&args.vdevs)?;
    let request = Create {
        name: args.name,
        groups,
        spares,
        caches,
        properties: args::properties(args.properties)?,
        fs_properties,
        altroot: args.altroot.map(args::absolute).transpose()?,
        dry_run: args.dry_run,
    };
    let created = session.client.call(request)?;
    if args.json.json {
        let command = session.spell("pool", "create");
        out::print_json(&render::json::reply(&command, &created));
    } else if args.dry_run {
        out::print(&render::shape::created(&created));
    }
    for note in &created.notes {
        out::complain(note);
    }
    Ok(0)
}
