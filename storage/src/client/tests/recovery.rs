//! Ledgers whose writers are gone or replaced.

use super::*;
use crate::bookie::rules::Mode;
use crate::id::Instance;
use crate::recover::{self, Progress};
use crate::registry::RegisteredBookie;

/// Everything from the first to the last entry of a ledger.
pub(super) async fn contents(reader: &LedgerReader) -> Vec<Bytes> {
    match reader.last_add_confirmed() {
        None => Vec::new(),
        Some(last) => {
            let entries = reader.read(EntryId::FIRST, last).await.expect("it can be read");
            entries.into_iter().map(|entry| entry.payload).collect()
        }
    }
}

impl Cluster {
    pub(super) async fn recover(&self, ledger: LedgerId) -> Result<LedgerReader, recover::Error> {
        self.client.recover(ledger, &options().password).await
    }

    /// A ledger with `count` entries that all bookies have and nobody has confirmed; its writer is gone.
    pub(super) async fn abandoned(&self, count: usize) -> LedgerId {
        let (writer, _told) = self.create().await;
        self.inject(Fault::LoseResponses);
        writer.append(payloads(count)).expect("an open ledger");
        let ledger = writer.id();
        let holders =
            || self.bookies.ids().filter(|id| self.bookies.entries(id, ledger).len() == count);
        while holders().count() < 3 {
            tokio::task::yield_now().await;
        }
        self.bookies.ids().for_each(|bookie| self.transport.heal(&bookie));
        ledger
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_writer_had_acknowledged_is_there_after_recovery() {
    let cluster = Cluster::new();
    let writer = cluster.written(5).await;
    let ledger = writer.id();
    drop(writer);
    let reader = cluster.recover(ledger).await.expect("all bookies are up");
    assert_eq!(contents(&reader).await, payloads(5));
    let end = LedgerEnd { last_entry: Some(EntryId(4)), length: 45 };
    assert_eq!(cluster.state(ledger).await, LedgerState::Closed(end));
    cluster.inject(Fault::Answer(BookieError::Unreachable));
    let again = cluster.recover(ledger).await.expect("a closed ledger needs no bookie");
    assert_eq!(again.last_add_confirmed(), Some(EntryId(4)));
}

/// The store lags: what it showed was true before the ledger was created.
#[tokio::test(start_paused = true)]
async fn a_ledger_that_the_store_does_not_show_once_is_recovered_with_all_it_holds() {
    let cluster = Cluster::new();
    let ledger = cluster.written(5).await.id();
    cluster.store.inject(StoreFault::StaleRead, 1);
    let reader = cluster.recover(ledger).await.expect("it is there");
    assert_eq!(contents(&reader).await, payloads(5));
}

#[tokio::test(start_paused = true)]
async fn an_empty_ledger_is_closed_empty() {
    let cluster = Cluster::new();
    let (writer, _told) = cluster.create().await;
    let reader = cluster.recover(writer.id()).await.expect("all bookies are up");
    assert_eq!(reader.last_add_confirmed(), None);
    assert_eq!(cluster.state(writer.id()).await, LedgerState::Closed(LedgerEnd::default()));
}

/// Seed 001, second half: an entry acknowledged by two of three, and any one of the three is lost.
#[tokio::test(start_paused = true)]
async fn an_entry_with_two_copies_survives_the_loss_of_any_bookie() {
    for missed in 1..=3 {
        for down in 1..=3 {
            for fault in [Fault::Answer(BookieError::Unreachable), Fault::LoseRequests] {
                let cluster = Cluster::new();
                cluster.transport.inject(&bookie(missed), Fault::LoseRequests);
                let writer = cluster.written(1).await;
                let ledger = writer.id();
                drop(writer);
                cluster.transport.heal(&bookie(missed));
                cluster.transport.inject(&bookie(down), fault);
                let started = tokio::time::Instant::now();
                let reader = cluster.recover(ledger).await.expect("one bookie of three is down");
                assert!(started.elapsed() <= ClientConfig::default().request_timeout);
                assert_eq!(reader.last_add_confirmed(), Some(EntryId(0)));
                assert_eq!(contents(&reader).await, payloads(1));
                let holders = (1..=3)
                    .filter(|number| !cluster.bookies.entries(&bookie(*number), ledger).is_empty());
                assert!(holders.filter(|number| *number != down).count() >= 1);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c14_a_hanging_bookie_costs_one_request_timeout_in_all() {
    let cluster = Cluster::new();
    let ledger = cluster.abandoned(100).await;
    cluster.transport.inject(&bookie(2), Fault::LoseResponses);
    let started = tokio::time::Instant::now();
    let reader = cluster.recover(ledger).await.expect("two of three bookies answer");
    assert_eq!(started.elapsed().as_secs(), 5);
    assert_eq!(contents(&reader).await, payloads(100));
}

#[tokio::test(start_paused = true)]
async fn entries_that_nobody_confirmed_are_recovered_in_order_and_reported() {
    let cluster = Cluster::new();
    let ledger = cluster.abandoned(100).await;
    let (progress, seen) = watch::channel(Progress::default());
    let password = options().password;
    let recovered = cluster.client.recover_reporting(ledger, &password, &progress).await;
    assert_eq!(contents(&recovered.expect("all bookies are up")).await, payloads(100));
    let all = Progress { last_entry: Some(EntryId(99)), entries_written_back: 100 };
    assert_eq!(*seen.borrow(), all);
    let length = payloads(100).iter().map(|payload| payload.len() as u64).sum();
    let end = LedgerEnd { last_entry: Some(EntryId(99)), length };
    assert_eq!(cluster.state(ledger).await, LedgerState::Closed(end));
}

#[tokio::test(start_paused = true)]
async fn an_unacknowledged_entry_on_one_bookie_is_found_or_cut_for_all() {
    for holder in 1..=3 {
        let cluster = Cluster::new();
        let writer = cluster.written(2).await;
        let ledger = writer.id();
        cluster.inject(Fault::LoseRequests);
        cluster.transport.inject(&bookie(holder), Fault::LoseResponses);
        writer.append(payloads(1)).expect("an open ledger");
        while cluster.bookies.entries(&bookie(holder), ledger).len() < 3 {
            tokio::task::yield_now().await;
        }
        drop(writer);
        (1..=3).for_each(|number| cluster.transport.heal(&bookie(number)));
        let (one, other) = tokio::join!(cluster.recover(ledger), cluster.recover(ledger));
        let (one, other) = (one.expect("all are up"), other.expect("all are up"));
        assert_eq!(one.last_add_confirmed(), Some(EntryId(2)), "whoever has it was waited for");
        assert_eq!(contents(&one).await, contents(&other).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_recovered_ledger_takes_nothing_from_its_writer() {
    let cluster = Cluster::new();
    let (writer, mut told) = cluster.create().await;
    writer.append(payloads(2)).expect("an open ledger");
    assert_eq!(told.recv().await, Some(Told::Confirmed(1)));
    let ledger = writer.id();
    let reader = cluster.recover(ledger).await.expect("all bookies are up");
    writer.append(payloads(1)).expect("nobody has told it yet");
    assert_eq!(told.recv().await, Some(Told::Failed(write::Error::Fenced { ledger })));
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(1)));
}

#[tokio::test(start_paused = true)]
async fn doubt_names_the_bookies_and_the_next_attempt_finishes_the_work() {
    let cluster = Cluster::new();
    let writer = cluster.written(3).await;
    let ledger = writer.id();
    drop(writer);
    cluster.transport.inject(&bookie(1), Fault::Answer(BookieError::Io));
    cluster.transport.inject(&bookie(2), Fault::Answer(BookieError::UnknownLedgerState));
    let error = cluster.recover(ledger).await.expect_err("one of three answers");
    let recover::Error::Fencing { answers, .. } = &error else {
        panic!("fencing failed, not {error}");
    };
    // By slot; the order of the members is drawn.
    let mut named: Vec<_> = answers.0.iter().map(|(bookie, _)| bookie.clone()).collect();
    named.sort();
    assert_eq!(named, [bookie(1), bookie(2)]);
    assert_eq!(cluster.state(ledger).await, LedgerState::InRecovery);
    cluster.transport.heal(&bookie(1));
    cluster.transport.heal(&bookie(2));
    let reader = cluster.recover(ledger).await.expect("all bookies are up");
    assert_eq!(contents(&reader).await, payloads(3));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_copy_never_ends_a_ledger() {
    let cluster = Cluster::new();
    let ledger = cluster.abandoned(2).await;
    for number in [1, 2] {
        cluster.bookies.corrupt_entry(&bookie(number), ledger, EntryId(1)).expect("it has one");
    }
    let reader = cluster.recover(ledger).await.expect("b3 has a good copy");
    assert_eq!(contents(&reader).await, payloads(2));
    assert!(cluster.bookies.entries(&bookie(1), ledger)[1].verify(ledger, EntryId(1)).is_ok());

    let ledger = cluster.abandoned(2).await;
    for number in 1..=3 {
        cluster.bookies.corrupt_entry(&bookie(number), ledger, EntryId(1)).expect("it has one");
    }
    let error = cluster.recover(ledger).await.expect_err("no copy can be read");
    assert!(matches!(error, recover::Error::Doubt { entry: EntryId(1), .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_member_is_replaced_in_the_closing_record_alone() {
    let cluster = Cluster::with_spares(1);
    let ledger = cluster.abandoned(3).await;
    let (before, _) = cluster.client.core.record(ledger).await.expect("a record");
    let failed = before.ensemble_of(EntryId(0))[0].clone();
    cluster.transport.inject(&failed, Fault::Answer(BookieError::Io));
    let reader = cluster.recover(ledger).await.expect("two members and a spare");
    assert_eq!(contents(&reader).await, payloads(3));
    let after = reader.metadata();
    assert!(!after.last_ensemble().1.contains(&failed));
    let spare = &after.last_ensemble().1[0];
    assert_eq!(cluster.bookies.entries(spare, ledger).len(), 3);
    assert!(after.instance_of(spare).is_some());
}

/// A5, rule 7: with AQ 3 one negative ends a ledger, and one of the three has forgotten everything.
#[tokio::test(start_paused = true)]
async fn a5_a_wiped_bookie_cannot_end_a_ledger() {
    for wiped in 1..=3 {
        let cluster = Cluster::new();
        let (writer, mut told) = cluster.create_with((3, 3, 3)).await;
        writer.append(payloads(10)).expect("an open ledger");
        while told.recv().await != Some(Told::Confirmed(9)) {}
        let ledger = writer.id();
        drop(writer);
        cluster.bookies.wipe(&bookie(wiped), Instance(2));
        let others = (1..=3).filter(|number| *number != wiped);
        others.clone().for_each(|number| cluster.bookies.down(&bookie(number)));
        let error = cluster.recover(ledger).await.expect_err("nobody knows who is up");
        assert!(matches!(error, recover::Error::Fencing { .. }), "{error}");
        others.for_each(|number| cluster.bookies.up(&bookie(number)));
        let reader = cluster.recover(ledger).await;
        // The wiped one cannot take its own place, and there is no fourth: AQ copies cannot be had.
        let error = reader.expect_err("two of three bookies hold the entries").to_string();
        assert!(error.contains("was set up anew"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wiped_bookie_is_replaced_and_its_silence_about_entries_is_no_negative() {
    for wiped in 1..=3 {
        let cluster = Cluster::with_spares(1);
        cluster.bookies.down(&bookie(4));
        cluster.registry.unregister(&bookie(4));
        let ledger = cluster.abandoned(5).await;
        cluster.bookies.wipe(&bookie(wiped), Instance(2));
        cluster.bookies.up(&bookie(4));
        cluster.registry.register(RegisteredBookie {
            id: bookie(4),
            instance: Instance(1),
            mode: Mode::Writable,
        });
        let reader = cluster.recover(ledger).await.expect("two members and a spare");
        assert_eq!(contents(&reader).await, payloads(5));
        assert!(!reader.metadata().last_ensemble().1.contains(&bookie(wiped)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_bookie_in_limbo_gives_what_it_has_and_denies_nothing() {
    let cluster = Cluster::new();
    let ledger = cluster.abandoned(2).await;
    cluster.bookies.enter_limbo(&bookie(1), ledger);
    cluster.bookies.down(&bookie(2));
    let error = cluster.recover(ledger).await.expect_err("one of three speaks for itself");
    assert!(error.to_string().contains("does not know the state"), "{error}");
    cluster.bookies.up(&bookie(2));
    let reader = cluster.recover(ledger).await.expect("two of three speak for themselves");
    assert_eq!(contents(&reader).await, payloads(2));
}

#[tokio::test(start_paused = true)]
async fn lost_answers_to_the_mark_and_to_the_close_are_recognised() {
    let cluster = Cluster::new();
    let ledger = cluster.written(2).await.id();
    cluster.store.inject(StoreFault::LoseReply, 2);
    let reader = cluster.recover(ledger).await.expect("the writes came through");
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(1)));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_or_not_ours_is_not_recovered() {
    let cluster = Cluster::new();
    let ledger = LedgerId(99);
    let missing = cluster.recover(ledger).await.expect_err("there is none");
    assert_eq!(missing, recover::Error::NoSuchLedger { ledger });
    let ledger = cluster.written(1).await.id();
    let wrong = cluster.client.recover(ledger, &Password::from("guess")).await;
    let wrong = wrong.expect_err("the password is another");
    assert_eq!(wrong, recover::Error::WrongPassword { ledger });
    assert_eq!(cluster.state(ledger).await, LedgerState::Open);
    assert_eq!((missing.advice(), wrong.advice()), (Advice::GiveUp, Advice::GiveUp));
}
