//! Regions in directories, by one process after the other and by several at once.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::site::{ATTEMPTS, Publisher, Server, Site, assert_ok, terminate};
use super::{assert_refused, report, run, run_with_input, spawn, words};

#[test]
fn lines_are_consumed_by_later_processes_from_wherever_they_ask() {
    let site = Site::new();
    site.publish(&["one", "two"]);
    site.publish(&["three", ""]);
    assert_eq!(Site::consumed(&site.west), ["one", "two", "three", ""]);
    let output = site.on_west(&["consume", "orders", "--from", "0:1", "--count", "2", "--json"]);
    let (stdout, _) = words(&output);
    let lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[0]["position"], &lines[0]["payload"]), (&"0:1".into(), &"two".into()));
    assert_eq!((lines.len(), &lines[1]["payload"]), (2, &"three".into()));
    assert_eq!(words(&site.on_west(&["consume", "orders", "--from", "latest"])).0, "");
}

#[test]
fn replication_goes_on_where_an_earlier_process_stopped() {
    let site = Site::new();
    site.publish(&["one", "two"]);
    assert_eq!(site.replicate()["published"], 2);
    site.publish(&["three"]);
    let lane = site.replicate();
    assert_eq!((&lane["published"], &lane["backlog"]), (&1.into(), &0.into()));
    assert_eq!(Site::consumed(&site.east), ["one", "two", "three"]);
    let output = site.on_west(&["why", "--json"]);
    assert_ok(&output);
    assert_eq!(report(&output)[0]["remote"], "east");
}

#[test]
fn processes_share_a_region_that_one_of_them_serves() {
    let site = Site::new();
    let server = Server::start(&site.west);
    let mode = fs::metadata(site.file("socket")).expect("it serves").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let args = ["consume", "--region", &site.west, "orders", "--follow", "--count", "3"];
    site.publish(&["one"]);
    let follower = spawn(&args, Stdio::null());
    site.publish(&["two", "three"]);
    let followed = follower.wait_with_output().expect("it ends with its count");
    assert_eq!(words(&followed).0, "one\ntwo\nthree\n");
    let status = report(&site.on_west(&["status", "--json"]));
    assert_eq!((&status["process"], &status["healthy"]), (&server.child.id().into(), &true.into()));
    assert_refused(&site.on_west(&["serve"]), 1, "served already");
    let (code, said) = server.terminate();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("closed"), "{said}");
    assert!(!site.file("socket").exists());
    assert_eq!(Site::consumed(&site.west), ["one", "two", "three"]);
}

