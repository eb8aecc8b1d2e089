//! A plan as one page: each candidate a dot, its usable space against the chance that a block is lost.

use super::page::{escape, page};
use super::plan::{Depth, odds, text};
use larder_plan::{Candidate, Plan};
use larder_pool::property::format_size;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 520.0;
/// Room for numbers and words beside the picture.
const LEFT: f64 = 110.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 50.0;
/// The smallest chance that is drawn apart.
const LEAST: f64 = 1e-12;
/// Pixels that a name needs for itself.
const LINE: f64 = 13.0;

const WORDS: [(&str, &str); 7] = [
    ("single", "#c0392b"),
    ("mirror", "#8e44ad"),
    ("raidz1", "#d68910"),
    ("raidz2", "#1e8449"),
    ("raidz3", "#148f77"),
    ("raid10", "#2471a3"),
    ("raid14", "#1a5276"),
];

/// Powers of ten of chances, from the bottom to the top of the picture.
fn range(plan: &Plan) -> (f64, f64) {
    let powers = plan.candidates.iter().map(power);
    let (low, high) =
        powers.fold((0.0, -12.0), |(low, high): (f64, f64), power| (low.min(power), high.max(power)));
    (low.floor(), (high.ceil()).max(low.floor() + 1.0))
}

fn power(candidate: &Candidate) -> f64 {
    candidate.risk.block_lost.max(LEAST).log10()
}

fn picture(plan: &Plan) -> String {
    let most = plan.candidates.iter().map(|candidate| candidate.usable).max().unwrap_or(1) as f64 * 1.05;
    let (low, high) = range(plan);
    let x = |usable: f64| LEFT + usable / most * (WIDTH - LEFT - RIGHT);
    // Up is safer.
    let y = |power: f64| TOP + (power - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut svg = String::new();
    let mut line = |text: String| svg.push_str(&text);
    let every = ((high - low) / 8.0).ceil().max(1.0);
    let mut at = low;
    while at <= high {
        line(format!(
            "<line class='grid' x1='{LEFT}' x2='{:.0}' y1='{2:.1}' y2='{2:.1}'/><text x='{:.0}' y='{3:.1}' class='end'>{4}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(at),
            y(at) + 4.0,
            odds(10f64.powf(at)).replace("100 %", "every year")
        ));
        at += every;
    }
    for step in 0..=5 {
        let usable = most * f64::from(step) / 5.0;
        line(format!(
            "<line class='grid' x1='{0:.1}' x2='{0:.1}' y1='{TOP}' y2='{1:.0}'/><text x='{0:.1}' y='{2:.0}' class='mid'>{3}</text>",
            x(usable),
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0,
            format_size(usable as u64)
        ));
    }
    let accepted = plan.assumptions.accept_block.max(LEAST).log10();
    if (low..=high).contains(&accepted) {
        line(format!(
            "<line class='limit' x1='{LEFT}' x2='{:.0}' y1='{1:.1}' y2='{1:.1}'/>",
            WIDTH - RIGHT,
            y(accepted)
        ));
    }
    line(format!(
        "<text x='{:.0}' y='{:.0}' class='mid'>space for files</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0
    ));
    line("<text x='4' y='14'>a block is lost within a year</text>".to_owned());
    let mut named: Vec<(f64, f64)> = Vec::new();
    for (at, candidate) in plan.candidates.iter().enumerate() {
        let (cx, cy) = (x(candidate.usable as f64), y(power(candidate)));
        let colour =
            WORDS.iter().find(|(word, _)| *word == candidate.word).map_or("#555", |(_, colour)| colour);
        let is_best = plan.recommended == Some(at);
        let title = format!(
            "{}: {}; a block is lost in a year: {}, the pool: {}",
            candidate.name,
            format_size(candidate.usable),
            odds(candidate.risk.block_lost),
            odds(candidate.risk.pool_lost)
        );
        line(format!(
            "<g><title>{}</title><circle cx='{cx:.1}' cy='{cy:.1}' r='{}' fill='{colour}'{}/></g>",
            escape(&title),
            if is_best { 9 } else { 5 },
            if is_best { " class='best'" } else { "" }
        ));
        // Those that are told in the table have their names, where there is room.
        let is_free =
            named.iter().all(|(other, down)| (down - cy).abs() > LINE || (other - cx).abs() > 150.0);
        if is_best || plan.shown.contains(&at) && is_free {
            named.push((cx, cy));
            line(format!(
                "<text x='{:.1}' y='{:.1}'>{}</text>",
                cx + if is_best { 16.0 } else { 12.0 },
                cy + 4.0,
                escape(&candidate.name)
            ));
        }
    }
    svg
}

/// The page.
pub fn html(plan: &Plan) -> String {
    let words: String = WORDS
        .iter()
        .filter(|(word, _)| plan.candidates.iter().any(|candidate| candidate.word == *word))
        .map(|(word, colour)| format!("<span style='color:{colour}'>&#9679;</span> {word} "))
        .collect();
    let depth = Depth { all: true, verbose: true, exact: false };
    let body = format!(
        "<h1>Layouts of {} disks</h1>
<p>Each dot is a layout: further right is more space, further up is safer. The ring is the one to take; below the dashed
line a block is lost more often than is accepted. {words}</p>
<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>{}</svg>
<pre>{}</pre>\n",
        plan.disks.len(),
        picture(plan),
        escape(&text(plan, depth))
    );
    let style = "text { font: 12px sans-serif; fill: CanvasText }
.end { text-anchor: end }
.mid { text-anchor: middle }
.grid { stroke: GrayText; stroke-width: 0.4 }
.limit { stroke: #c0392b; stroke-width: 1.5; stroke-dasharray: 6 5 }
.best { stroke: CanvasText; stroke-width: 3 }
";
    page("Layouts", style, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_plan::{Assumptions, Disk, plan};

    #[test]
    fn every_candidate_is_a_dot_within_the_picture() {
        for count in [1, 2, 6, 24] {
            let disks = (0..count).map(|at| Disk::of_size(format!("<{at}>"), 4_000_000_000_000)).collect();
            let plan = plan(disks, 0, 0, Assumptions::default());
            let svg = picture(&plan);
            assert_eq!(svg.matches("<circle").count(), plan.candidates.len());
            assert_eq!(svg.matches("class='best'").count(), 1);
            for part in svg.split("<circle cx='").skip(1) {
                let number = |text: &str| text.split('\'').next().unwrap().parse::<f64>().unwrap();
                let (cx, cy) = (number(part), number(part.split("cy='").nth(1).unwrap()));
                assert!(
                    (LEFT..=WIDTH - RIGHT).contains(&cx) && (TOP..=HEIGHT - BOTTOM).contains(&cy),
                    "{cx} {cy}"
                );
            }
            let page = html(&plan);
            assert!(!page.contains("<0>") && page.contains("&lt;0&gt;"));
            assert!(!page.contains("href=") && !page.contains("src="));
        }
    }
}
