//! Extended attributes.
//!
//! A small value lies next to its name; a larger one in pieces under a number of its own, so that names
//! can be listed without reading values. Access lists are attributes of their own kind: see `acl`.

use crate::acl::List;
use crate::error::{FsError, Result};
use crate::inode::State;
use crate::origin::Origin;
use crate::posix::XattrMode;
use crate::volume::{Volume, inode_key};
use larder_format::InodeId;
use larder_format::items::{
    self, Inode, MAX_COLLISIONS, MAX_VALUE, MAX_XATTR, NameKey, XATTR, XATTR_PIECE, XATTR_PIECES, Xattr,
    XattrValue,
};
use larder_format::node::Key;
use larder_format::ops::{LogOp, SetXattr};
use larder_pool::{Ahead, Look, Op, View};
use std::ops::ControlFlow;

/// Marks what a dataset keeps of its own.
pub const OWN_MARK: &[u8] = b"trusted.larder.own";

/// Where an attribute is.
struct Slot {
    key: Key,
    value: Vec<u8>,
}

/// Namespaces whose attributes are kept and not looked into.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Refuses what cannot name an attribute; tells which access list it is, if it is one.
fn check_xattr_name(name: &[u8]) -> Result<Option<List>> {
    if name.len() > items::MAX_NAME {
        return Err(FsError::Range);
    }
    if let Some(list) = List::named(name) {
        return Ok(Some(list));
    }
    let prefix = NAMESPACES.into_iter().find(|prefix| name.starts_with(prefix));
    let prefix = prefix.ok_or(FsError::NotSupported)?;
    if name.len() == prefix.len() || !items::valid_xattr_name(name) {
        return Err(FsError::Invalid);
    }
    Ok(None)
}

/// Finds an attribute, or else a free key for it.
fn find(tree: &impl Look, names: &NameKey, id: InodeId, name: &[u8]) -> Result<Result<Slot, Option<Key>>> {
    let first = names.cookie(name);
    let mut free = first;
    let mut found = Ok(None);
    tree.scan(&Key::new(id.get(), XATTR, first), &mut |key, value| {
        if key.object != id.get() || key.kind != XATTR || key.offset >= first + MAX_COLLISIONS {
            return ControlFlow::Break(());
        }
        match Xattr::decode(value) {
            Ok(xattr) if xattr.name == name => found = Ok(Some(Slot { key: *key, value: value.to_vec() })),
            Ok(_) => {
                free += u64::from(free == key.offset);
                return ControlFlow::Continue(());
            }
            Err(corrupt) => found = Err(corrupt),
        }
        ControlFlow::Break(())
    })?;
    let free = (free < first + MAX_COLLISIONS).then(|| Key::new(id.get(), XATTR, free));
    Ok(found?.ok_or(free))
}

fn piece_key(id: InodeId, number: u64, piece: u64) -> Key {
    Key::new(id.get(), XATTR_PIECE, number * XATTR_PIECES + piece)
}

/// The number that the inode's next value in pieces gets.
fn next_number(tree: &impl Look, id: InodeId) -> Result<u64> {
    let last = tree.last_before(&Key::new(id.get(), XATTR_PIECE, u64::MAX))?;
    Ok(match last {
        Some((key, _)) if (key.object, key.kind) == (id.get(), XATTR_PIECE) => key.offset / XATTR_PIECES + 1,
        _ => 0,
    })
}

/// The keys of a value of `len` bytes in pieces.
fn piece_keys(id: InodeId, number: u64, len: usize) -> impl Iterator<Item = Key> {
    (0..len.div_ceil(MAX_VALUE) as u64).map(move |piece| piece_key(id, number, piece))
}

/// The keys of an attribute's pieces; none where the value lies next to the name.
fn pieces_of(id: InodeId, value: &[u8]) -> Result<Vec<Key>> {
    Ok(match Xattr::decode(value)?.value {
        XattrValue::Pieces { number, len } => piece_keys(id, number, len as usize).collect(),
        XattrValue::Inline(_) => Vec::new(),
    })
}

