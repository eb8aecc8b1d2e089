//! The devices of an imported pool as people know them: which one they mean, and where it is or was.

use super::devices::{file_of, identity};
use crate::api::{ApiError, ErrorKind, Result};
use larder_device::DeviceError;
use larder_format::DeviceGuid;
use larder_pool::Pool;
use larder_pool::member::{Member, MemberState};
use std::fs;
use std::sync::Arc;

/// The note in which a pool keeps where a device was last.
fn path_note(member: &Member) -> String {
    format!("device:{}", member.guid)
}

/// Where a device is, or was when it was last there.
pub fn path(pool: &Pool, member: &Member) -> Option<String> {
    match member.size() {
        Some(_) => Some(member.name()),
        None => pool.note(&path_note(member)),
    }
}

/// Whether a device was there while the pool was in use, and is not any more.
pub fn is_gone(member: &Member) -> bool {
    let gone = || member.reason().is_some_and(|reason| reason.contains(&DeviceError::Gone.to_string()));
    member.state() == MemberState::Faulted && gone()
}

/// Keeps where a device is, durable with the next commit.
///
/// # Errors
/// When the pool cannot be written.
pub fn note_path(pool: &Pool, member: &Member) -> larder_pool::Result<()> {
    let (note, path) = (path_note(member), member.name());
    if pool.note(&note).as_deref() == Some(&path) { Ok(()) } else { pool.set_note(&note, &path) }
}

/// Keeps that a device came as a spare, which is told while it takes the place of another one.
///
/// # Errors
/// When the pool cannot be written.
pub fn note_spare(pool: &Pool, guid: DeviceGuid) -> larder_pool::Result<()> {
    pool.set_note(&format!("spare:{guid}"), "yes")
}

/// Whether a device came as a spare.
pub fn came_as_spare(pool: &Pool, guid: DeviceGuid) -> bool {
    pool.note(&format!("spare:{guid}")).is_some()
}

/// Name of a device for people: its path, or its guid where that is not known.
pub fn called(pool: &Pool, member: &Member) -> String {
    path(pool, member).unwrap_or_else(|| member.guid.to_string())
}

/// Whether a member, with its path, is meant.
type Way<'a> = dyn Fn(&Member, Option<&str>) -> bool + 'a;

/// The device that `text` names: by guid, path, the last part of a path, or number.
///
/// # Errors
/// When there is none, or more than one.
pub fn find(pool: &Pool, text: &str) -> Result<Arc<Member>> {
    let asked = fs::metadata(file_of(text)).ok().map(|meta| identity(&meta));
    let by_guid = |member: &Member, _: Option<&str>| member.guid.to_string() == text;
    let by_path = |_: &Member, path: Option<&str>| path == Some(text);
    // A link to it, or another of its names.
    let by_identity = |member: &Member, path: Option<&str>| {
        member.size().is_some()
            && asked.is_some()
            && path.and_then(|path| fs::metadata(file_of(path)).ok()).map(|meta| identity(&meta)) == asked
    };
    let by_name = |_: &Member, path: Option<&str>| {
        path.and_then(|path| file_of(path).file_name()).is_some_and(|name| name == text)
    };
    let by_number = |member: &Member, _: Option<&str>| member.index.to_string() == text;
    let all = pool.store().members().all();
    let members: Vec<_> = all
        .map(|member| {
            let path = path(pool, &member);
            (member, path)
        })
        .collect();
    let ways: [&Way<'_>; 5] = [&by_guid, &by_path, &by_identity, &by_name, &by_number];
    for way in ways {
        let mut fitting: Vec<_> =
            members.iter().filter(|(member, path)| way(member, path.as_deref())).collect();
        // A new disk where a missing one was.
        if fitting.len() > 1 && fitting.iter().any(|(member, _)| member.size().is_some()) {
            fitting.retain(|(member, _)| member.size().is_some());
        }
        match fitting.as_slice() {
            [] => {}
            [(member, _)] => return Ok(Arc::clone(member)),
            several => {
                let guids: Vec<_> = several.iter().map(|(member, _)| member.guid.to_string()).collect();
                return Err(ApiError::usage(format!(
                    "'{text}' may be {} devices of the pool",
                    several.len()
                ))
                .hint(format!("name it by its guid: {}", guids.join(" or "))));
            }
        }
    }
    Err(ApiError::new(ErrorKind::NotFound, "no such device in pool")
        .hint("larder pool status -P POOL shows the paths of its devices, -g their guids"))
}
