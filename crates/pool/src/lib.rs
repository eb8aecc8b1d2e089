//! A pool without file names: datasets, snapshots, quotas, dedup, commit, log, import, and what keeps it well.
//!
//! Where blocks lie is the business of the store, [`Pool::store`]. Read [`commit`] for what makes changes durable,
//! [`intent`] for what makes `fsync` cheap and [`open`] for how a pool comes back.

mod accounts;
pub mod admin;
#[cfg(test)]
mod bed;
pub mod boundary;
pub mod clean;
mod cleaner;
pub mod commit;
mod contents;
pub mod copies;
pub mod create;
pub mod dataset;
pub mod dedup;
mod destroy;
mod duplicates;
mod event_log;
pub mod events;
pub mod fence;
pub mod foreign;
mod free;
mod freeing;
mod import;
pub mod intent;
mod intent_log;
pub mod ledger;
mod op;
pub mod open;
mod pin;
pub mod pins;
pub mod pool;
pub mod property;
pub mod quota;
pub mod rebuilt;
pub mod resting;
mod sealing;
mod shared;
mod snapshot;
mod snapshots;
mod suspend;
#[cfg(test)]
mod tests;

pub use accounts::{Limits, Share};
pub use clean::Writes;
pub use create::{GroupSpec, PoolSpec, ROOT_DATASET};
pub use dataset::{Atime, Chunking, Dataset, Look, Settings, Update, Usage, View};
pub use duplicates::DedupFigures;
pub use import::ImportOptions;
pub use larder_store::account::Account;
pub use larder_store::admission::Space;
pub use larder_store::store::GroupUse;
pub use larder_store::whereabouts::Whereabouts;
pub use larder_store::write::{Dedup, NewRecord};
pub use larder_store::{
    Class, Event, EventSink, PoolError, Result, Store, Watch, World, cache, codec, member, members,
    note_panics, parity, segments, space, stripe,
};
pub use ledger::Lost;
pub use op::Op;
pub use open::Importable;
pub use pool::{FrontEnd, Pool};
pub use snapshot::SnapshotView;
