//! `cachestat` and `arcstat`: the cache's counters under the names, widths and scales that arcstat(1) gives
//! them. Fields of arcstat that mean nothing here (lists of the ARC, zfetch) are not offered; those of the
//! L2ARC tell of devices with copies.

use super::date;
use crate::api::figures::{Lookups, PoolCache};
use crate::api::pool::ReadCache;
use serde_json::{Map, Value, json};

/// Counts of a cache over some time, and its contents. Counts are not yet rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The pool; nothing for all together.
    pool: String,
    time: i64,
    /// Length of that time; nothing for all time since import.
    seconds: Option<f64>,
    demand_data: Lookups,
    demand_metadata: Lookups,
    prefetch_data: Lookups,
    data: Held,
    metadata: Held,
    copies: Copies,
}

/// Devices with copies.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Copies {
    lookups: Lookups,
    read_bytes: u64,
    write_bytes: u64,
    /// Bytes of them that are filled, and of memory that it takes to know what they have.
    size: u64,
    memory: u64,
}

impl Copies {
    fn between(before: &ReadCache, now: &ReadCache) -> Self {
        let of = |cache: &ReadCache| Lookups { hits: cache.hits, misses: cache.misses };
        Self {
            lookups: minus(of(now), of(before)),
            read_bytes: now.hit_bytes.saturating_sub(before.hit_bytes),
            write_bytes: now.written_bytes.saturating_sub(before.written_bytes),
            size: now.filled,
            memory: now.memory,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            lookups: plus(self.lookups, other.lookups),
            read_bytes: self.read_bytes + other.read_bytes,
            write_bytes: self.write_bytes + other.write_bytes,
            size: self.size + other.size,
            memory: self.memory + other.memory,
        }
    }
}

/// Bytes that a part of the cache holds, and the most it may.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Held {
    size: u64,
    target: u64,
}

fn plus(a: Lookups, b: Lookups) -> Lookups {
    Lookups { hits: a.hits + b.hits, misses: a.misses + b.misses }
}

fn minus(now: Lookups, before: Lookups) -> Lookups {
    let Lookups { hits, misses } = before;
    Lookups { hits: now.hits.saturating_sub(hits), misses: now.misses.saturating_sub(misses) }
}

/// Samples of the time after `earlier`; since import when there is no earlier one of the same import.
pub fn samples(earlier: &[PoolCache], now: &[PoolCache]) -> Vec<Sample> {
    now.iter().map(|now| sample(earlier.iter().find(|before| before.guid == now.guid), now)).collect()
}

fn sample(earlier: Option<&PoolCache>, now: &PoolCache) -> Sample {
    let earlier = earlier.filter(|before| before.uptime_ns < now.uptime_ns);
    let seconds = earlier.map(|before| (now.uptime_ns - before.uptime_ns) as f64 / 1e9);
    let none = PoolCache::default();
    let before = earlier.unwrap_or(&none);
    Sample {
        pool: now.name.clone(),
        time: now.time,
        seconds,
        demand_data: minus(now.demand_data, before.demand_data),
        demand_metadata: minus(now.demand_metadata, before.demand_metadata),
        prefetch_data: minus(now.prefetch_data, before.prefetch_data),
        data: Held { size: now.data_bytes, target: now.data_limit },
        metadata: Held { size: now.metadata_bytes, target: now.metadata_limit },
        copies: Copies::between(&before.read_cache, &now.read_cache),
    }
}

/// All pools as one cache, as arcstat knows it. `samples` must not be empty.
pub fn total(samples: &[Sample]) -> Sample {
    let held = |a: Held, b: Held| Held { size: a.size + b.size, target: a.target + b.target };
    let both = |a: Sample, b: &Sample| Sample {
        pool: String::new(),
        time: a.time.max(b.time),
        seconds: a.seconds.or(b.seconds),
        demand_data: plus(a.demand_data, b.demand_data),
        demand_metadata: plus(a.demand_metadata, b.demand_metadata),
        prefetch_data: plus(a.prefetch_data, b.prefetch_data),
        data: held(a.data, b.data),
        metadata: held(a.metadata, b.metadata),
        copies: a.copies.plus(b.copies),
    };
    samples.iter().skip(1).fold(samples[0].clone(), both)
}

