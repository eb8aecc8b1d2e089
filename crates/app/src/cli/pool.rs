//! `larder pool`: the verbs.

use super::{
    Session, pool_check, pool_create, pool_dedup, pool_destroy, pool_devices, pool_events, pool_export,
    pool_history, pool_import, pool_iostat, pool_labelclear, pool_list, pool_properties, pool_rebuild_index,
    pool_scrub, pool_split, pool_status, pool_trace, pool_trim, pool_wait,
};
use crate::api::Result;
use clap::Subcommand;

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Makes a pool of devices or files
    Create(pool_create::Args),
    /// Destroys a pool: its data is gone, its devices are free
    #[command(after_help = "Example: larder pool destroy --yes scratch")]
    Destroy(pool_destroy::Args),
    /// Lists pools with their space and health
    #[command(after_help = "Example: larder pool list -Hp -o name,size,free")]
    List(pool_list::Args),
    /// Shows the state of pools: what is wrong, what to do, what would still be survived
    #[command(after_help = "Example: larder pool status -x")]
    Status(pool_status::Args),
    /// Tells health in one line a pool: exit 0 healthy, 1 degraded, 2 faulted, 3 unknown
    Check(pool_check::Args),
    /// Shows properties of pools
    #[command(after_help = "Example: larder pool get memory,capacity tank")]
    Get(pool_properties::Get),
    /// Sets a property of a pool
    #[command(after_help = "Example: larder pool set memory=2G tank")]
    Set(pool_properties::Set),
    /// Imports a pool from its devices; without a name, shows what can be imported
    Import(pool_import::Args),
    /// Unmounts a pool and lets go of its devices
    #[command(after_help = "Example: larder pool export tank")]
    Export(pool_export::Args),
    /// Shows traffic: operations and bytes a second
    Iostat(pool_iostat::Args),
    /// Returns when all that was written before is committed
    #[command(after_help = "Example: larder pool sync tank")]
    Sync(pool_wait::Sync),
    /// Wipes the labels of a device that belongs to no imported pool
    #[command(after_help = "Example: larder pool labelclear -f /dev/sdx")]
    Labelclear(pool_labelclear::Args),
    /// Takes a device out of use; the pool goes on without it
    #[command(after_help = "Example: larder pool offline tank ata-DISK3")]
    Offline(pool_devices::Offline),
    /// Brings a device back into use, and resilvers what it missed
    #[command(after_help = "Example: larder pool online tank ata-DISK3")]
    Online(pool_devices::Online),
    /// Puts a new device in the place of an old one, which may be missing
    #[command(
        after_help = "The old device stays in use until the new one has everything. Fewer losses are survived at no time.
Example: larder pool replace tank ata-DISK3 /dev/disk/by-id/ata-DISK7"
    )]
    Replace(pool_devices::Replace),
    /// Gives a group more devices: a mirror more copies, a group with parity more room
    #[command(
        after_help = "What is stored in a group with parity stays as it is, and new data uses all devices at once; larder pool
rebalance spreads the old as well. Devices may have any size. A raid10 and a raid14 take pairs.
Examples:
  larder pool attach -n tank raidz1-0 /dev/disk/by-id/ata-DISK5
  larder pool attach tank ata-DISK1 /dev/disk/by-id/ata-DISK2"
    )]
    Attach(pool_devices::Attach),
    /// Takes a device out of a mirror for good, or ends a replacing
    #[command(
        after_help = "Of two that are being replaced by one another, detaching the new one calls it off. The old one leaves by
itself; when something of it could not be read, it stays, and --accept-loss lets it go without. It is not wiped then.
Examples:
  larder pool detach tank ata-DISK2
  larder pool detach --accept-loss tank ata-DISK4"
    )]
    Detach(pool_devices::Detach),
    /// Adds groups of devices, spares, or SSDs for copies of what is read often (cache)
    #[command(after_help = "Groups must be as safe as those that are there.
Examples:
  larder pool add -n tank mirror /dev/disk/by-id/ata-DISK{5,6}
  larder pool add tank spare /dev/disk/by-id/ata-DISK7
  larder pool add tank cache /dev/disk/by-id/nvme-SSD1")]
    Add(pool_devices::Add),
    /// Takes groups, devices of groups with parity, spares and caches out of a pool
    #[command(
        after_help = "What they hold moves to the others first, while the pool is in use; -n says whether it fits. It goes on after
