//! Streams of ZFS: what `zfs send` writes, and the files that it means.
//!
//! [`Streams`] reads bytes and gives records whose checksums are proven. [`receive()`] makes files of them in a
//! [`Sink`], with increments upon what it received before. Neither trusts a byte: whatever a stream says, it is refused
//! or received, within bounded memory. `docs/zfs-streams.md` says what is taken over, and which versions are proven.
//!
//! ```no_run
//! # use larder_zfs_stream::{Memory, Streams, receive};
//! let mut streams = Streams::new(std::io::stdin().lock());
//! while let Some(begin) = streams.next_stream().unwrap() {
//!     // By `begin.to_name`, `begin.from_guid` it is known where it goes.
//!     let mut sink = Memory::default();
//!     receive(&mut streams, &begin, &mut sink).unwrap();
//! }
//! ```
//!
//! Layouts: OpenZFS's `zfs_ioctl.h`, `zap_impl.h`, `zap_leaf.h`, `sa_impl.h`, `zfs_znode.h`, `nvpair.c`, read as
//! descriptions of a format; no code is taken from there.

mod attrs;
mod bytes;
mod checksum;
mod codec;
mod error;
mod list;
mod memory;
mod notes;
mod receive;
mod record;
mod sink;
mod stream;
mod zap;

pub use attrs::{Attrs, Registry};
pub use bytes::Order;
pub use error::{ReceiveError, Refusal, StreamError};
pub use list::{List, Value};
pub use memory::{Line, Memory, MemoryError};
pub use receive::{Received, receive, received_guid};
pub use record::{Begin, Object};
pub use sink::{New, Node, Sink, SinkAttr};
pub use stream::{Record, Streams, repair_sums};
