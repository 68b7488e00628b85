//! What a topic keeps for its cursors, and what it lets go.

use std::time::Duration;

use georepl_storage::{EntryId, LedgerId};

use super::*;
use crate::managed_ledger::{
    AppendError, BacklogQuota, BeyondQuota, Expired, ManagedLedgerConfig, Refusal, Retention,
};
use crate::progress::Kept as KeptEntry;
use crate::testing::NAME;

pub(super) const TOPIC: &str = "managed-ledgers/acme/eu/persistent/orders";

pub(super) fn config(retention: Retention) -> ManagedLedgerConfig {
    ManagedLedgerConfig { ledger_entries_max: 4, retention, ..Default::default() }
}

pub(super) async fn exists(region: &Region, ledger: u64) -> bool {
    region.client.open(LedgerId(ledger), &Default::default()).await.is_ok()
}

/// Waits until the topic begins at `start`; it deletes in a task of its own.
pub(super) async fn trimmed_to(topic: &ManagedLedger, start: u64) {
    while topic.start() < Offset::new(start) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ledgers_go_when_the_slowest_cursor_has_durably_acknowledged_them() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::NONE)).await;
    let (fast, slow) = (cursor(&topic).await, "slow");
    let slow = ManagedCursor::open(&topic, slow, StartAt::Earliest).await.unwrap();
    let positions = append(&topic, 10).await;
    fast.mark_delete(positions[9]).await.unwrap();
    assert_eq!(topic.trim().await, Ok(0), "the slow one needs them");
    slow.mark_delete(positions[5]).await.unwrap();
    trimmed_to(&topic, 4).await;
    assert!(!exists(&region, positions[0].ledger.get()).await);
    assert!(exists(&region, positions[4].ledger.get()).await, "half of it is needed");
    assert_eq!(topic.trim().await, Ok(0));
    let error = topic.read(Offset::ZERO, topic.end(), 1 << 20).await.unwrap_err();
    assert!(error.to_string().contains("it begins at 4"), "{error}");
    assert_eq!(topic.internal_stats().number_of_entries, 10 - 4);

    // Also for one that is not open, and for what is in quarantine.
    slow.close().await.unwrap();
    assert_eq!(topic.trim().await, Ok(0));
    let slow = ManagedCursor::open(&topic, "slow", StartAt::Earliest).await.unwrap();
    let keep = |progress: &mut Progress| {
        progress.kept.insert(positions[5], KeptEntry::Quarantined);
    };
    slow.store_progress(keep).await.unwrap();
    slow.mark_delete(positions[9]).await.unwrap();
    assert_eq!(topic.trim().await, Ok(0), "an entry of it is in quarantine");
    slow.store_progress(|progress| progress.kept.clear()).await.unwrap();
    trimmed_to(&topic, 8).await;
    drop((fast, slow));
    ManagedCursor::remove(&topic, "c").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn places_stay_right_after_trimming_and_a_restart() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::NONE)).await;
    let cursor = cursor(&topic).await;
    let positions = append(&topic, 10).await;
    cursor.mark_delete(positions[7]).await.unwrap();
    trimmed_to(&topic, 8).await;
    assert_eq!((cursor.backlog(), cursor.mark_delete_offset()), (2, Offset::new(8)));
    drop((cursor, topic));
    let topic = region.topic_with(config(Retention::NONE)).await;
    let cursor = super::cursor(&topic).await;
    assert_eq!(cursor.backlog(), 2);
    let read = cursor.read_entries(LIMITS).await.unwrap();
    assert_eq!(read.iter().map(|e| e.position).collect::<Vec<_>>(), positions[8..]);
    assert_eq!(cursor.mark_delete_offset(), Offset::ZERO, "what was trimmed counts no more");
}

