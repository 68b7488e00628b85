use std::time::Duration;

use georepl_storage::fault::{Fault, ReleaseOrder, StoreFault};
use georepl_storage::{
    Advice, BookieError, Expected, Instance, Password, RegisteredBookie, bookie_rules::Mode,
    decode_metadata, encode_metadata, ledger_key,
};

use super::*;
use crate::testing::{NAME, Region, Silence, append, payloads};

mod deleting;
mod failing;

async fn stored_record(region: &Region) -> TopicRecord {
    let key = "managed-ledgers/acme/eu/persistent/orders";
    let stored = region.store.get(key).await.unwrap().unwrap();
    TopicRecord::decode(&stored.value).unwrap()
}

#[tokio::test]
async fn appended_entries_are_read_back_across_a_rollover() {
    let topic = Region::new().topic().await;
    let positions = append(&topic, 10).await;
    let entries = topic.read(Offset::ZERO, topic.end(), u64::MAX).await.unwrap();
    assert_eq!(entries.iter().map(|e| e.position).collect::<Vec<_>>(), positions);
    assert_eq!(entries.iter().map(|e| e.payload.clone()).collect::<Vec<_>>(), payloads(10));
    let stats = topic.internal_stats();
    assert_eq!(stats.ledgers.iter().map(|l| l.entries).collect::<Vec<_>>(), [4, 4, 0]);
    assert_eq!(stats.current_ledger_entries, 2, "each full ledger has exactly its maximum");
    assert_eq!(topic.read_at(positions[5]).await.unwrap(), entries[5]);
}

#[tokio::test]
async fn ledger_is_listed_before_its_first_append_is_acknowledged() {
    let region = Region::new();
    let topic = region.topic().await;
    for _ in 0..9 {
        let position = topic.append("x".into()).await.unwrap();
        let record = stored_record(&region).await;
        assert!(record.ledgers.iter().any(|listed| listed.ledger == position.ledger));
    }
}

#[tokio::test]
async fn fenced_topic_refuses_by_name() {
    let region = Region::new();
    let topic = region.topic().await;
    let key = topic_key(&topic.0.path);
    let stored = region.store.get(&key).await.unwrap().unwrap();
    let other = TopicRecord::default().encode();
    region.store.put(&key, other, Expected::Version(stored.version)).await.unwrap();

    let permit = topic.reserve(100).await.unwrap();
    let error = topic.append_batch(permit, payloads(5)).await.unwrap_err();
    assert!(!error.outcome_known(), "four of five were written: {error}");
    let error = topic.append("x".into()).await.unwrap_err();
    assert_eq!(error, AppendError::Refused(Refusal::Fenced { topic: NAME.into() }));
    assert!(error.outcome_known());
    assert_eq!(topic.close().await, Err(CloseError::Fenced { topic: NAME.into() }));
}

#[tokio::test]
async fn failed_ledger_fails_appends_in_order_and_refuses_later_ones() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 1).await;
    for bookie in &region.bookies[1..] {
        region.faults.inject(bookie, Fault::Answer(BookieError::Io));
    }
    let mut batches = Vec::new();
    for _ in 0..3 {
        let permit = topic.reserve(100).await.unwrap();
        batches.push(topic.append_batch(permit, payloads(2)));
    }
    let mut outcomes = Vec::new();
    for batch in batches {
        outcomes.push(batch.await.unwrap_err().outcome_known());
    }
    // No ledger had room for more than four entries: the last batch was never sent.
    assert_eq!(outcomes, [false, false, true]);
    let refused = topic.append("x".into()).await.unwrap_err();
    assert!(matches!(refused, AppendError::Refused(Refusal::WriteFailed { .. })), "{refused}");
    assert_eq!(topic.end(), Offset::new(1));
    let listed = stored_record(&region).await.ledgers.len();
    assert_eq!(listed, 4, "three more ledgers failed with nothing confirmed");

    for bookie in &region.bookies {
        region.faults.heal(bookie);
    }
    topic.close().await.unwrap();
    assert_eq!(region.topic().await.end(), Offset::new(1));
}

