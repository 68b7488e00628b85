//! What goes wrong around a region: holders that end, commands that fail half-way, records that cannot be read.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use georepl::Region;
use georepl::replicator::EmbeddedTopics;
use georepl::storage::{Expected, LedgerId, ledger_key};
use serde_json::Value;

use super::site::{ATTEMPTS, Publisher, Server, Site, assert_ok, copy_files, inside, terminate};
use super::{assert_refused, report, run, run_with_input, spawn, words};

fn arrives(region: &str, lines: &[&str]) -> bool {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    // There may be no topic yet, or no region.
    (0..ATTEMPTS).any(|_| words(&run(&["consume", "--region", region, "orders"])).0 == lines)
}

/// Asks the process that holds west.
fn nothing_is_left(site: &Site) -> bool {
    let answered = || site.on_west(&["why", "--json"]).stdout;
    (0..ATTEMPTS).any(|_| {
        serde_json::from_slice::<Value>(&answered()).is_ok_and(|links| {
            let links = links.as_array().expect("a list");
            !links.is_empty() && links.iter().all(|link| link["backlog"] == 0)
        })
    })
}

/// Follows with a process of its own.
fn follow(site: &Site) -> std::process::Child {
    let args = ["replicate", "--from", &site.west, "--to", &site.east, "orders", "--follow"];
    spawn(&args, Stdio::null())
}

#[test]
fn replication_goes_on_when_the_holder_of_the_target_ends() {
    let site = Site::new();
    site.publish(&["one"]);
    let holder = Publisher::hold(&site.east, "other");
    let following = follow(&site);
    assert!(arrives(&site.east, &["one"]));
    assert_ok(&holder.end());
    site.publish(&["two"]);
    // Whoever looks into east holds it meanwhile, and the replicator waits.
    assert!(nothing_is_left(&site), "nobody else holds it now");
    terminate(&following);
    assert_ok(&following.wait_with_output().expect("it ends"));
    assert_eq!(Site::consumed(&site.east), ["one", "two"]);
}

#[test]
fn replication_goes_on_when_the_holder_of_the_source_ends() {
    let site = Site::new();
    // So that looking into it does not hold it.
    let _east = Server::start(&site.east);
    let mut holder = Publisher::hold(&site.west, "orders");
    holder.write("one");
    assert!(arrives(&site.west, &["one"]));
    let following = follow(&site);
    assert!(arrives(&site.east, &["one"]));
    assert_ok(&holder.end());
    site.publish(&["two"]);
    assert!(arrives(&site.east, &["one", "two"]));
    terminate(&following);
    assert_ok(&following.wait_with_output().expect("it ends"));
}

#[test]
fn target_that_has_gone_is_named_and_replicated_to_when_it_is_back() {
    let site = Site::new();
    let _west = Server::start(&site.west);
    site.publish(&["one"]);
    let holder = Publisher::hold(&site.east, "other");
    let following = follow(&site);
    assert!(arrives(&site.east, &["one"]));
    let away = format!("{}.away", site.east);
    fs::rename(&site.east, &away).expect("it is a directory");
    assert_ok(&holder.end());
    site.publish(&["two"]);
    let why = || words(&site.on_west(&["why"])).0;
    assert!((0..ATTEMPTS).any(|_| why().contains("there is no region in ")), "{}", why());
    assert!(!Path::new(&site.east).exists(), "no other takes its place");
    fs::rename(&away, &site.east).expect("it is a directory");
    // Not by asking east, whose holder this would be when it is looked for again.
    assert!((0..ATTEMPTS).any(|_| why().contains("east: 0 entries behind")), "{}", why());
    assert_eq!(Site::consumed(&site.east), ["one", "two"]);
    terminate(&following);
    assert_ok(&following.wait_with_output().expect("it ends"));
}

