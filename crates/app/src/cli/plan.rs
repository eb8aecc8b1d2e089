//! `larder plan`: layouts that disks could have, compared before a pool is made.

use super::args::{self, Json};
use super::out;
use crate::api::{ApiError, ErrorKind, Result};
use crate::disks;
use crate::render;
use crate::render::plan::Depth;
use larder_plan::{Assumptions, Disk, Kind, MOST_DISKS, is_sizes, plan};
use std::collections::HashSet;
use std::path::PathBuf;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Disks are named, or told as sizes: decimal as they are sold (16T), binary with an i (14.5TiB). With none
given it plans with all disks of this machine that nobody uses. It reads only, and needs no daemon and no pool; root
sees more of disks, and so does an installed smartctl.
Exit codes: 0 done, 1 failed, 2 bad usage.
Examples: larder plan 6x16T 2x4T
          larder plan --price 16T=280 --price 4T=90 --html plan.html 6x16T 2x4T
          larder plan --measure /dev/sda /dev/sdb /dev/sdc /dev/sdd
          larder plan -v --afr 3 --correlated 10 --replace-within 168 6x16T"
)]
pub struct Args {
    /// The sizes are those of SSDs
    #[arg(long)]
    ssd: bool,
    /// Set aside so many disks as spares
    #[arg(long, value_name = "N", default_value_t = 0)]
    spares: usize,
    /// Price of a disk, or of those of a size
    #[arg(long, value_name = "[SIZE=]PRICE")]
    price: Vec<String>,
    /// Measure the disks: reads only, some six seconds each
    #[arg(long)]
    measure: bool,
    /// Measure streams read and written in turn, in DIR on such a disk: takes 1 GiB there for ten seconds
    #[arg(long, value_name = "DIR")]
    measure_writes: Option<PathBuf>,
    /// Per cent of disks that fail in a year [default: 1.57, SSDs 0.98]
    #[arg(long, value_name = "PERCENT", value_parser = |text: &str| number(text, 0.01, 99.0))]
    afr: Option<f64>,
    /// Factor by which the others fail more often for each disk that is lost [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = |text: &str| number(text, 1.0, 1000.0))]
    correlated: Option<f64>,
    /// Bits read for each bad sector, 1e14 or 1e15 on data sheets [default: 1e15]
    #[arg(long, value_name = "BITS")]
    ure: Option<f64>,
    /// Hours until a new disk is in the place of a lost one [default: 72]
    #[arg(long, value_name = "HOURS", value_parser = |text: &str| number(text, 0.0, 100_000.0))]
    replace_within: Option<f64>,
    /// Part of the space that is in use, which is what rebuilds copy [default: 80%]
    #[arg(long, value_name = "PERCENT", value_parser = |text: &str| number(text, 1.0, 100.0))]
    full: Option<f64>,
    /// Bytes a second that are written to a new disk [default: half of its stream]
    #[arg(long, value_name = "RATE")]
    rebuild_rate: Option<String>,
    /// Bytes a second that the machine moves, of all disks together [default: 1500M]
    #[arg(long, value_name = "RATE")]
    host_rate: Option<String>,
    /// Scrubs a year [default: 12]
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 0.0, 400.0))]
    scrubs: Option<f64>,
    /// Bytes a second of a disk, where it is not measured [default: 160M; SSDs 500M, by NVMe 2000M]
    #[arg(long, value_name = "RATE")]
    stream: Option<String>,
    /// Reads a second at random of a disk, where it is not measured [default: 75; SSDs 8000]
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 1.0, 1e7))]
    reads: Option<f64>,
    /// Bytes a second of streams read and written in turn that each TB is to give [default: 18M]
    #[arg(long, value_name = "RATE")]
    bulk: Option<String>,
    /// Years in which losing the pool once is safe enough [default: 10000], and some block [default: 1000]
    #[arg(long, value_name = "POOL,BLOCK")]
    accept: Option<String>,
    /// Show all layouts
    #[arg(short = 'a', long)]
    all: bool,
    /// Show all figures of those that are shown
    #[arg(short = 'v')]
    verbose: bool,
    /// Exact numbers: bytes, chances
    #[arg(short = 'p')]
    exact: bool,
    /// Write a page with the picture: space for files against risk
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
    /// Disks, or sizes as in 6x16T
    #[arg(value_name = "DEVICE|SIZES")]
    disks: Vec<String>,
}

/// A number from `least` to `most`, in per cent if it says so.
fn number(text: &str, least: f64, most: f64) -> std::result::Result<f64, String> {
    let number: Option<f64> = text.trim_end_matches('%').parse().ok();
    let within = |number: &f64| (least..=most).contains(number);
    number.filter(within).ok_or_else(|| format!("'{text}' is no number from {least} to {most}"))
}

