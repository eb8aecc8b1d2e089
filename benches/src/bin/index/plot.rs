//! The plot: rates and bytes a fingerprint over the number of fingerprints.

use crate::row::Figures;
use larder_benches::plot::{Anchor, Page, colour};

const LEFT: f64 = 60.0;
const TOP: f64 = 58.0;
const WIDTH: f64 = 200.0;
const HEIGHT: f64 = 120.0;
const ACROSS: f64 = 262.0;
const DOWN: f64 = 166.0;
/// Bytes of memory of an entry of a ZFS dedup table.
const ZFS: f64 = 320.0;

/// A panel: its title, what it shows, and what is asked for, if anything.
type Panel = (&'static str, fn(&Figures) -> Option<f64>, Option<f64>);

const PANELS: [Panel; 6] = [
    ("look-ups of new ones, a second", |row| Some(row.misses), None),
    ("new ones looked up and inserted, a second", |row| Some(row.look_up_and_insert), None),
    ("hits in order of writing, a second", |row| row.hits_in_order, None),
    ("hits at random, a second", |row| Some(row.hits_random), None),
    ("bytes of memory (RSS), a fingerprint", |row| Some(row.resident), Some(2.0)),
    ("bytes of disk, block map included", |row| row.disk_with_map.or(Some(row.disk)), Some(40.0)),
];

/// The plot as SVG.
pub fn svg(rows: &[Figures]) -> String {
    let mut page = Page::default();
    page.text(
        LEFT,
        14.0,
        Anchor::Start,
        "along: fingerprints in the index; thick: what is asked for from 100,000,000 on",
    );
    let at = page.key(LEFT, 30.0, "larder");
    let at = page.key(at, 30.0, "redb");
    page.key(at, 30.0, "zfs-fuse: 320 bytes of memory an entry");
    let log = |count: u64| (count as f64).log10();
    let least = rows.iter().map(|row| log(row.count)).fold(f64::MAX, f64::min).floor();
    let most = rows.iter().map(|row| log(row.count)).fold(0.0, f64::max).ceil().max(least + 1.0);
    for (n, (title, of, asked)) in PANELS.iter().enumerate() {
        let left = LEFT + (n % 3) as f64 * ACROSS;
        let top = TOP + (n / 3) as f64 * DOWN;
        let points: Vec<_> =
            rows.iter().filter_map(|row| Some((row, of(row).filter(|y| *y > 0.0)?))).collect();
        let zfs = (n == 4).then_some(ZFS);
        let values = || points.iter().map(|(_, y)| *y).chain(*asked).chain(zfs);
        let low = values().fold(f64::MAX, f64::min).log10().floor();
        let high = values().fold(0.0, f64::max).log10().ceil().max(low + 1.0);
        let x = |log: f64| left + WIDTH * (log - least) / (most - least);
        let y = |value: f64| top + HEIGHT * (high - value.log10()) / (high - low);
        page.text(left, top - 8.0, Anchor::Start, title);
        for power in low as i32..=high as i32 {
            let tick = 10_f64.powi(power);
            page.path("grid", &format!("M{left:.1} {:.1}h{WIDTH}", y(tick)));
            page.text(left - 5.0, y(tick) + 4.0, Anchor::End, &short(tick));
        }
        for power in least as i32..=most as i32 {
            let label = format!("10^{power}");
            page.text(x(f64::from(power)), top + HEIGHT + 14.0, Anchor::Middle, &label);
        }
        page.path("one", &format!("M{left:.1} {top:.1}v{HEIGHT}h{WIDTH}"));
        if let Some(asked) = asked.filter(|_| most >= 8.0) {
            page.path("asked", &format!("M{:.1} {:.1}H{:.1}", x(8.0), y(asked), left + WIDTH));
        }
        if let Some(zfs) = zfs {
            page.put(&format!(
                "<path style=\"stroke:{}\" stroke-dasharray=\"4 3\" d=\"M{left:.1} {:.1}h{WIDTH}\"/>",
                colour("zfs-fuse"),
                y(zfs)
            ));
        }
        for who in ["larder", "redb"] {
            let line = points.iter().filter(|(row, _)| row.who == who);
            let line: Vec<_> = line.map(|(row, value)| (x(log(row.count)), y(*value))).collect();
            let path: Vec<_> = line.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
            let colour = colour(who);
            page.put(&format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", path.join(" ")));
            for (x, y) in line {
                page.put(&format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>"));
            }
        }
    }
    page.svg(LEFT + 3.0 * ACROSS - 30.0, TOP + 2.0 * DOWN - 16.0)
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v if v >= 1e3 => format!("{}k", v / 1e3),
        v => v.to_string(),
    }
}