#[tokio::test]
async fn appends_wait_when_the_byte_budget_is_used_up() {
    let region = Region::new();
    let config = ManagedLedgerConfig { append_bytes_in_flight_max: 10, ..Default::default() };
    let topic = region.topic_with(config).await;
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::HoldResponses);
    }
    let permit = topic.reserve(1_000).await.unwrap();
    let batch = topic.append_batch(permit, vec![vec![7; 900].into()]);
    let second = tokio::spawn({
        let topic = topic.clone();
        async move { topic.reserve(1).await.map(|permit| permit.bytes()) }
    });
    while region.faults.held(&region.bookies[0]) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!second.is_finished(), "the large batch was admitted alone");
    for bookie in &region.bookies {
        region.faults.heal(bookie);
        region.faults.release(bookie, ReleaseOrder::Oldest);
    }
    batch.await.unwrap();
    assert_eq!(second.await.unwrap(), Ok(1));
}

#[tokio::test]
async fn concurrent_appenders_keep_call_order() {
    let topic = Region::new().topic().await;
    let mut batches = Vec::new();
    for n in [1, 3, 5, 2, 7] {
        let permit = topic.reserve(100).await.unwrap();
        batches.push(topic.append_batch(permit, payloads(n)));
    }
    let (mut expected, mut all) = (Offset::ZERO, Vec::new());
    for batch in batches {
        assert_eq!(batch.first_offset(), expected);
        let positions = batch.await.unwrap();
        assert_eq!(topic.offset_of(positions[0]), Some(expected));
        expected = expected.plus(positions.len() as u64);
        all.extend(positions);
    }
    assert!(all.is_sorted());
    assert_eq!(topic.end(), Offset::new(18));
}

#[tokio::test]
async fn entry_larger_than_the_bytes_of_a_read_is_returned_alone() {
    let topic = Region::new().topic().await;
    for size in [50, 2, 2] {
        topic.append(vec![1; size].into()).await.unwrap();
    }
    let entries = topic.read(Offset::ZERO, topic.end(), 10).await.unwrap();
    assert_eq!(entries.len(), 1);
    let entries = topic.read(Offset::new(1), topic.end(), 4).await.unwrap();
    assert_eq!(entries.len(), 2);
    let beyond = topic.read(topic.end(), topic.end().plus(1), 4).await.unwrap_err();
    assert!(matches!(beyond, ReadError::BeyondEnd { .. }));
}

#[tokio::test]
async fn close_then_fresh_handles_see_the_exact_end() {
    let region = Region::new();
    let topic = region.topic().await;
    let last = *append(&topic, 6).await.last().unwrap();
    topic.close().await.unwrap();
    topic.close().await.unwrap();
    assert!(matches!(topic.append("x".into()).await, Err(AppendError::Refused(_))));
    assert!(matches!(topic.read_at(last).await, Err(ReadError::Closed { .. })));

    let reader = region.client.open(last.ledger, &Password::default()).await.unwrap();
    assert_eq!(reader.last_add_confirmed(), Some(last.entry));
    let again = region.topic().await;
    assert_eq!(again.last_confirmed(), Some(last));
    let entries = again.read(Offset::ZERO, again.end(), u64::MAX).await.unwrap();
    assert_eq!(entries.len(), 6);
    let next = again.append("x".into()).await.unwrap();
    assert_eq!(again.offset_of(next), Some(Offset::new(6)));
}

#[tokio::test]
async fn topic_of_a_dead_owner_is_recovered_with_all_that_was_acknowledged() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 6).await;
    drop(topic);
    let again = region.topic().await;
    assert_eq!(again.end(), Offset::new(6));
    let entries = again.read(Offset::ZERO, again.end(), u64::MAX).await.unwrap();
    assert_eq!(entries.iter().map(|e| e.position).collect::<Vec<_>>(), positions);
    let ends: Vec<_> = stored_record(&region).await.ledgers.iter().map(|l| l.end).collect();
    let entries: Vec<_> = ends.iter().map(|end| end.map(|end| end.entries)).collect();
    assert_eq!(entries, [Some(4), Some(2), None], "the recovered ledger is listed with its end");
    let next = again.append("x".into()).await.unwrap();
    assert_eq!(again.offset_of(next), Some(Offset::new(6)));
}

