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
    Command::new(binary).args(args).env("LARDER_RUN_DIR", run_dir).stdin(Stdio::null()).output().unwrap()
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
