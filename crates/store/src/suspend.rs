//! A pool that cannot go on writing: nothing more is taken or acknowledged, and what can be read is read.
//!
//! Most suspensions are *lasting*: memory and disk have parted, and an import from the last commit and the log is the
//! way on. Two are not.
//!
//! When devices refuse writes and that is all, everything that was accepted is still in memory: dirty data and nodes,
//! and the stripes that found too few devices, which stay in the queue of stripes ([`crate::write`]). A member that was
//! faulted and is *unharmed* lacks nothing else: no flush of it failed, and nothing that counts as stored went by
//! without it. So when the cause is gone (a full file system has room, a cable is back in), the pool's `resume` uses
//! such members again, writes those stripes once more, finishes the commit that they refused, and commits. Log records
//! that were lost have been acknowledged to nobody.
//!
//! When a commit cannot read a node of the tables, what it has not put there yet is still noted, and the next commit
//! finds it.

use crate::error::{PoolError, Result};
use crate::events::{Class, Event};
use crate::member::Member;
use crate::refusal::Refusal;
use crate::store::Store;
use crate::suspension::Suspension;
use larder_format::GroupIndex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// For how long a device may not answer before the pool is suspended.
const PATIENCE: Duration = Duration::from_secs(30);

impl Store {
    /// Refuses when nothing may be written.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`], [`Refusal::Exported`], [`PoolError::Suspended`] or [`PoolError::HostFull`].
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        if self.exported.load(Ordering::Acquire) {
            return Err(Refusal::Exported.into());
        }
        self.suspended.lock().as_ref().map_or(Ok(()), |suspension| Err(suspension.error()))
    }

    /// Stops all writing: nothing more is acknowledged before the next import. The first reason stays.
    pub fn suspend(&self, reason: String) -> PoolError {
        self.suspend_as(Suspension { reason, lasting: true, full: false })
    }

    /// Stops all writing: `error` came between while a commit was being sealed. Nothing was taken that it has not put
    /// where it belongs, so what could not be read is read again by the pool's `resume`.
    pub fn suspend_sealing(&self, error: &PoolError) -> PoolError {
        let lasting = !matches!(error, PoolError::Unreadable { .. });
        let reason = format!("a commit could not be written: {error}");
        self.suspend_as(Suspension { reason, lasting, full: false })
    }

    /// Stops all writing since too many of `columns` are out of use. When it is for what they refused, and they are
    /// there again, the pool's `resume` goes on.
    pub fn suspend_without(&self, columns: &[Arc<Member>], why: &str) -> PoolError {
        let lost: Vec<_> = columns.iter().filter(|member| !member.is_online()).collect();
        lost.iter().for_each(|member| member.read_all_the_same());
        let full: Vec<_> =
            lost.iter().filter(|member| member.is_full()).map(|member| member.name()).collect();
        let reason = match full.is_empty() {
            true => why.to_owned(),
            false => format!("the file system under {} is full", full.join(", ")),
        };
        self.suspend_as(Suspension { reason, lasting: false, full: !full.is_empty() })
    }

    /// The error of a device in use that gives not even its own label: data that cannot be read meanwhile is not
    /// damaged, and nothing may be given up for it. If that lasts, the pool is suspended until the device is there
    /// again; its `resume` goes on with all that was accepted.
    pub fn silence(&self) -> Option<PoolError> {
        let vital: Vec<_> = self.core.lock().vital_groups().map(|group| group.index).collect();
        let is_silent = |member: &Arc<Member>| member.is_online() && !member.answers();
        let silent = self.members.iter().find(|member| vital.contains(&member.group) && is_silent(member));
        let mut since = self.silent_since.lock();
        let Some(member) = silent else {
            *since = None;
            return None;
        };
        let (why, now) = (format!("{} does not answer", member.name()), self.world.clock.monotonic());
        // One of long ago is over: nobody met it meanwhile.
        let began = since.filter(|began| now.saturating_sub(*began) < 2 * PATIENCE).unwrap_or(now);
        *since = Some(began);
        if now.saturating_sub(began) < PATIENCE {
            return Some(PoolError::Invalid(why));
        }
        *since = None;
        drop(since);
        Some(self.suspend_without(&[member], &why))
    }

    /// Suspends the pool when a group has lost more devices than its layout survives. It goes on without the log's.
    pub fn check_tolerance(&self) -> Result<()> {
        let groups: Vec<_> = self.core.lock().vital_groups().map(|group| group.index).collect();
        groups.into_iter().try_for_each(|group| self.check_tolerance_of(group))
    }

    /// As [`Store::check_tolerance`], of one group.
    pub fn check_tolerance_of(&self, group: GroupIndex) -> Result<()> {
        if self.can_go_on(group) || !self.is_vital(group) {
            return Ok(());
        }
        let Some(rule) = self.core.lock().groups.get(&group).map(|of| of.rule) else { return Ok(()) };
        let members: Vec<_> = self.members.of_group(group).collect();
        let lost: Vec<_> =
            members.iter().filter(|member| !member.is_online()).map(|member| member.name()).collect();
        let why = format!("{} group {group} cannot do without {}", rule.name(), lost.join(", "));
        Err(self.suspend_without(&members, &why))
    }

    fn suspend_as(&self, new: Suspension) -> PoolError {
        let mut suspended = self.suspended.lock();
        let told = match suspended.take() {
            None => new,
            Some(old) if new.lasting && !old.lasting => {
                Suspension { reason: format!("{}; then: {}", old.reason, new.reason), ..new }
            }
            Some(old) => return suspended.insert(old).error(),
        };
        self.event(Event::new(Class::PoolSuspend).text(told.reason.as_str()));
        suspended.insert(told).error()
    }

    /// Whether and why nothing is written any more, as it stands now.
    pub fn suspension(&self) -> Option<Suspension> {
        self.suspended.lock().clone()
    }

    /// Why nothing is written any more.
    pub fn suspended(&self) -> Option<String> {
        self.suspended.lock().as_ref().map(|suspension| suspension.reason.clone())
    }

    /// Whether the pool's `resume` may bring it back.
    pub fn may_resume(&self) -> bool {
        self.suspended.lock().as_ref().is_some_and(|suspension| !suspension.lasting)
            && self.has_enough_unharmed()
    }

    /// Whether each vital group survives without those that are neither in use nor unharmed.
    pub fn has_enough_unharmed(&self) -> bool {
        let groups: Vec<_> = self.core.lock().vital_groups().map(|group| (group.index, group.rule)).collect();
        groups.into_iter().all(|(index, rule)| {
            let columns: Vec<_> = self.members.of_group(index).collect();
            // It may change its shape just now.
            let is_lost = |of: &Arc<Member>| !of.is_online() && !of.is_unharmed();
            rule.layout.survives(|column| columns.get(column).is_none_or(is_lost))
        })
    }
}

impl Store {
    /// Writes may be acknowledged again.
    pub fn resumed(&self) {
        self.event(Event::new(Class::PoolResume));
        *self.suspended.lock() = None;
    }
}
