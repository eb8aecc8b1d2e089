//! `pool add`: adds groups of devices, spares, or devices for copies of blocks.

use super::super::create::{no_device_twice, safe_enough};
use super::draft::{Act, Draft, needed};
use super::plan::{Column, Part, RECORD};
use super::{NOTHING_CHANGED, refused};
use crate::api::pool::{Group, Role, Word};
use crate::api::{ApiError, Result};
use larder_device::Device;
use larder_format::label::GroupRule;
use larder_pool::create::slot_size_beside;
use larder_pool::{GroupSpec, Pool, PoolSpec};

impl<'a> Draft<'a> {
    /// By the paths of their devices.
    pub fn add(&mut self, groups: &[Group], spares: &[String], caches: &[String]) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        no_device_twice(groups, spares.iter().chain(caches))?;
        let of_data = self.before.groups.iter().filter(|group| group.role == Role::Data);
        let weakest = of_data.map(|group| group.rule().map(|rule| rule.layout.tolerance()));
        let weakest = weakest.flatten().min().unwrap_or(0);
        let mut specs = Vec::new();
        for group in groups {
            let rule = group.word.rule(group.devices.len()).expect("requests are checked");
            match group.role {
                Role::Data => as_safe(&group.word, &rule, weakest)?,
                Role::Special | Role::Fast => safe_enough(group, rule.layout.tolerance(), weakest)?,
                Role::Log if rule.layout.tolerance() < weakest => self.notes.push(format!(
                    "the log survives {} losses, the data {weakest}: if it is lost together with the power, what was \
                     synced in the last seconds is lost",
                    rule.layout.tolerance()
                )),
                Role::Log => {}
            }
            let open = |path: &String| self.new_device(path);
            let devices = group.devices.iter().map(open).collect::<Result<_>>()?;
            let spec = GroupSpec { rule, role: group.role.stored(), devices };
            let smallest = pool.store().members().smallest_slot().unwrap_or(0);
            slot_size_beside(&spec, smallest, pool.store().ashift()).map_err(refused)?;
            specs.push(spec);
            let column = |path: &String| Column { index: None, path: path.clone(), lost: false };
            let columns = group.devices.iter().map(column).collect();
            self.after.groups.push(Part { index: None, role: group.role, word: group.word, columns });
        }
        if !specs.is_empty() {
            let spec = PoolSpec { name: pool.name(), groups: specs.clone(), ashift: pool.store().ashift() };
            self.after.usable += spec.available(RECORD);
        }
        let mut waiting = Vec::new();
        for path in spares {
            let device = self.new_device(path)?;
            self.notes.extend(cannot_stand_for(pool, &*device, path));
            waiting.push(device);
            self.after.spares.push(path.clone());
        }
        let mut copying = Vec::new();
        for path in caches {
            copying.push(self.new_device(path)?);
            self.after.caches.push(path.clone());
        }
        upkeep.devices.check_caches(&copying).map_err(|(at, error)| refused(error).at(&caches[at]))?;
        Ok(Box::new(move || {
            specs.into_iter().try_for_each(|spec| upkeep.reshape.add_group(spec)).map_err(refused)?;
            let add = |device| upkeep.devices.add_spare(device).map_err(refused);
            let added: Vec<_> = waiting.into_iter().map(add).collect::<Result<_>>()?;
            let add = |device| upkeep.devices.add_cache(device).map_err(refused);
            added.into_iter().map(Ok).chain(copying.into_iter().map(add)).collect()
        }))
    }
}

/// Refuses groups that are not as safe as those that are there.
fn as_safe(word: &Word, rule: &GroupRule, weakest: usize) -> Result<()> {
    let survives = rule.layout.tolerance();
    if survives == weakest {
        return Ok(());
    }
    let message = format!(
        "the {word} survives {survives} losses, the pool's groups {weakest}: files lie on all of them, so the \
         weakest would count"
    );
    Err(ApiError::usage(message).safe(NOTHING_CHANGED).hint(
        "give it the same word and number of devices as the groups that are there, or make another pool",
    ))
}

/// For which groups a spare is too small.
fn cannot_stand_for(pool: &Pool, device: &dyn Device, path: &str) -> Option<String> {
    let size = device.size().get();
    let most = pool.store().members().iter().map(|member| needed(&member)).max()?;
    (size < most).then(|| {
        format!(
            "{path} is too small to take the place of every device: it has {size} bytes, {most} are needed"
        )
    })
}
