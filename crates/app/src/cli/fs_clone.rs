//! `larder fs clone` and `larder fs promote`.

use super::args::{self, Json};
use super::{Session, out};
use crate::api::Result;
use crate::api::snapshots::{MakeClone, Promote};
use crate::render;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A clone takes no space until it, or what it was made of, changes. The snapshot can be destroyed meanwhile:
what the clone needs of it stays. To copy single files by reference, see larder clone.
Example: larder fs clone tank/home@monday tank/home-of-monday"
)]
pub struct CloneArgs {
    /// Make missing parents too; be content when it exists
    #[arg(short = 'p')]
    parents: bool,
    /// Properties of its own
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = args::assignment)]
    properties: Vec<(String, String)>,
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "DATASET@NAME")]
    snapshot: String,
    #[arg(value_name = "NEW")]
    name: String,
}

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Afterwards the dataset that the clone was made of is a clone itself, and can be destroyed.
Example: larder fs promote tank/home-of-monday"
)]
pub struct PromoteArgs {
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "CLONE")]
    name: String,
}

/// Runs `clone`.
pub fn clone(args: CloneArgs, session: &Session) -> Result<u8> {
    let CloneArgs { snapshot, name, parents, .. } = args;
    let request = MakeClone { snapshot, name, parents, properties: args::properties(args.properties)? };
    let created = session.client.call(request)?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "clone"), &created));
    }
    Ok(0)
}

/// Runs `promote`.
pub fn promote(args: PromoteArgs, session: &Session) -> Result<u8> {
    let done = session.client.call(Promote { name: args.name })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "promote"), &done));
    }
    Ok(0)
}
