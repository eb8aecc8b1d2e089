//! `larder pool split` and `larder pool reguid`.

use super::pool_devices::all_named;
use super::{Session, out};
use crate::api::Result;
use crate::api::repair::{Reguid as ReguidRequest, Split as SplitRequest};

/// Arguments of `split`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The new pool has all that the old one has at this moment, snapshots and properties too, and is exported. Caches
and spares stay with the old one; a log has to be removed first. What is left survives one loss less.
Examples:
  larder pool split -n tank backup
  larder pool split tank backup ata-DISK2 && larder pool import -R /mnt backup"
)]
pub struct Split {
    /// Only show which devices would go
    #[arg(short = 'n')]
    dry_run: bool,
    name: String,
    /// Name of the new pool
    #[arg(value_name = "NEWNAME")]
    new_name: String,
    /// Devices that go, one of each mirror; where none is named, the last
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
}

/// Arguments of `reguid`.
#[derive(Debug, clap::Args)]
#[command(after_help = "For a pool whose disks were copied, so that both can be imported on one machine.
Example: larder pool reguid tank")]
pub struct Reguid {
    name: String,
}

/// `split`.
pub fn split(args: Split, session: &Session) -> Result<u8> {
    let devices = all_named(&args.devices)?;
    let (name, new_name, dry_run) = (args.name, args.new_name, args.dry_run);
    let request = SplitRequest { name: name.clone(), new_name: new_name.clone(), devices, dry_run };
    let parted = session.client.call(request)?;
    let verb = if dry_run { "would become" } else { "became" };
    let losses = match parted.survives {
        0 => "no loss".to_owned(),
        1 => "1 loss".to_owned(),
        count => format!("{count} losses"),
    };
    let next = if dry_run { String::new() } else { format!("\nto use it: larder pool import {new_name}") };
    let devices = parted.devices.join(" and ");
    out::print(&format!("{devices} {verb} the pool {new_name}; {name} survives {losses}{next}\n"));
    Ok(0)
}

/// `reguid`.
pub fn reguid(args: Reguid, session: &Session) -> Result<u8> {
    session.client.call(ReguidRequest { name: args.name })?;
    Ok(0)
}
