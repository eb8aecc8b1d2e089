//! Access control lists: stored here, enforced by the kernel.
//!
//! A list is an extended attribute; `format::acl` has its form. The nine permission bits and the access
//! list's owner, mask and other are the same thing twice, and the inode has it: the stored list counts
//! for the rest alone, and reading lays the inode's bits over it. So whatever changes permissions keeps
//! list and mode in step, in memory, in the log and after any crash, without knowing of lists. Setting a
//! list changes the bits in the same operation. A list that the bits say all of is not stored.
//!
//! A directory's default list is inherited: the operation that makes an inode carries it, so that replay
//! does not depend on what the directory has by then. Without one the umask applies.

use crate::error::{FsError, Result};
use crate::inode::State;
use crate::origin::Origin;
use crate::posix::XattrMode;
use crate::volume::Volume;
use larder_format::acl::{ACL_ACCESS, ACL_DEFAULT, ACL_VERSION, Acl, AclRecord, MAX_ACL_ENTRIES};
use larder_format::items::{FileKind, Inode, NameKey, XATTR, Xattr, XattrValue};
use larder_format::node::Key;
use larder_format::ops::SetXattr;
use larder_format::{InodeId, Reason};
use larder_pool::Update;

/// Bytes of the longest list's attribute.
const LONGEST: usize = 4 + MAX_ACL_ENTRIES * AclRecord::SIZE;

const SETGID: u16 = 0o2000;

/// Which of an inode's lists an attribute is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    Access,
    Default,
}

impl List {
    /// The list that an attribute of this name is.
    pub fn named(name: &[u8]) -> Option<Self> {
        match name {
            ACL_ACCESS => Some(Self::Access),
            ACL_DEFAULT => Some(Self::Default),
            _ => None,
        }
    }

    fn name(self) -> &'static [u8] {
        match self {
            Self::Access => ACL_ACCESS,
            Self::Default => ACL_DEFAULT,
        }
    }
}

/// A list from a caller; nothing when it has no entries, which stands for taking it away.
fn parse(value: &[u8]) -> Result<Option<Acl>> {
    if value == ACL_VERSION.to_le_bytes() {
        return Ok(None);
    }
    if value.len() > LONGEST {
        return Err(FsError::AttrTooBig);
    }
    Acl::decode(value).map(Some).map_err(|corrupt| match corrupt.reason {
        Reason::Version => FsError::NotSupported,
        _ => FsError::Invalid,
    })
}

/// The permissions of what is made with `perm` in a directory with this default list.
pub(crate) fn inherited_perm(acl: &Acl, perm: u16) -> u16 {
    perm & (0o7000 | acl.mode())
}

/// Where [`inherit`] puts it.
pub(crate) fn inherited_keys(names: &NameKey, id: InodeId) -> [Key; 2] {
    [List::Access, List::Default].map(|list| Key::new(id.get(), XATTR, names.cookie(list.name())))
}

/// Gives a new inode, which has no attributes yet, what it inherits; returns the flags that it gets.
pub(crate) fn inherit(
    tree: &mut Update<'_>,
    names: &NameKey,
    id: InodeId,
    kind: FileKind,
    acl: &Acl,
) -> Result<u32> {
    let (access, default) = (!acl.is_mode(), kind == FileKind::Directory);
    let value = acl.encode();
    let wanted = [access.then_some(List::Access), default.then_some(List::Default)];
    for name in wanted.into_iter().flatten().map(List::name) {
        let key = Key::new(id.get(), XATTR, names.cookie(name));
        tree.insert(key, &Xattr { name, value: XattrValue::Inline(&value) }.encode())?;
    }
    Ok(if access || default { Inode::HAS_XATTRS } else { 0 })
}

impl Volume {
    /// One of an inode's lists as it is stored; nothing when the dataset has no lists.
    fn stored_list(&self, id: InodeId, state: &State, list: List) -> Result<Option<Acl>> {
        if !self.dataset.settings().acl || state.live.flags & Inode::HAS_XATTRS == 0 {
            return Ok(None);
        }
        let value = self.xattr_value(id, list.name())?;
        Ok(value.map(|value| Acl::decode(&value)).transpose()?)
    }

    /// The default list of a directory, which new inodes inherit.
    pub(crate) fn default_list(&self, id: InodeId, state: &State) -> Result<Option<Acl>> {
        self.stored_list(id, state, List::Default)
    }

    /// The value of a list's attribute. A dataset without lists has none, rather than an error: the kernel
    /// asks before it lets anybody in, and takes an error for a refusal.
    pub(crate) fn get_list(&self, id: InodeId, state: &State, list: List) -> Result<Vec<u8>> {
        let acl = self.stored_list(id, state, list)?.ok_or(FsError::NoAttr)?;
        Ok(match list {
            List::Access => acl.with_mode(state.live.perm),
            List::Default => acl,
        }
        .encode())
    }

    /// Sets one of an inode's lists, or takes it away.
    pub(crate) fn set_list(
        &self,
        id: InodeId,
        list: List,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        if !self.dataset.settings().acl {
            return Err(FsError::NotSupported);
        }
        let acl = value.map(parse).transpose()?.flatten();
        if acl.is_some() {
            self.check_space()?;
        }
        let op = self.enter()?;
        let inode = self.inode(id)?;
        let mut state = inode.lock()?;
        match (list, state.live.kind) {
            (_, FileKind::Symlink) => return Err(FsError::NotSupported),
            (List::Access, _) | (List::Default, FileKind::Directory) => {}
            (List::Default, _) if acl.is_some() => return Err(FsError::Access),
            (List::Default, _) => return Ok(()),
        }
        let perm = acl.as_ref().filter(|_| list == List::Access).map(|acl| {
            let kept = if mode == XattrMode::KillSetgid { 0o7000 & !SETGID } else { 0o7000 };
            state.live.perm & kept | acl.mode()
        });
        let stored = acl.filter(|acl| list == List::Default || !acl.is_mode());
        if perm.is_none() && stored.is_none() && self.xattr_value(id, list.name())?.is_none() {
            return Ok(());
        }
        let value = stored.map(|acl| acl.encode());
        let change = SetXattr { inode: id, name: list.name().to_vec(), value, perm, time: self.now() };
        self.set_in(&op, &mut state, change, Origin::Live)
    }
}