#[tokio::test(start_paused = true)]
async fn retention_keeps_what_is_young_and_lets_go_what_is_too_much() {
    let region = Region::new();
    let an_hour = Retention { time: Some(Duration::from_secs(3600)), bytes: None };
    let topic = region.topic_with(config(an_hour)).await;
    append(&topic, 10).await;
    assert_eq!(topic.trim().await, Ok(0), "younger than an hour");
    topic.close().await.unwrap();
    let topic = region.topic_with(config(Retention::FOREVER)).await;
    assert_eq!(topic.trim().await, Ok(0));
    topic.close().await.unwrap();
    // Each entry has 7 bytes: 70 in all, 42 without the first ledger, 14 without the second.
    let expired = |bytes| topic.expired(&Retention { time: None, bytes: Some(bytes) }).ledgers;
    let sizes = [100, 70, 50, 43, 42, 15, 14, 0];
    assert_eq!(sizes.map(expired), [0, 0, 0, 0, 1, 1, 2, 3], "what follows them is enough");
    topic.close().await.unwrap();
    let some = Retention { time: None, bytes: Some(42) };
    let topic = region.topic_with(config(some)).await;
    assert_eq!(topic.trim().await, Ok(1));
    assert_eq!(topic.internal_stats().total_size, 42, "never less");
}

#[tokio::test(start_paused = true)]
async fn retention_of_a_topic_is_stored_with_it_and_lets_go_only_what_is_acknowledged() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::FOREVER)).await;
    let cursor = cursor(&topic).await;
    let positions = append(&topic, 10).await;
    cursor.mark_delete(positions[5]).await.unwrap();
    let expired = |ledgers, entries| Expired { ledgers, entries };
    assert_eq!(topic.expired(&Retention::FOREVER), expired(0, 0));
    assert_eq!(topic.expired(&Retention::NONE), expired(1, 4), "the second is half needed");
    assert_eq!(topic.retention(), Retention::FOREVER);
    topic.set_retention(Retention::NONE).await.unwrap();
    assert_eq!((topic.trim().await, topic.start()), (Ok(1), Offset::new(4)));
    drop(cursor);

    let an_hour = Retention { time: Some(Duration::from_secs(3600)), bytes: None };
    topic.set_retention(an_hour).await.unwrap();
    drop(topic);
    let topic = region.topic_with(config(Retention::NONE)).await;
    assert_eq!((topic.retention(), topic.trim().await), (an_hour, Ok(0)));
    assert!(topic.properties().await.is_empty(), "it is the topic's own");
    let own = ("georepl.retention".to_owned(), None);
    assert!(topic.set_properties([own]).await.unwrap_err().to_string().contains("own use"));
}

#[tokio::test(start_paused = true)]
async fn retention_that_is_not_understood_deletes_nothing() {
    for text in ["", "1", "a/1", "1/", "-1/-", "1/2/3"] {
        let region = Region::new();
        let topic = region.topic_with(config(Retention::FOREVER)).await;
        append(&topic, 10).await;
        topic.close().await.unwrap();
        let stored = region.store.get(TOPIC).await.unwrap().unwrap();
        let mut record = crate::records::TopicRecord::decode(&stored.value).unwrap();
        record.properties.insert("georepl.retention".into(), text.into());
        let expected = Expected::Version(stored.version);
        region.store.put(TOPIC, record.encode(), expected).await.unwrap();
        let topic = region.topic_with(config(Retention::NONE)).await;
        assert_eq!((topic.retention(), topic.trim().await), (Retention::FOREVER, Ok(0)), "{text}");
        assert_eq!(stored_retention(&region).await, text, "it stays for whoever understands it");
        topic.set_retention(Retention::NONE).await.unwrap();
        assert_eq!((topic.retention(), topic.trim().await), (Retention::NONE, Ok(3)));
        assert_eq!(stored_retention(&region).await, "0/0");
    }
}

async fn stored_retention(region: &Region) -> String {
    let stored = region.store.get(TOPIC).await.unwrap().unwrap();
    let record = crate::records::TopicRecord::decode(&stored.value).unwrap();
    record.properties["georepl.retention"].clone()
}

/// Whoever asked for it has gone while the store was to answer.
#[tokio::test]
async fn a_change_that_is_dropped_counts_no_more_in_the_record_than_it_does_here() {
    let region = Region::new();
    let topic = region.topic().await;
    append(&topic, 10).await;
    region.store.hold(TOPIC);
    let mut setting = Box::pin(topic.set_retention(Retention::NONE));
    assert!(is_pending(&mut setting));
    drop(setting);
    region.store.hold(TOPIC);
    let mut setting = Box::pin(topic.set_properties([("a".to_owned(), Some("1".to_owned()))]));
    assert!(is_pending(&mut setting));
    drop(setting);
    assert_eq!((topic.retention(), topic.properties().await.len()), (Retention::FOREVER, 0));
    append(&topic, 10).await;
    drop(topic);
    let topic = region.topic().await;
    assert_eq!((topic.retention(), topic.properties().await.len()), (Retention::FOREVER, 0));
}

