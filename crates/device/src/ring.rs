//! Reads and writes by a ring of the thread that wants them, with a limit: `pread` cannot be left before it is done.
//!
//! Each thread keeps a few io_urings, and each takes one request at a time. A read that is waited for at once
//! ([`crate::Device::perform`]) is one system call, as `pread` is, and nothing is lost against it
//! (`examples/device_speed.rs`: 0.97 to 1.03 times as many reads of 4 KiB, where a queue's thread and back makes 0.6
//! to 0.8). Requests to several devices are started first and waited for then ([`crate::Device::start`]): the copies
//! of the intent log. A direct write is on its way when it is submitted, as a read is; one that cannot be, for want of
//! room in a sparse file most often, is given back and goes to the queue, since two threads of the kernel would have to
//! do with it.
//!
//! Flushes go to the queue. By io_uring, alone or linked to the write, a thread of the kernel performs them, which
//! costs what our own does; those of several devices it takes one after the other. `RWF_DSYNC` costs such a thread,
//! too, unless the disk has FUA.
//!
//! In the rare case that the time is over, the ring moves into a thread that does nothing but wait for it and keep
//! the promise, and the next request makes a new ring.
//!
//! # The buffer of a request
//! It belongs to the kernel from the moment the request is submitted until its completion has been taken from the
//! ring. All that time [`Transfer`] owns it, or a share in it, beside the ring, and nothing reaches into it; a transfer
//! that is dropped before it is done leaves its memory behind for good. The file stays open as long as the transfer
//! is there.
//!
//! Where io_uring is not to be had, and when too many requests are late already, [`prepare`] refuses, and the queue's
//! threads do the work.

use crate::open_file::OpenFile;
use crate::pending::OtherEnd;
use crate::{AlignedBuf, Clock, Completion, DeviceError, Outcome, Pending, Request, SystemClock};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use rustix::io::Errno;
use std::cell::RefCell;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Threads that wait for late requests at most, for all devices.
const MOST_LATE: usize = 64;
/// Rings that a thread keeps: as many as a stripe of the log has copies.
const KEPT: usize = 4;

/// `RWF_NOWAIT`: a write that needs more than the disk, such as room in a sparse file, comes back at once.
const NOWAIT: i32 = 8;

static LATE: AtomicUsize = AtomicUsize::new(0);
/// io_uring was refused: the kernel is too old, or a container forbids it.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static RINGS: RefCell<Vec<IoUring>> = const { RefCell::new(Vec::new()) };
}

/// From now on requests go by threads alone: for a process that may open few files, since each thread keeps rings.
pub fn do_without_rings() {
    REFUSED.store(true, Relaxed);
}

/// A ring of this thread in which nothing is under way.
fn ring() -> Option<IoUring> {
    if REFUSED.load(Relaxed) || LATE.load(Relaxed) >= MOST_LATE {
        return None;
    }
    if let Some(ring) = RINGS.with_borrow_mut(Vec::pop) {
        return Some(ring);
    }
    // The waiting thread is in the kernel anyway and need not be interrupted to take a completion.
    let made = IoUring::builder().setup_coop_taskrun().build(1).ok();
    let made = made.filter(|ring| ring.params().is_feature_ext_arg());
    REFUSED.fetch_or(made.is_none(), Relaxed);
    made
}

fn give_back(ring: IoUring) {
    RINGS.with_borrow_mut(|rings| {
        if rings.len() < KEPT {
            rings.push(ring);
        }
    });
}

/// Operation of a request, with its offset and buffer.
enum Job {
    Read { offset: u64, bytes: AlignedBuf },
    Write { offset: u64, data: Arc<AlignedBuf> },
}

/// A read or write within the file, in a ring of this thread; it is not under way yet. None when it cannot be done
/// here.
pub(crate) fn prepare(file: &Arc<OpenFile>, request: &Request) -> Option<Transfer> {
    let job = match request {
        Request::Read { offset, len } => {
            let len = usize::try_from(len.get()).expect("a request fits memory");
            Job::Read { offset: offset.get(), bytes: AlignedBuf::stale(len) }
        }
        Request::Write { offset, data } => Job::Write { offset: offset.get(), data: Arc::clone(data) },
        Request::Discard { .. } | Request::Flush => return None,
    };
    let fd = file.fd().ok()?;
    let ring = Some(ring()?);
    let mut transfer = Transfer { ring, fd, file: Arc::clone(file), job: Some(job), stage: Stage::Prepared };
    transfer.push();
    Some(transfer)
}

