//! The devices of an imported pool as people know them: which one they mean, where it is or was, and what stands
//! in which place of its group.

use super::devices::identity;
use crate::api::{ApiError, ErrorKind, Result};
use larder_format::GroupIndex;
use larder_pool::Pool;
use larder_pool::member::Member;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The note in which a pool keeps where a device was last.
pub fn path_note(member: &Member) -> String {
    format!("device:{}", member.guid)
}

/// Where a device is, or was when it was last there.
pub fn path(pool: &Pool, member: &Member) -> Option<String> {
    match member.size() {
        Some(_) => Some(member.name()),
        None => pool.note(&path_note(member)),
    }
}

/// What people call a device: its path, or its guid where that is not known.
pub fn called(pool: &Pool, member: &Member) -> String {
    path(pool, member).unwrap_or_else(|| member.guid.to_string())
}

/// The members that have the places of a group, in the order of its columns.
pub fn columns(pool: &Pool, group: GroupIndex) -> Vec<Arc<Member>> {
    pool.members().of_group(group).cloned().collect()
}

/// The device that `text` names: by guid, path, the last part of a path, or number.
///
/// # Errors
/// When there is none, or more than one.
pub fn find(pool: &Pool, text: &str) -> Result<Arc<Member>> {
    let asked = fs::metadata(text).ok().map(|meta| identity(&meta));
    let by_guid = |member: &Member, _: Option<&str>| member.guid.to_string() == text;
    let by_path = |_: &Member, path: Option<&str>| path == Some(text);
    // A link to it, or another of its names.
    let by_identity = |member: &Member, path: Option<&str>| {
        member.size().is_some()
            && asked.is_some()
            && path.and_then(|path| fs::metadata(path).ok()).map(|meta| identity(&meta)) == asked
    };
    let by_name = |_: &Member, path: Option<&str>| {
        path.and_then(|path| Path::new(path).file_name()).is_some_and(|name| name == text)
    };
    let by_number = |member: &Member, _: Option<&str>| member.index.to_string() == text;
    let members: Vec<_> = pool
        .members()
        .iter()
        .map(|member| (Arc::clone(member), path(pool, member)))
        .collect();
    let ways: [&dyn Fn(&Member, Option<&str>) -> bool; 5] =
        [&by_guid, &by_path, &by_identity, &by_name, &by_number];
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
                return Err(ApiError::usage(format!("'{text}' may be {} devices of the pool", several.len()))
                    .hint(format!("name it by its guid: {}", guids.join(" or "))));
            }
        }
    }
    Err(ApiError::new(ErrorKind::NotFound, "no such device in pool")
        .hint("larder pool status -P POOL shows the paths of its devices, -g their guids"))
}
