//! Assumptions that figures rest on. All are told, and can be set.

use crate::disk::{Disk, Kind};
use serde::Serialize;

/// Hours of a year.
pub const HOURS: f64 = 8766.0;

/// See the module's text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Assumptions {
    /// Part of disks that turn which fail in a year.
    pub afr_hdd: f64,
    /// Part of SSDs which do.
    pub afr_ssd: f64,
    /// Factor by which the others fail more often for each disk that is lost.
    pub correlated: f64,
    /// Bits read for each bad sector.
    pub ure: f64,
    /// Hours until a new disk is in the place of a lost one; none where a spare waits.
    pub replace_hours: f64,
    /// Part of the space that is in use: rebuilds copy only that.
    pub full: f64,
    /// Bytes a second that are written to a new disk; 0: half of its stream, as the daemon's budget gives.
    pub rebuild_rate: f64,
    /// Bytes a second that the machine moves, of all disks together.
    pub host: f64,
    /// Scrubs a year.
    pub scrubs: f64,
    /// Chance of losing the pool within a year that is small enough.
    pub accept_pool: f64,
    /// Chance of losing some block within a year that is small enough.
    pub accept_block: f64,
    /// Bytes a second of a disk that turns, a mean over its surface, where it was not measured.
    pub hdd_stream: f64,
    /// Reads a second of one at random, one at a time.
    pub hdd_reads: f64,
    /// Bytes a second of an SSD by SATA.
    pub ssd_stream: f64,
    /// Bytes a second of one by NVMe.
    pub nvme_stream: f64,
    /// Reads a second of an SSD, one at a time.
    pub ssd_reads: f64,
    /// Bytes between two moves of the arm when streams are read and written in turn: a column of a stripe.
    pub turn: f64,
    /// Measured bytes a second of reads and writes in turn on one disk; 0: from the two above.
    pub interleaved: f64,
    /// Bytes a second of reads and writes in turn that each TB is to give.
    pub bulk: f64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            afr_hdd: 0.0157,
            afr_ssd: 0.0098,
            correlated: 1.0,
            ure: 1e15,
            replace_hours: 72.0,
            full: 0.8,
            rebuild_rate: 0.0,
            host: 1.5e9,
            scrubs: 12.0,
            accept_pool: 1e-4,
            accept_block: 1e-3,
            hdd_stream: 160e6,
            hdd_reads: 75.0,
            ssd_stream: 500e6,
            nvme_stream: 2000e6,
            ssd_reads: 8000.0,
            turn: (1 << 20) as f64,
            interleaved: 0.0,
            bulk: 18e6,
        }
    }
}

impl Assumptions {
    /// Bytes a second of a disk, a mean over its surface.
    pub fn stream(&self, disk: &Disk) -> f64 {
        match (disk.measured, disk.kind) {
            (Some(measured), _) => (measured.stream_first + measured.stream_last) / 2.0,
            (None, Kind::Hdd) => self.hdd_stream,
            (None, Kind::Ssd) => {
                if disk.nvme {
                    self.nvme_stream
                } else {
                    self.ssd_stream
                }
            }
        }
    }

    /// Reads a second of a disk at random, one at a time.
    pub fn reads(&self, disk: &Disk) -> f64 {
        match (disk.measured, disk.kind) {
            (Some(measured), _) => measured.reads_4k,
            (None, Kind::Hdd) => self.hdd_reads,
            (None, Kind::Ssd) => self.ssd_reads,
        }
    }

    /// Bytes a second of a disk on which streams are read and written in turn: after each column of a stripe the arm
    /// moves, which takes what a small read at random does.
    pub fn in_turn(&self, disk: &Disk) -> f64 {
        if self.interleaved > 0.0 {
            return self.interleaved;
        }
        self.turn / (self.turn / self.stream(disk) + 1.0 / self.reads(disk))
    }

    /// Failures of a disk a year: the rate that has this part fail.
    pub fn failures(&self, disk: &Disk) -> f64 {
        let part = if disk.kind == Kind::Hdd { self.afr_hdd } else { self.afr_ssd };
        -(-part).ln_1p()
    }

    /// Bytes a second at which a disk in the place of this one is written, while so many others are read as fast.
    pub fn rebuild(&self, disk: &Disk, sources: usize) -> f64 {
        let rate = if self.rebuild_rate > 0.0 { self.rebuild_rate } else { self.stream(disk) / 2.0 };
        rate.min(self.host / (sources + 1) as f64)
    }
}
