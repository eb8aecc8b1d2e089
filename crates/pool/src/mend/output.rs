//! What a batch of rows gives to be written, and what is being written.
//!
//! Rows lie one behind the other, so what a device lacks does as well: columns of several rows are put next to each
//! other where they are copied or computed, and go out as one write.

use crate::mend::Tally;
use crate::mend::row::Row;
use larder_device::{AlignedBuf, DeviceError, Outcome, Pending};
use larder_format::{DeviceIndex, DeviceOffset, SlotIndex};
use larder_store::member::{Member, Written};
use larder_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Columns of a row that are wanted, each with where it goes.
pub(super) type Places<'a> = Vec<(usize, &'a mut [u8])>;

/// A column of rows that lie one behind the other.
pub(super) struct Run {
    pub column: usize,
    /// It begins and ends here, from the start of the slot.
    offset: u32,
    end: u32,
    buffer: AlignedBuf,
    /// The rows, by their number in the batch, with the bytes of each.
    rows: Vec<(usize, usize)>,
}

impl Run {
    /// Room for what is `wanted` of each row: runs of one row each, or longer ones of up to `longest` bytes.
    pub(super) fn plan(rows: &[Row], wanted: &[Vec<usize>], longest: u32) -> Vec<Self> {
        let columns: BTreeSet<usize> = wanted.iter().flatten().copied().collect();
        let mut runs: Vec<Self> = Vec::new();
        for column in columns {
            let first = runs.len();
            for (i, row) in rows.iter().enumerate().filter(|(i, _)| wanted[*i].contains(&column)) {
                let range = row.range();
                let joins = |run: &&mut Self| run.end == range.start && range.end - run.offset <= longest;
                let place = (i, range.len());
                if let Some(run) = runs[first..].last_mut().filter(joins) {
                    run.rows.push(place);
                    run.end = range.end;
                } else {
                    let (offset, end, buffer) = (range.start, range.end, AlignedBuf::stale(0));
                    runs.push(Self { column, offset, end, buffer, rows: vec![place] });
                }
            }
        }
        for run in &mut runs {
            run.buffer = AlignedBuf::stale((run.end - run.offset) as usize);
        }
        runs
    }

    /// Where the columns of each of `count` rows go.
    pub(super) fn places(runs: &mut [Self], count: usize) -> Vec<Mutex<Places<'_>>> {
        let mut places: Vec<Places<'_>> = (0..count).map(|_| Vec::new()).collect();
        for run in runs {
            let mut rest: &mut [u8] = &mut run.buffer;
            for &(row, len) in &run.rows {
                let (place, behind) = rest.split_at_mut(len);
                places[row].push((run.column, place));
                rest = behind;
            }
        }
        places.into_iter().map(Mutex::new).collect()
    }

    /// What is to be written, by what is `given` of each row: offsets, bytes, and of how many rows they are.
    pub(super) fn given(self, given: &[BTreeSet<usize>]) -> Vec<(u32, AlignedBuf, u64)> {
        if self.rows.iter().all(|(row, _)| given[*row].contains(&self.column)) {
            return vec![(self.offset, self.buffer, self.rows.len() as u64)];
        }
        let (mut at, mut pieces) = (0, Vec::new());
        for &(row, len) in &self.rows {
            if given[row].contains(&self.column) {
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
pub(super) struct Writes {
    queue: VecDeque<Write>,
    bytes: u64,
    /// Columns made right, by device.
    healed: BTreeMap<DeviceIndex, (Arc<Member>, u64)>,
    refusals: Vec<Refusal>,
}

/// A write that a place did not take.
pub(super) struct Refusal {
    pub member: Arc<Member>,
    pub column: usize,
    pub slot: SlotIndex,
    pub error: DeviceError,
    /// Of so many rows.
    pub rows: u64,
    /// What was there was wrong before.
    pub heals: bool,
}

struct Write {
    member: Arc<Member>,
    column: usize,
    slot: SlotIndex,
    at: DeviceOffset,
    data: Arc<AlignedBuf>,
    /// Of so many rows.
    rows: u64,
    /// It was wrong before: reading it once more must prove it.
    heals: bool,
    stage: Stage,
}

enum Stage {
    Writing(Pending<Outcome>),
    Proving(Pending<Outcome>),
}

impl Writes {
    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Columns made right since this was asked last, by device.
    pub(super) fn healed(&mut self) -> impl Iterator<Item = (Arc<Member>, u64)> + use<> {
        std::mem::take(&mut self.healed).into_values()
    }

    /// What places did not take since this was asked last.
    pub(super) fn refusals(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refusals)
    }

    /// Submits a write to a column's slot, `offset` bytes into it; what it `heals` is read once more when it has
    /// settled.
    pub(super) fn submit(
        &mut self,
        member: &Arc<Member>,
        (column, slot, offset): (usize, SlotIndex, u32),
        data: Arc<AlignedBuf>,
        rows: u64,
        heals: bool,
        tally: &mut Tally,
    ) {
        let at = member.slot_offset(slot, offset);
        let Some(pending) = member.write(at, Arc::clone(&data)) else {
            tally.refused += rows;
            return;
        };
        self.bytes += data.len() as u64;
        let (member, stage) = (Arc::clone(member), Stage::Writing(pending));
        self.queue.push_back(Write { member, column, slot, at, data, rows, heals, stage });
    }

    /// Waits for the oldest writes until at most `limit` bytes are under way.
    pub(super) fn settle(&mut self, limit: u64, tally: &mut Tally) {
        while self.bytes > limit
            && let Some(Write { member, column, slot, at, data, rows, heals, stage }) = self.queue.pop_front()
        {
            let len = data.len() as u64;
            let held = match stage {
                Stage::Writing(pending) => {
                    let written = member.settle_write(Some(pending));
                    if let Written::Refused(error) = &written {
                        let error = error.clone();
                        let member = Arc::clone(&member);
                        self.refusals.push(Refusal { member, column, slot, error, rows, heals });
                    }
                    let taken = written == Written::Done;
                    tally.written += if taken { len } else { 0 };
                    let proof = (taken && heals).then(|| member.read(at, data.len())).flatten();
                    if let Some(pending) = proof {
                        let stage = Stage::Proving(pending);
                        self.queue.push_back(Write { member, column, slot, at, data, rows, heals, stage });
                        continue;
                    }
                    taken && !heals
                }
                Stage::Proving(pending) => match member.wait(pending) {
                    Ok(found) if found[..] == data[..] => {
                        tally.repaired += len;
                        self.healed.entry(member.index).or_insert((member, 0)).1 += rows;
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
            tally.refused += if held { 0 } else { rows };
            self.bytes -= len;
        }
    }
}
