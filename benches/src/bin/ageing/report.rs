//! The tables.

use crate::PEERS;
use crate::cell::{Cell, FILLS, Unit};
use crate::run::{Amounts, Outcome, Waits};
use larder_benches::MIB;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// One cell of one peer, measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// The peer's name.
    pub peer: String,
    /// The cell.
    pub cell: Cell,
    /// Of Larder, whoever was measured: the benchmark changes with it.
    pub version: String,
    /// Its figures.
    pub outcome: Outcome,
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Results {
    measured: Vec<Measured>,
    /// Why a peer could not take part, or a cell ("peer, cell") failed.
    pub absent: BTreeMap<String, String>,
}

/// The most that may be written a byte that is overwritten, in the cell with targets.
const AMPLIFICATION: f64 = 1.5;
/// The least throughput there, as a part of that with room.
const THROUGHPUT: f64 = 0.6;
/// The longest call at 95 %, microseconds.
const STALL: u64 = 2_000_000;

impl Measured {
    /// A line for who watches.
    pub fn line(&self) -> String {
        let outcome = &self.outcome;
        let longest = outcome.write.max.max(outcome.sync.max);
        format!(
            "{:9} {:16} filled {:5.0} MiB/s, overwritten {:6} MiB, aged {:6.1} MiB/s, amplification {:5.2}, write p99 {}, \
             fsync p99 {}, longest {}{}{}",
            self.peer,
            self.cell.to_string(),
            outcome.fill_rate / MIB as f64,
            outcome.written() >> 20,
            outcome.rate() / MIB as f64,
            outcome.amplification(),
            time(outcome.write.p99),
            time(outcome.sync.p99),
            time(longest),
            outcome.cut.as_ref().map(|cut| format!(", ended: {cut}")).unwrap_or_default(),
            if outcome.refused > 0 { format!(", {} refused", outcome.refused) } else { String::new() }
        )
    }
}

impl Results {
    /// Adds a cell, in the place of what was measured of it before.
    pub fn add(&mut self, measured: Measured) {
        self.remove(&measured.peer, measured.cell);
        self.measured.push(measured);
    }

    /// Forgets a cell.
    pub fn remove(&mut self, peer: &str, cell: Cell) {
        self.measured.retain(|known| known.peer != peer || known.cell != cell);
    }

    /// Figures of a cell of a peer, if it was measured.
    pub fn get(&self, peer: &str, cell: Cell) -> Option<&Outcome> {
        let found = self.measured.iter().find(|known| known.peer == peer && known.cell == cell);
        found.map(|found| &found.outcome)
    }

    /// Throughput as a part of that with room.
    fn kept_speed(&self, peer: &str, cell: Cell) -> Option<f64> {
        Some(self.get(peer, cell)?.rate() / self.get(peer, cell.with_room())?.rate())
    }

    /// The parts of the machine that others took.
    fn others(&self) -> impl Iterator<Item = f64> {
        self.measured.iter().map(|measured| measured.outcome.others)
    }

    /// The whole report, as Markdown.
    pub fn markdown(&self, amounts: &Amounts, machine: &str) -> String {
        let mut out = String::new();
        let mut line = |text: &str| writeln!(out, "{text}").expect("a string takes what is written");
        let versions: BTreeSet<_> = self
            .measured
            .iter()
            .filter(|known| known.peer == "larder")
            .map(|known| known.version.as_str())
            .collect();
        line("# Ageing\n");
        line(
            "Made by `make ageing`: Larder, btrfs and zfs-fuse, nearly full, overwritten at random for long. Each pool \
             lies on a loop device with direct I/O; what the kernel counts there is what was written.\n",
        );
        line(&format!(
            "![Throughput, waits and write amplification over what was overwritten](ageing.svg)\n\n{machine} Larder {}.\n",
            versions.into_iter().collect::<Vec<_>>().join(", ")
        ));
        line(&format!(
            "A pool of {} MiB is filled to a part of what it says is available with incompressible data, then overwritten \
             by one writer with pwrite(2), an fsync(2) every {} MiB: {} times its size ({} times where Larder has targets), \
             or for {} s ({} s there). *4K*: pages of one large file, recordsize=16K where there is one; *128K*: pieces of \
             one large file; *file*: files of 1 MiB, cut to nothing and written again. *zipf*: by zipf 1.1, hot and cold \
             strewn about; *uniform*: all alike. *With room*: the same data and the same overwrites in a pool of eight times \
             the size, which is 10 % full then.\n",
            amounts.pool >> 20,
            amounts.sync >> 20,
            amounts.times,
            amounts.target_times,
            amounts.cap.as_secs(),
            (amounts.cap.as_secs_f64() * (amounts.target_times / amounts.times).max(1.0)).round()
        ));
        line(&format!(
            "Others took {:.0} % of the machine meanwhile, from {:.0} to {:.0} %: write amplification says more than rates.\n",
            100.0 * self.others().sum::<f64>() / self.others().count().max(1) as f64,
            100.0 * self.others().fold(1.0, f64::min),
            100.0 * self.others().fold(0.0, f64::max)
        ));
        self.targets(&mut line);
        for fill in FILLS {
            self.table(&mut line, fill);
        }
        self.absent.iter().for_each(|(peer, why)| line(&format!("Absent: {peer}: {why}.")));
        line("## How to read it\n");
        line(
            "- MiB/s: of the second half of what was overwritten. With room: the same there, and the former as a part of it.\n\
             - Amplification: what the device was given by what the program wrote, from the first overwrite to a commit \
             after the last. What is overwritten again before it is stored costs nothing, so hot data may bring it \
             below 1.\n\
             - Processor: seconds of program, daemon and kernel threads (of the whole machine: kworkers belong to nobody), a \
             GiB that was overwritten.\n\
             - Waits: median, 99th percentile and longest, of single overwrites (of files: open, write, close) and of fsyncs.\n\
             - Who was too slow was cut off: what it had overwritten by then, in pool sizes, is behind it. Overwrites \
             that were refused for lack of space are counted.",
        );
        out
    }

