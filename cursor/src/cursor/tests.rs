use std::collections::BTreeMap;

use georepl_storage::fault::{Fault, ReleaseOrder};
use georepl_storage::{Expected, MetadataStore};

use super::*;
use crate::machine::MarkDeleteRefused;
use crate::records::CursorRecord;
use crate::testing::{Region, Silence, append};

mod counting;
mod deleting;
mod ending;
mod keeping;
mod moving;
mod opening;
mod persisting;
mod topic;
mod trimming;

const LIMITS: ReadLimits = ReadLimits { entries: 100, bytes: 1 << 20 };

async fn cursor(topic: &ManagedLedger) -> Arc<ManagedCursor> {
    ManagedCursor::open(topic, "c", StartAt::Earliest).await.unwrap()
}

/// Lets a future go on as far as it can without waiting.
fn is_pending<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Lets every task go on as far as it can without time passing.
async fn others_run() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

fn offsets(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.offset.get()).collect()
}

#[tokio::test]
async fn waiting_reader_wakes_on_append() {
    let topic = Region::new().topic().await;
    let cursor = cursor(&topic).await;
    assert_eq!(cursor.read_entries(LIMITS).await, Ok(Vec::new()));
    let (read, appended) =
        tokio::join!(cursor.read_entries_or_wait(LIMITS), topic.append("x".into()));
    assert_eq!(read.unwrap()[0].position, appended.unwrap());
}

#[tokio::test]
async fn read_after_rewind_starts_at_first_unacknowledged() {
    let topic = Region::new().topic().await;
    let positions = append(&topic, 6).await;
    let cursor = cursor(&topic).await;
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [0, 1, 2, 3, 4, 5]);
    cursor.mark_delete(positions[2]).await.unwrap();
    assert_eq!(cursor.rewind().read_position, Offset::new(3));
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [3, 4, 5]);
    assert_eq!((cursor.backlog(), cursor.mark_delete_position()), (3, Some(positions[2])));
}

#[tokio::test]
async fn dropped_read_future_loses_nothing() {
    let region = Region::new();
    let topic = region.topic().await;
    let cursor = cursor(&topic).await;
    // While it waits.
    tokio::select! {
        biased;
        _ = cursor.read_entries_or_wait(LIMITS) => unreachable!("there is nothing to read"),
        () = std::future::ready(()) => {}
    }
    assert!(!cursor.cancel_pending_read(), "the wait went with its future");
    append(&topic, 3).await;
    // While it is in storage.
    for bookie in &region.bookies {
        region.faults.inject(bookie, Fault::HoldResponses);
    }
    tokio::select! {
        biased;
        _ = cursor.read_entries_or_wait(LIMITS) => unreachable!("the answers are held"),
        () = std::future::ready(()) => {}
    }
    for bookie in &region.bookies {
        region.faults.heal(bookie);
        region.faults.release(bookie, ReleaseOrder::Oldest);
    }
    assert_eq!(offsets(&cursor.read_entries_or_wait(LIMITS).await.unwrap()), [0, 1, 2]);
}

/// Cancels again from within each completion.
struct Cancelling {
    cursor: Weak<ManagedCursor>,
    seen: Mutex<Vec<ReadOutcome<Entry>>>,
}

impl ReadSink for Cancelling {
    fn read_completed(&self, _: ReadId, outcome: ReadOutcome<Entry>) {
        self.seen.lock().push(outcome);
        assert!(!self.cursor.upgrade().unwrap().cancel_pending_read());
    }
}

#[tokio::test]
async fn cancel_inside_the_completion_of_a_close_does_not_block() {
    let topic = Region::new().topic().await;
    let cursor = cursor(&topic).await;
    let sink = Arc::new(Cancelling { cursor: cursor.this.clone(), seen: Mutex::default() });
    cursor.submit_read(LIMITS, sink.clone()).unwrap();
    assert!(cursor.cancel_pending_read());
    cursor.submit_read(LIMITS, sink.clone()).unwrap();
    cursor.close().await.unwrap();
    assert_eq!(*sink.seen.lock(), [ReadOutcome::Cancelled, ReadOutcome::Closed]);
}

/// Keeps its cursor, as a replicator does.
struct Keeping {
    _cursor: Arc<ManagedCursor>,
    seen: Arc<Mutex<Vec<ReadOutcome<Entry>>>>,
}

impl ReadSink for Keeping {
    fn read_completed(&self, _: ReadId, outcome: ReadOutcome<Entry>) {
        self.seen.lock().push(outcome);
    }
}

#[test]
fn reader_whose_runtime_ends_while_storage_reads_hears_of_it_and_lets_its_cursor_go() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seen = Arc::default();
    let known = runtime.block_on(async {
        let region = Region::new();
        let topic = region.topic().await;
        append(&topic, 3).await;
        topic.close().await.unwrap();
        let topic = region.topic().await;
        for bookie in &region.bookies {
            region.faults.inject(bookie, Fault::LoseResponses);
        }
        let cursor = cursor(&topic).await;
        let sink = Keeping { _cursor: cursor.clone(), seen: Arc::clone(&seen) };
        cursor.submit_read(LIMITS, Arc::new(sink)).unwrap();
        cursor.this.clone()
    });
    assert!(seen.lock().is_empty(), "storage does not answer");
    drop(runtime);
    assert!(matches!(seen.lock()[..], [ReadOutcome::Failed(_)]), "{:?}", seen.lock());
    assert!(known.upgrade().is_none(), "nobody has the cursor any more");
}

