//! POSIX access control lists, in the form in which Linux passes them and in which we store them: the
//! value of an extended attribute, version 2 of `linux/posix_acl_xattr.h`.
//!
//! A list is sound when it has an owner, a group and others, once each, in this order, with the named
//! users behind the owner and the named groups behind the group, and a mask behind those if there are
//! any. That is what `posix_acl_valid` of the kernel asks for.

use crate::error::ensure;
use crate::field::Field;
use crate::{Corrupt, Reason, layout};

/// The attribute that holds a file's access list.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds what a directory passes on to what is made in it.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// The version of the attribute's value.
pub const ACL_VERSION: u32 = 2;
/// Entries of a list, at most: its attribute then fits into one value of a tree.
pub const MAX_ACL_ENTRIES: usize = 508;
/// The id of an entry that names nobody.
pub const ACL_NO_ID: u32 = 4294967295;

const WHAT: &str = "access list";

layout! {
    /// An entry of a list as it is stored; see [`AclEntry`].
    pub struct AclRecord[8] {
        /// An [`AclTag`].
        tag: u16 = 0,
        /// Read 4, write 2, execute 1.
        perm: u16 = 2,
        /// The user or group, where one is named.
        id: u32 = 4,
    }
}

/// Whom an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum AclTag {
    /// The file's owner.
    Owner = 1,
    /// A named user.
    User = 2,
    /// The file's group.
    Group = 4,
    /// A named group.
    NamedGroup = 8,
    /// The most that named users and all groups get.
    Mask = 16,
    /// Everybody else.
    Other = 32,
}

impl AclTag {
    fn from_number(number: u16) -> Result<Self, Corrupt> {
        Ok(match number {
            1 => Self::Owner,
            2 => Self::User,
            4 => Self::Group,
            8 => Self::NamedGroup,
            16 => Self::Mask,
            32 => Self::Other,
            _ => return Err(Corrupt::new(WHAT, Reason::Kind)),
        })
    }

    /// Whether entries of this kind name somebody.
    pub fn is_named(self) -> bool {
        matches!(self, Self::User | Self::NamedGroup)
    }
}

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is about.
    pub tag: AclTag,
    /// Read 4, write 2, execute 1.
    pub perm: u16,
    /// The user or group; [`ACL_NO_ID`] where none is named.
    pub id: u32,
}

