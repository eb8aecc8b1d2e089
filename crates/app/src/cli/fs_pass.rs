//! `larder fs dedup`, `larder fs undedup` and `larder fs rewrite`.

use super::args::{self, Json, assignment};
use super::{Session, out};
use crate::api::pass::{PassList, PassState, PassStatus, ShowPasses, StartPass, StopPass, Task};
use crate::api::{ApiError, Result, fs};
use crate::client;
use crate::render::{self, scan::duration};
use larder_pool::property::format_size;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Interval of polls for the progress.
const INTERVAL: Duration = Duration::from_millis(250);

/// Properties that rewriting brings to what is stored.
const REWRITTEN: [&str; 3] = ["compression", "checksum", "copies"];
/// Those that cutting files anew brings to them.
const CUT: [&str; 5] = ["recordsize", "chunking", "compression", "checksum", "copies"];
/// Damaged files that are named.
const NAMED: usize = 5;

/// Arguments that all have.
#[derive(Debug, clap::Args)]
struct Pass {
    /// Datasets below as well
    #[arg(short = 'r')]
    recursive: bool,
    /// Tell what it would bring; nothing is changed
    #[arg(short = 'n', conflicts_with_all = ["wait", "stop"])]
    dry_run: bool,
    /// Wait for the end
    #[arg(short = 'w', conflicts_with = "stop")]
    wait: bool,
    /// Stop it, of the pools that are named: it goes on there when it is started again
    #[arg(short = 's', conflicts_with = "limit")]
    stop: bool,
    /// Bytes that are gone through in a second, at most
    #[arg(long, value_name = "RATE")]
    limit: Option<String>,
    #[command(flatten)]
    json: Json,
    /// Without any: how it stands in all pools
    #[arg(value_name = "DATASET")]
    names: Vec<String>,
}

/// Arguments of `dedup`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Finds records that are stored twice, in datasets and their snapshots, whatever their property `dedup` says, and shares
them: nothing is written anew, no file changes. Before one of two copies is given up both are read and compared. It goes
on by itself, also after a crash or an export, beside all other work; larder pool status tells how far it is.
Examples: larder fs dedup -n tank/home        # what it would bring; reads what has no fingerprint
          larder fs dedup -w tank/home
          larder fs dedup --limit 100M -r tank
          larder fs dedup -s tank             # stop it"
)]
pub struct Args {
    #[command(flatten)]
    pass: Pass,
}

/// Arguments of `undedup`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Files get blocks of their own in place of those that they share, by deduplication or as copies without any, and
nothing of these datasets is found as a duplicate any more. Files do not change, nor do snapshots, which keep what they
have. The property dedup must be off, and datasets mounted. It goes on by itself, also after a crash or an export. What
nobody has any more is free after the next trace. If no dataset has dedup on when it ends, the index is gone as well.
To diff and to incremental streams what got new blocks is changed.
Examples: larder fs undedup -n tank/home      # the space that it takes, at most
          larder fs set dedup=off tank/home
          larder fs undedup -w tank/home
          larder fs undedup -s tank           # stop it"
)]
pub struct UndedupArgs {
    #[command(flatten)]
    pass: Pass,
}

/// Arguments of `rewrite`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Stores what is stored otherwise than the properties compression, checksum and copies of its dataset now say, under the
ids that it has: files, snapshots and clones stay as they are, and no second copy is made. It takes the space of some
segments while it goes on. USED of datasets goes on telling what was written; AVAIL and larder pool list tell what is
gained, or taken by further places, which nodes get as well. What was written a moment ago, in segments that are not
full yet, keeps its codec.
With --records live files whose records are cut otherwise than recordsize and chunking now say are cut anew, beside
writers; they and their times do not change. Those records are new ones: to snapshots, and to files that share them, the
old ones stay, and so does their space until the last of these is gone; -n tells how much that is at most. Datasets must
be mounted. larder fs diff and incremental streams tell every such file as modified.
Examples: larder fs rewrite -n -o compression=zstd-9 tank/docs
          larder fs rewrite -w -o compression=zstd-9 tank/docs   # sets it, too
          larder fs rewrite -n --records -o recordsize=16K tank/db
          larder fs rewrite -w --records -o recordsize=16K tank/db
          larder fs rewrite -s tank                              # stop it"
)]
pub struct RewriteArgs {
    /// Cut live files into records as recordsize and chunking say
    #[arg(long)]
    records: bool,
    /// Set a property first
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = assignment)]
    properties: Vec<(String, String)>,
    #[command(flatten)]
    pass: Pass,
}