#[test]
fn consumer_goes_on_when_the_holder_ends() {
    let site = Site::new();
    let mut holder = Publisher::hold(&site.west, "orders");
    holder.write("one");
    assert!(arrives(&site.west, &["one"]));
    let args = ["consume", "--region", &site.west, "orders", "--follow", "--count", "3"];
    let mut consuming = spawn(&args, Stdio::null());
    let mut stdout = BufReader::new(consuming.stdout.take().expect("it was piped"));
    let mut lines = String::new();
    stdout.read_line(&mut lines).expect("it reads what is there");
    assert_ok(&holder.end());
    site.publish(&["two"]);
    site.publish(&["three", "four"]);
    stdout.read_to_string(&mut lines).expect("text");
    assert_eq!(lines, "one\ntwo\nthree\n");
    assert_eq!(consuming.wait().expect("it ends").code(), Some(0));
}

#[test]
fn consumer_of_what_is_there_goes_on_when_the_holder_ends_or_is_killed() {
    const ENTRIES: usize = 30_000;
    let lines: Vec<_> = (0..ENTRIES).map(|n| format!("line {n:0100}")).collect();
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    for killed in [false, true] {
        let site = Site::new();
        let mut server = Server::start(&site.west);
        let publish = ["publish", "--region", &site.west, "orders"];
        assert_ok(&run_with_input(&publish, input.as_bytes()));
        let args = ["consume", "--region", &site.west, "orders"];
        let mut consuming = spawn(&args, Stdio::null());
        let mut stdout = BufReader::new(consuming.stdout.take().expect("it was piped"));
        let mut consumed = String::new();
        stdout.read_line(&mut consumed).expect("it reads");
        // What comes now was not there when it began.
        site.publish(&["later"]);
        // There is more between here and there than the pipes take.
        match killed {
            true => server.child.kill().expect("it runs"),
            false => terminate(&server.child),
        }
        stdout.read_to_string(&mut consumed).expect("text");
        let output = consuming.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(consumed == input, "each once, in order, and no later one");
        let code = server.child.wait().expect("it ends").code();
        assert_eq!(code, (!killed).then_some(0));
        assert_eq!(Site::consumed(&site.west).len(), ENTRIES + 1);
    }
}

#[test]
fn second_replication_of_a_topic_is_refused_and_leaves_the_first_alone() {
    let site = Site::new();
    let _west = Server::start(&site.west);
    site.publish(&["one"]);
    let following = follow(&site);
    assert!(arrives(&site.east, &["one"]));
    let again = ["replicate", "--from", &site.west, "--to", &site.east, "orders"];
    assert_refused(&run(&again), 4, "already");
    assert_refused(&site.on_west(&["topic", "delete", "orders", "--yes"]), 4, "stop that first");
    site.publish(&["two"]);
    assert!(arrives(&site.east, &["one", "two"]));
    terminate(&following);
    assert_ok(&following.wait_with_output().expect("it ends"));
}

