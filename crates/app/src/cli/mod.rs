//! The command line: arguments in, requests out; one file a command where it is more than a few lines.
//!
//! `larder pool` and `larder fs` take the verbs, flags and columns of zpool(8) and zfs(8); called by those names, the
//! binary takes only them; called `arcstat`, it shows its caches as that tool does. Exit codes: 0 done, 1 failed, 2
//! bad usage; `pool check` has its own.

mod advise;
mod advise_dataset;
mod args;
mod cachestat;
mod clone;
mod daemon;
mod dedupe;
mod extents;
mod fs;
mod fs_bookmark;
mod fs_clone;
mod fs_create;
mod fs_destroy;
mod fs_diff;
mod fs_hold;
mod fs_list;
mod fs_mount;
mod fs_pass;
mod fs_properties;
mod fs_receive;
mod fs_rename;
mod fs_replicate;
mod fs_rollback;
mod fs_send;
mod fs_snapshot;
mod fs_space;
mod fs_trash;
mod items;
mod mount_larder;
mod out;
mod personalities;
mod plan;
mod policy;
mod policy_import;
mod policy_run;
mod policy_show;
mod pool;
mod pool_check;
mod pool_create;
mod pool_dedup;
mod pool_destroy;
mod pool_devices;
mod pool_events;
mod pool_export;
mod pool_history;
mod pool_import;
mod pool_iostat;
mod pool_labelclear;
mod pool_list;
mod pool_properties;
mod pool_rebuild_index;
mod pool_scrub;
mod pool_split;
mod pool_status;
mod pool_trace;
mod pool_trim;
mod pool_wait;
mod progress;
mod repair;
mod restore;
mod restore_copy;
mod restore_place;
mod sampling;
mod selection;
mod side;
mod signals;
mod torture;
mod vdevs;
mod versions;

use crate::api::{ApiError, Result};
use crate::client::Client;
use crate::run_dir::RunDir;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// By what name people call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applet {
    /// `larder`.
    Larder,
    /// `zpool`: `larder pool`.
    Zpool,
    /// `zfs`: `larder fs`.
    Zfs,
    /// `arcstat`: like `larder cachestat`.
    Arcstat,
    /// `zdb`: `larder pool dedup`.
    Zdb,
    /// `mount.larder`: for mount(8).
    Mount,
}

/// Context of every verb.
pub struct Session {
    /// The way to the daemon.
    pub client: Client,
    /// By what name people call.
    pub applet: Applet,
}

impl Session {
    /// Spelling of `pool` (or `fs`) and `verb` here: `larder pool list`, `zpool list`.
    pub fn spell(&self, noun: &str, verb: &str) -> String {
        match self.applet {
            Applet::Larder | Applet::Arcstat | Applet::Zdb | Applet::Mount => format!("larder {noun} {verb}"),
            Applet::Zpool => format!("zpool {verb}"),
            Applet::Zfs => format!("zfs {verb}"),
        }
    }

    /// Whether to go ahead with what loses something; says so if not. zpool and zfs never ask.
    pub fn goes_ahead(&self, yes: args::Yes, question: &str) -> bool {
        let goes_ahead = yes.yes || self.applet != Applet::Larder || out::confirmed(question);
        if !goes_ahead {
            out::complain("nothing was done");
        }
        goes_ahead
    }

    /// Lets `-f` pass where scripts for zpool and zfs pass it; it changes nothing.
    ///
    /// # Errors
    /// Usage, under our own name.
    pub fn tolerate(&self, force: args::Force) -> Result<()> {
        if force.force && self.applet == Applet::Larder {
            return Err(ApiError::usage("there is no -f: each risk has its own flag, see --help"));
        }
        Ok(())
    }
}

/// A storage pool in user space: redundancy, checksums, compression and datasets without a kernel module.
#[derive(Parser)]
#[command(name = "larder", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "A first pool, of two files:
  truncate -s 1G /tmp/a /tmp/b
  larder pool create -m /mnt/tank tank mirror /tmp/a /tmp/b
  larder fs create -o compression=zstd tank/home
  larder pool status")]
