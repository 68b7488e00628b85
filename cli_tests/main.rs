//! The binary as its user meets it: exit status, standard output and standard error.

mod ends;
mod keeping;
mod places;
mod regions;
mod site;
mod stops;
mod troubles;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn georepl(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_georepl"));
    command.args(args).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    georepl(args).output().expect("the binary runs")
}

fn spawn(args: &[&str], stdin: Stdio) -> Child {
    let mut command = georepl(args);
    command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

fn run_with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = spawn(args, Stdio::piped());
    let mut stdin = child.stdin.take().expect("it was piped");
    stdin.write_all(input).expect("the whole input is read");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

/// A file of its own for each test.
fn file(name: &str, content: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("the build directory is writable");
    path
}

fn words(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("words are text");
    (text(&output.stdout), text(&output.stderr))
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Nothing on standard output, one line on standard error that names what is wrong, this status.
#[track_caller]
fn assert_refused(output: &Output, status: i32, named: &str) {
    let (stdout, stderr) = words(output);
    assert_eq!((output.status.code(), stdout.as_str()), (Some(status), ""), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("georepl: ") && stderr.contains(named), "{stderr}");
}

#[test]
fn demo_with_faults_passes_and_reports_every_figure() {
    let output = run(&["demo", "--messages", "2000", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(&output);
    assert_eq!(report["verdict"], "passed");
    let [topic] = report["topics"].as_array().expect("a list").as_slice() else {
        panic!("{report}")
    };
    let (audit, number) = (&topic["audit"], |value: &Value| value.as_u64().expect("a number"));
    assert_eq!(audit["entries"], 2_000);
    assert!(number(&audit["bytes"]) > 1_000_000, "2,000 events of some 700 bytes");
    let wrong =
        ["missing", "repeated", "out_of_order", "unreadable", "foreign", "backlog", "ack_holes"];
    for name in wrong {
        assert_eq!(audit[name], 0, "{name}");
    }
    assert!(number(&audit["lag_p50_ms"]) <= number(&audit["lag_p99_ms"]));
    let digest = audit["source_sha256"].as_str().expect("a text");
    assert_eq!((digest.len(), &audit["target_sha256"]), (64, &audit["source_sha256"]));
    for throughput in [&report["throughput"], &topic["throughput"]] {
        for name in ["seconds", "entries_per_second", "bytes_per_second"] {
            assert!(throughput[name].as_f64().expect("a number") > 0.0, "{name}");
        }
    }
    assert!(number(&topic["rewinds"]) >= 5, "the start's, and one for each of four faults");
    assert!(number(&topic["sent_again"]) >= 1);
    assert!(number(&topic["refused"]["duplicates"]) >= 1);
    assert!(number(&topic["refused"]["late"]) >= 1);
    assert!(number(&topic["ledgers"]["ensemble_changes"]) >= 2, "a bookie killed, one hung");
    assert!(number(&topic["ledgers"]["under_replicated_fragments"]) >= 1, "the killed one's");
    let faults = topic["faults"].as_array().expect("a list");
    let (_, stderr) = words(&output);
    assert_eq!(faults.len(), 8);
    for fault in faults {
        let fault = fault["fault"].as_str().expect("a text");
        let lines = stderr.lines().filter(|line| line.contains(fault) && line.contains("survived"));
        assert!(lines.count() >= 1, "{fault}: {stderr}");
    }
}

#[test]
fn table_shows_every_figure_for_people() {
    let output = run(&["demo", "--messages", "500", "--topics", "2", "--seed", "3"]);
    let (stdout, stderr) = words(&output);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    for figure in [
        "entries",
        "payload bytes",
        "throughput",
        "duplicates refused by east",
        "rewinds",
        "entries sent again",
        "lag p50, ms",
        "lag p99, ms",
        "backlog",
        "ack holes",
        "ensemble changes",
        "under-replicated fragments",
        "SHA-256 in west",
        "SHA-256 in east",
    ] {
        let name = |row: &&str| row.trim_start_matches("| ").split("  ").next() == Some(figure);
        assert_eq!(stdout.lines().filter(name).count(), 2, "{figure}, once a topic: {stdout}");
    }
    assert!(stdout.ends_with("is missing, repeated, out of order or unacknowledged.\n"));
}

#[test]
fn planted_damage_of_every_kind_is_caught_by_the_exit_status() {
    let planted = [
        ("lost", "unreadable", "is missing in east"),
        ("doubled", "repeated", "is twice in east"),
        ("swapped", "out_of_order", "is out of order in east"),
    ];
    for (damage, figure, finding) in planted {
        let output =
            run(&["demo", "--messages", "300", "--no-faults", "--json", "--plant", damage]);
        assert_eq!(output.status.code(), Some(1), "{damage}: {output:?}");
        let report = report(&output);
        let audit = &report["topics"][0]["audit"];
        assert_eq!((&report["verdict"], &audit[figure]), (&"failed".into(), &1.into()), "{audit}");
        let findings = audit["findings"].as_array().expect("a list");
        let named = |told: &Value| told.as_str().expect("a text").contains(finding);
        assert!(findings.iter().any(named), "{findings:?}");
    }
    let (stdout, _) = words(&run(&["demo", "--messages", "300", "--plant", "swapped"]));
    assert!(stdout.contains("is out of order in east") && stdout.contains("FAILED"), "{stdout}");
}

#[test]
fn damage_needs_two_messages() {
    let output = run(&["demo", "--messages", "1", "--no-faults", "--plant", "swapped"]);
    assert_refused(&output, 2, "--messages 2");
}

#[test]
fn unreadable_file_is_named() {
    assert_refused(&run(&["demo", "--input", "/no/such/file"]), 1, "cannot read /no/such/file");
    let folder = env!("CARGO_TARGET_TMPDIR");
    assert_refused(&run(&["demo", "--input", folder]), 1, folder);
}

#[test]
fn empty_input_is_named() {
    let path = file("empty", b"");
    let path = path.to_str().expect("a path in UTF-8");
    assert_refused(&run(&["demo", "--input", path]), 1, path);
    let output = run_with_input(&["demo", "--input", "-"], b"");
    assert_refused(&output, 1, "standard input is empty");
}

#[test]
fn line_above_the_largest_message_is_named_by_its_number_and_one_of_that_size_passes() {
    let largest = (5 << 20) - (32 << 10);
    let mut input = b"short\n".to_vec();
    input.resize(input.len() + largest, b'x');
    let args = ["demo", "--no-faults", "--messages", "4", "--json", "--input", "-"];
    let output = run_with_input(&args, &input);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(report(&output)["topics"][0]["audit"]["bytes"], 2 * (5 + largest as u64));
    input.push(b'x');
    let path = file("long-line", &input);
    let output = run(&["demo", "--input", path.to_str().expect("a path in UTF-8")]);
    assert_refused(&output, 1, "line 2 of ");
}

#[test]
fn bytes_that_are_no_text_are_replicated() {
    let path = file("no-text", b"\xff\xfe\n\x00\x80\n");
    let path = path.to_str().expect("a path in UTF-8");
    let output = run(&["demo", "--messages", "100", "--json", "--input", path]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(&output);
    assert_eq!(report["topics"][0]["audit"]["entries"], 100);
    assert_eq!(report["topics"][0]["audit"]["bytes"], 200);
}

#[test]
fn standard_input_is_replicated() {
    let args = ["demo", "--no-faults", "--messages", "3", "--json", "--input", "-"];
    let output = run_with_input(&args, b"one\ntwo\nthree\n");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(report(&output)["topics"][0]["audit"]["bytes"], 11);
}

#[test]
fn wrong_command_line_is_status_two_and_one_line() {
    assert_refused(&run(&["demo", "--messages", "0"]), 2, "--messages");
    assert_refused(&run(&["demo", "--topics", "many"]), 2, "--topics");
    assert_refused(&run(&["demo", "--no-such-flag"]), 2, "--no-such-flag");
    assert_refused(&run(&["no-such-command"]), 2, "no-such-command");
    assert_refused(&run(&["demo", "--messages", "89"]), 2, "--messages 90");
}

#[test]
fn wrong_command_line_is_told_whole_and_where_the_help_is() {
    let said = |args: &[&str], said: &str| {
        let output = run(args);
        assert_refused(&output, 2, said);
        assert!(words(&output).1.ends_with(" --help\n"), "{args:?}");
    };
    said(
        &["publish"],
        "the following required arguments were not provided: --region <DIR> <TOPIC>; see georepl publish --help",
    );
    said(&["ledger", "show", "--region", "x"], "<LEDGER>; see georepl ledger show --help");
    said(
        &["why", "--region", "x", "--jsn"],
        "tip: a similar argument exists: '--json'; see georepl why --help",
    );
    said(&["demo", "--plant", "burnt"], "possible values: lost, doubled, swapped");
    said(&["no-such-command"], "; see georepl --help");
}

#[test]
fn help_has_examples() {
    let output = run(&["demo", "--help"]);
    let (stdout, _) = words(&output);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout.contains("georepl demo --input app.log --no-faults"), "{stdout}");
}

#[test]
fn reader_that_went_away_changes_nothing_but_the_report() {
    for (args, status) in [
        (&["demo", "--messages", "500"][..], 0),
        (&["demo", "--messages", "500", "--json"], 0),
        (&["demo", "--messages", "500", "--plant", "lost"], 1),
    ] {
        let mut child = spawn(args, Stdio::null());
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the binary ends");
        let (_, stderr) = words(&output);
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert!(stderr.contains("500 published, 500 replicated, 500 acknowledged"), "{stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn report_that_cannot_be_written_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let output = georepl(&["demo", "--messages", "300", "--no-faults"]).stdout(full).output();
    let (_, stderr) = words(output.as_ref().expect("the binary runs"));
    assert_eq!(output.expect("the binary runs").status.code(), Some(1), "{stderr}");
    assert!(
        stderr
            .lines()
            .last()
            .expect("a line")
            .starts_with("georepl: the report could not be written")
    );
}
