//! Stripes on their way to the devices, which are in memory until all that takes part has answered.

use crate::member::{Member, Written};
use crate::segments::{Segment, StripeImage};
use larder_device::{AlignedBuf, DeviceError, Outcome, Pending};
use larder_format::SlotIndex;
use larder_sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// A stripe that was submitted, and what must be waited for.
pub struct InFlight {
    pub(crate) segment: Arc<Segment>,
    pub(crate) stripe: Arc<StripeImage>,
    pub(crate) writes: Vec<StripeWrite>,
    pub(crate) bytes: u64,
}

impl InFlight {
    /// Whether a column is not, or not wholly, on `member`, which has it now.
    pub(crate) fn is_lost(&self, column: usize, member: &Arc<Member>) -> bool {
        let mut mine =
            self.writes.iter().filter(|write| write.column == column && Arc::ptr_eq(&write.member, member));
        !member.is_online() || mine.next().is_none_or(|first| !first.done) || mine.any(|write| !write.done)
    }
}

/// A write of a stripe, which can be done again as long as the stripe is in memory.
pub(crate) struct StripeWrite {
    pub(crate) column: usize,
    pub(crate) member: Arc<Member>,
    /// Target slot, and the offset in it.
    pub(crate) slot: SlotIndex,
    pub(crate) within: u32,
    pub(crate) data: Arc<AlignedBuf>,
    pub(crate) pending: Option<Pending<Outcome>>,
    pub(crate) done: bool,
    /// The device is there and did not take it.
    pub(crate) refused: Option<DeviceError>,
}

impl StripeWrite {
    pub(crate) fn start(
        column: usize,
        member: Arc<Member>,
        slot: SlotIndex,
        within: u32,
        data: Arc<AlignedBuf>,
    ) -> Self {
        let mut write =
            Self { column, member, slot, within, data, pending: None, done: false, refused: None };
        write.start_again(slot);
        write
    }

    pub(crate) fn start_again(&mut self, slot: SlotIndex) {
        (self.slot, self.done, self.refused) = (slot, false, None);
        self.pending = self.member.write(self.member.slot_offset(slot, self.within), Arc::clone(&self.data));
    }

    pub(crate) fn complete(&mut self) {
        if let Some(pending) = self.pending.take() {
            match self.member.complete_write(Some(pending)) {
                Written::Done => self.done = true,
                Written::Refused(error) => self.refused = Some(error),
                Written::Lost => {}
            }
        }
    }
}

/// Stripes on their way to the devices.
#[derive(Default)]
pub struct InFlightQueue {
    pub(crate) queue: Mutex<(VecDeque<InFlight>, u64)>,
    /// Held while stripes are waited for, so that nobody overtakes a stripe that another thread has taken out.
    pub(crate) completing: Mutex<()>,
}
