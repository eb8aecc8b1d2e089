//! `pool remove`: removes spares, and devices with copies of blocks.

use super::super::roster;
use super::draft::{Act, Draft};
use super::{NOTHING_CHANGED, refused};
use crate::api::{ApiError, ErrorKind, Result};

impl<'a> Draft<'a> {
    /// By what people call them.
    pub fn remove(&mut self, devices: &[String]) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let mut going = Vec::new();
        for text in devices {
            let member = roster::find(pool, text)?;
            if !member.is_cache
                && !pool.store().members().spares().iter().any(|spare| spare.index == member.index)
            {
                let message = format!("{text} is no spare and no cache: what it holds cannot be moved away");
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
            going.into_iter().try_for_each(|index| upkeep.reshape.remove(index)).map_err(refused)?;
            Ok(Vec::new())
        }))
    }
}