/// Runs it.
pub fn run(args: &Args) -> Result<u8> {
    let mut assume = assumptions(args)?;
    let mut found = find(&args.disks, if args.ssd { Kind::Ssd } else { Kind::Hdd })?;
    if found.len() > MOST_DISKS {
        return Err(ApiError::usage(format!("{} disks: a pool takes {MOST_DISKS} at most", found.len())));
    }
    if args.spares >= found.len() {
        return Err(ApiError::usage(format!(
            "--spares {} of {} disks leaves none",
            args.spares,
            found.len()
        )));
    }
    price(&mut found, &args.price)?;
    if args.measure {
        if args.disks.iter().any(|word| is_sizes(word)) {
            return Err(ApiError::usage("--measure takes disks that are there; these are sizes")
                .hint("larder plan --measure /dev/sda /dev/sdb"));
        }
        for disk in &mut found {
            if out::is_watched() {
                out::complain(&format!("measuring {}, reading only", disk.short));
            }
            disk.measured = Some(disks::measure(&disk.name)?);
        }
    }
    if let Some(folder) = &args.measure_writes {
        assume.interleaved = disks::in_turn(folder)?;
    }
    // Of sizes it is not known which machine they are for.
    let is_here = !args.disks.iter().any(|word| is_sizes(word));
    let memory = if is_here { disks::memory() } else { 0 };
    let plan = plan(found, args.spares, memory, assume);
    if let Some(file) = &args.html {
        let page = render::plan_page::html(&plan);
        let path = args::absolute(file)?;
        std::fs::write(&path, page)
            .map_err(|error| ApiError::new(ErrorKind::Denied, format!("cannot write '{path}': {error}")))?;
    }
    if args.json.json {
        out::print_json(&render::json::reply("larder plan", &plan));
    } else {
        let depth = Depth { all: args.all, verbose: args.verbose, exact: args.exact };
        out::print(&render::plan::text(&plan, depth));
    }
    Ok(0)
}

fn assumptions(args: &Args) -> Result<Assumptions> {
    let mut assume = Assumptions::default();
    if let Some(afr) = args.afr {
        (assume.afr_hdd, assume.afr_ssd) = (afr / 100.0, afr / 100.0);
    }
    if let Some(stream) = &args.stream {
        let stream = decimal(stream)?;
        (assume.hdd_stream, assume.ssd_stream, assume.nvme_stream) = (stream, stream, stream);
    }
    if let Some(reads) = args.reads {
        (assume.hdd_reads, assume.ssd_reads) = (reads, reads);
    }
    if let Some(rate) = &args.rebuild_rate {
        assume.rebuild_rate = decimal(rate)?;
    }
    if let Some(rate) = &args.bulk {
        assume.bulk = decimal(rate)?;
    }
    if let Some(rate) = &args.host_rate {
        assume.host = decimal(rate)?;
    }
    if let Some(ure) = args.ure {
        if !(1e9..=1e30).contains(&ure) {
            return Err(ApiError::usage("--ure is the number of bits read for one bad sector, as 1e15"));
        }
        assume.ure = ure;
    }
    if let Some(accept) = &args.accept {
        let years = accept.split(',').map(|years| years.trim().parse::<f64>().ok());
        let years: Option<Vec<f64>> = years.collect();
        let Some([pool, block]) = years.as_deref().and_then(|years| <[f64; 2]>::try_from(years).ok()) else {
            return Err(ApiError::usage("--accept takes years of the pool and of a block: 10000,1000"));
        };
        if !(pool >= 1.0 && block >= 1.0) {
            return Err(ApiError::usage("--accept takes years, 1 at least"));
        }
        (assume.accept_pool, assume.accept_block) = (1.0 / pool, 1.0 / block);
    }
    assume.correlated = args.correlated.unwrap_or(assume.correlated);
    assume.replace_hours = args.replace_within.unwrap_or(assume.replace_hours);
    assume.full = args.full.map_or(assume.full, |percent| percent / 100.0);
    assume.scrubs = args.scrubs.unwrap_or(assume.scrubs);
    Ok(assume)
}

/// Bytes a second in decimal units, as disks are sold.
fn decimal(text: &str) -> Result<f64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let factor = match text[split..].to_ascii_uppercase().trim_end_matches("/S") {
        "K" | "KB" => 1e3,
        "M" | "MB" => 1e6,
        "G" | "GB" => 1e9,
        _ => 0.0,
    };
    let rate = text[..split].parse::<f64>().unwrap_or(0.0) * factor;
    if rate > 0.0 {
        Ok(rate)
    } else {
        Err(ApiError::usage(format!("'{text}' is no rate: bytes a second, as 200M")))
    }
}

