//! `pool replace`: puts a new device in the place of an old one, which may be missing.

use super::super::roster;
use super::draft::{Act, Draft, large_enough, no_cache};
use super::{NOTHING_CHANGED, refused};
use crate::api::{ApiError, ErrorKind, Result};

impl<'a> Draft<'a> {
    /// `new`: where the old one is or was, when not given.
    pub fn replace(&mut self, old: &str, new: Option<&str>) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let member = roster::find(pool, old)?;
        let path = match new {
            Some(path) => path.to_owned(),
            None => roster::path(pool, &member).ok_or_else(|| {
                ApiError::usage(format!("where {old} was is not known: name the new device as well"))
            })?,
        };
        let anew = format!("larder pool remove POOL {old}; larder pool add POOL cache {path}");
        no_cache(&member, old, &anew)?;
        if pool.store().members().spares().iter().any(|spare| spare.index == member.index) {
            return Err(ApiError::usage("it is a spare")
                .safe(NOTHING_CHANGED)
                .hint(format!("larder pool remove POOL {old}; larder pool add POOL spare {path}")));
        }
        if pool.store().members().stand_in(member.index).is_some() || member.stands_for.is_some() {
            return Err(ApiError::new(ErrorKind::Busy, "it is being replaced already")
                .safe(NOTHING_CHANGED)
                .hint(format!("larder pool wait -t resilver POOL, or larder pool detach POOL {old}")));
        }
        let device = self.new_device(&path)?;
        large_enough(&*device, &member, &path)?;
        self.after.put(member.index, &path);
        self.notes.push(format!("{path} is being resilvered; {old} stays in use until it has everything"));
        if !member.is_online() {
            self.notes = vec![format!("{path} is being resilvered from the other devices")];
        }
        Ok(Box::new(move || Ok(vec![upkeep.devices.replace(member.index, device).map_err(refused)?])))
    }
}
