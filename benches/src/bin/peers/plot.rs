//! The plot: how many times as fast Larder is as each peer, in groups, on a logarithmic scale.

use crate::report::{Results, TARGETS, metric_title};
use crate::works::{Metric, Work};
use larder_benches::peer::Peer;
use larder_benches::plot::{Anchor, Page, colour};

/// Peers that Larder is compared with.
const RIVALS: [&str; 5] = ["passthrough", "ext4", "xfs", "btrfs", "zfs-fuse"];
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
    let mut bars = Page::default();
    let x = |ratio: f64| {
        let part = ratio.clamp(1.0 / ENDS, ENDS).ln() / ENDS.ln();
        LEFT + WIDTH / 2.0 * (1.0 + part)
    };
    let mut y = TOP;
    for metric in Metric::ALL {
        let rivals: Vec<_> = RIVALS
            .iter()
            .filter_map(|&rival| {
                let (ours, theirs) = pair(metric, rival);
                Some((results.ratio(metric, ours, theirs)?, rival, (ours, theirs)))
            })
            .collect();
        if rivals.is_empty() {
            continue;
        }
        let middle = y + rivals.len() as f64 * BAR / 2.0 + 4.0;
        bars.text(LEFT - 8.0, middle, Anchor::End, &metric_title(metric));
        for (ratio, rival, pair) in rivals {
            let (from, to) = (x(ratio.min(1.0)), x(ratio.max(1.0)));
            bars.put(&format!(
                "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\">\
                 <title>{} / {rival}: {ratio:.2}</title></rect>",
                (to - from).max(1.0),
                BAR - 1.0,
                colour(rival),
                pair.0.name()
            ));
            let asked = TARGETS.iter().find(|target| {
                !target.tail && target.metric == metric && (target.ours, target.theirs) == pair
            });
            if let Some(asked) = asked.and_then(|target| target.asked) {
                bars.path("asked", &format!("M{:.1} {:.1}v{}", x(asked), y - 2.0, BAR + 3.0));
            }
            y += BAR;
        }
        y += GAP;
    }
    let mut page = Page::default();
    page.text(LEFT, 14.0, Anchor::Start, "Larder's speed, times that of");
    RIVALS.iter().fold(LEFT + 176.0, |at, rival| page.key(at, 14.0, rival));
    let legend = "right of 1: faster than the peer; upright marks: what is asked";
    page.text(LEFT, 28.0, Anchor::Start, legend);
    for ratio in [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0] {
        let class = if ratio == 1.0 { "one" } else { "grid" };
        page.path(class, &format!("M{:.1} {}V{y:.1}", x(ratio), TOP - 6.0));
        page.text(x(ratio), TOP - 9.0, Anchor::Middle, &ratio.to_string());
    }
    page.put(bars.body().trim_end());
    page.svg(LEFT + WIDTH + 20.0, y + 18.0)
}
