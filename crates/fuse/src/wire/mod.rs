//! The protocol: bytes of requests to checked values, answers to bytes.
//!
//! A request is a header, for most a structure of fixed length, then names or data. Over `/dev/fuse` they
//! come in one piece; over io_uring the first two have places of their own ([`Layout`]). Nothing that the
//! kernel sends can make this panic: what is too short or makes no sense is [`Malformed`].

pub(crate) mod abi;
mod request;
mod response;

pub use request::{Forget, Forgets, Malformed, Operation, Request};
pub(crate) use request::{Init, Layout};
pub(crate) use response::Body;
pub use response::{Attr, Data, Entry, Listing, Opened, Response};