#[test]
fn regions_that_two_processes_hold_are_replicated_by_a_third() {
    let site = Site::new();
    let (west, east) = (Server::start(&site.west), Server::start(&site.east));
    let lines: Vec<_> = (0..3_000).map(|n| n.to_string()).collect();
    site.publish(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(site.replicate()["published"], 3_000);
    assert_eq!(Site::consumed(&site.east), lines);

    let args = ["replicate", "--from", &site.west, "--to", &site.east, "orders", "--follow"];
    let following = spawn(&args, Stdio::null());
    site.publish(&["later"]);
    let arrived = (0..ATTEMPTS).any(|_| Site::consumed(&site.east).len() > 3_000);
    assert!(arrived, "what is published while it follows is replicated");
    let why = report(&site.on_west(&["why", "--json"]));
    assert_ne!(why[0]["reason"], "not-running", "{why}");
    let seek = ["seek", "orders", "--remote", "east", "--to", "latest", "--json"];
    assert_eq!(report(&site.on_west(&seek))["done"], true, "the replicator that runs does it");
    terminate(&following);
    assert_ok(&following.wait_with_output().expect("it ends"));
    assert_eq!(report(&site.on_west(&["why", "--json"]))[0]["reason"], "not-running");
    assert_eq!((west.terminate().0, east.terminate().0), (Some(0), Some(0)));
}

#[test]
fn region_of_a_process_that_was_killed_is_whole_and_free() {
    let site = Site::new();
    let mut server = Server::start(&site.west);
    site.publish(&["one", "two"]);
    server.child.kill().expect("it runs");
    server.child.wait().expect("it ends");
    assert!(site.file("socket").exists(), "nobody has cleared it away");
    site.publish(&["three"]);
    assert_eq!(Site::consumed(&site.west), ["one", "two", "three"]);
}

#[test]
fn holder_that_does_not_serve_is_named_by_its_process() {
    let site = Site::new();
    site.publish(&["one"]);
    let lock = fs::File::options().write(true).open(site.file("lock")).expect("it was made");
    lock.lock().expect("nobody holds it");
    fs::write(site.file("lock"), "4711\n").expect("it is writable");
    assert_refused(&site.on_west(&["consume", "orders"]), 3, "process 4711");
    drop(lock);
    assert_eq!(Site::consumed(&site.west), ["one"]);
}

#[test]
fn what_cannot_be_undone_needs_a_yes() {
    let site = Site::new();
    site.publish(&["one", "two", "three"]);
    site.replicate();
    site.publish(&["four", "five", "six"]);
    let east = ["orders", "--remote", "east"];
    let moved = |how: &[&str]| site.on_west(&[how, &east].concat());
    assert_refused(&moved(&["clear"]), 4, "3 entries would not be replicated");
    assert_refused(&moved(&["seek", "--to", "earliest"]), 4, "3 entries would be sent again");
    let dry = report(&moved(&["clear", "--dry-run", "--json"]));
    assert_eq!((&dry["done"], &dry["passed_over"]), (&false.into(), &3.into()));
    let skipped = run(&["skip", "--region", &site.west, "orders", "1", "--remote", "east"]);
    assert_ok(&skipped);
    assert_eq!(site.replicate()["published"], 2);
    assert_eq!(Site::consumed(&site.east), ["one", "two", "three", "five", "six"]);

    assert_refused(&site.on_west(&["topic", "terminate", "orders"]), 4, "--yes");
    assert_refused(&site.on_west(&["topic", "delete", "orders"]), 4, "6 entries");
    assert_ok(&site.on_west(&["topic", "terminate", "orders", "--yes"]));
    let args = ["publish", "--region", &site.west, "orders"];
    assert_refused(&run_with_input(&args, b"seven\n"), 1, "terminated");
    assert_eq!(Site::consumed(&site.west).len(), 6);
    assert_ok(&site.on_west(&["topic", "delete", "orders", "--yes"]));
    assert_eq!(report(&site.on_west(&["topic", "list", "--json"])), Value::Array(Vec::new()));
}

#[test]
fn entries_that_are_sought_are_sent_again() {
    let site = Site::new();
    site.publish(&["one", "two"]);
    site.replicate();
    let seek = ["seek", "orders", "--remote", "east", "--to", "0:1", "--yes"];
    assert_ok(&site.on_west(&seek));
    assert_eq!(site.replicate()["published"], 1);
    assert_eq!(Site::consumed(&site.east), ["one", "two", "two"]);
}

#[test]
fn places_that_are_no_region_are_left_as_they_are() {
    let site = Site::new();
    assert_refused(&site.on_west(&["consume", "orders"]), 1, &site.west);
    assert_refused(&site.on_west(&["status"]), 1, "there is no region");
    assert!(!Path::new(&site.west).exists());
    fs::write(&site.west, "a file").expect("it is writable");
    let publish = ["publish", "--region", &site.west, "orders"];
    assert_refused(&run_with_input(&publish, b"one\n"), 1, "not a directory");
    fs::create_dir(&site.east).expect("it is writable");
    fs::write(Path::new(&site.east).join("letter.txt"), "dear").expect("it is writable");
    let publish = ["publish", "--region", &site.east, "orders"];
    assert_refused(&run_with_input(&publish, b"one\n"), 1, "letter.txt");
    assert_eq!(fs::read_dir(&site.east).expect("it is there").count(), 1);
    let long = format!("{}/{}", site.east, "x".repeat(100));
    assert_refused(&run(&["status", "--region", &long]), 1, "103 bytes");
    let publish = ["publish", "--region", "/proc/self/region", "orders"];
    assert_refused(&run_with_input(&publish, b"one\n"), 1, "/proc/self/region");
}

#[test]
fn newer_and_damaged_regions_are_named_and_not_touched() {
    let site = Site::new();
    site.publish(&["one"]);
    let manifest = fs::read(site.file("region.json")).expect("it was written");
    fs::write(site.file("region.json"), r#"{"format": 3}"#).expect("it is writable");
    assert_refused(&site.on_west(&["status"]), 1, "format 3");
    fs::write(site.file("region.json"), &manifest[..10]).expect("it is writable");
    assert_refused(&site.on_west(&["status"]), 1, "region.json");
    fs::write(site.file("region.json"), &manifest).expect("it is writable");
    let metadata = fs::read(site.file("metadata.redb")).expect("it was written");
    fs::write(site.file("metadata.redb"), &metadata[..1_000]).expect("it is writable");
    assert_refused(&site.on_west(&["status"]), 1, "metadata.redb");
    fs::write(site.file("metadata.redb"), &metadata).expect("it is writable");
    assert_eq!(Site::consumed(&site.west), ["one"]);
}

#[test]
fn region_serves_without_a_bookie_and_says_so() {
    let site = Site::new();
    site.publish(&["one"]);
    let damage = |n: usize| {
        let file = site.file(&format!("bookie-west-bookie-{n}.redb"));
        let bookie = fs::read(&file).expect("it was written");
        fs::write(file, &bookie[..1_000]).expect("it is writable");
    };
    damage(1);
    let status = site.on_west(&["status", "--json"]);
    assert_eq!(status.status.code(), Some(1));
    let told = report(&status);
    let bookie = &told["bookies"][0];
    assert_eq!((&bookie["bookie"], &bookie["state"]), (&"west-bookie-1".into(), &"missing".into()));
    assert!(bookie["reason"].as_str().expect("a text").contains("damaged"), "{bookie}");
    assert!(words(&status).1.contains("west-bookie-1"));
    site.publish(&["two"]);
    assert_eq!(Site::consumed(&site.west), ["one", "two"]);
    damage(2);
    assert_refused(&site.on_west(&["consume", "orders"]), 1, "2 of the 3 bookies");
}

#[test]
fn bookies_whose_files_are_lost_are_renewed_when_that_is_meant() {
    let site = Site::new();
    site.publish(&["one", "two"]);
    let renew =
        |bookie: &str, more: &[&str]| site.on_west(&[&["bookie", "renew", bookie], more].concat());
    let (bookie, file) = ("west-bookie-2", site.file("bookie-west-bookie-2.redb"));
    assert_refused(&renew(bookie, &["--yes"]), 4, "move it away first");
    assert_refused(&renew("west-bookie-9", &["--yes"]), 1, "it has west-bookie-1, ");
    assert_ok(&site.on_west(&["status"]));
    let held = Publisher::hold(&site.west, "orders");
    assert_refused(&renew(bookie, &["--yes"]), 1, "stop that one first");
    assert_ok(&held.end());

    let away = site.file("away");
    fs::rename(&file, &away).expect("it is there");
    assert_refused(&renew(bookie, &[]), 4, "georepl ledger check");
    let status = site.on_west(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    assert!(words(&status).0.contains("gone or empty"), "{status:?}");
    assert!(!file.exists(), "no file is made before that is meant");

    let renewed = renew(bookie, &["--yes", "--json"]);
    assert_ok(&renewed);
    let renewed = report(&renewed);
    assert_eq!(renewed["bookie"], bookie);
    let next = renewed["next"].as_str().expect("a text");
    assert_eq!(next, format!("georepl ledger check --region {}", site.west));
    assert_ok(&site.on_west(&["status"]));
    assert!(file.exists(), "it has begun again");
    assert_eq!(Site::consumed(&site.west), ["one", "two"]);
    fs::rename(&away, &file).expect("they are on one disk");
    let status = site.on_west(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    assert!(words(&status).0.contains("life"), "{status:?}");

    // All of them: each is renewed on its own, whatever the others lack.
    for n in 1..=4 {
        let _ = fs::remove_file(site.file(&format!("bookie-west-bookie-{n}.redb")));
    }
    assert_refused(&site.on_west(&["status"]), 1, "gone or empty");
    for n in 1..=4 {
        let shown = renew(&format!("west-bookie-{n}"), &["--yes"]);
        assert_ok(&shown);
        assert!(words(&shown).0.contains("now run georepl ledger check"), "{shown:?}");
    }
    let check = site.on_west(&["ledger", "check"]);
    assert_eq!(check.status.code(), Some(1), "nobody has a copy: {check:?}");
}

#[test]
fn ledgers_are_listed_shown_read_checked_and_recovered() {
    let site = Site::new();
    site.publish(&["one", "two"]);
    let records = report(&site.on_west(&["ledger", "list", "--json"]));
    let of_topic = |record: &&Value| record["custom"]["pulsar/managed-ledger"].is_string();
    let first = records.as_array().expect("a list").iter().find(of_topic).expect("a ledger");
    assert_eq!((&first["state"], &first["entries"]), (&"closed".into(), &2.into()));
    let ledger = first["ledger"].to_string();
    let shown = report(&site.on_west(&["ledger", "show", &ledger, "--json"]));
    assert_eq!(shown["ensembles"][0]["bookies"].as_array().expect("a list").len(), 3);
    let (stdout, _) = words(&site.on_west(&["ledger", "read", &ledger, "--first", "1"]));
    assert!(stdout.starts_with(&format!("{ledger}:1 0e02")), "Pulsar's frame: {stdout}");
    let checks = report(&site.on_west(&["ledger", "check", &ledger, "--json"]));
    assert_eq!(
        (&checks[0]["under_replicated"], checks.as_array().map(Vec::len)),
        (&0.into(), Some(1))
    );
    let end = report(&site.on_west(&["ledger", "recover", &ledger, "--json"]));
    assert_eq!(end["entries"], 2);
    assert_refused(&site.on_west(&["ledger", "show", "99"]), 1, "no ledger 99");
    assert_refused(&site.on_west(&["ledger", "recover", "99", "--yes"]), 1, "no ledger 99");
}

#[test]
fn every_report_is_shown_to_people_and_as_json() {
    let site = Site::new();
    site.publish(&["one"]);
    site.replicate();
    for (args, named) in [
        (&["status"][..], "west-bookie-4"),
        (&["status", "orders"], "pulsar.repl.east"),
        (&["why"], "no replicator runs"),
        (&["ledger", "list"], "public/default/persistent/orders"),
        (&["ledger", "check"], "under-replicated"),
        (&["topic", "list"], "persistent://public/default/orders"),
        (&["topic", "trim", "orders"], "deleted 0 ledgers"),
    ] {
        let (stdout, _) = words(&site.on_west(args));
        assert!(stdout.contains(named), "{args:?}: {stdout}");
        report(&site.on_west(&[args, &["--json"]].concat()));
    }
    let internal = report(&site.on_west(&["stats-internal", "orders"]));
    assert_eq!(internal["cursors"]["pulsar.repl.east"]["markDeletePosition"], "0:0");
    assert_refused(&site.on_west(&["stats-internal", "nothing"]), 1, "no topic");
    assert_refused(&site.on_west(&["consume", "orders", "--from", "there"]), 2, "17:42");
    assert_refused(&site.on_west(&["consume", "a/b"]), 2, "tenant/namespace/name");
}

#[test]
fn garbage_and_later_versions_on_the_socket_are_answered_and_end_there() {
    let site = Site::new();
    let server = Server::start(&site.west);
    let answered = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(site.file("socket")).expect("it serves");
        stream.write_all(bytes).expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it ends the connection");
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert!(answered(b"{\"georepl\":2,\"command\":{\"fly\":{}}}\n").contains("version 2"));
    assert!(answered(b"hello\n").contains("not understood"));
    assert!(answered(b"{\"georepl\":1,\"command\":{\"fly\":{}}}\n").contains("fly"));
    let so_far = br#"{"topic":"a","messages":0,"bytes":0}"#;
    let mut request =
        [&br#"{"georepl":1,"command":{"publish":{"so_far":"#[..], so_far, b"}}}\n"].concat();
    request.extend(b"\xff\xff\xff\xff");
    assert!(answered(&request).contains("frame"));
    assert_ok(&site.on_west(&["status"]));
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn demo_keeps_regions_on_disk() {
    let site = Site::new();
    let data = Path::new(&site.west).to_str().expect("UTF-8");
    let args = ["demo", "--messages", "1000", "--json", "--data", data];
    let output = run(&args);
    assert_ok(&output);
    assert_eq!(report(&output)["topics"][0]["audit"]["entries"], 1_000);
    let east = format!("{data}/east");
    let kept = run(&["consume", "--region", &east, "earthquakes", "--count", "2"]);
    assert_eq!(words(&kept).0.lines().count(), 2);
    assert_refused(&run(&args), 1, "another directory");
    assert_refused(&run(&["demo", "--plant", "lost", "--data", data]), 2, "--data");
}

#[test]
fn help_of_every_command_has_examples() {
    for command in [
        &["publish"][..],
        &["consume"],
        &["serve"],
        &["replicate"],
        &["status"],
        &["why"],
        &["stats-internal"],
        &["seek"],
        &["skip"],
        &["clear"],
        &["quarantine", "list"],
        &["quarantine", "release"],
        &["quarantine", "discard"],
        &["ledger", "list"],
        &["ledger", "show"],
        &["ledger", "read"],
        &["ledger", "check"],
        &["ledger", "recover"],
        &["bookie", "renew"],
        &["topic", "list"],
        &["topic", "trim"],
        &["topic", "retention"],
        &["topic", "terminate"],
        &["topic", "delete"],
    ] {
        let (stdout, _) = words(&run(&[command, &["--help"]].concat()));
        let example = format!("georepl {}", command.join(" "));
        assert!(stdout.contains("Examples:") && stdout.contains(&example), "{stdout}");
    }
}
