//! That which to do, in words and as lines to paste.

use crate::estimate::Estimate;
use crate::figures::{DedupReport, FolderReport, Verdict, percent, size};
use crate::kind::Kind;

/// Points that a dearer codec must gain over a cheaper one.
const CODEC_PAYS: f64 = 0.03;
/// Part that deduplication must save beyond whole copies.
const DEDUP_PAYS: f64 = 0.05;
/// Part of whole copies that is worth a word.
const COPIES_PAY: f64 = 0.05;
/// Points of gain that shorter records must bring over longer ones.
const SHORTER_PAYS: f64 = 0.03;

/// Part of what is left after compression that deduplication must save, compression with its records considered.
const TOGETHER_PAYS: f64 = 0.05;
/// The `recordsize` of a dataset that nobody chose one for.
const DEFAULT_RECORD: u32 = 128 << 10;

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

/// The codec that pays best with records of a length, and what it saves.
fn codec(folder: &FolderReport, record: u32) -> (usize, Estimate) {
    let gain = |at: usize| folder.codecs[at].at(record);
    // lz4 is the default; of the others the cheapest that brings enough more.
    let mut best = 0;
    for at in 1..3 {
        if gain(at).value >= gain(best).value + CODEC_PAYS {
            best = at;
        }
    }
    (best, gain(best))
}

/// The longest `recordsize` that every pool takes which such data is for: at most a quarter of a slot of its devices.
fn longest_record(data: u64) -> u32 {
    match data >> 30 {
        0..2 => 256 << 10,
        2..4 => 512 << 10,
        _ => 1 << 20,
    }
}

/// Deduplication with records of one length.
struct Choice<'a> {
    dedup: &'a DedupReport,
    /// Part that it saves beyond whole copies.
    beyond: f64,
    /// Part that it saves together with compression of such records.
    together: f64,
}

impl<'a> Choice<'a> {
    fn of(folder: &FolderReport, dedup: &'a DedupReport, beyond: f64) -> Self {
        let (_, gain) = codec(folder, dedup.record);
        Self { dedup, beyond, together: 1.0 - (1.0 - gain.value) * (1.0 - beyond) }
    }

    /// Whether it is worth its index, and the worse compression of short records.
    fn pays(&self, folder: &FolderReport) -> bool {
        let (_, plain) = codec(folder, DEFAULT_RECORD);
        self.beyond >= DEDUP_PAYS
            && self.beyond * folder.data as f64 > 4.0 * self.dedup.index_disk as f64
            && 1.0 - self.together <= (1.0 - TOGETHER_PAYS) * (1.0 - plain.value)
    }
}

