//! Unsolicited notifications to the kernel.

use crate::wire::abi;
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// Tells the kernel of changes that it has not made itself. Never use it in a request's service, nor with a
/// lock held that one may want: the kernel may wait for requests under way before it answers.
#[derive(Debug, Clone)]
pub struct Notifier(Arc<OwnedFd>);

impl Notifier {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Self {
        Self(device)
    }

    /// `name` in `parent` is something else now, or there, or gone.
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        let namelen = name.len() as u32;
        let out = abi::NotifyInvalEntryOut { parent, namelen, flags: 0 };
        // The name ends with NUL, which `namelen` does not count.
        self.send(abi::NOTIFY_INVAL_ENTRY, &out, &[name, b"\0"].concat())
    }

    /// Attributes and content of `node` are others now.
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn node(&self, node: u64) -> io::Result<()> {
        self.inode(node, 0)
    }

    /// Attributes of `node` are others now; its content is not.
    ///
    /// # Errors
    /// When the mount is gone.
    pub fn attributes(&self, node: u64) -> io::Result<()> {
        self.inode(node, -1)
    }

    fn inode(&self, ino: u64, off: i64) -> io::Result<()> {
        self.send(abi::NOTIFY_INVAL_INODE, &abi::NotifyInvalInodeOut { ino, off, len: 0 }, &[])
    }

    fn send(&self, code: i32, out: &(impl IntoBytes + Immutable), rest: &[u8]) -> io::Result<()> {
        let (out, mut message) = (out.as_bytes(), Vec::new());
        let len = (size_of::<abi::OutHeader>() + out.len() + rest.len()) as u32;
        let header = abi::OutHeader { len, error: code, unique: 0 };
        for part in [header.as_bytes(), out, rest] {
            message.extend_from_slice(part);
        }
        match rustix::io::write(&self.0, &message) {
            // ENOENT: the kernel has forgotten the node, or never known it.
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
