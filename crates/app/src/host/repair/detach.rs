//! `pool detach`: takes a device out of a mirror for good, or ends a replacing.

use super::super::{chronicle, roster};
use super::draft::{Act, Draft, no_cache, no_place};
use super::{NOTHING_CHANGED, can_go, lost_text, refused};
use crate::api::pool::Word;
use crate::api::{ApiError, ErrorKind, Result};
use larder_pool::member::MemberState;

impl<'a> Draft<'a> {
    /// Without loss.
    pub fn detach(&mut self, device: &str) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let member = roster::find(pool, device)?;
        no_cache(&member, device, &format!("larder pool remove POOL {device} takes it out"))?;
        if let Some(new) = pool.store().members().stand_in(member.index) {
            let waits = new.state() == MemberState::Waiting;
            let new = roster::called(pool, &new);
            if waits {
                let message =
                    format!("{new}, which is to replace it, has all of it but {}", lost_text(upkeep));
                return Err(ApiError::new(ErrorKind::Device, message).safe(NOTHING_CHANGED).hint(format!(
                    "larder pool status -v POOL names the files; larder pool resilver POOL tries again; to \
                         go on without what is lost: larder pool detach --accept-loss POOL {device}"
                )));
            }
            let message = format!("it is being replaced by {new}, and leaves when that has everything");
            return Err(ApiError::new(ErrorKind::Busy, message)
                .safe(NOTHING_CHANGED)
                .hint(format!("larder pool detach POOL {new} calls it off")));
        }
        if member.stands_for.is_none() {
            let group = self.after.group_of(member.index).ok_or_else(|| no_place(device))?;
            if group.word != Word::Mirror {
                let message = "only devices of mirrors, and those of a replacing, can be detached";
                return Err(ApiError::usage(message)
                    .safe(NOTHING_CHANGED)
                    .hint(format!("larder pool offline POOL {device}, or larder pool replace")));
            }
            can_go(pool, &member)?;
            group.columns.retain(|column| column.index != Some(member.index));
            group.reword()?;
            self.notes.push(format!("{device} leaves when what it holds is moved"));
        }
        Ok(Box::new(move || upkeep.reshape.detach(member.index).map_err(refused).map(|()| Vec::new())))
    }

    /// Of a device that is being replaced, without what could not be read of it.
    pub fn detach_with_loss(&mut self, device: &str) -> Result<Act<'a>> {
        let (pool, upkeep) = (self.pool, self.upkeep);
        let member = roster::find(pool, device)?;
        let new = pool.store().members().stand_in(member.index);
        let new = new.ok_or_else(|| {
            ApiError::usage("nothing replaces it, so there is no loss to accept").safe(NOTHING_CHANGED)
        })?;
        let called = roster::called(pool, &new);
        if new.state() != MemberState::Waiting {
            let message = format!("{called}, which is to replace it, is still being resilvered");
            return Err(ApiError::new(ErrorKind::Busy, message)
                .safe(NOTHING_CHANGED)
                .hint("larder pool wait -t resilver POOL; what is lost is known then"));
        }
        self.after.put(member.index, &called);
        let lost = lost_text(upkeep);
        self.notes.push(format!(
            "{called} takes the place of {device} without {lost}: {} data errors are known \
             (larder pool status -v {} names the files)",
            chronicle::damaged(self.live).len(),
            pool.name()
        ));
        self.notes
            .push(format!("{device} is left as it is: larder pool labelclear -f frees it for other uses"));
        Ok(Box::new(move || upkeep.devices.accept_loss(member.index).map_err(refused).map(|()| Vec::new())))
    }
}
