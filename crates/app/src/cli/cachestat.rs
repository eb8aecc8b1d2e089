//! `larder cachestat`, and `arcstat` as which the binary is also called: what the caches did and hold.

use super::args::{self, Json};
use super::sampling::{Heads, Plan, Sample};
use super::{Session, out};
use crate::api::figures::{Cache, PoolCache};
use crate::api::{ApiError, ErrorKind, Result};
use crate::render;
use crate::render::cachestat::{Field, Form};
use std::fs::File;
use std::io::Write;

/// Arguments of `larder cachestat`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The first lines count since import. With an INTERVAL (seconds) others follow, COUNT in all: a second's
share of the time between. Fields are those of arcstat; c is the most that the cache may hold.
Example: larder cachestat tank 5"
)]
pub struct Args {
    #[command(flatten)]
    form: args::Form,
    /// Fields to show
    #[arg(short = 'f', value_name = "FIELD,...")]
    fields: Option<String>,
    /// List the fields
    #[arg(short = 'v')]
    list: bool,
    #[command(flatten)]
    json: Json,
    /// Pools, all when none is given; then INTERVAL and COUNT
    #[arg(value_name = "NAME|INTERVAL|COUNT")]
    words: Vec<String>,
}

/// Arguments of `arcstat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "All imported pools are shown as one cache. The first line counts since import.
Examples: arcstat 2 10
          arcstat -f time,hit%,dh%,ph%,mh% 1")]
pub struct ArcstatArgs {
    /// All fields
    #[arg(short = 'a')]
    all: bool,
    /// Extended fields
    #[arg(short = 'x', conflicts_with_all = ["all", "fields"])]
    extended: bool,
    /// List the fields
    #[arg(short = 'v')]
    list: bool,
    /// Fields to show
    #[arg(short = 'f', value_name = "FIELD,...")]
    fields: Option<String>,
    /// Write to this file
    #[arg(short = 'o', value_name = "FILE")]
    file: Option<String>,
    /// What stands between columns
    #[arg(short = 's', value_name = "STRING")]
    separator: Option<String>,
    /// Exact numbers
    #[arg(short = 'p')]
    exact: bool,
    /// INTERVAL and COUNT
    #[arg(value_name = "INTERVAL|COUNT")]
    words: Vec<String>,
}

const FIELDS: &str = "time,read,miss,miss%,dmis,dm%,pmis,pm%,mmis,mm%,size,c,avail";
const ARCSTAT_FIELDS: &str = "time,read,ddread,ddh%,dmread,dmh%,pread,ph%,size,c,avail";
const ARCSTAT_EXTENDED: &str = "time,datasz,datatg,metasz,metatg,dread,pread,read";
/// arcstat prints its heads again after this many lines, also into files.
const ARCSTAT_LINES: usize = 20;

fn fields(names: &str) -> Result<Vec<&'static Field>> {
    render::cachestat::fields(names.split(',')).map_err(|name| {
        ApiError::usage(format!("there is no field '{name}'")).hint("-v lists the fields there are")
    })
}

/// Asks for all or some caches, and keeps what was told before.
fn ask(
    session: &Session,
    names: &[String],
    before: &mut Option<Vec<PoolCache>>,
) -> Result<Vec<render::cachestat::Sample>> {
    let now = session.client.call(Cache { names: names.to_vec() })?.pools;
    let earlier = before.replace(now.clone()).unwrap_or_default();
    Ok(render::cachestat::samples(&earlier, &now))
}

/// Runs `cachestat`.
pub fn run(args: &Args, session: &Session) -> Result<u8> {
    if args.list {
        out::print(&render::cachestat::definitions());
        return Ok(0);
    }
    let plan = Plan::of(&args.words)?;
    let mut form = Form {
        fields: fields(args.fields.as_deref().unwrap_or(FIELDS))?,
        separator: args.form.scripted.then(|| "\t".to_owned()),
        exact: args.form.exact,
        pools: Some(0),
    };
    let mut before = None;
    let mut heads = Heads::new(false);
    plan.run(|| {
        let samples = ask(session, &plan.names, &mut before)?;
        if args.json.json {
            let sample =
                render::json::envelope("larder cachestat", "pools", render::cachestat::json(&samples));
            match plan.interval {
                Some(_) => out::print_json_line(&sample),
                None => out::print_json(&sample),
            }
            return Ok(Sample::Shown);
        }
        if samples.is_empty() {
            out::complain("no pools available");
            return Ok(Sample::Nothing);
        }
        let names = before.iter().flatten().map(|pool| pool.name.chars().count());
        form.pools = Some(names.max().unwrap_or(0).max("pool".len()));
        if !args.form.scripted && heads.due(samples.len()) {
            out::print(&form.header());
        }
        out::print(&samples.iter().map(|sample| form.sample(sample)).collect::<String>());
        Ok(Sample::Shown)
    })?;
    Ok(0)
}

/// Runs `arcstat`.
pub fn run_arcstat(args: &ArcstatArgs, session: &Session) -> Result<u8> {
    if args.list {
        out::print(&render::cachestat::definitions());
        return Ok(0);
    }
    let plan = Plan::of(&args.words)?;
    if let Some(name) = plan.names.first() {
        return Err(ApiError::usage(format!("'{name}' is no interval: arcstat takes all pools together")));
    }
    let chosen = match (&args.fields, args.extended) {
        (Some(names), _) => fields(names)?,
        (None, true) => fields(ARCSTAT_EXTENDED)?,
        (None, false) if args.all => render::cachestat::FIELDS.iter().collect(),
        (None, false) => fields(ARCSTAT_FIELDS)?,
    };
    let form = Form { fields: chosen, separator: args.separator.clone(), exact: args.exact, pools: None };
    let failed = |path: &str, error: std::io::Error| {
        ApiError::new(ErrorKind::Denied, format!("cannot write to {path}: {error}"))
    };
    let file = args.file.as_deref().map(|path| (path, File::create(path)));
    let mut file = file
        .map(|(path, file)| file.map(|file| (path, file)).map_err(|error| failed(path, error)))
        .transpose()?;
    let mut before = None;
    let mut lines = 0;
    plan.run(|| {
        let samples = ask(session, &[], &mut before)?;
        if samples.is_empty() {
            out::complain("no pools available");
            return Ok(Sample::Nothing);
        }
        let header = if lines % ARCSTAT_LINES == 0 { form.header() } else { String::new() };
        lines += 1;
        let text = header + &form.sample(&render::cachestat::total(&samples));
        match &mut file {
            Some((path, file)) => file.write_all(text.as_bytes()).map_err(|error| failed(path, error))?,
            None => out::print(&text),
        }
        Ok(Sample::Shown)
    })?;
    Ok(0)
}
