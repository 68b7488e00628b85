//! Commands that do not come to their end, and what they say of it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use super::site::{ATTEMPTS, Publisher, Server, Site, assert_ok, terminate};
use super::{assert_refused, file, georepl, report, run, run_with_input, spawn, words};

/// Its exit status, and what it said beside its answer and that it ends.
fn ended(mut child: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    child.stderr.take().expect("it was piped").read_to_string(&mut said).expect("text");
    let said = said.lines().filter(|line| !line.contains("ending; a second signal"));
    let said = said.collect::<Vec<_>>().join("\n");
    (child.wait().expect("it ends").code(), said)
}

#[test]
fn publisher_that_is_interrupted_says_with_which_line_to_go_on() {
    for (lines, rest) in [
        (&[][..], "no line is in the topic; publish all of them again"),
        (&["one"], "1 lines are in the topic and durable, the last at 0:0; go on with line 2"),
    ] {
        let site = Site::new();
        let mut publisher = Publisher::hold(&site.west, "orders");
        lines.iter().for_each(|line| publisher.write(line));
        let consumed = || words(&run(&["consume", "--region", &site.west, "orders"])).0;
        assert!((0..ATTEMPTS).any(|_| consumed().lines().eq(lines.iter().copied())));
        // Not at its end: there may be more lines.
        let stdin = publisher.0.stdin.take();
        terminate(&publisher.0);
        let outcome = publisher.outcome();
        drop(stdin);
        let (stdout, said) = words(&outcome);
        assert_eq!((outcome.status.code(), stdout.as_str()), (Some(1), ""), "{said}");
        assert!(said.contains(&format!("interrupted before the last line; {rest}")), "{said}");
    }
}

#[test]
fn consumer_that_is_interrupted_says_what_is_left_unless_it_follows() {
    const ENTRIES: usize = 30_000;
    let site = Site::new();
    let input: String = (0..ENTRIES).map(|n| format!("line {n}\n")).collect();
    assert_ok(&run_with_input(&["publish", "--region", &site.west, "orders"], input.as_bytes()));
    for follow in [&[][..], &["--follow"]] {
        let args = [&["consume", "--region", &site.west, "orders"], follow].concat();
        let mut consuming = spawn(&args, Stdio::null());
        let mut stdout = BufReader::new(consuming.stdout.take().expect("it was piped"));
        stdout.read_line(&mut String::new()).expect("it reads");
        terminate(&consuming);
        // It says that it ends before it is read any further, so that there is something left.
        let mut stderr = BufReader::new(consuming.stderr.take().expect("it was piped"));
        stderr.read_line(&mut String::new()).expect("it says so");
        let left = ENTRIES - 1 - stdout.lines().count();
        let mut said = String::new();
        stderr.read_to_string(&mut said).expect("text");
        let code = consuming.wait().expect("it ends").code();
        match follow {
            [] => {
                let expected = format!("georepl: interrupted: {left} entries are left\n");
                assert_eq!((code, said), (Some(1), expected));
            }
            _ => assert_eq!((code, said.as_str()), (Some(0), "")),
        }
    }
}

#[test]
fn replication_that_is_interrupted_says_what_is_left_and_why() {
    for (follow, code) in [(&[][..], 1), (&["--follow"], 0)] {
        let site = Site::new();
        site.publish(&["one", "two"]);
        let publish = ["publish", "--region", &site.east, "orders"];
        assert_ok(&run_with_input(&publish, b"its own\n"));
        let east = Server::start(&site.east);
        let full = ["topic", "terminate", "--region", &site.east, "orders", "--yes"];
        assert_ok(&run(&full));
        let args = ["replicate", "--from", &site.west, "--to", &site.east, "orders", "--json"];
        let mut replicating = spawn(&[&args[..], follow].concat(), Stdio::null());
        while !site.file("socket").exists() {
            std::thread::yield_now();
        }
        let why = || words(&site.on_west(&["why"])).0;
        assert!((0..ATTEMPTS).any(|_| why().contains("terminated")), "{}", why());
        terminate(&replicating);
        let mut stdout = String::new();
        let out = replicating.stdout.as_mut().expect("it was piped");
        out.read_to_string(&mut stdout).expect("text");
        let (status, said) = ended(replicating);
        assert_eq!(status, Some(code), "{said}");
        let left = if code == 1 { "georepl: interrupted: 2 entries are left" } else { "" };
        assert_eq!(said, left);
        let report: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
        let lane = &report["topics"][0];
        assert_eq!(lane["backlog"], 2, "{lane}");
        let why = lane["why"].as_str().expect("a text");
        assert!(why.starts_with("2 entries behind: ") && why.contains("terminated"), "{why}");
        let later = words(&site.on_west(&["why"])).0;
        let parts = ["no replicator runs; the last one stopped ", "terminated"];
        assert!(parts.iter().all(|part| later.contains(part)), "{later}");
        assert_eq!(east.terminate().0, Some(0));
    }
}

