//! Either region put back from an older copy: the next replication notices it, says so and holds; an operator decides,
//! and nothing is lost or doubled that they were not told of.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::{
    Site, assert_ok, consumed, copy, georepl, lines, on, publish, refusal, report, stdout,
};

/// Lines before the copy, and after it.
const BEFORE: usize = 20;
const AFTER: usize = 30;

/// One of the regions.
type Side = fn(&Site) -> &String;

/// Both regions have everything; a copy of one of them was made between two runs of lines.
fn copied(region: Side) -> Site {
    let site = Site::new();
    assert_ok(&publish(&site.west, &lines(0..BEFORE)));
    assert_ok(&site.replicate());
    copy(Path::new(region(&site)), &site.beside("copy"));
    assert_ok(&publish(&site.west, &lines(BEFORE..AFTER)));
    assert_ok(&site.replicate());
    assert_eq!(consumed(&site.east), Ok(lines(0..AFTER)));
    site
}

fn put_back(site: &Site, region: &str) {
    copy(&site.beside("copy"), Path::new(region));
}

/// The replication holds, with this reason, and does so again when it is started again.
fn assert_holds(site: &Site, reason: &str) -> String {
    let before = consumed(&site.east).expect("east is whole");
    let mut said = String::new();
    for _ in 0..2 {
        said = refusal(&site.replicate(), 1);
        assert!(said.contains(reason), "{said}");
    }
    assert_eq!(consumed(&site.east), Ok(before), "nothing was sent");
    said
}

fn seek(site: &Site, to: &str) -> Value {
    let args = ["seek", "orders", "--remote", "east", "--to", to, "--yes", "--json"];
    let output = site.on_west(&args);
    assert_ok(&output);
    report(&output)
}

/// Where a line is.
fn place(region: &str, line: &str) -> String {
    let output = on(region, &["consume", "orders", "--json"]);
    assert_ok(&output);
    let entries = stdout(&output);
    let entries = entries.lines().map(|entry| serde_json::from_str::<Value>(entry).expect("JSON"));
    let entry = entries.into_iter().find(|entry| entry["payload"] == line).expect("it is there");
    entry["position"].as_str().expect("a text").to_owned()
}

#[test]
fn remote_from_an_older_copy_is_noticed_and_filled_again_from_where_it_ends() {
    let site = copied(|site| &site.east);
    put_back(&site, &site.east);
    assert_eq!(consumed(&site.east), Ok(lines(0..BEFORE)));
    assert_ok(&publish(&site.west, &lines(AFTER..AFTER + 1)));
    let said = assert_holds(&site, "the remote lost data");
    // It says up to where the remote is whole; whoever seeks to what follows doubles nothing.
    let whole = place(&site.west, &lines(BEFORE - 1..BEFORE)[0]);
    assert!(said.contains(&format!("it holds up to {whole}")), "{whole}: {said}");
    let moved = seek(&site, &place(&site.west, &lines(BEFORE..BEFORE + 1)[0]));
    assert_eq!((&moved["passed_over"], &moved["sent_again"]), (&0.into(), &10.into()), "{moved}");
    assert_ok(&site.replicate());
    assert_eq!(consumed(&site.east), Ok(lines(0..AFTER + 1)));
}

#[test]
fn either_region_from_an_older_copy_is_noticed_although_there_is_nothing_to_send() {
    let sides: [(Side, _); 2] =
        [(|site| &site.east, "the remote lost data"), (|site| &site.west, "the source lost data")];
    for (region, reason) in sides {
        let site = copied(region);
        put_back(&site, region(&site));
        assert_holds(&site, reason);
    }
}

#[test]
fn remote_that_lost_everything_is_noticed_and_filled_again() {
    let site = copied(|site| &site.east);
    std::fs::remove_dir_all(&site.east).expect("it is there");
    assert_ok(&publish(&site.west, &lines(AFTER..AFTER + 1)));
    let said = refusal(&site.replicate(), 1);
    assert!(said.contains("it holds nothing"), "{said}");
    let moved = seek(&site, "earliest");
    assert_eq!(moved["sent_again"], AFTER, "{moved}");
    assert_ok(&site.replicate());
    assert_eq!(consumed(&site.east), Ok(lines(0..AFTER + 1)));
}

/// What is new is sent after what the remote has, which is more than the source has by then.
fn goes_on_with(site: &Site, new: &[String]) {
    let kept = lines(0..BEFORE);
    assert_eq!(consumed(&site.west), Ok([&kept, new].concat()));
    seek(site, &place(&site.west, &new[0]));
    assert_ok(&site.replicate());
    assert_eq!(consumed(&site.east), Ok([&lines(0..AFTER), new].concat()));
    assert_eq!(consumed(&site.west), Ok([&kept, new].concat()));
}

#[test]
fn source_from_an_older_copy_is_noticed_whatever_is_where_the_lost_entries_were() {
    // Fewer than were lost, and more: the remote's last position is beyond the end, or another entry is there.
    for count in [3, 50] {
        let site = copied(|site| &site.west);
        put_back(&site, &site.west);
        let new: Vec<_> = (0..count).map(|n| format!("new {n}")).collect();
        assert_ok(&publish(&site.west, &new));
        assert_holds(&site, "the source lost data");
        goes_on_with(&site, &new);
    }
}

#[test]
fn source_from_a_copy_of_an_earlier_incarnation_is_noticed_and_begins_a_later_one() {
    let site = copied(|site| &site.west);
    seek(&site, &place(&site.west, &lines(AFTER - 1..AFTER)[0]));
    assert_ok(&site.replicate());
    let before = [lines(0..AFTER), lines(AFTER - 1..AFTER)].concat();
    assert_eq!(consumed(&site.east), Ok(before.clone()), "once more, as it was told to");
    put_back(&site, &site.west);
    let new = ["new".to_owned()];
    assert_ok(&publish(&site.west, &new));
    let said = assert_holds(&site, "incarnation");
    assert!(said.contains("seek"), "{said}");
    // Above the one that the remote has named: what it has in that one is not of this source.
    seek(&site, &place(&site.west, "new"));
    assert_ok(&site.replicate());
    assert_eq!(consumed(&site.east), Ok([before, new.to_vec()].concat()));
}

#[test]
fn region_that_was_copied_while_it_was_served_and_idle_opens_as_after_a_crash() {
    let site = Site::new();
    let mut server = georepl(&["serve", "--region", &site.west]);
    let mut server = server.stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut said = String::new();
    let stderr = server.stderr.take().expect("it was piped");
    BufReader::new(stderr).read_line(&mut said).expect("it says that it serves");
    assert_ok(&publish(&site.west, &lines(0..BEFORE)));
    copy(Path::new(&site.west), &site.beside("copy"));
    assert_ok(&publish(&site.west, &lines(BEFORE..AFTER)));
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    assert_eq!(consumed(&site.west), Ok(lines(0..AFTER)));
    put_back(&site, &site.west);
    assert_eq!(consumed(&site.west), Ok(lines(0..BEFORE)));
    assert_ok(&publish(&site.west, &lines(AFTER..AFTER + 1)));
    assert_eq!(consumed(&site.west).map(|lines| lines.len()), Ok(BEFORE + 1));
}
