//! Where the copies are.

use super::*;
use crate::check::{CopyRun, CopyState};
use crate::replica::ReplicaError;

fn run(number: usize, first: u64, last: u64, state: CopyState) -> CopyRun {
    let entries = last - first + 1;
    CopyRun { bookie: bookie(number), first: EntryId(first), last: EntryId(last), entries, state }
}

/// A closed ledger of 100 entries whose members stand in the order b1, b2, b3.
async fn closed(cluster: &Cluster) -> LedgerId {
    let writer = cluster.written(100).await;
    writer.close().await.expect("an open ledger");
    writer.id()
}

fn sorted(mut copies: Vec<CopyRun>) -> Vec<CopyRun> {
    copies.sort_by(|one, other| (&one.bookie, one.first).cmp(&(&other.bookie, other.first)));
    copies
}

#[tokio::test(start_paused = true)]
async fn a_whole_ledger_is_one_present_run_per_bookie() {
    let cluster = Cluster::new();
    let ledger = closed(&cluster).await;
    let mut told = Vec::new();
    let report = cluster.client.check(ledger, |entry| told.push(entry)).await.expect("all are up");
    assert_eq!(told, [EntryId(63), EntryId(99)]);
    let [fragment] = &report.fragments[..] else {
        panic!("there was no change of the ensemble");
    };
    let whole = |number| run(number, 0, 99, CopyState::Present);
    assert_eq!(sorted(fragment.copies.clone()), [whole(1), whole(2), whole(3)]);
    assert_eq!((fragment.closed, fragment.copies_fewest), (true, Some(3)));
    assert_eq!(report.under_replicated().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn every_missing_damaged_and_unknown_copy_is_named() {
    let cluster = Cluster::new();
    let ledger = closed(&cluster).await;
    for entry in [10, 11].map(EntryId) {
        cluster.bookies.remove_entry(&bookie(1), ledger, entry).expect("it has one");
    }
    cluster.bookies.corrupt_entry(&bookie(2), ledger, EntryId(11)).expect("it has one");
    cluster.transport.inject(&bookie(3), Fault::LoseResponses);
    let started = tokio::time::Instant::now();
    let report = cluster.client.check(ledger, |_| {}).await.expect("two are up");
    assert_eq!(started.elapsed().as_secs(), 5, "a silent bookie is not asked twice");
    let fragment = report.under_replicated().next().expect("b3 is silent");
    let (present, timeout) = (CopyState::Present, ReplicaError::Bookie(BookieError::Timeout));
    let expected = [
        run(1, 0, 9, present),
        run(1, 10, 11, CopyState::Absent),
        run(1, 12, 99, present),
        run(2, 0, 10, present),
        run(2, 11, 11, CopyState::Corrupt),
        run(2, 12, 99, present),
        run(3, 0, 99, CopyState::Unknown(timeout)),
    ];
    assert_eq!(sorted(fragment.copies.clone()), expected);
    assert_eq!((fragment.entries_under_replicated, fragment.copies_fewest), (100, Some(0)));
    assert_eq!(expected[6].state.to_string(), "unknown: the bookie did not answer in time");
}

/// Seed 000: what an opener without recovery may call closed, and what a check looks at.
#[tokio::test(start_paused = true)]
async fn the_last_fragment_of_an_open_ledger_is_open_and_the_one_before_it_closed() {
    let cluster = Cluster::new();
    let ledger = LedgerId(904_368);
    let ensemble = |numbers: [usize; 3]| numbers.map(bookie).to_vec();
    let LedgerOptions { sizes, password, custom } = options();
    let metadata = LedgerMetadata::created(sizes, password.clone(), ensemble([1, 2, 3]), 1, custom)
        .expect("three members")
        .ensemble_changed(EntryId(15), ensemble([1, 2, 4]))
        .expect("an open ledger");
    let stored = cluster.store.put(&ledger_key(ledger), encode(&metadata), Expected::Absent).await;
    stored.expect("a new record");
    for id in 0..15 {
        let lac = EntryId(id).checked_prev();
        let entry = Entry::seal(ledger, EntryId(id), lac, 9 * (id + 1), Bytes::from("9 bytes .."));
        for number in [1, 2] {
            let (key, kind) = (MasterKey::of(&password), AddKind::Normal);
            let body = RequestBody::Add { entry: entry.clone(), key, kind };
            cluster.ask(number, ledger, body).result.expect("a new entry");
        }
    }
    let report = cluster.client.check(ledger, |_| {}).await.expect("two of three answer");
    assert_eq!(report.stored_lac, Some(EntryId(13)));
    assert_eq!(report.last_add_confirmed, Some(EntryId(14)));
    let seen: Vec<_> =
        report.fragments.iter().map(|part| (part.first.get(), part.last, part.closed)).collect();
    assert_eq!(seen, [(0, Some(EntryId(14)), true), (15, None, false)]);
    let first = &report.fragments[0];
    assert_eq!((first.entries_under_replicated, first.copies_fewest), (15, Some(2)));
    assert_eq!(sorted(first.copies.clone())[2], run(3, 0, 14, CopyState::Absent));
    assert_eq!(report.fragments[1].copies, []);
}
