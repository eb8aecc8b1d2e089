//! The binary as scripts meet it, as far as no engine is needed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn larder(run_dir: &Path, args: &[&str]) -> Output {
    called(Path::new(env!("CARGO_BIN_EXE_larder")), run_dir, args)
}

fn called(binary: &Path, run_dir: &Path, args: &[&str]) -> Output {
    Command::new(binary)
        .args(args)
        .env("LARDER_RUN_DIR", run_dir)
        .env("LARDER_STATE_DIR", run_dir.join("state"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn exit_codes_tell_done_failed_and_bad_usage_apart() {
    let dir = tempfile::tempdir().unwrap();
    for (args, code) in [
        (&["--version"][..], 0),
        (&["--help"], 0),
        (&["pool", "create", "--help"], 0),
        (&["daemon", "stop"], 0),
        (&["daemon", "status"], 1),
        (&["pool", "frobnicate"], 2),
        (&["pool", "create", "tank"], 2),
        (&["pool", "create", "tank", "raidz2", "/a", "/b"], 2),
        (&["pool", "create", "-f", "tank", "/a"], 2),
        (&["pool", "iostat", "tank", "0"], 2),
        (&["pool", "iostat", "-lw"], 2),
        (&["pool", "list", "-o", "nonsense"], 2),
        (&["cachestat", "-f", "nonsense"], 2),
        (&["fs", "set", "compression=off"], 2),
        (&["fs", "get", "nonsense"], 2),
    ] {
        let output = larder(dir.path(), args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    }
    assert!(!dir.path().join("daemon.sock").exists(), "none of these needs a daemon");
}

#[test]
fn daemon_status_is_json_even_when_none_runs() {
    let dir = tempfile::tempdir().unwrap();
    let output = larder(dir.path(), &["daemon", "status", "-j"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["pid"], serde_json::Value::Null);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["pools"], serde_json::json!([]));
}

#[test]
fn links_speak_as_the_tools_they_are_named_after() {
    let dir = tempfile::tempdir().unwrap();
    let links = dir.path().join("bin");
    assert!(larder(dir.path(), &["personalities", links.to_str().unwrap()]).status.success());
    let help = called(&links.join("zpool"), dir.path(), &["--help"]);
    assert!(text(&help.stdout).contains("zpool <COMMAND>"), "{}", text(&help.stdout));
    let help = called(&links.join("zfs"), dir.path(), &["umount", "--help"]);
    assert!(text(&help.stdout).contains("Usage: zfs "), "{}", text(&help.stdout));
    let fields = called(&links.join("arcstat"), dir.path(), &["-v"]);
    assert!(text(&fields.stdout).contains("ddh% : Demand data hit percentage"), "{}", text(&fields.stdout));
    let help = called(&links.join("zdb"), dir.path(), &["--help"]);
    assert!(text(&help.stdout).contains("Usage: zdb -D... <NAME>"), "{}", text(&help.stdout));
    assert_eq!(called(&links.join("zdb"), dir.path(), &["-b", "tank"]).status.code(), Some(2));
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["pool", "--help"][..], &["daemon", "status", "-j"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(args)
            .env("LARDER_RUN_DIR", dir.path())
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut complaint = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        assert_eq!((child.wait().unwrap().code(), complaint.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn a_run_folder_that_cannot_be_used_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let output = larder(&file.join("run"), &["pool", "list"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot"), "{}", text(&output.stderr));
}

#[test]
fn the_log_has_times_for_people_and_priorities_for_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let log_of = |journal: bool, level: &str| {
        let path = dir.path().join("log");
        let log = fs::File::create(&path).unwrap();
        let meta = log.metadata().unwrap();
        let stream = if journal { format!("{}:{}", meta.dev(), meta.ino()) } else { "1:2".to_owned() };
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_larder"))
            .arg("daemon")
            .env("LARDER_RUN_DIR", dir.path())
            .env("LARDER_STATE_DIR", dir.path().join("state"))
            .env("JOURNAL_STREAM", stream)
            .env("LARDER_LOG", level)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        while larder(dir.path(), &["daemon", "status"]).status.code() != Some(0) {
            assert!(daemon.try_wait().unwrap().is_none(), "{}", fs::read_to_string(&path).unwrap());
        }
        assert!(larder(dir.path(), &["daemon", "stop"]).status.success());
        assert!(daemon.wait().unwrap().success());
        fs::read_to_string(&path).unwrap()
    };
    let ready = format!("larder::daemon: larder {} is ready, pid ", env!("CARGO_PKG_VERSION"));
    let log = log_of(false, "");
    assert!(log.starts_with("20") && log.contains(&format!("Z  INFO {ready}")), "{log}");
    let log = log_of(true, "info");
    assert!(log.starts_with(&format!("<6>{ready}")), "{log}");
    assert_eq!(log_of(true, "warn"), "");
    assert!(log_of(true, "larder::host=debug").contains(&ready), "the rest stays as it is");
    let log = log_of(true, "larder=loud");
    assert!(log.starts_with("<4>larder::log: LARDER_LOG=\"larder=loud\" is not understood"), "{log}");
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_plan_needs_neither_daemon_nor_disks() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("plan.html");
    let output =
        larder(dir.path(), &["plan", "--price", "16T=280", "--html", page.to_str().unwrap(), "7x16T"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    for part in
        ["take raidz2 of 7: ", "* raidz2 of 7 ", "PER TIB", "larder pool create tank raidz2 DISK1 DISK2 "]
    {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("raid14 of 7") && !page.contains("http"));

    let plan = json(&larder(dir.path(), &["plan", "-j", "7x16T"]));
    assert_eq!(plan["output_version"]["command"], "larder plan");
    let all = plan["candidates"].as_array().unwrap();
    let best = &all[usize::try_from(plan["recommended"].as_u64().unwrap()).unwrap()];
    assert_eq!((best["name"].as_str(), best["survival"]["any"].as_u64()), (Some("raidz2 of 7"), Some(2)));
    assert_eq!(best["create"].as_array().unwrap().len(), 8);
    for word in ["single", "mirror", "raidz1", "raidz2", "raidz3", "raid10", "raid14"] {
        assert!(all.iter().any(|candidate| candidate["word"] == word), "{word}");
    }
    let worse = json(&larder(dir.path(), &["plan", "-j", "--afr", "5", "--correlated", "10", "7x16T"]));
    assert_eq!(worse["assumptions"]["afr_hdd"], 0.05);
    let risk = |plan: &serde_json::Value| plan["candidates"][0]["risk"]["pool_lost"].as_f64().unwrap();
    assert!(risk(&worse) > risk(&plan));
    assert!(!dir.path().join("daemon.sock").exists());
}

#[test]
fn a_plan_tells_what_is_no_disk_and_what_is_on_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, len: u64| {
        let path = dir.path().join(name);
        fs::File::create(&path).unwrap().set_len(len).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, two, small) = (file("one", 1 << 30), file("two", 1 << 30), file("small", 1 << 20));
    for (args, code, why) in [
        (vec!["plan", "6x16"], 2, "has no unit"),
        (vec!["plan", "0x4T"], 2, "1 to 384 disks"),
        (vec!["plan", "/nowhere/at/all"], 1, "there is no device"),
        (vec!["plan", "/dev/null"], 2, "neither a device nor a file"),
        (vec!["plan", &one, &one], 2, "is given twice"),
        (vec!["plan", &one, &small], 2, "is too small"),
        (vec!["plan", "--spares", "2", &one, &two], 2, "leaves none"),
        (vec!["plan", "--measure", "2x4T"], 2, "these are sizes"),
        (vec!["plan", "--price", "5T=9", "2x4T"], 2, "no disk has that size"),
        (vec!["plan", "--accept", "7", "2x4T"], 2, "years of the pool and of a block"),
        (vec!["plan", "--measure-writes", "/nowhere/at/all", "2x4T"], 1, "cannot measure"),
        (vec!["plan", "--html", "/nowhere/at/all.html", "2x4T"], 1, "cannot write"),
    ] {
        let output = larder(dir.path(), &args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(why) && output.stdout.is_empty(), "{args:?}: {error}");
    }
    let free = larder(dir.path(), &["plan", &one, &two]);
    assert!(text(&free.stdout).contains(&format!("larder pool create tank mirror {one} {two}\n")));
    // The mark of an XFS file system.
    fs::write(&two, [b"XFSB".as_slice(), &[0; 100]].concat()).unwrap();
    fs::File::options().write(true).open(&two).unwrap().set_len(1 << 30).unwrap();
    let taken = larder(dir.path(), &["plan", &one, &two]);
    let told = text(&taken.stdout);
    assert!(told.contains("holds an XFS file system: no pool is made over it"), "{told}");
    assert!(!told.contains("larder pool create"), "{told}");
}

/// Reads only: a file keeps its content and its time.
#[test]
fn measuring_reads_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, vec![7u8; 96 << 20]).unwrap();
    let before = fs::metadata(&path).unwrap();
    let plan = json(&larder(dir.path(), &["plan", "-j", "--measure", path.to_str().unwrap()]));
    let after = fs::metadata(&path).unwrap();
    assert_eq!((after.mtime_nsec(), after.ctime_nsec()), (before.mtime_nsec(), before.ctime_nsec()));
    let measured = &plan["disks"][0]["measured"];
    for figure in ["stream_first", "stream_last", "reads_4k", "reads_128k"] {
        assert!(measured[figure].as_f64().unwrap() > 0.0, "{figure} in {measured}");
    }
    let mean = (measured["stream_first"].as_f64().unwrap() + measured["stream_last"].as_f64().unwrap()) / 2.0;
    let told = plan["candidates"][0]["speed"]["read"].as_f64().unwrap();
    assert!((told / mean.min(1.5e9) - 1.0).abs() < 1e-9, "{told} of {mean}");
}