an export or a crash. -s stops it.
Examples:
  larder pool remove -n tank mirror-1
  larder pool remove -w tank ata-DISK7
  larder pool remove -s tank"
    )]
    Remove(pool_devices::Remove),
    /// Gives a group another layout
    #[command(
        after_help = "All that is stored there is moved, while the pool is in use; until then it survives what it did before.
Examples:
  larder pool reshape -n tank raidz1-0 raidz2 /dev/disk/by-id/ata-DISK5
  larder pool reshape -w tank raidz2-0 raidz1"
    )]
    Reshape(pool_devices::Layout),
    /// Spreads what is stored over devices and groups that were added
    #[command(
        after_help = "It goes on after an export or a crash. larder pool status shows how far it is. With -w, the exit code is 1
when it did not come to its end.
Example: larder pool rebalance -w --limit 100M tank"
    )]
    Rebalance(pool_devices::Rebalance),
    /// Sets the error counts of devices to zero; a faulted device, and a suspended pool if it can, come back into use
    #[command(after_help = "Example: larder pool clear tank ata-DISK3")]
    Clear(pool_devices::Clear),
    /// Verifies everything that pools hold, and repairs what is wrong
    Scrub(pool_scrub::Args),
    /// Tells devices which space is free, so that SSDs and sparse files can give it up
    Trim(pool_trim::Args),
    /// Starts rebuilding what devices lack from the beginning
    Resilver(pool_scrub::ResilverArgs),
    /// Shows what happened to pools
    Events(pool_events::Args),
    /// Shows which commands changed pools
    History(pool_history::Args),
    /// Walks everything: frees what is dead, finds what has leaked or is missing
    Trace(pool_trace::Args),
    /// Shows how often records are referred to, what that saves and where
    Dedup(pool_dedup::Args),
    /// Makes the dedup index anew, and has what was stored before dedup was on take part
    RebuildIndex(pool_rebuild_index::Args),
    /// Makes a pool of its own of one disk of each mirror
    Split(pool_split::Split),
    /// Gives a pool another guid, so that a copy of its disks can be imported beside it
    Reguid(pool_split::Reguid),
    /// Returns when background work is over
    #[command(after_help = "Example: larder pool wait -t free tank")]
    Wait(pool_wait::Wait),
}

/// Runs a verb.
pub fn run(verb: Verb, session: &Session) -> Result<u8> {
    match verb {
        Verb::Create(args) => pool_create::run(args, session),
        Verb::Destroy(args) => pool_destroy::run(args, session),
        Verb::List(args) => pool_list::run(args, session),
        Verb::Status(args) => pool_status::run(args, session),
        Verb::Check(args) => pool_check::run(args, session),
        Verb::Get(args) => pool_properties::get(args, session),
        Verb::Set(args) => pool_properties::set(args, session),
        Verb::Import(args) => pool_import::run(args, session),
        Verb::Export(args) => pool_export::run(args, session),
        Verb::Iostat(args) => pool_iostat::run(args, session),
        Verb::Sync(args) => pool_wait::sync(args, session),
        Verb::Labelclear(args) => pool_labelclear::run(args),
        Verb::Offline(args) => pool_devices::offline(args, session),
        Verb::Online(args) => pool_devices::online(args, session),
        Verb::Replace(args) => pool_devices::replace(args, session),
        Verb::Attach(args) => pool_devices::attach(args, session),
        Verb::Detach(args) => pool_devices::detach(args, session),
        Verb::Add(args) => pool_devices::add(args, session),
        Verb::Remove(args) => pool_devices::remove(args, session),
        Verb::Reshape(args) => pool_devices::layout(args, session),
        Verb::Rebalance(args) => pool_devices::rebalance(args, session),
        Verb::Clear(args) => pool_devices::clear(args, session),
        Verb::Scrub(args) => pool_scrub::run(args, session),
        Verb::Trim(args) => pool_trim::run(args, session),
        Verb::Resilver(args) => pool_scrub::resilver(args, session),
        Verb::Events(args) => pool_events::run(args, session),
        Verb::History(args) => pool_history::run(args, session),
        Verb::Trace(args) => pool_trace::run(args, session),
        Verb::Dedup(args) => pool_dedup::run(args, session),
        Verb::RebuildIndex(args) => pool_rebuild_index::run(args, session),
        Verb::Split(args) => pool_split::split(args, session),
        Verb::Reguid(args) => pool_split::reguid(args, session),
        Verb::Wait(args) => pool_wait::wait(args, session),
    }
}
