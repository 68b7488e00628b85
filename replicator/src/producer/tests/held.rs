//! A topic that is at its backlog quota, and holds its publishers.

use georepl_cursor::{BacklogQuota, BeyondQuota, ManagedCursor, StartAt};

use tokio::runtime::Handle;

use super::*;

const QUOTA_BYTES: u64 = 2_000;

/// A topic with a quota far below what is appended between two checkpoints.
async fn region() -> Region {
    let mut region = Region::new().await;
    let quota = BacklogQuota { bytes: QUOTA_BYTES, beyond: BeyondQuota::Hold };
    let config = ManagedLedgerConfig { backlog_quota: Some(quota), ..Region::log_config() };
    region.reopen_with(config).await;
    region
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(60), future).await;
    waited.expect("nobody waits for ever")
}

async fn opened(region: &Region, ear: &Ear, counter: u64) -> OpenedSession {
    let remote = region.remote();
    within(remote.open(opening(id(counter)), ear.events(id(counter)))).await.unwrap()
}

fn one(entry: u64) -> Vec<Outgoing<Prepared>> {
    vec![send(entry.checked_sub(1).filter(|before| *before > 0), entry)]
}

/// A session that is open and sends an entry, which the topic does not take.
async fn held(region: &Region, ear: &Ear, counter: u64, entry: u64) -> OpenedSession {
    let mut session = opened(region, ear, counter).await;
    session.session.submit(one(entry));
    assert_eq!(ear.not_writable().await, id(counter));
    session
}

impl Ear {
    async fn not_writable(&self) -> SessionId {
        let said = self.next().await;
        let [(session, SessionEvent::NotWritable(_))] = said[..] else { panic!("{said:?}") };
        session
    }
}

/// Fills the topic for a reader of it, who acknowledges nothing, by way of a session.
async fn filled(region: &Region, ear: &Ear) -> (Arc<ManagedCursor>, OpenedSession, u64) {
    let reader = ManagedCursor::open(region.topic.ledger(), "reader", StartAt::Earliest).await;
    let mut session = opened(region, ear, 1).await;
    let mut entry = 0;
    while region.topic.ledger().backlog_full().is_none() {
        entry += 1;
        session.session.submit(one(entry));
        ear.receipts(id(1), 1).await;
    }
    (reader.unwrap(), session, entry)
}

#[tokio::test]
async fn what_is_kept_for_sources_holds_nobody_however_small_the_quota() {
    let region = region().await;
    let ear = Ear::default();
    let mut session = opened(&region, &ear, 1).await;
    for entry in 1..=40 {
        session.session.submit(one(entry));
        assert_eq!(ear.receipts(id(1), 1).await, [Receipt::Published(at(entry))]);
        within(region.topic.publish(stored_at_source(0))).await.unwrap();
    }
    let keeper = ManagedCursor::open(region.topic.ledger(), KEEPER, StartAt::Earliest).await;
    let kept = keeper.unwrap().mark_delete_offset();
    assert!(region.topic.ledger().end().since(kept) > 70, "no checkpoint was due");
}

#[tokio::test]
async fn session_at_a_full_topic_says_why_and_goes_on_when_the_reader_has() {
    let region = region().await;
    let ear = Ear::default();
    let (reader, mut session, last) = filled(&region, &ear).await;
    session.session.submit(one(last + 1));
    let said = ear.next().await;
    let [(of, SessionEvent::NotWritable(why))] = &said[..] else { panic!("{said:?}") };
    assert_eq!(*of, id(1));
    assert!(why.contains(TOPIC) && why.contains("its quota is 2000;"), "{why}");

    reader.clear_backlog().await.unwrap();
    assert_eq!(ear.receipts(id(1), 1).await, [Receipt::Published(at(last + 1))]);
}

/// However often its source gives up, or only opens another one.
#[tokio::test]
async fn sessions_that_are_over_wait_for_no_full_topic() {
    let region = region().await;
    let ear = Ear::default();
    let (reader, first, last) = filled(&region, &ear).await;
    drop(first);
    let tasks = || Handle::current().metrics().num_alive_tasks();
    // Two cursors may be being stored, and one session may wait.
    let few = tasks() + 3;
    for counter in 2..10 {
        drop(held(&region, &ear, counter, last + 1).await);
    }
    settle("nobody waits", || tasks() <= few).await;
    let mut sessions = Vec::new();
    for counter in 10..20 {
        let mut session = opened(&region, &ear, counter).await;
        if !sessions.is_empty() {
            assert_eq!(ear.lost().await, id(counter - 1));
        }
        session.session.submit(one(last + 1));
        assert_eq!(ear.not_writable().await, id(counter));
        sessions.push(session);
    }
    settle("only the newest waits", || tasks() <= few).await;
    drop(sessions);
    reader.clear_backlog().await.unwrap();
    assert_eq!(region.payloads().await.len() as u64, last, "none of them has landed");
}