#[tokio::test(start_paused = true)]
async fn deletions_that_a_crash_cut_off_are_made_up_by_the_next_owner() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::NONE)).await;
    let cursor = cursor(&topic).await;
    let positions = append(&topic, 10).await;
    let first = positions[0].ledger;
    // The record stops listing it, and then nothing is heard of the ledger's own record.
    region.store.refuse_deletes(true);
    cursor.mark_delete(positions[9]).await.unwrap();
    trimmed_to(&topic, 8).await;
    drop((topic, cursor));
    assert!(exists(&region, first.get()).await);
    let record = region.store.get(TOPIC).await.unwrap().unwrap();
    let noted = format!("{},{}", first, positions[4].ledger);
    assert!(String::from_utf8_lossy(&record.value).contains(&noted));
    region.store.refuse_deletes(false);
    let _topic = region.topic_with(config(Retention::FOREVER)).await;
    while exists(&region, first.get()).await {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_is_not_open_holds_back_what_its_newest_state_may_need() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::FOREVER)).await;
    let positions = append(&topic, 10).await;
    let cursor = cursor(&topic).await;
    cursor.mark_delete(positions[8]).await.unwrap();
    // Durable, and the record still says that 9 are acknowledged.
    cursor.reset(StartAt::Earliest, |_| ()).await.unwrap();
    drop((topic, cursor));
    let topic = region.topic_with(config(Retention::NONE)).await;
    assert_eq!(topic.trim().await, Ok(0));
    let cursor = super::cursor(&topic).await;
    assert_eq!(cursor.backlog(), 10);
    // What is kept lies behind mark-delete, and neither may go.
    let keep = |progress: &mut Progress| {
        progress.kept.insert(positions[9], KeptEntry::Quarantined);
    };
    cursor.store_progress(keep).await.unwrap();
    cursor.mark_delete(positions[2]).await.unwrap();
    cursor.close().await.unwrap();
    drop(topic);
    let topic = region.topic_with(config(Retention::NONE)).await;
    assert_eq!(topic.trim().await, Ok(0), "entry 3 is not acknowledged");
}

#[tokio::test]
async fn property_names_of_the_topics_own_are_refused() {
    let topic = Region::new().topic().await;
    let change = [("georepl.deleting".to_owned(), Some("5".to_owned()))];
    let error = topic.set_properties(change).await.unwrap_err();
    assert!(error.to_string().contains("georepl.deleting"), "{error}");
    assert_eq!(error.advice(), Advice::GiveUp);
}

#[tokio::test]
async fn a_closed_topic_is_not_terminated() {
    let topic = Region::new().topic().await;
    topic.close().await.unwrap();
    let error = topic.terminate().await.unwrap_err();
    assert!(error.to_string().contains("was not terminated"), "{error}");
    assert!(!topic.is_terminated());
}

