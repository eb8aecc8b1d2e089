//! A device that is only read, with what is written kept beside it.
//!
//! Tools that look for the remains of a pool can work on such devices as on the pool's own: nothing reaches these. What
//! was written lies on another device, a small one, page behind page; where is known in memory alone. An overlay may
//! have no device below: what nobody wrote there cannot be read.

use crate::{ALIGN, AlignedBuf, Device, DeviceError, Outcome, Pending, Request, TIMEOUT};
use larder_format::{ByteLen, DeviceOffset};
use larder_sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Errors of reading a device that is not there (ENXIO), and of writing where there is no more room (ENOSPC).
const NO_SUCH_DEVICE: i32 = 6;
const NO_ROOM: i32 = 28;

/// See the module's text.
pub struct Overlay {
    name: String,
    base: Option<Arc<dyn Device>>,
    size: ByteLen,
    top: Arc<dyn Device>,
    /// Pages that were written, and where they lie on top. Held while one is written.
    written: Mutex<HashMap<u64, u64>>,
}

impl Overlay {
    /// Over `base`, which is never written, or over nothing; `top` has room for what is written.
    pub fn new(name: String, base: Option<Arc<dyn Device>>, size: ByteLen, top: Arc<dyn Device>) -> Self {
        Self { name, base, size, top, written: Mutex::default() }
    }

    /// Begins to read where nothing was written.
    fn read_below(&self, offset: DeviceOffset, len: ByteLen) -> Pending<Outcome> {
        match &self.base {
            Some(base) => base.submit(Request::Read { offset, len }),
            None => Pending::done(Err(DeviceError::Io { errno: NO_SUCH_DEVICE })),
        }
    }

    /// Reads pages of which some were written.
    fn read_both(&self, offset: DeviceOffset, pages: &[Option<u64>]) -> Outcome {
        let mut bytes = AlignedBuf::zeroed(pages.len() * ALIGN);
        for (number, page) in pages.iter().enumerate() {
            let at = number * ALIGN;
            let len = ByteLen::new(ALIGN as u64);
            let read = match page {
                Some(on_top) => {
                    self.top.submit(Request::Read { offset: DeviceOffset::new(on_top * ALIGN as u64), len })
                }
                None => self.read_below(DeviceOffset::new(offset.get() + at as u64), len),
            };
            bytes[at..at + ALIGN].copy_from_slice(&read.within(TIMEOUT)?);
        }
        Ok(bytes)
    }

    fn write(&self, offset: DeviceOffset, data: &AlignedBuf) -> Outcome {
        let mut written = self.written.lock();
        for (page, bytes) in (offset.get() / ALIGN as u64..).zip(data.chunks(ALIGN)) {
            let place = written.get(&page).copied().unwrap_or(written.len() as u64);
            let offset = DeviceOffset::new(place * ALIGN as u64);
            if offset.get() + ALIGN as u64 > self.top.size().get() {
                return Err(DeviceError::Io { errno: NO_ROOM });
            }
            let data = Arc::new(AlignedBuf::padded(bytes));
            self.top.submit(Request::Write { offset, data }).within(TIMEOUT)?;
            // Until it is there, who reads gets what was there before.
            written.insert(page, place);
        }
        Ok(AlignedBuf::zeroed(0))
    }
}

impl Device for Overlay {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn size(&self) -> ByteLen {
        self.size
    }

    fn submit(&self, request: Request) -> Pending<Outcome> {
        let (offset, len) = match &request {
            Request::Read { offset, len } => (*offset, len.get()),
            Request::Write { offset, data } => (*offset, data.len() as u64),
            Request::Discard { .. } => return Pending::done(Err(DeviceError::Unsupported)),
            Request::Flush => return self.top.submit(Request::Flush),
        };
        if offset.get().checked_add(len).is_none_or(|end| end > self.size.get()) {
            return Pending::done(Err(DeviceError::Range));
        }
        if let Request::Write { data, .. } = &request {
            return Pending::done(self.write(offset, data));
        }
        let pages = offset.get() / ALIGN as u64..(offset.get() + len) / ALIGN as u64;
        let pages: Vec<Option<u64>> = {
            let written = self.written.lock();
            pages.map(|page| written.get(&page).copied()).collect()
        };
        match pages.iter().any(Option::is_some) {
            true => Pending::done(self.read_both(offset, &pages)),
            false => self.read_below(offset, ByteLen::new(len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileDevice, OpenMode};

    fn file(dir: &tempfile::TempDir, name: &str, mib: u64) -> Arc<dyn Device> {
        let path = dir.path().join(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(mib << 20)).unwrap();
        Arc::new(FileDevice::open(&path, OpenMode::Exclusive).unwrap())
    }

    fn read(device: &dyn Device, offset: u64, len: u64) -> Outcome {
        let request = Request::Read { offset: DeviceOffset::new(offset), len: ByteLen::new(len) };
        device.submit(request).within(TIMEOUT)
    }

    fn write(device: &dyn Device, offset: u64, byte: u8, len: usize) -> Outcome {
        let data = Arc::new(AlignedBuf::padded(&vec![byte; len]));
        device.submit(Request::Write { offset: DeviceOffset::new(offset), data }).within(TIMEOUT)
    }

    #[test]
    fn what_is_written_is_read_and_does_not_reach_the_device_below() {
        let dir = tempfile::tempdir().unwrap();
        let (base, top) = (file(&dir, "base", 64), file(&dir, "top", 64));
        write(&*base, 0, 1, 1 << 20).unwrap();
        let overlay = Overlay::new("over".into(), Some(Arc::clone(&base)), base.size(), top);
        write(&overlay, 8192, 2, 8192).unwrap();
        write(&overlay, 12288, 3, 4096).unwrap();
        let seen = read(&overlay, 4096, 16384).unwrap();
        let expected = [1_u8, 2, 3, 1].map(|byte| [byte; 4096]).concat();
        assert!(seen[..] == expected[..]);
        assert!(read(&*base, 0, 1 << 20).unwrap().iter().all(|byte| *byte == 1));
        assert_eq!(read(&overlay, (64 << 20) - 4096, 8192).unwrap_err(), DeviceError::Range);
    }

    #[test]
    fn what_nobody_wrote_on_nothing_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let overlay = Overlay::new("nothing".into(), None, ByteLen::new(1 << 40), file(&dir, "top", 64));
        assert_eq!(read(&overlay, 1 << 30, 4096).unwrap_err(), DeviceError::Io { errno: NO_SUCH_DEVICE });
        write(&overlay, 1 << 30, 7, 4096).unwrap();
        assert!(read(&overlay, 1 << 30, 4096).unwrap().iter().all(|byte| *byte == 7));
    }
}
