//! Errors of file operations. The application maps these to errno.

use larder_format::Corrupt;
use larder_pool::PoolError;
use thiserror::Error;

/// Why an operation was refused. State is unchanged, except after [`FsError::Io`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FsError {
    /// No such name or inode (ENOENT).
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken (EEXIST).
    #[error("file exists")]
    Exists,
    /// A directory is needed here (ENOTDIR).
    #[error("not a directory")]
    NotDirectory,
    /// A directory cannot be used here (EISDIR).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries (ENOTEMPTY).
    #[error("directory not empty")]
    NotEmpty,
    /// The pool is full (ENOSPC).
    #[error("no space left")]
    NoSpace,
    /// The file system that the pool's devices lie on is full (ENOSPC); the text says which.
    #[error("{0}")]
    HostFull(String),
    /// A quota is used up (EDQUOT).
    #[error("quota exceeded")]
    Quota,
    /// A name is longer than 255 bytes, or a link's target longer than 4095 (ENAMETOOLONG).
    #[error("name too long")]
    NameTooLong,
    /// The arguments make no sense (EINVAL).
    #[error("invalid argument")]
    Invalid,
    /// Not allowed for this kind of object (EPERM).
    #[error("operation not permitted")]
    Permission,
    /// The caller's rights do not suffice (EACCES).
    #[error("permission denied")]
    Access,
    /// The dataset or the pool is read-only (EROFS).
    #[error("read-only")]
    ReadOnly,
    /// The file has as many names as it can have (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// No extended attribute by that name (ENODATA).
    #[error("no such attribute")]
    NoAttr,
    /// The caller's buffer is too small (ERANGE).
    #[error("result too large")]
    Range,
    /// The file would grow past the largest size (EFBIG).
    #[error("file too large")]
    TooBig,
    /// An attribute's value is too large, or there are too many (E2BIG).
    #[error("attribute too large")]
    AttrTooBig,
    /// The two names are in different datasets (EXDEV).
    #[error("in another dataset")]
    CrossDevice,
    /// The node belongs to a dataset that is not mounted any more (ESTALE).
    #[error("stale node")]
    Stale,
    /// The handle is not open, or not for this (EBADF).
    #[error("bad handle")]
    BadHandle,
    /// In use: a dataset's mount point, for one (EBUSY).
    #[error("busy")]
    Busy,
    /// There is no data or hole after the offset (ENXIO).
    #[error("no data or hole beyond the offset")]
    NoExtent,
    /// The operation does not exist here (EOPNOTSUPP).
    #[error("not supported")]
    NotSupported,
    /// This data or metadata can neither be read nor rebuilt; the text says what (EIO). All else can be.
    #[error("damaged: {0}")]
    Damaged(String),
    /// Data or metadata cannot be read or written; the text says what (EIO).
    #[error("I/O error: {0}")]
    Io(String),
}

/// Shorthand.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

impl From<PoolError> for FsError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::NoSpace => Self::NoSpace,
            PoolError::HostFull(text) => Self::HostFull(text),
            PoolError::Quota(_) => Self::Quota,
            PoolError::ReadOnly => Self::ReadOnly,
            PoolError::NotFound(_) => Self::NotFound,
            PoolError::Exists(_) => Self::Exists,
            PoolError::Busy(_) => Self::Busy,
            PoolError::Invalid(_) | PoolError::Refused(_) => Self::Invalid,
            damaged @ (PoolError::Unreadable { .. } | PoolError::Corrupt(_)) => {
                Self::Damaged(damaged.to_string())
            }
            other => Self::Io(other.to_string()),
        }
    }
}

impl From<Corrupt> for FsError {
    fn from(corrupt: Corrupt) -> Self {
        Self::Damaged(corrupt.to_string())
    }
}

/// Failure of a front end, as told to the pool.
impl From<FsError> for PoolError {
    fn from(error: FsError) -> Self {
        match error {
            FsError::NoSpace | FsError::Quota => Self::NoSpace,
            FsError::HostFull(text) => Self::HostFull(text),
            FsError::ReadOnly => Self::ReadOnly,
            other => Self::Invalid(other.to_string()),
        }
    }
}