/// The verdict over a folder.
pub fn of(folder: &FolderReport, why: Why) -> Verdict {
    let what = folder.kind.word();
    if folder.data == 0 {
        return Verdict { text: "nothing here".to_owned(), dedup: Some(false), ..Verdict::default() };
    }
    let longest = longest_record(folder.data);
    let possible = || folder.dedup.iter().filter(|dedup| dedup.record <= longest);
    let known: Vec<Choice<'_>> =
        possible().filter_map(|dedup| Some(Choice::of(folder, dedup, dedup.known()?.value))).collect();
    // The longest records among those that save about as much: of short ones there are more to look up.
    let most = known.iter().map(|choice| choice.together).fold(0.0, f64::max);
    let near = |choice: &&Choice<'_>| choice.together >= most - SHORTER_PAYS.max(most / 20.0);
    let chosen =
        known.iter().filter(near).max_by_key(|choice| (!choice.dedup.by_content, choice.dedup.record));
    let chosen = chosen.filter(|choice| choice.pays(folder));
    // That which is not known matters when it could save more.
    let open: Vec<&DedupReport> = possible()
        .filter(|dedup| {
            let at_most = Choice::of(folder, dedup, dedup.beyond.high);
            let matters = chosen
                .map_or_else(|| at_most.pays(folder), |it| at_most.together >= it.together + SHORTER_PAYS);
            dedup.known().is_none() && matters
        })
        .collect();

    let (best, gain) = codec(folder, chosen.map_or(DEFAULT_RECORD, |choice| choice.dedup.record));
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
    if let Some(Choice { dedup, beyond, .. }) = chosen {
        let (record, cut) = (size(dedup.record), if dedup.by_content { " chunking=content" } else { "" });
        words.push(format!("dedup=on recordsize={record}{cut} saves {}", percent(*beyond)));
        settings.extend(["dedup=on".to_owned(), format!("recordsize={record}")]);
        if dedup.by_content {
            settings.push("chunking=content".to_owned());
        }
        saves = 1.0 - (1.0 - saves) * (1.0 - beyond);
    }
    let best_beyond = known.iter().max_by(|a, b| a.beyond.total_cmp(&b.beyond));
    if let Some(widest) = open.iter().max_by(|a, b| a.beyond.high.total_cmp(&b.beyond.high)) {
        let names = open.iter().map(|dedup| dedup.name()).collect::<Vec<_>>().join(", ");
        let more = if chosen.is_some() { "whether more would be saved" } else { "whether dedup pays" };
        words.push(format!("{more} with records of {names} {}: {}", why.remedy(), between(widest.beyond)));
    } else if let (None, Some(best)) = (chosen, best_beyond.filter(|best| best.beyond >= 0.005)) {
        let saved = percent(best.beyond);
        words.push(if best.beyond < DEDUP_PAYS {
            format!("dedup saves {saved}, not worth it")
        } else {
            format!("dedup saves {saved} with records of {}, not worth what they cost", best.dedup.name())
        });
    }
    let copies = folder.whole_copies;
    let has_copies = copies.value >= COPIES_PAY && copies.is_known();
    if has_copies {
        let part = percent(copies.value);
        words.push(format!("{part} is whole copies of files, which clones or hard links save"));
    }
    let is_known = !may_compress && open.is_empty();
    let neither = is_known && !compresses && chosen.is_none() && !has_copies;
    let dataset = format!("tank/{}", dataset(folder));
    if neither && matches!(folder.kind, Kind::Media | Kind::Archives) && longest == 1 << 20 {
        // Nothing of them is changed in place.
        settings.push("recordsize=1M".to_owned());
    }
    let options: String = settings.iter().map(|setting| format!("-o {setting} ")).collect();
    let mut commands = Vec::new();
    if is_known || !settings.is_empty() {
        commands.push(format!("larder fs create {options}{dataset}"));
    }
    if !settings.is_empty() {
        commands.push(format!("larder fs set {} {dataset}", settings.join(" ")));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::CodecReport;
    use crate::prints::SCHEMES;

    /// Of 10 GiB: gains of the four codecs, and of records from 4K to 1M and by content.
    fn folder(codecs: [Estimate; 4], gain: impl Fn(u32, bool) -> Estimate) -> FolderReport {
        let names = ["lz4", "zstd-3", "zstd-9", "gzip-9"];
        let codec = |(name, gain): (&str, Estimate)| CodecReport {
            codec: name.to_owned(),
            gain,
            gain_16k: gain,
            gain_4k: gain,
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

    #[test]
    fn short_records_that_compress_worse_than_they_share_are_not_advised() {
        let gain = |record: u32, content: bool| match (record >> 10, content) {
            (4, false) => Estimate::around(0.2, 0.01),
            _ => NONE,
        };
        let mut told = folder([Estimate::around(0.6, 0.01); 4], gain);
        let said = of(&told, Why::Sampled);
        assert_eq!(said.settings, ["compression=lz4", "dedup=on", "recordsize=4K"]);
        // Records of 4K shrink less: 0.5 and 0.2 save as much together as 0.6 alone.
        told.codecs.iter_mut().for_each(|codec| codec.gain_4k = Estimate::around(0.5, 0.01));
        let said = of(&told, Why::Sampled);
        assert_eq!(
            (said.settings.as_slice(), said.dedup),
            (&["compression=lz4".to_owned()][..], Some(false))
        );
        assert!(
            said.text.contains("dedup saves 20 % with records of 4K, not worth what they cost"),
            "{}",
            said.text
        );
    }

    #[test]
    fn records_are_no_longer_than_a_pool_for_such_data_takes() {
        let mut told =
            folder([NONE; 4], |_, by_content| if by_content { NONE } else { Estimate::around(0.4, 0.01) });
        assert_eq!(of(&told, Why::Sampled).settings, ["dedup=on", "recordsize=1M"]);
        told.data = 1 << 30;
        told.dedup.iter_mut().for_each(|dedup| dedup.index_disk /= 10);
        assert_eq!(of(&told, Why::Sampled).settings, ["dedup=on", "recordsize=256K"]);
        told.dedup.iter_mut().for_each(|dedup| dedup.beyond = NONE);
        told.kind = Kind::Media;
        assert_eq!(of(&told, Why::Sampled).commands, ["larder fs create tank/a_b"]);
    }
}