/// The disks of these words, sizes being of this kind; of none, those of the machine that nobody uses.
fn find(words: &[String], kind: Kind) -> Result<Vec<Disk>> {
    let mut found: Vec<Disk> = Vec::new();
    if words.is_empty() {
        let mut taken = Vec::new();
        for path in disks::all() {
            match disks::look(&path) {
                Ok(Disk { taken: Some(what), short, .. }) => taken.push(format!("{short} {what}")),
                Ok(disk) => found.push(disk),
                Err(error) => taken.push(error.message),
            }
        }
        taken.iter().for_each(|what| out::complain(&format!("left out: {what}")));
        if found.is_empty() {
            return Err(ApiError::new(ErrorKind::NotFound, "there is no disk here that nobody uses")
                .hint("name devices, or plan with sizes: larder plan 6x16T"));
        }
        return Ok(found);
    }
    let (mut number, mut seen) = (0, HashSet::new());
    for word in words {
        if is_sizes(word) {
            let (count, size) = larder_plan::disks(word).map_err(ApiError::usage)?;
            for _ in 0..count {
                number += 1;
                found.push(Disk { kind, ..Disk::of_size(format!("DISK{number}"), size) });
            }
            continue;
        }
        let path = args::device(word)?;
        let disk = disks::look(&path)?;
        if !seen.insert(std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone().into())) {
            return Err(ApiError::usage(format!("'{word}' is given twice")));
        }
        found.push(disk);
    }
    Ok(found)
}

/// Notes prices: of all disks, or of those of a size.
fn price(found: &mut [Disk], prices: &[String]) -> Result<()> {
    for text in prices.iter().flat_map(|text| text.split(',')) {
        let (size, price) = match text.split_once('=') {
            Some((size, price)) => (Some(larder_plan::disks(size).map_err(ApiError::usage)?.1), price),
            None => (None, text),
        };
        let Some(price) = price.trim().parse::<f64>().ok().filter(|price| *price >= 0.0 && price.is_finite())
        else {
            return Err(ApiError::usage(format!("'{text}' is no price: --price 280, or --price 16T=280")));
        };
        // Disks have a little more or less than they are sold for.
        let is_such =
            |disk: &&mut Disk| size.is_none_or(|size| (disk.size as f64 / size as f64 - 1.0).abs() < 0.01);
        let mut such = found.iter_mut().filter(is_such).peekable();
        if such.peek().is_none() {
            return Err(ApiError::usage(format!("--price {text}: no disk has that size")));
        }
        such.for_each(|disk| disk.price = Some(price));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use std::ffi::OsString;

    /// Plans give lines to paste: the program takes them.
    #[test]
    fn what_is_planned_can_be_pasted() {
        let mut lines = 0;
        for words in [&["7x16T"][..], &["6x16T", "2x4T"], &["1T"], &["5x1T", "500G"]] {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            let plan = plan(
                find(&words, Kind::Ssd).unwrap(),
                usize::from(words.len() > 1),
                0,
                Assumptions::default(),
            );
            for candidate in &plan.candidates {
                let create = render::plan::create(&plan, candidate);
                let grow = format!("larder pool {}", candidate.growth.words.join(" "));
                for line in [&create, &grow] {
                    let argv = shlex::split(line).unwrap().into_iter().map(OsString::from).collect();
                    assert!(parse(argv).is_ok(), "{line}");
                }
                // As many devices as each word takes.
                let read = super::super::vdevs::read(&candidate.create).unwrap();
                assert_eq!(read.groups.len(), candidate.shape.groups.len(), "{create}");
                assert_eq!(read.spares.len(), candidate.shape.spares.len(), "{create}");
                lines += 1;
            }
        }
        assert!(lines > 40, "{lines}");
    }

    #[test]
    fn assumptions_are_what_options_say() {
        assert_eq!(decimal("200M").unwrap(), 200e6);
        assert_eq!(decimal("1.5gb/s").unwrap(), 1.5e9);
        for wrong in ["", "200", "M", "-5M", "5T", "1..2M"] {
            assert!(decimal(wrong).is_err(), "{wrong}");
        }
        assert_eq!(number("1.57%", 0.01, 99.0), Ok(1.57));
        assert!(["0", "x", "100", "NaN"].iter().all(|wrong| number(wrong, 0.01, 99.0).is_err()));
    }

    #[test]
    fn prices_are_of_all_disks_or_of_those_of_a_size() {
        let mut disks = vec![Disk::of_size("a", 16_000_900_661_248), Disk::of_size("b", 4_000_787_030_016)];
        let set = |disks: &mut Vec<Disk>, prices: &[&str]| {
            let prices: Vec<String> = prices.iter().map(|&text| text.to_owned()).collect();
            price(disks, &prices)
        };
        set(&mut disks, &["16T=280,4T=90"]).unwrap();
        assert_eq!(disks.iter().map(|disk| disk.price).collect::<Vec<_>>(), [Some(280.0), Some(90.0)]);
        set(&mut disks, &["100"]).unwrap();
        assert_eq!(disks[1].price, Some(100.0));
        for wrong in ["8T=100", "16T=", "16T=x", "-5", "inf"] {
            assert!(set(&mut disks, &[wrong]).is_err(), "{wrong}");
        }
    }
}
