//! A read in the thread that wants it, with a limit: `pread` cannot be left before it is done.
//!
//! Each thread has an io_uring of its own for one read at a time. Submitting it and waiting for it, at most so long,
//! is one system call, as `pread` is, and nothing is lost against it (`examples/device_speed.rs`: 0.97 to 1.03 times
//! as many reads of 4 KiB, where a queue's thread and back makes 0.6 to 0.8). In the rare case that the time is over,
//! the ring moves into a thread that does nothing but wait for it and keep the promise, and the next read makes a new
//! ring. Writes and flushes of files are done by threads of the kernel when they come by io_uring, which costs as much
//! as our own queue does; so they go there.
//!
//! # The buffer of a read
//! It belongs to the kernel from the moment the read is submitted until its completion has been taken from the ring.
//! All that time [`Flight`] owns it, beside the ring, and nothing reaches into it; a flight that is dropped before it
//! has landed leaves its memory behind for good. The file stays open as long as the flight is there.
//!
//! Where io_uring is not to be had, and when too many reads are late already, [`read`] refuses, and the queue's
//! threads do the work.

use crate::file::{Shared, device_error};
use crate::{AlignedBuf, Clock, DeviceError, Outcome, Pending, SystemClock};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use larder_format::{ByteLen, DeviceOffset};
use rustix::io::Errno;
use std::cell::RefCell;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Threads that wait for late reads at most, for all devices.
const MOST_LATE: usize = 64;
/// Times that a read is submitted for what it has not brought yet.
const TRIES: usize = 8;

static LATE: AtomicUsize = AtomicUsize::new(0);
/// io_uring was refused: the kernel is too old, or a container forbids it.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

/// Reads from within the file, in this thread, and waits at most `limit`; gives back a read that is in flight still.
/// None when it cannot be done here.
pub(crate) fn read(
    file: &Arc<Shared>,
    offset: DeviceOffset,
    len: ByteLen,
    limit: Duration,
) -> Option<Result<Outcome, Pending<Outcome>>> {
    let fd = match file.fd() {
        Ok(fd) => fd,
        Err(gone) => return Some(Ok(Err(gone))),
    };
    let ring = Some(ring()?);
    let bytes = AlignedBuf::stale(usize::try_from(len.get()).expect("a request fits memory"));
    let clock = SystemClock::new();
    let mut flight = Flight { ring, fd, file: Arc::clone(file), offset, bytes, done: 0, flying: false };
    for _ in 0..TRIES {
        if !flight.launch(limit) {
            break;
        }
        let landed = loop {
            match (flight.land(), limit.checked_sub(clock.monotonic())) {
                (Some(result), _) => break result,
                (None, None) => return Some(Err(wait_elsewhere(flight))),
                (None, Some(left)) => flight.wait(Some(left)),
            }
        };
        if let Some(outcome) = flight.step(landed) {
            RING.set(flight.ring.take());
            return Some(Ok(outcome));
        }
    }
    None
}

/// This thread's ring, in which nothing is under way.
fn ring() -> Option<IoUring> {
    if REFUSED.load(Relaxed) || LATE.load(Relaxed) >= MOST_LATE {
        return None;
    }
    if let Some(ring) = RING.take() {
        return Some(ring);
    }
    // Who waits is in the kernel anyway and need not be interrupted to take a completion.
    let made = IoUring::builder().setup_coop_taskrun().build(1).ok();
    let made = made.filter(|ring| ring.params().is_feature_ext_arg());
    REFUSED.fetch_or(made.is_none(), Relaxed);
    made
}

/// Lets another thread wait for a flight and keep its promise.
fn wait_elsewhere(mut flight: Flight) -> Pending<Outcome> {
    let (promise, pending) = Pending::new();
    promise.begin();
    LATE.fetch_add(1, Relaxed);
    let wait = move || {
        let landed = loop {
            match flight.land() {
                Some(landed) => break landed,
                None => flight.wait(None),
            }
        };
        // A short one is read anew, as nobody is in a hurry any more.
        let again =
            |flight: &Flight| flight.file.read(flight.offset, ByteLen::new(flight.bytes.len() as u64));
        let outcome = flight.step(landed).unwrap_or_else(|| again(&flight));
        LATE.fetch_sub(1, Relaxed);
        promise.keep(outcome);
    };
    // Without a thread the flight is dropped: its memory stays behind, and the promise is never kept, which is what a
    // hung device comes to.
    if std::thread::Builder::new().name("larder-late".to_owned()).spawn(wait).is_err() {
        LATE.fetch_sub(1, Relaxed);
    }
    pending
}

/// A read and all that it needs.
struct Flight {
    /// There until the flight has ended.
    ring: Option<IoUring>,
    fd: Arc<OwnedFd>,
    file: Arc<Shared>,
    offset: DeviceOffset,
    bytes: AlignedBuf,
    /// Bytes that are here.
    done: usize,
    /// It has been submitted, and its completion not been taken.
    flying: bool,
}

impl Flight {
    fn ring(&mut self) -> &mut IoUring {
        self.ring.as_mut().expect("it has not ended")
    }

    /// Submits what is not here yet and waits at most `limit`. False when it could not be submitted.
    fn launch(&mut self, limit: Duration) -> bool {
        let fd = Fd(self.fd.as_raw_fd());
        let offset = self.offset.get() + self.done as u64;
        let rest = &mut self.bytes[self.done..];
        let entry = opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32).offset(offset).build();
        // SAFETY: the entry points to the rest of `bytes` and has its length. `self` owns these bytes, and neither
        // moves nor touches them while `flying`; if it is dropped then, they are leaked. `fd` stays open as long.
        unsafe { self.ring().submission().push(&entry) }.expect("the one read before has landed");
        self.flying = true;
        self.wait(Some(limit));
        let taken = self.ring().submission().is_empty();
        self.flying = taken;
        taken
    }

    /// Waits for the completion until `limit` has passed, or something else happens.
    fn wait(&mut self, limit: Option<Duration>) {
        // What came of it is seen by what is there afterwards: a completion, an entry that was not taken, or neither,
        // since a signal ends the waiting as the time does.
        let _ = match limit {
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.ring().submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
            None => self.ring().submit_and_wait(1),
        };
    }

    /// The completion, if it is there.
    fn land(&mut self) -> Option<i32> {
        let result = self.ring().completion().next()?.result();
        self.flying = false;
        Some(result)
    }

    /// What came of it: the outcome, unless something is left to be read.
    fn step(&mut self, result: i32) -> Option<Outcome> {
        let Ok(got) = usize::try_from(result) else {
            let errno = Errno::from_raw_os_error(-result);
            return (!matches!(errno, Errno::INTR | Errno::AGAIN)).then(|| Err(device_error(errno)));
        };
        if Shared::is_cut_short(got) {
            return Some(Err(DeviceError::Range));
        }
        self.done += got;
        let whole = self.done >= self.bytes.len();
        whole.then(|| Ok(mem::replace(&mut self.bytes, AlignedBuf::zeroed(0))))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.flying {
            mem::forget(mem::replace(&mut self.bytes, AlignedBuf::zeroed(0)));
        }
    }
}