/// Look-ups for what.
#[derive(Debug, Clone, Copy)]
enum Of {
    All,
    Demand,
    DemandData,
    DemandMetadata,
    Prefetch,
    PrefetchData,
    Metadata,
    Copies,
}

/// The figure that a field shows.
#[derive(Debug, Clone, Copy)]
enum Figure {
    Time,
    Hits(Of),
    Misses(Of),
    Reads(Of),
    HitPercent(Of),
    MissPercent(Of),
    Bytes(fn(&Sample) -> u64),
    BytesPerSecond(fn(&Sample) -> u64),
}

/// A field by the name that arcstat gives it.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The name.
    pub name: &'static str,
    width: usize,
    figure: Figure,
    /// Its description.
    pub about: &'static str,
}

const fn field(name: &'static str, width: usize, figure: Figure, about: &'static str) -> Field {
    Field { name, width, figure, about }
}

/// All fields.
pub const FIELDS: &[Field] = &[
    field("time", 8, Figure::Time, "Time"),
    field("hits", 4, Figure::Hits(Of::All), "Hits per second"),
    field("miss", 4, Figure::Misses(Of::All), "Misses per second"),
    field("read", 4, Figure::Reads(Of::All), "Look-ups per second"),
    field("hit%", 4, Figure::HitPercent(Of::All), "Hit percentage"),
    field("miss%", 5, Figure::MissPercent(Of::All), "Miss percentage"),
    field("dhit", 4, Figure::Hits(Of::Demand), "Demand hits per second"),
    field("dmis", 4, Figure::Misses(Of::Demand), "Demand misses per second"),
    field("dh%", 3, Figure::HitPercent(Of::Demand), "Demand hit percentage"),
    field("dm%", 3, Figure::MissPercent(Of::Demand), "Demand miss percentage"),
    field("ddhit", 5, Figure::Hits(Of::DemandData), "Demand data hits per second"),
    field("ddmis", 5, Figure::Misses(Of::DemandData), "Demand data misses per second"),
    field("ddh%", 4, Figure::HitPercent(Of::DemandData), "Demand data hit percentage"),
    field("ddm%", 4, Figure::MissPercent(Of::DemandData), "Demand data miss percentage"),
    field("dmhit", 5, Figure::Hits(Of::DemandMetadata), "Demand metadata hits per second"),
    field("dmmis", 5, Figure::Misses(Of::DemandMetadata), "Demand metadata misses per second"),
    field("dmh%", 4, Figure::HitPercent(Of::DemandMetadata), "Demand metadata hit percentage"),
    field("dmm%", 4, Figure::MissPercent(Of::DemandMetadata), "Demand metadata miss percentage"),
    field("phit", 4, Figure::Hits(Of::Prefetch), "Prefetch hits per second"),
    field("pmis", 4, Figure::Misses(Of::Prefetch), "Prefetch misses per second"),
    field("ph%", 3, Figure::HitPercent(Of::Prefetch), "Prefetch hit percentage"),
    field("pm%", 3, Figure::MissPercent(Of::Prefetch), "Prefetch miss percentage"),
    field("pdhit", 5, Figure::Hits(Of::PrefetchData), "Prefetch data hits per second"),
    field("pdmis", 5, Figure::Misses(Of::PrefetchData), "Prefetch data misses per second"),
    field("pdh%", 4, Figure::HitPercent(Of::PrefetchData), "Prefetch data hit percentage"),
    field("pdm%", 4, Figure::MissPercent(Of::PrefetchData), "Prefetch data miss percentage"),
    field("mhit", 4, Figure::Hits(Of::Metadata), "Metadata hits per second"),
    field("mmis", 4, Figure::Misses(Of::Metadata), "Metadata misses per second"),
    field("mread", 5, Figure::Reads(Of::Metadata), "Metadata look-ups per second"),
    field("mh%", 3, Figure::HitPercent(Of::Metadata), "Metadata hit percentage"),
    field("mm%", 3, Figure::MissPercent(Of::Metadata), "Metadata miss percentage"),
    field("arcsz", 5, Figure::Bytes(size), "Bytes held"),
    field("size", 5, Figure::Bytes(size), "Bytes held"),
    field("c", 5, Figure::Bytes(target), "The most bytes: the cache's share of the property memory"),
    field("avail", 5, Figure::Bytes(|of| target(of).saturating_sub(size(of))), "Bytes of c not held yet"),
    field("dread", 5, Figure::Reads(Of::Demand), "Demand look-ups per second"),
    field("ddread", 6, Figure::Reads(Of::DemandData), "Demand data look-ups per second"),
    field("dmread", 6, Figure::Reads(Of::DemandMetadata), "Demand metadata look-ups per second"),
    field("pread", 5, Figure::Reads(Of::Prefetch), "Prefetch look-ups per second"),
    field("pdread", 6, Figure::Reads(Of::PrefetchData), "Prefetch data look-ups per second"),
    field("datatg", 6, Figure::Bytes(|of| of.data.target), "The most bytes of data"),
    field("datasz", 6, Figure::Bytes(|of| of.data.size), "Bytes of data held"),
    field("metatg", 6, Figure::Bytes(|of| of.metadata.target), "The most bytes of metadata"),
    field("metasz", 6, Figure::Bytes(|of| of.metadata.size), "Bytes of metadata held"),
    field("l2hits", 6, Figure::Hits(Of::Copies), "Hits on cache devices per second"),
    field("l2miss", 6, Figure::Misses(Of::Copies), "Misses on cache devices per second"),
    field("l2read", 6, Figure::Reads(Of::Copies), "Look-ups on cache devices per second"),
    field("l2hit%", 6, Figure::HitPercent(Of::Copies), "Hit percentage of cache devices"),
    field("l2miss%", 7, Figure::MissPercent(Of::Copies), "Miss percentage of cache devices"),
    field("l2size", 6, Figure::Bytes(|of| of.copies.size), "Bytes of cache devices filled"),
    field("l2asize", 7, Figure::Bytes(|of| of.copies.size), "Bytes of cache devices filled"),
    field("l2hdr", 5, Figure::Bytes(|of| of.copies.memory), "Bytes of memory for knowing what they have"),
    field(
        "l2bytes",
        7,
        Figure::BytesPerSecond(|of| of.copies.read_bytes),
        "Bytes read from cache devices per second",
    ),
    field(
        "l2wbytes",
        8,
        Figure::BytesPerSecond(|of| of.copies.write_bytes),
        "Bytes written to them per second",
    ),
];

