//! Advice as one page: folders by size, gain in colour. Nothing on it comes from elsewhere.

use super::advise::name;
use super::page::{escape, page};
use larder_advise::{FolderReport, Report};
use larder_pool::property::format_size;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 560.0;
/// Room for the name of a folder that has others in it.
const HEAD: f64 = 18.0;

/// A rectangle.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Area {
    x: f64,
    y: f64,
    w: f64,
    h: f64,
}

/// Divides an area in proportion to sizes, which sum up to `total` or less, the largest first: Bruls, Huizing and van
/// Wijk, "Squarified Treemaps" (2000).
fn divide(area: Area, sizes: &[f64], total: f64) -> Vec<Area> {
    let (mut left, mut at, mut placed) = (area, 0, Vec::new());
    let scale = area.w * area.h / total.max(1e-9);
    while at < sizes.len() {
        let side = left.w.min(left.h).max(1e-9);
        let worst = |row: &[f64]| {
            let sum: f64 = row.iter().sum::<f64>() * scale;
            let ratio = |size: &f64| {
                (side * side * size * scale / (sum * sum)).max(sum * sum / (side * side * size * scale))
            };
            row.iter().map(ratio).fold(0.0, f64::max)
        };
        let mut end = at + 1;
        while end < sizes.len() && worst(&sizes[at..=end]) <= worst(&sizes[at..end]) {
            end += 1;
        }
        let deep = sizes[at..end].iter().sum::<f64>() * scale / side;
        let mut along = 0.0;
        for size in &sizes[at..end] {
            let long = size * scale / deep.max(1e-9);
            placed.push(match left.w >= left.h {
                true => Area { x: left.x, y: left.y + along, w: deep, h: long },
                false => Area { x: left.x + along, y: left.y, w: long, h: deep },
            });
            along += long;
        }
        left = match left.w >= left.h {
            true => Area { x: left.x + deep, w: (left.w - deep).max(0.0), ..left },
            false => Area { y: left.y + deep, h: (left.h - deep).max(0.0), ..left },
        };
        at = end;
    }
    placed
}

fn colour(saves: f64) -> String {
    let saves = saves.clamp(0.0, 0.8) / 0.8;
    format!("hsl({:.0} {:.0}% {:.0}%)", 210.0 - 90.0 * saves, 12.0 + 48.0 * saves, 68.0 - 18.0 * saves)
}

/// Draws a folder, and in it those of the report that lie in it.
fn draw(report: &Report, at: usize, area: Area, svg: &mut String) {
    let folder = &report.folders[at];
    let saves = folder.verdict.saves;
    let Area { x, y, w, h } = area;
    let shown = escape(&name(report, folder));
    let title = format!(
        "{shown}: {}, {} files. {}",
        format_size(folder.data),
        folder.files,
        escape(&folder.verdict.text)
    );
    svg.push_str(&format!(
        "<g><title>{title}</title><rect x='{x:.1}' y='{y:.1}' width='{w:.1}' height='{h:.1}' fill='{}'/>",
        colour(saves)
    ));
    if w > 60.0 && h > HEAD {
        let last = folder.path.file_name().map_or(shown.clone(), |name| escape(&name.to_string_lossy()));
        let room = (w / 7.0) as usize;
        let label: String = format!("{last} {:.0} %", saves * 100.0).chars().take(room).collect();
        svg.push_str(&format!("<text x='{:.1}' y='{:.1}'>{label}</text>", x + 4.0, y + 13.0));
    }
    svg.push_str("</g>");
    let inner = Area { x: x + 2.0, y: y + HEAD, w: w - 4.0, h: h - HEAD - 2.0 };
    if inner.w < 8.0 || inner.h < 8.0 {
        return;
    }
    let mut below = right_below(report, at);
    below.sort_by_key(|&at| std::cmp::Reverse(report.folders[at].data));
    let sizes: Vec<f64> = below.iter().map(|&at| report.folders[at].data as f64).collect();
    for (at, area) in below.into_iter().zip(divide(inner, &sizes, folder.data as f64)) {
        draw(report, at, area, svg);
    }
}

/// Folders of the report that lie in one, and in no other that does.
fn right_below(report: &Report, at: usize) -> Vec<usize> {
    let mut below: Vec<usize> = Vec::new();
    let is_in = |inner: &FolderReport, outer: &FolderReport| {
        outer.path.as_os_str().is_empty() || inner.path.starts_with(&outer.path)
    };
    for other in at + 1..report.folders.len() {
        let folder = &report.folders[other];
        let nested = below.iter().any(|&one| is_in(folder, &report.folders[one]));
        if is_in(folder, &report.folders[at]) && !nested {
            below.push(other);
        }
    }
    below
}

/// The page.
pub fn html(report: &Report) -> String {
    let mut svg = String::new();
    if !report.folders.is_empty() {
        draw(report, 0, Area { x: 0.0, y: 0.0, w: WIDTH, h: HEIGHT }, &mut svg);
    }
    let text = escape(&super::advise::text(report, None, false));
    let title = report.folders.first().map_or(String::new(), |folder| escape(&name(report, folder)));
    let body = format!(
        "<h1>{title}</h1>
<p>Area is size; the greener, the more the advice saves. Point at a folder for its verdict.</p>
<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>{svg}</svg>
<pre>{text}</pre>\n"
    );
    let style = "rect { stroke: Canvas; stroke-width: 1.5 }\ntext { font: 11px sans-serif; fill: #111 }\n";
    page(&format!("Advice: {title}"), style, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_divided_without_gaps_and_overlaps() {
        let whole = Area { x: 1.0, y: 2.0, w: 60.0, h: 40.0 };
        let sizes = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0];
        let parts = divide(whole, &sizes, 24.0);
        for (part, size) in parts.iter().zip(sizes) {
            assert!((part.w * part.h - size * 100.0).abs() < 1e-6, "{part:?} of {size}");
            assert!(
                part.x >= 0.999 && part.y >= 1.999 && part.x + part.w <= 61.001 && part.y + part.h <= 42.001
            );
        }
        let apart = |a: &Area, b: &Area| {
            a.x + a.w <= b.x + 1e-6
                || b.x + b.w <= a.x + 1e-6
                || a.y + a.h <= b.y + 1e-6
                || b.y + b.h <= a.y + 1e-6
        };
        for (at, one) in parts.iter().enumerate() {
            assert!(parts[at + 1..].iter().all(|other| apart(one, other)));
        }
    }
}