#[test]
fn largest_line_is_published_and_a_longer_one_is_named_and_not_gone_on_with() {
    const LARGEST: usize = (5 << 20) - (32 << 10) - 64;
    let site = Site::new();
    let line = |bytes: usize| vec![b'x'; bytes];
    let publish = |input: &[u8]| {
        let path = file("largest-line", input);
        let path = path.to_str().expect("a path in UTF-8");
        run(&["publish", "--region", &site.west, "orders", "--input", path])
    };
    assert_ok(&publish(&line(LARGEST)));
    let longer = [b"one\n", &line(LARGEST + 1)[..], b"\nthree\n"].concat();
    let output = publish(&longer);
    assert_refused(
        &output,
        1,
        "largest-line is longer than the largest message, 5210048 bytes; 1 lines are in the topic",
    );
    assert_refused(&output, 1, "split line 2 or leave it out, and publish what is behind line 1");
    let output = publish(&line(LARGEST + 1));
    assert_refused(&output, 1, "split line 1 or leave it out, and publish all of them again");
}

#[cfg(target_os = "linux")]
#[test]
fn publisher_whose_answer_cannot_be_written_says_what_is_durable() {
    let site = Site::new();
    let path = file("two-lines", b"one\ntwo\n");
    let path = path.to_str().expect("a path in UTF-8");
    for json in [&[][..], &["--json"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let args = ["publish", "--region", &site.west, "orders", "--input", path];
        let output = georepl(&[&args, json].concat()).stdout(full).output();
        let output = output.expect("the binary runs");
        assert_refused(&output, 1, "the answer could not be written: ");
        assert_refused(&output, 1, "; 2 lines are in the topic and durable, the last at ");
    }
}

#[test]
fn publisher_that_fails_reports_to_programs_what_is_durable() {
    let site = Site::new();
    site.publish(&["one"]);
    let long = file("long-second-line", &[b"two\n", &vec![b'x'; 6 << 20][..]].concat());
    let long = long.to_str().expect("a path in UTF-8");
    let args = ["publish", "--region", &site.west, "orders", "--json"];
    let output = run_with_input(&args, b"two\n");
    assert_ok(&output);
    assert_eq!(report(&output)["failed"], serde_json::Value::Null);
    let output = run(&[&args[..], &["--input", long]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let (said, report) = (String::from_utf8_lossy(&output.stderr), report(&output));
    assert_eq!((&report["messages"], &report["first"]), (&1.into(), &report["last"]));
    let failed = report["failed"].as_str().expect("a text");
    assert!(failed.starts_with(&format!("line 2 of {long} is longer")), "{failed}");
    assert_eq!(said, format!("georepl: {failed}\n"));
    assert_ok(&site.on_west(&["topic", "terminate", "orders", "--yes"]));
    let output = run_with_input(&args, b"three\n");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = super::report(&output);
    assert_eq!(report["messages"], 0);
    assert!(report["failed"].as_str().expect("a text").contains("terminated"), "{report}");
}

#[test]
fn holder_that_does_not_answer_is_named_by_its_region() {
    let site = Site::new();
    let server = Server::start(&site.west);
    let pid = server.child.id().to_string();
    let stopped = std::process::Command::new("kill").args(["-STOP", &pid]).status();
    assert!(stopped.expect("there is a kill").success());
    let output = site.on_west(&["status"]);
    assert_refused(&output, 3, &format!("holds the region in {} has not answered", site.west));
}

#[test]
fn consumer_is_refused_a_place_that_is_not_there() {
    let site = Site::new();
    site.publish(&["one", "two"]);
    let from = |place| site.on_west(&["consume", "orders", "--from", place]);
    assert_eq!(words(&from("0:1")).0, "two\n");
    let behind = from("0:2");
    assert_ok(&behind);
    assert_eq!(words(&behind).0, "", "just behind the last one");
    for place in ["0:3", "17:0", "17:42"] {
        assert_refused(&from(place), 2, &format!("has no entry {place}"));
    }
}

#[test]
fn demo_that_is_interrupted_closes_its_regions_and_says_how_far_it_came() {
    let site = Site::new();
    let args = ["demo", "--messages", "50000000", "--no-faults", "--data", &site.west];
    let mut demo = spawn(&args, Stdio::null());
    let mut stderr = BufReader::new(demo.stderr.take().expect("it was piped"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("it says how far it is");
    assert!(line.contains("published"), "{line}");
    terminate(&demo);
    let mut said = String::new();
    stderr.read_to_string(&mut said).expect("text");
    assert_eq!(demo.wait().expect("it ends").code(), Some(1), "{said}");
    let told = said.split_once("georepl: interrupted: ").expect("it says so").1;
    let published: u64 = told.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    let west = Path::new(&site.west).join("west");
    let why = format!("nothing was audited; see georepl why --region {} and ", west.display());
    assert!(told.contains(&why), "{told}");
    let status = run(&["status", "--region", west.to_str().expect("UTF-8"), "--json"]);
    assert_ok(&status);
    assert_eq!(report(&status)["topics"][0]["entries"], published, "all that was published");
}
