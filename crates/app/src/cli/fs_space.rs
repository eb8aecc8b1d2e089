//! `larder fs space`.

use super::args::{Form, Json};
use super::{Session, out};
use crate::api::name::printable;
use crate::api::snapshots::{Space, Spaces};
use crate::api::{ApiError, ErrorKind, Result};
use crate::render;
use crate::render::table::{Column, Table};
use larder_pool::property::{format_size, parse_size};

/// Files that are named unless another number is given.
const FILES: u32 = 20;

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "USED is what comes back when a snapshot alone is destroyed, WITHOLDER when it and all older ones are: what several
have in common comes back with the last of them, so that the sum of USED says little. Of snapshots by name, as destroy
takes them, it also tells what all together bring back, and the files that most of it is in.
Examples: larder fs space tank/home
          larder fs space tank/home@monday,may%june # which files are only in these
          larder fs space --free 50G tank/home      # the oldest ones that bring it back, as a command"
)]
pub struct Args {
    /// Tell the fewest of the oldest that bring so much back, as a command to paste; nothing is destroyed
    #[arg(long, value_name = "SIZE")]
    free: Option<String>,
    /// Name so many files, the largest first; 20 unless set, none for a whole dataset
    #[arg(long, value_name = "COUNT")]
    files: Option<u32>,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "DATASET|DATASET@SNAPSHOTS")]
    name: String,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let wanted = args.free.as_deref().map(|size| {
        parse_size(size).ok_or_else(|| ApiError::usage(format!("'{size}' is no size: 500M, 1.5T, or bytes")))
    });
    let wanted = wanted.transpose()?;
    if wanted == Some(0) {
        return Err(ApiError::usage("nothing is to be freed"));
    }
    let some = args.name.contains('@');
    if some && wanted.is_some() {
        return Err(ApiError::usage("--free chooses among all snapshots of a dataset: name that"));
    }
    let files = args.files.unwrap_or(if some { FILES } else { 0 });
    let found = session.client.call(Space { name: args.name.clone(), files })?;
    if let Some(wanted) = wanted {
        out::print(&format!("{}\n", command(session, &args.name, &found, wanted)?));
        return Ok(0);
    }
    if args.json.json {
        out::print_json(&render::json::reply(&session.spell("fs", "space"), &found));
        return Ok(0);
    }
    let size = |bytes: u64| if args.form.exact { bytes.to_string() } else { format_size(bytes) };
    let mut table = Table::new(vec![
        Column::left("NAME"),
        Column::left("CREATION"),
        Column::left("HELD"),
        Column::right("USED", 5),
        Column::right("WITHOLDER", 9),
    ]);
    for one in &found.snapshots {
        let created = match args.form.exact {
            true => one.created.to_string(),
            false => render::date_to_minute(one.created),
        };
        let held = if one.held { "yes" } else { "no" };
        table.row(vec![one.name.clone(), created, held.to_owned(), size(one.used), size(one.with_older)]);
    }
    out::print(&table.render(args.form.scripted));
    if found.trash > 0 && !args.form.scripted {
        out::print(&format!("in the trash: {}, which counts as available\n", format_size(found.trash)));
    }
    if some && !args.form.scripted && found.snapshots.len() > 1 {
        let all = found.snapshots.len();
        out::print(&format!("destroying these {all} brings back {}\n", size(found.together)));
    }
    if !found.files.is_empty() {
        let mut table = Table::new(vec![Column::right("SIZE", 5), Column::left("FILE")]);
        for file in &found.files {
            let path = file.path.as_ref().map(|path| printable(&String::from_utf8_lossy(path.bytes())));
            let path =
                path.unwrap_or_else(|| format!("? (inode {}, which had no name any more)", file.inode));
            table.row(vec![size(file.size), path]);
        }
        out::print(&table.render(args.form.scripted));
    }
    Ok(0)
}

/// The command that brings so much back by destroying the oldest ones.
fn command(session: &Session, dataset: &str, found: &Spaces, wanted: u64) -> Result<String> {
    let refuse = |why: String| {
        let message = format!("cannot free {} with snapshots of {dataset}: {why}", format_size(wanted));
        Err(ApiError::new(ErrorKind::NoSpace, message))
    };
    let Some(last) = found.snapshots.iter().position(|one| one.with_older >= wanted) else {
        let all = found.snapshots.last().map_or(0, |last| last.with_older);
        return refuse(format!("all of them hold {}", format_size(all)));
    };
    let going = &found.snapshots[..=last];
    if let Some(held) = going.iter().find(|one| one.held) {
        return refuse(format!("{} is held, and would have to go", held.name))
            .map_err(|error: ApiError| error.hint(format!("larder fs holds {}", held.name)));
    }
    let own = found.snapshots[last].name.rsplit('@').next().unwrap_or_default();
    Ok(format!("{} {dataset}@%{own}", session.spell("fs", "destroy")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::snapshots::SnapshotSpace;
    use crate::cli::Applet;
    use crate::client::Client;
    use crate::run_dir::RunDir;
    use std::path::Path;

    #[test]
    fn the_oldest_that_bring_enough_back_are_a_command() {
        let session = Session { client: Client::new(RunDir::at(Path::new("/none"))), applet: Applet::Larder };
        let one = |name: &str, held, with_older| SnapshotSpace {
            name: format!("tank/a@{name}"),
            created: 0,
            held,
            used: 0,
            with_older,
        };
        let found = Spaces {
            trash: 0,
            together: 0,
            files: vec![],
            snapshots: vec![one("x", false, 10), one("y", false, 500), one("z", true, 900)],
        };
        let told = |wanted| command(&session, "tank/a", &found, wanted).map_err(|error| error.message);
        assert_eq!(told(10), Ok("larder fs destroy tank/a@%x".to_owned()));
        assert_eq!(told(11), Ok("larder fs destroy tank/a@%y".to_owned()));
        assert!(told(501).unwrap_err().contains("tank/a@z is held"));
        assert!(told(901).unwrap_err().contains("all of them hold 900B"));
    }
}