struct Larder {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Pools and their devices; the verbs of zpool(8)
    #[command(subcommand, visible_alias = "zpool")]
    Pool(pool::Verb),
    /// Datasets and their properties; the verbs of zfs(8)
    #[command(subcommand, visible_alias = "zfs")]
    Fs(fs::Verb),
    /// Snapshots that are taken by themselves, and how many of them are kept
    #[command(subcommand)]
    Policy(policy::Verb),
    /// Copies a file by reference: the copy shares its blocks
    Clone(clone::Args),
    /// Lists the versions of a file that snapshots have
    Versions(versions::Args),
    /// Brings a version of a file, or a folder, back from a snapshot
    Restore(restore::Args),
    /// Shows which blocks files are made of, where they lie, and what is shared
    Extents(extents::Args),
    /// Finds what files on XFS or btrfs have in common, and has the kernel share it
    Dedupe(dedupe::Args),
    /// Shows what the caches do: look-ups, hits and misses a second, and how full they are
    Cachestat(cachestat::Args),
    /// Tells what compression and deduplication would gain for files anywhere, before they are stored
    Advise(advise::Args),
    /// Compares the layouts that disks could have, before a pool is made: space, losses survived, risk, speed, price
    Plan(plan::Args),
    /// Tells what is left of a pool that cannot be imported any more, and saves it elsewhere
    Repair(repair::Args),
    /// Tries on pools of its own whether anything is lost here: kills, damage and every operation, beside a model
    Torture(torture::Args),
    /// The process that holds the imported pools; other commands start it when they need it
    Daemon(daemon::Args),
    /// Makes links by whose names the binary speaks like zpool and zfs
    Personalities(personalities::Args),
    /// What `arcstat` asks for.
    #[command(skip)]
    Arcstat(cachestat::ArcstatArgs),
    /// What `zdb` asks for.
    #[command(skip)]
    Zdb(pool_dedup::ZdbArgs),
    /// What mount(8) asks for.
    #[command(skip)]
    Mount(mount_larder::Args),
}

/// Pools and their devices, kept by larder; the verbs of zpool(8).
#[derive(Parser)]
#[command(name = "zpool", version, subcommand_required = true, arg_required_else_help = true)]
struct Zpool {
    #[command(subcommand)]
    verb: pool::Verb,
}

/// Datasets and their properties, kept by larder; the verbs of zfs(8).
#[derive(Parser)]
#[command(name = "zfs", version, subcommand_required = true, arg_required_else_help = true)]
struct Zfs {
    #[command(subcommand)]
    verb: fs::Verb,
}

/// What the caches of larder's pools do, as arcstat(1) shows the ARC.
#[derive(Parser)]
#[command(name = "arcstat", version)]
struct Arcstat {
    #[command(flatten)]
    args: cachestat::ArcstatArgs,
}

/// Of zdb(8) what larder's pools have: -D, the histogram of references.
#[derive(Parser)]
#[command(name = "zdb", version)]
struct Zdb {
    #[command(flatten)]
    args: pool_dedup::ZdbArgs,
}

/// Mounts a dataset of larder's; called by mount(8).
#[derive(Parser)]
#[command(name = "mount.larder", version)]
struct MountLarder {
    #[command(flatten)]
    args: mount_larder::Args,
}

/// The parsed command, and the name it was called by.
struct Call {
    applet: Applet,
    command: Command,
}

