//! The store: blocks by id, on member devices that fail. It knows neither datasets nor commits.
//!
//! Read [`write`] for the way down, [`read`] for the way up.

pub mod account;
pub mod admission;
pub mod ahead;
pub mod around;
pub mod badslots;
pub mod cache;
pub mod codec;
pub mod core;
pub mod decode;
pub mod dirty;
pub mod error;
pub mod events;
mod free_slots;
pub mod heat;
mod in_flight;
pub mod member;
pub mod members;
mod misses;
mod pace;
pub mod parity;
pub mod part;
mod part_reads;
pub mod race;
pub mod read;
pub mod retired;
pub mod row;
pub mod runs;
pub mod segments;
pub mod slow;
pub mod space;
pub mod spare;
pub mod store;
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