/// Where an attribute is that is changed, or will be; the number of its new pieces, and the keys of the old ones.
struct Places {
    key: Option<Key>,
    number: u64,
    old: Vec<Key>,
}

impl Volume {
    /// The value of an extended attribute.
    pub fn getxattr(&self, id: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let list = check_xattr_name(name)?;
        let inode = self.inode(id)?;
        // The state is held so that no piece of a value is replaced meanwhile.
        let state = inode.lock()?;
        if state.live.flags & Inode::HAS_XATTRS == 0 {
            return Err(FsError::NoAttr);
        }
        match list {
            Some(list) => self.get_list(id, &state, list),
            None => self.xattr_value(id, name)?.ok_or(FsError::NoAttr),
        }
    }

    /// The value of an attribute as it is stored; the caller holds the inode's state.
    pub(crate) fn xattr_value(&self, id: InodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.dataset.look(|view| self.xattr_in(view, id, name))
    }

    fn xattr_in(&self, view: &View<'_>, id: InodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let Ok(slot) = find(view, &self.dataset.name_key(), id, name)? else { return Ok(None) };
        match Xattr::decode(&slot.value)?.value {
            XattrValue::Inline(value) => Ok(Some(value.to_vec())),
            XattrValue::Pieces { number, len } => {
                let mut value = Vec::with_capacity(len as usize);
                for piece in 0..(len as usize).div_ceil(MAX_VALUE) as u64 {
                    value.extend(view.get(&piece_key(id, number, piece))?.unwrap_or_default());
                }
                if value.len() != len as usize {
                    return Err(FsError::Io(format!("inode {id} lacks pieces of an attribute")));
                }
                Ok(Some(value))
            }
        }
    }

    /// The names of all extended attributes, each with a NUL behind it.
    pub fn listxattr(&self, id: InodeId) -> Result<Vec<u8>> {
        let inode = self.inode(id)?;
        if inode.lock()?.live.flags & Inode::HAS_XATTRS == 0 {
            return Ok(Vec::new());
        }
        let lists = self.dataset.settings().acl;
        let mut names = Ok(Vec::new());
        self.dataset.view()?.scan(&Key::new(id.get(), XATTR, 0), &mut |key, value| {
            let Ok(list) = &mut names else { return ControlFlow::Break(()) };
            if key.object != id.get() || key.kind != XATTR {
                return ControlFlow::Break(());
            }
            match Xattr::decode(value) {
                Ok(xattr) if !lists && List::named(xattr.name).is_some() => {}
                Ok(xattr) => {
                    list.extend_from_slice(xattr.name);
                    list.push(0);
                }
                Err(corrupt) => names = Err(corrupt),
            }
            ControlFlow::Continue(())
        })?;
        Ok(names?)
    }

    /// Sets an extended attribute.
    pub fn setxattr(&self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let list = check_xattr_name(name)?;
        if value.len() > MAX_XATTR {
            return Err(FsError::AttrTooBig);
        }
        if let Some(list) = list {
            return self.set_list(id, list, Some(value), mode);
        }
        if !self.dataset.settings().xattr {
            return Err(FsError::NotSupported);
        }
        self.check_space()?;
        self.change_xattr(id, name, Some(value), mode)
    }

    /// Whether a file is what the dataset keeps of its own, in its root directory by the name of that of its snapshots.
    /// A file of that name without the mark is a user's, of before there were snapshots to look into.
    pub(crate) fn is_own(&self, id: InodeId) -> bool {
        self.getxattr(id, OWN_MARK).is_ok()
    }

    /// Sets an extended attribute of what the dataset keeps of its own, whatever the property `xattr` says. The first
    /// to be set is [`OWN_MARK`].
    ///
    /// # Errors
    /// As of a user's, but for that.
    pub fn set_own_xattr(&self, id: InodeId, name: &[u8], value: &[u8]) -> Result<()> {
        if check_xattr_name(name)?.is_some() {
            return Err(FsError::Invalid);
        }
        if value.len() > MAX_XATTR {
            return Err(FsError::AttrTooBig);
        }
        self.check_space()?;
        self.change_xattr(id, name, Some(value), XattrMode::Set)
    }

