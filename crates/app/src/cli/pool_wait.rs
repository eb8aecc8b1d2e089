//! `larder pool sync`, `larder pool wait`: return when something is done.

use super::Session;
use crate::api::{Result, pool};
use clap::{Args, ValueEnum};

/// Arguments of `sync`.
#[derive(Debug, Args)]
pub struct Sync {
    /// Pools; all when none is given
    names: Vec<String>,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub struct Wait {
    /// What to wait for; everything when not given
    #[arg(short = 't', value_name = "ACTIVITY,...", value_delimiter = ',')]
    activities: Vec<Activity>,
    name: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Activity {
    /// Freed space can be written again
    Free,
    /// No scrub is running
    Scrub,
    /// Nothing is being resilvered, or moved because devices came or went
    #[value(alias = "replace", alias = "remove")]
    Resilver,
    /// No trace is under way
    Trace,
    /// No device is being trimmed
    Trim,
    /// No rebalance is under way
    #[value(alias = "raidz_expand")]
    Rebalance,
}

/// Waits for a commit.
pub fn sync(args: Sync, session: &Session) -> Result<u8> {
    session.client.call(pool::Sync { names: args.names })?;
    Ok(0)
}

/// Waits for work in the background.
pub fn wait(args: Wait, session: &Session) -> Result<u8> {
    let activities = args.activities.into_iter().map(|activity| match activity {
        Activity::Free => pool::Activity::Free,
        Activity::Scrub => pool::Activity::Scrub,
        Activity::Resilver => pool::Activity::Resilver,
        Activity::Trace => pool::Activity::Trace,
        Activity::Trim => pool::Activity::Trim,
        Activity::Rebalance => pool::Activity::Rebalance,
    });
    session.client.call(pool::Wait { name: args.name, activities: activities.collect() })?;
    Ok(0)
}