/// The one runtime ends before the acknowledgement is stored, with its task or before it began; the other goes on.
#[test]
fn cursor_whose_runtime_ends_before_its_state_is_stored_is_closed_and_says_so() {
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for acknowledged_before in [true, false] {
        let (ended, other) = (build(), build());
        let region = Region::new();
        let (topic, cursor) = ended.block_on(async {
            let topic = region.topic().await;
            append(&topic, 3).await;
            let cursor = cursor(&topic).await;
            (topic, cursor)
        });
        let acknowledge = || cursor.acknowledge(Offset::new(2), None).unwrap();
        acknowledged_before.then(acknowledge);
        drop(ended);
        (!acknowledged_before).then(acknowledge);
        other.block_on(async {
            for outcome in [cursor.persist().await, cursor.close().await] {
                let error = outcome.unwrap_err();
                assert!(error.to_string().contains("the topic's runtime ended"), "{error}");
            }
            let again = super::ManagedCursor::open(&topic, "c", StartAt::Latest).await.unwrap();
            assert_eq!(again.mark_delete_offset(), Offset::ZERO, "as it is stored");
        });
    }
}

#[tokio::test]
async fn one_object_per_name_and_ownership_moves_the_version() {
    let topic = Region::new().topic().await;
    let first = cursor(&topic).await;
    assert!(Arc::ptr_eq(&first, &cursor(&topic).await));
    let version = first.take_ownership().await.unwrap();
    assert!(first.take_ownership().await.unwrap() > version);
    first.close().await.unwrap();
    let second = cursor(&topic).await;
    assert!(!Arc::ptr_eq(&first, &second));
    let conflict = first.take_ownership().await.unwrap_err();
    assert!(matches!(conflict, MetadataError::VersionConflict { .. }));
}

#[tokio::test]
async fn closing_the_topic_ends_a_waiting_read() {
    let topic = Region::new().topic().await;
    let cursor = cursor(&topic).await;
    let (read, closed) = tokio::join!(cursor.read_entries_or_wait(LIMITS), topic.close());
    assert_eq!((read, closed), (Err(ReadEntriesError::Closed), Ok(())));
}

#[tokio::test]
async fn latest_starts_behind_the_last_entry_and_stats_have_pulsars_names() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 2).await;
    let cursor = ManagedCursor::open(&topic, "c", StartAt::Latest).await.unwrap();
    assert_eq!((cursor.backlog(), cursor.read_position()), (0, Offset::new(2)));
    let stats = serde_json::to_value(topic.internal_stats()).unwrap();
    assert_eq!(stats["numberOfEntries"], 2);
    assert_eq!(stats["lastConfirmedEntry"], "0:1");
    assert_eq!(stats["cursors"]["c"]["markDeletePosition"], "0:1");
    assert_eq!(stats["cursors"]["c"]["readPosition"], "0:2");
    assert_eq!(stats["entriesAddedCounter"], 2);
    assert_eq!(stats["cursors"]["c"]["messagesConsumedCounter"], 2, "what was added, less backlog");
    let created = stats["lastLedgerCreatedTimestamp"].as_str().unwrap();
    assert!(created.starts_with("20") && created.ends_with('Z'), "{created}");

    topic.close().await.unwrap();
    let again = region.topic().await;
    let _open = ManagedCursor::open(&again, "earliest", StartAt::Earliest).await.unwrap();
    let stats = serde_json::to_value(again.internal_stats()).unwrap();
    assert_eq!(stats["entriesAddedCounter"], 0);
    assert_eq!(stats["cursors"]["earliest"]["messagesConsumedCounter"], -2);
}

#[tokio::test]
async fn closing_a_cursor_again_leaves_its_successor_alone() {
    let topic = Region::new().topic().await;
    let first = cursor(&topic).await;
    first.close().await.unwrap();
    let second = cursor(&topic).await;
    first.close().await.unwrap();
    assert!(Arc::ptr_eq(&second, &cursor(&topic).await), "one object per name");
    let (read, appended) =
        tokio::join!(second.read_entries_or_wait(LIMITS), topic.append("x".into()));
    assert_eq!(read.unwrap()[0].position, appended.unwrap());
}

/// Notes at its end whether the cursor could be called.
struct CallsAtItsEnd {
    cursor: Weak<ManagedCursor>,
    callable: Arc<Mutex<Vec<bool>>>,
}

impl ReadSink for CallsAtItsEnd {
    fn read_completed(&self, _: ReadId, _: ReadOutcome<Entry>) {}
}

impl Drop for CallsAtItsEnd {
    fn drop(&mut self) {
        let cursor = self.cursor.upgrade().unwrap();
        let callable = cursor.state.try_lock().is_some();
        self.callable.lock().push(callable);
    }
}

