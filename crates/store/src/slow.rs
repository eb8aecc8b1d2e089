//! Devices that keep their callers waiting: when reads go another way, and when a device is given up.
//!
//! Three things are told apart:
//! - A read that is **late**: it has not come after a small multiple of what this device's peers take for one.
//!   Its data is then also read from elsewhere ([`crate::hedge`]), whichever comes first; this is the
//!   hedged request of Dean and Barroso, "The Tail at Scale" (2013). As there, few reads may be hedged, so that a
//!   pool that is merely busy does not make itself twice the work.
//! - A device that is **slow**: over some dozen reads it took ten times as long as its peers, or it owes an answer
//!   to a late read. Reads avoid it as far as the layout gives that; now and then it is sent one beside, which nobody
//!   waits for, so that it is seen when it is well again. It is written as before, and never faulted for being slow.
//! - A request that is **overdue**: the device took it up, or answered nothing else, for as long as the property
//!   `device_timeout` says. Waiting in a queue that moves does not count. A write or flush that is overdue faults
//!   the member, and its device is abandoned; a read that is overdue has failed.
//!
//! A device that hung and was abandoned may still perform what it was sent, at any time. So it comes back only by
//! being opened anew, which its lock forbids as long as anything is under way.

use crate::latency::{LATE_LEAST, LATE_MOST};
use crate::member::Member;
use crate::members::Members;
use crate::segments::Segment;
use crate::store::Store;
use larder_device::{DeviceError, Outcome, Pending};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Of so many reads that avoid a device, one is followed by one that tries it ...
const PROBE: u32 = 16;
/// ... with so many bytes, another place each time: a disk keeps at hand what it gave before.
const PROBE_LEN: u32 = 64 << 10;
/// A device that owes more than this many answers is not tried.
const MOST_OWED: u32 = 4;
/// Turns from one comparison with the peers to the next.
const REVIEW: u32 = 64;
/// Waiting is cut into so many parts; after each it is seen whether the device answered anything.
const ROUNDS: u32 = 4;

/// "1.5 ms", "40 ms", "3.0 s": two digits are enough.
fn tell(span: Duration) -> String {
    let ms = span.as_secs_f64() * 1e3;
    match ms {
        ms if ms >= 1e4 => format!("{:.0} s", ms / 1e3),
        ms if ms >= 1e3 => format!("{:.1} s", ms / 1e3),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

/// Use of a device for a read.
#[derive(PartialEq, Eq)]
enum Turn {
    /// Reads.
    Read,
    /// Avoid if possible.
    Avoid,
    /// Probe it without waiting.
    Probe(u32),
}

impl Members {
    /// Use of this member for a read that could go elsewhere.
    fn turn(&self, member: &Member) -> Turn {
        let latency = &member.latency;
        let turn = latency.turn.fetch_add(1, Relaxed);
        latency.save();
        if turn.is_power_of_two() || turn.is_multiple_of(REVIEW) {
            let peers = self.of_group(member.group);
            let peers = peers.filter(|peer| peer.index != member.index && peer.is_online());
            let typical = peers.filter_map(|peer| peer.meter().typical_read()).collect();
            latency.review(member.meter().typical_read(), typical);
        }
        let owed = member.meter().owed();
        if !member.is_online() {
            Turn::Avoid
        } else if owed == 0 && !latency.slow.load(Relaxed) {
            Turn::Read
        } else if turn.is_multiple_of(PROBE) && owed <= MOST_OWED {
            Turn::Probe(turn / PROBE)
        } else {
            Turn::Avoid
        }
    }
}

impl Store {
    /// Whether a read that could go elsewhere should go to column `column` of a segment.
    pub fn is_prompt(&self, segment: &Segment, column: usize) -> bool {
        let member = self.members.get(segment.slots[column].device);
        match self.members.turn(&member) {
            Turn::Read => true,
            Turn::Avoid => false,
            Turn::Probe(number) => {
                let offset = number % (member.slot_size / PROBE_LEN).max(1) * PROBE_LEN;
                let at = member.slot_offset(segment.slots[column].index(), offset);
                let len = PROBE_LEN.min(member.slot_size) as usize;
                // It owes the answer from the start, so not many are under way at once.
                member.read(at, len).iter().for_each(Pending::note_late);
                false
            }
        }
    }
}

impl Member {
    /// Whether reads avoid it as far as they can: it takes ten times as long as its peers, or it owes an answer.
    pub fn is_slow(&self) -> bool {
        self.latency.slow.load(Relaxed) || self.meter().silence() > LATE_MOST
    }

    /// Why it is slow, as text.
    pub fn why_slow(&self) -> Option<String> {
        let silence = self.meter().silence();
        if silence > LATE_MOST {
            return Some(format!("has not answered for {}", tell(silence)));
        }
        if !self.latency.slow.load(Relaxed) {
            return None;
        }
        let peers = Duration::from_nanos(self.latency.peers_ns.load(Relaxed));
        let own = self.meter().typical_read()?;
        Some(format!("slow: takes {} for a read, others {}", tell(own), tell(peers)))
    }

    /// Waits for a request as long as the device does something: gives it back after `silence` in which it was under
    /// way, or nothing else was answered either, and when its device is abandoned meanwhile.
    pub fn outwait(
        &self,
        mut pending: Pending<Outcome>,
        silence: Duration,
    ) -> Result<Outcome, Pending<Outcome>> {
        let mut quiet = 0;
        loop {
            let round = if self.is_given_up() { Duration::ZERO } else { silence / ROUNDS };
            let (begun, answered) = (pending.has_begun(), self.meter().answered());
            pending = match pending.wait_for(round) {
                Ok(outcome) => return Ok(outcome),
                Err(pending) => pending,
            };
            let moved = !begun && self.meter().answered() != answered;
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet >= ROUNDS || pending.hangs() || self.is_given_up() {
                return Err(pending);
            }
        }
    }

    /// Timeout of a read when there is no other way: the rest of the device's timeout when it has been silent already,
    /// so that not each of many reads waits it out.
    pub fn patience(&self) -> Duration {
        self.timeout().saturating_sub(self.meter().silence()).max(LATE_LEAST)
    }

    /// Waits for a read until it is overdue.
    ///
    /// # Errors
    /// The device's error; [`DeviceError::Overdue`].
    pub fn wait(&self, pending: Pending<Outcome>) -> Outcome {
        self.wait_at_most(pending, self.patience())
    }

    /// Waits for one of many reads, which all can be repeated one by one: gives up soon.
    ///
    /// # Errors
    /// As [`Member::wait`].
    pub fn wait_in_bulk(&self, pending: Pending<Outcome>) -> Outcome {
        self.wait_at_most(pending, self.patience().min(LATE_MOST.saturating_sub(self.meter().silence())))
    }

    fn wait_at_most(&self, pending: Pending<Outcome>, silence: Duration) -> Outcome {
        self.outwait(pending, silence).unwrap_or_else(|late| {
            late.note_late();
            Err(DeviceError::Overdue)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_two_digits() {
        let told =
            [450_u64, 12_300, 999_000, 1_500_000, 15_000_000].map(|us| tell(Duration::from_micros(us)));
        assert_eq!(told, ["0.5 ms", "12 ms", "999 ms", "1.5 s", "15 s"]);
    }
}