#[tokio::test]
async fn new_owner_fences_the_old_one() {
    let region = Region::new();
    let old = region.topic().await;
    append(&old, 2).await;
    let new = region.topic().await;
    let error = old.append("late".into()).await.unwrap_err();
    let fenced = Refusal::Fenced { topic: NAME.into() };
    assert_eq!(error, AppendError::OutcomeUnknown(fenced.clone()));
    assert_eq!(old.append("later".into()).await, Err(AppendError::Refused(fenced)));
    assert_eq!(old.close().await, Err(CloseError::Fenced { topic: NAME.into() }));
    new.append("new".into()).await.unwrap();
    let read = new.read(Offset::ZERO, new.end(), u64::MAX).await.unwrap();
    let read: Vec<_> = read.into_iter().map(|entry| entry.payload).collect();
    assert_eq!(read, [payloads(2), vec!["new".into()]].concat(), "nothing of the old one after");
}

#[tokio::test]
async fn entries_that_were_written_but_not_acknowledged_are_recovered_behind_the_others() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 1).await;
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::LoseResponses);
    }
    let permit = topic.reserve(100).await.unwrap();
    let unanswered = topic.append_batch(permit, payloads(2));
    // Carried out by all bookies before the runtime runs anything else of the ledger's task.
    while region.entries_of_last_ledger() < 3 {
        tokio::task::yield_now().await;
    }
    drop(topic);
    let error = unanswered.await.unwrap_err();
    assert!(!error.outcome_known(), "{error}");
    for bookie in &region.bookies {
        region.faults.heal(bookie);
    }
    let again = region.topic().await;
    let read = again.read(Offset::ZERO, again.end(), u64::MAX).await.unwrap();
    let read: Vec<_> = read.into_iter().map(|entry| entry.payload).collect();
    assert_eq!(read, [payloads(1), payloads(2)].concat());
}

#[tokio::test]
async fn topic_with_a_ledger_in_doubt_is_not_opened_and_says_why() {
    let region = Region::new();
    append(&region.topic().await, 1).await;
    for bookie in &region.bookies[1..] {
        region.faults.inject(bookie, Fault::Answer(BookieError::Io));
    }
    let config = ManagedLedgerConfig::default();
    let opened = ManagedLedger::open(NAME, region.client.clone(), region.store.clone(), config);
    let error = opened.await.unwrap_err();
    for bookie in &region.bookies[1..] {
        assert!(error.to_string().contains(&format!("{bookie} had an I/O error")), "{error}");
    }
    assert_eq!(error.advice(), Advice::Retry);
    for bookie in &region.bookies {
        region.faults.heal(bookie);
    }
    assert_eq!(region.topic().await.end(), Offset::new(1));
}

/// The record is still held by somebody at the moment when the next ledger becomes full, as a
/// rollover does that has just begun that ledger.
#[tokio::test]
async fn rollover_waits_for_the_record() {
    let topic = Region::new().topic().await;
    let rolling = topic.0.record.lock().await;
    let permit = topic.reserve(1_000).await.unwrap();
    let mut batch = topic.append_batch(permit, payloads(9));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(is_pending(&mut batch), "four entries fit, five wait");
    assert_eq!(topic.end(), Offset::new(4));
    drop(rolling);
    assert_eq!(batch.await.unwrap().len(), 9);
    append(&topic, 3).await;
}

