//! Counts of all deeds, for the summary.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Counts of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pools that were made, by layout.
    pub pools: BTreeMap<&'static str, u64>,
    /// Operations on files and datasets, by kind.
    pub operations: BTreeMap<String, u64>,
    /// Faults and changes of devices, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Daemons killed.
    pub kills: u64,
    /// Exports, each with an import.
    pub exports: u64,
    /// Times that all was compared.
    pub comparisons: u64,
    /// Bytes that were written into files.
    pub written: u64,
    /// Bytes of files that were compared.
    pub compared: u64,
    /// Bytes that resilvers and scrubs wrote anew.
    pub healed: u64,
    /// Files of which something was lost beyond tolerance; all of them were named.
    pub lost: u64,
    /// Files that a repair then called whole, and which were.
    pub saved: u64,
}

impl Tally {
    /// One more operation of that kind.
    pub fn operation(&mut self, kind: &str) {
        *self.operations.entry(kind.to_owned()).or_default() += 1;
    }

    /// One more fault.
    pub fn fault(&mut self, kind: &str) {
        *self.faults.entry(kind.to_owned()).or_default() += 1;
    }

    /// Operations of all kinds.
    pub fn all_operations(&self) -> u64 {
        self.operations.values().sum()
    }

    /// Faults of all kinds.
    pub fn all_faults(&self) -> u64 {
        self.faults.values().sum()
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "pools": self.pools,
            "operations": self.all_operations(),
            "operations_by_kind": self.operations,
            "kills": self.kills,
            "exports": self.exports,
            "faults": self.all_faults(),
            "faults_by_kind": self.faults,
            "comparisons": self.comparisons,
            "written_bytes": self.written,
            "compared_bytes": self.compared,
            "healed_bytes": self.healed,
            "lost_files": self.lost,
            "saved_files": self.saved,
        })
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        for (kind, count) in &other.pools {
            *self.pools.entry(kind).or_default() += count;
        }
        for (kind, count) in &other.operations {
            *self.operations.entry(kind.clone()).or_default() += count;
        }
        for (kind, count) in &other.faults {
            *self.faults.entry(kind.clone()).or_default() += count;
        }
        self.kills += other.kills;
        self.exports += other.exports;
        self.comparisons += other.comparisons;
        self.written += other.written;
        self.compared += other.compared;
        self.healed += other.healed;
        self.lost += other.lost;
        self.saved += other.saved;
    }
}
