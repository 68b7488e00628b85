//! Disks that fail, fill up or lie.

use tokio::sync::watch;

use super::*;
use crate::bookie::conformance::{ADDED, LEDGER, One, add, fence, found, key, lac, read};
use crate::entry::Entry;
use crate::fault::{DiskFault, Unsynced};
use crate::id::EntryId;
use crate::transport::AddKind;

const IO: Result<ResponseBody, BookieError> = Err(BookieError::Io);

fn modes(registered: &watch::Receiver<Arc<[RegisteredBookie]>>) -> Vec<Mode> {
    registered.borrow().iter().map(|bookie| bookie.mode).collect()
}

/// Adds of 64 KiB, from entry `first`.
fn large(first: u64, count: u64) -> Vec<RequestBody> {
    let add = |id| {
        let payload = vec![7; 64 << 10].into();
        let entry = Entry::seal(LEDGER, EntryId(id), None, 0, payload);
        RequestBody::Add { entry, key: key(""), kind: AddKind::Normal }
    };
    (first..first + count).map(add).collect()
}

/// Adds entries, each in a turn of its own, until one is refused; how many were taken, and the refusal.
async fn fill(one: &mut One<Durable>) -> (u64, BookieError) {
    for id in 0..10_000 {
        one.send(id, LEDGER, large(id, 1));
        if let Err(refusal) = one.answers(1).await.remove(0).1 {
            return (id, refusal);
        }
    }
    panic!("the disk is larger than it was said to be");
}

/// A full bookie refuses entries, and that is all; once something was deleted it takes them again.
async fn fills_up_and_recovers(mut one: One<Durable>) {
    let registered = one.kind.bookies().registry().bookies();
    assert_eq!(modes(&registered), [Mode::Writable]);
    let (taken, refusal) = fill(&mut one).await;
    assert_eq!(refusal, BookieError::ReadOnly);
    assert!(taken > 10, "{taken}");
    assert_eq!(modes(&registered), [Mode::ReadOnly]);
    for id in [0, taken - 1] {
        assert!(one.ask(read(id)).await.is_ok());
    }
    assert_eq!(one.ask(read(taken)).await, Err(BookieError::NoSuchEntry));
    assert_eq!(one.ask(add(taken, AddKind::Normal)).await, Err(BookieError::ReadOnly));
    assert_eq!(one.ask(fence()).await, lac(None), "there is room for a fence");
    assert_eq!(one.ask(add(taken, AddKind::Recovery)).await, ADDED);
    one.kind.keep_only(LedgerId(99)).await;
    assert_eq!(modes(&registered), [Mode::Writable]);
    assert_eq!(one.ask(read(0)).await, Err(BookieError::NoSuchLedger));
    for id in 0..taken / 2 {
        one.send(id, LEDGER, large(id, 1));
        assert_eq!(one.answers(1).await, [(id, ADDED)]);
    }
}

#[tokio::test]
async fn a_bookie_at_its_limit_is_read_only_until_something_is_deleted() {
    let config = DurableConfig { bytes_max: Some(6 << 20), ..DurableConfig::default() };
    fills_up_and_recovers(One::new(Durable::with(config).await)).await;
}

#[tokio::test]
async fn a_bookie_on_a_full_disk_is_read_only_until_something_is_deleted() {
    let one = One::new(Durable::new().await);
    one.kind.disk.set_space(Some(6 << 20));
    fills_up_and_recovers(one).await;
}

#[tokio::test]
async fn a_failed_write_acknowledges_nothing_and_the_next_batch_is_served() {
    let mut one = One::new(Durable::new().await);
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
    one.kind.disk.inject(DiskFault::Write);
    one.send(1, LEDGER, vec![add(1, AddKind::Normal), add(2, AddKind::Normal), fence()]);
    assert_eq!(one.answers(3).await, [(1, IO), (2, IO), (3, IO)]);
    assert_eq!(one.ask(read(0)).await, found(0));
    assert_eq!(one.ask(read(1)).await, Err(BookieError::NoSuchEntry));
    assert_eq!(one.ask(add(1, AddKind::Normal)).await, ADDED, "it was not fenced");
    let registered = one.kind.bookies().registry().bookies();
    assert_eq!(modes(&registered), [Mode::Writable]);
}

#[tokio::test]
async fn after_a_failed_sync_a_bookie_is_gone_until_it_is_opened_anew() {
    let mut one = One::new(Durable::new().await);
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
    one.send(7, LEDGER, vec![RequestBody::WaitLac { beyond: None }]);
    one.kind.disk.inject(DiskFault::Sync);
    one.send(8, LEDGER, vec![add(1, AddKind::Normal)]);
    assert_eq!(one.answers(2).await, [(8, IO), (7, IO)]);
    let registered = one.kind.bookies().registry().bookies();
    assert_eq!(modes(&registered), []);
    assert_eq!(one.ask(add(2, AddKind::Normal)).await, IO);
    assert_eq!(one.ask(read(0)).await, IO);
    one.kind.stop();
    one.kind.disk.restart(Unsynced::Lost);
    one.kind.start().await;
    assert_eq!(one.ask(read(0)).await, found(0));
}

#[tokio::test]
async fn a_queue_that_is_full_refuses_and_what_it_took_is_carried_out() {
    let config = DurableConfig { queue_requests_max: 4, ..DurableConfig::default() };
    let mut one = One::new(Durable::with(config).await);
    one.send(0, LEDGER, (0..6).map(|id| add(id, AddKind::Normal)).collect());
    let mut answers = one.answers(6).await;
    answers.sort_unstable_by_key(|(id, _)| *id);
    let refused = Err(BookieError::TooManyRequests);
    let expected: Vec<_> =
        (0..6).map(|id| (id, if id < 4 { ADDED } else { refused.clone() })).collect();
    assert_eq!(answers, expected);
    assert_eq!(one.ask(read(3)).await, found(3));
    assert_eq!(one.ask(read(4)).await, Err(BookieError::NoSuchEntry));
}

#[tokio::test]
async fn a_full_bookie_is_writable_again_only_if_space_is_found() {
    let mut one = One::new(Durable::new().await);
    let registered = one.kind.bookies().registry().bookies();
    one.kind.disk.set_space(Some(6 << 20));
    let (taken, refusal) = fill(&mut one).await;
    assert_eq!(refusal, BookieError::ReadOnly);
    for (space, mode) in [(Some(4096), Mode::ReadOnly), (None, Mode::Writable)] {
        one.kind.disk.set_space(space);
        assert_eq!(one.kind.bookies().delete_ledgers([]).await, Ok(()));
        assert_eq!(modes(&registered), [mode]);
        assert!(one.ask(read(taken - 1)).await.is_ok());
    }
    assert_eq!(one.ask(add(taken, AddKind::Normal)).await, ADDED);
}

#[tokio::test]
async fn the_space_of_deleted_ledgers_is_used_again() {
    let mut one = One::new(Durable::new().await);
    let bytes = |one: &One<Durable>| one.kind.disk.content(FILE).map_or(0, |file| file.len());
    for round in 0..24 {
        for first in [0, 20, 40] {
            one.send(first, LEDGER, large(first, 20));
            assert!(one.answers(20).await.iter().all(|(_, answer)| *answer == ADDED));
        }
        // Five times what is stored, where all rounds together stored 24 times as much.
        assert!(bytes(&one) < 5 * 60 * (64 << 10), "{} bytes in round {round}", bytes(&one));
        one.kind.keep_only(LedgerId(99)).await;
    }
}
