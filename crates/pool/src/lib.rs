//! A pool without file names: layout, segments, block store, block map, trees, commit, log.
//!
//! Read [`write`] for the way down, [`read`] for the way up, [`commit`] for what makes it durable,
//! [`intent`] for what makes `fsync` cheap and [`open`] for how a pool comes back.

pub mod account;
pub mod admin;
mod ahead;
mod around;
pub mod cache;
pub mod check;
pub mod clean;
pub mod codec;
pub mod commit;
pub mod core;
pub mod create;
pub mod dataset;
pub mod dedup;
mod destroy;
pub mod devices;
pub mod error;
pub mod foreign;
mod free;
mod heal;
mod heat;
pub mod index;
pub mod intent;
pub mod map;
pub mod member;
pub mod members;
pub mod mend;
pub mod open;
pub mod parity;
pub mod planted;
pub mod pool;
pub mod property;
pub mod quota;
mod race;
pub mod read;
pub mod resilver;
pub mod row;
pub mod runs;
pub mod scrub;
pub mod segments;
mod slow;
mod snapshot;
pub mod space;
pub mod trace;
pub mod tree;
mod whereabouts;
pub mod write;

pub use account::Account;
pub use clean::Writes;
pub use create::{GroupSpec, PoolSpec, ROOT_DATASET};
pub use dataset::{Atime, Chunking, Dataset, Look, Settings, Update, Usage, View};
pub use dedup::{Dedup, DedupFigures};
pub use error::{PoolError, Result};
pub use mend::{Lost, Tally};
pub use open::{ImportOptions, Importable};
pub use pool::{FrontEnd, GroupUse, Op, Pool, Space, World};
pub use quota::{Limits, Share};
pub use resilver::{ResilverProgress, ResilverResult};
pub use scrub::{ScrubOutcome, ScrubProgress, ScrubResult, ScrubSince};
pub use snapshot::SnapshotView;
pub use whereabouts::Whereabouts;
pub use write::NewRecord;
