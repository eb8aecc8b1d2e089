//! Read, write, flush, time and randomness behind traits.
//!
//! Everything above this crate sees devices, clocks and entropy only through these traits, so that it
//! runs on simulated ones exactly as in production. Requests are submitted and completed, not called
//! and waited for: a hung device can be given up, and a batch of stripes is in flight at once. All waiting
//! can be limited, also that of a request which its caller's own thread performs ([`Device::perform`]).

mod buffer;
mod disk;
mod fault;
mod file;
mod latency;
mod open_file;
mod overlay;
mod paced;
mod pending;
mod ring;
mod system;
mod world;

pub use buffer::{ALIGN, AlignedBuf};
pub use disk::{Disk, DiskShape, DiskWork};
pub use fault::FaultDevice;
pub use file::{FileDevice, OpenError, OpenMode};
pub use latency::{Counts, Histogram, Meter, OCTAVES, RequestKind, Stopwatch, Waits};
pub use overlay::Overlay;
pub use paced::{Kept, Paced};
pub use pending::{Completion, Pending, VirtualTime, wait_any};
pub use ring::do_without_rings;
pub use system::{SystemClock, SystemEntropy, SystemWorkers};
pub use world::{Clock, Entropy, Inline, SeededEntropy, Workers};

use larder_format::{ByteLen, DeviceOffset};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// For how long a device may leave a request unanswered, unless something else is said: a little more than disks
/// take that try hard to read a bad sector. Whoever looks at devices that belong to no open pool gives up then.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// A request to a device.
#[derive(Debug, Clone)]
pub enum Request {
    /// Reads `len` bytes at `offset`; both are multiples of [`ALIGN`].
    Read {
        /// Where.
        offset: DeviceOffset,
        /// Length.
        len: ByteLen,
    },
    /// Writes the whole buffer at `offset`; offset and length are multiples of [`ALIGN`].
    /// Durable only after a later flush.
    Write {
        /// Where.
        offset: DeviceOffset,
        /// The bytes.
        data: Arc<AlignedBuf>,
    },
    /// Tells that the `len` bytes at `offset` are of no use any more; both are multiples of [`ALIGN`]. What is read
    /// there afterwards may be what was, zeros or anything else, until it is written; and a write there is sure to stay
    /// only when a flush between the two was completed, since a device may do it as late as that.
    Discard {
        /// Where.
        offset: DeviceOffset,
        /// Length.
        len: ByteLen,
    },
    /// Makes all writes that completed before this request was submitted durable.
    Flush,
}

/// Result of a request: the bytes of a read, an empty buffer otherwise.
pub type Outcome = Result<AlignedBuf, DeviceError>;

/// Why a request failed. Data on other devices is unaffected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The device or its driver reported an error.
    #[error("I/O error {errno}")]
    Io {
        /// The operating system's error number.
        errno: i32,
    },
    /// The request reaches past the device's end.
    #[error("beyond the end of the device")]
    Range,
    /// The device cannot do this at all: what [`Request::Discard`] may come to.
    #[error("the device does not support this")]
    Unsupported,
    /// The device is not there any more.
    #[error("the device is gone")]
    Gone,
    /// Its caller gave up waiting; the device may still complete it.
    #[error("no answer in time")]
    Overdue,
}

impl DeviceError {
    /// Whether the file system that a device's file lies on has no room for it (ENOSPC, EDQUOT).
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { errno: 28 | 122 })
    }
}

/// A device: something that holds bytes and can lose power.
pub trait Device: Send + Sync {
    /// Its path, or its name in a simulation. For messages only.
    fn name(&self) -> String;
    /// Its size in bytes, when it was opened or at the last [`Device::grow`].
    fn size(&self) -> ByteLen;
    /// Its size in bytes now: what it has grown by since can be read and written from here on. It never shrinks.
    fn grow(&self) -> ByteLen {
        self.size()
    }
    /// Starts a request. Requests in flight at the same time may complete in any order.
    fn submit(&self, request: Request) -> Pending<Outcome>;
    /// Performs a request and waits for it, at most `limit`; gives it back when it is still in flight. The same
    /// as submitting it; where the caller's own thread can do it, two changes of threads are saved, which cost as
    /// much as a small read of an SSD.
    fn perform(&self, request: Request, limit: Duration) -> Result<Outcome, Pending<Outcome>> {
        self.submit(request).wait_for(limit)
    }
    /// Starts a request that this thread is about to wait for, like [`Device::perform`] of one of several: to be
    /// waited for by [`Pending::wait_for`] or [`Pending::wait`], in this thread. The same as submitting it.
    fn start(&self, request: Request) -> Pending<Outcome> {
        self.submit(request)
    }
    /// Forgets that a flush failed, which is final until then: whoever calls this writes all of it again that was
    /// written since the last one that succeeded, or takes it for lost.
    fn forgive(&self) {}
    /// Gives up a device that hangs: what comes from now on is [`DeviceError::Gone`], and nobody waits for what it
    /// has under way, which may still reach it until it is opened anew.
    fn abandon(&self) {}
}