/// The whole command: parses, runs, tells errors, gives the exit code.
pub fn main(argv: Vec<OsString>) -> ExitCode {
    let call = match parse(argv) {
        Ok(call) => call,
        Err(error) => {
            // Help goes to standard output and is no failure; a closed pipe is none either.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let applet = call.applet;
    match run(call) {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(applet, &error),
    }
}

fn fail(applet: Applet, error: &ApiError) -> ExitCode {
    // Scripts for zpool and zfs take every line for one of theirs.
    let bare = matches!(applet, Applet::Zpool | Applet::Zfs) && !out::is_watched();
    out::complain(&if bare { error.message.clone() } else { error.to_string() });
    ExitCode::from(error.exit_code())
}

fn parse(argv: Vec<OsString>) -> std::result::Result<Call, clap::Error> {
    fn read<P: CommandFactory + FromArgMatches>(argv: Vec<OsString>) -> std::result::Result<P, clap::Error> {
        let matches = P::command().try_get_matches_from(argv)?;
        P::from_arg_matches(&matches)
    }
    let called = argv.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let call = |applet, command| Ok(Call { applet, command });
    match called.to_str().unwrap_or_default() {
        "zpool" => call(Applet::Zpool, Command::Pool(read::<Zpool>(argv)?.verb)),
        "zfs" => call(Applet::Zfs, Command::Fs(read::<Zfs>(argv)?.verb)),
        "arcstat" => call(Applet::Arcstat, Command::Arcstat(read::<Arcstat>(argv)?.args)),
        "mount.larder" => call(Applet::Mount, Command::Mount(read::<MountLarder>(argv)?.args)),
        "zdb" => call(Applet::Zdb, Command::Zdb(read::<Zdb>(argv)?.args)),
        _ => call(Applet::Larder, read::<Larder>(argv)?.command),
    }
}

fn run(call: Call) -> Result<u8> {
    let Call { applet, command } = call;
    if let Command::Personalities(args) = command {
        return personalities::run(&args);
    }
    if let Command::Dedupe(args) = command {
        return dedupe::run(args);
    }
    if let Command::Advise(args) = command {
        return advise::run(&args, applet);
    }
    if let Command::Plan(args) = command {
        return plan::run(&args);
    }
    if let Command::Repair(args) = command {
        return repair::run(&args);
    }
    if let Command::Torture(args) = command {
        return torture::run(&args);
    }
    let run_dir = RunDir::from_environment()?;
    if let Command::Daemon(args) = command {
        return daemon::run(&args, &run_dir);
    }
    let session = Session { client: Client::new(run_dir), applet };
    match command {
        Command::Pool(verb) => pool::run(verb, &session),
        Command::Fs(verb) => fs::run(verb, &session),
        Command::Policy(verb) => policy::run(verb, &session),
        Command::Clone(args) => clone::run(&args, &session),
        Command::Versions(args) => versions::run(&args, &session),
        Command::Restore(args) => restore::run(&args, &session),
        Command::Extents(args) => extents::run(&args, &session),
        Command::Cachestat(args) => cachestat::run(&args, &session),
        Command::Arcstat(args) => cachestat::run_arcstat(&args, &session),
        Command::Zdb(args) => pool_dedup::run_zdb(args, &session),
        Command::Mount(args) => mount_larder::run(&args, &session),
        Command::Daemon(_)
        | Command::Personalities(_)
        | Command::Dedupe(_)
        | Command::Advise(_)
        | Command::Plan(_)
        | Command::Repair(_)
        | Command::Torture(_) => unreachable!("they ran above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> std::result::Result<Call, String> {
        parse(line.split_whitespace().map(OsString::from).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_parsers_hold_together() {
        Larder::command().debug_assert();
        Zpool::command().debug_assert();
        Zfs::command().debug_assert();
        Arcstat::command().debug_assert();
        Zdb::command().debug_assert();
        MountLarder::command().debug_assert();
    }

    /// `advise` gives lines to paste: the program takes them, and its properties those values.
    #[test]
    fn what_is_advised_can_be_pasted() {
        let dir = tempfile::tempdir().unwrap();
        let mut line = 0u32;
        let text: String = std::iter::repeat_with(|| {
            line += 1;
            format!("{line} lines of text that every codec shrinks\n")
        })
        .take(40_000)
        .collect();
        for copy in ["a", "b"] {
            let other = format!("{copy}{text}");
            std::fs::write(dir.path().join(copy), [&text.as_bytes()[..1 << 20], other.as_bytes()].concat())
                .unwrap();
        }
        let options = larder_advise::Options {
            paths: vec![dir.path().to_owned()],
            exact: true,
            draws: 10,
            ..larder_advise::Options::default()
        };
        let clock = larder_device::SystemClock::new();
        let report =
            larder_advise::advise(&options, &clock, &larder_device::Inline, &larder_advise::Unwatched)
                .unwrap();
        let verdict = &report.folders[0].verdict;
        assert!(verdict.dedup == Some(true) && verdict.compression.is_some(), "{verdict:?}");
        assert_eq!(verdict.commands.len(), 2);
        for line in &verdict.commands {
            call(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        let schemes = larder_advise::SCHEMES
            .iter()
            .map(|one| format!("recordsize={}", larder_advise::size(one.record)));
        let others =
            ["compression=zstd-3", "compression=zstd-9", "compression=lz4", "chunking=content", "dedup=on"];
        for setting in verdict.settings.iter().cloned().chain(schemes).chain(others.map(str::to_owned)) {
            let (name, value) = setting.split_once('=').unwrap();
            larder_pool::property::parse_dataset(name, value, true).unwrap();
        }
    }

    #[test]
    fn the_name_decides_the_applet() {
        let applet = |line| call(line).map(|call| call.applet);
        assert_eq!(applet("/usr/sbin/zpool list -Hpo name,size"), Ok(Applet::Zpool));
        assert_eq!(applet("zfs get -rHp -o name,value -s local -t filesystem all tank"), Ok(Applet::Zfs));
        assert_eq!(applet("larder pool list"), Ok(Applet::Larder));
        assert_eq!(applet("zdb -DD tank"), Ok(Applet::Zdb));
        assert!(applet("zdb -b tank").is_err());
        assert!(applet("zpool frobnicate").is_err());
    }

    #[test]
    fn what_scripts_pass_is_understood() {
        for line in [
            "zpool create -f -o ashift=12 -O compression=lz4 -O atime=off -m /mnt tank raidz2 a b c d",
            "zpool status -x",
            "zpool status -vP tank",
            "zpool get -Hp -o value health tank",
            "zpool import -d /tmp/a -d /tmp/b -N -o readonly=on -f 12345 other",
            "zpool iostat -vHp tank 1 2",
            "zpool iostat -y 1",
            "zpool iostat -vly -T d tank 60 1",
            "zpool iostat -wnHp -T u 1",
            "zpool status -D tank",
            "larder pool rebuild-index -w tank",
            "larder pool dedup -np tank",
            "larder cachestat -Hp -f time,read,c tank 1 2",
            "arcstat -p -s , -o /tmp/log -f time,hit%,dh% 2 10",
            "arcstat -x",
            "arcstat -av",
            "zpool export -f tank",
            "zpool destroy tank",
            "zpool import -D -f tank",
            "larder pool destroy --now --yes tank",
            "zpool labelclear -f /dev/sdz",
            "zpool wait -t free,scrub tank",
            "zpool create -f tank mirror a b spare c",
            "zpool offline -t tank a b",
            "zpool online tank a b",
            "zpool replace -fw tank a b",
            "zpool replace tank 12345678901234567890",
            "zpool attach -f tank a b",
            "zpool detach tank a",
            "zpool add -fn tank mirror a b",
            "zpool add tank spare a",
            "zpool add -f tank cache a",
            "zpool create tank mirror a b cache c d",
            "zpool remove tank a",
            "zpool clear tank",
            "zpool clear tank a",
            "zpool scrub -w tank",
            "zpool scrub -s tank other",
            "zpool scrub -p tank",
            "zpool resilver tank",
            "zpool trim tank",
            "zpool trim -w -r 200M tank a b",
            "zpool trim -c tank",
            "zpool trim -s tank a",
            "zpool status -t tank",
            "zpool wait -t trim tank",
            "zpool status -gP tank",
            "larder pool scrub -wj --since 30d tank",
            "zfs list -H -o name -r tank",
            "zfs list -d 1 -t filesystem -S used -s name",
            "zfs list -rHpo name,used,avail,refer,mountpoint tank",
            "zfs get -H -p -d 2 compression,recordsize tank",
            "zfs create -p -o mountpoint=/x -o com.example:tag=a tank/a/b",
            "zfs set compression=off atime=on tank/a tank/b",
            "zfs inherit -rS compression tank/a",
            "zfs destroy -rnv tank/a",
            "zfs destroy -rf tank/a",
            "zfs destroy -d tank/a@x",
            "zfs destroy -rnvp tank/a@x,y%z",
            "zfs destroy -R tank/a@%",
            "zfs diff -FHth tank/a@x tank/a@y",
            "zfs diff tank/a@x",
            "larder fs diff -j tank/a@x @y",
            "larder fs space -Hp tank/a",
            "larder fs space --free 50G tank/a",
            "zfs snapshot -r tank@autosnap_2026-11-23_17:59:01_daily",
            "zfs snap -o com.sun:auto-snapshot-desc=- tank@a tank/b@a",
            "zfs rollback -r tank/a@x",
            "zfs rollback -Rf tank/a@x",
            "larder fs rollback --drop-newer --yes tank/a@x",
            "zfs rename -r tank@a @b",
            "zfs list -Hpd 1 -t snapshot -o name,guid,createtxg,creation,userrefs -s createtxg tank",
            "zfs list -oname,written@x -H -p -d 0 tank",
            "zfs get -Hrpt snapshot creation tank",
            "zfs get -H -p -o value -t snapshot,bookmark written@x,used tank",
            "zfs bookmark tank/a@x tank/a#x",
            "zfs bookmark tank/a#x #y",
            "zfs destroy tank/a#x",
            "zpool get -o value -H feature@extensible_dataset tank",
            "zfs send -Lce -I tank/a@x tank/a@y",
            "zfs send -wLpbce -n -v -P -i @x tank/a@y",
            "zfs send -nvP -t 1-abc-10-def",
            "larder fs send -I @x tank/a@y me@nas:tank/a",
            "larder fs send --ssh false --remote-larder larder tank/a@y tank/b",
            "larder fs replicate -rn tank/a me@nas:tank/a",
            "larder fs replicate --policy --keep 3 -j nas:tank/a tank/b",
            "zfs receive -u -o compression=zstd -x atime -s -F tank/a",
            "zfs recv -A tank/a",
            "larder fs undestroy -r tank/a tank/b",
            "larder fs undestroy -l",
            "larder fs undestroy tank/a@x @y",
            "larder fs trash -Hp tank",
            "larder fs trash --empty --yes tank/a@x",
            "larder fs destroy --now tank/a@x",
            "zfs mount tank@a /mnt",
            "/sbin/mount.larder tank /tank -o rw,nofail,x-systemd.requires=larderd.service",
            "mount.larder tank/a /srv/a -sfnv",
            "larder pool export --forget tank",
            "larder daemon --take-over --wait 60",
            "zfs unmount tank@a",
            "zfs umount -f /mnt",
            "zfs unmount -a",
            "zfs mount",
            "zfs rename -p tank/a tank/b/c",
            "larder fs umount tank/a",
            "larder policy set tank/data hourly=24 daily=30 format=gmt",
            "larder policy show -rHp tank",
            "larder policy show -j",
            "larder advise --exact --memory 64M -d 2 -rj --html page.html /srv /home",
            "larder advise --compare tank/data",
            "larder advise --compare=advice.json tank/data",
            "larder policy clear -r tank/data",
            "larder policy run -rn tank/data",
            "larder policy import -n /etc/sanoid/sanoid.conf",
            "larder daemon status -j",
            "larder personalities /tmp/links",
            "larder clone --overwrite a b",
            "larder versions -Hp a",
            "larder versions -j a",
            "larder restore a@x",
            "larder restore --replace --yes a@b@x c",
            "larder extents -pj a b",
            "larder torture --time 8h --seed 17 --dir /tmp --layout raidz1 --beyond --pools 1 -j",
            "larder dedupe --apply -b 64K --by-content --least 64K --memory 1G --hash-file /tmp/h -jp a b",
        ] {
            if let Err(error) = call(line) {
                panic!("{line}: {error}");
            }
        }
    }
}
