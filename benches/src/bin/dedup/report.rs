//! Ratios, targets, the tables and the plot.

use crate::corpus::Corpus;
use larder_benches::mb_per_s;
use larder_benches::plot::{Anchor, Page, colour};
use larder_benches::usage::Usage;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A comparison: `ours` over `theirs`.
#[derive(Debug, Clone, Copy)]
pub struct Ratio {
    /// Its name in the report.
    pub what: &'static str,
    /// Our series.
    pub ours: &'static str,
    /// The series it is compared with.
    pub theirs: &'static str,
    /// The target.
    pub asked: Asked,
}

/// The least or the greatest value that will do.
#[derive(Debug, Clone, Copy)]
pub enum Asked {
    Least(f64),
    Most(f64),
    /// It is only told.
    Nothing,
}

impl Asked {
    fn told(self) -> String {
        match self {
            Self::Least(asked) => format!("≥ {asked}"),
            Self::Most(asked) => format!("≤ {asked}"),
            Self::Nothing => "–".into(),
        }
    }

    fn mark(self, value: f64) -> &'static str {
        match self {
            Self::Least(asked) if value >= asked => "✓ reached",
            Self::Most(asked) if value <= asked => "✓ reached",
            Self::Nothing => "",
            _ => "✗ missed",
        }
    }
}

/// The unit of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    MbPerS,
    Seconds,
    Bytes,
    Part,
    Times,
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Self::MbPerS => format!("{value:.0} MB/s"),
            Self::Seconds => format!("{value:.2} s"),
            Self::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
            Self::Times => format!("{value:.0}"),
            Self::Part => format!("{:.1} %", value * 100.0),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (values[(n - 1) / 2] + values[n / 2]) / 2.0
}

/// The median of the rounds' ratios, so that a change of the machine's speed between rounds falls out; the ratio of
/// the medians where the two were not measured equally often.
fn paired(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    if ours.len() == theirs.len() {
        return (!ours.is_empty()).then(|| median(ours.iter().zip(theirs).map(|(a, b)| a / b).collect()));
    }
    Some(median(ours.to_vec()) / median(theirs.to_vec()))
}

/// A run's figures.
pub struct Report {
    head: String,
    series: BTreeMap<&'static str, (Unit, Vec<f64>)>,
    /// Bytes a processor second, of client, daemon and kernel together.
    thrift: BTreeMap<&'static str, Vec<f64>>,
    /// Processor seconds that others on the machine took meanwhile, and the seconds that there were.
    others: (f64, f64),
    order: Vec<&'static str>,
    ratios: Vec<Ratio>,
    alone: Vec<(&'static str, &'static str, Asked)>,
    absent: Vec<String>,
}

impl Report {
    /// Nothing yet.
    pub fn new(machine: &str, corpus: &Corpus, stream_mib: usize, rounds: usize) -> Self {
        let head = format!(
            "{machine}\n\nThe corpus: {} MiB; {} real files from /usr/share and /usr/lib ({} MiB), the same with bytes \
             inserted into a third of them and written over in others, a tar and an ext4 image of the real files, and \
             noise. Trees are copied by two threads. Streams are files of {stream_mib} MiB, every page of which is another. \
             Before each is stored so much memory is taken and given back that no virtual machine has to ask its host for it \
             meanwhile. Medians of {rounds} rounds, in which the order turns round; of ratios, those within a round. By \
             processor time: what a second of client, daemon and kernel brings, which others on the machine disturb less.",
            corpus.bytes >> 20,
            corpus.tree.files,
            corpus.tree.bytes >> 20
        );
        Self {
            head,
            series: BTreeMap::new(),
            thrift: BTreeMap::new(),
            others: (0.0, 0.0),
            order: Vec::new(),
            ratios: Vec::new(),
            alone: Vec::new(),
            absent: Vec::new(),
        }
    }

    /// Adds a figure.
    pub fn add(&mut self, name: &'static str, unit: Unit, value: f64) {
        eprintln!("{name:44} {}", unit.text(value));
        if !self.order.contains(&name) {
            self.order.push(name);
        }
        self.series.entry(name).or_insert((unit, Vec::new())).1.push(value);
    }

    /// Adds how fast `bytes` were stored, by the wall's clock and by the processors'.
    pub fn rate(&mut self, name: &'static str, bytes: usize, usage: Usage) {
        self.thrift.entry(name).or_default().push(bytes as f64 / usage.cpu().as_secs_f64().max(1e-3));
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        self.others.0 += usage.others.as_secs_f64();
        self.others.1 += usage.wall.as_secs_f64() * cores;
        self.add(name, Unit::MbPerS, mb_per_s(bytes, usage.wall));
    }

    /// Adds a comparison of two figures.
    pub fn compare(&mut self, what: &'static str, ours: &'static str, theirs: &'static str, asked: Asked) {
        self.ratios.push(Ratio { what, ours, theirs, asked });
    }

