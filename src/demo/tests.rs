//! The whole demo, with few messages.

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command};

fn args(line: &[&str]) -> DemoArgs {
    let Command::Demo(args) =
        Cli::try_parse_from(["georepl", "demo"].iter().chain(line)).unwrap().command
    else {
        panic!("it is the demo's command line")
    };
    args
}

async fn report(line: &[&str]) -> Result<Report, Error> {
    replicate(&args(line), &Progress::Hidden).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_is_survived() {
    let report = report(&["--messages", "5000"]).await.unwrap();
    assert_eq!(report.verdict, Verdict::Passed);
    let [topic] = &report.topics[..] else { panic!("one topic was asked for") };
    assert_eq!((topic.audit.entries, topic.faults.len()), (5_000, 8));
    let [cut, refused, late, stopped, repeated, cut_again, hung, killed] = &topic.faults[..] else {
        unreachable!()
    };
    for rewound in [cut, refused, stopped, cut_again] {
        assert!(rewound.rewinds >= 1, "{rewound}");
    }
    for quiet in [late, repeated] {
        assert_eq!((quiet.rewinds, quiet.sent_again), (0, 0), "{quiet}");
    }
    for lost in [killed, hung] {
        assert!(lost.ensemble_changes >= 1, "{lost}");
    }
    let refused = topic.refused;
    assert!(refused.duplicates >= 1 && refused.late >= 1, "{refused:?}");
    assert_eq!(
        (refused.duplicates, refused.late),
        (repeated.refused.duplicates, cut_again.refused.late)
    );
    // Each spare takes over once, and only what the killed bookie held is lost.
    let ledgers = topic.ledgers;
    assert_eq!((ledgers.ensemble_changes, ledgers.under_replicated_fragments), (2, 1));
}

/// A ledger that is full is closed with the answers of the bookies that are well, and has not
/// noticed anything.
#[tokio::test(flavor = "multi_thread")]
async fn failed_bookies_change_an_ensemble_also_when_ledgers_fill_at_that_moment() {
    // Less than what is let through when a bookie hangs.
    let ledgers = ManagedLedgerConfig { ledger_entries_max: 200, ..Default::default() };
    let regions = Regions::in_memory(&ledgers);
    let lane = Lane::open(regions, topic(0), 5_000, Progress::Hidden).await.unwrap();
    let weather = Weather::Faults { seed: 1 };
    let outcome = lane.run(&Input::open(None).unwrap(), weather, Scope::Region).await.unwrap();
    let [.., hung, killed] = &outcome.survived[..] else { panic!("it has all faults") };
    for lost in [hung, killed] {
        assert!(lost.ensemble_changes >= 1, "{lost}");
    }
    let topic = examine(lane, outcome).await.unwrap();
    assert_eq!(Report::new(vec![topic]).verdict, Verdict::Passed);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_share_the_messages_and_the_bookies_and_have_other_faults_of_their_own() {
    let report = report(&["--messages", "1001", "--topics", "2"]).await.unwrap();
    assert_eq!(report.verdict, Verdict::Passed);
    let topics = report.topics.iter().map(|topic| (topic.audit.entries, topic.faults.len()));
    assert_eq!(topics.collect::<Vec<_>>(), [(501, 8), (500, 6)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fair_weather_sends_nothing_again() {
    let report = report(&["--messages", "7", "--no-faults"]).await.unwrap();
    let mut json = Vec::new();
    report.write_json(&mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["verdict"], &json["topics"][0]["sent_again"]), (&"passed".into(), &0.into()));
    assert_eq!(json["topics"][0]["audit"]["entries"], 7);
    let ledgers = &json["topics"][0]["ledgers"];
    assert_eq!(
        (&ledgers["ensemble_changes"], &ledgers["under_replicated_fragments"]),
        (&0.into(), &0.into())
    );
}

#[tokio::test]
async fn too_few_messages_for_the_faults_are_refused_as_usage() {
    let error = report(&["--messages", "89"]).await.unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("--messages 90"), "{error}");
}

#[tokio::test]
async fn input_that_cannot_be_read_is_an_error_of_one_line() {
    let error = report(&["--input", "/no/such/file"]).await.unwrap_err();
    assert_eq!((error.exit_code(), error.to_string().lines().count()), (1, 1));
}
