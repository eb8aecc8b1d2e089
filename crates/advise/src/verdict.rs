//! That which to do, in words and as lines to paste.

use crate::estimate::Estimate;
use crate::kind::Kind;
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

/// Codecs are tried with records of 128 and of 16 KiB; shorter ones than this are like the latter.
const MIDDLE_RECORD: u32 = 48 << 10;

/// A verdict.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verdict {
    /// In words.
    pub text: String,
    /// The codec that pays, where one does.
    pub compression: Option<String>,
    /// Whether deduplication pays; nothing when that is not known.
    pub dedup: Option<bool>,
    /// Properties, as `NAME=VALUE`.
    pub settings: Vec<String>,
    /// Lines to paste.
    pub commands: Vec<String>,
    /// Part of the bytes that following it saves.
    pub saves: f64,
}

/// Reason for which something is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Only a sample was read.
    Sampled,
    /// The scan was interrupted.
    Interrupted,
    /// Not all fingerprints fitted into memory, or too little could be read.
    Memory,
}

impl Why {
    fn remedy(self) -> &'static str {
        match self {
            Self::Sampled => "cannot be known from a sample; --exact tells",
            Self::Interrupted => "is not known, as it was interrupted",
            Self::Memory => "is not known",
        }
    }
}

/// A codec and what it saves, if it pays for what is known.
fn codec(folder: &FolderReport, short: bool) -> (usize, Estimate) {
    let gain = |at: usize| if short { folder.codecs[at].gain_short } else { folder.codecs[at].gain };
    // lz4 is the default; of the others the cheapest that brings enough more.
    let mut best = 0;
    for at in 1..3 {
        if gain(at).value >= gain(best).value + CODEC_PAYS {
            best = at;
        }
    }
    (best, gain(best))
}

/// The verdict over a folder.
pub fn of(folder: &FolderReport, why: Why) -> Verdict {
    let what = folder.kind.word();
    if folder.data == 0 {
        return Verdict { text: "nothing here".to_owned(), dedup: Some(false), ..Verdict::default() };
    }
    let pays = |dedup: &DedupReport, beyond: f64| {
        beyond >= DEDUP_PAYS && beyond * folder.data as f64 > 4.0 * dedup.index_disk as f64
    };
    let known: Vec<(&DedupReport, f64)> =
        folder.dedup.iter().filter_map(|dedup| Some((dedup, dedup.known()?.value))).collect();
    // The longest records among those that save about as much: of short ones there are more to look up.
    let most = known.iter().map(|(_, beyond)| *beyond).fold(0.0, f64::max);
    let near = |&&(_, beyond): &&(&DedupReport, f64)| beyond >= most - SHORTER_PAYS.max(most / 20.0);
    let chosen = known.iter().filter(near).max_by_key(|(dedup, _)| (!dedup.by_content, dedup.record));
    let chosen = chosen.filter(|(dedup, beyond)| pays(dedup, *beyond));
    // That which is not known matters when it could save more.
    let enough = chosen.map_or(DEDUP_PAYS, |(_, beyond)| beyond + SHORTER_PAYS);
    let open: Vec<&DedupReport> =
        folder.dedup.iter().filter(|dedup| dedup.known().is_none() && dedup.beyond.high >= enough).collect();

    let (best, gain) = codec(folder, chosen.is_some_and(|(dedup, _)| dedup.record < MIDDLE_RECORD));
    let compresses = gain.value >= CODEC_PAYS && (gain.is_known() || gain.low >= CODEC_PAYS);
    let may_compress = !compresses && !gain.is_known() && gain.high >= CODEC_PAYS;
    let name = &folder.codecs[best].codec;
    let (mut words, mut settings, mut saves) = (Vec::new(), Vec::new(), 0.0);
    if compresses {
        let how_much = if gain.is_known() { percent(gain.value) } else { between(gain) };
        words.push(format!("{name} saves {how_much}"));
        settings.push(format!("compression={name}"));
        saves = gain.value;
    } else if may_compress {
        words.push(format!("what {name} saves {}: {}", why.remedy(), between(gain)));
    }
    if let Some((dedup, beyond)) = chosen {
        let (record, cut) = (size(dedup.record), if dedup.by_content { " chunking=content" } else { "" });
        words.push(format!("dedup=on recordsize={record}{cut} saves {}", percent(*beyond)));
        settings.extend(["dedup=on".to_owned(), format!("recordsize={record}")]);
        if dedup.by_content {
            settings.push("chunking=content".to_owned());
        }
        saves = 1.0 - (1.0 - saves) * (1.0 - beyond);
    }
    if let Some(widest) = open.iter().max_by(|a, b| a.beyond.high.total_cmp(&b.beyond.high)) {
        let names = open.iter().map(|dedup| dedup.name()).collect::<Vec<_>>().join(", ");
        let more = if chosen.is_some() { "whether more would be saved" } else { "whether dedup pays" };
        words.push(format!("{more} with records of {names} {}: {}", why.remedy(), between(widest.beyond)));
    } else if chosen.is_none() && most >= 0.005 {
        words.push(format!("dedup saves {}, not worth it", percent(most)));
    }
    let copies = folder.whole_copies;
    let has_copies = copies.value >= COPIES_PAY && copies.is_known();
    if has_copies {
        let part = percent(copies.value);
        words.push(format!("{part} is whole copies of files, which clones or hard links save"));
    }
    let neither = !compresses && !may_compress && chosen.is_none() && open.is_empty() && !has_copies;
    let dataset = format!("tank/{}", dataset(folder));
    if neither && matches!(folder.kind, Kind::Media | Kind::Archives) {
        // Nothing of them is changed in place.
        settings.push("recordsize=1M".to_owned());
    }
    let options: String = settings.iter().map(|setting| format!("-o {setting} ")).collect();
    let commands = match (neither, settings.is_empty()) {
        (true, true) => vec![format!("larder fs create {dataset}")],
        (false, true) => Vec::new(),
        (_, false) => vec![
            format!("larder fs create {options}{dataset}"),
            format!("larder fs set {} {dataset}", settings.join(" ")),
        ],
    };
    Verdict {
        text: if neither {
            format!("neither pays here: {what}")
        } else {
            format!("{what}: {}", words.join("; "))
        },
        compression: compresses.then(|| name.clone()),
        dedup: match (chosen.is_some(), open.is_empty()) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        },
        settings,
        commands,
        saves,
    }
}

