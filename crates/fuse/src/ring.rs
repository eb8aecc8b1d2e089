//! FUSE over io_uring: one thread for each entry of a queue, each with a small ring of its own.
//!
//! # The kernel's rules (`fs/fuse/dev_uring.c`)
//! - There is a queue for every possible processor; a request goes into the queue of the processor that its caller
//!   runs on, and waits there for a free entry, whatever other queues have.
//! - An entry is a header and a payload in our memory, named by REGISTER. The command completes when the kernel
//!   has put a request there. COMMIT_AND_FETCH hands in the answer, which lies in the same place, and completes
//!   with the next request.
//! - Once both sides have agreed on io_uring, requests wait until every queue has an entry. So whatever can fail is
//!   done before: [`prepare`] makes all rings, and only then the kernel hears of them.
//! - Forgets, interrupts and notifications keep to `/dev/fuse`.
//! - When the mount goes, every command ends with ENOTCONN.
//!
//! # Where a thread runs
//! On the processor of its queue, where the caller waits: woken elsewhere, it would first have to be heard of by a
//! processor that sleeps, and so would the caller when it is done, which takes longer than most requests do. Read-ahead
//! has nobody waiting: who serves it may run anywhere, so that a single stream has more than one processor.
//!
//! # An entry's memory
//! It belongs to the kernel from the moment a command is submitted until it completes, and to the thread
//! otherwise. [`Ring::exchange`] is both moments in one call, so no reference into the memory can be alive while the
//! kernel writes; and if the call ever fails with the command under way, the memory is left behind, not freed.

use crate::service::{Served, Service, respond};
use crate::wire::abi::{self, OutHeader, UringCmdReq, UringEntInOut};
use crate::wire::{Body, Data, Layout, Malformed, Operation, Request, Response};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode::UringCmd80, types::Fixed};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use zerocopy::{FromBytes, IntoBytes};

/// Threads that serve the device beside the rings.
pub(crate) const CLASSIC_THREADS: usize = 2;
/// Most entries of all queues together, as far as each has [`MIN_QUEUE`]: an entry may come to take a megabyte.
pub(crate) const MAX_ENTRIES: usize = 64;
/// A read request of more bytes is read-ahead: its caller goes on meanwhile.
const READ_AHEAD: u32 = 32 << 10;
/// A thread that has served read-ahead is back at its queue's processor after so many other requests.
const HOME_AFTER: u32 = 16;
/// Rings of all mounts; each takes a descriptor.
static RINGS: AtomicUsize = AtomicUsize::new(0);
/// Fewest entries of a queue: a few slow requests must not hold up all that comes from their processor.
const MIN_QUEUE: usize = 4;

