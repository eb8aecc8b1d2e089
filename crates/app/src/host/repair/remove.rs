//! `pool remove`: takes devices and groups out; `pool remove -s` has those stay that are on their way.

use super::super::roster;
use super::super::status::group_name;
use super::attach::group_called;
use super::draft::{Act, Draft};
use super::plan::RECORD;
use super::{NOTHING_CHANGED, can_go, refused};
use crate::api::{ApiError, Result};
use larder_format::root::GroupRole;
use larder_format::{DeviceIndex, GroupIndex};
use larder_pool::GroupUse;
use larder_pool::Pool;
use larder_pool::member::Member;
use larder_pool::roles::is_vital;
use larder_upkeep::rule_of;

/// Somebody's choice of what goes, or stays.
enum Going {
    Device(DeviceIndex),
    Group(GroupIndex),
}

impl<'a> Draft<'a> {
    /// By what people call them.
    pub fn remove(&mut self, devices: &[String]) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let mut going = Vec::new();
        for text in devices {
            if let Some(group) = group_to_go(pool, text)? {
                if going.iter().any(|of| matches!(of, Going::Group(other) if *other == group.index)) {
                    continue;
                }
                if is_vital(group.role) {
                    self.without_group(&group)?;
                }
                self.after.groups.retain(|part| part.index != Some(group.index));
                going.push(Going::Group(group.index));
                continue;
            }
            let member = roster::find(pool, text)?;
            let is_spare = pool.store().members().spares().iter().any(|spare| spare.index == member.index);
            if !member.is_cache && !is_spare {
                self.without_device(text, &group_called(pool, text)?, &member)?;
            }
            let name = roster::called(pool, &member);
            let others = if member.is_cache { &mut self.after.caches } else { &mut self.after.spares };
            others.retain(|other| *other != name);
            going.push(Going::Device(member.index));
        }
        let is_of_data = |of: &&Going| match of {
            Going::Group(group) => pool.store().is_vital(*group),
            Going::Device(index) => pool.store().members().has(*index),
        };
        if going.iter().filter(is_of_data).count() > 1 {
            let message = "only one device or group with data can begin to leave at a time";
            return Err(ApiError::usage(message)
                .safe(NOTHING_CHANGED)
                .hint(format!("larder pool remove -w {} the first; then the next", pool.name())));
        }
        // If that is refused, nothing has changed.
        going.sort_by_key(|of| !is_of_data(&of));
        Ok(Box::new(move || {
            let go = |of: Going| match of {
                Going::Group(group) => upkeep.reshape.remove_group(group),
                Going::Device(index) => upkeep.reshape.remove(index),
            };
            going.into_iter().try_for_each(go).map_err(refused)?;
            Ok(Vec::new())
        }))
    }

    /// All that is stored on a group goes elsewhere.
    fn without_group(&mut self, group: &GroupUse) -> Result<()> {
        let (store, name) = (self.pool.store(), group_name(group.index, &group.rule));
        self.upkeep.reshape.check_removal(group.index).map_err(refused)?;
        self.after.usable = store.size_with(RECORD, group.index, None);
        self.notes.push(format!(
            "{name} leaves when all that is there is elsewhere: larder pool wait -t remove {} waits for that, \
             larder pool remove -s {} {name} stops it",
            self.pool.name(),
            self.pool.name()
        ));
        Ok(())
    }

    /// A group with parity goes on without one of its devices.
    fn without_device(&mut self, text: &str, group: &GroupUse, member: &Member) -> Result<()> {
        let (layout, name) = (group.rule.layout, group_name(group.index, &group.rule));
        if layout.r() > 1 || layout.m() == 0 {
            let message =
                format!("{text} is one of several devices of {name}, which are copies of one another");
            let hint = match layout.k() {
                1 => format!(
                    "larder pool detach POOL {text} takes this copy out; larder pool remove POOL {name} \
                     all of it"
                ),
                _ => format!(
                    "larder pool replace POOL {text} NEW; larder pool remove POOL {name} takes all of it out"
                ),
            };
            return Err(ApiError::usage(message).safe(NOTHING_CHANGED).hint(hint));
        }
        can_go(self.pool, member)?;
        let rule = rule_of(&group.rule, layout.columns() - 1).map_err(|error| {
            refused(error).hint(format!("larder pool replace POOL {text} NEW puts another in its place"))
        })?;
        self.reckon(group, rule, &[], &[member.index])?;
        for part in self.after.groups.iter_mut().filter(|part| part.index == Some(group.index)) {
            part.columns.retain(|column| column.index != Some(member.index));
        }
        self.notes.push(format!(
            "{text} leaves when what it holds is elsewhere: larder pool wait -t remove {} waits for that, larder pool \
             remove -s {} {text} stops it",
            self.pool.name(),
            self.pool.name()
        ));
        Ok(())
    }

    /// Devices and groups on their way out stay: these, or all.
    pub fn keep(&mut self, devices: &[String]) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let leaving: Vec<_> = pool.store().groups().into_iter().filter(|group| group.leaving).collect();
        let mut staying = Vec::new();
        for text in devices {
            let group = leaving.iter().find(|group| {
                group_name(group.index, &group.rule) == *text
                    || roster::find(pool, text).is_ok_and(|member| member.group == group.index)
            });
            staying.push(match group {
                Some(group) => Going::Group(group.index),
                None => Going::Device(roster::find(pool, text)?.index),
            });
        }
        if devices.is_empty() {
            staying.extend(leaving.iter().map(|group| Going::Group(group.index)));
            let has_parity = |group: &GroupUse| group.rule.layout.r() == 1 && group.rule.layout.m() > 0;
            let groups: Vec<_> = pool.store().groups().into_iter().filter(has_parity).collect();
            let members = pool.store().members().iter().filter(|member| member.is_leaving());
            let members = members.filter(|member| groups.iter().any(|group| group.index == member.group));
            staying.extend(members.map(|member| Going::Device(member.index)));
        }
        if staying.is_empty() {
            return Err(ApiError::usage("nothing is being removed").safe(NOTHING_CHANGED));
        }
        Ok(Box::new(move || {
            let stay = |of: Going| match of {
                Going::Group(group) => upkeep.reshape.keep_group(group),
                Going::Device(index) => upkeep.reshape.keep(index),
            };
            staying.into_iter().try_for_each(stay).map_err(refused)?;
            Ok(Vec::new())
        }))
    }
}

/// The group that goes by this name, as `status` shows it: that of its only device, or its own.
///
/// # Errors
/// When it is a device of a group of the log that has others too; with that group's name.
fn group_to_go(pool: &Pool, text: &str) -> Result<Option<GroupUse>> {
    for group in pool.store().groups() {
        let name = group_name(group.index, &group.rule);
        let columns: Vec<_> = pool.store().members().of_group(group.index).collect();
        let found = roster::find(pool, text).ok();
        let is_one = found.as_ref().is_some_and(|found| columns.iter().any(|one| one.index == found.index));
        if text == name || is_one && columns.len() == 1 {
            return Ok(Some(group));
        }
        if is_one && group.role == GroupRole::Log {
            let message = format!("{text} is one of several devices of the log");
            return Err(ApiError::usage(message).safe(NOTHING_CHANGED).hint(format!(
                "larder pool remove POOL {name} removes the log; larder pool detach POOL {text} this copy of it"
            )));
        }
    }
    Ok(None)
}
