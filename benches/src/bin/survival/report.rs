//! The tables, the targets and the plot.

use crate::degraded::{CELLS, Cell, Figure, Table, wait};
use crate::rebuild::{Beside, Resilver, Rounds, Scrub, median, mib_per_s};
use larder_benches::MIB;
use larder_benches::device::Ground;
use larder_benches::plot::{Anchor, Page, colour};
use larder_benches::tape::REST;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

/// Of fio's speed, what a resilver is to reach.
const ASKED: f64 = 0.8;

/// A run's figures.
pub struct Report {
    head: String,
    resilvers: Vec<Resilver>,
    scrubs: Vec<Scrub>,
    beside: Vec<Beside>,
    tables: Vec<Table>,
    /// Load averages of the machine, as each part ended.
    loads: Vec<f64>,
}

impl Rounds {
    /// Our speed over fio's: of each two rounds that follow each other, in one of which the pool came first, in the
    /// other fio.
    fn ratios(&self) -> Vec<f64> {
        let both = |seconds: &[f64]| seconds.iter().sum::<f64>();
        let pairs = self.ours.chunks_exact(2).zip(self.fio.chunks_exact(2));
        pairs.map(|(ours, fio)| both(fio) / both(ours)).collect()
    }

    /// The median of these.
    fn ratio(&self) -> f64 {
        median(&self.ratios())
    }

    fn row(&self) -> String {
        let each = self.ratios().into_iter().map(|ratio| format!("{ratio:.2}"));
        let thrift = |cpu: &[f64]| median(cpu) / (self.bytes as f64 / f64::from(1 << 30));
        format!(
            "{:.0} | {:.0} | **{:.2}** ({}) | {:.2}, {:.2}",
            mib_per_s(self.bytes, &self.ours),
            mib_per_s(self.bytes, &self.fio),
            self.ratio(),
            each.collect::<Vec<_>>().join(", "),
            thrift(&self.cpu.0),
            thrift(&self.cpu.1)
        )
    }
}

fn mark(ratio: f64) -> &'static str {
    if ratio >= ASKED { "✓ reached" } else { "✗ missed" }
}

/// "85 µs", "1.5 ms", "120 ms".
fn tell(span: Duration) -> String {
    let ms = span.as_secs_f64() * 1e3;
    match ms {
        ms if ms < 1.0 => format!("{:.0} µs", ms * 1e3),
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.0} ms"),
    }
}

fn mib(bytes: u64) -> u64 {
    bytes / MIB as u64
}

impl Report {
    /// Nothing yet.
    pub fn new(machine: &str, mib: usize, device_gib: u64, rounds: usize, seconds: f64) -> Self {
        let head = format!(
            "{machine}\n\nThe engine without FUSE, with the heap of the daemon, on sparse files of {device_gib} GiB with direct I/O, all on one disk; \
             incompressible records. {mib} MiB are alive on each device; 40 % of what was written was removed. {rounds} \
             rounds: in the first of each two the pool came first, in the second fio; speeds are of medians, ratios of each \
             two rounds, and their median. The disk rests for {} s before each. New devices, and the files that fio writes, are sparse, or were written before \
             as disks are, which have no holes. Reads were measured \
             for {seconds} s each, in each round.",
            REST.as_secs()
        );
        Self {
            head,
            resilvers: Vec::new(),
            scrubs: Vec::new(),
            beside: Vec::new(),
            tables: Vec::new(),
            loads: Vec::new(),
        }
    }

    fn note_load(&mut self) {
        let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        self.loads.extend(text.split(' ').next().and_then(|load| load.parse::<f64>().ok()));
    }

    /// Adds resilvers of a shape.
    pub fn resilver(&mut self, resilver: Resilver) {
        eprintln!("{}, {}: resilver | {}", resilver.shape, resilver.ground.name(), resilver.rounds.row());
        self.resilvers.push(resilver);
        self.note_load();
    }

    /// Adds scrubs of a shape.
    pub fn scrub(&mut self, scrub: Scrub) {
        eprintln!("{}: scrub | {}", scrub.shape, scrub.rounds.row());
        self.scrubs.push(scrub);
        self.note_load();
    }

