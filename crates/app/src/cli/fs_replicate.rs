//! `larder fs replicate`: commands on two machines, as people would type them. What is sent upon what is told by
//! [`crate::replicate`].

use super::args::Json;
use super::progress::Progress;
use super::side::{Failure, Place, Way};
use super::{Session, out};
use crate::api::name::pool_of;
use crate::api::{ApiError, ErrorKind, Result};
use crate::client::pause;
use crate::render;
use crate::replicate::{self, Base, Beyond, Choice, Dataset, Datasets, Mark, Step};
use larder_pool::property::format_size;
use larder_stream::Token;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{ErrorKind as IoKind, Read};
use std::time::Duration;

/// Bytes of a stream that are handed on together.
const PIECE: usize = 1 << 20;
/// Longest pause between two attempts, seconds.
const PAUSE_MAX: u64 = 60;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The target becomes a copy of the source with all its snapshots, by as little as it lacks: all of it first, then
increments from the newest snapshot that both have, or a bookmark of it. Where the source has nothing newer and was
changed, a snapshot is taken. What broke off goes on; broken connections are tried again. The last common snapshot is
held at the source, and policies there destroy none that is not replicated yet; --forget ends both.
Both sides may be HOST:DATASET or USER@HOST:DATASET, by ssh. Exit code 0: all is there; 1: something is not, and why.
Example: larder fs replicate -r tank/home root@nas:backup/home
         larder fs replicate --policy nas:backup/home attic/home"
)]
pub struct Args {
    /// All datasets below too, each on its own
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Only snapshots as the source's policy takes them: none is taken for the target
    #[arg(long)]
    policy: bool,
    /// Take no snapshot where there is nothing newer
    #[arg(long)]
    no_snapshot: bool,
    /// Pass over the snapshots between
    #[arg(long)]
    newest_only: bool,
    /// Number of snapshots taken for the target that are kept
    #[arg(long, value_name = "N", default_value_t = 1)]
    keep: usize,
    /// Drop what was changed or taken at the target since the last common snapshot
    #[arg(long)]
    force: bool,
    /// Attempts after a connection broke
    #[arg(long, value_name = "N", default_value_t = 5)]
    retries: u32,
    /// Let go of what is held at the source for this target, and send nothing
    #[arg(long, conflicts_with_all = ["force", "dryrun", "policy"])]
    forget: bool,
    /// Send nothing: tell what would be
    #[arg(short = 'n', long)]
    dryrun: bool,
    #[command(flatten)]
    way: Way,
    #[command(flatten)]
    json: Json,
    /// Dataset that is replicated
    #[arg(value_name = "[[USER@]HOST:]SOURCE")]
    source: String,
    /// Dataset that it becomes
    #[arg(value_name = "[[USER@]HOST:]TARGET")]
    target: String,
}

/// Outcome for a dataset.
#[derive(Debug, Clone, Default, Serialize)]
struct Outcome {
    source: String,
    target: String,
    action: Action,
    /// A stream went on where it had broken off.
    resumed: bool,
    /// `@snapshot` or `#bookmark` that it builds upon.
    from: Option<String>,
    /// The newest snapshot that both have now.
    to: Option<String>,
    /// Snapshots that were sent.
    snapshots: usize,
    bytes: u64,
    millis: u64,
    /// The reason, where it failed.
    error: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    #[default]
    UpToDate,
    Full,
    Incremental,
    Forgotten,
    Failed,
}

#[derive(Serialize)]
struct Reply<'a> {
    dry_run: bool,
    datasets: Vec<&'a Outcome>,
    /// Datasets that were renamed out of the source and are still held for the target: the command that ends it.
    moved_out: &'a BTreeMap<String, String>,
    error: Option<String>,
}