/// A close that gets to the record before a rollover that is due.
#[tokio::test]
async fn close_lets_a_rollover_that_is_due_send_what_was_taken() {
    let region = Region::new();
    let topic = region.topic().await;
    let rolling = topic.0.record.lock().await;
    let permit = topic.reserve(1_000).await.unwrap();
    let batch = topic.append_batch(permit, payloads(9));
    let close = topic.close();
    drop(rolling);
    let (closed, positions) = tokio::join!(close, batch);
    assert_eq!((closed, positions.unwrap().len()), (Ok(()), 9));
    assert_eq!(region.topic().await.end(), Offset::new(9));
}

/// Every entry fills its ledger, so that appends meet rollovers at every point of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_many_threads_survive_every_rollover() {
    const APPENDERS: u64 = 4;
    const ENTRIES: u64 = 50;
    let config = ManagedLedgerConfig { ledger_entries_max: 1, ..Default::default() };
    let topic = Region::new().topic_with(config).await;
    let appenders = (0..APPENDERS).map(|_| {
        let topic = topic.clone();
        tokio::spawn(async move {
            for _ in 0..ENTRIES {
                topic.append("x".into()).await.unwrap();
            }
        })
    });
    for appender in appenders.collect::<Vec<_>>() {
        appender.await.unwrap();
    }
    assert_eq!(topic.end(), Offset::new(APPENDERS * ENTRIES));
}

fn is_pending(batch: &mut AppendBatch) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(batch).poll(&mut context).is_pending()
}

fn key() -> String {
    topic_key(&persistence_path(NAME).unwrap())
}

#[tokio::test(start_paused = true)]
async fn rollover_goes_on_when_only_the_answer_of_the_store_is_missing() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 3).await;
    region.store.keep_silent(&key(), Silence::Made);
    assert_eq!(append(&topic, 3).await.len(), 3);
    assert_eq!(topic.refusal(), None);
}

#[tokio::test(start_paused = true)]
async fn record_that_is_written_late_lists_no_ledger_that_is_gone() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 3).await;
    region.store.keep_silent(&key(), Silence::Late);
    let permit = topic.reserve(100).await.unwrap();
    let error = topic.append_batch(permit, payloads(2)).await.unwrap_err();
    assert!(!error.outcome_known(), "one of the two was written: {error}");
    let refusal = topic.refusal().expect("the topic stopped");
    assert!(refusal.to_string().contains("no answer within 10s"), "{refusal}");

    region.store.make_late().await.unwrap();
    for listed in stored_record(&region).await.ledgers {
        region.client.open(listed.ledger, &Password::default()).await.expect("it is there");
    }
}

#[tokio::test(start_paused = true)]
async fn topic_whose_store_keeps_silent_is_not_opened_for_ever() {
    let region = Region::new();
    region.store.keep_silent(&key(), Silence::Late);
    let (client, store) = (region.client.clone(), region.store.clone());
    let config = ManagedLedgerConfig::default();
    let error = ManagedLedger::open(NAME, client, store, config).await.unwrap_err();
    assert_eq!(error.advice(), Advice::Retry, "{error}");
    region.store.make_late().await.unwrap();
    assert_eq!(append(&region.topic().await, 1).await.len(), 1, "what it lists is there");
}

async fn contents(topic: &ManagedLedger) -> Vec<Bytes> {
    let entries = topic.read(Offset::ZERO, topic.end(), u64::MAX).await.unwrap();
    entries.into_iter().map(|entry| entry.payload).collect()
}