    /// Adds how others fare beside a resilver.
    pub fn beside(&mut self, beside: Vec<Beside>) {
        self.beside = beside;
        self.note_load();
    }

    /// Adds a table of reading.
    pub fn table(&mut self, table: Table) {
        eprintln!("{}: reading: {}", table.shape, table.states.join(", "));
        self.tables.push(table);
        self.note_load();
    }

    /// The document.
    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "# Survival\n\nMade by `make survival`, in one run.\n\n![Resilver and scrub beside fio; reading on](survival.svg)\n\n",
        );
        let mut line = |text: &str| writeln!(out, "{text}").expect("a string takes what is written");
        line(&self.head);
        let loads: Vec<_> = self.loads.iter().map(|load| format!("{load:.1}")).collect();
        line(&format!(
            "Load of the machine as each part ended, this run's own included: {}. A load of about 1 to 2 is this run's own.",
            loads.join(", ")
        ));
        if !self.resilvers.is_empty() {
            line(
                "\n## Resilver\n\nOne device is gone and a new one takes its place: MiB/s read and written at full speed, \
                 beside fio making the same requests of the same files at the same time, reads and writes apart, four in flight for each device concerned.\n\n\
                 | | pool | fio | pool / fio (pairs of rounds) | processor s/GiB | asked | | requests, KiB |\n|---|---|---|---|---|---|---|---|",
            );
            for of in &self.resilvers {
                line(&format!(
                    "| {}, {} | {} | ≥ {ASKED} | {} | reads {}, writes {} |",
                    of.shape,
                    of.ground.name(),
                    of.rounds.row(),
                    mark(of.rounds.ratio()),
                    of.request.0 >> 10,
                    of.request.1 >> 10
                ));
            }
            line(
                "\nWhat is written, and from where it comes, MiB. *Held* are segments on the lost device, *alive* what is \
                 in use in them; the rest is of removed files, and goes when segments are cleaned.\n\n\
                 | | device | held | alive | written | written / held | written / alive | read, by device |\n\
                 |---|---|---|---|---|---|---|---|",
            );
            for of in self.resilvers.iter().filter(|of| of.ground == Ground::Written) {
                let read: Vec<_> =
                    of.read.iter().map(|&bytes| format!("{:.1}", bytes as f64 / MIB as f64)).collect();
                line(&format!(
                    "| {} | {} | {} | {} | {} | {:.3} | {:.2} | {} |",
                    of.shape,
                    mib(of.size),
                    mib(of.held),
                    mib(of.alive),
                    mib(of.written),
                    of.written as f64 / of.held.max(1) as f64,
                    of.written as f64 / of.alive.max(1) as f64,
                    read.join(", ")
                ));
            }
        }
        if !self.beside.is_empty() {
            line(
                "\nBeside a resilver (raidz2 of six, one device lost): three reads of 128 KiB at random to one write, every \
                 16th with an fsync, in one thread. Under its budget, as in the daemon, a resilver takes steps of 40 ms \
                 and rests as long.\n\n\
                 | | reads and writes, MiB/s | read p50 | p99 | write p50 | p99 | new device, MiB/s |\n|---|---|---|---|---|---|---|",
            );
            for of in &self.beside {
                line(&format!(
                    "| {} | {:.0} | {} | {} | {} | {} | {:.0} |",
                    of.what,
                    of.bytes as f64 / MIB as f64 / of.seconds,
                    tell(wait(&of.reads, 500)),
                    tell(wait(&of.reads, 990)),
                    tell(wait(&of.writes, 500)),
                    tell(wait(&of.writes, 990)),
                    of.rebuilt / MIB as f64
                ));
            }
        }
        if !self.scrubs.is_empty() {
            line(
                "\n## Scrub\n\nMiB/s read, all columns, beside fio making the same reads.\n\n\
                 | | pool | fio | pool / fio (pairs of rounds) | processor s/GiB | 0.8 of fio |\n|---|---|---|---|---|---|",
            );
            for of in &self.scrubs {
                line(&format!("| {} | {} | {} |", of.shape, of.rounds.row(), mark(of.rounds.ratio())));
            }
        }
        for table in &self.tables {
            reading(table, &mut line);
        }
        out
    }

    /// Resilver and scrub as parts of fio's speed, reading as parts of what it is when all is well.
    pub fn svg(&self) -> String {
        const LEFT: f64 = 250.0;
        const WIDTH: f64 = 400.0;
        const MOST: f64 = 1.5;
        let (mut bars, mut y) = (Page::default(), 46.0);
        let x = |ratio: f64| LEFT + WIDTH * ratio.clamp(0.0, MOST) / MOST;
        let mut bar = |bars: &mut Page, name: &str, ratio: f64, asked: Option<f64>| {
            bars.text(LEFT - 8.0, y + 9.0, Anchor::End, name);
            bars.put(&format!(
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"11\" fill=\"{}\"/>",
                x(ratio) - LEFT,
                colour("larder")
            ));
            bars.text(x(ratio) + 6.0, y + 9.0, Anchor::Start, &format!("{ratio:.2}"));
            if let Some(asked) = asked {
                bars.path("asked", &format!("M{:.1} {:.1}v15", x(asked), y - 2.0));
            }
            y += 17.0;
        };
        for of in &self.resilvers {
            bar(
                &mut bars,
                &format!("resilver, {}, {}", of.shape, of.ground.name()),
                of.rounds.ratio(),
                Some(ASKED),
            );
        }
        for of in &self.scrubs {
            bar(&mut bars, &format!("scrub, {}", of.shape), of.rounds.ratio(), Some(ASKED));
        }
        for table in &self.tables {
            for state in 1..table.states.len() {
                for cell in CELLS.into_iter().filter(|(_, threads)| *threads == 4) {
                    let name = format!("{}, {}, {}", table.shape, cell.0.name(), table.states[state]);
                    bar(&mut bars, &name, part(table, state, cell), None);
                }
            }
        }
        let mut page = Page::default();
        page.text(
            8.0,
            14.0,
            Anchor::Start,
            "parts of fio's speed (upright marks: asked), and of the speed when all is well",
        );
        for ratio in [0.0, 0.25, 0.5, 0.75, 1.0, 1.25] {
            let class = if ratio == 1.0 { "one" } else { "grid" };
            page.path(class, &format!("M{:.1} 38V{y:.1}", x(ratio)));
            page.text(x(ratio), 34.0, Anchor::Middle, &ratio.to_string());
        }
        page.put(bars.body().trim_end());
        page.svg(LEFT + WIDTH + 50.0, y + 8.0)
    }
}

