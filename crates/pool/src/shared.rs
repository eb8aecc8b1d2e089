//! Parts shared by a pool, its datasets and its operations: those that know nothing of the pool.

use crate::accounts::Accounts;
use crate::duplicates::Duplicates;
use crate::freeing::Freeing;
use crate::intent_log::IntentLog;
use crate::ledger::Damage;
use crate::pins::Pins;
use larder_format::BlockId;
use larder_format::label::Features;
use larder_mutants::{Mutant, mutated};
use larder_store::{DEFAULT_MEMORY, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module's text.
pub struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) accounts: Accounts,
    pub(crate) intent: IntentLog,
    pub(crate) damage: Damage,
    pub(crate) pins: Arc<Pins>,
    pub(crate) duplicates: Arc<Duplicates>,
    pub(crate) freeing: Freeing,
    /// The highest id that a snapshot, or a bookmark of one, has as its high.
    pub(crate) newest_high: AtomicU64,
}

impl Shared {
    /// Of a pool on `store`.
    pub(crate) fn new(store: Arc<Store>, intent: IntentLog, damage: Damage) -> Self {
        let (pins, duplicates) = (Arc::new(Pins::default()), Arc::new(Duplicates::new(DEFAULT_MEMORY)));
        Self {
            accounts: Accounts::default(),
            intent,
            damage,
            freeing: Freeing::new(&store, &duplicates, &pins),
            pins,
            duplicates,
            newest_high: AtomicU64::new(0),
            store,
        }
    }

    /// A snapshot has this high id. Nobody may be inside.
    pub(crate) fn note_high(&self, high: BlockId) {
        self.newest_high.fetch_max(high.get(), Ordering::Relaxed);
    }

    /// The commit that an extent tells of, to which this block is given now: 0 when all snapshots of which anything is
    /// left are older than the block.
    pub(crate) fn placed(&self, id: BlockId) -> u32 {
        if id.get() > self.newest_high.load(Ordering::Relaxed) || mutated(Mutant::PutNotStamped) {
            return 0;
        }
        let mut core = self.store.core.lock();
        core.features.incompatible |= Features::PLACED;
        core.open_commit.get().try_into().unwrap_or(u32::MAX)
    }
}