#[test]
fn topic_that_fails_keeps_no_other_from_being_replicated_to_the_end() {
    let topics = ["orders", "payments", "refunds"];
    for broken in ["entry", "cursor", "topic"] {
        let site = Site::new();
        for topic in topics {
            let publish = ["publish", "--region", &site.west, topic];
            assert_ok(&run_with_input(&publish, b"one\n"));
        }
        inside(&site.west, async |region: &Region| {
            let record = "managed-ledgers/public/default/persistent/payments";
            let put = async |key: &str, expected| {
                let put = region.store().put(key, "\u{7}no record".into(), expected).await;
                put.expect("the disk works");
            };
            match broken {
                "entry" => {
                    let name = "persistent://public/default/payments";
                    let topic = region.topic(name).await.expect("it is there");
                    topic.ledger().append("no message".into()).await.expect("its disk works");
                }
                "cursor" => put(&format!("{record}/pulsar.repl.east"), Expected::Absent).await,
                _ => {
                    let found = region.store().get(record).await.expect("the disk works");
                    put(record, Expected::Version(found.expect("it is there").version)).await;
                }
            }
        });
        let replicate = ["replicate", "--from", &site.west, "--to", &site.east];
        let output = run(&[&replicate[..], &topics, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{broken}: {output:?}");
        let lanes = report(&output)["topics"].clone();
        let failed = |n: usize| lanes[n]["failed"].as_str();
        assert!(failed(0).is_none() && failed(2).is_none(), "{broken}: {lanes}");
        assert!(failed(1).is_some_and(|reason| !reason.is_empty()), "{broken}: {lanes}");
        for topic in ["orders", "refunds"] {
            let consumed = run(&["consume", "--region", &site.east, topic]);
            assert_eq!(words(&consumed).0, "one\n", "{broken}: {topic}");
        }
        let people = words(&run(&[&replicate[..], &topics].concat())).0;
        assert!(people.contains("payments is not replicated: "), "{broken}: {people}");
    }
}

#[test]
fn replication_that_is_refused_begins_no_region() {
    let site = Site::new();
    site.publish(&["one"]);
    let to = |to: &str, topic: &str| run(&["replicate", "--from", &site.west, "--to", to, topic]);
    assert_refused(&to(&site.east, "nothing"), 1, "no topic");
    assert!(!Path::new(&site.east).exists());
    let namesake = format!("{}/west", site.east);
    assert_refused(&to(&namesake, "orders"), 2, "both regions are called west");
    assert!(!Path::new(&site.east).exists());
}

#[test]
fn server_waits_for_a_command_that_holds_the_region() {
    let site = Site::new();
    let holder = Publisher::hold(&site.west, "orders");
    let mut server = spawn(&["serve", "--region", &site.west], Stdio::null());
    let mut said = BufReader::new(server.stderr.take().expect("it was piped")).lines();
    let mut next = || said.next().expect("it says more").expect("it is text");
    let waiting = next();
    assert!(waiting.contains(&format!("waiting for process {}", holder.0.id())), "{waiting}");
    assert_ok(&holder.end());
    let serving = next();
    assert!(serving.contains("serving the region"), "{serving}");
    site.publish(&["one"]);
    terminate(&server);
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
}

#[test]
fn of_two_first_publishers_one_begins_the_region_and_both_publish() {
    for _ in 0..5 {
        let site = Site::new();
        let args = ["publish", "--region", &site.west, "orders"];
        let publish = |line: &'static str| move || run_with_input(&args, line.as_bytes());
        std::thread::scope(|scope| {
            let both = [scope.spawn(publish("one\n")), scope.spawn(publish("two\n"))];
            both.into_iter().for_each(|one| assert_ok(&one.join().expect("it runs")));
        });
        let mut lines = Site::consumed(&site.west);
        lines.sort();
        assert_eq!(lines, ["one", "two"]);
    }
}

#[test]
fn publisher_goes_on_when_the_holder_ends() {
    let site = Site::new();
    let holder = Publisher::hold(&site.west, "other");
    let mut publisher = Publisher::hold(&site.west, "orders");
    publisher.write("one");
    assert!(arrives(&site.west, &["one"]));
    assert_ok(&holder.end());
    // It holds the region itself by now, or will.
    publisher.write("two");
    assert!(arrives(&site.west, &["one", "two"]));
    let output = publisher.end();
    assert_ok(&output);
    assert!(words(&output).0.starts_with("published 2 messages"), "{output:?}");
    assert_eq!(Site::consumed(&site.west), ["one", "two"]);
}

#[test]
fn publisher_that_fails_says_what_is_durable_and_how_to_go_on() {
    let site = Site::new();
    let _server = Server::start(&site.west);
    let mut publisher = Publisher::hold(&site.west, "orders");
    publisher.write("one");
    publisher.write("two");
    assert!(arrives(&site.west, &["one", "two"]));
    assert_ok(&site.on_west(&["topic", "terminate", "orders", "--yes"]));
    publisher.write("three");
    assert_refused(
        &publisher.outcome(),
        1,
        "2 lines are in the topic and durable, the last at 0:1; go on with line 3",
    );
    let publish = ["publish", "--region", &site.west, "orders"];
    assert_refused(&run_with_input(&publish, b"three\n"), 1, "publish all of them again");
}

#[test]
fn publisher_whose_holder_is_killed_says_what_is_durable() {
    let site = Site::new();
    let holder = Publisher::hold(&site.west, "other");
    let mut publisher = Publisher::hold(&site.west, "orders");
    publisher.write("one");
    assert!(arrives(&site.west, &["one"]));
    holder.kill();
    let outcome = publisher.outcome();
    assert_refused(&outcome, 3, "1 lines are in the topic and durable, the last at ");
    assert_refused(&outcome, 3, &site.west);
    assert_eq!(Site::consumed(&site.west), ["one"]);
}

#[test]
fn record_that_cannot_be_read_is_shown_beside_the_others() {
    let site = Site::new();
    site.publish(&["one"]);
    site.replicate();
    let topics = "managed-ledgers/public/default/persistent";
    inside(&site.west, async |region: &Region| {
        let cursor = format!("{topics}/orders/pulsar.repl.north");
        for key in [format!("{topics}/bad"), cursor, ledger_key(LedgerId(777))] {
            let put = region.store().put(&key, "\u{7}no record".into(), Expected::Absent).await;
            put.expect("the disk works");
        }
    });
    let shown = |args: &[&str]| {
        let output = site.on_west(&[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let people = words(&site.on_west(args)).0;
        (report(&output), people)
    };
    let find = |rows: &Value, name: &str, value: &str| {
        let found = rows.as_array().expect("a list").iter().find(|row| row[name] == value);
        found.unwrap_or_else(|| panic!("{value}: {rows}")).clone()
    };
    let (why, people) = shown(&["why"]);
    assert_eq!(find(&why, "remote", "east")["backlog"], 0);
    assert_eq!(find(&why, "remote", "north")["reason"], "unknown");
    assert_eq!(find(&why, "topic", "persistent://public/default/bad")["remote"], Value::Null);
    assert!(people.contains("orders to east: ") && people.contains("/bad: "), "{people}");

    let (status, people) = shown(&["status"]);
    let topic = |name| find(&status["topics"], "topic", name);
    assert_eq!(topic("persistent://public/default/bad")["state"], "Unopened");
    let cursors = topic("persistent://public/default/orders")["cursors"].clone();
    assert_eq!(find(&cursors, "cursor", "pulsar.repl.east")["backlog"], 0);
    let north = find(&cursors, "cursor", "pulsar.repl.north");
    let reason = north["reason"].as_str().expect("a text");
    assert!(
        people.contains("Unopened: ") && people.contains(reason.split(' ').next().expect("a word"))
    );

    let all = site.on_west(&["stats-internal"]);
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    let all = report(&all);
    let orders = &all["persistent://public/default/orders"];
    assert!(orders["unopenedCursors"]["pulsar.repl.north"].is_string(), "{orders}");
    assert_eq!((&orders["state"], &orders["numberOfEntries"]), (&"LedgerOpened".into(), &1.into()));
    assert_eq!(orders["cursors"]["pulsar.repl.east"]["markDeletePosition"], "0:0");
    assert!(all["persistent://public/default/bad"]["error"].is_string(), "{all}");

    for list in [&["ledger", "list"][..], &["ledger", "check"]] {
        let (rows, people) = shown(list);
        let rows = rows.as_array().expect("a list");
        let bad = rows.iter().find(|row| row["ledger"] == 777).expect("it is listed");
        assert!(bad["reason"].is_string() && rows.len() > 1, "{bad}");
        assert!(people.contains("777"), "{people}");
    }
}

#[test]
fn reports_of_any_size_are_shown_and_long_commands_end_when_they_are_told_to() {
    let site = Site::new();
    site.publish(&["one"]);
    inside(&site.west, async |region: &Region| {
        let store = region.store();
        let record = store
            .get(&ledger_key(LedgerId(0)))
            .await
            .expect("the disk works")
            .expect("it is closed");
        let put = (1_000..1_000 + LEDGERS).map(|ledger| {
            let (store, record) = (store.clone(), record.value.clone());
            async move { store.put(&ledger_key(LedgerId(ledger)), record, Expected::Absent).await }
        });
        for made in futures::future::join_all(put).await {
            made.expect("the disk works");
        }
    });
    let listed = site.on_west(&["ledger", "list", "--json"]);
    assert_ok(&listed);
    assert!(listed.stdout.len() > 6 << 20, "more than a frame");
    assert!(report(&listed).as_array().expect("a list").len() as u64 > LEDGERS);

    let mut checking = spawn(&["ledger", "check", "--region", &site.west], Stdio::null());
    while !site.file("socket").exists() {
        std::thread::yield_now();
    }
    terminate(&checking);
    let mut said = String::new();
    checking.stderr.take().expect("it was piped").read_to_string(&mut said).expect("text");
    assert_eq!(checking.wait().expect("it ends").code(), Some(1), "{said}");
    assert!(said.contains("interrupted after"), "{said}");
}

const LEDGERS: u64 = 20_000;

#[test]
fn reading_a_ledger_ends_when_it_is_told_to_and_says_so() {
    let site = Site::new();
    let input: String = (0..30_000).map(|n| format!("line {n}\n")).collect();
    assert_ok(&run_with_input(&["publish", "--region", &site.west, "orders"], input.as_bytes()));
    let mut reading = spawn(&["ledger", "read", "--region", &site.west, "0"], Stdio::null());
    let mut stdout = BufReader::new(reading.stdout.take().expect("it was piped"));
    stdout.read_line(&mut String::new()).expect("it reads");
    terminate(&reading);
    let mut stderr = BufReader::new(reading.stderr.take().expect("it was piped"));
    let mut said = String::new();
    stderr.read_line(&mut said).expect("it says that it ends");
    let lines = 1 + stdout.lines().count();
    stderr.read_to_string(&mut said).expect("text");
    assert_eq!(reading.wait().expect("it ends").code(), Some(1), "{said}");
    assert!(said.contains(&format!("interrupted after {lines} entries")), "{said}");
    assert!(lines < 30_000, "the rest was not read");
}

#[test]
fn remote_from_an_older_copy_is_noticed_without_a_backlog_and_filled_from_where_it_is_whole() {
    let site = Site::new();
    site.publish(&["one", "two"]);
    site.replicate();
    let copy = format!("{}.copy", site.east);
    copy_files(&site.east, &copy);
    site.publish(&["three"]);
    site.replicate();
    fs::remove_dir_all(&site.east).expect("it is there");
    copy_files(&copy, &site.east);

    let replicate = ["replicate", "--from", &site.west, "--to", &site.east, "orders"];
    let output = run(&replicate);
    assert_refused(&output, 1, "the remote lost data");
    assert_refused(&output, 1, "restore it or seek to what the remote is to get next");
    let said = words(&output).1;
    let whole = said.split_once("it holds up to ").expect("it says how far it is whole").1;
    let (ledger, entry) =
        whole.split_once(' ').expect("a position").0.split_once(':').expect("two");
    // What follows is in another ledger, where it has another number.
    let next = format!("{ledger}:{}", entry.parse::<u64>().expect("a number") + 1);
    let seek = ["seek", "orders", "--remote", "east", "--to", &next, "--yes", "--json"];
    let moved = site.on_west(&seek);
    assert_ok(&moved);
    assert_eq!(
        (&report(&moved)["passed_over"], &report(&moved)["sent_again"]),
        (&0.into(), &1.into())
    );
    site.replicate();
    assert_eq!(Site::consumed(&site.east), ["one", "two", "three"]);
    let beyond = format!("{ledger}:{}", u32::MAX);
    let seek = ["seek", "orders", "--remote", "east", "--to", &beyond, "--yes"];
    assert_eq!(site.on_west(&seek).status.code(), Some(2), "there is no such entry");
}

#[test]
fn source_from_an_older_copy_seeks_above_the_incarnation_that_the_remote_names() {
    let site = Site::new();
    site.publish(&["one"]);
    site.replicate();
    let copy = format!("{}.copy", site.west);
    copy_files(&site.west, &copy);
    let seek = ["seek", "orders", "--remote", "east", "--to", "earliest", "--yes"];
    for _ in 0..3 {
        assert_ok(&site.on_west(&seek));
        site.replicate();
    }
    fs::remove_dir_all(&site.west).expect("it is there");
    copy_files(&copy, &site.west);
    site.publish(&["two"]);
    let replicate = ["replicate", "--from", &site.west, "--to", &site.east, "orders"];
    assert_refused(&run(&replicate), 1, "incarnation 4");
    // Where no replicator runs.
    assert_ok(&site.on_west(&seek));
    assert_eq!(site.replicate()["published"], 2);
    assert_eq!(Site::consumed(&site.east), ["one", "one", "one", "one", "one", "two"]);
}
