//! `pool online`: brings devices back into use.

use super::super::devices::{self, file_of, identity};
use super::super::live::Live;
use super::super::{Host, roster};
use super::{NOTHING_CHANGED, refused};
use crate::api::repair::{Online, Told};
use crate::api::{ApiError, ErrorKind, Result};
use larder_device::OpenMode;
use larder_pool::Pool;
use larder_pool::member::{Member, MemberState};
use larder_pool::open::{Found, Scan, scan};
use larder_pool::property::format_size;
use larder_upkeep::Expanded;
use std::fs;

impl Host {
    /// Brings devices back into use.
    pub fn online(&self, request: &Online) -> Result<Told> {
        let live = self.writable(&request.name)?;
        let _admin = live.admin.lock();
        self.still_here(&live)?;
        let mut told = Told::default();
        for text in &request.devices {
            let note = match request.expand && is_in_use(&live.pool, text) {
                true => expand(&live, text),
                false => self.online_one(&live, text).map(|note| {
                    let later = || format!("{text} is in use; it can be expanded when it has what it missed");
                    note.or_else(|| request.expand.then(later))
                }),
            };
            let note = note.map_err(|error| {
                let what = if request.expand { "expand" } else { "online" };
                error.within(format!("cannot {what} {text}")).of_pool(&request.name)
            })?;
            told.notes.extend(note);
        }
        Ok(told)
    }

    pub fn online_one(&self, live: &Live, text: &str) -> Result<Option<String>> {
        let pool = &live.pool;
        // A path where a missing device is now says by its label which one it is.
        let by_label = || {
            let path = text.contains('/').then_some(text)?;
            let device = devices::open(path, OpenMode::Probe).ok()?;
            let Scan::Member(found) = scan(&device) else { return None };
            pool.store()
                .members()
                .by_guid(found.label.device)
                .filter(|_| found.label.is_of(pool.store().sums()))
        };
        let member = match roster::find(pool, text) {
            Ok(member) => member,
            Err(error) => by_label().ok_or(error)?,
        };
        if member.state() == MemberState::Online {
            return Ok(Some(format!("{text} is in use already")));
        }
        if member.state() == MemberState::Waiting {
            let how = format!("larder pool resilver {} tries again", pool.name());
            return Ok(Some(format!(
                "{text} waits for what could not be read of the device that it is to replace: {how}"
            )));
        }
        let named = text.contains('/') && fs::metadata(file_of(text)).is_ok();
        // Where a missing device was last may be where the originals of these copies are.
        let known = |path: &String| member.size().is_some() || live.scope.holds(path);
        let path = if named { Some(text.to_owned()) } else { roster::path(pool, &member).filter(known) };
        let found = match path.as_deref().map(|path| open_again(pool, &member, path)) {
            Some(Ok(found)) => found,
            // A device that is missing or given up must be opened anew.
            Some(Err(error)) if member.size().is_none() || member.is_given_up() => return Err(error),
            None if member.size().is_none() => {
                let message = format!("where device {} is now, is not known", member.guid);
                return Err(ApiError::new(ErrorKind::NotFound, message)
                    .safe(NOTHING_CHANGED)
                    .hint("larder pool online POOL PATH, with the path where it is now"));
            }
            _ => None,
        };
        live.upkeep.devices.online(member.index, found).map_err(refused)?;
        self.note_path(live, member.index)?;
        Ok(None)
    }
}

fn is_in_use(pool: &Pool, text: &str) -> bool {
    roster::find(pool, text).is_ok_and(|member| member.state() == MemberState::Online)
}

/// Uses all of a device, if it is larger than what the pool has of it.
fn expand(live: &Live, text: &str) -> Result<Option<String>> {
    let member = roster::find(&live.pool, text)?;
    let expanded = live.upkeep.devices.expand(member.index).map_err(refused)?;
    let more = format_size(expanded.bytes);
    Ok(match expanded {
        Expanded { bytes: 0, .. } => Some(format!("{text} is no larger than the pool knows")),
        Expanded { is_of_use: false, .. } => {
            let when = "files can use that when other devices of its group are as large";
            Some(format!("{text} has {more} more: {when}"))
        }
        _ => None,
    })
}

/// Opens the device of a member anew, if it is at `path`; nothing when we have it open already.
fn open_again(pool: &Pool, member: &Member, path: &str) -> Result<Option<Found>> {
    if member.size().is_some() && !member.is_given_up() && same_file(path, &member.name()) {
        return Ok(None);
    }
    let device = devices::open_when_free(path, OpenMode::Exclusive)?;
    match scan(&device) {
        Scan::Member(found)
            if found.label.is_of(pool.store().sums()) && found.label.device == member.guid =>
        {
            Ok(Some(*found))
        }
        Scan::Failed(error) => {
            Err(ApiError::new(ErrorKind::Device, format!("{path} cannot be read: {error}")))
        }
        _ => {
            let message = format!("{path} is not device {}: it has another label, or none", member.guid);
            Err(ApiError::new(ErrorKind::NotFound, message)
                .at(path)
                .safe(NOTHING_CHANGED)
                .hint(format!("if a new disk is there: larder pool replace POOL {} {path}", member.guid)))
        }
    }
}

fn same_file(a: &str, b: &str) -> bool {
    let of = |path: &str| fs::metadata(file_of(path)).ok().map(|meta| identity(&meta));
    a == b && of(a).is_some() || of(a).is_some() && of(a) == of(b)
}