    fn targets(&self, line: &mut impl FnMut(&str)) {
        line("## Targets\n\n| what | measured | asked | |\n|---|---|---|---|");
        let mut row = |what: &str, measured: Option<(String, bool)>, asked: &str| {
            let Some((measured, reached)) = measured else { return };
            let mark = if reached { "✓ reached" } else { "✗ missed" };
            line(&format!("| {what} | {measured} | {asked} | {mark} |"));
        };
        let cell = Cell::TARGET;
        let amplification = self.get("larder", cell).map(Outcome::amplification);
        row(
            "80 % full, 128 KiB, zipf: write amplification",
            amplification.map(|it| (format!("{it:.2}"), it <= AMPLIFICATION)),
            &format!("≤ {AMPLIFICATION}"),
        );
        row(
            "80 % full, 128 KiB, zipf: throughput, as a part of that with room",
            self.kept_speed("larder", cell).map(|it| (format!("{it:.2}"), it >= THROUGHPUT)),
            &format!("≥ {THROUGHPUT}"),
        );
        let full = Cell::all().into_iter().filter(|cell| cell.fill == Some(95));
        let full: Vec<_> = full.filter_map(|cell| Some((cell, self.get("larder", cell)?))).collect();
        let longest = |outcome: &Outcome| outcome.write.max.max(outcome.sync.max);
        let worst = full.iter().max_by_key(|(_, outcome)| longest(outcome));
        row(
            "95 % full: the longest call",
            worst.map(|(cell, it)| (format!("{} ({cell})", time(longest(it))), longest(it) <= STALL)),
            "≤ 2 s",
        );
        let refused: u64 = full.iter().map(|(_, outcome)| outcome.refused).sum();
        row(
            "95 % full: overwrites refused",
            (!full.is_empty()).then(|| (refused.to_string(), refused == 0)),
            "none",
        );
        line("");
    }

    fn table(&self, line: &mut impl FnMut(&str), fill: u8) {
        let cells: Vec<_> = Cell::all().into_iter().filter(|cell| cell.fill == Some(fill)).collect();
        if !cells.iter().any(|&cell| PEERS.iter().any(|(peer, _)| self.get(peer, cell).is_some())) {
            return;
        }
        line(&format!("## {fill} % full\n"));
        line(
            "| | | MiB/s | with room | amplification | processor | write | fsync | |\n\
             |---|---|---|---|---|---|---|---|---|",
        );
        for cell in cells {
            for (peer, _) in PEERS {
                let Some(outcome) = self.get(peer, cell) else { continue };
                let mib = |rate: f64| format!("{:.0}", rate / MIB as f64);
                let room = self.get(peer, cell.with_room()).map_or("–".to_owned(), |room| {
                    format!("{} ({:.2})", mib(room.rate()), outcome.rate() / room.rate())
                });
                let waits = |of: Waits| {
                    if of.max == 0 { "–".to_owned() } else { [of.p50, of.p99, of.max].map(time).join(", ") }
                };
                let mut remarks = Vec::new();
                let times = outcome.written() as f64 / outcome.pool as f64;
                remarks.extend(outcome.cut.as_ref().map(|cut| format!("ended {cut}: {times:.2} pool sizes")));
                if cell == Cell::TARGET && outcome.cut.is_none() {
                    remarks.push(format!("{times:.0} pool sizes"));
                }
                remarks.extend((outcome.refused > 0).then(|| format!("{} refused", outcome.refused)));
                let pattern = if cell.zipf { "zipf" } else { "uniform" };
                let what = if cell.unit == Unit::File { "file".to_owned() } else { cell.unit.to_string() };
                line(&format!(
                    "| {what}, {pattern} | {peer} | **{}** | {room} | {:.2} | {:.2} | {} | {} | {} |",
                    mib(outcome.rate()),
                    outcome.amplification(),
                    outcome.processor_per_gib(),
                    waits(outcome.write),
                    waits(outcome.sync),
                    remarks.join("; ")
                ));
            }
        }
        line("");
    }
}

fn time(us: u64) -> String {
    match us {
        0..1000 => format!("{us} µs"),
        1000..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", us / 1000),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}