/// Shares what is stored twice.
pub fn dedup(args: Args, session: &Session) -> Result<u8> {
    run(Task::Dedup, args.pass, Vec::new(), session)
}

/// Gives files blocks of their own.
pub fn undedup(args: UndedupArgs, session: &Session) -> Result<u8> {
    run(Task::Undedup, args.pass, Vec::new(), session)
}

/// Stores anew what is stored otherwise than the properties say.
pub fn rewrite(args: RewriteArgs, session: &Session) -> Result<u8> {
    let brought: &[&str] = if args.records { &CUT } else { &REWRITTEN };
    let other = args.properties.iter().find(|(name, _)| !brought.contains(&name.as_str()));
    if let Some((name, _)) = other {
        let (last, first) = brought.split_last().expect("there are some");
        let all = format!("{} and {last} do", first.join(", "));
        let error = ApiError::usage(format!("'{name}' does not change how records are stored: {all}"));
        let is_cut = CUT.contains(&name.as_str());
        return Err(if is_cut { error.hint("--records cuts files anew, with the new one") } else { error });
    }
    let task = if args.records { Task::Records } else { Task::Rewrite };
    run(task, args.pass, args.properties, session)
}

fn run(task: Task, pass: Pass, properties: Vec<(String, String)>, session: &Session) -> Result<u8> {
    let verb = match task {
        Task::Dedup => "dedup",
        Task::Rewrite | Task::Records => "rewrite",
        Task::Undedup => "undedup",
    };
    let Pass { recursive, dry_run, wait, stop, limit, json, names } = pass;
    let rate = args::rate(limit.as_deref())?;
    if names.is_empty() && (stop || dry_run || wait || !properties.is_empty()) {
        return Err(ApiError::usage(if stop { "name the pools" } else { "name the datasets" }));
    }
    let properties = args::properties(properties)?;
    let found = if stop {
        session.client.call(StopPass { names })?
    } else if names.is_empty() {
        let mut all = session.client.call(ShowPasses { names })?;
        all.passes.retain(|pass| pass.task == task);
        all
    } else {
        if !dry_run && !properties.is_empty() {
            session.client.call(fs::Set { names: names.clone(), properties: properties.clone() })?;
        }
        let request = StartPass { task, names, recursive, rate, dry_run, properties };
        let begun = session.client.call(request)?;
        if wait { wait_for(begun, session)? } else { begun }
    };
    if json.json {
        out::print_json(&render::json::reply(&session.spell("fs", verb), &found));
    } else {
        out::print(&found.passes.iter().map(text).collect::<String>());
    }
    let is_cut = wait && found.passes.iter().any(|pass| pass.state != PassState::Done);
    Ok(u8::from(is_cut))
}

/// Waits until none of these passes goes on.
fn wait_for(begun: PassList, session: &Session) -> Result<PassList> {
    let names: Vec<String> = begun.passes.into_iter().map(|pass| pass.pool).collect();
    let is_watched = std::io::stderr().is_terminal();
    let mut before: Option<u64> = None;
    let mut rate = 0.0;
    loop {
        let now = session.client.call(ShowPasses { names: names.clone() })?;
        let is_over = now.passes.iter().all(|pass| pass.state != PassState::Running);
        if is_watched {
            let examined: u64 = now.passes.iter().map(|pass| pass.examined).sum();
            let total: u64 = now.passes.iter().map(|pass| pass.total).sum();
            let a_second =
                (examined - before.unwrap_or(examined).min(examined)) as f64 / INTERVAL.as_secs_f64();
            rate = if rate == 0.0 { a_second } else { rate * 0.9 + a_second * 0.1 };
            before = Some(examined);
            let left = match rate >= 1.0 {
                true => format!(", {} left", duration(((total - examined.min(total)) as f64 / rate) as i64)),
                false => String::new(),
            };
            let line = format!(
                "{} of about {}, {}/s{left}",
                format_size(examined),
                format_size(total),
                format_size(rate as u64)
            );
            let _ = write!(std::io::stderr(), "\r{}\x1b[K", if is_over { "" } else { line.as_str() });
        }
        if is_over {
            return Ok(now);
        }
        client::pause(INTERVAL);
    }
}

