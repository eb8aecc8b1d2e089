//! `larder policy`: which snapshots are taken by themselves, and how many are kept. A policy is properties of datasets:
//! `set` and `clear` set those, and so do `larder fs set` and `larder fs inherit`.

use super::{Session, args, out, policy_import, policy_run, policy_show};
use crate::api::fs::{Get, Inherit, Set};
use crate::api::{ApiError, ItemKind, Result, Source};
use crate::policy::{FORMAT, Period};
use clap::Subcommand;

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Sets how many snapshots of each period are kept, of datasets and all below that have no policy of their own
    #[command(
        override_usage = "larder policy set DATASET... PERIOD=COUNT...",
        after_help = "Periods (of UTC): frequently (15 minutes), hourly, daily, weekly, monthly, yearly. A number keeps
so many and destroys older ones that were taken by policy, 0 all of them; none takes none and leaves those alone that
there are. Snapshots that somebody took by hand are never touched. format=gmt gives names for Samba's shadow_copy2.
These are the properties snapshots_hourly, ..., snapshots_format: larder fs get shows them, too.
Example: larder policy set tank/data hourly=24 daily=30 monthly=12
         larder policy set tank/data/scratch hourly=none daily=none monthly=none"
    )]
    Set(Assign),
    /// Shows policies, how many snapshots there are, and when the next is due
    #[command(after_help = "Example: larder policy show -r tank/data")]
    Show(policy_show::Args),
    /// Takes a dataset's own policy away, so that the parent's holds, also for the snapshots that there are
    #[command(after_help = "Example: larder policy clear -r tank/data")]
    Clear(Clear),
    /// Takes the snapshots that are due and destroys those that are too many, now
    #[command(
        after_help = "The daemon does so by itself. A snapshot that is held or in use stays until another time.
Example: larder policy run -n tank/data"
    )]
    Run(policy_run::Args),
    /// Sets the policies of a sanoid.conf, and names its lines that have no counterpart
    #[command(after_help = "Example: larder policy import -n /etc/sanoid/sanoid.conf")]
    Import(policy_import::Args),
}

/// Arguments of `set`.
#[derive(Debug, clap::Args)]
pub struct Assign {
    /// Datasets, and PERIOD=COUNT...
    #[arg(value_name = "DATASET... PERIOD=COUNT", required = true, num_args = 2..)]
    words: Vec<String>,
}

/// Arguments of `clear`.
#[derive(Debug, clap::Args)]
pub struct Clear {
    /// Of all datasets below too
    #[arg(short = 'r')]
    recursive: bool,
    #[arg(required = true, value_name = "DATASET")]
    names: Vec<String>,
}

/// Runs a verb.
pub fn run(verb: Verb, session: &Session) -> Result<u8> {
    match verb {
        Verb::Set(args) => set(args, session),
        Verb::Show(args) => policy_show::run(args, session),
        Verb::Clear(args) => clear(args, session),
        Verb::Run(args) => policy_run::run(args, session),
        Verb::Import(args) => policy_import::run(args, session),
    }
}

/// The properties that policies are made of.
pub fn properties() -> Vec<String> {
    Period::ALL.map(Period::property).into_iter().chain([FORMAT]).map(str::to_owned).collect()
}

/// The property of a word of `policy set`, which may be the property's own name.
fn property(word: &str) -> Result<String> {
    let known = match word {
        "format" => Some(FORMAT),
        _ => Period::of_word(word).map(Period::property),
    };
    let known = known.map(str::to_owned).or_else(|| properties().into_iter().find(|name| name == word));
    known.ok_or_else(|| {
        ApiError::usage(format!("there is no period '{word}'"))
            .hint("periods are frequently, hourly, daily, weekly, monthly, yearly; format is autosnap or gmt")
    })
}

fn assignments(words: Vec<String>) -> Result<Set> {
    let (pairs, names): (Vec<String>, Vec<String>) = words.into_iter().partition(|word| word.contains('='));
    if pairs.is_empty() || names.is_empty() {
        return Err(ApiError::usage("give at least one dataset and one PERIOD=COUNT")
            .hint("larder policy set tank/data hourly=24 daily=30"));
    }
    if let Some(name) = names.iter().find(|name| name.contains('@')) {
        return Err(ApiError::usage(format!("'{name}' is a snapshot: policies are datasets'")));
    }
    let pairs = pairs.iter().map(|pair| {
        let (word, value) = args::assignment(pair).map_err(ApiError::usage)?;
        Ok((property(&word)?, value))
    });
    Ok(Set { names, properties: args::properties(pairs.collect::<Result<_>>()?)? })
}

fn set(args: Assign, session: &Session) -> Result<u8> {
    session.client.call(assignments(args.words)?)?;
    Ok(0)
}

fn clear(args: Clear, session: &Session) -> Result<u8> {
    let Clear { recursive, names } = args;
    let depth = if recursive { None } else { Some(0) };
    let kinds = vec![ItemKind::Filesystem];
    let request = Get { names: names.clone(), depth, kinds, properties: properties() };
    let items = session.client.call(request)?.items;
    let is_own = |property: &String| {
        let mut values = items.iter().filter_map(|item| item.get(property));
        values.any(|value| value.source == Source::Local)
    };
    let own: Vec<_> = properties().into_iter().filter(is_own).collect();
    if own.is_empty() {
        out::complain("there is no policy of its own to take away");
    }
    for property in own {
        session.client.call(Inherit { names: names.clone(), property, recursive, received: false })?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(line: &str) -> Result<Set> {
        assignments(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn periods_are_properties() {
        let set = assigned("tank/a hourly=24 snapshots_daily=7 tank/b format=gmt").unwrap();
        assert_eq!(set.names, ["tank/a", "tank/b"]);
        let expected = [("snapshots_daily", "7"), ("snapshots_format", "gmt"), ("snapshots_hourly", "24")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(set.properties, expected.into());
        for property in properties() {
            assert!(larder_pool::property::dataset(&property).is_some(), "{property}");
        }
    }

    #[test]
    fn senseless_policies_are_refused_with_the_way_out() {
        for (line, words) in [
            ("tank", "give at least one dataset"),
            ("hourly=3", "give at least one dataset"),
            ("tank minutely=3", "there is no period 'minutely'"),
            ("tank compression=lz4", "there is no period 'compression'"),
            ("tank hourly=3 snapshots_hourly=4", "is given twice"),
            ("tank@x hourly=3", "'tank@x' is a snapshot"),
        ] {
            let error = assigned(line).unwrap_err();
            assert!(error.message.contains(words) && error.exit_code() == 2, "{line}: {error}");
        }
    }
}
