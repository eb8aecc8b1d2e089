//! `pool attach`: adds a device to a mirror, or makes a mirror of a single device.

use super::super::roster;
use super::draft::{Act, Draft, large_enough, no_cache, no_place};
use super::plan::Column;
use super::{NOTHING_CHANGED, refused};
use crate::api::pool::Word;
use crate::api::{ApiError, Result};

impl<'a> Draft<'a> {
    /// `to` is in it.
    pub fn attach(&mut self, to: &str, new: &str) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let member = roster::find(pool, to)?;
        no_cache(
            &member,
            to,
            &format!("larder pool add POOL cache {new} adds another, which shares the work"),
        )?;
        let word = self.after.group_of(member.index).ok_or_else(|| no_place(to))?.word;
        if !matches!(word, Word::Single | Word::Mirror) {
            let message =
                format!("{to} is in a {word}: only mirrors and single devices can get one device more");
            return Err(ApiError::usage(message)
                .safe(NOTHING_CHANGED)
                .hint("to replace it: larder pool replace; for more room: larder pool add"));
        }
        let device = self.new_device(new)?;
        let smallest = pool.store().members().of_group(member.group).min_by_key(|member| member.slot_count);
        large_enough(&*device, smallest.as_ref().unwrap_or(&member), new)?;
        let group = self.after.group_of(member.index).ok_or_else(|| no_place(to))?;
        group.columns.push(Column { index: None, path: new.to_owned(), lost: false });
        group.reword()?;
        self.notes.push(format!("what is stored is being copied to {new}"));
        Ok(Box::new(move || Ok(vec![upkeep.reshape.attach(member.index, device).map_err(refused)?])))
    }
}
