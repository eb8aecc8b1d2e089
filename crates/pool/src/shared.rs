//! Parts shared by a pool, its datasets and its operations: those that know nothing of the pool.

use crate::accounts::Accounts;
use crate::duplicates::Duplicates;
use crate::freeing::Freeing;
use crate::intent_log::IntentLog;
use crate::ledger::Damage;
use crate::pins::Pins;
use larder_store::{DEFAULT_MEMORY, Store};
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
            store,
        }
    }
}
