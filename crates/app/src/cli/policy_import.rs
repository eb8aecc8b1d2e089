//! `larder policy import`: policies of a `sanoid.conf`.

use super::args::Json;
use super::{Session, out, policy};
use crate::api::fs::{Get, Set};
use crate::api::{ApiError, ErrorKind, Item, ItemKind, Properties, Result, Source};
use crate::policy::Period;
use crate::policy::sanoid::{Config, Import};
use crate::render;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// More than any configuration has, bytes.
const SIZE_AT_MOST: u64 = 16 << 20;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only show what would be set
    #[arg(short = 'n')]
    dry_run: bool,
    #[command(flatten)]
    json: Json,
    /// A sanoid.conf
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let config = read(&args.file)?;
    let kinds = vec![ItemKind::Filesystem];
    let request = Get { names: Vec::new(), depth: None, kinds, properties: policy::properties() };
    let items = session.client.call(request)?.items;
    let import = config.import(&items.iter().map(own).collect());
    if !args.dry_run {
        // Those below first: nothing that is to be kept is for a moment subject to what is set above it.
        for (name, properties) in import.set.iter().rev() {
            session.client.call(Set { names: vec![name.clone()], properties: properties.clone() })?;
        }
    }
    if args.json.json {
        let set: BTreeMap<_, _> = import.set.iter().cloned().collect();
        let reply = serde_json::json!({ "set": set, "not_honoured": import.notes });
        out::print_json(&render::json::reply(&session.spell("policy", "import"), &reply));
        return Ok(0);
    }
    out::print(&told(&import, args.dry_run));
    import.notes.iter().for_each(|note| out::complain(&format!("{}:{note}", args.file.display())));
    if !import.set.is_empty() {
        out::complain("snapshots that sanoid took stay as they are; stop its timer, or both take some");
    }
    Ok(0)
}

fn read(file: &Path) -> Result<Config> {
    let failed = |why: &dyn std::fmt::Display| {
        ApiError::new(ErrorKind::NotFound, format!("cannot read '{}': {why}", file.display()))
    };
    let size = file.metadata().map_err(|error| failed(&error))?.len();
    if size > SIZE_AT_MOST {
        return Err(failed(&"it is too large for a configuration"));
    }
    let bytes = std::fs::read(file).map_err(|error| failed(&error))?;
    let text = String::from_utf8(bytes).map_err(|_| failed(&"it is no text in UTF-8"))?;
    Config::parse(&text).map_err(|error| {
        ApiError::usage(format!("{}:{}: {}", file.display(), error.line, error.why))
            .safe("everything: nothing was changed")
    })
}

/// A dataset, and its own values.
fn own(item: &Item) -> (String, Properties) {
    let values = item.properties.iter().filter(|value| value.source == Source::Local);
    (item.name.clone(), values.map(|value| (value.name.clone(), value.value.clone())).collect())
}

/// A line for each dataset.
fn told(import: &Import, dry_run: bool) -> String {
    let verb = if dry_run { "would set" } else { "set" };
    let line = |(name, values): &(String, Properties)| {
        let value = |period: Period| Some(format!(" {period}={}", values.get(period.property())?));
        format!("{verb} {name}{}\n", Period::ALL.into_iter().filter_map(value).collect::<String>())
    };
    import.set.iter().map(line).collect()
}
