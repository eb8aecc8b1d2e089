//! A change of which devices a pool is made of, while it is looked at. Each verb adds what it would do to the draft and
//! gives what does it.

use super::super::create::free_device;
use super::super::live::Live;
use super::super::{Host, devices};
use super::NOTHING_CHANGED;
use super::plan::Plan;
use crate::api::repair::{Change, Reshape, Reshaped};
use crate::api::{ApiError, ErrorKind, Result};
use larder_device::{Device, OpenMode};
use larder_format::DeviceIndex;
use larder_format::label::LABEL_AREA;
use larder_pool::Pool;
use larder_pool::member::Member;
use larder_pool::open::{Scan, scan};
use larder_upkeep::Upkeep;
use std::sync::Arc;

/// The change itself, made once everything has been looked at; gives the new devices.
pub type Act<'a> = Box<dyn FnOnce() -> Result<Vec<DeviceIndex>> + 'a>;

/// See the module's text.
pub struct Draft<'a> {
    pub host: &'a Host,
    pub live: &'a Live,
    pub pool: &'a Pool,
    pub upkeep: &'a Upkeep,
    /// Mode in which new devices are opened.
    mode: OpenMode,
    pub before: Plan,
    pub after: Plan,
    /// For whoever asked.
    pub notes: Vec<String>,
}

impl<'a> Draft<'a> {
    /// Looks at what is asked, and does it unless that is all.
    pub fn carry_out(host: &'a Host, live: &'a Live, request: &Reshape) -> Result<Reshaped> {
        let (pool, upkeep) = (&*live.pool, &*live.upkeep);
        let mode = if request.dry_run { OpenMode::Probe } else { OpenMode::Exclusive };
        let before = Plan::of(pool);
        let mut draft =
            Self { host, live, pool, upkeep, mode, after: before.clone(), before, notes: Vec::new() };
        let act = match &request.change {
            Change::Replace { old, new } => draft.replace(old, new.as_deref()),
            Change::Attach { to, new } => draft.attach(to, new),
            Change::Layout { group, word, new } => draft.layout(group, *word, new),
            Change::Keep { devices } => draft.keep(devices),
            Change::Detach { device, accept_loss: true } => draft.detach_with_loss(device),
            Change::Detach { device, accept_loss: false } => draft.detach(device),
            Change::Add { groups, spares, caches } => draft.add(groups, spares, caches),
            Change::Remove { devices } => draft.remove(devices),
        }?;
        let Self { before, after, mut notes, .. } = draft;
        let (before, after) = (before.shape(), after.shape());
        if after.survives < before.survives {
            let less = before.survives - after.survives;
            let losses =
                if less == 1 { "1 loss less is".to_owned() } else { format!("{less} losses less are") };
            notes.push(format!("{losses} survived"));
        }
        if !request.dry_run {
            for index in act()? {
                host.note_path(live, index)?;
            }
            host.note_group_paths(live)?;
        }
        Ok(Reshaped { name: request.name.clone(), done: !request.dry_run, before, after, notes })
    }

    /// A device that nobody has a claim on, this pool included.
    pub fn new_device(&self, path: &str) -> Result<Arc<dyn Device>> {
        self.host.none_is_ours(std::iter::once(path))?;
        if let Ok(device) = devices::open(path, OpenMode::Probe)
            && let Scan::Member(found) = scan(&device)
            && found.label.is_of(self.pool.store().sums())
            && self.pool.store().members().by_guid(found.label.device).is_some()
        {
            let message = format!("{path} holds the label of this pool: it is one of its devices");
            return Err(ApiError::new(ErrorKind::Exists, message)
                .at(path)
                .safe(NOTHING_CHANGED)
                .hint(format!("to bring it back into use: larder pool online POOL {path}")));
        }
        free_device(path, self.mode)
    }
}

/// Refuses what makes no sense of a device with copies, with the way out.
pub fn no_cache(member: &Member, text: &str, way_out: &str) -> Result<()> {
    if !member.is_cache {
        return Ok(());
    }
    let message = format!("{text} is a cache: it has copies for reading, and nothing rests on it");
    Err(ApiError::usage(message).safe(NOTHING_CHANGED).hint(way_out))
}

/// Refuses what needs a place in a group.
pub fn no_place(text: &str) -> ApiError {
    ApiError::usage(format!("{text} has no place in a group: it is a spare, or replaces another device"))
        .safe(NOTHING_CHANGED)
}

/// The least bytes of a device that can take the place of `member`.
pub fn needed(member: &Member) -> u64 {
    let start = member.label().map_or(LABEL_AREA, |label| label.data_start.get());
    start + u64::from(member.slot_count()) * u64::from(member.slot_size) + LABEL_AREA
}

/// Refuses a device that cannot take the place of `old`.
pub fn large_enough(device: &dyn Device, old: &Member, path: &str) -> Result<()> {
    let (size, needed) = (device.size().get(), needed(old));
    if size >= needed {
        return Ok(());
    }
    let message = format!("{path} is too small: it has {size} bytes, {needed} are needed");
    Err(ApiError::usage(message)
        .at(path)
        .safe(NOTHING_CHANGED)
        .hint("take a device that is at least as large"))
}