/// Runs it.
pub fn run(args: &Args, session: &Session) -> Result<u8> {
    let (source, target) = (Place::parse(&args.source, &args.way)?, Place::parse(&args.target, &args.way)?);
    if source.told("") == target.told("") {
        return Err(ApiError::usage("source and target are one dataset"));
    }
    let is_within = target.below("").starts_with(&format!("{}/", source.dataset));
    if args.recursive && is_within && source.side.is_same(&target.side) {
        return Err(ApiError::usage(format!("{} is below what is replicated", target.told(""))));
    }
    let (property, label) = (replicate::property_of(&args.target), replicate::label_of(&args.target));
    let mut run = Run {
        args,
        source,
        target,
        property,
        label,
        outcomes: BTreeMap::new(),
        begun: BTreeMap::new(),
        seen: Datasets::new(),
        failures: 0,
        was_there: false,
        rehearsed: BTreeMap::new(),
        moved: BTreeMap::new(),
    };
    let ended = if args.forget { run.forget().map_err(Failure::into_error) } else { run.attempts() };
    if args.json.json {
        let error = ended.as_ref().err().map(ToString::to_string);
        let datasets = run.outcomes.values().collect();
        let reply = Reply { dry_run: args.dryrun, datasets, moved_out: &run.moved, error };
        out::print_json(&render::json::reply(&session.spell("fs", "replicate"), &reply));
    }
    ended?;
    Ok(u8::from(run.outcomes.values().any(|outcome| outcome.action == Action::Failed)))
}

struct Run<'a> {
    args: &'a Args,
    source: Place,
    target: Place,
    /// The property and the hold by which the source remembers the target.
    property: String,
    label: String,
    /// Of datasets that are done, by their paths.
    outcomes: BTreeMap<String, Outcome>,
    /// Of those that are begun.
    begun: BTreeMap<String, Outcome>,
    /// The target, as it was when an attempt began.
    seen: Datasets,
    /// Attempts that broke off since anything arrived there.
    failures: u32,
    /// Both sides have answered.
    was_there: bool,
    /// Snapshots that a rehearsal would have taken, by their datasets' paths: name, and bytes since the last one.
    rehearsed: BTreeMap<String, (String, u64)>,
    /// Datasets that were renamed out of the source and are still held, and the command that ends that.
    moved: BTreeMap<String, String>,
}

fn refused(kind: ErrorKind, message: String) -> ApiError {
    ApiError::new(kind, message)
}