/// Where a transfer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The kernel has not seen it, or is done with it and it has to be performed once more.
    Prepared,
    /// It has been submitted, and its completion not been taken.
    Submitted,
    /// Its outcome was given.
    Done,
}

/// A request and all that it needs.
pub(crate) struct Transfer {
    /// There until it is done.
    ring: Option<IoUring>,
    fd: Arc<OwnedFd>,
    file: Arc<OpenFile>,
    /// There until it is dropped.
    job: Option<Job>,
    stage: Stage,
}

impl Transfer {
    fn ring(&mut self) -> &mut IoUring {
        self.ring.as_mut().expect("it is not done")
    }

    fn job(&mut self) -> &mut Job {
        self.job.as_mut().expect("it is not dropped yet")
    }

    fn push(&mut self) {
        let fd = Fd(self.fd.as_raw_fd());
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("a request fits a slot");
        let entry = match self.job() {
            Job::Read { offset, bytes } => {
                opcode::Read::new(fd, bytes.as_mut_ptr(), len(bytes)).offset(*offset).build()
            }
            Job::Write { offset, data } => {
                opcode::Write::new(fd, data.as_ptr(), len(data)).offset(*offset).rw_flags(NOWAIT).build()
            }
        };
        // SAFETY: the entry points to all of the job's bytes, and has their length. `self` owns them (of
        // those that are written, which nobody changes, a share), and neither moves nor touches them while under way;
        // if it is dropped then, they are leaked. `fd` stays open as long.
        unsafe { self.ring().submission().push(&entry) }.expect("a ring that was kept is empty");
    }

    /// Submits it without waiting; gives its outcome in the rare case that it is there at once.
    pub(crate) fn submit(&mut self) -> Option<Outcome> {
        // Whether it was taken is seen below.
        let _ = self.ring().submit();
        if !self.note_taken() {
            return None;
        }
        let completion = self.ring().completion().next()?;
        self.stage = Stage::Prepared;
        self.step(completion.result())
    }

    /// Whether the kernel has it.
    pub(crate) fn is_under_way(&self) -> bool {
        self.stage == Stage::Submitted
    }

    fn note_taken(&mut self) -> bool {
        if self.stage == Stage::Prepared && self.ring().submission().is_empty() {
            self.stage = Stage::Submitted;
        }
        self.stage == Stage::Submitted
    }

    /// Submits it, if that was not done, and waits at most `limit` for its outcome. None when it is under way still,
    /// or has to be performed once more; [`Transfer::complete_elsewhere`] is for both.
    pub(crate) fn complete(&mut self, limit: Option<Duration>) -> Option<Outcome> {
        let clock = SystemClock::new();
        let mut left = limit;
        loop {
            self.wait(left);
            if !self.note_taken() {
                return None;
            }
            let completion = self.ring().completion().next();
            if let Some(completion) = completion {
                self.stage = Stage::Prepared;
                return self.step(completion.result());
            }
            if let Some(limit) = limit {
                left = Some(limit.checked_sub(clock.monotonic())?);
            }
        }
    }

    /// Waits for the completion until `limit` has passed, or something else happens.
    fn wait(&mut self, limit: Option<Duration>) {
        // The ring shows the result afterwards: a completion, an entry that was not taken, or neither, since a signal
        // ends the waiting as the time does.
        let _ = match limit {
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.ring().submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
            None => self.ring().submit_and_wait(1),
        };
    }

