//! Medians, targets and the table.

use crate::works::{Metric, Sample, Sizes, Work};
use larder_benches::peer::Peer;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Larder's `memory` unless told otherwise, bytes.
const MEMORY: u64 = 512 << 20;
/// Memory that a daemon may take beyond it, bytes.
const MEMORY_SLACK: u64 = 128 << 20;

/// All samples of a run.
#[derive(Debug, Default)]
pub struct Results(BTreeMap<(Metric, Peer), Vec<Sample>>);

/// Samples of one cell, put together.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// Median.
    pub rate: f64,
    /// Half of the distance between the extremes, as a part of the median.
    pub spread: f64,
    /// Medians of median and 99th percentile.
    pub latency: Option<(Duration, Duration)>,
    /// Medians of wall, client, daemon, kernel, seconds.
    pub seconds: [f64; 4],
    /// The highest peak of the daemon's memory, bytes.
    pub memory: Option<u64>,
}

/// A target for Larder beside a peer.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The metric that is compared.
    pub metric: Metric,
    /// Larder's configuration.
    pub ours: Peer,
    /// The peer.
    pub theirs: Peer,
    /// The 99th percentile is compared, not the rate.
    pub tail: bool,
    /// The least ratio of rates, or the greatest of tails; none where it is only reported.
    pub asked: Option<f64>,
}

const fn rate(metric: Metric, ours: Peer, theirs: Peer, asked: f64) -> Target {
    Target { metric, ours, theirs, tail: false, asked: Some(asked) }
}

const fn only_told(metric: Metric, ours: Peer, theirs: Peer) -> Target {
    Target { metric, ours, theirs, tail: false, asked: None }
}

/// The targets, and what is told beside them.
pub const TARGETS: [Target; 21] = [
    rate(Metric::Write, Peer::LarderOff, Peer::Passthrough, 1.5),
    rate(Metric::ColdRead, Peer::LarderOff, Peer::Passthrough, 1.0),
    rate(Metric::WarmRead, Peer::LarderOff, Peer::Passthrough, 0.95),
    rate(Metric::RandomRead, Peer::Larder16k, Peer::Passthrough, 1.0),
    rate(Metric::RandomRead4, Peer::Larder16k, Peer::Passthrough, 1.0),
    only_told(Metric::RandomRead, Peer::LarderOff, Peer::Passthrough),
    only_told(Metric::RandomRead4, Peer::LarderOff, Peer::Passthrough),
    only_told(Metric::RandomWrite, Peer::Larder16k, Peer::Passthrough),
    only_told(Metric::RandomWrite, Peer::LarderOff, Peer::Passthrough),
    Target {
        metric: Metric::Append,
        ours: Peer::LarderOff,
        theirs: Peer::Ext4,
        tail: true,
        asked: Some(2.0),
    },
    rate(Metric::Create, Peer::LarderOff, Peer::Passthrough, 0.8),
    rate(Metric::Stat, Peer::LarderOff, Peer::Passthrough, 0.8),
    only_told(Metric::StatAgain, Peer::LarderOff, Peer::Passthrough),
    only_told(Metric::List, Peer::LarderOff, Peer::Passthrough),
    rate(Metric::Unlink, Peer::LarderOff, Peer::Passthrough, 0.8),
    only_told(Metric::Clone, Peer::LarderOff, Peer::Passthrough),
    only_told(Metric::Grep, Peer::LarderOff, Peer::Passthrough),
    rate(Metric::Ingest, Peer::LarderZstd, Peer::Btrfs, 1.0),
    rate(Metric::Ingest, Peer::LarderRaidz2, Peer::ZfsFuseRaidz2, 3.0),
    rate(Metric::TreeRead, Peer::LarderZstd, Peer::Btrfs, 0.8),
    only_told(Metric::Remove, Peer::LarderZstd, Peer::Btrfs),
];

impl Results {
    /// Adds what one piece of work gave.
    pub fn add(&mut self, peer: Peer, samples: Vec<Sample>) {
        for sample in samples {
            self.0.entry((sample.metric, peer)).or_default().push(sample);
        }
    }

    /// The samples of a cell, if it was measured.
    pub fn cell(&self, metric: Metric, peer: Peer) -> Option<Cell> {
        let samples = self.0.get(&(metric, peer))?;
        let of = |figure: &dyn Fn(&Sample) -> f64| median(samples.iter().map(figure).collect());
        let rates = samples.iter().map(|sample| sample.rate);
        let (low, high) = rates.fold((f64::MAX, 0.0_f64), |(low, high), r| (low.min(r), high.max(r)));
        let rate = of(&|sample| sample.rate);
        let latency = samples[0].latency.is_some().then(|| {
            let time = |figure: &dyn Fn((Duration, Duration)) -> Duration| {
                Duration::from_secs_f64(of(&|s| s.latency.map_or(0.0, |l| figure(l).as_secs_f64())))
            };
            (time(&|latency| latency.0), time(&|latency| latency.1))
        });
        let seconds = [
            of(&|s| s.usage.wall.as_secs_f64()),
            of(&|s| s.usage.client.as_secs_f64()),
            of(&|s| s.usage.daemon.as_secs_f64()),
            of(&|s| s.usage.kernel.as_secs_f64()),
        ];
        let memory = samples.iter().filter_map(|sample| sample.memory).max();
        Some(Cell { rate, spread: (high - low) / 2.0 / rate, latency, seconds, memory })
    }

