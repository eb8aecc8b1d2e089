//! POSIX semantics over pool trees.
//!
//! [`Ops`] is what a transport calls, in the values of `posix`; a [`Mount`] has the volumes of a pool do it, and is
//! what the pool asks for dirty data at its commits. A [`Volume`] is one dataset: `names` (directories), `attr`
//! (attributes, lengths), `xattr`, `acl`, `data` (reading, writing), `flush` (storing, fsync), `share` (copying by
//! reference), `renew` and `records` (other blocks for the same bytes), `orphan` (removal) and `replay` add to it;
//! `lookups` is what a kernel knows of it. A [`View`] shows a mount from one of its datasets, or from a snapshot;
//! `control` and `snapshots` are `.zfs` below each dataset. `inode` says what is kept in memory and in which order it
//! is locked.

mod acl;
mod attr;
mod control;
mod cut;
mod data;
mod diff;
mod error;
mod extents;
mod flush;
mod folders;
mod held;
mod inode;
mod layout;
mod lookups;
mod mount;
mod names;
mod ops;
mod origin;
mod orphan;
mod paths;
mod posix;
mod ranges;
mod read_data;
mod records;
mod recut;
mod renew;
mod replay;
mod share;
mod snapshots;
mod versions;
mod view;
mod volume;
mod xattr;

pub use cut::{Cutter, Marks};
pub use diff::{Diff, DiffItem, DiffKind, FileDiff};
pub use error::{FsError, Result};
pub use folders::{Folders, Gaps};
pub use held::held_paths;
pub use layout::FileLayout;
pub use mount::{Damaged, Mount};
pub use names::NewInode;
pub use ops::{Ops, Seat};
pub use posix::*;
pub use read_data::ReadData;
pub use share::Copied;
pub use versions::{FileVersion, FileVersions};
pub use view::View;
pub use volume::Volume;
pub use xattr::OWN_MARK;