fn size(of: &Sample) -> u64 {
    of.data.size + of.metadata.size
}

fn target(of: &Sample) -> u64 {
    of.data.target + of.metadata.target
}

impl Sample {
    fn lookups(&self, of: Of) -> Lookups {
        match of {
            Of::All => plus(plus(self.demand_data, self.demand_metadata), self.prefetch_data),
            Of::Demand => plus(self.demand_data, self.demand_metadata),
            Of::DemandData => self.demand_data,
            // Nodes are not prefetched.
            Of::DemandMetadata | Of::Metadata => self.demand_metadata,
            Of::Prefetch | Of::PrefetchData => self.prefetch_data,
            Of::Copies => self.copies.lookups,
        }
    }

    /// A second's share, whole where that says enough; all of it for the sample since import.
    fn per_second(&self, count: u64) -> f64 {
        match self.seconds {
            None => count as f64,
            Some(seconds) if seconds < 1.5 => (count as f64 / seconds).round(),
            Some(seconds) => (count as f64 / seconds * 10.0).round() / 10.0,
        }
    }

    fn number(&self, figure: Figure) -> f64 {
        let percent = |of: Of, part: fn(Lookups) -> u64| {
            let lookups = self.lookups(of);
            let whole = lookups.hits + lookups.misses;
            if whole > 0 { part(lookups) as f64 * 100.0 / whole as f64 } else { 0.0 }
        };
        match figure {
            Figure::Time => self.time as f64,
            Figure::Hits(of) => self.per_second(self.lookups(of).hits),
            Figure::Misses(of) => self.per_second(self.lookups(of).misses),
            Figure::Reads(of) => self.per_second(self.lookups(of).hits + self.lookups(of).misses),
            Figure::HitPercent(of) => percent(of, |lookups| lookups.hits),
            Figure::MissPercent(of) => percent(of, |lookups| lookups.misses),
            Figure::Bytes(bytes) => bytes(self) as f64,
            Figure::BytesPerSecond(bytes) => self.per_second(bytes(self)),
        }
    }

