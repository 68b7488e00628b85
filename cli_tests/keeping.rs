//! What topics keep and let go: retention, and what lies in quarantine.

use std::path::Path;

use georepl::Region;
use georepl::replicator::EmbeddedTopics;
use serde_json::{Value, json};

use super::site::{Server, Site, assert_ok, inside};
use super::{assert_refused, report, run, run_with_input, words};

#[test]
fn retention_is_stored_with_the_topic_and_deletes_what_every_cursor_has_acknowledged() {
    let site = Site::new();
    // Each command begins a ledger.
    site.publish(&["one"]);
    site.publish(&["two"]);
    site.replicate();
    site.publish(&["three"]);
    site.publish(&["four"]);
    let retention =
        |args: &[&str]| site.on_west(&[&["topic", "retention", "orders"], args].concat());
    let told = report(&retention(&["--json"]));
    assert_eq!(
        (&told["seconds"], &told["bytes"], &told["done"], &told["deleted_entries"]),
        (&Value::Null, &Value::Null, &json!(false), &json!(0))
    );
    let dry = report(&retention(&["--time", "0", "--dry-run", "--json"]));
    assert_eq!((&dry["done"], &dry["deleted_entries"]), (&json!(false), &json!(2)));
    assert_refused(&retention(&["--time", "0"]), 4, "2 entries of ");
    assert_eq!(Site::consumed(&site.west), ["one", "two", "three", "four"]);
    let (stdout, _) = words(&retention(&["--time", "0", "--size", "1GiB", "--yes"]));
    assert!(
        stdout.contains("stays for 0 s, up to 1073741824 bytes; 2 entries in 2 ledgers deleted"),
        "{stdout}"
    );
    assert_eq!(Site::consumed(&site.west), ["three", "four"], "east needs them");

    site.replicate();
    // By other processes: it was stored.
    assert_ok(&site.on_west(&["topic", "trim", "orders"]));
    assert_eq!(Site::consumed(&site.west), [""; 0]);
    assert_eq!(Site::consumed(&site.east), ["one", "two", "three", "four"]);
    assert_eq!(report(&retention(&["--time", "forever", "--json"]))["seconds"], Value::Null);
    assert_refused(&retention(&["--time", "7"]), 2, "such as 7d");
    assert_refused(&retention(&["--size", "10GB"]), 2, "such as 10GiB");
}

#[test]
fn entry_that_cannot_be_replicated_is_put_aside_and_settled_by_hand() {
    for served in [false, true] {
        let site = Site::new();
        site.publish(&["before"]);
        inside(&site.west, async |region: &Region| {
            let topic =
                region.topic("persistent://public/default/orders").await.expect("it is there");
            topic.ledger().append("no message".into()).await.expect("its disk works");
        });
        site.publish(&["after"]);
        let _server = served.then(|| Server::start(&site.west));
        let replicate = ["replicate", "--from", &site.west, "--to", &site.east, "orders"];
        assert_refused(&run(&replicate), 1, "orders");
        assert_ok(&run(&[&replicate[..], &["--quarantine-after", "1"]].concat()));
        assert_eq!(Site::consumed(&site.east), ["before", "after"]);

        let east = ["orders", "--remote", "east"];
        let quarantine = |how: &[&str]| site.on_west(&[&["quarantine"], how, &east].concat());
        let lies = |state: &str| {
            let entries = report(&quarantine(&["list", "--json"]));
            assert_eq!(
                (&entries[0]["state"], entries.as_array().map(Vec::len)),
                (&json!(state), Some(1))
            );
            entries[0]["position"].as_str().expect("a text").to_owned()
        };
        let at = &lies("quarantined");
        let settle = |how, options: &[&str]| {
            site.on_west(
                &[&["quarantine", how, "orders", at, "--remote", "east"], options].concat(),
            )
        };
        assert_refused(&settle("discard", &[]), 4, "would never be replicated");
        let dry = words(&settle("discard", &["--dry-run"])).0;
        assert!(dry.contains("would be given up"), "{dry}");
        assert_ok(&settle("release", &["--dry-run"]));
        lies("quarantined");
        assert_eq!(report(&settle("release", &["--json"]))["done"], true);
        lies("released");
        assert_ok(&settle("discard", &["--yes"]));
        assert_refused(&settle("release", &[]), 1, "does not lie in quarantine");
        assert!(words(&quarantine(&["list"])).0.contains("nothing lies in quarantine"));
        assert_ok(&run(&replicate));
    }
}

#[test]
fn entry_in_quarantine_is_not_lost_with_its_note_when_the_source_is_put_back() {
    let site = Site::new();
    site.publish(&["before"]);
    inside(&site.west, async |region: &Region| {
        let topic = region.topic("persistent://public/default/orders").await.expect("it is there");
        topic.ledger().append("no message".into()).await.expect("its disk works");
    });
    site.publish(&["after"]);
    let copy = format!("{} copy", site.west);
    let duplicate = |from: &str, to: &str| {
        std::fs::create_dir_all(to).expect("the place is writable");
        for file in std::fs::read_dir(from).expect("it is there") {
            let file = file.expect("it is readable");
            if file.file_type().expect("it is readable").is_file() {
                std::fs::copy(file.path(), Path::new(to).join(file.file_name()))
                    .expect("there is room");
            }
        }
    };
    duplicate(&site.west, &copy);
    let replicate = ["replicate", "--from", &site.west, "--to", &site.east, "orders"];
    let replicate = || run(&[&replicate[..], &["--quarantine-after", "1"]].concat());
    assert_ok(&replicate());
    assert_eq!(Site::consumed(&site.east), ["before", "after"]);
    let list = || site.on_west(&["quarantine", "list", "orders", "--remote", "east", "--json"]);
    let noted = report(&list());
    let bad = noted[0]["position"].as_str().expect("a text");

    duplicate(&copy, &site.west);
    for _ in 0..2 {
        let refused = replicate();
        let said = words(&refused).1;
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("the cursor was put back to an older state"), "{said}");
        assert!(said.contains("seek"), "{said}");
    }
    let seek = ["seek", "orders", "--remote", "east", "--to", bad];
    assert_refused(&site.on_west(&seek), 4, "");
    assert_ok(&site.on_west(&[&seek[..], &["--yes"]].concat()));
    assert_ok(&replicate());
    assert_eq!(report(&list()), noted, "it lies there again");
    assert_eq!(Site::consumed(&site.east), ["before", "after", "after"], "as it was told to");
}

#[test]
fn looking_at_a_region_often_leaves_nothing_behind() {
    let site = Site::new();
    for topic in ["a", "b", "c"] {
        let args = ["publish", "--region", &site.west, topic];
        assert_ok(&run_with_input(&args, b"one\n"));
    }
    for _ in 0..20 {
        assert_ok(&site.on_west(&["status"]));
    }
    let listed = site.on_west(&["ledger", "list", "--json"]);
    assert_ok(&listed);
    let listed = report(&listed);
    let ledgers = listed.as_array().expect("a list").len();
    assert!(ledgers <= 6, "one with the line, and the last one, of each topic: {ledgers}");
}
