//! The right to keep set-user-id and set-group-id bits of a file when changing its content, as Linux has it.
//!
//! Both go, set-group-id also where the group may not execute if the caller is not in it, unless he has CAP_FSETID. The
//! kernel tells this for write(2) and truncate(2) alone, and only one of his groups: the rest is read from `/proc`, for
//! files with such bits only. The caller waits for us meanwhile, so the entry there is his.

use larder_files::{Attr, FileKind, FsError, NodeId, Ops, Result, SetAttr};
use larder_fuse::Request;
use std::fs;
use std::time::Duration;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
/// The bit of CAP_FSETID in a set of capabilities.
const FSETID: u64 = 1 << 4;

fn has_bits(attr: &Attr) -> bool {
    attr.kind == FileKind::Regular && attr.perm & (SETUID | SETGID) != 0
}

/// Time that the kernel may cache attributes: `ttl`, unless a write may change them behind its back. It expects size
/// and times to change then, but goes on believing a mode with these bits, and would honour it.
pub(super) fn attr_ttl(attr: &Attr, ttl: Duration) -> Duration {
    if has_bits(attr) { Duration::ZERO } else { ttl }
}

/// Rights of a process, from `/proc`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rights {
    groups: Vec<u32>,
    /// It may keep the bits of any file.
    keeps: bool,
}

impl Rights {
    /// Of who sent a request; none if he cannot be found.
    fn of(request: &Request<'_>) -> Self {
        let status = fs::read_to_string(format!("/proc/{}/status", request.pid)).unwrap_or_default();
        Self::parse(&status, request.uid)
    }

    fn parse(status: &str, uid: u32) -> Self {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        let groups = field("Groups:").split_whitespace().filter_map(|group| group.parse().ok()).collect();
        let capable = u64::from_str_radix(field("CapEff:").trim(), 16).is_ok_and(|set| set & FSETID != 0);
        // Others have it, if at all, in a namespace of their own, where it does not count.
        Self { groups, keeps: capable && uid == 0 }
    }
}

/// Whether set-group-id of what the group may not execute goes by a change that the caller makes.
fn is_stranger(attr: &Attr, request: &Request<'_>, rights: &Rights) -> bool {
    let weak = attr.perm & SETGID != 0 && attr.perm & GROUP_EXECUTE == 0;
    weak && request.gid != attr.gid && !rights.groups.contains(&attr.gid)
}

/// Whether set-group-id goes in any case, at a change of attributes with which the kernel wants the bits taken away.
pub(super) fn takes_setgid(ops: &dyn Ops, node: NodeId, request: &Request<'_>) -> Result<bool> {
    let attr = ops.getattr(node)?;
    if !has_bits(&attr) {
        return Ok(false);
    }
    let rights = Rights::of(request);
    Ok(!rights.keeps && is_stranger(&attr, request, &rights))
}

/// Takes the bits away before a change of content by who may not keep them: `told` by the kernel that he may not.
pub(super) fn take_bits(ops: &dyn Ops, node: NodeId, request: &Request<'_>, told: bool) -> Result<()> {
    let attr = ops.getattr(node)?;
    if !has_bits(&attr) {
        return Ok(());
    }
    let rights = Rights::of(request);
    if rights.keeps && !told {
        return Ok(());
    }
    let kill_setgid = is_stranger(&attr, request, &rights);
    let set = SetAttr { kill_suidgid: true, kill_setgid, ..SetAttr::default() };
    match ops.setattr(node, &set, &super::server::caller(request, 0)) {
        // The change itself says so, if it is one.
        Ok(_) | Err(FsError::ReadOnly) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shows_its_groups_and_whether_it_may_keep_bits() {
        let status = "Name:\tsh\nGroups:\t4 27 1000 \nCapInh:\t0000000000000000\nCapEff:\t000001ffffffffff\n";
        let rights = Rights { groups: vec![4, 27, 1000], keeps: true };
        assert_eq!(Rights::parse(status, 0), rights);
        assert!(!Rights::parse(status, 1000).keeps, "root of a namespace of its own");
        assert!(!Rights::parse("Groups:\t\nCapEff:\t00000000000001e7\n", 0).keeps, "root without CAP_FSETID");
        assert_eq!(Rights::parse("", 0), Rights::default(), "who is not there may keep nothing");
    }
}
