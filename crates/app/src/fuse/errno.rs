//! The errno that the kernel gets for a refused operation. The only place that maps [`FsError`] to errno.

use larder_files::FsError;
use rustix::io::Errno;

/// The errno of `error`.
pub fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::Exists => Errno::EXIST,
        FsError::NotDirectory => Errno::NOTDIR,
        FsError::IsDirectory => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::NoSpace | FsError::HostFull(_) => Errno::NOSPC,
        FsError::Quota => Errno::DQUOT,
        FsError::NameTooLong => Errno::NAMETOOLONG,
        FsError::Invalid => Errno::INVAL,
        FsError::Permission => Errno::PERM,
        FsError::Access => Errno::ACCESS,
        FsError::ReadOnly => Errno::ROFS,
        FsError::TooManyLinks => Errno::MLINK,
        FsError::NoAttr => Errno::NODATA,
        FsError::Range => Errno::RANGE,
        FsError::TooBig => Errno::FBIG,
        FsError::AttrTooBig => Errno::TOOBIG,
        FsError::CrossDevice => Errno::XDEV,
        FsError::Stale => Errno::STALE,
        FsError::BadHandle => Errno::BADF,
        FsError::Busy => Errno::BUSY,
        FsError::NoExtent => Errno::NXIO,
        FsError::NotSupported => Errno::OPNOTSUPP,
        FsError::Damaged(_) | FsError::Io(_) => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as in Linux's `errno.h`; each variant's documentation names its constant.
    #[test]
    fn every_refusal_has_the_errno_that_its_documentation_names() {
        let table = [
            (FsError::NotFound, 2),
            (FsError::Exists, 17),
            (FsError::NotDirectory, 20),
            (FsError::IsDirectory, 21),
            (FsError::NotEmpty, 39),
            (FsError::NoSpace, 28),
            (FsError::HostFull(String::new()), 28),
            (FsError::Quota, 122),
            (FsError::NameTooLong, 36),
            (FsError::Invalid, 22),
            (FsError::Permission, 1),
            (FsError::Access, 13),
            (FsError::ReadOnly, 30),
            (FsError::TooManyLinks, 31),
            (FsError::NoAttr, 61),
            (FsError::Range, 34),
            (FsError::TooBig, 27),
            (FsError::AttrTooBig, 7),
            (FsError::CrossDevice, 18),
            (FsError::Stale, 116),
            (FsError::BadHandle, 9),
            (FsError::Busy, 16),
            (FsError::NoExtent, 6),
            (FsError::NotSupported, 95),
            (FsError::Io("gone".into()), 5),
        ];
        for (error, number) in table {
            assert_eq!(errno(&error).raw_os_error(), number, "{error:?}");
        }
    }
}