/// Two of three bookies let requests go astray until the ledger is given up.
#[tokio::test(start_paused = true)]
async fn topic_goes_on_in_another_ledger_when_its_own_has_lost_its_quorum() {
    let region = Region::new();
    let topic = region.topic().await;
    let first = append(&topic, 1).await[0];
    for bookie in &region.bookies[1..] {
        region.faults.inject(bookie, Fault::LoseRequests);
    }
    let mut batches = Vec::new();
    for _ in 0..3 {
        let permit = topic.reserve(100).await.unwrap();
        batches.push(topic.append_batch(permit, payloads(2)));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for bookie in &region.bookies {
        region.faults.heal(bookie);
    }
    let mut positions = vec![first];
    for batch in batches {
        positions.extend(batch.await.unwrap());
    }
    assert_eq!(topic.refusal(), None);
    assert!(positions.is_sorted());
    assert!(positions[1].ledger > first.ledger, "what was not confirmed is in another ledger");
    let expected = [payloads(1), payloads(2), payloads(2), payloads(2)].concat();
    assert_eq!(contents(&topic).await, expected, "in order, and each once");
    let last = append(&topic, 1).await[0];
    assert_eq!(topic.offset_of(last), Some(Offset::new(7)));

    drop(topic);
    let again = region.topic().await;
    assert_eq!(contents(&again).await, [expected, payloads(1)].concat());
}

/// All bookies have what was sent, and say so to nobody; then the writer cannot close its ledger, because the store
/// shows it no record. The recovery finds two entries.
#[tokio::test(start_paused = true)]
async fn entries_that_a_recovery_finds_are_confirmed_and_the_others_are_sent_again() {
    let region = Region::new();
    let topic = region.topic().await;
    let first = append(&topic, 1).await[0];
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::LoseResponses);
    }
    let permit = topic.reserve(100).await.unwrap();
    let stored = topic.append_batch(permit, payloads(2));
    while region.entries_of_last_ledger() < 3 {
        tokio::task::yield_now().await;
    }
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::LoseRequests);
    }
    let permit = topic.reserve(100).await.unwrap();
    let unsent = topic.append_batch(permit, payloads(3));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for bookie in &region.bookies {
        region.faults.heal(bookie);
    }
    region.ledger_store.inject(StoreFault::LandLate, 1);
    region.ledger_store.inject(StoreFault::StaleRead, 2);
    let (stored, unsent) = (stored.await.unwrap(), unsent.await.unwrap());
    region.ledger_store.drop_late();
    assert!(stored.iter().all(|position| position.ledger == first.ledger), "{stored:?}");
    assert!(unsent.iter().all(|position| position.ledger > first.ledger), "{unsent:?}");
    let expected = [payloads(1), payloads(2), payloads(3)].concat();
    assert_eq!(contents(&topic).await, expected, "each once");
    drop(topic);
    assert_eq!(contents(&region.topic().await).await, expected);
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_the_ledger_that_takes_the_place_of_a_failed_one() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 1).await;
    for bookie in &region.bookies[1..] {
        region.faults.inject(bookie, Fault::LoseRequests);
    }
    let permit = topic.reserve(100).await.unwrap();
    let batch = topic.append_batch(permit, payloads(2));
    let healing = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        region.bookies.iter().for_each(|bookie| region.faults.heal(bookie));
    };
    let (closed, positions, ()) = tokio::join!(topic.close(), batch, healing);
    assert_eq!((closed, positions.unwrap().len()), (Ok(()), 2));
    assert_eq!(region.topic().await.end(), Offset::new(3));
}

/// Somebody else has closed the topic's ledger behind its first entry.
async fn cut(region: &Region, ledger: LedgerId) {
    cut_behind(region, ledger, Some(EntryId(0)), 7).await;
}

