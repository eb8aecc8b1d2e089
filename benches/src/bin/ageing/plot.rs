//! The plot: what happens while a pool that is 80 % full is overwritten, 128 KiB at a time.

use crate::PEERS;
use crate::cell::{Cell, Unit};
use crate::report::Results;
use crate::run::{Outcome, Sample};
use larder_benches::MIB;
use larder_benches::plot::{Anchor, Page, colour};

const LEFT: f64 = 66.0;
const WIDTH: f64 = 330.0;
const GAP: f64 = 64.0;
const TOP: f64 = 52.0;
const HEIGHT: f64 = 120.0;
const BETWEEN: f64 = 38.0;

/// A figure over what was overwritten: at the end of a sample, given that and the one before.
type Figure = fn(&Sample, Option<&Sample>) -> f64;

/// A row of the plot.
struct Row {
    title: &'static str,
    figure: Figure,
    logarithmic: bool,
}

const ROWS: [Row; 4] = [
    Row {
        title: "MiB/s",
        figure: |now, before| {
            let (written, seconds) = before.map_or((0, 0.0), |before| (before.written, before.seconds));
            (now.written - written) as f64 / MIB as f64 / (now.seconds - seconds).max(1e-3)
        },
        logarithmic: true,
    },
    Row { title: "overwrites, p99, ms", figure: |now, _| now.write.p99 as f64 / 1e3, logarithmic: true },
    Row { title: "fsyncs, p99, ms", figure: |now, _| now.sync.p99 as f64 / 1e3, logarithmic: true },
    Row {
        title: "write amplification so far",
        figure: |now, _| now.device as f64 / now.written.max(1) as f64,
        logarithmic: false,
    },
];

/// Values of one peer, by pool sizes overwritten. Windows in which nothing was written have none.
fn points(outcome: &Outcome, row: &Row) -> Vec<(f64, f64)> {
    let samples = &outcome.samples;
    let befores = std::iter::once(None).chain(samples.iter().map(Some));
    let pairs = samples.iter().zip(befores);
    // The last window is as short as it comes, and holds the commit.
    let whole = pairs.take(samples.len().saturating_sub(1).max(1));
    let point =
        whole.map(|(now, before)| (now.written as f64 / outcome.pool as f64, (row.figure)(now, before)));
    point.filter(|(_, value)| *value > 0.0 && value.is_finite()).collect()
}

/// The plot as SVG.
pub fn svg(results: &Results) -> String {
    let mut page = Page::default();
    let mut at = page_key(&mut page);
    let cells = [true, false].map(|zipf| Cell { fill: Some(80), unit: Unit::Record, zipf });
    let column = |cell: Cell| {
        let peers = PEERS.iter().filter_map(move |(peer, _)| Some((*peer, results.get(peer, cell)?)));
        peers.collect::<Vec<_>>()
    };
    for row in &ROWS {
        let all = cells.iter().flat_map(|&cell| column(cell)).flat_map(|(_, outcome)| points(outcome, row));
        let (low, high) = all.fold((f64::MAX, 0.0_f64), |(low, high), (_, y)| (low.min(y), high.max(y)));
        if high == 0.0 {
            continue;
        }
        let (low, high) = if row.logarithmic { decades(low, high) } else { (0.0, high.ceil()) };
        for (n, &cell) in cells.iter().enumerate() {
            let left = LEFT + n as f64 * (WIDTH + GAP);
            let lines = column(cell);
            let end =
                lines.iter().map(|(_, o)| o.written() as f64 / o.pool as f64).fold(0.0, f64::max).max(0.01);
            let x = |times: f64| left + WIDTH * times / end;
            let y = |value: f64| {
                let part = if row.logarithmic {
                    (value.max(low) / low).ln() / (high / low).ln()
                } else {
                    (value - low) / (high - low)
                };
                at + HEIGHT * (1.0 - part)
            };
            page.text(left, at - 8.0, Anchor::Start, &format!("{}, {}", row.title, cell.pattern()));
            for tick in ticks(row.logarithmic, low, high) {
                page.path("grid", &format!("M{left:.1} {:.1}h{WIDTH}", y(tick)));
                page.text(left - 5.0, y(tick) + 4.0, Anchor::End, &tick.to_string());
            }
            page.path("one", &format!("M{left:.1} {at:.1}v{HEIGHT}h{WIDTH}"));
            for tick in 0..=end.floor() as u64 {
                page.text(x(tick as f64), at + HEIGHT + 13.0, Anchor::Middle, &tick.to_string());
            }
            for (peer, outcome) in lines {
                let points = points(outcome, row);
                let path: Vec<_> =
                    points.iter().map(|&(px, py)| format!("{:.1} {:.1}", x(px), y(py))).collect();
                if let [one] = &path[..] {
                    let (cx, cy) = one.split_once(' ').expect("two numbers");
                    page.put(&format!("<circle cx=\"{cx}\" cy=\"{cy}\" r=\"2\" fill=\"{}\"/>", colour(peer)));
                } else {
                    page.put(&format!(
                        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\"/>",
                        path.join(" "),
                        colour(peer)
                    ));
                }
            }
        }
        at += HEIGHT + BETWEEN;
    }
    page.svg(LEFT + 2.0 * WIDTH + GAP + 14.0, at - 6.0)
}

fn page_key(page: &mut Page) -> f64 {
    page.text(
        LEFT,
        14.0,
        Anchor::Start,
        "80 % full, overwritten 128 KiB at a time; along: what was overwritten, in pool sizes",
    );
    PEERS.iter().fold(LEFT, |at, (peer, _)| page.key(at, 28.0, peer));
    TOP
}

/// Powers of ten that hold a range.
fn decades(low: f64, high: f64) -> (f64, f64) {
    let low = 10_f64.powf(low.log10().floor());
    (low, 10_f64.powf(high.log10().ceil()).max(low * 10.0))
}

fn ticks(logarithmic: bool, low: f64, high: f64) -> Vec<f64> {
    if logarithmic {
        std::iter::successors(Some(low), |tick| Some(tick * 10.0))
            .take_while(|tick| *tick <= high * 1.01)
            .collect()
    } else {
        let step = if high > 12.0 {
            (high / 6.0).ceil()
        } else if high > 5.0 {
            2.0
        } else {
            1.0
        };
        std::iter::successors(Some(low), |tick| Some(tick + step)).take_while(|tick| *tick <= high).collect()
    }
}
