//! `larder pool trim`: devices are told which space is free.

use super::{Session, args};
use crate::api::pool::{self, Activity, Status, TrimState, Vdev};
use crate::api::repair::{Trim, TrimAction};
use crate::api::{ApiError, Result};

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Goes through the free space of all devices, or of those that are named, beside all that goes on. It keeps its
place over exports and crashes; without a flag, one that was suspended goes on. larder pool status -t shows how far it
is. With -w, the exit code is 1 when a device was not trimmed to the end, or none can be.
Example: larder pool trim -w tank"
)]
pub struct Args {
    /// Cancel it
    #[arg(short = 'c', conflicts_with_all = ["suspend", "wait", "rate"])]
    cancel: bool,
    /// Suspend it: it keeps its place
    #[arg(short = 's', conflicts_with_all = ["wait", "rate"])]
    suspend: bool,
    /// Wait for the end
    #[arg(short = 'w')]
    wait: bool,
    /// Bytes of each device that are gone through in a second at most
    #[arg(short = 'r', value_name = "RATE")]
    rate: Option<String>,
    /// Refused: no device is trusted to erase what it is told to forget
    #[arg(short = 'd', hide = true)]
    secure: bool,
    name: String,
    /// Devices; all of the pool when none is given
    devices: Vec<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    if args.secure {
        let message = "a secure trim (-d) is not supported: whether a device erases what it is told to forget, nobody can tell";
        return Err(ApiError::usage(message).safe("everything: nothing was changed"));
    }
    let action = match (args.cancel, args.suspend) {
        (true, _) => TrimAction::Cancel,
        (_, true) => TrimAction::Suspend,
        _ => TrimAction::Start,
    };
    let rate = args::rate(args.rate.as_deref())?;
    let devices = args.devices;
    session.client.call(Trim { name: args.name.clone(), devices: devices.clone(), action, rate })?;
    if !args.wait {
        return Ok(0);
    }
    session.client.call(pool::Wait { name: args.name.clone(), activities: vec![Activity::Trim] })?;
    let pools = session.client.call(Status { names: vec![args.name] })?.pools;
    let mut states = Vec::new();
    for pool in &pools {
        let classed = pool.classes.iter().flat_map(|class| &class.vdevs);
        std::iter::once(&pool.root).chain(classed).for_each(|vdev| add_states(vdev, &devices, &mut states));
    }
    Ok(u8::from(states.is_empty() || states.iter().any(|state| *state != TrimState::Complete)))
}

/// States of the trims of these devices, or of all; of those that support it.
fn add_states(vdev: &Vdev, devices: &[String], states: &mut Vec<TrimState>) {
    let is_meant = |device: &String| {
        let path = vdev.path.as_deref().unwrap_or(&vdev.name);
        [vdev.name.as_str(), path].contains(&device.as_str())
            || path.ends_with(&format!("/{device}"))
            || vdev.guid.to_string() == *device
    };
    if let Some(trim) = vdev.trim.filter(|trim| trim.state != TrimState::Unsupported)
        && (devices.is_empty() || devices.iter().any(is_meant))
    {
        states.push(trim.state);
    }
    vdev.children.iter().for_each(|child| add_states(child, devices, states));
}
