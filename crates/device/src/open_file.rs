//! An open file or block device, and what it does with a request.

use crate::{ALIGN, AlignedBuf, DeviceError, Outcome};
use larder_format::ByteLen;
use larder_sync::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of an open file or block device.
pub(crate) fn size_of(fd: impl AsFd, block: bool) -> Result<u64, Errno> {
    match block {
        true => rustix::fs::seek(fd, SeekFrom::End(0)),
        false => Ok(u64::try_from(rustix::fs::fstat(fd)?.st_size).expect("a size")),
    }
}

/// See the module's text.
pub(crate) struct OpenFile {
    /// None when the device was abandoned. Whoever performs a request holds it until that is done.
    pub(crate) fd: Mutex<Option<Arc<OwnedFd>>>,
    pub(crate) path: PathBuf,
    /// Its size in bytes when it was last looked at.
    pub(crate) size: AtomicU64,
    pub(crate) sector_size: u32,
    pub(crate) direct: bool,
    /// Whether it is a block device.
    pub(crate) block: bool,
    /// Whether it gives space back that it is told is not needed.
    pub(crate) discards: bool,
    /// The error of the first flush that failed.
    pub(crate) flush_failed: Mutex<Option<DeviceError>>,
    /// The kernel may show what such a flush lost.
    pub(crate) stale: AtomicBool,
}

impl OpenFile {
    pub(crate) fn size(&self) -> ByteLen {
        ByteLen::new(self.size.load(Ordering::Relaxed))
    }

    /// Looks at its size, which counts if it is larger than it was.
    pub(crate) fn grow(&self) -> ByteLen {
        if let Some(size) = self.fd().ok().and_then(|fd| size_of(&fd, self.block).ok()) {
            self.size.fetch_max(size - size % ALIGN as u64, Ordering::Relaxed);
        }
        self.size()
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Outcome {
        let fd = self.fd()?;
        let mut bytes = AlignedBuf::stale(len);
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match retry_on_intr(|| rustix::io::pread(&fd, &mut bytes[done..], at)) {
                Ok(got) if Self::is_cut_short(got) => return Err(self.cut_short()),
                Ok(got) => done += got,
                Err(errno) => return Err(self.error(errno)),
            }
        }
        Ok(bytes)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Outcome {
        let fd = self.fd()?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match retry_on_intr(|| rustix::io::pwrite(&fd, &bytes[done..], at)) {
                Ok(0) => return Err(self.error(Errno::IO)),
                Ok(put) => done += put,
                Err(errno) => return Err(self.error(errno)),
            }
        }
        Ok(AlignedBuf::zeroed(0))
    }

    /// Punches a hole. To a block device that is a write of zeros that the kernel is free to do by discarding, and may
    /// not do by writing any.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Outcome {
        let fd = self.fd()?;
        if !self.discards {
            return Err(DeviceError::Unsupported);
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(&fd, how, offset, len)) {
            Ok(()) => Ok(AlignedBuf::zeroed(0)),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(DeviceError::Unsupported),
            Err(errno) => Err(self.error(errno)),
        }
    }

    pub(crate) fn flush(&self) -> Outcome {
        let fd = self.fd()?;
        let mut failed = self.flush_failed.lock();
        if failed.is_none() {
            *failed = retry_on_intr(|| rustix::fs::fdatasync(&fd)).err().map(|errno| self.error(errno));
        }
        match &*failed {
            Some(error) => return Err(error.clone()),
            None if self.stale.swap(false, Ordering::Relaxed) => {
                // Where it is refused nothing is lost: all of it is written again.
                let _ = rustix::fs::fadvise(&fd, 0, None, rustix::fs::Advice::DontNeed);
            }
            None => {}
        }
        Ok(AlignedBuf::zeroed(0))
    }

    /// A flush that fails.
    pub(crate) fn fail_flush(&self, error: DeviceError) -> Outcome {
        Err(self.flush_failed.lock().get_or_insert(error).clone())
    }

    /// Forgets that a flush failed. What the kernel keeps of it as if it were written goes with the next flush: reads
    /// are to tell what is there.
    pub(crate) fn forgive(&self) {
        if self.flush_failed.lock().take().is_some() {
            self.stale.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn fd(&self) -> Result<Arc<OwnedFd>, DeviceError> {
        self.fd.lock().clone().ok_or(DeviceError::Gone)
    }

    /// Whether a read of so many bytes met the end of a file that has been cut shorter since it was opened.
    pub(crate) fn is_cut_short(got: usize) -> bool {
        got == 0 || !got.is_multiple_of(ALIGN)
    }
    /// The error of a read that met an end which was not there.
    pub(crate) fn cut_short(&self) -> DeviceError {
        if self.is_pulled() { DeviceError::Gone } else { DeviceError::Range }
    }

    /// The kernel's error as the device's.
    pub(crate) fn error(&self, errno: Errno) -> DeviceError {
        match errno {
            Errno::NODEV | Errno::NXIO | Errno::NOMEDIUM => DeviceError::Gone,
            _ if self.is_pulled() => DeviceError::Gone,
            _ => DeviceError::Io { errno: errno.raw_os_error() },
        }
    }

    /// Whether it is a disk that was pulled out: what is left of it has no bytes. A write to it has "no space", and a
    /// read is at its end.
    fn is_pulled(&self) -> bool {
        let left = |fd: Arc<OwnedFd>| rustix::fs::seek(&fd, SeekFrom::End(0));
        self.block && self.fd().is_ok_and(|fd| left(fd) == Ok(0))
    }
}