/// Appends, reads, acknowledges, resets and opens cursors at the same time, on several threads. It ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn topics_and_cursors_do_not_wait_for_each_other_in_a_circle() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::NONE)).await;
    let publishing = tokio::spawn({
        let topic = topic.clone();
        async move {
            for _ in 0..100 {
                append(&topic, 7).await;
            }
        }
    });
    let followers = (0..4).map(|n| {
        let topic = topic.clone();
        tokio::spawn(async move {
            let name = format!("c{n}");
            for round in 0..60 {
                let cursor = ManagedCursor::open(&topic, &name, StartAt::Earliest).await.unwrap();
                let _ = cursor.read_entries(LIMITS).await;
                cursor.acknowledge(cursor.read_position(), None).unwrap();
                match round % 3 {
                    0 => drop(cursor.reset(StartAt::Latest, |_| ()).await.unwrap()),
                    1 => drop(cursor.seek(StartAt::Latest)),
                    _ => cursor.close().await.unwrap(),
                }
                let _ = topic.internal_stats();
            }
        })
    });
    let followers: Vec<_> = followers.collect();
    let all = async {
        publishing.await.unwrap();
        for follower in followers {
            follower.await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("nobody waits for ever");
    assert_eq!(topic.end(), Offset::new(700));
}

#[tokio::test(start_paused = true)]
async fn publishers_are_held_at_the_quota_until_the_slowest_cursor_moves() {
    let region = Region::new();
    let quota = BacklogQuota { bytes: 30, beyond: BeyondQuota::Hold };
    let config = ManagedLedgerConfig { backlog_quota: Some(quota), ..Default::default() };
    let topic = region.topic_with(config).await;
    let cursor = cursor(&topic).await;
    let positions = append(&topic, 5).await;
    let mut publish = Box::pin(topic.append("more".into()));
    assert!(publish.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    cursor.mark_delete(positions[0]).await.unwrap();
    publish.await.unwrap();
    assert_eq!(topic.end(), Offset::new(6));
    let waiting = tokio::spawn({
        let topic = topic.clone();
        async move { topic.append("never".into()).await }
    });
    tokio::task::yield_now().await;
    topic.close().await.unwrap();
    let refused = waiting.await.unwrap().unwrap_err();
    assert!(matches!(refused, AppendError::Refused(Refusal::Closed { .. })), "{refused}");
}

/// An owner that crashed had acknowledged all, in the cursor's ledger: that is found when the cursor is opened, which
/// then moves no more.
#[tokio::test(start_paused = true)]
async fn cursor_that_is_found_to_have_read_all_lets_publishers_go_on_and_ledgers_go() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::FOREVER)).await;
    let cursor = cursor(&topic).await;
    let positions = append(&topic, 10).await;
    cursor.mark_delete(positions[9]).await.unwrap();
    drop((cursor, topic));
    let quota = BacklogQuota { bytes: 30, beyond: BeyondQuota::Hold };
    let config = ManagedLedgerConfig { backlog_quota: Some(quota), ..config(Retention::NONE) };
    let topic = region.topic_with(config).await;
    let mut publish = Box::pin(topic.append("more".into()));
    assert!(is_pending(&mut publish), "nobody knows what the cursor has read");
    let cursor = super::cursor(&topic).await;
    tokio::time::timeout(Duration::from_secs(60), publish).await.expect("it goes on").unwrap();
    trimmed_to(&topic, 8).await;
    assert_eq!(cursor.backlog(), 1);
}

#[tokio::test(start_paused = true)]
async fn ledgers_of_an_idle_topic_go_when_its_store_answers_again() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::NONE)).await;
    let cursor = cursor(&topic).await;
    let positions = append(&topic, 10).await;
    region.store.refuse(Some(TOPIC));
    cursor.mark_delete(positions[9]).await.unwrap();
    others_run().await;
    assert_eq!(topic.start(), Offset::ZERO);
    region.store.refuse(None);
    let again = tokio::time::timeout(Duration::from_secs(60), async {
        while topic.start() < Offset::new(8) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    again.await.expect("they are deleted");
}

#[tokio::test]
async fn publishers_are_refused_at_the_quota_if_the_topic_is_set_to() {
    let region = Region::new();
    let quota = BacklogQuota { bytes: 30, beyond: BeyondQuota::Refuse };
    let config = ManagedLedgerConfig { backlog_quota: Some(quota), ..Default::default() };
    let topic = region.topic_with(config).await;
    append(&topic, 5).await;
    append(&topic, 5).await;
    let cursor = cursor(&topic).await;
    let error = topic.append("more".into()).await.unwrap_err();
    assert!(error.to_string().contains("a backlog of 70 bytes"), "{error}");
    assert_eq!(error.advice(), Advice::Retry);
    cursor.clear_backlog().await.unwrap();
    topic.append("more".into()).await.unwrap();
}

#[tokio::test]
async fn a_terminated_topic_keeps_its_end_and_its_readers_learn_of_it() {
    let region = Region::new();
    let topic = region.topic().await;
    let waiting = cursor(&topic).await;
    let (read, last) = tokio::join!(waiting.read_entries_or_wait(LIMITS), topic.terminate());
    assert_eq!((read, last), (Err(ReadEntriesError::Terminated), Ok(None)));
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 6).await;
    assert_eq!(topic.terminate().await, Ok(Some(positions[5])));
    assert_eq!(topic.terminate().await, Ok(Some(positions[5])), "may be called again");
    let refused = topic.append("x".into()).await.unwrap_err();
    assert!(matches!(refused, AppendError::Refused(Refusal::Terminated { .. })), "{refused}");
    assert_eq!(refused.advice(), Advice::GiveUp);
    topic.close().await.unwrap();

    let topic = region.topic().await;
    assert!(topic.is_terminated());
    assert!(topic.append("x".into()).await.is_err());
    let cursor = cursor(&topic).await;
    assert_eq!(offsets(&cursor.read_entries(LIMITS).await.unwrap()), [0, 1, 2, 3, 4, 5]);
    let end = cursor.read_entries_or_wait(LIMITS).await.unwrap_err();
    let terminated = ReadRefused::Terminated { end: Offset::new(6) };
    assert_eq!(end, ReadEntriesError::Refused(terminated));
}

