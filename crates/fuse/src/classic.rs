//! The classic transport: read(2) a request, write(2) its answer.

use crate::service::{Service, respond};
use crate::wire::abi::{self, OutHeader};
use crate::wire::{Body, Data, Malformed, Request, Response};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use zerocopy::IntoBytes;

/// Most pieces of a writev(2), less one for the header: IOV_MAX is 1024.
const MAX_PIECES: usize = 1000;

/// Serves requests of a device until the mount is gone.
pub(crate) fn run<S: Service>(device: &OwnedFd, service: &S, max_write: u32) -> io::Result<()> {
    let mut buffer = RequestBuffer::new(max_write);
    loop {
        let bytes = match rustix::io::read(device, buffer.room()) {
            Ok(len) => &buffer.room()[..len],
            // ENOENT: who asked was killed before the request was read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        match Request::decode(bytes) {
            Ok(request) => {
                let response = respond(service, &request);
                if request.wants_answer() && !send(device, &request, &response)? {
                    service.refused(request.node, &response);
                }
            }
            Err(Malformed { unique: Some(unique) }) => {
                write(device, &[IoSlice::new(header(unique, 0, Some(Errno::IO)).as_bytes())])?;
            }
            Err(Malformed { unique: None }) => {}
        }
    }
}

/// Room for a request, such that the data of a write lies on a page boundary: the kernel then copies page for page.
struct RequestBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl RequestBuffer {
    const PAGE: usize = 4096;
    const BEFORE_DATA: usize = size_of::<abi::InHeader>() + size_of::<abi::WriteIn>();

    fn new(max_write: u32) -> Self {
        let most = (Self::BEFORE_DATA + max_write as usize).max(abi::MIN_READ_BUFFER);
        let bytes = vec![0; most + 2 * Self::PAGE];
        let data = (bytes.as_ptr() as usize + Self::BEFORE_DATA).next_multiple_of(Self::PAGE);
        let start = data - Self::BEFORE_DATA - bytes.as_ptr() as usize;
        Self { bytes, start }
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

fn header(unique: u64, body: usize, error: Option<Errno>) -> OutHeader {
    let error = error.map_or(0, |errno| -errno.raw_os_error());
    OutHeader { len: (size_of::<OutHeader>() + body) as u32, error, unique }
}

/// Whether the kernel has taken it.
fn send<D: Data>(device: &OwnedFd, request: &Request<'_>, response: &Response<D>) -> io::Result<bool> {
    let unique = request.unique;
    match response.body(request.opcode) {
        Err(errno) => write(device, &[IoSlice::new(header(unique, 0, Some(errno)).as_bytes())]),
        Ok(Body::Structure(structure)) => send_bytes(device, unique, structure.as_bytes()),
        Ok(Body::Bytes(bytes)) => send_bytes(device, unique, bytes),
        Ok(Body::Data(data)) => {
            let header = header(unique, data.len(), None);
            let mut pieces = vec![IoSlice::new(header.as_bytes())];
            pieces.extend(data.slices().map(IoSlice::new));
            if pieces.len() <= MAX_PIECES {
                return write(device, &pieces);
            }
            let gathered = data.slices().collect::<Vec<_>>().concat();
            send_bytes(device, unique, &gathered)
        }
    }
}

fn send_bytes(device: &OwnedFd, unique: u64, bytes: &[u8]) -> io::Result<bool> {
    let header = header(unique, bytes.len(), None);
    write(device, &[IoSlice::new(header.as_bytes()), IoSlice::new(bytes)])
}

/// Whether the kernel has taken it.
fn write(device: &OwnedFd, pieces: &[IoSlice<'_>]) -> io::Result<bool> {
    loop {
        match rustix::io::writev(device, pieces) {
            Ok(_) => return Ok(true),
            // ENOENT: nobody waits for this answer any more.
            Err(Errno::NOENT) => return Ok(false),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // The mount has gone meanwhile; the next read says so.
            Err(Errno::NODEV | Errno::CONNABORTED | Errno::PERM) => return Ok(false),
            // An answer that does not fit its request was ours to avoid; who waits has got EIO for it.
            Err(Errno::INVAL) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}
