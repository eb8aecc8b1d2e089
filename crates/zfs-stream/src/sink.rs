//! The place where files go.

use larder_posix::Timestamp;

/// Names a file or directory of a sink for as long as it is there, from one stream to the next.
pub type Node = u64;

/// Something to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum New<'a> {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link that leads there.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
}

/// Attributes to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SinkAttr {
    /// Permissions, 12 bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
}

/// A tree of files that streams are received into, and what is noted beside it from one stream to the next.
///
/// Nobody else changes it between an increment and the stream before. After an error it is of no use any more.
pub trait Sink {
    /// Why something cannot be done.
    type Error;

    /// The root directory.
    fn root(&mut self) -> Node;

    /// A directory that is empty at first, for what has no name yet; made when it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    fn staging(&mut self) -> Result<Node, Self::Error>;

    /// Takes the directory away again, which is empty.
    ///
    /// # Errors
    /// When it is not.
    fn drop_staging(&mut self) -> Result<(), Self::Error>;

    /// Makes something, and names it.
    ///
    /// # Errors
    /// When the name is taken, or there is no room.
    fn make(&mut self, dir: Node, name: &[u8], new: New<'_>) -> Result<Node, Self::Error>;

    /// The node of a name.
    ///
    /// # Errors
    /// When it cannot be read.
    fn lookup(&mut self, dir: Node, name: &[u8]) -> Result<Option<Node>, Self::Error>;

    /// Writes all of `data`; the file grows if need be.
    ///
    /// # Errors
    /// When there is no room.
    fn write(&mut self, file: Node, offset: u64, data: &[u8]) -> Result<(), Self::Error>;

    /// Makes a range inside of a file a hole.
    ///
    /// # Errors
    /// When it cannot.
    fn zero(&mut self, file: Node, offset: u64, len: u64) -> Result<(), Self::Error>;

    /// Cuts a file, or makes it longer.
    ///
    /// # Errors
    /// When it cannot.
    fn set_size(&mut self, file: Node, size: u64) -> Result<(), Self::Error>;

    /// Gives another name to what is no directory.
    ///
    /// # Errors
    /// When the name is taken.
    fn link(&mut self, node: Node, dir: Node, name: &[u8]) -> Result<(), Self::Error>;

    /// Moves a name that is free there.
    ///
    /// # Errors
    /// When the name is taken, or there is nothing of the old one.
    fn rename(&mut self, from: (Node, &[u8]), to: (Node, &[u8])) -> Result<(), Self::Error>;

    /// Takes a name away: of an empty directory, or of anything else.
    ///
    /// # Errors
    /// When there is none, or the directory has entries.
    fn remove(&mut self, dir: Node, name: &[u8], directory: bool) -> Result<(), Self::Error>;

    /// The names that something has, the one in the staging directory among them; of a directory 1.
    ///
    /// # Errors
    /// When it cannot be read.
    fn links(&mut self, node: Node) -> Result<u32, Self::Error>;

    /// Sets attributes, all of them at once, after all else.
    ///
    /// # Errors
    /// When it cannot.
    fn set_attr(&mut self, node: Node, attr: &SinkAttr) -> Result<(), Self::Error>;

    /// Makes these all extended attributes of a node, and leaves its times. Gives how many it does not take.
    ///
    /// # Errors
    /// When it cannot.
    fn set_xattrs(&mut self, node: Node, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<usize, Self::Error>;

    /// A note of before, of whatever length.
    ///
    /// # Errors
    /// When it cannot be read.
    fn note(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Self::Error>;

    /// Keeps a note, or forgets it. Keys have at most 20 bytes.
    ///
    /// # Errors
    /// When there is no room.
    fn set_note(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Self::Error>;
}
