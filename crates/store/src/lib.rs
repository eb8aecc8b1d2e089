//! The store: blocks by id, on member devices that fail. It knows neither datasets nor commits.
//!
//! Read [`mod@write`] for the way down, [`read`] for the way up.

pub mod account;
pub mod admission;
pub mod bad_slot_table;
pub mod bad_slots;
pub mod cache;
pub mod cluster;
pub mod codec;
pub mod core;
pub mod decode;
pub mod dirty;
pub mod error;
pub mod events;
mod free_slots;
pub mod headroom;
pub mod heat;
pub mod hedge;
mod in_flight;
mod latency;
mod losses;
pub mod member;
pub mod members;
mod misses;
pub mod parity;
pub mod partial_read;
mod partial_reads;
pub mod read;
pub mod readahead;
pub mod run_io;
pub mod segments;
pub mod slow;
pub mod space;
pub mod store;
pub mod stripe;
pub mod suspects;
pub mod suspend;
mod suspension;
pub mod watch;
mod watermark;
pub mod whereabouts;
pub mod write;

pub use error::{PoolError, Result};
pub use events::{Class, Event, EventSink};
pub use store::{Store, StoreParts, World};
pub use watch::{Watch, note_panics};
pub use watermark::{RESERVE_SEGMENTS, Watermark};