/// Number of the kernel's queues: one for each possible processor.
fn queues() -> usize {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    count_processors(&possible).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Counts a list such as `0-3,8`.
fn count_processors(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}

fn queue_len(threads: usize, queues: usize) -> usize {
    threads.min(MAX_ENTRIES / queues).max(MIN_QUEUE)
}

/// Whether there are few enough queues for each to have its entries, and whether the rings of all mounts take a quarter
/// of the descriptors that this process may have at most: the daemon's devices and clients need some, too.
pub(crate) fn is_advisable(threads: usize) -> bool {
    let queues = queues();
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let rings = RINGS.load(Relaxed) + queues * queue_len(threads, queues);
    queues * MIN_QUEUE <= MAX_ENTRIES && rings as u64 <= descriptors / 4
}

/// Threads that have their rings and wait for the kernel to hear of them. Dropped, they end.
pub(crate) struct Prepared {
    threads: Vec<(mpsc::Sender<()>, JoinHandle<io::Result<()>>)>,
}

impl Prepared {
    /// Lets them register; the kernel has agreed on io_uring.
    pub(crate) fn start(self) -> Vec<JoinHandle<io::Result<()>>> {
        let start = |(go, thread): (mpsc::Sender<()>, _)| {
            // One that has ended is found when it is joined.
            let _ = go.send(());
            thread
        };
        self.threads.into_iter().map(start).collect()
    }
}

/// Makes a thread and a ring for each entry of each queue.
///
/// # Errors
/// When io_uring is not to be had.
pub(crate) fn prepare<S: Service>(
    device: &Arc<OwnedFd>,
    service: &Arc<S>,
    threads: usize,
    max_write: u32,
) -> io::Result<Prepared> {
    let queues = queues();
    let mut prepared = Prepared { threads: Vec::new() };
    let (ready, readiness) = mpsc::channel();
    for queue in 0..queues {
        for number in 0..queue_len(threads, queues) {
            let (device, service, ready) = (Arc::clone(device), Arc::clone(service), ready.clone());
            let (go, start) = mpsc::channel();
            let builder = Builder::new().name(format!("fuse-{queue}.{number}"));
            let thread = builder.spawn(move || {
                let made = Ring::new(&device, queue as u16, max_write as usize);
                let (made, outcome) = match made {
                    Ok(ring) => (Some(ring), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                let _ = ready.send(outcome);
                drop(ready);
                match (made, start.recv()) {
                    (Some(ring), Ok(())) => {
                        let served = Served(&*service);
                        let outcome = run(ring, served.0);
                        served.end(outcome)
                    }
                    _ => Ok(()),
                }
            })?;
            prepared.threads.push((go, thread));
        }
    }
    drop(ready);
    readiness.into_iter().collect::<io::Result<()>>()?;
    Ok(prepared)
}

/// Where a thread may run, and does.
struct Place {
    anywhere: CpuSet,
    /// The processor of its queue.
    home: CpuSet,
    is_home: bool,
    /// Requests since the last that was read-ahead.
    others: u32,
}

impl Place {
    /// Of the calling thread; none where it may not run on that processor, or may not choose.
    fn at(queue: u16) -> Option<Self> {
        let anywhere = sched_getaffinity(None).ok()?;
        let processor = usize::from(queue);
        if processor >= CpuSet::MAX_CPU || !anywhere.is_set(processor) {
            return None;
        }
        let mut home = CpuSet::new();
        home.set(processor);
        sched_setaffinity(None, &home).ok()?;
        Some(Self { anywhere, home, is_home: true, others: 0 })
    }

    /// A request has come.
    fn suit(&mut self, operation: &Operation<'_>) {
        let ahead = matches!(operation, Operation::Read { size, .. } if *size > READ_AHEAD);
        self.others = if ahead { 0 } else { self.others.saturating_add(1) };
        let is_home = if ahead { false } else { self.is_home || self.others >= HOME_AFTER };
        if is_home != self.is_home {
            // A processor that is gone by now: then the kernel has let it run anywhere.
            let _ = sched_setaffinity(None, if is_home { &self.home } else { &self.anywhere });
            self.is_home = is_home;
        }
    }
}

/// Serves requests of a queue until the mount is gone.
fn run<S: Service>(mut ring: Ring, service: &S) -> io::Result<()> {
    let mut place = Place::at(ring.queue);
    let mut outcome = ring.register();
    loop {
        match outcome {
            Ok(()) => {}
            Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let (number, answer) = match Request::from_layout(ring.layout()) {
            Ok(request) => {
                if let Some(place) = &mut place {
                    place.suit(&request.operation);
                }
                let response = respond(service, &request);
                let (unique, code, node) = (request.unique, request.opcode, request.node);
                let answer = ring.put(code, &response);
                if answer.is_err() && !matches!(response, Response::Error(_)) {
                    service.refused(node, &response);
                }
                (unique, answer)
            }
            Err(Malformed { unique }) => (unique.unwrap_or(0), Err(Errno::IO)),
        };
        outcome = ring.commit(number, answer);
    }
}

/// An entry of a queue and the ring that it is served by.
struct Ring {
    ring: IoUring<Entry128>,
    queue: u16,
    header: Shared,
    payload: Shared,
    /// A command has been submitted and not completed.
    pending: bool,
}

impl Ring {
    /// To be used by the thread that makes it.
    fn new(device: &OwnedFd, queue: u16, payload: usize) -> io::Result<Self> {
        // The kernel runs what is to be done for the entry when this thread waits, and at no other time.
        let ring: IoUring<Entry128> =
            IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(1)?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        RINGS.fetch_add(1, Relaxed);
        Ok(Self {
            ring,
            queue,
            header: Shared::new(abi::URING_HEADER_LEN),
            payload: Shared::new(payload.max(abi::MIN_READ_BUFFER)),
            pending: false,
        })
    }

    /// Offers the entry to the kernel; returns when it holds a request.
    fn register(&mut self) -> Result<(), Errno> {
        let parts = [self.header.part(), self.payload.part()];
        let command = self.command(abi::URING_REGISTER, 0).addr(Some(parts.as_ptr() as u64));
        let mut command = command.build();
        // SAFETY: `Entry128` begins with the kernel's `io_uring_sqe`, 64 bytes and more; its `len` is the u32 at
        // byte 24, which the crate has no setter for here. It counts the parts that `addr` points to.
        unsafe { (&raw mut command).cast::<u32>().add(6).write(parts.len() as u32) };
        self.exchange(command)
    }

    /// Hands in the answer to request `unique`: so many bytes of the payload, or an error. Returns when the entry
    /// holds the next request.
    fn commit(&mut self, unique: u64, answer: Result<usize, Errno>) -> Result<(), Errno> {
        let header = self.header.bytes_mut();
        let mut entry = read_entry(header);
        let (len, error) = match answer {
            Ok(len) => (len, 0),
            Err(errno) => (0, -errno.raw_os_error()),
        };
        let out = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique };
        entry.payload_sz = len as u32;
        header[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        header[abi::URING_ENT..].copy_from_slice(entry.as_bytes());
        let command = self.command(abi::URING_COMMIT_AND_FETCH, entry.commit_id).build();
        self.exchange(command)
    }

    fn command(&self, code: u32, commit_id: u64) -> UringCmd80 {
        let request = UringCmdReq { commit_id, qid: self.queue, ..Default::default() };
        let mut bytes = [0; 80];
        bytes[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
        UringCmd80::new(Fixed(0), code).cmd(bytes)
    }

    /// Submits a command and waits for it to complete.
    fn exchange(&mut self, command: Entry128) -> Result<(), Errno> {
        // SAFETY: what the command points to lives in `self` (or, for REGISTER, in the caller's frame, where it is
        // read before `submit_and_wait` first returns), and is not freed while `pending`. No reference into it
        // lives, as they all borrow `self`.
        unsafe { self.ring.submission().push(&command) }.expect("the one command before has completed");
        self.pending = true;
        let result = loop {
            // A signal ends the wait, not the command: then only the waiting is repeated.
            match self.ring.submit_and_wait(1).map_err(|error| Errno::from_io_error(&error)) {
                Ok(_) | Err(Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)) => {}
                Err(errno) => return Err(errno.unwrap_or(Errno::IO)),
            }
            if let Some(result) = self.ring.completion().next().map(|done: cqueue::Entry| done.result()) {
                break result;
            }
        };
        self.pending = false;
        if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) }
    }

    /// The request that the entry holds.
    fn layout(&self) -> Layout<'_> {
        let (header, payload) = (self.header.bytes(), self.payload.bytes());
        let len = read_entry(header).payload_sz as usize;
        let (header, rest) = header.split_at(abi::URING_OP);
        let structure = &rest[..abi::URING_ENT - abi::URING_OP];
        Layout::Split { header, structure, rest: &payload[..len.min(payload.len())] }
    }

    /// Puts an answer where the request was; its length, or the error that it is.
    fn put<D: Data>(&mut self, code: u32, response: &Response<D>) -> Result<usize, Errno> {
        let out = self.payload.bytes_mut();
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            // An answer that does not fit was not asked for: the kernel would refuse it, too.
            let room = out.get_mut(at..at + bytes.len()).ok_or(Errno::IO)?;
            room.copy_from_slice(bytes);
            at += bytes.len();
            Ok(())
        };
        match response.body(code)? {
            Body::Structure(structure) => put(structure.as_bytes())?,
            Body::Bytes(bytes) => put(bytes)?,
            Body::Data(data) => data.slices().try_for_each(put)?,
        }
        Ok(at)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        RINGS.fetch_sub(1, Relaxed);
        if self.pending {
            self.header.leave_behind();
            self.payload.leave_behind();
        }
    }
}