    /// The outcome of a completion, unless something is left to be done.
    fn step(&mut self, result: i32) -> Option<Outcome> {
        let outcome = match (usize::try_from(result), self.job()) {
            (Err(_), job) => {
                let errno = Errno::from_raw_os_error(-result);
                let unable = errno == Errno::OPNOTSUPP && matches!(job, Job::Write { .. });
                if unable || matches!(errno, Errno::INTR | Errno::AGAIN | Errno::CANCELED) {
                    return None;
                }
                Err(self.file.error(errno))
            }
            (Ok(got), Job::Read { .. }) if OpenFile::is_cut_short(got) => Err(self.file.cut_short()),
            (Ok(got), Job::Read { bytes, .. }) if got < bytes.len() => return None,
            (Ok(_), Job::Read { bytes, .. }) => Ok(mem::replace(bytes, AlignedBuf::zeroed(0))),
            (Ok(put), Job::Write { data, .. }) if put < data.len() => return None,
            (Ok(_), Job::Write { .. }) => Ok(AlignedBuf::zeroed(0)),
        };
        self.stage = Stage::Done;
        self.ring.take().into_iter().for_each(give_back);
        Some(outcome)
    }

    /// Lets another thread wait for it, perform it once more if need be, and complete it.
    pub(crate) fn complete_elsewhere(mut self, completion: Completion<Outcome>) {
        if self.stage == Stage::Done {
            return;
        }
        completion.begin();
        LATE.fetch_add(1, Relaxed);
        let wait = move || {
            let outcome = caught(|| {
                let done = if self.stage == Stage::Submitted { self.complete(None) } else { None };
                done.unwrap_or_else(|| self.again())
            });
            LATE.fetch_sub(1, Relaxed);
            // The caller may want to open the device anew, and this still holds the file.
            drop(self);
            completion.complete(outcome);
        };
        // Without a thread the transfer is dropped: its memory stays behind, and it never completes, which is what
        // a hung device comes to.
        if std::thread::Builder::new().name("larder-late".to_owned()).spawn(wait).is_err() {
            LATE.fetch_sub(1, Relaxed);
        }
    }

    /// Performs it once more, in this thread, as nobody is in a hurry any more.
    fn again(&mut self) -> Outcome {
        // An entry that the ring may still hold must not be submitted.
        self.ring.take();
        self.stage = Stage::Done;
        match self.job.as_ref().expect("it is not dropped yet") {
            Job::Read { offset, bytes } => self.file.read(*offset, bytes.len()),
            Job::Write { offset, data } => self.file.write(*offset, data),
        }
    }

    /// Takes back what the kernel has not seen, or has given back.
    pub(crate) fn cancel(mut self) {
        assert!(self.stage == Stage::Prepared, "it is under way");
        if self.ring().submission().is_empty() {
            self.ring.take().into_iter().for_each(give_back);
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.stage == Stage::Submitted {
            mem::forget(self.job.take());
        }
    }
}

/// Outcome of a request that no caller waits for in its own thread. A panic becomes an error of the device (EIO), so
/// that the caller and the pool learn of it.
fn caught(perform: impl FnOnce() -> Outcome) -> Outcome {
    let caught = catch_unwind(AssertUnwindSafe(perform));
    caught.unwrap_or(Err(DeviceError::Io { errno: Errno::IO.raw_os_error() }))
}

/// A transfer that is completed by who waits for it; by another thread, when that is given up.
pub(crate) struct Own(Option<(Transfer, Completion<Outcome>)>);

impl Own {
    /// A request that is under way, and its other end.
    pub(crate) fn pending(transfer: Transfer) -> Pending<Outcome> {
        let (completion, pending) = Pending::new();
        completion.begin();
        pending.owned(Box::new(Self(Some((transfer, completion)))))
    }
}

impl OtherEnd for Own {
    fn wait(mut self: Box<Self>, limit: Option<Duration>) {
        let outcome = self.0.as_mut().and_then(|own| own.0.complete(limit));
        if let Some(outcome) = outcome
            && let Some(own) = self.0.take()
        {
            own.1.complete(outcome);
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some((transfer, completion)) = self.0.take() {
            transfer.complete_elsewhere(completion);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_a_late_request_is_an_error_of_the_device() {
        let outcome = caught(|| panic!("a bug"));
        assert!(matches!(outcome, Err(DeviceError::Io { .. })));
    }
}
