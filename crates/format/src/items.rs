//! Values in a dataset's tree.

use crate::{Corrupt, Reason};

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

impl FileKind {
    /// The kind that a stored number names.
    pub fn from_byte(byte: u8) -> Result<Self, Corrupt> {
        Ok(match byte {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::Symlink,
            4 => Self::Fifo,
            5 => Self::Socket,
            6 => Self::CharDevice,
            7 => Self::BlockDevice,
            _ => return Err(Corrupt::new("file kind", Reason::Kind)),
        })
    }
}
