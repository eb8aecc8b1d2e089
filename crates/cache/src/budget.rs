//! A limit to what is written to the cache's devices, so that they last.
//!
//! A share of the devices' size in any 24 hours: what an idle day leaves is there the day after, and no more. Filling a
//! slot for the first time costs nothing, unless nothing may be written at all. While more than half is left, all that
//! is wanted is written. Below that only blocks that save the most disk time a byte, the more so the less is left, and
//! the last tenth is for metadata.

/// Seconds of a cell; any day lies within `CELLS` of them.
const CELL_SECONDS: u64 = 1800;
const CELLS: usize = 49;
/// Shares of a day's budget that are left.
const SHORT: f64 = 0.5;
const METADATA_ONLY: f64 = 0.1;
/// Blocks over which the mean of what they save is taken.
const MEAN_OF: f64 = 1024.0;

/// A day's writes, and the disks whose time they save.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriteBudget {
    /// Bytes a day as a share of all slots.
    pub share: f64,
    /// Microseconds until a disk begins to answer.
    pub seek_us: f64,
    /// Bytes a second of a disk that has begun.
    pub disk_rate: f64,
}

impl Default for WriteBudget {
    fn default() -> Self {
        Self { share: 0.3, seek_us: 10_000.0, disk_rate: 150e6 }
    }
}

#[derive(Debug)]
pub(crate) struct Budget {
    rule: WriteBudget,
    /// Bytes of the slots that there are, and the most that there were.
    size: u64,
    most: u64,
    /// Bytes of the first fill that were written.
    filled: u64,
    cells: [u64; CELLS],
    /// Of the latest cell.
    cell: u64,
    /// Disk time a byte, in microseconds.
    mean: f64,
}

impl Budget {
    pub fn new(rule: WriteBudget) -> Self {
        Self { rule, size: 0, most: 0, filled: 0, cells: [0; CELLS], cell: 0, mean: 0.0 }
    }

    pub fn set_share(&mut self, share: f64) {
        self.rule.share = share;
    }

    pub fn set_size(&mut self, bytes: u64) {
        self.size = bytes;
        self.most = self.most.max(bytes);
    }

    /// Microseconds of a disk's time that a cached block saves each time it is read.
    pub fn saved_us(&self, bytes: u64) -> f64 {
        self.rule.seek_us + bytes as f64 / self.rule.disk_rate * 1e6
    }

    /// Bytes of a day.
    pub fn daily(&self) -> u64 {
        (self.size as f64 * self.rule.share) as u64
    }

    /// Bytes of the last 24 hours, up to half an hour more.
    pub fn spent(&mut self, now: u64) -> u64 {
        // A clock that goes back stands still here.
        let cell = (now / CELL_SECONDS).max(self.cell);
        for passed in self.cell + 1..=cell.min(self.cell + CELLS as u64) {
            self.cells[(passed % CELLS as u64) as usize] = 0;
        }
        self.cell = cell;
        self.cells.iter().sum()
    }

    /// Whether so many bytes may be written at all.
    pub fn has(&mut self, now: u64, bytes: u64) -> bool {
        let paid = bytes.saturating_sub(self.free());
        paid == 0 || self.spent(now) + paid <= self.daily()
    }

    pub fn is_short(&mut self, now: u64) -> bool {
        self.free() == 0 && self.left(now) < SHORT
    }

    /// Whether a block is worth its bytes, at what is left.
    pub fn is_worth(&mut self, now: u64, bytes: u64, is_metadata: bool) -> bool {
        let saved = self.saved_us(bytes) / bytes.max(1) as f64;
        self.mean += (saved - self.mean) / if self.mean == 0.0 { 1.0 } else { MEAN_OF };
        if !self.has(now, bytes) {
            return false;
        }
        if is_metadata || !self.is_short(now) {
            return true;
        }
        let left = self.left(now);
        // A thousandth is for rounding: where all blocks are alike, none is below the mean.
        left >= METADATA_ONLY && saved * 1.001 >= self.mean * (SHORT - left) / (SHORT - METADATA_ONLY)
    }

    pub fn spend(&mut self, now: u64, bytes: u64) {
        let free = bytes.min(self.free());
        self.filled += free;
        _ = self.spent(now);
        self.cells[(self.cell % CELLS as u64) as usize] += bytes - free;
    }

    /// Bytes that were filled before a restart.
    pub fn note_filled(&mut self, bytes: u64) {
        self.filled = (self.filled + bytes).min(self.most);
    }

    fn free(&self) -> u64 {
        if self.rule.share == 0.0 {
            return 0;
        }
        self.most.saturating_sub(self.filled)
    }

    fn left(&mut self, now: u64) -> f64 {
        let daily = self.daily();
        daily.saturating_sub(self.spent(now)) as f64 / daily.max(1) as f64
    }
}
