//! A pool without file names: datasets, snapshots, quotas, dedup, commit, log, import.
//!
//! Where blocks lie is the business of the store, [`Pool::store`]. Read [`commit`] for what makes changes durable,
//! [`intent`] for what makes `fsync` cheap and [`open`] for how a pool comes back.

mod accounts;
mod admin;
mod assemble;
mod attached;
#[cfg(test)]
mod bed;
mod bookmarks;
mod boundary;
mod changes;
mod clean;
mod cleaner;
mod clones;
mod column;
mod commit;
mod commit_records;
mod contents;
mod copies;
pub mod create;
mod dataset;
mod dedup;
mod destroy;
mod duplicates;
mod emptying;
mod event_log;
mod events;
mod fence;
pub mod foreign;
mod found;
mod free;
mod freeing;
mod holds;
mod import;
mod intent;
mod intent_log;
pub mod ledger;
mod measure;
mod momentary;
mod op;
pub mod open;
mod own;
mod pin;
pub mod pins;
mod pool;
pub mod property;
mod quota;
pub mod rebuild;
mod rebuilt;
mod receive;
mod receiving;
mod recording;
mod remains;
mod resting;
mod rewrite;
mod scattered;
mod sealing;
mod shared;
mod snapshot;
mod snapshots;
mod split;
mod suspend;
mod tally;
#[cfg(test)]
mod tests;
mod trash;
mod trashed;

pub use accounts::{Limits, Share};
pub use admin::PropertySource;
pub use bookmarks::BookmarkSource;
pub use changes::{Changes, ChangesSince};
pub use clean::Writes;
pub use copies::Healed;
pub use create::{GroupSpec, PoolSpec};
pub use dataset::{Ahead, Atime, Chunking, Dataset, Look, ROOT_DATASET, Settings, Update, Usage, View};
pub use dedup::{RebuildProgress, TreeOf, TreeRecords, index_limits};
pub use duplicates::DedupFigures;
pub use fence::FenceCheck;
pub use freeing::Freeing;
pub use holds::MarkedSnapshot;
pub use import::ImportOptions;
pub use larder_sorted::tree::{Differs, Side, Told};
pub use larder_store::{
    Account, Class, Dedup, Event, EventSink, GroupUse, NewRecord, PoolError, Refusal, Result, Space, Store,
    Watch, Whereabouts, World, cache, codec, member, members, note_panics, parity, plain_of, roles, segments,
    space, stripe,
};
pub use ledger::Lost;
pub use measure::HeldFile;
pub use momentary::Momentary;
pub use op::Op;
pub use open::Importable;
pub use own::{Here, OwnProperties};
pub use pool::{CommitTurn, FrontEnd, OnlyUpkeep, Pool};
pub use quota::record_claim;
pub use rebuilt::rebuilding;
pub use receive::{Incoming, ReceiveAs};
pub use resting::Resting;
pub use snapshot::{NewSnapshots, SnapshotView};
pub use snapshots::is_momentary;
pub use split::{PinnedView, Split};
pub use tally::{Renew, Renewal, Renewed, Tally};
pub use trash::Trashed;
