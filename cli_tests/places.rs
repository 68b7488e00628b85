//! Directories that are not where or what they were, and names that lead nowhere.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use super::site::{ATTEMPTS, Server, Site, assert_ok};
use super::{assert_refused, run, run_with_input, spawn, words};

/// What a server said that has ended, and its exit status.
fn ended(mut server: Server) -> (Option<i32>, String) {
    let mut said = String::new();
    server.stderr.read_to_string(&mut said).expect("its words are text");
    (server.child.wait().expect("it ends").code(), said)
}

#[test]
fn server_whose_directory_was_renamed_refuses_the_next_request_and_ends() {
    let site = Site::new();
    let server = Server::start(&site.west);
    site.publish(&["one"]);
    let moved = format!("{}.moved", site.west);
    fs::rename(&site.west, &moved).expect("it is a directory");
    let status = ["status", "--region", &moved];
    let renamed = format!("{} was renamed or removed", site.west);
    assert_refused(&run(&status), 1, &renamed);
    let (code, said) = ended(server);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&renamed) && said.contains("that process ends"), "{said}");
    assert_ok(&run(&status));
    assert_eq!(Site::consumed(&moved), ["one"]);
}

#[test]
fn publisher_to_a_directory_that_is_gone_is_refused_its_next_line() {
    let site = Site::new();
    let server = Server::start(&site.west);
    let args = ["publish", "--region", &site.west, "orders"];
    let mut publisher = spawn(&args, Stdio::piped());
    let mut stdin = publisher.stdin.take().expect("it was piped");
    writeln!(stdin, "one").expect("it reads");
    let consumed = || words(&run(&["consume", "--region", &site.west, "orders"])).0;
    assert!((0..ATTEMPTS).any(|_| consumed() == "one\n"));
    fs::remove_dir_all(&site.west).expect("it is there");
    // Another one begins in its place, and is left alone.
    assert_ok(&run_with_input(&args, b"another\n"));
    writeln!(stdin, "two").expect("it reads");
    drop(stdin);
    let output = publisher.wait_with_output().expect("it ends");
    assert_refused(&output, 1, "was renamed or removed");
    assert_refused(&output, 1, "1 lines are in the topic");
    assert_eq!(ended(server).0, Some(1));
    assert_eq!(Site::consumed(&site.west), ["another"]);
}

#[test]
fn region_is_not_begun_in_the_directory_of_another() {
    let site = Site::new();
    site.publish(&["one"]);
    let inner = format!("{}/inner", site.west);
    let publish = ["publish", "--region", &inner, "orders"];
    let output = run_with_input(&publish, b"");
    assert_refused(&output, 1, &format!("{inner} lies in the directory of another region"));
    assert!(!Path::new(&inner).exists());
}

#[test]
fn region_that_has_lost_its_manifest_is_told_from_none() {
    let site = Site::new();
    site.publish(&["one"]);
    let (manifest, away) = (site.file("region.json"), site.file("away"));
    fs::rename(&manifest, &away).expect("it is there");
    for command in ["status", "why"] {
        let output = site.on_west(&[command]);
        assert_refused(&output, 1, &format!("{} is gone, but", manifest.display()));
    }
    let publish = ["publish", "--region", &site.west, "orders"];
    assert_refused(&run_with_input(&publish, b""), 1, "region.json is gone, but");
    fs::rename(&away, &manifest).expect("they are on one disk");
    assert_eq!(Site::consumed(&site.west), ["one"]);
}

#[test]
fn region_that_has_lost_its_metadata_is_not_begun_anew() {
    let site = Site::new();
    site.publish(&["one"]);
    let (metadata, away) = (site.file("metadata.redb"), site.file("away"));
    fs::rename(&metadata, &away).expect("it is there");
    let gone = format!("{} is gone or empty, but ", metadata.display());
    assert_refused(&site.on_west(&["status"]), 1, &gone);
    let publish = ["publish", "--region", &site.west, "orders"];
    assert_refused(&run_with_input(&publish, b""), 1, &gone);
    let renew = ["bookie", "renew", "west-bookie-1", "--yes"];
    assert_refused(&site.on_west(&renew), 1, &gone);
    assert!(!metadata.exists(), "nothing was made in its place");
    fs::rename(&away, &metadata).expect("they are on one disk");
    assert_eq!(Site::consumed(&site.west), ["one"]);
}

