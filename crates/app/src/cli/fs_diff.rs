//! `larder fs diff`.

use super::args::Json;
use super::{Session, out};
use crate::api::Result;
use crate::api::diff::{Diff, Line};
use crate::render::diff::{self, Form};

/// Bytes of lines that are written together.
const TOGETHER: usize = 16 << 10;

/// Arguments.
#[derive(Debug, clap::Args)]
// Help is --help alone: -h is a flag of zfs-diff(8).
#[command(
    disable_help_flag = true,
    after_help = "A line for each file or folder that differs: M modified, + new, - gone, R renamed. Those below a renamed
folder are not told unless they changed themselves. (+1) is a name more that a file has by a hard link.
Paths begin with the mountpoint; those of a dataset that is not mounted begin at its top folder.
Example: larder fs diff tank/home@monday tank/home@tuesday
         larder fs diff -Ht tank/home@monday            # to what it is now"
)]
pub struct Args {
    /// Also the type: F file, / folder, @ link, | pipe, = socket, B and C devices
    #[arg(short = 'F')]
    classified: bool,
    /// For scripts: columns separated by one tab, no arrows
    #[arg(short = 'H')]
    scripted: bool,
    /// Also the time of the last change: seconds since 1970
    #[arg(short = 't')]
    timed: bool,
    /// Names as they are; else octal digits stand for all but visible ASCII
    #[arg(short = 'h')]
    plain: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    json: Json,
    #[arg(value_name = "DATASET@OLD")]
    from: String,
    /// A later snapshot of it; without one, what it is now
    #[arg(value_name = "DATASET@NEW|DATASET")]
    to: Option<String>,
}

/// Runs it.
pub fn run(args: Args, session: &Session) -> Result<u8> {
    let to = args.to.unwrap_or_else(|| args.from.split('@').next().unwrap_or_default().to_owned());
    let request = Diff { from: args.from, to }.checked()?;
    let form =
        Form { classified: args.classified, scripted: args.scripted, timed: args.timed, plain: args.plain };
    let (mut at, mut lines, mut failed) = (String::new(), Vec::new(), false);
    let told = session.client.diff(&request, &mut |line| {
        match line {
            Line::Began(path) => at = path.unwrap_or_default(),
            Line::Change(change) if args.json.json => {
                lines.extend(format!("{}\n", diff::json(&change, &at)).into_bytes());
            }
            Line::Change(change) => lines.extend(diff::line(&change, &at, form)),
            Line::Unknown(error) => {
                failed = true;
                out::complain(&error.to_string());
            }
            Line::Going | Line::Ended | Line::Failed(_) => {}
        }
        if lines.len() >= TOGETHER {
            out::print_bytes(&std::mem::take(&mut lines));
        }
    });
    out::print_bytes(&lines);
    told.map(|()| u8::from(failed))
}
