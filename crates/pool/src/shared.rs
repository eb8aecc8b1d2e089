//! What a pool, its datasets and its operations share: the parts that know nothing of the pool.

use crate::accounts::Accounts;
use crate::duplicates::Duplicates;
use crate::freeing::Freeing;
use crate::intent_log::{Intent, IntentLog, Notes};
use crate::ledger::Damage;
use crate::pins::Pins;
use larder_store::Store;
use std::sync::Arc;

/// See the module's text.
pub struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) accounts: Accounts,
    pub(crate) intent: IntentLog,
    pub(crate) damage: Damage,
    pub(crate) pins: Arc<Pins>,
    pub(crate) duplicates: Arc<Duplicates>,
    pub(crate) freeing: Freeing,
}

impl Shared {
    /// Of a pool on `store` with a budget of `memory` bytes, whose log ends at `end`.
    pub(crate) fn new(store: Arc<Store>, memory: u64, end: Intent, notes: Notes) -> Self {
        let (pins, duplicates) = (Arc::new(Pins::default()), Arc::new(Duplicates::new(memory)));
        Self {
            accounts: Accounts::default(),
            intent: IntentLog::new(&store, end, notes),
            damage: Damage::new(&store),
            freeing: Freeing::new(&store, &duplicates, &pins),
            pins,
            duplicates,
            store,
        }
    }
}
