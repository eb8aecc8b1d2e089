//! The verbs about a pool's devices, scrubs, resilvers and trims: what is asked is looked at, then the pool does it.
//! One file a verb; those that change which devices there are share a [`Draft`].
//!
//! New devices are opened and looked at as those of a new pool are. Nothing is written before everything has been
//! looked at; a dry run ends there.

mod add;
mod attach;
mod clear;
mod detach;
mod draft;
mod layout;
mod offline;
mod online;
mod plan;
mod rebalance;
mod remove;
mod replace;
mod resilver;
mod scrub;
mod split;
mod trim;

use super::error::NOTHING_CHANGED;
use super::live::Live;
use super::{Host, error, roster};
use crate::api::repair::{Change, Reshape, Reshaped};
use crate::api::{ApiError, ErrorKind, Result};
use draft::Draft;
use larder_format::DeviceIndex;
use larder_pool::member::Member;
use larder_pool::property::format_size;
use larder_pool::roles::is_vital;
use larder_pool::{Pool, PoolError};
use larder_upkeep::Upkeep;
pub use plan::RECORD;
use std::sync::Arc;

/// An error of a refused change: nothing was changed, unless the error says otherwise.
fn refused(error: PoolError) -> ApiError {
    let error = ApiError::from(error);
    match error.safe {
        None => error.safe(NOTHING_CHANGED),
        Some(_) => error,
    }
}

impl Host {
    /// A pool whose devices can be changed.
    pub(super) fn writable(&self, name: &str) -> Result<Arc<Live>> {
        let live = self.pool(name)?;
        if live.pool.store().is_read_only() {
            return Err(ApiError::from(PoolError::ReadOnly).of_pool(name));
        }
        Ok(live)
    }

    /// Changes which devices a pool is made of.
    pub(super) fn reshape(&self, request: &Reshape) -> Result<Reshaped> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let doing = match &request.change {
            Change::Replace { old, new: Some(new) } => format!("cannot replace {old} with {new}"),
            Change::Replace { old, new: None } => format!("cannot replace {old}"),
            Change::Attach { to, new } => format!("cannot attach {} to {to}", new.join(", ")),
            Change::Layout { group, word, .. } => format!("cannot make a {word} of {group}"),
            Change::Keep { devices } if devices.is_empty() => "cannot stop removing".to_owned(),
            Change::Keep { devices } => format!("cannot stop removing {}", devices.join(", ")),
            Change::Detach { device, .. } => format!("cannot detach {device}"),
            Change::Add { .. } => format!("cannot add to '{}'", request.name),
            Change::Remove { devices } => format!("cannot remove {}", devices.join(", ")),
        };
        Draft::carry_out(self, &live, request).map_err(|error| error.within(doing).of_pool(&request.name))
    }

    /// Notes where a device is, with the pool and in the state folder.
    fn note_path(&self, live: &Live, index: DeviceIndex) -> Result<()> {
        let Some(member) = live.pool.store().members().find(index).filter(|member| member.size().is_some())
        else {
            return Ok(());
        };
        if live.pool.store().members().spares().iter().any(|spare| spare.index == index) {
            roster::note_spare(&live.pool, member.guid)?;
        }
        self.remembered.lock().note(live.pool.store().identity(), [(member.guid, member.name())]);
        roster::note_path(&live.pool, &member)?;
        Ok(())
    }

    /// Notes where all devices are under the GUID that the pool has now.
    fn note_identity(&self, live: &Live) {
        self.expect(live);
        let (pool, mut remembered) = (&live.pool, self.remembered.lock());
        remembered.note(pool.store().identity(), live.device_paths());
        remembered.hold(pool.store().identity(), pool.incarnation());
    }

    /// The same of all.
    fn note_group_paths(&self, live: &Live) -> Result<()> {
        live.pool.store().members().iter().try_for_each(|member| self.note_path(live, member.index))
    }
}

/// Phrase for the data that could not be read of a device that is being replaced.
pub fn lost_text(upkeep: &Upkeep) -> String {
    match upkeep.resilver.result().filter(|result| result.lost > 0) {
        Some(result) => format!("{} that could not be read", format_size(result.lost_bytes)),
        None => "what could not be read".to_owned(),
    }
}

/// Refuses to do without a device that others need.
fn can_go(pool: &Pool, member: &Member) -> Result<()> {
    let Some(group) = pool.store().groups().into_iter().find(|group| group.index == member.group) else {
        return Ok(());
    };
    if member.stands_for.is_some() || !member.is_online() || !is_vital(group.role) {
        return Ok(());
    }
    let columns: Vec<_> = pool.store().members().of_group(group.index).collect();
    let lost = |column: usize| {
        columns.get(column).is_none_or(|other| !other.is_online() || other.index == member.index)
    };
    if group.rule.layout.survives(lost) {
        return Ok(());
    }
    Err(ApiError::new(ErrorKind::Device, "no valid replicas: what it holds could not be read without it")
        .safe(NOTHING_CHANGED)
        .hint("larder pool status POOL shows what else is missing; resilver or replace that first"))
}

/// A device with its serial number where the system knows it, for sentences.
pub fn sentence_name(pool: &Pool, member: &Member) -> String {
    roster::path(pool, member).map_or_else(|| format!("device {}", member.guid), |path| error::named(&path))
}
