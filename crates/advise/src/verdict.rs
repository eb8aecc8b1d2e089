//! What to do, in words and as lines to paste.

use crate::report::{DedupReport, FolderReport};
use serde::Serialize;

/// Points that a dearer codec must gain over a cheaper one.
const CODEC_PAYS: f64 = 0.03;
/// Part that deduplication must save beyond whole copies.
const DEDUP_PAYS: f64 = 0.05;
/// Part of whole copies that is worth a word.
const COPIES_PAY: f64 = 0.05;
/// Points of gain that shorter records must bring over longer ones.
const SHORTER_PAYS: f64 = 0.03;

/// A verdict.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verdict {
    /// In words.
    pub text: String,
    /// The codec that pays, where one does.
    pub compression: Option<String>,
    /// Whether deduplication pays; nothing when that is not known.
    pub dedup: Option<bool>,
    /// Lines to paste.
    pub commands: Vec<String>,
    /// Part of the bytes that following it saves.
    pub saves: f64,
}

/// The verdict over a folder; `drawn` when anything is known about codecs.
pub fn of(folder: &FolderReport, drawn: bool) -> Verdict {
    let what = folder.kind.word();
    if folder.data == 0 {
        return Verdict { text: "nothing here".to_owned(), dedup: Some(false), ..Verdict::default() };
    }
    let gain = |at: usize| folder.codecs[at].gain.value;
    // lz4 is the default; of the others the cheapest that brings enough more.
    let mut best = 0;
    for at in 1..3 {
        if gain(at) >= gain(best) + CODEC_PAYS {
            best = at;
        }
    }
    let compresses = drawn && gain(best) >= CODEC_PAYS;
    let known: Vec<(&DedupReport, f64)> =
        folder.dedup.iter().filter_map(|dedup| Some((dedup, dedup.known()?.value))).collect();
    // The longest records among those that save about as much: of short ones there are more to look up.
    let most = known.iter().map(|(_, beyond)| *beyond).fold(0.0, f64::max);
    let near = |&&(_, beyond): &&(&DedupReport, f64)| beyond >= most - SHORTER_PAYS.max(most / 20.0);
    let chosen = known.iter().filter(near).max_by_key(|(dedup, _)| (!dedup.by_content, dedup.record));
    let pays = chosen.filter(|(dedup, beyond)| {
        *beyond >= DEDUP_PAYS && beyond * folder.data as f64 > 4.0 * dedup.index_disk as f64
    });
    let unknown = known.is_empty();
    let mut words = Vec::new();
    let mut settings = Vec::new();
    if compresses {
        let codec = &folder.codecs[best];
        words.push(format!("{} saves {}", codec.codec, percent(gain(best))));
        settings.push(format!("compression={}", codec.codec));
    }
    let mut saves = if compresses { gain(best) } else { 0.0 };
    if let Some((dedup, beyond)) = pays {
        let size = size(dedup.record);
        let cut = if dedup.by_content { " chunking=content" } else { "" };
        words.push(format!("dedup=on recordsize={size}{cut} saves {}", percent(*beyond)));
        settings.push("dedup=on".to_owned());
        settings.push(format!("recordsize={size}"));
        if dedup.by_content {
            settings.push("chunking=content".to_owned());
        }
        saves = 1.0 - (1.0 - saves) * (1.0 - beyond);
    } else if unknown {
        words.push("whether dedup pays cannot be known from a sample; --exact tells".to_owned());
    } else if most >= 0.005 {
        words.push(format!("dedup saves {}, not worth it", percent(most)));
    }
    let copies = folder.whole_copies.value;
    if copies >= COPIES_PAY {
        words.push(format!("{} is whole copies of files, which clones or hard links save", percent(copies)));
    }
    let neither = !compresses && pays.is_none() && !unknown && copies < COPIES_PAY;
    let text = if neither { format!("neither pays here: {what}") } else { format!("{what}: {}", words.join("; ")) };
    let dataset = format!("tank/{}", name(folder));
    let commands = if settings.is_empty() {
        vec![format!("larder fs create -o recordsize=1M {dataset}")]
    } else {
        let options: Vec<_> = settings.iter().map(|setting| format!("-o {setting}")).collect();
        vec![
            format!("larder fs create {} {dataset}", options.join(" ")),
            format!("larder fs set {} {dataset}", settings.join(" ")),
        ]
    };
    Verdict {
        text,
        compression: compresses.then(|| folder.codecs[best].codec.clone()),
        dedup: (!unknown).then_some(pays.is_some()),
        commands,
        saves,
    }
}

/// A name for a dataset after a folder's.
fn name(folder: &FolderReport) -> String {
    let last = folder.path.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
    let name: String = last.chars().map(plain).take(64).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "data".to_owned() } else { name.to_owned() }
}

/// A record's length as properties have it.
pub fn size(record: u32) -> String {
    if record >= 1 << 20 { format!("{}M", record >> 20) } else { format!("{}K", record >> 10) }
}

/// A part as per cent.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}
