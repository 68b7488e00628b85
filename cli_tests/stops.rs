//! What is said of replications that have stopped, when nothing runs any more.

use std::fs;

use georepl::Region;
use georepl::replicator::EmbeddedTopics;
use serde_json::Value;

use super::site::{Site, assert_ok, copy_files, inside};
use super::{assert_refused, report, run, words};

/// The only topic on its way, as a region that nobody holds tells of it.
fn why(site: &Site) -> (Option<i32>, Value, String) {
    let told = site.on_west(&["why", "--json"]);
    let link = report(&told)[0].clone();
    assert_eq!(link["reason"], "not-running", "{link}");
    let shown = site.on_west(&["why"]);
    assert_eq!(told.status.code(), shown.status.code());
    (told.status.code(), link, words(&shown).0)
}

#[test]
fn remote_that_lost_data_is_still_named_when_no_replicator_runs() {
    let site = Site::new();
    site.publish(&["one", "two"]);
    site.replicate();
    let copy = format!("{}.copy", site.east);
    copy_files(&site.east, &copy);
    site.publish(&["three"]);
    site.replicate();
    let (code, link, _) = why(&site);
    assert_eq!((code, &link["stopped"]), (Some(0), &Value::Null), "it came to its end");
    fs::remove_dir_all(&site.east).expect("it is there");
    copy_files(&copy, &site.east);
    let replicate = ["replicate", "--from", &site.west, "--to", &site.east, "orders"];
    assert_refused(&run(&replicate), 1, "the remote lost data");

    let (code, link, said) = why(&site);
    assert_eq!((code, &link["stuck"], &link["backlog"]), (Some(1), &true.into(), &0.into()));
    let stopped = link["stopped"].as_str().expect("a text");
    assert!(stopped.contains("the remote lost data") && stopped.contains("seek"), "{stopped}");
    for part in [
        "no replicator runs; the last one stopped ",
        &format!(" ago and said: {stopped}; start georepl replicate"),
        &format!(
            "--from {} --to <directory of east> persistent://public/default/orders",
            site.west
        ),
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }

    let seek = ["seek", "orders", "--remote", "east", "--to", "earliest", "--yes"];
    assert_ok(&site.on_west(&seek));
    let (code, link, said) = why(&site);
    assert_eq!((code, &link["stopped"], &link["backlog"]), (Some(1), &Value::Null, &3.into()));
    assert!(
        said.contains("3 entries behind: no replicator runs; start georepl replicate"),
        "{said}"
    );
    site.replicate();
    assert_eq!(why(&site).0, Some(0));
}

#[test]
fn entry_that_blocks_is_still_named_when_no_replicator_runs() {
    let site = Site::new();
    site.publish(&["one"]);
    inside(&site.west, async |region: &Region| {
        let topic = region.topic("persistent://public/default/orders").await.expect("it is there");
        topic.ledger().append("no message".into()).await.expect("its disk works");
    });
    let replicate = ["replicate", "--from", &site.west, "--to", &site.east, "orders"];
    assert_refused(&run(&replicate), 1, "is not readable");
    let (code, link, said) = why(&site);
    assert_eq!((code, &link["backlog"]), (Some(1), &1.into()));
    assert!(said.contains("1 entry behind") && said.contains("is not readable"), "{said}");
    assert_ok(&site.on_west(&["clear", "orders", "--remote", "east", "--yes"]));
    assert_eq!(why(&site).0, Some(0), "somebody has decided");
}
