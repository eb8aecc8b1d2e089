//! `pool remove`: removes spares, devices with copies of blocks, and the log's groups.

use super::super::roster;
use super::super::status::group_name;
use super::draft::{Act, Draft};
use super::{NOTHING_CHANGED, refused};
use crate::api::{ApiError, ErrorKind, Result};
use larder_format::GroupIndex;
use larder_format::root::GroupRole;
use larder_pool::Pool;

impl<'a> Draft<'a> {
    /// By what people call them.
    pub fn remove(&mut self, devices: &[String]) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let (mut going, mut logs) = (Vec::new(), Vec::new());
        for text in devices {
            if let Some(group) = log_called(pool, text)? {
                self.after.groups.retain(|part| part.index != Some(group));
                if !logs.contains(&group) {
                    logs.push(group);
                }
                continue;
            }
            let member = roster::find(pool, text)?;
            if !member.is_cache
                && !pool.store().members().spares().iter().any(|spare| spare.index == member.index)
            {
                let message =
                    format!("{text} is no spare, no cache and no log: what it holds cannot be moved away");
                return Err(ApiError::new(ErrorKind::Unsupported, message).safe(NOTHING_CHANGED).hint(
                    format!("larder pool replace POOL {text} NEW, or larder pool detach POOL {text}"),
                ));
            }
            let name = roster::called(pool, &member);
            let others = if member.is_cache { &mut self.after.caches } else { &mut self.after.spares };
            others.retain(|other| *other != name);
            going.push(member.index);
        }
        Ok(Box::new(move || {
            logs.into_iter().try_for_each(|group| upkeep.reshape.remove_log(group)).map_err(refused)?;
            going.into_iter().try_for_each(|index| upkeep.reshape.remove(index)).map_err(refused)?;
            Ok(Vec::new())
        }))
    }
}

/// The group of the log that goes by this name, as `status` shows it: that of its only device, or its own.
///
/// # Errors
/// When it is a device of a group that has others too; with that group's name.
fn log_called(pool: &Pool, text: &str) -> Result<Option<GroupIndex>> {
    for group in pool.store().groups().into_iter().filter(|group| group.role == GroupRole::Log) {
        let name = group_name(group.index, &group.rule);
        let members: Vec<_> = pool.store().members().of_group(group.index).collect();
        let is_one = roster::find(pool, text).is_ok_and(|found| found.group == group.index);
        if text == name || is_one && members.len() == 1 {
            return Ok(Some(group.index));
        }
        if is_one {
            let message = format!("{text} is one of several devices of the log");
            return Err(ApiError::usage(message).safe(NOTHING_CHANGED).hint(format!(
                "larder pool remove POOL {name} removes the log; larder pool detach POOL {text} this copy of it"
            )));
        }
    }
    Ok(None)
}