    /// Rate of `ours` over that of `theirs`, if both were measured.
    pub fn ratio(&self, metric: Metric, ours: Peer, theirs: Peer) -> Option<f64> {
        Some(self.cell(metric, ours)?.rate / self.cell(metric, theirs)?.rate)
    }

    /// The part of the machine that others took while the samples were made.
    fn others(&self) -> f64 {
        let samples = || self.0.values().flatten();
        let sum =
            |figure: &dyn Fn(&Sample) -> Duration| samples().map(figure).sum::<Duration>().as_secs_f64();
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        sum(&|sample| sample.usage.others) / sum(&|sample| sample.usage.wall) / cores
    }

    /// The whole report, as Markdown. `absent` says which peers did not take part and why, `failed` which
    /// works ended early.
    pub fn markdown(
        &self,
        size: &str,
        sizes: &Sizes,
        head: &str,
        absent: &[String],
        failed: &[String],
    ) -> String {
        let mut out = String::new();
        let mut line = |text: &str| writeln!(out, "{text}").expect("a string takes what is written");
        line("# Beside its peers\n");
        line(
            "Made by `make peers`, which does the same work on Larder and on what else is installed, in one run.\n",
        );
        line(&format!("![How many times as fast as each peer](peers.svg)\n\n{head}\n"));
        line(&format!(
            "`--size {size}`: sequential {} MiB of random bytes; random 4 KiB in a file of {} MiB, {} operations (fio, \
             psync, direct=0, cold); {} appends; {} files of 1 KiB in one folder; room for {} MiB each. Median of {} \
             rounds, in which the order of the peers turns round. Others took {:.0} % of the machine meanwhile: \
             processor seconds and ratios say more than rates.\n",
            sizes.stream_mib,
            sizes.random_mib,
            sizes.operations,
            sizes.appends,
            sizes.files,
            sizes.room_mib,
            sizes.rounds,
            self.others() * 100.0
        ));
        self.targets(&mut line);
        self.memory(&mut line);
        self.works(&mut line);
        line("## Who takes part\n");
        for peer in Peer::ALL {
            if self.0.keys().any(|(_, known)| *known == peer) {
                line(&format!("- **{}**: {}", peer.name(), peer.about()));
            }
        }
        absent.iter().for_each(|why| line(&format!("- absent: {why}")));
        failed.iter().for_each(|why| line(&format!("- failed: {why}")));
        out
    }

    fn targets(&self, line: &mut impl FnMut(&str)) {
        line("## Targets\n");
        line("Processor seconds are those of client, daemon and kernel threads together.\n");
        line("| what | Larder | peer | ratio | asked | | processor seconds: Larder / peer |");
        line("|---|---|---|---|---|---|---|");
        for target in TARGETS {
            let cells = self.cell(target.metric, target.ours).zip(self.cell(target.metric, target.theirs));
            let Some((ours, theirs)) = cells else { continue };
            let figure = |cell: &Cell| match cell.latency {
                Some((_, p99)) if target.tail => format!("p99 {}", time(p99)),
                _ => format!("{} {}", number(cell.rate), target.metric.unit()),
            };
            let p99 = |cell: &Cell| cell.latency.map_or(0.0, |latency| latency.1.as_secs_f64());
            let ratio = if target.tail { p99(&ours) / p99(&theirs) } else { ours.rate / theirs.rate };
            let asked = target
                .asked
                .map_or("–".into(), |asked| format!("{} {asked}", if target.tail { "≤" } else { "≥" }));
            let mark = target
                .asked
                .map_or("", |asked| mark(if target.tail { ratio <= asked } else { ratio >= asked }));
            let cpu = |cell: &Cell| cell.seconds[1..].iter().sum::<f64>();
            line(&format!(
                "| {} | {} {} | {} {} | {ratio:.2} | {asked} | {mark} | {:.2} / {:.2} |",
                metric_title(target.metric),
                target.ours.name(),
                figure(&ours),
                target.theirs.name(),
                figure(&theirs),
                cpu(&ours),
                cpu(&theirs)
            ));
        }
        line("");
    }

