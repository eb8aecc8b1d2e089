//! `mount.larder`: the helper that mount(8) calls for lines of fstab(5) as `tank /tank larder nofail 0 0`.
//!
//! A dataset with `mountpoint=legacy` is mounted where the line says; one whose own mount point that is may be mounted
//! already, which is as good.

use super::{Session, args, out};
use crate::api::fs::Mount;
use crate::api::{ApiError, Result};
use std::process::{Command, Stdio};

/// Exit codes of mount(8).
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// Arguments, as mount(8) passes them on.
#[derive(Debug, clap::Args)]
#[command(after_help = "In /etc/fstab:
  tank /tank larder nofail,x-systemd.requires=larderd.service 0 0
It is called as: mount -t larder tank /tank")]
pub struct Args {
    /// Only look whether the arguments make sense
    #[arg(short = 'f')]
    fake: bool,
    /// Take options that are not known
    #[arg(short = 's')]
    sloppy: bool,
    /// Keep no record in mtab: there is none
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Say more: there is no more
    #[arg(short = 'v')]
    verbose: bool,
    /// Options of mount(8)
    #[arg(short = 'o', value_name = "OPTION,...", value_delimiter = ',')]
    options: Vec<String>,
    /// A kind of file system
    #[arg(short = 't', value_name = "TYPE", hide = true)]
    kind: Option<String>,
    /// A dataset
    dataset: String,
    /// The folder to mount it at
    dir: String,
}

/// What mount(8) and systemd do themselves, and what is so in any case.
const PASSED_OVER: &[&str] = &[
    "rw",
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "nousers",
    "async",
    "dev",
    "suid",
    "exec",
    "relatime",
    "norelatime",
    "loud",
];

/// Runs it.
pub fn run(args: &Args, session: &Session) -> Result<u8> {
    let Args { no_mtab: _, verbose: _, kind: _, .. } = args;
    let known = |option: &str| {
        PASSED_OVER.contains(&option) || option.starts_with("x-") || option.starts_with("comment=")
    };
    let options = args.options.iter().map(|option| option.trim()).filter(|option| !option.is_empty());
    if let Some(option) = options.filter(|option| !args.sloppy && !known(option)).map(str::to_owned).next() {
        let property = match option.as_str() {
            "ro" => "readonly=on",
            "noatime" => "atime=off",
            _ => "PROPERTY=VALUE",
        };
        out::complain(&format!(
            "mount.larder: there is no option '{option}': settings belong to the dataset\n  what to do: \
             larder fs set {property} {}",
            args.dataset
        ));
        return Ok(USAGE);
    }
    let at = args::absolute(&args.dir)?;
    if args.fake {
        return Ok(0);
    }
    match mount(args.dataset.clone(), at, session) {
        Ok(()) => Ok(0),
        Err(error) => {
            out::complain(&format!("mount.larder: {error}"));
            Ok(FAILED)
        }
    }
}

fn mount(name: String, at: String, session: &Session) -> Result<()> {
    // Early at boot its unit may not have been started, and one that a mount started would be in its way.
    if session.client.is_of_system()
        && session.client.status()?.is_none()
        && sd_notify::booted().unwrap_or(false)
    {
        let mut start = Command::new("systemctl");
        start
            .args(["--quiet", "start", "larderd.service"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // Where there is no such unit, the command starts a daemon as any does.
        let _ = start.status();
    }
    let mounted = session.client.call(Mount { name: Some(name), at: Some(at) })?;
    mounted.failed.into_iter().next().map_or(Ok(()), |error: ApiError| Err(error))
}