/// The speed in a state as a part of that in the first.
fn part(table: &Table, state: usize, cell: Cell) -> f64 {
    let speed = |state| median(&table.figures[&(state, cell)].mib_per_s);
    speed(state) / speed(0)
}

fn reading(table: &Table, line: &mut impl FnMut(&str)) {
    line(&format!("\n## Reading, {}: {}\n", table.shape, table.states.join(", ")));
    if table.states.contains(&"one ten times slower") {
        line(
            "Every device takes 2 ms longer for a read than the disk does, as disks that turn would; the slow one 30 ms.",
        );
        match &table.told {
            Some(told) => line(&format!("`status` says of it: {told}.\n")),
            None => line("The pool did not find it slow.\n"),
        }
    }
    line("MiB/s, and p50 and p99 of single reads; in brackets parts of the first column's.\n");
    line(&format!("| | threads | {} |", table.states.join(" | ")));
    line(&format!("|---|---|{}", "---|".repeat(table.states.len())));
    for cell in CELLS {
        let text = |state: usize| {
            let Figure { mib_per_s, waits } = &table.figures[&(state, cell)];
            let of = if state == 0 { String::new() } else { format!(" [{:.2}]", part(table, state, cell)) };
            let (p50, p99) = (tell(wait(waits, 500)), tell(wait(waits, 990)));
            format!("{:.1}{of}, {p50}, {p99}", median(mib_per_s))
        };
        let cells: Vec<_> = (0..table.states.len()).map(text).collect();
        line(&format!("| {} | {} | {} |", cell.0.name(), cell.1, cells.join(" | ")));
    }
}