/// A range in words.
fn between(estimate: Estimate) -> String {
    format!("{:.0} to {:.0} %", 100.0 * estimate.low, 100.0 * estimate.high)
}

/// A name for a dataset after a folder's.
fn dataset(folder: &FolderReport) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prints::SCHEMES;
    use crate::report::CodecReport;

    /// Of 10 GiB: gains of the four codecs, and of records from 4K to 1M and by content.
    fn folder(codecs: [Estimate; 4], gain: impl Fn(u32, bool) -> Estimate) -> FolderReport {
        let names = ["lz4", "zstd-3", "zstd-9", "gzip-9"];
        let codec = |(name, gain): (&str, Estimate)| CodecReport {
            codec: name.to_owned(),
            gain,
            gain_short: gain,
            seconds_per_gib: 1.0,
        };
        let dedup = |scheme: &crate::Scheme| {
            let gain = gain(scheme.record, scheme.by_content);
            DedupReport {
                record: scheme.record,
                by_content: scheme.by_content,
                gain,
                beyond: gain,
                records: 0,
                index_memory: 0,
                index_disk: (10 << 30) / u64::from(scheme.record) * 34,
                zfs_memory: 0,
            }
        };
        FolderReport {
            path: "/srv/a b".into(),
            depth: 0,
            files: 10,
            size: 10 << 30,
            data: 10 << 30,
            seen: 1.0,
            kind: Kind::Other,
            codecs: names.into_iter().zip(codecs).map(codec).collect(),
            whole_copies: Estimate::around(0.0, 0.0),
            dedup: SCHEMES.iter().map(dedup).collect(),
            verdict: Verdict::default(),
        }
    }

    const NONE: Estimate = Estimate { value: 0.0, low: 0.0, high: 0.0 };

    #[test]
    fn neither_is_said_when_all_is_known_and_nothing_pays() {
        let said = of(&folder([NONE; 4], |_, _| NONE), Why::Sampled);
        assert_eq!((said.text.as_str(), said.dedup), ("neither pays here: mixed files", Some(false)));
        assert_eq!(said.commands, ["larder fs create tank/a_b"]);
    }

    #[test]
    fn what_is_not_known_is_said_and_no_verdict_rests_on_it() {
        // Of short records nothing is known; the long ones save nothing.
        let unknown = |record, _| if record < 64 << 10 { Estimate::UNKNOWN } else { NONE };
        let said = of(&folder([NONE; 4], unknown), Why::Sampled);
        assert_eq!(said.dedup, None);
        assert!(
            said.text.contains("records of 4K, 8K, 16K, 32K, 16K by content cannot be known"),
            "{}",
            said.text
        );
        assert!(said.text.contains("--exact tells") && said.commands.is_empty(), "{said:?}");
        // A range that cannot reach what pays decides.
        let little = |_, _| Estimate { value: 0.01, low: 0.0, high: 0.049 };
        assert_eq!(of(&folder([NONE; 4], little), Why::Sampled).dedup, Some(false));
        let codec = Estimate { value: 0.3, low: 0.0, high: 0.5 };
        let said = of(&folder([codec; 4], |_, _| NONE), Why::Interrupted);
        assert_eq!(said.compression, None);
        assert!(
            said.text.contains("what lz4 saves is not known, as it was interrupted: 0 to 50 %"),
            "{}",
            said.text
        );
    }

    #[test]
    fn the_longest_records_that_save_about_the_same_are_advised_and_what_may_save_more_is_told() {
        let gain = |record: u32, content: bool| match (record >> 10, content) {
            (_, true) => NONE,
            (4, _) => Estimate::UNKNOWN,
            (..=16, _) => Estimate::around(0.41, 0.01),
            _ => Estimate::around(0.2, 0.01),
        };
        let said = of(&folder([Estimate::around(0.5, 0.01); 4], gain), Why::Sampled);
        assert_eq!(said.settings, ["compression=lz4", "dedup=on", "recordsize=16K"]);
        assert_eq!(said.commands[1], "larder fs set compression=lz4 dedup=on recordsize=16K tank/a_b");
        assert!(
            said.text.contains("recordsize=16K saves 41 %; whether more would be saved with records of 4K"),
            "{}",
            said.text
        );
        assert!((said.saves - 0.705).abs() < 1e-9);
    }
}
