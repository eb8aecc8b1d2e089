//! Reading files without a trace: no access times, and nothing stays in the page cache that was not there before.

use rustix::fs::{Advice, OFlags, SeekFrom, fadvise, seek};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// A file being read.
#[derive(Debug)]
pub struct Source {
    file: File,
}

impl Source {
    /// Opens a file. `in_part` says that little of it will be read, so that the kernel reads nothing ahead.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: &Path, in_part: bool) -> io::Result<Self> {
        let with = |flags: OFlags| OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
        // It may have become a pipe since it was listed, and a link is not followed. NOATIME is for owners alone.
        let plain = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = with(plain | OFlags::NOATIME).or_else(|error| match error.raw_os_error() {
            Some(code) if code == Errno::PERM.raw_os_error() => with(plain),
            _ => Err(error),
        })?;
        if in_part {
            let _ = fadvise(&file, 0, None, Advice::Random);
        }
        Ok(Self { file })
    }

    /// Fills `buffer` from `offset` on, or up to the end of the file; the number of bytes.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let cached = {
            let mut one = [0];
            let mut at = [IoSliceMut::new(&mut one)];
            rustix::io::preadv2(&self.file, &mut at, offset, ReadWriteFlags::NOWAIT).is_ok()
        };
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if !cached && let Some(len) = NonZeroU64::new(filled as u64) {
            let _ = fadvise(&self.file, offset, Some(len), Advice::DontNeed);
        }
        Ok(filled)
    }

    /// The next range from `at` on that is no hole, up to `size`; all of it where the file system does not tell.
    pub fn next_data(&self, at: u64, size: u64) -> Option<Range<u64>> {
        if at >= size {
            return None;
        }
        let start = match seek(&self.file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return None,
            Err(_) => return Some(at..size),
        };
        let end = seek(&self.file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        (start < end).then_some(start..end)
    }
}
