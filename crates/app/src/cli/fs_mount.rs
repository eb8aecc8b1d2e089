//! `larder fs mount` and `larder fs unmount`.

use super::args::{self, Force, Json};
use super::{Session, out};
use crate::api::fs::{Get, Mount, Mounted, Unmount};
use crate::api::{Item, ItemKind, Result};
use crate::render::{self, Registry};

/// Arguments of `mount`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: larder fs mount -a
         larder fs mount tank/home@monday /mnt")]
pub struct MountArgs {
    /// All datasets that mount by themselves
    #[arg(short = 'a', conflicts_with = "name")]
    all: bool,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    json: Json,
    /// A dataset or a snapshot
    name: Option<String>,
    /// The folder: for a snapshot, which is shown for reading, and for a dataset with mountpoint=legacy
    #[arg(conflicts_with = "all")]
    dir: Option<String>,
}

/// Arguments of `unmount`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: larder fs unmount /srv/media")]
pub struct UnmountArgs {
    /// All datasets
    #[arg(short = 'a', conflicts_with = "target")]
    all: bool,
    #[command(flatten)]
    force: Force,
    /// A dataset, a snapshot or a mount point
    #[arg(required_unless_present = "all", value_name = "NAME|MOUNTPOINT")]
    target: Option<String>,
}

/// Mounts, or shows what is mounted.
pub fn mount(args: MountArgs, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    if !args.all && args.name.is_none() {
        return show(args.json, session);
    }
    let at = args.dir.map(|dir| folder(&dir)).transpose()?;
    let mounted = session.client.call(Mount { name: args.name, at })?;
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "mount"), &mounted));
    }
    Ok(tell(&mounted))
}

/// Unmounts.
pub fn unmount(args: UnmountArgs, session: &Session) -> Result<u8> {
    session.tolerate(args.force)?;
    let target = match args.target {
        Some(text) if text.starts_with(['/', '.']) => Some(folder(&text)?),
        target => target,
    };
    Ok(tell(&session.client.call(Unmount { target })?))
}

/// A folder's path, in one form.
fn folder(text: &str) -> Result<String> {
    let path = args::absolute(text)?;
    Ok(if path == "/" { path } else { path.trim_end_matches('/').to_owned() })
}

fn tell(outcome: &Mounted) -> u8 {
    for error in &outcome.failed {
        out::complain(&error.to_string());
    }
    u8::from(!outcome.failed.is_empty())
}

fn show(json: Json, session: &Session) -> Result<u8> {
    let properties = vec!["mounted".to_owned(), "mountpoint".to_owned()];
    let kinds = vec![ItemKind::Filesystem, ItemKind::Snapshot];
    let mut items = session.client.call(Get { properties, kinds, ..Get::default() })?.items;
    items.retain(|item| item.get("mounted").is_some_and(|mounted| mounted.value == "yes"));
    if json.json {
        let datasets = render::json::items(Registry::Dataset, &items);
        out::print_json(&render::json::envelope(&session.spell("fs", "mount"), "datasets", datasets));
        return Ok(0);
    }
    let line = |item: &Item| {
        let path = item.get("mountpoint").map_or("-", |mountpoint| mountpoint.value.as_str());
        format!("{:<30}  {path}\n", item.name)
    };
    out::print(&items.iter().map(line).collect::<String>());
    Ok(0)
}