impl Run<'_> {
    fn attempts(&mut self) -> Result<()> {
        let retries = self.args.retries;
        loop {
            let error = match self.pass() {
                Ok(()) => return Ok(()),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Lost(error)) => error,
            };
            self.failures += 1;
            let failures = self.failures;
            if failures > retries {
                let hint = "the same command goes on where it broke off";
                return Err(ApiError { hint: Some(hint.to_owned()), ..error });
            }
            let wait = (1 << failures.min(6)).min(PAUSE_MAX) / 2;
            let message = &error.message;
            out::complain(&format!("{message}\n  trying again in {wait} s ({failures} of {retries})"));
            pause(Duration::from_secs(wait));
        }
    }

    /// Does what is left to be done for all datasets.
    fn pass(&mut self) -> Result<(), Failure> {
        let recursive = self.args.recursive;
        let mut sources = self.listed_source(recursive)?;
        let mut targets = self.listed_target(recursive)?;
        // A connection that breaks now and then does, if more is there each time.
        if self.was_there && targets != self.seen {
            self.failures = 0;
        }
        self.seen.clone_from(&targets);
        self.was_there = true;
        let left = |run: &Self, path: &String| !run.outcomes.contains_key(path);
        let mut is_begun = false;
        for (path, source) in &sources {
            let target = targets.get(path).filter(|_| left(self, path));
            if let Some((target, token)) = target.and_then(|target| Some((target, target.token.as_deref()?)))
            {
                let mut outcome = self.outcome(path);
                let resumed = self.resume(path, (source, target), token, &mut outcome);
                self.begun.insert(path.clone(), outcome);
                self.settle(path, resumed)?;
                is_begun = !self.args.dryrun;
            }
        }
        if is_begun {
            targets = self.listed_target(recursive)?;
        }
        if self.take(&sources, &targets)? {
            sources = self.listed_source(recursive)?;
        }
        for (path, source) in &sources {
            if left(self, path) {
                let mut outcome = self.begun.remove(path).unwrap_or_else(|| self.outcome(path));
                let brought = self.one(path, source, targets.get(path), &mut outcome);
                let is_done = brought.is_ok();
                self.begun.insert(path.clone(), outcome);
                self.settle(path, brought)?;
                if is_done && let Some(outcome) = self.begun.remove(path) {
                    self.tell(&outcome);
                    self.outcomes.insert(path.clone(), outcome);
                }
            }
        }
        for (name, _) in if recursive { self.moved_out()? } else { Vec::new() } {
            let command = self.forgetting(&name);
            if !self.args.json.json {
                let told = Place { dataset: name.clone(), ..self.source.clone() }.told("");
                out::complain(&format!(
                    "{told}: renamed out of {}, is not replicated any more, and its snapshots are still held for it\n  \
                     to let go of them: {command}",
                    self.source.told("")
                ));
            }
            self.moved.insert(name, command);
        }
        if !self.args.json.json {
            let other = targets.keys().filter(|path| !sources.contains_key(*path));
            other.for_each(|path| {
                out::print(&format!("{}: not at the source, left as it is\n", self.target.told(path)));
            });
        }
        Ok(())
    }

    fn outcome(&self, path: &str) -> Outcome {
        let (source, target) = (self.source.told(path), self.target.told(path));
        Outcome { source, target, ..Outcome::default() }
    }

    /// A refusal ends a dataset, and no other; what was lost ends the attempt.
    fn settle(&mut self, path: &str, done: Result<(), Failure>) -> Result<(), Failure> {
        let Err(Failure::Refused(error)) = done else { return done };
        let mut outcome = self.begun.remove(path).unwrap_or_else(|| self.outcome(path));
        outcome.action = Action::Failed;
        outcome.error = Some(error.to_string());
        self.tell(&outcome);
        self.outcomes.insert(path.to_owned(), outcome);
        Ok(())
    }

    fn listed_source(&self, recursive: bool) -> Result<Datasets, Failure> {
        let listed = self.list(&self.source, &self.source.dataset, recursive)?;
        let gone = || {
            let name = self.source.told("");
            let error = ApiError::no_such_dataset(&name);
            // A daemon that was started anew may have its pools soon.
            if self.was_there { Failure::Lost(error) } else { Failure::Refused(error) }
        };
        listed.ok_or_else(gone)
    }

    fn listed_target(&self, recursive: bool) -> Result<Datasets, Failure> {
        if let Some(listed) = self.list(&self.target, &self.target.dataset, recursive)? {
            return Ok(listed);
        }
        let pool = pool_of(&self.target.dataset);
        if pool != self.target.dataset && self.list(&self.target, pool, false)?.is_some() {
            return Ok(Datasets::new());
        }
        let error = ApiError::no_such_pool(pool);
        let error = ApiError { message: format!("{}: {}", self.target.told(""), error.message), ..error };
        Err(if self.was_there { Failure::Lost(error) } else { Failure::Refused(error) })
    }

    /// Datasets of a side; none where it is not there.
    fn list(&self, place: &Place, dataset: &str, recursive: bool) -> Result<Option<Datasets>, Failure> {
        let columns = format!("{},{},{}", replicate::COLUMNS, replicate::TAKEN_FOR, self.property);
        let depth: &[&str] = if recursive { &["-r"] } else { &["-d", "1"] };
        let kinds = ["fs", "list", "-Hp", "-t", "filesystem,snapshot,bookmark", "-o", &columns];
        let listed = place.side.run(&[&kinds, depth, &[dataset]].concat());
        let mut datasets = match listed {
            Ok(table) => replicate::parse(&table, dataset),
            Err(failure) if is_missing(&failure) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        if !datasets.contains_key("") {
            let message = format!("{}: no list of datasets came back", place.told(""));
            let hint = "does the command there run larder as it is asked to, and print nothing else?";
            return Err(Failure::Refused(refused(ErrorKind::Denied, message).hint(hint)));
        }
        if !recursive {
            datasets.retain(|path, _| path.is_empty());
        }
        Ok(Some(datasets))
    }

    /// Takes a snapshot of those that have nothing to send and were changed, all at one moment; whether any was.
    fn take(&mut self, sources: &Datasets, targets: &Datasets) -> Result<bool, Failure> {
        let Args { policy, no_snapshot, force, dryrun, .. } = *self.args;
        if policy || no_snapshot {
            return Ok(false);
        }
        let lacks = |(path, source): &(&String, &Dataset)| {
            let target = targets.get(*path);
            let goes_on = target.is_some_and(|target| target.token.is_some());
            let is_done = self.outcomes.contains_key(*path);
            match replicate::choose(source, target, force) {
                Choice::From(base, _) => !goes_on && !is_done && replicate::missing(source, &base).is_empty(),
                _ => false,
            }
        };
        let asked: Vec<_> = sources.iter().filter(lacks).collect();
        if asked.is_empty() {
            return Ok(false);
        }
        // What was just written counts.
        self.source.side.run(&["pool", "sync", pool_of(&self.source.dataset)])?;
        let depth = if self.args.recursive { "-r" } else { "-d0" };
        let arguments = ["fs", "list", "-Hp", depth, "-o", "name,written", &self.source.dataset];
        let table = self.source.side.run(&arguments)?;
        let written: BTreeMap<&str, u64> = table
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(name, bytes)| (name, bytes.parse().unwrap_or(u64::MAX)))
            .collect();
        let own = replicate::own_name(jiff::Timestamp::now());
        let mut wanted = Vec::new();
        for (path, source) in asked {
            let dataset = self.source.below(path);
            let bytes = written.get(dataset.as_str()).copied().unwrap_or(u64::MAX);
            let newest = targets.get(path).and_then(|target| target.snapshots.last());
            let is_changed = match source.snapshots.last() {
                Some(last) if newest.is_some_and(|newest| newest.guid == last.guid) => {
                    let last = format!("{dataset}@{}", last.name);
                    // Being read writes, too.
                    bytes > 0 && self.source.side.prints(&["fs", "diff", "-H", &last])?
                }
                // The last snapshot is not what the target has: what came since is not known.
                _ => true,
            };
            if is_changed {
                wanted.push(format!("{dataset}@{own}"));
                if dryrun {
                    self.rehearsed.insert(path.clone(), (own.clone(), bytes));
                }
            }
        }
        if wanted.is_empty() || dryrun {
            return Ok(false);
        }
        let taken_for = format!("{}={}", replicate::TAKEN_FOR, self.label);
        let words = ["fs", "snapshot", "-o", &taken_for];
        let side = &self.source.side;
        // All are of one moment, so that they cannot go in several commands.
        match side.runs(&words, &wanted).len() {
            1 => side.run_for(&words, &wanted)?,
            _ => side.feed(&[&words[..], &["--stdin"]].concat(), &wanted).map(|()| String::new())?,
        };
        Ok(true)
    }

    fn one(
        &mut self,
        path: &str,
        source: &Dataset,
        target: Option<&Dataset>,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let (mut base, mut beyond) = match replicate::choose(source, target, self.args.force) {
            Choice::From(base, beyond) => (base, beyond),
            refusal => return Err(Failure::Refused(self.refusal(path, &refusal))),
        };
        if !self.args.dryrun && !source.replicated.contains(&self.source.below(path)) {
            // From now on none goes by policy that was not sent.
            self.set(path, &format!("0 {}", self.source.below(path)))?;
        }
        loop {
            match self.bring(path, source, target, (&base, beyond), outcome) {
                Err(failure) if is_about_bookmark(&failure, &base) => {
                    let last = target.and_then(|target| replicate::last_common(source, target));
                    let Some(last) = last.filter(|_| self.args.force) else {
                        return Err(Failure::Refused(self.no_bookmark(path, &base, failure)));
                    };
                    out::complain(&format!(
                        "{}: cannot be sent from a bookmark; going back to @{}",
                        self.source.told(path),
                        last.name
                    ));
                    (base, beyond) = (Base::Snapshot(last), Beyond::Goes);
                }
                brought => return brought,
            }
        }
    }

    /// Sends what is missing upon a base, and remembers it.
    fn bring(
        &mut self,
        path: &str,
        source: &Dataset,
        target: Option<&Dataset>,
        (base, beyond): (&Base, Beyond),
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let missing = replicate::missing(source, base);
        if let Some((own, bytes)) = self.rehearsed.get(path) {
            let would = replicate::steps(base, &[Mark { name: own.clone(), ..Mark::default() }], false);
            (outcome.from, outcome.to) = (from_of(&would), Some(format!("@{own}")));
            (outcome.action, outcome.bytes, outcome.snapshots) = (action_of(base), *bytes, 1);
            return Ok(());
        }
        let newest = match (missing.last(), base) {
            (Some(newest), _) | (None, Base::Snapshot(newest)) => newest.clone(),
            (None, Base::Nothing) => {
                let message = format!("{} has no snapshot to send", self.source.told(path));
                let hint = format!("larder fs snapshot {}@NAME", self.source.below(path));
                return Err(Failure::Refused(refused(ErrorKind::NotFound, message).hint(hint)));
            }
            // Its snapshot is gone, and nothing came after it.
            (None, Base::Bookmark(mark)) => {
                outcome.to = Some(format!("#{}", mark.name));
                return Ok(());
            }
        };
        outcome.to = Some(format!("@{}", newest.name));
        let steps = replicate::steps(base, missing, self.args.newest_only);
        if !steps.is_empty() {
            (outcome.from, outcome.action) = (from_of(&steps), action_of(base));
        } else if let Some(last) = target.and_then(|target| target.snapshots.last())
            && last.guid != newest.guid
        {
            let (source, target) = (self.source.told(path), self.target.told(path));
            let message = format!(
                "{target} has snapshots newer than @{}, and {source} has nothing to send",
                newest.name
            );
            let hint =
                format!("there: larder fs rollback --drop-newer {}@{}", self.target.below(path), newest.name);
            return Err(Failure::Refused(refused(ErrorKind::Busy, message).hint(hint)));
        }
        if self.args.dryrun {
            for step in &steps {
                outcome.bytes += self.measured(path, step)?;
                outcome.snapshots += step.count;
            }
            return Ok(());
        }
        if *base == Base::Nothing && target.is_none() && path.is_empty() {
            self.make_parent()?;
        }
        if !steps.is_empty() {
            // Once it is there it is what the next one builds upon.
            self.hold(path, &newest)?;
        }
        for step in &steps {
            let arguments = self.step_of(path, step);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            self.transfer(path, &arguments, beyond == Beyond::Goes, outcome)?;
        }
        let mut now = target.cloned().unwrap_or_default();
        let sent = if self.args.newest_only { missing.len().saturating_sub(1) } else { 0 };
        now.snapshots.extend_from_slice(&missing[sent..]);
        self.remember(path, source, &now, &newest)
    }

    /// Words of `larder fs send` for a step.
    fn step_of(&self, path: &str, step: &Step) -> Vec<String> {
        let dataset = self.source.below(path);
        let from = step.from.iter();
        let from = from.flat_map(|(flag, from)| [(*flag).to_owned(), format!("{dataset}{from}")]);
        from.chain([format!("{dataset}@{}", step.to)]).collect()
    }

    /// Bytes that a step would have, about.
    fn measured(&self, path: &str, step: &Step) -> Result<u64, Failure> {
        let arguments = self.step_of(path, step);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.size_of(&arguments)
    }

    fn size_of(&self, arguments: &[&str]) -> Result<u64, Failure> {
        let told = self.source.side.run(&[&["fs", "send", "-nP"], arguments].concat())?;
        Ok(told.lines().find_map(|line| line.strip_prefix("size\t")?.parse().ok()).unwrap_or(0))
    }

    fn make_parent(&self) -> Result<(), Failure> {
        match self.target.dataset.rsplit_once('/') {
            Some((parent, _)) if parent.contains('/') => {
                self.target.side.run(&["fs", "create", "-p", parent]).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Sends what is left of a stream that broke off, or drops what came of it where that cannot be.
    fn resume(
        &mut self,
        path: &str,
        (source, target): (&Dataset, &Dataset),
        token: &str,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let told = Token::decode(token);
        let name = told.as_ref().map_or("a stream", |told| told.name.as_str());
        let sender = name.rsplit_once('@').map_or(name, |(sender, _)| sender);
        let is_known = sender == self.source.below(path) || replicate::last_common(source, target).is_some();
        if !is_known && !self.args.force {
            let message = format!(
                "{} has half of a stream of {name}, which is not of {}",
                self.target.told(path),
                self.source.told(path)
            );
            let hint = format!(
                "is it the right target? to do without what came: larder fs receive -A {}",
                self.target.below(path)
            );
            return Err(Failure::Refused(refused(ErrorKind::Busy, message).hint(hint)));
        }
        let is_ours =
            told.as_ref().is_some_and(|told| source.snapshots.iter().any(|one| one.guid == told.to));
        if self.args.dryrun {
            let target = self.target.told(path);
            if !self.args.json.json {
                let does = if is_ours { "would go on" } else { "would be dropped" };
                out::print(&format!("{target}: what came of {name} {does}\n"));
            }
            return Ok(());
        }
        let why = if is_ours {
            match self.transfer(path, &["-t", token], self.args.force, outcome) {
                Ok(()) => {
                    outcome.resumed = true;
                    outcome.action = Action::Incremental;
                    return Ok(());
                }
                Err(failure) if failure.refusal().is_some_and(|why| why.contains("cannot resume send")) => {
                    failure.into_error().message
                }
                // A connection that broke was still open there when the target was asked: more has come since.
                Err(failure) if failure.refusal().is_some_and(|why| why.contains("does not go on where")) => {
                    return Err(Failure::Lost(failure.into_error()));
                }
                Err(failure) => return Err(failure),
            }
        } else {
            format!("{} does not have that snapshot any more", self.source.told(path))
        };
        let target = self.target.told(path);
        out::complain(&format!("{target}: what came of {name} is dropped, since it cannot go on: {why}"));
        self.target.side.run(&["fs", "receive", "-A", &self.target.below(path)]).map(drop)
    }

    /// One stream from side to side.
    fn transfer(
        &mut self,
        path: &str,
        arguments: &[&str],
        replaces: bool,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let total = if Progress::is_watched() { self.size_of(arguments)? } else { 0 };
        let options: &[&str] = if replaces { &["-F"] } else { &[] };
        let mut receiver = self.target.side.receive(options, &self.target.below(path))?;
        let mut sender = self.source.side.send(arguments)?;
        let (mut progress, mut piece, mut is_taken) = (Progress::of(total), vec![0; PIECE], true);
        if let Some(mut output) = sender.output() {
            loop {
                match output.read(&mut piece) {
                    Ok(0) => break,
                    Ok(len) => {
                        is_taken = receiver.take(&piece[..len]);
                        if !is_taken {
                            break;
                        }
                        if progress.add(len as u64).is_some() && Progress::is_watched() {
                            progress.show();
                        }
                    }
                    Err(error) if error.kind() == IoKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        }
        progress.end();
        let sent = if is_taken {
            sender.finish()
        } else {
            sender.stop();
            Ok(())
        };
        // An end that came too early is the other side's to explain.
        let received = receiver.finish();
        let received = match sent {
            Err(failure) => return Err(failure),
            Ok(()) => received?,
        };
        outcome.bytes += progress.moved();
        outcome.snapshots += received.received.len();
        outcome.millis += received.received.iter().map(|one| one.millis).sum::<u64>();
        Ok(())
    }

    /// Has the source keep the newest common snapshot and what comes after it, and no more than that.
    fn remember(&self, path: &str, source: &Dataset, target: &Dataset, newest: &Mark) -> Result<(), Failure> {
        let dataset = self.source.below(path);
        let value = format!("{} {dataset}@{}", newest.commit, newest.name);
        // It is set last: all else was done.
        if source.replicated == value {
            return Ok(());
        }
        self.hold(path, newest)?;
        self.release(&dataset, source, Some(newest))?;
        let label = &self.label;
        let old = replicate::old_at_source(source, label, newest, self.args.keep);
        self.destroy(&self.source, path, &old);
        let mut kept = source.clone();
        kept.snapshots.retain(|mark| !old.contains(&mark.name));
        self.destroy(&self.target, path, &replicate::old_at_target(&kept, target, newest));
        self.set(path, &value)
    }

    fn hold(&self, path: &str, newest: &Mark) -> Result<(), Failure> {
        let name = format!("{}@{}", self.source.below(path), newest.name);
        match self.source.side.run(&["fs", "hold", &self.property, &name]) {
            Err(failure) if failure.refusal().is_some_and(|why| why.contains("tag already exists")) => Ok(()),
            held => held.map(drop),
        }
    }

    /// Lets go of the holds for this target, but for that on one.
    fn release(&self, dataset: &str, source: &Dataset, but: Option<&Mark>) -> Result<(), Failure> {
        let held = source
            .snapshots
            .iter()
            .filter(|mark| mark.is_held && but.is_none_or(|but| but.guid != mark.guid));
        let held: Vec<_> = held.map(|mark| format!("{dataset}@{}", mark.name)).collect();
        if held.is_empty() {
            return Ok(());
        }
        let table = self.source.side.run_for(&["fs", "holds", "-Hp"], &held)?;
        let ours = table.lines().filter_map(|line| {
            let mut columns = line.split('\t');
            let name = columns.next()?;
            (columns.next()? == self.property).then(|| name.to_owned())
        });
        let ours: Vec<String> = ours.collect();
        self.source.side.run_for(&["fs", "release", &self.property], &ours).map(drop)
    }

    /// Destroys old snapshots; one that somebody holds stays, and is tried again.
    fn destroy(&self, place: &Place, path: &str, names: &[String]) {
        let (words, dataset) = (["fs", "destroy", "--yes"], place.below(path));
        for names in place.side.runs(&[&words[..], &[&dataset]].concat(), names) {
            let whole = format!("{dataset}@{}", names.join(","));
            if let Err(failure) = place.side.run(&[&words[..], &[&whole]].concat()) {
                out::complain(&format!("old snapshots stay: {}", failure.into_error().message));
            }
        }
    }

    fn set(&self, path: &str, value: &str) -> Result<(), Failure> {
        let assignment = format!("{}={value}", self.property);
        self.source.side.run(&["fs", "set", &assignment, &self.source.below(path)]).map(drop)
    }

    fn forget(&mut self) -> Result<(), Failure> {
        let mut sources = self.listed_source(self.args.recursive)?;
        sources.retain(|_, source| !matches!(source.replicated.as_str(), "" | "-"));
        let below = sources.into_iter().map(|(path, source)| (self.source.below(&path), path, source));
        let mut held: Vec<_> = below.collect();
        // What was renamed away since was part of it too.
        for (name, path) in if self.args.recursive { self.moved_out()? } else { Vec::new() } {
            if let Some(source) = self.list(&self.source, &name, false)?.and_then(|mut all| all.remove("")) {
                held.push((name, path, source));
            }
        }
        if held.is_empty() {
            let message = format!("{} remembers nothing of {}", self.source.told(""), self.args.target);
            let hint = format!(
                "a target is what replicate was told, to the letter: larder fs get all {} shows each as {}TARGET",
                self.source.dataset,
                replicate::REPLICATED
            );
            return Err(Failure::Refused(refused(ErrorKind::NotFound, message).hint(hint)));
        }
        for (name, path, source) in held {
            self.release(&name, &source, None)?;
            self.source.side.run(&["fs", "inherit", &self.property, &name])?;
            let outcome = Outcome {
                source: Place { dataset: name.clone(), ..self.source.clone() }.told(""),
                target: self.target.told(&path),
                action: Action::Forgotten,
                ..Outcome::default()
            };
            self.tell(&outcome);
            self.outcomes.insert(name, outcome);
        }
        Ok(())
    }

    /// Datasets that were renamed out of the source, and are still held for the target: see [`replicate::moved_out`].
    fn moved_out(&self) -> Result<Vec<(String, String)>, Failure> {
        let pool = pool_of(&self.source.dataset);
        let words = ["fs", "get", "-Hp", "-r", "-t", "filesystem", "-s", "local", "-o", "name,value"];
        let table = self.source.side.run(&[&words[..], &[&self.property, pool]].concat())?;
        Ok(replicate::moved_out(&table, &self.source.dataset))
    }

    /// The command that ends what is held of one of these.
    fn forgetting(&self, name: &str) -> String {
        let source = Place { dataset: name.to_owned(), ..self.source.clone() }.told("");
        let words = ["larder", "fs", "replicate", "--forget"].into_iter().chain(self.args.way.words());
        let words = words.chain([source.as_str(), self.args.target.as_str()]);
        shlex::try_join(words).unwrap_or_default()
    }

    fn refusal(&self, path: &str, choice: &Choice) -> ApiError {
        let (source, target) = (self.source.told(path), self.target.told(path));
        match choice {
            Choice::Diverged { common, newest } => {
                let message = format!(
                    "{target} diverged: it has @{}, which {source} lacks; the last that both have is @{}",
                    newest.name, common.name
                );
                refused(ErrorKind::Busy, message).safe("nothing was changed").hint(
                    "--force drops what is newer at the target; larder fs clone there keeps it in another dataset",
                )
            }
            Choice::Occupied => {
                let message = format!("{target} is there already, without a snapshot");
                refused(ErrorKind::Exists, message)
                    .safe("nothing was changed")
                    .hint("name a dataset that is not there yet; --force overwrites it")
            }
            _ => {
                let message = format!("{target} has no snapshot in common with {source}");
                refused(ErrorKind::Exists, message).safe("nothing was changed").hint(
                    "replicate to a dataset that is not there yet, or rename this one: larder fs rename",
                )
            }
        }
    }

    fn no_bookmark(&self, path: &str, base: &Base, failure: Failure) -> ApiError {
        let name = match base {
            Base::Bookmark(mark) => format!("#{}", mark.name),
            _ => String::new(),
        };
        let message = format!(
            "{}: of the newest snapshot of {} there is only the bookmark {name} left, and it cannot be sent from: {}",
            self.source.told(path),
            self.target.told(path),
            failure.into_error().message
        );
        refused(ErrorKind::Unsupported, message)
            .safe("nothing was changed")
            .hint("--force goes back to the last snapshot that both have; else replicate to another dataset")
    }

    /// The line of a dataset.
    fn tell(&self, outcome: &Outcome) {
        if self.args.json.json {
            return;
        }
        let Outcome { source, target, from, to, snapshots, bytes, millis, .. } = outcome;
        let to = to.as_deref().unwrap_or_default();
        let count = if *snapshots == 1 { "1 snapshot".to_owned() } else { format!("{snapshots} snapshots") };
        let from = from.as_ref().map_or_else(|| "in full".to_owned(), |from| format!("from {from}"));
        let size = format_size(*bytes);
        let text = match (outcome.action, self.args.dryrun) {
            (Action::Failed, _) => {
                out::complain(outcome.error.as_deref().unwrap_or_default());
                return;
            }
            (Action::Forgotten, _) => "nothing is held for it any more".to_owned(),
            (Action::UpToDate, _) => format!("up to date at {to}"),
            (_, true) => format!("would send {count} up to {to} {from}, {size}"),
            (_, false) => {
                let on = if outcome.resumed { ", gone on with where it broke off" } else { "" };
                format!("{count} up to {to} {from}, {size} in {:.1} s{on}", *millis as f64 / 1000.0)
            }
        };
        out::print(&format!("{source} -> {target}: {text}\n"));
    }
}

fn from_of(steps: &[Step]) -> Option<String> {
    steps.first()?.from.as_ref().map(|(_, from)| from.clone())
}

fn action_of(base: &Base) -> Action {
    if *base == Base::Nothing { Action::Full } else { Action::Incremental }
}

fn is_missing(failure: &Failure) -> bool {
    failure
        .refusal()
        .is_some_and(|why| why.contains("dataset does not exist") || why.contains("no such pool"))
}

/// Whether a source refused to send from a bookmark.
fn is_about_bookmark(failure: &Failure, base: &Base) -> bool {
    let says =
        |why: &str| why.contains("cannot send from the bookmark") || why.contains("incremental source (");
    matches!(base, Base::Bookmark(_)) && failure.refusal().is_some_and(says)
}
