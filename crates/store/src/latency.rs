//! Read latency of a member beside its peers', and when a read is late; see [`crate::slow`].

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A read is late after this many times the peers' latency.
pub(crate) const LATE: u32 = 8;
/// But not sooner than this: threads wait for processors too.
pub(crate) const LATE_LEAST: Duration = Duration::from_millis(10);
/// And not later than this. Reads of many at once wait as long for a device that answers nothing.
pub const LATE_MOST: Duration = Duration::from_secs(1);
/// A device is slow when its reads take this many times as long as its peers' ...
pub(crate) const SLOW: u32 = 10;
/// ... and well again below that.
pub(crate) const WELL: u32 = 5;
/// A device this fast is never slow, however fast its peers are.
pub(crate) const FAST_ENOUGH: Duration = Duration::from_millis(4);
/// One of this many reads may be hedged on the average ...
pub(crate) const HEDGE_SHARE: u32 = 8;
/// ... and this many of them one after the other.
pub(crate) const HEDGES_IN_A_ROW: u32 = 32;

/// Read latency of a member, compared with its peers'.
#[derive(Debug)]
pub struct LatencyTracker {
    /// When a read is late, ns.
    pub(crate) late_ns: AtomicU64,
    /// Latency of its peers' reads, ns; 0 if unknown.
    pub(crate) peers_ns: AtomicU64,
    pub(crate) slow: AtomicBool,
    pub(crate) turn: AtomicU32,
    /// [`HEDGE_SHARE`] of these pay for a hedged read.
    saved: AtomicU32,
}

impl Default for LatencyTracker {
    fn default() -> Self {
        Self {
            late_ns: AtomicU64::new(nanos(LATE_MOST)),
            peers_ns: AtomicU64::new(0),
            slow: AtomicBool::new(false),
            turn: AtomicU32::new(0),
            saved: AtomicU32::new(HEDGE_SHARE * HEDGES_IN_A_ROW),
        }
    }
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl LatencyTracker {
    /// When a read that is sent now will be late; as late as can be when too many were of late.
    pub fn late(&self) -> Duration {
        let rich = self.saved.load(Relaxed) >= HEDGE_SHARE;
        if rich { Duration::from_nanos(self.late_ns.load(Relaxed)) } else { LATE_MOST }
    }

    /// A read is about to be sent, here or elsewhere: it saves for hedging.
    pub(crate) fn save(&self) {
        let saved = self.saved.load(Relaxed);
        if saved < HEDGE_SHARE * HEDGES_IN_A_ROW {
            self.saved.store(saved + 1, Relaxed);
        }
    }

    /// A read was late and is hedged.
    pub fn spend(&self) {
        self.saved.store(self.saved.load(Relaxed).saturating_sub(HEDGE_SHARE), Relaxed);
    }

    /// Compares what a read takes here with what it takes at each of the peers.
    pub(crate) fn review(&self, own: Option<Duration>, mut peers: Vec<Duration>) {
        peers.sort_unstable();
        let Some(&peer) = peers.get(peers.len().saturating_sub(1) / 2) else { return };
        self.peers_ns.store(nanos(peer), Relaxed);
        self.late_ns.store(nanos((peer * LATE).clamp(LATE_LEAST, LATE_MOST)), Relaxed);
        let Some(own) = own else { return };
        let times = if self.slow.load(Relaxed) { WELL } else { SLOW };
        self.slow.store(own > peer * times && own > FAST_ENOUGH, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_device_is_slow_at_ten_times_what_half_of_its_peers_take_and_well_at_five() {
        let latency = LatencyTracker::default();
        let review = |own, peers: &[u64]| {
            latency.review(Some(ms(own)), peers.iter().map(|&peer| ms(peer)).collect());
            latency.slow.load(Relaxed)
        };
        assert!(!review(500, &[]), "nobody to compare with");
        assert!(!review(50, &[5, 5, 5]));
        assert!(review(51, &[5, 5, 900]));
        assert!(review(26, &[5]));
        assert!(!review(25, &[5]));
        assert!(!review(4, &[0, 0]), "fast enough");
    }

    #[test]
    fn reads_are_late_after_a_multiple_of_what_peers_take_within_bounds() {
        let latency = LatencyTracker::default();
        assert_eq!(latency.late(), LATE_MOST);
        for (peer, late) in [(0, LATE_LEAST), (8, ms(64)), (500, LATE_MOST)] {
            latency.review(None, vec![ms(peer)]);
            assert_eq!(latency.late(), late);
        }
    }

    #[test]
    fn a_few_reads_in_a_row_are_hedged_soon_and_then_one_in_eight() {
        let latency = LatencyTracker::default();
        latency.review(None, vec![ms(1)]);
        let hedge = |_: &u32| {
            latency.save();
            let soon = latency.late() == LATE_LEAST;
            if soon {
                latency.spend();
            }
            soon
        };
        let hedged = (0..1000).filter(hedge).count();
        assert!((140..=170).contains(&hedged), "{hedged}");
    }
}
