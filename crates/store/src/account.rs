//! Usage of a group's slots by kind; together they are all of its slots.

use crate::store::Store;
use larder_format::GroupIndex;

/// The slots of one group by use, and what lives in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// The group.
    pub group: GroupIndex,
    /// Slots in all.
    pub slots: u64,
    /// Slots that can be written. The reserve is part of them.
    pub free: u64,
    /// Slots of segments of records.
    pub data: u64,
    /// Slots of segments of nodes, of the block map, the tables and the log.
    pub metadata: u64,
    /// Slots of segments without anything live, which wait until two more commits are durable.
    pub waiting: u64,
    /// Footprints of live records, bytes, before replication and parity.
    pub data_bytes: u64,
    /// Footprints of everything else that is live.
    pub metadata_bytes: u64,
}

impl Store {
    /// The account of every group.
    pub fn accounts(&self) -> Vec<Account> {
        let core = self.core.lock();
        let account = |group: &crate::space::GroupSpace| {
            let (taken, slots) = group.all_slots_of_devices();
            let usage = core.entries.usage(group.index);
            Account {
                group: group.index,
                slots,
                free: slots - taken,
                data: usage.data.0,
                metadata: usage.metadata.0,
                waiting: usage.freed,
                data_bytes: usage.data.1,
                metadata_bytes: usage.metadata.1,
            }
        };
        core.groups.values().map(account).collect()
    }
}