async fn cut_behind(region: &Region, ledger: LedgerId, last: Option<EntryId>, length: u64) {
    let key = ledger_key(ledger);
    let stored = region.store.get(&key).await.unwrap().unwrap();
    let cut = decode_metadata(&stored.value).unwrap().closed(last, length).unwrap();
    let expected = Expected::Version(stored.version);
    region.store.put(&key, encode_metadata(&cut), expected).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn fenced_topic_names_the_ledger_and_the_entries_that_were_cut() {
    let region = Region::new();
    let topic = region.topic().await;
    let ledger = append(&topic, 3).await[0].ledger;
    cut(&region, ledger).await;
    region.faults.inject(&region.bookies[0], Fault::Answer(BookieError::Fenced));
    let permit = topic.reserve(10).await.unwrap();
    // Two of three bookies are not fenced and may acknowledge it first.
    let _ = topic.append_batch(permit, vec!["late".into()]).await;
    while topic.refusal().is_none() {
        tokio::task::yield_now().await;
    }
    let last = topic.end().get() - 1;
    let error = topic.close().await.unwrap_err();
    let CloseError::Lost { elsewhere, .. } = &error else { panic!("entries are lost: {error}") };
    assert_eq!(elsewhere.lost(), Some(EntryId(1)..=EntryId(last)));
    let said = error.to_string();
    let expected = format!("entries 1 to {last}, which were acknowledged, are lost");
    for part in [NAME, &format!("ledger {ledger}"), &expected] {
        assert!(said.contains(part), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn rollover_that_meets_a_cut_ledger_refuses_by_name() {
    let region = Region::new();
    let topic = region.topic().await;
    let ledger = append(&topic, 3).await[0].ledger;
    cut(&region, ledger).await;
    append(&topic, 1).await;
    while topic.refusal().is_none() {
        tokio::task::yield_now().await;
    }
    let refusal = topic.refusal().unwrap();
    let Refusal::Lost { elsewhere, .. } = &refusal else { panic!("entries are lost: {refusal}") };
    assert_eq!((elsewhere.ledger, elsewhere.lost()), (ledger, Some(EntryId(1)..=EntryId(3))));
    assert!(refusal.to_string().contains(NAME), "{refusal}");
    assert!(matches!(topic.close().await, Err(CloseError::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn d9_the_byte_budget_is_whole_again_however_appends_end() {
    let region = Region::new();
    let topic = region.topic().await;
    let whole = topic.0.budget.available_permits();
    append(&topic, 2).await;
    drop(topic.reserve(100).await.unwrap());
    let permit = topic.reserve(1).await.unwrap();
    assert!(topic.append_batch(permit, payloads(1)).await.is_err(), "larger than its permit");
    let permit = topic.reserve(100).await.unwrap();
    assert_eq!(topic.append_batch(permit, Vec::new()).await, Ok(Vec::new()));
    assert_eq!(topic.0.budget.available_permits(), whole);
    // Whoever waits leaves, and the entries are appended all the same.
    let permit = topic.reserve(100).await.unwrap();
    drop(topic.append_batch(permit, payloads(5)));
    while topic.end() < Offset::new(7) {
        tokio::task::yield_now().await;
    }
    assert_eq!(topic.0.budget.available_permits(), whole);

    for bookie in &region.bookies[1..] {
        region.faults.inject(bookie, Fault::Answer(BookieError::Io));
    }
    let permit = topic.reserve(100).await.unwrap();
    let late = topic.reserve(100).await.unwrap();
    topic.append_batch(permit, payloads(9)).await.unwrap_err();
    assert!(topic.append_batch(late, payloads(1)).await.is_err());
    assert_eq!(topic.0.budget.available_permits(), whole);
}

/// Bookies are set up anew while a full ledger is being closed. The next one, which nobody has written to, ends unnoticed.
#[tokio::test(start_paused = true)]
async fn a_next_ledger_that_fails_before_it_is_the_current_one_is_passed_over() {
    let region = Region::new();
    let topic = region.topic().await;
    let first = append(&topic, 3).await[0].ledger;
    // The close is carried out, which takes a metadata timeout to find out.
    region.store.keep_silent(&ledger_key(first), Silence::Made);
    let permit = topic.reserve(100).await.unwrap();
    let batch = topic.append_batch(permit, payloads(2));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for bookie in &region.bookies[1..] {
        let (id, instance) = (bookie.clone(), Instance(2));
        region.memory.wipe(bookie, instance);
        region.registry.register(RegisteredBookie { id, instance, mode: Mode::Writable });
    }
    let positions = tokio::time::timeout(Duration::from_secs(60), batch).await;
    let positions = positions.expect("the topic does not stall").unwrap();
    let ledgers = positions.iter().map(|position| position.ledger.get() - first.get());
    assert_eq!(ledgers.collect::<Vec<_>>(), [0, 2], "one ledger was passed over");
    assert_eq!(append(&topic, 1).await.len(), 1);
}

/// A topic whose ledger ended with an entry that all bookies have and nobody acknowledged, and whose store was away when
/// the ledger's writer wanted to close it. The topic recovers the ledger, with `faults` on two bookies, and fails.
async fn failed_after_its_own_recovery(region: &Region, fault: Option<Fault>) -> ManagedLedger {
    let topic = region.topic().await;
    append(&topic, 1).await;
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::LoseResponses);
    }
    region.ledger_store.inject(StoreFault::Unavailable, 1_000);
    let permit = topic.reserve(100).await.unwrap();
    let batch = topic.append_batch(permit, payloads(1));
    while topic.internal_stats().state != "ClosingLedger" {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Three reads of the record without answer, and the writer is given up. Nor can the next ledger be made.
    tokio::time::sleep(Duration::from_millis(600)).await;
    for bookie in &region.bookies {
        region.faults.heal(bookie);
    }
    for bookie in &region.bookies[1..] {
        fault.into_iter().for_each(|fault| region.faults.inject(bookie, fault));
    }
    region.ledger_store.heal();
    let error = batch.await.unwrap_err();
    let AppendError::OutcomeUnknown(Refusal::WriteFailed { .. }) = error else {
        panic!("{error}");
    };
    topic
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_recovered_its_own_ledger_is_closed_where_that_ends() {
    let region = Region::new();
    let topic = failed_after_its_own_recovery(&region, None).await;
    assert_eq!(topic.close().await, Ok(()), "nobody else has taken it");
    let ends: Vec<_> = stored_record(&region).await.ledgers.iter().map(|l| l.end).collect();
    assert_eq!(ends.iter().map(|end| end.map(|end| end.entries)).collect::<Vec<_>>(), [Some(2)]);
    assert_eq!(region.topic().await.end(), Offset::new(2));
}

#[tokio::test(start_paused = true)]
async fn a_close_finishes_the_recovery_that_its_topic_has_begun() {
    let region = Region::new();
    let down = Some(Fault::Answer(BookieError::Io));
    let topic = failed_after_its_own_recovery(&region, down).await;
    let error = topic.close().await.unwrap_err();
    assert!(matches!(error, CloseError::Recovery(_)), "{error}");
    assert_eq!(error.advice(), Advice::Retry);
    for bookie in &region.bookies {
        region.faults.heal(bookie);
    }
    assert_eq!(topic.close().await, Ok(()));
    assert_eq!(region.topic().await.end(), Offset::new(2));
}

/// Somebody who has the topic is somebody else, whatever this topic has begun.
#[tokio::test(start_paused = true)]
async fn a_close_after_its_own_recovery_of_a_topic_that_somebody_else_owns_says_so() {
    let region = Region::new();
    let topic = failed_after_its_own_recovery(&region, None).await;
    assert_eq!(region.topic().await.end(), Offset::new(2));
    assert_eq!(topic.close().await, Err(CloseError::Fenced { topic: NAME.into() }));
}

/// That a write failed was known first, and that entries are lost counts more.
#[tokio::test(start_paused = true)]
async fn a_close_that_finds_entries_lost_makes_that_the_reason_of_its_topic() {
    let region = Region::new();
    let down = Some(Fault::Answer(BookieError::Io));
    let topic = failed_after_its_own_recovery(&region, down).await;
    let ledger = topic.last_confirmed().unwrap().ledger;
    cut_behind(&region, ledger, None, 0).await;
    let error = topic.close().await.unwrap_err();
    assert!(matches!(error, CloseError::Lost { .. }), "{error}");
    let refusal = topic.refusal().unwrap();
    let Refusal::Lost { elsewhere, .. } = &refusal else { panic!("entries are lost: {refusal}") };
    assert_eq!(elsewhere.lost(), Some(EntryId(0)..=EntryId(0)));
    assert_eq!(topic.internal_stats().state, "Fenced");
    assert_eq!(topic.close().await, Err(error), "again");
}