    /// Takes an extended attribute away.
    pub fn removexattr(&self, id: InodeId, name: &[u8]) -> Result<()> {
        match check_xattr_name(name)? {
            Some(list) => self.set_list(id, list, None, XattrMode::Set),
            None => self.change_xattr(id, name, None, XattrMode::Replace),
        }
    }

    fn change_xattr(&self, id: InodeId, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        let op = self.enter()?;
        let inode = self.inode(id)?;
        let mut state = inode.lock()?;
        let exists = find(&self.dataset.view()?, &self.dataset.name_key(), id, name)?.is_ok();
        match (mode, exists) {
            (XattrMode::Create, true) => return Err(FsError::Exists),
            (XattrMode::Replace, false) => return Err(FsError::NoAttr),
            _ => {}
        }
        let (name, value) = (name.to_vec(), value.map(<[u8]>::to_vec));
        let change = SetXattr { inode: id, name, value, perm: None, time: self.now() };
        self.set_in(&op, &mut state, change, Origin::Live)
    }

    pub(crate) fn apply_setxattr(&self, op: &Op<'_>, change: SetXattr, origin: Origin) -> Result<()> {
        let inode = self.inode(change.inode)?;
        let mut state = inode.lock()?;
        self.set_in(op, &mut state, change, origin)
    }

    fn places_of(&self, tree: &impl Look, change: &SetXattr) -> Result<Places> {
        let id = change.inode;
        let slot = find(tree, &self.dataset.name_key(), id, &change.name)?;
        let number = next_number(tree, id)?;
        let key = match (&slot, &change.value) {
            (Ok(slot), _) => Some(slot.key),
            (Err(free), Some(_)) => Some(free.ok_or(FsError::NoSpace)?),
            (Err(_), None) if change.perm.is_some() => None,
            (Err(_), None) => return Err(FsError::NoAttr),
        };
        let old = slot.as_ref().map_or(Ok(Vec::new()), |slot| pieces_of(id, &slot.value))?;
        Ok(Places { key, number, old })
    }

    /// Sets or removes an attribute, and with an access list the permissions.
    pub(crate) fn set_in(
        &self,
        op: &Op<'_>,
        state: &mut State,
        change: SetXattr,
        origin: Origin,
    ) -> Result<()> {
        let reads = |tree: &Ahead<'_>| {
            let Places { key, number, old } = self.places_of(tree, &change)?;
            let new = piece_keys(change.inode, number, change.value.as_ref().map_or(0, Vec::len));
            for key in [inode_key(change.inode)].into_iter().chain(key).chain(new) {
                tree.reach(&key)?;
            }
            let mut removed = old;
            removed.extend(key);
            removed.sort_unstable();
            Ok(tree.reach_removal(&removed)?)
        };
        self.dataset.update_after(op, reads, |tree| {
            let (id, name) = (change.inode, change.name.as_slice());
            let Places { key, number, old } = self.places_of(tree, &change)?;
            for piece in &old {
                tree.remove(piece)?;
            }
            match (key, &change.value) {
                (None, _) => {}
                (Some(key), None) => {
                    tree.remove(&key)?;
                }
                (Some(key), Some(value)) if Xattr::fits_inline(name, value.len()) => {
                    tree.insert(key, &Xattr { name, value: XattrValue::Inline(value) }.encode())?;
                }
                (Some(key), Some(value)) => {
                    for (piece, bytes) in value.chunks(MAX_VALUE).enumerate() {
                        tree.insert(piece_key(id, number, piece as u64), bytes)?;
                    }
                    let value = XattrValue::Pieces { number, len: value.len() as u32 };
                    tree.insert(key, &Xattr { name, value }.encode())?;
                }
            }
            state.change(|item| {
                item.flags |= Inode::HAS_XATTRS;
                item.perm = change.perm.unwrap_or(item.perm);
                item.ctime = change.time;
            });
            tree.insert(inode_key(id), &state.tree.encode())?;
            if origin == Origin::Live {
                tree.log(LogOp::SetXattr(change.clone()).encode());
            }
            Ok(())
        })
    }
}
