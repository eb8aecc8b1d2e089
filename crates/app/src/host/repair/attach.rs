//! `pool attach`: gives a group more devices, or makes a mirror of a single device.

use super::super::roster;
use super::super::status::group_name;
use super::draft::{Act, Draft, no_cache, no_place};
use super::plan::{Column, RECORD};
use super::{NOTHING_CHANGED, refused};
use crate::api::pool::Word;
use crate::api::{ApiError, ErrorKind, Result};
use larder_device::Device;
use larder_format::label::GroupRule;
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::GroupUse;
use larder_pool::Pool;
use larder_pool::property::format_size;
use larder_upkeep::rule_of;
use std::sync::Arc;

/// The group that goes by this name, as `status` shows it, or by that of a device in it.
///
/// # Errors
/// When there is none.
pub fn group_called(pool: &Pool, text: &str) -> Result<GroupUse> {
    let named = |group: &GroupUse| group_name(group.index, &group.rule) == text;
    if let Some(group) = pool.store().groups().into_iter().find(named) {
        return Ok(group);
    }
    let member = roster::find(pool, text).map_err(|error| {
        let hint = format!("larder pool status {} shows both", pool.name());
        match error.kind {
            ErrorKind::NotFound => ApiError::new(
                ErrorKind::NotFound,
                format!("'{text}' is neither a group nor a device of the pool"),
            )
            .safe(NOTHING_CHANGED)
            .hint(hint),
            _ => error,
        }
    })?;
    let of = pool.store().groups().into_iter().find(|group| group.index == member.group);
    of.filter(|_| member.stands_for.is_none()).ok_or_else(|| no_place(text))
}

impl<'a> Draft<'a> {
    /// `to` is in it, or its name.
    pub fn attach(&mut self, to: &str, new: &[String]) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        if let Ok(member) = roster::find(pool, to) {
            no_cache(
                &member,
                to,
                &format!("larder pool add POOL cache {} adds another, which shares the work", new.join(" ")),
            )?;
        }
        let group = group_called(pool, to)?;
        let rule = rule_of(&group.rule, group.rule.layout.columns() + new.len()).map_err(refused)?;
        let is_mirror = matches!(Word::parse(&rule.name()), Some(Word::Mirror));
        let devices = self.join(&group, rule, new)?;
        let has_pairs_and_parity = rule.layout.r() > 1 && rule.layout.m() > 0;
        self.notes.push(match is_mirror {
            false if has_pairs_and_parity => {
                "what is stored is moved, since another device has the parity now".to_owned()
            }
            true => format!("what is stored is being copied to {}", new.join(", ")),
            false => format!(
                "what is stored stays as it is; larder pool rebalance {} spreads it over all devices",
                pool.name()
            ),
        });
        let to = self.first_of(&group)?;
        Ok(Box::new(move || upkeep.reshape.attach(to, devices).map_err(refused)))
    }

    /// Devices that a group would have, by this rule; looks at them.
    pub fn join(
        &mut self,
        group: &GroupUse,
        rule: GroupRule,
        new: &[String],
    ) -> Result<Vec<Arc<dyn Device>>> {
        let devices = new.iter().map(|path| self.new_device(path)).collect::<Result<Vec<_>>>()?;
        let sizes: Vec<_> = new.iter().cloned().zip(devices.iter().map(|device| device.size())).collect();
        self.reckon(group, rule, &sizes, &[])?;
        let part = self.after.groups.iter_mut().find(|part| part.index == Some(group.index));
        if let Some(part) = part {
            let column = |path: &String| Column { index: None, path: path.clone(), lost: false };
            part.columns.extend(new.iter().map(column));
            part.word = Word::parse(&rule.name()).unwrap_or(Word::Single);
        }
        Ok(devices)
    }

    /// Tells what files could take if the group had this rule, and refuses what does not fit.
    pub fn reckon(
        &mut self,
        group: &GroupUse,
        rule: GroupRule,
        new: &[(String, ByteLen)],
        leaving: &[DeviceIndex],
    ) -> Result<()> {
        let store = self.pool.store();
        let after = self.upkeep.reshape.shaped(group.index, rule, new, leaving).map_err(refused)?;
        self.after.usable = store.size_with(RECORD, group.index, Some(&after));
        let (all, at_once) =
            (self.after.usable.saturating_sub(self.before.usable), store.gain_at_once(RECORD, &after));
        if all > 0 && leaving.is_empty() && rule.layout.k() > 1 {
            let (now, later) = (format_size(at_once.min(all)), format_size(all.saturating_sub(at_once)));
            self.notes.push(match at_once < all {
                true => format!("files can take {now} more at once, and {later} more after a rebalance"),
                false => format!("files can take {now} more at once"),
            });
        }
        Ok(())
    }

    /// A device of a group.
    pub fn first_of(&self, group: &GroupUse) -> Result<DeviceIndex> {
        let first = self.pool.store().members().of_group(group.index).next();
        let none = || ApiError::usage("the group has no devices").safe(NOTHING_CHANGED);
        first.map(|member| member.index).ok_or_else(none)
    }
}