    fn cell(&self, field: &Field, exact: bool) -> String {
        let number = self.number(field.figure);
        match field.figure {
            Figure::Time => date(self.time, "%H:%M:%S"),
            Figure::HitPercent(_) | Figure::MissPercent(_) if exact => format!("{number:.2}"),
            _ if exact => number.to_string(),
            Figure::HitPercent(_) | Figure::MissPercent(_) => scaled(number, field.width, f64::INFINITY),
            Figure::Bytes(_) | Figure::BytesPerSecond(_) => scaled(number, field.width, 1024.0),
            _ => scaled(number, field.width, 1000.0),
        }
    }
}

/// A number in units of powers of `scale`, with a decimal where it has one and there is room.
fn scaled(mut number: f64, width: usize, scale: f64) -> String {
    let mut unit = 0;
    while number > scale && unit < 5 {
        number /= scale;
        unit += 1;
    }
    let unit = ["", "K", "M", "G", "T", "P"][unit];
    let room = width - unit.len();
    let whole = format!("{number:.0}");
    let decimal = number.fract() != 0.0 && whole.len() + 2 <= room;
    if decimal { format!("{number:.1}{unit}") } else { format!("{whole}{unit}") }
}

/// Form in which samples are shown.
#[derive(Debug, Clone)]
pub struct Form {
    /// The fields, in this order.
    pub fields: Vec<&'static Field>,
    /// Between columns; without it they are aligned, two spaces apart.
    pub separator: Option<String>,
    /// Numbers as they are.
    pub exact: bool,
    /// A first column with the pool, as wide as this.
    pub pools: Option<usize>,
}

impl Form {
    fn line(&self, pool: &str, cells: impl Iterator<Item = String>) -> String {
        let cells =
            cells.zip(&self.fields).map(|(cell, field)| match self.exact || self.separator.is_some() {
                true => cell,
                false => format!("{cell:>0$}", field.width),
            });
        let pool = self.pools.map(|width| match &self.separator {
            Some(_) => pool.to_owned(),
            None => format!("{pool:<width$}"),
        });
        let cells: Vec<String> = pool.into_iter().chain(cells).collect();
        cells.join(self.separator.as_deref().unwrap_or("  ")) + "\n"
    }

    /// The line of heads.
    pub fn header(&self) -> String {
        self.line("pool", self.fields.iter().map(|field| field.name.to_owned()))
    }

    /// One sample's line.
    pub fn sample(&self, sample: &Sample) -> String {
        self.line(&sample.pool, self.fields.iter().map(|field| sample.cell(field, self.exact)))
    }
}

/// The fields of these names.
///
/// # Errors
/// The first name that is none.
pub fn fields<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<&'static Field>, &'a str> {
    let find = |name: &'a str| FIELDS.iter().find(|field| field.name == name).ok_or(name);
    names.into_iter().map(find).collect()
}

/// The names and meanings of all fields.
pub fn definitions() -> String {
    FIELDS.iter().map(|field| format!("{:>11} : {}\n", field.name, field.about)).collect()
}