    /// Adds what is asked of a figure by itself.
    pub fn ask(&mut self, what: &'static str, of: &'static str, asked: Asked) {
        self.alone.push((what, of, asked));
    }

    /// Tells why something is not there.
    pub fn absent(&mut self, why: &str) {
        eprintln!("absent: {why}");
        self.absent.push(why.into());
    }

    /// The median of a series.
    pub fn median(&self, name: &str) -> Option<f64> {
        Some(median(self.series.get(name)?.1.clone()))
    }

    /// As [`Report::ratio`], of what a processor second brings.
    fn ratio_of_thrift(&self, ratio: &Ratio) -> Option<f64> {
        paired(self.thrift.get(ratio.ours)?, self.thrift.get(ratio.theirs)?)
    }

    fn ratio(&self, ratio: &Ratio) -> Option<f64> {
        paired(&self.series.get(ratio.ours)?.1, &self.series.get(ratio.theirs)?.1)
    }

    fn text(&self, name: &str) -> String {
        self.median(name).map_or("–".into(), |value| self.series[name].0.text(value))
    }

    /// The document.
    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "# Deduplication\n\nMade by `make dedup`, in one run.\n\n![What deduplication costs and saves](dedup.svg)\n\n",
        );
        let mut line = |text: &str| writeln!(out, "{text}").expect("a string takes what is written");
        line(&self.head);
        line(&format!(
            "Others took {:.0} % of the machine meanwhile.",
            100.0 * self.others.0 / self.others.1.max(1e-9)
        ));
        line(
            "\n## Targets\n\n| what | | beside | value | asked | | by processor time |\n|---|---|---|---|---|---|---|",
        );
        for ratio in &self.ratios {
            let Some(value) = self.ratio(ratio) else { continue };
            line(&format!(
                "| {} | {} {} | {} {} | {value:.2} | {} | {} | {} |",
                ratio.what,
                ratio.ours,
                self.text(ratio.ours),
                ratio.theirs,
                self.text(ratio.theirs),
                ratio.asked.told(),
                ratio.asked.mark(value),
                self.ratio_of_thrift(ratio).map_or("–".into(), |ratio| format!("{ratio:.2}"))
            ));
        }
        for &(what, of, asked) in &self.alone {
            let Some(value) = self.median(of) else { continue };
            let (told, mark) = (asked.told(), asked.mark(value));
            line(&format!("| {what} | {of} | – | {} | {told} | {mark} | – |", self.text(of)));
        }
        line("\n## All figures\n\n| | median | each round |\n|---|---|---|");
        for name in &self.order {
            let (unit, values) = &self.series[name];
            let each: Vec<_> = values.iter().map(|&value| unit.text(value)).collect();
            line(&format!("| {name} | {} | {} |", self.text(name), each.join(", ")));
        }
        if !self.absent.is_empty() {
            line("\n## Not there\n");
            self.absent.iter().for_each(|why| line(&format!("- {why}")));
        }
        out
    }

    /// The ratios as bars.
    pub fn svg(&self) -> String {
        const LEFT: f64 = 330.0;
        const WIDTH: f64 = 320.0;
        /// The scale's ends: a tenth, and ten times.
        const ENDS: f64 = 10.0;
        let x = |ratio: f64| LEFT + WIDTH / 2.0 * (1.0 + ratio.clamp(1.0 / ENDS, ENDS).ln() / ENDS.ln());
        let (mut bars, mut y) = (Page::default(), 40.0);
        for ratio in &self.ratios {
            let Some(value) = self.ratio(ratio) else { continue };
            bars.text(LEFT - 8.0, y + 9.0, Anchor::End, ratio.what);
            let (from, to) = (x(value.min(1.0)), x(value.max(1.0)));
            bars.put(&format!(
                "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"11\" fill=\"{}\"><title>{value:.2}</title></rect>",
                (to - from).max(1.0),
                colour("larder")
            ));
            bars.text(LEFT + WIDTH + 8.0, y + 9.0, Anchor::Start, &format!("{value:.2}"));
            if let Asked::Least(asked) | Asked::Most(asked) = ratio.asked {
                bars.path("asked", &format!("M{:.1} {:.1}v15", x(asked), y - 2.0));
            }
            y += 18.0;
        }
        let mut page = Page::default();
        page.text(LEFT, 14.0, Anchor::Start, "ours / theirs; upright marks: what is asked");
        for ratio in [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0] {
            let class = if ratio == 1.0 { "one" } else { "grid" };
            page.path(class, &format!("M{:.1} 34V{y:.1}", x(ratio)));
            page.text(x(ratio), 30.0, Anchor::Middle, &ratio.to_string());
        }
        page.put(bars.body().trim_end());
        page.svg(LEFT + WIDTH + 50.0, y + 8.0)
    }
}