fn read_entry(header: &[u8]) -> UringEntInOut {
    UringEntInOut::read_from_bytes(&header[abi::URING_ENT..]).expect("the header's length is fixed")
}

/// A part of an entry, as REGISTER wants it: the kernel's `iovec`.
#[repr(C)]
struct Part {
    base: NonNull<u8>,
    len: usize,
}

/// Memory that the kernel writes to between `exchange`'s beginning and end.
struct Shared {
    base: NonNull<u8>,
    len: usize,
    /// Owner of the memory; accessed only through `base`. Untouched pages take no memory.
    owner: Vec<u8>,
}

impl Shared {
    const PAGE: usize = 4096;

    fn new(len: usize) -> Self {
        let mut owner = vec![0; len + Self::PAGE];
        // On a page boundary, so that the kernel copies page for page.
        let skip = owner.as_ptr().align_offset(Self::PAGE);
        let base = NonNull::from(&mut owner[skip..skip + len]).cast();
        Self { base, len, owner }
    }

    fn part(&self) -> Part {
        Part { base: self.base, len: self.len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `base` points to `len` initialised bytes that `owner` holds and does not move. The kernel writes
        // to them only in `Ring::exchange`, which no reference outlives: it takes the ring, and so this, as `&mut`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// Keeps the memory for the rest of the process's life.
    fn leave_behind(&mut self) {
        std::mem::forget(std::mem::take(&mut self.owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_as_the_kernel_lists_them() {
        for (list, count) in
            [("0-1\n", Some(2)), ("0", Some(1)), ("0-3,8-11,16", Some(9)), ("", None), ("3-1", None)]
        {
            assert_eq!(count_processors(list), count, "{list}");
        }
    }

    #[test]
    fn a_thread_is_at_its_processor_but_for_read_ahead() {
        let Some(mut place) = Place::at(0) else {
            eprintln!("SKIPPED: this process may not run on processor 0");
            return;
        };
        let processors =
            || (0..CpuSet::MAX_CPU).filter(|&one| sched_getaffinity(None).unwrap().is_set(one)).count();
        let everywhere = (0..CpuSet::MAX_CPU).filter(|&one| place.anywhere.is_set(one)).count();
        assert_eq!(processors(), 1);
        place.suit(&Operation::Read { handle: 0, offset: 0, size: 4096 });
        assert_eq!(processors(), 1, "somebody waits for a little");
        place.suit(&Operation::Read { handle: 0, offset: 0, size: 1 << 20 });
        assert_eq!(processors(), everywhere);
        (1..HOME_AFTER).for_each(|_| place.suit(&Operation::StatFs));
        assert_eq!(processors(), everywhere);
        place.suit(&Operation::StatFs);
        assert_eq!(processors(), 1);
        assert!(Place::at(u16::MAX).is_none(), "there is no such processor");
    }

    #[test]
    fn many_processors_share_the_entries_down_to_a_few_each() {
        assert_eq!([1, 2, 4, 8, 16, 64].map(|queues| queue_len(16, queues)), [16, 16, 16, 8, 4, 4]);
    }
}
