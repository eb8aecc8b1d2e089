//! Writes of a batch of stripes: those that it gives, and those in flight.
//!
//! Stripes lie one behind the other, so the columns that a device lacks do as well: those of several stripes are put
//! next to each other where they are copied or computed, and go out as one write.

use crate::reconstruct::Tally;
use crate::reconstruct::stripe::Stripe;
use larder_device::{AlignedBuf, DeviceError, Outcome, Pending};
use larder_format::{DeviceIndex, DeviceOffset, SlotIndex};
use larder_store::member::{Member, Written};
use larder_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Columns of a stripe that are wanted, each with where it goes.
pub(super) type ColumnBuffers<'a> = Vec<(usize, &'a mut [u8])>;

/// A column of stripes that lie one behind the other.
pub(super) struct Run {
    pub column: usize,
    /// It begins and ends here, from the start of the slot.
    offset: u32,
    end: u32,
    buffer: AlignedBuf,
    /// The stripes, by their number in the batch, with the bytes of each.
    stripes: Vec<(usize, usize)>,
}

impl Run {
    /// Room for what is `wanted` of each stripe: runs of one stripe each, or longer ones of up to `longest` bytes.
    pub(super) fn plan(stripes: &[Stripe], wanted: &[Vec<usize>], longest: u32) -> Vec<Self> {
        let columns: BTreeSet<usize> = wanted.iter().flatten().copied().collect();
        let mut runs: Vec<Self> = Vec::new();
        for column in columns {
            let first = runs.len();
            for (i, stripe) in stripes.iter().enumerate().filter(|(i, _)| wanted[*i].contains(&column)) {
                let range = stripe.range();
                let joins = |run: &&mut Self| run.end == range.start && range.end - run.offset <= longest;
                let place = (i, range.len());
                if let Some(run) = runs[first..].last_mut().filter(joins) {
                    run.stripes.push(place);
                    run.end = range.end;
                } else {
                    let (offset, end, buffer) = (range.start, range.end, AlignedBuf::stale(0));
                    runs.push(Self { column, offset, end, buffer, stripes: vec![place] });
                }
            }
        }
        for run in &mut runs {
            run.buffer = AlignedBuf::stale((run.end - run.offset) as usize);
        }
        runs
    }

    /// Where the columns of each of `count` stripes go.
    pub(super) fn places(runs: &mut [Self], count: usize) -> Vec<Mutex<ColumnBuffers<'_>>> {
        let mut places: Vec<ColumnBuffers<'_>> = (0..count).map(|_| Vec::new()).collect();
        for run in runs {
            let mut rest: &mut [u8] = &mut run.buffer;
            for &(stripe, len) in &run.stripes {
                let (place, behind) = rest.split_at_mut(len);
                places[stripe].push((run.column, place));
                rest = behind;
            }
        }
        places.into_iter().map(Mutex::new).collect()
    }

    /// Pieces to be written, by the columns `given` of each stripe: offset, bytes, and number of stripes of each.
    pub(super) fn given(self, given: &[BTreeSet<usize>]) -> Vec<(u32, AlignedBuf, u64)> {
        if self.stripes.iter().all(|(stripe, _)| given[*stripe].contains(&self.column)) {
            return vec![(self.offset, self.buffer, self.stripes.len() as u64)];
        }
        let (mut at, mut pieces) = (0, Vec::new());
        for &(stripe, len) in &self.stripes {
            if given[stripe].contains(&self.column) {
                let piece = AlignedBuf::padded(&self.buffer[at..at + len]);
                pieces.push((self.offset + at as u32, piece, 1));
            }
            at += len;
        }
        pieces
    }
}

/// Columns that are being written, the oldest first.
#[derive(Default)]
pub(super) struct WriteQueue {
    queue: VecDeque<Write>,
    bytes: u64,
    /// Columns made right, by device.
    repaired: BTreeMap<DeviceIndex, (Arc<Member>, u64)>,
    refusals: Vec<Refusal>,
}

/// A write that a place did not take.
pub(super) struct Refusal {
    pub member: Arc<Member>,
    pub column: usize,
    pub slot: SlotIndex,
    pub error: DeviceError,
    /// Of so many stripes.
    pub stripes: u64,
    /// The data there was wrong before.
    pub repairs: bool,
}

struct Write {
    member: Arc<Member>,
    column: usize,
    slot: SlotIndex,
    at: DeviceOffset,
    data: Arc<AlignedBuf>,
    /// Of so many stripes.
    stripes: u64,
    /// It was wrong before: reading it once more must prove it.
    repairs: bool,
    stage: WriteStage,
}

enum WriteStage {
    Writing(Pending<Outcome>),
    Proving(Pending<Outcome>),
}

impl WriteQueue {
    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Columns made right since this was asked last, by device.
    pub(super) fn repaired(&mut self) -> impl Iterator<Item = (Arc<Member>, u64)> + use<> {
        std::mem::take(&mut self.repaired).into_values()
    }

    /// Writes that were refused since the last call.
    pub(super) fn refusals(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refusals)
    }

    /// Submits a write to a column's slot, `offset` bytes into it; what it `repairs` is read once more when it has
    /// settled.
    pub(super) fn submit(
        &mut self,
        member: &Arc<Member>,
        (column, slot, offset): (usize, SlotIndex, u32),
        data: Arc<AlignedBuf>,
        stripes: u64,
        repairs: bool,
        tally: &mut Tally,
    ) {
        let at = member.slot_offset(slot, offset);
        let Some(pending) = member.write(at, Arc::clone(&data)) else {
            tally.refused += stripes;
            return;
        };
        self.bytes += data.len() as u64;
        let (member, stage) = (Arc::clone(member), WriteStage::Writing(pending));
        self.queue.push_back(Write { member, column, slot, at, data, stripes, repairs, stage });
    }

    /// Waits for the oldest writes until at most `limit` bytes are under way.
    pub(super) fn complete(&mut self, limit: u64, tally: &mut Tally) {
        while self.bytes > limit
            && let Some(Write { member, column, slot, at, data, stripes, repairs, stage }) =
                self.queue.pop_front()
        {
            let len = data.len() as u64;
            let held = match stage {
                WriteStage::Writing(pending) => {
                    let written = member.complete_write(Some(pending));
                    if let Written::Refused(error) = &written {
                        let error = error.clone();
                        let member = Arc::clone(&member);
                        self.refusals.push(Refusal { member, column, slot, error, stripes, repairs });
                    }
                    let taken = written == Written::Done;
                    tally.written += if taken { len } else { 0 };
                    let proof = (taken && repairs).then(|| member.read(at, data.len())).flatten();
                    if let Some(pending) = proof {
                        let stage = WriteStage::Proving(pending);
                        self.queue.push_back(Write {
                            member,
                            column,
                            slot,
                            at,
                            data,
                            stripes,
                            repairs,
                            stage,
                        });
                        continue;
                    }
                    taken && !repairs
                }
                WriteStage::Proving(pending) => match member.wait(pending) {
                    Ok(found) if found[..] == data[..] => {
                        tally.repaired += len;
                        self.repaired.entry(member.index).or_insert((member, 0)).1 += stripes;
                        true
                    }
                    Ok(_) => {
                        member.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
                        false
                    }
                    Err(_) => {
                        member.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                        false
                    }
                },
            };
            tally.refused += if held { 0 } else { stripes };
            self.bytes -= len;
        }
    }
}