#[tokio::test]
async fn sink_that_ends_with_its_read_may_call_the_cursor() {
    let topic = Region::new().topic().await;
    let cursor = cursor(&topic).await;
    let callable = Arc::new(Mutex::default());
    let sink = || {
        let (cursor, callable) = (cursor.this.clone(), Arc::clone(&callable));
        Arc::new(CallsAtItsEnd { cursor, callable })
    };
    cursor.submit_read(LIMITS, sink()).unwrap();
    let refused = cursor.submit_read(LIMITS, sink()).unwrap_err();
    assert_eq!(refused, ReadRefused::AlreadyWaiting);
    assert!(cursor.cancel_pending_read());
    append(&topic, 1).await;
    cursor.submit_read(LIMITS, sink()).unwrap();
    cursor.rewind();
    cursor.close().await.unwrap();
    assert_eq!(*callable.lock(), [true, true, true]);
}

#[tokio::test(start_paused = true)]
async fn ownership_is_taken_again_after_an_unknown_outcome() {
    let region = Region::new();
    let topic = region.topic().await;
    let cursor = cursor(&topic).await;
    let mut last = cursor.take_ownership().await.unwrap();
    for silence in [Silence::Made, Silence::Late] {
        region.store.keep_silent(&cursor.key, silence);
        match (silence, cursor.take_ownership().await) {
            (Silence::Made, taken) => assert!(taken.unwrap() > last, "it was made after all"),
            (Silence::Late, Err(MetadataError::Unavailable { .. })) => {}
            (Silence::Late, taken) => panic!("{taken:?}"),
        }
        let version = cursor.take_ownership().await.unwrap();
        assert!(version > last, "{silence:?}");
        last = version;
    }

    region.store.keep_silent(&cursor.key, Silence::Made);
    let mut dropped = Box::pin(cursor.take_ownership());
    let poll = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending());
    drop(dropped);
    assert!(cursor.take_ownership().await.unwrap() > last);
}

#[tokio::test(start_paused = true)]
async fn ownership_lost_for_certain_stays_lost() {
    let region = Region::new();
    let topic = region.topic().await;
    let cursor = cursor(&topic).await;
    let record = region.store.get(&cursor.key).await.unwrap().unwrap();
    let expected = Expected::Version(record.version);
    // The same state, by another handle.
    let other = CursorRecord {
        properties: BTreeMap::new(),
        ..CursorRecord::decode(&record.value).unwrap()
    };
    region.store.put(&cursor.key, other.encode(), expected).await.unwrap();
    for _ in 0..2 {
        let error = cursor.take_ownership().await.unwrap_err();
        assert!(matches!(error, MetadataError::VersionConflict { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn cursor_opens_once_its_store_answers_again() {
    let region = Region::new();
    let topic = region.topic().await;
    let key = topic.cursor_key("c").unwrap();
    region.store.keep_silent(&key, Silence::Late);
    let error = ManagedCursor::open(&topic, "c", StartAt::Earliest).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 10s"), "{error}");
    assert_eq!(error.advice(), Advice::Retry);
    region.store.keep_silent(&key, Silence::Made);
    assert_eq!(cursor(&topic).await.backlog(), 0);
}

#[tokio::test]
async fn advice_survives_every_conversion() {
    let at: Position = "0:9".parse().unwrap();
    let (acknowledged, asked, end) = (Offset::new(2), Offset::ZERO, Offset::ZERO);
    let refusals = [
        (MarkDeleteRefused::Backwards { acknowledged, asked }, Advice::GiveUp),
        (MarkDeleteRefused::BeyondEnd { end, asked: acknowledged }, Advice::GiveUp),
        (MarkDeleteRefused::Closed, Advice::Reopen),
    ];
    for (refused, advice) in refusals {
        assert_eq!((refused.advice(), MarkDeleteError::from(refused).advice()), (advice, advice));
    }
    assert_eq!(MarkDeleteError::NoSuchEntry(at).advice(), Advice::GiveUp);

    let refusals = [
        (ReadRefused::NothingToRead, Advice::Retry),
        (ReadRefused::AlreadyWaiting, Advice::Retry),
        (ReadRefused::TooManyInFlight, Advice::Retry),
        (ReadRefused::Terminated { end: Offset::ZERO }, Advice::GiveUp),
        (ReadRefused::Closed, Advice::Reopen),
    ];
    for (refused, advice) in refusals {
        assert_eq!((refused.advice(), ReadEntriesError::from(refused).advice()), (advice, advice));
    }
    let failed = ReadFailed { message: "three bookies are down".into() };
    assert_eq!(ReadEntriesError::from(failed).advice(), Advice::Retry);

    let cursor: Arc<str> = "c".into();
    let no_name = ManagedLedger::cursor_key(&Region::new().topic().await, "").unwrap_err();
    let errors = [
        (OpenCursorError::from(no_name), Advice::GiveUp),
        (OpenCursorError::LedgerClosed { cursor }, Advice::Reopen),
        (MetadataError::VersionConflict { key: "k".into() }.into(), Advice::Retry),
    ];
    for (error, advice) in errors {
        assert_eq!(error.advice(), advice, "{error}");
    }
}