/// A pass in words.
fn text(pass: &PassStatus) -> String {
    let of = pass.datasets.join(", ");
    let percent = pass.examined.saturating_mul(100).checked_div(pass.total).unwrap_or(100);
    let state = match (pass.state, pass.finished) {
        (PassState::Running, _) => format!("under way, {percent} % done"),
        (PassState::Stopped, _) => format!("stopped, {percent} % done"),
        (PassState::Full, _) => {
            format!("stopped for want of room or quota, {percent} % done: free some, then start it again")
        }
        (PassState::Done, at) => {
            format!("done on {}", render::date_to_minute(at.unwrap_or(pass.started)))
        }
        (PassState::Estimate, _) => "estimate".to_owned(),
    };
    let (before, after) = (format_size(pass.before), format_size(pass.after));
    let gain = format_size(pass.before.saturating_sub(pass.after));
    let is_estimate = pass.state == PassState::Estimate;
    let came_to = match (pass.task, is_estimate) {
        (Task::Dedup, false) => format!("{} shared, {before} freed", pass.changed),
        (Task::Dedup, true) => {
            format!("about {} are there twice, about {before} would be freed", pass.changed)
        }
        (Task::Undedup, false) => format!("{} got blocks of their own, {after}", pass.changed),
        (Task::Undedup, true) => {
            format!("{} are shared, their own blocks would take {after} at most", pass.changed)
        }
        (Task::Records, false) => {
            let kept = format_size(pass.kept);
            format!(
                "{} were cut anew, {before} became {after}, snapshots and other files hold {kept} of the old",
                pass.changed
            )
        }
        (Task::Records, true) => {
            let kept = format_size(pass.kept);
            format!(
                "{} would be cut anew, {before} would become about {after}, snapshots and other files would hold {kept} of the old at most",
                pass.changed
            )
        }
        (Task::Rewrite, _) if pass.after > pass.before => {
            let more = format_size(pass.after - pass.before);
            format!("{} {before} to {after}, {more} more", rewritten(pass.changed, is_estimate))
        }
        (Task::Rewrite, _) => {
            format!("{} {before} to {after}, {gain} less", rewritten(pass.changed, is_estimate))
        }
    };
    let unread = match pass.unread {
        0 => String::new(),
        count => format!(
            "; {count} could not be read, or differed, and stay as they are{}",
            in_files(&pass.damaged)
        ),
    };
    format!("{of}: {state}; of {} records {came_to}{unread}\n", pass.records)
}

/// The first of these files, and how many there are besides.
fn in_files(files: &[String]) -> String {
    let (first, more) = files.split_at(files.len().min(NAMED));
    match (first.join(", "), more.len()) {
        (_, _) if files.is_empty() => String::new(),
        (first, 0) => format!(", in {first}"),
        (first, more) => format!(", in {first} and {more} more: larder pool status -v names them"),
    }
}

fn rewritten(count: u64, is_estimate: bool) -> String {
    if is_estimate { format!("about {count} would go from") } else { format!("{count} went from") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_pass_names_the_files_of_which_something_could_not_be_read() {
        let files = |count: usize| (0..count).map(|i| format!("/tank/{i}")).collect();
        let status = |unread, damaged| PassStatus {
            pool: "tank".into(),
            task: Task::Records,
            state: PassState::Done,
            datasets: vec!["tank".into()],
            started: 0,
            finished: Some(0),
            examined: 10,
            total: 10,
            records: 9,
            read: 10,
            changed: 7,
            before: 7,
            after: 7,
            unread,
            damaged,
            kept: 0,
        };
        let told = |unread, damaged| {
            let text = text(&status(unread, files(damaged)));
            text.split_once("of the old").expect("what came of it").1.trim_end().to_owned()
        };
        let unread = "; 2 could not be read, or differed, and stay as they are";
        assert_eq!(told(0, 0), "");
        assert_eq!(told(2, 0), unread);
        assert_eq!(told(2, 2), format!("{unread}, in /tank/0, /tank/1"));
        let five = "/tank/0, /tank/1, /tank/2, /tank/3, /tank/4";
        assert_eq!(told(2, 7), format!("{unread}, in {five} and 2 more: larder pool status -v names them"));
    }
}
