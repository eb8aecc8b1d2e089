//! The verbs about the devices of a pool: `offline`, `online`, `clear`, `replace`, `attach`, `detach`, `add`,
//! `remove`, `reshape`, `rebalance`.
//!
//! A device of the pool may be named by its path, the last part of that, its guid or its number; the daemon
//! finds out which. New devices are paths.

use super::args::{self, Force, Json};
use super::pool_trace::Progress;
use super::{Session, out, vdevs};
use crate::api::pool::{Activity, PoolStatus, RebalanceState, ScanKind, Status, Wait, Word};
use crate::api::repair;
use crate::api::{ApiError, Result};
use crate::client;
use crate::render;
use clap::Args;
use larder_pool::property::format_size;
use std::time::Duration;

/// Interval between looks at how far a rebalance is.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct Offline {
    /// Until the next import only
    #[arg(short = 't')]
    temporary: bool,
    name: String,
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Online {
    /// Use all of a device that has grown, or is larger than the one whose place it took
    #[arg(short = 'e')]
    expand: bool,
    name: String,
    /// Devices of the pool, or paths where missing ones are now
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Clear {
    name: String,
    /// One device; all when not given
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
}

/// What verbs that change a pool's shape have in common.
#[derive(Debug, Args)]
pub struct Reshape {
    /// Only show what it would come to: before, after, and what is lost of the guarantee
    #[arg(short = 'n')]
    dry_run: bool,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Args)]
pub struct Replace {
    #[command(flatten)]
    reshape: Reshape,
    /// Wait until it is resilvered
    #[arg(short = 'w', conflicts_with = "dry_run")]
    wait: bool,
    name: String,
    /// The device that goes
    old: String,
    /// The path of the one that comes; when not given, a new disk is at the path of the old one
    new: Option<String>,
}

