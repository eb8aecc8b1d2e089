//! Slots that are out of use, and segments with a column that moved; see [`crate::bad_slots`].

use larder_format::segment::Slot;
use larder_format::tables::BadSlotRecord;
use larder_format::{CommitId, SegmentId};
use larder_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Outcome for a slot that refused a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retired {
    /// Its column lies elsewhere now.
    Moved,
    /// It is not given to any segment any more; the column, of the log, is where it was.
    Noted,
    /// Nothing on this device took the column, or too many slots have refused: it is the device.
    Failed,
}

/// Slots that are out of use.
#[derive(Default)]
pub struct BadSlots {
    /// Held while a column is brought elsewhere.
    pub(crate) turn: Mutex<()>,
    pub(crate) known: Mutex<Known>,
}

#[derive(Default)]
pub(crate) struct Known {
    pub(crate) slots: BTreeMap<Slot, BadSlotRecord>,
    /// The commits that were open when slots were retired.
    pub(crate) retired: BTreeMap<Slot, CommitId>,
    /// Not in the tables yet; whether another slot of the device took what this one refused.
    pub(crate) unsaved: BTreeMap<Slot, bool>,
    /// To be removed from the tables.
    pub(crate) removed: BTreeSet<Slot>,
    /// Segments that the tables do not have where they are.
    pub(crate) moved: BTreeSet<SegmentId>,
}