#[test]
fn region_with_too_few_bookies_opens_again_by_what_it_says() {
    let site = Site::new();
    site.publish(&["one", "two"]);
    for n in 1..=2 {
        let file = site.file(&format!("bookie-west-bookie-{n}.redb"));
        fs::remove_file(file).expect("it is there");
    }
    let output = site.on_west(&["ledger", "check"]);
    let steps = [
        "has 2 of the 3 bookies",
        "1. put back the files that are only away",
        "2. if the region still does not open, renew 1 bookie whose files are lost for good, of west-bookie-1, \
         west-bookie-2",
        &format!("georepl bookie renew --region {} BOOKIE --yes", site.west),
        &format!("3. see what has lost copies: georepl ledger check --region {}", site.west),
        "4. renew the others",
    ];
    for step in steps {
        assert_refused(&output, 1, step);
    }
    let renew = |bookie| assert_ok(&site.on_west(&["bookie", "renew", bookie, "--yes"]));
    renew("west-bookie-1");
    let check = site.on_west(&["ledger", "check"]);
    // Ledgers are placed by chance, but no three bookies are without one of these.
    assert_eq!(check.status.code(), Some(1));
    assert!(words(&check).0.contains(" on west-bookie-"), "{check:?}");
    renew("west-bookie-2");
    assert_ok(&site.on_west(&["status"]));
    assert_eq!(Site::consumed(&site.west), ["one", "two"]);
}

#[test]
fn entries_that_a_ledger_does_not_have_are_named_with_those_it_has() {
    let site = Site::new();
    site.publish(&["one", "two", "three"]);
    let read = |range: &[&str]| site.on_west(&[&["ledger", "read", "0"], range].concat());
    let lines = |range: &[&str]| {
        let output = read(range);
        assert_ok(&output);
        words(&output).0.lines().count()
    };
    assert_eq!(
        [lines(&[]), lines(&["--first", "2"]), lines(&["--first", "1", "--last", "1"])],
        [3, 1, 1]
    );
    let has = "it has 0 to 2";
    for (range, missing) in [
        (&["--first", "3"][..], 3),
        (&["--last", "7"], 7),
        (&["--first", "5", "--last", "7"], 5),
        (&["--first", "2", "--last", "3"], 3),
        (&["--first", "18446744073709551615"], u64::MAX),
        (&["--last", "18446744073709551615"], u64::MAX),
    ] {
        assert_refused(&read(range), 1, &format!("ledger 0 has no entry {missing}: {has}"));
    }
    assert_refused(&read(&["--first", "2", "--last", "1"]), 2, "comes before the first");
}

#[test]
fn name_of_a_topic_that_is_too_long_is_refused_with_the_bound() {
    let site = Site::new();
    let longest = 1_024 - "persistent://public/default/".len();
    let publish = |bytes: usize| {
        let name = "x".repeat(bytes);
        run_with_input(&["publish", "--region", &site.west, &name], b"one\n")
    };
    assert_ok(&publish(longest));
    let refused = run(&["publish", "--region", &site.west, &"x".repeat(longest + 1)]);
    assert_refused(&refused, 2, "at most 1024 bytes, and this one has 1025");
    let listed = words(&site.on_west(&["topic", "list"])).0;
    assert_eq!(listed.trim_end().len(), 1_024);
    site.publish(&["one"]);
    let replicate =
        ["replicate", "--from", &site.west, "--to", &site.east, &"x".repeat(longest), "orders"];
    assert_ok(&run(&replicate));
    assert_ok(&site.on_west(&["status"]));
}
