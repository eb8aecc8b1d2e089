//! `larder pool iostat`: traffic and waits since import, then over each interval.

use super::args::{Form, Json};
use super::sampling::{Heads, Plan, Sample};
use super::{Session, out};
use crate::api::Result;
use crate::api::figures::Iostat;
use crate::api::pool::PoolStatus;
use crate::render;
use clap::ValueEnum;
use larder_device::{Clock, SystemClock};

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The first lines are averages since import. With an INTERVAL (seconds) others follow, COUNT in all.
With -l, percentiles are of total waits: half, 99 % and 99.9 % of the requests took no longer. They are at
most an eighth too high.
Example: larder pool iostat -v tank 5
         larder pool iostat -vly tank 60 1"
)]
pub struct Args {
    /// Groups and devices too
    #[arg(short = 'v')]
    verbose: bool,
    /// How long requests waited: in all, at the device; averages and percentiles
    #[arg(short = 'l')]
    latency: bool,
    /// Histograms of waits: requests counted by power of two of nanoseconds
    #[arg(short = 'w', conflicts_with = "latency")]
    histogram: bool,
    #[command(flatten)]
    form: Form,
    /// Leave out what was since import
    #[arg(short = 'y')]
    no_boot: bool,
    /// Print heads only once
    #[arg(short = 'n')]
    heads_once: bool,
    /// Print the time before each sample: u for seconds since 1970, d for the date
    #[arg(short = 'T', value_name = "u|d")]
    time: Option<Time>,
    /// Full paths of devices
    #[arg(short = 'P')]
    paths: bool,
    #[command(flatten)]
    json: Json,
    /// Pools, all when none is given; then INTERVAL and COUNT
    #[arg(value_name = "NAME|INTERVAL|COUNT")]
    words: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Time {
    /// Seconds since 1970
    U,
    /// The date
    D,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let plan = Plan::of(&args.words)?;
    let form = render::iostat::Form {
        verbose: args.verbose,
        paths: args.paths,
        exact: args.form.exact,
        latency: args.latency,
        scripted: args.form.scripted,
    };
    let clock = SystemClock::new();
    let mut before: Option<Vec<PoolStatus>> = None;
    let mut heads = Heads::new(args.heads_once);
    plan.run(|| {
        let now = session.client.call(Iostat { names: plan.names.clone() })?.pools;
        if now.is_empty() && !args.json.json {
            out::complain("no pools available");
            return Ok(Sample::Nothing);
        }
        let earlier = before.replace(now.clone());
        if earlier.is_none() && args.no_boot && plan.interval.is_some() {
            return Ok(Sample::Skipped);
        }
        let earlier = earlier.unwrap_or_default();
        let seconds = clock.now().secs;
        if args.json.json {
            let command = session.spell("pool", "iostat");
            let mut sample = render::iostat::json(&command, &earlier, &now, args.histogram);
            if args.time.is_some() {
                sample["timestamp"] = seconds.into();
            }
            match plan.interval {
                Some(_) => out::print_json_line(&sample),
                None => out::print_json(&sample),
            }
            return Ok(Sample::Shown);
        }
        match args.time {
            Some(Time::U) => out::print(&format!("{seconds}\n")),
            Some(Time::D) => out::print(&format!("{}\n", render::date_to_second(seconds))),
            None => {}
        }
        if args.histogram {
            out::print(&render::iostat::histograms(&earlier, &now, form));
        } else {
            let lines = render::iostat::text(&earlier, &now, form, false);
            let head = !form.scripted && heads.due(lines.lines().count());
            out::print(&if head { render::iostat::text(&earlier, &now, form, true) } else { lines });
        }
        Ok(Sample::Shown)
    })?;
    Ok(0)
}