    fn memory(&self, line: &mut impl FnMut(&str)) {
        let peak = |peer, work: Work| {
            let cells = Metric::ALL.iter().filter(|metric| metric.work() == work);
            cells.filter_map(|&metric| self.cell(metric, peer)?.memory).max()
        };
        let served: Vec<_> = Peer::ALL
            .into_iter()
            .filter(|&peer| Work::ALL.iter().any(|&work| peak(peer, work).is_some()))
            .collect();
        if served.is_empty() {
            return;
        }
        line("## Memory\n");
        line(&format!(
            "The daemon's peak (VmHWM) after each work, MiB. Larder: at most its budget of {} and {} more.\n",
            MEMORY >> 20,
            MEMORY_SLACK >> 20
        ));
        let works: Vec<_> = Work::ALL.map(Work::name).to_vec();
        line(&format!("| | {} | |\n|---|{}---|", works.join(" | "), "---|".repeat(works.len())));
        for peer in served {
            let peaks: Vec<_> = Work::ALL.iter().map(|&work| peak(peer, work)).collect();
            let cells: Vec<_> =
                peaks.iter().map(|peak| peak.map_or("–".into(), |bytes| (bytes >> 20).to_string())).collect();
            let within = peaks.iter().flatten().all(|&bytes| bytes <= MEMORY + MEMORY_SLACK);
            let mark = if peer.is_larder() { mark(within) } else { "" };
            line(&format!("| {} | {} | {mark} |", peer.name(), cells.join(" | ")));
        }
        line("");
    }

    fn works(&self, line: &mut impl FnMut(&str)) {
        for work in Work::ALL {
            let measured = |metric: &Metric, peer: Peer| self.0.contains_key(&(*metric, peer));
            let metrics: Vec<_> = Metric::ALL.into_iter().filter(|metric| metric.work() == work).collect();
            let peers: Vec<_> = Peer::ALL
                .into_iter()
                .filter(|&peer| metrics.iter().any(|metric| measured(metric, peer)))
                .collect();
            if peers.is_empty() {
                continue;
            }
            line(&format!("## {}\n", work_title(work)));
            line(&format!(
                "{}, ± half the spread; (times ext4, the ceiling); wall seconds; processor seconds of client + daemon \
                 + kernel threads{}.\n",
                if metrics[0].unit() == "MB/s" { "MB/s" } else { "Operations a second" },
                if matches!(work, Work::Rand | Work::Append) { "; median and 99th percentile" } else { "" }
            ));
            let titles: Vec<_> = metrics.iter().map(|metric| metric.title()).collect();
            line(&format!("| | {} |\n|---|{}", titles.join(" | "), "---|".repeat(titles.len())));
            for peer in peers {
                let cells: Vec<_> = metrics.iter().map(|&metric| self.text(metric, peer)).collect();
                line(&format!("| {} | {} |", peer.name(), cells.join(" | ")));
            }
            line("");
        }
    }

    fn text(&self, metric: Metric, peer: Peer) -> String {
        let Some(cell) = self.cell(metric, peer) else { return "–".into() };
        let ceiling = self.ratio(metric, peer, Peer::Ext4).map_or(String::new(), |r| format!(" ({r:.2})"));
        let latency =
            cell.latency.map_or(String::new(), |(p50, p99)| format!("; {}, {}", time(p50), time(p99)));
        let [wall, client, daemon, kernel] = cell.seconds;
        format!(
            "**{}** ± {:.0} %{ceiling}; {wall:.2} s; {client:.2} + {daemon:.2} + {kernel:.2}{latency}",
            number(cell.rate),
            cell.spread * 100.0
        )
    }
}

fn work_title(work: Work) -> &'static str {
    match work {
        Work::Seq => "Sequential, 1 MiB",
        Work::Rand => "Random, 4 KiB",
        Work::Append => "Appends of 4 KiB with fsync",
        Work::Files => "Small files",
        Work::Git => "git",
        Work::Tree => "A tree of real and random files",
    }
}

/// A metric's title where its work is not said.
pub fn metric_title(metric: Metric) -> String {
    match metric {
        Metric::TreeRead | Metric::Ingest | Metric::Remove => format!("tree: {}", metric.title()),
        Metric::Write | Metric::ColdRead | Metric::WarmRead => format!("sequential {}", metric.title()),
        _ => metric.title().into(),
    }
}

fn mark(reached: bool) -> &'static str {
    if reached { "✓ reached" } else { "✗ missed" }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    let n = of.len();
    if n == 0 { f64::NAN } else { (of[(n - 1) / 2] + of[n / 2]) / 2.0 }
}

fn number(value: f64) -> String {
    if value >= 10_000.0 { format!("{:.1}k", value / 1e3) } else { format!("{value:.0}") }
}

fn time(time: Duration) -> String {
    let us = time.as_secs_f64() * 1e6;
    if us < 1e3 { format!("{us:.0} µs") } else { format!("{:.1} ms", us / 1e3) }
}