#[tokio::test]
async fn properties_are_durable_and_survive_rollovers() {
    let region = Region::new();
    let topic = region.topic().await;
    let set = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
    topic.set_properties([set("owner", "billing"), set("tier", "1")]).await.unwrap();
    append(&topic, 10).await;
    topic.set_properties([("tier".to_owned(), None)]).await.unwrap();
    drop(topic);
    let topic = region.topic().await;
    let properties = topic.properties().await;
    assert_eq!(properties.into_iter().collect::<Vec<_>>(), [("owner".into(), "billing".into())]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_while_a_property_changes_does_not_fence_the_topic() {
    for silence in [Silence::Made, Silence::Late] {
        let region = Region::new();
        let topic = region.topic().await;
        region.store.keep_silent(TOPIC, silence);
        let set = |value: &str| [("a".to_owned(), Some(value.to_owned()))];
        let first = topic.set_properties(set("1")).await;
        match silence {
            Silence::Made => assert_eq!(first, Ok(())),
            Silence::Late => {
                assert_eq!(first.unwrap_err().advice(), Advice::Retry);
                assert_eq!(topic.properties().await.get("a"), None, "it is not shown before");
            }
        }
        topic.set_properties(set("2")).await.unwrap();
        append(&topic, 10).await;
        assert_eq!(topic.properties().await["a"], "2", "{silence:?}");
    }
}

#[tokio::test]
async fn a_deleted_topic_is_gone_with_its_cursors_and_ledgers_and_may_be_made_anew() {
    let region = Region::new();
    let topic = region.topic().await;
    let positions = append(&topic, 10).await;
    let cursor = cursor(&topic).await;
    cursor.mark_delete(positions[2]).await.unwrap();
    topic.delete().await.unwrap();
    assert_eq!(region.store.children(TOPIC).await.unwrap(), Vec::<String>::new());
    assert_eq!(region.store.get(TOPIC).await.unwrap(), None);
    for ledger in 0..8 {
        while exists(&region, ledger).await {
            tokio::task::yield_now().await;
        }
    }
    let topic = region.topic().await;
    assert_eq!((topic.name(), topic.end()), (NAME, Offset::ZERO));
    assert_eq!(super::cursor(&topic).await.backlog(), 0);
}

#[tokio::test]
async fn empty_ledgers_of_earlier_owners_are_not_kept() {
    let region = Region::new();
    for _ in 0..3 {
        region.topic().await.close().await.unwrap();
    }
    let topic = region.topic().await;
    let position = topic.append("x".into()).await.unwrap();
    assert_eq!(topic.internal_stats().ledgers.len(), 1);
    assert_eq!(position.entry, EntryId::FIRST);
    while exists(&region, position.ledger.get() - 1).await {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_reader_counts_what_is_deleted_under_it_as_read() {
    let region = Region::new();
    let topic = region.topic_with(config(Retention::NONE)).await;
    append(&topic, 3).await;
    let reader = ManagedCursor::reader(&topic, StartAt::Earliest).unwrap();
    let positions = append(&topic, 7).await;
    trimmed_to(&topic, 8).await;
    assert_eq!(reader.backlog(), 2, "what is left");
    let read = reader.read_entries(LIMITS).await.unwrap();
    assert_eq!(read.iter().map(|entry| entry.position).collect::<Vec<_>>(), positions[5..]);
}
