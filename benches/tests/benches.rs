//! Every bench with little to do: it ends well, and prints a report that has figures.

use std::process::Command;

use serde_json::Value;

/// The report of a bench.
fn report(program: &str, arguments: &[&str]) -> Value {
    let mut command = Command::new(program);
    let output = command.args(arguments).arg("--json").output().expect("the bench runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {told}");
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

/// Each rate is one, and so are its ratios.
fn rates(report: &Value) -> Vec<&str> {
    let rows = report["rows"].as_array().expect("rates");
    for row in rows {
        for ratio in [&row["rate"], &row["of_raw"], &row["of_peer"]] {
            let median = ratio["median"].as_f64();
            assert!(ratio.is_null() || median.is_some_and(|median| median > 0.0), "{row}");
        }
    }
    rows.iter().map(|row| row["what"].as_str().expect("a name")).collect()
}

/// The median of a figure.
fn figure(report: &Value, what: &str) -> f64 {
    let figures = report["figures"].as_array().expect("figures");
    let figure = figures.iter().find(|figure| figure["what"] == what);
    let figure = figure.unwrap_or_else(|| panic!("{what} is in {figures:?}"));
    figure["value"]["median"].as_f64().expect("a number")
}

#[test]
fn replicate_measures_memory_and_disk_with_one_copy_and_three() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_str().unwrap();
    for more in [&["--copies", "3"][..], &["--copies", "1", "--directory", directory]] {
        let arguments = ["--sizes", "100", "--topics", "1,2", "--rounds", "2", "--entries", "50"];
        let report = report(env!("CARGO_BIN_EXE_replicate"), &[&arguments, more].concat());
        let expected = [
            "100 B, RAW",
            "100 B, 1 topics, live",
            "100 B, 1 topics, backlog",
            "100 B, 2 topics, live",
            "100 B, 2 topics, backlog",
        ];
        assert_eq!(rates(&report), expected);
    }
}

#[test]
fn nats_compares_with_the_peer_if_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_str().unwrap();
    let arguments =
        ["--sizes", "100", "--rounds", "1", "--entries", "50", "--directory", directory];
    let report_with = report(env!("CARGO_BIN_EXE_nats"), &arguments);
    let ours = "100 B, memory, georepl";
    assert!(rates(&report_with).contains(&ours));
    let absent = ["--server", "/nonexistent/nats-server"];
    let without = report(env!("CARGO_BIN_EXE_nats"), &[&arguments[..], &absent].concat());
    let expected = ["100 B, memory, RAW", ours, "100 B, files, RAW", "100 B, files, georepl"];
    assert_eq!(rates(&without), expected);
}

#[test]
fn storage_measures_appends_reads_and_recoveries() {
    let arguments = ["--sizes", "1024", "--entries", "50", "--alone", "5", "--rounds", "1"];
    let more = ["--unconfirmed", "10"];
    let report = report(env!("CARGO_BIN_EXE_storage"), &[&arguments[..], &more].concat());
    let expected = ["1 KiB, append, RAW", "1 KiB, append", "1 KiB, read, RAW", "1 KiB, read"];
    assert_eq!(rates(&report), expected);
    assert!(figure(&report, "append of 1 KiB, one in flight, p99") > 0.0);
    // The entries, and what lies behind them, are read; each entry is written back.
    assert!(figure(&report, "recovery, 10 unconfirmed, requests") >= 11.0);
    assert!(figure(&report, "recovery, 10 unconfirmed, round trips") >= 3.0);
}

#[test]
fn append_measures_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_str().unwrap();
    let arguments = ["--directory", directory, "--in-flight", "8", "--rounds", "1"];
    let report =
        report(env!("CARGO_BIN_EXE_append"), &[&arguments[..], &["--seconds", "1"]].concat());
    assert_eq!(rates(&report), [format!("{directory}, 8 in flight")]);
}

#[test]
fn cursor_measures_acknowledgements_and_wakes() {
    let arguments = ["--holes", "100", "--outstanding", "10", "--wakes", "5", "--asleep", "2"];
    let report =
        report(env!("CARGO_BIN_EXE_cursor"), &[&arguments[..], &["--rounds", "1"]].concat());
    for what in [
        "mark-delete in order",
        "single entries at random",
        "backlog count, 100 holes",
        "rewind, 10 outstanding, 100 holes, p50",
        "append until its reader has it, asleep, p99",
    ] {
        assert!(figure(&report, what) > 0.0, "{what}");
    }
}

#[test]
fn idle_finds_what_replicators_keep() {
    let arguments = ["--replicators", "20", "--settle", "1", "--idle", "1"];
    let report = report(env!("CARGO_BIN_EXE_idle"), &arguments);
    assert!(figure(&report, "an idle replicator in all") >= 0.0);
    assert!(figure(&report, "processor time of all of them in 1 s") < 1e9);
}

#[test]
fn link_measures_the_same_each_time() {
    let of = || report(env!("CARGO_BIN_EXE_link"), &["--sizes", "1024", "--mebibytes", "2"]);
    let first = of();
    let share = figure(&first, "1 KiB, share of the link");
    assert!((0.01..1.0).contains(&share), "{share}");
    // Two round trips at least: the opening, and what is sent.
    assert!(figure(&first, "1 KiB, time to drain") >= 3e8);
    assert_eq!(first, of());
}

#[test]
fn topics_opens_and_idles() {
    let arguments = ["--topics", "5", "--idle", "1"];
    let report = report(env!("CARGO_BIN_EXE_topics"), &arguments);
    assert_eq!(report["topics"], 5);
}