/// A sound access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// A list of these entries.
    ///
    /// # Errors
    /// `Range` for a permission or id out of range or too many entries, `Order` when entries are
    /// missing, double or out of order.
    pub fn new(entries: Vec<AclEntry>) -> Result<Self, Corrupt> {
        ensure(entries.len() <= MAX_ACL_ENTRIES, WHAT, Reason::Range)?;
        let sound = |entry: &AclEntry| entry.perm <= 7 && entry.tag.is_named() == (entry.id != ACL_NO_ID);
        ensure(entries.iter().all(sound), WHAT, Reason::Range)?;
        let ascending = entries.is_sorted_by(|a, b| a.tag < b.tag || (a.tag == b.tag && a.tag.is_named()));
        let has = |tag| entries.iter().any(|entry| entry.tag == tag);
        let named = has(AclTag::User) || has(AclTag::NamedGroup);
        let complete = has(AclTag::Owner) && has(AclTag::Group) && has(AclTag::Other);
        ensure(ascending && complete && (has(AclTag::Mask) || !named), WHAT, Reason::Order)?;
        Ok(Self(entries))
    }

    /// The entries, in their order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// The attribute's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4 + self.0.len() * AclRecord::SIZE];
        ACL_VERSION.store(&mut out);
        for (entry, out) in self.0.iter().zip(out[4..].chunks_exact_mut(AclRecord::SIZE)) {
            AclRecord { tag: entry.tag as u16, perm: entry.perm, id: entry.id }.put(out);
        }
        out
    }

    /// Reads an attribute's value. The ids of entries that name nobody are not looked at.
    ///
    /// # Errors
    /// As [`Acl::new`]; `Short` for half an entry, `Version` and `Kind` for what this build does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let (head, rest) = bytes.split_at_checked(4).ok_or(Corrupt::new(WHAT, Reason::Short))?;
        ensure(u32::load(head) == ACL_VERSION, WHAT, Reason::Version)?;
        ensure(rest.len().is_multiple_of(AclRecord::SIZE), WHAT, Reason::Short)?;
        ensure(rest.len() / AclRecord::SIZE <= MAX_ACL_ENTRIES, WHAT, Reason::Range)?;
        let entries = rest.chunks_exact(AclRecord::SIZE).map(|bytes| {
            let record = AclRecord::get(bytes).ok_or(Corrupt::new(WHAT, Reason::Short))?;
            let tag = AclTag::from_number(record.tag)?;
            let id = if tag.is_named() { record.id } else { ACL_NO_ID };
            Ok(AclEntry { tag, perm: record.perm, id })
        });
        Self::new(entries.collect::<Result<_, Corrupt>>()?)
    }

    /// The nine permission bits that say the same as far as they can: the owner's, the mask's (without a
    /// mask, the group's), the others'.
    pub fn mode(&self) -> u16 {
        let bits = self.0.iter().filter_map(|entry| Some(entry.perm << self.shift(entry.tag)?));
        bits.fold(0, |mode, bits| mode | bits)
    }

    /// Whether the nine bits say all of it.
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// The list with the nine bits of `mode` where [`Acl::mode`] takes them from: what chmod makes of it.
    pub fn with_mode(mut self, mode: u16) -> Self {
        for i in 0..self.0.len() {
            if let Some(shift) = self.shift(self.0[i].tag) {
                self.0[i].perm = mode >> shift & 7;
            }
        }
        self
    }

    /// Where an entry's permissions are in a mode.
    fn shift(&self, tag: AclTag) -> Option<u32> {
        let masked = !self.is_mode();
        match tag {
            AclTag::Owner => Some(6),
            AclTag::Mask => Some(3),
            AclTag::Group if !masked => Some(3),
            AclTag::Other => Some(0),
            AclTag::Group | AclTag::User | AclTag::NamedGroup => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(tag: AclTag, perm: u16, id: u32) -> AclEntry {
        AclEntry { tag, perm, id }
    }

    fn plain(mode: u16) -> Vec<AclEntry> {
        let tags = [AclTag::Owner, AclTag::Group, AclTag::Other];
        (tags.into_iter().zip([6, 3, 0]))
            .map(|(tag, shift)| entry(tag, mode >> shift & 7, ACL_NO_ID))
            .collect()
    }

    fn named() -> Vec<AclEntry> {
        let mut entries = plain(0o754);
        entries.insert(1, entry(AclTag::User, 7, 12));
        entries.insert(2, entry(AclTag::User, 1, 11));
        entries.insert(4, entry(AclTag::NamedGroup, 6, 0));
        entries.insert(5, entry(AclTag::Mask, 3, ACL_NO_ID));
        entries
    }

    #[test]
    fn a_list_survives_a_round_trip() {
        for entries in [plain(0o640), named()] {
            let acl = Acl::new(entries).unwrap();
            assert_eq!(Acl::decode(&acl.encode()), Ok(acl));
        }
    }

    #[test]
    fn the_mask_stands_for_the_group_in_a_mode() {
        let acl = Acl::new(named()).unwrap();
        assert_eq!((acl.mode(), acl.is_mode()), (0o734, false));
        let changed = acl.with_mode(0o612);
        assert_eq!(changed.mode(), 0o612);
        let group = changed.entries().iter().find(|entry| entry.tag == AclTag::Group).unwrap();
        assert_eq!(group.perm, 5, "the group keeps what it has under the mask");
        let acl = Acl::new(plain(0o640)).unwrap();
        assert_eq!((acl.mode(), acl.is_mode()), (0o640, true));
        assert_eq!(acl.with_mode(0o751), Acl::new(plain(0o751)).unwrap());
    }

    #[test]
    fn lists_that_the_kernel_would_refuse_are_refused() {
        let order = Err(Corrupt::new(WHAT, Reason::Order));
        let range = Err(Corrupt::new(WHAT, Reason::Range));
        let without = |at: usize| {
            let mut entries = named();
            entries.remove(at);
            Acl::new(entries)
        };
        for at in [0, 3, 5, 6] {
            assert_eq!(without(at), order, "without entry {at}");
        }
        let with = |at: usize, entry: AclEntry| {
            let mut entries = named();
            entries.insert(at, entry);
            Acl::new(entries)
        };
        assert_eq!(with(0, entry(AclTag::Owner, 7, ACL_NO_ID)), order);
        assert_eq!(with(7, entry(AclTag::User, 7, 1)), order);
        assert_eq!(with(1, entry(AclTag::User, 8, 1)), range);
        assert_eq!(with(1, entry(AclTag::User, 7, ACL_NO_ID)), range);
        assert_eq!(Acl::new(Vec::new()), order);
        let many = vec![entry(AclTag::User, 7, 1); MAX_ACL_ENTRIES];
        assert_eq!(Acl::new([plain(0), many].concat()), range);
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_an_error_value(
            tags in proptest::collection::vec((0u16..40, 0u16..9, any::<u32>()), 0..8),
            extra in proptest::collection::vec(any::<u8>(), 0..9),
        ) {
            let mut bytes = 2u32.to_le_bytes().to_vec();
            for (tag, perm, id) in tags {
                bytes.extend(tag.to_le_bytes());
                bytes.extend(perm.to_le_bytes());
                bytes.extend(id.to_le_bytes());
            }
            bytes.extend(extra);
            if let Ok(acl) = Acl::decode(&bytes) {
                prop_assert_eq!(acl.encode().len(), bytes.len());
                let mode = acl.mode();
                prop_assert_eq!(acl.clone().with_mode(mode), acl);
            }
        }
    }
}