/// Samples by pool: counts as they are, not divided by time.
pub fn json(samples: &[Sample]) -> Map<String, Value> {
    let lookups = |of: Lookups| json!({ "hits": of.hits, "misses": of.misses });
    let held = |of: Held| json!({ "size": of.size, "target": of.target });
    let one = |sample: &Sample| {
        json!({
            "time": sample.time,
            "seconds": sample.seconds,
            "demand_data": lookups(sample.demand_data),
            "demand_metadata": lookups(sample.demand_metadata),
            "prefetch_data": lookups(sample.prefetch_data),
            "size": size(sample),
            "target": target(sample),
            "data": held(sample.data),
            "metadata": held(sample.metadata),
            "l2": {
                "hits": sample.copies.lookups.hits,
                "misses": sample.copies.lookups.misses,
                "read_bytes": sample.copies.read_bytes,
                "write_bytes": sample.copies.write_bytes,
                "size": sample.copies.size,
                "hdr_size": sample.copies.memory,
            },
        })
    };
    samples.iter().map(|sample| (sample.pool.clone(), one(sample))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> PoolCache {
        PoolCache {
            name: "tank".into(),
            guid: 7,
            time: 0,
            uptime_ns: 10_000_000_000,
            demand_data: Lookups { hits: 900, misses: 100 },
            demand_metadata: Lookups { hits: 123_456, misses: 544 },
            prefetch_data: Lookups { hits: 0, misses: 300 },
            data_bytes: 100 << 20,
            data_limit: 200 << 20,
            metadata_bytes: 1536 << 10,
            metadata_limit: 200 << 20,
            read_cache: ReadCache {
                hits: 300,
                misses: 100,
                hit_bytes: 30 << 20,
                written_bytes: 8 << 20,
                filled: 10 << 20,
                memory: 1 << 20,
                ..ReadCache::default()
            },
        }
    }

    fn form(names: &str) -> Form {
        Form { fields: fields(names.split(',')).unwrap(), separator: None, exact: false, pools: None }
    }

    #[test]
    fn fields_have_the_widths_and_scales_of_arcstat() {
        let form = form("read,ddread,ddh%,dmread,dmh%,pread,ph%,size,c,avail");
        let all = samples(&[], &[cache()]);
        assert_eq!(
            form.header() + &form.sample(&total(&all)),
            "read  ddread  ddh%  dmread  dmh%  pread  ph%   size      c  avail\n\
             125K    1000    90    124K   100    300    0   102M   400M   298M\n"
        );
    }

    #[test]
    fn later_samples_are_of_the_interval_and_sizes_are_of_now() {
        let mut later = cache();
        later.uptime_ns += 2_000_000_000;
        later.demand_data.hits += 5;
        later.demand_data.misses += 15;
        later.data_bytes = 1 << 20;
        let form =
            Form { exact: true, separator: Some("\t".into()), pools: Some(4), ..form("read,miss%,size") };
        let all = samples(&[cache()], &[later.clone()]);
        assert_eq!(form.sample(&all[0]), "tank\t10\t75.00\t2621440\n");
        // Imported anew in between: nothing to compare with.
        later.uptime_ns = 5;
        assert_eq!(samples(&[cache()], &[later.clone()]), samples(&[], &[later]));
    }

    #[test]
    fn pools_have_lines_of_their_own_and_arcstat_adds_them_up() {
        let other = PoolCache { name: "dozer".into(), guid: 8, ..cache() };
        let all = samples(&[], &[cache(), other]);
        let form = Form { pools: Some(5), ..form("dmis,c") };
        let lines: String = all.iter().map(|sample| form.sample(sample)).collect();
        assert_eq!(form.header() + &lines, "pool   dmis      c\ntank    644   400M\ndozer   644   400M\n");
        assert_eq!(total(&all).number(Figure::Misses(Of::Demand)), 1288.0);
    }

    #[test]
    fn json_has_counts_and_no_rates() {
        let shown = json(&samples(&[], &[cache()]));
        assert_eq!(shown["tank"]["demand_metadata"], json!({ "hits": 123_456, "misses": 544 }));
        assert_eq!(shown["tank"]["seconds"], Value::Null);
    }

    #[test]
    fn devices_with_copies_are_the_second_level() {
        let form = form("l2hits,l2miss,l2read,l2hit%,l2miss%,l2size,l2hdr,l2bytes,l2wbytes");
        let shown = form.sample(&samples(&[], &[cache()])[0]);
        assert_eq!(shown, "   300     100     400      75       25     10M  1024K      30M        8M\n");
        let mut later = cache();
        later.uptime_ns += 2_000_000_000;
        later.read_cache.hits += 10;
        later.read_cache.hit_bytes += 4 << 20;
        let form = Form { exact: true, separator: Some(" ".into()), ..form };
        let shown = form.sample(&samples(&[cache()], &[later])[0]);
        assert_eq!(shown, "5 0 5 100.00 0.00 10485760 1048576 2097152 0\n");
        assert_eq!(json(&samples(&[], &[cache()]))["tank"]["l2"]["hdr_size"], 1 << 20);
    }

    #[test]
    fn names_of_fields_are_unique() {
        let names: std::collections::BTreeSet<_> = FIELDS.iter().map(|field| field.name).collect();
        assert_eq!(names.len(), FIELDS.len());
    }
}
