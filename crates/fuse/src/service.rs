//! The server of requests, as the transports see it.

use crate::wire::{Data, Operation, Request, Response};
use rustix::io::Errno;
use std::io;

/// The server of requests. Calls come from many threads at once.
pub trait Service: Send + Sync + 'static {
    /// Data of an answer to a read.
    type Data: Data;

    /// Answers a request. An answer to one that wants none is dropped.
    fn serve(&self, request: &Request<'_>) -> Response<Self::Data>;

    /// A thread that served it is about to end by a panic.
    fn panicked(&self) {}

    /// A thread that served it ends, and not because the mount is gone: the kernel's device gave this error.
    fn ended(&self, _error: &io::Error) {}

    /// The kernel did not take an answer to a request about `node`: whoever asked has got an error, or is gone. So what
    /// the answer opened will not be released, and what it named not forgotten.
    fn refused(&self, node: u64, response: &Response<Self::Data>);
}

/// Held by a thread that serves, to tell the service when it panics.
pub(crate) struct Served<'a, S: Service>(pub &'a S);

impl<S: Service> Served<'_, S> {
    /// Passes the thread's outcome on. An error is reported at once, since a join sees it late, if ever.
    pub(crate) fn end(self, outcome: io::Result<()>) -> io::Result<()> {
        if let Err(error) = &outcome {
            self.0.ended(error);
        }
        outcome
    }
}

impl<S: Service> Drop for Served<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked();
        }
    }
}

/// Asks the service, unless the answer is known.
pub(crate) fn respond<S: Service>(service: &S, request: &Request<'_>) -> Response<S::Data> {
    match request.operation {
        Operation::Destroy | Operation::Interrupt { .. } => Response::Done,
        Operation::Unknown => Response::Error(Errno::NOSYS),
        _ => service.serve(request),
    }
}
