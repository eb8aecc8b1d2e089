//! The kernel's FUSE protocol and both of its transports.
//!
//! A [`Service`] takes a [`Request`] and gives a [`Response`], by value: it knows nothing of how they travel, and
//! a transport may keep the request and put the answer in one and the same buffer. [`mount`] makes a mount and
//! gives its device, [`serve`] shakes hands with the kernel over it and starts the threads.
//!
//! # Two transports
//! *Classic*: threads that read(2) a request from `/dev/fuse` and write(2) its answer, all from and to one queue.
//! Data read from a file is sent from where it lies (writev).
//!
//! *io_uring* (Linux 6.14, where root has switched it on): the kernel has one queue a processor, and puts each
//! request into a buffer of ours. One system call hands in an answer and waits for the next request. The
//! module `ring` tells its rules. The device is served as well: what must not wait (forget, interrupt) comes that way.
//!
//! # How it ends
//! With the mount: the kernel ends every read of the device with ENODEV and every command of a ring with ENOTCONN,
//! and each thread ends by that alone. There is no other way to stop them, so there is no race to lose.
//!
//! Bytes from the kernel never make this crate panic. A [`Service`] must not panic: the thread would be gone, and
//! with it the answer that somebody waits for. It is told when one goes all the same.

mod classic;
pub mod mount;
mod notify;
mod ring;
mod service;
mod session;
mod wire;

pub use notify::Notifier;
pub use service::Service;
pub use session::{Options, Session, Transport, keeps_pages_true, serve};
pub use wire::{
    Attr, Data, Entry, Forget, Forgets, Listing, Malformed, Opened, Operation, Request, Response,
};