#[derive(Debug, Args)]
pub struct Attach {
    #[command(flatten)]
    reshape: Reshape,
    /// Wait until it is resilvered
    #[arg(short = 'w', conflicts_with = "dry_run")]
    wait: bool,
    name: String,
    /// The group, or a device of it; a single one becomes a mirror
    #[arg(value_name = "GROUP|DEVICE")]
    device: String,
    /// The paths of those that come
    #[arg(value_name = "NEW", required = true)]
    new: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Layout {
    #[command(flatten)]
    reshape: Reshape,
    /// Wait until all is moved
    #[arg(short = 'w', conflicts_with = "dry_run")]
    wait: bool,
    name: String,
    /// The group, or a device of it
    #[arg(value_name = "GROUP|DEVICE")]
    group: String,
    /// mirror, raidz1, raidz2, raidz3, raid10 or raid14
    #[arg(value_name = "LAYOUT")]
    word: String,
    /// The paths of further devices
    #[arg(value_name = "NEW")]
    new: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Rebalance {
    /// Only show what it would do
    #[arg(short = 'n', conflicts_with_all = ["stop", "wait", "rate"])]
    dry_run: bool,
    /// End it where it is
    #[arg(short = 's', conflicts_with_all = ["wait", "rate"])]
    stop: bool,
    /// Wait for the end
    #[arg(short = 'w')]
    wait: bool,
    /// Bytes that are moved in a second at most
    #[arg(short = 'r', long = "limit", value_name = "RATE")]
    rate: Option<String>,
    #[command(flatten)]
    json: Json,
    name: String,
}

#[derive(Debug, Args)]
pub struct Detach {
    #[command(flatten)]
    reshape: Reshape,
    /// Of a device that is being replaced, something could not be read: go on without it
    #[arg(long)]
    accept_loss: bool,
    name: String,
    device: String,
}

#[derive(Debug, Args)]
pub struct Add {
    #[command(flatten)]
    reshape: Reshape,
    name: String,
    /// Words and devices, as for create; spares behind the word spare, SSDs for copies behind the word cache
    #[arg(value_name = "VDEV", required = true)]
    vdevs: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Remove {
    #[command(flatten)]
    reshape: Reshape,
    /// Stop removing: those, or all that are on their way out, stay
    #[arg(short = 's')]
    stop: bool,
    /// Wait until they have left
    #[arg(short = 'w', conflicts_with_all = ["dry_run", "stop"])]
    wait: bool,
    name: String,
    /// Groups, devices of groups with parity, spares, caches
    #[arg(value_name = "GROUP|DEVICE", required_unless_present = "stop")]
    devices: Vec<String>,
}

/// A device of the pool as the daemon looks for it: what has a slash is a path from here.
fn named(text: &str) -> Result<String> {
    if text.contains('/') { args::device(text) } else { Ok(text.to_owned()) }
}

pub(super) fn all_named(texts: &[String]) -> Result<Vec<String>> {
    texts.iter().map(|text| named(text)).collect()
}

/// `offline`.
pub fn offline(args: Offline, session: &Session) -> Result<u8> {
    let devices = all_named(&args.devices)?;
    session.client.call(repair::Offline { name: args.name, devices, temporary: args.temporary })?;
    Ok(0)
}

/// `online`.
pub fn online(args: Online, session: &Session) -> Result<u8> {
    let (devices, expand) = (all_named(&args.devices)?, args.expand);
    let told = session.client.call(repair::Online { name: args.name, devices, expand })?;
    told.notes.iter().for_each(|note| out::complain(note));
    Ok(0)
}

/// `clear`.
pub fn clear(args: Clear, session: &Session) -> Result<u8> {
    let device = args.device.as_deref().map(named).transpose()?;
    session.client.call(repair::Clear { name: args.name, device })?;
    Ok(0)
}

/// `replace`.
pub fn replace(args: Replace, session: &Session) -> Result<u8> {
    let new = args.new.as_deref().map(args::device).transpose()?;
    let change = repair::Change::Replace { old: named(&args.old)?, new };
    reshape("replace", &args.name, change, &args.reshape, session)?;
    wait(args.wait, args.name, session)
}

/// `attach`.
pub fn attach(args: Attach, session: &Session) -> Result<u8> {
    let new = args.new.iter().map(|path| args::device(path)).collect::<Result<_>>()?;
    let change = repair::Change::Attach { to: named(&args.device)?, new };
    reshape("attach", &args.name, change, &args.reshape, session)?;
    wait(args.wait, args.name, session)
}

/// `detach`.
pub fn detach(args: Detach, session: &Session) -> Result<u8> {
    let change = repair::Change::Detach { device: named(&args.device)?, accept_loss: args.accept_loss };
    reshape("detach", &args.name, change, &args.reshape, session)
}

/// `add`.
pub fn add(args: Add, session: &Session) -> Result<u8> {
    let vdevs::Vdevs { groups, spares, caches } = vdevs::read(&args.vdevs)?;
    reshape("add", &args.name, repair::Change::Add { groups, spares, caches }, &args.reshape, session)
}

/// `remove`.
pub fn remove(args: Remove, session: &Session) -> Result<u8> {
    let devices = all_named(&args.devices)?;
    let change = match args.stop {
        true => repair::Change::Keep { devices },
        false => repair::Change::Remove { devices },
    };
    reshape("remove", &args.name, change, &args.reshape, session)?;
    wait(args.wait, args.name, session)
}

/// `reshape`.
pub fn layout(args: Layout, session: &Session) -> Result<u8> {
    let word = Word::parse(&args.word).ok_or_else(|| {
        let message =
            format!("'{}' is no layout: mirror, raidz1, raidz2, raidz3, raid10 or raid14", args.word);
        ApiError::usage(message).safe("everything: nothing was changed")
    })?;
    let new = args.new.iter().map(|path| args::device(path)).collect::<Result<_>>()?;
    let change = repair::Change::Layout { group: named(&args.group)?, word, new };
    reshape("reshape", &args.name, change, &args.reshape, session)?;
    wait(args.wait, args.name, session)
}

/// `rebalance`.
pub fn rebalance(args: Rebalance, session: &Session) -> Result<u8> {
    let action = if args.stop { repair::RebalanceAction::Stop } else { repair::RebalanceAction::Start };
    let rate = args::rate(args.rate.as_deref())?;
    let would = session.client.call(repair::Rebalance {
        name: args.name.clone(),
        action,
        rate,
        dry_run: args.dry_run,
    })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("pool", "rebalance"), &would));
    } else if args.dry_run {
        let (moves, gains) = (format_size(would.moves), format_size(would.gains));
        out::print(&format!("would move {moves}; files can take {gains} more then\n"));
    } else if action == repair::RebalanceAction::Start && would.moves == 0 {
        out::complain("nothing would gain from it: devices and groups are as evenly full as they can be");
    }
    if !args.wait {
        return Ok(0);
    }
    let progress = Progress::new(!args.json.json);
    loop {
        let pools = session.client.call(Status { names: vec![args.name.clone()] })?.pools;
        let of = pools.into_iter().find_map(|pool| pool.rebalance);
        match of {
            Some(of) if of.state == RebalanceState::Active => {
                progress.show(&format!("{}: {}", args.name, render::status::rebalance_line(&of)));
            }
            of => {
                progress.clear();
                return Ok(u8::from(of.is_none_or(|of| of.state != RebalanceState::Done)));
            }
        }
        client::pause(INTERVAL);
    }
}

fn reshape(
    verb: &str,
    name: &str,
    change: repair::Change,
    common: &Reshape,
    session: &Session,
) -> Result<u8> {
    session.tolerate(common.force)?;
    let request = repair::Reshape { name: name.to_owned(), change, dry_run: common.dry_run };
    let reshaped = session.client.call(request)?;
    if common.json.json {
        out::print_json(&render::json::reply(&session.spell("pool", verb), &reshaped));
    } else if common.dry_run {
        out::print(&render::shape::plan(&reshaped));
    } else {
        reshaped.notes.iter().for_each(|note| out::complain(note));
    }
    Ok(0)
}

/// Waits for resilvers and moves; 1 when something could not be had, or moved.
fn wait(wanted: bool, name: String, session: &Session) -> Result<u8> {
    if !wanted {
        return Ok(0);
    }
    session.client.call(Wait { name: name.clone(), activities: vec![Activity::Resilver] })?;
    let pools = session.client.call(Status { names: vec![name] })?.pools;
    let lossy = |pool: &&PoolStatus| {
        let resilver = pool.scans.iter().find(|scan| scan.kind == ScanKind::Resilver);
        resilver.is_some_and(|scan| scan.errors > 0)
    };
    // It may rest, since nothing came of its tries.
    let stuck: Vec<_> = pools.iter().filter_map(|pool| pool.reshaping_stuck.as_deref()).collect();
    stuck.iter().for_each(|why| out::complain(why));
    let lossy: Vec<_> = pools.iter().filter(lossy).collect();
    for pool in &lossy {
        [&pool.status, &pool.action].into_iter().flatten().for_each(|text| out::complain(text));
    }
    Ok(u8::from(!stuck.is_empty() || !lossy.is_empty()))
}
