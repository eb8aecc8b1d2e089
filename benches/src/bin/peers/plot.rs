//! The plot: how many times as fast Larder is as each peer, in groups, on a logarithmic scale.

use crate::peer::Peer;
use crate::report::{Results, TARGETS, metric_title};
use crate::works::{Metric, Work};
use std::fmt::Write;

/// Peers with a colour each that is legible on white and on black.
const RIVALS: [(&str, &str); 5] = [
    ("passthrough", "#3b82c4"),
    ("ext4", "#7a8794"),
    ("xfs", "#b0893b"),
    ("btrfs", "#4a9d5f"),
    ("zfs-fuse", "#c2573f"),
];
/// The scale's ends: a twentieth, and twenty times.
const ENDS: f64 = 20.0;
const LEFT: f64 = 170.0;
const WIDTH: f64 = 460.0;
const BAR: f64 = 6.0;
const GAP: f64 = 9.0;
const TOP: f64 = 52.0;

/// Which configurations are compared in a bar.
fn pair(metric: Metric, rival: &str) -> (Peer, Peer) {
    let tree = metric.work() == Work::Tree;
    let off = if matches!(metric.work(), Work::Rand) { Peer::Larder16k } else { Peer::LarderOff };
    match rival {
        "passthrough" => (off, Peer::Passthrough),
        "ext4" => (off, Peer::Ext4),
        "xfs" => (off, Peer::Xfs),
        "btrfs" => (if tree { Peer::LarderZstd } else { off }, Peer::Btrfs),
        _ if tree || metric.work() == Work::Seq => (Peer::LarderRaidz2, Peer::ZfsFuseRaidz2),
        _ => (off, Peer::ZfsFuse),
    }
}

/// The plot as SVG.
pub fn svg(results: &Results) -> String {
    let mut body = String::new();
    let x = |ratio: f64| {
        let part = ratio.clamp(1.0 / ENDS, ENDS).ln() / ENDS.ln();
        LEFT + WIDTH / 2.0 * (1.0 + part)
    };
    let mut y = TOP;
    for metric in Metric::ALL {
        let bars: Vec<_> = RIVALS
            .iter()
            .filter_map(|&(rival, colour)| {
                let (ours, theirs) = pair(metric, rival);
                Some((results.ratio(metric, ours, theirs)?, colour, rival, (ours, theirs)))
            })
            .collect();
        if bars.is_empty() {
            continue;
        }
        let middle = y + bars.len() as f64 * BAR / 2.0 + 4.0;
        put(
            &mut body,
            &format!(
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                metric_title(metric)
            ),
        );
        for (ratio, colour, rival, pair) in bars {
            let (from, to) = (x(ratio.min(1.0)), x(ratio.max(1.0)));
            put(
                &mut body,
                &format!(
                    "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{colour}\">\
                     <title>{} / {rival}: {ratio:.2}</title></rect>",
                    (to - from).max(1.0),
                    BAR - 1.0,
                    pair.0.name()
                ),
            );
            let asked = TARGETS.iter().find(|target| {
                !target.tail && target.metric == metric && (target.ours, target.theirs) == pair
            });
            if let Some(asked) = asked.and_then(|target| target.asked) {
                let at = x(asked);
                put(
                    &mut body,
                    &format!("<path class=\"asked\" d=\"M{at:.1} {:.1}v{}\"/>", y - 2.0, BAR + 3.0),
                );
            }
            y += BAR;
        }
        y += GAP;
    }
    let mut out = String::new();
    let (width, height) = (LEFT + WIDTH + 20.0, y + 18.0);
    put(
        &mut out,
        &format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"11\">\n<style>text{{fill:#333}}.grid{{stroke:#8884}}.one{{stroke:#888}}\
             .asked{{stroke:#000;stroke-width:2}}@media(prefers-color-scheme:dark){{text{{fill:#ccc}}\
             .asked{{stroke:#fff}}}}</style>"
        ),
    );
    put(&mut out, &format!("<text x=\"{LEFT}\" y=\"14\">Larder's speed, times that of</text>"));
    let mut at = LEFT + 176.0;
    for (rival, colour) in RIVALS {
        put(&mut out, &format!("<rect x=\"{at}\" y=\"6\" width=\"9\" height=\"9\" fill=\"{colour}\"/>"));
        put(&mut out, &format!("<text x=\"{}\" y=\"14\">{rival}</text>", at + 12.0));
        at += 20.0 + 5.6 * rival.len() as f64;
    }
    put(
        &mut out,
        &format!(
            "<text x=\"{LEFT}\" y=\"28\">right of 1: faster than the peer; upright marks: what is asked</text>"
        ),
    );
    for ratio in [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0] {
        let class = if ratio == 1.0 { "one" } else { "grid" };
        let at = x(ratio);
        put(&mut out, &format!("<path class=\"{class}\" d=\"M{at:.1} {}V{y:.1}\"/>", TOP - 6.0));
        put(
            &mut out,
            &format!("<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{ratio}</text>", TOP - 9.0),
        );
    }
    out.push_str(&body);
    put(&mut out, "</svg>");
    out
}

fn put(out: &mut String, line: &str) {
    writeln!(out, "{line}").expect("a string takes what is written");
}
